# SPDX-License-Identifier: Apache-2.0
"""Has the base of the blocking client, which is an asyncio loop on a daemon thread, and handles whose calls run on that
loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from bk_core.blocking.handover import Handover
from bk_core.client.reading.batch_iterator import BatchIterator, KeptItems
from bk_core.client.running.fork import ForkGuard
from bk_core.errors import ClientClosedError, ForkedHandleError, InvalidArgumentError, Outcome

T = TypeVar("T")
H = TypeVar("H")
STOP_TIMEOUT_S = 10.0
"""The seconds for which closing waits for the loop to end its work."""


class LoopThread:
    """A daemon thread with an asyncio loop. Calls from other threads run coroutines on it."""

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
        """Whether the thread runs in this process and is not stopped."""
        return self._thread.is_alive() and not self._stopping and not self._guard.forked

    @property
    def is_forked(self) -> bool:
        """Whether this process is a forked child of the process that has the thread."""
        return self._guard.forked

    def check(self) -> None:
        """Raise ForkedHandleError in a forked child."""
        self._guard.check("this client")

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop without waiting. Cancelling the future cancels the coroutine. Raises
        ClientClosedError after :meth:`stop`, and ForkedHandleError in a forked child."""
        if not self._guard.forked:  # in a forked child the lock may be held for ever
            with self._lock:
                if not self._stopping:
                    return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        self._guard.check("this client")
        raise ClientClosedError("this client is closed", remedy="connect again", outcome=Outcome.NOT_APPLIED)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. An interrupt of the caller cancels the coroutine. Raises
        the errors of :meth:`begin` and of the coroutine."""
        future = self.begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosedError("this client was closed while it was waiting") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel all work on the loop and end the thread. Later calls of :meth:`begin` raise ClientClosedError."""
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


async def _cancel_all() -> None:
    while tasks := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        for task in tasks:  # the loop around this also gets the tasks that these begin
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


_END = object()


class BlockingIterator(Iterator[T]):
    """Yields the items of a read or a tail, in order, each once. As a context manager, it closes itself.

    A call that is interrupted, for example by KeyboardInterrupt, loses no item, and the next call returns the item.
    After the end or an error, each later call raises the same again. Only one thread may wait for an item; a second
    thread gets InvalidArgumentError. An iterator that is dropped, for example when a loop is left, closes itself.
    """

    def __init__(self, thread: LoopThread, source: BatchIterator[T]) -> None:
        self._thread, self._kept = thread, KeptItems(source)
        self._number = 0
        self._is_awaited = False

    def __next__(self) -> T:
        """Return the next item. Raises StopIteration at the end and once the iterator is closed. Raises
        InvalidArgumentError while another thread waits, ClientClosedError if the iterator or its client is closed
        during the call, and the errors of the read or tail."""
        if self._is_awaited:
            raise _two_threads()
        self._is_awaited = True
        try:
            item = self._thread.call(self._kept.item(self._number, _END))
        finally:
            self._is_awaited = False
        if item is _END:
            raise StopIteration
        self._number += 1  # no interrupt can come between this line and the return
        return item  # type: ignore[return-value]  # mypy does not narrow by a sentinel

    def close(self) -> None:
        """End the reads, watches and tasks of this iterator, and wait until they have ended. A call that waits on
        another thread raises ClientClosedError. Later calls raise StopIteration."""
        with suppress(ClientClosedError, ForkedHandleError):  # the source has ended, or belongs to the parent process
            self._thread.call(_close(self._kept.source))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AheadIterator(Iterator[T]):
    """Yields the items of the lists that ``source`` yields. The loop reads ahead up to ``bytes_max`` bytes, counted by
    ``size_of``. In all other respects it is like :class:`BlockingIterator`."""

    _filling: concurrent.futures.Future[None] | None = None

    def __init__(
        self,
        thread: LoopThread,
        source: BatchIterator[list[T]],
        size_of: Callable[[list[T]], int],
        bytes_max: int,
    ) -> None:
        self._thread, self._source = thread, source
        self._handover: Handover[list[T]] = Handover(thread.loop, size_of, bytes_max)
        self._list: list[T] = []
        self._at = (-1, 0)  # the number of the list, and which of its items is next
        self._is_awaited = self._is_closed = False

    def __next__(self) -> T:
        """Return the next item. Raises the errors of :meth:`BlockingIterator.__next__`."""
        if self._is_awaited:
            raise _two_threads()
        self._is_awaited = True
        try:
            self._thread.check()
            if self._is_closed:
                raise StopIteration
            if self._filling is None:
                self._filling = self._thread.begin(self._handover.fill(self._source))
            while self._at[1] == len(self._list):
                number = self._at[0] + 1
                found = self._handover.item(number)
                if found is None:
                    raise StopIteration
                self._list, self._at = found, (number, 0)
        finally:
            self._is_awaited = False
        item = self._list[self._at[1]]
        self._at = (self._at[0], self._at[1] + 1)
        return item

    def close(self) -> None:
        """End the reading, as :meth:`BlockingIterator.close` does."""
        if self._thread.is_forked:
            return
        self._is_closed = True
        self._stop()
        with suppress(ClientClosedError):
            self._thread.call(_close(self._source))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._filling is not None and not self._thread.is_forked:
            self._stop()

    def _stop(self) -> None:
        if self._filling is not None:
            self._filling.cancel()


def _two_threads() -> InvalidArgumentError:
    return InvalidArgumentError(
        "only one caller at a time may take items from an iterator of entries",
        value="two threads",
        remedy="let one thread read it, or open a second iterator",
    )


async def _close(source: BatchIterator[Any]) -> None:
    async with asyncio.timeout(STOP_TIMEOUT_S):
        await source.aclose()


class Handle(Generic[H]):
    """The base of the blocking handles. ``inner`` is the handle of the asyncio client, and ``thread`` has the loop on
    which its calls run."""

    def __init__(self, inner: H, thread: LoopThread) -> None:
        self._inner, self._thread = inner, thread

    @property
    def is_usable(self) -> bool:
        """Whether calls can succeed. This is false after the client was closed, and in a forked child."""
        return self._thread.is_usable


class Closing(Protocol):
    """The interface of handles of the asyncio client that are closed when their block ends."""

    async def close(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


C = TypeVar("C", bound=Closing)


class BlockHandle(Handle[C]):
    """The base of blocking handles that are context managers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the handle when its block ends. In a forked child this raises ForkedHandleError, unless an exception
        such as SystemExit ends the block, because that exception must not be hidden."""
        try:
            self._thread.call(self._inner.__aexit__(kind, error, trace))
        except ForkedHandleError:
            if error is None:
                raise


class Connection(BlockHandle[C]):
    """The base of blocking handles with a separate thread. ``make`` makes the asyncio handle on the thread's loop.
    Closing the handle ends the thread."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, C]]) -> None:
        thread = LoopThread("bookkeeper")
        try:
            super().__init__(thread.call(make()), thread)
        except BaseException:
            thread.stop()
            raise

    def close(self) -> None:
        """End the session, the connections and the thread. In a forked child this does nothing, because they belong to
        the parent process."""
        with suppress(ClientClosedError, ForkedHandleError):
            self._thread.call(self._inner.close())
        self._thread.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
