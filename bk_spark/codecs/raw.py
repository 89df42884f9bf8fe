# SPDX-License-Identifier: Apache-2.0
"""Codec ``raw``: one entry is one row, and its payload is column ``value``. Whole columns, never a row at a time.

Columns can be chosen with ``.schema("entry_id BIGINT, value BINARY")``: what is not asked for is not made, and without
``value`` no entry is read at all (facts: spark.md §6.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_spark.errors import no_value_column

if TYPE_CHECKING:
    import numpy.typing as npt

VALUE = "value"
COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    VALUE: ("binary", pa.binary()),
    "log": ("string", pa.string()),
    "ledger_id": ("bigint", pa.int64()),
    "entry_id": ("bigint", pa.int64()),
    "offset": ("bigint", pa.int64()),
}
"""Spark's and Arrow's type of each column, in the order of the default schema."""
LOG_ONLY = ("log", "offset")
"""Columns that are null for a bare ledger."""
SCHEMA_DDL = ", ".join(f"{name} {kind.upper()}" for name, (kind, _) in COLUMNS.items())


@dataclass(frozen=True, slots=True)
class RowShape:
    """The columns of a read: names in order, and which of them the user declared NOT NULL."""

    names: tuple[str, ...]
    required: frozenset[str] = frozenset()

    @property
    def reads_values(self) -> bool:
        """Whether entries must be read; otherwise the plan's numbers are enough."""
        return VALUE in self.names

    def arrow_schema(self) -> pa.Schema:
        """The schema Spark compares the first batch with: order, types and nullability."""
        return pa.schema([pa.field(n, COLUMNS[n][1], nullable=n not in self.required) for n in self.names])


def shape_of(columns: Sequence[tuple[str, str, bool]], *, has_log: bool) -> RowShape:
    """The shape of a Spark schema given as (name, Spark type, nullable).

    Raises InvalidArgumentError for a column or type that the codec does not have, and for NOT NULL on one that is null.
    """
    for name, kind, nullable in columns:
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
        if not nullable and name in LOG_ONLY and not has_log:
            raise InvalidArgumentError(
                "a bare ledger has no value for this column",
                value=f"{name} NOT NULL",
                remedy=f"declare {name} nullable",
            )
    names = tuple(name for name, _, _ in columns)
    if not names or len(set(names)) != len(names):
        raise InvalidArgumentError("columns must be given, once each", value=", ".join(names), remedy=SCHEMA_DDL)
    return RowShape(names, frozenset(name for name, _, nullable in columns if not nullable))


def rows_of(
    batch: EntryBatch | None,
    entry_ids: npt.NDArray[np.int64],
    shape: RowShape,
    *,
    ledger_id: int,
    log: str | None,
    offset_shift: int | None,
) -> pa.RecordBatch:
    """Rows of one ledger. ``batch`` may be None when the shape reads no values; ``offset_shift`` + entry id is the log
    offset. The value column is a view of the batch's receive buffer."""
    count = int(entry_ids.size)

    def column(name: str) -> Any:
        if name == VALUE:
            assert batch is not None
            return batch.to_arrow()
        if name == "entry_id":
            return pa.array(entry_ids)
        if name == "ledger_id":
            return pa.array(np.full(count, ledger_id, dtype=np.int64))
        if name == "log":
            return pa.nulls(count, pa.string()) if log is None else pa.repeat(pa.scalar(log, pa.string()), count)
        return pa.nulls(count, pa.int64()) if offset_shift is None else pa.array(entry_ids + offset_shift)

    return pa.RecordBatch.from_arrays([column(name) for name in shape.names], schema=shape.arrow_schema())


def check_input(columns: Sequence[tuple[str, str]], log: str) -> None:
    """Whether a DataFrame of (name, Spark type) can be written: exactly one binary or string column ``value``.

    Raises InvalidArgumentError that prints the ``select`` to paste.
    """
    if len(columns) != 1 or columns[0][0] != VALUE or columns[0][1] not in ("binary", "string"):
        raise no_value_column(columns, log)


def entries_of(rows: pa.RecordBatch) -> EntryBatch:
    """The entries of a batch that Spark hands to a writer, as views of its memory.

    Raises InvalidArgumentError for a null value (RULES K9) and EntryTooLargeError for one over the limit of an entry.
    """
    column = rows.column(0)
    if column.null_count:
        raise InvalidArgumentError(
            "column value holds nulls and nullValues=fail",
            value=f"{column.null_count} of {rows.num_rows} rows of a batch",
            remedy='filter them: df.where("value IS NOT NULL")',
        )
    return EntryBatch.from_arrow(column)
