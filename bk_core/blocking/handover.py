# SPDX-License-Identifier: Apache-2.0
"""Hands the items of an async iterator over to another thread, and goes ahead of it.

A thread that asks the loop for each item waits for two changes of threads each time, and nothing is read while it works
on one. Here the loop goes on until so many bytes wait, and is woken once half of them were taken.
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
    """Nothing comes any more, because of ``error`` if there is one."""

    error: Exception | None = None


class Handover(Generic[T]):
    """:meth:`fill` runs on ``loop``; one other thread takes, by number. At most ``bytes_max`` and one item wait, by
    ``size_of``; the item taken last stays until the next one is asked for, because an interrupt may meet its taker
    before the taker has it.

    ``_put`` is written by the loop alone and ``_taken`` by the other thread alone, so no lock is needed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size_of: Callable[[T], int], bytes_max: int) -> None:
        self._loop, self._size_of, self._bytes_max = loop, size_of, bytes_max
        self._items: dict[int, tuple[T | _Ended, int]] = {}  # each with the bytes up to its end
        self._count = 0
        self._put = self._taken = 0
        self._is_filled = False
        self._waits = False  # whether the other thread must be woken
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._room: asyncio.Future[None] | None = None  # what the loop waits for

    async def fill(self, source: AsyncIterator[T]) -> None:
        """Queue all items, and what ended them. A second call does nothing: an interrupted thread may ask twice."""
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
        if not self._is_low():  # the other thread may have looked before there was something to set
            await self._room
        self._room = None

    def _is_low(self) -> bool:
        return self._put - self._taken <= self._bytes_max // 2

    def item(self, number: int) -> T | None:
        """The item of this number, which is that of the last call or the next one, once it is there; None at the end.
        Raises what ended the items."""
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
            with suppress(RuntimeError):  # the loop has ended, and what waits says so
                self._loop.call_soon_threadsafe(_set, room)
        return item


def _set(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)
