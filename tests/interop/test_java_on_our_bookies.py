# SPDX-License-Identifier: Apache-2.0
"""Tests of Apache's client on our bookies that are not cells of the matrix (test_matrix.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_cli.local.cluster import LocalCluster
from tests.interop.jars import MAIN, toolchain
from tests.interop.pattern import Pattern
from tests.interop.peer_client import PeerClient
from tests.kit.clusters import temporary_cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
PATTERN = Pattern(seed=7, size_min=0, size_max=3000)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster of four of our bookies and a ZooKeeper."""
    with temporary_cluster(tmp_path_factory) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def uri(ours: LocalCluster) -> str:
    return ours.uri.replace("zk://", "zk+hierarchical://")


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerClient]:
    with PeerClient(toolchain(MAIN), tmp_path_factory.mktemp("java") / "client.log") as made:
        yield made


def test_explicit_lacs_ids_and_deferred_syncs(uri: str, peer: PeerClient) -> None:
    client = peer.client(uri, conf={"explicitLacInterval": 50})
    ledger = client.create(adv=True, deferred_sync=True)
    for entry_id in (1, 0, 2):
        pending = peer.submit("add", ledger=ledger._number, count=1, first=entry_id, **PATTERN.arguments())
        if entry_id != 1:
            peer.result(pending, 10, "add")
    assert ledger.force().lac == 2
    reader = client.open(ledger.ledger_id, recover=False)
    assert reader.tail().take(3).last == 2
    assert reader.last_confirmed("explicit") == 2
    assert reader.last_confirmed("try") == 2
    assert reader.read(0, 2, how="unconfirmed").checksum == PATTERN.checksum(0, 2)


def test_batch_reads(uri: str, peer: PeerClient) -> None:
    client = peer.client(uri, wire=2)
    ledger = client.create(ensemble_size=2)
    ledger.add(100, PATTERN)
    assert ledger.read(0, 99, how="batch").checksum == PATTERN.checksum(0, 99)


def test_single_requests_get_their_answers(ours: LocalCluster, peer: PeerClient, uri: str) -> None:
    client = peer.client(uri)
    ledger = client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    ledger.add(10, PATTERN)
    members = client.metadata(ledger.ledger_id)["ensembles"][0]
    single = peer.bookie_client()
    assert single.call("force", members[0], ledger_id=ledger.ledger_id)["rc"] == 0
    listed = single.call("list_entries", members[0], ledger_id=ledger.ledger_id)
    assert listed["rc"] == 0
    info = single.call("info", members[0], requested=3)
    assert info["rc"] == 0
    assert sorted(client.bookies()["writable"]) == sorted(bookie.bookie_id for bookie in ours.bookies)
    late = peer.bookie_client(auth=True)
    assert late.call("read", members[0], ledger_id=ledger.ledger_id, entry_id=0)["rc"] == 0
