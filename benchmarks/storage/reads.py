# SPDX-License-Identifier: Apache-2.0
"""Random reads of one entry: counts the reads of the disk if the index block is remembered and the page is not
cached."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from benchmarks.report.figures import percentile
from benchmarks.storage.figures import StorageFigure
from benchmarks.storage.machine import DiskCounters
from benchmarks.storage.world import ENTRY_BYTES, Ledger, Store, ledgers_of, scaled_segment
from bookie_server.engine.holdings import IndexHoldings, answer_read
from bookie_server.machine import events
from bookie_server.machine.disk_places import Place, Unresolved
from bookie_server.storage.bytes.segment import segment_name
from bookie_server.storage.log.segment_reader import SegmentReader

SEGMENT_BYTES = 64 << 20
SEGMENTS = 4
READS = 300
READS_WANTED = 2
_PART_BYTES = 1 << 20


class RandomReader:
    """Reads as a bookie does, and counts the reads of the disk."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._holdings = IndexHoldings(store.index)
        self._reader = SegmentReader(store.directory.segments_path, store.directory.identity, files=store.files)
        self.asked: list[int] = []
        self.milliseconds: list[float] = []
        self.bare_milliseconds: list[float] = []
        self.from_disk: list[int] = []

    def read(self, ledger_id: int, entry_id: int) -> None:
        """Read once to warm the index, then read again with the frame's page cold, and count that."""
        place = self._once(ledger_id, entry_id)
        self._bare(place)
        self._make_cold(place)
        asked, disk, began = self._store.files.reads, DiskCounters.now(self._folder), time.perf_counter()
        self._once(ledger_id, entry_id)
        self.milliseconds.append((time.perf_counter() - began) * 1e3)
        self.asked.append(self._store.files.reads - asked)
        self.from_disk.append(DiskCounters.now(self._folder).read_bytes - disk.read_bytes)

    def _once(self, ledger_id: int, entry_id: int) -> Place:
        resolved: dict[Unresolved, object] = {}
        while True:
            plan = self._holdings.plan(ledger_id, entry_id, entry_id, _PART_BYTES, resolved)
            if not plan.unresolved:
                break
            told = answer_read(self._reader, events.ReadMemberships(request=(0, 0), places=plan.unresolved))
            assert isinstance(told, events.MembershipsRead)
            for place, membership in zip(plan.unresolved, told.memberships, strict=True):
                assert membership is not None, place
                resolved[place] = membership
                self._holdings.learn(ledger_id, place, membership)
        answer = answer_read(self._reader, events.ReadFrames(request=(0, 0), pieces=plan.pieces))
        assert isinstance(answer, events.FramesRead)
        assert len(answer.frames) == 1, (ledger_id, entry_id)
        assert answer.frames[0] is not None, (ledger_id, entry_id)
        place = plan.pieces[0].place
        assert isinstance(place, Place)
        return place

    def _bare(self, place: Place) -> None:
        """Read the same bytes with one bare read, cold."""
        handle = self._make_cold(place, keep=True)
        began = time.perf_counter()
        os.pread(handle, place.size, place.offset)
        self.bare_milliseconds.append((time.perf_counter() - began) * 1e3)
        os.close(handle)

    def _make_cold(self, place: Place, *, keep: bool = False) -> int:
        handle = os.open(os.path.join(self._store.directory.segments_path, segment_name(place.generation)), os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        if not keep:
            os.close(handle)
        return handle

    def close(self) -> None:
        self._reader.close()


def fill(store: Store, ledgers: Sequence[Ledger], segments: int) -> None:
    """Append frames of the ledgers in turns, at least 1 MiB a group, until ``segments`` more segments are sealed."""
    wanted = len(store.sealed) + segments
    while len(store.sealed) < wanted:
        group = [ledger.frame() for ledger in ledgers]
        while sum(map(len, group)) < 1 << 20:
            group += [ledger.frame() for ledger in ledgers]
        store.append(group)
        store.look_after()


def read_figures(folder: Path, runs: int, scale: float) -> list[StorageFigure]:
    """Measure reads from frames of 64 entries, and from frames of one entry that sealing has joined to runs."""
    figures = []
    for name, entries, told in (
        ("read_random", 64, "frames of 64 entries of 1,000 B"),
        ("read_random_small_frames", 1, "frames of one entry of 1,000 B, joined to runs at sealing"),
    ):
        part = folder / name
        part.mkdir()
        store = Store(part, scaled_segment(SEGMENT_BYTES, scale), recycling=False)
        ledgers = ledgers_of(4, entries * ENTRY_BYTES)
        fill(store, ledgers, SEGMENTS)
        ends = [store.index.last_entry(ledger.ledger_id).entry_id for ledger in ledgers]
        asked, mine, bare, disk = [], [], [], []
        for run in range(runs):
            reader, random = RandomReader(store, folder), Random(run)
            for _ in range(max(20, int(READS * scale))):
                number = random.randrange(len(ledgers))
                reader.read(ledgers[number].ledger_id, random.randrange(ends[number]))
            asked.append(float(max(reader.asked)))
            mine.append(percentile(reader.milliseconds, 0.5))
            bare.append(percentile(reader.bare_milliseconds, 0.5))
            disk.append(sum(reader.from_disk) / len(reader.from_disk))
            reader.close()
        store.close()
        note = f"one entry at random, index block remembered, page not cached; {told}"
        figures += [
            StorageFigure(
                name, "disk reads", asked, wanted=READS_WANTED, less_is_better=True, note=f"{note}; most of any read",
                extra={"KiB from the disk a read": disk[-1] / 1024},
            ),
            StorageFigure(
                f"{name}_time", "ms", mine, less_is_better=True, peer="one bare pread of the frame's bytes, cold",
                peer_values=bare, note=f"{note}; median of a run",
            ),
        ]  # fmt: skip
    return figures
