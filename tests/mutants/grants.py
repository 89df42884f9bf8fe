# SPDX-License-Identifier: Apache-2.0
"""Mutants of mode ``secure``: roles, grants, and the gates of the ports."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROLES, _GRANTS = "bk_core/security/roles.py", "bk_core/security/grants.py"
_GATE, _STREAMS = "bookie_server/services/gate.py", "bookie_server/services/lane_streams.py"
_APACHE = "bookie_server/services/bookie_rpc/connection.py"
_OF_ROLES, _OF_GRANTS = "tests/security/test_roles.py::", "tests/security/test_grants.py::"
_SECURE = "tests/bookie_server/services/test_secure.py::"
_TIMES = (f"{_OF_GRANTS}test_a_grant_is_good_for_one_cluster_one_identity_and_a_time",)
_NOTHING = (f"{_SECURE}test_nothing_of_our_lanes_is_done_without_a_role_or_without_a_grant",)

_AUTHORITY, _OF_AUTHORITY = "bookie_server/services/authority.py", "tests/bookie_server/services/test_authority.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "that a ledger is not there yet is kept",
        _AUTHORITY,
        "            return LedgerFacts(ledger_id)\n        except",
        "            found = {}\n        except",
        (f"{_OF_AUTHORITY}test_who_asks_for_a_ledger_to_come_does_not_have_its_writer_denied",),
        "who may nothing keeps writers from new ledgers",
    ),
    Mutant(
        "one identity asks for as many grants as all together",
        _AUTHORITY,
        " or making[identity] >= MAKING_MAX // 2:",
        ":",
        (f"{_OF_AUTHORITY}test_one_identity_does_not_take_the_grants_of_all",),
        "who may nothing keeps others from fencing",
    ),
    Mutant(
        "a grant of another cluster counts", _GRANTS, "if found.instance_id != instance_id:", "if False:", _TIMES, "x"
    ),
    Mutant(
        "a grant of another identity counts", _GRANTS, "if found.identity != identity:", "if False:", _TIMES, "replay"
    ),
    Mutant("a grant counts before its time", _GRANTS, "if now_ms < found.from_ms:", "if False:", _TIMES, "clocks"),
    Mutant("a grant never ends", _GRANTS, "if now_ms >= found.until_ms:", "if False:", _TIMES, "a role lives on"),
    Mutant(
        "a signature is not looked at",
        _GRANTS,
        'if not hmac.compare_digest(hmac.digest(key, said, "sha256"), mac):',
        "if False:",
        (f"{_OF_GRANTS}test_every_changed_byte_and_every_cut_is_refused",),
        "anybody makes grants",
    ),
    Mutant(
        "the last key signs",
        _GRANTS,
        "self._signing = keys[0]",
        "self._signing = keys[-1]",
        (f"{_OF_GRANTS}test_keys_are_changed_with_an_overlap",),
        "a key cannot be taken away",
    ),
    Mutant(
        "nobody in particular has the roles of everybody",
        _ROLES,
        "        if identity:\n",
        "        if True:\n",
        (f"{_OF_ROLES}test_nobody_may_anything_that_no_line_gives",),
        "who has no identity has a right",
    ),
    Mutant(
        "a role on a log counts on the cluster",
        _ROLES,
        "    if target is Anywhere.CLUSTER:\n        return False\n",
        "    if target is Anywhere.CLUSTER:\n        return True\n",
        (f"{_OF_ROLES}test_a_role_counts_where_it_was_given",),
        "a reader of one log reads all over Apache's wire",
    ),
    Mutant(
        "an attach is not asked",
        _STREAMS,
        "if (self.gate is None and self.share is None) or self._may_attach(attach):",
        "if True:",
        _NOTHING,
        "anybody writes",
    ),
    Mutant(
        "a read is not asked",
        _STREAMS,
        "self._problem(request) if self.gate is not None or self.share is not None else None",
        "None",
        _NOTHING,
        "anybody reads",
    ),
    Mutant(
        "a fencing read needs no more than a plain one",
        _STREAMS,
        '"id fence" if request.fence else "id"',
        '"id"',
        (f"{_SECURE}test_a_grant_to_read_is_good_for_nothing_else",),
        "a reader fences",
    ),
    Mutant(
        "a session outlives its grant",
        _STREAMS,
        "        self._look_at(attach.ledger_id)\n        return True\n",
        "        return True\n",
        (f"{_SECURE}test_a_running_writer_renews_its_grant_and_ends_with_its_role",),
        "a removed role ends nothing",
    ),
    Mutant(
        "a call is not asked",
        "bookie_server/services/control_stream.py",
        "if (self.gate is not None or self.share is not None) and (refused",
        "if self.share is not None and (refused",
        _NOTHING,
        "anybody fences",
    ),
    Mutant(
        "Apache's wire: no role is asked for",
        _APACHE,
        "elif self._facts.authority is not None and not self._may(item):",
        "elif False:",
        (f"{_SECURE}test_apaches_wire_needs_roles_on_the_cluster",),
        "Apache's clients do anything",
    ),
    Mutant(
        "a client told secure takes an open bookie",
        "bk_core/transport/lane_streams.py",
        "if self._secure and not answer.secure:",
        "if False:",
        (f"{_SECURE}test_a_client_that_was_told_secure_refuses_an_open_bookie",),
        "a downgrade is not noticed",
    ),
    Mutant(
        "a ledger that its writer may not write to stays",
        "bk_core/client/bookkeeper.py",
        "                await asyncio.to_thread(self.store.delete_ledger, ledger_id, created.version)\n",
        "                pass\n",
        (f"{_SECURE}test_an_application_is_told_who_may_not_do_what_and_the_remedy",),
        "empty records pile up",
    ),
    Mutant(
        "a tail goes on when its role has ended",
        "bk_core/client/lac.py",
        "            if isinstance(event, ev.LacFailed) and event.reason is Reason.PERMISSION_DENIED:\n",
        "            if False:\n",
        (f"{_SECURE}test_a_tail_ends_with_the_typed_error_when_its_role_does",),
        "it waits for ever, and nobody is told",
    ),
    Mutant(
        "a bookie that makes no grant is waited for",
        "bk_core/transport/wallet.py",
        "if running is None or waited:",
        "if running is None:",
        ("tests/transport/test_wallet.py::test_a_bookie_that_keeps_silent_does_not_keep_others_from_being_asked",),
        "a bookie that hangs stops all new ledgers",
    ),
    Mutant(
        "a certificate that ends soon is used again",
        "bk_cli/local_security.py",
        "if found is None or _ends_within(found, RENEW_DAYS):",
        "if found is None:",
        ("tests/cli/test_local_security.py::test_what_ends_soon_is_made_anew_and_with_a_new_authority_all_of_it",),
        "a local cluster ends after a year",
    ),
)
