# SPDX-License-Identifier: Apache-2.0
"""The bytes of a frame: header, columns and checks, as docs/formats.md §1 defines them."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import I64, U8, U32, Bytes, byte_view
from bk_core.entries.digest import crc32c
from bk_core.errors import IntegrityError, InvalidArgumentError, UnknownFlagsError
from bk_core.model import DigestType
from bk_core.wire.lane import FRAME_BYTES_MAX

FRAME_MAGIC = 0x4B42
FRAME_VERSION = 1
FRAME_HEADER_BYTES = 64
TAG_OFFSET = 60
STRIPE_BYTES = 12
APACHE_HEADER_BYTES = 32

_HEADER = struct.Struct("<HBBHBBqqqqIIIIII")
_CHECKED = struct.Struct("<HBBHBBqqqqIII")  # bytes 0–51, which the header CRC covers
_CRCS_AND_TAG = struct.Struct("<III")
U32_LE = struct.Struct("<I")
STRIPE_PREFIX = struct.Struct("<HHHHI")

I64_MAX = (1 << 63) - 1
DIGEST_NONE = 0
DIGEST_BYTES = (0, *(DigestType(number).digest_bytes for number in range(1, 5)))


class FrameKind(enum.IntEnum):
    """The kinds of frames; all but ENTRIES are records (docs/formats.md §1.1)."""

    ENTRIES = 1
    LEDGER_KEY = 2
    FENCE = 3
    LAC = 4
    DELETED = 5
    LIMBO = 6
    COPY_DROPPED = 7


class FrameFlag(enum.IntFlag):
    """The flags of docs/formats.md §1.2. The last three are reserved: this version refuses them."""

    STRIPED = 0x0001
    IDS = 0x0002
    LACS = 0x0004
    LEDGER_LENGTHS = 0x0008
    APACHE_BYTES = 0x0010
    DEFERRED_SYNC = 0x0020
    MANY_LEDGERS = 0x0040
    PARTIAL = 0x0080


# Plain integers, because IntFlag arithmetic costs half a microsecond per frame.
STRIPED, IDS, LACS, LEDGER_LENGTHS, APACHE_BYTES = 1, 2, 4, 8, 16
KNOWN_FLAGS = STRIPED | IDS | LACS | LEDGER_LENGTHS | APACHE_BYTES

RECORD_PAYLOADS: dict[int, tuple[int, ...]] = {
    FrameKind.LEDGER_KEY: (20,),
    FrameKind.FENCE: (0,),
    FrameKind.LAC: tuple(16 + width for width in sorted(set(DIGEST_BYTES))),
    FrameKind.DELETED: (0,),
    FrameKind.LIMBO: (0,),
    FrameKind.COPY_DROPPED: (8,),
}


class FrameHeader(NamedTuple):
    """A frame's header without magic and version. ``tag`` is the session number on the wire, the placement stamp on
    disk."""

    kind: int
    flags: int
    digest_type: int
    ledger_id: int
    first_entry_id: int
    lac: int
    length_before: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    columns_bytes: int
    payload_bytes: int
    header_crc: int
    payload_crc: int
    tag: int

    @property
    def size(self) -> int:
        """The bytes of the whole frame."""
        return FRAME_HEADER_BYTES + self.columns_bytes + self.payload_bytes

    @property
    def digest_bytes(self) -> int:
        return DIGEST_BYTES[self.digest_type]

    @property
    def span(self) -> int:
        """The number of ids that the column of lengths covers: with STRIPED also ids that the frame does not hold."""
        if not self.flags & STRIPED:
            return self.count
        return (self.columns_bytes - STRIPE_BYTES - self.count * self.bytes_per_entry) // 4

    @property
    def bytes_per_entry(self) -> int:
        """The column bytes of each entry in the frame, without its length."""
        flags = self.flags
        return self.digest_bytes + 8 * (bool(flags & IDS) + bool(flags & LACS) + bool(flags & LEDGER_LENGTHS))


class Stripe(NamedTuple):
    """The prefix of a STRIPED frame's columns."""

    ensemble_size: int
    write_quorum: int
    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    span: int

    def present(self, first_entry_id: int) -> npt.NDArray[np.bool_]:
        """Which ids of the span the frame holds; the pattern repeats every E ids."""
        phase = (self.index - first_entry_id) % self.ensemble_size
        make = _small_pattern if self.span <= SMALL_SPAN else _pattern
        return make(self.ensemble_size, self.write_quorum, phase, self.span)

    def extent(self, first_entry_id: int) -> tuple[int, int]:
        """The first and last id in the frame. They are at most E − Qw ids from the ends of the span, because the frame
        misses only runs of E − Qw ids."""
        last = first_entry_id + self.span - 1
        ahead = (self.index - first_entry_id) % self.ensemble_size
        behind = (self.index - last) % self.ensemble_size
        first_present = first_entry_id + max(0, ahead - self.write_quorum + 1)
        return first_present, last - (self.ensemble_size - behind if behind >= self.write_quorum else 0)


SMALL_SPAN = 64
"""Patterns up to this span are cached: for small frames numpy's calls cost more than their work."""


def _pattern(ensemble_size: int, write_quorum: int, phase: int, span: int) -> npt.NDArray[np.bool_]:
    period = min(ensemble_size, span)
    pattern = (phase - np.arange(period)) % ensemble_size < write_quorum
    tiled = np.tile(pattern, -(-span // period))[:span]
    tiled.flags.writeable = False
    return tiled


_small_pattern = lru_cache(maxsize=4096)(_pattern)


class Columns(NamedTuple):
    """Views of a frame's columns. ``span_lengths`` covers the whole span, ``lengths`` only the entries in the frame."""

    stripe: Stripe | None
    span_lengths: U32
    lengths: U32
    present: npt.NDArray[np.bool_] | None
    digests: U8
    ids: I64 | None
    lacs: I64 | None
    ledger_lengths: I64 | None


def refuse(what: str, header: FrameHeader | None = None) -> NoReturn:
    value = "" if header is None else f"ledger {header.ledger_id}, frame of {header.count} from {header.first_entry_id}"
    raise IntegrityError(f"not an intact frame: {what}", value=value, remedy="read another copy")


def parse_header(buf: Bytes, offset: int = 0) -> FrameHeader:
    """The header in the 64 bytes at ``offset``. Raises IntegrityError for all that docs/formats.md §1 forbids, sizes
    included, so that no memory is allocated for a bad header; UnknownFlagsError for reserved or unknown flags. Checks
    no CRC."""
    try:
        fields = _HEADER.unpack_from(buf, offset)
    except struct.error:
        refuse("shorter than a header")
    magic, version, kind, flags, digest_type, zero = fields[:6]
    if magic != FRAME_MAGIC or version != FRAME_VERSION or zero:
        refuse(f"magic {magic:#06x}, version {version}, byte 7 {zero}")
    if flags & ~KNOWN_FLAGS:
        raise UnknownFlagsError(
            "a frame has flags that this version does not take", value=f"{flags:#06x}", remedy="read another copy"
        )
    if digest_type >= len(DIGEST_BYTES):
        refuse(f"unknown digest type {digest_type}")
    header = FrameHeader(kind, flags, digest_type, *fields[6:])
    if header.size > FRAME_BYTES_MAX:
        refuse(f"{header.size} bytes, more than {FRAME_BYTES_MAX}", header)
    if header.ledger_id < 0:
        refuse("negative ledger id", header)
    if kind == FrameKind.ENTRIES:
        _check_entries_header(header)
    else:
        _check_record_header(header)
    return header


def _check_entries_header(header: FrameHeader) -> None:
    flags, count = header.flags, header.count
    if count == 0 or header.first_entry_id < 0 or header.lac < -1 or header.length_before < -1:
        refuse("no entries, or numbers below their least", header)
    if flags & APACHE_BYTES:
        if flags & ~IDS != APACHE_BYTES or header.digest_type != DIGEST_NONE or header.length_before != -1:
            refuse("fields that APACHE_BYTES excludes", header)
    elif header.digest_type == DIGEST_NONE or (header.length_before < 0 and not flags & LEDGER_LENGTHS):
        refuse("entries without what their digest needs", header)
    if flags & STRIPED and flags & (IDS | LEDGER_LENGTHS):
        refuse("STRIPED with ids or ledger lengths", header)
    span = header.span
    prefix = STRIPE_BYTES if flags & STRIPED else 0
    if span < count or header.columns_bytes != prefix + 4 * span + count * header.bytes_per_entry:
        refuse(f"{header.columns_bytes} bytes of columns for {count} entries", header)
    if header.first_entry_id + span > I64_MAX or header.length_before + header.payload_bytes > I64_MAX:
        refuse("numbers above their greatest", header)


def _check_record_header(header: FrameHeader) -> None:
    sizes = RECORD_PAYLOADS.get(header.kind)
    if sizes is None:
        refuse(f"unknown kind {header.kind}")
    if header.payload_bytes not in sizes:
        refuse(f"{header.payload_bytes} bytes of payload in a record of kind {header.kind}", header)
    if (*header[1:3], *header[4:9]) != (0, 0, -1, -1, -1, 0, 0):
        refuse("a record with fields of entries", header)


def split_frames(buf: Bytes) -> list[tuple[FrameHeader, memoryview]]:
    """The header and bytes of each frame in a sequence of whole frames. Raises IntegrityError for a bad header or a
    frame that is cut off. Checks no CRC."""
    view, offset, frames = byte_view(buf), 0, []
    while offset < view.nbytes:
        header = parse_header(view, offset)
        end = offset + header.size
        if end > view.nbytes:
            refuse("cut off", header)
        frames.append((header, view[offset:end]))
        offset = end
    return frames


def check_header(buf: Bytes) -> FrameHeader:
    """The header of one whole frame. Raises IntegrityError unless the header CRC is right and the columns make sense.

    It does not check the payload: the caller verifies the digests of entries that it takes out.
    """
    header = parse_header(buf)
    view = byte_view(buf)
    if view.nbytes != header.size:
        refuse(f"{view.nbytes} bytes instead of {header.size}", header)
    columns_end = FRAME_HEADER_BYTES + header.columns_bytes
    if crc32c(view[FRAME_HEADER_BYTES:columns_end], crc32c(view[: _CHECKED.size])) != header.header_crc:
        refuse("header checksum differs", header)
    if header.kind == FrameKind.ENTRIES:
        _check_columns(header, view)
    return header


def check_frame(buf: Bytes) -> FrameHeader:
    """As :func:`check_header`, and checks the payload's CRC too."""
    header = check_header(buf)
    if crc32c(byte_view(buf)[FRAME_HEADER_BYTES + header.columns_bytes :]) != header.payload_crc:
        refuse("payload checksum differs", header)
    return header


def _check_columns(header: FrameHeader, view: memoryview) -> None:
    if header.count == 1 and not header.flags & KNOWN_FLAGS:
        if U32_LE.unpack_from(view, FRAME_HEADER_BYTES)[0] != header.payload_bytes:
            refuse("lengths do not add up", header)
        return
    columns = columns_of(header, view)
    if columns.lengths.size != header.count:
        refuse("another number of entries than the stripe says", header)
    if int(columns.lengths.sum()) != header.payload_bytes:
        refuse("lengths do not add up", header)
    if columns.ids is not None and int(columns.ids.min()) != header.first_entry_id:
        refuse("first entry id is not the least", header)
    if header.flags & APACHE_BYTES and int(columns.lengths.min()) < APACHE_HEADER_BYTES:
        refuse("an Apache entry shorter than its header", header)
    if header.flags & (STRIPED | IDS | LACS | LEDGER_LENGTHS):
        _check_numbers(header, columns)


def _check_numbers(header: FrameHeader, columns: Columns) -> None:
    """Checks the columns against the header. The digests cover the listed LACs and not the header's LAC, so the
    header's must be one of them to be evidence (P5). Numbers over 63 bits would not fit into a frame cut out of this
    one."""
    if columns.stripe is not None and header.length_before + int(columns.span_lengths.sum()) > I64_MAX:
        refuse("numbers above their greatest", header)
    if columns.ids is not None and int(columns.ids.max()) == I64_MAX:
        refuse("numbers above their greatest", header)
    if columns.lacs is not None and (int(columns.lacs.max()) != header.lac or int(columns.lacs.min()) < -1):
        refuse("its LAC is not the greatest that its entries carry", header)
    if columns.ledger_lengths is not None and bool((columns.ledger_lengths < columns.lengths).any()):
        refuse("a ledger shorter than its entry", header)


def columns_of(header: FrameHeader, buf: Bytes) -> Columns:
    """Views of the columns of the frame in ``buf``. Raises IntegrityError for an impossible stripe."""
    at, flags, count, first = FRAME_HEADER_BYTES, header.flags, header.count, header.first_entry_id
    stripe = None
    if flags & STRIPED:
        ensemble_size, write_quorum, index, zero, span = STRIPE_PREFIX.unpack_from(buf, at)
        stripe = Stripe(ensemble_size, write_quorum, index, span)
        if not 0 < write_quorum < ensemble_size or index >= ensemble_size or zero or span != header.span:
            refuse(f"stripe {tuple(stripe)}", header)
        at += STRIPE_BYTES
    span_lengths: U32 = np.frombuffer(buf, dtype="<u4", count=header.span, offset=at)
    at += 4 * header.span
    width = header.digest_bytes
    digests: U8 = np.frombuffer(buf, dtype=np.uint8, count=count * width, offset=at).reshape(count, width)
    at += count * width
    numbers: list[I64 | None] = [None, None, None]
    for k, flag in enumerate((IDS, LACS, LEDGER_LENGTHS)):
        if flags & flag:
            numbers[k] = np.frombuffer(buf, dtype="<i8", count=count, offset=at)
            at += 8 * count
    present = None if stripe is None else stripe.present(first)
    lengths = span_lengths if present is None else span_lengths[present]
    return Columns(stripe, span_lengths, lengths, present, digests, *numbers)


def column_bytes(column: npt.NDArray[np.generic], dtype: str) -> bytes:
    """The bytes of a column in this dtype."""
    return column.astype(dtype, copy=False).tobytes()


def assemble(
    head: tuple[int, int, int, int, int, int, int, int], columns: Sequence[Bytes], payload: Bytes, session: int
) -> bytearray:
    """A frame whose ``head`` is (kind, flags, digest type, ledger, first entry id, LAC, length before, count). Copies
    the payload once. Raises InvalidArgumentError if the frame would exceed FRAME_BYTES_MAX."""
    columns_bytes, payload_bytes = sum(map(len, columns)), len(payload)
    size = FRAME_HEADER_BYTES + columns_bytes + payload_bytes
    if size > FRAME_BYTES_MAX:
        raise InvalidArgumentError(
            f"a frame may have at most {FRAME_BYTES_MAX} bytes", value=f"{size} bytes", remedy="split the batch"
        )
    kind, flags, digest_type = head[:3]
    checked = _CHECKED.pack(
        FRAME_MAGIC, FRAME_VERSION, kind, flags, digest_type, 0, *head[3:], columns_bytes, payload_bytes
    )
    header_crc = crc32c(checked)
    for column in columns:
        header_crc = crc32c(column, header_crc)
    return bytearray().join((checked, _CRCS_AND_TAG.pack(header_crc, crc32c(payload), session), *columns, payload))
