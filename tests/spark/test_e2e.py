# SPDX-License-Identifier: Apache-2.0
"""Spark, bookies as processes and ZooKeeper: write, read, tail, fail."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from bk_core.blocking import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import LedgerFencedError
from bk_spark.options.options import Use, parse_options
from bk_spark.read.ledger_reader import LedgerReader
from tests.spark.frames import append, failure, load, values
from tests.spark.tables import VALUE

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


def numbered(spark: Any, count: int, partitions: int = 3) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr("concat('row ', id) AS value")


@pytest.mark.rule("N1")
def test_binary_values_of_all_sizes_survive(spark: Any, uri: str, log: str) -> None:
    blobs = [bytes([i % 256]) * size for i, size in enumerate((0, 1, 100, 70_000, 3_000_000, 0, 5))]
    append(spark.createDataFrame([(b,) for b in blobs], "value BINARY").coalesce(1), uri, log)
    assert values(load(spark, uri, log)) == blobs


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
    given = {"metadataserviceuri": uri, "ledgerid": str(ledger.ledger_id)}
    planned = LedgerReader(parse_options(given, Use.READ), VALUE).partitions()
    shipped = pickle.loads(pickle.dumps(planned))
    nowhere = LedgerReader(parse_options({**given, "metadataserviceuri": "zk://127.0.0.1:1/ledgers"}, Use.READ), VALUE)
    assert sum(batch.num_rows for part in shipped for batch in nowhere.read(part)) == 100
