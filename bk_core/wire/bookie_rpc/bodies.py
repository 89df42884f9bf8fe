# SPDX-License-Identifier: Apache-2.0
"""Puts Apache's entries into frames and takes them out. The entries are pieces of one buffer, and may have a head,
which is the bytes before each piece."""

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
"""The average size in bytes from which entries are sent without a copy. Smaller entries are copied into one buffer
together with their frames, because two more buffers for each entry cost more than the copy."""


@dataclass(frozen=True, slots=True, eq=False)
class Bodies:
    """The bytes of some entries, in order. Entry k has the bytes ``heads[k]``, if there are heads, and then
    ``lengths[k]`` bytes of ``payload`` from ``offsets[k]`` on. ``offsets`` and ``lengths`` are int64; ``heads`` is a
    matrix with one row for each entry. The object is a view, so the buffers must not change while it is used."""

    payload: memoryview
    offsets: I64
    lengths: I64
    heads: U8 | None = None

    @classmethod
    def of_entries(cls, entries: Buffer, lengths: I64) -> Bodies:
        """Make bodies of whole entries that follow each other in a buffer. Raises InvalidArgumentError if the sum of
        the lengths is not the buffer's length."""
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
        """The number of bytes in each head, or 0 if the entries have no heads."""
        return 0 if self.heads is None else int(self.heads.shape[1])

    def sizes(self) -> Ints:
        """Return the size of each whole entry in bytes. For a single entry, return an int."""
        return self.lengths + self.head_bytes if len(self) != 1 else int(self.lengths[0]) + self.head_bytes

    def slice(self, start: int, stop: int) -> Bodies:
        """Return the entries at positions ``start`` to ``stop`` − 1, as views."""
        heads = None if self.heads is None else self.heads[start:stop]
        return Bodies(self.payload, self.offsets[start:stop], self.lengths[start:stop], heads)

    def headers(self) -> I64:
        """Return Apache's header of each entry as a matrix of shape (n, 4). The columns are ledger id, entry id, LAC
        and ledger length. If an entry is shorter than a header, all four are −1, and a bookie refuses the entry. The
        offsets must ascend, as those of a burst do."""
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
        """Join the whole entries in one buffer. ``split_entries`` and frames with APACHE_BYTES need this form."""
        return join(Rows(len(self), self.head_pieces()), self, Rows(len(self), ()))

    def head_pieces(self) -> list[Piece]:
        """Return a list with the matrix of heads, or an empty list. It is the end of the pieces of the rows that
        precede the entries."""
        return [] if self.heads is None else [self.heads]

    def pieces(self) -> Iterable[memoryview]:
        """Yield a view of each entry's piece of the payload."""
        begins = self.offsets.tolist()
        ends = (self.offsets + self.lengths).tolist()
        return map(self.payload.__getitem__, map(slice, begins, ends))

    def copies(self) -> list[bytes]:
        """Return a copy of each entry's piece of the payload. For small entries a copy is faster than a view."""
        begin = int(self.offsets.min())
        ends = self.offsets + self.lengths
        data = bytes(self.payload[begin : int(ends.max())])
        return [data[a:b] for a, b in zip((self.offsets - begin).tolist(), (ends - begin).tolist(), strict=True)]

    def matrix(self) -> U8 | None:
        """Return the pieces as the rows of a matrix, or None if their lengths differ. The matrix is a view if the
        pieces begin at equal distances from each other."""
        width, count = int(self.lengths[0]), len(self)
        if (self.lengths != width).any():
            return None
        raw = np.frombuffer(self.payload, dtype=np.uint8)
        stride = int(self.offsets[1] - self.offsets[0]) if count > 1 else width
        if stride < width or (count > 2 and (np.diff(self.offsets) != stride).any()):
            return windows(raw, width)[self.offsets].view(np.uint8).reshape(count, width) if width else None
        return np.ndarray((count, width), np.uint8, raw, int(self.offsets[0]), (stride, 1))


def join(before: Rows, bodies: Bodies, behind: Rows) -> Buffer:
    """Join rows and bodies in one buffer. Each entry contributes its row of ``before``, which ends with the entry's
    head, then its piece of the payload, and then its row of ``behind``."""
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
    """Return the bytes of :func:`join` as buffers for a gathering write. If entries have ``copy_below`` bytes or more
    on average, there are two buffers for each entry, and the one with the payload is a view. Otherwise there is only
    one buffer."""
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
