# SPDX-License-Identifier: Apache-2.0
"""Measures how fast the copies of a lost bookie are restored, and how much a writer slows down meanwhile.

Our client fills a cluster of four bookies, ours or Apache's, in the same way. A writer appends to it, alone at first;
then one bookie is lost, or drained. The time is counted from the first mark of an underreplicated ledger until no
record names the bookie.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.peers.apache import SETTINGS, VERSION
from benchmarks.report.figures import Run
from benchmarks.running.world import World
from bk_cli.access import Access
from bk_cli.local.children import child_environment, last_lines
from bk_cli.local.cluster import LocalCluster
from bk_core import client
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, LedgerId

BOOKIE_COUNT = 4
LEDGERS, LEDGER_BYTES, ENTRY_BYTES = 10_000, 500_000, 1_000
"""The data on the bookie that is lost. With three copies on four bookies, the cluster holds a third more."""
BUDGET = 16_000_000
"""The bytes per second that our auto-recovery may read. Apache's has no such limit."""
DELAY_S = 1
FILL_AT_ONCE = 8
BEFORE_S, WARM_S = 10.0, 3.0
FOREGROUND = (
    *("--writers", "4", "--batch", "10", "--in-flight", "1", "--entry-size", "200"),
    *("--max-bytes", "100g", "--seconds", "86400"),
)
BEGINS_S, ENDS_S = 180.0, 7200.0
_POLL_S = 0.2

Lose = Callable[["Cluster"], object]


class Cluster(Protocol):
    """A cluster of four bookies."""

    uri: str

    @property
    def ids(self) -> list[BookieId]: ...

    def kill_first(self) -> None: ...

    def healing(self) -> contextlib.AbstractContextManager[object]:
        """Run auto-recovery as a process during the block."""
        ...


class Ours:
    def __init__(self, world: World, stack: ExitStack, folder: Path) -> None:
        uri = f"zk://{world.zookeeper}/{folder.name}/ledgers"
        self._cluster = stack.enter_context(LocalCluster(folder, bookies=BOOKIE_COUNT, port=0, zookeeper_uri=uri))
        self.uri, self._log = self._cluster.uri, folder / "autorecovery.log"

    @property
    def ids(self) -> list[BookieId]:
        return [bookie.bookie_id for bookie in self._cluster.bookies]

    def kill_first(self) -> None:
        self._cluster.bookies[0].kill()

    @contextmanager
    def healing(self) -> Iterator[None]:
        options = ["--rate", str(BUDGET), "--lost-bookie-delay", f"{DELAY_S}s", "--name", "healer"]
        with self._log.open("w") as log, bk(self.uri, "autorecovery", *options, stdout=log, stderr=log) as process:
            while "ready healer" not in self._log.read_text():
                if process.poll() is not None:
                    raise BookKeeperError("auto-recovery ended", value=last_lines(self._log))
                time.sleep(_POLL_S)
            yield


class Apaches:
    def __init__(self, world: World, stack: ExitStack, folder: Path) -> None:
        from tests.interop.jars import toolchain
        from tests.interop.java_process import FAST
        from tests.interop.peers import ApacheCluster

        made = ApacheCluster(toolchain(VERSION), world.zookeeper, folder, flags=FAST)
        self._cluster = stack.enter_context(made)
        for _ in range(BOOKIE_COUNT):
            self._cluster.add_bookie(SETTINGS)
        self.uri = self._cluster.uri

    @property
    def ids(self) -> list[BookieId]:
        return [bookie.bookie_id for bookie in self._cluster.bookies]

    def kill_first(self) -> None:
        self._cluster.bookies[0].kill()

    def healing(self) -> contextlib.AbstractContextManager[object]:
        settings = {"lostBookieRecoveryDelay": DELAY_S, "openLedgerRereplicationGracePeriod": 30_000}
        return self._cluster.autorecovery(settings)


Side = Callable[[World, ExitStack, Path], Cluster]


@contextmanager
def bk(uri: str, *arguments: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command of ours, and interrupt it at the end of the block."""
    command = [sys.executable, "-m", "bk_cli.main", "-v", *arguments, "--metadata-service-uri", uri]
    process = subprocess.Popen(command, text=True, env=child_environment(), **streams)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Foreground:
    """A run of ``bk bench``: a few writers, each of which waits for its acks."""

    def __init__(self, stack: ExitStack, uri: str) -> None:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = stack.enter_context(bk(uri, "bench", "--json", *FOREGROUND, **streams))
        self._seconds: list[tuple[float, int]] = []  # (time, entries of this second)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said["part"] == "second":
                self._seconds.append((time.monotonic(), said["entries"]))

    def rate(self, begin_s: float, end_s: float) -> float:
        """Return the entries per second between these moments."""
        if self._process.poll() is not None:
            raise BookKeeperError("the writer in the foreground ended", value=f"code {self._process.returncode}")
        return sum(entries for at, entries in self._seconds if begin_s < at <= end_s) / (end_s - begin_s)


@dataclass(frozen=True, slots=True)
class Healed:
    seconds: float
    copied_bytes: int
    before: float
    meanwhile: float

    def as_run(self) -> Run:
        """Return the per cent of the budget, and of the writer's rate before."""
        share = self.copied_bytes / self.seconds / BUDGET
        return Run((100 * share, 100 * self.meanwhile / self.before))


def heals(side: Side, lose: Lose) -> Callable[[World], Callable[[], Run]]:
    def prepare(world: World) -> Callable[[], Run]:
        return lambda: _heal(world, side, lose).as_run()

    return prepare


def killed(cluster: Cluster) -> None:
    cluster.kill_first()


def drained(cluster: Cluster) -> None:
    """Order a drain, and return once it is ordered; the workers go on. The message tells an accepted order from a
    refusal."""
    arguments = [sys.executable, "-m", "bk_cli.main", "bookie", "drain", cluster.ids[0], "--wait", "0s"]
    command = [*arguments, "--metadata-service-uri", cluster.uri]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    if "the drain goes on" not in done.stderr:
        raise BookKeeperError("the drain was refused", value=done.stderr)


def _heal(world: World, side: Side, lose: Lose) -> Healed:
    folder = world.folder / f"heal-{time.monotonic_ns()}"
    folder.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cluster = side(world, stack, folder)
        store = stack.enter_context(Access(cluster.uri).store())
        named = asyncio.run(_fill(world, cluster.uri, cluster.ids[0]))
        before_s = max(3.0, BEFORE_S * min(1.0, world.scale * 10))
        writer = Foreground(stack, cluster.uri)
        time.sleep(WARM_S + before_s)
        alone_s = time.monotonic()
        before = writer.rate(alone_s - before_s, alone_s)
        stack.enter_context(cluster.healing())
        time.sleep(WARM_S)  # by now it is elected, and has checked everything once
        lose(cluster)
        began_s = _wait_for(lambda: next(store.list_underreplicated(), None) is not None, BEGINS_S)
        ended_s = _wait_for(_nobody_names(store, named, cluster.ids[0]), ENDS_S)
        meanwhile = writer.rate(began_s, max(ended_s, began_s + 2))
    return Healed(ended_s - began_s, len(named) * LEDGER_BYTES, before, meanwhile)


def _nobody_names(store: MetadataStore, ledgers: list[LedgerId], bookie_id: BookieId) -> Callable[[], bool]:
    """Return a function that says whether no record names the bookie. A record is read again only while it names the
    bookie."""
    left = deque(ledgers)

    def is_over() -> bool:
        while left:
            ensembles = (fragment.ensemble for fragment in store.read_ledger(left[0], fresh=True).value.fragments)
            if any(bookie_id in ensemble for ensemble in ensembles):
                left.rotate(-1)
                return False
            left.popleft()
        return True

    return is_over


def _wait_for(is_so: Callable[[], bool], within_s: float) -> float:
    """Wait until ``is_so()``. Return the time of that moment."""
    until = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > until:
            raise BookKeeperError("a bookie's copies are not put back", value=f"after {within_s:g} s")
        time.sleep(_POLL_S)
    return time.monotonic()


async def _fill(world: World, uri: str, first: BookieId) -> list[LedgerId]:
    """Write closed ledgers until enough of them are on the bookie. Return the ledgers that are on it."""
    rows = LEDGER_BYTES // ENTRY_BYTES
    lengths = np.full(rows, ENTRY_BYTES, dtype=np.uint32)
    wanted, named, turns = world.scaled(LEDGERS), list[LedgerId](), asyncio.Semaphore(FILL_AT_ONCE)

    async def one(bookkeeper: client.BookKeeper) -> None:
        async with turns:
            if len(named) >= wanted:
                return
            ledger = await bookkeeper.create_ledger()
            await ledger.append_batch(EntryBatch(lengths=lengths, payload=world.data.take(LEDGER_BYTES)))
            await ledger.close()
            if first in ledger.metadata.last_fragment.ensemble:
                named.append(ledger.ledger_id)

    async with await client.connect(uri) as bookkeeper:
        while len(named) < wanted:
            await asyncio.gather(*(one(bookkeeper) for _ in range(4 * FILL_AT_ONCE)))
    return named
