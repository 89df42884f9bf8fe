# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper server that listens for clients on one port without TLS and on another with TLS."""

from __future__ import annotations

import os
from pathlib import Path

from bk_cli.local.children import free_port
from bk_cli.local.zookeeper_jars import find_jars
from bk_cli.local.zookeeper_server import ServerTls, ZooKeeperServer
from tests.kit.certificates import Files


class TlsZooKeeper(ZooKeeperServer):
    """The server. Once it runs, ``secure`` is the ``host:port`` with TLS, where clients need a certificate."""

    def __init__(self, files: Files) -> None:
        super().__init__(classpath=find_jars(os.environ, tls=True), durable=False)
        self._files = files
        self.secure = ""

    def _config(self, data_dir: Path) -> str:
        port = free_port(self.host)
        self.secure = f"{self.host}:{port}"
        both = data_dir / "server.pem"
        both.write_bytes(self._files.certificate.read_bytes() + self._files.key.read_bytes())
        trust = data_dir / "trust.pem"
        trust.write_bytes(self._files.ca.read_bytes())
        settings = ServerTls(both, trust).settings(self.host, port)
        return super()._config(data_dir) + "".join(f"{key}={value}\n" for key, value in settings.items())
