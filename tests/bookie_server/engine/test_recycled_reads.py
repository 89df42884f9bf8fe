# SPDX-License-Identifier: Apache-2.0
"""Reads that were planned before their segment was given back, and come to the disk after it (RULES S3, S4, S5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bk_core.entries.digest import Digester
from bk_core.entries.frame import decode_frame, split_frames
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.engine.holdings import IndexHoldings, answer_read
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from tests.kit.bookie_effects import parted
from tests.kit.maintained import Kept, limits
from tests.kit.segment_world import entries, key_record, payload_of

REQUEST = (1, 1)
LEDGER, WASTE = 7, 1


class Rig:
    """A machine over a maintained directory; what it wants read is read when the test says so."""

    def __init__(self) -> None:
        self.kept = Kept(limits=limits(compaction_threshold=0.9, checkpoint_interval_s=1))
        self.kept.append(key_record(LEDGER), key_record(WASTE))
        for k in range(0, 6, 2):
            self.kept.append(entries(LEDGER, range(k, k + 2)), entries(WASTE, range(5 * k, 5 * k + 10), size=1700))
        self.kept.fill(2, 1)
        self.generation = self.kept.index.sealed_generations()[0]
        self.machine = BookieMachine(IndexHoldings(self.kept.index))
        self.wanted: list[ev.ReadFrames | ev.ReadMemberships] = []
        self.found: dict[int, bytes] = {}
        self.trailer: ev.SendTrailer | None = None

    def feed(self, event: ev.Event) -> None:
        for effect in parted(self.machine.step(event)):
            match effect:
                case ev.ReadFrames() | ev.ReadMemberships():
                    self.wanted.append(effect)
                case ev.SendPart(frames=frames):
                    self._take(frames)
                    self.feed(ev.PartSent(effect.request))
                case ev.SendTrailer():
                    self.trailer = effect

    def ask(self) -> None:
        self.feed(ev.ReadRequested(REQUEST, LEDGER, 0, 5, 1 << 20))

    def answer_one(self) -> None:
        self.feed(answer_read(self.kept.reader, self.wanted.pop(0)))

    def answer_all(self) -> None:
        while self.wanted:
            self.answer_one()

    def until_frames_are_wanted(self) -> None:
        while not isinstance(self.wanted[0], ev.ReadFrames):
            self.answer_one()

    def _take(self, frames: Sequence[bytes | bytearray | memoryview]) -> None:
        for frame in frames:
            for _, one in split_frames(frame):
                batch = decode_frame(one, digester=Digester(DigestType.CRC32C, b"", LEDGER), verify_digests=True)
                self.found.update(zip(batch.entry_ids().tolist(), batch.to_list(), strict=True))

    def give_back(self) -> None:
        """Compact what is left of the segment, and use its file for another one, to the brim."""
        kept = self.kept
        kept.delete(WASTE)
        kept.settle(5)
        assert self.generation not in kept.index.sealed_generations()
        assert kept.maintenance.space.drained == 0
        kept.fill(3, 8)
        assert kept.log.pool.recycled >= 1

    def assert_right(self) -> None:
        assert self.found == {k: payload_of(LEDGER, k) for k in range(6)}
        assert self.trailer.trailer.absent == self.trailer.trailer.unknown == ()


def nothing(rig: Rig) -> None:
    """The reader did as it was told."""


def handle_stays_open(rig: Rig) -> None:
    """The worst case: the reader has the file open, and was not told that it is given up."""
    reader = rig.kept.reader
    reader.read(rig.wanted[0].pieces[0].place)
    rig.kept.maintenance._give_up_reader = lambda generation: None


def unaware(rig: Rig) -> None:
    """It closed the file, and was not told that it is given up."""
    rig.kept.maintenance._give_up_reader = rig.kept.reader.release


CASES = [nothing, handle_stays_open, unaware]


@pytest.mark.rule("S4")
@pytest.mark.parametrize("before", CASES)
def test_a_read_that_comes_after_its_segment_was_compacted_and_recycled_finds_the_copies(
    before: Callable[[Rig], None],
) -> None:
    rig = Rig()
    rig.ask()
    rig.until_frames_are_wanted()
    before(rig)
    rig.give_back()
    rig.answer_all()
    rig.assert_right()


@pytest.mark.rule("S4")
@pytest.mark.parametrize("before", [nothing, unaware])
def test_a_question_about_its_index_that_comes_too_late_is_asked_again(before: Callable[[Rig], None]) -> None:
    rig = Rig()
    rig.ask()
    assert isinstance(rig.wanted[0], ev.ReadMemberships)
    before(rig)
    rig.give_back()
    rig.answer_all()
    rig.assert_right()


@pytest.mark.parametrize("before", CASES)
def test_a_read_of_a_ledger_that_was_deleted_meanwhile_is_told_so(before: Callable[[Rig], None]) -> None:
    rig = Rig()
    rig.ask()
    rig.until_frames_are_wanted()
    before(rig)
    rig.kept.delete(LEDGER)
    rig.give_back()
    rig.answer_all()
    assert rig.found == {}
    assert rig.trailer.reason is Reason.DELETED


def test_no_read_of_a_segment_that_was_given_up_counts_as_damage_or_opens_a_file() -> None:
    rig = Rig()
    rig.ask()
    rig.until_frames_are_wanted()
    rig.give_back()
    late = rig.wanted[0]
    reader = rig.kept.reader
    before = reader.reads, reader.damaged, reader.io_errors
    answer = answer_read(reader, late)
    assert isinstance(answer, ev.FramesRead)
    assert set(answer.frames) == {None}
    assert (reader.reads, reader.damaged, reader.io_errors) == before
    rig.answer_all()
    rig.assert_right()
    assert rig.kept.index.damaged_segments() == set()


def test_what_is_lost_stays_unknown_when_everything_around_it_is_given_back() -> None:
    rig = Rig()
    path = f"/data/segments/{rig.generation:016x}.segment"
    rig.ask()
    rig.until_frames_are_wanted()
    place = rig.wanted[0].pieces[0].place
    rig.kept.files.flip_bit(path, place.offset + 100)
    rig.kept.delete(WASTE, 2)
    rig.kept.settle(60)
    assert rig.generation in rig.kept.index.sealed_generations()
    rig.answer_all()
    assert rig.trailer.trailer.absent == ()
    assert rig.trailer.trailer.unknown[0] == EntryRange(0, rig.trailer.trailer.unknown[0].last, Reason.DAMAGED)
