# SPDX-License-Identifier: Apache-2.0
"""The interface of codecs. A codec turns Spark's rows into entries and entries into rows, whole columns at a time.

The rest of the package uses a codec through :class:`Codec`; the module of each codec defines one as ``CODEC``. Its two
halves, :class:`RowCodec` and :class:`EntryCodec`, are made on the driver and pickled into tasks. They access no ledger,
log or network; :class:`~bk_core.columns.row_origins.LedgerAt` tells them where the rows come from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from bk_core.columns.arrow_entries import too_large
from bk_core.columns.row_origins import LedgerAt
from bk_spark.codecs import metadata_columns, spark_types
from bk_spark.codecs.read_columns import ReadColumns, Written

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from bk_core.entries.batch import EntryBatch
    from bk_core.entries.parts import ColumnBatch, ColumnsWanted
    from bk_spark.options.options import BkOptions

LogSchemas: TypeAlias = "Mapping[str, Mapping[int, bytes]]"
"""The numbered schemas of each log by its name (RULES K8); see :mod:`bk_core.logs.model.schemas`."""


class RowCodec(Protocol):
    """Turns entries into rows, for reads."""

    @property
    def reads_values(self) -> bool:
        """Whether entries must be read. If not, their ids are enough, and :meth:`rows` gets None as its batch."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The schema that Spark compares the first batch with: order, types and nullability."""
        ...

    def check(
        self, log: str | None, written: Collection[Written], schemas: Mapping[int, bytes], *, stream: bool = False
    ) -> None:
        """Check that extents ``written`` with these codecs and schemas can be read. The driver calls this once for each
        log and plan. ``schemas`` are the log's.

        Raises InvalidArgumentError for another codec's extents, SchemaMismatchError for a schema that the log lacks and
        for columns of another type. For a ``stream``, raises SchemaChangedError for a schema newer than the one that
        Spark planned with.
        """
        ...

    def columns_wanted(self, at: LedgerAt) -> ColumnsWanted | None:
        """Return which columns of an entry to fetch, or None to fetch whole entries. Only codec ``arrow`` fetches
        parts."""
        ...

    def rows(
        self, batch: EntryBatch | ColumnBatch | None, entry_ids: npt.NDArray[np.int64], at: LedgerAt
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some entries of one ledger, in order. An entry may have any number of rows. Raises
        CorruptEntryError for an entry that cannot be decoded (``corruptEntries=fail``)."""
        ...


class EntryCodec(Protocol):
    """Turns rows into entries, for writes."""

    @property
    def schema(self) -> bytes | None:
        """The schema that a publish of these entries registers with its log (codec ``arrow``), or None."""
        ...

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        """Yield the entries of a batch that Spark hands to a writer, as views of its memory if possible.

        ``first_row`` is the number of rows that this task wrote before; errors count rows from there. Raises
        InvalidArgumentError for a null that is not allowed (RULES K9) and EntryTooLargeError; both name the row.
        """
        ...


@dataclass(frozen=True, slots=True)
class Respelled:
    """An :class:`EntryCodec` for a DataFrame that spells column names in another case. ``given`` are its names, and
    ``names`` are the names that ``codec`` expects, in the same order."""

    codec: EntryCodec
    given: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def schema(self) -> bytes | None:
        return self.codec.schema

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        return self.codec.entries(rows.select(list(self.given)).rename_columns(list(self.names)), first_row=first_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A codec. ``name`` is its name in option ``codec`` and in extents. ``columns`` are its fixed columns with Spark's
    types, or None if it holds any columns. If ``keeps_schema`` is set, the log stores the schema (RULES K8), and an
    entry may have many rows.

    ``default_schema`` takes the logs' schemas and the metadata columns to add. It returns the columns of a read that
    names none, as a StructType. ``reader`` takes the columns of a read, the StructType that they were made from, the
    logs' schemas and the options. ``writer`` takes the StructType to write, the newest schema of its log and the
    options. ``check_input`` takes the (name, Spark type) of each column to write, and what messages call the log. All
    raise InvalidArgumentError for columns that the codec does not have, and SchemaMismatchError for columns that the
    logs do not have.
    """

    name: str
    columns: Mapping[str, str] | None = None
    keeps_schema: bool = False
    default_schema: Callable[[LogSchemas, Mapping[str, str]], Any]
    reader: Callable[[ReadColumns, Any, LogSchemas, BkOptions], RowCodec]
    writer: Callable[[Any, bytes | None, BkOptions], EntryCodec]
    check_input: Callable[[Sequence[tuple[str, str]], str], None]

    @classmethod
    def of_columns(cls, columns: Mapping[str, str], **parts: Any) -> Codec:
        """Return a codec with these fixed columns."""
        return cls(columns=columns, default_schema=lambda _, more: spark_types.struct_of({**columns, **more}), **parts)

    @property
    def metadata(self) -> dict[str, str]:
        """The columns that a read can have besides the codec's own, with Spark's types."""
        row_index = metadata_columns.ROW_INDEX if self.keeps_schema else {}
        return {**metadata_columns.PLACES, **metadata_columns.MORE, **row_index}


def check_rows(column: pa.Array, bytes_max: int, first_row: int, skipped: npt.NDArray[np.int64] | None = None) -> None:
    """Check that each value of a binary or string column fits into an entry. Raises EntryTooLargeError for the first
    one that does not. ``skipped``, if given, holds the row number of each value, for a column that lacks some rows of
    the batch."""
    lengths = pc.binary_length(column)
    longest = pc.max(lengths).as_py()
    if longest is not None and longest > bytes_max:
        at = pc.index(pc.greater(lengths, bytes_max), True).as_py()
        row = at if skipped is None else int(skipped[at])
        raise too_large(first_row + row, lengths[at].as_py(), bytes_max)
