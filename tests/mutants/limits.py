# SPDX-License-Identifier: Apache-2.0
"""Mutants of the limits of one client: what is counted, for whom, for how long, and what must pass nevertheless."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LIMITS = "bookie_server/services/limits.py"
_LANES = "bookie_server/services/lane_streams.py"
_CONTROL = "bookie_server/services/control_stream.py"
_RPC = "bookie_server/services/bookie_rpc/connection.py"
_RPC_ADDS = "bookie_server/services/bookie_rpc/adds.py"
_ADDS = "bookie_server/machine/adds.py"
_OWNERS = "bookie_server/machine/owners.py"
_STATE = "bookie_server/machine/state.py"
_TURNS = "bookie_server/machine/turns.py"
_HTTP = "bookie_server/web/http.py"
_TESTS = "tests/bookie_server/services/test_limits.py"
_MACHINE = "tests/bookie_server/machine/test_owners.py"
_WAITS = f"{_TESTS}::test_who_asks_more_than_a_seconds_worth_waits_until_the_debt_is_gone"
_REFUSES = f"{_TESTS}::test_what_comes_seconds_too_early_is_refused_until_it_is_not"
_EARLY = f"{_TESTS}::test_adds_that_come_far_too_early_end_their_session_as_overloaded_and_may_come_again"
_FLOOD = f"{_TESTS}::test_a_flood_is_slowed_down_and_nobodys_adds_are_lost_and_nobodys_failover_waits"
_LEDGERS = f"{_TESTS}::test_a_ledger_too_many_is_refused_as_overloaded_and_its_place_can_be_had_again"
_READS = f"{_TESTS}::test_reads_and_calls_far_too_early_are_refused_with_the_limit_and_fences_are_not"
_APACHE = f"{_TESTS}::test_apaches_wire_holds_a_connection_and_then_refuses_as_too_many_requests"
_IDLE = f"{_TESTS}::test_apaches_wire_lets_idle_ledgers_go_before_it_refuses_one"
_OWN_RECOVERY = f"{_MACHINE}::test_recoveries_of_an_owner_have_as_much_to_themselves"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "what a client did not use is kept for later",
        _LIMITS,
        "        self.debts = [max(-float(rate), debt - filled) for debt in self.debts]\n",
        "        self.debts = [debt - filled for debt in self.debts]\n",
        (_WAITS,),
        "a client that slept an hour may ask an hour's worth at once",
    ),
    Mutant(
        "recoveries pay from the bucket of adds",
        _LIMITS,
        "                account.debts[kind] += count\n",
        "                account.debts[kind] += count\n"
        "                account.debts = [max(account.debts)] * len(Kind)\n",
        (f"{_REFUSES}[{0}]", _FLOOD),
        "a flood of adds refuses the fences and recoveries of the same client",
    ),
    Mutant(
        "a debt is forgotten with the connection",
        _LIMITS,
        "            self._left[key] = account\n",
        "",
        (f"{_TESTS}::test_a_debt_outlives_the_connection_and_no_longer",),
        "who connects anew for each request has no limit",
    ),
    Mutant(
        "accounts without a stream are never dropped",
        _LIMITS,
        "            self._left.popitem(last=False)\n",
        "            return\n",
        (f"{_TESTS}::test_many_addresses_take_little_memory",),
        "an attacker with many addresses fills the memory",
    ),
    Mutant(
        "each IPv6 address is a client of its own",
        _LIMITS,
        "_ONE_HOLDER_BITS = 64\n",
        "_ONE_HOLDER_BITS = 128\n",
        (f"{_TESTS}::test_what_counts_as_one_address",),
        "who takes another address of its network for each connection has no limit",
    ),
    Mutant(
        "an exempt address is exempt from the limits of its identity",
        _LIMITS,
        '        return found if identity is None else [*found, ("principal", identity)]\n',
        '        return found if identity is None or not found else [*found, ("principal", identity)]\n',
        (f"{_TESTS}::test_who_is_exempt_by_identity_has_no_limits_and_by_address_none_of_its_address",),
        "all clients behind a proxy that is exempt have no limits",
    ),
    Mutant(
        "a stream that ends keeps its ledgers open",
        _LIMITS,
        "            self._count_ledgers(-self._ledgers[recover], recover=bool(recover))\n",
        "            pass\n",
        (f"{_TESTS}::test_ledgers_open_are_counted_over_all_streams_and_recoveries_apart",),
        "a writer that reconnects a few times can open no ledger any more",
    ),
    Mutant(
        "a session that was detached counts as open",
        _LANES,
        "                    self.share.close_ledger(recover=attached[0] == _RECOVERS)\n",
        "                    pass\n",
        (_LEDGERS,),
        "a client that writes one ledger after the other is refused for ever",
    ),
    Mutant(
        "a message that detaches and attaches is refused at the limit",
        _LANES,
        "        if self.share is not None:\n            self._forget(request.detach)",
        "        if False:\n            self._forget(request.detach)",
        (_LEDGERS,),
        "a client at its limit cannot go from one ledger to the next",
    ),
    Mutant(
        "a frame of adds costs nothing",
        _LANES,
        "self.hold(share.pay(kind, max(1, brought - self._frames_paid)))",
        "self.hold(share.pay(kind, 1))",
        (_FLOOD,),
        "a message of ten thousand frames counts as one request",
    ),
    Mutant(
        "ledgers that are opened cost nothing",
        _LANES,
        "            self.hold(self.share.pay(self._kind(self.share), len(request.attach)))\n",
        "            pass\n",
        (f"{_TESTS}::test_a_flood_of_ledgers_that_are_opened_is_slowed_down",),
        "who opens and closes ledgers without an add has no limit",
    ),
    Mutant(
        "adds that come too early are dropped in silence",
        _LANES,
        "            self._end_session(session, (Reason.OVERLOADED, why))\n        self._forget(ended)\n",
        "            pass\n        self._forget(ended)\n",
        (_EARLY,),
        "a writer waits for acks that never come",
    ),
    Mutant(
        "fences count as other calls",
        _CONTROL,
        '_KINDS = {"fence": Kind.RECOVER, "grant": Kind.RECOVER}\n',
        "_KINDS: dict[str, Kind] = {}\n",
        (_READS,),
        "a flood of calls stops the failover of the same client",
    ),
    Mutant(
        "refused adds of Apache's wire are acked",
        _RPC,
        "            self._refuse(item, wire, Status.ETOOMANYREQUESTS)\n",
        "            self._refuse(item, wire, Status.EOK)\n",
        (_APACHE,),
        "entries are confirmed that nobody has",
    ),
    Mutant(
        "an add that comes alone is not counted on Apache's wire",
        _RPC,
        "lone is not None and (self._share is None or",
        "lone is not None and (True or",
        (_APACHE,),
        "who sends one add at a time has no limit",
    ),
    Mutant(
        "Apache's wire is read on above a limit",
        _RPC,
        "            self._held = True\n",
        "",
        (_APACHE,),
        "a client hears refusals where it could have been slowed down",
    ),
    Mutant(
        "idle ledgers of Apache's clients stay open",
        _RPC_ADDS,
        "            self._drop(idle)\n",
        "            break\n",
        (_IDLE,),
        "a Java client that has written as many ledgers as the limit says is refused for ever",
    ),
    Mutant(
        "streams of an owner with too much in flight are read on",
        _ADDS,
        "        elif stream.owners and any(owner.full(**stream.sends) for owner in stream.owners):\n",
        "        elif False:\n",
        (_MACHINE,),
        "one client fills the room of all",
    ),
    Mutant(
        "an owner's adds hold up its recoveries",
        _STATE,
        '        return {"normal": not self.recovering or self.normal_bytes > 0, "recovery": self.recovering > 0}\n',
        '        return {"normal": True, "recovery": self.recovering > 0}\n',
        (_OWN_RECOVERY,),
        "a client that floods cannot recover its own ledgers",
    ),
    Mutant(
        "a session that recovers lifts the bound of the adds beside it",
        _STATE,
        '        return {"normal": not self.recovering or self.normal_bytes > 0, "recovery": self.recovering > 0}\n',
        '        return {"normal": not self.recovering, "recovery": self.recovering > 0}\n',
        (f"{_MACHINE}::test_a_session_that_recovers_does_not_lift_the_bound_of_the_adds_beside_it",),
        "one attach in mode RECOVER turns the limit off",
    ),
    Mutant(
        "an owner is forgotten with its last stream",
        _OWNERS,
        "        if not (owner.streams or owner.normal or owner.recovery or owner.answers):\n",
        "        if not owner.streams:\n",
        (f"{_MACHINE}::test_what_a_closed_stream_left_in_flight_still_counts_and_then_nothing_is_remembered",),
        "who connects again for each message has no limit",
    ),
    Mutant(
        "answers that an owner does not take are not bounded",
        _TURNS,
        "        if stream is not None and not urgent and any(",
        "        if False and any(",
        (f"{_MACHINE}::test_answers_that_an_owner_does_not_take_are_bounded_but_for_recovery_reads",),
        "one client that reads and takes nothing holds the memory for all answers",
    ),
    Mutant(
        "the admin port counts no requests",
        _HTTP,
        "        share.pay(Kind.ASK, 0 if why else 1)\n",
        "",
        ("tests/bookie_server/web/test_admin.py::test_who_asks_the_admin_port_too_often_waits_and_probes_do_not",),
        "one client that asks again and again keeps the admin port from others",
    ),
)
