# SPDX-License-Identifier: Apache-2.0
"""Cuts a few entries, or the wanted parts of entries, out of a long frame without reading its other bytes (RULES S5).

The stamp and the header's CRC prove header and columns; the digest of each entry, which is in the columns, proves its
payload. So only frames whose digest needs no password are cut this way, and only plain ones. All other frames are read
whole. A bookie cannot check a part of an entry, but the reader can (docs/decisions/0084). Pure functions over bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from bk_core.entries.digest import ENTRY_HEADER, Digester, crc32c
from bk_core.entries.frame import (
    CHECKED_BYTES,
    FRAME_HEADER_BYTES,
    PARTIAL,
    FrameHeader,
    FrameKind,
    assemble,
    column_bytes,
    frame_tag,
    parse_header,
)
from bk_core.entries.lone_frames import lone_frame
from bk_core.entries.parts import wanted_spans
from bk_core.errors import IntegrityError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import Cut
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.segment import placement_stamp

ENTRIES_MAX = 16
"""The maximum number of entries that are cut out of a frame. For more entries, two reads cost more than they save."""

PART_SAVES_BYTES_MIN = 16 << 10
"""The least number of bytes that each read of a part must save on average. Otherwise one read of the whole frame costs
less."""

_HEAD_BYTES = 16 << 10  # the columns of two thousand entries


class FrameColumns:
    """The checked header and columns of a frame."""

    __slots__ = ("_columns", "_digester", "_ends", "_header")

    def __init__(self, header: FrameHeader, columns: bytes) -> None:
        self._header, self._columns = header, columns
        lengths = np.frombuffer(columns, dtype="<u4", count=header.count)
        self._ends = array("q", np.cumsum(lengths, dtype=np.int64).tobytes())
        self._digester = Digester(DigestType(header.digest_type), b"", header.ledger_id)

    @property
    def memory_bytes(self) -> int:
        return len(self._columns) + 8 * len(self._ends) + 1024

    @property
    def payload_bytes(self) -> int:
        return self._ends[-1]

    def bounds(self, first: int, last: int) -> tuple[int, int] | None:
        """Return where in the frame the payload of the entries first to last begins and ends. Return None if the frame
        does not have all of them, or if they are more than a quarter of its payload, so that the whole frame may as
        well be read."""
        header = self._header
        low, high = first - header.first_entry_id, last - header.first_entry_id
        if low < 0 or high >= header.count:
            return None
        begin, end = self._begin(low), self._ends[high]
        if 4 * (end - begin) > header.payload_bytes:
            return None
        at = FRAME_HEADER_BYTES + header.columns_bytes
        return at + begin, at + end

    def _begin(self, k: int) -> int:
        return self._ends[k - 1] if k else 0

    def cut(self, first: int, last: int, payload: bytes | bytearray) -> bytes | bytearray:
        """Return the frame of these entries, whose payload is given. Raises IntegrityError for a wrong digest."""
        header = self._header
        low, high = first - header.first_entry_id, last + 1 - header.first_entry_id
        columns = self._columns_of(low, high)
        if len(payload) != self._ends[high - 1] - self._begin(low) or self._digests(low, high, payload) != columns[1]:
            raise IntegrityError(
                "an entry's digest differs", value=f"ledger {header.ledger_id}, entry {first} to {last}"
            )
        if first == last and header.digest_type == DigestType.CRC32C:
            return lone_frame(
                payload,
                columns[1],
                ledger_id=header.ledger_id,
                entry_id=first,
                lac=header.lac,
                length_before=header.length_before + self._begin(low),
            )
        return assemble(self._head(low, high, 0), columns, payload, 0)

    def parts(self, first: int, last: int, wanted: Cut, read: Callable[[int, int], bytes]) -> bytearray | None:
        """Return a frame with PARTIAL that has the wanted parts of the entries first to last, as far as this frame has
        them. ``read`` takes an offset in the frame and a size. The parts are not checked. Return None if the whole
        frame may as well be read."""
        header = self._header
        low = max(first - header.first_entry_id, 0)
        high = min(last + 1 - header.first_entry_id, header.count)
        if low >= high or not DigestType(header.digest_type).has_parts:
            return None
        begin, end = self._begin(low), self._ends[high - 1]
        ids = range(header.first_entry_id + low, header.first_entry_id + high)
        spans, kept = wanted_spans(ids, (self._ends[k] - self._begin(k) for k in range(low, high)), wanted)
        size = sum(kept)
        if end - begin - size < PART_SAVES_BYTES_MIN * max(len(spans), 1):
            return None
        at = FRAME_HEADER_BYTES + header.columns_bytes + begin
        payload = b"".join([read(at + start, stop - start) for start, stop in spans if stop > start])
        if len(payload) != size:
            return None  # the file ends too early
        more = column_bytes(np.array(kept, dtype=np.int64), "<i8")
        return assemble(self._head(low, high, PARTIAL), [*self._columns_of(low, high), more], payload, 0)

    def _head(self, low: int, high: int, flags: int) -> tuple[int, ...]:
        header = self._header
        length_before = header.length_before + self._begin(low)
        ids = header.first_entry_id + low, header.lac, length_before, high - low
        return (int(FrameKind.ENTRIES), flags, header.digest_type, header.ledger_id, *ids)

    def _columns_of(self, low: int, high: int) -> list[bytes]:
        """Return the lengths and the digests of these entries."""
        width, digests_at = self._digester.digest_bytes, 4 * self._header.count
        lengths = self._columns[4 * low : 4 * high]
        return [lengths, self._columns[digests_at + width * low : digests_at + width * high]]

    def _digests(self, low: int, high: int, payload: bytes | bytearray) -> bytes:
        header, view = self._header, memoryview(payload)
        start = begin = self._begin(low)
        found = []
        for k in range(low, high):
            end = self._ends[k]
            fields = (header.ledger_id, header.first_entry_id + k, header.lac, header.length_before + end)
            found.append(self._digester.digest(ENTRY_HEADER.pack(*fields), view[begin - start : end - start]))
            begin = end
        return b"".join(found)


def columns_of_place(read: Callable[[int, int], bytes], place: Place, incarnation: bytes) -> FrameColumns | None:
    """Return the columns of the frame at ``place``; ``read`` takes an offset in the frame and a size. Return None if
    the frame cannot be cut this way or fails a check; then the whole frame must be read."""
    data = read(0, min(_HEAD_BYTES, place.size))
    header = parse_header(data)
    end = FRAME_HEADER_BYTES + header.columns_bytes
    plain = header.kind == FrameKind.ENTRIES and not header.flags and header.has_checksums
    if not plain or header.size != place.size or 4 * end > place.size:
        return None
    data = data[:end] if len(data) >= end else data + read(len(data), end - len(data))
    if crc32c(data[FRAME_HEADER_BYTES:], crc32c(data[:CHECKED_BYTES])) != header.header_crc:
        return None
    if frame_tag(data) != placement_stamp(incarnation, place.generation, place.offset, data[52:60]):
        return None
    columns = FrameColumns(header, data[FRAME_HEADER_BYTES:])
    return columns if columns.payload_bytes == header.payload_bytes else None
