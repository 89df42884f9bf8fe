# SPDX-License-Identifier: Apache-2.0
"""Group ``tls``: appends over mutual TLS."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.groups.append import APACHE_BYTES, BYTES, QUORUM, append_all
from benchmarks.measurement import Measurement, Peer
from benchmarks.peers import apache
from benchmarks.peers.apache import Apache
from benchmarks.peers.raw import RawTls
from benchmarks.report.figures import Run, elapsed
from benchmarks.running.secured import Secured
from benchmarks.running.world import World

NEEDED_BYTES = 7e9
ENTRY_BYTES = 1_000


def over_tls(world: World) -> Callable[[], Run]:
    bookkeeper, data, total = world.of(Secured).client(), world.data, world.scaled(BYTES)

    def run() -> Run:
        with bookkeeper.create_ledger() as ledger:
            seconds = elapsed(lambda: append_all(ledger, data, ENTRY_BYTES, total))
            return Run.of(ledger.length / seconds, ledger.length)

    return run


def java_over_tls(world: World) -> Callable[[], Run]:
    java, total = world.of(Apache).secured_client(), world.scaled(APACHE_BYTES[ENTRY_BYTES], ENTRY_BYTES)
    return lambda: java.append(ENTRY_BYTES, total)


def bare_over_tls(world: World) -> Callable[[], Run]:
    return partial(world.of(RawTls).append, ENTRY_BYTES, world.scaled(BYTES))


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
)  # fmt: skip
