# SPDX-License-Identifier: Apache-2.0
"""Sends a leader's appends to its current ledger and gives them log offsets. Offsets have no gap between ledgers.

An entry may be sent to the next ledger only when every entry of the previous ledger is confirmed. If it were sent
earlier, a crash could leave it in the log without the entries before it, at another offset than its caller got. So a
switch to the next ledger has three steps. It waits for the batches under way. Then it queues new appends in the next
ledger's writer without sending them. It sends them once all entries of the previous ledger are confirmed. The pause is
one round trip.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import NoReturn

from bk_core.client.writing.writer import LedgerWriter
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.errors import BookKeeperError, LedgerClosedError, WindowFullError


class LogAppender:
    """Takes the appends of one leader. Any thread may call ``append_nowait``; all other calls must be made on the loop.

    ``on_failure`` is called on the loop when a ledger takes no more entries. If leadership is lost, ``on_failure``
    calls :meth:`fail`.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        base_offset: int,
        *,
        on_failure: Callable[[LedgerWriter, BookKeeperError], None],
    ) -> None:
        self._writer, self._base = writer, base_offset
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # guards the writer and its base, which append_nowait reads
        self._previous: tuple[LedgerWriter, int] | None = None  # the ledger before and its base, until it is confirmed
        self._gate = asyncio.Event()  # cleared while a switch waits for batches under way, so that new batches wait
        self._gate.set()
        self._batches = 0
        self._no_batches = asyncio.Event()
        self._no_batches.set()
        self._error: BookKeeperError | None = None
        self._is_stopped = False

    @property
    def writer(self) -> LedgerWriter:
        """The current ledger's writer."""
        return self._writer

    @property
    def next_offset(self) -> int:
        """The log offset of the next appended entry."""
        with self._lock:
            return self._base + self._writer.last_add_pushed + 1

    def append_nowait(self, payload: Bytes) -> int:
        """Queue one entry and return its log offset. Raises WindowFullError while the window is full,
        EntryTooLargeError, and LeadershipLostError. After each of these errors the entry is not queued."""
        with self._lock:
            self._check()
            writer = self._writer
            try:
                return self._base + writer.append_nowait(payload)
            except BookKeeperError as error:
                if not writer.is_failed:
                    raise
                failure = error
        self._loop.call_soon_threadsafe(self._on_failure, writer, failure)
        raise failure

    async def append(self, payload: Bytes) -> int:
        """Append one entry. If the window is full, wait until it is not. Return its log offset once the entry is
        confirmed."""
        try:
            offset = self.append_nowait(payload)
        except WindowFullError:
            offset = await self.append_batch(EntryBatch.from_list([payload]))
        except BookKeeperError as error:
            self._raise(self._writer, error)
        await self.wait_confirmed(offset)
        return offset

    async def append_batch(self, batch: EntryBatch) -> int:
        """Queue a batch. If the window is full, wait until it is not. Return the log offset of its last entry."""
        while not self._gate.is_set():
            await self._gate.wait()
        self._check()
        writer, base = self._writer, self._base
        self._batches += 1
        self._no_batches.clear()
        try:
            return base + await writer.append_batch(batch)
        except BookKeeperError as error:
            self._raise(writer, error)
        finally:
            self._batches -= 1
            if not self._batches:
                self._no_batches.set()

    async def wait_confirmed(self, offset: int) -> None:
        """Wait until the entry at ``offset`` and all entries before it are confirmed. Raises LeadershipLostError if
        leadership is lost before. Then it is unknown whether the entry is part of the log."""
        with self._lock:
            (writer, base), previous = (self._writer, self._base), self._previous
        if offset < base:
            if previous is None:
                return  # the entry is in an older ledger, whose entries are all confirmed
            writer, base = previous
        try:
            await writer.wait_confirmed(offset - base)
        except BookKeeperError as error:
            self._raise(writer, error)

    async def switch(self, following: LedgerWriter) -> LedgerWriter:
        """Send appends to ``following`` from now on. Return the writer of the previous ledger, which is not closed, and
        whose entries are all confirmed.

        Raises the error that ended the previous ledger's writer. Then nothing was sent to ``following``.
        """
        self._gate.clear()
        await self._no_batches.wait()
        previous = self._writer
        following.hold()
        with self._lock:
            self._previous = previous, self._base
            self._writer, self._base = following, self._base + previous.last_add_pushed + 1
        self._gate.set()
        await previous.flush()
        if self._error is not None:
            raise self._error
        self._previous = None
        following.release()
        return previous

    def stop(self) -> None:
        """Refuse further appends. Earlier appends are still confirmed."""
        with self._lock:
            self._is_stopped = True

    def fail(self, error: BookKeeperError) -> None:
        """Refuse further appends, and fail unconfirmed appends with ``error``. The caller abandons the ledgers."""
        with self._lock:
            self._error = error
        self._gate.set()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_stopped:
            raise LedgerClosedError("this leader was closed", remedy="call lead() again to append more")

    def _raise(self, writer: LedgerWriter, error: BookKeeperError) -> NoReturn:
        """Raise ``error``, or the error of lost leadership if the ledger's writer has failed."""
        if writer.is_failed and self._error is None:
            self._on_failure(writer, error)
        if writer.is_failed and self._error is not None and self._error is not error:
            raise self._error from error
        raise error
