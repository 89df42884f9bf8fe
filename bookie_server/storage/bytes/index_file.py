# SPDX-License-Identifier: Apache-2.0
"""The ``.idx`` of a sealed segment in checked blocks: frames, state records, sparse records, summary (RULES S7).
docs/formats.md §3.5 is the specification. Each section, and each block of the first, can be read alone.
``index_rows.py`` has the rows."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from bk_core.entries.frame import FrameKind
from bk_core.errors import IntegrityError
from bookie_server.machine.state import lac_of_body
from bookie_server.storage.bytes.blocks import BlockFile, blocks_of, records_per_block
from bookie_server.storage.bytes.index_rows import (
    INDEX_ROW,
    SPARSE_ROW,
    SUMMARY_ROW,
    Rows,
    joined_rows,
    sorted_rows,
    sparse_of,
    summary_of,
)
from bookie_server.storage.disk.files import BLOCK

INDEX_MAGIC = b"BKSGMIDX"
FORMAT_VERSION = 1
_STATE_BYTES = 256  # approximate memory of a record in a collector
STATE_ROW = np.dtype([("ledger", "<i8"), ("payload", "V40"), ("kind", "u1"), ("payload_bytes", "u1"), ("zero", "V6")])
assert STATE_ROW.itemsize == 56

INDEX_RECORDS_PER_BLOCK = records_per_block(INDEX_ROW)
_STATE = struct.Struct("<q40sBB6x")
_HEADER = struct.Struct("<8sIIQ16sQQQQQQQQQQ")


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header of an ``.idx``. Frames below the offset ``data_end`` are indexed, and nothing above it is served.
    ``group_count`` is the number of the last group below it, plus 1. ``edition`` is 0 at first, and another number each
    time the file is rebuilt, so that parts of two editions are never used together."""

    generation: int
    incarnation: bytes
    data_end: int
    group_count: int
    edition: int = 0

    @property
    def blocks(self) -> BlockFile:
        return BlockFile("an index file", self.incarnation, self.generation)


@dataclass(frozen=True, slots=True)
class IndexSections:
    """The decoded header of an ``.idx``, with the numbers of blocks and records in each section. A range is a pair of
    an offset and a size in the file."""

    header: IndexHeader
    index_blocks: int
    index_records: int
    state_blocks: int
    state_records: int
    sparse_blocks: int
    summary_blocks: int
    summary_records: int

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
        """Return the range of one block of the index section. Raises IntegrityError if there is no such block."""
        if not 0 <= number < self.index_blocks:
            raise IntegrityError("an index file has no such block", value=f"block {number} of {self.index_blocks}")
        return BLOCK * (1 + number), BLOCK


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """The bytes of an ``.idx``, and its summary, which stays in memory."""

    data: bytes
    summary: Rows


def pack_state(ledger_id: int, kind: int, payload: bytes) -> bytes:
    """Return the state record for a log record of the kinds 2 to 7."""
    return _STATE.pack(ledger_id, payload, kind, len(payload))


class StateCollector:
    """Collects the state records of one segment. Of the LAC records of a ledger it keeps only the newest."""

    __slots__ = ("_lacs", "_records")

    def __init__(self) -> None:
        self._records: dict[tuple[int, int, bytes], None] = {}
        self._lacs: dict[int, bytes] = {}

    def add(self, ledger_id: int, kind: int, payload: bytes) -> None:
        if kind == FrameKind.LAC:
            self._lacs[ledger_id] = newer_lac(self._lacs.get(ledger_id), payload)
        else:
            self._records[ledger_id, kind, payload] = None

    def rows(self) -> Rows:
        """Return all state records, sorted by ledger, kind and payload."""
        records = [*self._records, *((ledger, int(FrameKind.LAC), body) for ledger, body in self._lacs.items())]
        return np.frombuffer(b"".join(pack_state(*record) for record in sorted(records)), dtype=STATE_ROW)

    @property
    def memory_bytes(self) -> int:
        """The approximate memory of the records."""
        return _STATE_BYTES * (len(self._records) + len(self._lacs))


def newer_lac(one: bytes | None, other: bytes) -> bytes:
    """Return the body with the greater LAC. For two bodies with the same LAC the result does not depend on their order
    (RULES S4: state folds in any order). None and the empty body mean no LAC."""
    return max(one, other, key=lambda body: (lac_of_body(body), body)) if one else other


def build_index(header: IndexHeader, rows: bytes | bytearray | Rows, states: Rows) -> BuiltIndex:
    """Build the ``.idx`` of a segment. ``rows`` come from ``index_row``, in any order, and ``states`` from
    :meth:`StateCollector.rows`. Any thread may call."""
    index, frame_bytes = joined_rows(sorted_rows(rows))
    summary, blocks = summary_of(index, frame_bytes), header.blocks
    sections: list[bytes] = []
    place = 1
    for records in (index, states, sparse_of(index, INDEX_RECORDS_PER_BLOCK), summary):
        sections.append(blocks.encode(records, place))
        place += len(sections[-1]) // BLOCK
    n_index, n_state, n_sparse, n_summary = (len(section) // BLOCK for section in sections)
    fields = _HEADER.pack(
        INDEX_MAGIC, FORMAT_VERSION, BLOCK, header.generation, header.incarnation, header.data_end, header.group_count,
        n_index, index.size, n_state, states.size, n_sparse, n_summary, summary.size, header.edition,
    )  # fmt: skip
    return BuiltIndex(b"".join((blocks.header(fields), *sections)), summary)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_index_header(block: bytes | memoryview) -> IndexSections:
    """Decode the first block. Raises IntegrityError for anything but an intact header of a known version."""
    if len(block) < BLOCK:
        raise IntegrityError("an index file is shorter than its header")
    fields: tuple[Any, ...] = _HEADER.unpack_from(block)
    magic, version, block_bytes, generation, incarnation, data_end, group_count, *counts, edition = fields
    header = IndexHeader(generation, incarnation, data_end, group_count, edition)
    header.blocks.check_header(block)
    if magic != INDEX_MAGIC or version != FORMAT_VERSION or block_bytes != BLOCK:
        raise IntegrityError("an index file is of another format", value=f"version {version}")
    sections = IndexSections(header, *counts)
    expected = [
        (sections.index_blocks, sections.index_records, INDEX_ROW),
        (sections.state_blocks, sections.state_records, STATE_ROW),
        (sections.summary_blocks, sections.summary_records, SUMMARY_ROW),
        (sections.sparse_blocks, sections.index_blocks, SPARSE_ROW),
    ]
    if any(blocks != blocks_of(records, dtype) for blocks, records, dtype in expected):
        raise IntegrityError("an index file's header contradicts itself", value=str(sections))
    return sections


def decode_index_block(sections: IndexSections, number: int, data: bytes) -> Rows:
    """Decode the records of one index block, from the bytes of ``index_block_range(number)``."""
    where = sections.index_block_range(number)
    count = min(INDEX_RECORDS_PER_BLOCK, sections.index_records - number * INDEX_RECORDS_PER_BLOCK)
    return _records(sections, where, data, count, INDEX_ROW)


def decode_states(sections: IndexSections, data: bytes) -> Rows:
    """Decode the state records, from the bytes of ``state_range``."""
    return _records(sections, sections.state_range, data, sections.state_records, STATE_ROW)


def decode_sparse(sections: IndexSections, data: bytes) -> Rows:
    """Decode the sparse records, from the bytes of ``sparse_range``."""
    return _records(sections, sections.sparse_range, data, sections.index_blocks, SPARSE_ROW)


def decode_summary(sections: IndexSections, data: bytes) -> Rows:
    """Decode the summary, from the bytes of ``summary_range``."""
    return _records(sections, sections.summary_range, data, sections.summary_records, SUMMARY_ROW)


def _records(
    sections: IndexSections, where: tuple[int, int], data: bytes, count: int, dtype: np.dtype[np.void]
) -> Rows:
    return sections.header.blocks.decode(data, where[0] // BLOCK, count, dtype)
