# SPDX-License-Identifier: Apache-2.0
"""What deals with requests knows who asks, on every port."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from bk_core.access.tls import Admission
from bk_core.cluster.admin_ports import AdminPorts
from bk_core.model import BOOKIE_RPC, DIRECT, Endpoint
from bk_core.transport.lanes import LANES
from bookie_server.admin.http.server import HttpAnswer, HttpRequest, HttpServer
from bookie_server.main import Bookie
from bookie_server.ports.access.principal import Principal, Proof
from bookie_server.ports.access.tls import PortTls
from tests.kit.certificates import Authority
from tests.kit.lanes import lane_to, running_bookie
from tests.kit.tls_world import tls_bookie

URI = "spiffe://example.org/ingest"


def _principals(bookie: Bookie) -> list[Principal]:
    return [each.principal for each in bookie._engine._streams.values()]


def _host(lane: str) -> str:
    return "a client on this machine" if lane == DIRECT else "127.0.0.1"


@pytest.mark.parametrize("lane", LANES)
async def test_every_stream_of_a_client_knows_the_identity_of_its_certificate(lane: str, tmp_path: Path) -> None:
    async with tls_bookie(tmp_path, tls_identity="spiffe") as world:
        client = world.authority.issue("client", uris=(URI,)).tls()
        async with world.lane(lane, client) as opened:
            await opened.write(7, 0, [b"x"])
            await opened.read(7, 0, 0)
            await opened.link.bookie_info(deadline_s=5)
            found = _principals(world.bookie)
            assert len(found) == (1 if lane == BOOKIE_RPC else 3)
            assert {(each.identity, each.proof, each.host) for each in found} == {(URI, Proof.CERTIFICATE, _host(lane))}
            assert lane == DIRECT or all(each.peer.rpartition(":")[2].isdigit() for each in found)


@pytest.mark.parametrize("lane", LANES)
async def test_a_client_that_proves_nothing_has_an_address_and_no_identity(lane: str, tmp_path: Path) -> None:
    async with (
        tls_bookie(tmp_path, tls_client_auth="none") as world,
        world.lane(lane, world.server.trust()) as opened,
    ):
        await opened.link.bookie_info(deadline_s=5)
        (found,) = _principals(world.bookie)
        assert (found.identity, found.proof, found.host) == (None, Proof.NONE, _host(lane))


@pytest.mark.parametrize("lane", LANES)
async def test_a_client_of_a_plain_port_has_an_address_too(lane: str, tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as (bookie, store):
        client = lane_to(store, bookie.bookie_id, lane)
        await client.link.bookie_info(deadline_s=5)
        (found,) = _principals(bookie)
        assert (found.identity, found.host) == (None, _host(lane))
        await client.transport.close()


async def test_a_request_of_the_admin_port_says_who_asks(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    port_tls = PortTls(authority.issue("server").tls(), Admission("subject"))

    def answer(request: HttpRequest) -> HttpAnswer:
        asks = request.principal
        return HttpAnswer(200, json.dumps([asks.identity, asks.proof.value, asks.host]))

    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = Endpoint("httpserver", "127.0.0.1", listener.getsockname()[1], "http")
    server = HttpServer(listener, answer, answer, tls=port_tls, free=("/live",))
    server.start()

    async def ask(path: str, tls: Any) -> Any:
        return json.loads(await AdminPorts(5, tls).get(endpoint, path))

    try:
        client = authority.issue("client").tls()
        assert await ask("/x", client) == ["CN=client,O=Example", "certificate", "127.0.0.1"]
        assert await ask("/live", authority.issue("x").trust()) == [None, "none", "127.0.0.1"]
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("peer", "host"), [("10.0.0.1:4711", "10.0.0.1"), ("::1:4711", "::1"), ("a client on this machine",) * 2]
)
def test_the_host_of_a_principal_has_no_port(peer: str, host: str) -> None:
    assert Principal(peer).host == host
