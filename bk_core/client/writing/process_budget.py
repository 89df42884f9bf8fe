# SPDX-License-Identifier: Apache-2.0
"""Holds the byte budget that all writers of this process share (P3).

The budget is a :class:`~bk_core.memory.shared_budget.SharedBudget` that a lock guards. Each client gives a limit. The
smallest limit of the open clients applies, so that no client's limit is exceeded. A forked child begins with a new
budget.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from bk_core.memory.shared_budget import SharedBudget

SPARE_BYTES_MAX = 256 << 10
"""The maximum number of bytes that a writer takes from the budget beyond its next entry, so that it rarely needs the
budget's lock."""


KEPT_BYTES_MAX = 4 << 10
"""The maximum number of unused bytes that a writer keeps while it uses some and no other writer waits for bytes.
Without them each of its entries would take bytes from the budget and give them back."""

IDLE_BYTES_MAX = 1 << 10
"""The maximum number of bytes that a writer keeps while it uses none. They are enough for an entry of a few hundred
bytes."""

IDLE_PART = 16
"""A writer that uses no bytes keeps some only while less than one part in 16 of the budget is taken. So thousands of
idle writers leave nearly all of the budget to the writers that write."""


class ProcessBudget:
    """The byte budget that all writers of a process share. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._sizes: dict[int, int] = {}  # client → its limit
        self._closed: deque[int] = deque()  # closed clients whose limits are not removed yet
        self._wakes: dict[int, Callable[[], None]] = {}
        self.decision = SharedBudget(1)

    def client(self, bytes_max: int) -> Callable[[], None]:
        """Add the limit of a client that opened. Return the function to call when the client closes.

        The garbage collector may call the returned function, on any thread and even while the same thread holds the
        lock. So the function takes no lock; the next call that takes bytes removes the limit.
        """
        number = next(self._numbers)
        with self._lock:
            self._sizes[number] = bytes_max
            self._resize()
        return functools.partial(self._closed.append, number)

    def _resize(self) -> None:
        while self._closed:
            self._sizes.pop(self._closed.popleft(), None)
        if self._sizes:
            self.decision.resize(min(self._sizes.values()))

    def share(self, loop: asyncio.AbstractEventLoop, look_again: Callable[[], None]) -> Share:
        """Make the share of a new writer. ``look_again`` is called on ``loop`` once a refused request may succeed."""

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(look_again)

        return Share(self, next(self._numbers), wake)

    def take(self, number: int, wanted: int, spare: int, wake: Callable[[], None] | None) -> int:
        with self._lock:
            if wake is not None:
                self._wakes[number] = wake
            if self._closed:
                self._resize()
            return self.decision.take(number, wanted, spare=spare, waits=wake is not None)

    def give_back(self, number: int, size: int) -> None:
        with self._lock:
            wakes = [self._wakes.pop(woken) for woken in self.decision.give_back(number, size)]
        for wake in wakes:
            wake()

    def leave(self, number: int) -> None:
        with self._lock:
            self._wakes.pop(number, None)
            wakes = [self._wakes.pop(woken) for woken in self.decision.leave(number)]
        for wake in wakes:
            wake()


class Share:
    """One writer's share of the process's budget. The writer makes one call at a time."""

    def __init__(self, budget: ProcessBudget, number: int, wake: Callable[[], None]) -> None:
        self._budget, self._number, self._wake = budget, number, wake
        self.bytes = 0  # the number of bytes taken from the budget

    def reach(self, size: int, *, at_most: int, waits: bool) -> bool:
        """Take bytes from the budget until this share has at least ``size`` and at most ``at_most`` bytes. Return False
        if the budget has too few. With ``waits``, the budget then wakes the writer once it may have enough."""
        wanted = size - self.bytes
        if wanted > 0:
            spare = max(0, min(SPARE_BYTES_MAX, at_most - size))
            self.bytes += self._budget.take(self._number, wanted, spare, self._wake if waits else None)
        return self.bytes >= size

    def keep(self, size: int) -> None:
        """Give the bytes above ``size`` back to the budget, except a few for the next entry."""
        surplus = self.bytes - size
        if surplus > 0:
            budget = self._budget.decision
            if budget.is_waited_for:
                kept = 0
            elif size:
                kept = KEPT_BYTES_MAX
            else:
                kept = IDLE_BYTES_MAX if budget.bytes * IDLE_PART < budget.bytes_max else 0
            if surplus > kept:
                self.bytes = size + kept
                self._budget.give_back(self._number, surplus - kept)

    def give_back(self) -> None:
        """Give all bytes back to the budget."""
        if self.bytes:
            size, self.bytes = self.bytes, 0
            self._budget.give_back(self._number, size)

    def leave(self) -> None:
        """Give all bytes back to the budget. The writer has ended."""
        self.bytes = 0
        self._budget.leave(self._number)


_process = ProcessBudget()


def process_budget() -> ProcessBudget:
    return _process


def _start_anew() -> None:
    """Make a new budget in a forked child. The old writers belong to the parent process, one of whose threads may have
    held the lock."""
    global _process
    _process = ProcessBudget()


os.register_at_fork(after_in_child=_start_anew)
