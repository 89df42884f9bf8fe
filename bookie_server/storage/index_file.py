# SPDX-License-Identifier: Apache-2.0
"""The ``.idx`` of a sealed segment: its frames and the state records in it, sorted, in checked blocks.

docs/formats.md §3.5 is the specification. Records are numpy structured arrays; nothing runs Python per frame. The same
64-byte rows serve in memory: the commit side and replay collect them and seal a segment with them (RULES S7).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bk_core.entries.digest import crc32c
from bk_core.entries.frame import FrameExtent, FrameHeader, FrameKind
from bk_core.errors import IntegrityError
from bookie_server.storage.files import BLOCK

Rows: TypeAlias = npt.NDArray[np.void]
"""Structured array of :data:`INDEX_ROW` or :data:`STATE_ROW`."""

INDEX_MAGIC = b"BKSGMIDX"
FORMAT_VERSION = 1
RECORD_BYTES = 64
RECORDS_PER_BLOCK = 63
DENSE = 1
PAYLOAD_BYTES_MAX = 40

INDEX_ROW = np.dtype(
    [
        ("ledger", "<i8"), ("first", "<i8"), ("last", "<i8"), ("max_last", "<i8"), ("lac", "<i8"), ("offset", "<u8"),
        ("size", "<u4"), ("count", "<u4"), ("counter", "<u4"), ("flags", "<u2"), ("digest_type", "u1"), ("bits", "u1"),
    ]
)  # fmt: skip
STATE_ROW = np.dtype(
    [
        ("ledger", "<i8"), ("kind", "u1"), ("payload_bytes", "u1"), ("zero", "<u2"), ("counter", "<u4"),
        ("payload", "V40"), ("end", "<u8"),
    ]
)  # fmt: skip
assert INDEX_ROW.itemsize == STATE_ROW.itemsize == RECORD_BYTES

_ROW = struct.Struct("<qqqqqQIIIHBB")
_STATE = struct.Struct("<qBBHI40sQ")
_HEADER = struct.Struct("<8sIIQ16sQQQQQQ")
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """``data_end``: frames below this offset are indexed and nothing above it is served. ``group_count``: number of the
    last group below it + 1."""

    generation: int
    incarnation: bytes
    data_end: int
    group_count: int


def pack_row(header: FrameHeader, extent: FrameExtent, offset: int, counter: int) -> bytes:
    """The index record of a frame of entries; its running maximum is filled in when the rows are sorted."""
    return _ROW.pack(
        header.ledger_id, extent.first, extent.last, 0, extent.max_lac, offset,
        header.size, header.count, counter, header.flags, header.digest_type, DENSE if extent.dense else 0,
    )  # fmt: skip


def pack_state(ledger_id: int, kind: int, counter: int, payload: bytes) -> bytes:
    """The state record of a record of kinds 2 to 10. ``counter`` is 0 for a kind that has none."""
    return _STATE.pack(ledger_id, kind, len(payload), 0, counter, payload, 0)


class StateCollector:
    """The state records of one segment, folded: of LAC records only the newest of a ledger is kept."""

    __slots__ = ("_lacs", "_records")

    def __init__(self) -> None:
        self._records: dict[tuple[int, int, int, bytes], None] = {}
        self._lacs: dict[int, bytes] = {}

    def add(self, ledger_id: int, kind: int, payload: bytes) -> None:
        if kind == FrameKind.LAC:
            self._lacs[ledger_id] = newer_lac(self._lacs.get(ledger_id), payload)
            return
        self._records[ledger_id, kind, counter_of(kind, payload), payload] = None

    def rows(self) -> Rows:
        """All of them, sorted by ledger, kind, counter."""
        records = [*self._records, *((ledger, int(FrameKind.LAC), 0, body) for ledger, body in self._lacs.items())]
        return np.frombuffer(b"".join(pack_state(*record) for record in sorted(records)), dtype=STATE_ROW)


def counter_of(kind: int, payload: bytes | memoryview) -> int:
    """Counter in the payload of a record of kinds 6 to 10; 0 for the others."""
    return int(_U32.unpack(payload)[0]) if kind >= FrameKind.LIMBO_SET else 0


def lac_of(body: bytes) -> int:
    """The LAC in Apache's LAC body (docs/formats.md §2); not verified: only its digest makes it evidence (RULES P5)."""
    return int.from_bytes(body[8:16], "big", signed=True)


def newer_lac(one: bytes | None, other: bytes) -> bytes:
    """The body with the greater LAC; of two with the same LAC always the same one, whatever the order (RULES S4)."""
    return other if one is None else max(one, other, key=lambda body: (lac_of(body), body))


def sorted_rows(rows: bytes | bytearray | Rows) -> Rows:
    """Index records sorted by ledger, first, last, offset, with the running maximum of last within each ledger."""
    array = np.frombuffer(rows, dtype=INDEX_ROW) if isinstance(rows, bytes | bytearray) else rows
    order = np.lexsort((array["offset"], array["last"], array["first"], array["ledger"]))
    array = array[order]
    if not array.size:
        return array
    # A running maximum that starts anew with each ledger: of (ledger's rank, rank of last), then back to last.
    lasts, rank = np.unique(array["last"], return_inverse=True)
    ledger_rank = np.cumsum(np.concatenate(([0], np.diff(array["ledger"]) != 0)))
    peak = np.maximum.accumulate(ledger_rank * lasts.size + rank)
    array["max_last"] = lasts[peak - ledger_rank * lasts.size]
    return array


def encode_index_file(header: IndexHeader, rows: Rows, states: Rows) -> bytes:
    """The whole file. ``rows`` come from :func:`sorted_rows`, ``states`` from :meth:`StateCollector.rows`."""
    index_blocks, state_blocks = _blocks(rows), _blocks(states)
    fields = _HEADER.pack(
        INDEX_MAGIC, FORMAT_VERSION, BLOCK, header.generation, header.incarnation, header.data_end, header.group_count,
        len(index_blocks) // BLOCK, rows.size, len(state_blocks) // BLOCK, states.size,
    )  # fmt: skip
    body = fields.ljust(BLOCK - 4, b"\0")
    return b"".join((body, _U32.pack(crc32c(body)), index_blocks, state_blocks))


def _blocks(records: Rows) -> bytes:
    count = -(-records.size // RECORDS_PER_BLOCK)
    blocks = np.zeros((count, BLOCK), dtype=np.uint8)
    padded = np.zeros(count * RECORDS_PER_BLOCK, dtype=records.dtype)
    padded[: records.size] = records
    data_bytes = RECORDS_PER_BLOCK * RECORD_BYTES
    blocks[:, :data_bytes] = padded.view(np.uint8).reshape(count, data_bytes)
    numbers = blocks.view("<u4")
    numbers[:, data_bytes // 4] = RECORDS_PER_BLOCK
    if count:
        numbers[-1, data_bytes // 4] = records.size - (count - 1) * RECORDS_PER_BLOCK
    for k in range(count):
        numbers[k, -1] = crc32c(blocks[k, : BLOCK - 4])
    return blocks.tobytes()


def decode_index_file(data: bytes) -> tuple[IndexHeader, Rows, Rows]:
    """Header, index records and state records. IntegrityError for anything but an intact file."""
    if len(data) < BLOCK or crc32c(memoryview(data)[: BLOCK - 4]) != _U32.unpack_from(data, BLOCK - 4)[0]:
        raise IntegrityError("an index file's header fails its check")
    fields: tuple[Any, ...] = _HEADER.unpack_from(data)
    magic, version, block, generation, incarnation, data_end, groups, n_index, rows, n_state, states = fields
    if magic != INDEX_MAGIC or version != FORMAT_VERSION or block != BLOCK:
        raise IntegrityError("an index file is of another format", value=f"version {version}")
    if len(data) != BLOCK * (1 + n_index + n_state):
        raise IntegrityError("an index file has another size than its header says", value=f"{len(data)} bytes")
    split = BLOCK * (1 + n_index)
    return (
        IndexHeader(generation, incarnation, data_end, groups),
        _records(data[BLOCK:split], rows, INDEX_ROW),
        _records(data[split:], states, STATE_ROW),
    )


def _records(data: bytes, count: int, dtype: np.dtype[np.void]) -> Rows:
    blocks = np.frombuffer(data, dtype=np.uint8).reshape(-1, BLOCK)
    numbers = blocks.view("<u4")
    for k in range(len(blocks)):
        if crc32c(blocks[k, : BLOCK - 4]) != int(numbers[k, -1]):
            raise IntegrityError("a block of an index file fails its check", value=f"block {k}")
    used = RECORDS_PER_BLOCK * RECORD_BYTES // 4
    if int(numbers[:, used].sum()) != count or -(-count // RECORDS_PER_BLOCK) != len(blocks):
        raise IntegrityError("an index file has another number of records than its header says", value=f"{count}")
    records = np.ascontiguousarray(blocks[:, : RECORDS_PER_BLOCK * RECORD_BYTES]).reshape(-1).view(dtype)
    return records[:count]
