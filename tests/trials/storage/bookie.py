# SPDX-License-Identifier: Apache-2.0
"""A bookie process for the trial of storage, with small segments, frequent upkeep, and disks that lose what is not
synced.

The product has no switches for this. The process runs the product's bookie over another file layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from bookie_server import main
from bookie_server.config import BookieConfig
from bookie_server.engine.commits.committer import Committer
from bookie_server.identity.opening import open_storage
from bookie_server.machine.disk_places import Place
from tests.trials.storage.counts import CountingFiles, CountingPowerLossFiles, Counts

BOOKIE_ID = "b1"
SEGMENT_BYTES = 1 << 20
_IMPATIENT: dict[str, Any] = {
    "gc_grace_s": 0.15,
    "checkpoint_interval_s": 0.3,
    "compaction_threshold": 0.9,
    "major_compaction_threshold": 0.95,
    "major_compaction_interval_s": 2.0,
    "segments_kept_free": 2,
    "scrub_bytes_per_s": 2 << 20,
    "disk_usage_threshold": 1.0,  # other files on this machine's disk do not concern the trial
    "disk_usage_low_water": 0.999,
}
"""Settings that make rare events frequent. Settings that the bookie does not have are left out."""


def run(data: str, uri: str, counts: str, power_seed: int | None = None) -> int:
    """Serve until the end. Print ``ready`` as a bookie does. With ``power_seed`` a kill loses what is not synced. The
    file ``counts`` counts what happens to segments."""
    counting = Counts(Path(counts))
    files = CountingFiles(counting) if power_seed is None else CountingPowerLossFiles(counting, data, power_seed)
    main.open_storage = partial(open_storage, files=files, segment_size_bytes=SEGMENT_BYTES)
    _count_copies(counting)
    known = {field.name for field in fields(BookieConfig)}
    settings = {name: value for name, value in _IMPATIENT.items() if name in known}
    config = BookieConfig(
        data_dir=data,
        metadata_service_uri=uri,
        port=0,
        bookie_id=BOOKIE_ID,
        listen_address="127.0.0.1",
        advertised_address="127.0.0.1",
        allow_loopback=True,
        **settings,
    )
    return main.run(config)


def _count_copies(counting: Counts) -> None:
    """Count the frames that compaction gives to the commit thread, once they are durable."""
    copy = Committer.copy

    def counted(self: Committer, frames: Sequence[bytes | memoryview]) -> Future[list[Place]]:
        done = copy(self, frames)
        count, size = len(frames), sum(map(len, frames))

        def note(future: Future[list[Place]]) -> None:
            if not future.cancelled() and future.exception() is None:
                counting.add("copies of frames", count)
                counting.add("bytes of copies", size)

        done.add_done_callback(note)
        return done

    Committer.copy = counted
