# SPDX-License-Identifier: Apache-2.0
"""Measures how soon a stream sees what its log's leader has confirmed: from the ack to ``latestOffset``, and to the
row.

Rows are appended one at a time, with random pauses. The leader is a client of its own in the process that asks, so that
one clock times both.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.report.figures import Figure, percentile
from benchmarks.spark.session import session
from benchmarks.spark.world import World, new_log
from bk_core.blocking import connect
from bk_core.errors import BookKeeperError

OFFSETS = 300
OFFSET_P99_MS_MAX = 50.0
ASK_S = 0.001
ROWS = 100
TRIGGER_MS = 500
ABOVE_TRIGGER_MS_MAX = 150.0
PATIENCE_S = 30.0


def tail_figures(world: World) -> list[Figure]:
    """Measure the delay to ``latestOffset`` and the delay to the row. The row is measured first, because Spark starts
    its Java process then, and no client of ours should work meanwhile."""
    rows = row_figures(world)
    return [*offset_figures(world), *rows]


# --- ack → latestOffset -----------------------------------------------------------------------------------------------


def offset_figures(world: World) -> list[Figure]:
    """Measure the milliseconds from the return of an append to the first ``latestOffset`` that shows it."""
    count, dice = world.scaled(OFFSETS, 5), random.Random(1)
    runs = []
    with connect(world.uri) as bookkeeper:
        name = new_log()
        with bookkeeper.log(name).lead() as leader:
            leader.append(b"first")
            reader = _stream_reader(world.uri, name)
            try:
                start = reader.initialOffset()
                for _ in range(world.runs + 1):
                    runs.append([_offset_ms(leader, reader, start, name, dice) for _ in range(count)])
            finally:
                reader.stop()
    note = f"{count} appends one at a time to a log with a leader, asked every {ASK_S * 1e3:g} ms, no Spark in between"
    return [
        Figure(f"spark_ack_to_offset_{name}", "ms", [percentile(each, share) for each in runs[1:]],
               wanted=wanted, less_is_better=True, note=note)
        for name, share, wanted in (("p50", 0.5, None), ("p99", 0.99, OFFSET_P99_MS_MAX))
    ]  # fmt: skip


def _stream_reader(uri: str, log: str) -> Any:
    """Make a stream reader as Spark makes it on its driver."""
    from bk_spark.source import BookKeeperDataSource

    source = BookKeeperDataSource({"metadataserviceuri": uri, "log": log, "startingoffsets": "earliest"})
    return source.streamReader(source.schema())


def _offset_ms(leader: Any, reader: Any, start: Any, log: str, dice: random.Random) -> float:
    time.sleep(dice.uniform(0.001, 0.02))
    position = leader.append(b"x" * 100)
    acked = time.perf_counter()
    while reader.latestOffset(start)["logs"][log]["next"] <= position:
        if time.perf_counter() - acked > PATIENCE_S:
            raise BookKeeperError("a stream does not see what was confirmed", value=f"{log}, offset {position}")
        time.sleep(ASK_S)
    return (time.perf_counter() - acked) * 1e3


# --- ack → row in foreachBatch ----------------------------------------------------------------------------------------


def row_figures(world: World) -> list[Figure]:
    """Measure the milliseconds from the return of an append to the row in ``foreachBatch``."""
    spark = session(world.folder)
    try:
        timed = _row_runs(spark, world)
    finally:
        spark.stop()
    rows = f"{world.scaled(ROWS, 3)} rows one at a time, in foreachBatch on the driver"
    return [
        Figure("spark_ack_to_row", "ms", timed, wanted=TRIGGER_MS + ABOVE_TRIGGER_MS_MAX, less_is_better=True,
               note=f"median of {rows}; trigger processingTime {TRIGGER_MS} ms; wanted: that and 150 ms"),
    ]  # fmt: skip


def _row_runs(spark: Any, world: World) -> list[float]:
    """Return the median of each run."""
    seen: dict[int, float] = {}
    news = threading.Condition()

    def on_batch(frame: Any, _: int) -> None:
        numbers = [int(row["value"]) for row in frame.select("value").collect()]
        now = time.perf_counter()
        with news:
            seen.update(dict.fromkeys(numbers, now))
            news.notify_all()

    count, dice, log = world.scaled(ROWS, 3), random.Random(1), new_log()
    with connect(world.uri) as bookkeeper, bookkeeper.log(log).lead() as leader:
        leader.append(b"0")
        query = _tail(spark, world, log, on_batch)
        try:
            medians = [
                _median_ms(leader, query, seen, news, dice, 1 + run * count, count) for run in range(world.runs + 1)
            ]
        finally:
            query.stop()
    return medians[1:]


def _tail(spark: Any, world: World, log: str, on_batch: Callable[[Any, int], None]) -> Any:
    stream = world.streams(spark).load(log)
    writer = stream.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(world.new_folder()))
    return writer.trigger(processingTime=f"{TRIGGER_MS} milliseconds").start()


def _median_ms(
    leader: Any,
    query: Any,
    seen: dict[int, float],
    news: threading.Condition,
    dice: random.Random,
    first: int,
    count: int,
) -> float:
    """Append ``count`` rows and wait for all of them. Return the median."""
    acked = {}
    for number in range(first, first + count):
        time.sleep(dice.uniform(0.02, 0.2))
        leader.append(b"%d" % number)
        acked[number] = time.perf_counter()
    with news:
        if not news.wait_for(lambda: acked.keys() <= seen.keys() or not query.isActive, PATIENCE_S):
            raise BookKeeperError("rows did not arrive", value=f"{len(acked.keys() - seen.keys())} of {count}")
    if query.exception() is not None:
        raise BookKeeperError("the query ended", value=str(query.exception()).splitlines()[0])
    return percentile([(seen[number] - at) * 1e3 for number, at in acked.items()], 0.5)
