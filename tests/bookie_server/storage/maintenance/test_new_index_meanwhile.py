# SPDX-License-Identifier: Apache-2.0
"""An ``.idx`` that is made anew while somebody is at the old one: nobody takes blocks of both for one index."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import IntegrityError
from bookie_server.machine.disk_places import IndexBlock
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.disk.files import BLOCK
from bookie_server.storage.index.ledger_frames import BlockFrames
from bookie_server.storage.maintenance.sealed import stored
from tests.kit.maintained import Kept, limits
from tests.kit.segment_world import assert_honest, entries
from tests.kit.whole_files import decode_index_file, encode_index_file
from tests.sim.disk import SimDisk

SEGMENTS = "/data/segments/"


class ReplacingDisk(SimDisk):
    """``replacement``: path and bytes of a file that takes the place of another once its first block was read."""

    replacement: tuple[str, bytes] | None = None

    def read_past_cache(self, path: str, size: int, offset: int) -> bytes:
        data = super().read_past_cache(path, size, offset)
        if self.replacement is not None and (path, offset) == (self.replacement[0], 0):
            (path, content), self.replacement = self.replacement, None
            self.write_atomically(path, content)
        return data


@pytest.mark.rule("S4", "S7")
def test_compaction_lets_go_of_a_segment_whose_index_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of a deleted ledger are bad, so that the new index has fewer records, and all others stand elsewhere."""
    monkeypatch.setattr(stored, "_BLOCKS_AT_ONCE", 1)
    disk = SimDisk()
    kept = Kept(files=disk, limits=limits(compaction_threshold=0.9))
    dead = kept.append(*(entries(1, [2 * k]) for k in range(63)))  # apart, so that each has a record
    alive = [entries(2, [2 * k]) for k in range(100)]
    kept.append(*alive)
    generation = dead[0].generation
    while kept.log.newest_sealed < generation:
        kept.append(entries(3, range(10), size=1700))
    kept.delete(1, 3)
    compactor, reindexer = kept.maintenance.compaction.compactor, kept.maintenance.reindexer
    compactor.step(1)  # the first block of the index
    assert compactor.generation == generation
    for place in dead[:2]:
        disk.flip_bit(SEGMENTS + segment_name(generation), place.offset)
    for block in (0, 1):
        disk.flip_bit(SEGMENTS + index_name(generation), (1 + block) * BLOCK + 9)
        kept.index.mark_damaged(2, IndexBlock(generation, block))
    while not reindexer.stats.rebuilt:
        assert reindexer.step()
    while compactor.step(1 << 20):
        pass
    assert_honest(kept, alive)


@pytest.mark.rule("S7")
def test_a_block_of_a_new_index_is_not_taken_for_one_of_the_old() -> None:
    disk = ReplacingDisk()
    kept = Kept(files=disk)
    kept.append(*(entries(ledger_id, [2 * k]) for ledger_id in (1, 2) for k in range(63)))
    generation = 1
    while kept.log.newest_sealed < generation:
        kept.append(entries(3, range(10), size=1700))
    path = SEGMENTS + index_name(generation)
    header, rows, states = decode_index_file(disk.read_file(path))
    new = encode_index_file(replace(header, edition=header.edition + 1), rows[2:], states)
    disk.flip_bit(path, 2 * BLOCK + 9)
    disk.replacement = path, new
    with pytest.raises(IntegrityError, match="was rebuilt"):
        kept.reader.membership(IndexBlock(generation, 1))
    kept.reader.release(generation)
    found = kept.reader.membership(IndexBlock(generation, 1))
    assert isinstance(found, BlockFrames)
    assert found.edition == header.edition + 1
