# SPDX-License-Identifier: Apache-2.0
"""Holds the callers that wait until entries of one writer are confirmed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import threading
from bisect import insort
from collections import deque

from bk_core.errors import BookKeeperError
from bk_core.model import EntryId


class AppendWaiters:
    """Completes futures once an entry, and all entries before it, are confirmed or durable.

    - ``_futures`` are futures for any thread, in the order of entry ids. Their result is the entry id. ``lock``, which
      is the queue's lock, guards additions.
    - ``_waiters`` are futures of the loop, in a heap by entry id. ``_ticket`` numbers them, so that equal ids have an
      order.
    - ``_forces`` are futures that wait until an entry is durable, in the order of their calls, which is the order of
      their entry ids.

    The loop makes all calls but :meth:`add_future`.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._futures: deque[tuple[EntryId, concurrent.futures.Future[EntryId]]] = deque()
        self._waiters: list[tuple[EntryId, int, asyncio.Future[None]]] = []
        self._ticket = 0
        self._forces: list[tuple[EntryId, asyncio.Future[None]]] = []

    def add_future(self, entry_id: EntryId, future: concurrent.futures.Future[EntryId]) -> None:
        """Set ``future`` to the entry id once the entry is confirmed. Any thread may call, with the lock held."""
        insort(self._futures, (entry_id, future))

    def add(self, entry_id: EntryId, waiter: asyncio.Future[None]) -> None:
        """Complete ``waiter`` once the entry is confirmed."""
        self._ticket += 1
        heapq.heappush(self._waiters, (entry_id, self._ticket, waiter))

    def add_force(self, entry_id: EntryId, forced: asyncio.Future[None]) -> None:
        """Complete ``forced`` once the LAC has reached the entry."""
        self._forces.append((entry_id, forced))

    def confirmed(self, through: EntryId, lac: EntryId) -> None:
        """Complete the futures that wait for entries up to ``through``, and the forces that wait for entries up to
        ``lac``. With deferred syncs ``lac`` may be lower, because appends end before their entries are durable."""
        while self._futures and self._futures[0][0] <= through:
            entry_id, future = self._futures.popleft()
            future.set_result(entry_id)
        while self._waiters and self._waiters[0][0] <= through:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)
        while self._forces and self._forces[0][0] <= lac:
            forced = self._forces.pop(0)[1]
            if not forced.done():
                forced.set_result(None)

    def fail(self, first: EntryId, error: BookKeeperError) -> None:
        """Fail every future that waits for the entry ``first`` or a later entry, except forces."""
        with self._lock:  # an append checks under this lock whether the writer has ended, so no future comes later
            futures = [self._futures.pop() for _ in range(len(self._futures)) if self._futures[-1][0] >= first]
        for _, future in futures:
            future.set_exception(error)
        waiters, self._waiters = self._waiters, [each for each in self._waiters if each[0] < first]
        heapq.heapify(self._waiters)
        for entry_id, _, waiter in waiters:
            if entry_id >= first and not waiter.done():
                waiter.set_exception(error)

    def fail_all(self, error: BookKeeperError) -> None:
        """Fail every future, forces included."""
        self.fail(0, error)
        forces, self._forces = self._forces, []
        for _, forced in forces:
            if not forced.done():
                forced.set_exception(error)
