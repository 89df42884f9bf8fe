# SPDX-License-Identifier: Apache-2.0
"""A password that Spark is given stands in no plan, event log, checkpoint, table, error or file that Spark writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit import canaries
from tests.kit.canaries import PASSWORD
from tests.spark.sessions import ClassicSpark

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture
def told(classic_spark: ClassicSpark, tmp_path: Path) -> Any:
    """A session that writes an event log, all of whose files are below ``tmp_path``."""
    (tmp_path / "events").mkdir()
    return classic_spark.session(
        spark__eventLog__enabled="true",
        spark__eventLog__dir=f"file://{tmp_path / 'events'}",
        spark__eventLog__compress="false",
        spark__sql__maxMetadataStringLength="100000",
        spark__sql__warehouse__dir=str(tmp_path / "warehouse"),
        spark__local__dir=str(tmp_path / "local"),
    )


def _plans(frame: Any, capfd: pytest.CaptureFixture[str]) -> str:
    for mode in ("simple", "extended", "cost", "formatted"):
        frame.explain(mode)
    return capfd.readouterr().out + frame._jdf.queryExecution().toString()


def test_a_password_stands_in_nothing_that_spark_shows_or_writes(
    told: Any, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spark, given = told, {"metadataServiceUri": uri, "ledgerPassword": PASSWORD.decode(), "log": "hushed"}
    seen = []
    rows = spark.range(0, 50, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("bookkeeper").options(**given).mode("append").save()
    read = spark.read.format("bookkeeper").options(**given).load()
    assert read.count() == 50
    seen.append(_plans(read.where("length(value) > 1"), capfd))

    by_path = tmp_path / "hushed.secret"
    by_path.write_bytes(PASSWORD + b"\n")
    named = ", ".join(f"`{k}` '{v}'" for k, v in given.items() if k != "ledgerPassword")
    view = f"{named}, ignoreMetadataColumns 'true', `ledgerPassword.path` '{by_path}'"
    spark.sql(f"CREATE TEMPORARY VIEW hushed USING bookkeeper OPTIONS ({view})")
    assert spark.sql("SELECT * FROM hushed").count() == 50
    spark.sql("INSERT INTO hushed (value) SELECT encode(CAST(id AS STRING), 'utf-8') FROM range(3)")
    seen.append(_plans(spark.sql("SELECT count(*) FROM hushed"), capfd))
    with pytest.raises(Exception, match=r"ledgerPassword\.path cannot be stored in a table") as refused:
        spark.sql(f"CREATE TABLE loud USING bookkeeper OPTIONS ({named}, `ledgerPassword.path` '{by_path}')")
    seen.append(str(refused.value))
    spark.sql(f"CREATE TABLE quiet USING bookkeeper OPTIONS ({named})")
    try:
        with pytest.raises(Exception, match="BK_WRONG_PASSWORD"):
            spark.table("quiet").count()
        assert spark.read.option("ledgerPassword.path", str(by_path)).table("quiet").count() == 53
        seen += [row[0] for row in spark.sql("SHOW CREATE TABLE quiet").collect()]
        seen += [str(row) for row in spark.sql("DESCRIBE EXTENDED quiet").collect()]
    finally:
        spark.sql("DROP TABLE quiet")

    stream = spark.readStream.format("bookkeeper").options(**given, startingOffsets="earliest").load()
    sink = stream.select("value").writeStream.format("bookkeeper").options(**{**given, "log": "hushed-copy"})
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    seen += [str(query.lastProgress), str(query.explain(True)), capfd.readouterr().out]

    with pytest.raises(Exception, match="BK_") as failed:
        spark.read.format("bookkeeper").options(**{**given, "ledger_password": "another"}).load().count()
    seen.append(str(failed.value))
    with pytest.raises(Exception, match="BK_") as failed:
        spark.read.format("bookkeeper").options(**given, corruptEntries="what").load().count()
    seen.append(str(failed.value))

    assert canaries.heard_in("\n".join(seen).encode()) == []
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    canaries.check(tmp_path)
    assert {"metadata", "offsets", "commits"} <= {
        path.relative_to(tmp_path / "checkpoint").parts[0] for path in canaries.outputs(tmp_path / "checkpoint")
    }, "the checkpoint was looked through, however many files this machine's batches made of it"
    written = [path for path in canaries.outputs(tmp_path / "events") if os.path.getsize(path)]
    assert written, "there is an event log"
    assert any(b"hushed-copy" in path.read_bytes() or b"SQLExecutionStart" in path.read_bytes() for path in written)
