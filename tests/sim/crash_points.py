# SPDX-License-Identifier: Apache-2.0
"""Stops the machine at every file operation of a workload. Afterwards everything acked must be there, and nothing else.

Each point is tried in several :data:`VARIANTS` of what the disk keeps. After each come a start, a check of all promises
(I5, I6, I8, I9, I12; ``Life.check``), and another loss of power and start, which must change no answer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bk_core.errors import BookKeeperError, DataDirectoryError
from tests.sim.storage_life import NEW_LEDGER, Life, Step
from tests.sim.storage_workloads import WORKLOADS

POINTS_MAX = 5000


@dataclass(frozen=True, slots=True)
class Variant:
    """The event at the point. ``keep`` and ``names`` say what the disk keeps of bytes and of names (``SimDisk.crash``).
    ``kill`` ends only the process. With ``again`` the next start is crashed too, at every operation, or (``some``) at
    one that is drawn."""

    name: str
    keep: str | None = None
    names: str | None = None
    kill: bool = False
    again: str = ""


VARIANTS = (
    Variant("nothing unsynced is kept", "nothing"),
    Variant("everything is kept", "everything"),
    Variant("bytes kept, names lost", "everything", "nothing"),
    Variant("names kept, bytes lost", "nothing", "everything"),
    Variant("a prefix, torn", "a prefix"),
    Variant("some sectors, some names", "some sectors"),
    Variant("the process ends, then power", kill=True),
    Variant("again in the restart", again="some"),
)
EVERY_RESTART = Variant("at every operation of the restart", again="every")
"""The variant of the long form, whose points are pairs."""


def variant(name: str) -> Variant:
    """Return the variant of this name. Raises StopIteration if there is none."""
    return next(one for one in (*VARIANTS, EVERY_RESTART) if one.name == name)


@dataclass(slots=True)
class Found:
    """The results of one workload. ``starts`` counts crashes that a start and a check followed."""

    workload: str
    kinds: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    variants: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return sum(self.kinds.values())


def operations_of(steps: Sequence[Step]) -> Counter[str]:
    """Count the file operations of the whole workload by kind."""
    life = Life()
    life.run(steps)
    return Counter(life.disk.kinds)


def crash_at(steps: Sequence[Step], point: int, how: Variant, *, second: int | None = None, seed: int = 0) -> bool:
    """Run the steps, stop at operation ``point`` (and at operation ``second`` of the restart), start, and check
    everything.

    Return whether the point (or ``second``, if given) was reached. Raises AssertionError for a broken promise.
    """
    chance, life = random.Random(f"{seed} {point} {second}"), Life()
    life.disk.crash_at(point)
    reached = life.crashes(partial(life.run, steps))
    if how.kill:
        life.kill()
    else:
        life.crash(chance, how.keep, how.names)
    if how.again:
        life.disk.crash_at(second or chance.randint(1, 12))
        again = life.crashes(partial(_start, life))
        reached = again if second else reached
        life.crash(chance)
    _start_with_room(life, chance)
    life.check()
    before = dict(life.picture)
    life.crash(chance, "nothing")
    life.open()
    life.check()
    _same(before, life.picture)
    return reached


def _start(life: Life) -> None:
    """Start the storage. A full disk may refuse this."""
    try:
        life.open()
    except DataDirectoryError:
        assert life.disk.faults.no_space, "a start was refused on a disk that has room"
        life.kill()


def _start_with_room(life: Life, chance: random.Random) -> None:
    """Start the storage. A disk that is still full may refuse the start, but nothing may be denied. Then make room."""
    if life.disk.faults.no_space:
        _start(life)
        if life.is_open:
            life.check(more=False)
        life.crash(chance)
        life.disk.faults.no_space = False
    life.open()


def _same(before: dict[int, Any], after: dict[int, Any]) -> None:
    before.pop(NEW_LEDGER, None)  # every check adds to this ledger
    for ledger_id, seen in before.items():
        assert after[ledger_id] == seen, f"a restart changed ledger {ledger_id}: {seen} became {after[ledger_id]}"


SAMPLE = 6
"""Tests try one operation of this number, each in one of the variants. ``scripts/sim --crash-points`` tries every
operation in all of them."""


def crash_everywhere(steps: Sequence[Step], how: Variant, *, seed: int = 0, first: int = 1, stride: int = 1) -> int:
    """Crash at every operation of the steps, one after the other. Return the number of crashes. Raises at the first
    broken promise.

    With ``stride``, crash only at one operation of this number, from ``first`` on, as a sample.
    """
    starts = 0
    for point in range(first, POINTS_MAX, stride):
        if how.again == "every":
            starts += _restarts_at(steps, point, how, seed)
            if point > operations_of(steps).total():
                return starts
            continue
        if not crash_at(steps, point, how, seed=seed):
            return starts
        starts += 1
    raise AssertionError("the steps never came to their end")


def _restarts_at(steps: Sequence[Step], point: int, how: Variant, seed: int) -> int:
    second = 1
    while crash_at(steps, point, how, second=second, seed=seed):
        second += 1
    return second - 1


def workloads() -> Mapping[str, Sequence[Step]]:
    """Return the workloads of storage and of segments in a second life, by name."""
    from tests.sim import test_recycling  # test_recycling imports this module

    return {**WORKLOADS, **test_recycling.WORKLOADS}


def explore(name: str, ways: Sequence[Variant] = VARIANTS, *, seed: int = 0, stride: int = 1) -> Found:
    """Run one workload in all these variants. After a violation, continue with the next variant.

    With ``stride``, try each operation in one of this number of variants, each variant at other operations.
    """
    steps = workloads()[name]
    found = Found(name, operations_of(steps))
    for number, how in enumerate(ways):
        found.variants += 1
        try:
            found.starts += crash_everywhere(steps, how, seed=seed, first=1 + number % stride, stride=stride)
        except (AssertionError, BookKeeperError) as error:
            found.violations.append(f"{how.name}: {error}")
    return found


def report(done: Sequence[Found]) -> str:
    """Return a table in Markdown."""
    kinds = ("write", "sync", "sync directory", "rename", "create", "remove", "deallocate", "make directory")
    lines = [
        "| workload | operations | " + " | ".join(kinds) + " | variants | crashes | violations |",
        "|---|" + "---:|" * (len(kinds) + 4),
    ]
    for one in done:
        counts = " | ".join(str(one.kinds[kind]) for kind in kinds)
        ends = f"{one.variants} | {one.starts:,} | {len(one.violations)}"
        lines.append(f"| {one.workload} | {one.operations} | {counts} | {ends} |")
    total = (
        f"| **all {len(done)}** | {sum(one.operations for one in done):,} |"
        + " |" * len(kinds)
        + f" | {sum(one.starts for one in done):,} | {sum(len(one.violations) for one in done)} |"
    )
    lines += [total, ""]
    lines += [f"- {one.workload}, {violation}" for one in done for violation in one.violations]
    return "\n".join(lines).rstrip() + "\n"
