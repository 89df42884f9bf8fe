# SPDX-License-Identifier: Apache-2.0
"""Clients on the bookie's machine come past its network, and never to another bookie; all others come by its port."""

from __future__ import annotations

import asyncio
import errno
import socket
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from bk_core.model import DIRECT, BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lane import same_host
from bk_core.transport.lane.direct import _local
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.reasons import Reason
from bookie_server.main import Bookie
from bookie_server.ports.lane.direct import DirectServer
from tests.kit.direct_client import direct
from tests.kit.lanes import running_bookie
from tests.kit.waiting import eventually


def lane(bookie: Bookie) -> DirectServer:
    return next(each for each in bookie._services if isinstance(each, DirectServer))


def published(bookie: Bookie) -> Endpoint:
    """What its registration says of the direct lane."""
    return bookie._store.bookie_info(bookie.bookie_id).endpoint(DIRECT)


async def came_locally(bookie: Bookie, endpoint: Endpoint) -> bool:
    """Whether a client that is told of this endpoint comes past the network. It is served either way."""
    transport = LaneTransport(Caller(lanes=(DIRECT,), connect_timeout_s=5))
    transport.update_bookies([BookieServiceInfo(bookie.bookie_id, (endpoint,))])
    try:
        await transport.link(bookie.bookie_id).bookie_info(deadline_s=5)
        (connection,) = lane(bookie).opened
        return connection.is_local
    finally:
        await transport.close()
        await eventually(lambda: not lane(bookie).opened)


async def test_a_client_on_the_same_machine_comes_past_the_network_by_itself(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as (bookie, _):
        assert await came_locally(bookie, published(bookie))


@pytest.mark.parametrize(
    "extensions",
    [
        (),
        ("local=",),
        ("local=somewhere",),
        ("local=somewhere;",),
        ("local=somewhere;{place}x",),
        ("local=nobody-listens-there;{place}",),
        ("other", "local=nobody-listens-there;{place}"),
        ("local={long};{place}",),
    ],
)
async def test_any_other_client_comes_by_the_port(tmp_path: Path, extensions: tuple[str, ...]) -> None:
    told = tuple(each.format(place=same_host.place(), long="x" * 500) for each in extensions)

    async with running_bookie(tmp_path) as (bookie, _):
        assert not await came_locally(bookie, replace(published(bookie), extensions=told))


async def test_a_name_of_another_machine_or_network_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever listens under that name here is taken for the bookie."""

    async with running_bookie(tmp_path) as (bookie, _):
        endpoint = published(bookie)
        for elsewhere in ("another-boot:4:f0000000", ""):
            with monkeypatch.context() as patched:
                patched.setattr(same_host, "place", lambda there=elsewhere: there)
                assert not await came_locally(bookie, endpoint)


@pytest.mark.rule("L1")
async def test_another_bookie_behind_the_name_is_noticed_by_its_hello(tmp_path: Path) -> None:
    async with running_bookie(tmp_path / "a") as (bookie, _), running_bookie(tmp_path / "b") as (other, _):
        mixed = replace(published(bookie), extensions=published(other).extensions)
        with pytest.raises(RefusedError) as told:
            await came_locally(bookie, mixed)
        assert told.value.reason is Reason.WRONG_BOOKIE


async def test_a_bookie_that_is_told_so_has_no_unix_socket(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, unix_socket=False) as (bookie, _):
        assert published(bookie).extensions == ()
        assert not await came_locally(bookie, published(bookie))


async def test_a_machine_without_such_sockets_has_the_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_host, "place", lambda: "")

    async with running_bookie(tmp_path) as (bookie, _):
        assert published(bookie).extensions == ()
        assert not await came_locally(bookie, published(bookie))


async def test_clients_of_this_machine_have_the_share_of_one_address(tmp_path: Path) -> None:
    async with running_bookie(tmp_path, connections_max=8, connections_per_address_max=2) as (bookie, _):
        address = same_host.address_of(published(bookie))
        streams = [await asyncio.open_unix_connection(address) for _ in range(3)]
        for _, writer in streams[:2]:
            writer.write(b"bkdl\x01\x01\0\0")
        await eventually(lambda: len(lane(bookie).opened) == 2)
        late = await asyncio.open_unix_connection(address)
        async with asyncio.timeout(3):
            assert await late[0].read(1) == b"", "there is room for two"
        async with direct(bookie, "Add") as by_port:
            assert not await by_port.is_over(0.2)
        for _, writer in (*streams, late):
            writer.close()


async def test_a_crowded_socket_is_not_taken_for_a_connection() -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        address = f"\0bookkeeper-{uuid.uuid4().hex}"
        listening.bind(address)
        listening.listen(0)
        waiting, code = [], 0
        while not code:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            code = waiting[-1].connect_ex(address)
        assert code == errno.EAGAIN
        with pytest.raises(OSError, match="not connected"):
            await _local(address)
        for each in waiting:
            each.close()
