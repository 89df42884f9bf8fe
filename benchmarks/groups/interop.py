# SPDX-License-Identifier: Apache-2.0
"""Group ``interop``: our client on Apache's bookies, Apache's client on ours, beside Apache's client on Apache's."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from benchmarks.groups.append import append_all
from benchmarks.groups.read import filled, read_all
from benchmarks.measurement import Measurement, Peer, Prepare
from benchmarks.peers import apache
from benchmarks.peers.apache import Apache
from benchmarks.report.figures import Run, elapsed
from benchmarks.running.processes import APACHES_BOOKIES, APACHES_CLIENT, BOOKIES, CLIENT
from benchmarks.running.world import World
from bk_core.blocking import BookKeeper, connect

BYTES = 100e6
NEEDED_BYTES = 15e9
SINGLES = 1_000
ENTRIES = 100_000


def client_on_theirs(world: World) -> BookKeeper:
    return world.stack.enter_context(connect(world.of(Apache).uri))


def append(size: int) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        bookkeeper, total = client_on_theirs(world), world.scaled(BYTES)

        def run() -> Run:
            with bookkeeper.create_ledger() as ledger:
                return Run.of(total / elapsed(lambda: append_all(ledger, world.data, size, total)), total)

        return run

    return prepare


def read(size: int) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        bookkeeper = client_on_theirs(world)
        return partial(read_all, bookkeeper, filled(bookkeeper, world, size, world.scaled(BYTES)))

    return prepare


def java_append(size: int, wire: int = 3, *, on_ours: bool = False) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        java = world.of(Apache).client(world.cluster.uri if on_ours else None, wire)
        return partial(java.append, size, world.scaled(BYTES))

    return prepare


def java_read(size: int) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        java = world.of(Apache).client()
        return partial(java.read, java.filled(size, world.scaled(BYTES)))

    return prepare


def java_single(wire: int, where: str) -> Prepare:
    """Measure only the medians of single adds."""

    def prepare(world: World) -> Callable[[], Run]:
        uri = {
            "ours": lambda: world.cluster.uri,
            "default": lambda: world.of(Apache).uri,
            "eager": lambda: world.of(Apache).eager_uri,
        }
        java = world.of(Apache).client(uri[where](), wire)
        return lambda: Run.of(java.single(100, world.scaled(SINGLES, 100)).values[0])

    return prepare


def recover(world: World) -> Callable[[], Run]:
    """Recover with our client a ledger that Apache's client left open."""
    java, bookkeeper, entries = world.of(Apache).client(), client_on_theirs(world), world.scaled(ENTRIES)

    def run() -> Run:
        ledger_id = java.leave(100, entries)
        began = time.perf_counter()
        with bookkeeper.open_ledger(ledger_id, recover=True) as reader:
            took = time.perf_counter() - began
            assert reader.last_add_confirmed == entries - 1
        return Run.of(took)

    return run


def java_recover(world: World) -> Callable[[], Run]:
    java, entries = world.of(Apache).client(), world.scaled(ENTRIES)
    return lambda: java.recover(java.leave(100, entries), entries)


def spark_read(world: World) -> Callable[[], Run]:
    """Read rows of 1 KB with Spark."""
    from examples.spark_session import spark_session

    bookkeeper, total = client_on_theirs(world), world.scaled(4 * BYTES)
    ledger_id = filled(bookkeeper, world, 1_000, total)
    session = spark_session("bench")
    world.stack.callback(session.stop)
    frame = session.read.format("bookkeeper").option("metadataServiceUri", world.of(Apache).uri)

    def run() -> Run:
        began = time.perf_counter()
        found = frame.load(f"ledger:{ledger_id}").select("value").selectExpr("sum(length(value))").first()[0]
        return Run.of(found / (time.perf_counter() - began), found)

    return run


def client_read(world: World) -> Callable[[], Run]:
    bookkeeper = client_on_theirs(world)
    return partial(read_all, bookkeeper, filled(bookkeeper, world, 1_000, world.scaled(4 * BYTES)))


LANE = "bookie-rpc"
CLIENT_ON_THEIRS, THEIRS_ON_OURS = (CLIENT, APACHES_BOOKIES), (APACHES_CLIENT, BOOKIES)
RATES = (("100b", 100, "k entries/s", 1e5), ("1kb", 1_000, "MB/s", 1e6))
MEASUREMENTS = (
    *(
        Measurement(
            (f"interop_{what}_{label}",), unit, ours(size), per=per, lane=LANE, needs="apache", kinds=CLIENT_ON_THEIRS,
            note="our client on three Apache bookies", peers=(Peer("apache", theirs(size), (1,), note=apache.NOTE),),
        )
        for label, size, unit, per in RATES
        for what, ours, theirs in (("append", append, java_append), ("read", read, java_read))
    ),
    *(
        Measurement(
            (f"java_v{wire}_append_{label}",), unit, java_append(size, wire, on_ours=True), per=per, lane=LANE,
            needs="apache", kinds=THEIRS_ON_OURS, note="Apache's client on three of our bookies",
            peers=(Peer("apache", java_append(size, wire), (wanted,), note=apache.NOTE),),
        )
        for wire in (3, 2)
        for (label, size, unit, per), wanted in zip(RATES, (0.8, 1.0), strict=True)
    ),
    *(
        Measurement(
            (f"java_v{wire}_single_{where}",), "ms", java_single(wire, "ours"), lane=LANE, needs="apache",
            less_is_better=True, note="Apache's client on three of our bookies, median of adds one at a time",
            peers=(Peer("apache", java_single(wire, where), (wanted,), note=f"{apache.NOTE}; {how}"),),
        )
        for wire in (3, 2)
        for where, wanted, how in (("default", 2, "their defaults"), ("eager", 1, "journalMaxGroupWaitMSec=0"))
    ),
    Measurement(
        ("interop_recovery",), "s", recover, lane=LANE, needs="apache", less_is_better=True,
        note=f"our client recovers {ENTRIES:,} entries of 100 B that Apache's client wrote and did not close",
        peers=(Peer("apache", java_recover, (2,), note=apache.NOTE),),
    ),
    Measurement(
        ("interop_spark_read_1kb",), "MB/s", spark_read, per=1e6, lane=LANE, needs="apache",
        kinds=(APACHES_BOOKIES,), note="Spark reads rows of 1 KB from Apache's bookies",
        peers=(Peer("apache", client_read, (0.8,), "bookies", note="our client reads such a ledger alone",
                    kinds=CLIENT_ON_THEIRS),),
    ),
)  # fmt: skip
