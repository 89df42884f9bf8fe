# SPDX-License-Identifier: Apache-2.0
"""Turns entry batches into frames and back; docs/formats.md §1 defines frames.

Also records, which are frames without entries, tags, which no CRC of a frame covers, and frames cut out of frames, so
that a bookie can answer a read of a few entries although it cannot digest them. Layout and checks are in
``frame_layout.py``, whose public names this file exports too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bk_core.entries.apache import entry_lacs_of, split_entries
from bk_core.entries.batch import I64, U8, Bytes, EntryBatch, byte_view, check_entry_sizes, gather_payload
from bk_core.entries.digest import Digester
from bk_core.entries.frame_layout import (
    APACHE_BYTES,
    DIGEST_NONE,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FRAME_VERSION,
    IDS,
    LACS,
    LEDGER_LENGTHS,
    RECORD_PAYLOADS,
    STRIPE_PREFIX,
    STRIPED,
    TAG_OFFSET,
    U32_LE,
    Columns,
    FrameFlag,
    FrameHeader,
    FrameKind,
    Stripe,
    assemble,
    check_frame,
    check_header,
    column_bytes,
    columns_of,
    parse_header,
    refuse,
    split_frames,
)
from bk_core.errors import IntegrityError, InvalidArgumentError
from bk_core.model import DigestType
from bk_core.wire.lane import FRAME_BYTES_MAX

__all__ = [
    "FRAME_BYTES_MAX",
    "FRAME_HEADER_BYTES",
    "FRAME_MAGIC",
    "FRAME_VERSION",
    "TAG_OFFSET",
    "FrameExtent",
    "FrameFlag",
    "FrameHeader",
    "FrameKind",
    "check_frame",
    "check_header",
    "decode_frame",
    "encode_frame",
    "encode_record",
    "encode_striped",
    "entry_ids_of",
    "frame_extent",
    "frame_tag",
    "parse_header",
    "record_payload",
    "slice_frame",
    "split_frames",
    "with_session",
]

_TYPE_OF_WIDTH = {kind.digest_bytes: kind for kind in DigestType}


class FrameExtent(NamedTuple):
    """What an index needs of a frame: the ``first`` and ``last`` id, whether every id between them is present
    (``dense``), and the greatest LAC."""

    first: int
    last: int
    dense: bool
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    max_lac: int


def frame_extent(buf: Bytes, header: FrameHeader | None = None) -> FrameExtent:
    """The extent of a checked frame; for a plain frame its header is enough. A record has the extent (−1, −1)."""
    header = parse_header(buf) if header is None else header
    flags, count, first = header.flags, header.count, header.first_entry_id
    if header.kind != FrameKind.ENTRIES:
        return FrameExtent(-1, -1, False, 0, -1)
    if not flags & (STRIPED | IDS | LACS):
        return FrameExtent(first, first + count - 1, True, count, header.lac)
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
    """The id of each entry in a checked frame."""
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
) -> bytearray:
    """A frame of all entries of the batch; copies the payload once.

    Arguments that are None are taken from the batch. With ``digester`` None the batch's digests are kept (P6); then no
    argument may change what they cover, and entries over the size limit are allowed, since another writer made them.
    Ids, LACs and ledger lengths that the batch lists become columns. Raises InvalidArgumentError for an empty batch or
    a frame over FRAME_BYTES_MAX, EntryTooLargeError for an entry over its limit.
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
    return assemble(head, columns, run.payload, session)


def encode_striped(
    batch: EntryBatch,
    *,
    ledger_id: int,
    first_entry_id: int,
    lac: int,
    length_before: int,
    digests: U8,
    ensemble_size: int,
    write_quorum: int,
    index: int,
    session: int = 0,
) -> bytearray | None:
    """The frame of those entries of the batch that ensemble ``index`` holds, or None if it holds none.

    ``digests`` are those of the whole batch, computed once for all indices; their width tells the digest type. The ids
    are consecutive from ``first_entry_id``. Raises as :func:`encode_frame`.
    """
    run = _numbered(batch, ledger_id, first_entry_id, lac, length_before)
    check_entry_sizes(run.lengths)
    if not 0 < write_quorum < ensemble_size <= 0xFFFF or not 0 <= index < ensemble_size:
        raise InvalidArgumentError("no such stripe", value=f"E {ensemble_size}, Qw {write_quorum}, index {index}")
    if run.ids is not None or run.ledger_lengths is not None or length_before < 0:
        raise InvalidArgumentError("only entries in a row can be striped", value=f"ledger {ledger_id}")
    if digests.shape[0] != run.count or digests.shape[1] not in _TYPE_OF_WIDTH:
        raise InvalidArgumentError("digests of another batch", value=f"{digests.shape} for {run.count} entries")
    stripe = Stripe(ensemble_size, write_quorum, index, run.count)
    at = np.flatnonzero(stripe.present(first_entry_id)).astype(np.int64, copy=False)
    if at.size == 0:
        return None
    flags, columns = STRIPED, [STRIPE_PREFIX.pack(ensemble_size, write_quorum, index, 0, run.count)]
    columns += [column_bytes(run.lengths, "<u4"), column_bytes(digests[at], "u1")]
    if run.lacs is not None:
        flags, lac = flags | LACS, int(run.lacs[at].max())
        columns.append(column_bytes(run.lacs[at], "<i8"))
    digest_type = _TYPE_OF_WIDTH[digests.shape[1]]
    head = (1, flags, int(digest_type), ledger_id, first_entry_id, lac, length_before, int(at.size))
    return assemble(head, columns, gather_payload(run, at), session)


def decode_frame(buf: Bytes, *, digester: Digester | None = None, verify_digests: bool = False) -> EntryBatch:
    """The entries of one whole frame, as views into ``buf``, which must not be changed any more.

    Both CRCs are always checked; with ``digester`` also that ledger and digest type are the digester's; with
    ``verify_digests`` also each entry's digest. A frame with APACHE_BYTES needs a digester; its entries are copied and
    always verified. Raises IntegrityError if a check fails, which names the first bad entry, and InvalidArgumentError
    for a record.
    """
    header = check_frame(buf)
    if header.kind != FrameKind.ENTRIES:
        raise InvalidArgumentError("a record has no entries", value=f"kind {header.kind}")
    if digester is not None and header.ledger_id != digester.ledger_id:
        refuse(f"expected ledger {digester.ledger_id}", header)
    columns = columns_of(header, buf)
    payload = byte_view(buf)[FRAME_HEADER_BYTES + header.columns_bytes :].toreadonly()
    if header.flags & APACHE_BYTES:
        return _decode_apache(header, columns, payload, digester)
    if digester is not None and header.digest_type != digester.digest_type:
        refuse(f"digest type {header.digest_type}, the ledger has {int(digester.digest_type)}", header)
    batch = _batch_of(header, columns, payload)
    if verify_digests:
        if digester is None:
            raise InvalidArgumentError("verifying digests needs a digester", value=f"ledger {header.ledger_id}")
        _check_digests(batch, digester)
    return batch


def _batch_of(header: FrameHeader, columns: Columns, payload: memoryview) -> EntryBatch:
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
        digest_type=DigestType(header.digest_type) if header.digest_type else None,
        ids=ids,
        lac=header.lac,
        lacs=columns.lacs,
        length_before=before,
        ledger_lengths=ledger_lengths,
    )


def _decode_apache(header: FrameHeader, columns: Columns, payload: memoryview, digester: Digester | None) -> EntryBatch:
    if digester is None:
        raise InvalidArgumentError("entries in Apache's layout need a digester", value=f"ledger {header.ledger_id}")
    batch = split_entries(payload, columns.lengths, digester)
    expected = np.arange(header.first_entry_id, header.first_entry_id + header.count)
    if not np.array_equal(batch.entry_ids(), expected if columns.ids is None else columns.ids):
        refuse("entry ids differ from those inside the entries", header)
    return batch


def _check_digests(batch: EntryBatch, digester: Digester) -> None:
    right = digester.verify(batch)
    if not right.all():
        bad = int(batch.entry_ids()[int(right.argmin())])
        raise IntegrityError(
            "an entry's digest differs", value=f"ledger {batch.ledger_id}, entry {bad}", remedy="read another copy"
        )


def _numbered(
    batch: EntryBatch, ledger_id: int | None, first_entry_id: int | None, lac: int | None, length_before: int | None
) -> EntryBatch:
    """The batch with the given numbers; the batch itself if none of them differs."""
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


def verified_batches(frames: memoryview, digester: Digester, *, always: bool) -> list[EntryBatch]:
    """The batches in the frames of an answer. Raises IntegrityError for the first frame that fails a check.

    Both CRCs are always checked. Entry digests are verified if ``always`` (recovery, MAC ledgers), and for frames that
    the bookie cut: a stored frame has its placement stamp as tag, a cut frame has 0 (docs/formats.md §1.4).
    """
    batches = []
    for header, frame in split_frames(frames):
        if header.kind != FrameKind.ENTRIES:
            raise IntegrityError("a bookie answered with a record", value=f"kind {header.kind}")
        batches.append(decode_frame(frame, digester=digester, verify_digests=always or header.tag == 0))
    return batches


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


def slice_frame(buf: Bytes, first: int, last: int) -> Bytes | None:
    """A frame of the entries with ids ``first`` to ``last``, both inclusive; None if there are none.

    If that is all of them, returns the frame itself with its tag. Otherwise makes a new frame with tag 0 and new CRCs.
    It keeps the digests, by which the reader must verify each entry. The payload's CRC is checked only if the frame has
    no digests (DUMMY, APACHE_BYTES); header and columns are always checked. Raises IntegrityError if a check fails.
    """
    header = check_header(buf)
    extent = frame_extent(buf, header)
    if header.kind != FrameKind.ENTRIES or first > extent.last or last < extent.first or first > last:
        return None
    if first <= extent.first and extent.last <= last:
        return buf
    if header.digest_bytes == 0:
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
    rest += [column_bytes(numbers[at], "<i8") for numbers in columns[-3:] if numbers is not None]
    part = whole.slice(at.start, at.stop) if isinstance(at, slice) else whole.select(at)
    head, out = _sliced_head(header, columns, at, part, (first, last))
    return assemble((*head, int(lengths.size)), [*out, *rest], part.payload, 0)


def _with_ledger_lengths(header: FrameHeader, columns: Columns) -> tuple[FrameHeader, Columns]:
    """Adds the ledger length of each entry to a frame with listed ids: its entries may be taken from any place."""
    if columns.ids is None or columns.ledger_lengths is not None or header.flags & APACHE_BYTES:
        return header, columns
    ledger_lengths = header.length_before + np.cumsum(columns.lengths, dtype=np.int64)
    header = header._replace(flags=header.flags | LEDGER_LENGTHS)
    return header, columns._replace(ledger_lengths=ledger_lengths)


def _positions(header: FrameHeader, columns: Columns, first: int, last: int) -> slice | I64 | None:
    """The positions of the entries with ids ``first`` to ``last``; None if there are none."""
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
    """The header fields of a slice without its count, and the columns before the digests."""
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
        lac = max(-1, int(entry_lacs_of(part.payload, part.offsets()).max()))
    head = (1, header.flags, header.digest_type, header.ledger_id, first, lac, before)
    return head, [*out, column_bytes(span_lengths, "<u4")]
