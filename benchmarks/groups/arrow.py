# SPDX-License-Identifier: Apache-2.0
"""Group ``arrow``: rows with types as an Arrow table, without Spark. Empty while logs have no ``to_arrow``."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import pyarrow.parquet as pq

from benchmarks.flights import COLUMNS, THREE, flights
from benchmarks.measurement import Measurement, Peer, Prepare, Run
from benchmarks.world import World
from bk_core import blocking_logs

ROWS = 3_000_000


def from_log(columns: tuple[str, ...] | None) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        rows = flights(world.scaled(ROWS, 1_000))
        log = world.bookkeeper.log(f"flights-{uuid4().hex[:8]}")
        log.append_arrow(rows)

        def run() -> Run:
            began = time.perf_counter()
            found = log.to_arrow(columns=columns and list(columns))
            took = time.perf_counter() - began
            assert (found.num_rows, found.num_columns) == (rows.num_rows, len(columns or COLUMNS))
            return Run.of(found.num_rows / took, found.nbytes)

        return run

    return prepare


def from_parquet(columns: tuple[str, ...] | None) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        path = world.folder / f"flights-{uuid4().hex[:8]}.parquet"
        pq.write_table(flights(world.scaled(ROWS, 1_000)), path)

        def run() -> Run:
            began = time.perf_counter()
            found = pq.read_table(path, columns=columns and list(columns))
            return Run.of(found.num_rows / (time.perf_counter() - began), found.nbytes)

        return run

    return prepare


NOTE = f"log.to_arrow() of {ROWS:,} rows of the {len(COLUMNS)} columns of the flights"
PARQUET = "pyarrow reads the same rows from a local Parquet file, snappy, by all processors; one copy, no digests"
MEASUREMENTS = tuple(
    Measurement(
        (name,), "M rows/s", from_log(columns), per=1e6, note=f"{NOTE}{how}",
        peers=(Peer("raw", from_parquet(columns), (wanted,), "Parquet", note=PARQUET),),
    )
    for name, columns, how, wanted in (
        ("to_arrow_typed", None, "", 0.7),
        ("to_arrow_typed_3_columns", THREE, f", of which {', '.join(THREE)}", None),
    )
    if hasattr(blocking_logs.NamedLog, "to_arrow")
)  # fmt: skip
