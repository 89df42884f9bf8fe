# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.storage.lookups [--ledgers N]``: what the index takes of memory, and of time for a look-up.

Half of the memory is the state of the ledgers (a key, a fence), half the summaries of the sealed segments in which they
have frames. Memory is the growth of the process, not a sum of sizes; time is the processor's.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from bk_core.entries.frame import FrameExtent, FrameKind
from bookie_server.engine.holdings import IndexHoldings
from bookie_server.machine.disk_places import IndexBlock, Place
from bookie_server.storage.bytes.index_file import IndexHeader, StateCollector, build_index
from bookie_server.storage.bytes.index_rows import (
    DENSE,
    INDEX_ROW,
    Rows,
    joined_rows,
    sorted_rows,
    sparse_of,
    summary_of,
)
from bookie_server.storage.index.cache import Remembered, SparseIndex
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.index.ledger_frames import BlockFrames
from bookie_server.storage.index.search import SPARSE_SECTION

SEGMENTS = 100
FRAMES = 200_000  # of the segments that are looked into
OF_LEDGERS = 20


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def microseconds(ask: Callable[[int], object]) -> float:
    """The best of some rounds, a call."""
    random, best = Random(1), float("inf")
    ids = [random.randrange(FRAMES // OF_LEDGERS * 10 - 200) for _ in range(1000)]
    for _ in range(15):
        start = time.process_time()
        for entry_id in ids:
            ask(entry_id)
        best = min(best, time.process_time() - start)
    return best / len(ids) * 1e6


def frame_rows() -> Rows:
    """Frames of ten entries, of some ledgers in turn."""
    number = np.arange(FRAMES)
    rows = np.zeros(FRAMES, dtype=INDEX_ROW)
    rows["ledger"], rows["first"] = number % OF_LEDGERS, number // OF_LEDGERS * 10
    rows["last"], rows["lac"] = rows["first"] + 9, rows["first"] - 1
    rows["offset"], rows["size"], rows["count"], rows["bits"] = 4096 + 640 * number, 600, 10, DENSE
    return rows


def memory_of_ledgers(count: int) -> None:
    empty = resident_bytes()
    index = LedgerIndex()
    start = time.process_time()
    for ledger_id in range(count):
        index.add_record(FrameKind.LEDGER_KEY, ledger_id, b"k" * 20)
        if ledger_id % 2:
            index.add_record(FrameKind.FENCE, ledger_id, b"")
    folding = time.process_time() - start
    states = resident_bytes()
    row = np.zeros(1, dtype=INDEX_ROW)
    row["bits"], row["size"], row["lac"] = DENSE, 600, -1
    start = time.process_time()
    for segment in range(SEGMENTS):
        ledgers = np.arange(segment, count, SEGMENTS)
        rows = np.repeat(row, ledgers.size)
        rows["ledger"], rows["offset"] = ledgers, 4096 + 640 * np.arange(ledgers.size)
        index.seal(segment + 1, summary_of(rows))
    index.last_entry(0)
    loading = time.process_time() - start
    summaries = resident_bytes()
    print(f"{count} ledgers: state {(states - empty) / count:.0f} bytes each, {folding / count * 1e6:.1f} µs to fold")
    print(f"  summaries {(summaries - states) / count:.0f} bytes a ledger in a segment ({loading:.2f} s to load all)")
    print(f"  by its own account {index.memory_bytes() / count:.0f} bytes a ledger in all")
    rows = np.repeat(row, 2000)
    rows["ledger"] = np.sort(np.array(Random(1).sample(range(count), 2000)))
    start = time.process_time()
    index.seal(SEGMENTS + 1, summary_of(rows))
    index.last_entry(0)
    print(f"  a segment with frames of 2000 of them: {(time.process_time() - start) * 1e3:.1f} ms to take in")
    start = time.process_time()
    index.drop_segment(7)
    print(f"  one with frames of {count // SEGMENTS}: {(time.process_time() - start) * 1e3:.1f} ms to drop")


def time_of_lookups() -> None:
    rows = sorted_rows(frame_rows())
    active = LedgerIndex()
    active.add_rows(1, rows)
    print(f"{FRAMES} frames of {OF_LEDGERS} ledgers, µs a look-up of one entry:")
    print(f"  in memory {microseconds(lambda i: active.lookup(7, i, i)):.1f}", end="")
    print(f", as a plan {microseconds(lambda i: IndexHoldings(active).plan(7, i, i, 1 << 20, {})):.1f}")
    start = time.process_time()
    built = build_index(IndexHeader(1, bytes(16), 1 << 28, 1), frame_rows(), StateCollector().rows())
    print(f"  an .idx of {len(built.data)} bytes is built in {(time.process_time() - start) * 1e3:.0f} ms")
    sealed = LedgerIndex()
    sealed.seal(1, built.summary)
    index_rows = joined_rows(rows).rows
    blocks: dict[IndexBlock, Remembered] = {IndexBlock(1, SPARSE_SECTION): SparseIndex(sparse_of(index_rows, 63))}
    for number in range(-(-index_rows.size // 63)):
        blocks[IndexBlock(1, number)] = BlockFrames(1, index_rows[number * 63 : number * 63 + 63])
    for block, content in blocks.items():
        sealed.learn(7, block, content)
    print(f"  sealed, index blocks remembered {microseconds(lambda i: sealed.lookup(7, i, i)):.1f}", end="")
    many = LedgerIndex()
    for generation in range(1, 1001):
        summary = built.summary.copy()
        summary["first"] += generation * 200_000
        summary["last"] += generation * 200_000
        many.seal(generation, summary)
    many.add_frame(7, FrameExtent(0, 9, True, 10, -1), Place(2000, 4096, 600))
    print(f", none of 1000 segments reaches it {microseconds(lambda i: many.lookup(7, i + 100, i + 100)):.1f}")
    print(f"  last entry, of 1000 segments {microseconds(lambda i: many.last_entry(7)):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage.lookups")
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    memory_of_ledgers(parser.parse_args().ledgers)
    time_of_lookups()


if __name__ == "__main__":
    main()
