# SPDX-License-Identifier: Apache-2.0
"""Passes the items of an async iterator to another thread, and reads ahead of that thread.

If a thread requested each item from the loop, it would wait for two changes of threads each time, and nothing would be
read while it works on an item. Here the loop reads until a number of bytes wait, and reads again once half of them were
taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

from bk_core.errors import ClientClosedError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Ended:
    """The mark after the last item. If the source failed, ``error`` is the reason."""

    error: Exception | None = None


class Handover(Generic[T]):
    """A queue between ``loop``, on which :meth:`fill` runs, and one other thread, which takes items by number.

    At most ``bytes_max`` bytes and one item wait, in bytes by ``size_of``. The item that was taken last is kept until
    the thread takes the next item, because an interrupt may hit the thread before it has the item. Only the loop writes
    ``_put``, and only the other thread writes ``_taken``, so no lock is needed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size_of: Callable[[T], int], bytes_max: int) -> None:
        self._loop, self._size_of, self._bytes_max = loop, size_of, bytes_max
        self._items: dict[int, tuple[T | _Ended, int]] = {}  # each with the bytes up to its end
        self._count = 0
        self._put = self._taken = 0
        self._is_filled = False
        self._waits = False  # whether the other thread must be woken
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._room: asyncio.Future[None] | None = None  # the loop waits for it

    async def fill(self, source: AsyncIterator[T]) -> None:
        """Queue all items of ``source``, and then a mark with the error that ended them, if any. A second call does
        nothing, because an interrupted thread may call this twice."""
        if self._is_filled:
            return
        self._is_filled = True
        try:
            async for item in source:
                self._put += self._size_of(item)
                self._add(item)
                if self._put - self._taken > self._bytes_max:
                    await self._has_room()
        except Exception as error:
            self._add(_Ended(error))
        except asyncio.CancelledError:
            self._add(_Ended(ClientClosedError("this client was closed while it was reading")))
            raise
        else:
            self._add(_Ended())

    def _add(self, item: T | _Ended) -> None:
        self._items[self._count] = item, self._put
        self._count += 1
        if self._waits:
            self._wake.put(None)

    async def _has_room(self) -> None:
        self._room = self._loop.create_future()
        if not self._is_low():  # the other thread may have taken items before ``_room`` was set
            await self._room
        self._room = None

    def _is_low(self) -> bool:
        return self._put - self._taken <= self._bytes_max // 2

    def item(self, number: int) -> T | None:
        """Wait for the item with this number and return it, or None at the end. The number must be that of the last
        call, or the next number. Raises the error that ended the items."""
        while number not in self._items:
            self._waits = True
            if number not in self._items:  # it may have come just before
                self._wake.get()
        self._waits = False
        item, self._taken = self._items[number]
        self._items.pop(number - 1, None)
        if isinstance(item, _Ended):
            if item.error is not None:
                raise item.error
            return None
        if (room := self._room) is not None and self._is_low():
            with suppress(RuntimeError):  # the loop has ended, and the waiting call raises for that
                self._loop.call_soon_threadsafe(_set, room)
        return item


def _set(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)
