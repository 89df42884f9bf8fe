# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes that all use TLS: ZooKeeper and bookies, each with its own certificate."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from bk_core import blocking
from bk_core.client import ClientConfig
from bk_core.metadata import open_store
from tests.kit import canaries
from tests.kit.certificates import Authority
from tests.kit.process_cluster import ProcessCluster
from tests.kit.zookeeper_tls import TlsZooKeeper


class TlsCluster(ProcessCluster):
    """The cluster. Async and blocking clients take :meth:`config`. ``environment`` is for the command ``bk``. ``files``
    has the files of each identity that a client or a bookie of the cluster has."""

    zookeeper: TlsZooKeeper

    def __init__(self, path: Path, bookies: int = 4, **settings: Any) -> None:
        self.authority = Authority(path / "pki")
        self.client_files = self.authority.issue("client")
        self.files = [self.client_files]
        zookeeper = TlsZooKeeper(self.authority.issue("zookeeper", hosts=("127.0.0.1",)))
        super().__init__(path, zookeeper, bookies, settings)

    def settings_of(self, number: int) -> dict[str, Any]:
        self.files.append(self.authority.issue(f"bookie-{number}", hosts=("127.0.0.1",)))
        return self.files[-1].settings(tls_zookeeper=True, **super().settings_of(number))

    @property
    def address(self) -> str:
        return self.zookeeper.secure

    def config(self, **more: Any) -> ClientConfig:
        return ClientConfig(**self.client_files.settings(tls_zookeeper=True, **more))

    def instance_id(self) -> str:
        with closing(open_store(self.uri, **self.config().store_settings())) as store:
            return store.instance_id()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "BK_METADATA_SERVICE_URI": self.uri,
            "BK_TLS_CA_PATH": str(self.client_files.ca),
            "BK_TLS_CERTIFICATE_PATH": str(self.client_files.certificate),
            "BK_TLS_KEY_PATH": str(self.client_files.key),
            "BK_TLS_ZOOKEEPER": "1",
        }

    @property
    def spark_options(self) -> dict[str, str]:
        return {
            "metadataServiceUri": self.uri,
            "tls.ca.path": str(self.client_files.ca),
            "tls.certificate.path": str(self.client_files.certificate),
            "tls.key.path": str(self.client_files.key),
            "tls.zookeeper": "true",
        }

    @contextmanager
    def client(self, **more: Any) -> Iterator[blocking.BookKeeper]:
        with blocking.connect(self.uri, config=self.config(**more)) as bookkeeper:
            yield bookkeeper


@contextmanager
def temporary_tls_cluster(path: Path, bookies: int = 4, **settings: Any) -> Iterator[TlsCluster]:
    with TlsCluster(path, bookies, **settings) as running:
        yield running
    canaries.check(path, {line for files in running.files for line in canaries.key_lines(files.key)})
    shutil.rmtree(path)
