# SPDX-License-Identifier: Apache-2.0
"""The admin port's HTTP against clients that do not behave: everything they can take is bounded."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_server.admin.http import server as http
from bookie_server.admin.http.server import (
    HEAD_BYTES_MAX,
    HttpAnswer,
    HttpRefused,
    HttpRequest,
    HttpServer,
    names_an_address,
    request_of,
)

DEADLINE_S = 0.4


class Served:
    """A server on a free port. /slow waits until ``go`` is set, /long is 1 MiB."""

    def __init__(self) -> None:
        self.go = Event()
        self.asked: list[str] = []
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)  # so that a long answer does not fit
        self.port = listener.getsockname()[1]
        self.may_write = False
        self.server = HttpServer(listener, self._quick, self._slow, lambda address: self.may_write)
        self.server.start()

    def _quick(self, request: HttpRequest) -> HttpAnswer | None:
        self.asked.append(request.path)
        if request.path == "/bug":
            raise RuntimeError("a bug")
        return None if request.path in ("/slow", "/long", "/no") else HttpAnswer(200, "quick\n")

    def _slow(self, request: HttpRequest) -> HttpAnswer:
        if request.path == "/no":
            raise HttpRefused(400, "the question makes no sense")
        if request.path == "/slow":
            self.go.wait(10)
        return HttpAnswer(200, "x" * (1 << 20))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 5)

    def said(self, sent: bytes) -> bytes:
        """All that comes until the server closes."""
        with self.connect() as sock:
            sock.sendall(sent)
            return rest(sock)


def rest(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(http, "DEADLINE_S", DEADLINE_S)
    made = Served()
    yield made
    made.go.set()
    made.server.stop()


GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (GET, 200),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET /?a=b HTTP/1.1\r\nhost:127.0.0.1\r\nContent-Length: 0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /\xc3\xa4 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n folded: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: b\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: b\rc\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\ncontent-length: 0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", 400),
        (b"GET / HTTP/3.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /no HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /bug HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 500),
    ],
)
def test_only_a_plain_get_is_answered(served: Served, sent: bytes, status: int) -> None:
    said = served.said(sent)
    assert said.startswith(b"HTTP/1.1 %d " % status), said
    assert b"\r\nConnection: close\r\n" in said


def test_a_put_is_taken_of_those_alone_who_may_write(served: Served) -> None:
    put = b"PUT /x?a=b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert served.said(put).startswith(b"HTTP/1.1 405 ")
    served.may_write = True
    assert served.said(put).startswith(b"HTTP/1.1 200 ")
    assert served.said(put.replace(b"PUT", b"POST")).startswith(b"HTTP/1.1 405 ")
    assert served.said(put[:-2] + b"Content-Length: 1\r\n\r\nx").startswith(b"HTTP/1.1 400 ")
    assert served.asked == ["/x"]
    assert request_of(put, may_write=True) == HttpRequest("/x", "a=b", "PUT", "127.0.0.1")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:6181", 200),
        ("LocalHost:6181", 200),
        ("[::1]:6181", 200),
        ("evil.example", 421),
        ("evil.example:6181", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("127.0.0.1:6181:1", 421),
        ("localhost@evil.example", 421),
        ("2130706433", 421),
    ],
)
def test_on_loopback_a_name_that_could_be_a_web_sites_is_refused(served: Served, host: str, status: int) -> None:
    """A site whose name resolves to 127.0.0.1 would be of our origin, and read everything."""
    said = served.said(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 %d " % status), said
    assert served.asked == (["/"] if status == 200 else [])


def test_the_name_that_an_operator_gave_is_answered_on_loopback() -> None:
    """Hosts often have their own name for 127.0.1.1."""
    assert names_an_address("Bookie1:6181", "bookie1")
    assert not names_an_address("bookie1.evil.example:6181", "bookie1")
    assert not names_an_address("", "")
    assert not names_an_address(":6181", "")


def test_no_answer_may_be_read_or_framed_by_another_origin_or_run_what_is_not_ours(served: Served) -> None:
    for sent in (GET, GET.replace(b"GET", b"PUT"), GET.replace(b"/ ", b"/bug ")):
        head = served.said(sent).partition(b"\r\n\r\n")[0]
        policy = re.findall(rb"^Content-Security-Policy: (.*)\r$", head, re.MULTILINE)[0]
        assert policy.startswith(b"default-src 'none'; script-src 'self'; style-src 'self';")
        assert b"unsafe" not in policy
        assert b"frame-ancestors 'none'" in policy
        for line in (b"X-Content-Type-Options: nosniff", b"Cross-Origin-Resource-Policy: same-origin"):
            assert line in head
        assert b"access-control" not in head.lower()


def test_a_long_head_is_refused_with_little_of_it_read(served: Served) -> None:
    line = b"A: " + b"a" * 1000 + b"\r\n"
    said = served.said(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + 40 * line)
    assert said.startswith(b"HTTP/1.1 431 ")
    fits = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: "
    assert served.said(fits + b"a" * (HEAD_BYTES_MAX - len(fits) - 4) + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_a_request_that_never_ends_is_given_up(served: Served) -> None:
    """Also one of which a byte comes now and then: the deadline is for all of it."""
    with served.connect() as sock:
        began = time.monotonic()
        for each in GET[:-4]:
            try:
                sock.sendall(bytes([each]))
            except OSError:
                break
            time.sleep(DEADLINE_S / 10)
        said = rest(sock)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert DEADLINE_S <= time.monotonic() - began < DEADLINE_S * 8


def test_what_is_sent_behind_a_request_is_not_looked_at(served: Served) -> None:
    said = served.said(20 * GET)
    assert said.count(b"HTTP/1.1 ") == 1
    assert served.asked == ["/"]


def test_an_answer_that_takes_too_long_is_a_503_and_holds_nobody_up(served: Served) -> None:
    with served.connect() as slow:
        slow.sendall(b"GET /slow HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert served.said(GET).startswith(b"HTTP/1.1 200 ")
        assert rest(slow).startswith(b"HTTP/1.1 503 ")


def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(served: Served) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", served.port))
        sock.settimeout(5)
        sock.sendall(b"GET /long HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(DEADLINE_S * 2.5)
        assert len(rest(sock)) < 1 << 20
    assert len(served.said(b"GET /long HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")) > 1 << 20


def test_a_stop_ends_what_is_open(served: Served) -> None:
    with served.connect() as half:
        half.sendall(GET[:10])
        began = time.monotonic()
        served.server.stop()
        assert time.monotonic() - began < 2
        with contextlib.suppress(ConnectionResetError):
            assert rest(half) == b""
    with pytest.raises(ConnectionRefusedError):
        served.connect()


@given(st.binary(max_size=200))
def test_no_head_breaks_the_reader(head: bytes) -> None:
    """Anything else than an answer of its own would be a bug."""
    with contextlib.suppress(HttpRefused):
        assert request_of(head + b"\r\n\r\n").path.startswith("/")
