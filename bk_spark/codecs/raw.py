# SPDX-License-Identifier: Apache-2.0
"""Codec ``raw``: one entry is one row, and its payload is column ``value``. Whole columns, never a row at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from bk_spark.codecs.codec import Codec, LogSchemas, check_rows
from bk_spark.codecs.read_columns import Decoded, EntryRows, ReadColumns
from bk_spark.errors import no_value_column

if TYPE_CHECKING:
    from bk_spark.options.options import BkOptions

NAME = "raw"
VALUE = "value"


def _reader(columns: ReadColumns, spark_schema: Any, schemas: LogSchemas, options: BkOptions) -> EntryRows:
    """Return the reader. It accepts entries of every codec and finds none corrupt, because any bytes are a value."""
    return EntryRows(NAME, columns, _decoded)


def _decoded(batch: EntryBatch, columns: ReadColumns) -> Decoded:
    """Return the value column as a view of the receive buffer."""
    return Decoded(lambda _: batch.to_arrow())


@dataclass(frozen=True, slots=True)
class RawEntries:
    """The value of each row becomes an entry. ``null_values`` is ``fail``, ``skip`` or ``empty`` (RULES K9)."""

    null_values: str = "fail"
    entry_bytes_max: int = ENTRY_BYTES_MAX
    schema: bytes | None = None

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        column = rows.column(VALUE)
        check_rows(column, self.entry_bytes_max, first_row)
        if column.null_count:
            column = self._without_nulls(column, first_row)
        yield EntryBatch.from_arrow(column)

    def _without_nulls(self, column: pa.Array, first_row: int) -> pa.Array:
        if self.null_values == "skip":
            return column.drop_null()
        if self.null_values == "empty":
            return column.fill_null(pa.scalar(b"").cast(column.type))
        at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidArgumentError(
            "column value holds nulls and nullValues=fail",
            value=f"row {first_row + at}, {column.null_count} of {len(column)} rows of a batch",
            remedy='filter them: df.where("value IS NOT NULL"), or nullValues=skip or empty',
        )


def _check_input(columns: Sequence[tuple[str, str]], target: str) -> None:
    """Check that a DataFrame of (name, Spark type) has exactly one column, ``value``, of type binary or string. Raises
    InvalidArgumentError that prints the ``select`` to paste."""
    if len(columns) != 1 or columns[0][0] != VALUE or columns[0][1] not in ("binary", "string"):
        raise no_value_column(columns, target)


def _writer(spark_schema: Any, newest: bytes | None, options: BkOptions) -> RawEntries:
    return RawEntries(options.null_values, options.max_entry_bytes or ENTRY_BYTES_MAX)


CODEC = Codec.of_columns({VALUE: "binary"}, name=NAME, reader=_reader, writer=_writer, check_input=_check_input)
