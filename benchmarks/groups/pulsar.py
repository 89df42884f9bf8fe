# SPDX-License-Identifier: Apache-2.0
"""Group ``pulsar``: the history of a topic, read from the bookies and by Pulsar's own clients through a broker."""

from __future__ import annotations

import importlib
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import avro
from benchmarks.measurement import Measurement, Peer, Prepare
from benchmarks.peers.pulsar import (
    APACHES_BROKER,
    BOOKIE_COUNT,
    IN_FLIGHT,
    JAVA_CLIENT,
    NOTE,
    PYTHON_CLIENT,
    Pulsar,
    on_apache,
    partitions_of,
)
from benchmarks.report.figures import Run, elapsed
from benchmarks.running.processes import APACHES_BOOKIES, BOOKIES, BROKER, CLIENT
from benchmarks.running.world import World
from benchmarks.spark.in_memory import InMemory
from benchmarks.spark.session import drop_rows
from benchmarks.spark.session import session as spark_session
from bk_core.entries.batch import EntryBatch
from bk_core.pulsar.proto import message_pb2 as proto

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGES = {(1_000, False): 200_000, (1_000, True): 1_000_000, (100, False): 300_000, (100, True): 4_000_000}
"""The number of messages of a topic, by the size of a message and whether they are batched. A fast reader then takes a
second or two, so that its start hardly counts."""
SPARK, SPARK_MESSAGES, SPARK_SIZE, SPARK_PARTITIONS = "Spark", 1_000_000, 1_000, 4
AVRO_VALUES = 100_000
LOADS = (1, 100)
"""The numbers of topics of a load."""
LOAD_MESSAGES, LOAD_SIZE = 60_000, 1_000
RATE, RATE_S = 1_000, 10
IDLE_S = 5.0
READ_S = 10.0
ASKED_FIRST = 300
"""The number of requests after which the broker's JVM has compiled the code that answers them. An answer then takes
half the processor time of the first ones."""
NEEDED_BYTES = 12e9


def topic_of(world: World, size: int, batched: bool) -> tuple[str, int]:
    """Return a topic with messages of this kind, and their number. All sides read the same one."""
    key = f"topic {size} {batched}"
    pulsar, count = world.of(Pulsar), world.scaled(MESSAGES[size, batched], 1_000)
    return pulsar.once(key, lambda: pulsar.filled(count, size, batched=batched)), count


def read_all(world: World, name: str) -> int:
    """Read all columns of a topic, batch after batch. Return the number of messages."""
    with world.of(Pulsar).topic(name) as topic:
        return sum(batch.num_rows for batch in topic.record_batch_reader())


def ours(size: int, *, batched: bool) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        name, count = topic_of(world, size, batched)
        for _ in range(BOOKIE_COUNT - 1):
            read_all(world, name)  # each read is served by another bookie; a broker's first read warms all of them up

        def run() -> Run:
            began = time.perf_counter()
            found = read_all(world, name)
            took = time.perf_counter() - began
            assert found == count, f"{found} messages, not {count}"
            return Run.of(count / took, count * size)

        return run

    return prepare


def python_reader(size: int, *, batched: bool) -> Prepare:
    return lambda world: partial(world.of(Pulsar).python_reads, *topic_of(world, size, batched))


def java_reader(size: int, *, batched: bool) -> Prepare:
    return lambda world: partial(world.of(Pulsar).java_reads, *topic_of(world, size, batched))


def bare_parsing(size: int, *, batched: bool) -> Prepare:
    """Measure protobuf alone: the entries are in memory, and no rows are made."""

    def prepare(world: World) -> Callable[[], Run]:
        name, count = topic_of(world, size, batched)
        pulsar = world.of(Pulsar)
        entries = list(pulsar.entries(pulsar.ranges(name)))

        def run() -> Run:
            began = time.perf_counter()
            found = sum(map(parsed, entries))
            took = time.perf_counter() - began
            assert found == count, f"{found} messages, not {count}"
            return Run.of(count / took, count * size)

        return run

    return prepare


def bare_reading(size: int, *, batched: bool) -> Prepare:
    """Measure what reading the entries costs our client before it knows that they have messages."""

    def prepare(world: World) -> Callable[[], Run]:
        name, count = topic_of(world, size, batched)
        pulsar = world.of(Pulsar)

        def run() -> Run:
            began = time.perf_counter()
            received = sum(batch.payload_bytes for batch in pulsar.entries(pulsar.ranges(name)))
            took = time.perf_counter() - began
            assert received > count * size
            return Run.of(count / took, count * size)

        return run

    return prepare


def parsed(batch: EntryBatch) -> int:
    """Parse the metadata of all messages with protobuf, and take their values. Return the number of messages."""
    values = list[bytes]()
    for data in batch.to_list():
        at = 6 if data[:2] == b"\x0e\x01" else 0
        (size,) = struct.unpack_from(">I", data, at)
        head = proto.MessageMetadata.FromString(data[at + 4 : at + 4 + size])
        at += 4 + size
        if not head.HasField("num_messages_in_batch"):
            values.append(data[at:])
            continue
        for _ in range(head.num_messages_in_batch):
            (size,) = struct.unpack_from(">I", data, at)
            single = proto.SingleMessageMetadata.FromString(data[at + 4 : at + 4 + size])
            at += 4 + size + single.payload_size
            values.append(data[at - single.payload_size : at])
    return len(values)


# --- the broker's processor time ------------------------------------------------------------------------------------


def broker_reading(world: World) -> Callable[[], Run]:
    """Measure what the broker uses while our client reads a topic again and again."""
    name, _ = topic_of(world, 1_000, True)
    for _ in range(ASKED_FIRST):
        ask_for_end(world, name)

    return lambda: _broker_share(world, _again(lambda: read_all(world, name)))


def broker_not_asked(world: World) -> Callable[[], Run]:
    """Measure what the broker uses while our client reads the same entries and never asks the broker."""
    name, _ = topic_of(world, 1_000, True)
    pulsar = world.of(Pulsar)
    ranges = pulsar.ranges(name)

    return lambda: _broker_share(world, _again(lambda: deque(pulsar.entries(ranges), maxlen=0)))


def broker_idle(world: World) -> Callable[[], Run]:
    return lambda: _broker_share(world, lambda: time.sleep(IDLE_S))


def broker_asked(world: World) -> Callable[[], Run]:
    """Measure what the broker uses while a client only asks it, once a second, where a topic ends."""
    name, _ = topic_of(world, 1_000, True)

    def asking() -> None:
        for _ in range(int(IDLE_S)):
            ask_for_end(world, name)
            time.sleep(1)

    return lambda: _broker_share(world, asking)


def ask_for_end(world: World, name: str) -> None:
    """Ask the broker where a topic ends, as a read does."""
    world.of(Pulsar).broker.admin("GET", f"{name.replace('://', '/')}/internalStats")


def _again(work: Callable[[], object]) -> Callable[[], None]:
    """Return a function that does the work again and again for READ_S."""

    def until_the_end() -> None:
        deadline = time.monotonic() + READ_S
        while time.monotonic() < deadline:
            work()

    return until_the_end


def _broker_share(world: World, work: Callable[[], None]) -> Run:
    """Return how much of a core the broker uses during some work, in percent."""
    spent, began = world.processes.spent_s()[BROKER], time.monotonic()
    work()
    return Run.of(100 * (world.processes.spent_s()[BROKER] - spent) / (time.monotonic() - began))


# --- values by a schema ---------------------------------------------------------------------------------------------


def avro_columns(world: World) -> Callable[[], Run]:
    """Measure the decoding of values into columns, from the places of their bytes on."""
    datums = avro.orders(world.scaled(AVRO_VALUES, 1_000))
    return partial(_decoding, avro.ours(datums, avro.ORDER), len(datums))


def avro_bare(title: str) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        datums = avro.orders(world.scaled(AVRO_VALUES, 1_000))
        module, make = avro.candidates(datums)[title]
        return partial(_decoding, make(importlib.import_module(module)), len(datums))

    return prepare


def _decoding(work: Callable[[], object], count: int) -> Run:
    return Run.of(count / elapsed(work))


# --- a broker's load on bookies -------------------------------------------------------------------------------------


def tailed(broker: Callable[[World], Pulsar], topics: int) -> Prepare:
    """Measure the messages per second that producers send and tailing consumers get."""

    def prepare(world: World) -> Callable[[], Run]:
        pulsar, count = world.of(broker), world.scaled(LOAD_MESSAGES, 1_000)
        return lambda: Run.of(count / pulsar.loaded(topics, count, LOAD_SIZE)["seconds"], count * LOAD_SIZE)

    return prepare


def published(broker: Callable[[World], Pulsar], topics: int) -> Prepare:
    """Measure the milliseconds of publishing at a steady rate: median and p99."""

    def prepare(world: World) -> Callable[[], Run]:
        pulsar, count = world.of(broker), world.scaled(RATE * RATE_S, 1_000)

        def run() -> Run:
            said = pulsar.loaded(topics, count, LOAD_SIZE, rate=RATE)
            return Run((said["p50_ms"], said["p99_ms"]), count * LOAD_SIZE)

        return run

    return prepare


def bookie_memory(broker: Callable[[World], Pulsar]) -> Prepare:
    return lambda world: lambda: Run.of(world.of(broker).bookie_memory)


# --- Spark ----------------------------------------------------------------------------------------------------------


def spark_topic(world: World) -> tuple[Any, str, int]:
    """Return a session, and a topic with partitions and the number of its messages."""
    pulsar, count = world.of(Pulsar), world.scaled(SPARK_MESSAGES, 1_000)
    name = pulsar.once(
        "spark", lambda: pulsar.filled(count, SPARK_SIZE, batched=True, partitions=SPARK_PARTITIONS)
    )  # fmt: skip

    def start() -> Any:
        with world.processes.born(SPARK):
            made = spark_session(world.folder)
        world.stack.callback(made.stop)
        return made

    return pulsar.once("session", start), name, count


def spark_ours(world: World) -> Callable[[], Run]:
    session, name, count = spark_topic(world)
    pulsar = world.of(Pulsar)
    frame = session.read.format("bookkeeper").option("metadataServiceUri", pulsar.cluster.uri)
    frame = frame.option("pulsarAdminUrl", pulsar.broker.web_url).option("topic", name)
    frame = frame.option("columns", "value")  # Spark does not tell a source in Python which columns it needs
    check(frame.load(), count)
    return lambda: _spark_run(frame.load(), count)


def spark_memory(world: World) -> Callable[[], Run]:
    """Measure Spark alone: a source returns as many rows from memory."""
    session, _, count = spark_topic(world)
    session.dataSource.register(InMemory)
    frame = session.read.format("inmemory").schema("value BINARY").options(rows=count, size=SPARK_SIZE)
    check(frame.load(), count)
    return lambda: _spark_run(frame.load(), count)


def spark_client(world: World) -> Callable[[], Run]:
    session, name, count = spark_topic(world)
    pulsar = world.of(Pulsar)
    names = [(each,) for each in partitions_of(name, SPARK_PARTITIONS)]
    frame = session.createDataFrame(session.sparkContext.parallelize(names, len(names)), "name STRING")
    reading = partial(values_of, pulsar.broker.url, pulsar.site_packages)
    check(frame.mapInArrow(reading, "value BINARY"), count)
    return lambda: _spark_run(frame.mapInArrow(reading, "value BINARY"), count)


def check(frame: Any, count: int) -> None:
    """Raise AssertionError if a frame does not have ``count`` rows."""
    found = frame.count()
    assert found == count, f"{found} messages, not {count}"


def _spark_run(frame: Any, count: int) -> Run:
    return Run.of(count / elapsed(lambda: drop_rows(frame)), count * SPARK_SIZE)


def values_of(url: str, site_packages: str, names: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read topics with ``pulsar-client`` in a task."""
    import pyarrow

    sys.path.append(site_packages)
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for name in (name for batch in names for name in batch.column("name").to_pylist()):
        reader = client.create_reader(name, pulsar.MessageId.earliest, receiver_queue_size=10_000)
        while reader.has_message_available():
            values = list[bytes]()
            while len(values) < 10_000 and reader.has_message_available():
                values.append(reader.read_next(60_000).data())
            yield pyarrow.record_batch([pyarrow.array(values, pyarrow.binary())], names=["value"])
        reader.close()
    client.close()


PYTHON_NOTE = f"pulsar-client, create_reader with a queue of 10,000, read_next; {NOTE}"
JAVA_NOTE = f"its Java client, newReader with a queue of 10,000, readNext; {NOTE}"
RECEIVING = "a ceiling: our client reads and verifies the same entries from the bookies, and makes nothing of them"
PROTOBUF = "the ceiling: protobuf's own compiled parser, of entries in memory, on one thread; takes values, no rows"
READING = "record_batch_reader() of all default columns; bookies, their network, digests and checksums included"
OURS = (CLIENT, BOOKIES)
ON_OURS, ON_APACHES = (BOOKIES, BROKER), (APACHES_BOOKIES, APACHES_BROKER)
ON_APACHE_NOTE = f"the same broker and client on three Apache bookies; {NOTE}"
MEASUREMENTS = (
    *(
        Measurement(
            (f"topic_{label}{'_batched' if batched else ''}",), "k messages/s", ours(size, batched=batched), per=1e3,
            note=f"{READING}; {MESSAGES[size, batched]:,} messages", kinds=OURS,
            peers=(
                Peer("pulsar", python_reader(size, batched=batched), (5,), "Python", note=PYTHON_NOTE,
                     kinds=(PYTHON_CLIENT, BROKER, BOOKIES)),
                Peer("pulsar", java_reader(size, batched=batched), (1.5,), "Java", note=JAVA_NOTE,
                     kinds=(JAVA_CLIENT, BROKER, BOOKIES)),
                Peer("raw", bare_reading(size, batched=batched), (None,), "entries", note=RECEIVING, kinds=OURS),
                Peer("raw", bare_parsing(size, batched=batched), (None,), "protobuf", note=PROTOBUF, kinds=(CLIENT,)),
            ),
        )
        for label, size in (("1kb", 1_000), ("100b", 100))
        for batched in (False, True)
    ),
    Measurement(
        ("topic_broker_cpu",), "% of a core", broker_reading, wanted=(2,), less_is_better=True,
        note="the broker's processor time while our client reads a topic of 1 KB messages again and again; each read "
        "asks it where the topic ends",
        peers=(
            Peer("raw", broker_idle, (None,), "idle", note="the broker while nobody asks it for anything"),
            Peer("raw", broker_not_asked, (None,), "not asked",
                 note="the broker while our client reads the same entries and does not ask it for the end"),
            Peer("raw", broker_asked, (None,), "asked", note="one bare GET of internalStats a second"),
        ),
    ),
    Measurement(
        ("topic_avro_columns",), "k values/s", avro_columns, per=1e3, kinds=(CLIENT,),
        note=f"{AVRO_VALUES:,} values of nine fields and 56 bytes to Arrow columns; decision 77 has more peers",
        peers=(
            Peer("raw", avro_bare("fastavro, one block"), (0.6,), "fastavro", kinds=(CLIENT,),
                 note="a compiled decoder reads the same values from one block of a file in memory, to objects"),
        ),
    ),
    Measurement(
        ("topic_spark_1kb",), "k messages/s", spark_ours, per=1e3, kinds=(SPARK, BOOKIES),
        note=f"spark.read of {SPARK_PARTITIONS} partitions, {SPARK_MESSAGES:,} messages in batches, column value",
        peers=(
            Peer("pulsar", spark_client, (3,), "client in tasks", kinds=(SPARK, BROKER, BOOKIES),
                 note=f"mapInArrow, whose tasks read a partition each with pulsar-client; {NOTE}"),
            Peer("raw", spark_memory, (None,), "memory", kinds=(SPARK,),
                 note="the ceiling: a source in Python that returns as many rows of 1 KB from memory"),
        ),
    ),
    *(
        Measurement(
            (f"pulsar_tail_{topics}",), "k messages/s", tailed(Pulsar, topics), per=1e3, kinds=ON_OURS, needs="apache",
            note=f"a Java client produces {LOAD_MESSAGES:,} messages of 1 KB to {topics} topics, {IN_FLIGHT} in "
            "flight, and consumes and acknowledges them, on three of our bookies",
            peers=(Peer("apache", tailed(on_apache, topics), (1,), note=ON_APACHE_NOTE, kinds=ON_APACHES),),
        )
        for topics in LOADS
    ),
    *(
        Measurement(
            (f"pulsar_publish_{topics}_p50", f"pulsar_publish_{topics}_p99"), "ms", published(Pulsar, topics),
            less_is_better=True, kinds=ON_OURS, needs="apache",
            note=f"the same at {RATE:,} messages a second for all {topics} topics",
            peers=(Peer("apache", published(on_apache, topics), (1, 1), note=ON_APACHE_NOTE, kinds=ON_APACHES),),
        )
        for topics in LOADS
    ),
    Measurement(
        ("pulsar_bookie_memory",), "MB", bookie_memory(Pulsar), per=1e6, less_is_better=True, needs="apache",
        note="resident memory of the three bookies after these loads", kinds=(),
        peers=(Peer("apache", bookie_memory(on_apache), (None,), note="Apache's, with heaps of 512 MB", kinds=()),),
    ),
)  # fmt: skip
