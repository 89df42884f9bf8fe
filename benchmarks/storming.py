# SPDX-License-Identifier: Apache-2.0
"""Many clients that connect to one server over TLS at once: ``python -m benchmarks.storming COUNT CERTIFICATE KEY
AUTHORITY WHERE``. Each line on its input begins a storm; it prints the seconds from there until each client has its
first answer.

WHERE is ``bookie URI LANE ID``: clients of ours, each with a transport of its own, ask the bookie what it says of
itself. Or it is ``bare PORT``: connections of ``asyncio`` and ``ssl`` to a raw server, which echoes a byte.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager

from benchmarks.peers.raw_server import ECHO, REQUEST, tls_paths
from bk_cli.children import child_environment
from bk_core.metadata import open_store
from bk_core.tls import Tls
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import Caller

PATIENCE_S = 60.0
"""Longer than the patience of clients, so that a slow storm is measured to its end."""

Client = Callable[[], Awaitable[Callable[[], Awaitable[object]]]]
"""Connects and gets its first answer; what ends it."""


@contextmanager
def storms(count: int, pem: list[str], *where: str) -> Iterator[subprocess.Popen[str]]:
    """Such a process, which waits for a line."""
    command = [sys.executable, "-m", "benchmarks.storming", str(count), *pem, *where]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=child_environment()
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def of_bookie(tls: Tls, uri: str, lane: str, bookie_id: str) -> Client:
    with closing(open_store(uri)) as store:
        instance_id, info = store.instance_id(), store.writable_bookies()[bookie_id]

    async def client() -> Callable[[], Awaitable[object]]:
        caller = Caller(instance_id, client="storm", lanes=(lane,), tls=tls, connect_timeout_s=PATIENCE_S)
        transport = LaneTransport(caller)
        transport.update_bookies([info])
        await transport.link(bookie_id).bookie_info(deadline_s=PATIENCE_S)
        return transport.close

    return client


def of_bare(tls: Tls, port: str) -> Client:
    async def client() -> Callable[[], Awaitable[object]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port), ssl=tls.client())
        writer.write(REQUEST.pack(ECHO, 0))
        await reader.readexactly(1)

        async def close() -> None:
            writer.transport.abort()

        return close

    return client


async def storm(client: Client, count: int) -> float:
    began = time.perf_counter()
    async with asyncio.timeout(2 * PATIENCE_S):
        ends = await asyncio.gather(*(client() for _ in range(count)))
    took = time.perf_counter() - began
    await asyncio.gather(*(end() for end in ends))
    return took


def main(count: str, certificate: str, key: str, authority: str, kind: str, *where: str) -> None:
    tls = Tls(tls_paths((certificate, key, authority)))
    client = of_bookie(tls, *where) if kind == "bookie" else of_bare(tls, *where)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(asyncio.run(storm(client, int(count))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
