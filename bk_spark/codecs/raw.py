# SPDX-License-Identifier: Apache-2.0
"""Codec ``raw``: one entry is one row, and its payload is column ``value``. Whole columns, never a row at a time.

Columns can be chosen with ``.schema("entry_id BIGINT, value BINARY")``: what is not asked for is not made, and without
``value`` no entry is read at all (facts: spark.md §6.4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_spark.codecs import metadata_columns
from bk_spark.codecs.codec import LedgerAt, Written
from bk_spark.errors import no_value_column

if TYPE_CHECKING:
    import numpy.typing as npt

VALUE = "value"
COLUMNS: dict[str, tuple[str, pa.DataType]] = {VALUE: ("binary", pa.binary()), **metadata_columns.PLACES}
"""Spark's and Arrow's type of each column, in the order of the default schema."""
SCHEMA_DDL = ", ".join(f"{name} {kind.upper()}" for name, (kind, _) in COLUMNS.items())


@dataclass(frozen=True, slots=True)
class RawRows:
    """The columns of a read: names in order, and which of them the user declared NOT NULL."""

    names: tuple[str, ...]
    required: frozenset[str] = frozenset()

    @classmethod
    def of(cls, columns: Sequence[tuple[str, str, bool]], *, has_log: bool) -> RawRows:
        """For a Spark schema given as (name, Spark type, nullable).

        Raises InvalidArgumentError for a column or type that the codec does not have, and for NOT NULL on one that is
        null.
        """
        for name, kind, _ in columns:
            if name not in COLUMNS:
                raise InvalidArgumentError(
                    "no such column", value=f"{name} {kind}", remedy=f'choose from .schema("{SCHEMA_DDL}")'
                )
            if kind != COLUMNS[name][0]:
                cast = ", then CAST(value AS STRING)" if kind == "string" else ""
                wanted = f"{name} {COLUMNS[name][0].upper()}"
                raise InvalidArgumentError(
                    "a column has another type", value=f"{name} {kind}", remedy=f"declare {wanted}{cast}"
                )
        metadata_columns.check_nullable(columns, has_log=has_log)
        names = tuple(name for name, _, _ in columns)
        if not names or len(set(names)) != len(names):
            raise InvalidArgumentError("columns must be given, once each", value=", ".join(names), remedy=SCHEMA_DDL)
        return cls(names, frozenset(name for name, _, nullable in columns if not nullable))

    @property
    def reads_values(self) -> bool:
        return VALUE in self.names

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(n, COLUMNS[n][1], nullable=n not in self.required) for n in self.names])

    def check(
        self, log: str | None, written: Collection[Written], schemas: Mapping[int, bytes], *, stream: bool = False
    ) -> None:
        """Any codec's entries can be read as bytes."""

    def rows(
        self, batch: EntryBatch | None, entry_ids: npt.NDArray[np.int64], at: LedgerAt
    ) -> Iterator[pa.RecordBatch]:
        """One batch; its value column is a view of the receive buffer."""
        columns = [
            metadata_columns.column(name, entry_ids, at) if name != VALUE or batch is None else batch.to_arrow()
            for name in self.names
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True, slots=True)
class RawEntries:
    """One row is one entry: its value."""

    schema: bytes | None = None

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        column = rows.column(0)
        if column.null_count:
            at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise InvalidArgumentError(
                "column value holds nulls and nullValues=fail",
                value=f"row {first_row + at}, {column.null_count} of {rows.num_rows} rows of a batch",
                remedy='filter them: df.where("value IS NOT NULL")',
            )
        yield EntryBatch.from_arrow(column)


def check_input(columns: Sequence[tuple[str, str]], log: str) -> None:
    """Whether a DataFrame of (name, Spark type) can be written: exactly one binary or string column ``value``.

    Raises InvalidArgumentError that prints the ``select`` to paste.
    """
    if len(columns) != 1 or columns[0][0] != VALUE or columns[0][1] not in ("binary", "string"):
        raise no_value_column(columns, log)
