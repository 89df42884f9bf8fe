# SPDX-License-Identifier: Apache-2.0
"""The event loop of a bookie's process. It is asyncio's loop with a selector that counts the files that were ready in a
turn.

The engine commits at the end of a burst if nothing else came in the turn, and in the next turn otherwise, so that many
clients share a sync. asyncio itself does not expose that count. The selector also does less work than that of the
standard library, whose cost is noticeable for a single add. On a system without epoll the bookie uses asyncio's default
loop, and commits wait for the next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import selectors
from collections.abc import Callable, Iterator, Mapping
from selectors import EVENT_READ, EVENT_WRITE, SelectorKey
from typing import Any

_EVENTS_MAX = 256
"""The maximum number of events that are taken in a turn. If there are more, the system returns them first in the next
turn."""


class TurnSelector(selectors.BaseSelector):
    """A selector over epoll. ``found`` is the number of files that were ready in this turn."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, SelectorKey] = {}
        self._map = _Registered(self._keys, self._number)
        self.found = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        number = self._number(fileobj)
        if number in self._keys:
            raise KeyError(f"{fileobj!r} is registered")
        self._epoll.register(number, _mask(events))
        key = self._keys[number] = SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: Any) -> SelectorKey:
        key = self._keys.pop(self._number(fileobj))
        with contextlib.suppress(OSError):  # the file is closed already
            self._epoll.unregister(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        number = self._number(fileobj)
        if events != self._keys[number].events:
            self._epoll.modify(number, _mask(events))
        key = self._keys[number] = SelectorKey(fileobj, number, events, data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        self.found = 0
        if timeout is None:
            timeout = -1
        elif timeout > 0:
            timeout = math.ceil(timeout * 1e3) * 1e-3  # rounded up, or the loop would wake too early
        ready = []
        for number, event in self._epoll.poll(timeout, _EVENTS_MAX):
            key = self._keys.get(number)
            if key is not None:
                is_ready = EVENT_READ if event & ~select.EPOLLOUT else 0
                if event & ~select.EPOLLIN:
                    is_ready |= EVENT_WRITE
                ready.append((key, is_ready & key.events))
                self.found += 1
        return ready

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()

    def get_key(self, fileobj: Any) -> SelectorKey:
        return self._keys[self._number(fileobj)]

    def _number(self, fileobj: Any) -> int:
        number = fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
        if number < 0:  # closed, but perhaps still registered
            return next((key.fd for key in self._keys.values() if key.fileobj is fileobj), number)
        return number

    def get_map(self) -> Mapping[Any, SelectorKey]:
        return self._map


class _Registered(Mapping[Any, SelectorKey]):
    """The registered files, by file object or by number. From Python 3.13 on asyncio looks up sockets here."""

    def __init__(self, keys: dict[int, SelectorKey], number: Callable[[Any], int]) -> None:
        self._keys, self._number = keys, number

    def get(self, fileobj: Any, default: Any = None) -> Any:
        return self._keys.get(self._number(fileobj), default)

    def __getitem__(self, fileobj: Any) -> SelectorKey:
        return self._keys[self._number(fileobj)]

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)


def _mask(events: int) -> int:
    return (select.EPOLLIN if events & EVENT_READ else 0) | (select.EPOLLOUT if events & EVENT_WRITE else 0)


class BookieLoop(asyncio.SelectorEventLoop):
    """asyncio's loop over a TurnSelector, which is its attribute ``turn``."""

    def __init__(self) -> None:
        self.turn = TurnSelector()
        super().__init__(self.turn)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop for a bookie's process."""
    return BookieLoop() if hasattr(select, "epoll") else asyncio.new_event_loop()
