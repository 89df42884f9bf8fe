# SPDX-License-Identifier: Apache-2.0
"""Spark, bookies as processes and ZooKeeper: write, read, tail, fail."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from bk_core.blocking import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import LedgerFencedError
from bk_spark.options.options import Use, parse_options
from bk_spark.read.ledger_reader import LedgerReader
from tests.spark.frames import append, failure, load, values

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


def numbered(spark: Any, count: int, partitions: int = 3) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr("concat('row ', id) AS value")


def test_a_frame_comes_back_row_for_row_and_in_order(spark: Any, uri: str, log: str) -> None:
    append(numbered(spark, 20_000), uri, log)
    append(numbered(spark, 5), uri, log)
    rows = load(spark, uri, log).collect()
    wanted = [f"row {i}".encode() for i in (*range(20_000), *range(5))]
    assert [bytes(row.value) for row in rows] == wanted
    assert [row.offset for row in rows] == list(range(20_005))
    assert {row.log for row in rows} == {log}
    part = load(spark, uri, log, startingOffsets=f'{{"{log}":19990}}', endingOffsets=f'{{"{log}":20002}}')
    assert values(part) == wanted[19_990:20_002]
    assert load(spark, uri, log, minPartitions="7").rdd.getNumPartitions() >= 7
    assert values(load(spark, uri, log, minPartitions="7")) == wanted


@pytest.mark.rule("N1")
def test_binary_values_of_all_sizes_survive(spark: Any, uri: str, log: str) -> None:
    blobs = [bytes([i % 256]) * size for i, size in enumerate((0, 1, 100, 70_000, 3_000_000, 0, 5))]
    append(spark.createDataFrame([(b,) for b in blobs], "value BINARY").coalesce(1), uri, log)
    assert values(load(spark, uri, log)) == blobs


def test_columns_can_be_chosen_and_ids_alone_read_no_entry(spark: Any, uri: str, log: str) -> None:
    append(numbered(spark, 1000), uri, log)
    source = spark.read.format("bookkeeper").option("metadataServiceUri", uri)
    two = source.schema("offset BIGINT, value BINARY").load(log).orderBy("offset").collect()
    assert two[7].asDict() == {"offset": 7, "value": b"row 7"}
    ids = source.schema("entry_id BIGINT, ledger_id BIGINT").load(log)
    assert ids.count() == 1000
    assert ids.agg({"entry_id": "sum"}).collect()[0][0] == sum(r.entry_id for r in load(spark, uri, log).collect())


def test_an_empty_frame_makes_an_empty_log(spark: Any, uri: str, log: str, client: BookKeeper) -> None:
    append(numbered(spark, 0), uri, log)
    assert values(load(spark, uri, log)) == []
    assert client.log(log).head().value.next_offset == 0


def test_a_load_is_a_snapshot_and_limit_stops_early(spark: Any, uri: str, log: str) -> None:
    append(numbered(spark, 30_000), uri, log)
    frame = load(spark, uri, log)
    assert len(frame.limit(5).collect()) == 5
    append(numbered(spark, 10), uri, log)
    assert frame.count() == 30_000
    assert load(spark, uri, log).count() == 30_010


@pytest.mark.rule("N6")
def test_ledgers_of_a_job_say_whose_they_are(spark: Any, uri: str, log: str, client: BookKeeper) -> None:
    shape = {"ensembleSize": "2", "writeQuorumSize": "2", "ackQuorumSize": "1"}
    append(numbered(spark, 10, 2), uri, log, smallTaskBytes="0", **shape)
    head = client.log(log).head().value
    assert len(head.tail) == 2
    for number, extent in enumerate(head.tail):
        metadata = client.read_metadata(extent.ledger_id).value
        assert (metadata.is_closed, metadata.ensemble_size) == (True, 2)
        custom = {key: value.decode() for key, value in metadata.custom_metadata.items()}
        assert custom["application"] == "pyspark-bookkeeper"
        assert custom["bk.log.uuid"] == head.uuid
        assert custom["bk.publish.id"].startswith("job/")
        assert (custom["bk.partition"], custom["bk.codec"]) == (str(number), "raw")


@pytest.mark.rule("N4")
def test_a_failing_job_publishes_nothing(spark: Any, uri: str, log: str, client: BookKeeper) -> None:
    append(numbered(spark, 10, 1), uri, log)
    before = set(client.list_ledgers())
    bad = numbered(spark, 1000, 3).selectExpr("IF(value = 'row 990', raise_error('stop here'), value) AS value")
    with pytest.raises(Exception, match="stop here"):
        append(bad, uri, log)
    assert load(spark, uri, log).count() == 10
    uuid = client.log(log).head().value.uuid.encode()
    for orphan in set(client.list_ledgers()) - before:  # of tasks that Spark killed; vacuum knows them by this
        assert client.read_metadata(orphan).value.custom_metadata["bk.log.uuid"] == uuid


def test_null_values_fail_the_job(spark: Any, uri: str, log: str) -> None:
    frame = numbered(spark, 10).selectExpr("IF(value = 'row 3', NULL, value) AS value")
    assert "IS NOT NULL" in failure(lambda: append(frame, uri, log))
    assert load(spark, uri, log).count() == 0


def test_a_value_over_the_limit_fails_the_job(spark: Any, uri: str, log: str) -> None:
    frame = spark.range(1).selectExpr("CAST(repeat('x', 6000000) AS BINARY) AS value")
    assert "BK_ENTRY_TOO_LARGE" in failure(lambda: append(frame, uri, log))


@pytest.mark.rule("E1")
def test_errors_reach_the_user_as_one_line(spark: Any, uri: str, log: str, client: BookKeeper) -> None:
    append(numbered(spark, 5), uri, log, ledgerPassword="secret")
    assert "BK_WRONG_PASSWORD" in failure(lambda: load(spark, uri, log).count())
    assert "BK_WRONG_PASSWORD" in failure(lambda: append(numbered(spark, 5), uri, log))
    assert load(spark, uri, log, ledgerPassword="secret").count() == 5
    assert "BK_WRONG_DIGEST_TYPE" in failure(
        lambda: load(spark, uri, log, ledgerPassword="secret", digestType="MAC").count()
    )
    missing = failure(lambda: load(spark, uri, log[:-1] + "x").count())
    assert "BK_NO_SUCH_LOG" in missing
    assert log in missing
    assert "BK_NO_SUCH_LEDGER" in failure(lambda: load(spark, uri, "ledger:987654321").count())
    few = failure(lambda: append(numbered(spark, 5), uri, log, ledgerPassword="secret", ensembleSize="9"))
    assert "needs 9 bookies and 4 are writable" in few
    began = time.monotonic()
    away = failure(lambda: load(spark, "zk://127.0.0.1:1/ledgers", log).count())
    assert "BK_METADATA_UNAVAILABLE" in away
    assert time.monotonic() - began < 20


@pytest.mark.rule("N2")
def test_a_log_with_a_leader_is_read_to_its_lac_and_refuses_publishing(
    spark: Any, uri: str, log: str, client: BookKeeper
) -> None:
    append(numbered(spark, 5), uri, log)
    with client.log(log).lead() as leader:
        for i in range(5, 10):
            leader.append(f"row {i}".encode())
        deadline = time.monotonic() + 5
        while load(spark, uri, log).count() < 10 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert values(load(spark, uri, log)) == [f"row {i}".encode() for i in range(10)]
        assert "BK_LOG_HAS_LEADER" in failure(lambda: append(numbered(spark, 5), uri, log))
    append(numbered(spark, 5), uri, log)
    assert load(spark, uri, log).count() == 15


@pytest.mark.rule("K2")
def test_reading_never_fences_unless_told_to(spark: Any, uri: str, client: BookKeeper) -> None:
    ledger = client.create_ledger()
    for i in range(10):
        ledger.append(b"%d" % i)
    path = f"ledger:{ledger.ledger_id}"
    load(spark, uri, path).explain()
    load(spark, uri, path, readMode="fence").explain()
    assert load(spark, uri, path).count() >= 9
    ledger.append(b"10")
    assert values(load(spark, uri, path, readMode="fence")) == [b"%d" % i for i in range(11)]
    with pytest.raises(LedgerFencedError):
        ledger.append(b"11")
    assert load(spark, uri, path).count() == 11
    rows = load(spark, uri, path).collect()
    assert {(row.log, row.offset, row.ledger_id) for row in rows} == {(None, None, ledger.ledger_id)}


@pytest.mark.rule("K2")
def test_explaining_with_filter_pushdown_does_not_fence(spark: Any, uri: str, client: BookKeeper) -> None:
    ledger = client.create_ledger()
    ledger.append(b"0")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, uri, f"ledger:{ledger.ledger_id}", readMode="fence")
        assert "filterPushdown.enabled" in failure(lambda: frame.where("entry_id = 0").explain())
        assert load(spark, uri, f"ledger:{ledger.ledger_id}").where("entry_id >= 0").count() >= 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    ledger.append(b"1")
    ledger.close()


@pytest.mark.rule("K3")
def test_a_reading_task_needs_no_zookeeper(uri: str, log: str, client: BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append_batch(EntryBatch.from_list([b"x"] * 100))
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = StructType([StructField("value", BinaryType())])
    given = {"metadataserviceuri": uri, "ledgerid": str(ledger.ledger_id)}
    planned = LedgerReader(parse_options(given, Use.READ), schema).partitions()
    shipped = pickle.loads(pickle.dumps(planned))
    nowhere = LedgerReader(parse_options({**given, "metadataserviceuri": "zk://127.0.0.1:1/ledgers"}, Use.READ), schema)
    assert sum(batch.num_rows for part in shipped for batch in nowhere.read(part)) == 100


class Query:
    """A streaming query into a list of batches."""

    def __init__(self, spark: Any, uri: str, path: str, checkpoint: Path, **options: Any) -> None:
        self.batches: list[tuple[int, list[bytes]]] = []
        self.fail_at: int | None = None
        source = spark.readStream.format("bookkeeper").options(metadataServiceUri=uri, **options).load(path)
        self._writer = source.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(self._take)
        self.query: Any = None

    def _take(self, frame: Any, number: int) -> None:
        rows = values(frame)
        self.batches.append((number, rows))
        if number == self.fail_at:
            raise RuntimeError("made to fail")

    def start(self, **trigger: Any) -> Query:
        self.query = (self._writer.trigger(**trigger) if trigger else self._writer).start()
        return self

    @property
    def rows(self) -> list[bytes]:
        return [row for _, rows in self.batches for row in rows]

    def wait_until_started(self, timeout_s: float = 60) -> None:
        """The first batch, empty or not, is committed."""
        deadline = time.monotonic() + timeout_s
        while self.query.lastProgress is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def wait_for(self, count: int, timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while len(self.rows) < count:
            assert self.query.exception() is None, self.query.exception()
            assert time.monotonic() < deadline, f"{len(self.rows)} of {count} rows"
            time.sleep(0.01)


@pytest.mark.rule("P9")
def test_a_stream_tails_a_ledger_to_the_last_entry_of_an_idle_writer(
    spark: Any, uri: str, client: BookKeeper, tmp_path: Path
) -> None:
    ledger = client.create_ledger()
    ledger.append(b"0")
    query = Query(spark, uri, f"ledger:{ledger.ledger_id}", tmp_path, startingOffsets="earliest").start()
    try:
        query.wait_for(1)
        for i in range(1, 200):
            ledger.append(b"%d" % i)
        query.wait_for(200)
        assert query.rows == [b"%d" % i for i in range(200)]
        ledger.append(b"one more")
        began = time.monotonic()
        query.wait_for(201)
        assert time.monotonic() - began < 5
    finally:
        query.query.stop()
    ledger.append(b"the stream has not fenced it")
    ledger.close()


def test_a_stream_follows_a_log_over_jobs_leaders_and_restarts(
    spark: Any, uri: str, log: str, client: BookKeeper, tmp_path: Path
) -> None:
    append(numbered(spark, 50), uri, log)
    first = Query(spark, uri, log, tmp_path, startingOffsets="earliest").start()
    first.wait_for(50)
    append(numbered(spark, 30), uri, log)
    first.wait_for(80)
    first.query.processAllAvailable()  # a batch that was taken and not committed would come again
    first.query.stop()
    with client.log(log).lead() as leader:
        for i in range(20):
            leader.append(b"led %d" % i)
        second = Query(spark, uri, log, tmp_path, startingOffsets="earliest").start()
        second.wait_for(20)
        leader.roll()
        leader.append(b"rolled")
        second.wait_for(21)
    second.query.stop()
    led = [b"led %d" % i for i in range(20)]
    assert first.rows == [f"row {i}".encode() for i in (*range(50), *range(30))]
    assert second.rows == [*led, b"rolled"]
    assert values(load(spark, uri, log)) == [*first.rows, *second.rows]


def test_available_now_reads_what_is_there_in_bounded_batches(spark: Any, uri: str, log: str, tmp_path: Path) -> None:
    append(numbered(spark, 100), uri, log)
    options = {"startingOffsets": "earliest", "maxEntriesPerTrigger": "30"}
    query = Query(spark, uri, log, tmp_path, **options).start(availableNow=True)
    query.query.awaitTermination(60)
    assert [len(rows) for _, rows in query.batches] == [30, 30, 30, 10]
    again = Query(spark, uri, log, tmp_path, **options).start(availableNow=True)
    again.query.awaitTermination(60)
    assert again.batches == []
    offsets = json.loads((tmp_path / "offsets" / "3").read_text().splitlines()[-1])
    assert offsets["logs"][log]["next"] == 100


def test_a_failed_batch_is_replayed_with_the_same_rows(spark: Any, uri: str, log: str, tmp_path: Path) -> None:
    append(numbered(spark, 40), uri, log)
    options = {"startingOffsets": "earliest", "maxEntriesPerTrigger": "15"}
    first = Query(spark, uri, log, tmp_path, **options)
    first.fail_at = 1
    with pytest.raises(Exception, match="made to fail"):
        first.start(availableNow=True).query.awaitTermination(60)
    append(numbered(spark, 40), uri, log)
    second = Query(spark, uri, log, tmp_path, **options).start(availableNow=True)
    second.query.awaitTermination(60)
    assert second.batches[0] == first.batches[1]
    assert [*first.batches[0][1], *second.rows] == values(load(spark, uri, log))


def test_no_row_is_lost_when_batch_zero_from_latest_is_replayed(spark: Any, uri: str, log: str, tmp_path: Path) -> None:
    append(numbered(spark, 10), uri, log)
    first = Query(spark, uri, log, tmp_path).start()
    first.wait_until_started()
    first.query.stop()
    shutil.rmtree(tmp_path / "commits")  # as if it had died with batch 0 planned and not committed
    append(numbered(spark, 5), uri, log)  # so "latest" is no longer where batch 0 ended
    second = Query(spark, uri, log, tmp_path).start()
    second.wait_for(5)
    second.query.stop()
    assert second.rows == [f"row {i}".encode() for i in range(5)]
