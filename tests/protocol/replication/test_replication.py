# SPDX-License-Identifier: Apache-2.0
"""The repair of a ledger, event by event: what is copied where, when the record changes, what blocks or is fenced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import decode_frame, encode_frame
from bk_core.errors import MetadataUnavailableError, NoSuchLedgerError, Outcome
from bk_core.model import DigestType, Fragment, LedgerMetadata, LedgerState, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.replication import events as re
from bk_core.protocol.replication.machine import LedgerReplication, Phase
from bk_core.protocol.replication.requests import ReplicationConfig
from bk_core.wire.lane.reasons import EntryRange, Reason
from tests.kit.memory_store import MemoryStore

LEDGER = 7
DIGESTER = Digester(DigestType.CRC32C, b"pw", LEDGER)
ENTRIES = [b"%d" % entry for entry in range(12)]


def a_record(*fragments: Fragment, closed_at: int | None = 11, version: int = 3) -> Versioned[LedgerMetadata]:
    state = LedgerState.OPEN if closed_at is None else LedgerState.CLOSED
    value = LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        fragments=fragments or (Fragment(0, ("b1", "b2", "b3")),),
        state=state,
        last_entry_id=-1 if closed_at is None else closed_at,
        password=b"pw",
    )
    return Versioned(value, version)


def frame_of(first: int, last: int) -> bytes:
    batch = EntryBatch.from_list(ENTRIES[first : last + 1])
    before = sum(map(len, ENTRIES[:first]))
    frame = encode_frame(
        batch, digester=DIGESTER, ledger_id=LEDGER, first_entry_id=first, lac=first - 1, length_before=before, session=0
    )
    return bytes(frame)


class Repair:
    """Drives the machine: a store with one record, bookies with the entries that ``has`` says, a budget that grants."""

    def __init__(self, record: Versioned[LedgerMetadata], missing: tuple[str, ...], **cluster: Any) -> None:
        self.record, self.cluster = record, re.ClusterRead(**{"writable": ("b1", "b2", "b3", "b4"), **cluster})
        self.has = {bookie: set(range(12)) for bookie in ("b1", "b2", "b3")}
        self.limbo: set[str] = set()
        self.acks = self.grants = True
        self.seen: list[Any] = []
        self.waiting: list[Any] = []
        sessions = iter(range(1, 1000))
        self.machine = LedgerReplication(
            LEDGER,
            missing,
            config=ReplicationConfig(copy_bytes_max=100, read_bytes_max=40, check_window_entries=4),
            new_session=sessions.__next__,
            random=Random(1),
        )

    def run(self, instead: Callable[[Any], Any] = lambda effect: None) -> Repair:
        """Run the repair. ``instead`` sees each effect first, and may answer it."""
        self.instead = instead
        self.carry(self.machine.start())
        return self

    def feed(self, event: Any) -> None:
        self.carry(self.machine.step(event))

    def carry(self, effects: list[Any]) -> None:
        self.seen += effects
        for effect in effects:
            event = self.instead(effect) or self.answer(effect)
            if event is not None:
                self.feed(event)

    def answer(self, effect: Any) -> Any:
        match effect:
            case re.ReadRecord():
                return ev.MetadataRead(self.record)
            case re.ReadCluster():
                return self.cluster
            case re.SpendBudget() if self.grants:
                return re.BudgetGranted()
            case ev.SendRead():
                return self.read(effect)
            case ev.SendFrame():
                if self.acks:
                    return self.ack(effect)
                self.waiting.append(effect)
            case ev.WriteMetadata(metadata, version):
                if version != self.record.version:
                    return ev.MetadataConflicted()
                self.record = Versioned(metadata, version + 1)
                return ev.MetadataWritten(self.record)
        return None

    def ack(self, effect: ev.SendFrame) -> ev.FramesAcked:
        self.has.setdefault(effect.bookie, set()).update(decode_frame(effect.frame).entry_ids().tolist())
        sent = [e for e in self.of(ev.SendFrame) if e.session == effect.session]
        return ev.FramesAcked(effect.index, effect.session, sent.index(effect) + 1)

    def read(self, effect: ev.SendRead) -> Any:
        here = self.has.get(effect.bookie, set())
        ids = [entry for entry in range(effect.first, min(effect.last, 40) + 1) if entry in here]
        if ids and ids[0] == effect.first:
            last = max(entry for entry in ids if set(range(effect.first, entry + 1)) <= set(ids))
            last = min(last, effect.first + 2)  # a bookie answers what it likes to
            self.feed(ev.FramesRead(effect.request, memoryview(frame_of(effect.first, last))))
            return ev.ReadAnswered(effect.request, last)
        until = ids[0] - 1 if ids else effect.last
        gap = (EntryRange(effect.first, until, Reason.LIMBO if effect.bookie in self.limbo else Reason.REASON_NONE),)
        unknown = gap if effect.bookie in self.limbo else ()
        return ev.ReadAnswered(effect.request, until, () if unknown else gap, unknown, "LIMBO" if unknown else "")

    def of(self, kind: type) -> list[Any]:
        return [effect for effect in self.seen if isinstance(effect, kind)]

    @property
    def targets(self) -> set[str]:
        return {effect.bookie for effect in self.of(ev.SendFrame)}

    @property
    def end(self) -> Any:
        (end,) = self.of(re.FinishReplication) + self.of(re.PostponeReplication)
        assert self.seen[-1] == end
        return end


GONE = {"writable": ("b2", "b3", "b4", "b5")}
REPLICATED = re.FinishReplication(re.Outcome.REPLICATED)


@pytest.mark.rule("MUST4")
def test_lost_bookie_is_replaced_once_its_copy_is_durable_elsewhere() -> None:
    repair = Repair(a_record(), ("b1",), **GONE)
    repair.acks = False
    repair.run()
    assert repair.of(ev.WriteMetadata) == []
    assert repair.machine.phase is Phase.COPY
    (target,) = repair.targets
    assert target in ("b4", "b5")
    while repair.waiting:
        assert repair.of(ev.WriteMetadata) == []
        repair.feed(repair.ack(repair.waiting.pop(0)))
    assert repair.record.value.fragments == (Fragment(0, (target, "b2", "b3")),)
    assert repair.has[target] == set(range(12))
    assert repair.end == REPLICATED
    assert repair.machine.entries == 12


@pytest.mark.rule("P6")
def test_entries_are_copied_unchanged() -> None:
    repair = Repair(a_record(), ("b1",), **GONE).run()
    sent = [decode_frame(effect.frame) for effect in repair.of(ev.SendFrame)]
    read = [decode_frame(frame_of(first, first + 2)) for first in (0, 3, 6, 9)]
    assert [batch.to_list() for batch in sent] == [batch.to_list() for batch in read]
    for one, other in zip(sent, read, strict=True):
        assert bytes(one.digests) == bytes(other.digests)
        assert one.cumulative_lengths().tolist() == other.cumulative_lengths().tolist()


def test_bookie_in_limbo_gets_what_it_lacks_and_nothing_else() -> None:
    repair = Repair(a_record(), ("b2",))
    repair.limbo, repair.has["b2"] = {"b2"}, {0, 1, 2, 9, 10, 11}
    repair.run()
    assert repair.targets == {"b2"}
    copied = [entry for e in repair.of(ev.SendFrame) for entry in decode_frame(e.frame).entry_ids().tolist()]
    assert copied == [3, 4, 5, 6, 7, 8]
    assert (repair.of(ev.WriteMetadata), repair.end) == ([], REPLICATED)


def test_bookie_that_has_all_of_its_copy_is_only_read() -> None:
    repair = Repair(a_record(), ("b1",)).run()
    assert (repair.of(ev.SendFrame), repair.end) == ([], REPLICATED)
    assert repair.machine.checked > 0


def test_bookie_that_is_away_for_a_moment_is_waited_for() -> None:
    repair = Repair(a_record(), ("b1",), away=("b1",), **GONE).run()
    assert repair.of(ev.SendFrame) == []
    assert isinstance(repair.end, re.PostponeReplication)
    assert "b1 may come back" in repair.end.why


def test_bookie_that_leaves_or_takes_no_entries_is_replaced() -> None:
    leaving = Repair(a_record(), ("b1",), leaving=("b1",)).run()
    assert (leaving.targets, leaving.end) == ({"b4"}, REPLICATED)
    full = Repair(a_record(), ("b1",), writable=("b2", "b3", "b4"), read_only=("b1",))
    full.has["b1"].discard(5)
    assert (full.run().targets, full.end) == ({"b4"}, REPLICATED)
    whole = Repair(a_record(), ("b1",), writable=("b2", "b3", "b4"), read_only=("b1",)).run()
    assert (whole.targets, whole.end) == (set(), REPLICATED)


def test_without_another_bookie_the_mark_stays_and_says_why() -> None:
    repair = Repair(a_record(), ("b1",), writable=("b2", "b3")).run()
    assert isinstance(repair.end, re.PostponeReplication)
    assert "no bookie can take over the fragment at 0" in repair.end.why
    assert repair.record == a_record()


def test_fragment_that_cannot_be_read_does_not_hold_up_the_others() -> None:
    record = a_record(Fragment(0, ("b1", "b2", "b3")), Fragment(4, ("b1", "b2", "b5")))
    repair = Repair(record, ("b1",), writable=("b2", "b3", "b4", "b5"))
    repair.has = {"b1": set(), "b2": set(range(4, 12)), "b3": set()}
    repair.run()
    assert repair.record.value.fragments[0] == record.value.fragments[0]
    assert "b1" not in repair.record.value.fragments[1].ensemble
    assert isinstance(repair.end, re.PostponeReplication)
    assert "entry 0 of ledger 7 is lost" in repair.end.why


def test_empty_last_fragment_is_replaced_without_a_copy() -> None:
    record = a_record(Fragment(0, ("b2", "b3", "b4")), Fragment(12, ("b1", "b2", "b3")))
    repair = Repair(record, ("b1",), writable=("b2", "b3", "b4"))
    repair.run()
    assert repair.record.value.fragments[1] == Fragment(12, ("b4", "b2", "b3"))
    assert (repair.of(ev.SendRead), repair.end) == ([], REPLICATED)


@pytest.mark.rule("MUST7")
def test_change_is_made_on_the_newer_record_if_its_fragment_still_stands() -> None:
    repair = Repair(a_record(Fragment(0, ("b1", "b2", "b3")), Fragment(6, ("b2", "b3", "b4"))), ("b1",), **GONE)
    others = (repair.record.value.fragments[0], Fragment(6, ("b2", "b3", "b5")))
    changed = Versioned(replace(repair.record.value, fragments=others), 4)

    def another_writes_first(effect: Any) -> None:
        if isinstance(effect, ev.WriteMetadata) and effect.version == 3:
            repair.record = changed

    repair.run(another_writes_first)
    assert repair.record.version == 5
    assert repair.record.value.fragments[1] == others[1]
    assert "b1" not in repair.record.value.fragments[0].ensemble
    assert repair.end == REPLICATED


def test_copy_of_a_fragment_that_another_repaired_is_given_up() -> None:
    repair = Repair(a_record(), ("b1",), **GONE)
    theirs = Versioned(replace(repair.record.value, fragments=(Fragment(0, ("b9", "b2", "b3")),)), 4)

    def another_writes_first(effect: Any) -> None:
        if isinstance(effect, ev.WriteMetadata):
            repair.record = theirs

    repair.run(another_writes_first)
    assert (repair.record, repair.end) == (theirs, REPLICATED)


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("applied", [True, False])
def test_change_whose_answer_is_lost_is_looked_at(applied: bool) -> None:
    repair = Repair(a_record(), ("b1",), **GONE)
    lost = iter([True])

    def lose(effect: Any) -> Any:
        if not isinstance(effect, ev.WriteMetadata) or not next(lost, False):
            return None
        if applied:
            repair.answer(effect)
        return ev.MetadataCallFailed(MetadataUnavailableError("lost", outcome=Outcome.UNKNOWN))

    repair.run(lose)
    assert [e.name for e in repair.of(ev.SetTimer)][-1] == "metadata"
    repair.feed(ev.TimerFired("metadata"))
    assert repair.record.version == 4
    assert repair.end == REPLICATED
    assert len(repair.of(ev.WriteMetadata)) == (1 if applied else 2)


def test_change_whose_answer_was_lost_and_not_made_is_made_again() -> None:
    test_change_whose_answer_is_lost_is_looked_at(applied=False)


def test_deleted_ledger_needs_no_repair() -> None:
    gone = ev.MetadataCallFailed(NoSuchLedgerError("ledger 7 was deleted"))
    repair = Repair(a_record(), ("b1",), **GONE)
    repair.run(lambda effect: gone if isinstance(effect, ev.WriteMetadata) else None)
    assert repair.end == re.FinishReplication(re.Outcome.DELETED)


@pytest.mark.rule("D23")
def test_open_ledger_is_fenced_after_the_grace_period_and_not_before() -> None:
    repair = Repair(a_record(closed_at=None), ("b1",), **GONE).run()
    assert repair.machine.phase is Phase.GRACE
    assert repair.of(re.RecoverLedger) == []
    repair.feed(ev.TimerFired("grace"))
    assert repair.machine.phase is Phase.RECOVER
    repair.record = a_record(version=5)
    repair.feed(re.LedgerRecovered())
    assert "b1" not in repair.record.value.last_fragment.ensemble
    assert repair.end == REPLICATED


def test_writer_that_replaces_the_bookie_in_time_is_not_fenced() -> None:
    repair = Repair(a_record(closed_at=None), ("b1",), **GONE).run()
    repair.record = a_record(Fragment(0, ("b4", "b2", "b3")), closed_at=None, version=4)
    repair.feed(ev.TimerFired("grace"))
    assert (repair.of(re.RecoverLedger), repair.end) == ([], REPLICATED)


def test_writer_is_not_fenced_where_no_bookie_could_take_over() -> None:
    repair = Repair(a_record(closed_at=None), ("b1",), writable=("b2", "b3")).run()
    assert isinstance(repair.end, re.PostponeReplication)
    assert "its writer is not fenced" in repair.end.why


@pytest.mark.rule("P8")
def test_writer_is_not_fenced_for_a_bookie_that_is_back_and_the_mark_stays_until_the_close() -> None:
    repair = Repair(a_record(closed_at=None), ("b1",)).run()
    assert repair.of(re.RecoverLedger) == []
    assert isinstance(repair.end, re.PostponeReplication)
    assert "checked once it is closed" in repair.end.why
    limbo = Repair(a_record(closed_at=None), ("b1",))
    limbo.limbo = {"b1"}
    assert limbo.run().machine.phase is Phase.GRACE


@pytest.mark.rule("P8")
def test_mark_stays_while_a_recovery_is_under_way() -> None:
    record = a_record(closed_at=None)
    repair = Repair(Versioned(record.value.in_recovery(), 4), ("b4",)).run()
    assert repair.machine.phase is Phase.GRACE  # the record may yet name b4, where the recovery writes


def test_nothing_more_is_read_before_the_budget_allows_it() -> None:
    repair = Repair(a_record(), ("b1",), **GONE)
    repair.grants = False
    repair.run()
    assert repair.of(ev.SendRead) == []
    for _ in range(20):
        before = len(repair.of(ev.SendRead))
        repair.feed(re.BudgetGranted())
        assert len(repair.of(ev.SendRead)) <= before + 1
    assert repair.record.version == 4
    spent = sum(effect.size for effect in repair.of(re.SpendBudget))
    assert spent == sum(map(len, ENTRIES))


@pytest.mark.rule("S8")
def test_target_that_lost_its_disk_before_the_record_named_it_is_marked() -> None:
    repair = Repair(a_record(), ("b1",), incarnations={"b4": "one", "b5": "one"}, **GONE)

    def wiped(effect: Any) -> None:
        if isinstance(effect, ev.WriteMetadata):
            repair.cluster = replace(repair.cluster, incarnations={"b4": "two", "b5": "two"})

    repair.run(wiped)
    assert repair.of(ev.MarkUnderreplicated) == [ev.MarkUnderreplicated(tuple(repair.targets))]


def test_target_that_fails_is_not_chosen_again() -> None:
    repair = Repair(a_record(), ("b1",), writable=("b2", "b3", "b4", "b5"))
    refused: list[str] = []

    def refuse(effect: Any) -> Any:
        if isinstance(effect, ev.SendFrame) and refused in ([], [effect.bookie]):
            refused[:] = [effect.bookie]
            return ev.SessionEnded(effect.index, effect.session, 0, Reason.NO_SPACE)
        return None

    repair.run(refuse)
    (kept,) = set(repair.record.value.last_fragment.ensemble) - {"b2", "b3"}
    assert {kept, *refused} == {"b4", "b5"}
    assert repair.end == REPLICATED


def test_ledger_without_a_password_in_its_record_is_not_touched() -> None:
    record = a_record()
    repair = Repair(Versioned(replace(record.value, password=None), 3), ("b1",), **GONE).run()
    assert isinstance(repair.end, re.PostponeReplication)
    assert "no password" in repair.end.why


def test_repair_that_is_stopped_ends_what_it_began() -> None:
    repair = Repair(a_record(), ("b1",), **GONE)
    repair.acks = False
    repair.run()
    ended = repair.machine.stop()
    attached = {(e.bookie, e.session) for e in repair.of(ev.AttachSession)}
    assert {(e.bookie, e.session) for e in ended if isinstance(e, ev.DetachSession)} == attached
    assert repair.machine.step(ev.TimerFired("late")) == []


def drained(closed: bool, **cluster: Any) -> Repair:
    seen = {"writable": ("b2", "b3", "b4", "b5"), "read_only": ("b1",), "leaving": ("b1",), **cluster}
    return Repair(a_record(closed_at=11 if closed else None), ("b1",), **seen)


@pytest.mark.rule("D23")
def test_bookie_that_is_drained_is_replaced_and_serves_as_a_source() -> None:
    others = ("b5", "b6", "b7", "b8", "b9")
    repair = drained(closed=True, writable=("b2", "b3", "b4", *others), leaving=("b1", *others))
    repair.has = {"b1": set(range(12)), "b2": set(), "b3": set()}  # no other has the entries
    repair.run()
    assert repair.record.value.fragments == (Fragment(0, ("b4", "b2", "b3")),), "the others leave, too"
    assert (repair.has["b4"], repair.end) == (set(range(12)), REPLICATED)


@pytest.mark.rule("D23")
def test_writer_is_fenced_for_a_drain_only_if_that_is_ordered_and_after_its_grace() -> None:
    patient = drained(closed=False, patient=("b1",)).run()
    assert (patient.of(re.RecoverLedger), patient.machine.phase) == ([], Phase.DONE)
    assert isinstance(patient.end, re.PostponeReplication)
    assert (patient.end.soon, "at its next entry" in patient.end.why) == (True, True)
    assert drained(closed=False).run().machine.phase is Phase.GRACE
    lost = drained(closed=False, patient=("b1",), read_only=()).run()
    assert lost.machine.phase is Phase.GRACE, "it died while it was drained: its copy is missing"


@pytest.mark.rule("P8")
def test_mark_that_was_made_again_is_not_removed_by_a_worker_that_lost_its_lock() -> None:
    """Both marks have version 0: the lock alone tells them apart."""
    slow = MemoryStore()
    slow.initialize_cluster()
    other = MemoryStore(slow.cluster)
    other.mark_underreplicated(LEDGER, ["b1"])
    assert slow.lock_underreplicated(LEDGER, "slow")
    read = slow.read_underreplicated(LEDGER)
    slow.tree.expire()
    assert other.lock_underreplicated(LEDGER, "other")
    assert other.remove_underreplicated(LEDGER, 0)
    other.mark_underreplicated(LEDGER, ["b2"])

    assert read is not None
    assert not slow.remove_underreplicated(LEDGER, read.version)
    assert dict(other.list_underreplicated()) == {LEDGER: ("b2",)}
