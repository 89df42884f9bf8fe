# SPDX-License-Identifier: Apache-2.0
"""Group ``growth``: what a gigabyte costs with more ledgers, clients and bookies, and rates on networks that are slow,
far or lossy. ``benchmarks/networks/model.py`` makes a model of the first ones and says what a cluster needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.groups.read import into_page_cache
from benchmarks.measurement import Measurement, Peer, Prepare, Run
from benchmarks.networks.model import CYCLE, CYCLE_BYTES
from benchmarks.networks.network import FAR, LAN, LOSSY, Link
from benchmarks.networks.points import ANSWER_S, READS, Point, cycles, started
from benchmarks.peers import apache
from benchmarks.world import World

NEEDED_BYTES = 18e9
CYCLES, CYCLES_AT_ONCE = 400, 8
SIZE, ROWS, BATCHES_IN_FLIGHT = 1_000, 1_000, 16
SINGLES = 500
MEGABYTES = {LAN: 150e6, FAR: 150e6, LOSSY: 50e6}
"""Of a run: a few seconds of 1 Gbit/s, through which each byte goes three times."""

POINTS = (
    *(Point(f"ledgers_{count}", ledgers=count, total=150e6) for count in (1, 10, 1_000, 10_000)),
    *(Point(f"clients_{count}", clients=count, ledgers=count) for count in (10, 100)),
    *(Point(f"bookies_{count}", bookies=count, ledgers=10, total=300e6) for count in (5, 9)),
    Point("batches_100b", rows=10_000, size=100, in_flight=16, total=400e6),
    Point("batches_1kb", rows=1_000, size=1_000, in_flight=16, total=1_000e6),
    Point("batches_300b", rows=200, size=300, in_flight=50, total=200e6),
    Point("batches_200b", rows=64, size=200, in_flight=100, total=60e6),
    Point("batches_500b", rows=40, size=500, in_flight=100, total=100e6),
    Point("singles_100b", rows=1, size=100, total=4e6),
    Point("few_in_flight", in_flight=4, total=60e6),
    Point("mixed", clients=30, ledgers=300, rows=20, size=300, in_flight=60, total=40e6),
    Point("qw_1", write_quorum=1, rows=1_000, size=1_000, in_flight=16, total=1_500e6),
    Point("qw_2", write_quorum=2, rows=1_000, size=1_000, in_flight=16, total=1_000e6),
    Point("read_100b", rows=10_000, size=100, in_flight=16, total=300e6, reads=True),
    Point("read_300b", rows=3_000, size=300, in_flight=16, total=300e6, reads=True),
    Point("read_1kb", rows=1_000, size=1_000, in_flight=16, total=400e6, reads=True),
)


def told(point: Point) -> str:
    """What is measured there."""
    if point.reads:
        return f"one ledger, entries of {point.size} B, read {READS} times from the page cache"
    many = f"{point.clients} clients, {point.ledgers:,} ledgers, {point.bookies} bookies, Qw {point.write_quorum}"
    return f"{many}; {point.in_flight} batches of {point.rows:,} entries of {point.size} B in flight, a frame each"


# --- networks ---


def appended(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        program, count = connected(world, link), world.scaled(MEGABYTES[link] / SIZE / ROWS, BATCHES_IN_FLIGHT)
        program.call("open", ledgers=1, quorums=[3, 3, 2])
        load = {"count": count, "rows": ROWS, "size": SIZE, "in_flight": BATCHES_IN_FLIGHT}

        def run() -> Run:
            before, total = world.network.client.wire_bytes(), count * ROWS * SIZE
            seconds = program.call("append", **load, within_s=ANSWER_S)["seconds"]
            wire = world.network.client.wire_bytes() - before
            return Run((total / seconds,), total, {"wire_per_byte": wire / total})

        return run

    return prepare


def single(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        program, count = connected(world, link), world.scaled(SINGLES, 50)
        program.call("open", ledgers=1, quorums=[3, 3, 2])

        def run() -> Run:
            done = program.call("single", count=count, size=100, within_s=ANSWER_S)
            return Run((done["p50"], done["p99"]))

        return run

    return prepare


def read(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        program, count = connected(world, link), world.scaled(MEGABYTES[link] / SIZE / ROWS, BATCHES_IN_FLIGHT)
        program.call("open", ledgers=1, quorums=[3, 3, 2])
        program.call("append", count=count, rows=ROWS, size=SIZE, in_flight=BATCHES_IN_FLIGHT, within_s=ANSWER_S)
        (ledger_id,) = program.call("close")["ledgers"]
        into_page_cache(world.network.bookies.folder)

        def run() -> Run:
            done = program.call("read", ledger_id=ledger_id, within_s=ANSWER_S)
            return Run((done["bytes"] / done["seconds"],), done["bytes"])

        return run

    return prepare


def connected(world: World, link: Link) -> Any:
    """A client of ours at the end of such a cable."""
    world.network.use(link)
    uri, program = world.network.bookies.uri, started(world, world.network.client)
    program.call("connect", uri=uri, lane=world.lane, clients=1, frame_bytes=1 << 20)
    return program


def java_appended(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        world.network.use(link)
        java, total = world.network.java(), world.scaled(MEGABYTES[link], SIZE)
        return lambda: java.append(SIZE, total)

    return prepare


def java_single(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        world.network.use(link)
        java = world.network.java()
        return lambda: java.single(100, world.scaled(SINGLES, 50))

    return prepare


def java_read(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        world.network.use(link)
        java = world.network.java()
        ledger_id = java.filled(SIZE, world.scaled(MEGABYTES[link], SIZE * ROWS))
        return lambda: java.read(ledger_id)

    return prepare


CABLES = {
    LAN: "client and bookies in networks of their own, a cable of 1 Gbit/s each",
    FAR: "the same, the client 1 ms away, there and back",
    LOSSY: "the same, the client 1 ms away, and each direction loses 1 % of the packets",
}


def networked() -> Iterator[Measurement]:
    for link, note in CABLES.items():
        said = f"{note}; TCP with reno"
        yield Measurement(
            (f"{link.name}_append",), "MB/s", appended(link), per=1e6, note=f"{said}; append_batch of 1 MB",
            peers=(Peer("apache", java_appended(link), (None,), note=f"{apache.NOTE}; on the same cables"),),
        )  # fmt: skip
        yield Measurement(
            (f"{link.name}_single_p50", f"{link.name}_single_p99"), "ms", single(link), less_is_better=True, note=said,
            peers=(Peer("apache", java_single(link), (None, None), note=f"{apache.NOTE}; on the same cables"),),
        )  # fmt: skip
        yield Measurement(
            (f"{link.name}_read",), "MB/s", read(link), per=1e6, note=said,
            peers=(Peer("apache", java_read(link), (None,), note=f"{apache.NOTE}; on the same cables"),),
        )  # fmt: skip


MEASUREMENTS = (
    *(Measurement((point.name,), "MB/s", point, per=1e6, note=told(point)) for point in POINTS),
    Measurement(
        (CYCLE,), "ledgers/s", cycles(CYCLES, CYCLES_AT_ONCE),
        note=f"created, given an entry of {CYCLE_BYTES} B, closed; {CYCLES_AT_ONCE} at a time",
    ),
    *networked(),
)  # fmt: skip
