# SPDX-License-Identifier: Apache-2.0
"""The bookie's machine over two logs: a ledger waits for its own log only, and stays in it."""

from __future__ import annotations

import pytest

from bk_core.entries.frame import FrameKind
from bk_core.model import LedgerId
from bk_core.wire.lane.reasons import AttachMode, EntryRange, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.state import LedgerFacts, Pending
from tests.bookie_server.machine import machine_bench
from tests.bookie_server.machine.machine_bench import (
    ADDS,
    CONTROL,
    acks,
    ended,
    entries,
    pending_frames,
    trailers,
)
from tests.kit.lanes import KEY
from tests.kit.memory_holdings import MemoryHoldings

ZERO, ONE, NEW = 10, 11, 40
"""Ledgers: the first two go to the log of their number, the third to ``TwoLogs.choice``."""


class TwoLogs(MemoryHoldings):
    """What is known stays where it became known."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[LedgerId, int] = {ZERO: 0, ONE: 1}
        self.choice = 0

    def log_of(self, ledger_id: LedgerId) -> int:
        return self.places.get(ledger_id, self.choice)

    def add(self, pending: Pending, place: ev.Place) -> None:
        ledger_id, log = pending.header.ledger_id, pending.ledger.log.number
        assert self.places.setdefault(ledger_id, log) == log, f"ledger {ledger_id} is in two logs"
        super().add(pending, place)


class Bench(machine_bench.Bench):
    """Its reads happen at once."""

    def __init__(self) -> None:
        super().__init__(TwoLogs(), logs=2)
        self.reads: list[ev.ReadFrames] = []

    def step(self, event: ev.Event) -> list[ev.Effect]:
        out = super().step(event)
        self.reads += self.to_read
        return out + self.disk()

    def write(self, ledger: LedgerId, first: int, session: int, mode: AttachMode = AttachMode.WRITE) -> list[ev.Effect]:
        attached = self.attach(session, ledger, mode=mode)
        return attached + self.send(entries(first, b"%d" % first, session=session, ledger=ledger))

    def full(self, log: int) -> list[ev.Effect]:
        return self.fail(final=False, reason=Reason.NO_SPACE, log=log)

    def fence(self, ledger: LedgerId) -> list[ev.Effect]:
        return self.ask(ev.FenceRequested, ledger, KEY, stream=CONTROL)


ADD = [FrameKind.LEDGER_KEY, FrameKind.ENTRIES]


@pytest.mark.rule("S1")
def test_a_fence_waits_for_its_own_log_and_for_all_of_it() -> None:
    bench = Bench()
    for session in range(1, 6):
        bench.write(ZERO, session, session)  # numbers in log 0 that are greater than any in log 1
    bench.write(ONE, 0, 6)
    assert bench.fence(ONE) == []
    assert bench.kinds(1) == [*ADD, FrameKind.FENCE]
    assert bench.commit(log=0)[0] == ev.SendAcks(ADDS, [1, 2, 3, 4, 5], [1] * 5, [])
    assert bench.fence(ONE) == [], "what log 0 made durable says nothing of log 1"
    told = bench.commit(log=1)
    evidence = [effect.evidence for effect in told if isinstance(effect, ev.SendLac)]
    assert [(e.fenced, e.last_entry_id) for e in evidence] == [(True, 0), (True, 0)]
    assert bench.fence(ONE) != [], "it is durable now"


@pytest.mark.rule("S1")
def test_a_read_waits_for_the_pending_adds_of_its_own_ledger_only() -> None:
    bench = Bench()
    bench.write(ZERO, 0, 1)
    bench.write(ONE, 0, 2)
    assert bench.read(0, 0, ONE) == []
    bench.commit(log=0)
    told = bench.commit(log=1)
    assert [trailer.absent for trailer in trailers(told)] == [()]
    assert [effect.log for effect in bench.reads] == [1]
    [trailer] = trailers(bench.read(1, 1, ONE))
    assert trailer.absent == (EntryRange(1, 1),)


def test_a_full_log_drops_its_own_frames_only() -> None:
    bench = Bench()
    bench.write(ZERO, 0, 1)
    bench.write(ONE, 0, 2)
    bench.fence(ZERO)
    told = bench.full(0)
    assert ended(told) == [(1, 0, Reason.NO_SPACE)]
    assert bench.commit(log=1) == acks(2, 1)


@pytest.mark.rule("S6")
def test_a_failed_sync_of_one_log_ends_both() -> None:
    bench = Bench()
    bench.write(ZERO, 0, 1)
    bench.write(ONE, 0, 2)
    told = bench.step(ev.CommitFailed(Reason.STORAGE_FAILED, "sync", True, 1))
    assert sorted(ended(told)) == [(1, 0, Reason.STORAGE_FAILED), (2, 0, Reason.STORAGE_FAILED)]
    assert pending_frames(bench.machine) == 0
    assert ended(bench.write(ZERO, 0, 3)) == [(3, 0, Reason.STORAGE_FAILED)]


def test_a_read_only_log_refuses_normal_adds_of_its_own_ledgers_only() -> None:
    bench = Bench()
    bench.step(ev.ReadOnlyChanged(True, 0))
    assert ended(bench.write(ZERO, 0, 1)) == [(1, 0, Reason.READ_ONLY)]
    bench.write(ZERO, 0, 2, AttachMode.RECOVER)
    bench.write(ONE, 0, 3)
    bench.fence(ZERO)
    assert (bench.kinds(0), bench.kinds(1)) == ([*ADD, FrameKind.FENCE], ADD)
    bench.step(ev.ReadOnlyChanged(False, 0))
    assert ended(bench.write(ZERO, 1, 4)) == [(4, 0, Reason.FENCED)]


def test_a_ledger_in_use_stays_in_its_log_though_another_would_be_chosen_now() -> None:
    bench = Bench()
    bench.write(NEW, 0, 1)
    bench.store.choice = 1
    bench.fence(NEW)
    assert (bench.kinds(0), bench.kinds(1)) == ([*ADD, FrameKind.FENCE], [])
    bench.commit(log=0)
    bench.write(NEW, 1, 2, AttachMode.RECOVER)
    assert bench.kinds(0) == [FrameKind.ENTRIES]


def test_a_ledger_of_which_nothing_was_written_may_go_to_another_log() -> None:
    bench = Bench()
    assert bench.fence(NEW) == []
    bench.store.choice = 1
    bench.full(0)
    assert bench.fence(NEW) == []
    assert (bench.kinds(0), bench.kinds(1)) == ([], [FrameKind.LEDGER_KEY, FrameKind.FENCE])
    [told] = bench.commit(log=1)
    assert told.evidence.fenced


def test_explicit_lacs_and_deletions_go_to_the_log_of_the_ledger() -> None:
    bench = Bench()
    bench.write(ONE, 0, 1)
    bench.commit(log=1)
    bench.step(ev.LedgersDeleted([ONE, ZERO]))
    assert (bench.kinds(0), bench.kinds(1)) == ([], [FrameKind.DELETED])
    bench.commit(log=1)
    assert bench.store.facts(ONE) == LedgerFacts(known=True, ledger_key=KEY, deleted=True)
