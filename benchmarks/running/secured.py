# SPDX-License-Identifier: Apache-2.0
"""Three of our bookies whose ports speak TLS and require a certificate of each client, and the certificates of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.running.processes import BOOKIES
from bk_cli.local.cluster import LocalCluster
from bk_core.blocking import BookKeeper, connect
from bk_core.client.config import ClientConfig
from tests.kit.certificates import Authority, Files, java_settings

if TYPE_CHECKING:
    from benchmarks.running.world import World

BOOKIE_COUNT = 3


class Secured:
    """The bookies, which end with the world. They use the world's ZooKeeper without TLS."""

    def __init__(self, world: World) -> None:
        self._world, self._folder = world, world.folder / "secured"
        self.authority = Authority(self._folder / "pki")
        self.server_files = self.authority.issue("server")
        self.client_files: Files = self.authority.issue("client")
        self.uri = f"zk://{world.zookeeper}/secured/ledgers"
        cluster = LocalCluster(
            self._folder / "cluster",
            bookies=BOOKIE_COUNT,
            port=0,
            zookeeper_uri=self.uri,
            settings=self.server_files.settings(),
        )
        with world.processes.born(BOOKIES):
            world.stack.enter_context(cluster)

    def client(self) -> BookKeeper:
        """Return our client over TLS, which ends with the world."""
        config = ClientConfig(lanes=self._world.lane, **self.client_files.settings())
        return self._world.stack.enter_context(connect(self.uri, config=config))

    @property
    def java_settings(self) -> dict[str, object]:
        """The settings of Apache's client or bookie: OpenSSL through netty-tcnative, the faster one of its
        providers."""
        return java_settings(self.server_files, "OpenSSL")
