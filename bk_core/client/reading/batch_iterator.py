# SPDX-License-Identifier: Apache-2.0
"""The iterator that every read and every tail of the asyncio client returns.

A cancelled coroutine ends. So an async generator whose ``__anext__`` was cancelled has ended, and its next call looks
like the end of the data. Here each step of the source is a separate task. If the caller is cancelled while it waits,
the task continues, and the next call returns its result. So no item is lost, no item comes twice, and the work ends
only with :meth:`aclose` or when the iterator is dropped. A step costs one task for each batch, and the end of the data
one more. A read of one entry needs no task (:mod:`bk_core.client.reading.lone_read`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from bk_core.client.running.fork import ForkGuard
from bk_core.errors import ClientClosedError, InvalidArgumentError, Outcome

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)
D = TypeVar("D")


class OnlyItem(Protocol[Item]):
    """A read of one item in callbacks."""

    async def result(self) -> Item | None:
        """Wait for the item. Return None if the read gives none. After a cancelled call the next one waits for the same
        item."""
        ...

    def cancel(self) -> None:
        """End the read. A call that waits returns None."""
        ...


class BatchIterator(AsyncIterator[T], Generic[T]):
    """An iterator over the items of a read or a tail, in order, each once. As an async context manager it closes itself
    at the end.

    A cancelled call, for instance by ``asyncio.wait_for``, loses no item: the next call returns it. After the end or an
    error, each later call raises the same exception again. Only one call may wait at a time; a second call raises
    InvalidArgumentError. Close the iterator unless you read to its end. An iterator that is dropped closes itself, on
    whichever thread this happens.

    ``only`` makes the read of an iterator of one item, at the first call. If it gives nothing, ``source`` gives the
    item.
    """

    _step: asyncio.Task[tuple[T | None, Exception | None]] | None = None
    """The step in progress, or a finished step whose result no call has taken yet."""

    def __init__(self, source: AsyncGenerator[T, None], *, only: Callable[[], OnlyItem[T]] | None = None) -> None:
        self._source, self._make_only, self._guard = source, only, ForkGuard()
        self._only: OnlyItem[T] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_awaited = False
        self._ended: Exception | None = None
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> BatchIterator[T]:
        return self

    async def __anext__(self) -> T:
        """Return the next item. Raises StopAsyncIteration at the end and after a close, InvalidArgumentError while
        another call waits, ClientClosedError if the iterator is closed meanwhile, and the errors of the read or
        tail."""
        self._guard.check("this iterator")
        if self._is_awaited:
            raise InvalidArgumentError(
                "only one caller at a time may take items from an iterator of entries",
                value="two calls of __anext__ at the same time",
                remedy="let one task read it, or open a second iterator",
            )
        if self._ended is not None:
            raise self._ended
        self._is_awaited = True
        try:
            if self._make_only is not None and (only := await self._only_item(self._make_only)) is not None:
                return only
            if self._step is None:
                self._step = asyncio.get_running_loop().create_task(_advance(self._source))
            step = self._step
            if not step.done():
                await _done(step)
        finally:
            self._is_awaited = False
        if step.cancelled():
            raise ClientClosedError("this iterator was closed while it was waiting", outcome=Outcome.NOT_APPLIED)
        self._step = None
        item, error = step.result()
        if error is not None:
            self._ended = self._ended or error
            raise error
        assert item is not None
        return item

    async def _only_item(self, make: Callable[[], OnlyItem[T]]) -> T | None:
        """Return the only item, with which the iterator ends, or None if ``source`` must give it."""
        if self._only is None:
            try:
                self._only = make()
            except Exception as error:
                self._ended = error
                raise
            self._loop = asyncio.get_running_loop()
        item = await self._only.result()
        if self._closing is not None:
            raise ClientClosedError("this iterator was closed while it was waiting", outcome=Outcome.NOT_APPLIED)
        self._only = self._make_only = None
        if item is not None:
            self._ended = StopAsyncIteration()
        return item

    async def aclose(self) -> None:
        """End the reads, watches and tasks of this iterator, and wait until they have ended. A call that waits raises
        ClientClosedError; later calls raise StopAsyncIteration."""
        if self._guard.forked or (self._ended is not None and self._closing is None):
            return  # the source has ended, or belongs to the parent process
        if self._closing is None:
            self._ended = StopAsyncIteration()
            self._closing = asyncio.get_running_loop().create_task(_end(self._step, self._source))
            if self._only is not None:
                self._only.cancel()
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> BatchIterator[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._only is not None and self._loop is not None and not self._guard.forked:
            with suppress(RuntimeError):  # the loop has ended, and the read with it
                self._loop.call_soon_threadsafe(self._only.cancel)
        step = self._step
        if step is not None and not step.done() and not self._guard.forked:
            with suppress(RuntimeError):  # the loop has ended, and the step with it
                step.get_loop().call_soon_threadsafe(step.cancel)


class KeptItems(Generic[T]):
    """Gives the items of an iterator by number, to a thread that waits for the loop. It keeps the last item until the
    thread asks for the next one: an interrupt may hit the thread after the item has left the iterator, and then the
    thread asks for the same item again."""

    def __init__(self, source: BatchIterator[T]) -> None:
        self.source = source
        self._turn = asyncio.Lock()  # the previous call may have been cancelled and still be running
        self._number = -1
        self._item: object = None

    async def item(self, number: int, end: D) -> T | D:
        """Return the item with this number, which is the item of the previous call or the next one. Return ``end`` if
        there is no next item."""
        async with self._turn:
            if number != self._number:
                self._item = None  # the thread has the old item; free its memory before the next item is read
                self._item = await anext(self.source, end)
                self._number = number
            return self._item  # type: ignore[return-value]  # set by this call or the one before


async def _advance(source: AsyncGenerator[T, None]) -> tuple[T | None, Exception | None]:
    """Return the next item, or the exception that ended the source. The task holds no reference to the iterator, so a
    dropped iterator can end the task."""
    try:
        return await anext(source), None
    except Exception as error:  # StopAsyncIteration too
        return None, error


async def _done(step: asyncio.Task[tuple[T | None, Exception | None]]) -> None:
    """Wait for ``step``. A cancelled wait does not cancel the step."""
    waiter = step.get_loop().create_future()

    def wake(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    step.add_done_callback(wake)
    try:
        await waiter
    finally:
        step.remove_done_callback(wake)


async def _end(step: asyncio.Task[tuple[T | None, Exception | None]] | None, source: AsyncGenerator[T, None]) -> None:
    if step is not None:
        step.cancel()
        await asyncio.wait((step,))
    await source.aclose()
