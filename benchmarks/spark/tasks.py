# SPDX-License-Identifier: Apache-2.0
"""The cost of a reading task above that of an empty one: hundreds of tasks of a few rows each, on a warm session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.report.figures import Figure, elapsed, side_by_side
from benchmarks.spark.session import SLOTS, drop_rows, session
from benchmarks.spark.world import World, new_log

if TYPE_CHECKING:
    import pyarrow as pa

TASKS = 400
ROWS_PER_TASK = 10
ROW_BYTES = 100
ABOVE_EMPTY_MS_MAX = 10.0


def task_figures(world: World) -> list[Figure]:
    """Measure the slot time of a task: the time of a job, divided among its tasks and the two slots that share them."""
    spark = session(world.folder)
    try:
        tasks, log = world.scaled(TASKS, 4), new_log()
        rows = tasks * ROWS_PER_TASK
        value = f"cast(repeat('x', {ROW_BYTES}) as binary) value"
        world.appends(spark.range(rows, numPartitions=1).selectExpr(value)).save(log)
        loaded = world.reads(spark, maxEntriesPerPartition=ROWS_PER_TASK).load(log)
        empty = spark.range(rows, numPartitions=tasks).mapInArrow(nothing, "id BIGINT")
        found = loaded.rdd.getNumPartitions()
        assert found == tasks, f"{found} tasks, not {tasks}"

        def of_a_task(seconds: float) -> float:
            return seconds * SLOTS / tasks * 1e3

        ours, empties = side_by_side(
            world.runs,
            lambda: of_a_task(elapsed(lambda: drop_rows(loaded))),
            lambda: of_a_task(elapsed(lambda: drop_rows(empty))),
        )
        what = f"{tasks} tasks of {ROWS_PER_TASK} rows of {ROW_BYTES} B, planned before, on {SLOTS} slots"
        above = [mine - theirs for mine, theirs in zip(ours, empties, strict=True)]
        return [
            Figure("spark_task_above_empty", "ms", above, wanted=ABOVE_EMPTY_MS_MAX, less_is_better=True,
                   note=f"slot time of a task above that of a mapInArrow that yields nothing, run by run; {what}"),
        ]  # fmt: skip
    finally:
        spark.stop()


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield no rows."""
    for _ in batches:
        pass
    return iter(())
