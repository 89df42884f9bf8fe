# SPDX-License-Identifier: Apache-2.0
"""Turns the frames of a bookie's answer into verified entry batches. Pure.

Other programs add entries one by one, so an answer may have hundreds of small frames in Apache's layout. Numpy's fixed
cost for each of them would exceed all other costs. So consecutive frames in this layout become one batch, with one copy
of their payloads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from bk_core.entries.apache import split_entries, split_few
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import FEW_ENTRIES, Digester
from bk_core.entries.frame import (
    APACHE_BYTES,
    FRAME_HEADER_BYTES,
    FrameHeader,
    FrameKind,
    check_frame,
    check_header,
    decode_frame,
    parse_header,
    refuse,
    split_frames,
)
from bk_core.errors import IntegrityError

_ENTRIES = int(FrameKind.ENTRIES)


def verified_batches(
    frames: memoryview, digester: Digester, *, always: bool, keep_heads: bool = False
) -> list[EntryBatch]:
    """Return the batches in the frames of a bookie's answer. Raises IntegrityError for the first frame that fails a
    check.

    Both CRCs of each frame are checked, and the digests of entries in a frame that the bookie cut, or in all frames
    with ``always`` (recovery, MAC ledgers). A stored frame has its placement stamp as tag; a frame that was cut has the
    tag 0 (docs/formats.md §1.4). In frames in Apache's layout the digests are always verified. They cover all bytes of
    the payload, so its CRC is checked only if the ledger has no digests. With ``keep_heads`` their payloads are not
    copied, and the batch has the column ``heads``.
    """
    if frames.nbytes >= FRAME_HEADER_BYTES:
        header = parse_header(frames)
        if FRAME_HEADER_BYTES + header.columns_bytes + header.payload_bytes == frames.nbytes:  # one frame, as usual
            return [_batch_of_run(frames, ((header, frames),), digester, always=always, keep_heads=keep_heads)]
    batches, at = [], 0
    for run in _runs(split_frames(frames)):
        end = at + sum([each.size for each, _ in run])
        batches.append(_batch_of_run(frames[at:end], run, digester, always=always, keep_heads=keep_heads))
        at = end
    return batches


_Frames = Sequence[tuple[FrameHeader, memoryview]]


def _batch_of_run(
    buffer: memoryview, run: _Frames, digester: Digester, *, always: bool, keep_heads: bool
) -> EntryBatch:
    """Return the entries of a run of frames as one batch. ``buffer`` has the bytes of all frames."""
    header, frame = run[0]
    if header.kind != _ENTRIES:
        raise IntegrityError("a bookie answered with a record", value=f"kind {header.kind}")
    if header.flags == APACHE_BYTES:
        return _joined(buffer, run, digester, keep_heads=keep_heads)
    return decode_frame(frame, digester=digester, verify_digests=always or header.tag == 0, parsed=header)


def _runs(frames: _Frames) -> Iterator[_Frames]:
    """Split frames into runs. A run is a single frame, or frames in Apache's layout with consecutive ids."""
    begin = 0
    for k in range(1, len(frames) + 1):
        if k == len(frames) or not _continues(frames[k - 1][0], frames[k][0]):
            yield frames[begin:k]
            begin = k


def _continues(before: FrameHeader, header: FrameHeader) -> bool:
    return (
        before.flags == header.flags == APACHE_BYTES
        and before.kind == header.kind
        and before.first_entry_id + before.count == header.first_entry_id
    )


def _joined(buffer: memoryview, run: _Frames, digester: Digester, *, keep_heads: bool) -> EntryBatch:
    """Return the entries of a run of frames as one batch. ``buffer`` has the bytes of all frames."""
    check = check_header if digester.digest_bytes else check_frame
    for header, frame in run:
        check(frame, header)
        if header.ledger_id != digester.ledger_id:
            refuse(f"expected ledger {digester.ledger_id}", header)
    counts = [header.count for header, _ in run]
    batch = _few(buffer, run, digester, keep_heads) if sum(counts) <= FEW_ENTRIES else None
    if batch is None:
        batch = _many(buffer, run, counts, digester, keep_heads)
    first = run[0][0]
    if batch.ids is not None or batch.first_entry_id != first.first_entry_id:
        refuse("entry ids differ from those inside the entries", first)
    return batch


def _few(buffer: memoryview, run: _Frames, digester: Digester, keep_heads: bool) -> EntryBatch | None:
    begins, lengths, at = list[int](), list[int](), 0
    for header, frame in run:
        at += FRAME_HEADER_BYTES + header.columns_bytes
        for length in struct.unpack_from(f"<{header.count}I", frame, FRAME_HEADER_BYTES):
            begins.append(at)
            lengths.append(length)
            at += length
    return split_few(buffer, begins, lengths, digester, keep_heads=keep_heads)


def _many(buffer: memoryview, run: _Frames, counts: Sequence[int], digester: Digester, keep_heads: bool) -> EntryBatch:
    lengths = np.concatenate([np.frombuffer(frame, "<u4", header.count, FRAME_HEADER_BYTES) for header, frame in run])
    heads = np.cumsum([FRAME_HEADER_BYTES + header.columns_bytes for header, _ in run])
    begins = np.cumsum(lengths, dtype=np.int64) - lengths + np.repeat(heads, counts)
    return split_entries(buffer, begins, lengths, digester, keep_heads=keep_heads)
