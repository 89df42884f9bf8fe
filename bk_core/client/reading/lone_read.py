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
from bk_core.entries.verified import verified_batches
from bk_core.errors import BookKeeperError, IntegrityError
from bk_core.model import BookieId, EntryId, LedgerId, LedgerMetadata
from bk_core.observe.traces import spans
from bk_core.transport.port import ReadPart, ToldRead, Transport
from bk_core.wire.lane.evidence import ReadTrailer

RUN_IDS = 1024
"""The number of consecutive entry ids that are read from the same bookie. The bookie finds most of these entries in
frames that it has just read."""


async def lone_read(
    transport: Transport,
    metadata: LedgerMetadata,
    digester: Digester,
    entry_id: EntryId,
    *,
    config: ClientConfig,
    prefer: int,
    slow: Quarantine,
    observer: Observer,
) -> EntryBatch | None:
    """Read one entry and return it verified. Return None if the caller must read it as a range instead. Raises only
    CancelledError."""
    if spans() is not None:
        return None  # only the driver of the machine makes spans
    began, bookie = monotonic(), _bookie_for(metadata, entry_id, prefer, slow)
    frames = await _asked(transport, bookie, digester.ledger_id, entry_id, config)
    if isinstance(frames, memoryview):
        try:
            batches = verified_batches(frames, digester, always=digester.digest_type.needs_key)
        except IntegrityError as error:
            frames = error
    if isinstance(frames, BookKeeperError):
        slow.note([bookie], config.quarantine_ms / 1000)
    if not isinstance(frames, memoryview) or len(batches) != 1:
        return None
    (batch,) = batches
    if len(batch) != 1 or batch.first_entry_id != entry_id:
        return None
    began_to_come(observer, digester.ledger_id, entry_id, entry_id, monotonic() - began)
    observer.counts.read_entries += 1
    observer.counts.read_bytes += batch.payload.nbytes
    return batch if batch.ids is None else EntryBatch.merge_by_id([batch])  # a cut of a striped frame lists its id


def _bookie_for(metadata: LedgerMetadata, entry_id: EntryId, prefer: int, slow: Quarantine) -> BookieId:
    """Choose a bookie of the write set. The choice rotates with ``prefer`` and from one run of entries to the next. A
    bookie that was slow lately is avoided if there is a choice."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    first, turn = entry_id if size > quorum else 0, prefer + entry_id // RUN_IDS
    ensemble, avoided = metadata.fragment_of(entry_id).ensemble, slow.now()
    members = [ensemble[(first + (turn + k) % quorum) % size] for k in range(quorum if avoided else 1)]
    return next((member for member in members if member not in avoided), members[0])


async def _asked(
    transport: Transport, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId, config: ClientConfig
) -> memoryview | BookKeeperError | None:
    """Read the entry from the bookie. Return the frames of the answer, or the error that ended it. Return None if the
    answer is not exactly this entry, or if the link does not return a :class:`ToldRead`."""
    deadline_ms = min(config.speculative_read_ms, config.read_timeout_ms)
    try:
        read = transport.link(bookie).read(
            ledger_id, entry_id, entry_id, bytes_max=config.read_bytes_max, deadline_s=deadline_ms / 1000
        )
    except BookKeeperError as error:
        return error
    if not isinstance(read, ToldRead):
        return None  # such an iterator sends nothing before its first item is asked for
    parts: list[memoryview] = []
    ended: asyncio.Future[ReadTrailer | BookKeeperError] = asyncio.get_running_loop().create_future()

    def told(answer: ReadPart | ReadTrailer | BookKeeperError) -> None:
        if isinstance(answer, ReadPart):
            parts.append(answer.frames)
        elif not ended.done():
            ended.set_result(answer)

    read.tell(told)
    try:
        end = await ended
    finally:
        read.cancel()  # does nothing if the read has ended
    if isinstance(end, BookKeeperError):
        return end
    is_whole = len(parts) == 1 and end.answered_through == entry_id and not (end.absent or end.unknown)
    return parts[0] if is_whole else None
