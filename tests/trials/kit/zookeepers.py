# SPDX-License-Identifier: Apache-2.0
"""The ZooKeeper servers of a trial, one or three, each behind proxies of its own: for clients, for bookies, and between
a follower and its leader."""

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
    """One server. ``answers``, which loses single answers, stands before ``clients``, which fails as lines do."""

    server: EnsembleServer
    clients: FaultProxy
    bookies: FaultProxy
    answers: ZooKeeperProxy


class ZooKeepers:
    """All of them. A client is given every address, and kazoo begins with any."""

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
        """Start them and make the cluster, with a table of roles if there is one."""
        self.ensemble.start()
        with closing(open_store(self.direct_uri, **settings)) as store:
            store.initialize_cluster()
            if roles is not None:
                store.write_roles(roles, None)

    def leader_or_any(self) -> EnsembleServer:
        """The leader; during an election any server."""
        return self.ensemble.leader or self.ensemble.servers[0]

    def follower_or_any(self, chance: float) -> EnsembleServer:
        """A follower; during an election, or without any, any server."""
        among = self.ensemble.followers or self.ensemble.servers
        return among[int(chance * len(among))]

    def heal(self) -> None:
        """Lines carry, servers run; some may still be starting."""
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
        """No answer that was to be lost is lost any more."""
        for each in self.all:
            each.answers.forget_losses()

    def close(self) -> None:
        for each in self.all:
            each.answers.close()
        self.ensemble.close()


def for_each(nodes: Sequence[ZooKeeper], begin: Callable[[ZooKeeper], Callable[[], None]]) -> Callable[[], None]:
    """Begin a fault at each of them; returns what ends it at all."""
    undo = [begin(node) for node in nodes]

    def end() -> None:
        for one in undo:
            one()

    return end


def _uri(addresses: Sequence[tuple[str, int]]) -> str:
    return f"zk://{';'.join(f'{host}:{port}' for host, port in addresses)}{ROOT}"
