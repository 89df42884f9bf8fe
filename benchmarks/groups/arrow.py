# SPDX-License-Identifier: Apache-2.0
"""Group ``arrow``: reads rows with types as an Arrow table, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import pyarrow.parquet as pq
from pyarrow import feather

from benchmarks.flights import COLUMNS, THREE, flights
from benchmarks.measurement import Measurement, Peer, Prepare
from benchmarks.report.figures import Run
from benchmarks.running.world import World

ROWS = 3_000_000
FEATHER_ROWS = 20_000


def from_log(columns: tuple[str, ...] | None, compression: str = "zstd") -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        rows = flights(world.scaled(ROWS, 1_000))
        log = world.bookkeeper.log(f"flights-{uuid4().hex[:8]}")
        log.append_arrow(rows, compression=compression)

        def run() -> Run:
            began = time.perf_counter()
            found = log.to_arrow(columns=columns and list(columns))
            took = time.perf_counter() - began
            assert (found.num_rows, found.num_columns) == (rows.num_rows, len(columns or COLUMNS))
            return Run.of(found.num_rows / took, found.nbytes)

        return run

    return prepare


def from_parquet(columns: tuple[str, ...] | None, compression: str = "snappy") -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        path = world.folder / f"flights-{uuid4().hex[:8]}.parquet"
        pq.write_table(flights(world.scaled(ROWS, 1_000)), path, compression=compression)

        def run() -> Run:
            began = time.perf_counter()
            found = pq.read_table(path, columns=columns and list(columns))
            return Run.of(found.num_rows / (time.perf_counter() - began), found.nbytes)

        return run

    return prepare


def from_feather(columns: tuple[str, ...] | None, compression: str) -> Prepare:
    def prepare(world: World) -> Callable[[], Run]:
        path, rows = world.folder / f"flights-{uuid4().hex[:8]}.arrow", flights(world.scaled(ROWS, 1_000))
        feather.write_feather(rows, path, compression=compression, chunksize=FEATHER_ROWS)

        def run() -> Run:
            began = time.perf_counter()
            found = feather.read_table(path, columns=columns and list(columns), memory_map=False)
            return Run.of(found.num_rows / (time.perf_counter() - began), found.nbytes)

        return run

    return prepare


NOTE = f"log.to_arrow() of {ROWS:,} rows of the {len(COLUMNS)} columns of the flights"
PARQUET = "pyarrow reads the same rows from a local Parquet file, snappy, by all processors; one copy, no digests"
FEATHER = (
    f"the ceiling of Arrow's own format: pyarrow reads the same rows from a local file of Arrow IPC, {FEATHER_ROWS:,} "
    "rows a batch as entries have, of the same compression, by all processors; one copy, no digests"
)
MEASUREMENTS = (
    Measurement(
        ("to_arrow_typed",), "M rows/s", from_log(None), per=1e6, note=f"{NOTE}, zstd",
        peers=(
            Peer("raw", from_parquet(None), (0.7,), "Parquet", note=PARQUET),
            Peer("raw", from_parquet(None, "zstd"), (0.6,), "Parquet zstd", note=f"{PARQUET}; zstd instead"),
            Peer("raw", from_feather(None, "zstd"), (None,), "Arrow IPC zstd", note=FEATHER),
        ),
    ),
    Measurement(
        ("to_arrow_typed_lz4",), "M rows/s", from_log(None, "lz4"), per=1e6, note=f"{NOTE}, lz4",
        peers=(
            Peer("raw", from_parquet(None), (0.7,), "Parquet", note=PARQUET),
            Peer("raw", from_feather(None, "lz4"), (None,), "Arrow IPC lz4", note=FEATHER),
        ),
    ),
    Measurement(
        ("to_arrow_typed_3_columns",), "M rows/s", from_log(THREE), per=1e6,
        note=f"{NOTE}, of which {', '.join(THREE)}",
        peers=(
            Peer("raw", from_parquet(THREE), (None,), "Parquet", note=PARQUET),
            Peer("raw", from_parquet(THREE, "zstd"), (0.4,), "Parquet zstd", note=f"{PARQUET}; zstd instead"),
            Peer("raw", from_feather(THREE, "zstd"), (None,), "Arrow IPC zstd", note=FEATHER),
        ),
    ),
)  # fmt: skip
