# SPDX-License-Identifier: Apache-2.0
"""Reads the admin ports of bookies, all at once, each within a deadline and a size."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bk_core.model import BookieId, BookieServiceInfo
from bookie_server.web.http import ANSWER_BYTES_MAX
from bookie_server.web.samples import Scraped, Told

REACH_S = 2.0
AT_ONCE = 64


def ask_admin_ports(infos: Sequence[BookieServiceInfo]) -> dict[BookieId, Told | str]:
    """What the bookies tell, or why they do not; without those that have no admin port."""
    return asyncio.run(_ask_all([info for info in infos if info.endpoint("http") is not None]))


async def _ask_all(infos: Sequence[BookieServiceInfo]) -> dict[BookieId, Told | str]:
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(info: BookieServiceInfo) -> Told | str:
        async with turns:
            return await _told(info)

    answers = await asyncio.gather(*map(ask, infos))
    return {info.bookie_id: answer for info, answer in zip(infos, answers, strict=True)}


async def _told(info: BookieServiceInfo) -> Told | str:
    endpoint = info.endpoint("http")
    assert endpoint is not None
    where = f"its admin port, {endpoint.host}:{endpoint.port},"
    try:
        async with asyncio.timeout(REACH_S):
            status, metrics = await _get(endpoint.host, endpoint.port, "/metrics")
            if status != 200:
                return f"{where} answers {status}"
            found = Scraped.of(metrics).bookie_id  # Apache's do not say who they are
            if found is not None and found != info.bookie_id:
                return f"at {where} another bookie answers, {found}: is it bound to loopback? (--admin-host)"
            ready, why = await _get(endpoint.host, endpoint.port, "/ready")
    except TimeoutError:
        return f"{where} did not answer in {REACH_S:.0f} s"
    except (OSError, ValueError) as error:
        return f"{where} cannot be read: {error}"
    return Told(metrics, why.strip().removeprefix("not ready: ") if ready == 503 else "")


async def _get(host: str, port: int, path: str) -> tuple[int, str]:
    """Status and body. Raises ValueError for what is no answer, or too long a one."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        name = f"[{host}]" if ":" in host else host
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {name}:{port}\r\n\r\n".encode("ascii"))
        parts, left = [], ANSWER_BYTES_MAX
        while part := await reader.read(1 << 16):
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise ValueError("the answer is too long")
    finally:
        writer.transport.abort()
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError("that is no HTTP")
    return int(words[1]), body.decode("utf-8", errors="replace")
