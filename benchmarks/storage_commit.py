# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.storage_commit [--total-mb N] [--data DIR]``: the segment log beside bare writes and syncs.

Both write groups of the same size with O_DIRECT, one sync a group, group by group in turns: ours into recycled
segments, the bare disk over a file that was written before. Ours adds the copy into the arena, headers, stamps, index
rows, rolling and sealing. Also: write amplification over payload, reads, start-up.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.raw import open_direct
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_frame
from bk_core.model import DigestType
from bookie_server.storage.commit import SegmentLog
from bookie_server.storage.cookie import DataDirectory
from bookie_server.storage.index import LedgerIndex
from bookie_server.storage.reader import SegmentReader
from bookie_server.storage.replay import open_segments
from bookie_server.storage.upkeep import LogUpkeep

LANE = "none"
SEGMENT_BYTES = 64 << 20
ROUNDS = 200  # of single adds


def frames_of(size: int, count: int, entry: int = 1024) -> list[bytes]:
    """Frames of about ``size`` bytes of payload in entries of ``entry`` bytes, each of a ledger of its own."""
    entry = min(size, entry)
    frames = []
    for ledger_id in range(count):
        batch = EntryBatch.from_list([os.urandom(entry) for _ in range(max(1, size // entry))])
        digester = Digester(DigestType.CRC32C, b"", ledger_id)
        frames.append(
            bytes(
                encode_frame(batch, digester=digester, ledger_id=ledger_id, first_entry_id=0, lac=-1, length_before=0)
            )
        )
    return frames


class Bare:
    """A file on the same disk, every block written once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "raw-disk"
        self._handle = open_direct(self._path)
        os.posix_fallocate(self._handle, 0, SEGMENT_BYTES)
        with mmap.mmap(-1, 1 << 20) as zeros:
            for at in range(0, SEGMENT_BYTES, 1 << 20):
                os.pwrite(self._handle, zeros, at)
        os.fdatasync(self._handle)
        self._at = 0

    def write(self, buffer: mmap.mmap) -> float:
        """Seconds of one write and sync."""
        if self._at + len(buffer) > SEGMENT_BYTES:
            self._at = 0
        began = time.perf_counter()
        os.pwrite(self._handle, buffer, self._at)
        os.fdatasync(self._handle)
        self._at += len(buffer)
        return time.perf_counter() - began

    def close(self) -> None:
        os.close(self._handle)
        self._path.unlink()


class Store:
    """A data directory whose log goes on in recycled segments."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "data")
        self.directory = DataDirectory.create(self.path, "bench:1", "bench")
        opened = open_segments(self.directory, segment_size_bytes=SEGMENT_BYTES)
        self.index: LedgerIndex = opened[0]
        self.log: SegmentLog = opened[1]
        self._upkeep = LogUpkeep(self.log, lambda sealed: self.index.seal(sealed.generation, sealed.summary))
        filler = frames_of(1 << 20, 1)
        while self.log.pool.recycled < 2 or self.log.pool.free_segments:
            self.log.append_group(filler)
            self.look_after()
            if self.log.pool.recycled < 2:
                for name in sorted(os.listdir(self.directory.segments_path)):
                    if name.endswith(".idx"):
                        self.log.pool.recycle(int(name[:16], 16))

    def look_after(self) -> None:
        """What the upkeep thread does meanwhile."""
        self.log.release_full()
        self._upkeep.run()

    def close(self) -> float:
        """Seconds that the next start takes."""
        self.log.close()
        self.directory.close()
        directory = DataDirectory.open(self.path, "bench:1", "bench")
        began = time.perf_counter()
        open_segments(directory, segment_size_bytes=SEGMENT_BYTES)[1].close()
        took = time.perf_counter() - began
        directory.close()
        return took


def one_run(folder: Path, groups: Sequence[Sequence[bytes]], payload: int, rounds: int) -> dict[str, float]:
    """Groups in turns with bare writes. Rates are of payload bytes; upkeep is timed too."""
    bare, store = Bare(folder), Store(folder)
    size = sum(map(len, groups[0]))
    buffer = mmap.mmap(-1, (size + 4095) // 4096 * 4096)
    buffer.write(os.urandom(len(buffer)))
    before = store.log.stats.written_bytes + store.log.stats.index_bytes
    ours, theirs, places = [], [], []
    for k in range(rounds):
        theirs.append(bare.write(buffer))
        group = groups[k % len(groups)]
        began = time.perf_counter()
        here = store.log.append_group(group)
        for frame, place in zip(group, here, strict=True):
            store.index.add(frame, place)
        store.look_after()
        ours.append(time.perf_counter() - began)
        places += here
    written = store.log.stats.written_bytes + store.log.stats.index_bytes - before
    reader = SegmentReader(store.directory.segments_path, store.directory.identity)
    began = time.perf_counter()
    for place in places[-max(1, len(places) // 4) :]:
        reader.read(place)
    read_s = time.perf_counter() - began
    reader.close()
    bare.close()
    return {
        "rate": rounds * payload / sum(ours) / 1e6,
        "bare": rounds * payload / sum(theirs) / 1e6,
        "add_ms": statistics.median(ours) * 1e3,
        "bare_ms": statistics.median(theirs) * 1e3,
        "amplification": written / (rounds * payload),
        "read": sum(place.size for place in places[-max(1, len(places) // 4) :]) / read_s / 1e6,
        "start": store.close(),
    }


def storage_figures(folder: Path, total: int, runs: int) -> list[Figure]:
    """Figures of large and of small groups, and of single adds."""
    cases: list[tuple[str, list[list[bytes]], int, int]] = [
        ("commit_1mb", [[frame] for frame in frames_of(1 << 20, 16)], 1 << 20, max(16, total >> 20)),
        ("commit_256kb", [[frame] for frame in frames_of(256 << 10, 16)], 256 << 10, max(16, total >> 20)),
        ("commit_1000_of_100b", [frames_of(100, 1000)], 100_000, max(16, (total >> 20) // 4)),
        ("commit_single_1kb", [[frame] for frame in frames_of(1024, ROUNDS)], 1024, ROUNDS),
    ]
    figures = []
    for name, groups, payload, rounds in cases:
        results = []
        for _ in range(runs + 1):
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                results.append(one_run(Path(scratch), groups, payload, rounds))
        figures += _figures(name, results[1:])  # the first warms up
    return figures


def _figures(name: str, results: list[dict[str, float]]) -> list[Figure]:
    def of(what: str) -> list[float]:
        return [result[what] for result in results]

    single = name.startswith("commit_single")
    limit = {"commit_single_1kb": 4.2, "commit_1mb": 1.1, "commit_256kb": 1.1}.get(name)
    speed = (
        Figure(
            name,
            "ms",
            of("add_ms"),
            LANE,
            less_is_better=True,
            peer="4 KiB pwrite+fdatasync",
            peer_values=of("bare_ms"),
        )
        if single
        else Figure(name, "MB/s", of("rate"), LANE, peer="pwrite+fdatasync", peer_values=of("bare"))
    )
    amplification = Figure(
        name + "_write_amplification", "x", of("amplification"), LANE, wanted=limit, less_is_better=True
    )
    return [
        speed,
        amplification,
        Figure(name + "_read_back", "MB/s", of("read"), LANE),
        Figure(name + "_start_up", "s", of("start"), LANE, less_is_better=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage_commit")
    parser.add_argument("--total-mb", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", default=".", help="a folder on the disk to be measured")
    options = parser.parse_args()
    for figure in storage_figures(Path(options.data), options.total_mb << 20, options.runs):
        print(figure.as_json(), flush=True)


if __name__ == "__main__":
    main()
