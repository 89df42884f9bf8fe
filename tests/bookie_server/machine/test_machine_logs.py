# SPDX-License-Identifier: Apache-2.0
"""The bookie's machine over two logs: a ledger waits for its own log only, and stays in it."""

from __future__ import annotations

from collections import deque

import pytest

from bk_core.entries.frame import FrameKind, parse_header
from bk_core.model import LedgerId
from bk_core.wire.lane.reasons import AttachMode, EntryRange, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import LedgerFacts, Pending
from tests.bookie_server.machine.machine_bench import (
    ADDS,
    CONTROL,
    READS,
    acks,
    ended,
    entries,
    pending_frames,
    trailers,
)
from tests.kit.lanes import KEY
from tests.kit.memory_holdings import MemoryHoldings, read_piece, stored

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


class Bench:
    """Commits and reads of each log happen when the test says so."""

    def __init__(self) -> None:
        self.store = TwoLogs()
        self.machine = BookieMachine(self.store, logs=2)
        self.logs: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self.reads: list[ev.ReadFrames] = []
        self.requests = 0

    def step(self, event: ev.Event) -> list[ev.Effect]:
        out: list[ev.Effect] = []
        for effect in self.machine.step(event):
            if isinstance(effect, ev.Commit):
                self.logs[effect.log].extend(map(bytes, effect.frames))
            elif isinstance(effect, ev.ReadFrames):
                self.reads.append(effect)
                pieces = [read_piece(piece) for piece in effect.pieces]
                out += self.step(ev.FramesRead(effect.request, pieces))
            else:
                out.append(effect)
        return out

    def write(self, ledger: LedgerId, first: int, session: int, mode: AttachMode = AttachMode.WRITE) -> list[ev.Effect]:
        out = self.step(ev.SessionAttached(ADDS, session, ledger, KEY, mode))
        frame = entries(first, b"%d" % first, session=session, ledger=ledger)
        return out + self.step(ev.FramesArrived(ADDS, memoryview(frame)))

    def commit(self, log: int) -> list[ev.Effect]:
        frames = list(self.logs[log])
        self.logs[log].clear()
        return self.step(ev.GroupCommitted([stored(frame) for frame in frames], log))

    def full(self, log: int) -> list[ev.Effect]:
        self.logs[log].clear()
        return self.step(ev.CommitFailed(Reason.NO_SPACE, "full", False, log))

    def fence(self, ledger: LedgerId) -> list[ev.Effect]:
        self.requests += 1
        return self.step(ev.FenceRequested((CONTROL, self.requests), ledger, KEY))

    def read(self, ledger: LedgerId, first: int, last: int, *, fencing: bool = False) -> list[ev.Effect]:
        self.requests += 1
        key = KEY if fencing else None
        return self.step(ev.ReadRequested((READS, self.requests), ledger, first, last, 1 << 20, key))

    def kinds(self, log: int) -> list[int]:
        return [parse_header(frame).kind for frame in self.logs[log]]


ADD = [FrameKind.LEDGER_KEY, FrameKind.ENTRIES]


@pytest.mark.rule("S1")
def test_a_fence_waits_for_its_own_log_and_for_all_of_it() -> None:
    bench = Bench()
    for session in range(1, 6):
        bench.write(ZERO, session, session)  # numbers in log 0 that are greater than any in log 1
    bench.write(ONE, 0, 6)
    assert bench.fence(ONE) == []
    assert bench.kinds(1) == [*ADD, FrameKind.FENCE]
    assert bench.commit(0)[0] == ev.SendAcks(ADDS, [1, 2, 3, 4, 5], [1] * 5, [])
    assert bench.fence(ONE) == [], "what log 0 made durable says nothing of log 1"
    told = bench.commit(1)
    evidence = [effect.evidence for effect in told if isinstance(effect, ev.SendLac)]
    assert [(e.fenced, e.last_entry_id) for e in evidence] == [(True, 0), (True, 0)]
    assert bench.fence(ONE) != [], "it is durable now"


@pytest.mark.rule("S1")
def test_a_read_waits_for_the_pending_adds_of_its_own_ledger_only() -> None:
    bench = Bench()
    bench.write(ZERO, 0, 1)
    bench.write(ONE, 0, 2)
    assert bench.read(ONE, 0, 0) == []
    bench.commit(0)
    told = bench.commit(1)
    assert [trailer.absent for trailer in trailers(told)] == [()]
    assert [effect.log for effect in bench.reads] == [1]
    [trailer] = trailers(bench.read(ONE, 1, 1))
    assert trailer.absent == (EntryRange(1, 1),)


def test_a_full_log_drops_its_own_frames_only() -> None:
    bench = Bench()
    bench.write(ZERO, 0, 1)
    bench.write(ONE, 0, 2)
    bench.fence(ZERO)
    told = bench.full(0)
    assert ended(told) == [(1, 0, Reason.NO_SPACE)]
    assert bench.commit(1) == acks(2, 1)


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
    bench.commit(0)
    bench.write(NEW, 1, 2, AttachMode.RECOVER)
    assert bench.kinds(0) == [FrameKind.ENTRIES]


def test_a_ledger_of_which_nothing_was_written_may_go_to_another_log() -> None:
    bench = Bench()
    assert bench.fence(NEW) == []
    bench.store.choice = 1
    bench.full(0)
    assert bench.fence(NEW) == []
    assert (bench.kinds(0), bench.kinds(1)) == ([], [FrameKind.LEDGER_KEY, FrameKind.FENCE])
    [told] = bench.commit(1)
    assert told.evidence.fenced


def test_explicit_lacs_and_deletions_go_to_the_log_of_the_ledger() -> None:
    bench = Bench()
    bench.write(ONE, 0, 1)
    bench.commit(1)
    bench.step(ev.LedgersDeleted([ONE, ZERO]))
    assert (bench.kinds(0), bench.kinds(1)) == ([], [FrameKind.DELETED])
    bench.commit(1)
    assert bench.store.facts(ONE) == LedgerFacts(known=True, ledger_key=KEY, deleted=True)
