# SPDX-License-Identifier: Apache-2.0
"""The folded state of every ledger, about 100 bytes each (RULES S4, S7). In memory, one thread, no I/O.

Rows are the ledger records of a checkpoint (docs/formats.md §3.6), sorted by ledger. They are kept in chunks, so that
adding a ledger moves few rows and no step takes long. State folds to the same result whatever the order of the records.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bk_core.entries.frame import FrameKind
from bookie_server.machine.state import lac_of_body
from bookie_server.storage.bytes.index_file import newer_lac
from bookie_server.storage.bytes.index_rows import I64, Rows

HAS_KEY, KEY_CONFLICT, FENCED, NO_ABSENT, NO_ADDS = 1, 2, 4, 8, 16
"""The flags of a row; they fold by OR. NO_ABSENT: ids that are not found are UNKNOWN. NO_ADDS: normal adds are
refused."""
BITS_OF_KIND = {int(FrameKind.LIMBO): NO_ABSENT | NO_ADDS, int(FrameKind.COPY_DROPPED): NO_ABSENT}
"""The flags that a record of limbo or of a dropped copy sets."""

LEDGER_ROW = np.dtype(
    [
        ("ledger", "<i8"), ("dropped", "<u8"), ("lac_body", "V40"), ("key", "V20"), ("flags", "u1"),
        ("lac_bytes", "u1"), ("zero", "<u2"),
    ]
)  # fmt: skip
_ROW = struct.Struct("<qQ40s20sBBH")
_SIZE = _ROW.size
assert LEDGER_ROW.itemsize == _SIZE == 80

_CHUNK_ROWS = 1024
_FEW = 256  # up to this many ledgers are looked up one by one; more are compared in numpy


class LedgerState(NamedTuple):
    """The state of one ledger, which is one row. The ledger's frames in segments up to the generation ``dropped`` are
    dead. ``dropped`` is 0 if no copy was dropped. ``lac_body`` is empty without an explicit LAC."""

    ledger_id: int
    dropped: int = 0
    lac_body: bytes = b""
    key_bytes: bytes = b""
    flags: int = 0

    @property
    def key(self) -> bytes | None:
        return self.key_bytes if self.flags & HAS_KEY else None

    @property
    def is_fenced(self) -> bool:
        return bool(self.flags & FENCED)

    @property
    def lac(self) -> int:
        return lac_of_body(self.lac_body) if self.lac_body else -1

    def merged(self, other: LedgerState) -> LedgerState:
        """Return the state that results from the records of both states of the same ledger."""
        keys = [state.key_bytes for state in (self, other) if state.flags & HAS_KEY]
        conflict = KEY_CONFLICT if len(set(keys)) > 1 else 0
        body = newer_lac(self.lac_body, other.lac_body) if other.lac_body else self.lac_body
        flags, dropped = self.flags | other.flags | conflict, max(self.dropped, other.dropped)
        return LedgerState(self.ledger_id, dropped, body, min(keys, default=b""), flags)


def state_of(ledger_id: int, kind: int, payload: bytes) -> LedgerState:
    """Return the ledger's state if this record, of any kind but DELETED, were its only one."""
    if kind == FrameKind.LEDGER_KEY:
        return LedgerState(ledger_id, key_bytes=payload, flags=HAS_KEY)
    if kind == FrameKind.FENCE:
        return LedgerState(ledger_id, flags=FENCED)
    if kind == FrameKind.LAC:
        return LedgerState(ledger_id, lac_body=payload)
    dropped = int.from_bytes(payload, "little") if kind == FrameKind.COPY_DROPPED else 0  # a generation
    return LedgerState(ledger_id, dropped, flags=BITS_OF_KIND[kind])


def _unpacked(rows: bytearray | memoryview, at: int) -> LedgerState:
    ledger_id, dropped, body, key, flags, lac_bytes, _ = _ROW.unpack_from(rows, at)
    return LedgerState(ledger_id, dropped, body[:lac_bytes], key, flags)


def _packed(state: LedgerState) -> bytes:
    return _ROW.pack(
        state.ledger_id, state.dropped, state.lac_body, state.key_bytes, state.flags, len(state.lac_body), 0
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class _Chunk:
    """A part of the table: the ids of its ledgers, ascending, and their rows in the same order."""

    ids: array[int]
    rows: bytearray


class LedgerTable:
    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._starts = array("q")  # first id of each chunk
        self._count = 0
        self.version = 0
        """A number that changes with each change."""

    # --- filling ----------------------------------------------------------------------------------------------------

    def fold(self, ledger_id: int, kind: int, payload: bytes) -> LedgerState:
        """Fold a record of any kind but DELETED into the ledger's state; return the new state."""
        return self.merge(state_of(ledger_id, kind, payload))

    def merge(self, state: LedgerState) -> LedgerState:
        """Fold a state that was folded elsewhere (a checkpoint) into the ledger's state; return the new state."""
        known = self.get(state.ledger_id)
        return self._put(state if known is None else known.merged(state))

    def load(self, rows: Rows) -> None:
        """Fold ledger records of a checkpoint, sorted by ledger."""
        self.version += 1
        if self._count:
            for state in states_of(rows):
                self.merge(state)
            return
        ids = np.ascontiguousarray(rows["ledger"], dtype=np.int64)
        for at in range(0, ids.size, _CHUNK_ROWS * 3 // 4):
            part = slice(at, at + _CHUNK_ROWS * 3 // 4)
            self._chunks.append(_Chunk(array("q", ids[part].tobytes()), bytearray(rows[part].tobytes())))
            self._starts.append(int(ids[at]))
        self._count = int(ids.size)

    def ensure(self, ledger_ids: I64) -> None:
        """Make each of these ledgers known. The state of a ledger that is known already does not change."""
        if ledger_ids.size <= _FEW:
            new = [ledger_id for ledger_id in ledger_ids.tolist() if ledger_id not in self]
        else:
            known = np.append(self.ids(), np.iinfo(np.int64).min)  # a sentinel behind the last id
            new = ledger_ids[known[np.searchsorted(known[:-1], ledger_ids)] != ledger_ids].tolist()
        for ledger_id in new:
            if ledger_id not in self:  # it may be named twice
                self._put(LedgerState(ledger_id))

    def forget(self, ledger_id: int) -> None:
        """Drop the row of a deleted ledger."""
        self.version += 1
        c, k = self._find(ledger_id)
        if k < 0:
            return
        chunk = self._chunks[c]
        del chunk.ids[k]
        del chunk.rows[k * _SIZE : (k + 1) * _SIZE]
        self._count -= 1
        if chunk.ids:
            self._starts[c] = chunk.ids[0]
        else:
            del self._chunks[c], self._starts[c]

    def _put(self, state: LedgerState) -> LedgerState:
        self.version += 1
        c, k = self._find(state.ledger_id)
        if k >= 0:
            self._chunks[c].rows[k * _SIZE : (k + 1) * _SIZE] = _packed(state)
        else:
            self._insert(c, state)
        return state

    def _insert(self, c: int, state: LedgerState) -> None:
        self._count += 1
        ledger_id, row = state.ledger_id, _packed(state)
        if c < 0 or (len(self._chunks[c].ids) >= _CHUNK_ROWS and ledger_id > self._chunks[c].ids[-1]):
            self._chunks.insert(c + 1, _Chunk(array("q", [ledger_id]), bytearray(row)))
            self._starts.insert(c + 1, ledger_id)
            return
        chunk = self._chunks[c]
        k = bisect_left(chunk.ids, ledger_id)
        chunk.ids.insert(k, ledger_id)
        chunk.rows[k * _SIZE : k * _SIZE] = row
        if len(chunk.ids) > _CHUNK_ROWS:
            half = len(chunk.ids) // 2
            self._chunks.insert(c + 1, _Chunk(chunk.ids[half:], chunk.rows[half * _SIZE :]))
            self._starts.insert(c + 1, chunk.ids[half])
            self._chunks[c] = _Chunk(chunk.ids[:half], chunk.rows[: half * _SIZE])

    def _find(self, ledger_id: int) -> tuple[int, int]:
        """Return the number of the chunk that has the ledger or must get it, or −1 for a ledger before the first chunk.
        Also return its row there, or −1."""
        c = bisect_right(self._starts, ledger_id) - 1
        if c < 0:
            return -1, -1
        ids = self._chunks[c].ids
        k = bisect_left(ids, ledger_id)
        return c, k if k < len(ids) and ids[k] == ledger_id else -1

    # --- look-ups -----------------------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> LedgerState | None:
        """Return the state of a ledger, or None if it is not known."""
        c, k = self._find(ledger_id)
        return _unpacked(self._chunks[c].rows, k * _SIZE) if k >= 0 else None

    def __contains__(self, ledger_id: int) -> bool:
        return self._find(ledger_id)[1] >= 0

    def __len__(self) -> int:
        return self._count

    def ids(self) -> I64:
        parts = [np.frombuffer(chunk.ids, dtype=np.int64) for chunk in self._chunks]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def rows_from(self, first_ledger: int, limit: int) -> Rows:
        """Return a copy of at most ``limit`` rows of ledgers from ``first_ledger`` on, sorted; empty at the end. A
        change between two calls may be in the rows or not; both are right, because state only grows."""
        c = max(bisect_right(self._starts, first_ledger) - 1, 0)
        parts: list[bytes] = []
        while c < len(self._chunks) and limit > 0:
            chunk = self._chunks[c]
            k = bisect_left(chunk.ids, first_ledger)
            taken = min(limit, len(chunk.ids) - k)
            parts.append(bytes(memoryview(chunk.rows)[k * _SIZE : (k + taken) * _SIZE]))
            limit -= taken
            c += 1
        return np.frombuffer(b"".join(parts), dtype=LEDGER_ROW)

    def memory_bytes(self) -> int:
        return self._count * (_SIZE + 8) * 17 // 16 + 300 * len(self._chunks)


def states_of(rows: Rows) -> Iterator[LedgerState]:
    data = memoryview(rows.tobytes())
    return (_unpacked(data, at) for at in range(0, len(data), _SIZE))
