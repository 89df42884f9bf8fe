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
    """:meth:`fill` runs on ``loop``; one other thread takes. At most ``bytes_max`` and one item wait, by ``size_of``.

    ``_put`` is written by the loop alone and ``_taken`` by the other thread alone, so no lock is needed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size_of: Callable[[T], int], bytes_max: int) -> None:
        self._loop, self._size_of, self._bytes_max = loop, size_of, bytes_max
        self._items: SimpleQueue[T | _Ended] = SimpleQueue()
        self._put = self._taken = 0
        self._room: asyncio.Future[None] | None = None  # what the loop waits for

    async def fill(self, source: AsyncIterator[T]) -> None:
        """Queue all items, and what ended them."""
        try:
            async for item in source:
                self._put += self._size_of(item)
                self._items.put(item)
                if self._put - self._taken > self._bytes_max:
                    await self._has_room()
        except Exception as error:
            self._items.put(_Ended(error))
        except asyncio.CancelledError:
            self._items.put(_Ended(ClientClosedError("this client was closed while it was reading")))
            raise
        else:
            self._items.put(_Ended())

    async def _has_room(self) -> None:
        self._room = self._loop.create_future()
        if not self._is_low():  # the other thread may have looked before there was something to set
            await self._room
        self._room = None

    def _is_low(self) -> bool:
        return self._put - self._taken <= self._bytes_max // 2

    def take(self) -> T | None:
        """The next item, once it is there; None at the end. Raises what ended the items."""
        item = self._items.get()
        if isinstance(item, _Ended):
            self._items.put(item)
            if item.error is not None:
                raise item.error
            return None
        self._taken += self._size_of(item)
        if (room := self._room) is not None and self._is_low():
            with suppress(RuntimeError):  # the loop has ended, and what waits says so
                self._loop.call_soon_threadsafe(_set, room)
        return item


def _set(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)
