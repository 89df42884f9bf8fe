# SPDX-License-Identifier: Apache-2.0
"""Group ``append``: the rate at which entries become durable, in batches and one by one, and the latency of a single
entry."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypedDict, Unpack

import numpy as np

from benchmarks.measurement import Measurement, Peer, Prepare
from benchmarks.peers import apache, kafka
from benchmarks.peers.apache import Apache
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.raw import Raw
from benchmarks.report.figures import Run, VariedBytes, elapsed, percentile
from benchmarks.running.doomed import doomed
from benchmarks.running.world import World
from bk_core import client
from bk_core.blocking import LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import ledger_key
from bk_core.errors import WindowFullError
from bk_core.model import DigestType

BYTES = 300e6
APACHE_BYTES = {100: 20e6, 1_000: 100e6, 256 << 10: 300e6}
"""The bytes that Apache's client appends in a run, by the size of an entry. It is slower, so it gets fewer bytes."""
BATCH_BYTES = 1_000_000
PACKED_BYTES = 256 << 10
LEDGERS, ROUNDS = 10_000, 4
SINGLES, LOADED_SINGLES, FENCES = 1_000, 300, 50
FENCE_S = 10.0
NEEDED_BYTES = 35e9
QUORUM = "E 3, Qw 3, Qa 2, fdatasync before each ack, CRC32C an entry"


def batches(data: VariedBytes, entry_bytes: int, total: int) -> Iterator[EntryBatch]:
    """Yield batches of about 1 MB, of entries of one size."""
    rows = BATCH_BYTES // entry_bytes
    lengths = np.full(rows, entry_bytes, dtype=np.uint32)
    for chunk in data.chunks(total, rows * entry_bytes):
        yield EntryBatch(lengths=lengths, payload=chunk)


def append_all(ledger: LedgerWriter, data: VariedBytes, entry_bytes: int, total: int) -> None:
    """Append everything, and return when the last entry is confirmed."""
    for batch in batches(data, entry_bytes, total):
        ledger.append_batch(batch)
    ledger.flush()


# --- rates ---


class LedgerOptions(TypedDict, total=False):
    """The options of a ledger that differ from the defaults."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    digest_type: DigestType
    password: bytes


def by_batches(entry_bytes: int, **ledger_options: Unpack[LedgerOptions]) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        bookkeeper, data, total = world.bookkeeper, world.data, world.scaled(BYTES)

        def run() -> Run:
            with bookkeeper.create_ledger(**ledger_options) as ledger:
                seconds = elapsed(lambda: append_all(ledger, data, entry_bytes, total))
                return Run.of(ledger.length / seconds, ledger.length)

        return run

    return prepare


def one_by_one(world: World) -> Callable[[], Run]:
    """Call ``append_nowait`` for each entry. When the window is full, the writer waits until half of it is
    confirmed."""
    bookkeeper, total = world.bookkeeper, world.scaled(BYTES / 3)
    payloads = world.data.messages(100, total)

    def append_each(ledger: LedgerWriter) -> None:
        for payload in itertools.islice(itertools.cycle(payloads), total // 100):
            try:
                ledger.append_nowait(payload)
            except WindowFullError:
                ledger.wait_confirmed((ledger.last_add_confirmed + ledger.last_add_pushed) // 2)
                ledger.append_nowait(payload)
        ledger.flush()

    def run() -> Run:
        with bookkeeper.create_ledger() as ledger:
            seconds = elapsed(lambda: append_each(ledger))
            return Run.of(ledger.length / seconds, ledger.length)

    return run


def many_ledgers(world: World) -> Callable[[], Run]:
    """Run a task for each ledger, which appends, waits, and appends again. The open ledgers are hidden from Python's
    garbage collector, as docs/python.md recommends."""
    ledgers = world.scaled(LEDGERS, 10)
    payload = bytes(world.data.take(100))

    async def create(bookkeeper: client.BookKeeper) -> list[client.LedgerWriter]:
        some = asyncio.Semaphore(16)

        async def one() -> client.LedgerWriter:
            async with some:
                return await bookkeeper.create_ledger()

        return await asyncio.gather(*(one() for _ in range(ledgers)))

    async def append(writer: client.LedgerWriter) -> None:
        for _ in range(ROUNDS):
            await writer.append(payload)

    async def append_to_all(_: client.BookKeeper) -> float:
        began = time.perf_counter()
        await asyncio.gather(*map(append, writers))
        return time.perf_counter() - began

    async def abandon(_: client.BookKeeper) -> None:
        while writers:
            await writers.pop().abandon()

    writers = world.bookkeeper.begin(create).result()
    world.during.callback(gc.collect)  # takes 1.5 s, which the next measurement must not pay
    world.during.callback(lambda: world.bookkeeper.begin(abandon).result())
    gc.collect()
    gc.freeze()
    world.during.callback(gc.unfreeze)
    done = ledgers * ROUNDS
    return lambda: Run.of(done / world.bookkeeper.begin(append_to_all).result(), done * 100)


def java_appends(entry_bytes: int) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        java, total = world.of(Apache).client(), world.scaled(APACHE_BYTES[entry_bytes], entry_bytes)
        return lambda: java.append(entry_bytes, total)

    return prepare


def java_many_ledgers(world: World) -> Callable[[], Run]:
    java, ledgers = world.of(Apache).client(), world.scaled(LEDGERS, 10)
    return lambda: java.many(ledgers, 100, ROUNDS)


def bare_writers(world: World) -> Callable[[], Run]:
    return partial(world.of(Raw).many, world.scaled(LEDGERS, 10), ROUNDS, 100)


def produced(size: int) -> Prepare:
    return lambda world: partial(world.of(Kafka).produce, size, world.scaled(BYTES))


def fanned_out(entry_bytes: int, *, digests: bool = False) -> Prepare:
    return lambda world: partial(world.of(Raw).append, entry_bytes, world.scaled(BYTES), digests=digests)


# --- latencies ---


async def single_ms(writer: client.LedgerWriter, count: int) -> list[float]:
    """Return the milliseconds of each of ``count`` appends, one at a time."""
    payload, samples = random.Random(1).randbytes(100), []
    for _ in range(count):
        began = time.perf_counter()
        await writer.append(payload)
        samples.append((time.perf_counter() - began) * 1e3)
    return samples


def singles(world: World) -> Callable[[], Run]:
    count = world.scaled(SINGLES, 100)

    async def append(bookkeeper: client.BookKeeper) -> Run:
        async with await bookkeeper.create_ledger() as writer:
            await single_ms(writer, 50)
            samples = await single_ms(writer, count)
        return Run((percentile(samples, 0.5), percentile(samples, 0.99)))

    return lambda: world.bookkeeper.begin(append).result()


def java_singles(*, eager: bool) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        java = world.of(Apache).client(world.of(Apache).eager_uri if eager else None)
        return lambda: java.single(100, world.scaled(SINGLES, 100))

    return prepare


@contextmanager
def load(world: World) -> Iterator[None]:
    """Let another client append at full rate to another ledger while the block runs."""
    with doomed("load", world.cluster.uri, world.lane):
        yield


def under_load(world: World) -> Callable[[], Run]:
    count = world.scaled(LOADED_SINGLES, 100)

    async def append(bookkeeper: client.BookKeeper) -> float:
        async with await bookkeeper.create_ledger() as writer:
            await single_ms(writer, 20)
            return percentile(await single_ms(writer, count), 0.99)

    def run() -> Run:
        with load(world):
            return Run.of(world.bookkeeper.begin(append).result())

    return run


def fences_under_load(world: World) -> Callable[[], Run]:
    """Fence ledgers of one entry on all of their bookies, one ledger after the other."""
    count = world.scaled(FENCES, 10)

    async def create(bookkeeper: client.BookKeeper) -> list[client.LedgerWriter]:
        writers = [await bookkeeper.create_ledger() for _ in range(count)]
        for writer in writers:
            await writer.append(b"one")
            await writer.abandon()
        return writers

    async def fence(bookkeeper: client.BookKeeper, writer: client.LedgerWriter) -> float:
        began, key = time.perf_counter(), ledger_key(b"")
        await asyncio.gather(
            *(
                bookkeeper.transport.link(bookie).fence(writer.ledger_id, key, deadline_s=FENCE_S)
                for bookie in writer.metadata.last_fragment.ensemble
            )
        )
        return (time.perf_counter() - began) * 1e3

    async def fence_all(bookkeeper: client.BookKeeper, writers: list[client.LedgerWriter]) -> float:
        return percentile([await fence(bookkeeper, writer) for writer in writers], 0.99)

    def run() -> Run:
        writers = world.bookkeeper.begin(create).result()
        with load(world):
            return Run.of(world.bookkeeper.begin(lambda bookkeeper: fence_all(bookkeeper, writers)).result())

    return run


LOADED = "while another client appends batches of 1 KB entries to another ledger at full rate"
DIGESTED = "raw with the digests of our client, sent and written as well"
PACKED = "rows packed into entries of 256 KB"
RAW = (
    "raw: one process sends messages of 1 MB to three, which receive into an aligned buffer, write with O_DIRECT and "
    "fdatasync, and ack; no headers, checks, digests or index"
)
MEASUREMENTS = (
    Measurement(
        ("append_100b",), "M entries/s", by_batches(100), per=1e8,
        note=f"append_batch of 1 MB, {QUORUM}",
        peers=(
            Peer("apache", java_appends(100), (50,), note=apache.NOTE),
            Peer("kafka", produced(100), (2.5,), note=kafka.NOTE),
            Peer("raw", fanned_out(100), (0.35,), note=RAW),
            Peer("raw", fanned_out(100, digests=True), (0.65,), "with digests", note=DIGESTED),
        ),
    ),
    Measurement(
        ("append_1kb",), "MB/s", by_batches(1_000), per=1e6,
        note=f"append_batch of 1 MB, {QUORUM}",
        peers=(
            Peer("apache", java_appends(1_000), (6.5,), note=apache.NOTE),
            Peer("apache", java_appends(PACKED_BYTES), (2,), "packed", note=f"{apache.NOTE}; {PACKED}"),
            Peer("kafka", produced(1_000), (1,), note=kafka.NOTE),
            Peer("raw", fanned_out(1_000), (0.65,), note=RAW),
            Peer("raw", fanned_out(1_000, digests=True), (None,), "with digests", note=DIGESTED),
        ),
    ),
    Measurement(
        ("append_each_100b",), "M entries/s", one_by_one, per=1e8,
        note=f"one append_nowait an entry, {QUORUM}",
        peers=(
            Peer("apache", java_appends(100), (10,), note=apache.NOTE),
            Peer("kafka", produced(100), (1,), note=kafka.NOTE),
        ),
    ),
    Measurement(
        ("append_striped",), "M entries/s",
        by_batches(100, ensemble_size=3, write_quorum_size=2, ack_quorum_size=2), per=1e8,
        note="append_batch of 1 MB, 100 B an entry, E 3, Qw 2, Qa 2",
    ),
    Measurement(
        ("append_many_ledgers",), "k entries/s", many_ledgers, per=1e3, disk_bytes=3e9,
        note=f"{LEDGERS:,} ledgers, one entry of 100 B in flight each, by asyncio, gc.freeze() before; {QUORUM}",
        peers=(
            Peer("apache", java_many_ledgers, (1.2,), note=f"{apache.NOTE}, one a ledger"),
            Peer("raw", bare_writers, (None,), "asyncio",
                 note="raw: the ceiling of a client in Python: a task a writer and a future an entry on asyncio, which "
                 "sends as many messages as ours, each to three processes that write and sync it, and waits for two; "
                 "no digests, frames, sessions, windows or LAC"),
        ),
    ),
    Measurement(
        ("hmac_100b",), "M entries/s", by_batches(100, digest_type=DigestType.MAC, password=b"secret"), per=1e8,
        wanted=(0.4,), note="append_100b with an HMAC-SHA1 an entry",
    ),
    Measurement(
        ("append_single_p50", "append_single_p99"), "ms", singles, less_is_better=True,
        note=f"asyncio: await append, one entry of 100 B at a time, {QUORUM}",
        peers=(
            Peer("apache", java_singles(eager=False), (1 / 0.25, 1 / 0.25), note=f"{apache.NOTE}; one at a time"),
            Peer("apache", java_singles(eager=True), (1 / 0.9, 1 / 0.9), "group wait 0",
                 note="the same with journalMaxGroupWaitMSec=0"),
            Peer("raw", lambda world: partial(world.of(Raw).single, world.scaled(SINGLES, 100)), (1 / 3, None),
                 note="raw: a round trip to one process and a synced write of a block there, added"),
            Peer("raw", lambda world: partial(world.of(Raw).single_by_asyncio, world.scaled(SINGLES, 100), 100),
                 (None, None), "asyncio",
                 note="raw: the ceiling of a client in Python: a future an entry on asyncio, sent to three processes "
                 "that write and sync it, until two have; no digests, frames, sessions, windows or LAC"),
        ),
    ),
    Measurement(
        ("append_p99_under_load",), "ms", under_load, wanted=(10,), less_is_better=True,
        note=f"as append_single, {LOADED}",
    ),
    Measurement(
        ("fence_p99_under_load",), "ms", fences_under_load, wanted=(50,), less_is_better=True,
        note=f"a ledger fenced on its three bookies, {LOADED}",
    ),
)  # fmt: skip
