# SPDX-License-Identifier: Apache-2.0
"""A bookie's real threads on real files, changed after every few instructions: what was acked is found (RULES P1).

The orders that matter are tried one by one in ``tests/sim/threads``; here locks, queues, loop and files are real.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bk_core.errors import BookKeeperError
from bookie_server.engine.engine import BookieEngine
from bookie_server.engine.holdings import IndexHoldings
from bookie_server.engine.log_driver import OpenLog
from bookie_server.engine.maintenance_thread import maintained
from bookie_server.identity.opening import OpenStorage
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.log.segment_reader import SegmentReader
from bookie_server.storage.maintenance.schedule import MaintenanceLimits
from bookie_server.storage.start.replay import open_segments
from tests.kit.switching import tiny_switches
from tests.sim.threads.witness import Stream

LIMITS = MaintenanceLimits(checkpoint_interval_s=0.05)
STREAMS, ROUNDS, FRAMES = 4, 6, 5


def opened_at(path: Path) -> OpenStorage:
    if path.exists():
        directory = DataDirectory.open(str(path), "b1", "cluster")
    else:
        directory = DataDirectory.create(str(path), "b1", "cluster")
    index, log, report = open_segments(directory, segment_size_bytes=64 << 10)
    return OpenStorage(directory, index, log, SegmentReader(directory.segments_path, directory.identity), report)


def bookie_on(opened: OpenStorage, failures: list[BookKeeperError]) -> BookieEngine:
    make = maintained(opened, LIMITS, asyncio.get_running_loop())
    return BookieEngine(
        BookieMachine(IndexHoldings(opened.index)),
        [OpenLog(opened.log, opened.reader, make)],
        group_bytes_max=16 << 10,
        group_frames_max=7,
        on_failed=failures.append,
    )


@pytest.mark.rule("P1")
def test_what_was_acked_under_load_with_reads_deletions_and_compaction_is_found_by_the_next_start(
    tmp_path: Path,
) -> None:
    async def write(stream: Stream, engine: BookieEngine) -> None:
        for number in range(ROUNDS):
            frames = [[b"%d-%d-%d" % (stream.ledger_id, number, k) + bytes(3000)] for k in range(FRAMES)]
            assert await stream.write(frames) is None
            trailer = await stream.read(0, max(stream.confirmed))
            assert (trailer.reason, list(trailer.trailer.absent), list(trailer.trailer.unknown)) == (0, [], [])
            engine._logs[0]._maintenance.maintenance.stats.read()

    async def story() -> None:
        failures, wrong = list[BookKeeperError](), list[str]()
        opened = opened_at(tmp_path / "data")
        engine = bookie_on(opened, failures)
        doomed = Stream(engine, 99, wrong.append)
        await write(doomed, engine)
        engine.feed(ev.LedgersDeleted([99]))
        streams = [Stream(engine, ledger_id, wrong.append) for ledger_id in range(STREAMS)]
        async with asyncio.timeout(40):
            await asyncio.gather(*(write(stream, engine) for stream in streams))
            await engine.stop()
        opened.directory.close()
        assert (failures, wrong) == ([], [])

        opened = opened_at(tmp_path / "data")
        engine = bookie_on(opened, failures)
        for stream in streams:
            assert len(stream.confirmed) == ROUNDS * FRAMES
            again = Stream(engine, stream.ledger_id, wrong.append)
            trailer = await again.read(0, max(stream.confirmed))
            assert (list(trailer.trailer.absent), list(trailer.trailer.unknown)) == ([], [])
            assert again.seen == stream.confirmed
        await engine.stop()
        opened.directory.close()

    with tiny_switches():
        asyncio.run(story())
