# SPDX-License-Identifier: Apache-2.0
"""Typed rows: the 20 columns of the flights (``examples/flights.py``), repeated until there are enough rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from examples.flights import flights_table

COLUMNS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour", "seq",
)  # fmt: skip
THREE = ("carrier", "dep_delay", "distance")


def flights(rows: int) -> pa.Table:
    """Return ``rows`` rows, each with a ``seq`` of its own."""
    once = flights_table()
    assert tuple(once.column_names) == COLUMNS
    at = COLUMNS.index("time_hour")
    once = once.set_column(at, "time_hour", pc.cast(once["time_hour"], pa.timestamp("us", tz="UTC")))
    table = pa.concat_tables([once] * -(-rows // once.num_rows)).slice(0, rows).combine_chunks()
    return table.set_column(len(COLUMNS) - 1, "seq", pa.array(range(rows), pa.int64()))
