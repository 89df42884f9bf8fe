# SPDX-License-Identifier: Apache-2.0
"""``bk`` on a cluster that is Apache's alone, and ``bk local --apache``."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_cli.local import cluster_layout
from bk_cli.local.cluster import ApacheBookieProcess, LocalCluster
from bk_core import blocking
from bk_core.errors import InvalidArgumentError
from tests.cli.conftest import Bk
from tests.interop.pattern import Pattern
from tests.interop.peer_client import PASSWORD, PeerClient
from tests.interop.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

PATTERN = Pattern(seed=3, size_min=1, size_max=900)


@pytest.fixture
def bk(apache: ApacheCluster, capfd: pytest.CaptureFixture[str]) -> Bk:
    capfd.readouterr()
    return Bk(apache.uri, capfd)


def test_the_doctor_asks_apaches_bookies_over_their_wire(bk: Bk, apache: ApacheCluster) -> None:
    assert bk("doctor") == 0, bk.out
    for bookie in apache.bookies:
        (line,) = [line for line in bk.out.splitlines() if line.startswith("ok    bookie") and bookie.bookie_id in line]
        assert f"bookie-rpc at 127.0.0.1:{bookie.port} answers in " in line
        assert " free" in line
    assert "note  quorum" in bk.out


def test_ledgers_of_java_are_listed_shown_and_read(bk: Bk, apache: ApacheCluster, peer: PeerClient) -> None:
    ledger = peer.client(apache.uri).create(digest="CRC32")
    ledger.add(50, PATTERN)
    ledger.close()
    shown = str(ledger.ledger_id)
    assert ledger.ledger_id in [int(row["ledgerId"]) for row in bk.json("ledger", "list")]
    (facts,) = bk.json("ledger", "show", shown)
    assert (facts["state"], facts["lastEntryId"]) == ("CLOSED", 49)
    rows = bk.json("ledger", "read", shown, "--password", PASSWORD.decode())
    assert len(rows) == 50


def test_a_ledger_of_bk_is_read_by_java_and_deleted(
    bk: Bk, apache: ApacheCluster, peer: PeerClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = tmp_path_factory.mktemp("lines") / "lines"
    source.write_text("one\ntwo\nthree\n", encoding="utf-8")
    (made,) = bk.json("ledger", "append", str(source))
    java = peer.client(apache.uri)
    read = java.open(int(made["ledgerId"]), recover=False, password=b"").read(0, 2, payloads=True)
    assert list(read.payloads) == [b"one", b"two", b"three"]
    assert bk("ledger", "delete", str(made["ledgerId"]), "--yes") == 0, bk.err
    assert int(made["ledgerId"]) not in [int(row["ledgerId"]) for row in bk.json("ledger", "list")]


def test_a_local_cluster_of_apaches_bookies_keeps_its_ledgers_and_its_kind(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path / "c", port=0, zookeeper_port=0, apache=True) as cluster:
        with blocking.connect(cluster.uri) as bookkeeper:
            ledger = bookkeeper.create_ledger()
            ledger.append(b"first")
            victim = cluster.bookies[0]
            victim.kill()
            ledger.append(b"second")
            victim.start()
            cluster.wait_ready([victim])
            ledger.close()
        uri = cluster.uri
    with LocalCluster(tmp_path / "c") as cluster, blocking.connect(cluster.uri) as bookkeeper:
        assert cluster.uri == uri
        assert all(isinstance(bookie, ApacheBookieProcess) for bookie in cluster.bookies)
        with bookkeeper.open_ledger(ledger.ledger_id, recover=False) as reader:
            assert [entry for batch in reader.read(0, 1) for entry in batch.to_list()] == [b"first", b"second"]


def test_a_directory_of_our_bookies_is_not_given_to_apaches(tmp_path: Path) -> None:
    cluster_layout.save(tmp_path, cluster_layout.ClusterLayout(2181, (3181,)))
    with pytest.raises(InvalidArgumentError, match="--apache"):
        LocalCluster(tmp_path, apache=True).start()
