# SPDX-License-Identifier: Apache-2.0
"""Silent bookies, bookies known to be slow, and answers to what was not asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bk_core.entries.frame import decode_frame, encode_frame
from bk_core.protocol import events as ev
from bk_core.protocol.reader import RangeRead
from bk_core.wire.lane.reasons import EntryRange
from tests.protocol.kit import digester, frame, metadata, of
from tests.protocol.test_reader import VALUES, delivered, plain, reading, striped

LATE = ev.TimerFired("late")


def cancels(effects: list[object]) -> list[int]:
    return [effect.request for effect in of(effects, ev.CancelRead)]


def started(e: int = 3, qw: int = 3, **options: object) -> tuple[RangeRead, list[object]]:
    made = RangeRead(metadata(e, qw, 1).value, digester(), 0, 11, bytes_max=1 << 20, **options)
    return made, list(made.start())


def part_of(read: ev.SendRead, shape: tuple[int, int], count: int) -> memoryview | None:
    """What the bookie holds of the first ``count`` ids that were asked for."""
    held = decode_frame(striped(int(read.bookie[1:]), *shape))
    part = held.select((held.entry_ids() >= read.first) & (held.entry_ids() < read.first + count))
    return memoryview(bytes(encode_frame(part, digester=None))) if len(part) else None


def test_a_silent_bookie_is_not_waited_for_alone_and_the_first_good_answer_wins() -> None:
    machine, effects = started(speculative_ms=700)
    (first,) = of(effects, ev.SendRead)
    assert ev.SetTimer("late", 700) in effects
    (second,) = of(machine.step(LATE), ev.SendRead)
    assert second.bookie != first.bookie
    assert (second.first, second.last) == (0, 11)
    effects = list(machine.step(ev.FramesRead(second.request, plain(0, 4))))
    assert delivered(effects) == VALUES[:5]
    assert cancels(effects) == [first.request]
    assert machine.step(ev.FramesRead(first.request, plain(0, 11))) == []
    assert delivered(machine.step(ev.FramesRead(second.request, plain(5, 11)))) == VALUES[5:]
    assert machine.step(ev.ReadAnswered(second.request, 11)) == [ev.FinishRead()]
    assert list(machine.suspects) == [first.bookie]


def test_a_bookie_that_speaks_now_and_then_is_not_late() -> None:
    machine, _ = started()
    machine.step(ev.FramesRead(1, plain(0, 4)))
    assert machine.step(LATE) == [ev.SetTimer("late", 2_000)]
    (second,) = of(machine.step(LATE), ev.SendRead)  # not a word since
    assert (second.first, second.last) == (5, 11)


def test_everything_has_come_but_the_end_of_the_answer_does_not() -> None:
    machine, _ = started()
    machine.step(ev.FramesRead(1, plain(0, 11)))
    machine.step(LATE)
    assert machine.step(LATE) == [ev.CancelRead(1), ev.FinishRead()]


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (5, 3)])
def test_bookies_known_to_be_slow_are_asked_last(shape: tuple[int, int]) -> None:
    for slow in range(shape[0]):
        for prefer in range(shape[0]):
            _, effects = started(*shape, avoid=[f"b{slow}"], prefer=prefer)
            asked = [read.bookie for read in of(effects, ev.SendRead)]
            assert f"b{slow}" not in asked
            assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("shape", [(4, 2), (5, 3), (5, 2)])
def test_the_windows_of_a_striped_range_use_all_bookies_alike(shape: tuple[int, int]) -> None:
    machine, effects = started(*shape)
    asked: list[str] = []
    while not machine.done:
        todo, effects = of(effects, ev.SendRead), []
        for read in todo:
            asked.append(read.bookie)
            part = part_of(read, shape, 2)
            if part is not None:
                effects += machine.step(ev.FramesRead(read.request, part))
            effects += machine.step(ev.ReadAnswered(read.request, min(read.first + 1, read.last)))
    counts = [asked.count(f"b{i}") for i in range(shape[0])]
    assert max(counts) - min(counts) <= 2, counts


def test_only_the_gap_is_asked_of_another_bookie() -> None:
    machine, _ = reading(0, 11)
    machine.step(ev.FramesRead(1, plain(0, 4)))
    machine.step(ev.FramesRead(1, plain(6, 11)))
    (read,) = of(machine.step(ev.ReadAnswered(1, 11, (EntryRange(5, 5),))), ev.SendRead)
    assert (read.first, read.last) == (5, 5)
    effects = list(machine.step(ev.FramesRead(read.request, plain(5, 5))))
    assert delivered(effects + list(machine.step(ev.ReadAnswered(read.request, 5)))) == VALUES[5:]


@pytest.mark.parametrize(("shape", "lacking", "avoid"), [((3, 3), 2, []), ((4, 3), 1, ["b2", "b3"])])
def test_entries_that_are_missing_here_and_there_do_not_cost_the_rest_each_time(
    shape: tuple[int, int], lacking: int, avoid: list[str]
) -> None:
    values = [b"value %d" % k for k in range(400)]
    whole = decode_frame(frame(0, *values))
    machine = RangeRead(metadata(*shape, 1).value, digester(), 0, 399, bytes_max=1 << 20, avoid=avoid)
    todo, got, asked, turns = of(machine.start(), ev.SendRead), list[bytes](), 0, 0
    while todo:
        read, effects, turns = todo.pop(0), list[object](), turns + 1
        index, ids = int(read.bookie[1:]), np.arange(read.first, read.last + 1)
        asked += ids.size
        has = ((index - ids) % shape[0] < shape[1]) & ((index != lacking) | (ids % 10 != 5))
        if has.any():
            part = encode_frame(whole.select(ids[has]), digester=None)
            effects += machine.step(ev.FramesRead(read.request, memoryview(bytes(part))))
        absent = tuple(EntryRange(k, k) for k in ids[~has].tolist())
        effects += machine.step(ev.ReadAnswered(read.request, read.last, absent))
        todo, got = todo + of(effects, ev.SendRead), got + delivered(effects)
    assert got == values
    assert asked < 4 * len(values)
    assert turns < 20


def test_what_a_bookie_says_after_the_end_of_its_answer_is_not_heard() -> None:
    machine, effects = started(4, 2)
    one, other = of(effects, ev.SendRead)
    machine.step(ev.ReadAnswered(one.request, 11))
    assert machine.step(ev.FramesRead(one.request, part_of(one, (4, 2), 12))) == []
    machine.step(ev.ReadAnswered(one.request, 11, (EntryRange(0, 11),)))
    machine.step(ev.ReadAnswered(other.request, 11))
    assert machine.next == 0
    assert "" not in machine._said.values()


def test_a_bookie_that_never_stops_is_stopped() -> None:
    machine = RangeRead(metadata(3, 2, 1).value, digester(), 0, 11, bytes_max=100)
    first = of(machine.start(), ev.SendRead)[0]
    made = frame(0, bytes(3 << 20))
    for _ in range(2):
        assert machine.step(ev.FramesRead(first.request, made)) == []
    assert cancels(machine.step(ev.FramesRead(first.request, made))) == [first.request]


def test_who_was_late_goes_on_with_what_it_was_asked_for() -> None:
    machine, effects = started(4, 2)
    asked = [*of(effects, ev.SendRead), *of(machine.step(LATE), ev.SendRead)]
    assert len({read.bookie for read in asked}) == 4
    for read in asked:
        machine.step(ev.FramesRead(read.request, part_of(read, (4, 2), 6)))
    machine.step(LATE)
    effects = list(machine.step(LATE))  # all have fallen silent again
    assert delivered(effects) == VALUES[:6]
    assert (cancels(effects), of(effects, ev.SendRead)) == ([], [])
    assert ev.SetTimer("late", 2_000) in effects
    for read in asked:
        rest = replace(read, first=6)
        effects += machine.step(ev.FramesRead(read.request, part_of(rest, (4, 2), 6)))
    for read in asked:
        effects += machine.step(ev.ReadAnswered(read.request, 11))
    assert delivered(effects) == VALUES
    assert machine.done


def test_a_gap_is_asked_last_of_a_bookie_known_to_be_slow() -> None:
    machine, effects = started(prefer=2, avoid=["b0"])
    (read,) = of(effects, ev.SendRead)
    assert read.bookie == "b1"
    (read,) = of(machine.step(ev.ReadAnswered(read.request, 11, (EntryRange(0, 0),))), ev.SendRead)
    assert read.bookie == "b2"
