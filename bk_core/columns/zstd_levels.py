# SPDX-License-Identifier: Apache-2.0
"""Chooses the columns of codec ``arrow`` that zstd compresses at level 3.

At level 1, which is Arrow's default, zstd looks for repeats of a few bytes. From level 3 on it looks for repeats of
eight bytes first. In a column of 8-byte numbers these are repeats of whole values, so real columns become smaller, and
are compressed and decompressed faster (docs/decisions/0085). Columns of random numbers and columns of all other types
do not gain, and cost more time. So a sample of each column of 8-byte numbers decides.
"""

from __future__ import annotations

import pyarrow as pa

LEVEL = 3
SAMPLE_ROWS = 16_384
ROWS_MIN = 8 * SAMPLE_ROWS
"""The number of rows of an append after which a sample decides. An append of fewer rows would pay more for the sample
than it gains, so all its columns are compressed at Arrow's level."""

_WIDTH = 8


def columns_at_level_3(rows: pa.RecordBatch) -> tuple[int, ...]:
    """Return the indices of the columns whose first SAMPLE_ROWS values become smaller at level 3 than at level 1."""
    return tuple(k for k, column in enumerate(rows.columns) if _gains(column))


def _gains(column: pa.Array) -> bool:
    if not pa.types.is_primitive(column.type) or column.type.bit_width != 8 * _WIDTH:
        return False
    sample = column.buffers()[1].slice(_WIDTH * column.offset, _WIDTH * min(len(column), SAMPLE_ROWS))
    default, higher = (pa.Codec("zstd", compression_level=level).compress(sample).size for level in (1, LEVEL))
    return bool(higher < default)
