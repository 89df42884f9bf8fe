# SPDX-License-Identifier: Apache-2.0
"""Columns that say where a row comes from; every codec has them beside its own.

``includeMetadata=true`` adds the last ones to the default schema; a ``.schema(…)`` may name any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bk_core.errors import InvalidArgumentError
from bk_spark.codecs.codec import LedgerAt

if TYPE_CHECKING:
    import numpy.typing as npt

    I64 = npt.NDArray[np.int64]

PLACES: dict[str, tuple[str, pa.DataType]] = {
    "log": ("string", pa.string()),
    "ledger_id": ("bigint", pa.int64()),
    "entry_id": ("bigint", pa.int64()),
    "offset": ("bigint", pa.int64()),
}
"""Spark's and Arrow's type of the columns that are always there, in the order of the default schema."""
LOG_ONLY = ("log", "offset")
"""Columns that are null for a bare ledger."""


def check_nullable(columns: Sequence[tuple[str, str, bool]], *, has_log: bool) -> None:
    """Raises InvalidArgumentError for NOT NULL on a column, given as (name, type, nullable), that will be null."""
    for name, _, nullable in columns:
        if not nullable and name in LOG_ONLY and not has_log:
            raise InvalidArgumentError(
                "a bare ledger has no value for this column",
                value=f"{name} NOT NULL",
                remedy=f"declare {name} nullable",
            )


def column(name: str, entry_ids: I64, at: LedgerAt) -> pa.Array:
    """The metadata column ``name`` for rows of these entries, one id a row."""
    count = int(entry_ids.size)
    if name == "entry_id":
        return pa.array(entry_ids)
    if name == "ledger_id":
        return pa.array(np.full(count, at.ledger_id, dtype=np.int64))
    if name == "log":
        return pa.nulls(count, pa.string()) if at.log is None else pa.repeat(pa.scalar(at.log, pa.string()), count)
    assert name == "offset", name
    return pa.nulls(count, pa.int64()) if at.offset_shift is None else pa.array(entry_ids + at.offset_shift)
