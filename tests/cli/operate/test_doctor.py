# SPDX-License-Identifier: Apache-2.0
"""``bk doctor`` on a cluster whose bookies are stopped, gone, or answer for another."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.request import urlopen

import pytest

from bk_cli.local.cluster import LocalCluster
from bk_core.metadata import open_store
from bk_core.model import BookieServiceInfo, Endpoint
from bk_core.transport.lanes import endpoint_of
from tests.kit.clusters import temporary_cluster
from tests.kit.lane_table import PUBLISHED
from tests.kit.prometheus_text import parse

pytestmark = [pytest.mark.e2e, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of its own: its bookies are stopped and killed."""
    with temporary_cluster(tmp_path_factory) as running:
        yield running


def found(bk: Any, code: int = 0) -> list[tuple[str, str, str]]:
    assert bk("doctor") == code, bk.out
    return [(line[:5].strip(), line[6:16].strip(), line[17:]) for line in bk.out.splitlines()]


def test_bookies_that_are_well_say_who_they_are_and_what_room_they_have(bk: Any) -> None:
    bookies = [text for status, check, text in found(bk) if (status, check) == ("ok", "bookie")]
    assert len(bookies) == 4
    assert all(" ms, pyspark-bookkeeper" in text and text.endswith(" free") for text in bookies)


@pytest.mark.rule("E1")
def test_a_stopped_bookie_is_not_well_although_its_port_takes_connections(bk: Any, cluster: LocalCluster) -> None:
    victim = cluster.bookies[0]
    assert victim.pid
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        socket.create_connection(("127.0.0.1", victim.ports[0]), timeout=3).close()
        findings = found(bk, 5)
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    (failed,) = [text for status, _, text in findings if status == "fail"]
    with closing(open_store(cluster.uri)) as store:
        info = store.writable_bookies()[victim.bookie_id]
    there = endpoint_of(info)
    assert there
    assert failed.startswith(
        f"[BK_BOOKIE_UNREACHABLE] bookie {victim.bookie_id} at {there.host}:{there.port} cannot be "
    )
    assert f"from host {socket.gethostname()}" in failed
    assert ("note", "quorum") in [each[:2] for each in findings]


def test_a_port_where_another_bookie_answers_is_not_taken_for_the_one_that_is_meant(
    bk: Any, cluster: LocalCluster
) -> None:
    _, port, *_ = cluster.bookies[1].ports
    with closing(open_store(cluster.uri)) as store:
        store.register_bookie(BookieServiceInfo("b9", (Endpoint("grpc", "127.0.0.1", port, "grpc"),), {}))
        findings = found(bk, 5)
        store.unregister_bookie("b9")
    (failed,) = [text for status, _, text in findings if status == "fail"]
    assert f"this is bookie {cluster.bookies[1].bookie_id}, not 'b9'" in failed


def test_a_bookie_that_is_gone_is_named_and_what_that_means(bk: Any, cluster: LocalCluster) -> None:
    victim = cluster.bookies[3]
    assert victim.stop() == 0
    try:
        (failed,) = [text for status, _, text in found(bk, 5) if status == "fail"]
        assert f"bookie {victim.bookie_id} is known to this cluster and is not registered" in failed
    finally:
        victim.start()
        cluster.wait_ready([victim])


def test_the_list_and_the_admin_port_tell_the_same_of_a_bookie_that_is_well(bk: Any, cluster: LocalCluster) -> None:
    victim = cluster.bookies[2]
    (row,) = [each for each in bk.json("bookie", "list") if each["bookieId"] == victim.bookie_id]
    assert (row["state"], row["error"], row["underReplicated"]) == ("writable", None, 0)
    assert row["lanes"] == [*PUBLISHED]
    assert row["admin"] == f"http://127.0.0.1:{victim.port + 3000}"
    assert 0 < row["freeBytes"] <= row["totalBytes"]
    with urlopen(f"{row['admin']}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = parse(answer.read().decode())
    assert found["bookie_info"].value(bookie=victim.bookie_id, version=row["version"]) == 1
    assert found["bookkeeper_server_SERVER_STATUS"].value() == 1
    assert found["bookie_directory_usable_bytes"].value() > 0
    assert "bookie_storage_live_bytes" in found, "the loop was asked"
    with urlopen(f"{row['admin']}/ready", timeout=10) as answer:
        assert answer.read() == b"ready\n"
