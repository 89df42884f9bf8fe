# SPDX-License-Identifier: Apache-2.0
"""Records, which are frames without entries (docs/formats.md §1.1), and the tag, which no CRC of a frame covers."""

from __future__ import annotations

from bk_core.entries.batch import Bytes, byte_view
from bk_core.entries.frame_layout import (
    DIGEST_NONE,
    FRAME_HEADER_BYTES,
    RECORD_PAYLOADS,
    TAG_OFFSET,
    U32_LE,
    FrameHeader,
    assemble,
    parse_header,
)
from bk_core.errors import InvalidArgumentError


def encode_record(kind: int, ledger_id: int, payload: Bytes = b"") -> bytes:
    """A record of kind 2 to 7 with tag 0. Raises InvalidArgumentError for another kind, or a payload size that the kind
    does not have."""
    if len(payload) not in RECORD_PAYLOADS.get(kind, ()) or ledger_id < 0:
        raise InvalidArgumentError(
            "no such record", value=f"kind {kind}, ledger {ledger_id}, payload of {len(payload)} bytes"
        )
    return bytes(assemble((kind, 0, DIGEST_NONE, ledger_id, -1, -1, -1, 0), [], payload, 0))


def record_payload(buf: Bytes, header: FrameHeader | None = None) -> memoryview:
    """The payload of a checked record."""
    header = parse_header(buf) if header is None else header
    return byte_view(buf)[FRAME_HEADER_BYTES + header.columns_bytes : header.size]


def frame_tag(frame: Bytes) -> int:
    """The session number or placement stamp of a frame (bytes 60–63)."""
    return int(U32_LE.unpack_from(frame, TAG_OFFSET)[0])


def with_session(frame: Bytes, session: int) -> bytes:
    """A copy of a frame with another session number."""
    view = byte_view(frame)
    return b"".join((view[:TAG_OFFSET], U32_LE.pack(session), view[FRAME_HEADER_BYTES:]))
