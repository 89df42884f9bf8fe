# SPDX-License-Identifier: Apache-2.0
"""Three of our bookies whose ports speak TLS and require a certificate of each client, and the certificates of all."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.running.processes import BOOKIES
from bk_cli.local.children import free_ports, last_lines
from bk_cli.local.cluster import START_TIMEOUT_S, BookieProcess
from bk_cli.local.cluster_layout import PORTS_ABOVE
from bk_core.blocking import BookKeeper, connect
from bk_core.client.config import ClientConfig
from bk_core.errors import NotEnoughBookiesError
from tests.kit.certificates import Authority, Files, java_settings

if TYPE_CHECKING:
    from benchmarks.running.world import World

BOOKIE_COUNT = 3


class SecuredBookie(BookieProcess):
    """A bookie with a file of settings."""

    def __init__(self, number: int, data_dir: Path, port: int, uri: str, settings: dict[str, Any]) -> None:
        super().__init__(number, data_dir, port, uri)
        self._config = data_dir.parent / f"bookie-{number}.toml"
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        self._config.write_text(lines, encoding="utf-8")

    def _command(self) -> list[str]:
        return [*super()._command(), "--config", str(self._config)]


class Secured:
    """The bookies, which end with the world. They use the world's ZooKeeper without TLS."""

    def __init__(self, world: World) -> None:
        self._world, self._folder = world, world.folder / "secured"
        self.authority = Authority(self._folder / "pki")
        self.server_files = self.authority.issue("server")
        self.client_files: Files = self.authority.issue("client")
        self.uri = f"zk://{world.zookeeper}/secured/ledgers"
        self.bookies: list[BookieProcess] = []
        world.stack.callback(self._stop)
        settings = self.server_files.settings()
        with world.processes.born(BOOKIES):
            for number, port in enumerate(free_ports(BOOKIE_COUNT, above=PORTS_ABOVE), 1):
                bookie = SecuredBookie(number, self._folder / f"bookie-{number}", port, self.uri, settings)
                self.bookies.append(bookie)
                bookie.start()
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while waiting := [bookie for bookie in self.bookies if not bookie.is_ready]:
            if time.monotonic() > deadline or not all(bookie.is_running for bookie in waiting):
                raise NotEnoughBookiesError("a bookie with TLS does not serve", value=last_lines(waiting[0].log_path))
            time.sleep(0.05)

    def _stop(self) -> None:
        for bookie in self.bookies:
            bookie.terminate()
        for bookie in self.bookies:
            bookie.stop()

    def client(self) -> BookKeeper:
        """Return our client over TLS, which ends with the world."""
        config = ClientConfig(lanes=self._world.lane, **self.client_files.settings())
        return self._world.stack.enter_context(connect(self.uri, config=config))

    @property
    def java_settings(self) -> dict[str, object]:
        """The settings of Apache's client or bookie: OpenSSL through netty-tcnative, the faster one of its
        providers."""
        return java_settings(self.server_files, "OpenSSL")
