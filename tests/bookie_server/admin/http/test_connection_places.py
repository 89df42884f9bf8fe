# SPDX-License-Identifier: Apache-2.0
"""The places of the admin port: silent clients take nobody's, plain and over TLS, before and behind their request."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from bk_core.access.tls import Admission
from bookie_server.admin.http.connection_places import ConnectionPlace, ConnectionPlaces
from bookie_server.admin.http.server import CONNECTIONS_MAX, HttpAnswer, HttpRequest, HttpServer
from bookie_server.ports.access.tls import PortTls
from tests.kit.certificates import Authority
from tests.kit.waiting import until

GET = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SLOW = GET.replace(b"/live", b"/slow")
WITHIN_S = 2.5
"""A machine that is not busy needs milliseconds."""


class Served:
    """A server whose /slow waits until ``go`` is set."""

    def __init__(self, path: Path, *, tls: bool) -> None:
        self.go = Event()
        authority = Authority(path)
        port_tls = PortTls(authority.issue("server").tls(client_auth=False), Admission()) if tls else None
        self._context = authority.issue("client").tls().client() if tls else None
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._port = listener.getsockname()[1]
        self.server = HttpServer(listener, self._quick, self._slow, tls=port_tls)
        self.server.start()

    def _quick(self, request: HttpRequest) -> HttpAnswer | None:
        return None if request.path == "/slow" else HttpAnswer(200, "alive\n")

    def _slow(self, request: HttpRequest) -> HttpAnswer:
        self.go.wait(10)
        return HttpAnswer(200, "slow\n")

    def connect(self, sent: bytes = b"", *, before_handshake: bool = False) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self._port), 5)
        if self._context is None or before_handshake:
            made = sock
        else:
            made = self._context.wrap_socket(sock, server_hostname="127.0.0.1", suppress_ragged_eofs=True)
        made.sendall(sent)
        return made

    def wait_for(self, asking: int) -> None:
        """Wait until so many ask, and nobody else is there."""
        until(lambda: [each.asks for each in list(self.server._places.taken)] == [True] * asking)

    def probe(self) -> tuple[bytes, float]:
        began = time.monotonic()
        with self.connect(GET) as sock:
            return rest(sock), time.monotonic() - began


def rest(sock: socket.socket) -> bytes:
    """What comes until the other side ends, however it does."""
    parts = []
    with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path, tls=request.param)
    yield made
    made.go.set()
    made.server.stop()


SILENT: dict[str, Callable[[Served], socket.socket]] = {
    "mute": lambda served: served.connect(before_handshake=True),
    "half a handshake": lambda served: served.connect(b"\x16\x03\x01", before_handshake=True),
    "no request": lambda served: served.connect(),
    "half a request": lambda served: served.connect(GET[:-2]),
    "answered, and does not close": lambda served: served.connect(GET),
}


@pytest.mark.parametrize("silent", SILENT)
def test_silent_clients_take_no_place_of_a_probe(served: Served, silent: str, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as held, caplog.at_level(logging.WARNING):
        clients = [held.enter_context(SILENT[silent](served)) for _ in range(2 * CONNECTIONS_MAX)]
        for _ in range(3):
            said, took_s = served.probe()
            assert said.startswith(b"HTTP/1.1 200 "), said
            assert took_s < WITHIN_S
        assert len(served.server._places.taken) <= CONNECTIONS_MAX
        clients[0].settimeout(WITHIN_S)
        rest(clients[0])  # it has ended, and not by a deadline
    assert caplog.text.count("by 127.0.0.1: the oldest of these that asks for nothing is closed") == 1


def test_who_is_being_answered_is_never_cut_and_places_have_an_end(served: Served) -> None:
    with ExitStack() as held:
        asking = [held.enter_context(served.connect(SLOW)) for _ in range(CONNECTIONS_MAX - 1)]
        served.wait_for(CONNECTIONS_MAX - 1)
        first, second = (held.enter_context(served.connect()) for _ in range(2))
        assert rest(first) == b"", "the oldest that waits is closed"
        assert served.probe()[0].startswith(b"HTTP/1.1 200 ")
        assert rest(second) == b""
        served.wait_for(CONNECTIONS_MAX - 1)
        asking.append(held.enter_context(served.connect(SLOW)))
        served.wait_for(CONNECTIONS_MAX)
        try:
            refused = served.probe()[0]
        except OSError:  # over TLS it ends in the handshake
            refused = b"HTTP/1.1 503 "
        assert refused.startswith(b"HTTP/1.1 503 ")
        served.go.set()
        for each in asking:
            assert rest(each).startswith(b"HTTP/1.1 200 ")
        assert served.probe()[0].startswith(b"HTTP/1.1 200 ")


def test_the_host_with_most_clients_that_wait_makes_room() -> None:
    places, ended = ConnectionPlaces(4), list[str]()

    def enter(host: str, name: str) -> ConnectionPlace | None:
        return places.enter(host, lambda: ended.append(name))

    probe = enter("10.0.0.1", "probe")
    enter("10.0.0.66", "first")
    asks = enter("10.0.0.66", "asks")
    enter("10.0.0.66", "second")
    asks.asks = True
    assert enter("10.0.0.66", "third")
    assert ended == ["first"]
    for host in ("10.0.0.2", "10.0.0.3"):
        assert enter(host, host)
    assert ended == ["first", "second", "third"]
    assert enter("10.0.0.4", "of as many the oldest goes")
    assert ended[3:] == ["probe"]
    assert probe.is_lost
    for place in list(places.taken):
        place.asks = True
    assert enter("10.0.0.5", "all ask") is None
    asks.leave()
    assert enter("10.0.0.5", "one has left") is not None
