# SPDX-License-Identifier: Apache-2.0
"""Converts Apache's entries into frames, and stored frames into Apache's entries, in columns."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bk_core.entries.apache_frame import encode_apache
from bk_core.entries.batch import byte_view
from bk_core.entries.digest import entry_headers
from bk_core.entries.frame import (
    APACHE_BYTES,
    FRAME_HEADER_BYTES,
    FrameHeader,
    columns_of,
    decode_frame,
    entry_ids_of,
    parse_header,
)
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.columns import gather
from bk_core.wire.bookie_rpc.frames import I64

FRAME_BYTES = 256 << 10
"""The size, in bytes, at which a burst is cut into frames. A frame exceeds it by less than one entry. It is well below
a mebibyte, because a read of one entry reads its whole frame."""

_SIZES = struct.Struct("<II")  # of columns and payload, at byte 44 of a frame
_SIZES_AT = 44
_HEAD = np.dtype(
    {
        "names": ["flags", "first", "count", "payload"],
        "formats": ["<u2", "<i8", "<u4", "<u4"],
        "offsets": [4, 16, 40, 48],
        "itemsize": FRAME_HEADER_BYTES,
    }
)
_SINGLE_AT = FRAME_HEADER_BYTES + 4  # offset of the entry in a frame with one entry, behind its length


class Entries(NamedTuple):
    """Entries and their ids."""

    ids: I64
    bodies: Bodies

    def taken(self, at: I64) -> Entries:
        """Return the entries at some ascending positions."""
        bodies = self.bodies
        heads = None if bodies.heads is None else bodies.heads[at]
        return Entries(self.ids[at], Bodies(bodies.payload, bodies.offsets[at], bodies.lengths[at], heads))


def cuts_of(ids: I64, lengths: I64) -> list[int]:
    """Return the positions at which entries of one session are cut into frames, including the begin and the end, so
    that the ids in each frame ascend and its size stays near ``FRAME_BYTES``."""
    count = int(ids.size)
    if count == 1:
        return [0, 1]
    ends = lengths.cumsum()
    if int(ends[-1]) <= FRAME_BYTES and bool((ids[1:] > ids[:-1]).all()):
        return [0, count]
    chunks = (ends - lengths) // FRAME_BYTES
    cuts = np.flatnonzero((ids[1:] <= ids[:-1]) | (chunks[1:] != chunks[:-1])) + 1
    return [0, *cuts.tolist(), count]


def frame_of(ledger_id: int, headers: I64, bodies: Bodies, session: int) -> tuple[FrameHeader, bytearray]:
    """Encode a frame of unchanged entries, copied out of the burst. Return its header and the frame."""
    frame = encode_apache(ledger_id, headers, bodies.lengths, bodies.joined(), session=session)
    return parse_header(frame), frame


def entries_of(frames: Sequence[bytes | bytearray | memoryview]) -> Iterator[Entries]:
    """Yield the entries in the frames of an answer, in Apache's form, whichever form they are stored in. Storage has
    checked the frames."""
    for buffer in frames:
        view = byte_view(buffer)
        begins = _begins(view)
        if len(begins) > 1:
            singles = _singles(view, np.array(begins, dtype=np.int64))
            if singles is not None:
                yield singles
                continue
        for begin, end in zip(begins, [*begins[1:], view.nbytes], strict=True):
            yield _of_frame(view[begin:end])


def _begins(view: memoryview) -> list[int]:
    begins, at = [], 0
    while at < view.nbytes:
        begins.append(at)
        columns, payload = _SIZES.unpack_from(view, at + _SIZES_AT)
        at += FRAME_HEADER_BYTES + columns + payload
    return begins


def _singles(view: memoryview, begins: I64) -> Entries | None:
    """Return the entries of frames that have one entry each in Apache's form; None if any frame is different."""
    heads = gather(np.frombuffer(view, dtype=np.uint8), begins, FRAME_HEADER_BYTES).view(_HEAD).ravel()
    if (heads["flags"] != APACHE_BYTES).any() or (heads["count"] != 1).any():
        return None
    return Entries(
        heads["first"].astype(np.int64), Bodies(view, begins + _SINGLE_AT, heads["payload"].astype(np.int64))
    )


def _of_frame(frame: memoryview) -> Entries:
    header = parse_header(frame)
    if header.flags & APACHE_BYTES:
        lengths = columns_of(header, frame).lengths.astype(np.int64)
        payload = frame[FRAME_HEADER_BYTES + header.columns_bytes :]
        return Entries(entry_ids_of(header, frame), Bodies(payload, lengths.cumsum() - lengths, lengths))
    batch = decode_frame(frame)
    assert batch.digests is not None
    ids, offsets = batch.entry_ids(), batch.offsets()
    lacs = batch.lac if batch.lacs is None else batch.lacs
    heads = entry_headers(header.ledger_id, ids, lacs, batch.cumulative_lengths())
    if batch.digests.shape[1]:
        heads = np.concatenate((heads, batch.digests), axis=1)
    return Entries(ids, Bodies(batch.payload, offsets[:-1], np.diff(offsets), heads))
