# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server that serves one request on each connection and bounds everything a client can use.

It has its own thread and its own loop. So it answers while the bookie's loop is busy, and no HTTP client delays the
bookie. It accepts GET requests, and a PUT without a body from clients that may write. It closes a connection after the
answer, and ignores bytes that the client sent after its request. New connections take the places of clients that only
wait (``connection_places.py``).

Pages of other origins cannot read an answer. On loopback the Host header must be an address, ``localhost`` or the name
that the operator configured. Any other name may be a web site's that resolves to 127.0.0.1, and the pages of that site
would then have our origin.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Collection
from http import HTTPStatus
from typing import NamedTuple

import h11

from bk_core.access.tls import explained, names_of
from bk_core.errors import AuthenticationError, TlsError
from bookie_server.admin.http.connection_places import ConnectionPlace, ConnectionPlaces
from bookie_server.ports.access.principal import UNKNOWN, Principal
from bookie_server.ports.access.tls import PLAIN_REFUSED, PortTls, linger, said_to_client, speaks_tls
from bookie_server.ports.bounds.limits import Limits, RequestKind
from bookie_server.ports.sockets import Acceptor, peer_of

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8 << 10
"""The maximum size of the request line and the headers together, in bytes."""
NEEDS_TOKEN = "this path is for clients with a token (Authorization: Bearer), or a certificate where they are taken"
NEEDS_CERTIFICATE = "this path is for clients with a certificate"
_SHOWN_NOTHING = {
    NEEDS_TOKEN: "it asks for more than probes, and shows no token",
    NEEDS_CERTIFICATE: "it asks for more than probes, and shows no certificate",
}
"""The text of the log line for each refusal of a client that showed nothing. A refused certificate or token is logged
elsewhere."""
CONNECTIONS_MAX = 16
"""The maximum number of connections to the admin port."""
DEADLINE_S = 5.0
"""The deadline of each step of a request, in seconds: to receive all of it, to make the answer, to send the answer."""
ANSWER_BYTES_MAX = 4 << 20
"""The maximum size of the body of an answer, in bytes. Readers accept no more."""

_LINGER_S = 0.5
_LINGER_BYTES = 64 << 10
"""After it has sent an answer, the server still receives for at most ``_LINGER_S`` seconds and ``_LINGER_BYTES`` bytes.
A close while received bytes are unread would reset the connection and destroy the answer."""
_AT_ONCE_BYTES = 4 << 10
"""The size of an answer, in bytes, up to which the kernel accepts it immediately, whether the client reads it or
not."""
_TURNS = 4
"""The turns of the loop after which an accepted connection has its transport and is in ``_open``."""

_LENIENT = re.compile(rb"(?<!\r)\n|\n[ \t]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Syntax that h11 accepts in a request and this port refuses: a line that ends without a carriage return, a header that
continues on the next line, and control characters."""
_ONCE = (b"content-length", b"transfer-encoding", b"authorization")
"""Headers that a request may have only once. h11 checks Host."""
_BEARER = re.compile(rb"[Bb]earer +([\x21-\x7e]+)")
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:]*))(?::\d{1,5})?")

_HEADERS = (
    "Cache-Control: no-store",
    "X-Content-Type-Options: nosniff",
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy: same-origin",
    "Referrer-Policy: no-referrer",
    "Connection: close",
)


class HttpRequest(NamedTuple):
    """A request and the client that sent it. ``query`` is the text after the question mark. ``method`` is GET or PUT.
    ``host`` is the Host header, and ``token`` the bearer token. A part that the request lacks is empty."""

    path: str
    query: str = ""
    method: str = "GET"
    host: str = ""
    token: str = ""
    principal: Principal = UNKNOWN

    def __repr__(self) -> str:
        return "a request"  # it may hold a token


class HttpAnswer(NamedTuple):
    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


class HttpRefused(Exception):
    """The error for a request that the port does not serve. ``answer`` is the answer to the client."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.answer = HttpAnswer(status, f"{why}\n")


def request_of(head: bytes, *, may_write: bool = False) -> HttpRequest:
    """Return the request with this ``head``, which is everything through the empty line. With ``may_write``, a PUT is
    allowed too. Raises HttpRefused, whose text quotes nothing from the head, because the head may have a token."""
    try:
        found = None if _LENIENT.search(head) else _parsed(head)
    except h11.RemoteProtocolError:
        found = None
    if not isinstance(found, h11.Request) or found.http_version not in (b"1.0", b"1.1"):
        raise HttpRefused(400, "this is no request of HTTP/1.1")
    if not found.target.startswith(b"/"):
        raise HttpRefused(400, "the request line has no path")
    headers, lower = dict(found.headers), head.lower()
    if any(lower.count(b"\r\n%b:" % name) > 1 for name in _ONCE):
        raise HttpRefused(400, "a header is there twice")
    if found.method != b"GET" and not (may_write and found.method == b"PUT"):
        raise HttpRefused(405, "this port is for reading: only GET")
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        raise HttpRefused(400, "a request has no body here")
    path, _, query = found.target.decode("ascii").partition("?")
    bearer = _BEARER.fullmatch(headers.get(b"authorization", b""))
    token = "" if bearer is None else bearer[1].decode("ascii")
    return HttpRequest(path, query, found.method.decode("ascii"), headers.get(b"host", b"").decode("latin-1"), token)


def _parsed(head: bytes) -> object:
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
    parser.receive_data(head)
    return parser.next_event()


def names_an_address(host: str, own_name: str = "") -> bool:
    """Return whether a Host header has an IP address, ``localhost`` (no web site can have this name), or ``own_name``,
    which the operator configured."""
    found = _HOST.fullmatch(host)
    name = (found[1] or found[2] or "") if found is not None else ""
    if name and name.lower() in ("localhost", own_name.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class HttpServer:
    """An HTTP server on a listening socket, from :meth:`start` to :meth:`stop`.

    - ``quick(request)`` is called first, on this server's loop, so it must not block. If it returns None,
      ``slow(request)`` makes the answer on a thread, within DEADLINE_S.
    - ``may_write`` returns whether the client at an address may PUT.
    - ``name``: the host name that the operator configured. On loopback the Host header may have it.
    - ``tls``: the server answers over TLS only. If clients need a certificate or a token, a client without one gets
      only the ``free`` paths.
    - ``refuse(request)``: returns the refusal for a client without the needed right, or None. It runs on a thread.
    - ``limits``: how often each client may ask for paths that are not free.
    """

    def __init__(
        self,
        listener: socket.socket,
        quick: Callable[[HttpRequest], HttpAnswer | None],
        slow: Callable[[HttpRequest], HttpAnswer],
        may_write: Callable[[str], bool] = lambda address: False,
        name: str = "",
        tls: PortTls | None = None,
        free: Collection[str] = (),
        refuse: Callable[[HttpRequest], HttpAnswer | None] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits
        self._tls, self._free, self._refuse = tls, free, refuse
        self._listener, self._quick, self._slow, self._may_write = listener, quick, slow, may_write
        self._name = name
        self._is_local = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._places = ConnectionPlaces(CONNECTIONS_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bookie-admin", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._running.wait(DEADLINE_S)

    def stop(self) -> None:
        """Close the port and all connections. Blocks briefly; may be called without a start."""
        if self._loop is not None and self._ended is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(2 * DEADLINE_S)
        self._listener.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # the bookie goes on without its admin port
            logger.exception("the admin port ended")
        finally:
            self._running.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        serving = self._serve_plain if self._tls is None else self._serve_tls
        async with serving():
            self._running.set()
            await self._ended.wait()
        open_now = dict(self._open)
        for writer in open_now.values():
            writer.transport.abort()
        if open_now:  # this closes their sockets; a call that a thread still works on ends with the loop
            await asyncio.wait(open_now, timeout=_LINGER_S)

    @contextlib.asynccontextmanager
    async def _serve_plain(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connected, sock=self._listener, limit=HEAD_BYTES_MAX)
        yield
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        server.close()  # only now: asyncio loses an accepted connection that has no transport yet

    @contextlib.asynccontextmanager
    async def _serve_tls(self) -> AsyncIterator[None]:
        acceptor = Acceptor([self._listener], self._greet, lambda *_: False, "admin port", DEADLINE_S)
        acceptor.start()  # it never refuses: :meth:`_greet` looks for a place
        yield
        acceptor.stop()

    async def _greet(self, sock: socket.socket) -> None:
        """Find a place for a new connection to a port with TLS, and do its handshake."""
        task = asyncio.current_task()
        assert task is not None
        place = self._places.enter(Principal(peer_of(sock)).host, task.cancel)
        if place is None:
            sock.close()
            return
        try:
            await self._shake_hands(sock, place)
        except BaseException:
            place.leave()
            raise

    async def _shake_hands(self, sock: socket.socket, place: ConnectionPlace) -> None:
        loop, tls, peer = asyncio.get_running_loop(), self._tls, peer_of(sock)
        assert tls is not None
        if not await speaks_tls(sock):
            tls.refused(peer, "admin port", "it speaks plain")
            await loop.sock_sendall(sock, _bytes_of(HttpAnswer(400, f"{PLAIN_REFUSED}: ask with https\n")))
            await linger(sock)
            place.leave()
            return
        protocol = asyncio.StreamReaderProtocol(
            asyncio.StreamReader(HEAD_BYTES_MAX, loop),
            lambda reader, writer: self._connected(reader, writer, place),
            loop,
        )
        try:
            await loop.connect_accepted_socket(lambda: protocol, sock, ssl=tls.tls.server(lenient=True))
        except OSError as error:
            tls.refused(peer, "admin port", explained(error)[0])
            raise

    def _client(self, writer: asyncio.StreamWriter) -> tuple[Principal, str]:
        """Return the client's identity, and the reason why it gets only the free paths, or an empty text if it may
        request every path."""
        tls, certificate = self._tls, writer.get_extra_info("peercert")
        at = writer.get_extra_info("peername")
        stranger = Principal(f"{at[0]}:{at[1]}" if at else "a client that is gone")
        if tls is None or not (tls.client_auth or tls.wants_tokens):
            return stranger, ""
        if not certificate:
            return stranger, NEEDS_TOKEN if tls.wants_tokens else NEEDS_CERTIFICATE
        try:
            return tls.admit(names_of(certificate), stranger.peer, "admin port"), ""
        except TlsError as error:
            return stranger, said_to_client(error)

    def _with_token(self, request: HttpRequest, principal: Principal, not_let_in: str) -> tuple[Principal, str]:
        """Do the same as :meth:`_client`, with the request's token. A token does not make up for a refused
        certificate."""
        if self._tls is None or not request.token or not_let_in not in ("", NEEDS_TOKEN):
            return principal, not_let_in
        try:
            return self._tls.admitted(principal, request.token.encode("ascii"), "admin port"), ""
        except AuthenticationError as error:
            return principal, error.what

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: ConnectionPlace | None = None
    ) -> None:
        """Serve one connection. ``place`` is the one that a TLS connection got before its handshake."""
        peer = writer.get_extra_info("peername")
        if place is None:
            place = self._places.enter(str(peer[0]) if peer else "a client that is gone", writer.transport.abort)
        if place is None:
            writer.write(_bytes_of(HttpAnswer(503, "too many connections\n")))
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            if place.is_lost:  # another connection took it right after the handshake
                return
            place.end = writer.transport.abort
            principal, not_let_in = self._client(writer)
            may_write = bool(peer) and self._may_write(str(peer[0]))
            answer = await self._answer(reader, principal, place, may_write=may_write, not_let_in=not_let_in)
            if answer is not None:
                await _send(answer, reader, writer, place)
        except OSError:  # the client is gone
            pass
        finally:
            place.leave()
            del self._open[task]
            writer.transport.abort()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        principal: Principal,
        place: ConnectionPlace,
        *,
        may_write: bool,
        not_let_in: str,
    ) -> HttpAnswer | None:
        """Read the request and return its answer, or None if the client went away before the request ended, or lost its
        place."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
            if place.is_lost:
                return None
            place.asks = True
            request = request_of(head, may_write=may_write)
        except TimeoutError:
            return HttpAnswer(408, "the request did not end in time\n")
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError:
            return HttpAnswer(431, f"a request has at most {HEAD_BYTES_MAX} bytes\n")
        except HttpRefused as refused:
            return refused.answer
        if self._is_local and request.host and not names_an_address(request.host, self._name):
            return HttpAnswer(421, "on loopback this port answers by its address only: the Host header has a name\n")
        principal, not_let_in = self._with_token(request, principal, not_let_in)
        if not_let_in and (request.path not in self._free or request.method != "GET"):
            return self._kept_out(request, principal, not_let_in)
        if request.path not in self._free and (too_often := self._too_often(principal)):
            return HttpAnswer(429, f"{too_often}\n")
        request = request._replace(principal=principal, token="")
        return await self._refused(request) or await self._found(request)

    def _kept_out(self, request: HttpRequest, principal: Principal, why: str) -> HttpAnswer:
        """Return the refusal for a client that gets only the free paths."""
        assert self._tls is not None
        if why in _SHOWN_NOTHING:
            self._tls.refused(principal.peer, "admin port", _SHOWN_NOTHING[why], request.path)
        return HttpAnswer(401 if self._tls.wants_tokens else 403, f"{why}\n")

    def _too_often(self, principal: Principal) -> str:
        """Charge the client for a request. Return why it must wait instead, or an empty text if it need not."""
        share = self._limits.enter(principal) if self._limits is not None else None
        if share is None:
            return ""
        why = share.refuses(RequestKind.ASK)
        share.pay(RequestKind.ASK, 0 if why else 1)
        share.end()
        return why

    async def _refused(self, request: HttpRequest) -> HttpAnswer | None:
        """Return the refusal for a client without the needed right, or None if the request is allowed."""
        if self._refuse is None:
            return None
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await asyncio.to_thread(self._refuse, request)
        except TimeoutError:
            return HttpAnswer(503, "the client's rights could not be read in time\n")
        except Exception:
            logger.exception("the admin port could not read the client's rights for %s", request.path)
            return HttpAnswer(500, "the client's rights cannot be read; the bookie's log says why\n")

    async def _found(self, request: HttpRequest) -> HttpAnswer:
        try:
            found = self._quick(request)
            if found is None:
                async with asyncio.timeout(DEADLINE_S):
                    found = await asyncio.to_thread(self._slow, request)
        except HttpRefused as refused:
            return refused.answer
        except TimeoutError:
            return HttpAnswer(503, "there was no answer in time\n")
        except Exception:
            logger.exception("the admin port could not answer %s", request.path)
            return HttpAnswer(500, "this failed; the bookie's log says why\n")
        return found if len(found.body) <= ANSWER_BYTES_MAX else HttpAnswer(500, "the answer is too long\n")


async def _send(
    answer: HttpAnswer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: ConnectionPlace
) -> None:
    sent = _bytes_of(answer)
    writer.transport.set_write_buffer_limits(high=0)  # so that a drained buffer means sent bytes
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            writer.write(sent)
            await writer.drain()
            if not writer.can_write_eof():  # TLS: a drained buffer does not mean sent bytes
                place.asks = len(sent) > _AT_ONCE_BYTES
                writer.close()
                await writer.wait_closed()
                return
            writer.write_eof()
        place.asks = False
        async with asyncio.timeout(_LINGER_S):
            left = _LINGER_BYTES
            while left > 0 and (taken := await reader.read(left)):
                left -= len(taken)


def _bytes_of(answer: HttpAnswer) -> bytes:
    body = answer.body.encode("utf-8")
    head = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(body)}",
        *(["Allow: GET"] if answer.status == 405 else []),
        *(["WWW-Authenticate: Bearer"] if answer.status == 401 else []),
        *_HEADERS,
    ]
    return "\r\n".join([*head, "", ""]).encode("ascii") + body
