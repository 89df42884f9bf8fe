# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes behind proxies: ZooKeeper servers, and bookies that register their proxy's address.

Bookie N listens on 127.0.0.1 (or in a network of its own, if asked for) and advertises 127.0.1.N with the same port,
where its proxy listens. Nothing leaves this machine.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from bk_cli.local.children import last_lines
from bk_cli.local.cluster_layout import LANE_PORTS_ABOVE, free_bookie_ports
from bk_core.client import ClientConfig
from tests.kit.zookeeper_proxy import ZooKeeperProxy
from tests.trials.bookie.clients import SETTINGS_VARIABLE
from tests.trials.kit.network import BRIDGE, connect, host_of, make_bridge, set_cable
from tests.trials.kit.nursery import Child, Nursery
from tests.trials.kit.proxy import ProxyThread
from tests.trials.kit.security import TrialSecurity
from tests.trials.kit.zookeepers import ZooKeepers

HOST = "127.0.0.1"
READY_S = 40.0
_POLL_S = 0.02


class Bookie:
    """One bookie process and the proxy before it. Its data outlives it."""

    def __init__(self, number: int, cluster: TrialCluster, port: int, network: bool) -> None:
        self.number, self._cluster, self._port, self._network = number, cluster, port, network
        self.log_path = cluster.path / f"bookie-{number}.log"
        lanes = [((f"127.0.1.{number}", port + above), (self.host, port + above)) for above in LANE_PORTS_ABOVE]
        self.proxy = cluster.proxies.add(*lanes[0], *lanes[1:])
        self.child: Child | None = None
        self._log_start = 0
        self.is_stopped = False
        self.starts = 0

    @property
    def host(self) -> str:
        return host_of(self.number) if self._network else HOST

    def start(self) -> None:
        """Start it; :meth:`wait_ready` says when it serves."""
        self.log_path.touch()
        self._log_start = self.log_path.stat().st_size
        address = f"127.0.1.{self.number}"
        arguments = ["bookie", "run", "--data", str(self._cluster.path / f"bookie-{self.number}")]
        arguments += ["--port", str(self._port)]
        arguments += ["--bookie-id", f"bookie-{self.number}", "--allow-loopback"]
        arguments += ["--listen-address", "0.0.0.0" if self._network else HOST, "--advertised-address", address]
        arguments += ["--metadata-service-uri", self._cluster.bookies_uri]
        arguments += ["--config", str(self._cluster.settings)]
        self.child = self._cluster.nursery.start(
            "bk_cli.main:run", self.log_path, arguments=arguments, network=self._network
        )
        if self._network:
            connect(self.number, self.child.pid, READY_S)
        self.is_stopped = False
        self.starts += 1

    @property
    def is_ready(self) -> bool:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return any(line.startswith(b"ready ") for line in log)

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Wait until it serves. RuntimeError with the end of its log if it does not, or has ended."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready:
            if not self.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"bookie {self.number} does not start: {last_lines(self.log_path)}")
            time.sleep(_POLL_S)

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.is_running

    def kill(self) -> None:
        if self.child:
            self.child.signal(signal.SIGKILL)
            self.child.wait(READY_S)
            self.child.release()
            self.child = None

    def stop(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        if self.child:
            self.is_stopped = True
            self.child.signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.child:
            self.is_stopped = False
            self.child.signal(signal.SIGCONT)

    def partition(self, *, away: bool) -> None:
        """Take the cable of its network out, or put it back: packets vanish without a word, both ways."""
        assert self._network
        set_cable(self.number, away=away)


class TrialCluster:
    """ZooKeeper, bookies, proxies and the nursery; a context manager.

    ``network`` puts each bookie in a network namespace: only inside one of our own (:mod:`tests.trials.kit.network`).
    ``settings`` is the text of the bookies' TOML file; ``zookeepers`` how many servers there are, one or three. With
    ``secure`` bookies and clients are of mode secure (:mod:`tests.trials.kit.security`).
    """

    def __init__(
        self,
        path: Path,
        *,
        bookies: int = 6,
        network: bool = False,
        settings: str = "",
        zookeepers: int = 1,
        secure: bool = False,
    ) -> None:
        self.path, self.network, self._settings = path, network, settings
        hosts = (HOST, *(f"127.0.1.{each}" for each in range(1, bookies + 1)))  # where the proxies are
        self._security = TrialSecurity(path, hosts) if secure else None
        self.client_settings = {} if self._security is None else self._security.settings()
        self.proxies = ProxyThread()
        self.nursery = Nursery(**{SETTINGS_VARIABLE: json.dumps(self.client_settings)})
        self._counts = bookies, zookeepers
        self.bookies: list[Bookie] = []
        self._zookeepers: ZooKeepers | None = None

    def __enter__(self) -> TrialCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def settings(self) -> Path:
        """The bookies' configuration file."""
        return self.path / "bookies.toml"

    def _start(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        no_way_round = "unix_socket = false\n"  # clients on this machine would take it, past the proxies
        told = {} if self._security is None else self._security.bookie_settings()
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())
        self.settings.write_text(no_way_round + lines + self._settings, encoding="utf-8")
        if self.network:
            make_bridge()
        bookies, zookeepers = self._counts
        host = BRIDGE if self.network else HOST
        self._zookeepers = ZooKeepers(self.path, zookeepers, self.proxies, host)
        roles = None if self._security is None else self._security.roles()
        self._zookeepers.start(ClientConfig(**self.client_settings).store_settings(), roles)
        ports = free_bookie_ports(bookies)
        self.bookies = [Bookie(number, self, port, self.network) for number, port in enumerate(ports, start=1)]
        for bookie in self.bookies:
            bookie.start()
        for bookie in self.bookies:
            bookie.wait_ready()

    # --- ZooKeeper ---

    @property
    def zookeepers(self) -> ZooKeepers:
        assert self._zookeepers is not None, "the cluster is not started"
        return self._zookeepers

    @property
    def zookeeper_answers(self) -> ZooKeeperProxy:
        """Of the only server."""
        (only,) = self.zookeepers.all
        return only.answers

    @property
    def direct_uri(self) -> str:
        return self.zookeepers.direct_uri

    @property
    def clients_uri(self) -> str:
        return self.zookeepers.clients_uri

    @property
    def bookies_uri(self) -> str:
        return self.zookeepers.bookies_uri

    # --- all of it ---

    def heal(self) -> None:
        """Put everything back: proxies, processes, networks. Bookies may still be starting."""
        self.zookeepers.heal()
        for bookie in self.bookies:
            bookie.proxy.heal()
            if bookie.child is None:
                bookie.start()
            bookie.resume()
            if self.network:
                bookie.partition(away=False)

    def close(self) -> None:
        """End every process that was started here, and only those."""
        self.nursery.close()
        if self._zookeepers is not None:
            self._zookeepers.close()
        self.proxies.close()
