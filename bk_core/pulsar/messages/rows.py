# SPDX-License-Identifier: Apache-2.0
"""Makes Arrow record batches from messages. The names of the columns are those of pulsar-spark."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bk_core.entries.batch import I64, U8
from bk_core.errors import InvalidArgumentError
from bk_core.pulsar.messages import heads
from bk_core.pulsar.messages.decoder import Columns, Messages
from bk_core.pulsar.messages.scan import Mask, Wanted, scan
from bk_core.pulsar.model.message_id import MessageId

TIMESTAMP = pa.timestamp("ms", tz="UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())
TYPES: Mapping[str, pa.DataType] = {
    "value": pa.binary(),
    "__key": pa.binary(),
    "__topic": pa.string(),
    "__messageId": pa.binary(),
    "__publishTime": TIMESTAMP,
    "__eventTime": TIMESTAMP,
    "__messageProperties": PROPERTIES,
    "__partition": pa.int32(),
    "__producer": pa.string(),
    "__sequenceId": pa.int64(),
    "__orderingKey": pa.binary(),
    "__schemaVersion": pa.binary(),
}
"""All columns that a read can choose, and their types."""
DEFAULT_COLUMNS = tuple(TYPES)[:7]
"""The columns of a read whose caller chooses no columns."""
_KEY_VALUE = Wanted(numbers=frozenset(), spans=frozenset({1, 2}))
_INLINE_BYTES_MAX = 12
"""The size in bytes up to which a value is inside its view, in Arrow's format."""
_I32_MAX, _U32_MAX = (1 << 31) - 1, (1 << 32) - 1
VALUE, KEY = "value", "__key"


class TooManyValuesError(Exception):
    """The error for messages whose values have too many parts to be decoded together. The caller can decode fewer
    messages."""


class Values(Protocol):
    """Decodes the values of messages into columns. ``columns`` has their types."""

    @property
    def columns(self) -> Mapping[str, pa.DataType]: ...

    def unknown(self, found: heads.Heads) -> set[int]:
        """Return the versions of the schema that these entries need and that this object does not have."""
        ...

    def decode(self, found: Messages, wanted: frozenset[str]) -> tuple[Mapping[str, pa.Array], Mapping[int, str]]:
        """Return the wanted columns. Also return, by the index of the message, the reason why its value cannot be
        decoded. Raises TooManyValuesError only for more than one message."""
        ...


def schema_of(columns: Sequence[str] | None, values: Mapping[str, pa.DataType] | None = None) -> pa.Schema:
    """Return the schema with these columns in this order, or with DEFAULT_COLUMNS for None. ``values`` are the columns
    that take the place of ``value``, if values are decoded. Raises InvalidArgumentError if a name is unknown or occurs
    twice, or there is none."""
    known = types_of(values)
    if columns is None:
        columns = [*(values if values is not None else (VALUE,)), *DEFAULT_COLUMNS[1:]]
    names = [columns] if isinstance(columns, str) else list(columns)
    if isinstance(columns, str) or not names or len(set(names)) != len(names):
        raise InvalidArgumentError(
            "columns must be a list of different names", value=repr(columns), remedy=f"choose from {', '.join(known)}"
        )
    if unknown := [name for name in names if name not in known]:
        near = [match for name in unknown for match in get_close_matches(str(name), known, n=1)]
        remedy = f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(known)}"
        raise InvalidArgumentError("no such columns", value=", ".join(map(str, unknown)), remedy=remedy)
    return pa.schema([pa.field(name, known[name]) for name in names])


def types_of(values: Mapping[str, pa.DataType] | None) -> Mapping[str, pa.DataType]:
    """Return all columns that a read can choose. ``values`` is as in :func:`schema_of`."""
    if values is None:
        return TYPES
    return {**values, **{name: kind for name, kind in TYPES.items() if name != VALUE}}


def record_batch(
    found: Messages,
    schema: pa.Schema,
    topic: str,
    partition: int = -1,
    made: Mapping[str, pa.Array] | None = None,
) -> pa.RecordBatch:
    """Return the messages as rows with the columns of ``schema`` (:func:`schema_of`). ``topic`` is the name of the
    topic, or of the partition with the number ``partition``. ``made`` has the columns of decoded values and keys, which
    exist already."""
    given = made or {}
    columns = [given[name] if name in given else _column(name, found, topic, partition) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(name: str, found: Messages, topic: str, partition: int) -> pa.Array:
    columns = found.columns
    match name:
        case "__topic":
            return pa.repeat(pa.scalar(topic, pa.string()), len(found))
        case "__partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), len(found))
        case "__key":
            keys, problems = keys_of(found)
            assert not problems, "messages without a valid key are left out before"
            return keys
        case "__messageId":
            return _message_ids(found, partition)
        case "__eventTime":
            return pa.array(columns.event_time, mask=columns.event_time == 0).view(TIMESTAMP)
        case "__sequenceId":
            return pa.array(columns.sequence_id)
        case "__messageProperties":
            return _properties(columns, found.data)
        case "value" | "__orderingKey":
            return spans(found.data, *(columns.value if name == "value" else columns.ordering_key))
    return _of_entries(name, found).take(pa.array(columns.entry))


def _of_entries(name: str, found: Messages) -> pa.Array:
    """Return a column that has one value for each entry."""
    metadata = found.heads.metadata
    if name == "__publishTime":
        return pa.array(metadata.number(heads.PUBLISH_TIME)).view(TIMESTAMP)
    if name == "__producer":
        return texts(spans(found.data, *metadata.span(heads.PRODUCER)))
    return spans(found.data, *metadata.span(heads.SCHEMA_VERSION))


def spans(data: U8, begin: I64, length: I64) -> pa.Array:
    """Return the bytes at these positions as a binary array. A value is null if its length is negative. Arrow copies
    the bytes, so no Python code runs for each value."""
    there = np.flatnonzero(length >= 0)
    if not there.size:
        return pa.nulls(length.size, pa.binary())
    if data.size <= _I32_MAX and bool(((length > _INLINE_BYTES_MAX) | (length <= 0)).all()):
        return _from_views(data, begin, length)
    return _from_pieces(data, begin, length, there)


def _from_views(data: U8, begin: I64, length: I64) -> pa.Array:
    """Return the bytes by way of Arrow's views, for values that are empty or longer than a view itself can hold. A view
    has a length, the first bytes of the value, the number of a buffer and the position in it. Arrow reserves the memory
    of all values at once and copies each value once; its ``take`` guesses their size and copies twice as much."""
    views = np.zeros((length.size, 4), dtype=np.int32)  # the conversion does not need the first bytes
    views[:, 0], views[:, 3] = np.maximum(length, 0), begin
    has_nulls = bool((length < 0).any())
    is_there = pa.py_buffer(np.packbits(length >= 0, bitorder="little")) if has_nulls else None
    buffers = [is_there, pa.py_buffer(views), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary_view(), length.size, buffers).cast(pa.binary())


def _from_pieces(data: U8, begin: I64, length: I64, there: I64) -> pa.Array:
    """Return the bytes by way of an array over the whole buffer, in which wanted values and the gaps between them
    alternate. Arrow takes every second value from this array. This is faster than views for short values. ``there`` has
    the indices of the values that are not null."""
    has_nulls = there.size < length.size
    first, size = begin[there], length[there]
    if _overlap(first, size):  # the values are not in order
        order = np.argsort(first, kind="stable")
        there, first, size = there[order], first[order], size[order]
    if data.size > _I32_MAX or _overlap(first, size):  # no writer lets values overlap
        view = data.data
        pairs = zip(begin.tolist(), length.tolist(), strict=True)
        return pa.array([None if n < 0 else bytes(view[at : at + n]) for at, n in pairs], pa.binary())
    bounds = np.empty(2 * first.size, dtype=np.int32)
    bounds[0::2], bounds[1::2] = first, first + size
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), bounds.size - 1, buffers)
    at = np.zeros(length.size, dtype=np.int64)
    at[there] = np.arange(0, bounds.size, 2)
    return pieces.take(pa.array(at, mask=length < 0 if has_nulls else None))


def _overlap(begin: I64, length: I64) -> bool:
    """Return whether a value begins before the value before it ends."""
    return bool((begin[1:] < begin[:-1] + length[:-1]).any())


def texts(values: pa.Array) -> pa.Array:
    """Return bytes as text. Bytes that are not UTF-8 become replacement characters, as in Java."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if each is None else each.decode("utf-8", "replace") for each in values.to_pylist()])


def keys_of(found: Messages) -> tuple[pa.Array, Mapping[int, str]]:
    """Return the keys as bytes, and the reason for each key that is marked as base64 and is not, by the index of the
    message. Such a key is null."""
    columns, problems = found.columns, dict[int, str]()
    keys = spans(found.data, *columns.key)
    encoded = np.flatnonzero(columns.key_is_base64 & (columns.key[1] >= 0))
    if not encoded.size:
        return keys, problems
    decoded = keys.to_pylist()
    for at in encoded.tolist():
        try:
            decoded[at] = base64.b64decode(decoded[at], validate=True)
        except binascii.Error as error:
            problems[at], decoded[at] = str(error), None
    return pa.array(decoded, pa.binary()), problems


def _properties(columns: Columns, data: U8) -> pa.Array:
    message, begin, length = columns.properties
    counts = np.bincount(message, minlength=len(columns))
    bounds = np.zeros(len(columns) + 1, dtype=np.int32)
    np.cumsum(counts, out=bounds[1:])
    if not message.size:
        none = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(bounds, pa.int32()), none, none)
    pairs = scan(data, begin, begin + length, _KEY_VALUE)
    key, value = (pc.fill_null(texts(spans(data, *pairs.span(k))), "") for k in (1, 2))
    return pa.MapArray.from_arrays(pa.array(bounds, pa.int32()), key, value)


def _message_ids(found: Messages, partition: int) -> pa.Array:
    columns, rows = found.columns, found.columns.entry
    if found.first_chunks:
        ids = [_message_id(found, at, partition) for at in range(len(found))]
        return pa.array([each.serialize() for each in ids], pa.binary())
    fields: list[tuple[bytes, I64, I64 | None]] = [
        (b"\x08", found.heads.ledger_ids[rows], None),
        (b"\x10", found.heads.entry_ids[rows], None),
    ]
    if partition >= 0:
        fields.append((b"\x18", np.full(rows.size, partition, dtype=np.int64), None))
    fields.append((b"\x20", columns.batch_index, columns.batch_index))
    fields.append((b"\x30", columns.batch_size, columns.batch_size - 1))
    return _packed(fields, rows.size)


def _message_id(found: Messages, at: int, partition: int) -> MessageId:
    columns = found.columns
    row = int(columns.entry[at])
    where = found.heads.position(row)
    return MessageId(
        where.ledger_id,
        where.entry_id,
        partition,
        int(columns.batch_index[at]),
        int(columns.batch_size[at]),
        found.first_chunks.get(row),
    )


def _packed(fields: Sequence[tuple[bytes, I64, I64 | None]], count: int) -> pa.Array:
    """Return protobuf messages of varint fields. ``fields`` has, for each field, its tag of one byte, its value in each
    message, and an array that is negative for each message without the field, or None. No Python runs for each
    message."""
    columns = list[tuple[U8 | int, Mask | None]]()
    for tag, values, there in fields:
        is_there = None if there is None or bool((there >= 0).all()) else there >= 0
        if count and (is_there is None or is_there.any()):
            columns += [(tag[0], is_there), *_varint_columns(np.maximum(values, 0), is_there)]
    if not columns:
        return pa.array([], pa.binary())
    joined, lengths = np.empty((count, len(columns)), dtype=np.uint8), np.full(count, len(columns), dtype=np.int32)
    used = np.ones(joined.shape, dtype=np.bool_)
    for k, (column, is_used) in enumerate(columns):
        joined[:, k] = column
        if is_used is not None:
            used[:, k] = is_used
            lengths -= ~is_used
    bounds = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(lengths, out=bounds[1:])
    packed = joined if bounds[-1] == joined.size else joined[used]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(packed)])


def _varint_columns(values: I64, is_there: Mask | None) -> Iterator[tuple[U8 | int, Mask | None]]:
    """Yield the bytes of varints, which are a column or one value for all messages, and a mask of the messages that
    have this byte, or None if all have it. ``is_there`` is a mask of the messages with a varint, or None."""
    least, most = int(values.min()), int(values.max())
    unsigned: npt.NDArray[Any] = values.astype(np.uint32 if most <= _U32_MAX else np.uint64)
    for shift in range(0, max(1, most.bit_length()), 7):
        more = most >> shift + 7
        if least == most:
            yield most >> shift & 0x7F | (0x80 if more else 0), is_there
            continue
        byte = (unsigned >> shift).astype(np.uint8) & np.uint8(0x7F)
        if more:
            byte |= (unsigned >= 1 << shift + 7).astype(np.uint8) << 7
        is_used = None if not shift or least >> shift else unsigned >= 1 << shift
        yield byte, is_used if is_there is None else is_there if is_used is None else is_used & is_there


def stream(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatchReader:
    """Return a reader of these batches. Closing it drops ``batches``, because Arrow treats it as an imported stream."""
    return pa.RecordBatchReader.from_stream(pa.RecordBatchReader.from_batches(schema, batches))


def table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return the rows of all batches as one table, without a copy."""
    return pa.Table.from_batches(batches, schema=schema)
