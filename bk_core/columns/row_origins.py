# SPDX-License-Identifier: Apache-2.0
"""Has the origin of rows, and makes the columns that show it. A read of any codec can have these columns besides those
of the codec."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from bk_core.errors import CorruptEntryError

if TYPE_CHECKING:
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]

ENTRY_LENGTH = "entry_length"
TYPES: dict[str, pa.DataType] = {
    "log": pa.string(),
    "ledger_id": pa.int64(),
    "entry_id": pa.int64(),
    "offset": pa.int64(),
    ENTRY_LENGTH: pa.int32(),
    "ledger_ctime": pa.timestamp("us", tz="UTC"),
    "ledger_closed": pa.bool_(),
    "row_index": pa.int32(),
}
"""The columns and their types. A column of codec ``arrow`` may not have one of these names."""
_TIMESTAMP = TYPES["ledger_ctime"]
_SHORT, _LONG = 1 << 9, 1 << 15
"""The numbers of rows between which a batch's constant column is a slice of a cached column of _LONG rows. The cached
column takes at most 7 MB, for a log with a long name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAt:
    """The origin of the rows of one range of a ledger.

    The log offset of an entry is its id plus ``offset_shift``, which is None for a ledger outside of a log.
    ``ctime_ms`` is in milliseconds since 1970. ``schema`` is the extent's schema, which only codec ``arrow`` has.
    """

    ledger_id: int
    log: str | None = None
    offset_shift: int | None = None
    ctime_ms: int | None = None
    closed: bool = True
    schema: bytes | None = None


class Origins(Protocol):
    """The entries of rows. For each of the ``count`` rows it has the entry's id, the entry's length in bytes, and the
    row's position in the entry. The last two may be None."""

    @property
    def count(self) -> int: ...
    @property
    def entry_ids(self) -> I64: ...
    @property
    def lengths(self) -> npt.NDArray[np.uint32] | None: ...
    @property
    def row_index(self) -> npt.NDArray[np.int32] | None: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Origins that exist as columns; see :class:`Origins`."""

    entry_ids: I64
    lengths: npt.NDArray[np.uint32] | None = None
    row_index: npt.NDArray[np.int32] | None = None

    @property
    def count(self) -> int:
        return int(self.entry_ids.size)


def column(name: str, rows: Origins, at: LedgerAt) -> pa.Array:
    count = rows.count
    match name:
        case "entry_id":
            return pa.array(rows.entry_ids)
        case "ledger_id":
            return _repeated(at.ledger_id, pa.int64(), count)
        case "log":
            return pa.nulls(count, pa.string()) if at.log is None else _repeated(at.log, pa.string(), count)
        case "offset":
            return (
                pa.nulls(count, pa.int64()) if at.offset_shift is None else pa.array(rows.entry_ids + at.offset_shift)
            )
        case "ledger_ctime":
            at_us = None if at.ctime_ms is None else at.ctime_ms * 1000
            return pa.nulls(count, _TIMESTAMP) if at_us is None else _repeated(at_us, _TIMESTAMP, count)
        case "ledger_closed":
            return _repeated(at.closed, pa.bool_(), count)
        case "row_index":
            row_index = rows.row_index
            assert row_index is not None
            return pa.array(row_index)
    assert name == ENTRY_LENGTH, name
    lengths = rows.lengths
    assert lengths is not None
    return pa.array(lengths.astype(np.int32))


def _repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array that repeats ``value`` ``count`` times. For usual batch sizes it is a slice of a cached array."""
    if not _SHORT <= count <= _LONG:
        return pa.repeat(pa.scalar(value, kind), count)
    return _long(value, kind).slice(0, count)


@lru_cache(maxsize=4)
def _long(value: object, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), _LONG)


def corrupt(codec: str, why: str, entry_id: int, at: LedgerAt, remedy: str) -> CorruptEntryError:
    """Return the error for an entry that was read but cannot be decoded."""
    where = f"entry {entry_id} of ledger {at.ledger_id}"
    if at.log is not None and at.offset_shift is not None:
        where += f", offset {entry_id + at.offset_shift} of log {at.log}"
    return CorruptEntryError(
        f"an entry cannot be decoded by codec {codec}",
        value=f"{where}: {why}",
        remedy=remedy,
    )
