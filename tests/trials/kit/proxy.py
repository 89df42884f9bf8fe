# SPDX-License-Identifier: Apache-2.0
"""TCP proxies that fail on command: connections are cut, delayed, stalled one way, or accepted and never served.

All proxies run on one thread with a loop of its own. The bytes that a stall holds back are not lost. They go on at the
heal, as after a partition that TCP outlives, unless the connections are cut as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

Address = tuple[str, int]

_CHUNK_BYTES = 1 << 16
_CALL_S = 10.0
_AGAIN_S = 0.02
"""The pause between two attempts to reach an upstream that does not listen yet."""


class ProxyThread:
    """The loop on which the proxies run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._proxies: list[FaultProxy] = []
        self._thread.start()

    def add(
        self, listen: Address, upstream: Address, *more: tuple[Address, Address], patience_s: float = 0.0
    ) -> FaultProxy:
        """Return a proxy from one address to another, and from ``more`` addresses to others. Port 0 takes a free
        port. A connection waits ``patience_s`` for an upstream that does not listen yet, and breaks after that."""
        proxy = FaultProxy([(listen, upstream), *more], self._call, patience_s)
        self.call(proxy.serve)
        self._proxies.append(proxy)
        return proxy

    def call(self, work: Callable[[], Awaitable[Any]]) -> None:
        asyncio.run_coroutine_threadsafe(_run(work), self._loop).result(_CALL_S)

    def _call(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            work()

        self.call(run)

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        self.call(_settle)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        self._loop.close()


async def _run(work: Callable[[], Awaitable[Any]]) -> None:
    await work()


async def _settle() -> None:
    """Wait until the pumps of closed connections end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class FaultProxy:
    """One proxy. Its methods may be called from any thread, and each takes effect before it returns. ``host`` and
    ``port`` are the first address at which it listens."""

    def __init__(
        self, ways: Sequence[tuple[Address, Address]], call: Callable[[Callable[[], None]], None], patience_s: float
    ) -> None:
        self._ways, self._call, self._patience_s = ways, call, patience_s
        (self.host, self.port), _ = ways[0]
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []
        self._requests, self._answers = asyncio.Event(), asyncio.Event()  # while an event is set, its direction flows
        self._delay_s = 0.0
        self._refuses = False

    async def serve(self) -> None:
        self._requests.set()
        self._answers.set()
        for (host, port), upstream in self._ways:
            serve = partial(self._serve, upstream)
            self._servers.append(await asyncio.start_server(serve, host, port, backlog=200))
        self.port = int(self._servers[0].sockets[0].getsockname()[1])

    # --- faults ---

    def cut(self) -> None:
        """Break every connection. New connections work."""
        self._call(self._break)

    def refuse(self) -> None:
        """Break every connection, and each new one at once, until :meth:`heal`."""

        def work() -> None:
            self._refuses = True
            self._break()

        self._call(work)

    def delay(self, delay_s: float) -> None:
        """Delay every piece by ``delay_s``, in order."""
        self._delay_s = delay_s

    def stall(self, *, requests: bool, answers: bool) -> None:
        """Pass nothing on in these directions. Connections are still accepted."""

        def work() -> None:
            if requests:
                self._requests.clear()
            if answers:
                self._answers.clear()

        self._call(work)

    def heal(self) -> None:
        """End all faults. The bytes that were held back go first."""

        def work() -> None:
            self._refuses, self._delay_s = False, 0.0
            self._requests.set()
            self._answers.set()

        self._call(work)

    def close(self) -> None:
        def work() -> None:
            for server in self._servers:
                server.close()
            self._break()

        self._call(work)

    # --- carrying ---

    def _break(self) -> None:
        for writer in self._writers:
            if writer.transport is not None:
                writer.transport.abort()
        self._writers.clear()

    async def _serve(self, upstream: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        self._writers.add(writer)  # a fault breaks a connection that waits for its upstream, too
        try:
            up_reader, up_writer = await self._connect(upstream)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        pair = {writer, up_writer}
        self._writers |= pair
        pumps = [
            asyncio.ensure_future(self._pump(reader, up_writer, self._requests)),
            asyncio.ensure_future(self._pump(up_reader, writer, self._answers)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self._writers -= pair
            for one in pair:
                one.transport.abort()

    async def _connect(self, upstream: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return await asyncio.open_connection(*upstream)
            except OSError:
                if self._refuses or time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flows: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await flows.wait()
                sink.write(data)
                await sink.drain()
