# SPDX-License-Identifier: Apache-2.0
"""Asks a broker where a topic ends, with one small request to its admin port. Calls block.

A broker that does not own the topic redirects the request to the broker that does. The token is sent there too, because
all brokers of a cluster accept it. A redirect from HTTPS to plain HTTP is not followed, so it cannot expose the token.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import IO, Any
from urllib.parse import quote, urlsplit

from bk_core.errors import (
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchTopicError,
    Outcome,
    PermissionDeniedError,
)
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.topic_name import TopicName

TIMEOUT_S = 10.0
"""The time limit, in seconds, for a whole answer, with the redirects that lead to it."""
ANSWER_BYTES_MAX = 64 << 20
"""The maximum size of an answer in bytes. It is large because an answer lists every ledger and cursor of the topic."""
REDIRECTS_MAX = 5
"""The maximum number of redirects of a request. A broker redirects to the broker that owns the topic."""


class BrokerAdmin:
    """The admin port of Pulsar's brokers (``http://host:8080`` or ``https://host:8443``). ``token`` is called before
    each request and returns the token to send. ``tls`` has the certificates to trust. Raises InvalidArgumentError if
    the URL is not of this form, or contains a user name."""

    def __init__(self, url: str, *, token: Callable[[], str] | None = None, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise InvalidArgumentError(
                "this is not the URL of a Pulsar broker's admin port",
                value=url.rpartition("@")[2],
                remedy="write http://host:8080, and give the token in a file",
            )
        self._url, self._token, self._tls = url.rstrip("/"), token, tls

    def last_confirmed(self, topic: TopicName) -> EntryPosition | None:
        """Return the last confirmed entry of a topic or a partition, or None if it has none. Raises NoSuchTopicError,
        PermissionDeniedError, and MetadataUnavailableError if no broker gives a readable answer."""
        local = quote(topic.local, safe="")
        path = f"/admin/v2/persistent/{topic.tenant}/{topic.namespace}/{local}/internalStats"
        said = self._get(topic, path)
        try:
            found = EntryPosition.parse(json.loads(said)["lastConfirmedEntry"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidArgumentError) as error:
            raise _unavailable(topic, f"no lastConfirmedEntry in the answer of {self._url}: {error}") from error
        return found if found.ledger_id >= 0 and found.entry_id >= 0 else None

    def _get(self, topic: TopicName, path: str) -> bytes:
        until = time.monotonic() + TIMEOUT_S
        handlers: list[Any] = [_Redirects(), urllib.request.ProxyHandler({}), _Http(until), _Https(until, self._tls)]
        try:
            request = urllib.request.Request(self._url + path)
            if self._token is not None:
                request.add_header("Authorization", f"Bearer {self._token()}")
            with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S) as answer:
                said: bytes = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(topic, self._url, error.code) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _unavailable(topic, f"{self._url}: {str(error)[:500]}") from error
        if len(said) > ANSWER_BYTES_MAX:
            raise _unavailable(topic, f"the answer of {self._url} has more than {ANSWER_BYTES_MAX} bytes")
        return said


def _left_s(until: float) -> float:
    """Return the seconds up to a time. Raises TimeoutError if there are none."""
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(f"no whole answer within {TIMEOUT_S:g} s")
    return left_s


class _Bytes(io.RawIOBase):
    """The bytes of an answer. Python's own timeout counts anew at each receive, so a slow sender could hold a request
    for ever."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._socket, self._until = sock, until
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        self._socket.settimeout(_left_s(self._until))
        return self._file.readinto(into)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    """An answer that must end by ``until``, a time of :func:`time.monotonic`. Each request makes a subclass with its
    time, because http.client makes the answer itself."""

    until: float

    def __init__(self, sock: socket.socket, *more: Any, **named: Any) -> None:
        super().__init__(sock, *more, **named)
        self.fp.close()
        self.fp = io.BufferedReader(_Bytes(sock, self.until))


def _connect(kind: type[http.client.HTTPConnection], until: float) -> Any:
    """Return a function that makes connections of this kind, whose answers must end by ``until``."""
    ends_at = until

    class Answer(_Answer):
        until = ends_at

    def made(host: str, *, timeout: object, **more: Any) -> http.client.HTTPConnection:
        connection = kind(host, timeout=_left_s(until), **more)
        connection.response_class = Answer
        return connection

    return made


class _Http(urllib.request.HTTPHandler):
    def __init__(self, until: float) -> None:
        super().__init__()
        self._until = until

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connect(http.client.HTTPConnection, self._until), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, until: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._until, self._tls = until, tls

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connect(http.client.HTTPSConnection, self._until), req, context=self._tls)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects of brokers, and sends the token there, except for redirects from HTTPS to HTTP."""

    max_redirections = REDIRECTS_MAX

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in ("https", urlsplit(req.full_url).scheme):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refused(topic: TopicName, url: str, status: int) -> Exception:
    if status == 404:
        return NoSuchTopicError(
            f"the broker does not know topic {topic}",
            value=url,
            remedy="give the address of a broker of the topic's cluster",
        )
    if status in (401, 403):
        return PermissionDeniedError(
            f"the broker does not let this client read the statistics of topic {topic}",
            value=f"{url}: HTTP {status}",
            remedy="give a token with this permission, or no admin address: then the last messages may be missing",
        )
    return _unavailable(topic, f"{url}: HTTP {status}")


def _unavailable(topic: TopicName, why: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"no broker answered where topic {topic} ends",
        value=why,
        remedy="check the admin address, or give none: then the last messages of an idle topic may be missing",
        outcome=Outcome.NOT_APPLIED,
    )
