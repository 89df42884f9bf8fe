# SPDX-License-Identifier: Apache-2.0
"""Finds text that is not UTF-8. A writer refuses such text, and a reader finds its row and column in an entry.

Arrow and Spark accept any bytes as text. For example, Spark does not check ``CAST(bytes AS STRING)``. A reader does
check, so a single bad value would make its whole entry unreadable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import Bytes
from bk_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]
    I32 = npt.NDArray[np.int32]


def check(rows: pa.RecordBatch, first_row: int) -> None:
    """Raise InvalidArgumentError for the first text that is not UTF-8, also inside lists, maps and structs. The error
    names the text's column and row. The first of ``rows`` has the number ``first_row``."""
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid as error:
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            bad = in_column(column, column.type)
            if bad.any():
                raise InvalidArgumentError(
                    "a text is not UTF-8",
                    value=f"column {name} of row {first_row + int(np.flatnonzero(bad)[0])}",
                    remedy="write the column as BINARY, or decode its bytes first",
                ) from None
        raise InvalidArgumentError("rows are not valid Arrow data", value=str(error)) from error


def in_column(column: pa.Array, kind: pa.DataType) -> Mask:
    """Return a mask of the rows of a column in which a text, at any depth, is not UTF-8. ``kind`` says where the texts
    are. The column itself may have bytes there (:func:`as_bytes`)."""
    types = pa.types
    if types.is_string(kind):
        return no_text(column.cast(pa.large_binary()).to_pylist())
    bad = np.zeros(len(column), dtype=np.bool_)
    if types.is_struct(kind):
        for place in range(kind.num_fields):
            bad |= in_column(column.field(place), kind.field(place).type)
    elif types.is_list(kind) or types.is_map(kind):
        offsets = column.offsets.to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        inside = [(column.values, kind.value_type)] if types.is_list(kind) else []
        if types.is_map(kind):
            inside = [(column.keys, kind.key_type), (column.items, kind.item_type)]
        for part, wanted in inside:
            ends = np.concatenate(([0], np.cumsum(in_column(part.slice(first, last - first), wanted))))
            bad |= np.diff(ends[offsets - first]) > 0
    else:
        return bad
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return bad & valid


def as_bytes(kind: pa.DataType) -> pa.DataType:
    """Return the type with bytes in place of texts. Arrays of the two types have the same buffers."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(as_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(as_bytes(key.type)), item.with_type(as_bytes(item.type)))
    return pa.list_(kind.value_field.with_type(as_bytes(kind.value_type))) if pa.types.is_list(kind) else kind


def no_text(values: Sequence[Bytes | None]) -> Mask:
    """Return a mask of the values that are not UTF-8. None stands for a null and is not marked."""

    def is_wrong(value: Bytes | None) -> bool:
        try:
            str(value or b"", "utf-8")
        except UnicodeDecodeError:
            return True
        return False

    return np.fromiter(map(is_wrong, values), dtype=np.bool_, count=len(values))
