# SPDX-License-Identifier: Apache-2.0
"""What the captures of Apache's wire protocol are made with, without Apache."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.interop.capture import fields, set_number
from tests.interop.jars import KitError
from tests.interop.recording_proxy import RecordingProxy

WITHIN_S = 10.0


def test_numbers_inside_a_frame_can_be_set() -> None:
    inner = b"\x08\x05\x30\x80\x01"
    message = b"\x0a\x02\x08\x03" + b"\xa2\x06" + bytes([len(inner)]) + inner
    changed = set_number(message, (100, 6), 300)
    assert changed == message.replace(b"\x30\x80\x01", b"\x30\xac\x02")
    assert set_number(message, (100, 7), 300) is None
    for bad in (b"\x80", b"\x0a\x05\x01", b"\x0d\x00\x00\x00\x00"):
        with pytest.raises(ValueError, match=r"cut off|wire type"):
            list(fields(bad))


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it gets, on one connection after another."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(WITHIN_S)


def test_the_proxy_notes_whole_frames_both_ways_and_passes_them_on(echo: tuple[str, int]) -> None:
    frame = struct.pack(">i", 100_000) + bytes(100_000)
    with RecordingProxy(echo) as proxy:
        proxy.label = "first"
        with socket.create_connection(("127.0.0.1", proxy.port), WITHIN_S) as connection:
            connection.sendall(frame[:70])
            connection.sendall(frame[70:])
            with connection.makefile("rb") as answers:
                assert answers.read(len(frame)) == frame
        proxy.wait_for(lambda passed: sum(not one.frame for one in passed) == 2)
        noted = [(one.sender, one.frame, one.label) for one in proxy.passed()]
        assert noted[:2] == [("client", frame, "first"), ("bookie", frame, "first")]
        assert {(sender, text) for sender, text, _ in noted[2:]} == {("client", b""), ("bookie", b"")}
        with pytest.raises(KitError, match="did not pass"):
            proxy.wait_for(lambda passed: len(passed) > 4, within_s=0.01)


def test_a_client_hears_that_there_is_no_bookie_behind_the_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
    with (
        RecordingProxy(address) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), WITHIN_S) as connection,
    ):
        assert connection.recv(1) == b""
