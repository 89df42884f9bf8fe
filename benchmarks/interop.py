# SPDX-License-Identifier: Apache-2.0
"""Group ``interop``: our client on Apache's bookies, Apache's client on ours, beside Apache's client on Apache's.

``scripts/bench interop --peer apache``.

Apache's bookies have Apache's settings (but for the size of their files), a Java each, and C2. Both clients append as
fast as they may; what is read was just written. The note of a figure says the seconds of all processors that a gigabyte
cost, ours first.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bare_bookie import bare_cluster
from benchmarks.figures import Figure, VariedBytes, percentile, side_by_side
from benchmarks.ledgers import append_rate, read_all, write_ledger
from bk_cli.cluster import LocalCluster
from bk_cli.zookeeper_server import ZooKeeperServer
from bk_core.blocking import BookKeeper, connect

PARTS = ("client", "bookie", "single", "recovery", "spark")
VERSION = "4.17.3"
BOOKIES = 3
JAVA_S = 600.0
BYTES = 100_000_000
IN_FLIGHT = 5000
SINGLE = 1000
RECOVERED = 100_000
SETTINGS: dict[str, object] = {
    "journalPreAllocSizeMB": 16,
    "journalMaxSizeMB": 512,
    "skipListSizeLimit": 64 << 20,
    # Apache's client bounds what waits for two bookies of three; the third would refuse what is beyond 10,000.
    "maxPendingAddRequestsPerThread": 0,
}


@dataclass
class Clock:
    """Runs a measurement, and notes what a gigabyte of it costs all processors. The machine has nothing else to do."""

    costs: list[float] = field(default_factory=list)

    def timed(self, total: int, measure: Callable[[], float]) -> float:
        before = busy_s()
        value = measure()
        self.costs.append((busy_s() - before) / (total / 1e9))
        return value

    @property
    def median(self) -> float:
        return percentile(self.costs, 0.5)


def busy_s() -> float:
    """Seconds that the processors of this machine have worked since it started."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


class Java:
    """Apache's client in a process of its own, on one cluster."""

    def __init__(self, program: Any, uri: str, wire: int = 3) -> None:
        self._program = program
        self._client = self._call("client", uri=uri, wire=wire)["client"]

    def _call(self, command: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._program.call(command, within_s=JAVA_S, **arguments)
        return answer

    def append(self, size: int, total: int) -> float:
        """Entries a second."""
        return total // size / float(self._append(size, total // size, IN_FLIGHT, close=True)["seconds"])

    def leave(self, size: int, count: int) -> int:
        """Append all at once and do not close: no entry says that those before it are confirmed. The ledger."""
        return int(self._append(size, count, count, close=False)["ledger_id"])

    def _append(self, size: int, count: int, in_flight: int, *, close: bool) -> dict[str, Any]:
        return self._call("append", client=self._client, size=size, count=count, in_flight=in_flight, close=close)

    def read(self, ledger_id: int) -> float:
        """Entries a second."""
        answer = self._call("read", client=self._client, ledger_id=ledger_id)
        return float(answer["entries"] / answer["seconds"])

    def single(self, size: int, count: int) -> float:
        """The median of single adds, in milliseconds."""
        return float(self._call("single", client=self._client, size=size, count=count)["p50"])

    def recover(self, ledger_id: int) -> float:
        """Seconds."""
        answer = self._call("recover", client=self._client, ledger_id=ledger_id)
        assert answer["lac"] == RECOVERED - 1
        return float(answer["seconds"])


class Rig:
    """Three Apache bookies, three of ours, and Apache's client, on one ZooKeeper."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        from tests.interop.jars import toolchain
        from tests.interop.java_process import FAST, JavaProgram

        self._tools, self._fast, self._folder, self._stack = toolchain(VERSION), FAST, folder, stack
        zookeeper = ZooKeeperServer()
        self._address = zookeeper.start(folder / "zookeeper")
        stack.callback(zookeeper.stop)
        self.apache = self.apache_cluster("apache", {})
        ours = LocalCluster(
            folder / "ours", bookies=BOOKIES, port=0, zookeeper_uri=f"zk://{self._address}/ours/ledgers"
        )
        self.ours = stack.enter_context(ours).uri
        self._program = stack.enter_context(JavaProgram(self._tools, "Bench", folder / "client.log", FAST))

    def apache_cluster(self, name: str, settings: dict[str, object]) -> str:
        """A cluster of Apache's bookies; its URI."""
        from tests.interop.peers import ApacheCluster

        path = self._folder / name
        cluster = self._stack.enter_context(ApacheCluster(self._tools, self._address, path, flags=self._fast))
        for _ in range(BOOKIES):
            cluster.add_bookie({**SETTINGS, **settings})
        return cluster.uri

    def bare_cluster(self) -> str:
        """A cluster of what does no more than it must; its URI."""
        uri = f"zk://{self._address}/bare/ledgers"
        return self._stack.enter_context(bare_cluster(self._folder / "bare", BOOKIES, uri))

    def java(self, uri: str, wire: int = 3) -> Java:
        return Java(self._program, uri, wire)


def measure(names: Sequence[str], folder: Path, runs: int, scale: float) -> Iterator[tuple[str, list[Figure]]]:
    """The figures of each part."""
    parts = {"client": client, "bookie": bookie, "single": single, "recovery": recovery, "spark": spark}
    with contextlib.ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=folder)))
        rig = Rig(path, stack)
        for name in names:
            yield name, parts[name](rig, runs, scale)


def pair(
    name: str, unit: str, runs: int, ours: Callable[[], float], peer: Callable[[], float], total: int, **more: Any
) -> Figure:
    """Ours and Apache's in turns, with their costs."""
    one, two = Clock(), Clock()
    values, others = side_by_side(runs, partial(one.timed, total, ours), partial(two.timed, total, peer))
    note = f"{more.pop('note')}; {one.median:.1f} beside {two.median:.1f} CPU-s a GB"
    return Figure(name, unit, values, peer="apache", peer_values=others, note=note, lane="bookie-rpc", **more)


SIZES = (("100b", 100, "k entries/s", 1e3), ("1kb", 1000, "MB/s", 1e3))


def client(rig: Rig, runs: int, scale: float) -> list[Figure]:
    """Our client on Apache's bookies beside Apache's client there."""
    data, total, java = VariedBytes(), int(BYTES * scale), rig.java(rig.apache)
    figures = []
    with connect(rig.apache) as bookkeeper:
        for label, size, unit, per in SIZES:
            append = pair(
                f"append_{label}",
                unit,
                runs,
                lambda size=size, per=per: append_rate(bookkeeper, data, size, total) / per,
                lambda size=size, per=per: java.append(size, total) / per,
                total,
                wanted_ratio=1.0,
                note="our client on three Apache bookies; peer: Apache's client on them",
            )
            ledger_id, entries = write_ledger(bookkeeper, data, size, total)
            read = pair(
                f"read_{label}",
                unit,
                runs,
                lambda per=per, at=ledger_id, n=entries: n / read_all(bookkeeper, at, n) / per,
                lambda per=per, at=ledger_id: java.read(at) / per,
                total,
                wanted_ratio=1.0,
                note="the same for a sequential read",
            )
            figures += [append, read]
    return figures


def bookie(rig: Rig, runs: int, scale: float) -> list[Figure]:
    """Apache's client on our bookies beside Apache's client on Apache's."""
    total = int(BYTES * scale)
    figures = []
    for wire in (3, 2):
        here, there = rig.java(rig.ours, wire), rig.java(rig.apache, wire)
        for (label, size, unit, per), wanted in zip(SIZES, (0.8, 1.0), strict=True):
            figures.append(
                pair(
                    f"java_v{wire}_append_{label}",
                    unit,
                    runs,
                    lambda size=size, per=per, java=here: java.append(size, total) / per,
                    lambda size=size, per=per, java=there: java.append(size, total) / per,
                    total,
                    wanted_ratio=wanted,
                    note="Apache's client on three of our bookies; peer: on three of Apache's",
                )
            )
    return figures


def single(rig: Rig, runs: int, scale: float) -> list[Figure]:
    """One add of Apache's client at a time. The last row is the ceiling: no bookie of ours can be faster."""
    count = max(100, int(SINGLE * scale))
    eager, bare = rig.apache_cluster("eager", {"journalMaxGroupWaitMSec": 0}), rig.bare_cluster()
    figures = []
    for wire in (3, 2):
        for name, uri, wanted, what in (
            ("default", rig.apache, 2.0, "their defaults (journalMaxGroupWaitMSec=2)"),
            ("eager", eager, 1.0, "journalMaxGroupWaitMSec=0"),
        ):
            here, there = rig.java(rig.ours, wire), rig.java(uri, wire)
            values, others = side_by_side(
                runs,
                lambda java=here: java.single(100, count),
                lambda java=there: java.single(100, count),
            )
            note = f"median of {count} adds, one at a time; peer: Apache's bookies with {what}"
            more = {"peer": "apache", "peer_values": others, "wanted_ratio": wanted, "note": note}
            figures.append(
                Figure(f"java_v{wire}_single_{name}", "ms", values, less_is_better=True, lane="bookie-rpc", **more)
            )
        figures.append(_bare(rig, bare, wire, runs, count))
    return figures


def _bare(rig: Rig, bare: str, wire: int, runs: int, count: int) -> Figure:
    there, here = rig.java(bare, wire), rig.java(rig.ours, wire)
    values, others = side_by_side(runs, lambda: there.single(100, count), lambda: here.single(100, count))
    note = (
        f"the ceiling: {count} adds to three bare Python processes, which read an add, write and sync 4 KiB and "
        "answer; peer: our bookies"
    )
    more = {"peer": "ours", "peer_values": others, "note": note}
    return Figure(f"java_v{wire}_single_bare", "ms", values, less_is_better=True, lane="bookie-rpc", **more)


def recovery(rig: Rig, runs: int, _scale: float) -> list[Figure]:
    """A ledger that Apache's client left open on Apache's bookies."""
    java = rig.java(rig.apache)

    with connect(rig.apache) as bookkeeper:
        values, others = side_by_side(
            runs,
            lambda: _recovery_s(bookkeeper, java.leave(100, RECOVERED)),
            lambda: java.recover(java.leave(100, RECOVERED)),
        )
    note = (
        f"{RECOVERED:,} entries of 100 B that Apache's client wrote and did not close; peer: Apache's client recovers"
    )
    more = {"peer": "apache", "peer_values": others, "wanted_ratio": 2.0, "note": note}
    return [Figure("recovery", "s", values, less_is_better=True, lane="bookie-rpc", **more)]


def _recovery_s(bookkeeper: BookKeeper, ledger_id: int) -> float:
    began = time.perf_counter()
    with bookkeeper.open_ledger(ledger_id, recover=True) as reader:
        took = time.perf_counter() - began
        assert reader.last_add_confirmed == RECOVERED - 1
    return took


def spark(rig: Rig, runs: int, scale: float) -> list[Figure]:
    """Spark reads a ledger of Apache's bookies beside our client alone."""
    from examples.spark_session import spark_session

    data, total = VariedBytes(), int(4 * BYTES * scale)
    with connect(rig.apache) as bookkeeper:
        ledger_id, entries = write_ledger(bookkeeper, data, 1000, total)
        session = spark_session("bench")
        try:
            frame = session.read.format("bookkeeper").option("metadataServiceUri", rig.apache)

            def rows() -> float:
                began = time.perf_counter()
                loaded = frame.load(f"ledger:{ledger_id}").select("value")
                assert loaded.selectExpr("sum(length(value))").first()[0] == entries * 1000
                return entries / (time.perf_counter() - began) / 1e3

            values, others = side_by_side(runs, rows, lambda: entries / read_all(bookkeeper, ledger_id, entries) / 1e3)
        finally:
            session.stop()
    note = "Spark reads rows of 1 KB from Apache's bookies; peer: our client reads the same ledger alone"
    more = {"peer": "client", "peer_values": others, "wanted_ratio": 0.8, "note": note}
    return [Figure("spark_read_1kb", "MB/s", values, lane="bookie-rpc", **more)]
