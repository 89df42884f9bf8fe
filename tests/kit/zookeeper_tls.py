# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper server that also listens for clients over TLS, with the jars of netty that come with pyspark."""

from __future__ import annotations

import os
from pathlib import Path

from bk_cli.children import free_port
from bk_cli.zookeeper_jars import find_jars
from bk_cli.zookeeper_server import ZooKeeperServer
from tests.kit.certificates import Files


class TlsZooKeeper(ZooKeeperServer):
    """``secure`` is ``host:port`` of TLS once it runs; clients need a certificate there."""

    def __init__(self, files: Files) -> None:
        jars = find_jars(os.environ)
        super().__init__(classpath=[*jars, *sorted(jars[0].parent.glob("netty-*.jar"))], durable=False)
        self._files = files
        self.secure = ""

    def _config(self, data_dir: Path) -> str:
        port = free_port(self.host)
        self.secure = f"{self.host}:{port}"
        both = data_dir / "server.pem"
        both.write_bytes(self._files.certificate.read_bytes() + self._files.key.read_bytes())
        trust = data_dir / "trust.pem"
        trust.write_bytes(self._files.ca.read_bytes())
        settings = {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": port,
            "secureClientPortAddress": self.host,
            "ssl.keyStore.location": both,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": trust,
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
            "ssl.hostnameVerification": "false",
        }
        return super()._config(data_dir) + "".join(f"{key}={value}\n" for key, value in settings.items())
