# SPDX-License-Identifier: Apache-2.0
"""What a codec is: rows of Spark to entries and entries to rows, whole columns at a time.

A codec is made on the driver and pickled into tasks. It knows nothing of ledgers, logs or the network: what it must
know of the place where rows come from is :class:`LedgerAt`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from bk_core.errors import EntryTooLargeError
from bk_core.wire.lane import ENTRY_BYTES_MAX

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from bk_core.entries.batch import EntryBatch

Written: TypeAlias = tuple[str, int]
"""Codec and schema number of an extent."""
LogSchemas: TypeAlias = "Mapping[str, Mapping[int, bytes]]"
"""The numbered schemas of each log by its name (RULES K8); see :mod:`bk_core.logs.model.schemas`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAt:
    """Where rows come from; one for each range of a ledger.

    ``offset_shift`` + entry id is the log offset, None for a bare ledger. ``ctime_ms`` is milliseconds since the epoch.
    ``schema`` is that of the extent's ``schema_number``, which only codec ``arrow`` has.
    """

    ledger_id: int
    log: str | None = None
    offset_shift: int | None = None
    ctime_ms: int | None = None
    closed: bool = True
    schema: bytes | None = None


class RowCodec(Protocol):
    """Entries to rows, for reads."""

    @property
    def reads_values(self) -> bool:
        """Whether entries must be read; otherwise their ids are enough, and :meth:`rows` takes None for the batch."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """What Spark compares the first batch with: order, types and nullability."""
        ...

    def check(
        self, log: str | None, written: Collection[Written], schemas: Mapping[int, bytes], *, stream: bool = False
    ) -> None:
        """On the driver, once each log and plan: whether extents so ``written`` can be read. ``schemas`` are the log's.

        Raises InvalidArgumentError for another codec's extents, SchemaMismatchError for columns that cannot be had of
        them and, of a ``stream``, SchemaChangedError for a schema newer than the one that Spark planned with.
        """
        ...

    def rows(
        self, batch: EntryBatch | None, entry_ids: npt.NDArray[np.int64], at: LedgerAt
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some entries of one ledger, in order: several an entry, or none, as the codec has it.

        Raises CorruptEntryError for one that cannot be decoded (``corruptEntries=fail``).
        """
        ...


class EntryCodec(Protocol):
    """Rows to entries, for writes."""

    @property
    def schema(self) -> bytes | None:
        """The schema that a publish of these entries registers with its log (codec ``arrow``), or None."""
        ...

    def entries(self, rows: pa.RecordBatch, *, first_row: int = 0) -> Iterator[EntryBatch]:
        """The entries of a batch that Spark hands to a writer, as views of its memory where that can be.

        ``first_row`` is what errors count rows from: the rows this task wrote before. Raises InvalidArgumentError for a
        null that may not be (RULES K9) and EntryTooLargeError; both name the row.
        """
        ...


def check_rows(column: pa.Array, bytes_max: int, first_row: int, skipped: npt.NDArray[np.int64] | None = None) -> None:
    """Whether each value, of a binary or string column, can be an entry. Raises EntryTooLargeError for the first one.

    ``skipped``: the number of each value's row in the batch, where that is not its place.
    """
    lengths = pc.binary_length(column)
    longest = pc.max(lengths).as_py()
    if longest is not None and longest > bytes_max:
        at = pc.index(pc.greater(lengths, bytes_max), True).as_py()
        row = at if skipped is None else int(skipped[at])
        raise too_large(first_row + row, lengths[at].as_py(), bytes_max)


def too_large(row: int, size: int, bytes_max: int) -> EntryTooLargeError:
    """The error of a row, counted from the first of its task, that no entry can hold."""
    remedy = "raise maxEntryBytes, or split the value" if bytes_max < ENTRY_BYTES_MAX else "split the value"
    return EntryTooLargeError(
        f"an entry may have at most {bytes_max} bytes", value=f"row {row} makes one of {size}", remedy=remedy
    )
