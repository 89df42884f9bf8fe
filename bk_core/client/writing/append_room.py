# SPDX-License-Identifier: Apache-2.0
"""Decides when the entries of appends may be queued. Appends whose entries may not be queued yet wait in a line.

There are three limits, in bytes. The window limits the unconfirmed entries of a writer. ``slow_bookie_bytes_max``
limits the frames kept for the slowest bookie; above it nothing is queued. The writer's share of the process's budget
limits the sum of both.

Waiting appends form one line, in which no append passes another. So a batch that waits for space between two of its
pieces still gets consecutive ids, and a fast producer cannot starve a slow producer.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Sequence

from bk_core.client.writing.append_queue import AppendQueue, cost
from bk_core.client.writing.process_budget import Share
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.errors import BookKeeperError, Outcome
from bk_core.model import EntryId

Piece = EntryBatch | Bytes


class _Waiting:
    """One waiting append of the line. A batch is in several pieces."""

    def __init__(self, pieces: Sequence[Piece], future: asyncio.Future[EntryId]) -> None:
        self.pieces, self.future = deque(pieces), future
        self.begun = False

    def refuse(self, error: BookKeeperError) -> None:
        """Fail the append and drop its remaining pieces. If some pieces were queued before, the outcome is UNKNOWN."""
        if self.future.done():
            return
        if self.begun and error.outcome is Outcome.NOT_APPLIED:
            error = copy.copy(error)
            error.outcome = Outcome.UNKNOWN
        self.future.set_exception(error)


class Room:
    """Decides for one writer which appends may be queued, and holds its line of waiting appends. Any thread that holds
    the queue's lock may call ``has``; the loop makes all other calls."""

    def __init__(self, queue: AppendQueue, share: Share, *, window_bytes_max: int, slow_bookie_bytes_max: int) -> None:
        self._queue, self._share = queue, share
        self._window, self._slow = window_bytes_max, slow_bookie_bytes_max
        self._line: deque[_Waiting] = deque()
        self._extra = 0  # confirmed bytes that are kept for slow bookies
        self._held_max = 0  # the number of bytes that may be held without a call to the budget
        self._shut = False
        self.is_slow = False

    def has(self, size: int) -> bool:
        """Return whether ``size`` more bytes may be queued. The queue's lock is held."""
        return not self._line and (self._queue.held + size <= self._held_max or self._more(size))

    def _more(self, size: int, *, waits: bool = False) -> bool:
        held = self._queue.held
        if self.is_slow or (held and held + size > self._window):
            return False
        total = held + self._extra
        if not total:
            self._share.give_back()  # a writer that holds nothing is never refused
        if not self._share.reach(total + size, at_most=self._window + self._extra, waits=waits):
            return False
        self._free(min(self._window, self._share.bytes - self._extra))
        return True

    def _free(self, held_max: int) -> None:
        """Set the number of bytes that may be held without a call to the budget. The queue's ``free_to`` is the same
        limit for the fast path of single appends. While appends wait in the line, and after :meth:`shut`, ``free_to``
        is −1, so that every append goes through ``has``."""
        self._held_max = held_max
        self._queue.free_to = -1 if self._line or self._shut else held_max

    def ask(self, size: int) -> bool:
        """Return whether ``size`` more bytes may be queued, even if appends wait in the line. If the budget has too few
        bytes, it wakes the writer once it may have enough. The queue's lock is held."""
        return self._more(size, waits=True)

    @property
    def is_waited_for(self) -> bool:
        """Whether appends wait in the line."""
        return bool(self._line)

    def settle(self, retained: int) -> None:
        """Note that the machine now keeps ``retained`` bytes for bookies, and give the unused part of the share back to
        the budget."""
        with self._queue.lock:
            self._extra = max(0, retained - self._queue.taken_bytes)
            self.is_slow = retained > self._slow
            self._share.keep(self._queue.held + self._extra)
            self._free(-1 if self.is_slow else min(self._window, self._share.bytes - self._extra))

    def line_up(self, pieces: Sequence[Piece]) -> asyncio.Future[EntryId]:
        """Queue these pieces, now or once there is space for them and all earlier appends are queued. Return a future
        whose result is the id of the last entry. Cancelling the future drops the pieces that are not queued yet. The
        caller holds the queue's lock."""
        future: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: self.serve() if done.cancelled() else None)
        self._line.append(_Waiting(pieces, future))
        self._free(self._held_max)
        if len(self._line) == 1:
            self._serve()
        return future

    def serve(self) -> None:
        """Queue the waiting appends for which there is space now, the oldest first."""
        if self._line:
            with self._queue.lock:
                self._serve()

    def _serve(self) -> None:
        while self._line:
            head = self._line[0]
            while head.pieces and not head.future.done():
                piece = head.pieces[0]
                size = _cost(piece)
                if self._queue.held + size > self._held_max and not self._more(size, waits=True):
                    return
                head.begun = True
                head.pieces.popleft()
                if isinstance(piece, EntryBatch):
                    self._queue.put_batch(piece)
                else:
                    self._queue.put(piece)
            if not head.future.done():
                head.future.set_result(self._queue.next_id - 1)
            self._line.popleft()
        self._free(self._held_max)

    def shut(self) -> None:
        """End the fast path of single appends, because the writer no longer takes entries and must refuse each append.
        The queue's lock is held."""
        self._shut = True
        self._free(self._held_max)

    def refuse_all(self, error: BookKeeperError) -> None:
        """Fail every append in the line."""
        with self._queue.lock:
            line, self._line = self._line, deque()
            self._free(self._held_max)
        for waiting in line:
            waiting.refuse(error)

    def leave(self) -> None:
        """Give the writer's share of the budget back. The writer has ended."""
        with self._queue.lock:
            self.shut()
            self._held_max = -1
            self._share.leave()


def _cost(piece: Piece) -> int:
    return cost(piece.payload_bytes, len(piece)) if isinstance(piece, EntryBatch) else cost(len(piece), 1)
