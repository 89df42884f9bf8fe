# SPDX-License-Identifier: Apache-2.0
"""Every port of a bookie over TLS, on real sockets: who is served, who is refused, and what each end says of it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest

from bk_cli.local.children import free_port
from bk_core.access.needs import FREE_PATHS
from bk_core.client import ClientConfig, connect
from bk_core.cluster.admin_ports import AdminPorts
from bk_core.errors import AuthenticationError, BookKeeperError, QuorumError, TlsError, TransportError
from bk_core.metadata.records import legacy_service_info
from bk_core.model import BOOKIE_RPC, DIRECT, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LANES, LaneTransport
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.direct_messages import preamble
from bk_core.wire.lane.reasons import Reason
from tests.kit import bookie_requests as make
from tests.kit.amount import some
from tests.kit.bookie_wire import answer_of
from tests.kit.certificates import Authority
from tests.kit.direct_client import DirectClient, direct
from tests.kit.lanes import Listener, lane_port, open_lane
from tests.kit.tls_world import tls_bookie

on_each = pytest.mark.parametrize("lane", LANES)
MIB = 1 << 20


@on_each
async def test_entries_of_every_size_go_there_and_back(lane: str, tmp_path: Path) -> None:
    async with tls_bookie(tmp_path) as world:
        client = world.authority.issue("client")
        entries = [bytes([n % 251]) * size for n, size in enumerate((0, 1, 100, 16_383, 16_385, 300_000, 2 * MIB))]
        async with world.lane(lane, client.tls()) as opened:
            listener = Listener()
            session = opened.attach(7, listener)
            for n, entry in enumerate(entries):
                opened.send(session, 7, n, [entry])
            await listener.acked(session, len(entries))
            reads = [opened.read(7, 0, len(entries) - 1, bytes_max=8 * MIB) for _ in range(4)]
            for found, _ in await asyncio.gather(*reads):
                assert [found[n] for n in range(len(entries))] == entries


@on_each
async def test_a_client_without_tls_is_refused(lane: str, tmp_path: Path) -> None:
    async with tls_bookie(tmp_path) as world:
        with pytest.raises(TlsError if lane != BOOKIE_RPC else AuthenticationError) as told:
            await world.ask(lane, None)
        assert "tls_ca_path" in str(told.value) or "this client to authenticate" in str(told.value)
        with pytest.raises(BookKeeperError) as untold:
            await world.ask(lane, None, forget_tls=True)
        if lane == DIRECT:
            assert isinstance(untold.value, AuthenticationError)
            assert "speaks TLS" in str(untold.value)


@on_each
async def test_a_client_with_tls_never_falls_back(lane: str, tmp_path: Path) -> None:
    """The bookie has no TLS; whatever it says, nothing is sent in plain."""
    authority = Authority(tmp_path / "pki")

    async with asyncio.timeout(20), open_lane(lane, tmp_path) as plain:
        there = plain.transport
        info = legacy_service_info(plain.bookie_id) if lane == BOOKIE_RPC else there._whereabouts.get(plain.bookie_id)
        transport = LaneTransport(Caller(lanes=(lane,), tls=authority.issue("client").tls(), connect_timeout_s=3))
        transport.update_bookies([info])
        try:
            with pytest.raises(TlsError, match="TLS"):
                await transport.link(plain.bookie_id).bookie_info(deadline_s=5)
        finally:
            await transport.close()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"begins_h": -48, "ends_h": -24}, "has expired"),
    "not yet": ({"begins_h": 24, "ends_h": 48}, "not valid yet"),
    "another host": ({"hosts": ("bookie-1.example",)}, "of another host"),
    "self-signed": ({"self_signed": True}, "self-signed"),
}


@on_each
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_bookie_with_a_wrong_certificate_is_named_with_the_reason(
    lane: str, wrong: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "pki")
    settings, reason = WRONG[wrong]
    server = authority.issue("server", **settings)

    async with tls_bookie(tmp_path, authority, server) as world:
        with pytest.raises(TlsError, match=reason) as raised:
            await world.ask(lane, authority.issue("client").tls())
        assert world.bookie.bookie_id in str(raised.value)
        assert "127.0.0.1:" in raised.value.what
        assert raised.value.remedy
        assert "not applied" in str(raised.value)


@on_each
async def test_a_bookie_of_another_authority_is_not_trusted(lane: str, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other", "other").issue("client")

    async with tls_bookie(tmp_path) as world:
        with pytest.raises(TlsError, match="authority that is not known"):
            await world.ask(lane, stranger.tls())


@pytest.mark.parametrize(
    ("wrong", "heard", "logged"),
    [
        ("none", "wants a certificate of the client", "gave no certificate"),
        ("expired", "has expired, it says", "its certificate has expired"),
        ("other", "does not know the authority", "authority that is not known"),
    ],
)
@on_each
async def test_a_client_with_a_wrong_certificate_is_refused_with_the_reason_in_the_log(
    lane: str, wrong: str, heard: str, logged: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_bookie(tmp_path) as world:
        tls = world.server.trust()
        if wrong == "expired":
            tls = world.authority.issue("client", begins_h=-48, ends_h=-24).tls()
        elif wrong == "other":
            stranger = Authority(tmp_path / "other", "other").issue("client")
            stranger.ca.write_bytes(world.server.ca.read_bytes())
            tls = stranger.tls()
        with caplog.at_level(logging.WARNING, "bookie_server"), pytest.raises(TlsError) as raised:
            await world.ask(lane, tls)
        if lane == DIRECT:
            assert heard in str(raised.value)
        if lane != "grpc":  # its library tells nobody
            assert logged in caplog.text
        await world.ask(lane, world.authority.issue("right").tls())


async def test_clients_need_no_certificate_where_that_is_said(tmp_path: Path) -> None:
    async with tls_bookie(tmp_path, tls_client_auth="none") as world:
        for lane in LANES:
            await world.ask(lane, world.server.trust())


async def test_without_endpoint_identification_another_host_will_do_but_not_another_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    server = authority.issue("server", hosts=("elsewhere.example",))

    async with tls_bookie(tmp_path, authority, server) as world:
        for lane in (DIRECT, BOOKIE_RPC):
            await world.ask(lane, authority.issue("client").tls(verify_host=False))
            with pytest.raises(TlsError, match="authority"):
                await world.ask(lane, Authority(tmp_path / "o", "o").issue("x").tls(verify_host=False))
        with pytest.raises(BookKeeperError, match="no lane"):
            await world.ask("grpc", authority.issue("client").tls(verify_host=False))


@on_each
async def test_only_identities_of_the_list_are_let_in(
    lane: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_bookie(tmp_path, tls_identity="spiffe", tls_clients=("spiffe://example.org/bookkeeper/*",)) as world:
        right = world.authority.issue("right", hosts=(), uris=("spiffe://example.org/bookkeeper/ingest",))
        await world.ask(lane, right.tls())
        others = [
            world.authority.issue("other", hosts=(), uris=("spiffe://example.org/web",)),
            world.authority.issue("nameless", hosts=("spiffe.example",)),
            world.authority.issue(
                "two", uris=("spiffe://example.org/bookkeeper/a", "spiffe://example.org/bookkeeper/b")
            ),
        ]
        for other in others:
            caplog.clear()
            with caplog.at_level(logging.WARNING, "bookie_server"), pytest.raises(BookKeeperError):
                await world.ask(lane, other.tls())
            assert "is refused over TLS" in caplog.text


@on_each
async def test_new_certificates_are_taken_without_a_restart(lane: str, tmp_path: Path) -> None:
    """The bookie's, and its authority; connections that are open go on."""

    async with tls_bookie(tmp_path) as world:
        client = world.authority.issue("client")
        async with world.lane(lane, client.tls()) as before:
            await before.write(7, 0, [b"x"])
            assert (await before.read(7, 0, 0))[0] == {0: b"x"}
            newer = Authority(tmp_path / "newer", "newer")
            renewed = newer.issue("server")
            world.server.become(renewed)
            with pytest.raises(TlsError):
                await world.ask(lane, client.tls())
            await world.ask(lane, newer.issue("client").tls())
            await before.write(7, 1, [b"y"])
            found, _ = await before.read(7, 0, 1)
            assert found == {0: b"x", 1: b"y"}


async def test_half_a_rotation_serves_with_the_old_files_until_it_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_bookie(tmp_path) as world:
        client = world.authority.issue("client").tls()
        renewed = world.authority.issue("renewed", hosts=("127.0.0.1", "renewed.example"))
        key = world.server.key.read_bytes()
        for broken in (b"", renewed.key.read_bytes()):
            world.server.key.write_bytes(broken)
            with caplog.at_level(logging.WARNING, "bk_core.access.tls"):
                await world.ask(DIRECT, client)
            assert "the old ones are used" in caplog.text
        assert key
        os.remove(world.server.certificate)
        await world.ask(DIRECT, client)
        world.server.certificate.write_bytes(renewed.certificate.read_bytes())
        context = client.client()
        _, writer = await asyncio.open_connection(
            "127.0.0.1", lane_port(world.bookie, DIRECT), ssl=context, server_hostname="renewed.example"
        )
        writer.transport.abort()


async def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    async with tls_bookie(tmp_path) as world:
        context = world.authority.issue("client").tls().client()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(
                "127.0.0.1", lane_port(world.bookie, DIRECT), ssl=context, server_hostname="127.0.0.1"
            )


@pytest.mark.parametrize("why", ["has expired", "not let in", "has no settings for TLS"])
async def test_a_writer_without_bookies_says_why_they_are_missing_and_what_to_do(why: str, tmp_path: Path) -> None:
    """Its error is about a quorum: more bookies would not help."""

    async with tls_bookie(tmp_path, tls_clients=("*CN=client,*",)) as world:
        settings = world.authority.issue("other").settings() if why == "not let in" else {}
        if why == "has expired":
            settings = world.authority.issue("client", begins_h=-48, ends_h=-24).settings()
        config = ClientConfig(reconnect_budget_ms=200, lanes=DIRECT, **settings)
        async with await connect(world.bookie._config.metadata_service_uri, config=config) as client:
            creating = client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
            if why == "not let in":
                with pytest.raises(AuthenticationError, match=why):
                    await creating
                assert await client.list_ledgers() == []
                return
            writer = await creating
            with pytest.raises(QuorumError, match=why) as raised:
                await writer.append(b"x")
        assert "start more bookies" not in raised.value.remedy
        assert isinstance(raised.value.__cause__, TransportError)


# --- Apache's wire, byte by byte ---


async def test_a_plain_request_on_apaches_wire_gets_eua_and_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "bookie_server"):
        async with tls_bookie(tmp_path) as world:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.bookie.port)
            writer.write(make.info(9))
            answer = await answer_of(reader)
            assert (answer.status, answer.header.txnId) == (int(Status.EUA), 9)
            assert await reader.read() == b""
            writer.transport.abort()
            reader, writer = await asyncio.open_connection("127.0.0.1", world.bookie.port)
            writer.write(struct.pack(">IIqq", 20, 0x0202_0000, 7, 0))  # version 2, READ
            assert await reader.read() == b""
            writer.transport.abort()
            assert "speaks plain" in caplog.text
            assert "does not begin with START_TLS" in caplog.text


async def test_what_follows_start_tls_in_clear_is_never_taken_for_a_request(tmp_path: Path) -> None:
    """Somebody in between puts a request behind START_TLS, before the handshake of the client."""

    async with tls_bookie(tmp_path) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.bookie.port)
        writer.write(make.start_tls(11) + make.info(9))
        assert (await answer_of(reader)).status == int(Status.EOK)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await writer.start_tls(world.authority.issue("client").tls().client(), server_hostname="127.0.0.1")
        writer.transport.abort()
        assert not world.bookie._clients.streams


async def test_start_tls_over_tls_is_refused(tmp_path: Path) -> None:
    async with tls_bookie(tmp_path) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.bookie.port)
        writer.write(make.start_tls(11))
        assert (await answer_of(reader)).status == int(Status.EOK)
        await writer.start_tls(world.authority.issue("client").tls().client(), server_hostname="127.0.0.1")
        writer.write(make.start_tls(11) + make.info(12))
        assert (await answer_of(reader)).status == int(Status.EBADREQ)
        assert (await answer_of(reader)).status == int(Status.EOK)
        writer.transport.abort()


# --- hostile clients ---


def _nonsense(chance: random.Random) -> bytes:
    """Bytes as nobody sends them, many of which begin as something that is understood."""
    begins = (
        b"",
        b"\x16\x03\x01",
        b"\x16\x03\x03\x40\x00\x01",
        make.start_tls(11),
        preamble("Add"),
        b"GET / HTTP/1.1\r\n\r\n",
    )
    return chance.choice(begins) + chance.randbytes(chance.choice((1, 3, 60, 5_000)))


async def test_no_bytes_before_or_in_a_handshake_open_a_stream_or_keep_others_out(tmp_path: Path) -> None:
    port, tried = free_port(), some(1000, 200)

    async with tls_bookie(tmp_path, admin_port=port) as world:
        ports = [*(each.port for each in world.bookie._services), port]
        chance = random.Random(20)

        async def attack(number: int) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", ports[number % len(ports)])
            writer.write(_nonsense(chance))
            await asyncio.sleep(0.05)
            assert not world.bookie._clients.streams
            writer.transport.abort()

        for begin in range(0, tried, 20):
            await asyncio.gather(*(attack(begin + n) for n in range(20)))
        for lane in LANES:
            await world.ask(lane, world.authority.issue("client").tls())
        endpoint = Endpoint("httpserver", "127.0.0.1", port, "http")
        assert await AdminPorts(5, world.authority.issue("client").tls()).get(endpoint, "/ready")


async def test_a_client_that_does_nothing_in_its_handshake_is_cut_off_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_bookie(tmp_path) as world:
        (service,) = [each for each in world.bookie._services if each.endpoint("").protocol == DIRECT]
        monkeypatch.setattr(service.acceptor, "_deadline_s", 0.5)
        silent = [socket.create_connection(("127.0.0.1", lane_port(world.bookie, DIRECT))) for _ in range(20)]
        silent[0].sendall(b"\x16\x03\x01\x02\x00\x01")  # the begin of a handshake
        for lane in LANES:
            await world.ask(lane, world.authority.issue("client").tls())
        loop = asyncio.get_running_loop()
        for each in silent:
            each.setblocking(False)
            assert await loop.sock_recv(each, 1) == b""
            each.close()


async def test_the_unix_socket_speaks_tls_too(tmp_path: Path) -> None:
    async with tls_bookie(tmp_path) as world:
        (service,) = [each for each in world.bookie._services if each.endpoint("").protocol == DIRECT]
        (name,) = [each for each in service.endpoint("").extensions if each.startswith("local=")]
        reader, writer = await asyncio.open_unix_connection("\0" + name.removeprefix("local=").partition(";")[0])
        client = DirectClient("Control", reader, writer)
        writer.write(preamble("Control"))
        _, answer = await client.answer()
        assert answer.hello.reason == int(Reason.UNAUTHENTICATED)
        writer.transport.abort()
        async with direct(world.bookie, "Add") as plain:
            _, answer = await plain.answer()
            assert "TLS" in answer.hello.message


# --- the admin port ---


async def test_the_admin_port_answers_https_only(tmp_path: Path) -> None:
    port = free_port()

    async with tls_bookie(tmp_path, admin_port=port, tls_clients=("*CN=client,*", "*CN=server,*")) as world:
        endpoint = Endpoint("httpserver", "127.0.0.1", port, "http")
        client = world.authority.issue("client").tls()
        text = await AdminPorts(5, client).get(endpoint, "/metrics")
        assert len(text) > 64 << 10 or "bookie_ready" in text
        status, body = await AdminPorts(5).get_status(endpoint, "/heartbeat")
        assert (status, "https" in body) == (400, True)
        admin = world.bookie._admin
        published = admin.endpoint("127.0.0.1")
        assert published.url == f"https://127.0.0.1:{port}"
        with pytest.raises(TlsError, match="this client does not"):
            await AdminPorts(5).get(published, "/heartbeat")
        for path in admin.paths:
            status, body = await AdminPorts(5, world.server.trust()).get_status(endpoint, path)
            assert (status == 403) is (path not in FREE_PATHS), (path, body)
        with pytest.raises(TlsError, match="authority"):
            await AdminPorts(5, Authority(tmp_path / "o", "o").issue("x").tls()).get(endpoint, "/heartbeat")
        other = world.authority.issue("web").tls()
        status, body = await AdminPorts(5, other).get_status(endpoint, "/config")
        assert (status, "not let in" in body) == (403, True)
        assert (await AdminPorts(5, other).get_status(endpoint, "/live"))[0] == 200
