# SPDX-License-Identifier: Apache-2.0
"""The paths of the admin port: our own, those of Apache's HTTP service in its format (``/api/v1``), and those of the
web page."""

from __future__ import annotations

import ipaddress
import json
import re
import time
from collections.abc import Callable
from dataclasses import fields
from itertools import islice
from pathlib import Path
from urllib.parse import parse_qsl

from bk_core.access.needs import ADMIN, FREE_PATHS
from bk_core.cluster.admin_ports import parse_numbers
from bk_core.cluster.samples import ScrapedBookie
from bk_core.errors import BookKeeperError, InvalidArgumentError
from bk_core.metadata import StoreSettings, open_store
from bk_core.model import HTTP, TLS, BookieId, Endpoint, plain_host
from bk_core.observe import log_level
from bk_core.observe.audit import DONE, REFUSED
from bk_core.observe.metrics import CONTENT_TYPE
from bookie_server.admin.bookie_metrics import scrape
from bookie_server.admin.bookie_view import BookieView
from bookie_server.admin.http.server import HttpAnswer, HttpRequest, HttpServer
from bookie_server.admin.page.gatherer import Gatherer, SharedStore
from bookie_server.admin.page.page import METADATA_S, Page
from bookie_server.audit import AuditLog
from bookie_server.config import BookieConfig
from bookie_server.ports.access.authority import Authority, denial
from bookie_server.ports.access.tls import PortTls
from bookie_server.ports.bounds.limits import Limits
from bookie_server.ports.sockets import listening_socket

ENDPOINT = "httpserver"
"""The name of the admin port in a registration, as Apache's bookies write it."""

LACKING_MAX = 1_000
"""The maximum number of incomplete ledgers in one answer."""

_WILDCARDS = ("0.0.0.0", "::")
_USER = re.compile(r"(?<=://)[^/@]*@")


class AdminPort:
    """The admin port of a bookie. It is bound when it is made, so that a start notices a port in use before anything
    else. It answers while the bookie starts, too."""

    def __init__(
        self,
        config: BookieConfig,
        view: BookieView,
        tls: PortTls | None = None,
        authority: Authority | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._audit = audit
        assert config.admin_port
        self._authority = authority
        self._host, self._view = plain_host(config.admin_host), view
        self._quick: dict[str, Callable[[], HttpAnswer]] = {
            "/paths": self._paths,
            "/heartbeat": lambda: HttpAnswer(200, "OK\n"),
            "/live": lambda: _verdict(view.health().not_live(), "alive"),
            "/ready": lambda: _verdict(view.health().not_ready(), "ready"),
            "/config": self._config,
            "/lacking": self._lacking,
            "/api/v1/bookie/is_ready": lambda: _verdict(view.health().not_ready(), "ready"),
            "/api/v1/bookie/state": self._state,
            "/api/v1/bookie/state/readonly": lambda: _json({"readOnly": bool(view.why_read_only())}),
            "/api/v1/bookie/info": self._info,
            "/api/v1/bookie/gc": lambda: _json({"is_in_force_gc": "false"}),
            "/api/v1/config/server_config": self._config,
        }
        self._quick["/log/level"] = lambda: _json(log_level.levels())
        self._slow: dict[str, Callable[[], HttpAnswer]] = {
            "/metrics": lambda: HttpAnswer(200, scrape(view), CONTENT_TYPE)
        }
        listener = listening_socket(config.admin_host, config.admin_port, "--admin-port")
        self.port: int = listener.getsockname()[1]
        self._extensions = () if tls is None else (TLS,)
        settings: StoreSettings = {**config.store_settings(), "timeout_s": METADATA_S}
        store = SharedStore(lambda: open_store(config.metadata_service_uri, **settings))
        self._gatherer = Gatherer(store, lambda _: self._told())
        self._page = Page(self._gatherer, me=lambda: view.bookie_id)
        self._server = HttpServer(
            listener,
            self._answer,
            self._answer_slowly,
            MAY_WRITE[config.admin_writes],
            self._host,
            tls,
            FREE_PATHS,
            self._refusal if authority is not None else None,
            Limits(config.admin_limits(), time.monotonic),
        )

    @property
    def paths(self) -> list[str]:
        return sorted([*self._quick, *self._slow, *self._page.paths])

    def endpoint(self, address: str) -> Endpoint:
        """Return the endpoint that the bookie registers. ``address`` is the one at which other hosts reach this
        host."""
        host = address if self._host in _WILDCARDS else self._host
        return Endpoint(ENDPOINT, host, self.port, HTTP, extensions=self._extensions)

    def start(self) -> None:
        self._gatherer.start()
        self._server.start()

    def stop(self) -> None:
        """Stop the server and the gatherer. This blocks briefly."""
        self._server.stop()
        self._gatherer.stop()

    def _refusal(self, request: HttpRequest) -> HttpAnswer | None:
        """Return the refusal for a client without the right that mode ``secure`` requires, or None if the request is
        allowed. Blocks."""
        assert self._authority is not None
        need, identity = ADMIN.get((request.method, request.path)), request.principal.identity
        if need is None:
            return HttpAnswer(404, f"there is no {request.path[:100]} here\n")
        try:
            if self._authority.allows(identity, need):
                return None
        except BookKeeperError as error:
            return HttpAnswer(503, f"this bookie cannot read the table of roles now: {error.what}\n")
        self._say(request, REFUSED)
        return HttpAnswer(403, f"{denial(identity or 'a client that shows no identity', need.right)}\n")

    def _say(self, request: HttpRequest, outcome: str, why: str = "") -> None:
        """Write a request to the audit log."""
        if self._audit is not None:
            who = request.principal.as_event()
            self._audit.say(f"{request.method} {request.path}", outcome, lane=HTTP, why=why, **who)

    def _answer(self, request: HttpRequest) -> HttpAnswer | None:
        """Return the answer, or None for a path that may take time."""
        if request.method == "PUT":
            if request.path != "/log/level":
                return HttpAnswer(405, "only GET here\n")
            answer = _set_level(request.query)
            self._say(request, DONE if answer.status == 200 else REFUSED, request.query)
            return answer
        if request.path in self._slow or self._page.has(request.path):
            return None
        found = self._quick.get(request.path)
        if found is not None:
            return found()
        return self._page.file(request) or HttpAnswer(404, f"there is no {request.path[:100]} here\n")

    def _answer_slowly(self, request: HttpRequest) -> HttpAnswer:
        slow = self._slow.get(request.path)
        return slow() if slow is not None else self._page.answer(request)

    def _told(self) -> dict[BookieId, ScrapedBookie | str]:
        """Return this bookie's numbers for the page. There are none while it starts."""
        view = self._view
        if not view.bookie_id:
            return {}
        return {
            view.bookie_id: ScrapedBookie(parse_numbers(scrape(view)), view.health().not_ready(), view.why_read_only())
        }

    def _paths(self) -> HttpAnswer:
        return HttpAnswer(200, "".join(f"{path}\n" for path in self.paths))

    def _config(self) -> HttpAnswer:
        config = self._view.config
        shown = {field.name: _shown(getattr(config, field.name)) for field in fields(config)}
        return _json({**shown, "bookie_id": self._view.bookie_id or shown["bookie_id"], "version": self._view.version})

    def _lacking(self) -> HttpAnswer:
        """Return the missing entries of this bookie's own copies, for at most ``LACKING_MAX`` ledgers."""
        own = self._view.own_copies
        lacking = dict(islice(list(own.lacking.items()), LACKING_MAX)) if own is not None else {}
        shown = [
            {"ledgerId": ledger_id, "lacks": str(lack), "inLimbo": lack.limbo, "since": round(lack.since_s, 3)}
            for ledger_id, lack in lacking.items()
        ]
        return _json({"ledgers": len(own.lacking) if own is not None else 0, "lacking": shown})

    def _state(self) -> HttpAnswer:
        view = self._view
        running = view.serves() and view.error() is None
        read_only = bool(view.why_read_only())
        return _json(
            {
                "running": running,
                "readOnly": read_only,
                "shuttingDown": view.stops,
                "availableForHighPriorityWrites": running and not read_only,
            }
        )

    def _info(self) -> HttpAnswer:
        availability = self._view.availability
        usages = [usage for _, usage, _ in availability.usages] if availability is not None else []
        free, total = sum(usage.free_bytes for usage in usages), sum(usage.total_bytes for usage in usages)
        return _json({"freeSpace": free, "totalSpace": total})


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


MAY_WRITE: dict[str, Callable[[str], bool]] = {
    "off": lambda address: False,
    "loopback": _is_loopback,
    "any": lambda address: True,
}
"""For each value of the setting ``admin_writes``: whether a PUT from an address is accepted."""


def _set_level(query: str) -> HttpAnswer:
    asked = dict(parse_qsl(query))
    try:
        log_level.set_level(asked.pop("level", ""), asked.pop("logger", ""))
    except InvalidArgumentError as error:
        return HttpAnswer(400, f"{error}\n")
    return _json(log_level.levels())


def _verdict(trouble: str, word: str) -> HttpAnswer:
    return HttpAnswer(503, f"not {word}: {trouble}\n") if trouble else HttpAnswer(200, f"{word}\n")


def _json(value: dict[str, object]) -> HttpAnswer:
    return HttpAnswer(200, json.dumps(value, indent=1) + "\n", "application/json; charset=utf-8")


def _shown(value: object) -> object:
    """Return a setting as JSON, without user and password in a URI."""
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return _USER.sub("", value) if isinstance(value, str) else value
