# SPDX-License-Identifier: Apache-2.0
"""Writable and read-only: what the machine, the registration and a client see while a disk fills up and empties."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.errors import BookieIdentityError, LocalProtocolError
from bk_core.metadata import open_store
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import DIRECTORY_PROPERTY, INCARNATION_PROPERTY, BookieServiceInfo
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.main import Bookie
from tests.kit.lanes import KEY, Lane, Listener, bookie_config, lane_to
from tests.kit.memory_store import MemoryStore
from tests.kit.waiting import eventually

TOTAL_BLOCKS = 1 << 28
RESERVED_BLOCKS = 1 << 26
"""Free, but not for us: not a part of what is used, nor of the whole."""


class Disk:
    """What the file system says of itself, as the test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used = 0.5
        self._real = os.statvfs
        monkeypatch.setattr(os, "statvfs", self._statvfs)

    def _statvfs(self, path: str) -> SimpleNamespace:
        real = self._real(path)
        free = round(TOTAL_BLOCKS * (1 - self.used))
        return SimpleNamespace(
            f_blocks=TOTAL_BLOCKS + RESERVED_BLOCKS,
            f_frsize=real.f_frsize,
            f_bfree=free + RESERVED_BLOCKS,
            f_bavail=free,
        )


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@asynccontextmanager
async def running(store: MemoryStore, path: Path, **changes: Any) -> AsyncIterator[tuple[Bookie, Lane]]:
    config = bookie_config(path, store.uri, **{"bookie_id": "b1", "disk_check_interval_s": 0.02, **changes})
    bookie = await Bookie.start(config)
    lane = lane_to(store, "b1")
    try:
        yield bookie, lane
    finally:
        await lane.transport.close()
        await bookie.stop()


def folders(store: MemoryStore) -> tuple[list[str], list[str]]:
    return list(store.writable_bookies()), list(store.read_only_bookies())


async def test_bookie_on_a_full_disk_serves_all_but_new_entries(store: MemoryStore, disk: Disk, tmp_path: Path) -> None:
    async with running(store, tmp_path) as (_, lane):
        assert folders(store) == (["b1"], [])
        await lane.write(7, 0, [b"a"])
        disk.used = 0.96
        await eventually(lambda: folders(store) == ([], ["b1"]))
        assert await lane.refused(7, 1) == Reason.READ_ONLY
        assert await lane.refused(8, 0) == Reason.READ_ONLY
        assert (await lane.read(7, 0, 0))[0] == {0: b"a"}
        assert (await lane.fence(7)).fenced
        await lane.write(7, 1, [b"recovered"], mode=AttachMode.RECOVER)
        entries, trailer = await lane.read(7, 0, 1, fence_key=KEY)
        assert entries == {0: b"a", 1: b"recovered"}
        assert trailer.fenced
        disk.used = 0.92
        await asyncio.sleep(0.1)
        assert folders(store) == ([], ["b1"]), "it waits for the low water"
        disk.used = 0.89
        await eventually(lambda: folders(store) == (["b1"], []))
        await lane.write(8, 0, [b"new"])


async def test_commit_without_space_makes_the_bookie_read_only_at_once(
    store: MemoryStore, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the file system says of its free space, as under a quota; nobody has to wait for the next look."""

    async with running(store, tmp_path, disk_check_interval_s=3600) as (_, lane):
        monkeypatch.setattr(os, "posix_fallocate", no_space)
        listener = Listener()
        session = lane.attach(7, listener)
        for entry in range(40):
            lane.send(session, 7, entry, [bytes(1 << 20)])
        durable, reason = await listener.ended(session)
        assert reason == Reason.NO_SPACE
        assert await lane.refused(8, 0) == Reason.READ_ONLY
        await eventually(lambda: folders(store) == ([], ["b1"]))
        assert (await lane.fence(7)).last_entry_id == durable - 1


async def test_bookie_looks_when_it_begins_a_segment(store: MemoryStore, disk: Disk, tmp_path: Path) -> None:
    """A fast writer fills a small disk between two looks."""

    async with running(store, tmp_path, disk_check_interval_s=3600) as (_, lane):
        await lane.write(7, 0, [b"a"])
        disk.used = 0.96
        listener = Listener()
        session = lane.attach(8, listener)
        for entry in range(200):
            lane.send(session, 8, entry, [bytes(1 << 20)])
            await listener.settled(session, entry + 1)
            if listener.said[-1][0] == "ended":
                break
        durable, reason = await listener.ended(session)
        assert reason == Reason.READ_ONLY
        assert durable < 64, "it was noticed within a segment"


def no_space(*_: object) -> None:
    raise OSError(errno.EDQUOT, "made to fail")


async def test_each_start_judges_the_disk_anew(store: MemoryStore, disk: Disk, tmp_path: Path) -> None:
    disk.used = 0.96
    async with running(store, tmp_path) as (_, lane):
        assert folders(store) == ([], ["b1"])
        assert await lane.refused(7, 0) == Reason.READ_ONLY
    assert folders(store) == ([], [])
    disk.used = 0.93  # above the low water: only history would forbid new entries
    async with running(store, tmp_path) as (_, lane):
        assert folders(store) == (["b1"], [])
        await lane.write(7, 0, [b"a"])


async def test_registration_follows_when_the_store_is_back(store: MemoryStore, disk: Disk, tmp_path: Path) -> None:
    mine = open_store(store.uri)
    config = bookie_config(tmp_path, store.uri, bookie_id="b1", disk_check_interval_s=0.02)
    bookie = await Bookie.start(config, mine)
    for _ in range(6):  # that of a note of the position, and of the registration
        mine.tree.lose_next_answer(applied=False)
    disk.used = 0.99
    await eventually(lambda: folders(store) == ([], ["b1"]))
    await bookie.stop()
    assert folders(store) == ([], [])


@pytest.mark.rule("S8")
async def test_store_knows_how_far_the_log_goes(store: MemoryStore, disk: Disk, tmp_path: Path) -> None:
    def position() -> tuple[int, int]:
        record = store.read_bookie_state("b1")
        generation, offset = json.loads(record.value)["position"]
        return generation, offset

    async with running(store, tmp_path) as (_, lane):
        await eventually(lambda: position() > (0, 0))
        before = position()
        await lane.write(7, 0, [b"a"])
        await eventually(lambda: position() > before)
    before = position()
    async with running(store, tmp_path, disk_check_interval_s=3600) as (_, lane):
        assert position() == before, "a start forgets nothing"
        await lane.write(7, 1, [b"b"])
    assert position() > before, "a clean stop notes it"


@pytest.mark.rule("S8")
async def test_bookie_ends_when_another_directory_took_its_id(store: MemoryStore, disk: Disk, tmp_path: Path) -> None:
    """A copy was started while this one's session was lost: only one of them may answer."""

    async with running(store, tmp_path) as (bookie, _):
        mine = store.writable_bookies()["b1"]
        copy = BookieServiceInfo("b1", mine.endpoints, {**mine.properties, DIRECTORY_PROPERTY: "elsewhere"})
        assert copy.properties[INCARNATION_PROPERTY]
        await asyncio.sleep(0.1)
        assert not bookie.failed.is_set()
        bookie._store.unregister_bookie("b1")  # as the end of its session does
        store.register_bookie(copy)
        async with asyncio.timeout(20):
            await bookie.failed.wait()
        assert isinstance(bookie.error, BookieIdentityError)
        assert "another data directory" in str(bookie.error)
    assert store.writable_bookies() == {"b1": copy}, "the other's registration is not ours to take away"


@pytest.mark.rule("M3")
async def test_registration_that_vanished_is_made_again(store: MemoryStore, disk: Disk, tmp_path: Path) -> None:
    """Whoever took it away: a bookie that nobody finds is a bookie less, for good."""

    async with running(store, tmp_path):
        for _ in range(2):
            store.tree.delete("/ledgers/available/b1")
            await eventually(lambda: folders(store) == (["b1"], []))
        disk.used = 0.99
        await eventually(lambda: folders(store) == ([], ["b1"]))
        store.tree.delete("/ledgers/available/readonly/b1")
        await eventually(lambda: folders(store) == ([], ["b1"]))
    assert folders(store) == ([], []), "a clean stop is not undone"


async def test_look_that_fails_unforeseen_ends_the_bookie_with_its_reason(
    store: MemoryStore, disk: Disk, tmp_path: Path
) -> None:
    config = bookie_config(tmp_path, store.uri, bookie_id="b1", disk_check_interval_s=0.02)
    bookie = await Bookie.start(config)
    disk.used = float("nan")  # makes a look fail in a way that no file system does
    async with asyncio.timeout(20):
        await bookie.failed.wait()
    assert isinstance(bookie.error, LocalProtocolError)
    assert "NaN" in str(bookie.error)
    await bookie.stop()
    assert folders(store) == ([], [])


async def test_read_only_by_order_outlives_a_restart_and_ends_when_told_to(
    store: MemoryStore, disk: Disk, tmp_path: Path
) -> None:
    async with running(store, tmp_path) as (bookie, lane):
        await lane.write(7, 0, [b"a"])
        store.write_bookie_order("b1", BookieOrder(Order.READ_ONLY, 1))
        await eventually(lambda: folders(store) == ([], ["b1"]))
        assert await lane.refused(7, 1) == Reason.READ_ONLY
        assert (bookie._availability.why_read_only, bookie._availability.why_full) == ("set by hand", "")
    async with running(store, tmp_path) as (bookie, lane):
        assert folders(store) == ([], ["b1"]), "from its first registration on"
        assert await lane.refused(7, 1) == Reason.READ_ONLY
        disk.used = 0.96
        await eventually(lambda: "used" in bookie._view.why_read_only())
        store.write_bookie_order("b1", None)
        await eventually(lambda: bookie._view.why_read_only() == bookie._view.why_full())
        assert folders(store) == ([], ["b1"]), "its disk is full"
        disk.used = 0.5
        await eventually(lambda: folders(store) == (["b1"], []))
        await lane.write(7, 1, [b"b"])


async def test_order_that_cannot_be_read_counts_as_read_only_and_a_removed_bookie_comes_back(
    store: MemoryStore, disk: Disk, tmp_path: Path
) -> None:
    store.write_bookie_order("b1", BookieOrder(Order.REMOVED, 1))
    async with running(store, tmp_path):
        assert (folders(store), store.read_bookie_order("b1")) == ((["b1"], []), None)
        store.write_bookie_order("b1", BookieOrder(Order.DRAIN, 1))
        await eventually(lambda: folders(store) == ([], ["b1"]))
        store.tree.set("/ledgers-orders/b1", b"?", -1)
        store.write_bookie_order("b2", None)
        await asyncio.sleep(0.1)
        assert folders(store) == ([], ["b1"])
