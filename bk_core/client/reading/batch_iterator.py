# SPDX-License-Identifier: Apache-2.0
"""The iterator that every read and every tail of the asyncio client returns.

A cancelled coroutine ends. So an async generator whose ``__anext__`` was cancelled has ended, and its next call looks
like the end of the data. Here each step of the source is a separate task. If the caller is cancelled while it waits,
the task continues, and the next call returns its result. So no item is lost, no item comes twice, and the work ends
only with :meth:`aclose` or when the iterator is dropped. A step costs one task for each batch. The end of the data
costs one more task, except in a read of one entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, TypeVar

from bk_core.client.running.fork import ForkGuard
from bk_core.errors import ClientClosedError, InvalidArgumentError, LocalProtocolError, Outcome

T = TypeVar("T")
D = TypeVar("D")


class BatchIterator(AsyncIterator[T], Generic[T]):
    """An iterator over the items of a read or a tail, in order, each once. As an async context manager it closes itself
    at the end.

    A cancelled call, for instance by ``asyncio.wait_for``, loses no item: the next call returns it. After the end or an
    error, each later call raises the same exception again. Only one call may wait at a time; a second call raises
    InvalidArgumentError. Close the iterator unless you read to its end. An iterator that is dropped closes itself, on
    whichever thread this happens.

    ``has_one`` says that ``source`` has at most one item. Then the step that gets the item runs the source to its end.
    """

    _step: asyncio.Task[tuple[T | None, Exception | None]] | None = None
    """The step in progress, or a finished step whose result no call has taken yet."""

    def __init__(self, source: AsyncGenerator[T, None], *, has_one: bool = False) -> None:
        self._source, self._has_one, self._guard = source, has_one, ForkGuard()
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
        if self._step is None:
            self._step = asyncio.get_running_loop().create_task(_advance(self._source, self._has_one))
        step, self._is_awaited = self._step, True
        try:
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
        if item is None:
            assert error is not None
            raise error
        return item

    async def aclose(self) -> None:
        """End the reads, watches and tasks of this iterator, and wait until they have ended. A call that waits raises
        ClientClosedError; later calls raise StopAsyncIteration."""
        if self._guard.forked or (self._ended is not None and self._closing is None):
            return  # the source has ended, or belongs to the parent process
        if self._closing is None:
            self._ended = StopAsyncIteration()
            self._closing = asyncio.get_running_loop().create_task(_end(self._step, self._source))
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> BatchIterator[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
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


async def _advance(source: AsyncGenerator[T, None], has_one: bool) -> tuple[T | None, Exception | None]:
    """Return the next item, and the exception that ended the source; at least one of them is not None. The task holds
    no reference to the iterator, so a dropped iterator can end the task."""
    item: T | None = None
    try:
        item = await anext(source)
        if has_one:
            await anext(source)
            raise LocalProtocolError("a source of one item has another one")
    except Exception as error:  # StopAsyncIteration too
        return item, error
    return item, None


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
