# SPDX-License-Identifier: Apache-2.0
"""Mutants of ``bk_core/metadata``."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HANDLER = "bk_core/metadata/zookeeper/session.py"
_SESSION = "bk_core/metadata/zookeeper/session.py"
_BOOKIES = "bk_core/metadata/tree/cluster/bookies.py"
_IDS = "bk_core/metadata/tree/ids.py"
_LEDGERS = "bk_core/metadata/tree/ledgers.py"
_WATCHES = "bk_core/metadata/tree/watches.py"
_CONTRACT = "tests/contracts/test_metadata_"
_BOUNDS = "tests/metadata/test_zookeeper_bounds.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="connect-as-long-as-kazoo-likes",
        path=_HANDLER,
        old='{**options, "timeout": self._attempt_s}',
        new="options",
        tests=(f"{_BOUNDS}mute_and_gone_hosts_before_the_one_that_serves_leave_time_for_it",),
        breaks="one host that is gone outlasts the deadline of every call",
    ),
    Mutant(
        name="greet-as-long-as-kazoo-likes",
        path=_HANDLER,
        old="if not self._is_connected():",
        new="if False:",
        tests=(f"{_BOUNDS}server_that_is_mute_once_while_we_connect_is_asked_again",),
        breaks="a server that is starting fails every call of the first ten seconds",
    ),
    Mutant(
        name="attempt-longer-than-a-session-survives",
        path=_SESSION,
        old="return min(max(timeout_s / 4, _ATTEMPT_MIN_S), session_timeout_s / 3)",
        new="return max(timeout_s / 4, _ATTEMPT_MIN_S)",
        tests=(f"{_BOUNDS}bookie_keeps_its_session_and_registration_past_a_mute_server",),
        breaks="a bookie loses its registration to one mute server",
    ),
    Mutant(
        name="silent-connection-is-waited-for",
        path=_SESSION,
        old="                self._handler.cut_if_silent(self._silence_s)\n",
        new="                pass\n",
        tests=(f"{_BOUNDS}connection_that_went_silent_costs_a_read_a_third_of_its_deadline",),
        breaks="a firewall that forgot a connection costs a read its whole deadline",
    ),
    Mutant(
        name="slow-answer-breaks-the-connection",
        path=_HANDLER,
        old="        if self._socket in ready[0]:\n            self._heard = time.monotonic()\n",
        new="",
        tests=(f"{_BOUNDS}read_behind_many_slow_answers_does_not_break_the_connection",),
        breaks="a busy server is taken for a dead one, and every write under way is unknown",
    ),
    Mutant(
        name="reads-queue-up-without-a-connection",
        path=_SESSION,
        old="            self._await_connection(batch[0], deadline)\n",
        new="            self._check_usable()\n",
        tests=(f"{_BOUNDS}many_reads_during_an_outage_end_at_their_deadline",),
        breaks="planning hangs for as long as ZooKeeper is away, whatever its deadline",
    ),
    Mutant(
        name="dead-connection-thread-stays-dead",
        path=_SESSION,
        old="            self._events.submit(self._revive, _REVIVE_S)\n\n    def _revive",
        new="            pass\n\n    def _revive",
        tests=(f"{_BOUNDS}session_whose_thread_dies_again_and_again_is_made_again",),
        breaks="a client that once had no free file descriptor never reaches ZooKeeper again",
    ),
    Mutant(
        name="revived-once-only",
        path=_SESSION,
        old="                self._events.submit(self._revive, _REVIVE_S)\n\n    def close",
        new="                pass\n\n    def close",
        tests=(f"{_BOUNDS}session_whose_new_beginning_fails_is_tried_again",),
        breaks="a client whose new beginning failed once stays broken for ever",
    ),
    Mutant(
        name="registers-again-once-only",
        path=_BOOKIES,
        old="            self._registrar.submit(self._retry_registering, self._retry_s)\n",
        new="",
        tests=(f"{_CONTRACT}bookies_contract.py::test_bookie_that_could_not_register_again_tries_until_it_can",),
        breaks="one failed registration after a lost session hides a bookie for good",
    ),
    Mutant(
        name="registers-again-unless-surprised",
        path=_BOOKIES,
        old='        except Exception:\n            logger.exception("a bookie could not',
        new='        except OSError:\n            logger.exception("a bookie could not',
        tests=(f"{_CONTRACT}bookies_contract.py::test_bookie_that_could_not_register_again_tries_until_it_can",),
        breaks="an error that nobody foresaw hides a bookie for good",
    ),
    Mutant(
        name="second-retry-of-registering-is-forgotten",
        path=_BOOKIES,
        old="        self._retry_waits = False\n        self._register_again()\n",
        new="        self._register_again()\n",
        tests=(f"{_CONTRACT}bookies_contract.py::test_bookie_that_could_not_register_again_tries_until_it_can",),
        breaks="two failed registrations after a lost session hide a bookie for good",
    ),
    Mutant(
        name="session-lost-while-registering",
        path=_BOOKIES,
        old="            if self._registered[info.bookie_id][2] != self._tree.session_id:  # lost while we registered\n"
        "                self._registrar.submit(self._register_again)\n",
        new="",
        tests=(f"{_CONTRACT}bookies_contract.py::test_session_lost_while_registering_does_not_leave_the_bookie_out",),
        breaks="a bookie whose session ended while it registered goes when that session does",
    ),
    Mutant(
        name="node-of-a-dead-session-taken-for-ours",
        path=_BOOKIES,
        old="elif found[1].owner != self._tree.session_id:",
        new="elif found[1].owner < 0:",
        tests=(
            f"{_CONTRACT}bookies_contract.py::test_bookie_registers_again_after_its_session_was_lost",
            f"{_CONTRACT}bookies_contract.py::test_restarted_bookie_replaces_the_node_its_killed_process_left",
        ),
        breaks="a restarted bookie vanishes when the session of its killed process ends",
    ),
    Mutant(
        name="lost-registration-is-not-looked-at",
        path=_BOOKIES,
        old="                lost = first_loss(lost, error)  # read again: a node of this session is ours\n",
        new="                raise error\n",
        tests=(f"{_CONTRACT}bookies_contract.py::test_moving_to_read_only_survives_lost_answers",),
        breaks="a bookie's start or move fails of one lost answer",
    ),
    Mutant(
        name="unanswered-look-at-a-log-says-not-applied",
        path="bk_core/metadata/tree/base.py",
        old="        raise lost from error\n",
        new="        raise\n",
        tests=(
            f"{_CONTRACT}bookies_contract.py::test_cookie_whose_lost_answer_cannot_be_looked_at_is_unknown",
            f"{_CONTRACT}logs_contract.py::test_log_whose_lost_answer_cannot_be_looked_at_is_unknown",
        ),
        breaks="a write that was made is reported as not applied",
    ),
    Mutant(
        name="unanswered-second-try-says-not-applied",
        path="bk_core/metadata/tree/base.py",
        old="    if lost is None and error.outcome is Outcome.NOT_APPLIED:",
        new="    if error.outcome is Outcome.NOT_APPLIED:",
        tests=(f"{_CONTRACT}bookies_contract.py::test_cookie_whose_lost_answer_cannot_be_looked_at_is_unknown",),
        breaks="a ledger or cookie that was made is reported as not applied",
    ),
    Mutant(
        name="lost-creation-is-not-looked-at",
        path="bk_core/metadata/tree/base.py",
        old="                lost = first_loss(lost, error)\n                continue\n",
        new="                raise error\n",
        tests=(f"{_CONTRACT}contract.py::test_creating_a_ledger_of_given_id_survives_a_lost_answer",),
        breaks="one lost answer fails a job whose ledger was made",
    ),
    Mutant(
        name="lost-deletion-found-gone-is-an-error",
        path="bk_core/metadata/tree/base.py",
        old="                if lost is None:\n                    raise\n                return\n",
        new="                raise\n",
        tests=(f"{_CONTRACT}contract.py::test_deleting_survives_a_lost_answer",),
        breaks="a deletion that was made is reported as: there is no such ledger",
    ),
    Mutant(
        name="unanswered-write-said-not-applied",
        path=_SESSION,
        old="KazooTimeoutError) as error:\n            raise self._unavailable(path, Outcome.UNKNOWN)",
        new="KazooTimeoutError) as error:\n            raise self._unavailable(path, Outcome.NOT_APPLIED)",
        tests=("tests/metadata/test_zookeeper_session.py::test_silent_server_ends_a_write_at_its_deadline_as_unknown",),
        breaks="a close that was applied is reported as not applied",
    ),
    Mutant(
        name="new-session-forgets-registrations",
        path=_BOOKIES,
        old="        if state is SessionState.CONNECTED and self._registered:\n",
        new="        if state is SessionState.LOST and self._registered:\n",
        tests=(f"{_CONTRACT}bookies_contract.py::test_bookie_registers_again_after_its_session_was_lost",),
        breaks="a bookie whose session expired is invisible until it is restarted",
    ),
    Mutant(
        name="lost-sequence-number-fails-the-ledger",
        path=_IDS,
        old="if error.outcome is Outcome.NOT_APPLIED:\n                    raise\n                lost = error",
        new="raise\n                lost = error",
        tests=(f"{_CONTRACT}contract.py::test_creating_a_ledger_survives_a_lost_answer_of_each_of_its_writes",),
        breaks="one lost answer fails a job before its ledger is made",
    ),
    Mutant(
        name="lost-record-is-made-under-another-id",
        path=_LEDGERS,
        old="                lost = first_loss(None, error)\n",
        new="                first_loss(None, error)\n",
        tests=(f"{_CONTRACT}contract.py::test_creating_a_ledger_together_with_its_id_survives_a_lost_answer",),
        breaks="one lost answer leaves a ledger that nobody knows of, open for ever",
    ),
    Mutant(
        name="lost-folder-fails-the-record",
        path="bk_core/metadata/tree/tree.py",
        old="        except (NoNodeError, MetadataUnavailableError):\n            if last_try:\n",
        new="        except NoNodeError:\n            if last_try:\n",
        tests=(f"{_CONTRACT}contract.py::test_creating_a_ledger_survives_a_lost_answer_of_each_of_its_writes",),
        breaks="one lost answer while a folder is made fails the ledger",
    ),
    Mutant(
        name="lost-set-of-a-cookie-is-not-looked-at",
        path="bk_core/metadata/tree/base.py",
        old="            if found != Versioned(data, version + 1):\n",
        new="            if True:\n",
        tests=(f"{_CONTRACT}bookies_contract.py::test_cookie_with_a_lost_answer_is_written_or_unknown",),
        breaks="one lost answer fails a bookie's start",
    ),
    Mutant(
        name="lost-mark-is-not-made-again",
        path="bk_core/metadata/tree/election.py",
        old="                lost = first_loss(lost, error)\n",
        new="                raise error\n",
        tests=(f"{_CONTRACT}marks_contract.py::test_marking_survives_a_lost_answer",),
        breaks="a ledger that lacks copies is left unmarked by one lost answer",
    ),
    Mutant(
        name="mark-is-removed-whatever-its-version",
        path="bk_core/metadata/tree/underreplication.py",
        old="Delete(path, version)",
        new="Delete(path)",
        tests=(f"{_CONTRACT}recovery_contract.py::test_mark_is_removed_only_in_the_version_that_was_repaired",),
        breaks="a copy that went missing during a repair is never repaired",
    ),
    Mutant(
        name="mark-is-removed-without-the-lock",
        path="bk_core/metadata/tree/underreplication.py",
        old="            if stat is None or stat.owner != self._tree.session_id:\n",
        new="            if stat is None:\n",
        tests=(f"{_CONTRACT}recovery_contract.py::test_mark_made_again_is_not_removed_by_who_lost_the_lock",),
        breaks="a slow worker removes a mark that was made after another's repair",
    ),
)
