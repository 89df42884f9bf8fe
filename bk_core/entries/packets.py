# SPDX-License-Identifier: Apache-2.0
"""Makes the frames of a batch for the bookies of an ensemble. Pure. No Python code runs per entry.

If E = Qw, one frame goes to all bookies. If E > Qw, each index gets a frame of the entries whose write sets contain it
(protocol document "Write quorums": striping is per entry).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from bk_core.entries.batch import EntryBatch, Join, joined
from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_frame, encode_one, encode_striped
from bk_core.model import EntryId
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview

SLICE_BYTES = FRAME_BYTES_MAX // 4  # of payload; leaves space in a frame for the columns of SLICE_ENTRIES_MAX entries
SLICE_ENTRIES_MAX = 32_768


@dataclass(slots=True)
class Packet:
    """The frames of one append. There is one frame for all bookies, or one for each ensemble index, with None for an
    index that holds no entry of the append."""

    first: EntryId
    last: EntryId
    size: int  # the number of bytes kept in memory until every bookie has its frame
    session: int  # the session number inside the frames
    frames: tuple[Buffer | None, ...]

    def frame_for(self, index: int) -> Buffer | None:
        return self.frames[0] if len(self.frames) == 1 else self.frames[index]


def encode_packet(
    batch: EntryBatch,
    *,
    first: EntryId,
    lac: EntryId,
    length_before: int,
    digester: Digester,
    ensemble_size: int,
    write_quorum: int,
    session: int,
    join: Join = joined,
) -> Packet:
    """Make the packet of a batch of new entries. They get the ids from ``first`` on, carry ``lac``, and get digests.
    ``join`` joins a frame of several entries that all bookies get."""
    ledger_id, last = digester.ledger_id, first + len(batch) - 1
    if ensemble_size == write_quorum and first == last and batch.lists_nothing:
        frame = encode_one(
            batch.payload,
            digester=digester,
            entry_id=first,
            lac=lac,
            length_before=length_before,
            session=session,
        )
        return Packet(first, last, len(frame), session, (frame,))
    if ensemble_size == write_quorum:
        frame = encode_frame(
            batch,
            digester=digester,
            ledger_id=ledger_id,
            first_entry_id=first,
            lac=lac,
            length_before=length_before,
            session=session,
            join=join,
        )
        return Packet(first, last, len(frame), session, (frame,))
    digests = digester.compute_run(first, lac, length_before, batch.lengths, batch.payload)
    frames: tuple[Buffer | None, ...] = tuple(
        encode_striped(
            batch,
            ledger_id=ledger_id,
            first_entry_id=first,
            lac=lac,
            length_before=length_before,
            digest_type=digester.digest_type,
            digests=digests,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            index=index,
            session=session,
        )
        for index in range(ensemble_size)
    )
    return Packet(first, last, _size(frames), session, frames)


def verbatim_packet(
    batch: EntryBatch, *, ensemble_size: int, write_quorum: int, session: int, only: Collection[int] | None = None
) -> Packet:
    """Make the packet of entries that were read and verified, to write them back unchanged. Each entry keeps its LAC,
    ledger length and digest (P6). If entries are striped, ``only`` names the ensemble indices that need a frame."""
    first, last = batch.first_entry_id, batch.last_entry_id
    if ensemble_size == write_quorum:
        frame = encode_frame(batch, digester=None, session=session)
        return Packet(first, last, len(frame), session, (frame,))
    ids = batch.entry_ids()
    frames: list[Buffer | None] = []
    for index in range(ensemble_size):
        if only is not None and index not in only:
            frames.append(None)
            continue
        part = batch.select(np.flatnonzero((index - ids) % ensemble_size < write_quorum))
        frames.append(encode_frame(part, digester=None, session=session) if len(part) else None)
    return Packet(first, last, _size(tuple(frames)), session, tuple(frames))


def pieces(batch: EntryBatch, frame_bytes: int = SLICE_BYTES) -> list[EntryBatch]:
    """Cut the batch into slices without a copy. A slice has at most ``frame_bytes`` of payload unless it is a single
    entry, and at most SLICE_ENTRIES_MAX entries. With the default size each slice fits into a frame."""
    if batch.payload_bytes <= frame_bytes and len(batch) <= SLICE_ENTRIES_MAX:
        return [batch] if len(batch) else []
    offsets = batch.offsets()
    parts, start = [], 0
    while start < len(batch):
        stop = int(offsets.searchsorted(offsets[start] + frame_bytes, side="right")) - 1
        stop = min(max(stop, start + 1), len(batch), start + SLICE_ENTRIES_MAX)
        parts.append(batch.slice(start, stop))
        start = stop
    return parts


def _size(frames: tuple[Buffer | None, ...]) -> int:
    return sum(len(frame) for frame in frames if frame is not None)
