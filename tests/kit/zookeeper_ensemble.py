# SPDX-License-Identifier: Apache-2.0
"""Several real ZooKeeper servers on this machine, one of which can be made to lag.

Each server reaches the quorum port of each other server through a proxy of its own, so a test can hold back the
leader's messages to a follower. The follower still serves reads of its old state, until ZooKeeper's own limit
(``LAG_MAX_S``) ends the connection. A sync through it waits until the follower has caught up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bk_cli.local.children import free_ports, last_lines
from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.trials.kit.proxy import FaultProxy, ProxyThread

HOST = "127.0.0.1"
TICK_MS = 200
SYNC_TICKS = 30
LAG_MAX_S = SYNC_TICKS * TICK_MS / 1000
READY_S = 40.0
LEADER_LISTENS_S = 2.0
"""The maximum time, in seconds, for which a proxy waits until the leader behind it listens. If the connection broke,
the follower would begin another election, and the leader would wait for it for 12 s (``initLimit``)."""
_POLL_S = 0.02

_QUORUM = f"""\
initLimit=60
syncLimit={SYNC_TICKS}
quorumListenOnAllIPs=false
"""


class EnsembleServer(ZooKeeperServer):
    """A server of an ensemble. Its data stays when it ends. :meth:`launch` does not wait until it serves."""

    def __init__(self, number: int, path: Path) -> None:
        super().__init__(tick_ms=TICK_MS, durable=False, heap_mb=96)
        self.number, self._path = number, path
        self.main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self.quorum_port, self.election_port, self.port = free_ports(3)
        self.links: dict[int, FaultProxy] = {}  # proxies to the quorum ports of the other servers, by number
        self._others: Sequence[EnsembleServer] = ()

    def join(self, others: Sequence[EnsembleServer], proxies: ProxyThread) -> None:
        self._others = others
        for each in others:
            self.links[each.number] = proxies.add((HOST, 0), (HOST, each.quorum_port), patience_s=LEADER_LISTENS_S)

    def launch(self) -> None:
        if not self.is_running:
            self.stop()
            (self._path / "data").mkdir(parents=True, exist_ok=True)
            (self._path / "data" / "myid").write_text(f"{self.number}\n")
            self._launch(self._command(self._path), self._path)

    def kill(self) -> None:
        """Kill the server as ``kill -9`` does."""
        self.signal(signal.SIGKILL)
        self.stop()

    def signal(self, number: int) -> None:
        """Send a signal to the server itself. It is a child of the wrapper that ends it together with this process."""
        if self._process is None:
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError):
            for pid in children.read_text().split():
                os.kill(int(pid), number)

    def _config(self, data_dir: Path) -> str:
        here = f"server.{self.number}={HOST}:{self.quorum_port}:{self.election_port}"
        there = [f"server.{n.number}={HOST}:{self.links[n.number].port}:{n.election_port}" for n in self._others]
        return super()._config(data_dir) + _QUORUM + "\n".join([here, *there, ""])

    def _wait_serving(self) -> None:
        """Do nothing: the server may need the other servers first. :meth:`ZooKeeperEnsemble.wait_ready` waits for
        all."""


class ZooKeeperEnsemble:
    """The servers, without fsync. As a context manager it ends everything that it has started."""

    def __init__(self, path: Path, count: int = 3, proxies: ProxyThread | None = None) -> None:
        self._own = proxies is None
        self._proxies = proxies or ProxyThread()
        self.servers = [EnsembleServer(number, path / f"zookeeper-{number}") for number in range(1, count + 1)]
        for server in self.servers:
            server.join([each for each in self.servers if each is not server], self._proxies)

    def start(self) -> None:
        for server in self.servers:
            server.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until every server serves."""
        deadline = time.monotonic() + READY_S
        while not all(server.mode() for server in self.servers):
            assert time.monotonic() < deadline, self._why_not_ready()
            time.sleep(_POLL_S)

    def _why_not_ready(self) -> str:
        """Return the mode of each server and the end of its log."""
        ends = [
            f"server {s.number}, {s.mode() or 'silent'}:\n{last_lines(s.log_path)}" for s in self.servers if s.log_path
        ]
        return "\n".join(["the ensemble does not start in time", *ends])

    @property
    def leader(self) -> EnsembleServer | None:
        """The server that leads, or None during an election."""
        return next((each for each in self.servers if each.mode() in ("leader", "standalone")), None)

    @property
    def followers(self) -> list[EnsembleServer]:
        return [server for server in self.servers if server.mode() == "follower"]

    def hold_back(self, follower: EnsembleServer) -> None:
        """Hold back everything from the other servers to this follower until :meth:`heal`."""
        for link in follower.links.values():
            link.stall(requests=False, answers=True)

    def heal_links(self) -> None:
        """Let all servers reach one another again."""
        for server in self.servers:
            for link in server.links.values():
                link.heal()

    def heal(self) -> None:
        """Heal the links, and make all servers run."""
        self.heal_links()
        for server in self.servers:
            server.signal(signal.SIGCONT)
            server.launch()

    @contextlib.contextmanager
    def lagging(self, follower: EnsembleServer) -> Iterator[None]:
        """Hold back everything from the other servers to the follower, within this block."""
        self.hold_back(follower)
        try:
            yield
        finally:
            self.heal()

    def close(self) -> None:
        for server in self.servers:
            server.signal(signal.SIGCONT)
        for server in self.servers:
            server.kill()
        if self._own:
            self._proxies.close()

    def __enter__(self) -> ZooKeeperEnsemble:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
