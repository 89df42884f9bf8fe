# SPDX-License-Identifier: Apache-2.0
"""Group ``read``: reads a ledger from its beginning to its end, and single entries anywhere in it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.groups.append import append_all
from benchmarks.measurement import Measurement, Peer, Prepare
from benchmarks.peers import apache, kafka
from benchmarks.peers.apache import Apache
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.raw import Raw
from benchmarks.report.figures import Run, percentile
from benchmarks.running.world import World, connected
from bk_core import client
from bk_core.blocking import BookKeeper

BYTES = 300e6
APACHE_BYTES = {100: 20e6, 1_000: 100e6}
NEEDED_BYTES = 10e9
TAILED, TAIL_ENDS_S = 300, 30.0
RANDOM, RANDOM_BYTES, AT_ONCE = 5_000, 100e6, 16


def filled(bookkeeper: BookKeeper, world: World, entry_bytes: int, total: int) -> int:
    """Fill a ledger and close it. Return its id."""
    with bookkeeper.create_ledger() as ledger:
        append_all(ledger, world.data, entry_bytes, total)
        return ledger.ledger_id


def read_all(bookkeeper: BookKeeper, ledger_id: int) -> Run:
    """Return the bytes per second of one sequential read."""
    with bookkeeper.open_ledger(ledger_id, recover=False) as reader:
        began, seen = time.perf_counter(), 0
        for batch in reader.read(0, reader.last_add_confirmed):
            seen += len(batch)
        took = time.perf_counter() - began
        assert seen == reader.last_add_confirmed + 1
        return Run.of(reader.length / took, reader.length)


def into_page_cache(folder: Path) -> None:
    """Read all segments, so that they are in the page cache. Bookies write past the page cache. Without this call the
    first read from each bookie would come from the disk, and chance would decide in which run that happens."""
    for segment in folder.rglob("*.segment"):
        with segment.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def sequential(entry_bytes: int) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        ledger_id = filled(world.bookkeeper, world, entry_bytes, world.scaled(BYTES))
        into_page_cache(world.folder / "ours")
        return lambda: read_all(world.bookkeeper, ledger_id)

    return prepare


def java_sequential(entry_bytes: int) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        java = world.of(Apache).client()
        ledger_id = java.filled(entry_bytes, world.scaled(APACHE_BYTES[entry_bytes], 1_000_000))
        return lambda: java.read(ledger_id)

    return prepare


def consumed(size: int) -> Prepare:
    return lambda world: world.of(Kafka).consuming(size, world.scaled(BYTES))


def streamed(world: World) -> Callable[[], Run]:
    return partial(world.of(Raw).stream, world.scaled(BYTES))


def anywhere(world: World) -> Callable[[], Run]:
    """Run some readers. Each asks for one entry, waits for it, and asks for the next."""
    count = world.scaled(RANDOM, 100)
    ledger_id = filled(world.bookkeeper, world, 1_000, world.scaled(RANDOM_BYTES))
    into_page_cache(world.folder / "ours")

    async def read(reader: client.LedgerReader, entries: list[int]) -> None:
        for entry in entries:
            async for batch in reader.read(entry, entry):
                assert len(batch) == 1

    async def read_some(bookkeeper: client.BookKeeper) -> Run:
        async with await bookkeeper.open_ledger(ledger_id, recover=False) as reader:
            wanted = random.Random(ledger_id).choices(range(reader.last_add_confirmed + 1), k=count)
            began = time.perf_counter()
            await asyncio.gather(*(read(reader, wanted[number::AT_ONCE]) for number in range(AT_ONCE)))
            return Run.of(count / (time.perf_counter() - began))

    return lambda: world.bookkeeper.begin(read_some).result()


def java_anywhere(world: World) -> Callable[[], Run]:
    java, count = world.of(Apache).client(), world.scaled(RANDOM, 100)
    ledger_id = java.filled(1_000, world.scaled(RANDOM_BYTES))
    return lambda: java.read_random(ledger_id, count, AT_ONCE)


def bare_anywhere(world: World) -> Callable[[], Run]:
    return partial(world.of(Raw).read_random, AT_ONCE, world.scaled(RANDOM, 100), world.scaled(RANDOM_BYTES) // 1_000)


def tailing(world: World) -> Callable[[], Run]:
    """Run a writer that pauses between entries, and a tail in another client."""
    count = world.scaled(TAILED, 50)

    async def follow(reader: client.LedgerReader, seen: dict[int, float]) -> None:
        async for batch in reader.tail(0):
            for entry in batch.entry_ids().tolist():
                seen[entry] = time.perf_counter()

    async def latencies() -> Run:
        acked, seen, dice = dict[int, float](), dict[int, float](), random.Random(1)
        async with await connected(world) as writes, await connected(world) as reads:
            async with await writes.create_ledger() as writer:
                reader = await reads.open_ledger(writer.ledger_id, recover=False)
                following = asyncio.create_task(follow(reader, seen))
                for _ in range(count):
                    await asyncio.sleep(dice.uniform(0.001, 0.02))
                    acked[await writer.append(bytes(100))] = time.perf_counter()
            await asyncio.wait_for(following, TAIL_ENDS_S)
        samples = [(seen[entry] - at) * 1e3 for entry, at in acked.items()]
        return Run.of(percentile(samples, 0.99))

    return lambda: asyncio.run(latencies())


SEQUENTIAL = "read() of a closed ledger, verified, from the page cache, batches that nobody looks into"
STREAM = "raw: one process preads its file from the page cache into a socket, the other receives it"
MEASUREMENTS = (
    Measurement(
        ("read_100b",), "M entries/s", sequential(100), per=1e8, note=SEQUENTIAL,
        peers=(
            Peer("apache", java_sequential(100), (80,), note=apache.NOTE),
            Peer("kafka", consumed(100), (8,), note=kafka.NOTE),
            Peer("raw", streamed, (0.5,), note=STREAM),
        ),
    ),
    Measurement(
        ("read_1kb",), "MB/s", sequential(1_000), per=1e6, note=SEQUENTIAL,
        peers=(
            Peer("apache", java_sequential(1_000), (12,), note=apache.NOTE),
            Peer("kafka", consumed(1_000), (2,), note=kafka.NOTE),
            Peer("raw", streamed, (0.5,), note=STREAM),
        ),
    ),
    Measurement(
        ("read_random",), "k reads/s", anywhere, per=1e3,
        note=f"entries of 1 KB, one by one, of {RANDOM_BYTES / 1e6:.0f} MB in the page cache, {AT_ONCE} at a time",
        peers=(
            Peer("apache", java_anywhere, (1.2,), note=apache.NOTE),
            Peer("raw", bare_anywhere, (None,), "asyncio",
                 note="raw: the ceiling of a client in Python: a task a reader and a future an entry on asyncio; three "
                 "processes pread the entry from the page cache; no index, checks, frames, digests or deadlines"),
        ),
    ),
    Measurement(
        ("tail_latency_p99",), "ms", tailing, wanted=(50,), less_is_better=True,
        note="from the ack of a single append to the entry in the tail of another client; below 0: seen before the ack",
    ),
)  # fmt: skip
