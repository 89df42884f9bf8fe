# SPDX-License-Identifier: Apache-2.0
"""Twenty columns with ``codec=arrow`` beside Parquet on the same disk: all of them read and dropped, warm."""

from __future__ import annotations

from typing import Any

from benchmarks.report.figures import Figure, elapsed, side_by_side
from benchmarks.spark.session import drop_rows, session
from benchmarks.spark.world import World, new_log

ROWS = 1_000_000
PARTITIONS = 2
OF_PARQUET = 1 / 3
"""Wanted: at most three times Parquet's time."""

# What no encoding makes small: hashes of the row's number, cut to the types that tables have.
_HASH = "xxhash64(id, {n})"
COLUMNS = {
    **{f"long_{n}": _HASH.format(n=n) for n in range(5)},
    **{f"int_{n}": f"cast({_HASH.format(n=10 + n)} % 1000000 as int)" for n in range(4)},
    **{f"double_{n}": f"cast({_HASH.format(n=20 + n)} as double) / 1e9" for n in range(4)},
    **{f"text_{n}": f"hex({_HASH.format(n=30 + n)})" for n in range(3)},
    "amount": f"cast({_HASH.format(n=40)} % 100000000 as decimal(18, 2))",
    "at": f"timestamp_micros(1700000000000000 + pmod({_HASH.format(n=41)}, 100000000000))",
    "day": f"date_add(date'2020-01-01', cast(pmod({_HASH.format(n=42)}, 2000) as int))",
    "yes": f"{_HASH.format(n=43)} > 0",
}


def column_figures(world: World) -> list[Figure]:
    """Seconds of a read of the whole."""
    spark = session(world.folder)
    try:
        assert len(COLUMNS) == 20
        rows, log, files = world.scaled(ROWS, 1_000), new_log(), str(world.folder / "parquet")
        frame = spark.range(rows, numPartitions=PARTITIONS).selectExpr(
            *(f"{made} {name}" for name, made in COLUMNS.items())
        )
        frame.write.parquet(files)
        world.appends(frame, codec="arrow").save(log)
        mine = world.reads(spark, codec="arrow").load(log).select(*COLUMNS)
        parquet = spark.read.parquet(files).select(*COLUMNS)
        _check_same(spark, mine, parquet, rows)
        ours, theirs = side_by_side(
            world.runs, lambda: elapsed(lambda: drop_rows(mine)), lambda: elapsed(lambda: drop_rows(parquet))
        )
        note = (
            f"{rows:,} rows of 20 columns, all of them read and dropped, warm; peer: local Parquet, snappy, no replica"
        )
        return [
            Figure("spark_arrow_20_columns", "s", ours, wanted_ratio=OF_PARQUET, less_is_better=True,
                   peer="parquet", peer_values=theirs, note=note)
        ]  # fmt: skip
    finally:
        spark.stop()


def _check_same(spark: Any, mine: Any, parquet: Any, rows: int) -> None:
    """The same rows in both."""
    digest = "count(*) n", f"bit_xor(xxhash64({', '.join(COLUMNS)})) x"
    found, wanted = mine.selectExpr(*digest).first(), parquet.selectExpr(*digest).first()
    assert (found.n, found) == (rows, wanted), f"{found} is not {wanted}"
