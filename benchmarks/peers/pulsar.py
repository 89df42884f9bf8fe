# SPDX-License-Identifier: Apache-2.0
"""Apache Pulsar: one broker on three bookies, its Java client, and its Python client.

The broker has Pulsar's default settings, except that it keeps no messages in its own memory, so that a reader of
history reads from the bookies. All Java processes run with the JVM's optimizing compiler C2.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.peers import apache
from benchmarks.report.figures import Run
from benchmarks.running.processes import APACHES_BOOKIES, BOOKIES, BROKER, ZOOKEEPER
from bk_cli.local.cluster import LocalCluster
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.blocking import BookKeeper, connect
from bk_core.blocking.topics import Topic
from bk_core.entries.batch import EntryBatch
from bk_core.pulsar.cluster import PulsarAccess
from bk_core.pulsar.model.plan import TopicRange
from tests.interop.jars import PULSAR, toolchain
from tests.interop.java_process import FAST, JavaProgram
from tests.interop.peers import ApacheCluster
from tests.interop.pulsar import Broker, Client, broker_settings, install_client

if TYPE_CHECKING:
    from benchmarks.running.world import World

JAVA_CLIENT, PYTHON_CLIENT = "Pulsar's Java client", "Pulsar's Python client"
APACHES_BROKER = "broker on Apache's bookies"
"""The kinds of processes: the two clients, and the broker on Apache's bookies."""
BOOKIE_COUNT = 3
CALL_S = 900.0
IN_FLIGHT = 1000
"""The maximum number of messages of all topics of a load that are sent and not acked."""
TOPICS = "persistent://public/default/"
SETTINGS = {
    "brokerDeduplicationEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": "50000",
    "brokerDeleteInactiveTopicsEnabled": "false",
}
READ_BYTES = 8 << 20
"""The number of bytes of a file that are read at a time."""
NOTE = (
    f"Apache Pulsar {PULSAR.partition('-')[2]}, one broker without a cache, 3/3/2 on the same three bookies of ours; "
    "their files are in the page cache"
)


Made = TypeVar("Made")


class Pulsar:
    """A broker on bookies of ours, or of Apache's, and clients of both kinds."""

    def __init__(self, world: World, *, on_apaches: bool = False) -> None:
        self._world, stack = world, world.stack
        self.folder = world.folder / ("pulsar-apache" if on_apaches else "pulsar")
        self.folder.mkdir()
        self._tools = toolchain(PULSAR)
        self._bookies = APACHES_BOOKIES if on_apaches else BOOKIES
        with world.processes.born(self._bookies):
            self.cluster = _apaches(world, self.folder) if on_apaches else _ours(world, self.folder)
        self.broker = Broker(self.cluster, broker_settings(SETTINGS), flags=("-Xmx1g", "-XX:MaxDirectMemorySize=1g"))
        stack.callback(self.broker.kill)
        self.broker.initialize()
        with world.processes.born(APACHES_BROKER if on_apaches else BROKER):
            self.broker.start()
        self._topics = 0
        self._made = dict[str, Any]()

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return what was made under this name. It is made when it is first asked for."""
        if name not in self._made:
            self._made[name] = make()
        found: Made = self._made[name]
        return found

    @cached_property
    def python(self) -> tuple[Path, str]:
        """A Python with Pulsar's client, and the client's version."""
        return install_client(self.folder / "venv")

    @property
    def site_packages(self) -> str:
        """The folder with the modules of Pulsar's client."""
        self.python  # noqa: B018  # it installs them
        base = str(self.folder / "venv")
        return sysconfig.get_path("platlib", vars={"base": base, "platbase": base})

    @cached_property
    def _python_client(self) -> Client:
        with self._world.processes.born(PYTHON_CLIENT):
            client = Client(self.python[0], self.cluster, self.broker, "reader", "benchmarks.peers.pulsar_calls")
        self._world.stack.callback(client.kill)
        return client

    @cached_property
    def _java_client(self) -> JavaProgram:
        with self._world.processes.born(JAVA_CLIENT):
            client = JavaProgram(self._tools, "TopicCalls", self.folder / "java.log", FAST)
        self._world.stack.enter_context(client)
        client.call("connect", url=self.broker.url, without_transactions=True)
        return client

    @cached_property
    def bookkeeper(self) -> BookKeeper:
        """Our client, straight to ZooKeeper and the bookies."""
        return self._world.stack.enter_context(connect(self.cluster.uri))

    def topic(self, name: str) -> Topic:
        """Return the topic ``name`` as our client sees it. The client asks the broker for the end of the topic."""
        return self.bookkeeper.topic(name, access=PulsarAccess(admin_url=self.broker.web_url))

    def filled(self, count: int, size: int, *, batched: bool, partitions: int = 0) -> str:
        """Fill a topic with messages of random bytes. Return its name."""
        self._topics += 1
        name = f"filled-{self._topics}"
        if partitions:
            self.broker.admin("PUT", f"persistent/public/default/{name}/partitions", str(partitions).encode())
        arguments = {"topic": TOPICS + name, "count": count, "size": size, "batched": batched}
        self._java_client.call("fill", within_s=CALL_S, **arguments)
        self._read_files()
        return TOPICS + name

    def _read_files(self) -> None:
        """Read the bookies' segments, so that all their bytes are in the page cache. Otherwise a reader that is
        measured reads from the disk what no reader before it read: our reader takes a range from one bookie, and the
        broker takes a third of it from each."""
        buffer = bytearray(READ_BYTES)
        for path in self.folder.rglob("segments/*"):
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    def ranges(self, name: str) -> list[TopicRange]:
        """Return the ranges of a topic up to its end, which the broker is asked for."""
        with self.topic(name) as topic:
            return [each for plan in topic.plan() for each in plan.ranges]

    def entries(self, ranges: Sequence[TopicRange]) -> Iterator[EntryBatch]:
        """Read all entries of these ranges, without asking the broker."""
        for each in ranges:
            with self.bookkeeper.open_ledger(each.ledger_id, recover=False) as reader:
                yield from reader.read(each.first, each.last, unconfirmed=not reader.is_closed)

    def python_reads(self, name: str, count: int) -> Run:
        """Return the messages per second of the Python client's reader."""
        return self._drained(self._python_client, name, count)

    def java_reads(self, name: str, count: int) -> Run:
        """Return the messages per second of the Java client's reader."""
        return self._drained(self._java_client, name, count)

    def loaded(self, topics: int, count: int, size: int, *, rate: int = 0) -> dict[str, float]:
        """Produce to topics and consume them at once, at a rate or as fast as possible. Return ``seconds``, and
        ``p50_ms`` and ``p99_ms`` of publishing."""
        in_flight = max(1, IN_FLIGHT // topics)
        said: dict[str, float] = self._java_client.call(
            "load", within_s=CALL_S, topic=f"{TOPICS}loaded-{topics}", topics=topics, count=count, size=size, rate=rate,
            in_flight=in_flight,
        )  # fmt: skip
        assert said["all"], "messages did not arrive"
        return said

    @property
    def bookie_memory(self) -> int:
        """The resident bytes of the three bookies."""
        return self._world.processes.resident_bytes(self._bookies)

    def _drained(self, client: Any, name: str, count: int) -> Run:
        said = client.call("drain", within_s=CALL_S, topic=name, count=count)
        return Run.of(count / said["seconds"], said["bytes"])


@dataclass(frozen=True, slots=True)
class _Place:
    """A cluster, and a folder for the broker's files."""

    uri: str
    data_dir: Path


def _ours(world: World, folder: Path) -> _Place:
    uri = f"zk://{_zookeeper(world, folder)}/ledgers"
    cluster = LocalCluster(folder, bookies=BOOKIE_COUNT, port=0, zookeeper_uri=uri)
    return _Place(world.stack.enter_context(cluster).uri, folder)


def _apaches(world: World, folder: Path) -> _Place:
    address, path = _zookeeper(world, folder), folder / "bookies"
    uri = f"zk+hierarchical://{address}/ledgers"
    cluster = world.stack.enter_context(ApacheCluster(toolchain(apache.VERSION), address, path, uri=uri, flags=FAST))
    cluster.format(uri)
    for _ in range(BOOKIE_COUNT):
        cluster.add_bookie(apache.SETTINGS)
    return _Place(f"zk://{address}/ledgers", folder)


def _zookeeper(world: World, folder: Path) -> str:
    """Start a ZooKeeper for one broker and its bookies. Return its address."""
    server = ZooKeeperServer()
    with world.processes.born(ZOOKEEPER):
        address = server.start(folder / "zookeeper")
    world.stack.callback(server.stop)
    return address


def on_apache(world: World) -> Pulsar:
    """Return the broker on Apache's bookies."""
    return Pulsar(world, on_apaches=True)


def partitions_of(name: str, count: int) -> Sequence[str]:
    """Return the names of a topic's partitions."""
    return [f"{name}-partition-{number}" for number in range(count)]
