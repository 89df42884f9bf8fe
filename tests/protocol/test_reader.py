# SPDX-License-Identifier: Apache-2.0
"""Reading a range, event by event."""

from __future__ import annotations

import itertools
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
