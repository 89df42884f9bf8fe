# SPDX-License-Identifier: Apache-2.0
"""Reading parts of entries from random bookies, as :mod:`tests.protocol.test_reader_against_a_model` reads whole ones.

Bookies cut what they send, or do not, or lie: about other bytes, other entries and other directories too. What is
delivered is the truth, and where one honest bookie of each write set answers in the end, there is no error.
"""

from __future__ import annotations

import numpy as np
import pytest

from bk_core.entries.parts import Heads, Parts, Regions, cut_frames
from bk_core.protocol import events as ev
from bk_core.wire.lane.reasons import Cut
from tests.kit.amount import some
from tests.kit.column_entries import column_entry, directory_of, regions_of
from tests.protocol.kit import LEDGER
from tests.protocol.test_reader_against_a_model import BOOKIES, World, ends_of, frame_of, truth_of


class PartsWorld(World):
    """Entries with directories, of which parts are read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pick = self.random
        self.whole = [column_entry(pick, (8 * pick.randint(0, 9), 16, 80)) for _ in self.values]
        self.truth, self.foreign = truth_of(self.whole), truth_of(self.whole, LEDGER + 1)
        self.others = truth_of([column_entry(pick, (8, 16, 80)) for _ in self.values])
        self.parts: Parts = Heads(160)
        self.values = [entry[:160] for entry in self.whole]
        if pick.random() < 0.5:
            directories = [directory_of(entry) for entry in self.whole]
            wanted = pick.choice(((0,), (2,), (0, 2), ()))
            self.parts = Regions(0, directories, wanted)
            self.values = [regions_of(entry, wanted) for entry in self.whole]

    def options(self) -> dict[str, object]:
        return {"avoid": self.random.sample(BOOKIES, 2), "parts": self.parts}

    def frames(self, read: ev.SendRead, ids: list[int]) -> list[object]:
        return [self.cut(read, said) for said in super().frames(read, ids)]

    def cut(self, read: ev.SendRead, said: object) -> object:
        """Some bookies cut their frames."""
        assert isinstance(said, ev.FramesRead)
        assert read.cut is not None
        if self.random.random() < 0.2:
            return said
        return self.as_cut(read, bytes(said.frames), read.cut)

    def as_cut(self, read: ev.SendRead, frames: bytes, cut: Cut) -> ev.FramesRead:
        return ev.FramesRead(read.request, memoryview(b"".join(cut_frames(frames, cut))))

    def lie(self, read: ev.SendRead) -> list[object]:
        if self.random.random() < 0.4:
            return super().lie(read)
        ids, whole = np.arange(read.first, read.last + 1), ev.ReadAnswered(read.request, read.last)
        assert read.cut is not None
        match self.random.choice(("other entries", "other bytes", "turned", "foreign")):
            case "other entries" if isinstance(self.parts, Regions):  # a head of theirs would be as good
                said = self.as_cut(read, frame_of(self.others.select(ids), 1), read.cut)
            case "other bytes":
                ranges = tuple(((8, 96),) for _ in ids)
                said = self.as_cut(read, frame_of(self.truth.select(ids), 1), Cut(0, read.first, ranges))
            case "turned":
                answer = bytearray(self.as_cut(read, frame_of(self.truth.select(ids), 1), read.cut).frames)
                at = len(answer) - 1 - self.random.randrange(min(64, len(answer)))
                answer[at] ^= 0xFF
                said = ev.FramesRead(read.request, memoryview(bytes(answer)))
            case _:
                said = self.as_cut(read, frame_of(self.foreign.select(ids), 1), read.cut)
        return [said, whole]


@pytest.mark.rule("P4", "MUST4", "S5")
@pytest.mark.parametrize("honest", [True, False], ids=["one-of-each-write-set-is-honest", "nobody-need-be"])
@pytest.mark.parametrize("seeds", range(some(4, few=1)))
def test_parts_that_are_delivered_are_the_truth_whatever_the_bookies_do(honest: bool, seeds: int) -> None:
    assert ends_of(PartsWorld, range(seeds * 100, seeds * 100 + 100), honest)["finished"] > 20
