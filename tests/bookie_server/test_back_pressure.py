# SPDX-License-Identifier: Apache-2.0
"""A bookie as a real process among clients that take too much room: its memory stays bounded, and others are served.

What the machine decides is in ``test_machine_admission.py``; here is what only a process shows: what a lane keeps
before the machine sees it and after the machine has given it away. Windows and streams of a connection are gRPC's
alone; what the direct lane has instead is in ``services/test_direct.py``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bk_cli.local.children import free_port
from bk_core.model import DIRECT, BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.grpc_frames import pack
from bk_core.wire.lane.reasons import AttachMode, LaneMessage
from bk_core.wire.proto import lane_pb2
from tests.kit.lane_table import OURS
from tests.kit.lanes import KEY, Lane, Listener, frame
from tests.kit.raw_lane import RawConnection, RawDirect

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

# A bookie with its own metadata store; each sync takes the given time.
SCRIPT = """
import os, resource, sys, time
from pathlib import Path
import tests.kit.memory_store
from bk_core.metadata import open_store
from bookie_server.config import BookieConfig
from bookie_server.main import run
sync_s, real = float(sys.argv[2]), os.fdatasync
settings = eval(sys.argv[3])
if files := settings.pop("files_max", 0):
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
def fdatasync(fd):
    time.sleep(sync_s)
    real(fd)
if sync_s:
    os.fdatasync = fdatasync
store = open_store("memory://it")
store.initialize_cluster()
sys.exit(run(BookieConfig(data_dir=Path(sys.argv[1]), metadata_service_uri="memory://it", port=0, bookie_id="b1",
    listen_address="127.0.0.1", advertised_address="127.0.0.1", allow_loopback=True, segment_size_bytes=64 << 20,
    disk_usage_threshold=0.999, disk_usage_low_water=0.99, **settings)))
"""


class Server:
    """The process, and clients of it."""

    def __init__(self, path: Path, sync_s: float, settings: dict[str, Any], lane: str) -> None:
        self.port, self.name = free_port(), lane
        settings = {f"{lane}_port": self.port, **settings}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(path), str(sync_s), repr(settings)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        words = self._process.stdout.readline().split()
        assert words[:2] == ["ready", "b1"], words
        self.lanes: list[Lane] = []
        self.raw: list[RawConnection | RawDirect] = []

    def lane(self) -> Lane:
        transport = LaneTransport(Caller())
        transport.update_bookies(
            [BookieServiceInfo("b1", (Endpoint(self.name, "127.0.0.1", self.port, self.name),), {})]
        )
        self.lanes.append(Lane(self.name, transport, "b1"))
        return self.lanes[-1]

    async def connection(self) -> RawConnection | RawDirect:
        """A client of the server's lane."""
        raw = RawDirect("b1") if self.name == DIRECT else RawConnection("b1")
        self.raw.append(await raw.open(self.port))
        return self.raw[-1]

    def bytes(self, what: str = "VmRSS") -> int:
        """Memory that is taken now; VmHWM: was at most."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split(f"{what}:")[1].split()[0]) << 10

    async def end(self) -> None:
        for raw in self.raw:
            raw.close()
        await asyncio.gather(*(lane.transport.close() for lane in self.lanes))
        self._process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
        self._process.stdout.close()


LANES = pytest.mark.parametrize(
    "lane", [OURS[0], *(pytest.param(lane, marks=pytest.mark.thorough) for lane in OURS[1:])]
)


@asynccontextmanager
async def throttling(path: Path, lane: str = "grpc", *, sync_s: float = 0.0, **settings: Any) -> AsyncIterator[Server]:
    server = Server(path, sync_s, settings, lane)
    try:
        async with asyncio.timeout(100):
            yield server
    finally:
        await server.end()


def frames(lane: Lane, session: int, ledger: int, ids: Sequence[int], size: int) -> None:
    """Send one frame an id."""
    payload = os.urandom(size)
    for entry in ids:
        lane.send(session, ledger, entry, [payload], lac=entry - 1, before=entry * size)


async def write(lane: Lane, ledger: int, entries: int, size: int) -> None:
    for first in range(0, entries, 16):
        listener = Listener()
        session = lane.attach(ledger, listener)
        ids = range(first, min(first + 16, entries))
        frames(lane, session, ledger, ids, size)
        await listener.acked(session, len(ids))
        lane.link.detach(session)


async def read(lane: Lane, ledger: int, entries: int) -> None:
    """All entries; no part may take longer than its deadline."""
    first = 0
    while first < entries:
        parts = lane.link.read(ledger, first, entries - 1, bytes_max=64 * MIB, deadline_s=30)
        async for part in parts:
            if isinstance(part, ReadTrailer):
                assert not part.absent
                first = part.answered_through + 1


async def took(doing: Coroutine[Any, Any, Any]) -> float:
    begun = time.monotonic()
    await doing
    return time.monotonic() - begun


@pytest.mark.rule("L5")
@LANES
async def test_messages_that_never_end_fill_no_more_than_is_allowed(tmp_path: Path, lane: str) -> None:
    """Streams that hold all but the last byte of a message of 8 MiB, and others after those that were cut. What is kept
    at once is what came since the watch looked last: more of it on a faster machine, but never near all of it."""
    async with throttling(tmp_path, lane, memory_bytes_max=300 * MIB) as server:
        await server.lane().write(1, 0, [b"a"])
        offered = 0

        async def attack() -> None:
            nonlocal offered
            raw = await server.connection()
            while offered < 3200 * MIB and not raw.lost:
                streams = [await raw.stream("Add") for _ in range(2)]
                taken = await asyncio.gather(*(raw.begin(stream, 8 * MIB, 5) for stream in streams))
                offered += sum(taken)

        await asyncio.gather(*(attack() for _ in range(80)))
        await asyncio.sleep(1.5)
        assert offered >= 3200 * MIB
        assert server.bytes("VmHWM") < 2500 * MIB, "else it is kept until somebody ends it"
        assert await took(server.lane().write(1, 1, [b"b"])) < 5


@pytest.mark.rule("L3")
async def test_stream_that_is_not_read_sends_little_ahead(tmp_path: Path) -> None:
    """A client that has shown how fast it is, and is paused then. gRPC would let it send many megabytes ahead, and keep
    them, for each such stream."""

    limits = {"in_flight_bytes_max": MIB, "stream_bytes_max": MIB, "group_bytes_max": MIB, "read_part_bytes": MIB}
    async with throttling(tmp_path, sync_s=4, **limits) as server:
        raw = await server.connection()
        stream = await raw.stream("Add")
        for _ in range(8):  # of no session: refused, but read
            await raw.send(stream, pack(LaneMessage(b"", [frame(1, 0, [bytes(5 * MIB - 1024)], session=9)])))
        attach = lane_pb2.AddRequest(attach=[lane_pb2.Attach(session=1, ledger_id=1, ledger_key=KEY)])
        await raw.send(stream, attach.SerializeToString())
        await raw.send(stream, pack(LaneMessage(b"", [frame(1, 0, [bytes(2 * MIB)], session=1)])))
        assert 0 < await raw.put(stream, b"\0" + (MIB).to_bytes(4, "big") + bytes(40 * MIB)) < 3 * MIB


@pytest.mark.rule("L3")
@LANES
async def test_flood_of_adds_delays_fences_recovery_and_reads_no_longer_than_what_is_admitted(
    tmp_path: Path, lane: str
) -> None:
    """The log takes 4 MiB in 0.1 s; admitted are at most 2 × 16 MiB of normal adds and 2 × 4 MiB of recovery."""

    limits = {"in_flight_bytes_max": 16 * MIB, "stream_bytes_max": 16 * MIB, "group_bytes_max": 4 * MIB}
    async with throttling(tmp_path, lane, sync_s=0.1, **limits) as server:
        await server.lane().write(1, 0, [b"a"])
        floods = []
        for ledger in range(100, 112):
            client = server.lane()
            frames(client, client.attach(ledger, Listener()), ledger, range(48), MIB)
            floods.append(client)
        await asyncio.sleep(0.5)
        client = server.lane()
        await client.transport.link("b1").read_lac(1, deadline_s=5)  # connected

        async def recover(first: int) -> None:
            listener = Listener()
            session = client.attach(1, listener, mode=AttachMode.RECOVER)
            frames(client, session, 1, range(first, first + 4), 1000)
            await listener.acked(session, 4)

        for round_ in range(3):
            assert await took(client.fence(1 + round_)) < 2.5
            assert await took(recover(1 + 4 * round_)) < 2.5
            assert await took(client.read(1, 0, 0)) < 1
        assert await took(floods[0].fence(50)) < 2.5, "also on a connection whose adds are paused"


async def test_flood_of_one_address_delays_others_no_longer_than_what_it_may_have_in_flight(tmp_path: Path) -> None:
    """The log takes 1 MiB in 0.1 s. Four clients of one address send 40 MiB at once; without the limit the add of
    another address waits behind most of it, 3.5 s. Nothing of the flood is lost."""

    limits = {"in_flight_bytes_per_address_max": 2 * MIB, "group_bytes_max": MIB, "unix_socket": False}
    async with throttling(tmp_path, DIRECT, sync_s=0.1, **limits) as server:
        honest = server.lane()
        await honest.write(1, 0, [b"a"])

        async def flood(ledger: int) -> None:
            raw = RawDirect("b1", "127.0.0.2")
            server.raw.append(await raw.open(server.port))
            attach = lane_pb2.Attach(session=1, ledger_id=ledger, ledger_key=KEY)
            stream = await raw.stream("Add", attach=[attach])
            for entry in range(10):
                one = frame(ledger, entry, [os.urandom(MIB)], session=1, lac=entry - 1)
                await raw.put(stream, struct.pack("<II", len(one), 0) + one, 30)

        floods = [asyncio.create_task(flood(ledger)) for ledger in range(100, 104)]
        await asyncio.sleep(0.5)
        assert await took(honest.write(1, 1, [b"b"], lac=0)) < 2.2
        assert await took(honest.fence(1)) < 2.2
        await asyncio.gather(*floods)
        for ledger in range(100, 104):
            while not (await honest.read(ledger, 9, 9, bytes_max=2 * MIB))[0]:
                await asyncio.sleep(0.05)
            await read(honest, ledger, 10)


@pytest.mark.rule("L3")
@LANES
async def test_slow_readers_hold_little_and_others_read_on(tmp_path: Path, lane: str) -> None:
    """50 clients ask for 64 MiB each, eight times over, and take none of it."""

    async with throttling(tmp_path, lane, read_stall_s=1.0) as server:
        honest = server.lane()
        await write(honest, 1, 64, MIB)
        before = server.bytes()
        wanted = {"ledger_id": 1, "first_entry_id": 0, "last_entry_id": 63, "bytes_max": 64 * MIB}
        for _ in range(50):
            raw = await server.connection()
            stream = await raw.stream("Read", id=1, **wanted)
            for number in range(2, 9):
                await raw.send(stream, lane_pb2.ReadRequest(id=number, **wanted).SerializeToString())
        await asyncio.sleep(0.3)
        assert await took(read(honest, 1, 64)) < 15
        assert await took(honest.fence(1)) < 2
        assert server.bytes("VmHWM") < before + 300 * MIB, "25 GB were asked for"
        assert lane == DIRECT or any(raw.lost for raw in server.raw), "else what they do not take is kept by gRPC"


@pytest.mark.rule("L3")
@LANES
async def test_requests_whose_answers_nobody_takes_are_not_read_on(tmp_path: Path, lane: str) -> None:
    """LAC reads of a ledger whose last entry is large; each answer would wait for its client."""

    async with throttling(tmp_path, lane, read_stall_s=1.0) as server:
        honest = server.lane()
        await write(honest, 1, 1, 4 * MIB)
        before = server.bytes()

        async def ask() -> int:
            raw = await server.connection()
            stream = await raw.stream("Control")
            sent = 0
            for number in range(1, 400):
                one = lane_pb2.ControlRequest(id=number, read_lac=lane_pb2.ReadLacRequest(ledger_id=1))
                sent += await raw.send(stream, one.SerializeToString()) > 0
            return sent

        asked = sum(await asyncio.gather(*(ask() for _ in range(20))))
        assert asked > 1000
        await asyncio.sleep(1)
        assert server.bytes("VmHWM") < before + 350 * MIB, "each answer is 4 MiB"
        assert await took(honest.fence(1)) < 5


@pytest.mark.rule("L3")
async def test_connection_has_few_streams_and_clients_few_connections(tmp_path: Path) -> None:
    async with throttling(tmp_path, connections_max=8) as server:
        honest = server.lane()
        await honest.write(1, 0, [b"a"])
        raw = await server.connection()
        streams = [await raw.stream("Add") for _ in range(200)]
        await asyncio.sleep(0.5)
        assert raw.streams_max == 6
        assert raw.lost or len(raw.ended) >= len(streams) - 6
        others = [await server.connection() for _ in range(30)]
        await asyncio.sleep(0.5)
        assert sum(not other.lost for other in others) < 8
        await honest.write(1, 1, [b"b"])


@pytest.mark.rule("L5")
@LANES
async def test_clients_leave_storage_the_files_it_has_to_open(tmp_path: Path, lane: str) -> None:
    """Else a crowd of idle clients makes a bookie read-only, and what it cannot open looks like damage."""

    async with throttling(tmp_path, lane, files_max=300) as server:
        honest = server.lane()
        await honest.write(1, 0, [b"a"])
        others = [await server.connection() for _ in range(300)]
        await write(honest, 2, 80, MIB)  # more than a segment holds
        await read(honest, 2, 80)
        for other in others:
            other.close()
        await asyncio.sleep(0.5)
        await server.lane().write(1, 1, [b"b"])
