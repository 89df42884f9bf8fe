# SPDX-License-Identifier: Apache-2.0
"""Turns entry batches into frames and back; docs/formats.md §1 defines frames.

Layout and checks are in ``frame_layout.py``, extents in ``frame_extents.py``, records and tags in ``frame_record.py``,
frames cut out of frames in ``frame_slice.py``. This file exports their public names too, so that callers import only
it.
"""

from __future__ import annotations

import numpy as np

from bk_core.entries.apache import split_entries
from bk_core.entries.batch import U8, Bytes, EntryBatch, byte_view, check_entry_sizes, gather_payload
from bk_core.entries.digest import Digester
from bk_core.entries.frame_extents import FrameExtent, entry_ids_of, frame_extent
from bk_core.entries.frame_layout import (
    APACHE_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FRAME_VERSION,
    IDS,
    LACS,
    LEDGER_LENGTHS,
    STRIPE_PREFIX,
    STRIPED,
    TAG_OFFSET,
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
from bk_core.entries.frame_record import (
    encode_record,
    frame_tag,
    record_payload,
    with_session,
)
from bk_core.entries.frame_slice import slice_frame
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
