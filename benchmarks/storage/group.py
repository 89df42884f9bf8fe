# SPDX-License-Identifier: Apache-2.0
"""Group ``storage``: the bookie's storage engine without network and cluster, beside the raw disk of the same run.

Each part is a function of a scratch directory, a number of runs and a scale; it measures in a directory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.running.settings import Settings
from benchmarks.storage import commits, compaction, memory, reads, startup
from benchmarks.storage.figures import StorageFigure
from benchmarks.storage.scratch import check_room, scratch

Measure = Callable[[Path, int, float], list[StorageFigure]]


@dataclass(frozen=True, slots=True)
class Part:
    """A part. It needs ``needed_bytes`` of disk at a scale of 1, and at least ``least_bytes``."""

    measure: Measure
    needed_bytes: int
    least_bytes: int = 2 << 30

    def needed(self, scale: float) -> int:
        """Return the bytes of disk that it needs at this scale."""
        return max(self.least_bytes, int(self.needed_bytes * scale))


PARTS: dict[str, Part] = {
    "commit": Part(commits.commit_figures, 3 << 30, 3 << 30),
    "single_add": Part(commits.single_add_figures, 1 << 30, 1 << 30),
    "write_amplification": Part(commits.amplification_figures, 3 << 30, 3 << 30),
    "read_random": Part(reads.read_figures, 1 << 30, 1 << 30),
    "one_entry_frames": Part(memory.memory_figures, 3 << 30, 1 << 30),
    "compaction": Part(compaction.compaction_figures, 10 << 30, 3 << 30),
    "start_up": Part(startup.startup_figures, startup.Shape.scaled(1.0).needed_bytes),
}


class StorageGroup:
    """The parts of the storage engine. None of them has a peer."""

    def parts(self, peers: Collection[str]) -> list[str]:
        """Return the names of the parts, in their order."""
        return list(PARTS)

    def measure(
        self, names: Collection[str], folder: Path, settings: Settings
    ) -> Iterator[tuple[str, list[StorageFigure]]]:
        """Yield each part's figures. Before the first part begins, raises InvalidArgumentError if there is too little
        room for one of them."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            check_room(folder, PARTS[name].needed(settings.scale), f"the part {name}")
        for name in names:
            with scratch(folder, PARTS[name].needed(settings.scale), f"the part {name}") as path:
                figures = PARTS[name].measure(path, settings.runs, settings.scale)
            yield name, figures
