# SPDX-License-Identifier: Apache-2.0
"""Apache's entries, to be put into frames or taken out of them: pieces of one buffer, and the bytes before each
piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from operator import add

import numpy as np

from bk_core.entries.apache import HEADER_BYTES
from bk_core.entries.batch import EntryBatch, byte_view
from bk_core.entries.digest import Digester, entry_headers
from bk_core.errors import InvalidArgumentError
from bk_core.wire.bookie_rpc.columns import FEW_ROWS, U8, Ints, Piece, Rows, gather, windows
from bk_core.wire.bookie_rpc.frames import I64, Buffer

COPY_BELOW_BYTES = 16 << 10
"""Entries smaller than this are copied into one buffer with their frames; larger ones are sent from where they lie."""


@dataclass(frozen=True, slots=True, eq=False)
class Bodies:
    """The bytes of some entries, in order. Entry k has the bytes ``heads[k]``, if there are heads, and then
    ``lengths[k]`` bytes of ``payload`` from ``offsets[k]`` on. ``offsets`` and ``lengths`` are int64; ``heads`` is a
    matrix with one row for each entry. This is a view: the buffers must not change while it is used."""

    payload: memoryview
    offsets: I64
    lengths: I64
    heads: U8 | None = None

    @classmethod
    def of_entries(cls, entries: Buffer, lengths: I64) -> Bodies:
        """Make bodies of whole entries that lie one after the other. Raises InvalidArgumentError if the lengths do not
        add up."""
        lengths = np.asarray(lengths, dtype=np.int64)
        ends = lengths.cumsum()
        if int(lengths.sum()) != len(entries) or (lengths.size and int(lengths.min()) < 0):
            raise InvalidArgumentError("lengths of entries do not add up", value=f"{len(entries)} bytes")
        return cls(byte_view(entries), ends - lengths, lengths)

    @classmethod
    def of_batch(cls, batch: EntryBatch, digester: Digester) -> Bodies:
        """Make bodies of a batch's entries in Apache's layout, without copying the payload. The batch's digests are
        used if they are of the digester's type, otherwise computed. Raises InvalidArgumentError if the ledger's length
        is not known."""
        digests = batch.digests if batch.digest_type is digester.digest_type else None
        if digests is None:
            digests = digester.for_batch(batch)
        lacs = batch.lac if batch.lacs is None else batch.lacs
        headers = entry_headers(digester.ledger_id, batch.entry_ids(), lacs, batch.cumulative_lengths())
        heads = np.concatenate((headers, digests), axis=1) if digests.shape[1] else headers
        offsets = batch.offsets()
        return cls(batch.payload, offsets[:-1], np.diff(offsets), heads)

    def __len__(self) -> int:
        return int(self.lengths.size)

    @property
    def head_bytes(self) -> int:
        """The bytes of each head; 0 if there are none."""
        return 0 if self.heads is None else int(self.heads.shape[1])

    def sizes(self) -> Ints:
        """Return the bytes of each whole entry; for a single entry, one number."""
        return self.lengths + self.head_bytes if len(self) != 1 else int(self.lengths[0]) + self.head_bytes

    def slice(self, start: int, stop: int) -> Bodies:
        """Return the entries at positions ``start`` to ``stop`` − 1, as views."""
        heads = None if self.heads is None else self.heads[start:stop]
        return Bodies(self.payload, self.offsets[start:stop], self.lengths[start:stop], heads)

    def headers(self) -> I64:
        """Return Apache's header of each entry, shape (n, 4): ledger id, entry id, LAC, ledger length. If an entry is
        shorter than its header, all four are −1; a bookie refuses it. Offsets must ascend, as those of a burst do."""
        if self.heads is not None:
            rows = np.ascontiguousarray(self.heads[:, :HEADER_BYTES])
            return rows.view(">i8").astype(np.int64)
        if not self.lengths.size:
            return np.empty((0, 4), dtype=np.int64)
        raw = np.frombuffer(self.payload, dtype=np.uint8)
        headers: I64 = gather(raw, self.offsets, HEADER_BYTES).view(">i8").astype(np.int64)
        short = self.lengths < HEADER_BYTES
        if short.any():
            headers[short] = -1
        return headers

    def joined(self) -> Buffer:
        """Join the whole entries, as ``split_entries`` and frames with APACHE_BYTES need them."""
        return join(Rows(len(self), self.head_pieces()), self, Rows(len(self), ()))

    def head_pieces(self) -> list[Piece]:
        """Return the heads, as the last piece of the rows before the entries."""
        return [] if self.heads is None else [self.heads]

    def pieces(self) -> Iterable[memoryview]:
        """Return each entry's piece of the payload, as views."""
        begins = self.offsets.tolist()
        ends = (self.offsets + self.lengths).tolist()
        return map(self.payload.__getitem__, map(slice, begins, ends))

    def copies(self) -> list[bytes]:
        """Copy each entry's piece of the payload; for small entries that is faster than a view."""
        begin = int(self.offsets.min())
        ends = self.offsets + self.lengths
        data = bytes(self.payload[begin : int(ends.max())])
        return [data[a:b] for a, b in zip((self.offsets - begin).tolist(), (ends - begin).tolist(), strict=True)]

    def matrix(self) -> U8 | None:
        """Return the pieces as rows if all have the same length, otherwise None. The rows are a view if the pieces lie
        at equal distances."""
        width, count = int(self.lengths[0]), len(self)
        if (self.lengths != width).any():
            return None
        raw = np.frombuffer(self.payload, dtype=np.uint8)
        stride = int(self.offsets[1] - self.offsets[0]) if count > 1 else width
        if stride < width or (count > 2 and (np.diff(self.offsets) != stride).any()):
            return windows(raw, width)[self.offsets].view(np.uint8).reshape(count, width) if width else None
        return np.ndarray((count, width), np.uint8, raw, int(self.offsets[0]), (stride, 1))


def join(before: Rows, bodies: Bodies, behind: Rows) -> Buffer:
    """Join everything in one buffer: for each entry its row of ``before``, which ends with the entry's head, its piece
    of the payload, and its row of ``behind``."""
    count = len(bodies)
    if not count:
        return b""
    rows = [before.matrix(), bodies.matrix(), behind.matrix()] if count > FEW_ROWS else []
    parts = [part for part in rows if part is not None]
    if len(parts) < 3:
        step = 2 if behind.same == b"" else 3
        pieces: list[bytes] = [b""] * (step * count)
        pieces[::step] = before.listed()
        pieces[1::step] = bodies.copies()
        if step == 3:
            pieces[2::step] = behind.listed()
        return b"".join(pieces)
    out = np.empty((count, sum(part.shape[1] for part in parts)), dtype=np.uint8)
    at = 0
    for part in parts:
        out[:, at : at + part.shape[1]] = part
        at += part.shape[1]
    return out.reshape(-1).data


def scatter(before: Rows, bodies: Bodies, behind: Rows, copy_below: int = COPY_BELOW_BYTES) -> list[Buffer]:
    """Make buffers for a gathering write of what :func:`join` would return. If entries have ``copy_below`` bytes or
    more on average, each piece of the payload is a view, and there are two buffers for each entry. Otherwise everything
    is one buffer."""
    count = len(bodies)
    if not count:
        return []
    if int(bodies.lengths.sum()) < count * copy_below:
        return [join(before, bodies, behind)]
    heads, tails = before.listed(), behind.listed()
    buffers: list[Buffer] = [heads[0]]
    for piece, more in zip(bodies.pieces(), chain(map(add, tails[:-1], heads[1:]), tails[-1:]), strict=True):
        buffers += (piece, more)
    return buffers if buffers[-1] else buffers[:-1]
