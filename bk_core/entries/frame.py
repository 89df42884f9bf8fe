# SPDX-License-Identifier: Apache-2.0
"""Turns entry batches into frames and back; docs/formats.md §1 defines frames.

This file also handles records, which are frames without entries, and tags, which no CRC of a frame covers. It can cut
a frame out of another frame. So a bookie can answer a read of a few entries of a frame although it cannot compute their
digests.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from bk_core.entries.apache import entry_headers_of, split_entries
from bk_core.entries.batch import (
    I64,
    U8,
    U32,
    Bytes,
    EntryBatch,
    Join,
    byte_view,
    check_entry_size,
    check_entry_sizes,
    gather_payload,
    joined,
)
from bk_core.entries.digest import ENTRY_HEADER, FEW_ENTRIES, Digester, crc32c
from bk_core.errors import IntegrityError, InvalidArgumentError, UnknownFlagsError
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX

FRAME_MAGIC = 0x4B42
FRAME_VERSION = 1
FRAME_HEADER_BYTES = 64
TAG_OFFSET = 60
STRIPE_BYTES = 12
APACHE_HEADER_BYTES = 32

_HEADER = struct.Struct("<HBBHBBqqqqIIIIII")
_CHECKED = struct.Struct("<HBBHBBqqqqIII")  # bytes 0–51, which the header CRC covers
CHECKED_BYTES = _CHECKED.size
CRCS_AND_TAG = struct.Struct("<III")
U32_LE = struct.Struct("<I")
STRIPE_PREFIX = struct.Struct("<HHHHI")
_LENGTHS_OF_FEW = tuple(struct.Struct(f"<{count}I") for count in range(FEW_ENTRIES + 1))
"""The columns of lengths of up to FEW_ENTRIES entries, by the number of entries."""

I64_MAX = (1 << 63) - 1
DIGEST_NONE = 0
DIGEST_BYTES = (0, *(kind.digest_bytes for kind in sorted(DigestType)))
"""The width of a digest in bytes, indexed by a frame's digest byte."""


class FrameKind(enum.IntEnum):
    """The kinds of frames. All kinds but ENTRIES are records (docs/formats.md §1.1)."""

    ENTRIES = 1
    LEDGER_KEY = 2
    FENCE = 3
    LAC = 4
    DELETED = 5
    LIMBO = 6
    COPY_DROPPED = 7


# The flags of docs/formats.md §1.2. They are plain integers, because IntFlag arithmetic costs half a microsecond per
# frame. DEFERRED_SYNC and MANY_LEDGERS are reserved, and this version refuses them. PARTIAL is valid only in answers to
# reads of parts (``parts.py``) and is refused everywhere else.
STRIPED, IDS, LACS, LEDGER_LENGTHS, APACHE_BYTES, DEFERRED_SYNC, MANY_LEDGERS, PARTIAL = (1 << bit for bit in range(8))
_NUMBERS = IDS | LACS | LEDGER_LENGTHS | PARTIAL
KNOWN_FLAGS = STRIPED | IDS | LACS | LEDGER_LENGTHS | APACHE_BYTES
BEYOND_HEADER = STRIPED | IDS | LACS
"""The flags of frames whose extent depends on their columns. Without these flags the header alone gives the extent."""

RECORD_PAYLOADS: dict[int, tuple[int, ...]] = {
    FrameKind.LEDGER_KEY: (20,),
    FrameKind.FENCE: (0,),
    FrameKind.LAC: tuple(16 + width for width in sorted(set(DIGEST_BYTES))),
    FrameKind.DELETED: (0,),
    FrameKind.LIMBO: (0,),
    FrameKind.COPY_DROPPED: (8,),
}


_ENTRIES = int(FrameKind.ENTRIES)
_DIGEST_TYPES: dict[int, DigestType | None] = {0: None, **{int(each): each for each in DigestType}}
"""Maps the digest byte of a frame to the type of its digests."""
_new = tuple.__new__  # the constructor of a named tuple costs more than all checks of a header


class FrameHeader(NamedTuple):
    """The header of a frame, without magic and version. ``tag`` is the session number on the wire and the placement
    stamp on disk."""

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
        """The size of the whole frame in bytes."""
        return FRAME_HEADER_BYTES + self.columns_bytes + self.payload_bytes

    @property
    def digest_bytes(self) -> int:
        return DIGEST_BYTES[self.digest_type]

    @property
    def has_checksums(self) -> bool:
        """Whether each entry has a checksum, that is, a digest that can be computed without the ledger's key."""
        return self.digest_type != DIGEST_NONE and DigestType(self.digest_type).is_checksum

    @property
    def span(self) -> int:
        """The number of ids that the column of lengths covers. In a STRIPED frame these include ids whose entries the
        frame does not hold."""
        if not self.flags & STRIPED:
            return self.count
        return (self.columns_bytes - STRIPE_BYTES - self.count * self.bytes_per_entry) // 4

    @property
    def bytes_per_entry(self) -> int:
        """The number of bytes that the columns hold for each entry of the frame, without the column of lengths."""
        numbers = self.flags & _NUMBERS
        return DIGEST_BYTES[self.digest_type] + (8 * numbers.bit_count() if numbers else 0)


class Stripe(NamedTuple):
    """The prefix of a STRIPED frame's columns: the ensemble size, the write quorum, the ensemble index that holds the
    frame, and the number of ids in the span."""

    ensemble_size: int
    write_quorum: int
    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    span: int

    def present(self, first_entry_id: int) -> npt.NDArray[np.bool_]:
        """Return for each id of the span whether the frame holds it. The pattern repeats every E ids."""
        phase = (self.index - first_entry_id) % self.ensemble_size
        make = _small_pattern if self.span <= SMALL_SPAN else _pattern
        return make(self.ensemble_size, self.write_quorum, phase, self.span)

    def extent(self, first_entry_id: int) -> tuple[int, int]:
        """Return the first and the last id that the frame holds. They are at most E − Qw ids from the ends of the span,
        because ids that the frame does not hold come in runs of E − Qw."""
        last = first_entry_id + self.span - 1
        ahead = (self.index - first_entry_id) % self.ensemble_size
        behind = (self.index - last) % self.ensemble_size
        first_present = first_entry_id + max(0, ahead - self.write_quorum + 1)
        return first_present, last - (self.ensemble_size - behind if behind >= self.write_quorum else 0)


SMALL_SPAN = 64
"""The maximum span, in ids, of a pattern that is cached. For small frames numpy's calls cost more than their work."""


def _pattern(ensemble_size: int, write_quorum: int, phase: int, span: int) -> npt.NDArray[np.bool_]:
    period = min(ensemble_size, span)
    pattern = (phase - np.arange(period)) % ensemble_size < write_quorum
    tiled = np.tile(pattern, -(-span // period))[:span]
    tiled.flags.writeable = False
    return tiled


_small_pattern = lru_cache(maxsize=4096)(_pattern)


class Columns(NamedTuple):
    """The columns of a frame, as views of its bytes. ``span_lengths`` has the lengths of the whole span, ``lengths``
    only those of the entries in the frame. ``kept`` has for each entry of a PARTIAL frame the number of its bytes in
    the payload."""

    stripe: Stripe | None
    span_lengths: U32
    lengths: U32
    present: npt.NDArray[np.bool_] | None
    digests: U8
    ids: I64 | None
    lacs: I64 | None
    ledger_lengths: I64 | None
    kept: I64 | None = None


def refuse(what: str, header: FrameHeader | None = None) -> NoReturn:
    value = "" if header is None else f"ledger {header.ledger_id}, frame of {header.count} from {header.first_entry_id}"
    raise IntegrityError(f"not an intact frame: {what}", value=value, remedy="read another copy")


def parse_header(buf: Bytes, offset: int = 0, *, flags_known: int = KNOWN_FLAGS) -> FrameHeader:
    """Parse the header in the 64 bytes at ``offset``. Checks no CRC. Raises IntegrityError for a header that
    docs/formats.md §1 forbids; this includes its sizes, so that no caller allocates memory for a bad header. Raises
    UnknownFlagsError for reserved or unknown flags."""
    try:
        fields = _HEADER.unpack_from(buf, offset)
    except struct.error:
        refuse("shorter than a header")
    magic, version, kind, flags, digest_type, zero = fields[:6]
    if magic != FRAME_MAGIC or version != FRAME_VERSION or zero:
        refuse(f"magic {magic:#06x}, version {version}, byte 7 {zero}")
    if flags & ~flags_known:
        raise UnknownFlagsError(
            "a frame has flags that this version does not accept", value=f"{flags:#06x}", remedy="read another copy"
        )
    if digest_type >= len(DIGEST_BYTES):
        refuse(f"unknown digest type {digest_type}")
    header = _new(FrameHeader, fields[2:5] + fields[6:])
    if FRAME_HEADER_BYTES + fields[11] + fields[12] > FRAME_BYTES_MAX:
        refuse(f"{header.size} bytes, more than {FRAME_BYTES_MAX}", header)
    if header.ledger_id < 0:
        refuse("negative ledger id", header)
    if kind == _ENTRIES:
        _check_entries_header(header)
    else:
        _check_record_header(header)
    return header


def _check_entries_header(header: FrameHeader) -> None:
    _, flags, digest_type, _, first, lac, length_before, count, columns_bytes, payload_bytes, *_ = header
    if count == 0 or first < 0 or lac < -1 or length_before < -1:
        refuse("no entries, or numbers below their least", header)
    if flags & APACHE_BYTES:
        if flags & ~IDS != APACHE_BYTES or digest_type != DIGEST_NONE or length_before != -1:
            refuse("fields that APACHE_BYTES excludes", header)
    elif digest_type == DIGEST_NONE or (length_before < 0 and not flags & LEDGER_LENGTHS):
        refuse("entries without the fields that their digest needs", header)
    span, prefix = count, 0
    per_entry = header.bytes_per_entry if flags & _NUMBERS else DIGEST_BYTES[digest_type]
    if flags & STRIPED:
        if flags & (IDS | LEDGER_LENGTHS):
            refuse("STRIPED with ids or ledger lengths", header)
        span, prefix = header.span, STRIPE_BYTES
    if span < count or columns_bytes != prefix + 4 * span + count * per_entry:
        refuse(f"{columns_bytes} bytes of columns for {count} entries", header)
    if first + span > I64_MAX or length_before + payload_bytes > I64_MAX:
        refuse("numbers above their greatest", header)


def _check_record_header(header: FrameHeader) -> None:
    sizes = RECORD_PAYLOADS.get(header.kind)
    if sizes is None:
        refuse(f"unknown kind {header.kind}")
    if header.payload_bytes not in sizes:
        refuse(f"{header.payload_bytes} bytes of payload in a record of kind {header.kind}", header)
    if (*header[1:3], *header[4:9]) != (0, 0, -1, -1, -1, 0, 0):
        refuse("a record with fields of entries", header)


def split_frames(buf: Bytes, *, flags_known: int = KNOWN_FLAGS) -> list[tuple[FrameHeader, memoryview]]:
    """Return the header and bytes of each frame in a sequence of whole frames. Raises IntegrityError for a bad header
    or a frame that is cut off. Checks no CRC."""
    view, offset, frames = byte_view(buf), 0, []
    while offset < view.nbytes:
        header = parse_header(view, offset, flags_known=flags_known)
        end = offset + FRAME_HEADER_BYTES + header.columns_bytes + header.payload_bytes
        if end > view.nbytes:
            refuse("cut off", header)
        frames.append((header, view[offset:end]))
        offset = end
    return frames


def check_header(buf: Bytes, parsed: FrameHeader | None = None) -> FrameHeader:
    """Return the header of one whole frame, after checks of the header CRC and of the columns. Raises IntegrityError.

    ``parsed`` is the result of :func:`parse_header` for the same bytes, if the caller has it. The payload is not
    checked, so the caller has to verify the digests of the entries that it uses.
    """
    header = parse_header(buf) if parsed is None else parsed
    _check_head(byte_view(buf), header)
    return header


def _check_head(view: memoryview, header: FrameHeader) -> None:
    columns_end = FRAME_HEADER_BYTES + header.columns_bytes
    if view.nbytes != columns_end + header.payload_bytes:
        refuse(f"{view.nbytes} bytes instead of {header.size}", header)
    if crc32c(view[FRAME_HEADER_BYTES:columns_end], crc32c(view[:CHECKED_BYTES])) != header.header_crc:
        refuse("header checksum differs", header)
    if header.kind == _ENTRIES:
        _check_columns(header, view)


def check_frame(buf: Bytes, parsed: FrameHeader | None = None) -> FrameHeader:
    """Do the same as :func:`check_header`, and also check the payload's CRC."""
    header, view = parse_header(buf) if parsed is None else parsed, byte_view(buf)
    _check_head(view, header)
    if crc32c(view[FRAME_HEADER_BYTES + header.columns_bytes :]) != header.payload_crc:
        refuse("payload checksum differs", header)
    return header


def _check_columns(header: FrameHeader, view: memoryview) -> None:
    if header.count <= FEW_ENTRIES and header.flags in (0, APACHE_BYTES):
        lengths = _LENGTHS_OF_FEW[header.count].unpack_from(view, FRAME_HEADER_BYTES)
        if sum(lengths) != header.payload_bytes:
            refuse("lengths do not add up", header)
        if header.flags and min(lengths) < APACHE_HEADER_BYTES:
            refuse("an Apache entry shorter than its header", header)
        return
    columns = columns_of(header, view)
    if columns.lengths.size != header.count:
        refuse("another number of entries than the stripe says", header)
    if int((columns.lengths if columns.kept is None else columns.kept).sum()) != header.payload_bytes:
        refuse("lengths do not add up", header)
    if columns.kept is not None and bool(((columns.kept < 0) | (columns.kept > columns.lengths)).any()):
        refuse("parts longer than their entries", header)
    if columns.ids is not None and int(columns.ids.min()) != header.first_entry_id:
        refuse("first entry id is not the least", header)
    if header.flags & APACHE_BYTES and int(columns.lengths.min()) < APACHE_HEADER_BYTES:
        refuse("an Apache entry shorter than its header", header)
    if header.flags & (STRIPED | IDS | LACS | LEDGER_LENGTHS):
        _check_numbers(header, columns)


def _check_numbers(header: FrameHeader, columns: Columns) -> None:
    """Check the numbers in the columns against the header. Raises IntegrityError.

    The digests cover the LACs in the column and not the LAC in the header, so the header's LAC proves something only if
    the column contains it (P5). Numbers over 63 bits would not fit into a frame that is cut out of this frame.
    """
    if columns.stripe is not None and header.length_before + int(columns.span_lengths.sum()) > I64_MAX:
        refuse("numbers above their greatest", header)
    if columns.ids is not None and int(columns.ids.max()) == I64_MAX:
        refuse("numbers above their greatest", header)
    if columns.lacs is not None and (int(columns.lacs.max()) != header.lac or int(columns.lacs.min()) < -1):
        refuse("its LAC is not the greatest that its entries carry", header)
    if columns.ledger_lengths is not None and bool((columns.ledger_lengths < columns.lengths).any()):
        refuse("a ledger shorter than its entry", header)


def columns_of(header: FrameHeader, buf: Bytes) -> Columns:
    """Return views of the columns of the frame in ``buf``. Raises IntegrityError for an impossible stripe."""
    at, flags, count, first = FRAME_HEADER_BYTES, header.flags, header.count, header.first_entry_id
    if not flags:
        return _plain_columns(header, buf)
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
    kept: I64 | None = np.frombuffer(buf, dtype="<i8", count=count, offset=at) if flags & PARTIAL else None
    present = None if stripe is None else stripe.present(first)
    lengths = span_lengths if present is None else span_lengths[present]
    return Columns(stripe, span_lengths, lengths, present, digests, numbers[0], numbers[1], numbers[2], kept)


def _plain_columns(header: FrameHeader, buf: Bytes) -> Columns:
    """Do the same as :func:`columns_of` for a frame without flags."""
    at, count, width = FRAME_HEADER_BYTES, header.count, header.digest_bytes
    lengths = np.frombuffer(buf, "<u4", count, at)
    digests = np.frombuffer(buf, np.uint8, count * width, at + 4 * count).reshape(count, width)
    return _new(Columns, (None, lengths, lengths, None, digests, None, None, None, None))


def column_bytes(column: npt.NDArray[np.generic], dtype: str) -> bytes:
    """Return the bytes of a column after a conversion to ``dtype``."""
    return column.astype(dtype, copy=False).tobytes()


def assemble(
    head: tuple[int, ...], columns: Sequence[Bytes], payload: Bytes, session: int, join: Join = joined
) -> bytearray:
    """Assemble a frame with one copy of the payload. ``head`` is (kind, flags, digest type, ledger, first entry id,
    LAC, length before, count). Raises InvalidArgumentError if the frame would exceed FRAME_BYTES_MAX."""
    columns_bytes, payload_bytes = sum(map(len, columns)), len(payload)
    size = FRAME_HEADER_BYTES + columns_bytes + payload_bytes
    if size > FRAME_BYTES_MAX:
        refuse_size(size)
    sizes = columns_bytes, payload_bytes
    checked = _CHECKED.pack(FRAME_MAGIC, FRAME_VERSION, *head[:3], 0, *head[3:], *sizes)
    header_crc = crc32c(checked)
    for column in columns:
        header_crc = crc32c(column, header_crc)
    frame: bytearray = join((checked, CRCS_AND_TAG.pack(header_crc, crc32c(payload), session), *columns, payload))
    return frame


def refuse_size(size: int) -> NoReturn:
    raise InvalidArgumentError(
        f"a frame may have at most {FRAME_BYTES_MAX} bytes", value=f"{size} bytes", remedy="split the batch"
    )


def apache_frame(ledger_id: int, entries: Bytes, lengths: I64 | U32, ids: I64, lac: int, session: int = 0) -> bytearray:
    """Return a frame that holds entries in Apache's layout unchanged. ``entries`` holds them one after another. The
    caller has checked that the headers inside the entries name this ledger and these ``ids``, and that ``lac`` is their
    greatest LAC."""
    flags, columns = APACHE_BYTES, [column_bytes(lengths, "<u4")]
    if bool((np.diff(ids) != 1).any()):
        flags |= IDS
        columns.append(column_bytes(ids, "<i8"))
    head = (1, flags, DIGEST_NONE, ledger_id, int(ids.min()), max(-1, lac), -1, int(ids.size))
    return assemble(head, columns, entries, session)


class FrameExtent(NamedTuple):
    """The facts about a frame that an index stores. ``first`` and ``last`` are its least and greatest entry id.
    ``dense`` says whether the frame holds every id between them. ``max_lac`` is its greatest LAC."""

    first: int
    last: int
    dense: bool
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    max_lac: int


def frame_extent(buf: Bytes, header: FrameHeader | None = None) -> FrameExtent:
    """Return the extent of a checked frame. A record has the extent −1 to −1. ``buf`` may be the header alone if the
    frame has no flag of BEYOND_HEADER."""
    header = parse_header(buf) if header is None else header
    kind, flags, _, _, first, carried, _, count, _, _, _, _, _ = header  # a starred name would cost a list
    if kind != _ENTRIES:
        return FrameExtent(-1, -1, False, 0, -1)
    if not flags & BEYOND_HEADER:
        return _new(FrameExtent, (first, first + count - 1, True, count, carried))
    columns = columns_of(header, buf)
    last = first + count - 1
    dense = True
    if columns.stripe is not None:
        first, last = columns.stripe.extent(first)
        dense = last - first + 1 == count
    elif columns.ids is not None:
        first, last = int(columns.ids.min()), int(columns.ids.max())
        dense = last - first + 1 == count and bool((np.diff(np.sort(columns.ids)) == 1).all())
    lac = header.lac if columns.lacs is None else max(header.lac, int(columns.lacs.max()))
    return FrameExtent(first, last, dense, count, lac)


def entry_ids_of(header: FrameHeader, buf: Bytes) -> I64:
    """Return the id of each entry in a checked frame."""
    columns = columns_of(header, buf)
    if columns.ids is not None:
        return columns.ids
    if columns.present is not None:
        return header.first_entry_id + np.flatnonzero(columns.present)
    return np.arange(header.first_entry_id, header.first_entry_id + header.count, dtype=np.int64)


def encode_frame(
    batch: EntryBatch,
    *,
    digester: Digester | None,
    ledger_id: int | None = None,
    first_entry_id: int | None = None,
    lac: int | None = None,
    length_before: int | None = None,
    session: int = 0,
    join: Join = joined,
) -> bytearray:
    """Encode a frame of all entries of the batch, with one copy of the payload.

    An argument that is None is taken from the batch. Numbers that the batch lists become columns. If ``digester`` is
    None, the frame keeps the batch's digests (P6). Then no argument may change a number that the digests cover, and
    entries may exceed the size limit, because another writer made them. Raises InvalidArgumentError for an empty batch
    or a frame over FRAME_BYTES_MAX, and EntryTooLargeError for an entry over its limit.
    """
    run = _numbered(batch, ledger_id, first_entry_id, lac, length_before)
    if digester is None:
        if run.digests is None or run.digest_type is None:
            raise InvalidArgumentError("entries without their digests need a digester", value=f"ledger {run.ledger_id}")
        digests, digest_type = run.digests, run.digest_type
    else:
        if digester.ledger_id != run.ledger_id:
            raise InvalidArgumentError("the digester is another ledger's", value=f"{digester.ledger_id}")
        check_entry_sizes(run.lengths)
        digests, digest_type = digester.for_batch(run), digester.digest_type
    flags, columns = 0, [column_bytes(run.lengths, "<u4"), column_bytes(digests, "u1")]
    for flag, numbers in ((IDS, run.ids), (LACS, run.lacs), (LEDGER_LENGTHS, run.ledger_lengths)):
        if numbers is not None:
            flags |= flag
            columns.append(column_bytes(numbers, "<i8"))
    head = (1, flags, int(digest_type), run.ledger_id, run.first_entry_id, run.lac, run.length_before, run.count)
    return assemble(head, columns, run.payload, session, join)


def encode_one(
    payload: Bytes, *, digester: Digester, entry_id: int, lac: int, length_before: int, session: int = 0
) -> bytearray:
    """Do the same as :func:`encode_frame` for one new entry, without numpy's fixed cost."""
    size, ledger_id = len(payload), digester.ledger_id
    check_entry_size(size)
    digest = digester.digest(ENTRY_HEADER.pack(ledger_id, entry_id, lac, length_before + size), payload)
    head = (1, 0, int(digester.digest_type), ledger_id, entry_id, lac, length_before, 1)
    return assemble(head, (U32_LE.pack(size) + digest,), payload, session)


def encode_striped(
    batch: EntryBatch,
    *,
    ledger_id: int,
    first_entry_id: int,
    lac: int,
    length_before: int,
    digest_type: DigestType,
    digests: U8,
    ensemble_size: int,
    write_quorum: int,
    index: int,
    session: int = 0,
) -> bytearray | None:
    """Encode a frame of those entries of the batch that the ensemble ``index`` holds. Return None if it holds none.

    ``digests`` are the digests of the whole batch, of type ``digest_type``; the caller computes them once for all
    indices. The ids are consecutive from ``first_entry_id`` on. Raises the same errors as :func:`encode_frame`.
    """
    run = _numbered(batch, ledger_id, first_entry_id, lac, length_before)
    check_entry_sizes(run.lengths)
    if not 0 < write_quorum < ensemble_size <= 0xFFFF or not 0 <= index < ensemble_size:
        raise InvalidArgumentError("no such stripe", value=f"E {ensemble_size}, Qw {write_quorum}, index {index}")
    if run.ids is not None or run.ledger_lengths is not None or length_before < 0:
        raise InvalidArgumentError("only entries in a row can be striped", value=f"ledger {ledger_id}")
    if digests.shape != (run.count, digest_type.digest_bytes):
        value = f"{digests.shape} for {run.count} entries of type {digest_type.name}"
        raise InvalidArgumentError("digests of another batch or type", value=value)
    stripe = Stripe(ensemble_size, write_quorum, index, run.count)
    at = np.flatnonzero(stripe.present(first_entry_id)).astype(np.int64, copy=False)
    if at.size == 0:
        return None
    flags, columns = STRIPED, [STRIPE_PREFIX.pack(ensemble_size, write_quorum, index, 0, run.count)]
    columns += [column_bytes(run.lengths, "<u4"), column_bytes(digests[at], "u1")]
    if run.lacs is not None:
        flags, lac = flags | LACS, int(run.lacs[at].max())
        columns.append(column_bytes(run.lacs[at], "<i8"))
    head = (1, flags, int(digest_type), ledger_id, first_entry_id, lac, length_before, int(at.size))
    return assemble(head, columns, gather_payload(run, at), session)


def decode_frame(
    buf: Bytes,
    *,
    digester: Digester | None = None,
    verify_digests: bool = False,
    parsed: FrameHeader | None = None,
) -> EntryBatch:
    """Return the entries of one whole frame, as views into ``buf``, which must not change afterwards.

    Both CRCs are always checked. With ``digester`` the frame must have the digester's ledger and digest type. With
    ``verify_digests`` the digest of each entry is checked, too. A frame with APACHE_BYTES needs a digester; its entries
    are copied and always verified. ``parsed`` is the result of :func:`parse_header` for the same bytes, if the caller
    has it. Raises IntegrityError if a check fails, and names the first entry with a wrong digest. Raises
    InvalidArgumentError for a record.
    """
    view = byte_view(buf)
    header = check_frame(view, parsed)
    if header.kind != _ENTRIES:
        raise InvalidArgumentError("a record has no entries", value=f"kind {header.kind}")
    if digester is not None and header.ledger_id != digester.ledger_id:
        refuse(f"expected ledger {digester.ledger_id}", header)
    columns = columns_of(header, buf)
    payload = view[FRAME_HEADER_BYTES + header.columns_bytes :].toreadonly()
    if header.flags & APACHE_BYTES:
        return _decode_apache(header, columns, payload, digester)
    if digester is not None and header.digest_type != digester.digest_type:
        refuse(f"digest type {header.digest_type}, the ledger has {int(digester.digest_type)}", header)
    batch = batch_of(header, columns, payload)
    if verify_digests:
        if digester is None:
            raise InvalidArgumentError("verifying digests needs a digester", value=f"ledger {header.ledger_id}")
        _check_digests(batch, digester)
    return batch


def batch_of(header: FrameHeader, columns: Columns, payload: memoryview) -> EntryBatch:
    """Return the entries of a checked frame as a batch. The payload of a PARTIAL frame has only parts of the
    entries."""
    ids, ledger_lengths = columns.ids, columns.ledger_lengths
    first, before = header.first_entry_id, header.length_before
    if columns.present is not None:
        at = np.flatnonzero(columns.present)
        ids, first = first + at, first + int(at[0])
        if before >= 0:
            ledger_lengths = (before + np.cumsum(columns.span_lengths, dtype=np.int64))[at]
            before = int(ledger_lengths[0]) - int(columns.lengths[0])
    return EntryBatch(
        lengths=columns.lengths,
        payload=payload,
        ledger_id=header.ledger_id,
        first_entry_id=first,
        digests=columns.digests,
        digest_type=_DIGEST_TYPES[header.digest_type],
        ids=ids,
        lac=header.lac,
        lacs=columns.lacs,
        length_before=before,
        ledger_lengths=ledger_lengths,
    )


def _decode_apache(header: FrameHeader, columns: Columns, payload: memoryview, digester: Digester | None) -> EntryBatch:
    if digester is None:
        raise InvalidArgumentError("entries in Apache's layout need a digester", value=f"ledger {header.ledger_id}")
    ends = np.cumsum(columns.lengths, dtype=np.int64)
    batch = split_entries(payload, ends - columns.lengths, columns.lengths, digester)
    expected = np.arange(header.first_entry_id, header.first_entry_id + header.count)
    if not np.array_equal(batch.entry_ids(), expected if columns.ids is None else columns.ids):
        refuse("entry ids differ from those inside the entries", header)
    return batch


def _check_digests(batch: EntryBatch, digester: Digester) -> None:
    if batch.count == 1 and batch.digests is not None and digester.is_right(batch):
        return
    right = digester.verify(batch)
    if not right.all():
        bad = int(batch.entry_ids()[int(right.argmin())])
        raise IntegrityError(
            "an entry's digest differs", value=f"ledger {batch.ledger_id}, entry {bad}", remedy="read another copy"
        )


def _numbered(
    batch: EntryBatch, ledger_id: int | None, first_entry_id: int | None, lac: int | None, length_before: int | None
) -> EntryBatch:
    """Return the batch with the given numbers, or the batch itself if none of its numbers changes."""
    if batch.count == 0:
        raise InvalidArgumentError("a frame needs an entry", value="an empty batch")
    given = (ledger_id, first_entry_id, lac, length_before)
    listed_first = None if batch.ids is None else int(batch.ids.min())
    listed_lac = None if batch.lacs is None else int(batch.lacs.max())
    own = (batch.ledger_id, batch.first_entry_id, batch.lac, batch.length_before)
    wanted = tuple(mine if theirs is None else theirs for theirs, mine in zip(given, own, strict=True))
    if listed_first not in (None, wanted[1]) or listed_lac not in (None, wanted[2]):
        raise InvalidArgumentError("ids or LACs differ from those that the batch lists", value=f"{given}")
    if min(wanted[0], wanted[1]) < 0 or wanted[2] < -1:
        raise InvalidArgumentError("no ledger, entry id or LAC", value=f"{wanted[:3]}")
    if wanted == own:
        return batch
    return EntryBatch(
        lengths=batch.lengths,
        payload=batch.payload,
        ledger_id=wanted[0],
        first_entry_id=wanted[1],
        ids=batch.ids,
        lac=wanted[2],
        lacs=batch.lacs,
        length_before=wanted[3],
        ledger_lengths=batch.ledger_lengths,
    )


def encode_record(kind: int, ledger_id: int, payload: Bytes = b"") -> bytes:
    """Encode a record of kind 2 to 7 with tag 0. Raises InvalidArgumentError for another kind, or for a payload size
    that this kind cannot have."""
    if len(payload) not in RECORD_PAYLOADS.get(kind, ()) or ledger_id < 0:
        raise InvalidArgumentError(
            "no such record", value=f"kind {kind}, ledger {ledger_id}, payload of {len(payload)} bytes"
        )
    return bytes(assemble((kind, 0, DIGEST_NONE, ledger_id, -1, -1, -1, 0), [], payload, 0))


def record_payload(buf: Bytes, header: FrameHeader | None = None) -> memoryview:
    """Return the payload of a checked record."""
    header = parse_header(buf) if header is None else header
    return byte_view(buf)[FRAME_HEADER_BYTES + header.columns_bytes : header.size]


def frame_tag(frame: Bytes) -> int:
    """Return the session number or placement stamp of a frame (bytes 60–63)."""
    return int(U32_LE.unpack_from(frame, TAG_OFFSET)[0])


def with_session(frame: Bytes, session: int) -> bytes:
    """Return a copy of a frame with another session number."""
    view = byte_view(frame)
    return b"".join((view[:TAG_OFFSET], U32_LE.pack(session), view[FRAME_HEADER_BYTES:]))


def slice_frame(buf: Bytes, first: int, last: int, checked: FrameHeader | None = None) -> Bytes | None:
    """Return a frame of the entries with ids ``first`` to ``last``, both inclusive, or None if the frame has none of
    them.

    If the range has all entries of the frame, the result is the frame itself with its tag. Otherwise it is a new frame
    with tag 0, new CRCs and the old digests, by which the reader must verify each entry. Header and columns are
    checked. The payload's CRC is checked only if the frame has no digests (DUMMY, APACHE_BYTES). Raises IntegrityError
    if a check fails. ``checked`` is the result of :func:`check_frame` for the same bytes, if the caller has it; then
    nothing is checked again.
    """
    header = check_header(buf) if checked is None else checked
    extent = frame_extent(buf, header)
    if header.kind != FrameKind.ENTRIES or first > extent.last or last < extent.first or first > last:
        return None
    if first <= extent.first and extent.last <= last:
        return buf
    if header.digest_bytes == 0 and checked is None:
        check_frame(buf)
    columns = columns_of(header, buf)
    at = _positions(header, columns, first, last)
    if at is None:
        return None
    payload = byte_view(buf)[FRAME_HEADER_BYTES + header.columns_bytes :]
    whole = EntryBatch(lengths=columns.lengths, payload=payload)
    lengths = columns.lengths[at]
    header, columns = _with_ledger_lengths(header, columns)
    rest = [column_bytes(columns.digests[at], "u1")]
    listed = (columns.ids, columns.lacs, columns.ledger_lengths)
    rest += [column_bytes(numbers[at], "<i8") for numbers in listed if numbers is not None]
    part = whole.slice(at.start, at.stop) if isinstance(at, slice) else whole.select(at)
    head, out = _sliced_head(header, columns, at, part, (first, last))
    return assemble((*head, int(lengths.size)), [*out, *rest], part.payload, 0)


def _with_ledger_lengths(header: FrameHeader, columns: Columns) -> tuple[FrameHeader, Columns]:
    """Add a column of ledger lengths to a frame with a column of ids. A slice of such a frame takes entries from any
    position, so their ledger lengths do not follow from the length before."""
    if columns.ids is None or columns.ledger_lengths is not None or header.flags & APACHE_BYTES:
        return header, columns
    ledger_lengths = header.length_before + np.cumsum(columns.lengths, dtype=np.int64)
    header = header._replace(flags=header.flags | LEDGER_LENGTHS)
    return header, columns._replace(ledger_lengths=ledger_lengths)


def _positions(header: FrameHeader, columns: Columns, first: int, last: int) -> slice | I64 | None:
    """Return the positions of the entries with ids ``first`` to ``last``, or None if there are none."""
    low, high = max(first - header.first_entry_id, 0), min(last + 1 - header.first_entry_id, header.span)
    if columns.ids is not None:
        at = np.flatnonzero((columns.ids >= first) & (columns.ids <= last)).astype(np.int64, copy=False)
        return at if at.size else None
    if columns.present is not None:
        low, high = int(np.count_nonzero(columns.present[:low])), int(np.count_nonzero(columns.present[:high]))
    return slice(low, high) if low < high else None


def _sliced_head(
    header: FrameHeader, columns: Columns, at: slice | I64, part: EntryBatch, wanted: tuple[int, int]
) -> tuple[tuple[int, int, int, int, int, int, int], list[bytes]]:
    """Return the header fields of a slice, without its count, and the columns that come before the digests."""
    first, lac, before, span_lengths = header.first_entry_id, header.lac, header.length_before, part.lengths
    out = []
    lac = lac if columns.lacs is None else int(columns.lacs[at].max())
    if columns.ids is not None:
        first = int(columns.ids[at].min())
    else:
        low, high = max(wanted[0] - first, 0), min(wanted[1] + 1 - first, header.span)
        span_lengths = columns.span_lengths[low:high]
        first += low
        before += int(columns.span_lengths[:low].sum()) if before >= 0 else 0
        if columns.stripe is not None:
            out.append(STRIPE_PREFIX.pack(*columns.stripe[:3], 0, high - low))
    if columns.ledger_lengths is not None:
        before = int(columns.ledger_lengths[at][0]) - int(part.lengths[0])
    if header.flags & APACHE_BYTES:
        lac = max(-1, int(entry_headers_of(part.payload, part.offsets()[:-1])[:, 2].max()))
    head = (1, header.flags, header.digest_type, header.ledger_id, first, lac, before)
    return head, [*out, column_bytes(span_lengths, "<u4")]
