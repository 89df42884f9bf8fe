# SPDX-License-Identifier: Apache-2.0
"""The proxies cause the faults that they are named for. Otherwise a trial without losses would prove nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from bk_cli.local.children import free_ports
from tests.trials.kit.proxy import FaultProxy, ProxyThread

QUIET_S = 0.15
HOST = "127.0.0.1"


class Echo:
    """A server that returns every piece that it receives, and remembers it."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.got = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._answer, args=(one,), daemon=True).start()

    def _answer(self, one: socket.socket) -> None:
        with one:
            try:
                while data := one.recv(1000):
                    self.got += data
                    one.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    proxies = ProxyThread()
    yield proxies.add((HOST, 0), (HOST, echo.port))
    proxies.close()


def connected(proxy: FaultProxy) -> socket.socket:
    one = socket.create_connection((HOST, proxy.port))
    one.settimeout(5)
    return one


def answer(one: socket.socket, data: bytes) -> bytes:
    one.sendall(data)
    return one.recv(1000)


def is_silent(one: socket.socket) -> bool:
    one.settimeout(QUIET_S)
    try:
        one.recv(1000)
    except TimeoutError:
        return True
    finally:
        one.settimeout(5)
    return False


def is_broken(one: socket.socket) -> bool:
    try:
        return one.recv(1000) == b""
    except ConnectionError:
        return True


def test_a_cut_breaks_what_is_connected_and_nothing_else(proxy: FaultProxy) -> None:
    with connected(proxy) as one:
        assert answer(one, b"a") == b"a"
        proxy.cut()
        assert is_broken(one)
    with connected(proxy) as one:
        assert answer(one, b"b") == b"b"


def test_refused_connections_break_at_once_until_the_heal(proxy: FaultProxy) -> None:
    proxy.refuse()
    with connected(proxy) as one:
        assert is_broken(one)
    proxy.heal()
    with connected(proxy) as one:
        assert answer(one, b"a") == b"a"


def test_stalled_answers_leave_requests_through(proxy: FaultProxy, echo: Echo) -> None:
    with connected(proxy) as one:
        proxy.stall(requests=False, answers=True)
        one.sendall(b"a")
        assert is_silent(one)
        assert echo.got == b"a"
        proxy.heal()
        assert one.recv(1000) == b"a"


def test_what_a_stall_holds_back_is_lost_with_the_connection(proxy: FaultProxy, echo: Echo) -> None:
    with connected(proxy) as one:
        assert answer(one, b"a") == b"a"
        proxy.stall(requests=True, answers=True)
        one.sendall(b"b")
        assert is_silent(one)
        proxy.cut()
        assert is_broken(one)
    proxy.heal()
    with connected(proxy) as one:
        assert answer(one, b"c") == b"c"
    assert echo.got == b"ac"


def test_a_patient_connection_waits_for_an_upstream_that_does_not_listen_yet(echo: Echo) -> None:
    proxies = ProxyThread()
    (port,) = free_ports(1)
    patient = proxies.add((HOST, 0), (HOST, port), patience_s=30)
    with connected(patient) as one, connected(patient) as other:
        assert is_silent(one)
        patient.cut()
        assert is_broken(one)
        assert is_broken(other)
    with connected(patient) as one:
        assert is_silent(one)
        proxies.add((HOST, port), (HOST, echo.port))
        assert answer(one, b"a") == b"a"
    proxies.close()
