# SPDX-License-Identifier: Apache-2.0
"""A data directory with its maintenance, on one thread and under a clock that a test moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bk_core.entries.frame import FrameKind, encode_record
from bookie_server.machine.disk_places import Place
from bookie_server.storage.disk.files import Files
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from bookie_server.storage.maintenance.maintenance import Maintenance
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from tests.kit.segment_world import Storage, entries, key_record
from tests.sim.disk import SimDisk

SEGMENT_BYTES = 64 << 10


def limits(**changes: float) -> MaintenanceLimits:
    """Return limits without compaction and scrubbing, unless ``changes`` enable these."""
    quiet = {"compaction_threshold": 0, "major_compaction_threshold": 0, "scrub_bytes_per_s": 1}
    return MaintenanceLimits(**{**quiet, **changes})


QUIET = limits()


class Kept(Storage):
    """Storage with its maintenance. ``given_up`` lists the segments that the reader gave up."""

    def __init__(
        self,
        path: Path = Path("/data"),
        *,
        files: Files | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        limits: MaintenanceLimits = QUIET,
    ) -> None:
        super().__init__(path, files=files or SimDisk(), segment_bytes=segment_bytes)
        self.now = 1000.0
        self.given_up: list[int] = []
        self.maintenance = Maintenance(
            self.directory, self.log, DirectIndexPort(self.index), self.reader,
            newest=self.report.checkpoint, copy=self._copy, release=self.reader.release, give_up=self._give_up,
            now_s=lambda: self.now, limits=limits,
        )  # fmt: skip
        self.log_maintenance = self.maintenance.log_upkeep.work

    def append(self, *frames: bytes) -> list[Place]:
        """Append one group, update the index, and do the log's urgent work: sealing and spares."""
        places = self.log.append_group(frames)
        for frame, place in zip(frames, places, strict=True):
            self.index.add(frame, place)
        self.log.release_full()
        self.maintenance.wake()
        while self.log.seal_jobs or self.maintenance.log_upkeep.untold:
            assert self.maintenance.step()
        return places

    def fill(self, ledger_id: int, segments: int, *, size: int = 1700) -> list[bytes]:
        """Write frames of a ledger until ``segments`` more segments are sealed; return the frames."""
        written = [key_record(ledger_id)]
        self.append(*written)
        goal = self.log.newest_sealed + segments
        first = 0
        while self.log.newest_sealed < goal:
            written.append(entries(ledger_id, range(first, first + 10), size=size))
            self.append(written[-1])
            first += 10
        return written

    def delete(self, *ledger_ids: int) -> None:
        self.append(*(encode_record(FrameKind.DELETED, ledger_id) for ledger_id in ledger_ids))

    def settle(self, seconds: float = 10.0) -> None:
        """Advance the clock by ``seconds``, and do all work that falls due meanwhile."""
        end = self.now + seconds
        self.maintenance.run()
        while self.now < end:
            self.now = min(end, self.now + self.maintenance.tasks.wait_s())
            self.maintenance.run()

    def close(self, *, crash: bool = False) -> None:
        if not crash:
            self.maintenance.finish()
        super().close(crash=crash)

    def _copy(self, frames: Sequence[bytes | bytearray | memoryview]) -> list[Place]:
        places = self.log.append_group(frames, reserve=True)
        self.log.release_full()
        return places

    def _give_up(self, generation: int) -> None:
        self.given_up.append(generation)
        self.reader.give_up(generation)
