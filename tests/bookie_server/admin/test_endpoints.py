# SPDX-License-Identifier: Apache-2.0
"""The admin port of a bookie that runs: metrics, health, settings, and that it is gone when the bookie is."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest

from bk_cli.local.children import free_port
from bk_core.errors import PortInUseError, StorageFailedError
from bk_core.metadata.layout import mark_path
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieServiceInfo
from bookie_server.admin import health
from bookie_server.admin.bookie_metrics import METRICS, REQUESTS
from bookie_server.admin.endpoints import MAY_WRITE, _shown
from bookie_server.admin.health import BEAT_S, READ_ONLY_S, STALLED_S, BookieHealth, Pulse
from bookie_server.autorecovery import settings
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from bookie_server.config import BookieConfig
from bookie_server.main import Bookie
from tests.kit.lanes import Listener, bookie_config, lane_to
from tests.kit.memory_store import MemoryCluster, MemoryStore
from tests.kit.metadata_worlds import tree_of
from tests.kit.prometheus_text import Family, parse

ROOT = Path(__file__).parents[3]
OPERATING = (ROOT / "docs" / "bookie.md").read_text(encoding="utf-8")


async def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert f"Content-Length: {len(body)}".encode() in head
    return int(head.split()[1]), body.decode()


async def scraped(port: int) -> dict[str, Family]:
    status, text = await get(port, "/metrics")
    assert status == 200
    return parse(text)


async def test_metrics_count_what_a_client_did(store: MetadataStore, tmp_path: Path, uri: str) -> None:
    port = free_port()
    bookie = await Bookie.start(bookie_config(tmp_path, uri, admin_port=port))
    before = await scraped(port)
    lane, listener = lane_to(store, bookie.bookie_id), Listener()
    session = lane.attach(7, listener)
    lane.send(session, 7, 0, [b"a" * 100, b"b" * 100, b"c" * 100])
    await listener.acked(session, 1)
    assert (await lane.read(7, 0, 2))[0] == {0: b"a" * 100, 1: b"b" * 100, 2: b"c" * 100}
    found = await scraped(port)
    refused = lane.attach(7, listener, key=b"k" * 20)
    await listener.until(lambda said: any(words[0] == "ended" and words[1] == refused for words in said))
    after = await scraped(port)
    await lane.transport.close()
    await bookie.stop()

    assert before["bookkeeper_server_ADD_ENTRY_REQUEST_count"].value(success="true") == 0
    assert found["bookkeeper_server_ADD_ENTRY_REQUEST_count"].value(success="true") == 3
    assert found["bookie_WRITE_BYTES"].value() >= 300
    assert found["bookie_READ_BYTES"].value() >= 300
    for kind in ("attach", "add", "read"):
        assert found["bookie_requests_total"].value(kind=kind) == 1
    commits = found["bookie_commit_seconds"]
    assert commits.samples["bookie_commit_seconds_count", (("directory", str(tmp_path / "bookie")),)] >= 1
    assert found["bookie_commit_frames_total"].value() == 2, "the frame, and the record of the key"
    assert found["bookie_ledgers_count"].value() == 1
    assert found["bookie_sessions"].value() == 1
    assert found["bookkeeper_server_SERVER_STATUS"].value() == 1
    assert found["bookie_ready"].value() == 1
    assert found["bookie_directory_writable"].value(directory=str(tmp_path / "bookie")) == 1
    assert found["bookie_storage_segments_unsealed"].value() >= 1
    assert "bookie_adds_refused_total" not in found
    assert after["bookie_adds_refused_total"].value(reason="UNAUTHORIZED") == 1


@pytest.mark.rule("M6")
async def test_metrics_count_the_nodes_that_cannot_be_read(
    store: MetadataStore, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "AutoRecoveryConfig", partial(AutoRecoveryConfig, poll_s=0.05))
    port = free_port()
    bookie = await Bookie.start(bookie_config(tmp_path, uri, admin_port=port, auto_recovery=True))
    assert (await scraped(port))["bookie_metadata_unreadable_nodes"].value(kind="under-replication mark") == 0
    store.mark_underreplicated(5, ["b1"])
    tree_of(store).set(f"/ledgers/underreplication/ledgers{mark_path(5)}", b"garbage", -1)
    async with asyncio.timeout(20):
        while (await scraped(port))["bookie_metadata_unreadable_nodes"].value(kind="under-replication mark") != 1:
            await asyncio.sleep(0.02)
    await bookie.stop()


async def test_what_the_paths_say_while_a_bookie_serves_and_after_a_failure(
    store: MetadataStore, tmp_path: Path, uri: str
) -> None:
    port = free_port()
    config = bookie_config(tmp_path, uri, admin_port=port)
    bookie = await Bookie.start(config)
    (info,) = store.writable_bookies().values()
    admin = info.endpoint("http")
    assert (admin.id, admin.host, admin.port) == ("httpserver", "127.0.0.1", port)
    listed = (await get(port, "/paths"))[1].split()
    questions = [path for path in listed if path.startswith("/page/")]
    answered = [path for path in listed if path not in questions]
    assert "/" in answered
    assert questions
    assert {path: (await get(port, path))[0] for path in answered} == dict.fromkeys(answered, 200)
    assert await get(port, "/heartbeat") == (200, "OK\n")
    assert await get(port, "/ready?why") == (200, "ready\n")
    state = json.loads((await get(port, "/api/v1/bookie/state"))[1])
    writable = {"running": True, "readOnly": False, "shuttingDown": False, "availableForHighPriorityWrites": True}
    assert state == writable
    space = json.loads((await get(port, "/api/v1/bookie/info"))[1])
    assert 0 < space["freeSpace"] <= space["totalSpace"]
    shown = json.loads((await get(port, "/config"))[1])
    assert shown.keys() >= {field.name for field in fields(BookieConfig)}
    assert shown["bookie_id"] == bookie.bookie_id
    assert (await get(port, "/nothing"))[0] == 404
    assert (await get(port, "/api/v1/bookie/gc", "PUT"))[0] == 405

    bookie._fail(StorageFailedError("the disk failed"))
    status, why = await get(port, "/ready")
    assert status == 503
    assert "the disk failed" in why
    assert (await get(port, "/api/v1/bookie/is_ready"))[0] == 503
    assert (await get(port, "/live"))[0] == 200, "it ends by itself, with an exit code of its own"
    await bookie.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)


async def test_a_log_level_is_set_only_where_that_is_allowed(store: MetadataStore, tmp_path: Path, uri: str) -> None:
    port, name = free_port(), "bookie_server.main"
    bookie = await Bookie.start(bookie_config(tmp_path, uri, admin_port=port, admin_writes="loopback"))
    asked = f"/log/level?logger={name}&level="
    before = logging.getLogger(name).level
    status, said = await get(port, f"{asked}debug", "PUT")
    assert (status, logging.getLogger(name).level) == (200, logging.DEBUG)
    assert json.loads(said)["loggers"] == {name: "DEBUG"}
    assert (await get(port, "/log/level")) == (200, said)
    for bad in ("level=loud", "", "level=debug&logger=nobody", f"logger={name}"):
        assert (await get(port, f"/log/level?{bad}", "PUT"))[0] == 400
    assert (await get(port, "/config", "PUT"))[0] == 405
    assert (await get(port, f"{asked}BACK", "PUT"))[0] == 200
    assert (logging.getLogger(name).level, json.loads((await get(port, "/log/level"))[1])["loggers"]) == (
        before,
        {},
    )
    await bookie.stop()


@pytest.mark.parametrize(
    ("setting", "address", "may"),
    [
        ("off", "127.0.0.1", False),
        ("loopback", "127.0.0.1", True),
        ("loopback", "::1", True),
        ("loopback", "::ffff:10.0.0.7", False),
        ("loopback", "10.0.0.7", False),
        ("any", "10.0.0.7", True),
    ],
)
def test_who_may_write(setting: str, address: str, may: bool) -> None:
    assert MAY_WRITE[setting](address) is may


async def test_slow_operations_are_logged_with_the_clients_session(
    store: MetadataStore, tmp_path: Path, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with caplog.at_level(logging.WARNING, "bookie_server.slow"):
        bookie = await Bookie.start(bookie_config(tmp_path, uri, admin_port=port, slow_operation_ms=0.001))
        lane, listener = lane_to(store, bookie.bookie_id), Listener()
        session = lane.attach(7, listener)
        lane.send(session, 7, 40, [b"a" * 100_000, b"b"])
        await listener.acked(session, 1)
        found = await scraped(port)
        await lane.transport.close()
        await bookie.stop()
    lines = [record.getMessage() for record in caplog.records if record.name == "bookie_server.slow"]
    (line,) = [each for each in lines if f"ledger 7 session {session} 2 entries from 40 on" in each]
    assert line.startswith(f"slow: commit in {tmp_path / 'bookie'} of ")
    assert " ms until it began, " in line
    assert found["bookie_slow_operations_total"].value() >= 1


class Curious(MemoryStore):
    """Asks a bookie that registers whether it is ready."""

    port = 0
    answer = (0, "")

    def register_bookie(self, info: BookieServiceInfo, *, read_only: bool = False) -> None:
        self.answer = asyncio.run(get(self.port, "/ready"))
        super().register_bookie(info, read_only=read_only)


async def test_a_bookie_is_not_ready_before_it_is_registered(tmp_path: Path, uri: str) -> None:
    store = Curious(MemoryCluster())
    store.initialize_cluster()
    store.port = free_port()

    bookie = await Bookie.start(bookie_config(tmp_path, uri, admin_port=store.port), store)
    assert (await get(store.port, "/ready"))[0] == 200
    await bookie.stop()
    assert store.answer[0] == 503
    assert "it is starting" in store.answer[1]


def test_a_user_and_a_password_in_the_uri_are_not_shown() -> None:
    assert _shown("zk://admin:secret@zk1:2181/ledgers") == "zk://zk1:2181/ledgers"
    assert _shown("zk://zk1:2181/ledgers") == "zk://zk1:2181/ledgers"


@pytest.mark.long
async def test_a_loop_that_stands_is_told_while_it_stands(
    store: MetadataStore, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port has a loop of its own."""
    stalled_s = 0.5
    monkeypatch.setattr(health, "STALLED_S", stalled_s)

    def look(port: int) -> tuple[int, str, dict[str, Family]]:
        time.sleep(stalled_s + BEAT_S + 0.2)
        status, why = asyncio.run(get(port, "/ready"))
        return status, why, asyncio.run(scraped(port))

    port = free_port()
    bookie = await Bookie.start(bookie_config(tmp_path, uri, admin_port=port))
    looking = asyncio.create_task(asyncio.to_thread(look, port))
    await asyncio.sleep(0)
    time.sleep(stalled_s + BEAT_S + 1)
    status, why, found = await looking
    assert status == 503
    assert "the loop has not run" in why
    assert found["bookie_loop_silent_seconds"].value() >= stalled_s
    assert found["bookie_ready"].value() == 0
    await asyncio.sleep(2 * BEAT_S)
    assert (await get(port, "/ready"))[0] == 200
    assert (await scraped(port))["bookie_loop_stalls_total"].value() >= 1
    await bookie.stop()


def test_a_port_in_use_is_noticed_before_anything_is_written(store: MetadataStore, tmp_path: Path, uri: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match="--admin-port"):
            asyncio.run(Bookie.start(bookie_config(tmp_path, uri, admin_port=port)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("health", "word"),
    [
        (BookieHealth(serves=True, stops=False), ""),
        (BookieHealth(serves=False, stops=False), "it is starting"),
        (BookieHealth(serves=True, stops=True), "it is stopping"),
        (BookieHealth(serves=True, stops=False, failed="a sync failed"), "a sync failed"),
        (BookieHealth(serves=True, stops=False, silent_s=STALLED_S), "loop"),
        (BookieHealth(serves=True, stops=False, read_only="disk full", read_only_s=READ_ONLY_S - 1), ""),
        (BookieHealth(serves=True, stops=False, read_only="disk full", read_only_s=READ_ONLY_S), "disk full"),
        (BookieHealth(serves=False, stops=True, failed="a sync failed"), "a sync failed"),
    ],
)
def test_ready_says_what_is_in_the_way(health: BookieHealth, word: str) -> None:
    assert (word in health.not_ready()) if word else health.not_ready() == ""


def test_pulse_knows_since_when_a_bookie_is_read_only_and_how_late_its_loop_was() -> None:
    now, why = [100.0], [""]
    pulse = Pulse(lambda: why[0], lambda: now[0])
    pulse.beat()
    assert (pulse.silent_s, pulse.read_only_s) == (0, 0)
    now[0], why[0] = 104.5, "the disk is full"
    assert pulse.silent_s == 4
    pulse.beat()
    now[0] = 110.0
    pulse.beat()
    assert (pulse.read_only_s, pulse.stalls, pulse.late_max_s) == (5.5, 2, 5)
    why[0] = ""
    pulse.beat()
    assert pulse.read_only_s == 0


def test_every_metric_is_in_the_page_for_operators() -> None:
    (chapter,) = re.findall(r"^### Metrics\n(.*?)^##", OPERATING, re.DOTALL | re.MULTILINE)
    items = re.findall(r"^- (`.*?): ", chapter, re.DOTALL | re.MULTILINE)
    listed = [name for item in items for name in re.findall(r"`(\w+)`", item)]
    declared = [metric for metric in METRICS if not metric.name.startswith("bookie_storage_")]
    assert sorted(listed) == sorted(metric.name for metric in declared)
    (apache,) = re.findall(r"^Apache's names: (.*?)\.$", chapter, re.DOTALL | re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", apache)) == sorted(metric.name for metric in METRICS if metric.apache)
    (kinds,) = re.findall(r"`bookie_requests_total`: by `kind`: (.*?)\.$", chapter, re.DOTALL | re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", kinds)) == sorted(REQUESTS)


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    (path,) = (ROOT / "docs" / "grafana").glob("*.json")
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    histograms = [metric.name for metric in METRICS if metric.kind == "histogram"]
    names = {metric.name for metric in METRICS} | {name + "_bucket" for name in histograms}
    used = {name for query in queries for name in re.findall(r"\b(?:bookie|bookkeeper|replication|process)_\w+", query)}
    assert len(queries) >= 10
    assert used - names == set()


async def test_who_asks_the_admin_port_too_often_waits_and_probes_do_not(
    store: MetadataStore, tmp_path: Path, uri: str
) -> None:
    port = free_port()
    config = bookie_config(tmp_path, uri, admin_port=port, requests_per_s_per_address_max=3)
    bookie = await Bookie.start(config)
    answers = [await get(port, "/api/v1/bookie/state") for _ in range(12)]
    assert [status for status, _ in answers[:3]] == [200, 200, 200]
    assert answers[-1][0] == 429
    assert "requests_per_s_per_address_max=3 is reached by 127.0.0.1" in answers[-1][1]
    assert (await get(port, "/live"))[0] == 200
    await bookie.stop()
