# SPDX-License-Identifier: Apache-2.0
"""Threads of a classic driver write and start streams; those of Spark Connect do so by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_bookkeeper import in_this_thread
from tests.spark.test_write_e2e import ended, load, numbered, numbers, start, stream_of, writer

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


def run(thread: threading.Thread) -> None:
    thread.start()
    thread.join(120)
    assert not thread.is_alive()


def plain(work: Callable[[], object]) -> threading.Thread:
    return threading.Thread(target=work)


def inheritable(work: Callable[[], object]) -> threading.Thread:
    from pyspark import InheritableThread

    return InheritableThread(target=work)


@pytest.mark.parametrize("kind", [pytest.param(plain, marks=pytest.mark.thorough), inheritable])
def test_a_thread_writes_a_batch_a_table_and_starts_a_stream(
    spark: Any, uri: str, log: str, tmp_path: Path, kind: Callable[[Callable[[], object]], threading.Thread]
) -> None:
    done = list[str]()
    spark.sql(f"CREATE TABLE threads_{kind.__name__} (value STRING) USING bookkeeper")

    def work() -> None:
        in_this_thread(spark)
        writer(numbered(spark, 0, 10), uri).mode("append").save(log)
        given = {"metadataServiceUri": uri, "log": log}
        to_table = numbered(spark, 10, 20).write.format("bookkeeper").options(**given).mode("append")
        to_table.saveAsTable(f"threads_{kind.__name__}")
        ended(start(stream_of(spark, uri, log), uri, f"{log}.copy", tmp_path, availableNow=True))
        done.append("all")

    try:
        run(kind(work))
    finally:
        spark.sql(f"DROP TABLE threads_{kind.__name__}")
    assert done == ["all"]
    assert numbers(load(spark, uri, f"{log}.copy")) == list(range(20))


def test_a_function_of_foreach_batch_and_an_insert_into_a_view_need_no_helper(
    spark: Any, uri: str, log: str, tmp_path: Path
) -> None:
    writer(numbered(spark, 0, 10), uri).mode("append").save(log)
    failed, queries = list[BaseException](), list[Any]()

    def take(frame: Any, number: int) -> None:
        writer(frame, uri, txnAppId="copy", txnVersion=number).mode("append").save(f"{log}.copy")

    options = f"metadataServiceUri '{uri}', log '{log}.view', ensembleSize '1', writeQuorumSize '1', ackQuorumSize '1'"

    def work() -> None:
        try:
            stream = stream_of(spark, uri, log).writeStream.foreachBatch(take)
            queries.append(stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
            spark.sql(f"CREATE TEMPORARY VIEW threads_in (value STRING) USING bookkeeper OPTIONS ({options})")
            spark.sql("INSERT INTO threads_in VALUES ('7')")
        except BaseException as error:
            failed.append(error)

    run(plain(work))
    spark.sql("DROP VIEW IF EXISTS threads_in")
    assert failed == []
    ended(queries[0])
    assert numbers(load(spark, uri, f"{log}.copy")) == list(range(10))
    assert numbers(load(spark, uri, f"{log}.view")) == [7]
