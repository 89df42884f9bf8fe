# SPDX-License-Identifier: Apache-2.0
"""The ``.idx`` of a sealed segment in checked blocks: frames, state records, sparse records, summary (RULES S7).

docs/formats.md §3.5 is the specification. Version 2 is written; version 1, which has no sparse and summary records, is
read. Each section, and each block of the first, can be read alone. ``index_rows.py`` has the rows themselves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from bk_core.entries.digest import crc32c
from bk_core.entries.frame import FrameKind
from bk_core.errors import IntegrityError
from bookie_server.storage.files import BLOCK
from bookie_server.storage.index_rows import (
    DENSE,
    INDEX_ROW,
    SPARSE_ROW,
    SUMMARY_ROW,
    Rows,
    joined_rows,
    pack_row,
    sorted_rows,
    sparse_of,
    summary_of,
)

__all__ = [
    "DENSE",
    "INDEX_ROW",
    "SPARSE_ROW",
    "STATE_ROW",
    "SUMMARY_ROW",
    "BuiltIndex",
    "IndexHeader",
    "IndexSections",
    "Rows",
    "StateCollector",
    "build_index",
    "counter_of",
    "decode_index_block",
    "decode_index_file",
    "decode_index_header",
    "decode_index_rows",
    "decode_sparse",
    "decode_states",
    "decode_summary",
    "encode_index_file",
    "lac_of",
    "newer_lac",
    "pack_row",
    "pack_state",
    "sorted_rows",
]

INDEX_MAGIC = b"BKSGMIDX"
FORMAT_VERSION = 2
PAYLOAD_BYTES_MAX = 40
INDEX_RECORDS_PER_BLOCK = 63
_STATE_BYTES = 256  # of a record in a collector

STATE_ROW = np.dtype(
    [
        ("ledger", "<i8"), ("kind", "u1"), ("payload_bytes", "u1"), ("zero", "<u2"), ("counter", "<u4"),
        ("payload", "V40"), ("end", "<u8"),
    ]
)  # fmt: skip
assert STATE_ROW.itemsize == 64

_PER_BLOCK = {INDEX_ROW: INDEX_RECORDS_PER_BLOCK, STATE_ROW: 63, SPARSE_ROW: 126, SUMMARY_ROW: 50}
_STATE = struct.Struct("<qBBHI40sQ")
_HEADER = struct.Struct("<8sIIQ16sQQQQQQQQQQ")
_HEADER_V1 = struct.Struct("<8sIIQ16sQQQQQQ")
_VERSION = struct.Struct("<8sII")
_SEED = struct.Struct("<16sQQ")
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """``data_end``: frames below this offset are indexed and nothing above it is served. ``group_count``: number of the
    last group below it + 1. ``edition``: 0, and another number each time the file is made anew, so that what was read
    of one is never taken together with what was read of another."""

    generation: int
    incarnation: bytes
    data_end: int
    group_count: int
    edition: int = 0


@dataclass(frozen=True, slots=True)
class IndexSections:
    """The header block: how many blocks and records each section has, and so where it lies. Ranges are (offset, bytes)
    in the file; those of sections that version 1 lacks are empty."""

    header: IndexHeader
    version: int
    index_blocks: int
    index_records: int
    state_blocks: int
    state_records: int
    sparse_blocks: int = 0
    summary_blocks: int = 0
    summary_records: int = 0

    @property
    def index_range(self) -> tuple[int, int]:
        return BLOCK, BLOCK * self.index_blocks

    @property
    def state_range(self) -> tuple[int, int]:
        return BLOCK * (1 + self.index_blocks), BLOCK * self.state_blocks

    @property
    def sparse_range(self) -> tuple[int, int]:
        return sum(self.state_range), BLOCK * self.sparse_blocks

    @property
    def summary_range(self) -> tuple[int, int]:
        return sum(self.sparse_range), BLOCK * self.summary_blocks

    @property
    def file_bytes(self) -> int:
        return sum(self.summary_range)

    def index_block_range(self, number: int) -> tuple[int, int]:
        """Of one block of the index section. IntegrityError if there is none of this number."""
        if not 0 <= number < self.index_blocks:
            raise IntegrityError("an index file has no such block", value=f"block {number} of {self.index_blocks}")
        return BLOCK * (1 + number), BLOCK


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """A whole ``.idx`` and the summary in it, which memory keeps."""

    data: bytes
    summary: Rows


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

    @property
    def memory_bytes(self) -> int:
        """Roughly what they take."""
        return _STATE_BYTES * (len(self._records) + len(self._lacs))


def counter_of(kind: int, payload: bytes | memoryview) -> int:
    """Counter in the payload of a record of kinds 6 to 10; 0 for the others."""
    return int(_U32.unpack(payload)[0]) if kind >= FrameKind.LIMBO_SET else 0


def lac_of(body: bytes) -> int:
    """The LAC in Apache's LAC body (docs/formats.md §2); not verified: only its digest makes it evidence (RULES P5)."""
    return int.from_bytes(body[8:16], "big", signed=True)


def newer_lac(one: bytes | None, other: bytes) -> bytes:
    """The body with the greater LAC; of two with the same LAC always the same one, whatever the order (RULES S4)."""
    return other if one is None else max(one, other, key=lambda body: (lac_of(body), body))


def build_index(header: IndexHeader, rows: bytes | bytearray | Rows, states: Rows) -> BuiltIndex:
    """The ``.idx`` of a segment from its rows, as ``pack_row`` made them and in any order, and the rows of
    :meth:`StateCollector.rows`. Any thread."""
    index, frame_bytes = joined_rows(sorted_rows(rows))
    summary = summary_of(index, frame_bytes)
    sections: list[bytes] = []
    blocks = 0
    for records in (index, states, sparse_of(index, INDEX_RECORDS_PER_BLOCK), summary):
        sections.append(_blocks(records, header, 1 + blocks))
        blocks += len(sections[-1]) // BLOCK
    n_index, n_state, n_sparse, n_summary = (len(section) // BLOCK for section in sections)
    fields = _HEADER.pack(
        INDEX_MAGIC, FORMAT_VERSION, BLOCK, header.generation, header.incarnation, header.data_end, header.group_count,
        n_index, index.size, n_state, states.size, n_sparse, n_summary, summary.size, header.edition,
    )  # fmt: skip
    body = fields.ljust(BLOCK - 4, b"\0")
    return BuiltIndex(b"".join((body, _U32.pack(crc32c(body)), *sections)), summary)


def encode_index_file(header: IndexHeader, rows: bytes | bytearray | Rows, states: Rows) -> bytes:
    """The bytes of :func:`build_index`."""
    return build_index(header, rows, states).data


def _seed(header: IndexHeader, number: int) -> int:
    """What the CRC of a block of version 2 begins with: a block that was written elsewhere fails its check."""
    return crc32c(_SEED.pack(header.incarnation, header.generation, number))


def _blocks(records: Rows, header: IndexHeader, first_number: int) -> bytes:
    per_block = _PER_BLOCK[records.dtype]
    data_bytes = per_block * records.dtype.itemsize
    count = -(-records.size // per_block)
    blocks = np.zeros((count, BLOCK), dtype=np.uint8)
    padded = np.zeros(count * per_block, dtype=records.dtype)
    padded[: records.size] = records
    blocks[:, :data_bytes] = padded.view(np.uint8).reshape(count, data_bytes)
    numbers = blocks.view("<u4")
    numbers[:, data_bytes // 4] = per_block
    if count:
        numbers[-1, data_bytes // 4] = records.size - (count - 1) * per_block
    for k in range(count):
        numbers[k, -1] = crc32c(blocks[k, : BLOCK - 4], _seed(header, first_number + k))
    return blocks.tobytes()


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_index_header(block: bytes | memoryview) -> IndexSections:
    """What the first block says. IntegrityError for anything but an intact header of a version that is known."""
    if len(block) < BLOCK or crc32c(memoryview(block)[: BLOCK - 4]) != _U32.unpack_from(block, BLOCK - 4)[0]:
        raise IntegrityError("an index file's header fails its check")
    magic, version, block_bytes = _VERSION.unpack_from(block)
    if magic != INDEX_MAGIC or version not in (1, FORMAT_VERSION) or block_bytes != BLOCK:
        raise IntegrityError("an index file is of another format", value=f"version {version}")
    layout = _HEADER if version == FORMAT_VERSION else _HEADER_V1
    fields: tuple[Any, ...] = layout.unpack_from(block)[3:]
    generation, incarnation, data_end, group_count, *counts = fields
    edition = counts.pop() if version == FORMAT_VERSION else 0
    sections = IndexSections(IndexHeader(generation, incarnation, data_end, group_count, edition), version, *counts)
    expected = [
        (sections.index_blocks, sections.index_records, INDEX_ROW),
        (sections.state_blocks, sections.state_records, STATE_ROW),
        (sections.summary_blocks, sections.summary_records, SUMMARY_ROW),
        (sections.sparse_blocks, sections.index_blocks if version == FORMAT_VERSION else 0, SPARSE_ROW),
    ]
    if any(blocks != -(-records // _PER_BLOCK[dtype]) for blocks, records, dtype in expected):
        raise IntegrityError("an index file's header contradicts itself", value=str(sections))
    return sections


def decode_index_file(data: bytes) -> tuple[IndexHeader, Rows, Rows]:
    """Header, index records and state records of a whole file; the other sections are checked too. IntegrityError for
    anything but an intact file."""
    sections = decode_index_header(data)
    if len(data) != sections.file_bytes:
        raise IntegrityError("an index file has another size than its header says", value=f"{len(data)} bytes")

    def part(where: tuple[int, int]) -> bytes:
        return data[where[0] : where[0] + where[1]]

    rows, states = (
        decode_index_rows(sections, part(sections.index_range)),
        decode_states(sections, part(sections.state_range)),
    )
    if sections.version == FORMAT_VERSION:
        decode_summary(sections, part(sections.summary_range))
        decode_sparse(sections, part(sections.sparse_range))
    return sections.header, rows, states


def decode_index_rows(sections: IndexSections, data: bytes) -> Rows:
    """All index records, from the bytes of ``index_range``. Raises IntegrityError, as the other decoders do."""
    return _records(sections, sections.index_range, data, sections.index_records, INDEX_ROW)


def decode_index_block(sections: IndexSections, number: int, data: bytes) -> Rows:
    """The records of one index block, from the bytes of ``index_block_range(number)``."""
    where = sections.index_block_range(number)
    count = min(INDEX_RECORDS_PER_BLOCK, sections.index_records - number * INDEX_RECORDS_PER_BLOCK)
    return _records(sections, where, data, count, INDEX_ROW)


def decode_states(sections: IndexSections, data: bytes) -> Rows:
    """The state records, from the bytes of ``state_range``."""
    return _records(sections, sections.state_range, data, sections.state_records, STATE_ROW)


def decode_sparse(sections: IndexSections, data: bytes) -> Rows:
    """The sparse records, from the bytes of ``sparse_range``; or, of version 1, from those of ``index_range``."""
    if sections.version != FORMAT_VERSION:
        return sparse_of(decode_index_rows(sections, data), INDEX_RECORDS_PER_BLOCK)
    return _records(sections, sections.sparse_range, data, sections.index_blocks, SPARSE_ROW)


def decode_summary(sections: IndexSections, data: bytes) -> Rows:
    """The summary, from the bytes of ``summary_range``; or, of version 1, from those of ``index_range``."""
    if sections.version != FORMAT_VERSION:
        return summary_of(decode_index_rows(sections, data))
    return _records(sections, sections.summary_range, data, sections.summary_records, SUMMARY_ROW)


def _records(
    sections: IndexSections, where: tuple[int, int], data: bytes, count: int, dtype: np.dtype[np.void]
) -> Rows:
    if len(data) != where[1]:
        raise IntegrityError("an index file ends inside a section", value=f"{len(data)} of {where[1]} bytes")
    blocks = np.frombuffer(data, dtype=np.uint8).reshape(-1, BLOCK)
    numbers = blocks.view("<u4")
    for k in range(len(blocks)):
        number = where[0] // BLOCK + k
        seed = _seed(sections.header, number) if sections.version == FORMAT_VERSION else 0
        if crc32c(blocks[k, : BLOCK - 4], seed) != int(numbers[k, -1]):
            raise IntegrityError("a block of an index file fails its check", value=f"block {number}")
    per_block = _PER_BLOCK[dtype]
    used = per_block * dtype.itemsize
    if int(numbers[:, used // 4].sum()) != count:
        raise IntegrityError("an index file has another number of records than its header says", value=f"{count}")
    records = np.ascontiguousarray(blocks[:, :used]).reshape(-1).view(dtype)
    return records[:count]
