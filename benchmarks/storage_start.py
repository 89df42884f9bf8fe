# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.storage_start [--ledgers N] [--data DIR]``: a start after kill -9, and the memory it takes.

The directory is made quickly: sealed segments have their header and a true ``.idx``, and holes where a start never
reads; the segments that were being written when the bookie was killed are written by the production's log. Each ledger
has a key and frames in two neighbouring segments, every second one is fenced, every hundredth id is deleted. Each start
is a process of its own, on a copy by hard links, with the files dropped from the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import FrameKind, encode_frame, encode_record
from bk_core.model import DigestType
from bookie_server.storage.checkpointer import Checkpointer, IndexSource
from bookie_server.storage.commit import SegmentLog
from bookie_server.storage.cookie import DataDirectory
from bookie_server.storage.index_file import INDEX_ROW, STATE_ROW, IndexHeader, Rows, build_index
from bookie_server.storage.replay import open_segments
from bookie_server.storage.segment import SegmentHeader, encode_segment_header, index_name, segment_name

LEDGERS, BYTES = 1_000_000, 10_000_000_000
SEGMENT_BYTES = 256 << 20
TAIL_SEGMENTS = 1.5
"""Segments that are not sealed when the bookie is killed: one that was full, and half of the one that was written."""
BOOKIE_ID, CLUSTER = "bench:1", "bench"
DELETED_EVERY = 100
WANTED_S, WANTED_BYTES = 10.0, 1.2e9


class Shape:
    """How many ledgers, in how many segments, with how many bytes each."""

    def __init__(self, ledgers: int, total_bytes: int) -> None:
        self.ledgers = ledgers
        self.sealed = max(2, round(total_bytes / SEGMENT_BYTES - TAIL_SEGMENTS))
        self.per_segment = ledgers // (self.sealed + 2)
        self.frame_bytes = SEGMENT_BYTES // (2 * max(1, self.per_segment)) // 64 * 64


def make_directory(path: Path, shape: Shape, *, checkpoint: bool) -> None:
    """A data directory as a bookie leaves it that was killed. ``checkpoint``: with one that covers the sealed ones."""
    directory = DataDirectory.create(str(path), BOOKIE_ID, CLUSTER)
    directory.record_boot()
    incarnation, segments = directory.identity.incarnation_bytes, Path(directory.segments_path)
    for generation in range(1, shape.sealed + 1):
        header = SegmentHeader(generation, incarnation, SEGMENT_BYTES, 0, 1, generation - 1, BOOKIE_ID)
        with open(segments / segment_name(generation), "wb") as file:
            file.write(encode_segment_header(header))
            file.truncate(SEGMENT_BYTES)
        built = build_index(IndexHeader(generation, incarnation, SEGMENT_BYTES, 1000), *contents(generation, shape))
        (segments / index_name(generation)).write_bytes(built.data)
    directory.close()
    directory = DataDirectory.open(str(path), BOOKIE_ID, CLUSTER)
    # The newest segment is being written, always: without one the start would miss it.
    empty = encode_segment_header(
        SegmentHeader(shape.sealed + 1, incarnation, SEGMENT_BYTES, 0, 1, shape.sealed, BOOKIE_ID)
    )
    with open(segments / segment_name(shape.sealed + 1), "wb") as file:
        file.write(empty)
        file.truncate(SEGMENT_BYTES)
    index, log, report = open_segments(directory, segment_size_bytes=SEGMENT_BYTES)
    assert not report.damage, report.damage
    if checkpoint:
        checkpointer = Checkpointer(directory, IndexSource(index))
        assert checkpointer.start()
        while checkpointer.busy:
            checkpointer.step(1 << 24)
    fill_tail(log, shape)
    log.close(record=False)
    directory.close()
    for left in segments.glob("*.tmp"):
        left.unlink()


def contents(generation: int, shape: Shape) -> tuple[Rows, Rows]:
    """Index and state records of a sealed segment: the second frames of the ledgers before, the first of its own."""
    own = np.arange(shape.per_segment, dtype=np.int64) + generation * shape.per_segment
    both = np.concatenate([own - shape.per_segment, own]) if generation > 1 else own
    rows = np.zeros(both.size, INDEX_ROW)
    rows["ledger"] = both
    rows["first"] = np.where(both >= own[0], 0, 10)
    rows["last"] = rows["first"] + 9
    rows["lac"] = rows["first"] + 8
    rows["offset"] = 8192 + shape.frame_bytes * np.arange(both.size)
    rows["size"], rows["count"], rows["digest_type"], rows["bits"] = shape.frame_bytes, 10, 2, 1
    fenced = both[(both < own[0]) & (both % 2 == 0)]
    deleted = own[own % DELETED_EVERY == 0]
    states = np.zeros(own.size + fenced.size + deleted.size, STATE_ROW)
    states["ledger"] = np.concatenate([own, fenced, deleted])
    kinds = (FrameKind.LEDGER_KEY, FrameKind.FENCE, FrameKind.DELETED)
    states["kind"] = np.repeat(kinds, [own.size, fenced.size, deleted.size])
    keys = states["kind"] == FrameKind.LEDGER_KEY
    states["payload_bytes"][keys] = 20
    states["payload"][keys] = np.void(bytes(range(20)).ljust(40, b"\0"))
    return rows, states[np.lexsort((states["kind"], states["ledger"]))]


def fill_tail(log: SegmentLog, shape: Shape) -> None:
    """What the production's log wrote last."""
    ledger_id, wanted, written = (shape.sealed + 2) * shape.per_segment, int(TAIL_SEGMENTS * SEGMENT_BYTES), 0
    entry = os.urandom(max(1, shape.frame_bytes // 10 - 24))
    while written < wanted:
        frames: list[bytes] = []
        while sum(map(len, frames[1::2])) < 4 << 20:
            frames.append(encode_record(FrameKind.LEDGER_KEY, ledger_id, bytes(range(20))))
            batch, digester = EntryBatch.from_list([entry] * 10), Digester(DigestType.CRC32C, b"", ledger_id)
            at = {"ledger_id": ledger_id, "first_entry_id": 0, "lac": -1, "length_before": 0}
            frames.append(bytes(encode_frame(batch, digester=digester, **at)))
            ledger_id += 1
        log.append_group(frames)
        written += sum(map(len, frames))


def measure(path: str) -> dict[str, float]:
    """One start, in this process."""
    began = time.perf_counter()
    directory = DataDirectory.open(path, BOOKIE_ID, CLUSTER)
    index, log, report = open_segments(directory, segment_size_bytes=SEGMENT_BYTES)
    took = time.perf_counter() - began
    result = {
        "seconds": took,
        "resident": peak_bytes(),
        "index": index.memory_bytes(),
        "ledgers": len(index),
        "scanned": report.segments_scanned,
        "copied": report.frames_copied,
        "damage": len(report.damage),
    }
    log.close(record=False)
    directory.close()
    return result


def peak_bytes() -> int:
    """Most memory this process ever held. Not ``ru_maxrss``, which Linux hands on from the parent."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def start_once(made: Path, folder: Path) -> dict[str, float]:
    """A start of a copy, in a process of its own, from the disk."""
    copy = folder / uuid.uuid4().hex
    for source in made.rglob("*"):
        target = copy / source.relative_to(made)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)
        with open(target, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, "-m", "benchmarks.storage_start", "--measure", str(copy)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for file in sorted(copy.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    copy.rmdir()
    result: dict[str, float] = json.loads(done.stdout)
    assert not result["damage"], result
    return result


def start_figures(folder: Path, runs: int, scale: float) -> list[Figure]:
    """Rows ``start_up`` and ``index_memory``: with the checkpoint that a bookie of this size has; and without one."""
    shape = Shape(max(1000, int(LEDGERS * scale)), max(3 * SEGMENT_BYTES, int(BYTES * scale)))
    figures = []
    for name, checkpoint in (("start_up", True), ("start_up_no_checkpoint", False)):
        made = folder / name
        make_directory(made, shape, checkpoint=checkpoint)
        results = [start_once(made, folder) for _ in range(runs + 1)][1:]
        note = f"{int(results[0]['ledgers']):,} ledgers in {shape.sealed} sealed segments, {TAIL_SEGMENTS} to scan"
        seconds = [result["seconds"] for result in results]
        figures.append(Figure(name, "s", seconds, "none", wanted=WANTED_S, less_is_better=True, note=note))
        if checkpoint:
            memory = [result["resident"] for result in results]
            figures.append(
                Figure("index_memory", "B", memory, "none", wanted=WANTED_BYTES, less_is_better=True, note=note)
            )
            indexes = [result["index"] / result["ledgers"] for result in results]
            figures.append(Figure("index_memory_a_ledger", "B", indexes, "none", less_is_better=True))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage_start")
    parser.add_argument("--scale", type=float, default=1.0, help="share of 1,000,000 ledgers in 10 GB")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--data", default=".", help="a folder on the disk to be measured")
    parser.add_argument("--measure", metavar="DIR", help="start this directory once and print what it took")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    with tempfile.TemporaryDirectory(dir=options.data) as folder:
        for figure in start_figures(Path(folder), options.runs, options.scale):
            print(figure.as_json(), flush=True)


if __name__ == "__main__":
    main()
