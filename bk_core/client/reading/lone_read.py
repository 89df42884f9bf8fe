# SPDX-License-Identifier: Apache-2.0
"""Reads one entry with one request to one bookie, which is enough if nothing fails.

If a client looks up many single entries, the machine that reads ranges
(:class:`~bk_core.protocol.reader.RangeRead`) costs more than everything else. So this file asks one bookie of the write
set. An answer counts only if it is the whole entry and verifies. After any other answer the caller reads the entry with
the machine, which asks again. A bookie that failed here, or was silent for ``speculative_read_ms``, is then asked last.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from bk_core.client.config import ClientConfig
from bk_core.client.reading.ranges import Quarantine, began_to_come
from bk_core.client.running.metrics import Observer
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.lone_frames import lone_entry
from bk_core.entries.verified import verified_batches
from bk_core.errors import BookKeeperError, IntegrityError
from bk_core.model import BookieId, EntryId, LedgerMetadata
from bk_core.observe.traces import spans
from bk_core.transport.port import ToldRead, Transport
from bk_core.wire.lane.evidence import ReadTrailer

RUN_IDS = 1024
"""The number of consecutive entry ids that are read from the same bookie. The bookie finds most of these entries in
frames that it has just read."""


class LoneRead:
    """A read of one entry by one request, in callbacks: it needs no task, so a cancelled caller does not end it.

    - ``_read`` is the request, None once it is over, because it refers to this object. A cycle would keep the frames
      until the garbage collector runs.
    - ``_parts`` has the frames of the answer that have come.
    - ``_end`` is the last answer, or the error of a request that could not be sent.
    - ``_is_over`` says that ``_end`` has come or the read was cancelled.
    - ``_waiter`` is the future of the caller that waits.
    """

    def __init__(
        self,
        transport: Transport,
        metadata: LedgerMetadata,
        digester: Digester,
        entry_id: EntryId,
        *,
        config: ClientConfig,
        prefer: int,
        slow: Quarantine,
        observer: Observer,
    ) -> None:
        self._transport, self._metadata, self._digester, self._entry_id = transport, metadata, digester, entry_id
        self._config, self._prefer, self._slow, self._observer = config, prefer, slow, observer
        self._bookie: BookieId = ""
        self._began = 0.0
        self._read: ToldRead | None = None
        self._parts: list[memoryview] = []
        self._end: ReadTrailer | BookKeeperError | None = None
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None

    async def result(self) -> EntryBatch | None:
        """Return the entry verified, or None if the caller must read it as a range instead. The first call sends the
        request. If a call is cancelled, the next one waits for the same answer. Only one call may wait at a time.
        Raises only CancelledError."""
        if self._read is None and not self._is_over and not self._asks():
            return None
        if not self._is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._verified()

    def cancel(self) -> None:
        """End the request, which has no effect once it has ended. A call that waits returns None."""
        read = self._read
        self._finish()
        if read is not None:
            read.cancel()

    def _asks(self) -> bool:
        """Send the request. Return False if this entry cannot be read in this way: spans need the machine, and a link
        without :class:`ToldRead` sends nothing before its first item is asked for."""
        if spans() is not None:
            return False
        self._began = monotonic()
        self._bookie = _bookie_for(self._metadata, self._entry_id, self._prefer, self._slow)
        deadline_ms = min(self._config.speculative_read_ms, self._config.read_timeout_ms)
        try:
            read = self._transport.link(self._bookie).read(
                self._digester.ledger_id,
                self._entry_id,
                self._entry_id,
                bytes_max=self._config.read_bytes_max,
                deadline_s=deadline_ms / 1000,
            )
        except BookKeeperError as error:
            self._end, self._is_over = error, True
            return True
        if not isinstance(read, ToldRead):
            return False
        self._read = read
        read.tell(self._told)
        return True

    def _told(self, frames: memoryview | None, end: ReadTrailer | BookKeeperError | None) -> None:
        if frames is not None:
            self._parts.append(frames)
        if end is not None and not self._is_over:
            self._end = end
            self._finish()

    def _finish(self) -> None:
        self._is_over, self._read = True, None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _verified(self) -> EntryBatch | None:
        """Return the entry of the answer, or None if the answer is not exactly this entry."""
        end, error, batch = self._end, None, None
        if isinstance(end, BookKeeperError):
            error = end
        elif end is not None and self._is_whole(end):
            try:
                batch = lone_entry(self._parts[0], self._digester)
                if batch is None:
                    batch = self._of_frames(self._parts[0])
            except IntegrityError as found:
                error = found
        if error is not None:
            self._slow.note([self._bookie], self._config.quarantine_ms / 1000)
        if batch is None or batch.first_entry_id != self._entry_id:
            return None
        took_s = monotonic() - self._began
        began_to_come(self._observer, self._digester.ledger_id, self._entry_id, self._entry_id, took_s)
        self._observer.counts.read_entries += 1
        self._observer.counts.read_bytes += batch.payload.nbytes
        return batch if batch.ids is None else EntryBatch.merge_by_id([batch])  # a cut of a striped frame lists its id

    def _of_frames(self, frames: memoryview) -> EntryBatch | None:
        """Return the entry in any frames, or None if they do not have exactly one. Raises IntegrityError."""
        batches = verified_batches(frames, self._digester, always=self._digester.digest_type.needs_key)
        return batches[0] if len(batches) == 1 and len(batches[0]) == 1 else None

    def _is_whole(self, end: ReadTrailer) -> bool:
        parts, entry_id = self._parts, self._entry_id
        return len(parts) == 1 and end.answered_through == entry_id and not (end.absent or end.unknown)


def _bookie_for(metadata: LedgerMetadata, entry_id: EntryId, prefer: int, slow: Quarantine) -> BookieId:
    """Choose a bookie of the write set. The choice rotates with ``prefer`` and from one run of entries to the next. A
    bookie that was slow lately is avoided if there is a choice."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    first, turn = entry_id if size > quorum else 0, prefer + entry_id // RUN_IDS
    ensemble, avoided = metadata.fragment_of(entry_id).ensemble, slow.now()
    if not avoided:
        return ensemble[(first + turn % quorum) % size]
    members = [ensemble[(first + (turn + k) % quorum) % size] for k in range(quorum)]
    return next((member for member in members if member not in avoided), members[0])
