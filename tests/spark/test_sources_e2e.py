# SPDX-License-Identifier: Apache-2.0
"""Several ledgers and logs in one load, through Spark, bookies as processes and ZooKeeper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_core.blocking import BookKeeper
from tests.spark.frames import failure
from tests.spark.tables import closed, publish

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


def source(spark: Any, uri: str, **options: Any) -> Any:
    return spark.read.format("bookkeeper").options(metadataServiceUri=uri, **options)


def rows(frame: Any) -> list[tuple[str | None, int | None, bytes]]:
    return [(row.log, row.offset, bytes(row.value)) for row in frame.collect()]


def test_many_small_ledgers_are_read_ahead_in_one_task_and_in_order(spark: Any, uri: str, client: BookKeeper) -> None:
    ledgers = [closed(client, [b"%d/%d" % (i, j) for j in range(1 + i % 3)]) for i in range(150)]
    publish(client, "small", *ledgers)
    wanted = [b"%d/%d" % (i, j) for i in range(150) for j in range(1 + i % 3)]
    frame = source(spark, uri).load("small")
    assert frame.rdd.getNumPartitions() == 1
    assert [value for _, _, value in rows(frame)] == wanted
    assert [value for _, _, value in rows(frame.limit(3))] == wanted[:3]  # ends early, with reads under way
    assert [value for _, _, value in rows(source(spark, uri, minPartitions=4).load("small"))] == wanted


def test_a_ledger_of_a_log_that_was_deleted_is_skipped_only_if_data_may_be_lost(
    spark: Any, uri: str, client: BookKeeper, tmp_path: Path
) -> None:
    first, lost, last = (closed(client, entries) for entries in ([b"d0", b"d1"], [b"d2"], [b"d3"]))
    publish(client, "holed", first, replace(lost, fragments=()), last)  # so that planning looks its record up
    client.delete_ledger(lost.ledger_id)
    left = [b"d0", b"d1", b"d3"]
    batch = source(spark, uri, failOnDataLoss="false")
    assert [value for _, _, value in rows(batch.load("holed"))] == left
    assert "BK_NO_SUCH_LEDGER" in failure(source(spark, uri).load("holed").collect)
    stream = spark.readStream.format("bookkeeper").options(
        metadataServiceUri=uri, startingOffsets="earliest", failOnDataLoss="false"
    )
    query = (
        stream.load("holed")
        .writeStream.format("memory")
        .queryName("holed")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert query.exception() is None
    assert [bytes(row.value) for row in spark.sql("SELECT value FROM holed ORDER BY offset").collect()] == left
