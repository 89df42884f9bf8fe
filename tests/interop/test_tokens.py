# SPDX-License-Identifier: Apache-2.0
"""Tokens that Apache's own client sends to our bookies, with the plug-in of contrib/java-token-auth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.jars import MAIN, VERSIONS, toolchain
from tests.interop.java_process import PeerError
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, PeerClient
from tests.kit.signed_tokens import Signer, keys_file
from tests.kit.tls_cluster import TlsCluster, temporary_tls_cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PATTERN = Pattern(seed=12, size_min=0, size_max=30_000)
SIGNER = Signer("k1", "ES256")
FACTORY = "pyspark_bookkeeper.auth.TokenClientAuthProviderFactory"
TRIES = {"addEntryTimeout": "5", "addEntryQuorumTimeout": "10", "readEntryTimeout": "5"}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    path = tmp_path_factory.mktemp("tokens")
    settings = {"tls_client_auth": "none", "token_keys_path": str(keys_file(path / "keys.json", SIGNER))}
    with temporary_tls_cluster(path / "cluster", bookies=3, tls_clients=["java", "python"], **settings) as running:
        yield running


def _token(cluster: TlsCluster, path: Path, subject: str, **said: float) -> Path:
    path.write_bytes(SIGNER.token(subject, cluster.instance_id(), **said) + b"\n")
    return path


def _conf(cluster: TlsCluster, token: Path | None) -> dict[str, object]:
    tls = {
        "tlsProvider": "JDK",
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(cluster.client_files.ca),
        "tlsHostnameVerificationEnabled": "true",
    }
    plugin = {"clientAuthProviderFactoryClass": FACTORY, "tokenPath": str(token)} if token is not None else {}
    return {**tls, **TRIES, **plugin}


@pytest.mark.parametrize("version", [MAIN, *(pytest.param(each, marks=pytest.mark.thorough) for each in VERSIONS[1:])])
def test_apaches_client_shows_a_token_and_works_on_our_bookies(ours: TlsCluster, version: str, tmp_path: Path) -> None:
    uri = f"zk+hierarchical://{ours.zookeeper.connect_string}/ledgers"
    token = _token(ours, tmp_path / "java", "java")
    with PeerClient(toolchain(version), tmp_path / "client.log") as peer:
        for wire in (3, 2):
            client = peer.client(uri, wire=wire, conf=_conf(ours, token))
            ledger = client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
            ledger.add(300, PATTERN, window=50)
            ledger.close()
            assert client.open(ledger.ledger_id).read(0, 299).checksum == PATTERN.checksum(0, 299)
        mine = _token(ours, tmp_path / "python", "python")
        with ours.client(token_path=str(mine), lanes="bookie-rpc") as bookkeeper:
            reader = bookkeeper.open_ledger(ledger.ledger_id, recover=False, password=PASSWORD)
            found = [entry for batch in reader.read(0, 299) for entry in batch.to_list()]
            assert checksum(found) == PATTERN.checksum(0, 299)
    assert token.read_text().split(".")[1] not in (tmp_path / "client.log").read_text()


def test_apaches_client_without_a_good_token_is_refused(ours: TlsCluster, peer: PeerClient, tmp_path: Path) -> None:
    uri = f"zk+hierarchical://{ours.zookeeper.connect_string}/ledgers"
    bad = {
        "none": None,
        "expired": _token(ours, tmp_path / "expired", "java", age_s=9000),
        "another": _token(ours, tmp_path / "another", "web"),
        "missing": tmp_path / "missing",
    }
    for token in bad.values():
        for wire in (3, 2):
            client = peer.client(uri, wire=wire, conf=_conf(ours, token))
            with pytest.raises(PeerError):
                client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2).add(1, PATTERN)
    with pytest.raises(PeerError, match="never sent without TLS"):
        peer.client(uri, conf={"clientAuthProviderFactoryClass": FACTORY, "tokenPath": str(bad["expired"])})
    logs = "".join(bookie.log_path.read_text() for bookie in ours.bookies)
    for why in ("it has expired", "is not let in: web"):
        assert why in logs
