# SPDX-License-Identifier: Apache-2.0
"""The guard of the hot path: the cost of a frame of a megabyte on its way through the real client, the direct lane and
a real bookie, all in this process. It counts and reads no clock, so that a busy machine makes no difference.

*Copies*: the peak of memory above the memory before, in frames. While something is copied, its source exists too, so
even a short-lived copy shows. A copy does not show if the previous one still exists, so the median counts. Neither an
append nor a read needs a copy there. Slots are not included; they are counted by themselves (an append builds its frame
in one, each side receives into one, and the bookie reads into one).

*In place*: the share of a group commit that is written from the slot into which the bookie received it.

*Calls*: calls of our functions, by all threads. The fewest of several frames counts, because a loaded machine cuts
messages into more pieces.

It also counts what one add costs a bookie whose client waits for each, on Apache's wire and on the direct lane, what
one read of one entry costs a bookie and a client on the direct lane, and what one add costs a client that writes to
many ledgers: the *calls* by the loop, of our functions and from them to functions in C. The fewest of several runs
counts, because a timer fires now and then.

Each figure may grow by a tenth. If a change is worth more than that, say why where you change the figures here.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import socket
import sys
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import FrameType

import numpy as np
import pytest

from bk_core.client import BookKeeper, ClientConfig, LedgerWriter
from bk_core.client.writing import lone_appends
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, ledger_key
from bk_core.entries.frame import encode_one
from bk_core.memory.slots import Slots
from bk_core.metadata.port import MetadataStore
from bk_core.model import BOOKIE_RPC, DIRECT, DigestType
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.lane.direct_messages import preamble
from bk_core.wire.proto import lane_pb2
from bookie_server.engine.loop import new_loop
from bookie_server.main import Bookie
from bookie_server.storage.disk.files import Files, Handle
from tests.kit import bookie_requests
from tests.kit.direct_client import HEAD
from tests.kit.lanes import lane_port, running_bookie
from tests.kit.memory_cluster import memory_cluster

ROOT = str(Path(__file__).parents[2])
OURS = (f"{ROOT}/bk_core/", f"{ROOT}/bookie_server/")
ENTRIES, ENTRY_BYTES = 1_000, 1_000
FRAMES = 12
GROWTH = 1.1
READS = 16

FIGURES = {"append": (0.12, 2, 288), "read": (0.05, 2, 494)}
"""The costs of a frame: frames of memory, slots, calls."""


SINGLE_ADDS = {"v3": 178, "v2": 165, "direct": 187}
"""The cost of an add of 100 bytes to a bookie, in calls."""

LEDGERS = 6
BURST_ADDS = {(3, 1): 123, (2, 1): 110, (2, 8): 65}
"""The cost of an add of 100 bytes to a bookie, in calls, if adds of six ledgers come together, by the version and the
number of adds of each ledger."""

SINGLE_READS = {1: 187, READS: 78}
"""The cost of a read of one entry of 1 KB to a bookie that has it in memory, in calls, by the number of reads that the
client sends at once."""

CLIENT_READ = 102
"""The cost of a read of one entry of 1 KB to the client, in calls, if it reads sixteen entries at the same time."""

MANY_LEDGERS = {False: 149, True: 29}
"""The cost to the client of an entry that is appended to one of many ledgers, each with one entry in flight, in calls
of the client and the protocol, by whether the entries are sent together."""

RUNS, ADDS_OF_A_RUN = 30, 10
LEDGER, PAYLOAD, DEADLINE_S = 7, bytes(100), 20


@dataclass
class Costs:
    copies: list[float] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    in_place: list[float] = field(default_factory=list)


@contextmanager
def counted_calls() -> Iterator[Callable[[], tuple[int, int]]]:
    """Count the slots that are taken and the calls of our functions, also in threads that begin during the block."""
    slots, calls = itertools.count(), itertools.count()
    is_ours: dict[str, bool] = {}
    take = Slots.take.__code__

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            if is_ours.setdefault(code.co_filename, code.co_filename.startswith(OURS)) and code.co_name[0] != "<":
                next(calls)
                if code is take:
                    next(slots)

    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield lambda: (int(repr(slots)[6:-1]), int(repr(calls)[6:-1]))  # counts exactly, whatever the number of threads
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


async def measured(count: Callable[[], tuple[int, int]], work: Callable[[], Awaitable[object]], costs: Costs) -> None:
    gc.collect()
    tracemalloc.reset_peak()
    memory, (slots, calls) = tracemalloc.get_traced_memory()[0], count()
    await work()
    costs.slots.append(count()[0] - slots)
    costs.calls.append(count()[1] - calls)
    costs.copies.append((tracemalloc.get_traced_memory()[1] - memory) / (ENTRIES * ENTRY_BYTES))


async def frames_there_and_back(path: Path, count: Callable[[], tuple[int, int]]) -> dict[str, Costs]:
    costs = {"append": Costs(), "read": Costs()}
    lengths = np.full(ENTRIES, ENTRY_BYTES, dtype=np.uint32)
    payload = memoryview(np.random.default_rng(1).bytes(ENTRIES * ENTRY_BYTES))
    async with still_bookie(path) as (_, store), client_of(store) as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)

        async def append() -> None:
            last = await writer.append_batch(EntryBatch(lengths=lengths, payload=payload))
            await writer.wait_confirmed(last)

        for _ in range(FRAMES):
            await measured(count, append, costs["append"])
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        for k in range(FRAMES):

            async def read(first: int = k * ENTRIES) -> None:
                async for batch in reader.read(first, first + ENTRIES - 1):
                    assert batch.payload == payload

            await measured(count, read, costs["read"])
        await reader.close()
    return costs


def still_bookie(path: Path) -> AbstractAsyncContextManager[tuple[Bookie, MetadataStore]]:
    """Run a bookie that does nothing by itself."""
    return running_bookie(path, scrub_bytes_per_s=1)


def client_of(store: MetadataStore) -> BookKeeper:
    instance_id = store.instance_id()
    transport = LaneTransport(Caller(instance_id, lanes=(DIRECT,)))
    return BookKeeper(store, transport, instance_id=instance_id, config=ClientConfig())


@contextmanager
def shares_of_writes() -> Iterator[list[float]]:
    """Yield the share of the longest piece in each long write."""
    shares, write = list[float](), Files.write

    def look(self: Files, handle: Handle, buffers: Sequence[memoryview], offset: int) -> None:
        if (size := sum(map(len, buffers))) > ENTRIES * ENTRY_BYTES:
            shares.append(max(map(len, buffers)) / size if len(buffers) > 1 else 0)
        write(self, handle, buffers, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "write", look)
        yield shares


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Costs]:
    tracemalloc.start()
    try:
        with counted_calls() as count, shares_of_writes() as shares:
            found = asyncio.run(frames_there_and_back(tmp_path_factory.mktemp("hot"), count))
    finally:
        tracemalloc.stop()
    found["append"].in_place = shares
    return found


@pytest.mark.parametrize("way", FIGURES)
def test_a_frame_is_copied_no_more_often(way: str, costs: dict[str, Costs]) -> None:
    assert median(costs[way].copies) <= FIGURES[way][0] * GROWTH, costs[way].copies
    assert min(costs[way].slots) == FIGURES[way][1], costs[way].slots


def test_a_frame_is_written_from_where_it_was_received(costs: dict[str, Costs]) -> None:
    assert len(costs["append"].in_place) == FRAMES
    assert min(costs["append"].in_place) > 0.98


@pytest.mark.parametrize("way", FIGURES)
def test_a_frame_takes_no_more_calls(way: str, costs: dict[str, Costs]) -> None:
    assert min(costs[way].calls) <= FIGURES[way][2] * GROWTH, costs[way].calls


# --- one add at a time ---


@contextmanager
def calls_here(ours: tuple[str, ...] = OURS) -> Iterator[Callable[[], int]]:
    """Count calls of the functions in these folders, and from them to C, on this thread."""
    calls = itertools.count()
    is_ours: dict[str, bool] = {}

    def look(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call"):
            name = frame.f_code.co_filename
            if is_ours.setdefault(name, name.startswith(ours)):
                next(calls)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield lambda: int(repr(calls)[6:-1])
    finally:
        sys.setprofile(before)


def rpc_adds(version: int) -> Iterator[bytes]:
    for k in itertools.count():
        yield bookie_requests.add(version, k, (LEDGER, k), bookie_requests.entry(LEDGER, k, PAYLOAD, lac=k - 1))


def rpc_bursts(version: int, adds: int) -> Iterator[bytes]:
    for k in itertools.count():
        ids = [(ledger, k * adds + n) for n in range(adds) for ledger in range(LEDGERS)]
        yield b"".join(bookie_requests.add(version, k, each, bookie_requests.entry(*each, PAYLOAD)) for each in ids)


def hello_to(bookie: Bookie, store: MetadataStore) -> lane_pb2.Hello:
    return lane_pb2.Hello(version_min=1, version_max=1, bookie_id=bookie.bookie_id, instance_id=store.instance_id())


def direct_adds(hello: lane_pb2.Hello, payload: bytes = PAYLOAD) -> Iterator[bytes]:
    """Yield the messages of a client. The only answer to the first one is that to its hello."""
    attach = lane_pb2.Attach(session=1, ledger_id=LEDGER, ledger_key=ledger_key(b"pw"), mode=lane_pb2.WRITE)
    rest = lane_pb2.AddRequest(hello=hello, attach=[attach]).SerializeToString()
    yield preamble("Add") + HEAD.pack(0, len(rest)) + rest
    digester = Digester(DigestType.CRC32C, b"pw", LEDGER)
    for k in itertools.count():
        made = encode_one(payload, digester=digester, entry_id=k, lac=k - 1, length_before=k, session=1)
        yield HEAD.pack(len(made), 0) + made


def fewest_calls(port: int, adds: Iterator[bytes], counted: Callable[[], int], answer_bytes: int = 1) -> float:
    """Return the fewest calls for one message of ``adds``, out of several runs. The answer to a message has at least
    ``answer_bytes``."""
    found: list[int] = []
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as there:
        for _ in range(RUNS):
            before = counted()
            for _ in range(ADDS_OF_A_RUN):
                there.sendall(next(adds))
                missing = answer_bytes
                while missing > 0:
                    missing -= len(there.recv(4096)) or missing
            found.append(counted() - before)
    return min(found) / ADDS_OF_A_RUN


async def single_adds(path: Path, way: str) -> float:
    async with still_bookie(path) as (bookie, store):
        assert bookie._engine is not None
        bookie._engine.logs[0].committer.speed.fast_s = math.inf  # this disk is fast, however busy the machine is
        adds = direct_adds(hello_to(bookie, store)) if way == "direct" else rpc_adds(int(way[1]))
        port = lane_port(bookie, DIRECT if way == "direct" else BOOKIE_RPC)
        with calls_here() as counted:
            return await asyncio.to_thread(fewest_calls, port, adds, counted)


async def burst_adds(path: Path, version: int, adds: int) -> float:
    async with still_bookie(path) as (bookie, _):
        assert bookie._engine is not None
        bookie._engine.logs[0].committer.speed.fast_s = math.inf
        wire = v2 if version == 2 else v3
        size = LEDGERS * adds * len(wire.add_answer(1, 1, 1, 0))
        with calls_here() as counted:
            port = lane_port(bookie, BOOKIE_RPC)
            found = await asyncio.to_thread(fewest_calls, port, rpc_bursts(version, adds), counted, size)
    return found / (LEDGERS * adds)


@pytest.mark.parametrize(("version", "adds"), BURST_ADDS)
def test_adds_of_different_ledgers_that_come_together_take_no_more_calls(
    version: int, adds: int, tmp_path: Path
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        calls = runner.run(burst_adds(tmp_path, version, adds))
    assert calls <= BURST_ADDS[version, adds] * GROWTH


@pytest.mark.parametrize("way", SINGLE_ADDS)
def test_a_single_add_takes_no_more_calls(way: str, tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        calls = runner.run(single_adds(tmp_path, way))
    assert calls <= SINGLE_ADDS[way] * GROWTH


# --- one read at a time ---


def received(there: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := there.recv(size - len(data))):
        data += more
    return data


def answers(there: socket.socket, count: int) -> None:
    for _ in range(count):
        frames, rest = HEAD.unpack(received(there, HEAD.size))
        assert len(received(there, frames + rest)) == frames + rest


def fewest_calls_of_reads(port: int, hello: lane_pb2.Hello, at_once: int, counted: Callable[[], int]) -> float:
    """Return the fewest calls for one read, out of several runs that read the same entries."""
    asked = [lane_pb2.ReadRequest(id=1 + k, ledger_id=LEDGER, first_entry_id=k, last_entry_id=k) for k in range(READS)]
    messages = [HEAD.pack(0, len(rest)) + rest for rest in (each.SerializeToString() for each in asked)]
    first = lane_pb2.ReadRequest(hello=hello).SerializeToString()
    found: list[int] = []
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as there:
        there.sendall(preamble("Read") + HEAD.pack(0, len(first)) + first)
        answers(there, 1)
        for _ in range(RUNS):  # the first run reads from the disk
            before = counted()
            for k in range(0, READS, at_once):
                there.sendall(b"".join(messages[k : k + at_once]))
                answers(there, at_once)
            found.append(counted() - before)
    return min(found) / READS


async def single_reads(path: Path, at_once: int) -> float:
    async with still_bookie(path) as (bookie, store):
        port, hello = lane_port(bookie, DIRECT), hello_to(bookie, store)
        adds = itertools.islice(direct_adds(hello, bytes(ENTRY_BYTES)), READS + 1)

        def fill() -> None:
            with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as there:
                for add in adds:
                    there.sendall(add)
                    assert there.recv(4096)

        await asyncio.to_thread(fill)
        with calls_here() as counted:
            return await asyncio.to_thread(fewest_calls_of_reads, port, hello, at_once, counted)


@pytest.mark.parametrize("at_once", SINGLE_READS)
def test_a_single_read_takes_no_more_calls(at_once: int, tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        calls = runner.run(single_reads(tmp_path, at_once))
    assert calls <= SINGLE_READS[at_once] * GROWTH


async def reads_of_a_client(store: MetadataStore) -> float:
    """Return the fewest calls of a client for one read, out of several runs that read the same entries."""
    async with client_of(store) as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        for _ in range(READS):
            await writer.append(bytes(ENTRY_BYTES))
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id, recover=False)

        async def read(entry_id: int) -> None:
            async for batch in reader.read(entry_id, entry_id):
                assert len(batch) == 1

        found = []
        with calls_here((f"{ROOT}/bk_core/",)) as counted:
            for _ in range(RUNS):
                so_far = counted()
                await asyncio.gather(*map(read, range(READS)))
                found.append((counted() - so_far) / READS)
        await reader.close()
    return min(found)


async def reads_from_a_bookie(path: Path) -> float:
    async with still_bookie(path) as (_, store):
        return await asyncio.to_thread(lambda: asyncio.run(reads_of_a_client(store)))


def test_a_single_read_takes_a_client_no_more_calls(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        calls = runner.run(reads_from_a_bookie(tmp_path))
    assert calls <= CLIENT_READ * GROWTH


# --- one append to one of many ledgers ---


async def appends_to_many_ledgers(ledgers: int, most: float) -> float:
    async with memory_cluster() as cluster:
        client = cluster.client()
        writers = [await client.create_ledger() for _ in range(ledgers)]

        async def appends(writer: LedgerWriter) -> None:
            for _ in range(ADDS_OF_A_RUN):
                await writer.append(PAYLOAD)

        found = []
        with calls_here((f"{ROOT}/bk_core/client/", f"{ROOT}/bk_core/protocol/")) as counted:
            for _ in range(100):  # on a busy machine a run takes longer, and timers fire meanwhile
                so_far = counted()
                await asyncio.gather(*map(appends, writers))
                found.append((counted() - so_far) / (len(writers) * ADDS_OF_A_RUN))
                if found[-1] <= most:
                    break
        await asyncio.gather(*(writer.close() for writer in writers))
    return min(found)


@pytest.mark.parametrize("together", MANY_LEDGERS)
def test_an_append_to_one_of_many_ledgers_takes_no_more_calls(monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    monkeypatch.setattr(lone_appends, "CROWD_S", math.inf if together else -1.0)
    most = MANY_LEDGERS[together] * GROWTH
    calls = asyncio.run(appends_to_many_ledgers(100 if together else 20, most))
    assert calls <= most
