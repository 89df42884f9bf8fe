# SPDX-License-Identifier: Apache-2.0
"""Loading and saving: what of Spark's batch API works with this format, the same in every mode."""

from __future__ import annotations

import json
import threading

import pyspark
import pytest

from bk_core.blocking import BookKeeper
from pyspark_bookkeeper import in_this_thread
from tests.spark.modes.kit import Source, refusal, texts

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.mark.also_on("connect", always=True)
@pytest.mark.also_on("standalone")
def test_rows_come_back_in_order_with_their_places(source: Source) -> None:
    source.append(source.rows(100), smallTaskBytes="0")
    source.append(source.rows(5, start=100), smallTaskBytes="32k")
    rows = source.load().collect()
    assert [bytes(row.value) for row in rows] == [b"row %d" % i for i in range(105)]
    assert [row.offset for row in rows] == list(range(105))
    assert {row.log for row in rows} == {source.log}
    assert len({row.ledger_id for row in rows}) == 3  # one for each of two tasks, and one for two small ones
    assert source.values(minPartitions="4") == [f"row {i}" for i in range(105)]


@pytest.mark.also_on("connect", "standalone")
def test_a_thread_that_called_the_helper_writes(source: Source) -> None:
    def work() -> None:
        assert in_this_thread(source.spark) is source.spark
        source.append(source.rows(3))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    assert source.values() == ["row 0", "row 1", "row 2"]


def test_chosen_columns_are_all_that_comes(source: Source) -> None:
    source.fill(20)
    two = source.reader().schema("offset BIGINT, value BINARY").load(source.log).orderBy("offset").collect()
    assert two[7].asDict() == {"offset": 7, "value": b"row 7"}
    assert source.reader().schema("entry_id BIGINT").load(source.log).count() == 20
    assert "no such column" in refusal(lambda: source.reader().schema("nothing INT").load(source.log).collect())


@pytest.mark.also_on("connect")
def test_a_load_is_a_snapshot_however_often_it_is_used(source: Source) -> None:
    source.fill(10)
    frame = source.load()
    assert frame.count() == 10
    source.append(source.rows(5))
    kept = 15 if pyspark.__version__.startswith("4.0.") else 10  # Spark 4.0 plans anew for each action
    assert frame.count() == kept
    joined = frame.alias("a").join(frame.alias("b"), "offset")
    assert joined.count() == kept
    assert frame.union(frame).count() == 2 * kept
    assert source.load().count() == 15


@pytest.mark.also_on("connect")
def test_a_filter_is_not_pushed_into_later_uses_of_the_frame(source: Source) -> None:
    source.fill(10)
    frame = source.load()
    assert frame.where("offset = 3").count() == 1
    assert frame.count() == 10
    assert frame.where("offset = 1").union(frame).count() == 11


@pytest.mark.also_on("connect")
def test_writes_keep_a_sort_and_take_empty_frames(source: Source) -> None:
    shuffled = source.rows(40, partitions=4).orderBy("value")
    source.append(source.rows(0))
    assert source.values() == [], "the log is there, and empty"
    source.append(shuffled)
    source.append(source.rows(0))
    assert source.values() == sorted(f"row {i}" for i in range(40))


@pytest.mark.also_on("connect")
def test_explaining_and_describing_touch_nothing(source: Source, client: BookKeeper) -> None:
    frame = source.load()
    frame.explain()
    assert [field.name for field in frame.schema.fields][:1] == ["value"]
    assert source.log not in client.store.list_logs()


@pytest.mark.also_on("connect", "standalone")
def test_the_format_can_be_registered_by_hand(source: Source) -> None:
    import pyspark_bookkeeper

    pyspark_bookkeeper.register(source.spark)
    assert source.fill(2) == ["row 0", "row 1"]


@pytest.mark.also_on("connect", "standalone")
def test_several_logs_and_ledgers_are_read_in_one_load(source: Source) -> None:
    first, second = f"{source.log}.a", f"{source.log}.b"
    source.append(source.rows(3), first)
    source.append(source.rows(2, start=3), second)
    wanted = [f"row {i}" for i in range(5)]
    assert texts(source.reader().load([first, second])) == wanted
    assert texts(source.reader(logs=f"{second},{first}").load()) == wanted
    assert texts(source.reader(logPattern=f"{source.log}[.].").load()) == wanted
    bounds = json.dumps({first: 2, second: 1})
    assert texts(source.reader(logs=f"{first},{second}", startingOffsets=bounds).load()) == ["row 2", "row 4"]
    ledgers = sorted({row.ledger_id for row in source.reader().load([first, second]).collect()})
    assert sorted(texts(source.reader(ledgerIds=",".join(map(str, ledgers))).load())) == wanted


@pytest.mark.also_on("connect")
def test_overwriting_replaces_all_rows_at_once_and_makes_a_missing_log(source: Source) -> None:
    writer = source.rows(2, start=50).write.format("bookkeeper").option("metadataServiceUri", source.uri)
    writer.mode("overwrite").save(source.log)
    assert source.values() == ["row 50", "row 51"]
    source.fill(10)
    writer.mode("overwrite").save(source.log)
    assert source.values() == ["row 50", "row 51"]
    assert [row.offset for row in source.load().collect()] == [12, 13]


@pytest.mark.also_on("connect", "standalone")
@pytest.mark.rule("N5")
def test_a_job_with_a_transaction_counts_once_however_often_it_runs(source: Source) -> None:
    for _ in range(2):
        source.append(source.rows(4), txnAppId=source.log, txnVersion="7")
    assert source.values() == [f"row {i}" for i in range(4)]
    assert "BK_TXN_REPLAY_DIFFERS" in refusal(
        lambda: source.append(source.rows(3), txnAppId=source.log, txnVersion="7")
    )
    assert "BK_TXN_VERSION_REGRESSED" in refusal(
        lambda: source.append(source.rows(3), txnAppId=source.log, txnVersion="6")
    )


@pytest.mark.also_on("connect", "standalone")
@pytest.mark.rule("K10")
def test_a_column_sends_each_row_to_its_log(source: Source) -> None:
    rows = source.rows(6).selectExpr("value", f"concat('{source.log}.', substr(value, 5) % 2) AS log")
    rows.write.format("bookkeeper").option("metadataServiceUri", source.uri).mode("append").save()
    assert source.values(f"{source.log}.0") == ["row 0", "row 2", "row 4"]
    assert source.values(f"{source.log}.1") == ["row 1", "row 3", "row 5"]
