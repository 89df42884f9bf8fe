# SPDX-License-Identifier: Apache-2.0
"""Starting a bookie: whose directory it is, what is refused before anything is written, what it publishes."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import uuid
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.errors import (
    BookieIdentityError,
    BookKeeperError,
    InvalidArgumentError,
    MetadataUnavailableError,
    PortInUseError,
)
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import decode_cookie
from bk_core.model import BOOKIE_RPC, INCARNATION_PROPERTY, BookieServiceInfo
from bookie_server.main import Bookie, run, started
from tests.kit.lane_table import PUBLISHED
from tests.kit.lanes import bookie_config
from tests.kit.waiting import eventually
from tests.kit.zookeeper_proxy import ZooKeeperProxy


async def started_once(store: MetadataStore, tmp_path: Path, uri: str, **changes: Any) -> BookieServiceInfo:
    """Start and stop a bookie; what it published meanwhile."""
    bookie = await Bookie.start(bookie_config(tmp_path, uri, **changes))
    info = store.writable_bookies()[bookie.bookie_id]
    await bookie.stop()
    return info


async def refused(tmp_path: Path, uri: str, error: type[BookKeeperError], **changes: Any) -> str:
    """The error of a start that must fail."""
    with pytest.raises(error) as caught:
        await Bookie.start(bookie_config(tmp_path, uri, **changes))
    return str(caught.value)


async def test_bookie_publishes_what_it_serves_and_leaves_when_it_stops(
    store: MetadataStore, tmp_path: Path, uri: str
) -> None:
    info = await started_once(store, tmp_path, uri)
    endpoint = info.endpoint(BOOKIE_RPC)
    assert info.bookie_id == f"127.0.0.1:{endpoint.port}", "clients of Apache's find a bookie by its id"
    assert [e.protocol for e in info.endpoints] == [*PUBLISHED], "only what is served"
    assert uuid.UUID(info.properties[INCARNATION_PROPERTY])
    assert store.writable_bookies() == {}


@pytest.mark.rule("S8")
async def test_id_is_fixed_at_the_first_start_and_boots_are_counted(
    store: MetadataStore, tmp_path: Path, uri: str
) -> None:
    first = await started_once(store, tmp_path, uri)
    second = await started_once(store, tmp_path, uri, advertised_address="127.0.0.2")
    assert second.bookie_id == first.bookie_id
    assert second.properties == first.properties
    endpoint = second.endpoint("grpc")
    assert endpoint.host == "127.0.0.2"
    record = store.read_bookie_state(first.bookie_id)
    assert json.loads(record.value)["boot_count"] == 2
    cookie = store.read_cookie(first.bookie_id)
    assert decode_cookie(cookie.value).bookie_host == first.bookie_id


@pytest.mark.rule("S8", "M3")
async def test_copy_of_a_directory_is_refused_while_its_original_is_alive(
    store: MetadataStore, tmp_path: Path, uri: str
) -> None:
    """The original goes on, and starts again afterwards: the copy's try has changed nothing."""

    bookie = await Bookie.start(bookie_config(tmp_path, uri, bookie_id="one"))
    shutil.copytree(tmp_path / "bookie", tmp_path / "copy" / "bookie")
    copied = contents(tmp_path / "copy")
    with pytest.raises(BookieIdentityError) as caught:
        await Bookie.start(bookie_config(tmp_path / "copy", uri, session_timeout_s=0.3))
    assert "running already" in str(caught.value)
    assert f"127.0.0.1:{bookie.port}" in str(caught.value)
    assert contents(tmp_path / "copy") == copied
    assert list(store.writable_bookies()) == ["one"]
    await bookie.stop()
    await started_once(store, tmp_path, uri)


@pytest.mark.rule("S8")
async def test_directory_that_was_moved_is_waited_for_and_then_taken(
    store: MetadataStore, tmp_path: Path, uri: str
) -> None:
    """What a killed process of the directory, where it lay before, has left in the store goes with its session."""
    await started_once(store, tmp_path, uri, bookie_id="one")
    (tmp_path / "moved").mkdir()
    shutil.copytree(tmp_path / "bookie", tmp_path / "moved" / "bookie")
    left = open_store(uri)
    left.register_bookie(BookieServiceInfo("one", (), {INCARNATION_PROPERTY: "the old one"}))

    starting = asyncio.create_task(Bookie.start(bookie_config(tmp_path / "moved", uri, session_timeout_s=20)))
    await asyncio.sleep(0.3)
    assert not starting.done()
    left.close()
    async with asyncio.timeout(10):
        await (await starting).stop()


def contents(path: Path) -> dict[str, bytes]:
    """Every file, but for the lock's and what is longer than a small file."""
    return {str(p): p.read_bytes() for p in path.rglob("*") if p.is_file() and p.stat().st_size < 1 << 16}


async def test_used_directory_whose_cookie_is_gone_is_refused(store: MetadataStore, tmp_path: Path, uri: str) -> None:
    await started_once(store, tmp_path, uri, bookie_id="one")
    store.delete_cookie("one")
    await refused(tmp_path, uri, BookieIdentityError)


async def test_port_in_use_is_known_before_anything_is_written(store: MetadataStore, tmp_path: Path, uri: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = await refused(tmp_path, uri, PortInUseError, port=taken.getsockname()[1])
    assert str(taken) or message
    assert not (tmp_path / "bookie").exists()
    assert store.writable_bookies() == {}


async def test_an_advertised_address_that_this_host_does_not_know_is_warned_of(
    store: MetadataStore, tmp_path: Path, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistyped name would be found out by clients only. It may be right all the same: known only where they are."""
    await started_once(store, tmp_path, uri)
    assert "advertised address" not in caplog.text
    await started_once(store, tmp_path / "other", uri, advertised_address="no-such-host.invalid", bookie_id="b2")
    assert "this host cannot resolve the advertised address no-such-host.invalid" in caplog.text


@pytest.mark.rule("E3")
@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
async def test_loopback_address_is_not_registered_unless_allowed(
    store: MetadataStore, tmp_path: Path, uri: str, address: str
) -> None:
    message = await refused(tmp_path, uri, InvalidArgumentError, advertised_address=address, allow_loopback=False)
    assert "--allow-loopback" in message
    assert not (tmp_path / "bookie").exists()


def test_start_without_a_store_says_that_it_tries_again_and_fails_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(MetadataUnavailableError):
        run(bookie_config(tmp_path, "zk://127.0.0.1:1/ledgers", metadata_timeout_s=0.3, start_wait_s=0.5))
    assert "the start is retried for up to 0 s" in caplog.text
    assert not (tmp_path / "bookie").exists()


@pytest.mark.zookeeper
async def test_start_waits_for_a_store_that_comes_late(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a power cut the machines of a cluster start together, and ZooKeeper's is not the first."""
    proxy = ZooKeeperProxy(zookeeper_server.host, zookeeper_server.port)
    proxy.cut()
    with closing(open_store(f"zk://{zookeeper_server.connect_string}/late/ledgers")) as watcher:
        watcher.initialize_cluster()
        config = bookie_config(tmp_path, f"zk://127.0.0.1:{proxy.port}/late/ledgers", metadata_timeout_s=1.0)
        starting = asyncio.create_task(started(partial(Bookie.start, config), 30.0, asyncio.Event()))
        await eventually(lambda: "the start is retried" in caplog.text, 20)
        proxy.restore()
        bookie = await starting
        assert list(watcher.writable_bookies()) == [bookie.bookie_id]
        await bookie.stop()
    proxy.close()


async def test_start_that_waits_for_a_store_ends_when_asked_to(tmp_path: Path) -> None:
    stop = asyncio.Event()
    config = bookie_config(tmp_path, "zk://127.0.0.1:1/ledgers", metadata_timeout_s=0.3)
    starting = asyncio.create_task(started(partial(Bookie.start, config), 60.0, stop))
    stop.set()
    async with asyncio.timeout(20):
        assert await starting is None
