# SPDX-License-Identifier: Apache-2.0
"""What progress reports say about a stream's source and sink, and what Spark lets no Python source say."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from bk_core.blocking import BookKeeper
from tests.spark.test_write_e2e import ended, numbered, start, writer

KNOWN_CALLS = {
    "INITIAL_OFFSET",
    "LATEST_OFFSET",
    "PARTITIONS",
    "COMMIT",
    "CHECK_SUPPORTED_FEATURES",
    "PREPARE_FOR_TRIGGER_AVAILABLE_NOW",
    "LATEST_OFFSET_ADMISSION_CONTROL",
    "GET_DEFAULT_READ_LIMIT",
    "REPORT_LATEST_OFFSET",
}
"""What Spark can ask the process of a streaming source. None of them asks for metrics."""


def test_spark_has_no_call_by_which_a_python_source_gives_metrics() -> None:
    """The day this fails, the metrics that docs/spark.md misses may be possible."""
    from pyspark.sql.streaming import python_streaming_source_runner as runner

    numbers = [name for name in vars(runner) if name.endswith("_ID") and name.isupper()]
    assert {name.removesuffix("_ID").removesuffix("_FUNC") for name in numbers} <= KNOWN_CALLS
    asked = {node.attr for node in ast.walk(ast.parse(inspect.getsource(runner))) if isinstance(node, ast.Attribute)}
    assert not [name for name in asked if "metric" in name.lower()]


@pytest.mark.spark
@pytest.mark.e2e
def test_progress_has_the_lag_of_each_log_and_the_rows_of_source_and_sink(
    spark: Any, uri: str, client: BookKeeper, tmp_path: Path
) -> None:
    for log, rows in (("progress.a", 10), ("progress.b", 7)):
        writer(numbered(spark, 0, rows), uri).mode("append").save(log)
    given = {"metadataServiceUri": uri, "startingOffsets": "earliest", "maxEntriesPerTrigger": "4"}
    source = spark.readStream.format("bookkeeper").options(**given).option("logs", "progress.a,progress.b").load()
    query = ended(start(source.select("value"), uri, "progress.sink", tmp_path, availableNow=True))
    first, *_, last = [json.loads(progress.json) for progress in query.recentProgress if progress.numInputRows]
    assert sum(lag(first).values()) == 13
    assert lag(last) == {"progress.a": 0, "progress.b": 0}
    assert (first["sources"][0]["numInputRows"], first["sink"]["numOutputRows"]) == (4, 4)
    assert "metrics" not in first["sources"][0] or first["sources"][0]["metrics"] == {}


def lag(progress: dict[str, Any]) -> dict[str, int]:
    """Entries of each log that the micro-batch left behind, as docs/spark.md counts them."""
    (source,) = progress["sources"]
    ends, done = (
        json.loads(text) if isinstance(text, str) else text for text in (source["latestOffset"], source["endOffset"])
    )
    return {log: at["next"] - done["logs"][log]["next"] for log, at in ends["logs"].items()}
