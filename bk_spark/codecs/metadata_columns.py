# SPDX-License-Identifier: Apache-2.0
"""The columns that say where a row comes from; every codec has them beside its own. ``includeMetadata=true`` adds some
of them to the default schema (``MORE``, ``ROW_INDEX``); a ``.schema(…)`` may name any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bk_core.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from bk_spark.codecs.codec import LedgerAt

    I64 = npt.NDArray[np.int64]

ENTRY_LENGTH = "entry_length"
PLACES: dict[str, str] = {"log": "string", "ledger_id": "bigint", "entry_id": "bigint", "offset": "bigint"}
"""The columns that are always there, with Spark's types, in the order of the default schema."""
MORE: dict[str, str] = {ENTRY_LENGTH: "int", "ledger_ctime": "timestamp", "ledger_closed": "boolean"}
"""The columns that ``includeMetadata`` adds."""
ROW_INDEX: dict[str, str] = {"row_index": "int"}
"""The column that it also adds if an entry holds several rows."""
LOG_ONLY = ("log", "offset")
RESERVED = frozenset({**PLACES, **MORE, **ROW_INDEX})
"""Names that a data column must not have, in codecs where it may have any other."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_SHORT, _LONG = 1 << 9, 1 << 15
"""A batch of _SHORT to _LONG rows uses a slice of a cached constant column of _LONG rows: at most 7 MB each, for a log
with a long name."""


@dataclass(frozen=True, slots=True)
class Rows:
    """For each row its entry's id and, where known, the entry's length in bytes and the row's place in it."""

    entry_ids: I64
    lengths: npt.NDArray[np.uint32] | None = None
    row_index: npt.NDArray[np.int32] | None = None


def check_nullable(columns: Sequence[tuple[str, str, bool]], *, has_log: bool) -> None:
    """Raises InvalidArgumentError for NOT NULL on a column, given as (name, type, nullable), that will be null."""
    for name, _, nullable in columns:
        if not nullable and name in LOG_ONLY and not has_log:
            raise InvalidArgumentError(
                "a bare ledger has no value for this column",
                value=f"{name} NOT NULL",
                remedy=f"declare {name} nullable",
            )


def column(name: str, rows: Rows, at: LedgerAt) -> pa.Array:
    ids, count = rows.entry_ids, int(rows.entry_ids.size)
    match name:
        case "entry_id":
            return pa.array(ids)
        case "ledger_id":
            return _repeated(at.ledger_id, pa.int64(), count)
        case "log":
            return pa.nulls(count, pa.string()) if at.log is None else _repeated(at.log, pa.string(), count)
        case "offset":
            return pa.nulls(count, pa.int64()) if at.offset_shift is None else pa.array(ids + at.offset_shift)
        case "ledger_ctime":
            at_us = None if at.ctime_ms is None else at.ctime_ms * 1000
            return pa.nulls(count, _TIMESTAMP) if at_us is None else _repeated(at_us, _TIMESTAMP, count)
        case "ledger_closed":
            return _repeated(at.closed, pa.bool_(), count)
        case "row_index":
            assert rows.row_index is not None
            return pa.array(rows.row_index)
    assert name == ENTRY_LENGTH, name
    assert rows.lengths is not None
    return pa.array(rows.lengths.astype(np.int32))


def _repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """``value``, ``count`` times: for the batches of a large ledger a slice of one array."""
    if not _SHORT <= count <= _LONG:
        return pa.repeat(pa.scalar(value, kind), count)
    return _long(value, kind).slice(0, count)


@lru_cache(maxsize=4)
def _long(value: object, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), _LONG)
