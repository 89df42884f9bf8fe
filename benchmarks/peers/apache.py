# SPDX-License-Identifier: Apache-2.0
"""Apache BookKeeper: three bookies, each in a Java process of its own, and Apache's client in another Java process
(``Bench.java``). All run with the JVM's optimizing compiler C2.

The bookies have Apache's default settings, except for the sizes of their files. The client appends and reads as fast as
it can.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from benchmarks.report.figures import Run
from benchmarks.running.processes import APACHES_BOOKIES, APACHES_CLIENT
from benchmarks.running.secured import Secured

if TYPE_CHECKING:
    from benchmarks.running.world import World

VERSION = "4.17.3"
BOOKIES = 3
JAVA_S = 900.0
IN_FLIGHT, IN_FLIGHT_BYTES = 5000, 64 << 20
SETTINGS: dict[str, object] = {
    "journalPreAllocSizeMB": 16,
    "journalMaxSizeMB": 512,
    "skipListSizeLimit": 64 << 20,
    # Apache's client bounds the adds that wait for two of three bookies; the third would refuse more than 10,000.
    "maxPendingAddRequestsPerThread": 0,
}
NOTE = (
    f"Apache's client on three Apache bookies {VERSION}, 3/3/2, CRC32C, a sync before each ack, up to {IN_FLIGHT} adds "
    "in flight"
)


class Apache:
    """Clusters of Apache's bookies on the world's ZooKeeper, and Apache's clients, which all run in one Java
    process."""

    def __init__(self, world: World) -> None:
        from tests.interop.jars import toolchain
        from tests.interop.java_process import FAST, JavaProgram

        self._world, self._tools, self._fast = world, toolchain(VERSION), FAST
        with world.processes.born(APACHES_CLIENT):
            log_path = world.folder / "apache-client.log"
            self._program = world.stack.enter_context(JavaProgram(self._tools, "Bench", log_path, FAST))

    def _cluster(self, name: str, settings: dict[str, object]) -> str:
        from tests.interop.peers import ApacheCluster

        address, path = self._world.zookeeper, self._world.folder / name
        with self._world.processes.born(APACHES_BOOKIES):
            cluster = ApacheCluster(self._tools, address, path, flags=self._fast)
            self._world.stack.enter_context(cluster)
            for _ in range(BOOKIES):
                cluster.add_bookie({**SETTINGS, **settings})
        return cluster.uri

    @cached_property
    def uri(self) -> str:
        """The URI of bookies with their default settings."""
        return self._cluster("apache", {})

    @cached_property
    def eager_uri(self) -> str:
        """The URI of bookies that sync at once (``journalMaxGroupWaitMSec=0``)."""
        return self._cluster("eager", {"journalMaxGroupWaitMSec": 0})

    @cached_property
    def secured_uri(self) -> str:
        """The URI of bookies with TLS and otherwise default settings."""
        return self._cluster("apache-tls", self._world.of(Secured).java_settings)

    def client(self, uri: str | None = None, wire: int = 3, conf: dict[str, object] | None = None) -> Java:
        """Return a client of Apache's, by default on Apache's bookies with their default settings."""
        return Java(self._program, uri or self.uri, wire, conf or {})

    def secured_client(self) -> Java:
        """Return a client of Apache's on Apache's bookies, over TLS."""
        return self.client(self.secured_uri, conf=self._world.of(Secured).java_settings)


class Java:
    """Apache's client on one cluster."""

    def __init__(self, program: Any, uri: str, wire: int, conf: dict[str, object]) -> None:
        self._program = program
        self._client = self._call("client", uri=uri, wire=wire, conf=conf)["client"]

    def _call(self, command: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._program.call(command, within_s=JAVA_S, **arguments)
        return answer

    def _do(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._call(command, client=self._client, **arguments)

    def append(self, size: int, total: int) -> Run:
        """Append ``total`` bytes in entries of ``size`` bytes. Return the bytes per second."""
        in_flight = max(1, min(IN_FLIGHT, IN_FLIGHT_BYTES // size))
        done = self._do("append", size=size, count=max(1, total // size), in_flight=in_flight, close=True)
        return Run.of(total / done["seconds"], total)

    def leave(self, size: int, count: int) -> int:
        """Append all entries at once and do not close the ledger: no entry says that the entries before it are
        confirmed. Return the ledger's id."""
        return int(self._do("append", size=size, count=count, in_flight=count, close=False)["ledger_id"])

    def filled(self, size: int, total: int) -> int:
        """Fill a ledger with ``total`` bytes and close it. Return its id."""
        count = total // size
        return int(self._do("append", size=size, count=count, in_flight=IN_FLIGHT, close=True)["ledger_id"])

    def read(self, ledger_id: int) -> Run:
        """Read the whole ledger. Return the bytes per second."""
        done = self._do("read", ledger_id=ledger_id)
        return Run.of(done["bytes"] / done["seconds"], done["bytes"])

    def read_random(self, ledger_id: int, count: int, at_once: int) -> Run:
        """Read ``count`` random entries, ``at_once`` at a time. Return the entries per second."""
        return Run.of(count / self._do("random", ledger_id=ledger_id, count=count, at_once=at_once)["seconds"])

    def many(self, ledgers: int, size: int, rounds: int) -> Run:
        """Return the entries per second of ``ledgers`` ledgers with one add in flight each. The first call makes the
        ledgers."""
        done = self._do("many", ledgers=ledgers, size=size, rounds=rounds)
        return Run.of(ledgers * rounds / done["seconds"], ledgers * rounds * size)

    def single(self, size: int, count: int) -> Run:
        """Return the milliseconds of single adds: median and p99."""
        done = self._do("single", size=size, count=count)
        return Run((done["p50"], done["p99"]))

    def recover(self, ledger_id: int, entries: int) -> Run:
        """Recover the ledger. Return the seconds of the recovery."""
        done = self._do("recover", ledger_id=ledger_id)
        assert done["lac"] == entries - 1
        return Run.of(done["seconds"])
