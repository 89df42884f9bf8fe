# SPDX-License-Identifier: Apache-2.0
"""Converts columns into envelopes and back. An envelope is an entry with the key, value, timestamp and headers of one
row (docs/formats.md §7).

::

    u8   version     1
    u8   flags       1: key present; 2: value present; 4: headers present; others 0
    u16  headers     how many there are
    u32  key bytes
    i64  timestamp   microseconds since 1970, UTC
    then two i32 a header: bytes of its key and of its value, −1: null; a header that is null itself: −2 and −1
    then the key, then key and value of each header in order, then the value, to the end

All integers are little-endian. Theory. Each part of an entry is one piece of the payload, and the pieces of a batch are
consecutive. So the payload already is an Arrow column of pieces, and a column of keys is a selection of these pieces.
Numpy finds the ends of the pieces, Arrow selects pieces, and no Python code runs for each entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bk_core.columns import texts
from bk_core.entries.batch import EntryBatch

if TYPE_CHECKING:
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

VERSION = 1
KEY, VALUE, HEADERS = 1, 2, 4
HEAD = np.dtype([("version", "u1"), ("flags", "u1"), ("headers", "<u2"), ("key", "<u4"), ("timestamp", "<i8")])
PAIR = np.dtype([("key", "<i4"), ("value", "<i4")])
HEADERS_MAX = (1 << 16) - 1
NULL, NULL_HEADER = -1, -2

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER))


@dataclass(frozen=True, slots=True)
class Envelopes:
    """The columns of some entries. ``bad`` marks the entries that are not envelopes. All columns of these entries are
    null."""

    key: pa.Array
    value: pa.Array
    timestamp: pa.Array
    headers: pa.Array
    bad: Mask


def encode(key: pa.Array, value: pa.Array, timestamp: pa.Array, headers: pa.Array) -> pa.Array:
    """Return a binary array with one entry for each row. ``key`` and ``value`` must be binary, ``timestamp`` must have
    type TIMESTAMP and no nulls, and ``headers`` must have type HEADERS_TYPE. Key, value and headers may be null. No row
    may have more than HEADERS_MAX headers."""
    count = len(value)
    head = np.zeros(count, dtype=HEAD)
    head["version"] = VERSION
    head["timestamp"] = timestamp.cast(pa.int64()).to_numpy()
    for flag, column in ((KEY, key), (VALUE, value), (HEADERS, headers)):
        head["flags"] |= np.where(_valid(column), flag, 0).astype(np.uint8)
    head["key"] = pc.fill_null(pc.binary_length(key), 0).to_numpy(zero_copy_only=False)
    parts = [key, value]
    if headers.null_count < count:
        head["headers"] = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
        table, data = _encode_headers(headers)
        parts = [table, key, data, value]
    parts = [_fixed(head.view(np.uint8).reshape(count, HEAD.itemsize)), *parts]
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")


def decode(batch: EntryBatch) -> Envelopes:
    """Return the columns of entries. The entries may have any bytes. This never raises, and allocates at most a few
    times the size of the entries."""
    lengths = batch.lengths.astype(np.int64)
    starts = batch.offsets()[:-1]
    payload = np.frombuffer(batch.payload, dtype=np.uint8)
    long_enough = lengths >= HEAD.itemsize
    head = _gather(payload, np.where(long_enough, starts, 0), HEAD, long_enough)
    counts = head["headers"].astype(np.int64)
    ok = long_enough & (head["version"] == VERSION) & (head["flags"] < KEY + VALUE + HEADERS + 1)
    ok &= (counts == 0) | (head["flags"] & HEADERS > 0)
    ok &= (head["key"] == 0) | (head["flags"] & KEY > 0)
    ok &= HEAD.itemsize + PAIR.itemsize * counts <= lengths
    counts = np.where(ok, counts, 0)
    pairs, of_entry = _pairs(payload, starts, counts)
    ok &= _sane(pairs, of_entry, len(ok))
    sizes = np.maximum(pairs["key"], 0).astype(np.int64) + np.maximum(pairs["value"], 0)
    header_bytes = np.bincount(of_entry, weights=sizes, minlength=len(ok)).astype(np.int64)
    rest = lengths - HEAD.itemsize - PAIR.itemsize * counts - head["key"] - header_bytes
    ok &= (rest >= 0) & ((rest == 0) | (head["flags"] & VALUE > 0))
    return _cut(batch, head, ok, pairs, of_entry, rest)


def _cut(
    batch: EntryBatch, head: npt.NDArray[np.void], ok: Mask, pairs: npt.NDArray[np.void], of_entry: I64, rest: I64
) -> Envelopes:
    """Build the columns from the parts of each entry. An entry that is not ``ok`` becomes a single piece, which no
    column selects."""
    kept = ok[of_entry]
    pairs, of_entry = pairs[kept], of_entry[kept]
    counts = np.bincount(of_entry, minlength=len(ok)).astype(np.int64)
    base = np.cumsum(3 + 2 * counts) - (3 + 2 * counts)  # pieces of an entry: head, key, two for each header, value
    within = np.arange(len(of_entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = base[of_entry] + 2 + 2 * within
    sizes = np.zeros(int((3 + 2 * counts).sum()), dtype=np.int64)
    sizes[base] = np.where(ok, HEAD.itemsize + PAIR.itemsize * counts, batch.lengths)
    sizes[base + 1] = np.where(ok, head["key"], 0)
    sizes[at], sizes[at + 1] = np.maximum(pairs["key"], 0), np.maximum(pairs["value"], 0)
    sizes[base + 2 + 2 * counts] = np.where(ok, rest, 0)
    pieces = _pieces(batch, sizes)
    flags = head["flags"]
    keys, bad_text = _text(_pick(pieces, at, pairs["key"] >= 0))
    ok = ok & (np.bincount(of_entry, weights=bad_text, minlength=len(ok)) == 0)
    values = _pick(pieces, at + 1, pairs["value"] >= 0)
    has_headers = ok & (flags & HEADERS > 0)
    return Envelopes(
        key=_pick(pieces, base + 1, ok & (flags & KEY > 0)),
        value=_pick(pieces, base + 2 + 2 * counts, ok & (flags & VALUE > 0)),
        timestamp=pa.array(head["timestamp"].astype(np.int64), mask=~ok).view(TIMESTAMP),
        headers=_headers(keys, values, pairs["key"] == NULL_HEADER, counts, has_headers),
        bad=~ok,
    )


def _headers(keys: pa.Array, values: pa.Array, is_null: Mask, counts: I64, valid: Mask) -> pa.Array:
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER), mask=pa.array(is_null))
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=HEADERS_TYPE, mask=pa.array(~valid))


def _encode_headers(headers: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the table of lengths and the data of each row's headers."""
    flat = headers.flatten()
    keys, values = (pc.struct_field(flat, [index]) for index in range(2))
    pairs = np.zeros(len(flat), dtype=PAIR)
    pairs["key"] = pc.fill_null(pc.binary_length(keys), NULL).to_numpy(zero_copy_only=False)
    pairs["value"] = pc.fill_null(pc.binary_length(values), NULL).to_numpy(zero_copy_only=False)
    pairs["key"][~_valid(flat)] = NULL_HEADER
    ends = np.cumsum(pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False), dtype=np.int64)
    offsets = np.concatenate(([0], ends))
    table = _binary(offsets * PAIR.itemsize, pa.py_buffer(pairs))
    both = pc.binary_join_element_wise(
        keys.cast(pa.binary()), values, b"", null_handling="replace", null_replacement=b""
    )
    sizes = np.concatenate(([0], np.cumsum(pc.binary_length(both).to_numpy(zero_copy_only=False), dtype=np.int64)))
    _, _, data = both.buffers()
    return table, _binary(sizes[offsets], data or pa.py_buffer(b""))


def _pairs(payload: npt.NDArray[np.uint8], starts: I64, counts: I64) -> tuple[npt.NDArray[np.void], I64]:
    """Return the lengths of all headers, and the index of each header's entry."""
    of_entry = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(of_entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = starts[of_entry] + HEAD.itemsize + PAIR.itemsize * within
    return _gather(payload, at, PAIR, np.ones(len(at), dtype=np.bool_)), of_entry


def _sane(pairs: npt.NDArray[np.void], of_entry: I64, count: int) -> Mask:
    key, value = pairs["key"], pairs["value"]
    wrong = (key < NULL_HEADER) | (value < NULL) | ((key == NULL_HEADER) & (value != NULL))
    sane: Mask = np.bincount(of_entry, weights=wrong, minlength=count) == 0
    return sane


def _gather(payload: npt.NDArray[np.uint8], at: I64, kind: np.dtype[np.void], there: Mask) -> npt.NDArray[np.void]:
    """Return the structs at byte positions ``at``. Where ``there`` is false, the struct has zeros."""
    found = np.zeros((len(at), kind.itemsize), dtype=np.uint8)
    found[there] = payload[at[there, None] + np.arange(kind.itemsize)]
    return found.view(kind).reshape(len(at))


def _pieces(batch: EntryBatch, sizes: I64) -> pa.Array:
    return _binary(np.concatenate(([0], np.cumsum(sizes))), pa.py_buffer(batch.payload))


def _pick(pieces: pa.Array, at: I64, valid: Mask) -> pa.Array:
    return pieces.take(pa.array(at, mask=~valid)).cast(pa.binary())


def _text(keys: pa.Array) -> tuple[pa.Array, Mask]:
    """Return the keys as strings, and a mask of the keys that are not UTF-8. These keys become null."""
    try:
        return keys.cast(pa.string()), np.zeros(len(keys), dtype=np.bool_)
    except pa.ArrowInvalid:
        bad = texts.no_text(keys.to_pylist())
        return pc.if_else(pa.array(bad), pa.scalar(None, pa.binary()), keys).cast(pa.string()), bad


def _valid(column: pa.Array) -> Mask:
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _fixed(rows: npt.NDArray[np.uint8]) -> pa.Array:
    count, width = rows.shape
    return _binary(np.arange(count + 1, dtype=np.int64) * width, pa.py_buffer(np.ascontiguousarray(rows)))


def _binary(offsets: I64, data: pa.Buffer) -> pa.Array:
    narrow = int(offsets[-1]) < 1 << 31
    buffers = [None, pa.py_buffer(offsets.astype(np.int32 if narrow else np.int64)), data]
    return pa.Array.from_buffers(pa.binary() if narrow else pa.large_binary(), len(offsets) - 1, buffers)
