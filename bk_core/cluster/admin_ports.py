# SPDX-License-Identifier: Apache-2.0
"""Reads from the admin ports of bookies. It sends one GET to each of them in parallel, with a deadline and a size limit
for each answer. ``bk cluster top`` and pages that show a whole cluster use it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bk_core.access.secret_files import TokenFile
from bk_core.access.tls import Tls, failure
from bk_core.access.tokens import not_let_in
from bk_core.errors import (
    BookieUnreachableError,
    BookKeeperError,
    Outcome,
    PermissionDeniedError,
    RemoteProtocolError,
    TlsError,
)
from bk_core.model import HTTP, BookieId, BookieServiceInfo, Endpoint
from bk_core.observe.metrics import quantile

AT_ONCE = 64
"""The maximum number of bookies whose admin ports are asked at the same time."""
ANSWER_BYTES_MAX = 4 << 20
"""The maximum size of an answer in bytes. The admin port of a bookie sends no more."""

_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers in one scrape of a bookie. ``samples`` has, for each metric, a list of pairs of labels and value."""

    samples: Mapping[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the metric's samples that have these labels, or None if there is none."""
        found = [value for has, value in self.samples.get(name, ()) if labels.items() <= has.items()]
        return sum(found) if found else None

    def label(self, name: str, label: str) -> str | None:
        """Return the value of a label of the metric's first sample, or None if there is no such sample or label."""
        for has, _ in self.samples.get(name, ()):
            return has.get(label)
        return None

    def buckets(self, name: str) -> dict[float, float]:
        """Return a histogram's cumulative counts by upper bound. They are summed over all its labels."""
        found: dict[float, float] = {}
        for has, value in self.samples.get(f"{name}_bucket", ()):
            bound = float(has.get("le", "nan"))
            found[bound] = found.get(bound, 0) + value
        return found


def parse_numbers(text: str) -> Numbers:
    """Parse metrics in Prometheus' text format. Raises ValueError for a line that is not a sample."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            raise ValueError(f"no sample: {line[:80]!r}")
        labels = {name: _unquoted(value) for name, value in _LABEL.findall(match[2] or "")}
        samples.setdefault(match[1], []).append((labels, float(match[3])))
    return Numbers(samples)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)


def quantile_since(before: Numbers | None, now: Numbers, name: str, share: float) -> float | None:
    """Return the quantile ``share`` of the values that a histogram counted since the scrape ``before``, or since its
    start if ``before`` is None. Return None if it counted no value."""
    old = before.buckets(name) if before is not None else {}
    return quantile({bound: count - old.get(bound, 0) for bound, count in now.buckets(name).items()}, share)


def admin_endpoint(info: BookieServiceInfo) -> Endpoint | None:
    """Return the endpoint of the bookie's admin port, or None if the bookie published none."""
    return info.endpoint(HTTP)


@dataclass(frozen=True, slots=True)
class AdminPorts:
    """A client of admin ports. A request fails if its answer takes longer than ``timeout_s``. With ``tls`` all requests
    use TLS, whether or not the port registered TLS. Without ``tls``, a request to a port that registered TLS raises
    TlsError. ``token`` is sent only over TLS."""

    timeout_s: float
    tls: Tls | None = None
    token: TokenFile | None = None

    def scrape(self, infos: Iterable[BookieServiceInfo]) -> dict[BookieId, Numbers | BookKeeperError]:
        """Return the numbers in each bookie's ``/metrics``, or the error. This blocks for at most ``timeout_s`` for
        every 64 bookies."""
        return asyncio.run(self.scrape_all(infos))

    async def scrape_all(self, infos: Iterable[BookieServiceInfo]) -> dict[BookieId, Numbers | BookKeeperError]:
        """Do the same as :meth:`scrape`, without blocking."""
        turns, asked = asyncio.Semaphore(AT_ONCE), list(infos)

        async def scrape(info: BookieServiceInfo) -> Numbers | BookKeeperError:
            async with turns:
                try:
                    return await self._numbers_of(info)
                except BookKeeperError as error:
                    return error

        found = await asyncio.gather(*map(scrape, asked))
        return {info.bookie_id: numbers for info, numbers in zip(asked, found, strict=True)}

    async def get(self, endpoint: Endpoint, path: str) -> str:
        """Return the body of a GET. Raises the errors of :meth:`get_status`. For a status other than 200 it raises
        AuthenticationError (401), PermissionDeniedError (403), or RemoteProtocolError."""
        status, body = await self.get_status(endpoint, path)
        if status == 401:
            where = endpoint.where
            raise not_let_in(f"the admin port at {where}", body.strip()[:200], has_token=self.token is not None)
        if status == 403:
            raise PermissionDeniedError.told(f"{endpoint.where}{path}: {body.strip()[:200]}")
        if status != 200:
            where = f"{endpoint.url}{path}"
            raise RemoteProtocolError(
                "an admin port gives an unexpected answer", value=f"{where}: {status} {body[:80]!r}"
            )
        return body

    async def get_status(self, endpoint: Endpoint, path: str) -> tuple[int, str]:
        """Return status and body of a GET. Raises BookieUnreachableError, TlsError, and RemoteProtocolError for an
        answer that is not HTTP or longer than ANSWER_BYTES_MAX."""
        where = f"{endpoint.url}{path}"
        if self.tls is None and endpoint.tls:
            raise TlsError("an admin port speaks TLS, and this client does not", value=where, remedy="--tls-ca-path")
        token = self.token.read() if self.token is not None and self.tls is not None else b""
        try:
            async with asyncio.timeout(self.timeout_s):
                raw = await _exchange(endpoint, path, self.tls, token)
        except ssl.SSLError as error:
            raise failure("the admin port", endpoint.where, error) from error
        except (TimeoutError, OSError) as error:
            why = str(error) or f"no answer within {self.timeout_s:g} s"
            raise BookieUnreachableError(
                "an admin port does not answer", value=f"{where}: {why}", outcome=Outcome.NOT_APPLIED
            ) from error
        head, _, body = raw.partition(b"\r\n\r\n")
        status = _STATUS.match(head)
        if status is None or len(raw) > ANSWER_BYTES_MAX:
            raise RemoteProtocolError(
                "an admin port gives an unexpected answer", value=f"{where}: {raw[:80].decode('ascii', 'replace')!r}"
            )
        return int(status[1]), body.decode("utf-8", "replace")

    async def _numbers_of(self, info: BookieServiceInfo) -> Numbers:
        endpoint = admin_endpoint(info)
        if endpoint is None:
            raise BookieUnreachableError(
                f"bookie {info.bookie_id} has no admin port",
                remedy="give it one: set admin_port, and admin_host so that other hosts reach it",
                outcome=Outcome.NOT_APPLIED,
            )
        text = await self.get(endpoint, "/metrics")
        try:
            numbers = parse_numbers(text)
        except ValueError as error:
            raise RemoteProtocolError(
                f"the admin port of {info.bookie_id} gives no metrics", value=str(error)
            ) from error
        there = numbers.label("bookie_info", "bookie")
        if there not in (info.bookie_id, ""):  # "": the bookie is still starting
            raise RemoteProtocolError(
                f"another bookie answers at the admin port of {info.bookie_id}",
                value=f"{endpoint.where} is {there}",
                remedy="an admin port on loopback is reached only from the host itself: set admin_host",
            )
        return numbers


async def _exchange(endpoint: Endpoint, path: str, tls: Tls | None, token: bytes) -> bytes:
    context, name = (None, None) if tls is None else (tls.client(), endpoint.host)
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, server_hostname=name)
    try:
        host = endpoint.url.partition("//")[2]
        shown = b"Authorization: Bearer %b\r\n" % token if token else b""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n".encode("ascii") + shown + b"\r\n")
        await writer.drain()
        raw = bytearray()
        while len(raw) <= ANSWER_BYTES_MAX and (taken := await reader.read(1 << 16)):
            raw += taken
        return bytes(raw)
    finally:
        writer.transport.abort()
