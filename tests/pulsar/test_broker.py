# SPDX-License-Identifier: Apache-2.0
"""What a broker says of the end of a topic, over HTTP; and a read that asks it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bk_core.errors import (
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchTopicError,
    Outcome,
    PermissionDeniedError,
)
from bk_core.pulsar.lookup.broker import BrokerAdmin
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.topic_name import TopicName
from tests.kit import pulsar_entries as kit
from tests.kit.certificates import Authority, Files
from tests.kit.pulsar_world import plain, pulsar_world
from tests.kit.waiting import SHUTDOWN_POLL_S

TOPIC = TopicName("public", "default", "a b/ü")
STATS = "/admin/v2/persistent/public/default/a%20b%2F%C3%BC/internalStats"


class AdminPort:
    """Answers each path with a status and a body; notes the tokens that it got."""

    def __init__(self, tls: Files | None = None) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.tokens: list[str | None] = []
        port = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                port.tokens.append(self.headers.get("Authorization"))
                status, body = port.answers.get(self.path, (404, b""))
                self.send_response(status)
                if status == 307:
                    self.send_header("Location", body.decode())
                    body = b""
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(tls.certificate, tls.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(SHUTDOWN_POLL_S,), daemon=True)
        self._thread.start()
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def port() -> Iterator[AdminPort]:
    made = AdminPort()
    try:
        yield made
    finally:
        made.close()


def test_broker_says_the_last_entry_and_gets_the_token(port: AdminPort) -> None:
    port.answers[STATS] = (200, json.dumps({"lastConfirmedEntry": "12:34", "more": 1}).encode())
    broker = BrokerAdmin(port.url + "/", token=lambda: "secret")
    assert broker.last_confirmed(TOPIC) == EntryPosition(12, 34)
    assert port.tokens == ["Bearer secret"]


def test_redirect_to_the_owner_is_followed_with_the_token(port: AdminPort) -> None:
    port.answers[STATS] = (307, f"{port.url}/owner".encode())
    port.answers["/owner"] = (200, b'{"lastConfirmedEntry": "1:2"}')
    assert BrokerAdmin(port.url, token=lambda: "t").last_confirmed(TOPIC) == EntryPosition(1, 2)
    assert port.tokens == ["Bearer t"] * 2


def test_broker_with_tls_is_asked_if_its_certificate_is_trusted(tmp_path: Path) -> None:
    port = AdminPort(Authority(tmp_path).issue("broker"))
    try:
        port.answers[STATS] = (200, b'{"lastConfirmedEntry": "1:2"}')
        trusting = ssl.create_default_context(cafile=str(tmp_path / "authority.crt"))
        assert BrokerAdmin(port.url, tls=trusting).last_confirmed(TOPIC) == EntryPosition(1, 2)
        with pytest.raises(MetadataUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            BrokerAdmin(port.url).last_confirmed(TOPIC)
    finally:
        port.close()


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[BrokerAdmin]:
    """Yield the client of a port whose answers need not be HTTP."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            answer(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(SHUTDOWN_POLL_S,), daemon=True).start()
        try:
            yield BrokerAdmin(f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"], ids=["head", "body"])
def test_answer_that_comes_byte_by_byte_ends_with_its_time(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.pulsar.lookup.broker.TIMEOUT_S", 0.3)

    def slowly(connection: socket.socket) -> None:
        connection.sendall(head)
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b"H")
                time.sleep(0.03)

    with answering(slowly) as broker:
        began = time.monotonic()
        with pytest.raises(MetadataUnavailableError, match=r"no whole answer|timed out"):
            broker.last_confirmed(TOPIC)
        assert 0.2 < time.monotonic() - began < 3


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 " + b"x" * (1 << 17),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{",
    ],
    ids=["another-protocol", "long-line", "many-headers", "cut-off"],
)
def test_answer_that_is_not_http_is_an_error_that_names_the_topic(answer: bytes) -> None:
    named = "persistent://public/default/a b"
    with (
        answering(lambda connection: connection.sendall(answer)) as broker,
        pytest.raises(MetadataUnavailableError, match=named),
    ):
        broker.last_confirmed(TOPIC)


@pytest.mark.parametrize("said", ["-1:-1", "5:-1"])
def test_topic_without_an_entry_has_no_last_one(port: AdminPort, said: str) -> None:
    port.answers[STATS] = (200, json.dumps({"lastConfirmedEntry": said}).encode())
    assert BrokerAdmin(port.url).last_confirmed(TOPIC) is None


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, b"", NoSuchTopicError),
        (401, b"", PermissionDeniedError),
        (403, b"", PermissionDeniedError),
        (500, b"", MetadataUnavailableError),
        (200, b"[]", MetadataUnavailableError),
        (200, b"{}", MetadataUnavailableError),
        (200, b'{"lastConfirmedEntry": 5}', MetadataUnavailableError),
        (200, b'{"lastConfirmedEntry": "x"}', MetadataUnavailableError),
        (200, b"[" * 100_000, MetadataUnavailableError),
        (307, b"ftp://elsewhere/", MetadataUnavailableError),
        (307, b"file:///etc/passwd", MetadataUnavailableError),
    ],
)
def test_other_answers_are_errors_that_name_the_topic(
    port: AdminPort, status: int, body: bytes, kind: type[Exception]
) -> None:
    port.answers[STATS] = (status, body)
    with pytest.raises(kind, match="persistent://public/default/a b"):
        BrokerAdmin(port.url).last_confirmed(TOPIC)


def test_broker_that_does_not_answer_leaves_nothing_done() -> None:
    with pytest.raises(MetadataUnavailableError) as told:
        BrokerAdmin("http://127.0.0.1:1").last_confirmed(TOPIC)
    assert told.value.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("url", ["", "pulsar://x:6650", "http://", "x:8080", "http://me:hidden@x:8080"])
def test_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError) as told:
        BrokerAdmin(url)
    assert "hidden" not in str(told.value)


def test_token_that_cannot_be_read_any_more_is_an_error_that_names_the_topic(port: AdminPort) -> None:
    def gone() -> str:
        raise FileNotFoundError("/run/token")

    with pytest.raises(MetadataUnavailableError, match="/run/token"):
        BrokerAdmin(port.url, token=gone).last_confirmed(TOPIC)


async def test_last_message_of_an_idle_topic_is_read_once_the_broker_says_it(port: AdminPort) -> None:
    async with pulsar_world() as world:
        name = "persistent://public/default/idle"
        ledger = await world.ledger(name, plain(b"a", b"b"), is_open=True)
        await ledger.append(kit.entry(b"c"))  # bookies do not know yet that it is confirmed
        stats = "/admin/v2/persistent/public/default/idle/internalStats"
        port.answers[stats] = (200, json.dumps({"lastConfirmedEntry": f"{ledger.ledger_id}:2"}).encode())
        without, asking = world.topic(name), world.topic(name, admin_url=port.url)
        assert (await without.to_arrow(columns=["value"]))["value"].to_pylist() == [b"a", b"b"]
        assert (await asking.to_arrow(columns=["value"]))["value"].to_pylist() == [b"a", b"b", b"c"]
        assert (await asking.info()).partitions[0].end.source == "broker"
        assert (await without.info()).partitions[0].end.source == "lac"
        async with asking.tail(columns=["value"]) as tail:
            seen = list[bytes]()
            while len(seen) < 3:
                seen += (await anext(tail))["value"].to_pylist()
        assert seen == [b"a", b"b", b"c"]


async def test_tail_goes_on_to_the_lac_while_no_broker_answers(port: AdminPort) -> None:
    async with pulsar_world() as world:
        name = "persistent://public/default/idle"
        ledger = await world.ledger(name, plain(b"a"), is_open=True)
        stats = "/admin/v2/persistent/public/default/idle/internalStats"
        port.answers[stats] = (503, b"")
        topic = world.topic(name, admin_url=port.url)
        with pytest.raises(MetadataUnavailableError):
            await topic.to_arrow()
        async with topic.tail(columns=["value"]) as tail:
            await ledger.append(kit.entry(b"b"))
            assert (await anext(tail))["value"].to_pylist() == [b"a"]
            said = json.dumps({"lastConfirmedEntry": f"{ledger.ledger_id}:1"})
            port.answers[stats] = (200, said.encode())
            assert (await anext(tail))["value"].to_pylist() == [b"b"]


async def test_tail_goes_on_when_the_metadata_store_was_away_for_a_while() -> None:
    async with pulsar_world() as world:
        name = "persistent://public/default/events"
        ledger = await world.ledger(name, plain(b"a"), is_open=True)
        await ledger.write_lac()
        async with world.topic(name).tail(columns=["value"]) as tail:
            assert (await anext(tail))["value"].to_pylist() == [b"a"]
            tree = world.bookkeeper.store.tree  # type: ignore[attr-defined]  # that of the memory store
            tree.suspend()
            step = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(0.3)
            tree.resume()
            await ledger.append(kit.entry(b"b"))
            await ledger.write_lac()
            assert (await step)["value"].to_pylist() == [b"b"]
