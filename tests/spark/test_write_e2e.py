# SPDX-License-Identifier: Apache-2.0
"""Spark writes to logs of a real cluster: over what was there, once, batch by batch, into several at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from bk_core.blocking import BookKeeper
from tests.spark.frames import failure, load
from tests.spark.sessions import ClassicSpark

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


ONE_COPY = {"ensembleSize": "1", "writeQuorumSize": "1", "ackQuorumSize": "1"}


def writer(frame: Any, uri: str, **options: Any) -> Any:
    return frame.write.format("bookkeeper").options(metadataServiceUri=uri, **ONE_COPY, **options)


def numbered(spark: Any, first: int, stop: int, partitions: int = 3) -> Any:
    return spark.range(first, stop, 1, partitions).selectExpr("CAST(id AS STRING) AS value")


def numbers(frame: Any) -> list[int]:
    return [int(row.value) for row in frame.select("value").collect()]


def start(source: Any, uri: str, log: str | None, checkpoint: Path, *, mode: str = "append", **trigger: Any) -> Any:
    """A streaming query into a log, or into those of column ``log``."""
    query = source.writeStream.format("bookkeeper").outputMode(mode).options(metadataServiceUri=uri, **ONE_COPY)
    query = query.option("checkpointLocation", str(checkpoint)).trigger(**trigger)
    return query.start(log) if log is not None else query.start()


def stream_of(spark: Any, uri: str, log: str, **options: Any) -> Any:
    given = {"startingOffsets": "earliest", **options}
    source = spark.readStream.format("bookkeeper").options(metadataServiceUri=uri, **given).load(log)
    return source.select("value")


def forget_the_last_commit(checkpoint: Path) -> None:
    """As if the driver had died before it: the batch is run again."""
    last = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


def ended(query: Any) -> Any:
    assert query.awaitTermination(120)
    return query


@pytest.mark.rule("N4")
def test_small_tasks_of_a_job_share_one_ledger_and_one_that_fails_is_run_again(
    classic_spark: ClassicSpark, uri: str, log: str, client: BookKeeper, tmp_path: Path
) -> None:
    spark = classic_spark.session("local[2,3]")
    marks = str(tmp_path)

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        mark = Path(marks, str(TaskContext.get().partitionId() % 10))  # type: ignore[union-attr]  # in a task
        if not mark.exists():
            mark.touch()
            raise RuntimeError("this attempt fails after its last row")

    rows = spark.range(0, 1000, 1, 50).selectExpr("CAST(id AS STRING) AS value")
    before = set(client.list_ledgers())
    writer(rows.mapInArrow(fails_once, "value STRING"), uri).mode("append").save(log)
    assert len(list(tmp_path.iterdir())) == 10
    assert numbers(load(spark, uri, log)) == list(range(1000))
    assert len(set(client.list_ledgers()) - before) == 1, "not even a failed attempt has made one"


@pytest.mark.rule("N5")
def test_batches_of_small_tasks_make_one_ledger_each_and_are_there_once_after_a_restart(
    spark: Any, uri: str, log: str, client: BookKeeper, tmp_path: Path
) -> None:
    writer(numbered(spark, 0, 90), uri).mode("append").save(log)
    copy = f"{log}.copy"

    def run(limit: int) -> None:
        source = stream_of(spark, uri, log, maxEntriesPerTrigger=limit).repartition(20)
        ended(start(source, uri, copy, tmp_path, availableNow=True))

    run(30)
    assert [extent.entry_count for extent in client.log(copy).head().value.tail] == [30, 30, 30]
    forget_the_last_commit(tmp_path)
    writer(numbered(spark, 90, 100, 1), uri).mode("append").save(log)
    run(30)
    assert sorted(numbers(load(spark, uri, copy))) == list(range(100))


@pytest.mark.rule("K9")
def test_a_stream_into_the_log_that_it_reads_is_refused(spark: Any, uri: str, log: str, tmp_path: Path) -> None:
    writer(numbered(spark, 0, 100), uri).mode("append").save(log)
    query = start(stream_of(spark, uri, log), uri, log, tmp_path, availableNow=True)
    assert "would never end" in failure(lambda: query.awaitTermination(60))
    assert load(spark, uri, log).count() == 100


@pytest.mark.rule("K10")
def test_five_logs_are_written_in_one_job_and_a_failure_in_the_middle_publishes_nothing(
    spark: Any, uri: str, log: str, client: BookKeeper, tmp_path: Path
) -> None:
    routed = spark.range(0, 1000, 1, 3).selectExpr(f"concat('{log}.', id % 5) AS log", "CAST(id AS STRING) AS value")
    names = [f"{log}.{number}" for number in range(5)]
    bad = routed.selectExpr("log", "IF(value = '998', raise_error('stop here'), value) AS value")
    with pytest.raises(Exception, match="stop here"):
        writer(bad, uri).mode("append").save()
    assert {client.log(name).head().value.next_offset for name in names} == {0}
    writer(routed, uri).mode("append").save()
    for number, name in enumerate(names):
        assert numbers(load(spark, uri, name)) == list(range(number, 1000, 5))
    null = routed.selectExpr("IF(value = '700', NULL, log) AS log", "value")
    said = failure(lambda: writer(null, uri).mode("append").save())
    assert "column log is null" in said
    assert "partition 2, row 34" in said
    assert "overwriting needs the name" in failure(lambda: writer(routed, uri).mode("overwrite").save())

    source = stream_of(spark, uri, names[0]).selectExpr(
        f"concat('{log}.copy.', int(string(value)) % 2) AS log", "value"
    )
    for _ in range(2):
        ended(start(source, uri, None, tmp_path, availableNow=True))
        forget_the_last_commit(tmp_path)
    copies = [numbers(load(spark, uri, f"{log}.copy.{parity}")) for parity in range(2)]
    assert copies == [list(range(0, 1000, 10)), list(range(5, 1000, 10))]


@pytest.mark.rule("N7")
def test_who_reads_while_a_log_is_overwritten_sees_all_old_rows_or_all_new_ones(
    spark: Any, uri: str, log: str, client: BookKeeper
) -> None:
    old, new = list(range(20_000)), list(range(100_000, 130_000))
    writer(numbered(spark, 0, 20_000), uri).mode("append").save(log)
    before = load(spark, uri, log)
    assert before.count() == 20_000
    seen: list[list[int]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(numbers(load(spark, uri, log)))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        while not seen:
            assert reader.is_alive()
            time.sleep(0.01)
        writer(numbered(spark, 100_000, 130_000), uri).mode("overwrite").save(log)
        after = len(seen)
        while len(seen) <= after + 1 and reader.is_alive():
            time.sleep(0.01)
    finally:
        stop.set()
        reader.join()
    assert all(rows in (old, new) for rows in seen)
    assert seen[0] == old
    assert seen[-1] == new
    assert numbers(before) == old, "the ledgers that were unlinked are there until vacuum deletes them"
    head = client.log(log).head().value
    assert (head.epoch, head.start_offset, head.next_offset) == (1, 20_000, 50_000)
