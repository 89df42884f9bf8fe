# SPDX-License-Identifier: Apache-2.0
"""A start with 1,000,000 ledgers in 10 GB after kill -9, in a process of its own, from a cold disk.

The product's log writes the data set once, with its sealing and its checkpoints. The process that writes it kills
itself while segments are not sealed. Each start uses a copy made of hard links. It is timed from the creation of the
process, imports included, until an entry of the newest ledger has been read. The figure of memory is the most that the
process holds until it has served, made a checkpoint of everything and read some entries more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import time
import uuid
from collections import deque
from pathlib import Path
from random import Random

from benchmarks.report.figures import VariedBytes
from benchmarks.storage.child import Told, told_by
from benchmarks.storage.figures import StorageFigure
from benchmarks.storage.machine import DiskCounters, peak_bytes
from benchmarks.storage.world import BOOKIE_ID, CLUSTER, Ledger, scaled_segment
from bk_cli.local.lifeline import end_with
from bk_core.entries.frame import FrameKind, encode_record
from bookie_server.storage.disk.cookie import SEGMENTS_NAME, DataDirectory
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_log import LogMaintenance
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from bookie_server.storage.start.replay import open_segments

LEDGERS, BYTES = 1_000_000, 10_000_000_000
SEGMENT_BYTES = 256 << 20
FRAMES_OF_A_LEDGER, ENTRIES_OF_A_FRAME = 2, 5
DELETED_EVERY, FENCED_EVERY = 100, 2
UNSEALED_SEGMENTS = 1.5
"""The number of segments that are not sealed when the process is killed: one full segment, and half of the next."""
CHECKPOINT_EVERY = 8
"""The number of sealed segments between checkpoints, as in a bookie."""
GROUP_BYTES = 1 << 20
WANTED_S, WANTED_MB = 10.0, 1200.0
READS_AFTER = 1000
_STEP_BYTES = 1 << 24
_RAW_READ_BYTES = 4 << 20


class Shape:
    """The size of the data set: the number of ledgers, and the bytes of an entry."""

    def __init__(self, ledgers: int, total_bytes: int, segment_bytes: int) -> None:
        self.ledgers, self.total_bytes, self.segment_bytes = ledgers, total_bytes, segment_bytes
        frame = total_bytes // (ledgers * FRAMES_OF_A_LEDGER)
        self.entry_bytes = max(1, (frame - 128) // ENTRIES_OF_A_FRAME)
        self.apart = max(1, int(segment_bytes / (total_bytes / ledgers)))  # ledgers a segment

    @staticmethod
    def scaled(scale: float) -> Shape:
        ledgers, segment_bytes = max(1000, int(LEDGERS * scale)), scaled_segment(SEGMENT_BYTES, scale)
        return Shape(ledgers, max(12 * segment_bytes, int(BYTES * scale)), segment_bytes)

    @property
    def needed_bytes(self) -> int:
        """The bytes of disk for the data, its indexes, two checkpoints, and the spare segments of a start."""
        return int(self.total_bytes * 1.1) + self.ledgers * 500 + 4 * self.segment_bytes


# --- the data set ---------------------------------------------------------------------------------------------------


class Maker:
    """Writes the data set."""

    def __init__(self, path: str, shape: Shape) -> None:
        self._shape, self._data = shape, VariedBytes(64 << 20)
        directory = DataDirectory.create(path, BOOKIE_ID, CLUSTER)
        directory.record_boot()
        self._index, self._log, _ = open_segments(directory, segment_size_bytes=shape.segment_bytes)
        self._upkeep = LogMaintenance(self._log, lambda sealed: self._index.seal(sealed.generation, sealed.summary))
        self._checkpointer = Checkpointer(directory, DirectIndexPort(self._index), self._log.health)
        self._group: list[bytes | bytearray] = []
        self._size = self._written = 0
        self._template = Ledger(0, ENTRIES_OF_A_FRAME, shape.entry_bytes, self._data)

    def run(self) -> None:
        """Write the data set. Each ledger gets a key and a frame; about a segment later it gets another frame, and
        every second ledger a fence. In between there are deletions of ledgers that are not counted."""
        shape, waiting = self._shape, deque[int]()
        for number in range(shape.ledgers + shape.apart):
            if number < shape.ledgers:
                self._begin(number)
                waiting.append(number)
            if number >= shape.apart and waiting:
                self._end(waiting.popleft())
            if number % DELETED_EVERY == 0:
                self._put(encode_record(FrameKind.DELETED, 2 * shape.ledgers + number, b""))
        self._flush()

    def _begin(self, ledger_id: int) -> None:
        self._put(encode_record(FrameKind.LEDGER_KEY, ledger_id, bytes(range(20))))
        self._put(self._template.frame_of(ledger_id, 0))

    def _end(self, ledger_id: int) -> None:
        self._put(self._template.frame_of(ledger_id, ENTRIES_OF_A_FRAME))
        if ledger_id % FENCED_EVERY == 0:
            self._put(encode_record(FrameKind.FENCE, ledger_id, b""))

    def _put(self, frame: bytes | bytearray) -> None:
        self._group.append(frame)
        self._size += len(frame)
        if self._size >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._group:
            return
        places = self._log.append_group(self._group)
        for frame, place in zip(self._group, places, strict=True):
            self._index.add(frame, place)
        self._written += self._size
        self._group, self._size = [], 0
        self._log.release_full()
        if self._written < self._shape.total_bytes - UNSEALED_SEGMENTS * self._shape.segment_bytes:
            self._upkeep.run()
            if self._log.newest_sealed >= self._checkpointer.newest.through + CHECKPOINT_EVERY:
                checkpoint(self._checkpointer)


def checkpoint(checkpointer: Checkpointer) -> None:
    """Make one checkpoint."""
    assert checkpointer.start()
    while checkpointer.busy:
        checkpointer.step(_STEP_BYTES)


def make(path: str, shape: Shape) -> None:
    """Write the data set into the directory ``path`` and end as by kill -9."""
    Maker(path, shape).run()
    print(json.dumps({"seconds": time.process_time()}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


# --- a start --------------------------------------------------------------------------------------------------------


def start(path: str, shape: Shape) -> None:
    """Start once, in this process. Print a line when it could serve, and another after it has served."""
    here = Path(path)
    directory = DataDirectory.open(path, BOOKIE_ID, CLUSTER)
    began = time.perf_counter()
    index, log, report = open_segments(directory, segment_size_bytes=shape.segment_bytes)
    opened = time.perf_counter() - began
    reader = SegmentReader(directory.segments_path, directory.identity)
    assert not report.damage, report.damage
    read_one(index, reader, shape.ledgers - 1, 2 * ENTRIES_OF_A_FRAME - 1)
    ready = {
        "opened": opened,
        "read_bytes": DiskCounters.now(here).read_bytes,
        "ledgers": len(index),
        "scanned": report.segments_scanned,
        "segments": report.segments,
        "copied": report.frames_copied,
        "checkpoint": report.checkpoint.through,
        "peak": peak_bytes(),
    }
    print(json.dumps(ready), flush=True)
    checkpoint(Checkpointer(directory, DirectIndexPort(index), log.health, report.checkpoint))
    random = Random(1)
    for _ in range(READS_AFTER):
        read_one(index, reader, random.randrange(shape.ledgers), random.randrange(2 * ENTRIES_OF_A_FRAME))
    print(json.dumps({"peak": peak_bytes(), "index": index.memory_bytes()}), flush=True)
    reader.close()
    log.close(record=False)
    directory.close()


def read_one(index: LedgerIndex, reader: SegmentReader, ledger_id: int, entry_id: int) -> None:
    """Read one entry through the index, with as many blocks of index files as it asks for."""
    found = index.lookup(ledger_id, entry_id, entry_id)
    while found.unresolved:
        for place in found.unresolved:
            index.learn(ledger_id, place, reader.membership(place))
        found = index.lookup(ledger_id, entry_id, entry_id)
    assert len(found.pieces) == 1, (ledger_id, entry_id, found)
    assert reader.read_entries(found.pieces[0].place, entry_id, entry_id) is not None


def start_once(made: Path, folder: Path, scale: float) -> Told:
    """Start once from a copy on the disk. Return what the process reported, and ``seconds`` until it could serve."""
    copy = folder / uuid.uuid4().hex
    link(made, copy)
    arguments = ["benchmarks.storage.startup", "start", str(copy), "--scale", str(scale)]
    (ready, seconds), (served, _) = told_by(arguments)
    shutil.rmtree(copy)
    return {**ready, "seconds": seconds, "peak_ready": ready["peak"], **served}


def link(made: Path, copy: Path) -> None:
    """Make a copy of a data directory with hard links, none of it in the page cache. A start writes only to new files
    and to empty spare segments."""
    shutil.copytree(made, copy, copy_function=os.link)
    for path in copy.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def raw_read_seconds(made: Path, total: int) -> float:
    """Return the seconds of bare, cold reads of ``total`` bytes of the data set, one behind the other."""
    began, left = time.perf_counter(), total
    for path in sorted((made / SEGMENTS_NAME).glob("*.segment")):
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while left > 0 and (data := file.read(min(left, _RAW_READ_BYTES))):
                left -= len(data)
    return time.perf_counter() - began


def startup_figures(folder: Path, runs: int, scale: float) -> list[StorageFigure]:
    """Measure starts. The data set is made once; each start uses a copy."""
    shape, made = Shape.scaled(scale), folder / "made"
    for _ in told_by(["benchmarks.storage.startup", "make", str(made), "--scale", str(scale)], killed=True):
        pass
    starts: list[Told] = []
    raw: list[float] = []
    for _ in range(runs + 1):
        starts.append(start_once(made, folder, scale))
        raw.append(raw_read_seconds(made, int(starts[-1]["read_bytes"])))
    starts, raw = starts[1:], raw[1:]  # the first warms up
    shutil.rmtree(made)
    last = starts[-1]
    note = (
        f"{last['ledgers']:,.0f} ledgers in {shape.total_bytes / 1e9:.1f} GB, {last['segments']:.0f} segments, "
        f"{last['scanned']:.0f} of them not sealed at the kill, checkpoint through {last['checkpoint']:.0f}"
    )
    return [
        StorageFigure(
            "start_up", "s", [s["seconds"] for s in starts], wanted=WANTED_S, less_is_better=True,
            peer="bare reads of as many bytes, one behind the other, cold", peer_values=raw,
            note=f"from the creation of the process to the first entry read; {note}",
            extra={"of that opening the directory, s": last["opened"], "MB read": last["read_bytes"] / 1e6,
                   "frames copied": last["copied"]},
        ),
        StorageFigure(
            "start_up_memory", "MB", [s["peak"] / 1e6 for s in starts], wanted=WANTED_MB, less_is_better=True,
            note=f"most memory of the process, a checkpoint and {READS_AFTER:,} reads after the start included; {note}",
            extra={"MB when it could serve": last["peak_ready"] / 1e6,
                   "bytes of index a ledger": last["index"] / last["ledgers"]},
        ),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage.startup")
    parser.add_argument("what", choices=("make", "start"))
    parser.add_argument("path")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    shape = Shape.scaled(options.scale)
    make(options.path, shape) if options.what == "make" else start(options.path, shape)


if __name__ == "__main__":
    end_with(0)
    main()
