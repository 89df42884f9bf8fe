# SPDX-License-Identifier: Apache-2.0
"""Joins consecutive small frames of a ledger into one frame, for compaction (RULES S7). Pure, numpy only.

An entry keeps its digest and everything that the digest covers, bit for bit (RULES P6). Its LAC and its ledger length
go into columns if they do not follow from the header. Only whole frames of one ledger and one digest type with
consecutive ids are joined; STRIPED frames and frames that list ids stay as they are. All frames of a table are decoded
at once; Python runs once for each joined frame.

The checksums of a joined frame are made here, not by the entries' writer, and readers need not verify the digests in
stored frames (docs/formats.md §1.4). So each digest is verified in the finished frame. If one is wrong, even if it was
wrong before, the frames stay as they are. MAC digests need a key, and readers always verify those. Entries without
digests (DUMMY) have only the checksum of their frame, so they are not joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import I64, U8, array_view
from bk_core.entries.digest import Digester
from bk_core.entries.frame import (
    APACHE_BYTES,
    DIGEST_BYTES,
    DIGEST_NONE,
    FRAME_HEADER_BYTES,
    IDS,
    LACS,
    LEDGER_LENGTHS,
    STRIPED,
    TAG_OFFSET,
    FrameKind,
    assemble,
    column_bytes,
    decode_frame,
    parse_header,
)
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from bookie_server.storage.bytes.index_rows import DENSE, INDEX_ROW, Rows
from bookie_server.storage.bytes.segment import FRAME_ALIGNMENT, LARGE_FRAME_BYTES

JOINED_BYTES = 256 << 10
"""The size at which a joined frame is full. A reader may fetch the whole frame for one entry, so this is well below the
1 MiB that would save a few more bytes. No frame exceeds it by more than one small frame and its columns."""

FRAME_HEAD = np.dtype(
    [
        ("magic", "<u2"), ("version", "u1"), ("kind", "u1"), ("flags", "<u2"), ("digest_type", "u1"), ("zero", "u1"),
        ("ledger", "<i8"), ("first", "<i8"), ("lac", "<i8"), ("length_before", "<i8"), ("count", "<u4"),
        ("columns", "<u4"), ("payload", "<u4"), ("header_crc", "<u4"), ("payload_crc", "<u4"), ("tag", "<u4"),
    ]
)  # fmt: skip
assert FRAME_HEAD.itemsize == FRAME_HEADER_BYTES == FRAME_ALIGNMENT

Buffer: TypeAlias = bytes | bytearray | memoryview
_DIGEST_BYTES = np.array(DIGEST_BYTES, dtype=np.int64)
_PER_ENTRY_MAX = 16  # bytes of LAC and ledger length, which a joined frame may need although its parts did not


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Frames in a buffer, each at a multiple of 64 in ``data``. ``heads`` has their headers (FRAME_HEAD), ``rows``
    their index records without offsets."""

    data: U8
    starts: I64
    heads: Rows
    rows: Rows

    def take(self, at: npt.NDArray[np.int64]) -> FrameTable:
        return FrameTable(self.data, self.starts[at], self.heads[at], self.rows[at])

    def __len__(self) -> int:
        return int(self.starts.size)


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Frames to be written, and their index records without offsets, in the same order. ``joined`` is the number of
    frames that became parts of joined frames."""

    frames: Sequence[Buffer]
    rows: Rows
    joined: int = 0


def frame_sizes(heads: Rows) -> I64:
    return FRAME_HEADER_BYTES + heads["columns"].astype(np.int64) + heads["payload"].astype(np.int64)


def dense_rows(heads: Rows) -> Rows:
    """Return the index records of frames whose ids are consecutive."""
    rows = np.zeros(heads.size, dtype=INDEX_ROW)
    for name in ("ledger", "first", "lac", "count", "flags", "digest_type"):
        rows[name] = heads[name]
    rows["last"] = rows["max_last"] = heads["first"] + heads["count"] - 1
    rows["size"], rows["bits"] = frame_sizes(heads), DENSE
    return rows


def join_frames(table: FrameTable) -> Copies:
    """Sort all frames of the table by ledger and id, join the small ones, and drop duplicates. The frames must have
    been checked. Raises IntegrityError for a frame whose columns contradict its header although its checksums are
    right."""
    heads = table.heads
    order = np.lexsort((heads["count"], heads["first"], heads["ledger"], heads["digest_type"]))
    table = _each_once(table.take(order))
    pieces = _pieces(table)
    sizes = np.diff(np.append(pieces, len(table)))
    alone = np.repeat(sizes == 1, sizes)
    single, several = table.take(np.flatnonzero(alone)), table.take(np.flatnonzero(~alone))
    frames: list[Buffer] = list(_bytes_of(single))
    made: list[Rows] = [single.rows]
    heads_of = np.cumsum(sizes[sizes > 1]) - sizes[sizes > 1]  # first frame of each piece among ``several``
    types, joined = several.heads["digest_type"], 0
    for digest_type in np.unique(types).tolist():
        low, high = (int(k) for k in np.searchsorted(types, [digest_type, digest_type + 1]))
        part = heads_of[(heads_of >= low) & (heads_of < high)] - low
        copies = _Columns(several.take(np.arange(low, high)), digest_type).joined(part)
        frames += copies.frames
        made.append(copies.rows)
        joined += copies.joined
    return Copies(frames, np.concatenate(made), joined)


def _each_once(table: FrameTable) -> FrameTable:
    """Drop frames that equal the one before, checksums included. These are adds that were sent again."""
    heads = np.ascontiguousarray(table.heads).view(np.uint8).reshape(-1, FRAME_HEADER_BYTES)[:, :TAG_OFFSET]
    again = (heads[1:] == heads[:-1]).all(axis=1)
    return (
        table.take(np.flatnonzero(np.append(np.ones(min(len(table), 1), np.bool_), ~again))) if again.any() else table
    )


def _bytes_of(table: FrameTable) -> Iterable[memoryview]:
    view = array_view(table.data)
    ends = table.starts + frame_sizes(table.heads)
    return map(view.__getitem__, map(slice, table.starts.tolist(), ends.tolist()))


def _pieces(table: FrameTable) -> I64:
    """Return where in the sorted table each frame to be written begins."""
    heads = table.heads
    count, sizes = heads["count"].astype(np.int64), frame_sizes(heads)
    wide = _DIGEST_BYTES[heads["digest_type"]] + 4
    for flag in (LACS, LEDGER_LENGTHS):
        wide = wide + np.where(heads["flags"] & flag, 8, 0)
    plain = (heads["flags"] & (STRIPED | IDS) == 0) & (sizes < LARGE_FRAME_BYTES)
    plain &= heads["columns"] == count * wide
    goes_on = plain[1:] & plain[:-1] & (_DIGEST_BYTES[heads["digest_type"][1:]] > 0)
    goes_on &= heads["first"][1:] == heads["first"][:-1] + count[:-1]
    for name in ("ledger", "digest_type"):
        goes_on &= heads[name][1:] == heads[name][:-1]
    chains = np.flatnonzero(np.concatenate((np.ones(min(len(table), 1), np.bool_), ~goes_on)))
    weight = np.cumsum(sizes + _PER_ENTRY_MAX * count)
    before = np.repeat(
        weight[chains] - (sizes + _PER_ENTRY_MAX * count)[chains], np.diff(np.append(chains, len(table)))
    )
    full = (weight - before - 1) // JOINED_BYTES  # how many frames of the chain are full before this one
    cuts = np.flatnonzero(np.diff(full) > 0) + 1
    return np.union1d(chains, cuts)


def _is_proven(frame: Buffer) -> bool:
    """Return whether each entry of a joined frame is intact by its digest, as far as that can be verified without a
    key."""
    header = parse_header(frame)
    if not header.has_checksums:
        return True
    try:
        digester = Digester(DigestType(header.digest_type), b"", header.ledger_id)
        decode_frame(frame, digester=digester, verify_digests=True)
    except IntegrityError:
        return False
    return True


class _Columns:
    """The columns of plain frames of one digest type, with an item for each entry."""

    def __init__(self, table: FrameTable, digest_type: int) -> None:
        heads = table.heads
        self._table, self._digest_type = table, digest_type
        self._counts = heads["count"].astype(np.int64)
        self._ends = np.cumsum(self._counts)
        self._of = np.repeat(np.arange(len(table)), self._counts)  # the frame of each entry
        self._within = np.arange(self._of.size) - (self._ends - self._counts)[self._of]
        width = int(_DIGEST_BYTES[digest_type])
        at = table.starts + FRAME_HEADER_BYTES
        self._lengths = self._column(at, 4).view("<u4").reshape(-1)
        self._digests = self._column(at + 4 * self._counts, width)
        at = at + (4 + width) * self._counts
        self._total = np.cumsum(self._lengths, dtype=np.int64)
        begins = (self._total - self._lengths)[self._ends - self._counts]  # payload bytes before each frame
        if bool((np.diff(np.append(begins, self._total[-1:])) != heads["payload"]).any()):
            raise IntegrityError("lengths of a frame do not add up", value=f"among {len(table)} frames")
        self._begins = begins
        self._lacs = self._numbers(LACS, at, heads["lac"][self._of])
        at = at + np.where(heads["flags"] & LACS, 8 * self._counts, 0)
        follows = (heads["length_before"] - begins)[self._of] + self._total
        self._ledger_lengths = self._numbers(LEDGER_LENGTHS, at, follows)

    def _column(self, at: I64, width: int, which: slice | npt.NDArray[np.bool_] = slice(None)) -> U8:
        """Return ``width`` bytes for each entry, from columns that begin at ``at`` in each frame."""
        first = at[self._of[which]] + width * self._within[which]
        column: U8 = self._table.data[first[:, None] + np.arange(width)]
        return column

    def _numbers(self, flag: int, at: I64, otherwise: I64) -> I64:
        """Return the numbers in the column of the frames that have this flag, and those of ``otherwise`` for the other
        frames."""
        having = (self._table.heads["flags"] & flag != 0)[self._of]
        if not having.any():
            return otherwise
        numbers = otherwise.copy()
        numbers[having] = self._column(at, 8, having).view("<i8").reshape(-1)
        return numbers

    def joined(self, pieces: I64) -> Copies:
        """Make one frame for each piece; ``pieces`` has the position of each piece's first frame."""
        heads = self._table.heads
        first_entry, last_frame = (self._ends - self._counts)[pieces], np.append(pieces[1:], len(self._table)) - 1
        end_entry = self._ends[last_frame]
        greatest = np.maximum.reduceat(self._lacs, first_entry)
        own_lacs = np.minimum.reduceat(self._lacs, first_entry) != greatest
        before = self._ledger_lengths[first_entry] - self._lengths[first_entry]
        piece_of = np.repeat(np.arange(pieces.size), end_entry - first_entry)
        follows = (before - self._begins[pieces])[piece_of] + self._total
        own_lengths = np.logical_or.reduceat(follows != self._ledger_lengths, first_entry)
        flags = np.where(own_lacs, LACS, 0) | np.where(own_lengths, LEDGER_LENGTHS, 0)
        before[own_lengths] = -1
        if self._digest_type == DIGEST_NONE:  # whole Apache entries contain their LACs and lengths
            flags[:], before[:] = APACHE_BYTES, -1
        payload, begins = self._payload(), self._begins[pieces]
        ends = np.append(begins[1:], self._total[-1])
        frames: list[Buffer] = []
        columns = zip(
            flags.tolist(), heads["ledger"][pieces].tolist(), heads["first"][pieces].tolist(), greatest.tolist(),
            before.tolist(), first_entry.tolist(), end_entry.tolist(), begins.tolist(), ends.tolist(), strict=True,
        )  # fmt: skip
        for flag, ledger_id, first, lac, length, low, high, begin, end in columns:
            head = (int(FrameKind.ENTRIES), flag, self._digest_type, ledger_id, first, lac, length, high - low)
            frames.append(assemble(head, self._columns_of(flag, low, high), payload[begin:end], 0))
        proven = np.fromiter(map(_is_proven, frames), dtype=np.bool_, count=len(frames))
        kept = self._table.take(np.flatnonzero(np.repeat(~proven, np.diff(np.append(pieces, len(self._table))))))
        frames = [frame for frame, is_right in zip(frames, proven, strict=True) if is_right]
        heads = np.frombuffer(b"".join(frame[:FRAME_HEADER_BYTES] for frame in frames), dtype=FRAME_HEAD)
        rows = np.concatenate((dense_rows(heads), kept.rows))
        return Copies([*frames, *_bytes_of(kept)], rows, len(self._table) - len(kept))

    def _columns_of(self, flags: int, low: int, high: int) -> list[bytes]:
        columns = [column_bytes(self._lengths[low:high], "<u4"), column_bytes(self._digests[low:high], "u1")]
        if flags & LACS:
            columns.append(column_bytes(self._lacs[low:high], "<i8"))
        if flags & LEDGER_LENGTHS:
            columns.append(column_bytes(self._ledger_lengths[low:high], "<i8"))
        return columns

    def _payload(self) -> memoryview:
        """Return the payloads of all frames, concatenated."""
        view, heads = array_view(self._table.data), self._table.heads
        begins = self._table.starts + FRAME_HEADER_BYTES + heads["columns"]
        ends = begins + heads["payload"]
        return memoryview(b"".join(map(view.__getitem__, map(slice, begins.tolist(), ends.tolist()))))
