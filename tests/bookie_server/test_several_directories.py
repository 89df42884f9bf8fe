# SPDX-License-Identifier: Apache-2.0
"""A bookie with two data directories, as its clients see it: spread, full, restarted, killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.metadata.port import MetadataStore
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.main import Bookie, _ledgers_held
from tests.bookie_server.test_process import PLAIN, Process, append_until_broken, payload
from tests.kit.lanes import Lane, bookie_config, lane_to
from tests.kit.memory_store import MemoryStore
from tests.kit.waiting import eventually

LEDGERS = range(100, 124)
OLD = range(100, 112)


@asynccontextmanager
async def running(
    store: MetadataStore, path: Path, *, accept_loss: bool = False, names: str = "ab"
) -> AsyncIterator[tuple[Bookie, Lane]]:
    one = bookie_config(path, store.uri, bookie_id="b1", disk_check_interval_s=0.02)
    config = replace(one, data_dir=None, data_dirs=tuple(path / name for name in names))
    bookie = await Bookie.start(config, accept_loss=accept_loss)
    lane = lane_to(store, "b1")
    try:
        yield bookie, lane
    finally:
        await lane.transport.close()
        await bookie.stop()


def homes(bookie: Bookie) -> dict[str, set[int]]:
    """Ledgers by the name of the directory they are in."""
    return {Path(each.directory.path).name: set(each.index.ledger_ids()) for each in bookie._opened}


async def fill(lane: Lane) -> None:
    for ledger in LEDGERS:
        await lane.write(ledger, 0, [b"%d" % ledger])


async def test_ledgers_are_spread_and_stay_where_they_are(store: MemoryStore, tmp_path: Path) -> None:
    async with running(store, tmp_path) as (bookie, lane):
        await fill(lane)
        before = homes(bookie)
        assert min(map(len, before.values())) > 4
        assert _ledgers_held(bookie._opened) == list(LEDGERS), "what the collector compares with the store"
        assert (await lane.fence(LEDGERS[0])).fenced
    for names in ("ba", "ab"):
        async with running(store, tmp_path, names=names) as (bookie, lane):
            assert homes(bookie) == before
            for ledger in LEDGERS:
                entries, trailer = await lane.read(ledger, 0, 1)
                assert entries == {0: b"%d" % ledger}
                assert [(gap.first, gap.last) for gap in trailer.absent] == [(1, 1)]
                assert trailer.fenced is (ledger == LEDGERS[0])
            assert await lane.refused(LEDGERS[0], 1) == Reason.FENCED
    async with running(store, tmp_path) as (bookie, lane):
        for ledger in LEDGERS:
            mode = AttachMode.RECOVER if ledger == LEDGERS[0] else AttachMode.WRITE
            await lane.write(ledger, 1, [b"more"], mode=mode)
        assert homes(bookie) == before


async def test_a_full_directory_serves_all_but_new_entries_and_new_ledgers_go_to_the_other(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {"a": 0.5, "b": 0.5}

    def statvfs(path: str) -> SimpleNamespace:
        share = next((used[name] for name in used if f"/{name}" in str(path).removeprefix(str(tmp_path))), 0.5)
        free = round((1 << 28) * (1 - share))
        return SimpleNamespace(f_blocks=1 << 28, f_frsize=4096, f_bfree=free, f_bavail=free)

    monkeypatch.setattr(os, "statvfs", statvfs)
    async with running(store, tmp_path) as (bookie, lane):
        for ledger in OLD:
            await lane.write(ledger, 0, [b"a"])
        in_a, in_b = (sorted(homes(bookie)[name]) for name in "ab")
        used["a"] = 0.96
        await eventually(lambda: bookie._availability._watches[0].read_only)
        assert list(store.writable_bookies()) == ["b1"]
        assert await lane.refused(in_a[0], 1) == Reason.READ_ONLY
        await lane.write(in_b[0], 1, [b"b"])
        for ledger in LEDGERS[len(OLD) :]:
            await lane.write(ledger, 0, [b"new"])
        assert homes(bookie)["a"] == set(in_a)
        assert (await lane.fence(in_a[0])).fenced
        await lane.write(in_a[0], 1, [b"recovered"], mode=AttachMode.RECOVER)
        used["b"] = 0.97
        await eventually(lambda: not store.writable_bookies())
        assert list(store.read_only_bookies()) == ["b1"]
        assert await lane.refused(in_b[0], 2) == Reason.READ_ONLY
        assert (await lane.fence(999)).fenced
        used["a"] = 0.5
        await eventually(lambda: list(store.writable_bookies()) == ["b1"])
        await lane.write(in_a[1], 1, [b"again"])
        assert await lane.refused(in_b[0], 2) == Reason.READ_ONLY


# --- a real process ---

SPREAD = PLAIN.replace("data_dir=Path(sys.argv[2])", "data_dirs=[Path(sys.argv[2]) / name for name in 'abc']")


@pytest.mark.e2e
@pytest.mark.zookeeper
@pytest.mark.rule("MUST2", "MUST3")
def test_entries_and_fences_of_every_directory_survive_kill_9(zookeeper_store: MetadataStore, tmp_path: Path) -> None:
    chance, per_round = random.Random(5), 6

    async def round_of(number: int, process: Process) -> None:
        lane = lane_to(zookeeper_store, "b1")
        ledgers = range(number * per_round, (number + 1) * per_round)
        writing = [asyncio.create_task(append_until_broken(lane, ledger, ledger)) for ledger in ledgers]
        for ledger in ledgers:
            await lane.fence(1000 + ledger)
        await asyncio.sleep(chance.uniform(0.02, 0.3))
        await asyncio.to_thread(process.signal, signal.SIGKILL)
        acked = await asyncio.gather(*writing)
        await lane.transport.close()
        await asyncio.to_thread(process.start)
        lane = lane_to(zookeeper_store, "b1")
        for ledger, count in zip(ledgers, acked, strict=True):
            entries, _ = await lane.read(ledger, 0, max(count - 1, 0), bytes_max=1 << 30)
            assert entries == {entry: payload(ledger, entry) for entry in range(count)}
            assert await lane.refused(1000 + ledger, 0) == Reason.FENCED
        await lane.transport.close()

    process = Process(tmp_path / "data", zookeeper_store.uri, SPREAD)
    try:
        process.start()
        for number in range(3):
            asyncio.run(round_of(number, process))
        used: Any = [len(list((tmp_path / "data" / name / "segments").iterdir())) for name in "abc"]
        assert min(used) > 1
    finally:
        process.end()
