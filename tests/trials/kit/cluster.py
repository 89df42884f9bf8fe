# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes behind proxies: ZooKeeper servers, and bookies that register their proxy's address.

Bookie N listens on 127.0.0.1 (or, if requested, in a network of its own) and advertises 127.0.1.N with the same port,
where its proxy listens. Nothing leaves this machine.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

from bk_cli.local.cluster_layout import LANE_PORTS_ABOVE, free_bookie_ports
from bk_core.client import ClientConfig
from tests.kit.zookeeper_proxy import ZooKeeperProxy
from tests.trials.bookie.clients import SETTINGS_VARIABLE
from tests.trials.kit.network import BRIDGE, host_of, make_bridge, set_cable
from tests.trials.kit.nursery import Nursery
from tests.trials.kit.process import ServerProcess
from tests.trials.kit.proxy import ProxyThread
from tests.trials.kit.security import TrialSecurity
from tests.trials.kit.zookeepers import ZooKeepers

HOST = "127.0.0.1"


class Bookie(ServerProcess):
    """A bookie process and the proxy before it."""

    def __init__(self, number: int, cluster: TrialCluster, port: int) -> None:
        name, network = f"bookie-{number}", number if cluster.network else None
        super().__init__(cluster.nursery, name, cluster.path / f"{name}.log", network)
        self.number, self._cluster, self._port = number, cluster, port
        host = host_of(number) if cluster.network else HOST
        lanes = [((f"127.0.1.{number}", port + above), (host, port + above)) for above in LANE_PORTS_ABOVE]
        self.proxy = cluster.proxies.add(*lanes[0], *lanes[1:])

    def start(self) -> None:
        """Start the bookie. :meth:`wait_ready` waits until it serves."""
        address = f"127.0.1.{self.number}"
        listen = "0.0.0.0" if self._cluster.network else HOST
        arguments = ["bookie", "run", "--data", str(self._cluster.path / self.name), "--port", str(self._port)]
        arguments += ["--bookie-id", self.name, "--allow-loopback"]
        arguments += ["--listen-address", listen, "--advertised-address", address]
        arguments += ["--metadata-service-uri", self._cluster.bookies_uri]
        arguments += ["--config", str(self._cluster.settings)]
        self.begin("bk_cli.main:run", arguments=arguments)

    def stop(self) -> None:
        """Send SIGSTOP. The process keeps its connections and answers nothing."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def partition(self, *, away: bool) -> None:
        """Unplug the cable of its network, or plug it in again. While it is unplugged, packets in both directions
        vanish."""
        set_cable(self.number, away=away)


class TrialCluster:
    """ZooKeeper, bookies, proxies and the nursery; a context manager.

    ``network`` gives each bookie a network namespace, which works only inside one of our own
    (:mod:`tests.trials.kit.network`). ``settings`` is the text of the bookies' TOML file. ``zookeepers`` is the number
    of servers, one or three. With ``secure``, bookies and clients use mode secure (:mod:`tests.trials.kit.security`).
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
        hosts = (HOST, *(f"127.0.1.{each}" for each in range(1, bookies + 1)))  # the addresses of the proxies
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
        """The path of the bookies' configuration file."""
        return self.path / "bookies.toml"

    def _start(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        no_way_round = "unix_socket = false\n"  # clients on this machine would use it instead of the proxies
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
        self.bookies = [Bookie(number, self, port) for number, port in enumerate(ports, start=1)]
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
        """The proxy that loses single answers of the only server."""
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
        """End all faults of proxies, processes and networks. Some bookies may still be starting afterwards."""
        self.zookeepers.heal()
        for bookie in self.bookies:
            bookie.proxy.heal()
            if bookie.child is None:
                bookie.start()
            bookie.resume()
            if self.network:
                bookie.partition(away=False)

    def close(self) -> None:
        """End every process that was started here, and no other."""
        self.nursery.close()
        if self._zookeepers is not None:
            self._zookeepers.close()
        self.proxies.close()
