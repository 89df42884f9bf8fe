# SPDX-License-Identifier: Apache-2.0
"""A real bookie process on a small file system that is filled to the brim and emptied again: nothing acked is lost.

Needs leave to mount a tmpfs: root, or a container with CAP_SYS_ADMIN.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from bk_core.metadata.port import MetadataStore
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.reasons import AttachMode, Reason
from tests.bookie_server.test_process import PLAIN, Process
from tests.kit.amount import thorough
from tests.kit.lanes import KEY, Lane, Listener, lane_to
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper, pytest.mark.rule("S6")]

ROOT = Path(__file__).parents[2]
DISK_BYTES = 128 << 20
BODY = os.urandom(1 << 20)

SMALL = PLAIN.replace(
    "allow_loopback=True",
    "allow_loopback=True, segment_size_bytes=9 << 20, disk_check_interval_s=0.5, gc_grace_s=0.3, "
    "checkpoint_interval_s=0.5, segments_kept_free=2",
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.fail(f"this test mounts a tmpfs: run it as root or with CAP_SYS_ADMIN ({mounted.stderr.strip()})")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


class World:
    """The bookie process, a client of it, the disk, and the entries that were acked."""

    def __init__(self, disk: Path, store: MetadataStore) -> None:
        self.disk, self.store = disk, store
        self.acked: dict[int, dict[int, bytes]] = {}
        self.process = Process(disk / "data", store.uri, SMALL)

    async def start(self) -> Lane:
        await asyncio.to_thread(self.process.start)
        return lane_to(self.store, "b1")

    async def end(self, number: int) -> int:
        return await asyncio.to_thread(self.process.signal, number)

    async def append(self, lane: Lane, ledger: int, mode: AttachMode = AttachMode.WRITE, most: int = 1000) -> Reason:
        """Entries of a mebibyte each until the session ends; why it did. Each that is acked is remembered."""
        listener = Listener()
        session = lane.attach(ledger, listener, mode=mode)
        known = self.acked.setdefault(ledger, {})
        first = len(known)
        for sent in range(most):
            body = b"%d/%d " % (ledger, first + sent) + BODY
            lane.send(session, ledger, first + sent, [body])
            await listener.settled(session, sent + 1)
            if ("acked", session, sent + 1) not in listener.said:
                break
            known[first + sent] = body
        ended = [words for words in listener.said if words[0] == "ended"]
        lane.link.detach(session)
        return ended[0][3] if ended else Reason.REASON_NONE

    async def append_in_time(self, lane: Lane, ledger: int, count: int, seconds: float) -> None:
        """So many entries, as space comes back for them."""
        async with asyncio.timeout(seconds):
            while (known := len(self.acked.get(ledger, {}))) < count:
                if await self.append(lane, ledger, most=count - known) is not Reason.REASON_NONE:
                    await asyncio.sleep(0.2)

    async def fill_with_ledgers(self, lane: Lane, ledgers: range) -> None:
        """Entries of these ledgers by turns, so that each segment holds some of all, until no more are taken."""
        while True:
            for ledger in ledgers:
                if await self.append(lane, ledger, most=1) in (Reason.READ_ONLY, Reason.NO_SPACE):
                    return

    async def delete(self, lane: Lane, ledgers: Iterable[int]) -> None:
        """Deleted from the metadata store, where none of them ever was; the bookie is told and finds out for itself."""
        await lane.link.delete_hint(list(ledgers), deadline_s=5)
        for ledger in ledgers:
            del self.acked[ledger]

    async def is_deleted(self, lane: Lane, ledger: int) -> bool:
        try:
            _, trailer = await lane.read(ledger, 0, 0)
        except RefusedError as error:
            return error.reason is Reason.DELETED
        return any(gap.reason is Reason.DELETED for gap in trailer.unknown)

    async def check_all(self, lane: Lane) -> None:
        """Every acked entry is there with its bytes."""
        for ledger, entries in self.acked.items():
            first = 0
            while first < len(entries):
                found, trailer = await lane.read(ledger, first, len(entries) - 1, bytes_max=16 << 20)
                assert not trailer.absent
                assert not trailer.unknown
                assert found == {e: entries[e] for e in range(first, trailer.answered_through + 1)}
                first = trailer.answered_through + 1

    def is_read_only(self) -> bool:
        return (list(self.store.writable_bookies()), list(self.store.read_only_bookies())) == ([], ["b1"])

    def is_writable(self) -> bool:
        return (list(self.store.writable_bookies()), list(self.store.read_only_bookies())) == (["b1"], [])

    def fill(self) -> None:
        """Another program takes every byte that is left."""
        with (self.disk / "other").open("ab") as file:
            for size in (1 << 20, 4096):
                while True:
                    try:
                        os.write(file.fileno(), bytes(size))
                    except OSError:
                        break
        left = os.statvfs(self.disk)
        assert left.f_bavail * left.f_frsize < 4096

    def empty(self) -> None:
        (self.disk / "other").unlink()


@pytest.fixture
def world(disk: Path, zookeeper_store: MetadataStore) -> Iterator[World]:
    made = World(disk, zookeeper_store)
    yield made
    made.process.end()


async def test_bookie_fills_its_disk_itself_and_keeps_a_reserve_for_recovery(world: World) -> None:
    lane = await world.start()
    await world.append(lane, 1, most=3)
    assert await world.append(lane, 2) in (Reason.READ_ONLY, Reason.NO_SPACE)
    await eventually(world.is_read_only, 20, 0.05)
    assert await world.append(lane, 3) is Reason.READ_ONLY
    for ledger in (1, 2, 4):  # fences, of an unknown ledger too, and recovery
        assert (await lane.fence(ledger)).fenced
    assert await world.append(lane, 1, AttachMode.RECOVER, most=5) is Reason.REASON_NONE
    await world.check_all(lane)
    await lane.transport.close()


@pytest.mark.parametrize("end", thorough([signal.SIGTERM, signal.SIGKILL], [signal.SIGTERM]))
async def test_disk_filled_by_another_program_and_emptied_again(world: World, end: signal.Signals) -> None:
    """Read-only, then writable; in between it is ended and started on the full disk, where it still serves reads."""

    lane = await world.start()
    await world.append(lane, 1, most=12)
    world.fill()
    assert await world.append(lane, 1) in (Reason.READ_ONLY, Reason.NO_SPACE)
    await eventually(world.is_read_only, 20, 0.05)
    assert (await lane.read(1, 0, 0, fence_key=KEY))[1].fenced
    await world.check_all(lane)
    await lane.transport.close()
    await world.end(end)

    lane = await world.start()
    assert world.is_read_only()
    await world.check_all(lane)
    assert await world.append(lane, 2) is Reason.READ_ONLY
    world.empty()
    await eventually(world.is_writable, 20, 0.05)
    assert await world.append(lane, 2, most=12) is Reason.REASON_NONE
    await world.check_all(lane)
    assert await world.append(lane, 1) is Reason.FENCED
    await lane.transport.close()
    assert await world.end(signal.SIGTERM) == 0

    lane = await world.start()  # a boot that the full disk could not count is no older directory
    assert world.is_writable()
    await world.check_all(lane)
    await lane.transport.close()


async def test_brim_is_survived_and_recovery_goes_on_once_there_is_room(world: World) -> None:
    """Where even the reserve is used up, adds that recover are refused, nothing acked is lost, and nothing ends."""

    lane = await world.start()
    await world.append(lane, 1, most=5)
    await lane.fence(1)
    world.fill()
    await eventually(world.is_read_only, 20, 0.05)
    assert await world.append(lane, 1, AttachMode.RECOVER) is Reason.NO_SPACE
    await world.check_all(lane)
    assert world.is_read_only()
    world.empty()
    await eventually(world.is_writable, 20, 0.05)
    assert await world.append(lane, 1, AttachMode.RECOVER, most=12) is Reason.REASON_NONE
    await world.check_all(lane)
    await lane.transport.close()


@pytest.mark.rule("S4", "S9")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("brim", thorough([False, True], [False]), ids=["filled by itself", "not a block left"])
async def test_full_disk_is_emptied_by_deleting_ledgers(world: World, brim: bool) -> None:
    """No segment is wholly dead: collection, compaction, checkpoint and recycling all have to work on the full disk."""

    lane = await world.start()
    await world.append(lane, 1, most=2)
    await world.fill_with_ledgers(lane, range(10, 18))
    await eventually(world.is_read_only, 20, 0.05)
    if brim:
        world.fill()
        await lane.transport.close()
        await world.end(signal.SIGKILL)
        lane = await world.start()  # a boot that the full disk cannot count
    await world.check_all(lane)
    for ledger in (1, 4):
        assert (await lane.fence(ledger)).fenced
    assert await world.append(lane, 1, AttachMode.RECOVER, most=2) is Reason.REASON_NONE
    await world.delete(lane, range(12, 18))
    await eventually(world.is_writable, 60, 0.05)
    if brim:
        world.empty()
    await world.check_all(lane)
    for ledger in range(12, 18):
        assert await world.is_deleted(lane, ledger)
    await world.append_in_time(lane, 20, 20, 60)  # most of the disk is to be had again
    await world.check_all(lane)
    await lane.transport.close()
    await world.end(signal.SIGKILL)

    lane = await world.start()
    await eventually(world.is_writable, 20, 0.05)  # compaction continues with the segments that are left
    await world.check_all(lane)
    assert await world.is_deleted(lane, 12)
    assert await world.append(lane, 1) is Reason.FENCED
    await lane.transport.close()
