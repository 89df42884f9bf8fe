# SPDX-License-Identifier: Apache-2.0
"""Entries that are too large: the error names the row, so that it can be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bk_core.errors import EntryTooLargeError
from bk_core.wire.lane import ENTRY_BYTES_MAX

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ENTRY_BYTES_MAX", "check_rows", "too_large"]


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
