# SPDX-License-Identifier: Apache-2.0
"""The leadership of a log, fed every event in every state that it can be brought into: a search from the first state
on, over heads as friends and rivals may write them. Each move that the machine's table allows is seen, and no other.
(Sequences are searched in test_sequences.py.)"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import fields, replace
from typing import Any

import pytest

from bk_core.errors import MetadataUnavailableError
from bk_core.logs.machines import leadership
from bk_core.logs.machines import leadership_events as lev
from bk_core.logs.machines.leadership import LogLeadership
from bk_core.logs.model.next_head import seal
from bk_core.model import Versioned
from tests.kit.extents import open_extent
from tests.kit.transitions import members, printed, words
from tests.logs.leadership_kit import BOTH, EMPTY, NONCE, end, listed, rolling, run, serving

Moves = set[tuple[str, str, str]]
AWAY = MetadataUnavailableError("the store is away")


class Search:
    """Every state that events lead to, breadth first, up to a bound; ``moves`` are the (state, event, state) seen."""

    def __init__(
        self,
        firsts: Iterable[Any],
        events: Callable[[Any], Iterable[Any]],
        effects_known: tuple[type, ...],
        ends: tuple[str, ...],
        *,
        key: Callable[[Any], object] = printed,
        states_max: int = 900,
    ) -> None:
        self.moves: Moves = set()
        self.states = 0
        todo = deque(firsts)
        seen = {key(first) for first in todo}
        while todo and self.states < states_max:
            machine = todo.popleft()
            self.states += 1
            for event in events(machine):
                twin = copy(machine)
                state, was = machine.state.name, words(event)
                effects = twin.step(event)
                assert words(event) == was, event
                assert all(isinstance(effect, effects_known) for effect in effects), effects
                if event == lev.LeaderAnswered(False) and state in ("ASKING", "ROLL_ASKING"):
                    assert twin.state.name == "LOST"
                self.moves.add((state, type(event).__name__, twin.state.name))
                if state in ends:
                    assert twin.state is machine.state
                    self.check_after_the_end(event, effects)
                elif twin.state.name in ends:
                    assert sum(type(effect).__name__ in ENDINGS for effect in effects) == 1
                    assert type(effects[-1]).__name__ in ENDINGS
                else:
                    assert all(type(effect).__name__ not in ENDINGS for effect in effects)
                print_of_it = key(twin)
                if print_of_it not in seen:
                    seen.add(print_of_it)
                    todo.append(twin)

    def check_after_the_end(self, event: Any, effects: list[Any]) -> None:
        """Nothing follows; but a ledger that was under way is deleted when it comes."""
        assert effects == [] or (type(event).__name__, *map(type, effects)) == ("LedgerCreated", lev.DeleteLedger)

    def pairs(self) -> set[tuple[str, str]]:
        """Moves between different states."""
        return {(before, after) for before, _, after in self.moves if before != after}


ENDINGS = ("Finish", "Fail", "FinishLeadership", "LoseLeadership")


def table_of(moves: dict[Any, tuple[Any, ...]]) -> set[tuple[str, str]]:
    return {(state.name, target.name) for state, targets in moves.items() for target in targets if target is not state}


# --- leadership ---

OTHER = listed(EMPTY, 20)  # a rival leads
OURS = listed(EMPTY, 7)
SEALED = seal(OURS, {7: end(5)}, nonce=NONCE).head
ROLLED = seal(BOTH, {7: end(5)}, nonce=NONCE).head
REBORN = replace(EMPTY, uuid="aaaaaaaa-9abc-def0-1234-56789abcdef0")


def leadership_key(machine: LogLeadership) -> object:
    """Of a head what it decides: which ledgers are open. Its version counts only beside that of the next one."""
    opened = machine._head and tuple(extent.ledger_id for extent in machine._head.value.open_extents)
    rest = [getattr(machine, each.name) for each in fields(machine) if each.name != "_head"]
    return (opened, *rest)


def leaderships() -> Iterable[LogLeadership]:
    """A new one, and one that comes back with a ledger in hand to a log whose ledgers are all sealed."""
    yield LogLeadership(attempts_max=2)
    machine = LogLeadership(attempts_max=2)
    sealed = lev.HeadRead(Versioned(EMPTY, 1), last_ledgers=(3,))
    run(machine, lev.TakeOver(), sealed, lev.LedgerRecovered(3, end(5)), lev.LedgerCreated(open_extent(7)))
    run(machine, lev.HeadConflicted(), lev.LeaderAnswered(True), lev.WaitEnded())
    yield machine
    for state in ("SERVING", "ROLL_LISTING", "ROLL_CLOSING"):
        machine = serving() if state == "SERVING" else rolling()
        machine.attempts_max = 2
        if state == "ROLL_CLOSING":
            machine.step(lev.HeadWritten(Versioned(BOTH, 2)))
        assert machine.state.name == state
        yield machine


def leadership_events(machine: LogLeadership) -> Iterable[lev.LeadershipEvent]:
    yield from (lev.TakeOver(), lev.Roll(), lev.GiveUp(), lev.HeadConflicted(), lev.HeadWriteUnknown(), lev.WaitEnded())
    yield from (lev.LeaderAnswered(True), lev.LeaderAnswered(False), lev.RequestFailed(AWAY))
    known = machine._head.version if machine._head is not None else 0
    for head in (EMPTY, OTHER, OURS, BOTH, SEALED, ROLLED):
        yield lev.HeadRead(Versioned(head, known + 1))
        yield lev.HeadWritten(Versioned(head, known + 1))
    yield lev.HeadRead(Versioned(OURS, known))
    yield lev.HeadRead(Versioned(EMPTY, known), last_ledgers=(3,))
    yield lev.HeadRead(Versioned(REBORN, known))
    for ledger in (3, 7, 8, 20):  # sealed, ours, ours after a roll, a rival's
        yield lev.LedgerRecovered(ledger, end(5))
        yield lev.LedgerMissing(ledger)
        yield lev.LedgerClosed(ledger, end(5))
        yield lev.WriterFailed(ledger, AWAY)
    yield from (lev.LedgerCreated(open_extent(ledger)) for ledger in (7, 8))


@pytest.mark.long
@pytest.mark.rule("MUST15")
def test_every_event_in_every_state_of_a_leadership_leads_where_its_table_says() -> None:
    found = Search(
        leaderships(),
        leadership_events,
        members(*members(lev.LeadershipEffect)),
        ("ENDED", "LOST"),
        key=leadership_key,
    )
    kinds = {cls.__name__ for cls in members(lev.LeadershipEvent)}
    states = leadership.State.__members__
    assert {(state, kind) for state, kind, _ in found.moves} == {(state, kind) for state in states for kind in kinds}
    assert found.pairs() == table_of(leadership.MOVES)
