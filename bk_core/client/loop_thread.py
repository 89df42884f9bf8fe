# SPDX-License-Identifier: Apache-2.0
"""The base of the blocking client: an asyncio loop on a daemon thread, and handles that live there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from bk_core.client.fork import ForkGuard
from bk_core.client.handover import Handover
from bk_core.errors import ClientClosedError, ForkedHandleError, Outcome

T = TypeVar("T")
H = TypeVar("H")
STOP_TIMEOUT_S = 10.0


class LoopThread:
    def __init__(self, name: str) -> None:
        self._guard = ForkGuard()
        self._lock = threading.Lock()  # no work begins after stop() has begun
        self._stopping = False
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    @property
    def is_usable(self) -> bool:
        """Whether the thread runs, and in this process."""
        return self._thread.is_alive() and not self._stopping and not self._guard.forked

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start ``work`` on the loop without waiting. Cancelling the future cancels the work."""
        if not self._guard.forked:  # in a forked child the lock may be held for ever
            with self._lock:
                if not self._stopping:
                    return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        self._guard.check("this client")
        raise ClientClosedError("this client is closed", remedy="connect again", outcome=Outcome.NOT_APPLIED)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and wait. An interrupt of the caller cancels the work."""
        future = self.begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosedError("this client was closed while it was waiting") from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Generator[T, None, None]:
        """An async iterator as a plain one; closing it closes the source."""
        try:
            while True:
                item = self.call(_next(source))
                if item is _END:
                    return
                yield item  # type: ignore[misc]  # mypy does not narrow by a sentinel
        finally:
            if not self._guard.forked:
                with suppress(ClientClosedError):  # the client was closed, and the source with it
                    self.call(_close(source))

    def iterate_ahead(
        self, source: AsyncIterator[T], size_of: Callable[[T], int], bytes_max: int
    ) -> Generator[T, None, None]:
        """As :meth:`iterate`, but the next items are made meanwhile, up to ``bytes_max`` bytes by ``size_of``."""
        handover = Handover(self.loop, size_of, bytes_max)
        filling = self.begin(handover.fill(source))
        try:
            while (item := handover.take()) is not None:
                yield item
                self._guard.check("this client")
        finally:
            if not self._guard.forked:
                filling.cancel()
                with suppress(ClientClosedError):  # the client was closed, and the source with it
                    self.call(_close(source))

    def stop(self) -> None:
        """Cancel all work and end the thread; later work is refused."""
        if self._guard.forked:
            return
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        last = asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop)
        with suppress(concurrent.futures.TimeoutError):
            last.result(STOP_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)


_END = object()


async def _next(source: AsyncIterator[T]) -> T | object:
    return await anext(source, _END)


async def _close(source: AsyncIterator[Any]) -> None:
    async with asyncio.timeout(STOP_TIMEOUT_S):
        while getattr(source, "ag_running", False):  # a cancelled step has not ended yet
            await asyncio.sleep(0)
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


async def _cancel_all() -> None:
    while tasks := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        for task in tasks:  # the loop around this also gets the tasks that these begin
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


class Handle(Generic[H]):
    """A handle of the asyncio client with the thread that it lives on."""

    def __init__(self, inner: H, thread: LoopThread) -> None:
        self._inner, self._thread = inner, thread

    @property
    def is_usable(self) -> bool:
        """Whether calls can succeed: not after the client was closed, nor in a forked child."""
        return self._thread.is_usable


class Closing(Protocol):
    """A handle of the asyncio client that is closed when its block ends."""

    async def close(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


C = TypeVar("C", bound=Closing)


class BlockHandle(Handle[C]):
    """A handle that is a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the block. In a forked child this raises ForkedHandleError, unless an exception such as SystemExit ends
        the block: that one must stay visible."""
        try:
            self._thread.call(self._inner.__aexit__(kind, error, trace))
        except ForkedHandleError:
            if error is None:
                raise


class Connection(BlockHandle[C]):
    """A handle with a thread of its own, on which ``make`` makes the asyncio handle. The thread ends with the
    handle."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, C]]) -> None:
        thread = LoopThread("bookkeeper")
        try:
            super().__init__(thread.call(make()), thread)
        except BaseException:
            thread.stop()
            raise

    def close(self) -> None:
        """End the session, the connections and the thread. In a forked child, whose parent has these, do nothing."""
        with suppress(ClientClosedError, ForkedHandleError):
            self._thread.call(self._inner.close())
        self._thread.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
