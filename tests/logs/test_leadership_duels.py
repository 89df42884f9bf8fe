# SPDX-License-Identifier: Apache-2.0
"""Every event in every state of a leadership, and leaders that duel for a log."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import copy
from random import Random

import pytest

from bk_core.errors import (
    BookKeeperError,
    NotEnoughBookiesError,
)
from bk_core.logs.machines.leadership import MOVES, LogLeadership, State
from bk_core.logs.machines.leadership_events import (
    AskLeader,
    CloseLedger,
    CreateLedger,
    DeleteLedger,
    FinishLeadership,
    GiveUp,
    HeadConflicted,
    HeadRead,
    HeadWriteUnknown,
    HeadWritten,
    LeaderAnswered,
    LeadershipEffect,
    LeadershipEvent,
    LedgerClosed,
    LedgerCreated,
    LedgerMissing,
    LedgerRecovered,
    ListLedger,
    LoseLeadership,
    ReadHead,
    RecoverLedger,
    RequestFailed,
    Roll,
    SealExtents,
    Serve,
    SwitchLedger,
    TakeOver,
    Wait,
    WaitEnded,
    WriterFailed,
)
from bk_core.logs.model.codec import encode_head
from bk_core.logs.model.head import Extent, LogHead, LogPage
from bk_core.logs.model.next_head import add_open_extent, seal
from bk_core.logs.model.paging import Change
from bk_core.model import Versioned
from tests.logs.leadership_kit import BOTH, EMPTY, NONCE, ROLLED, end, listed, opened, v

# --- every event in every state ---------------------------------------------------------------------------------------

HEADS = [v(EMPTY, 0), v(listed(EMPTY, 7), 1), v(BOTH, 2), v(ROLLED, 3), v(listed(EMPTY, 9), 4)]
EVENTS: list[LeadershipEvent] = [
    TakeOver(),
    Roll(),
    GiveUp(),
    *(HeadRead(head, (7,)) for head in HEADS),
    HeadConflicted(),
    HeadWriteUnknown(),
    *(LedgerRecovered(ledger, end(5)) for ledger in (7, 8, 9)),
    LedgerMissing(9),
    LedgerClosed(7, end(5)),
    LedgerClosed(8, end(5)),
    WriterFailed(7, BookKeeperError("fenced")),
    RequestFailed(BookKeeperError("no")),
    LeaderAnswered(True),
    LeaderAnswered(False),
    WaitEnded(),
]


def answers(effects: list[LeadershipEffect]) -> list[LeadershipEvent]:
    """What only the world can answer: the head a compare-and-set made, the ledger a create made."""
    events: list[LeadershipEvent] = []
    for effect in effects:
        match effect:
            case ListLedger(expected, ledger) if ledger.ledger_id not in {e.ledger_id for e in expected.value.tail}:
                head = add_open_extent(expected.value, ledger, nonce=NONCE).head
                events.append(HeadWritten(Versioned(head, expected.version + 1)))
            case SealExtents(expected, ends):
                head = seal(expected.value, dict(ends), nonce=NONCE).head
                events.append(HeadWritten(Versioned(head, expected.version + 1)))
            case CreateLedger():
                events.append(LedgerCreated(opened(NONCE() + 100)))
            case SwitchLedger(ledger_id, _) | CloseLedger(ledger_id):
                events += [LedgerClosed(ledger_id, end(5)), WriterFailed(ledger_id, BookKeeperError("fenced"))]
    return events


def test_every_event_in_every_state_ends_in_a_legal_state() -> None:
    """Breadth first from the start: each state that can be reached takes each event (h2's idea)."""
    start: tuple[LogLeadership, list[LeadershipEvent]] = (LogLeadership(attempts_max=2), [])
    seen, reached, pending = dict[object, None](), set[State](), [start]
    while pending:
        machine, late = pending.pop()
        for event in (*EVENTS, *late):
            after = copy(machine)
            effects = after.step(event)  # asserts the move
            reached.add(after.state)
            ended = [e for e in effects if isinstance(e, LoseLeadership | FinishLeadership)]
            assert bool(ended) == (after.state in (State.LOST, State.ENDED) and after.state is not machine.state)
            key = (
                after.state,
                *(type(e) for e in effects),
                after._attempt,
                after._give_up_wanted,
                after._current is None,
            )
            if key not in seen:
                seen[key] = None
                pending.append((after, [*late, *answers(effects)][-4:]))
    assert reached == set(State)
    assert set(MOVES) == set(State)


# --- duelling leaders -------------------------------------------------------------------------------------------------


class World:
    """One log and its ledgers, with leaders whose requests are answered in any order, late, lost or refused."""

    def __init__(self, seed: int, leaders: int) -> None:
        self.random = Random(seed)
        self.head, self.pages = v(EMPTY, 0), dict[str, LogPage]()
        self.ledgers: dict[int, list[str]] = {}
        self.closed: set[int] = set()
        self.deleted: set[int] = set()
        self.acked: list[tuple[int, str]] = []  # log offset, value
        self.pending: list[tuple[Leader, Callable[[], LeadershipEvent]]] = []
        self.late_writes: list[Callable[[], object]] = []
        self.trouble = True
        self.values = itertools.count()
        self.leaders: list[Leader] = []
        self.leaders += (Leader(self, n) for n in range(leaders))

    def chance(self, probability: float) -> bool:
        return self.trouble and self.random.random() < probability

    def step(self) -> None:
        if self.late_writes and self.chance(0.3):
            self.late_writes.pop(self.random.randrange(len(self.late_writes)))()
        elif self.pending and self.random.random() < 0.7:
            leader, answer = self.pending.pop(self.random.randrange(len(self.pending)))
            leader.take(answer())
        else:
            self.random.choice(self.leaders).act()

    def change(self, expected: Versioned[LogHead], apply: Callable[[LogHead], Change]) -> LeadershipEvent:
        def write() -> LeadershipEvent:
            if self.head.version != expected.version:
                return HeadConflicted()
            change = apply(expected.value)
            encode_head(change.head)  # checks the invariants of N2
            self.pages.update((made.name, made.page) for made in change.new_pages)
            self.head = v(change.head, expected.version + 1)
            return HeadWritten(self.head)

        if not self.chance(0.2):
            return write()
        kind = self.random.randrange(3)
        if kind == 0:
            write()  # applied, the answer lost
        elif kind == 1:
            self.late_writes.append(write)  # applied some time later, or refused
        return HeadWriteUnknown()

    def flat(self) -> list[str]:
        """Every value of the log, in order."""
        assert not self.head.value.open_extents
        found: list[str] = []
        extents = [e for ref in self.head.value.pages for e in self.pages_below(ref.name)] + list(self.head.value.tail)
        for extent in extents:
            assert extent.ledger_id not in self.deleted
            assert len(self.ledgers[extent.ledger_id]) == extent.entry_count
            found += self.ledgers[extent.ledger_id]
        return found

    def pages_below(self, name: str) -> list[Extent]:
        page = self.pages[name]
        return [*page.extents, *(e for ref in page.pages for e in self.pages_below(ref.name))]


class Leader:
    """A driver in miniature: carries effects out against the world, appends while it serves."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.machine = LogLeadership(attempts_max=4)
        self.current: int | None = None
        self.base = 0
        self.take(TakeOver())

    def restart(self) -> None:
        self.world.leaders[self.number] = Leader(self.world, self.number)

    def act(self) -> None:
        if self.machine.state in (State.LOST, State.ENDED):
            if self.world.chance(0.5):
                self.restart()
        elif self.world.chance(0.03):
            # The process is killed: nothing it asked for is heard by anybody, and another one starts.
            self.world.pending = [item for item in self.world.pending if item[0] is not self]
            self.restart()
        elif self.current is not None and self.world.random.random() < 0.15:
            self.take(self.world.random.choice((Roll(), Roll(), GiveUp())))
        elif self.current is not None:
            self.append()

    def append(self) -> None:
        world, ledger = self.world, self.current
        assert ledger is not None
        if ledger in world.closed:
            self.take(WriterFailed(ledger, BookKeeperError("fenced")))
            return
        value = f"{self.number}:{next(world.values)}"
        world.ledgers[ledger].append(value)
        if not world.chance(0.1):  # else it is stored, and nobody is told
            world.acked.append((self.base + len(world.ledgers[ledger]) - 1, value))

    def take(self, event: LeadershipEvent) -> None:
        for effect in self.machine.step(event):
            answer = self.carry_out(effect)
            if answer is not None:
                self.world.pending.append((self, answer))

    def carry_out(self, effect: LeadershipEffect) -> Callable[[], LeadershipEvent] | None:
        match effect:
            case Serve(ledger_id, base_offset):
                self.current, self.base = ledger_id, base_offset
            case DeleteLedger(ledger_id):
                self.world.deleted.add(ledger_id)
            case LoseLeadership() | FinishLeadership():
                self.current = None
            case SwitchLedger(previous_id, ledger_id):
                self.base += len(self.world.ledgers[previous_id])
                self.current = ledger_id
                return lambda: self.close(previous_id)
            case CloseLedger(ledger_id):
                self.current = None
                return lambda: self.close(ledger_id)
            case RecoverLedger(ledger_id):
                return lambda: self.recover(ledger_id)
            case CreateLedger():
                return self.create
            case _:
                return self.ask_metadata(effect)
        return None

    def ask_metadata(self, effect: LeadershipEffect) -> Callable[[], LeadershipEvent] | None:
        world = self.world
        match effect:
            case ReadHead():
                return lambda: HeadRead(world.head, tuple(e.ledger_id for e in world.head.value.tail[-2:]))
            case SealExtents(expected, ends):
                return lambda: world.change(expected, lambda h: seal(h, dict(ends), nonce=NONCE, pages=world.pages))
            case ListLedger(expected, ledger):
                return lambda: world.change(
                    expected, lambda h: add_open_extent(h, ledger, nonce=NONCE, pages=world.pages)
                )
            case AskLeader():
                return lambda: LeaderAnswered(not world.chance(0.1))
            case Wait():
                return WaitEnded
        return None

    def create(self) -> LeadershipEvent:
        if self.world.chance(0.05):
            return RequestFailed(NotEnoughBookiesError("none"))
        ledger_id = len(self.world.ledgers)
        self.world.ledgers[ledger_id] = []
        return LedgerCreated(opened(ledger_id))

    def recover(self, ledger_id: int) -> LeadershipEvent:
        if ledger_id in self.world.deleted:
            return LedgerMissing(ledger_id)
        self.world.closed.add(ledger_id)
        return LedgerRecovered(ledger_id, end(len(self.world.ledgers[ledger_id])))

    def close(self, ledger_id: int) -> LeadershipEvent:
        if ledger_id in self.world.closed:
            return WriterFailed(ledger_id, BookKeeperError("fenced"))
        self.world.closed.add(ledger_id)
        return LedgerClosed(ledger_id, end(len(self.world.ledgers[ledger_id])))


@pytest.mark.rule("N2", "MUST15")
@pytest.mark.long
@pytest.mark.parametrize("leaders", [1, 2, 3])
def test_duelling_leaders_never_lose_move_or_double_an_acknowledged_entry(leaders: int) -> None:
    acked = 0
    for seed in range(60):
        world = World(seed, leaders)
        for _ in range(400):
            world.step()
        world.trouble = False
        world.pending.clear()
        last = Leader(world, 99)
        world.leaders = [last]
        while last.current is None:
            _, answer = world.pending.pop(0)
            last.take(answer())
        last.append()
        last.take(GiveUp())
        while world.pending:
            _, answer = world.pending.pop(0)
            last.take(answer())
        assert last.machine.state is State.ENDED
        flat = world.flat()
        for offset, value in world.acked:
            assert flat[offset] == value, (seed, offset, value)
        assert len(set(flat)) == len(flat)
        acked += len(world.acked)
    assert acked > 1000
