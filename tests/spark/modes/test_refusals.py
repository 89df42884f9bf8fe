# SPDX-License-Identifier: Apache-2.0
"""What Spark or this format refuses: with which words, and nothing happens. Mostly without a job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.modes.kit import Source, refusal

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture
def table(source: Source, name: str) -> Iterator[str]:
    source.sql(f"CREATE TABLE {name} USING bookkeeper OPTIONS ({source.sql_options()})")
    yield name
    source.sql(f"DROP TABLE IF EXISTS {name}")


STATEMENTS = {
    "SELECT * FROM bookkeeper.`events`": "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY",
    "INSERT INTO bookkeeper.`events` VALUES ('x')": "TABLE_OR_VIEW_NOT_FOUND",
    "INSERT OVERWRITE DIRECTORY '/tmp/nowhere' USING bookkeeper SELECT 'x'": "FileFormat",
    "INSERT INTO {} REPLACE WHERE offset = 1 SELECT * FROM {}": "overwrite by filter",
    "ANALYZE TABLE {} COMPUTE STATISTICS": "ANALYZE TABLE is not supported",
    "TRUNCATE TABLE {}": "does not support truncates",
    "DELETE FROM {} WHERE offset = 1": "does not support deletes",
    "UPDATE {} SET offset = 1": "does not support UPDATE",
    "MERGE INTO {} t USING {} s ON t.offset = s.offset WHEN MATCHED THEN DELETE": "MERGE INTO",
    "CREATE TABLE other_{} LIKE {}": "CREATE TABLE LIKE",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_spark_refuses_statements_that_no_python_source_can_do(source: Source, table: str, statement: str) -> None:
    assert STATEMENTS[statement] in refusal(lambda: source.sql(statement.replace("{}", table)))


@pytest.mark.also_on("connect")
@pytest.mark.parametrize("mode_of_save", ["error", "errorifexists", "ignore", None])
def test_a_save_needs_a_mode_that_python_sources_have(source: Source, mode_of_save: str | None) -> None:
    writer = source.rows(1).write.format("bookkeeper").options(metadataServiceUri=source.uri)
    writer = writer.mode(mode_of_save) if mode_of_save else writer
    told = refusal(lambda: writer.save(source.log))
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in told or "errorifexists is not supported" in told  # Connect's client


def test_rows_cannot_be_partitioned_or_bucketed(source: Source) -> None:
    def writer() -> object:
        return source.rows(1).write.format("bookkeeper").options(metadataServiceUri=source.uri).mode("append")

    assert "partition" in refusal(lambda: writer().partitionBy("value").save(source.log)).lower()
    assert "bucket" in refusal(lambda: writer().bucketBy(2, "value").save(source.log)).lower()
    assert "cluster" in refusal(lambda: writer().clusterBy("value").save(source.log)).lower()


ERRORS = {
    "an unknown option names the nearest": ({"minPartition": "3"}, "did you mean minPartitions?"),
    "two selections": ({"ledgerId": "3"}, "more than one thing is selected"),
    "a bad number": ({"minPartitions": "many"}, "minPartitions='many'"),
    "a bad choice": ({"readMode": "hard"}, "readMode='hard'"),
    "malformed offsets": ({"startingOffsets": "{"}, "startingOffsets"),
    "a protected setting": ({"bookkeeper.password": "x"}, "use option ledgerPassword"),
    "quorums": ({"writeQuorumSize": "1"}, "ensembleSize ≥ writeQuorumSize ≥ ackQuorumSize"),
}


@pytest.mark.also_on("connect")
@pytest.mark.rule("E1")
@pytest.mark.parametrize("case", ERRORS)
def test_a_wrong_option_is_one_line_with_a_code_and_a_remedy(source: Source, case: str) -> None:
    options, remedy = ERRORS[case]
    told = refusal(lambda: source.load(**options).schema)  # Connect does not ask the server before
    (line,) = {line.strip() for line in told.splitlines() if "[BK_INVALID_ARGUMENT]" in line}
    assert remedy in line
    assert "(not applied)" in line


@pytest.mark.rule("E1")
def test_what_the_cluster_lacks_is_said_on_the_driver(source: Source) -> None:
    source.fill(1)
    assert source.log in refusal(lambda: source.load(source.log[:-1] + "x").count())
    assert "BK_NO_SUCH_LOG" in refusal(lambda: source.load(source.log[:-1] + "x").count())
    assert "BK_NO_SUCH_LEDGER" in refusal(lambda: source.load("ledger:987654321").count())
    assert "BK_NOT_ENOUGH_BOOKIES" in refusal(lambda: source.append(source.rows(1), ensembleSize="9"))
    told = refusal(lambda: source.append(source.spark.range(3)))
    assert "CAST(`id` AS STRING) AS value" in told


@pytest.mark.also_on("connect", "standalone")
@pytest.mark.rule("N4")
def test_a_bad_row_fails_its_task_and_publishes_nothing(source: Source) -> None:
    source.fill(2)
    null = source.rows(10).selectExpr("IF(value = 'row 7', NULL, value) AS value")
    assert "[BK_" in refusal(lambda: source.append(null))
    large = source.spark.range(1).selectExpr("repeat('x', 6000000) AS value")
    assert "BK_ENTRY_TOO_LARGE" in refusal(lambda: source.append(large))
    assert len(source.values()) == 2
