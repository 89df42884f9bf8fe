# SPDX-License-Identifier: Apache-2.0
"""Mutants of the audit log: what is left out, told wrongly, or told too often."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOG = "bookie_server/audit.py"
_CORE = "bk_core/audit.py"
_LANES = "bookie_server/services/lane_streams.py"
_CONTROL = "bookie_server/services/control_stream.py"
_RPC = "bookie_server/services/bookie_rpc/connection.py"
_UNIT = "tests/bookie_server/test_audit.py"
_PORTS = "tests/bookie_server/services/test_audit_ports.py"
_STORE = "tests/metadata/test_audit.py"
_FLOOD = f"{_UNIT}::test_a_flood_of_different_events_writes_few_lines_and_counts_them_all"
_AGAIN = f"{_UNIT}::test_the_same_again_is_counted_and_told_after_a_minute"
_EVERY_WIRE = f"{_PORTS}::test_fences_and_recoveries_are_told_with_their_outcome_on_every_wire"
_BY_ITSELF = f"{_PORTS}::test_what_the_bookie_does_by_itself_and_by_order_is_told"
_CHANGES = f"{_STORE}::test_what_an_administrator_changes_in_the_store_is_told"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "events beyond the rate are left out",
        _LOG,
        "            known.again += 1\n",
        '            known.again += known.about.get("of") != "many"\n',
        (_FLOOD,),
        "whoever makes noise hides what he does",
    ),
    Mutant(
        "a flood of events is written line by line",
        _LOG,
        "        if self._left < 1:\n            return False\n",
        "",
        (_FLOOD,),
        "whoever asks much fills the disk",
    ),
    Mutant(
        "refusals have the room of all events",
        _LOG,
        "room = self._rooms[outcome == REFUSED]",
        "room = self._rooms[0]",
        (f"{_UNIT}::test_a_flood_of_refusals_hides_nothing_that_was_done",),
        "who may nothing else hides a fence behind refusals",
    ),
    Mutant(
        "kinds of events are remembered without a bound",
        _LOG,
        "(len(self._kinds) >= room.kinds_max or not room.takes(now_s))",
        "not room.takes(now_s)",
        (f"{_UNIT}::test_no_more_kinds_are_remembered_than_fit",),
        "whoever asks for many ledgers fills the memory",
    ),
    Mutant(
        "the outcome does not tell events apart",
        _LOG,
        "            key = did, outcome, host, *about.items()\n",
        "            key = did, host, *about.items()\n",
        (_AGAIN,),
        "a fence that held is counted as another refused one",
    ),
    Mutant(
        "what came again is forgotten at the end",
        _LOG,
        "        self.flush(all_of_them=True)\n",
        "        self.flush()\n",
        (_AGAIN,),
        "the last minute before a restart is missing",
    ),
    Mutant(
        "the file can be read by everybody",
        _CORE,
        "0o600",
        "0o644",
        (f"{_UNIT}::test_the_file_has_every_line_is_private_and_begins_anew_when_it_is_long",),
        "every user of the host reads who does what",
    ),
    Mutant(
        "lines that a slow disk has no room for are left out",
        _CORE,
        "            self._lost += 1\n",
        "            pass\n",
        (f"{_UNIT}::test_a_disk_that_stands_still_holds_nobody_up_and_what_is_lost_is_counted",),
        "nobody knows that the file is not whole",
    ),
    Mutant(
        "a slow disk holds up the bookie",
        _CORE,
        "            self._lines.put_nowait(line)\n",
        "            self._lines.put(line)\n",
        (f"{_UNIT}::test_a_disk_that_stands_still_holds_nobody_up_and_what_is_lost_is_counted",),
        "no ack leaves while the disk of the audit log stands still",
    ),
    Mutant(
        "a fencing read that was refused is told as done",
        _LANES,
        '            self.audit("fence", effect.reason, ',
        '            self.audit("fence", Reason.REASON_NONE, ',
        (f"{_PORTS}::test_fencing_reads_that_are_refused_are_told_so",),
        "a fence that was refused stands in the log as done",
    ),
    Mutant(
        "recoveries that are refused are remembered",
        _LANES,
        "        self._recovering.pop(session, None)\n        self._ended.append",
        "        self._recovering[session] = 0\n        self._ended.append",
        (f"{_PORTS}::test_recoveries_that_are_refused_leave_nothing_behind",),
        "whoever asks for recoveries without end fills the memory",
    ),
    Mutant(
        "fences of the control stream are not told",
        _CONTROL,
        '            self.audit("fence", reason, message, ledger=self._fences.pop(request))\n',
        "            self._fences.pop(request)\n",
        (_EVERY_WIRE,),
        "nobody knows who took a ledger over",
    ),
    Mutant(
        "a fence in doubt is called refused",
        _LOG,
        "_IN_DOUBT = frozenset({Reason.TIMEOUT, ",
        "_IN_DOUBT = frozenset({",
        (f"{_PORTS}::test_a_fence_whose_client_goes_away_has_an_unknown_outcome", _UNIT),
        "a ledger is fenced, and the log says that it is not",
    ),
    Mutant(
        "recovery adds of Apache's wire are not told",
        _RPC,
        "                if self._adds.recovering:\n                    self._audit_recoveries(effect)\n",
        "",
        (_EVERY_WIRE,),
        "nobody knows who wrote into a ledger that was fenced",
    ),
    Mutant(
        "what the garbage collector deletes is not told",
        "bookie_server/main.py",
        '            self._audit.ledgers(did, list(event.ledger_ids), why="garbage collection")\n',
        "            pass\n",
        (_BY_ITSELF,),
        "nobody knows when the copies of a ledger went",
    ),
    Mutant(
        "a client of the store tells nothing that failed",
        _CORE,
        "        _say(did, REFUSED if error.outcome is Outcome.NOT_APPLIED else UNKNOWN, why=error.code, **about)\n",
        "",
        (_CHANGES,),
        "nobody sees who tries to change roles",
    ),
    Mutant(
        "a change of the store whose answer was lost is called refused",
        _CORE,
        "REFUSED if error.outcome is Outcome.NOT_APPLIED else UNKNOWN",
        "REFUSED",
        (f"{_STORE}::test_a_deletion_whose_answer_is_lost_is_unknown",),
        "a ledger is gone, and the log says that it is not",
    ),
)
