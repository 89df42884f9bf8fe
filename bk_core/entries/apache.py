# SPDX-License-Identifier: Apache-2.0
"""Apache's format of entries and LAC bodies, byte for byte (docs/formats.md §2)."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from bk_core.entries.batch import I64, U8, U32, Bytes, EntryBatch, byte_view
from bk_core.entries.digest import ENTRY_HEADER, Digester
from bk_core.errors import IntegrityError

HEADER_BYTES = 32
_LAC_BODY = struct.Struct(">qq")


def split_entries(
    buffer: memoryview, begins: I64, lengths: U32, digester: Digester, *, keep_heads: bool = False
) -> EntryBatch:
    """Return entries in Apache's layout as a batch. ``begins`` has the position of each in ``buffer``, in order.
    Verifies each digest. Raises IntegrityError, which names the first bad entry. The payloads are copied. With
    ``keep_heads`` nothing is copied: the batch is ``buffer``, up to the end of the last entry, has the column
    ``heads``, and does not know the ledger's length."""
    prefix_bytes = HEADER_BYTES + digester.digest_bytes
    if lengths.size == 0:
        return EntryBatch(lengths=lengths, payload=memoryview(b""), ledger_id=digester.ledger_id)
    if int(lengths.min()) < prefix_bytes:
        raise IntegrityError(
            f"an Apache entry is shorter than its {prefix_bytes} bytes of header and digest",
            value=f"ledger {digester.ledger_id}, entry number {int(lengths.argmin())}",
            remedy="read another copy",
        )
    prefixes = _rows(buffer, begins, prefix_bytes)
    numbers = np.ascontiguousarray(prefixes[:, :HEADER_BYTES]).view(">i8").astype(np.int64)
    if bool((numbers[:, 0] != digester.ledger_id).any()):
        raise IntegrityError(
            "an Apache entry of another ledger", value=f"ledger {digester.ledger_id}", remedy="read another copy"
        )
    payload_begins, ends = (begins + prefix_bytes).tolist(), (begins + lengths).tolist()
    payloads = list(map(buffer.__getitem__, map(slice, payload_begins, ends)))
    payload_lengths = (lengths - np.uint32(prefix_bytes)).astype(np.uint32)
    ids, lacs, ledger_lengths = (np.ascontiguousarray(numbers[:, k]) for k in (1, 2, 3))
    crcs = digester.payload_crcs(payloads)
    computed = digester.compute(ids, lacs, ledger_lengths, payload_lengths, payloads, crcs)
    digests = np.ascontiguousarray(prefixes[:, HEADER_BYTES:])
    right = (computed == digests).all(axis=1)
    if not right.all():
        raise IntegrityError(
            "an entry's digest differs",
            value=f"ledger {digester.ledger_id}, entry {int(ids[int(right.argmin())])}",
            remedy="read another copy",
        )
    batch = EntryBatch(
        lengths=payload_lengths,
        payload=memoryview(b"" if keep_heads else b"".join(payloads)),
        ledger_id=digester.ledger_id,
        first_entry_id=int(ids.min()),
        digests=digests,
        digest_type=digester.digest_type,
        ids=ids,
        lac=int(lacs.max()),
        lacs=lacs,
        length_before=int(ledger_lengths[0]) - int(payload_lengths[0]),
        ledger_lengths=ledger_lengths,
        payload_crcs=crcs,
    ).compact()
    return _with_heads(batch, buffer, begins + lengths) if keep_heads else batch


def split_few(
    buffer: memoryview,
    begins: Sequence[int],
    lengths: Sequence[int],
    digester: Digester,
    *,
    keep_heads: bool = False,
) -> EntryBatch | None:
    """Do the same as :func:`split_entries` for a few entries, without numpy's fixed cost. Return None for entries that
    fail a check or whose ids are not consecutive; the caller then calls :func:`split_entries`."""
    prefix_bytes = HEADER_BYTES + digester.digest_bytes
    if not lengths or min(lengths) < prefix_bytes:
        return None
    numbers, payloads, headers, digests = list[tuple[int, int, int]](), list[memoryview](), list[bytes](), list[bytes]()
    for begin, length in zip(begins, lengths, strict=True):
        header, digest = bytes(buffer[begin : begin + HEADER_BYTES]), bytes(buffer[begin:][HEADER_BYTES:prefix_bytes])
        payload = buffer[begin + prefix_bytes : begin + length]
        ledger_id, *rest = ENTRY_HEADER.unpack(header)
        if ledger_id != digester.ledger_id or digester.digest(header, payload) != digest:
            return None
        numbers.append((rest[0], rest[1], rest[2]))
        payloads.append(payload)
        headers.append(header)
        digests.append(digest)
    ids, lacs, ledger_lengths = zip(*numbers, strict=True)
    sizes = [len(payload) for payload in payloads]
    before, lac = ledger_lengths[0] - sizes[0], max(lacs)
    if before < 0 or ids != tuple(range(ids[0], ids[0] + len(ids))):
        return None
    follows = ledger_lengths == tuple(accumulate(sizes[1:], initial=ledger_lengths[0]))
    payload_lengths = np.array(sizes, dtype=np.uint32)
    rows = np.frombuffer(b"".join(digests), np.uint8).reshape(len(ids), digester.digest_bytes)
    batch = EntryBatch(
        lengths=payload_lengths,
        payload=memoryview(b"" if keep_heads else b"".join(payloads)),
        ledger_id=digester.ledger_id,
        first_entry_id=ids[0],
        digests=rows,
        digest_type=digester.digest_type,
        lac=lac,
        lacs=None if min(lacs) == lac else np.array(lacs, dtype=np.int64),
        length_before=before,
        ledger_lengths=None if follows else np.array(ledger_lengths, dtype=np.int64),
        payload_crcs=digester.crcs_of_digests(headers, rows, payload_lengths) if keep_heads else None,
    )
    return _with_heads(batch, buffer, np.array(begins) + np.array(lengths)) if keep_heads else batch


def _with_heads(batch: EntryBatch, buffer: memoryview, ends: I64) -> EntryBatch:
    """Return the batch with ``buffer`` as its payload. ``ends`` has the end of each entry in it."""
    lengths = ends.astype(np.uint32)
    lengths[1:] -= lengths[:-1].copy()  # np.diff would cost ten times as much for a few entries
    payload, heads = buffer[: int(ends[-1])], lengths - batch.lengths
    return replace(batch, lengths=lengths, payload=payload, heads=heads, length_before=-1, ledger_lengths=None)


def entry_headers_of(buffer: memoryview, begins: I64) -> I64:
    """Return the header of each Apache entry that begins in ``buffer`` at one of the positions ``begins``. A row of the
    result has ledger id, entry id, LAC and ledger length. Each entry must have at least HEADER_BYTES."""
    return _rows(buffer, begins, HEADER_BYTES).view(">i8").astype(np.int64)


def _rows(buffer: memoryview, begins: I64, size: int) -> U8:
    """Return ``size`` bytes from each of these positions in ``buffer``, as rows. The bytes must be there."""
    raw = np.frombuffer(buffer, dtype=np.uint8)
    rows = np.ndarray((raw.size - size + 1,), f"V{size}", raw, 0, (1,))[begins]
    return rows.view(np.uint8).reshape(-1, size)


def lac_body(lac: int, digester: Digester) -> bytes:
    """Return the body of Apache's WRITE_LAC: ledger id, LAC, and a digest over both."""
    body = _LAC_BODY.pack(digester.ledger_id, lac)
    return body + digester.digest(body)


def parse_lac_body(body: Bytes, digester: Digester) -> int:
    """Return the LAC in a WRITE_LAC body. Raises IntegrityError if its size, digest or ledger is wrong (P5)."""
    raw = bytes(byte_view(body))
    expected = _LAC_BODY.size + digester.digest_bytes
    if len(raw) != expected:
        raise IntegrityError(f"a LAC body has {expected} bytes", value=f"ledger {digester.ledger_id}: {len(raw)} bytes")
    ledger_id, lac = _LAC_BODY.unpack_from(raw)
    if not hmac.compare_digest(raw[16:], digester.digest(raw[:16])) or ledger_id != digester.ledger_id:
        raise IntegrityError("a LAC body's digest or ledger differs", value=f"ledger {digester.ledger_id}")
    return int(lac)
