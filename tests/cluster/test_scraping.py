# SPDX-License-Identifier: Apache-2.0
"""Admin ports of bookies that answer, lie, hang or send without end: none holds up the others."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bk_core.cluster.admin_ports import AdminPorts
from bk_core.cluster.samples import ScrapedBookie
from bk_core.cluster.scraping import ask_admin_ports
from bk_core.model import BookieServiceInfo, Endpoint


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A port that gives these answers, one a connection; none: it never answers. The last is given again and again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = list(answers)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.recv(1 << 12)
                    answer = left.pop(0) if len(left) > 1 else left[0] if left else b""
                    while answer == b"endless":
                        connection.sendall(b"x" * (1 << 20))
                    connection.sendall(answer) if answer else time.sleep(2)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def info(name: str, port: int | None) -> BookieServiceInfo:
    endpoints = () if port is None else (Endpoint("httpserver", "127.0.0.1", port, "http"),)
    return BookieServiceInfo(name, endpoints, {})


def http(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} X\r\nServer: x\r\n\r\n{body}".encode()


def test_what_bookies_tell_and_why_others_do_not() -> None:
    metrics = 'bookie_info{{bookie="{}",version="1"}} 1\nbookie_WRITE_BYTES 5\nbookie_ready 0\n'
    with (
        answering(http(200, metrics.format("b1")), http(503, "not ready: it starts\n")) as well,
        answering(http(200, metrics.format("b3").replace("ready 0", "ready 1"))) as ready,
        answering(http(200, metrics.format("b9"))) as anothers,
        answering() as mute,
        answering(b"endless") as endless,
        answering(b"SSH-2.0-x\r\n") as other,
        answering(http(500, "")) as broken,
    ):
        infos = [
            *(info("b1", well), info("b3", ready), info("b2", anothers), info("mute", mute), info("none", None)),
            *(info("endless", endless), info("other", other), info("broken", broken), info("gone", 1)),
        ]
        began = time.monotonic()
        told = ask_admin_ports(AdminPorts(0.5), infos)
        assert time.monotonic() - began < 2
    one = told["b1"]
    assert isinstance(one, ScrapedBookie)
    assert (one.not_ready, one.numbers.total("bookie_WRITE_BYTES")) == ("it starts", 5)
    assert isinstance(told["b3"], ScrapedBookie)
    assert told["b3"].not_ready == "", "one that is ready is not asked why it is not"
    words = {
        "b2": "is b9",
        "mute": "no answer within 0.5 s",
        "none": "has no admin port",
        "endless": "an unexpected answer",
        "other": "an unexpected answer",
        "broken": "500",
        "gone": "does not answer",
    }
    assert {name for name, each in told.items() if isinstance(each, str)} == set(words)
    for name, expected in words.items():
        assert expected in str(told[name])
