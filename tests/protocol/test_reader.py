# SPDX-License-Identifier: Apache-2.0
"""Reading a range, event by event: also silent bookies, bookies known to be slow, and answers to what was not asked."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from bk_core import quorum
from bk_core.entries.batch import EntryBatch
from bk_core.entries.frame import decode_frame, encode_frame, encode_striped
from bk_core.model import DigestType
from bk_core.protocol import events as ev
from bk_core.protocol.reader import RangeRead
from bk_core.wire.lane.reasons import EntryRange
from tests.kit.flagged import with_flags
from tests.protocol.kit import LEDGER, digester, frame, metadata, of

VALUES = [b"value %d" % i for i in range(12)]


def plain(first: int, last: int) -> memoryview:
    return frame(first, *VALUES[first : last + 1], length_before=sum(map(len, VALUES[:first])), session=1)


def reading(first: int, last: int, e: int = 3, qw: int = 3, **changes: object) -> tuple[RangeRead, list[ev.SendRead]]:
    machine = RangeRead(metadata(e, qw, min(qw, 2), **changes).value, digester(), first, last, bytes_max=1 << 20)
    return machine, of(machine.start(), ev.SendRead)


def delivered(effects: list[object]) -> list[bytes]:
    return [value for each in of(effects, ev.DeliverBatch) for value in each.batch.to_list()]


def one(effects: list[object], kind: type) -> object:
    return next(effect for effect in effects if isinstance(effect, kind))


def test_one_bookie_is_asked_and_its_parts_are_delivered_as_they_come() -> None:
    machine, reads = reading(0, 11)
    assert len(reads) == 1
    assert delivered(machine.step(ev.FramesRead(1, plain(0, 4)))) == VALUES[:5]
    assert delivered(machine.step(ev.FramesRead(1, plain(5, 11)))) == VALUES[5:]
    assert machine.step(ev.ReadAnswered(1, 11)) == [ev.FinishRead()]


def test_a_partial_frame_is_no_answer_to_who_asked_for_entries() -> None:
    machine, reads = reading(0, 11)
    effects = machine.step(ev.FramesRead(1, memoryview(with_flags(bytes(plain(0, 11))))))
    assert one(effects, ev.CancelRead) == ev.CancelRead(1)
    again = one(effects, ev.SendRead)
    assert again.bookie != reads[0].bookie
    assert delivered(machine.step(ev.FramesRead(again.request, plain(0, 11)))) == VALUES


def test_a_cut_frame_whose_entry_fails_its_digest_is_refused() -> None:
    batch = decode_frame(plain(0, 2))
    digests = np.array(batch.digests)
    digests[1, 0] ^= 1
    forged = EntryBatch(
        lengths=batch.lengths,
        payload=batch.payload,
        ledger_id=LEDGER,
        digests=digests,
        digest_type=batch.digest_type,
    )
    cut = memoryview(bytes(encode_frame(forged, digester=None)))  # tag 0: cut by the bookie
    machine, _ = reading(0, 2)
    assert delivered(machine.step(ev.FramesRead(1, cut))) == []


def striped(index: int, e: int, qw: int) -> memoryview:
    made = EntryBatch.from_list(VALUES)
    digests = digester().compute_run(0, -1, 0, made.lengths, made.payload)
    part = encode_striped(
        made,
        ledger_id=LEDGER,
        first_entry_id=0,
        lac=-1,
        length_before=0,
        digest_type=DigestType.CRC32C,
        digests=digests,
        ensemble_size=e,
        write_quorum=qw,
        index=index,
        session=1,
    )
    assert part is not None
    return memoryview(bytes(part))


@pytest.mark.parametrize(("e", "qw"), [(3, 2), (4, 2), (5, 3), (5, 2)])
def test_a_striped_range_asks_the_fewest_bookies_and_puts_their_answers_together(e: int, qw: int) -> None:
    machine, reads = reading(0, 11, e, qw)
    assert len(reads) == -(-e // qw)
    effects: list[object] = []
    for read in reads:
        index = int(read.bookie[1:])
        machine.step(ev.FramesRead(read.request, striped(index, e, qw)))
        effects += machine.step(ev.ReadAnswered(read.request, 11))
    assert delivered(effects) == VALUES
    assert one(effects, ev.FinishRead)


@cache
def held_by(index: int, shape: tuple[int, int]) -> EntryBatch:
    return decode_frame(striped(index, *shape))


def answer(machine: RangeRead, read: ev.SendRead, shape: tuple[int, int], dead: tuple[int, ...]) -> list[object]:
    """A dead bookie fails; the others give what they hold of four ids and stop there, as at a byte limit."""
    index, through = int(read.bookie[1:]), min(read.last, read.first + 3)
    if index in dead:
        return list(machine.step(ev.ReadFailed(read.request, "dead")))
    held = held_by(index, shape)
    part = held.select((held.entry_ids() >= read.first) & (held.entry_ids() <= through))
    effects: list[object] = []
    if len(part):
        effects += machine.step(ev.FramesRead(read.request, memoryview(bytes(encode_frame(part, digester=None)))))
    return effects + list(machine.step(ev.ReadAnswered(read.request, through)))


@pytest.mark.long
@pytest.mark.parametrize("shape", [(3, 2), (4, 2), (5, 2), (5, 3)])
def test_a_striped_range_ends_whichever_two_bookies_are_dead_and_goes_as_far_as_the_others_have_it(
    shape: tuple[int, int],
) -> None:
    e, qw = shape
    for dead in itertools.combinations(range(e), 2):
        for first, prefer in itertools.product(range(e), range(e)):
            machine = RangeRead(metadata(e, qw, 1).value, digester(), first, 11, bytes_max=1 << 20, prefer=prefer)
            effects, got, turns = list[object](machine.start()), list[bytes](), 0
            while not machine.done:
                turns += 1
                assert turns < 200, f"asks for ever: {dead} dead, from {first}, prefer {prefer}"
                todo, effects = effects, []
                for effect in todo:
                    if isinstance(effect, ev.SendRead):
                        effects += answer(machine, effect, shape, dead)
                    elif isinstance(effect, ev.SetTimer) and effect.name == "again":
                        effects += machine.step(ev.TimerFired("again"))
                got += delivered(effects)
            gone = [n for n in range(first, 12) if set(quorum.write_set(n, e, qw)) <= set(dead)]
            assert got == VALUES[first : min(gone, default=12)]


def test_a_bookie_that_answers_nothing_at_all_is_not_asked_again_at_once() -> None:
    machine, reads = reading(0, 11)
    machine.step(ev.ReadAnswered(reads[0].request, 11, absent=(EntryRange(0, 11),)))
    asked = set()
    for request in range(2, 4):
        asked.add(machine._window.answers[request].index)
        machine.step(ev.ReadAnswered(request, -1))
    assert len(asked) == 2


LATE = ev.TimerFired("late")


def cancels(effects: list[object]) -> list[int]:
    return [effect.request for effect in of(effects, ev.CancelRead)]


def started(e: int = 3, qw: int = 3, **options: object) -> tuple[RangeRead, list[object]]:
    made = RangeRead(metadata(e, qw, 1).value, digester(), 0, 11, bytes_max=1 << 20, **options)
    return made, list(made.start())


def part_of(read: ev.SendRead, shape: tuple[int, int], count: int) -> memoryview | None:
    """Return the entries that the bookie has of the first ``count`` ids of the request."""
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
