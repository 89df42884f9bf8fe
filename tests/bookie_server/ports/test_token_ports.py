# SPDX-License-Identifier: Apache-2.0
"""Tokens at every port of a bookie, on real sockets: who is let in, as whom and until when, and what each end says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bk_cli.local.children import free_port
from bk_core.access.needs import FREE_PATHS
from bk_core.access.roles import Line, Role, RolesTable, scope_of
from bk_core.access.secret_files import TokenFile
from bk_core.access.tokens import MECHANISM, PLUGIN
from bk_core.client import ClientConfig, connect
from bk_core.cluster.admin_ports import AdminPorts
from bk_core.errors import (
    AuthenticationError,
    BookKeeperError,
    InvalidArgumentError,
    TlsError,
    TransportError,
)
from bk_core.model import BOOKIE_RPC, DIRECT, GRPC, Endpoint
from bk_core.protocol.delivery import LaneState
from bk_core.transport.lanes import LANES
from bk_core.transport.port import RefusedError
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.direct_messages import preamble
from bk_core.wire.lane.reasons import Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bk_core.wire.proto import lane_pb2
from bookie_server.ports.access import tls as tls_module
from bookie_server.ports.access.principal import Principal, Proof
from bookie_server.ports.access.tokens import LEEWAY_S
from bookie_server.ports.bookie_rpc import server as rpc_server
from bookie_server.ports.bounds import clients as clients_module
from bookie_server.ports.lane.direct import DirectServer
from tests.kit import bookie_requests as make
from tests.kit.bookie_wire import answer_of
from tests.kit.certificates import Authority
from tests.kit.direct_client import HEAD, DirectClient
from tests.kit.lanes import KEY, Listener, bookie_config, frame, lane_port
from tests.kit.signed_tokens import Signer, keys_file
from tests.kit.tls_world import TlsWorld, tls_bookie
from tests.kit.waiting import eventually

on_each = pytest.mark.parametrize("lane", LANES)

SIGNER = Signer("k1")


class TokenWorld:
    """A bookie that wants tokens; :meth:`token` writes one for it."""

    def __init__(self, world: TlsWorld, path: Path, keys: Path) -> None:
        self.world, self.path, self.keys = world, path, keys
        self.trust = world.server.trust()

    def token(self, signer: Signer = SIGNER, *, name: str = "token", **said: Any) -> Path:
        path = self.path / name
        new = path.with_suffix(".new")
        new.write_bytes(signer.token(**{"audience": self.world.instance_id, **said}) + b"\n")
        return new.replace(path)

    async def ask(self, lane: str, token: Path | None, **more: Any) -> None:
        await self.world.ask(lane, more.pop("tls", self.trust), token=token, **more)

    def principals(self) -> set[Principal]:
        return {each.principal for each in self.world.bookie._engine._streams.values()}


@asynccontextmanager
async def token_bookie(tmp_path: Path, **settings: Any) -> AsyncIterator[TokenWorld]:
    keys = keys_file(tmp_path / "keys.json", SIGNER)
    given = {"tls_client_auth": "none", "token_keys_path": str(keys), **settings}
    async with tls_bookie(tmp_path, **given) as world:
        yield TokenWorld(world, tmp_path, keys)


# --- who is let in ---


@on_each
async def test_a_client_with_a_token_writes_and_reads_and_is_who_it_names(lane: str, tmp_path: Path) -> None:
    async with token_bookie(tmp_path) as world, world.world.lane(lane, world.trust, token=world.token()) as opened:
        await opened.write(7, 0, [b"x", b"y"])
        assert (await opened.read(7, 0, 1))[0] == {0: b"x", 1: b"y"}
        await opened.fence(7)
        found = world.principals()
        assert {(each.identity, each.proof) for each in found} == {("ingest", Proof.TOKEN)}
        assert all(0 < each.until_s < 10**11 for each in found)


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "none": ({}, "wants a token", "shows neither token nor certificate"),
    "expired": ({"age_s": 9000}, "the token has expired", "it has expired (subject 'ingest')"),
    "not yet": ({"age_s": -9000}, "not valid yet", "it is not valid yet"),
    "audience": ({"audience": "another"}, "for another cluster", "for another cluster (subject 'ingest')"),
    "key": ({"signer": Signer("k2")}, "the token is refused", "no key with its kid is known here: 'k2'"),
    "signature": ({"signer": Signer("k1")}, "the token is refused", "its signature is wrong"),
    "identity": ({"subject": "web"}, "identity is not let in", "is not let in: web"),
}


@on_each
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_client_with_a_wrong_token_hears_a_safe_reason_and_the_log_has_all_of_it(
    lane: str, wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said, heard, logged = WRONG[wrong]

    async with token_bookie(tmp_path, tls_clients=("ingest",)) as world:
        token = None if wrong == "none" else world.token(**said)
        with caplog.at_level(logging.INFO, "bookie_server"), pytest.raises(AuthenticationError) as raised:
            await world.ask(lane, token)
        assert world.world.bookie.bookie_id in raised.value.what
        assert "not applied" in str(raised.value)
        assert "token" in raised.value.remedy
        assert ("tls_clients" in raised.value.remedy) == (wrong == "identity")
        if wrong == "none" and lane != BOOKIE_RPC:
            assert raised.value.remedy == "give token_path"  # certificates are not looked at
        if wrong != "none":
            assert heard in raised.value.value
            assert logged in caplog.text
            for part in token.read_text().strip().split("."):
                assert part not in caplog.text + str(raised.value)
        elif lane != BOOKIE_RPC:  # there a client says nothing of a token, and gets EUA for what it asks
            assert heard in raised.value.value
            assert logged in caplog.text
        assert not world.world.bookie._engine._streams or lane == BOOKIE_RPC
        await world.ask(lane, world.token())


@on_each
async def test_where_either_will_do_a_certificate_is_enough_and_a_token_says_more(lane: str, tmp_path: Path) -> None:
    async with token_bookie(tmp_path, tls_client_auth="optional") as world:
        mine = world.world.authority.issue("client").tls()
        if lane == GRPC:  # it takes a certificate from all clients or from none
            with pytest.raises(AuthenticationError, match="wants a token"):
                await world.ask(lane, None, tls=mine)
        else:
            async with world.world.lane(lane, mine) as opened:
                await opened.write(7, 0, [b"x"])
                assert {each.proof for each in world.principals()} == {Proof.CERTIFICATE}
        async with world.world.lane(lane, mine, token=world.token()) as opened:
            await opened.write(8, 0, [b"x"])
            assert {each.identity for each in world.principals()} == {"ingest"}
        await world.ask(lane, world.token())
        with pytest.raises(AuthenticationError):
            await world.ask(lane, None)
        with pytest.raises(AuthenticationError, match="expired"):
            await world.ask(lane, world.token(age_s=9000), tls=mine)
        stranger = Authority(tmp_path / "other", "other").issue("x")
        stranger.ca.write_bytes(world.world.server.ca.read_bytes())
        if lane != GRPC:
            with pytest.raises(TransportError):
                await world.ask(lane, world.token(), tls=stranger.tls())


@on_each
async def test_a_token_is_sent_over_tls_only(lane: str, tmp_path: Path) -> None:
    """The client, told no TLS, says nothing of its token to a plain port that pretends."""

    async with token_bookie(tmp_path) as world:
        heard, writers = bytearray(), []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(4096):
                    heard.extend(part)

        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        token = world.token()
        async with world.world.lane(lane, None, token=token, forget_tls=True) as opened:
            transport: Any = opened.transport
            (info,) = transport._whereabouts._infos.values()
            object.__setattr__(
                info, "endpoints", tuple(Endpoint(e.protocol, "127.0.0.1", port, e.protocol) for e in info.endpoints)
            )
            asking = asyncio.create_task(opened.link.bookie_info(deadline_s=30))
            await eventually(lambda: bool(heard), 20)
            await asyncio.sleep(0.1)  # all that it says before it hears anything
            server.close()
            for each in writers:
                each.transport.abort()
            with pytest.raises(BookKeeperError):
                await asyncio.wait_for(asking, 40)
        assert heard
        assert token.read_bytes()[:40] not in heard
    with pytest.raises(Exception, match="never sent without TLS"):
        ClientConfig(token_path="x")


@on_each
async def test_a_token_of_another_issuer_is_refused_where_one_is_wanted(lane: str, tmp_path: Path) -> None:
    async with token_bookie(tmp_path, token_issuer="https://idp.example") as world:
        await world.ask(lane, world.token(iss="https://idp.example"))
        for wrong, heard in ({"iss": "https://other.example"}, "another issuer"), ({}, "refused"):
            with pytest.raises(AuthenticationError, match=heard):
                await world.ask(lane, world.token(**wrong))


@on_each
async def test_a_token_that_cannot_be_read_is_named_by_its_path(lane: str, tmp_path: Path) -> None:
    async with token_bookie(tmp_path) as world:
        empty = tmp_path / "empty"
        empty.write_text("not a token\n")
        for path, why in ((tmp_path / "none", "No such file"), (empty, "11 bytes")):
            with pytest.raises(AuthenticationError, match=why) as raised:
                await world.ask(lane, path)
            assert str(path) in raised.value.value
            assert "not a token" not in str(raised.value)


def test_a_token_that_everybody_may_read_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    path.write_bytes(SIGNER.token())
    for mode, told in ((0o640, 0), (0o644, 1)):
        path.chmod(mode)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert TokenFile(str(path)).read() == path.read_bytes()
        assert caplog.text.count("every user of this host may read") == told


# --- until when ---


def the_token_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookie's clock, by which it looks for tokens that have ended, goes on by the leeway."""
    monkeypatch.setattr(tls_module, "time", SimpleNamespace(time=lambda: time.time() + LEEWAY_S))


@on_each
async def test_a_session_ends_with_its_token_and_a_writer_goes_on_with_the_next_one(
    lane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that has ended within the leeway is still taken, and its connection ends at the next look."""
    monkeypatch.setattr(clients_module, "_IDENTITIES_INTERVAL_S", 0.05)
    with caplog.at_level(logging.INFO, "bookie_server"):
        async with token_bookie(tmp_path) as world:
            token = world.token(life_s=10, age_s=10 + 20)
            settings = {"tls_ca_path": str(world.world.server.ca), "token_path": str(token), "lanes": lane}
            config = ClientConfig(**settings)
            async with await connect(world.world.bookie._config.metadata_service_uri, config=config) as client:
                writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
                await writer.append(b"first")
                first = world.principals()
                world.token(subject="renewed")
                the_token_ends(monkeypatch)
                await eventually(lambda: not world.principals() & first)
                assert "ends: the token has expired" in caplog.text
                await writer.append(b"second")
                assert len(writer.metadata.fragments) == 1
                assert {each.identity for each in world.principals()} == {"renewed"}
                await writer.close()
                reader = await client.open_ledger(writer.ledger_id, recover=False)
                found = [value async for batch in reader.read(0, 1) for value in batch.to_list()]
                assert found == [b"first", b"second"]


@pytest.mark.parametrize(
    ("lane", "security"), [(DIRECT, "open"), (GRPC, "open"), (BOOKIE_RPC, "open"), (DIRECT, "secure")]
)
async def test_who_is_refused_everywhere_hears_why_of_each_call_and_nothing_was_done(
    lane: str, security: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First with a token, which then ends."""
    monkeypatch.setattr(clients_module, "_IDENTITIES_INTERVAL_S", 0.05)
    (tmp_path / "grants").write_text("5a" * 32 + "\n")
    secure = {"security": "secure", "grant_keys_path": str(tmp_path / "grants")} if security == "secure" else {}
    sizes: dict[str, Any] = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}

    async with token_bookie(tmp_path, **secure) as world:
        uri, store = world.world.bookie._config.metadata_service_uri, world.world._store
        path = world.token(life_s=10, age_s=10 + 20)
        store.write_roles(RolesTable().granted(Line("ingest", Role.ADMIN, scope_of("cluster"))), None)
        config = ClientConfig(
            tls_ca_path=str(world.world.server.ca),
            token_path=str(path),
            lanes=lane,
            reconnect_budget_ms=100,
            security=security,
        )
        async with await connect(uri, config=config) as client:
            writer = await client.create_ledger(**sizes)
            assert await writer.append(b"first") == 0
            await writer.write_lac()
            reader = await client.open_ledger(writer.ledger_id, recover=False)
            world.token(age_s=9000)
            the_token_ends(monkeypatch)
            await eventually(lambda: not world.principals())
            lanes = writer._machine.delivery.lanes
            await eventually(lambda: all(lane.state is LaneState.IDLE for lane in lanes))  # the client knows
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "append": lambda: writer.append(b"second"),
                "append again": lambda: writer.append(b"third"),
                "close": writer.close,
                "read": lambda: anext(reader.read(0, 0)),
                "refresh": reader.refresh_lac,
                "open": lambda: client.open_ledger(writer.ledger_id, recover=False),
                "recover": lambda: client.open_ledger(writer.ledger_id, recover=True),
                "create": lambda: client.create_ledger(**sizes),
            }
            before = list(store.list_ledgers())
            for name, call in calls.items():
                with pytest.raises(AuthenticationError, match="the token has expired") as raised:
                    await asyncio.wait_for(call(), 10)
                assert "token_path" in raised.value.remedy, name
                assert "(not applied)" in str(raised.value), name
            assert list(store.list_ledgers()) == before
            world.token()
            reader = await client.open_ledger(writer.ledger_id, recover=True)
            assert reader.last_add_confirmed == 0


@on_each
async def test_new_keys_are_taken_without_a_restart(lane: str, tmp_path: Path) -> None:
    async with token_bookie(tmp_path) as world:
        newer = Signer("k2")
        keys_file(world.keys, SIGNER, newer)
        for signer in (SIGNER, newer):
            await world.ask(lane, world.token(signer))
        token = world.token(name="mine")
        async with world.world.lane(lane, world.trust, token=token) as opened:
            await opened.write(7, 0, [b"x"])
            keys_file(world.keys, newer)
            with pytest.raises(AuthenticationError, match="refused"):
                await world.ask(lane, token)
            world.token(newer, name="mine")
            assert (await opened.read(7, 0, 0))[0] == {0: b"x"}  # over another stream, which shows the new token
        await world.ask(lane, token)


@on_each
async def test_a_key_that_is_taken_away_ends_its_sessions_and_no_others(
    lane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other key has the same name, as after a key was stolen and made anew."""
    monkeypatch.setattr(clients_module, "_IDENTITIES_INTERVAL_S", 0.05)
    stolen, kept, anew = Signer("k2"), SIGNER, Signer("k2")
    with caplog.at_level(logging.INFO, "bookie_server"):
        async with token_bookie(tmp_path) as world:
            keys_file(world.keys, kept, stolen)
            mine, theirs = world.token(kept, name="mine"), world.token(stolen, name="theirs", subject="thief")
            async with (
                world.world.lane(lane, world.trust, token=mine) as mine_opened,
                world.world.lane(lane, world.trust, token=theirs) as theirs_opened,
            ):
                await mine_opened.write(7, 0, [b"x"])
                await theirs_opened.write(8, 0, [b"x"])
                before = {each for each in world.principals() if each.identity == "ingest"}
                keys_file(world.keys, kept, anew)
                await eventually(lambda: not any(each.identity == "thief" for each in world.principals()))
                assert "thief" in caplog.text
                assert "ends: the key of the token is no longer trusted" in caplog.text
                await asyncio.sleep(0.3)
                assert {each for each in world.principals() if each.identity == "ingest"} == before
                with pytest.raises(BookKeeperError):
                    await theirs_opened.link.bookie_info(deadline_s=5)
                assert not any(each.identity == "thief" for each in world.principals())


@pytest.mark.long
async def test_who_takes_its_answers_slowly_does_not_outlive_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for 64 MB, and takes a megabyte a second: never stuck, never done."""
    monkeypatch.setattr(clients_module, "_IDENTITIES_INTERVAL_S", 0.5)

    async with token_bookie(tmp_path) as world:
        async with world.world.lane(BOOKIE_RPC, world.trust, token=world.token()) as opened:
            await opened.write(7, 0, [b"x" * 1_000_000])
        reader, writer = await _over_tls(world, world.world.bookie.port)
        token = world.token(life_s=10, age_s=10 + 28, subject="slow").read_bytes().strip()
        writer.write(_auth(token) + make.read(3, 9, (7, 0)) * 64)
        got = 0
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(64 << 10):
                got += len(part)
                await asyncio.sleep(0.05)
        assert 64 << 10 <= got < 32 << 20
        writer.transport.abort()


async def test_who_never_says_who_it_is_is_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_server, "HELLO_TIMEOUT_S", 0.2)

    async with token_bookie(tmp_path) as world:
        reader, writer = await _over_tls(world, world.world.bookie.port)
        writer.write(_add(7))
        assert (await answer_of(reader)).status == int(Status.EUA)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        reader, writer = await _over_tls(world, world.world.bookie.port)
        writer.write(_auth(world.token().read_bytes().strip()))
        assert (await answer_of(reader)).status == int(Status.EOK)
        await asyncio.sleep(0.3)
        writer.write(_add(7))
        assert (await answer_of(reader)).status == int(Status.EOK)
        writer.transport.abort()


# --- byte by byte ---


async def _over_tls(world: TokenWorld, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if port == world.world.bookie.port:
        writer.write(make.start_tls(1))
        await answer_of(reader)
    await writer.start_tls(world.trust.client(), server_hostname="127.0.0.1")
    return reader, writer


def _auth(payload: bytes, plugin: str = PLUGIN) -> bytes:
    return make.auth(3, 2, plugin, payload)


def _add(ledger: int) -> bytes:
    return make.add(3, 5, (ledger, 0), make.entry(ledger, 0, b"b" * 24))


async def test_nothing_but_auth_is_done_on_apaches_wire_before_a_token_is_shown(tmp_path: Path) -> None:
    async with token_bookie(tmp_path) as world:
        reader, writer = await _over_tls(world, world.world.bookie.port)
        writer.write(_add(7) + make.info(9))
        for operation in (pb.ADD_ENTRY, pb.GET_BOOKIE_INFO):
            answer = await answer_of(reader)
            assert (answer.header.operation, answer.status) == (operation, int(Status.EUA))
            assert {field.name for field, _ in answer.ListFields()} == {"header", "status"}
        token = world.token().read_bytes().strip()
        writer.write(_auth(token))
        answer = await answer_of(reader)
        assert (answer.status, answer.authResponse.authPluginName) == (int(Status.EOK), PLUGIN)
        writer.write(make.info(9) + _auth(b"anything"))  # it has proven itself: no more is asked
        assert (await answer_of(reader)).status == int(Status.EOK)
        assert (await answer_of(reader)).authResponse.authPluginName == "AuthDisabledPlugin"
        writer.transport.abort()
        for payload, plugin in ((b"nonsense", PLUGIN), (token, "sasl"), (token, "")):
            reader, writer = await _over_tls(world, world.world.bookie.port)
            writer.write(_auth(payload, plugin) + _add(7))
            answer = await answer_of(reader)
            assert (answer.header.operation, answer.status) == (pb.AUTH, int(Status.EUA))
            assert await reader.read() == b""
        assert not world.world.bookie._opened[0].index.ledger_ids()


async def test_version_2_shows_its_token_too_and_is_closed_if_that_is_wrong(tmp_path: Path) -> None:
    async with token_bookie(tmp_path) as world:
        reader, writer = await _over_tls(world, world.world.bookie.port)
        writer.write(make.auth(2, 0, PLUGIN, world.token().read_bytes().strip()))
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert pb.AuthMessage.FromString((await reader.readexactly(size))[4:]).authPluginName == PLUGIN
        assert {each.identity for each in world.principals()} == {"ingest"}
        writer.transport.abort()
        reader, writer = await _over_tls(world, world.world.bookie.port)
        writer.write(make.auth(2, 0, PLUGIN, b"x.y.z"))
        assert await reader.read() == b""


async def test_long_ranges_are_read_in_batches_over_a_second_connection_that_shows_the_token(tmp_path: Path) -> None:
    async with (
        token_bookie(tmp_path) as world,
        world.world.lane(BOOKIE_RPC, world.trust, token=world.token()) as opened,
    ):
        listener = Listener()
        session = opened.attach(7, listener)
        opened.send(session, 7, 0, [b"%d" % n for n in range(500)])
        await listener.acked(session, 1)
        found, _ = await opened.read(7, 0, 499)
        assert found == {n: b"%d" % n for n in range(500)}
        assert len(world.world.bookie._clients.streams) == 2
        link: Any = opened.link
        assert not link._batches.over


async def test_hello_with_another_mechanism_shows_nothing(tmp_path: Path) -> None:
    async with token_bookie(tmp_path) as world:
        token = world.token().read_bytes().strip()
        for mechanism, reason in ((MECHANISM, Reason.REASON_NONE), ("plain", Reason.UNAUTHENTICATED)):
            reader, writer = await _over_tls(world, lane_port(world.world.bookie, DIRECT))
            hello = lane_pb2.Hello(
                version_min=1, version_max=1, bookie_id=world.world.bookie.bookie_id, token=token, mechanism=mechanism
            )
            stream = DirectClient("Control", reader, writer)
            writer.write(preamble("Control"))
            stream.send(lane_pb2.ControlRequest(hello=hello).SerializeToString())
            _, answer = await stream.answer()
            assert answer.hello.reason == int(reason)
            writer.transport.abort()


async def test_who_has_not_shown_who_it_is_takes_no_room_for_long_messages(tmp_path: Path) -> None:
    async with token_bookie(tmp_path) as world:
        bookie = world.world.bookie
        (service,) = [each for each in bookie._services if isinstance(each, DirectServer)]
        reader, writer = await _over_tls(world, lane_port(bookie, DIRECT))
        stream = DirectClient("Add", reader, writer)
        writer.write(preamble("Add") + HEAD.pack(8 << 20, 0) + bytes(1000))
        assert await stream.is_over(5)
        assert not service.room._bytes
        async with world.world.lane(DIRECT, world.trust, token=world.token()) as opened:
            await opened.write(7, 0, [bytes(1 << 20)])  # our client says hello first, alone


@pytest.mark.parametrize("token", [b"", b"x.y.z"])
async def test_what_comes_with_a_hello_that_is_refused_is_not_done_nor_what_comes_behind_it(
    token: bytes, tmp_path: Path
) -> None:
    async with token_bookie(tmp_path) as world:
        bookie = world.world.bookie
        reader, writer = await _over_tls(world, lane_port(bookie, DIRECT))
        hello = lane_pb2.Hello(
            version_min=1, version_max=1, bookie_id=bookie.bookie_id, token=token, mechanism=MECHANISM
        )
        attach = lane_pb2.Attach(session=1, ledger_id=7, ledger_key=KEY)
        stream = DirectClient("Add", reader, writer)
        writer.write(preamble("Add"))
        stream.send(
            lane_pb2.AddRequest(hello=hello, attach=[attach]).SerializeToString(), frame(7, 0, [b"x"], session=1)
        )
        stream.send(b"", frame(7, 1, [b"y"], session=1))  # without an attach, which would be a second one, and an error
        _, answer = await stream.answer()
        assert answer.hello.reason == int(Reason.UNAUTHENTICATED)
        assert not answer.sessions
        assert await stream.is_over(5)
        assert not bookie._opened[0].index.ledger_ids()
        writer.transport.abort()


# --- the admin port ---


async def test_the_admin_port_wants_a_token_for_all_but_probes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with caplog.at_level(logging.DEBUG):
        async with token_bookie(tmp_path, admin_port=port, admin_writes="any", tls_clients=("ingest",)) as world:
            endpoint = Endpoint("httpserver", "127.0.0.1", port, "http")
            with_token = AdminPorts(5, world.trust, TokenFile(str(world.token())))
            admin = world.world.bookie._admin
            for path in admin.paths:
                status, body = await AdminPorts(5, world.trust).get_status(endpoint, path)
                assert (status == 401) is (path not in FREE_PATHS), (path, body)
            for path in ("/metrics", "/config", "/api/v1/bookie/info"):
                assert (await with_token.get_status(endpoint, path))[0] == 200
            wrong = AdminPorts(5, world.trust, TokenFile(str(world.token(name="wrong", age_s=9000))))
            with pytest.raises(AuthenticationError, match="the token has expired"):
                await wrong.get(endpoint, "/metrics")
            assert (await wrong.get_status(endpoint, "/live"))[0] == 200
            other = AdminPorts(5, world.trust, TokenFile(str(world.token(name="other", subject="web"))))
            assert (await other.get_status(endpoint, "/config"))[0] == 401
            with pytest.raises(TlsError):
                await AdminPorts(5, None, with_token.token).get(admin.endpoint("127.0.0.1"), "/metrics")
            reader, writer = await _over_tls(world, port)
            token = world.token().read_bytes().strip()
            lines = b"PUT /log/level?level=DEBUG HTTP/1.1", b"Host: 127.0.0.1", b"Authorization: Bearer " + token
            for head, status in ((lines[:2], b"401"), (lines, b"200")):
                writer.write(b"\r\n".join(head) + b"\r\n\r\n")
                said = await reader.read()
                assert said.startswith(b"HTTP/1.1 " + status), said
                assert (b"WWW-Authenticate: Bearer" in said) is (status == b"401")
                writer.transport.abort()
                reader, writer = await _over_tls(world, port)
            writer.write(b"\r\n".join((b"GET /config HTTP/1.1", *lines[1:], lines[2])) + b"\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400")  # two headers: whose word counts is not guessed
            writer.transport.abort()
            assert token.decode() not in caplog.text
    logging.getLogger().setLevel(logging.WARNING)


# --- mode secure ---


async def test_in_mode_secure_roles_go_to_the_identities_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "grants").write_text("5a" * 32 + "\n")
    port = free_port()

    secure = {"security": "secure", "grant_keys_path": str(tmp_path / "grants"), "admin_port": port}
    async with token_bookie(tmp_path, **secure) as world:
        bookie, store = world.world.bookie, world.world._store
        store.write_roles(RolesTable().granted(Line("ingest", Role.WRITER, scope_of("cluster"))), None)
        tokens = {who: str(world.token(name=who, subject=who)) for who in ("ingest", "web")}
        for who, path in tokens.items():
            config = ClientConfig(
                tls_ca_path=str(world.world.server.ca), token_path=path, security="secure", reconnect_budget_ms=200
            )
            async with await connect(bookie._config.metadata_service_uri, config=config) as client:
                creation = client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
                if who == "ingest":
                    await (await creation).append(b"x")
                    continue
                with pytest.raises(BookKeeperError, match="web may not write"):
                    await asyncio.wait_for(creation, 10)
        async with world.world.lane(BOOKIE_RPC, world.trust, token=Path(tokens["ingest"])) as opened:
            await opened.write(7, 0, [b"x"])
            assert (await opened.read(7, 0, 0))[0] == {0: b"x"}
        async with world.world.lane(BOOKIE_RPC, world.trust, token=Path(tokens["web"])) as opened:
            with pytest.raises(RefusedError, match="EUA"):  # it is known, and may not
                await opened.link.bookie_info(deadline_s=5)
        with pytest.raises(AuthenticationError):
            await world.ask(BOOKIE_RPC, None)
        for who, status in (("ingest", Status.EOK), ("web", Status.EUA)):  # what comes right behind AUTH, too
            reader, writer = await _over_tls(world, bookie.port)
            writer.write(_auth(Path(tokens[who]).read_bytes().strip()) + _add(9))
            assert (await answer_of(reader)).status == int(Status.EOK)
            assert (await answer_of(reader)).status == int(status), who
            writer.transport.abort()
        endpoint = Endpoint("httpserver", "127.0.0.1", port, "http")
        before = store.read_roles()
        store.write_roles(RolesTable().granted(Line("web", Role.OPERATOR, scope_of("cluster"))), before.version)
        bookie._authority._table = None  # as if seconds had passed
        for who, status in (("ingest", 403), ("web", 200)):
            asked = AdminPorts(5, world.trust, TokenFile(tokens[who]))
            assert (await asked.get_status(endpoint, "/config"))[0] == status


# --- who shows nothing ---


async def test_who_shows_nothing_is_logged_once_in_ten_seconds_and_told_to_the_audit_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    asked = [b"/metrics", b"/" + b"x" * 4000, b"/live", b"/ready?verbose"]
    gets = [b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path for path in asked]
    with caplog.at_level(logging.INFO):
        async with token_bookie(tmp_path, admin_port=port) as world:
            rpc = world.world.bookie.port
            for _ in range(3):
                for where, sent in (
                    (rpc, make.info(9)),
                    (rpc, make.read(2, 0, (7, 0))),
                    *((port, each) for each in gets),
                ):
                    reader, writer = await _over_tls(world, where)
                    writer.write(sent)
                    assert await asyncio.wait_for(reader.read(64), 20)
                    writer.transport.abort()
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    refusals = [line for line in lines if " 127.0.0.1:" in line]
    assert len(refusals) == 2, refusals
    assert refusals[0].startswith("Apache's wire: 127.0.0.1:")
    assert refusals[0].endswith("it asks before it shows a token: 'GET_BOOKIE_INFO'")
    assert refusals[1].startswith("admin port: 127.0.0.1:")
    assert refusals[1].endswith("it asks for more than probes, and shows no token: '/metrics'")
    events = [json.loads(each.getMessage()) for each in caplog.records if each.name == "bookie_server.audit"]
    told = [(each["lane"], each["outcome"], each.get("again")) for each in events if each["did"] == "connect"]
    assert told[:2] == [("Apache's wire", "refused", None), ("admin port", "refused", None)]
    assert sorted(told[2:]) == [("Apache's wire", "refused", 5), ("admin port", "refused", 5)]
    assert {each["did"] for each in events} == {"connect"}, "and of nothing else that it asked"


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"token_keys_path": "k"}, "never sent without TLS"),
        ({"token_path": "t"}, "never sent without TLS"),
        ({"tls": True, "token_keys_path": "k"}, "need no certificate"),
        ({"tls": True, "tls_client_auth": "optional"}, "needs a token"),
        ({"tls": True, "tls_client_auth": "none", "tls_clients": ("a",)}, "clients that authenticate"),
        ({"tls": True, "tls_client_auth": "none", "token_keys_path": "k", "auto_recovery": True}, "token of its own"),
        ({"tls": True, "tls_client_auth": "none", "token_keys_path": "k", "upkeep": True}, "token of its own"),
        ({"tls": True, "tls_client_auth": "wanted"}, "required or optional or none"),
    ],
)
def test_settings_that_would_let_anybody_in_do_not_start(settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server").settings() if settings.pop("tls", False) else {}
    with pytest.raises(InvalidArgumentError, match=why) as raised:
        bookie_config(tmp_path, "memory://x", **files, **settings)
    assert raised.value.remedy


def test_a_bookie_is_a_client_with_its_own_token(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server").settings()
    more = {"tls_client_auth": "none", "token_keys_path": "k", "token_path": "t", "auto_recovery": True}
    config = bookie_config(tmp_path, "memory://x", **files, **more)
    mine = ClientConfig(**config.client_settings()).caller("i")
    assert (mine.token, mine.tls is not None) == (TokenFile("t"), True)
