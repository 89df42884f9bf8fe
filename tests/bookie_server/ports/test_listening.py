# SPDX-License-Identifier: Apache-2.0
"""Where ports listen: names and addresses of both kinds, and what a refusal says."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import urllib.request
from pathlib import Path
from typing import NoReturn

import pytest

from bk_cli.local.children import check_port_free, free_port
from bk_core.errors import BookKeeperError, InvalidArgumentError, Outcome, PortInUseError
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import legacy_service_info
from bk_core.model import BOOKIE_RPC, DIRECT, GRPC, HTTP, Endpoint, host_and_port
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LANES, LaneTransport
from bookie_server.main import Bookie
from bookie_server.ports.bounds.clients import Clients, ServerLimits
from bookie_server.ports.lane.grpc import GrpcServer
from bookie_server.ports.sockets import Acceptor, listening_socket
from tests.kit.lanes import Lane, bookie_config, lane_to


async def test_what_asyncio_accepts_sends_small_answers_without_delay() -> None:
    """A second small answer would wait for the acknowledgement of the first, which takes 40 ms on Linux."""
    set_on = list[int]()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    class Served(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            sock = transport.get_extra_info("socket")
            set_on.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()
            ended.set()

    async def greet(sock: socket.socket) -> None:
        await loop.connect_accepted_socket(Served, sock)

    def by_acceptor(listening: socket.socket) -> Acceptor:
        acceptor = Acceptor([listening], greet, lambda *_: False, "a port", 60.0)
        acceptor.start()
        return acceptor

    for address in "127.0.0.1", "::1":
        for by_asyncio in True, False:
            listening = listening_socket(address, 0, "--port")
            at = listening.getsockname()[:2]
            server = await loop.create_server(Served, sock=listening) if by_asyncio else by_acceptor(listening)
            ended.clear()
            _, writer = await asyncio.open_connection(*at)
            await ended.wait()
            writer.close()
            server.close() if isinstance(server, asyncio.Server) else server.stop()
    assert len(set_on) == 4
    assert all(set_on)


@pytest.mark.parametrize("written", ["::1", "[::1]"])
async def test_bookie_serves_every_lane_on_an_ipv6_address(
    store: MetadataStore, tmp_path: Path, uri: str, written: str
) -> None:
    config = bookie_config(
        tmp_path,
        uri,
        listen_address=written,
        advertised_address=written,
        admin_host=written,
        admin_port=free_port(),
    )
    bookie = await Bookie.start(config)
    (info,) = store.writable_bookies().values()
    assert info.bookie_id == f"[::1]:{bookie.port}"
    assert legacy_service_info(info.bookie_id).endpoints == (Endpoint("bookie", "::1", bookie.port, BOOKIE_RPC),)
    assert {endpoint.host for endpoint in info.endpoints} == {"::1"}
    assert {endpoint.protocol for endpoint in info.endpoints} == {BOOKIE_RPC, DIRECT, GRPC, HTTP}
    for ledger_id, name in enumerate(LANES):
        lane = lane_to(store, info.bookie_id, name)
        await lane.write(ledger_id, 0, [b"entry"])
        assert (await lane.read(ledger_id, 0, 0))[0] == {0: b"entry"}
        await lane.transport.close()
    admin = info.endpoint(HTTP)
    assert admin.url == f"http://[::1]:{config.admin_port}"
    assert await asyncio.to_thread(_get, f"{admin.url}/heartbeat") == b"OK\n"
    await bookie.stop()


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


def _listen(kind: str, address: str, port: int) -> None:
    if kind == "socket":
        listening_socket(address, port, "--port").close()
    else:
        asyncio.run(_listen_by_grpc(address, port))


async def _listen_by_grpc(address: str, port: int) -> None:
    server = GrpcServer(address, port, Clients(ServerLimits()))
    await server.stop(0)


@pytest.mark.parametrize("kind", ["socket", "grpc"])
@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_port_that_another_program_has_is_reported_as_such(kind: str, address: str) -> None:
    with listening_socket(address, 0, "--port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match="another program listens") as caught:
            _listen(kind, address, port)
    assert host_and_port(address.strip("[]"), port) in caught.value.value
    _listen(kind, address, port)


@pytest.mark.rule("E1")
@pytest.mark.parametrize("kind", ["socket", "grpc"])
@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("no-such-host.invalid", "the name to listen on cannot be resolved"),
        ("192.0.2.1", "this machine has no such address"),
        ("[2001:db8::1]", "this machine has no such address"),
        ("[::1", "the name to listen on cannot be resolved"),
    ],
)
def test_address_that_cannot_be_listened_on_is_no_port_in_use(kind: str, address: str, what: str) -> None:
    with pytest.raises(InvalidArgumentError, match=what) as caught:
        _listen(kind, address, free_port())
    assert address.strip("[]") in caught.value.value


def test_free_ports_are_looked_for_on_ipv6_too() -> None:
    port = free_port("::1")
    check_port_free("[::1]", port, "it")
    with socket.create_server(("::1", port), family=socket.AF_INET6), pytest.raises(PortInUseError):
        check_port_free("[::1]", port, "it")


@pytest.mark.rule("E1")
@pytest.mark.parametrize("name", LANES)
async def test_bookie_whose_host_does_not_resolve_is_said_to_be_that(name: str) -> None:
    transport = LaneTransport(Caller("cluster", lanes=(name,)))
    endpoint = Endpoint(name, "no-such-host.invalid", 3181, name)
    transport.update_bookies([legacy_service_info("x").__class__("b1", (endpoint,), {})])
    with pytest.raises(BookKeeperError) as caught:
        await Lane(name, transport, "b1").read(1, 0, 0)
    await transport.close()
    text = str(caught.value)
    assert "no-such-host.invalid" in text
    assert any(words in text for words in ("Name or service not known", "Domain name not found")), text


@pytest.mark.rule("E1")
@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.EACCES, "this process may not listen on the port"),
        (errno.EAFNOSUPPORT, "this machine has no such address"),
        (errno.ENOBUFS, "this process cannot listen on the port"),
    ],
)
def test_an_error_of_the_system_is_said_with_its_words(number: int, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(InvalidArgumentError, match=what) as caught:
        listening_socket("127.0.0.1", 0, "--port")
    assert os.strerror(number) in caught.value.value
    assert caught.value.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("begun", [False, True], ids=["before its first step", "while it waits"])
async def test_a_connection_whose_greeting_is_ended_by_a_stop_is_closed(begun: bool) -> None:
    accepted = list[socket.socket]()

    def is_full(sock: socket.socket, _: int) -> bool:
        accepted.append(sock)
        return False

    async def greet(_: socket.socket) -> None:
        await asyncio.Event().wait()

    listening = listening_socket("127.0.0.1", 0, "--port")
    acceptor = Acceptor([listening], greet, is_full, "a port", 60.0)
    with socket.create_connection(listening.getsockname()):
        acceptor.accept(listening)
        if begun:
            await asyncio.sleep(0)
        acceptor.stop()
        for _ in range(3):  # the task ends, then its callbacks run
            await asyncio.sleep(0)
        assert [sock.fileno() for sock in accepted] == [-1]
