# SPDX-License-Identifier: Apache-2.0
"""The ZooKeeper servers of a trial, one or three. Each has proxies of its own: for clients, for bookies, and between a
follower and its leader."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bk_core.access.roles import RolesTable
from bk_core.metadata import StoreSettings, open_store
from tests.kit.zookeeper_ensemble import HOST, EnsembleServer, ZooKeeperEnsemble
from tests.kit.zookeeper_proxy import ZooKeeperProxy
from tests.trials.kit.proxy import FaultProxy, ProxyThread

ROOT = "/ledgers"


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """One server. ``answers`` is a proxy that loses single answers. It stands before ``clients``, which fails as lines
    do."""

    server: EnsembleServer
    clients: FaultProxy
    bookies: FaultProxy
    answers: ZooKeeperProxy


class ZooKeepers:
    """All servers. A client gets every address, and kazoo begins with any of them."""

    def __init__(self, path: Path, count: int, proxies: ProxyThread, bookies_host: str) -> None:
        self.ensemble = ZooKeeperEnsemble(path, count, proxies)
        self.all: list[ZooKeeper] = []
        for server in self.ensemble.servers:
            upstream = (HOST, server.port)
            clients = proxies.add((HOST, 0), upstream)
            answers = ZooKeeperProxy(HOST, clients.port)
            self.all.append(ZooKeeper(server, clients, proxies.add((bookies_host, 0), upstream), answers))
        self.direct_uri = _uri([(HOST, each.server.port) for each in self.all])
        self.clients_uri = _uri([(HOST, each.answers.port) for each in self.all])
        self.bookies_uri = _uri([(bookies_host, each.bookies.port) for each in self.all])

    def start(self, settings: StoreSettings, roles: RolesTable | None) -> None:
        """Start the servers and make the cluster, with a table of roles if one is given."""
        self.ensemble.start()
        with closing(open_store(self.direct_uri, **settings)) as store:
            store.initialize_cluster()
            if roles is not None:
                store.write_roles(roles, None)

    def leader_or_any(self) -> EnsembleServer:
        """Return the leader, or during an election any server."""
        return self.ensemble.leader or self.ensemble.servers[0]

    def follower_or_any(self, chance: float) -> EnsembleServer:
        """Return a follower. During an election, or if there is none, return any server."""
        among = self.ensemble.followers or self.ensemble.servers
        return among[int(chance * len(among))]

    def heal(self) -> None:
        """End the faults of lines and servers. Some servers may still be starting afterwards."""
        for each in self.all:
            each.clients.heal()
            each.bookies.heal()
        self.ensemble.heal()

    def signal_all(self, number: int) -> None:
        for server in self.ensemble.servers:
            server.signal(number)

    def kill_all(self) -> None:
        for server in self.ensemble.servers:
            server.kill()

    def resume_all(self) -> None:
        self.signal_all(signal.SIGCONT)

    def launch_all(self) -> None:
        for server in self.ensemble.servers:
            server.launch()

    def forget_losses(self) -> None:
        """Cancel the losses of answers that have not happened yet."""
        for each in self.all:
            each.answers.forget_losses()

    def close(self) -> None:
        for each in self.all:
            each.answers.close()
        self.ensemble.close()


def for_each(nodes: Sequence[ZooKeeper], begin: Callable[[ZooKeeper], Callable[[], None]]) -> Callable[[], None]:
    """Begin a fault at each of the nodes. Return the function that ends all of them."""
    undo = [begin(node) for node in nodes]

    def end() -> None:
        for one in undo:
            one()

    return end


def _uri(addresses: Sequence[tuple[str, int]]) -> str:
    return f"zk://{';'.join(f'{host}:{port}' for host, port in addresses)}{ROOT}"
