# SPDX-License-Identifier: Apache-2.0
"""Group ``tls``: what TLS and grants cost: appends over TLS, a grant that is checked, a storm of handshakes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from benchmarks.figures import elapsed
from benchmarks.groups.append import APACHE_BYTES, BYTES, QUORUM, append_all, single_ms
from benchmarks.measurement import Measurement, Peer, Run
from benchmarks.peers import apache
from benchmarks.peers.raw_server import REQUEST, SYNC
from benchmarks.storming import storms
from benchmarks.world import World
from bk_cli.children import child_environment
from bk_core import client

NEEDED_BYTES = 7e9
ENTRY_BYTES = 1_000
CLIENTS, SESSIONS, ROUNDS = 1_000, 2_000, 200


def over_tls(world: World) -> Callable[[], Run]:
    bookkeeper, data, total = world.secured.client(), world.data, world.scaled(BYTES)

    def run() -> Run:
        with bookkeeper.create_ledger() as ledger:
            seconds = elapsed(lambda: append_all(ledger, data, ENTRY_BYTES, total))
            return Run.of(ledger.length / seconds, ledger.length)

    return run


def java_over_tls(world: World) -> Callable[[], Run]:
    java, total = world.apache.secured_client(), world.scaled(APACHE_BYTES[ENTRY_BYTES], ENTRY_BYTES)
    return lambda: java.append(ENTRY_BYTES, total)


def bare_over_tls(world: World) -> Callable[[], Run]:
    return partial(world.raw_tls.append, ENTRY_BYTES, world.scaled(BYTES))


# --- grants ---


def grant_checked(world: World) -> Callable[[], Run]:
    count = str(world.scaled(SESSIONS, 100))
    return lambda: Run(tuple(_printed("check", count)))


def calls_of_secure(world: World) -> Callable[[], Run]:
    rounds = str(world.scaled(ROUNDS, 10))
    return lambda: Run(tuple(_printed("calls", rounds)[:2]))


def _printed(*arguments: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.granting", *arguments]
    done = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True, check=True)
    return list(map(float, done.stdout.split()))


# --- a storm of handshakes ---


def storm(world: World) -> Callable[[], Run]:
    """Seconds, and the longest of the single appends of another client on this bookie meanwhile, ms."""
    bookkeeper = world.secured.client()

    async def create(bookkeeper: client.BookKeeper) -> client.LedgerWriter:
        writer = await bookkeeper.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        await single_ms(writer, 20)
        return writer

    writer = bookkeeper.begin(create).result()
    (bookie,) = writer.metadata.last_fragment.ensemble
    where = "bookie", world.secured.uri, world.lane, bookie
    process = world.during.enter_context(storms(world.scaled(CLIENTS, 10), world.secured.client_files.pem, *where))

    async def appends(over: threading.Event) -> float:
        longest = 0.0
        while not over.is_set():
            longest = max(longest, *await single_ms(writer, 1))
        return longest

    def run() -> Run:
        over = threading.Event()
        longest = bookkeeper.begin(lambda _: appends(over))
        seconds = _stormed(process)
        over.set()
        return Run((seconds, longest.result()))

    return run


def bare_storm(world: World) -> Callable[[], Run]:
    """Beside a round trip and a synced block on a connection that was there before."""
    port = world.raw_tls.ports[0]
    sock = world.raw_tls.connection(port)
    where = "bare", str(port)
    process = world.during.enter_context(storms(world.scaled(CLIENTS, 10), world.secured.client_files.pem, *where))

    def syncs(over: threading.Event, longest: list[float]) -> None:
        while not over.is_set():
            began = time.perf_counter()
            sock.sendall(REQUEST.pack(SYNC, 0))
            sock.recv(4)
            longest.append((time.perf_counter() - began) * 1e3)

    def run() -> Run:
        over, took_ms = threading.Event(), list[float]()
        thread = threading.Thread(target=syncs, args=(over, took_ms))
        thread.start()
        seconds = _stormed(process)
        over.set()
        thread.join()
        return Run((seconds, max(took_ms)))

    return run


def _stormed(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    return float(process.stdout.readline())


BARE = (
    "raw: one process sends messages of 1 MB over TLS, by Python's ssl, to three, which receive into an aligned "
    "buffer, write with O_DIRECT and fdatasync, and ack; no headers, checks, digests or index"
)
MEASUREMENTS = (
    Measurement(
        ("append_1kb_tls",), "MB/s", over_tls, per=1e6,
        note=f"append_batch of 1 MB over mutual TLS 1.3, {QUORUM}",
        peers=(
            Peer("apache", java_over_tls, (2,), note=f"{apache.NOTE}, both with TLS by netty-tcnative (OpenSSL)"),
            Peer("raw", bare_over_tls, (0.7,), "TLS", note=BARE),
        ),
    ),
    Measurement(
        ("grant_checked",), "µs", grant_checked, wanted=(20,), less_is_better=True, disk_bytes=0,
        note=f"what a session takes more of a processor in mode secure than in open on the stream of a bookie: its "
        f"grant is parsed, verified and looked up; of {SESSIONS:,} sessions with a grant each",
    ),
    Measurement(
        ("secure_calls_entry", "secure_calls_frame"), "calls", calls_of_secure, wanted=(0, 0), less_is_better=True,
        disk_bytes=0, once=True,
        note="calls of our functions, and from them of those in C, that mode secure takes more than open over TLS, by "
        "client and bookie, of an entry that is waited for, and of a frame of 1 MB, once the session is attached",
    ),
    Measurement(
        ("handshakes_seconds", "handshakes_stall"), "s, ms", storm, wanted=(10, 100), less_is_better=True,
        disk_bytes=0,
        note=f"{CLIENTS:,} clients of one process connect to one bookie at once, by mutual TLS 1.3, until each has the "
        "answer to a first question; and the longest single append meanwhile of another client to this bookie alone",
        peers=(
            Peer("raw", bare_storm, (None, None), "TLS",
                 note="raw: as many connections of asyncio and ssl to a Python process with a thread for each; and the "
                 "longest round trip with a synced block meanwhile"),
        ),
    ),
)  # fmt: skip
