# SPDX-License-Identifier: Apache-2.0
"""Reads and writes whole ``.idx`` files and checkpoints as bytes. The bookie reads and writes them in parts."""

from __future__ import annotations

from bk_core.errors import IntegrityError
from bookie_server.storage.bytes.index_file import (
    IndexHeader,
    IndexSections,
    build_index,
    decode_index_header,
    decode_sparse,
    decode_states,
    decode_summary,
)
from bookie_server.storage.bytes.index_rows import INDEX_ROW, Rows
from bookie_server.storage.disk.files import BLOCK
from bookie_server.storage.index.checkpoint import Checkpoint, CheckpointParts, read_checkpoint


def encode_index_file(header: IndexHeader, rows: bytes | bytearray | Rows, states: Rows) -> bytes:
    return build_index(header, rows, states).data


def decode_index_file(data: bytes) -> tuple[IndexHeader, Rows, Rows]:
    """Return the header, the index records and the state records of a whole file. Check the other sections too. Raises
    IntegrityError if the file is not intact."""
    sections = decode_index_header(data)
    if len(data) != sections.file_bytes:
        raise IntegrityError("an index file has another size than its header says", value=f"{len(data)} bytes")

    def part(where: tuple[int, int]) -> bytes:
        return data[where[0] : where[0] + where[1]]

    rows, states = (
        decode_index_rows(sections, part(index_range(sections))),
        decode_states(sections, part(sections.state_range)),
    )
    decode_summary(sections, part(sections.summary_range))
    decode_sparse(sections, part(sections.sparse_range))
    return sections.header, rows, states


def index_range(sections: IndexSections) -> tuple[int, int]:
    """Return the offset and the size of the index section."""
    return BLOCK, BLOCK * sections.index_blocks


def decode_index_rows(sections: IndexSections, data: bytes) -> Rows:
    """Decode all index records from the bytes of the index section. Raises IntegrityError if they are damaged."""
    return sections.header.blocks.decode(data, 1, sections.index_records, INDEX_ROW)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode the whole file. The checkpoint's ledgers must be sorted by id, and its intervals and segments must
    ascend."""
    parts = CheckpointParts(checkpoint.number, checkpoint.incarnation, checkpoint.through)
    body = parts.add_ledgers(checkpoint.ledgers) + parts.add_deleted(checkpoint.deleted)
    body += parts.add_segments(checkpoint.segments)
    return parts.header() + body


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Decode a whole file. Raises IntegrityError if the file is not an intact one of this version."""
    return read_checkpoint(lambda size, offset: data[offset : offset + size], len(data))
