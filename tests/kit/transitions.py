# SPDX-License-Identifier: Apache-2.0
"""Checks every step of every machine, in any state and for any event, for the transition sweeps.

A sweep brings a machine into each of its states and feeds it every kind of event. It compares the next states with a
table in the test, which is also in docs/protocol.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from bk_core.protocol.recovery import LedgerRecovery
from bk_core.protocol.writer import LedgerWrite
from tests.kit.amount import some
from tests.kit.snapshot import copied, fingerprint_of

Table = Mapping[tuple[str, str], str]
"""Maps (state, event) to the names of the possible next states, in order, separated by spaces. If a pair is missing,
the state stays. ``impossible`` means that the machine raises an assertion that names both."""

IMPOSSIBLE = "impossible"


class Numbers:
    """A source of session numbers. A copy counts on independently."""

    def __init__(self, next_number: int = 1) -> None:
        self.next_number = next_number

    def __call__(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def copy(self) -> Numbers:
        return Numbers(self.next_number)

    def fingerprint(self) -> object:
        return ("numbers", self.next_number)


class NoRandom:
    """A source without chance. A sample is the first items, and a random number is 0.5."""

    def sample(self, population: Any, k: int) -> list[Any]:
        return list(population)[:k]

    def random(self) -> float:
        return 0.5


def given(machine: Any) -> tuple[object, ...]:
    """Return the objects that a machine of the protocol got from outside. They are shared, or copy themselves."""
    match machine:
        case LedgerWrite():
            return machine.delivery._new_session, machine.random
        case LedgerRecovery():
            return machine._new_session, machine.random
    return ()


def twin_of(machine: Any) -> Any:
    return machine.copy() if hasattr(machine, "copy") else copied(machine, given(machine))


def printed(machine: Any) -> object:
    return machine.fingerprint() if hasattr(machine, "fingerprint") else fingerprint_of(machine, given(machine))


def words(thing: Any) -> object:
    """Print an event or a list of effects for comparison. An error is printed as its text, because its outcome may be
    added later."""
    if isinstance(thing, list):
        return [words(one) for one in thing]
    names = getattr(thing, "_fields", None) or [each.name for each in fields(thing)]
    values = {name: getattr(thing, name) for name in names}
    said = {name: repr(value) if isinstance(value, Exception) else value for name, value in values.items()}
    said.update((name, _of_logs(value)) for name, value in values.items() if name == "answers")
    return type(thing).__name__, fingerprint_of(said)


def _of_logs(answers: Mapping[Any, Any]) -> object:
    """Print the answers for several logs."""
    return {key: words(value) if is_dataclass(value) else value for key, value in answers.items()}


def members(*unions: Any) -> tuple[type, ...]:
    """Return the classes in unions of classes."""
    return tuple(cls for union in unions for cls in get_args(union) or (union,))


def checked_step(machine: Any, event: Any, names: str, effects_known: tuple[type, ...], twin: Any) -> list[Any] | None:
    """Make one step and return its effects. Return None if the machine asserts that the event cannot come in its state;
    the assertion must name both.

    With a twin, check that the event did not change, that the twin behaves the same, and that a refusal changed
    nothing.
    """
    event_was = words(event) if twin is not None else None
    effects, said = None, ""
    try:
        effects = machine.step(event)
    except AssertionError as error:
        said = str(error)
    if twin is not None:
        assert words(event) == event_was, event
    if effects is None:
        assert type(event).__name__ in said, f"the assertion names no event: {said}"
        assert names in said, f"the assertion does not name the state {names}: {said}"
    else:
        assert isinstance(effects, list)
        strange = [effect for effect in effects if not isinstance(effect, effects_known)]
        assert strange == []
        if twin is not None:
            assert words(twin.step(event)) == words(effects)
    if twin is not None:
        assert printed(twin) == printed(machine)
    return effects


def sweep(
    situations: Mapping[str, Callable[[], Any]],
    events: Callable[[Any], Iterable[Any]],
    state_of: Callable[[Any], str],
    *,
    effects_known: tuple[type, ...],
    ends: tuple[str, ...],
    told: Callable[[Any], str] | None = None,
) -> dict[tuple[str, str], set[str]]:
    """Feed every event in every situation, twice, and return the next states of each (state, event).

    ``events`` makes the events for a machine, because some of them name what the machine waits for. ``told`` returns
    the state's name in the machine's assertions. Each machine has a twin, which must behave the same; with ``--few``
    one machine of five has.
    """
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    stride = some(1, 5)
    for build in situations.values():
        for number, event in enumerate(events(build())):
            machine = build()
            # a copy, compared with the machine after each step
            twin = twin_of(machine) if number % stride == 0 else None
            for _ in range(2):
                state, kind = state_of(machine), type(event).__name__
                names = told(machine) if told else state
                effects = checked_step(machine, event, names, effects_known, twin)
                seen[state, kind].add(IMPOSSIBLE if effects is None else state_of(machine))
                if state in ends:
                    assert effects == [], f"an event that must be ignored has effects: {state} {event}"
    return dict(seen)


def as_table(seen: Mapping[tuple[str, str], set[str]], order: Iterable[str]) -> dict[tuple[str, str], str]:
    """Return the transitions that were seen as a table, without the pairs whose state always stays."""
    places = {name: place for place, name in enumerate((*order, IMPOSSIBLE))}
    return {
        key: " ".join(sorted(found, key=places.__getitem__)) for key, found in sorted(seen.items()) if found != {key[0]}
    }
