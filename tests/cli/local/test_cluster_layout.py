# SPDX-License-Identifier: Apache-2.0
"""What a local cluster's directory remembers and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from bk_cli.local import cluster_layout
from bk_cli.local.cluster_layout import ClusterLayout, WantedCluster
from bk_core.errors import DataDirectoryError, InvalidArgumentError

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.rule("E2")
def test_four_bookies_by_default_three_for_a_ledger_and_a_spare(tmp_path: Path) -> None:
    assert cluster_layout.choose(tmp_path, WantedCluster()) == ClusterLayout(2181, (3181, 3182, 3183, 3184))


def test_free_ports_are_all_different(tmp_path: Path) -> None:
    layout = cluster_layout.choose(tmp_path, WantedCluster(bookies=20, port=0, zookeeper_port=0))
    assert len({layout.zookeeper_port, *layout.bookie_ports}) >= 20
    low = 32_768 if not RANGE.exists() else int(RANGE.read_text(encoding="ascii").split()[0])
    others = [port + above for port in layout.bookie_ports for above in cluster_layout.PORTS_ABOVE]
    taken = [port for port in (layout.zookeeper_port, *layout.bookie_ports, *others) if not 0 < port < low]
    assert taken == [], "a client's own end of a connection may take it before the bookie starts"


def test_a_restart_has_the_ports_of_the_first_start(tmp_path: Path) -> None:
    first = ClusterLayout(12181, (13181, 13182, 13183))
    cluster_layout.save(tmp_path, first)
    assert cluster_layout.choose(tmp_path, WantedCluster()) == first
    assert cluster_layout.choose(tmp_path, WantedCluster(port=0, zookeeper_port=0, bookies=3)) == first
    assert cluster_layout.choose(tmp_path, WantedCluster(bookies=4)).bookie_ports == (13181, 13182, 13183, 13184)


@pytest.mark.parametrize(
    "wanted",
    [
        WantedCluster(port=3181),
        WantedCluster(zookeeper_port=2181),
        WantedCluster(bookies=2),
        WantedCluster(zookeeper_uri="zk://elsewhere:2181/ledgers"),
        WantedCluster(secure=True),
    ],
)
def test_what_differs_from_the_first_start_is_refused(tmp_path: Path, wanted: WantedCluster) -> None:
    cluster_layout.save(tmp_path, ClusterLayout(12181, (13181, 13182, 13183)))
    with pytest.raises(InvalidArgumentError, match="--data"):
        cluster_layout.choose(tmp_path, wanted)


def test_a_secure_cluster_stays_one_and_has_bookies_and_a_zookeeper_of_its_own(tmp_path: Path) -> None:
    first = cluster_layout.choose(tmp_path, WantedCluster(secure=True))
    cluster_layout.save(tmp_path, first)
    assert first.secure
    assert cluster_layout.choose(tmp_path, WantedCluster()) == first
    for wanted in (
        WantedCluster(secure=True, apache=True),
        WantedCluster(secure=True, zookeeper_uri="zk://elsewhere:2181/ledgers"),
    ):
        with pytest.raises(InvalidArgumentError, match="--secure is for"):
            cluster_layout.choose(tmp_path / "new", wanted)


def test_another_zookeeper_must_be_named_again(tmp_path: Path) -> None:
    cluster_layout.save(tmp_path, ClusterLayout(0, (13181,)))
    with pytest.raises(InvalidArgumentError, match="--zookeeper is missing"):
        cluster_layout.choose(tmp_path, WantedCluster())


def test_a_directory_holds_one_cluster_at_a_time(tmp_path: Path) -> None:
    held = cluster_layout.lock(tmp_path)
    with pytest.raises(DataDirectoryError, match="another bk local"):
        cluster_layout.lock(tmp_path)
    held.close()
    cluster_layout.lock(tmp_path).close()


@pytest.mark.parametrize("text", ["", "[]", '{"zookeeper_port": 1}', '{"zookeeper_port": 1, "bookie_ports": ["x"]}'])
def test_a_damaged_record_is_an_error_not_a_new_cluster(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(DataDirectoryError, match=r"cluster\.json"):
        cluster_layout.choose(tmp_path, WantedCluster())
