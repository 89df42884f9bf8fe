# SPDX-License-Identifier: Apache-2.0
"""Codec ``raw``: one entry is one row, and its payload is column ``value``. Whole columns, never a row at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_core.wire.lane import ENTRY_BYTES_MAX
from bk_spark.codecs import metadata_columns
from bk_spark.codecs.codec import LedgerAt, Written, check_rows
from bk_spark.codecs.read_columns import ReadColumns
from bk_spark.errors import no_value_column

if TYPE_CHECKING:
    import numpy.typing as npt

VALUE = "value"
DATA = {VALUE: "binary"}
METADATA = {**metadata_columns.PLACES, **metadata_columns.MORE}


@dataclass(frozen=True, slots=True)
class RawRows:
    columns: ReadColumns

    @classmethod
    def of(cls, spark_schema: Any, *, has_log: bool) -> RawRows:
        """For a StructType. Raises InvalidArgumentError as :meth:`ReadColumns.of`."""
        return cls(ReadColumns.of(spark_schema, has_log=has_log, data=DATA, metadata=METADATA))

    @property
    def reads_values(self) -> bool:
        return self.columns.needs_entries

    @property
    def schema(self) -> pa.Schema:
        return self.columns.schema

    def check(
        self, log: str | None, written: Collection[Written], schemas: Mapping[int, bytes], *, stream: bool = False
    ) -> None:
        """Accepts any codec's entries, because all can be read as bytes."""

    def rows(
        self, batch: EntryBatch | None, entry_ids: npt.NDArray[np.int64], at: LedgerAt
    ) -> Iterator[pa.RecordBatch]:
        """One batch; its value column is a view of the receive buffer."""

        def value(_: str) -> pa.Array:
            assert batch is not None
            return batch.to_arrow()

        lengths = None if batch is None else batch.lengths
        yield self.columns.assemble(value, metadata_columns.Rows(entry_ids, lengths), at)


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


def check_input(columns: Sequence[tuple[str, str]], target: str) -> None:
    """A DataFrame of (name, Spark type) can be written if it has exactly one column, ``value``, binary or string.
    Otherwise raises InvalidArgumentError that prints the ``select`` to paste."""
    if len(columns) != 1 or columns[0][0] != VALUE or columns[0][1] not in ("binary", "string"):
        raise no_value_column(columns, target)
