# SPDX-License-Identifier: Apache-2.0
"""The port of ``bk web``: the page of a whole cluster."""

from __future__ import annotations

from bk_core.model import host_and_port, plain_host
from bookie_server.admin.http.server import HttpAnswer, HttpRequest, HttpServer
from bookie_server.admin.page.gatherer import Gatherer
from bookie_server.admin.page.page import Entries, Page
from bookie_server.ports.sockets import listening_socket


class ClusterPort:
    """The port of ``bk web``. It is bound when it is made, and may raise PortInUseError. It starts and stops
    ``gatherer``."""

    def __init__(self, host: str, port: int, gatherer: Gatherer, entries: Entries) -> None:
        self._gatherer = gatherer
        self._page = Page(self._gatherer, me=lambda: None, entries=entries)
        listener = listening_socket(host, port, "--port")
        self.url = f"http://{host_and_port(plain_host(host), listener.getsockname()[1])}/"
        self._server = HttpServer(listener, self._quick, self._page.answer, name=plain_host(host))

    def start(self) -> None:
        self._gatherer.start()
        self._server.start()

    def stop(self) -> None:
        """Stop the server and the gatherer. This blocks briefly."""
        self._server.stop()
        self._gatherer.stop()

    def _quick(self, request: HttpRequest) -> HttpAnswer | None:
        if self._page.has(request.path):
            return None
        return self._page.file(request) or HttpAnswer(404, f"there is no {request.path[:100]} here\n")
