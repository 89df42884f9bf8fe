# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.storage_commit [--total-mb N] [--data DIR]``: the segment log beside bare writes and syncs.

Both write the same bytes to a preallocated file with O_DIRECT, one sync a group, in turns in one run. Ours adds the
copy into the arena, headers, stamps, the index rows, rolling and sealing. Also: write amplification, reads, start-up.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.raw import disk_rate
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_frame
from bk_core.model import DigestType
from bookie_server.storage.cookie import DataDirectory
from bookie_server.storage.reader import SegmentReader
from bookie_server.storage.replay import open_segments

LANE = "none"


def frames_of(size: int, count: int) -> list[bytes]:
    """Frames of about ``size`` bytes; their payload is random."""
    entry = max(1, min(size, 1024))
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


def commit_rate(folder: Path, groups: Sequence[Sequence[bytes]], total: int) -> tuple[float, float, float, float]:
    """MB/s of groups appended, write amplification, MB/s of reading some back, seconds to open it all again."""
    path = str(folder / "data")
    directory = DataDirectory.create(path, "bench:1", "bench")
    index, log, _ = open_segments(directory)
    done, k, places = 0, 0, []
    began = time.perf_counter()
    while done < total:
        group = groups[k % len(groups)]
        for frame, place in zip(group, log.append_group(group), strict=True):
            index.add(frame, place)
            places.append(place)
            done += place.size
        k += 1
    rate = done / (time.perf_counter() - began) / 1e6
    amplification = log.stats.write_amplification
    reader = SegmentReader(directory.segments_path, directory.identity)
    sample = places[-max(1, len(places) // 4) :]
    began = time.perf_counter()
    for place in sample:
        reader.read(place)
    read_rate = sum(place.size for place in sample) / (time.perf_counter() - began) / 1e6
    log.close()
    directory.close()
    directory = DataDirectory.open(path, "bench:1", "bench")
    began = time.perf_counter()
    open_segments(directory)[1].close()
    opened = time.perf_counter() - began
    directory.close()
    return rate, amplification, read_rate, opened


def storage_figures(folder: Path, total: int, runs: int) -> list[Figure]:
    """Figures of large and of small frames."""
    large = [[frame] for frame in frames_of(1 << 20, 16)]
    small = [frames_of(100, 1000)]
    figures = []
    for name, groups, bytes_total in (("commit_1mb", large, total), ("commit_1000_of_100b", small, total // 8)):
        group = sum(map(len, groups[0]))
        rates: list[float] = []
        raw: list[float] = []
        amplification: list[float] = []
        reads: list[float] = []
        opens: list[float] = []
        for run in range(runs + 1):
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                bare = disk_rate(Path(scratch), bytes_total, group=(group + 4095) // 4096 * 4096)
                result = commit_rate(Path(scratch), groups, bytes_total)
            if run:  # the first warms up
                for values, value in zip((rates, amplification, reads, opens), result, strict=True):
                    values.append(value)
                raw.append(bare)
        figures += [
            Figure(name, "MB/s", rates, LANE, peer="pwrite+fdatasync", peer_values=raw),
            Figure(name + "_write_amplification", "x", amplification, LANE, less_is_better=True),
            Figure(name + "_read_back", "MB/s", reads, LANE),
            Figure(name + "_start_up", "s", opens, LANE, less_is_better=True),
        ]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage_commit")
    parser.add_argument("--total-mb", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", default=".", help="a folder on the disk to be measured")
    options = parser.parse_args()
    for figure in storage_figures(Path(options.data), options.total_mb << 20, options.runs):
        print(figure.as_json(), flush=True)


if __name__ == "__main__":
    main()
