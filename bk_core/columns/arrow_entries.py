# SPDX-License-Identifier: Apache-2.0
"""Turns rows into entries of codec ``arrow``. An entry is a directory and the record batch that it describes.

The directory (:mod:`bk_core.entries.arrow_directory`) has the position of each column, its CRC32C, its number of nulls,
and its least and greatest value. Arrow finds those values, or numpy in Arrow's buffers, so that no Python code runs for
each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bk_core.columns import arrow_message, arrow_schema, texts, zstd_levels
from bk_core.columns.arrow_message import Head, Pair, Shape
from bk_core.entries import arrow_directory
from bk_core.entries.arrow_directory import BOUND_BYTES_MAX, HAS_MAX, HAS_MIN, NO_BOUNDS, Bounds, Column
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.entries.digest import crc32c
from bk_core.errors import EntryTooLargeError
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX

ENTRY_BYTES_WANTED = 1 << 20
"""The default of the option maxEntryBytes, which is the size in bytes up to which entries are filled."""
TABLE_ENTRY_BYTES = 2 << 20
"""The size in bytes up to which an append of a whole table fills entries. It is twice ENTRY_BYTES_WANTED, because a
read of some columns takes 0.5 ms for each entry in addition to the time for its bytes. Much larger entries would reach
ROWS_MAX."""
FILLED = 0.9
"""The share of the wanted size of an entry for which rows are cut. It is below 1, because slices of a batch do not
compress equally well."""
RAW_BYTES_MAX = 16 << 20
"""The maximum size of an entry's columns in bytes before compression. An entry of a single row may exceed it."""
SMALL_BYTES = 4096
"""The size in bytes of an entry's columns below which they are not compressed, because a compressed column adds a
length and a frame. Such a small entry also has no bounds and no aligned buffers, because they would cost more bytes
than they save a reader."""
BUFFER_UNIT = 64
"""The alignment of uncompressed buffers in an entry, in bytes. Arrow recommends 64. A reader that loads the entry at
such an address can use the buffers in place."""
_ZEROS = bytes(BUFFER_UNIT)
_ZSTD = "zstd"
_U64, _I64 = np.dtype("<u8"), np.dtype("<i8")

Pieces = list[Bytes]
"""The bytes of an entry in pieces, so that one call can join all entries of a batch."""


@dataclass(slots=True)
class ArrowEntries:
    """Turns rows into entries in the log's ``schema``. An entry has at most ``entry_bytes_wanted``, or one row."""

    schema: bytes
    compression: str = "none"
    entry_bytes_wanted: int = ENTRY_BYTES_WANTED
    entry_bytes_max: int = ENTRY_BYTES_MAX
    _ratio: float = field(default=1.0, repr=False)  # bytes written for each byte given, in the previous batch
    _rows: int = field(default=0, repr=False)  # the number of rows given so far
    _at_level_3: tuple[int, ...] | None = field(default=None, repr=False)  # columns, once they are chosen

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        """Yield one batch of entries, which have about the same number of rows. Raises InvalidArgumentError for a text
        that is not UTF-8."""
        if not rows.num_rows:
            return
        batch = arrow_schema.conformed(rows, arrow_schema.from_bytes(self.schema))
        texts.check(batch, first_row)
        self._rows += batch.num_rows
        if self._at_level_3 is None and self.compression == _ZSTD and self._rows >= zstd_levels.ROWS_MIN:
            self._at_level_3 = zstd_levels.columns_at_level_3(batch)
        size = batch.nbytes
        made, todo = list[Pieces](), self._cuts(batch.num_rows, size)
        while todo:
            start, stop = todo.pop()
            part = batch.slice(start, stop - start)
            entry = self._entry(part, size if part.num_rows == batch.num_rows else part.nbytes, first_row + start)
            if entry is not None:
                made.append(entry)
            else:
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]
        lengths = np.array([_bytes_of(entry) for entry in made], dtype=np.uint32)
        self._ratio = int(lengths.sum()) / max(1, size)
        yield EntryBatch(lengths=lengths, payload=memoryview(b"".join([piece for entry in made for piece in entry])))

    def _cuts(self, rows: int, size: int) -> list[tuple[int, int]]:
        """Return ranges of rows with about the same number of rows, in reverse order."""
        wanted = self.entry_bytes_wanted * FILLED
        parts = int(
            max(-(-size * self._ratio // wanted), -(-size // RAW_BYTES_MAX), -(-rows // arrow_message.ROWS_MAX))
        )
        parts = min(max(parts, 1), rows)
        return [(rows * part // parts, rows * (part + 1) // parts) for part in reversed(range(parts))]

    def _entry(self, rows: pa.RecordBatch, size: int, first_row: int) -> Pieces | None:
        """Return an entry of these rows, whose columns have ``size`` bytes, or None if the entry is too large and the
        rows must be cut. Raises EntryTooLargeError for a single row."""
        if rows.num_rows == 1 and size > arrow_message.BODY_BYTES_MAX:
            raise too_large(first_row, size, min(self.entry_bytes_max, arrow_message.BODY_BYTES_MAX))
        layout, is_small = _layout(self.schema), size < SMALL_BYTES
        entry = entry_of(rows, self.compression, layout, small=is_small, at_level_3=self._at_level_3 or ())
        most = self.entry_bytes_max if rows.num_rows == 1 else min(self.entry_bytes_wanted, self.entry_bytes_max)
        if _bytes_of(entry) <= most:
            return entry
        if rows.num_rows == 1:
            raise too_large(first_row, _bytes_of(entry), self.entry_bytes_max)
        return None


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """Properties that all entries of a schema share. ``bounds`` has, for each column, the function that finds its
    bounds, or None for a column whose type has no bounds. ``compressed`` is the head of a compressed message."""

    shape: Shape
    bounds: list[Callable[[pa.Array], Bounds] | None]
    compressed: Head

    @classmethod
    def of(cls, schema: pa.Schema) -> EntryLayout:
        return cls(Shape.of(schema), [_finder(field.type) for field in schema], arrow_message.template(schema, _ZSTD))


def entry_of(
    rows: pa.RecordBatch,
    compression: str,
    layout: EntryLayout,
    *,
    small: bool = False,
    at_level_3: Sequence[int] = (),
) -> Pieces:
    """Return the bytes of an entry in pieces. The pieces of Arrow's message are views. ``layout`` belongs to the rows'
    schema. For ``small`` see SMALL_BYTES. The columns ``at_level_3`` are compressed at that level of zstd."""
    compression, shape = "none" if small else compression, layout.shape
    aligned = False
    data: Bytes
    if at_level_3 and compression == _ZSTD:
        data, regions, nodes = _at_two_levels(rows, at_level_3, layout)
    else:
        message = arrow_message.written(rows, compression)
        head = arrow_message.head_of(message)
        data, nodes, body = head.data, head.nodes, message[len(head.data) :]
        aligned = compression == "none" and not small and head.rows > 0 and len(body) > 0
        if aligned:
            data, regions = _aligned(head, body, shape)
        else:
            inner = [head.buffers[first][0] for first in shape.buffers[1:-1]]
            regions = [[body[start:end]] for start, end in pairwise((0, *inner, len(body)))]
    nulls = [nodes[first][1] for first in shape.nodes[:-1]]
    finders = [None] * len(nulls) if small else layout.bounds
    bounds = map(_bounds_of, rows.columns, finders, nulls)
    columns = list(map(Column, map(_bytes_of, regions), map(_crc_of, regions), nulls, bounds))
    unit = BUFFER_UNIT if aligned else arrow_directory.UNIT
    directory = arrow_directory.encode(rows.num_rows, len(data), crc32c(data), columns, unit=unit)
    return [directory, data, *(piece for region in regions for piece in region)]


def _at_two_levels(
    rows: pa.RecordBatch, at_level_3: Sequence[int], layout: EntryLayout
) -> tuple[Bytes, list[Pieces], list[Pair]]:
    """Return the head of a message whose columns ``at_level_3`` are compressed at that level of zstd, and all others at
    Arrow's default, the pieces of each column, and the nodes. Arrow writes a message of the columns of each level."""
    shape, count = layout.shape, rows.num_columns
    others = sorted({*range(count)}.difference(at_level_3))
    written: dict[int, tuple[list[Pair], list[Pair], memoryview]] = {}
    for chosen, level in ((others, None), (list(at_level_3), zstd_levels.LEVEL)):
        if chosen:
            message = arrow_message.written(rows.select(chosen), _ZSTD, level)
            head = arrow_message.head_of(message)
            nodes, buffers = iter(head.nodes), iter(head.buffers)
            for k in chosen:
                its_nodes = list(islice(nodes, shape.nodes[k + 1] - shape.nodes[k]))
                its_buffers = list(islice(buffers, shape.buffers[k + 1] - shape.buffers[k]))
                written[k] = its_nodes, its_buffers, message[len(head.data) :]
    all_nodes, moved, regions, end = list[Pair](), list[Pair](), list[Pieces](), 0
    for k in range(count):
        its_nodes, its_buffers, body = written[k]
        start, stop = its_buffers[0][0], sum(its_buffers[-1])
        stop += -stop % arrow_message.BUFFER_PADDING
        all_nodes += its_nodes
        moved += [(offset - start + end, size) for offset, size in its_buffers]
        regions.append([body[start:stop]])
        end += stop - start
    return layout.compressed.with_numbers(rows.num_rows, all_nodes, moved, end), regions, all_nodes


def _aligned(head: Head, body: memoryview, shape: Shape) -> tuple[Bytes, list[Pieces]]:
    """Return the head of a message and the pieces of each column. Zeros between the buffers make each buffer begin at a
    multiple of BUFFER_UNIT in the body."""
    pieces, buffers, end = list[Pieces](), list[tuple[int, int]](), 0
    for offset, size in head.buffers:
        padding = -size % BUFFER_UNIT
        pieces.append([part for part in (body[offset : offset + size], _ZEROS[:padding]) if len(part)])
        buffers.append((end, size))
        end += size + padding
    regions = [[piece for buffer in pieces[start:stop] for piece in buffer] for start, stop in pairwise(shape.buffers)]
    return head.with_numbers(head.rows, head.nodes, buffers, end), regions


def _bounds_of(column: pa.Array, find: Callable[[pa.Array], Bounds] | None, nulls: int) -> Bounds:
    """Return the bounds of a column in the form of docs/formats.md §7. A column with only nulls has no bounds."""
    if find is None or nulls == len(column):
        return NO_BOUNDS
    return find(column.drop_null() if nulls else column)


def _finder(kind: pa.DataType) -> Callable[[pa.Array], Bounds] | None:
    """Return the function that finds the bounds of a column of this type. The function needs a column with at least one
    value and without nulls. Return None for types without bounds, such as lists, structs and maps."""
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind):
        return _bytes_bounds
    if types.is_boolean(kind):
        return _truth_bounds
    if types.is_decimal128(kind):
        return _decimal_bounds
    if types.is_float32(kind) or types.is_float64(kind):
        return partial(_float_bounds, np.dtype(f"<f{kind.bit_width // 8}"))
    if types.is_signed_integer(kind) or (types.is_temporal(kind) and not types.is_interval(kind)):
        return partial(_integer_bounds, np.dtype(f"<i{kind.bit_width // 8}"))
    return None


def _bytes_bounds(column: pa.Array) -> Bounds:
    found = pc.min_max(column)  # byte by byte, which for UTF-8 is the order of the characters
    least, greatest = (memoryview(found[name].as_buffer()) for name in ("min", "max"))
    return arrow_directory.rounded_outward(bytes(least[: BOUND_BYTES_MAX + 1]), bytes(greatest[: BOUND_BYTES_MAX + 1]))


def _truth_bounds(column: pa.Array) -> Bounds:
    true = column.true_count
    return _exact(bytes([true == len(column)]), bytes([true > 0]))


def _integer_bounds(dtype: np.dtype[Any], column: pa.Array) -> Bounds:
    numbers = _numbers(column, dtype)
    return _exact(numbers.min().tobytes(), numbers.max().tobytes())


def _float_bounds(dtype: np.dtype[Any], column: pa.Array) -> Bounds:
    numbers = _numbers(column, dtype)
    low, high = numbers.min(), numbers.max()
    if np.isnan(low):  # to numpy NaN is the least value; to Spark it is greater than all others
        return NO_BOUNDS
    # −0.0 equals 0.0, but in an order of bits it comes first
    return _exact((-abs(low) if low == 0 else low).tobytes(), (abs(high) if high == 0 else high).tobytes())


def _decimal_bounds(column: pa.Array) -> Bounds:
    """Return the bounds of a column of 128-bit numbers. Each number is two 64-bit numbers, the lower half first."""
    halves = _numbers(column, _U64, 2).reshape(-1, 2)
    lower, upper = halves[:, 0], halves[:, 1].view(_I64)
    low, high = upper.min(), upper.max()
    least, greatest = lower[upper == low].min(), lower[upper == high].max()
    return _exact(least.tobytes() + low.tobytes(), greatest.tobytes() + high.tobytes())


def _exact(low: bytes, high: bytes) -> Bounds:
    return Bounds(low, high, HAS_MIN | HAS_MAX)


def _numbers(column: pa.Array, dtype: np.dtype[Any], each: int = 1) -> np.ndarray[Any, Any]:
    """Return the values of a column as a view, in which each value takes ``each`` numbers of type ``dtype``."""
    start, stop = each * column.offset, each * (column.offset + len(column))
    return np.frombuffer(column.buffers()[1], dtype=dtype)[start:stop]


@lru_cache(maxsize=64)
def _layout(schema: bytes) -> EntryLayout:
    return EntryLayout.of(arrow_schema.from_bytes(schema))


def _bytes_of(pieces: Sequence[Bytes]) -> int:
    return sum(map(len, pieces))


def _crc_of(pieces: Sequence[Bytes]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    return crc


def too_large(row: int, size: int, bytes_max: int) -> EntryTooLargeError:
    """Return the error for a row that is larger than the maximum entry. ``row`` is its position in the rows of its
    task."""
    remedy = "raise maxEntryBytes, or split the value" if bytes_max < ENTRY_BYTES_MAX else "split the value"
    return EntryTooLargeError(
        f"an entry may have at most {bytes_max} bytes", value=f"row {row} makes one of {size}", remedy=remedy
    )
