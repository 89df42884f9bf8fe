# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes that all use TLS: ZooKeeper and bookies, each with its own certificate."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bk_cli.local.children import free_ports
from bk_cli.local.cluster import PORTS_ABOVE, BookieProcess
from bk_core import blocking
from bk_core.client import ClientConfig
from bk_core.metadata import open_store
from tests.kit import canaries
from tests.kit.certificates import Authority, Files
from tests.kit.zookeeper_tls import TlsZooKeeper

START_S = 30.0


class TlsBookie(BookieProcess):
    """A bookie with a certificate of its own."""

    def __init__(
        self, number: int, data_dir: Path, port: int, uri: str, files: Files, settings: dict[str, Any]
    ) -> None:
        super().__init__(number, data_dir, port, uri, files.settings(tls_zookeeper=True, **settings))
        self.files = files


class TlsCluster:
    """The cluster. Async and blocking clients take :meth:`config`. ``environment`` is for the command ``bk``."""

    def __init__(self, path: Path, bookies: int = 4, **settings: Any) -> None:
        self.authority = Authority(path / "pki")
        self.client_files = self.authority.issue("client")
        self._zookeeper = TlsZooKeeper(self.authority.issue("zookeeper", hosts=("127.0.0.1",)))
        self._path, self._count, self._settings = path, bookies, settings
        self.bookies: list[TlsBookie] = []
        self.uri = ""

    def config(self, **more: Any) -> ClientConfig:
        return ClientConfig(**self.client_files.settings(tls_zookeeper=True, **more))

    def instance_id(self) -> str:
        with closing(open_store(self.uri, **self.config().store_settings())) as store:
            return store.instance_id()

    @property
    def zookeeper_plain(self) -> str:
        """The address at which ZooKeeper serves clients without TLS. Tests ask there whether it serves."""
        return self._zookeeper.connect_string

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

    def __enter__(self) -> Self:
        self._zookeeper.start(self._path / "zookeeper")
        self.uri = f"zk://{self._zookeeper.secure}/ledgers"
        try:
            for number, port in enumerate(free_ports(self._count, above=PORTS_ABOVE), 1):
                files = self.authority.issue(f"bookie-{number}", hosts=("127.0.0.1",))
                bookie = TlsBookie(number, self._path / f"bookie-{number}", port, self.uri, files, self._settings)
                self.bookies.append(bookie)
                bookie.start()
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while not all(bookie.is_ready for bookie in self.bookies):
            ended = [bookie.log_path.read_text() for bookie in self.bookies if not bookie.is_running]
            assert not ended, ended[0]
            assert time.monotonic() < deadline, "the bookies are not ready in time"
            time.sleep(0.05)

    def heal(self) -> None:
        """Start the bookies that were killed, and wait for them."""
        for bookie in self.bookies:
            if not bookie.is_running:
                bookie.start()
        self._wait()

    def stop(self) -> None:
        for bookie in self.bookies:
            bookie.terminate()
        for bookie in self.bookies:
            bookie.stop()
        self._zookeeper.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @contextmanager
    def client(self, **more: Any) -> Iterator[blocking.BookKeeper]:
        with blocking.connect(self.uri, config=self.config(**more)) as bookkeeper:
            yield bookkeeper


@contextmanager
def temporary_tls_cluster(path: Path, bookies: int = 4, **settings: Any) -> Iterator[TlsCluster]:
    with TlsCluster(path, bookies, **settings) as running:
        yield running
    keys = [files.key for files in (running.client_files, *(bookie.files for bookie in running.bookies))]
    canaries.check(path, {line for key in keys for line in canaries.key_lines(key)})
    shutil.rmtree(path)
