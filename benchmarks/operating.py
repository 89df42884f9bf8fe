# SPDX-License-Identifier: Apache-2.0
"""What an operator waits for: commands of ``bk`` as whole processes, an audit, a scrape; and what counting costs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from statistics import median
from typing import Any

from benchmarks.measurement import Run
from benchmarks.world import World
from bk_cli.children import child_environment
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, ledger_key
from bk_core.entries.frame import encode_frame
from bk_core.errors import BookKeeperError
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieServiceInfo, DigestType, Fragment, LedgerId, LedgerMetadata
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import Caller, NewSession
from bk_core.wire.lane import AttachMode

LEDGERS, BOOKIES, HUNG = 100_000, 100, 10
SCRAPES, APPENDS = 20, 100
MAKERS = 16
TOGETHER = 500
"""Sessions of one bookie at a time."""


def _whole_command(uri: str, *arguments: str) -> Run:
    """Seconds, the start of the interpreter included."""
    command = [sys.executable, "-m", "bk_cli.main", *arguments, "--metadata-service-uri", uri]
    began = time.perf_counter()
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise BookKeeperError(f"bk {' '.join(arguments)} ended with {done.returncode}", value=done.stderr[-2000:])
    return Run.of(took)


@contextmanager
def _hangs(pid: int | None) -> Iterator[None]:
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def _operated(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ``operated.py``, once it is ready; ended afterwards."""
    command = [sys.executable, "-m", "benchmarks.operated", *arguments]
    with subprocess.Popen(command, env=child_environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", f"benchmarks.operated {arguments} ended before it was ready"
            yield process
        finally:
            process.terminate()
            process.wait(120)


def explaining(world: World) -> Callable[[], Run]:
    with world.bookkeeper.create_ledger() as ledger:
        ledger.append(b"entry")
    world.during.enter_context(_hangs(world.cluster.bookies[0].pid))
    return lambda: _whole_command(world.cluster.uri, "ledger", "explain", str(ledger.ledger_id))


def listing(world: World) -> Callable[[], Run]:
    uri = f"zk://{world.zookeeper}/listed/ledgers"
    with closing(open_store(uri)) as store:
        store.initialize_cluster()
    count, hung = world.scaled(BOOKIES, 4), world.scaled(HUNG, 1)
    for name, number in (("well", count - hung), ("hung", hung)):
        arguments = "bookies", uri, str(world.folder / f"listed-{name}"), str(number)
        process = world.during.enter_context(_operated(*arguments))
    world.during.enter_context(_hangs(process.pid))
    return lambda: _whole_command(uri, "bookie", "list")


# --- many ledgers ---


def auditing(world: World) -> Callable[[], Run]:
    """Records of ledgers on a hundred bookies, of which one is not there."""
    uri = f"zk://{world.zookeeper}/audited/ledgers"
    store = world.during.enter_context(closing(open_store(uri)))
    store.initialize_cluster()
    names = [f"b{number:02}" for number in range(BOOKIES)]
    for name in names:
        store.write_cookie(name, b"4\n", None)
        if name != names[0]:
            store.register_bookie(BookieServiceInfo(name))
    ledgers = world.scaled(LEDGERS, 100)
    with ThreadPoolExecutor(MAKERS) as makers:
        list(makers.map(lambda number: _make(store, number, names), range(ledgers)))

    def run() -> Run:
        command = [sys.executable, "-m", "benchmarks.operated", "audit", uri]
        done = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True, check=True)
        seconds, peak_bytes, marked = map(float, done.stdout.split())
        assert marked == sum(names[0] in _ensemble(number, names) for number in range(ledgers))
        return Run((seconds, peak_bytes / 1e6))

    return run


def _ensemble(number: int, names: list[str]) -> tuple[str, ...]:
    return tuple(names[(number + step) % len(names)] for step in (0, 7, 31))


def _make(store: MetadataStore, number: int, names: list[str]) -> None:
    record = LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        fragments=(Fragment(0, _ensemble(number, names)),),
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    store.create_ledger(record, number)


def scraping(world: World) -> Callable[[], Run]:
    """A ledger needs no record to be on a bookie, which looks for those that have none only after an hour."""
    with closing(open_store(world.cluster.uri)) as store:
        bookie = next(iter(store.writable_bookies().values()))
        asyncio.run(_hold(bookie, store.instance_id(), world.scaled(LEDGERS, 100)))
    admin = bookie.endpoint("http")
    assert admin is not None
    url = f"http://{admin.host}:{admin.port}/metrics"

    def run() -> Run:
        took_ms = []
        for _ in range(SCRAPES):
            began = time.perf_counter()
            with urllib.request.urlopen(url, timeout=10) as answer:
                text = answer.read()
            took_ms.append(1000 * (time.perf_counter() - began))
        assert b"bookie_ledgers_count" in text
        return Run((median(took_ms), max(took_ms)))

    return run


class _Acks:
    """Counts down, to its event."""

    def __init__(self, number: int) -> None:
        self._left, self.done = number, asyncio.Event()

    def on_acked(self, session: int, frames: int) -> None:
        self._left -= 1
        if not self._left:
            self.done.set()

    def on_ended(self, session: int, frames: int, reason: Any, message: str) -> None:
        raise AssertionError(f"a session ended: {reason} {message}")

    def on_broken(self, session: int, message: str) -> None:
        raise AssertionError(f"a session broke: {message}")


async def _hold(bookie: BookieServiceInfo, instance_id: str, ledgers: int) -> None:
    """An entry of each of so many ledgers on the bookie."""
    transport, first = LaneTransport(Caller(instance_id, client="bench")), 1 << 40
    transport.update_bookies([bookie])
    link = transport.link(bookie.bookie_id)
    for at in range(0, ledgers, TOGETHER):
        some = range(at, min(at + TOGETHER, ledgers))
        acks = _Acks(len(some))
        for number in some:
            link.attach(NewSession(first + number, ledger_key(b""), AttachMode.WRITE, number + 1, acks))
            link.send(number + 1, _frame(first + number, number + 1))
        async with asyncio.timeout(60):
            await acks.done.wait()
        for number in some:
            link.detach(number + 1)
    await transport.close()


def _frame(ledger_id: LedgerId, session: int) -> bytearray:
    return encode_frame(
        EntryBatch.from_list([b"entry"]),
        digester=Digester(DigestType.CRC32C, b"", ledger_id),
        ledger_id=ledger_id,
        first_entry_id=0,
        lac=-1,
        length_before=0,
        session=session,
    )


def counting(world: World) -> Callable[[], Run]:
    appends = str(world.scaled(APPENDS, 20))

    def run() -> Run:
        command = [sys.executable, "-m", "benchmarks.operated", "count", appends]
        done = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True, check=True)
        bytecodes, bytecode_ns, append_ns = map(float, done.stdout.split())
        return Run.of(100 * bytecodes * bytecode_ns / append_ns)

    return run
