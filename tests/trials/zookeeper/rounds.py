# SPDX-License-Identifier: Apache-2.0
"""Restarts of ZooKeeper, the calls that run during them, and those that follow when it is back."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bk_cli.local.cluster import LEDGERS_ROOT, LocalCluster
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.blocking import BookKeeper, LedgerWriter, connect
from bk_core.errors import BookKeeperError
from tests.kit.metadata_worlds import tree_of
from tests.kit.zookeeper_proxy import ZooKeeperProxy
from tests.trials.harness import Figures

HOST = "127.0.0.1"
BOOKIES = 3
ENTRIES = 50
PAUSE_S = 0.05
REGISTERED_S = 10.0
FINISH_S = 60.0
MUTE_MAX = 1_000_000


class Place:
    """ZooKeeper behind a proxy that can be mute, three bookies as processes, and a client; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zookeeper = ZooKeeperServer(durable=False)  # it is killed, but the machine stays up, so it needs no syncs
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Place:
        with contextlib.ExitStack() as undo:
            undo.callback(self._zookeeper.stop)
            self._zookeeper.start(self._path / "zookeeper")
            self._proxy = ZooKeeperProxy(HOST, self._zookeeper.port)
            undo.callback(self._proxy.close)
            self.uri = f"zk://{HOST}:{self._proxy.port}{LEDGERS_ROOT}"
            cluster = LocalCluster(self._path / "cluster", bookies=BOOKIES, port=0, zookeeper_uri=self.uri)
            self.bookies = undo.enter_context(cluster).bookies
            self.client: BookKeeper = undo.enter_context(connect(self.uri))
            self._closing = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def deadline_s(self) -> float:
        return self.client.config.metadata_timeout_s

    def kill_zookeeper(self) -> None:
        """Kill the server itself with SIGKILL. It is a child of the wrapper that ends it together with this process."""
        wrapper = self._zookeeper._process
        assert wrapper is not None
        for pid in Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        self._zookeeper.stop()

    def stop_zookeeper(self) -> None:
        self._zookeeper.stop()

    def be_mute(self, is_mute: bool) -> None:
        """Set whether new connections are accepted and never answered, as by a server that is starting."""
        self._proxy.mute_next(MUTE_MAX if is_mute else 0)

    def start_zookeeper(self) -> None:
        self._zookeeper.start(self._path / "zookeeper", self._zookeeper.port)

    def sessions(self) -> dict[str, int]:
        """Return the session of each registered bookie."""
        tree, found = tree_of(self.client.store), {}
        for bookie in self.bookies:
            stat = tree.exists(f"{LEDGERS_ROOT}/available/{bookie.bookie_id}")
            if stat is not None:
                found[bookie.bookie_id] = stat.owner
        return found


@dataclass(frozen=True, slots=True)
class Call:
    kind: str
    began: float
    ended: float
    error: str


class Calls:
    """The calls that a client makes all the time, whether ZooKeeper is there or not; a context manager that ends
    them."""

    def __init__(self, world: Place) -> None:
        self._world, self._client = world, world.client
        self._stop = threading.Event()
        self._change = threading.Condition()
        self._done: list[Call] = []
        self._begun: dict[str, float] = {}  # the time of the last call of each kind
        self._threads = [
            threading.Thread(target=self._go_on, args=arguments, daemon=True)
            for arguments in (
                ("metadata read, going on", self._read_metadata),
                ("ledger written, going on", self._write_ledger),
                ("append, going on", self._append),
            )
        ]

    def __enter__(self) -> Calls:
        self._known = self.write()
        self._long: LedgerWriter = self._client.create_ledger(ensemble_size=BOOKIES)
        self._appended = 0
        for thread in self._threads:
            thread.start()
        self.wait_begun(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(FINISH_S)

    def wait_begun(self, after: float) -> bool:
        """Wait until a call of each kind has begun after this moment. All earlier calls have ended then."""
        with self._change:
            return self._change.wait_for(
                lambda: len(self._begun) == len(self._threads) and min(self._begun.values()) >= after, FINISH_S
            )

    def take(self) -> list[Call]:
        """Return the calls that have ended since the last time."""
        with self._change:
            done, self._done = self._done, []
        return done

    def finish(self) -> list[str]:
        """End the calls, and read the long ledger. Return its problems."""
        self.__exit__()
        if any(thread.is_alive() for thread in self._threads):
            return [f"a call did not end within {FINISH_S:.0f} s"]
        self._long.close()
        found = self.read(self._long.ledger_id)
        wanted = [b"%d" % number for number in range(self._appended)]
        return [] if found[: len(wanted)] == wanted else [f"{len(found)} entries of {len(wanted)} acknowledged ones"]

    def write(self) -> int:
        """Write a ledger of some entries, and close it. Return its id."""
        with self._client.create_ledger(ensemble_size=BOOKIES) as ledger:
            for number in range(ENTRIES):
                ledger.append_nowait(b"%d" % number)
            ledger.flush()
        return ledger.ledger_id

    def read(self, ledger_id: int) -> list[bytes]:
        with self._client.open_ledger(ledger_id, recover=False) as reader:
            batches = list(reader.read(0, reader.last_add_confirmed)) if reader.last_add_confirmed >= 0 else []
        return [bytes(payload) for batch in batches for payload in batch.to_list()]

    def _go_on(self, kind: str, work: Callable[[], Any]) -> None:
        while not self._stop.wait(PAUSE_S):
            call = timed(kind, work)
            with self._change:
                self._done.append(call)
                self._begun[kind] = call.began
                self._change.notify_all()

    def _read_metadata(self) -> None:
        self._client.read_metadata(self._known)

    def _write_ledger(self) -> None:
        self.write()

    def _append(self) -> None:
        self._long.append(b"%d" % self._appended)
        self._appended += 1


def timed(kind: str, work: Callable[[], Any]) -> Call:
    began = time.monotonic()
    try:
        work()
    except (BookKeeperError, AssertionError) as error:
        return Call(kind, began, time.monotonic(), f"{type(error).__name__}: {error}")
    return Call(kind, began, time.monotonic(), "")


class Round:
    """One restart: ZooKeeper goes away and comes back, in some rounds mute for a while. Then calls of every kind are
    made at once."""

    def __init__(self, world: Place, calls: Calls, rng: random.Random, number: int) -> None:
        self._world, self._calls, self._rng = world, calls, rng
        self._number, self._report = number, Figures(rounds=1)

    def run(self) -> Figures:
        sessions = self._world.sessions()
        down, back = self._restart()
        self._ask_everything(back)
        self._await_registered(sessions)
        if not self._calls.wait_begun(back):
            self._report.problems.append(f"a call that was under way did not end within {FINISH_S:.0f} s")
        for call in self._calls.take():
            self._judge(call, down, back)
        return self._report

    def _restart(self) -> tuple[float, float]:
        """Restart ZooKeeper. Return when it went away and when it was back."""
        number, rng, world = self._number, self._rng, self._world
        kills = number % 2 == 0
        away_s = rng.uniform(8, 12) if number % 20 == 19 else rng.choice((0.0, rng.uniform(0, 0.5), rng.uniform(1, 4)))
        mute_s = rng.uniform(0.3, 5) if number % 3 == 2 else 0.0
        down = time.monotonic()
        (world.kill_zookeeper if kills else world.stop_zookeeper)()
        time.sleep(away_s)
        world.be_mute(mute_s > 0)
        world.start_zookeeper()
        time.sleep(mute_s)
        world.be_mute(False)
        back = time.monotonic()
        self._report.counts["killed" if kills else "stopped"] += 1
        self._report.counts["mute for a while when back"] += bool(mute_s)
        self._report.note = f"{'killed' if kills else 'stopped'}, away {back - down:.1f} s, {mute_s:.1f} s of it mute"
        return down, back

    def _ask_everything(self, back: float) -> None:
        """Write and read a ledger, read metadata and list them. None of these calls may fail, although other calls go
        on."""
        calls, client, made = self._calls, self._world.client, list[int]()
        for kind, work in (
            ("metadata read", lambda: client.read_metadata(calls._known)),
            ("ledger written", lambda: made.append(calls.write())),
            ("ledger read", lambda: _equal(calls.read(made[-1] if made else calls._known))),
            ("ledgers listed", client.list_ledgers),
            ("bookies listed", lambda: _all_there(len(client.store.writable_bookies()))),
            ("ledger deleted", lambda: client.delete_ledger(made[-1]) if made else None),
        ):
            self._judge(timed(f"{kind}, after", work), back, back)

    def _await_registered(self, before: dict[str, int]) -> None:
        deadline = time.monotonic() + REGISTERED_S
        while len(found := self._world.sessions()) < BOOKIES and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        if len(found) < BOOKIES:
            self._report.problems.append(f"{BOOKIES - len(found)} bookies are not registered")
        self._report.counts["bookies that lost their session"] += sum(
            found.get(bookie, session) != session for bookie, session in before.items()
        )

    def _judge(self, call: Call, down: float, back: float) -> None:
        """Judge a call. A failure is allowed only if ZooKeeper was back for less than half of the call's deadline when
        the call ended. The deadline counts from when ZooKeeper was back."""
        if call.error and (call.began >= back or call.ended > back + self._world.deadline_s / 2 or call.ended < down):
            when = f"begun {call.began - back:.2f} s after the server was back, ended {call.ended - back:.2f} s after"
            self._report.problems.append(f"{call.kind}, {when}: {call.error}")
        elif call.error:
            self._report.counts["calls that failed while it was away"] += 1
        elif call.ended > back:
            self._report.times_s.setdefault(call.kind, []).append(call.ended - max(call.began, back))
        else:
            self._report.counts["calls that ended well before it was back"] += 1


def _equal(found: list[bytes]) -> None:
    assert found == [b"%d" % number for number in range(ENTRIES)], f"the ledger has other entries: {found[:5]} …"


def _all_there(bookies: int) -> None:
    assert bookies == BOOKIES, f"{bookies} bookies are registered"
