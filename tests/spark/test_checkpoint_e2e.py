# SPDX-License-Identifier: Apache-2.0
"""What ``bk spark offsets`` says of checkpoints that Spark itself wrote, and a query that goes on after ``bk log
compact`` and ``bk log vacuum``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bk_cli import main

pytestmark = [pytest.mark.spark, pytest.mark.e2e]
FORMAT = "spark.sql.streaming.offsetLog.formatVersion"


class Query:
    """A query from a log into a directory, run until nothing is left to read."""

    def __init__(self, spark: Any, uri: str, log: str, home: Path) -> None:
        self._spark, self._uri, self._log = spark, uri, log
        self.checkpoint, self._rows = home / "checkpoint", home / "rows"

    def append(self, first: int, count: int) -> None:
        """One publish of two small ledgers."""
        frame = self._spark.range(first, first + count, 1, 2).selectExpr("cast(id AS STRING) AS value")
        options = {"metadataServiceUri": self._uri, "smallTaskBytes": "0"}
        frame.write.format("bookkeeper").options(**options).mode("append").save(self._log)

    def run(self) -> str:
        """Read what there is; returns the query's id."""
        frame = self._spark.readStream.format("bookkeeper").option("metadataServiceUri", self._uri)
        frame = frame.option("startingOffsets", "earliest").load(self._log)
        writer = frame.selectExpr("cast(value AS STRING) AS value").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        query = writer.start(str(self._rows))
        query.awaitTermination()
        return str(query.id)

    def rows(self) -> list[int]:
        """Every value that reached the sink."""
        return sorted(int(row.value) for row in self._spark.read.parquet(str(self._rows)).collect())


@pytest.mark.rule("N7")
@pytest.mark.parametrize("version", [pytest.param("1", marks=pytest.mark.thorough), "2"])
def test_a_query_is_where_its_checkpoint_says_and_goes_on_after_its_log_was_compacted(
    spark: Any, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], version: str
) -> None:
    log = f"inspected-{version}"
    query = Query(spark, uri, log, tmp_path)

    def bk(*arguments: str) -> list[dict[str, Any]]:
        capfd.readouterr()
        assert main.run([*arguments, "--json", "--metadata-service-uri", uri]) == 0, capfd.readouterr().err
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    spark.conf.set(FORMAT, version)
    try:
        query.append(0, 10)
        query_id = query.run()
    finally:
        spark.conf.unset(FORMAT)
    (found,) = bk("spark", "offsets", str(query.checkpoint))
    assert (found["queryId"], found["log"], found["state"]) == (query_id, log, "fits")
    assert (found["committedNext"], found["plannedNext"], found["end"], found["lag"]) == (10, 10, 10, 0)
    written = (query.checkpoint / "offsets" / str(found["plannedBatch"])).read_text()
    assert written.startswith(f"v{version}\n")

    for first in range(10, 40, 10):
        query.append(first, 10)
    (found,) = bk("spark", "offsets", str(query.checkpoint))
    assert (found["committedNext"], found["end"], found["lag"]) == (10, 40, 30)
    (done,) = bk("log", "compact", log)
    assert (done["extents"], done["entries"]) == (8, 40)
    (done,) = bk("log", "vacuum", log, "--delete-delay-ms", "0", "--force")
    assert len(done["ledgers"]) == 8
    (found,) = bk("spark", "offsets", str(query.checkpoint))
    assert (found["state"], found["committedNext"], found["end"]) == ("fits", 10, 40)
    assert query.run() == query_id
    assert query.rows() == list(range(40))
    (found,) = bk("spark", "offsets", str(query.checkpoint))
    assert (found["committedNext"], found["lag"]) == (40, 0)
