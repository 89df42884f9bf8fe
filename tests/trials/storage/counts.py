# SPDX-License-Identifier: Apache-2.0
"""Counts what a bookie's process does to its segments, in a file that outlives ``kill -9``.

The counts come from the names that files get, not from the product's own metrics. A trial in which nothing was
compacted or recycled proves nothing about either.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from bookie_server.storage.disk.files import Files
from tests.trials.storage.power import PowerLossFiles

NAMES = (
    "segments sealed",
    "checkpoints",
    "segments given back",
    "segments used again",
    "segments unlinked",
    "copies of frames",
    "bytes of copies",
)
_BYTES = 8 * len(NAMES)
_RENAMES = {
    (".idx.tmp", ".idx"): "segments sealed",
    (".checkpoint.tmp", ".checkpoint"): "checkpoints",
    (".segment", ".free"): "segments given back",
    (".free", ".segment.tmp"): "segments used again",
}


class Counts:
    """Totals by name, in a file that every process of one bookie maps. One process at a time adds to it."""

    def __init__(self, path: Path) -> None:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(handle, _BYTES)
            self._map = mmap.mmap(handle, _BYTES)
        finally:
            os.close(handle)
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        at = 8 * NAMES.index(name)
        with self._lock:
            (total,) = struct.unpack_from("<Q", self._map, at)
            struct.pack_into("<Q", self._map, at, total + count)

    def totals(self) -> Counter[str]:
        return Counter(dict(zip(NAMES, struct.unpack(f"<{len(NAMES)}Q", self._map), strict=True)))

    def close(self) -> None:
        self._map.close()


_Base = Files if TYPE_CHECKING else object


class _Counting(_Base):
    counts: Counts

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        for (was, becomes), name in _RENAMES.items():
            if old.endswith(was) and new.endswith(becomes):
                self.counts.add(name)

    def remove(self, path: str) -> None:
        super().remove(path)
        if path.endswith(".free"):
            self.counts.add("segments unlinked")


class CountingFiles(_Counting, Files):
    """The real file system, with counts."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts


class CountingPowerLossFiles(_Counting, PowerLossFiles):
    """The file system that loses what is not synced, with counts."""

    def __init__(self, counts: Counts, root: str, seed: int) -> None:
        super().__init__(root, seed)
        self.counts = counts
