# SPDX-License-Identifier: Apache-2.0
"""Apache's bookies that die and come back, and Apache's command-line programs."""

from __future__ import annotations

import pytest

from tests.interop.jars import KitError
from tests.interop.pattern import Pattern
from tests.interop.peer_client import PeerClient
from tests.interop.peers import ApacheCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
PATTERN = Pattern(seed=7, size_min=0, size_max=3000)


def test_a_killed_bookie_is_replaced_and_comes_back(apache: ApacheCluster, peer: PeerClient) -> None:
    mortal = apache.add_bookie()
    client = peer.client(apache.uri)
    ledger = client.create(ensemble_size=4, write_quorum_size=3)
    ledger.add(50, PATTERN)
    (spare,) = apache.start(1)
    mortal.kill()
    ledger.add(50, PATTERN, first=50)
    ledger.close()
    *_, (changed_at, members) = client.metadata(ledger.ledger_id)["ensembles"].items()
    assert changed_at > 0
    assert spare.bookie_id in members
    assert mortal.bookie_id not in members
    mortal.start()
    assert mortal.bookie_id in client.bookies()["writable"]
    assert client.open(ledger.ledger_id).read(0, 99).checksum == PATTERN.checksum(0, 99)


def test_only_a_bookie_in_a_jvm_of_its_own_can_be_killed(apache: ApacheCluster) -> None:
    with pytest.raises(KitError, match="add_bookie"):
        apache.bookies[0].kill()


def test_apaches_shell_and_benchmarks_run(apache: ApacheCluster) -> None:
    printed = apache.shell("listbookies", "-rw").checked()
    assert [bookie.bookie_id for bookie in apache.bookies if bookie.bookie_id not in printed] == []
    assert apache.shell("nosuchcommand").code != 0
    load = ("-time", "1", "-entrysize", "100", "-ensemble", "3", "-quorum", "3", "-ackQuorum", "2", "-skipwarmup")
    where = ("-zookeeper", apache.servers, "-latencyFile", str(apache.path / "latencies"))
    assert "completions in" in apache.benchmark("BenchThroughputLatency", *where, *load, within_s=60).checked()


def test_who_waits_for_a_jvm_that_dies_hears_of_it(apache: ApacheCluster) -> None:
    peer = apache.peer_client()
    peer.wait_started()
    peer.pause()
    waiting = peer.submit("list", client=1)
    peer.kill()
    with pytest.raises(KitError, match="has ended"):
        waiting.result(10)
    with pytest.raises(KitError, match="has ended"):
        peer.call("list", client=1)
