# SPDX-License-Identifier: Apache-2.0
"""TLS as Apache does it, both ways: its client on our bookies, and our client on its bookies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core import blocking
from bk_core.client import ClientConfig
from bk_core.errors import BookKeeperError
from tests.interop.jars import MAIN, toolchain
from tests.interop.java_process import PeerError
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, PeerClient
from tests.interop.peers import ApacheCluster
from tests.kit.certificates import Authority, java_settings
from tests.kit.tls_cluster import TlsCluster, temporary_tls_cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PATTERN = Pattern(seed=11, size_min=0, size_max=30_000)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    with temporary_tls_cluster(tmp_path_factory.mktemp("secure"), bookies=3) as running:
        yield running


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerClient]:
    with PeerClient(toolchain(MAIN), tmp_path_factory.mktemp("java") / "client.log") as made:
        yield made


@pytest.mark.parametrize("wire", [3, 2])
def test_apaches_client_works_on_our_bookies_over_tls(ours: TlsCluster, peer: PeerClient, wire: int) -> None:
    uri = f"zk+hierarchical://{ours.zookeeper_plain}/ledgers"
    conf = java_settings(ours.client_files)
    client = peer.client(uri, wire=wire, conf=conf)
    ledger = client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
    ledger.add(300, PATTERN, window=50)
    ledger.close()
    assert client.open(ledger.ledger_id).read(0, 299).checksum == PATTERN.checksum(0, 299)
    with ours.client() as bookkeeper:
        reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False, password=PASSWORD)
        assert checksum([entry for batch in reader.read(0, 299) for entry in batch.to_list()]) == PATTERN.checksum(
            0, 299
        )
    plain = peer.client(uri, wire=wire)
    with pytest.raises(PeerError):
        plain.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2).add(1, PATTERN)


@pytest.mark.parametrize("lanes", ["bookie-rpc"])
def test_our_client_works_on_apaches_bookies_over_tls(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, lanes: str
) -> None:
    authority = Authority(tmp_path / "pki")
    server, own = authority.issue("bookie"), authority.issue("client")
    with ApacheCluster(toolchain(MAIN), zookeeper_server.connect_string, tmp_path / "apache") as apache:
        apache.start(3, java_settings(server))
        with blocking.connect(apache.uri, config=ClientConfig(lanes=lanes, **own.settings())) as bookkeeper:
            ledger = bookkeeper.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
            payloads = list(PATTERN.payloads(0, 299))
            for each in payloads:
                ledger.append_nowait(each)
            ledger.close()
            reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False)
            assert [entry for batch in reader.read(0, 299) for entry in batch.to_list()] == payloads
        stranger = Authority(tmp_path / "other", "other").issue("stranger")
        quick = {"add_quorum_timeout_ms": 12_000, "lac_timeout_ms": 2_000}
        with blocking.connect(apache.uri, config=ClientConfig(lanes=lanes, **quick, **stranger.settings())) as refused:
            reading = refused.open_ledger(ledger.ledger_id, recover=False)
            with pytest.raises(BookKeeperError, match="authority that is not known"):
                list(reading.read(0, 299))
