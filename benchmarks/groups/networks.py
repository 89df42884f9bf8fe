# SPDX-License-Identifier: Apache-2.0
"""Group ``networks``: appends and reads over emulated networks: 1 Gbit/s, 1 ms away, 1 % of the packets lost."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.groups.read import into_page_cache
from benchmarks.measurement import Measurement, Peer, Prepare
from benchmarks.networks.network import FAR, LAN, LOSSY, Link, Network
from benchmarks.peers import apache
from benchmarks.report.figures import Run
from benchmarks.running.processes import CLIENT
from benchmarks.running.world import World

NEEDED_BYTES = 18e9
SIZE, ROWS, BATCHES_IN_FLIGHT = 1_000, 1_000, 16
SINGLES = 500
ANSWER_S = 600.0
"""How long a command of the clients may take, in seconds."""
MEGABYTES = {LAN: 150e6, FAR: 150e6, LOSSY: 50e6}
"""The payload bytes of a run, by link. At 1 Gbit/s a run takes a few seconds, because the client sends each byte to
three bookies."""


def opened(world: World, link: Link) -> Any:
    """Start a process of our client at the end of a cable of this kind, with an open ledger. It ends with the
    measurement."""
    from tests.interop.java_process import Program

    network, log_path = world.of(Network), world.folder / f"clients-{time.monotonic_ns()}.log"
    network.use(link)
    uri = network.bookies.uri
    with world.processes.born(CLIENT), network.client.entered():
        program = Program("clients", [sys.executable, "-m", "benchmarks.networks.clients"], log_path)
    world.during.enter_context(program)
    program.call("open", uri=uri, lane=world.lane)
    return program


def appended(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        program, count = opened(world, link), world.scaled(MEGABYTES[link] / SIZE / ROWS, BATCHES_IN_FLIGHT)
        load = {"count": count, "rows": ROWS, "size": SIZE, "in_flight": BATCHES_IN_FLIGHT}

        def run() -> Run:
            seconds, total = program.call("append", **load, within_s=ANSWER_S)["seconds"], count * ROWS * SIZE
            return Run((total / seconds,), total)

        return run

    return prepare


def single(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        program, count = opened(world, link), world.scaled(SINGLES, 50)

        def run() -> Run:
            done = program.call("single", count=count, size=100, within_s=ANSWER_S)
            return Run((done["p50"], done["p99"]))

        return run

    return prepare


def read(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        program, count = opened(world, link), world.scaled(MEGABYTES[link] / SIZE / ROWS, BATCHES_IN_FLIGHT)
        program.call("append", count=count, rows=ROWS, size=SIZE, in_flight=BATCHES_IN_FLIGHT, within_s=ANSWER_S)
        ledger_id = program.call("close")["ledger"]
        into_page_cache(world.of(Network).bookies.folder)

        def run() -> Run:
            done = program.call("read", ledger_id=ledger_id, within_s=ANSWER_S)
            return Run((done["bytes"] / done["seconds"],), done["bytes"])

        return run

    return prepare


def java_appended(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        world.of(Network).use(link)
        java, total = world.of(Network).java(), world.scaled(MEGABYTES[link], SIZE)
        return lambda: java.append(SIZE, total)

    return prepare


def java_single(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        world.of(Network).use(link)
        java = world.of(Network).java()
        return lambda: java.single(100, world.scaled(SINGLES, 50))

    return prepare


def java_read(link: Link) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        world.of(Network).use(link)
        java = world.of(Network).java()
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


MEASUREMENTS = tuple(networked())
