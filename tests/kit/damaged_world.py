# SPDX-License-Identifier: Apache-2.0
"""A data directory on a simulated disk, with sealed segments of all kinds of frames, functions that damage it, and the
parts of a bookie that find damage and repair indexes."""

from __future__ import annotations

import random
from pathlib import Path

from bookie_server.storage.bytes.index_file import IndexSections, decode_index_header
from bookie_server.storage.disk.files import BLOCK
from bookie_server.storage.maintenance.index_port import DirectIndexPort, IndexPort
from bookie_server.storage.maintenance.sealed.reindex import Reindexer
from bookie_server.storage.maintenance.sealed.scrub import Scrubber
from tests.kit.segment_world import (
    Answer,
    Storage,
    assert_honest,
    entries,
    fence_record,
    key_record,
    lac_record,
    striped,
)
from tests.sim.disk import SECTOR, SimDisk

SEGMENT_BYTES = 128 << 10
PLAIN, RUNS, STRIPED, IDS, MIXED, LARGE = 1, 2, 3, 4, 5, 6
LEDGERS = (PLAIN, RUNS, STRIPED, IDS, MIXED, LARGE)


class DamagedWorld:
    """The data directory. ``acked`` has every frame written. Its ledgers have plain frames, one-entry frames that
    become runs, striped frames, lists of ids, overlapping frames, and frames above 64 KiB; further ledgers have keys,
    fences and LACs. A checkpoint is assumed to hold the state up to segment ``checkpointed``."""

    def __init__(self, rounds: int = 24, seed: int = 0) -> None:
        self.disk, self.path = SimDisk(), Path("/data")
        self.disk.make_directory("/data")
        self.acked: list[bytes] = []
        self.checkpointed = 0
        self.released: list[int] = []
        self.open()
        chance = random.Random(seed)
        for k in range(rounds):
            self.append(*self._round(k, chance))
        self.seal_all()

    def _round(self, k: int, chance: random.Random) -> list[bytes]:
        units = [[entries(PLAIN, range(20 * k, 20 * k + 10), size=chance.choice((50, 400)), lac=20 * k - 1)]]
        units += [[entries(RUNS, [8 * k + j]) for j in range(8)]]
        units += [[striped(STRIPED, 12 * k, 12)], [entries(IDS, [5 * k, 5 * k + 2, 5 * k + 3])]]
        units += [[entries(MIXED, range(3 * k, 3 * k + chance.randint(1, 9)))]]
        units += [[entries(1000 + 10 * k + j, [j])] for j in range(8)]
        if k % 5 == 0:
            other = 100 + k
            units += [[key_record(other), fence_record(other), lac_record(other, k)], [entries(other, [k])]]
            units += [[entries(MIXED, [1000 + k])]]
        if k % 9 == 4:
            units.append([entries(LARGE, [k], size=70_000)])
        chance.shuffle(units)
        return [frame for unit in units for frame in unit]

    def open(self) -> None:
        self.storage = Storage(self.path, files=self.disk, segment_bytes=SEGMENT_BYTES)
        directory, index = self.storage.directory, self.storage.index
        self.port: IndexPort = DirectIndexPort(index)
        incarnation = directory.identity.incarnation_bytes
        self.scrubber = Scrubber(self.disk, directory.segments_path, incarnation, self.port)
        self.reindexer = Reindexer(
            self.disk,
            directory.segments_path,
            incarnation,
            self.port,
            self.storage.log.health,
            is_covered=lambda generation: generation <= self.checkpointed,
            release=self._release,
        )

    def _release(self, generation: int) -> None:
        self.released.append(generation)
        self.storage.reader.release(generation)

    def append(self, *frames: bytes) -> None:
        self.storage.append(*frames)
        self.acked += frames

    def seal_all(self) -> None:
        """Restart the storage, because a start seals all segments."""
        self.restart()

    def restart(self, *, crash: bool = False) -> None:
        self.storage.close(crash=crash)
        self.open()

    # --- damage -----------------------------------------------------------------------------------------------------

    @property
    def sealed(self) -> list[int]:
        return self.storage.index.sealed_generations()

    def segment(self, generation: int) -> str:
        return f"/data/segments/{generation:016x}.segment"

    def idx(self, generation: int) -> str:
        return f"/data/segments/{generation:016x}.idx"

    def sections(self, generation: int) -> IndexSections:
        return decode_index_header(self.disk.durable_bytes(self.idx(generation))[:BLOCK])

    def harm(self, chance: random.Random, path: str, end: int) -> None:
        """Damage some bytes of a file at rest."""
        offset = chance.randrange(end)
        kind = chance.random()
        if kind < 0.4:
            self.disk.flip_bit(path, offset, chance.randrange(8))
        elif kind < 0.7:
            sectors = chance.choice((1, 1, 8, 24))
            start = offset // SECTOR * SECTOR
            self.disk.put_at_rest(path, start, bytes(min(sectors * SECTOR, len(self.disk.durable_bytes(path)) - start)))
        elif kind < 0.9:
            self.disk.break_sector(path, offset)
        else:
            data = self.disk.durable_bytes(path)
            source = chance.randrange(end) // BLOCK * BLOCK
            self.disk.put_at_rest(path, offset // BLOCK * BLOCK, data[source : source + BLOCK])

    # --- looking ----------------------------------------------------------------------------------------------------

    def scrub(self) -> None:
        """Scrub all segments once."""
        passes = self.scrubber.stats.passes
        while self.scrubber.stats.passes == passes and self.sealed:
            self.scrubber.step(1 << 16)

    def mend(self) -> None:
        """Rebuild all indexes that need it."""
        while self.reindexer.step():
            pass

    def check(self, *, healthy: bool = False) -> dict[int, Answer]:
        """Check that the storage denies no acked entry and returns none that was never written."""
        return assert_honest(self.storage, self.acked, healthy=healthy)
