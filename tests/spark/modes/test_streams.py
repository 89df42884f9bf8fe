# SPDX-License-Identifier: Apache-2.0
"""Streams out of and into logs: each trigger and output mode that a Python source can have, and what the others say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import until
from tests.spark.modes.kit import Source, refusal

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

END_S = 120
NOW = {"availableNow": True}


class Copy:
    """A query that copies the test's log into another; each run goes on from the checkpoint."""

    def __init__(self, source: Source, checkpoint: Path, **options: Any) -> None:
        self.source, self.checkpoint, self.log = source, checkpoint, f"{source.log}_copy"
        self.options = {"startingOffsets": "earliest"} | options

    def frame(self) -> Any:
        reader = self.source.spark.readStream.format("bookkeeper")
        return reader.options(metadataServiceUri=self.source.uri, **self.options).load(self.source.log)

    def writer(self, frame: Any = None, mode: str = "append") -> Any:
        rows = self.frame().select("value") if frame is None else frame
        writer = rows.writeStream.format("bookkeeper").option("metadataServiceUri", self.source.uri)
        return writer.option("checkpointLocation", str(self.checkpoint)).outputMode(mode)

    def run(self, **trigger: Any) -> Any:
        """Until it ends by itself."""
        query = self.writer().trigger(**(trigger or NOW)).start(self.log)
        assert ended(query)
        return query

    def values(self) -> list[str]:
        return self.source.values(self.log)


def ended(query: Any) -> bool:
    """Waits; raises what the query failed with."""
    try:
        return bool(query.awaitTermination(END_S))
    finally:
        query.stop()


def latest_of(query: Any, log: str) -> int:
    """Where the log ends, as the query's newest report says."""
    source = query.lastProgress["sources"][0]
    return int(json.loads(source["latestOffset"])["logs"][log]["next"])


@pytest.fixture
def copy(source: Source, tmp_path: Path) -> Copy:
    return Copy(source, tmp_path)


@pytest.mark.also_on("standalone")
@pytest.mark.rule("N5")
def test_each_row_is_copied_once_over_restarts_and_a_lost_commit_file(copy: Copy) -> None:
    copy.source.fill(10)
    copy.run()
    wanted = copy.source.fill(5)
    copy.run()
    assert copy.values() == wanted
    newest = max((each for each in (copy.checkpoint / "commits").glob("[0-9]*")), key=lambda each: int(each.name))
    newest.unlink()  # as if Spark had died between the publish and its own note of it
    newest.with_name(f".{newest.name}.crc").unlink()
    copy.source.fill(3)
    copy.run()
    assert copy.values() == copy.source.values()
    offsets = json.loads(max((copy.checkpoint / "offsets").glob("[0-9]*")).read_text().splitlines()[-1])
    assert offsets["logs"][copy.source.log]["next"] == 18


def test_limits_hold_for_available_now_and_once_takes_everything(copy: Copy) -> None:
    copy.options["maxEntriesPerTrigger"] = "4"
    copy.source.fill(10)
    copy.run()
    assert len([path for path in (copy.checkpoint / "commits").iterdir() if path.name.isdigit()]) == 3
    copy.source.fill(10)
    copy.run(once=True)
    assert len([path for path in (copy.checkpoint / "commits").iterdir() if path.name.isdigit()]) == 4
    assert copy.values() == copy.source.values()


@pytest.mark.also_on("connect")
@pytest.mark.parametrize("trigger", [{}, {"processingTime": "100 milliseconds"}], ids=["default", "processingTime"])
def test_a_running_query_takes_new_rows_and_reports_its_lag(copy: Copy, trigger: dict[str, str]) -> None:
    copy.source.fill(3)
    writer = copy.writer()
    query = (writer.trigger(**trigger) if trigger else writer).start(copy.log)
    try:
        query.processAllAvailable()
        wanted = copy.source.fill(3)
        until(lambda: copy.values() == wanted, END_S)
        until(lambda: latest_of(query, copy.source.log) == 6, END_S)
    finally:
        query.stop()


@pytest.mark.also_on("connect", always=True)
def test_a_batch_function_writes_once_with_a_transaction(copy: Copy) -> None:
    wanted = copy.source.fill(6)
    uri, log = copy.source.uri, copy.log

    def write(frame: Any, batch_id: int) -> None:
        for _ in range(2):  # as when the batch is replayed
            writer = frame.select("value").write.format("bookkeeper").option("metadataServiceUri", uri)
            writer.options(txnAppId=log, txnVersion=batch_id).mode("append").save(log)

    query = copy.frame().writeStream.foreachBatch(write).option("checkpointLocation", str(copy.checkpoint))
    assert ended(query.trigger(**NOW).start())
    assert copy.values() == wanted


@pytest.mark.also_on("connect")
def test_tables_are_streamed_from_with_their_options_and_into_with_given_ones(copy: Copy, name: str) -> None:
    source = copy.source
    wanted = source.fill(4)
    options = source.sql_options(startingOffsets="earliest")
    source.sql(f"CREATE TABLE {name} USING bookkeeper OPTIONS ({options})")
    source.sql(f"CREATE TABLE {name}_in (value BINARY) USING bookkeeper")
    try:
        rows = source.spark.readStream.table(name).select("value")
        given = {"metadataServiceUri": source.uri, "log": copy.log, "checkpointLocation": str(copy.checkpoint)}
        assert ended(rows.writeStream.options(**given).trigger(**NOW).toTable(f"{name}_in"))
        assert copy.values() == wanted
        nothing = rows.writeStream.option("checkpointLocation", f"{copy.checkpoint}/none").trigger(**NOW)
        assert "INSERT INTO t WITH" in refusal(lambda: ended(nothing.toTable(f"{name}_in")))
    finally:
        source.sql(f"DROP TABLE {name}")
        source.sql(f"DROP TABLE {name}_in")


# --- refused --------------------------------------------------------------------------------------------------------


def test_writing_continuously_fails_instead_of_losing_all_rows(copy: Copy) -> None:
    rate = copy.source.spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    told = refusal(lambda: ended(copy.writer(rate).trigger(continuous="1 second").start(copy.log)))
    assert "a continuous trigger writes no row" in told
    assert "use a micro-batch trigger" in told


REFUSED = {
    "readMode": ("fence", "readMode=fence needs ledgerId"),
    "endingOffsets": ("latest", "a stream has no end"),
    "startingOffsets": ("sometime", "startingOffsets='sometime'"),
}


@pytest.mark.rule("K2")
@pytest.mark.parametrize("option", REFUSED)
def test_a_stream_refuses_options_that_would_change_its_meaning(copy: Copy, option: str) -> None:
    text, words = REFUSED[option]
    copy.source.fill(1)
    copy.options[option] = text
    told = refusal(lambda: copy.run())
    (line,) = {line.strip() for line in told.splitlines() if words in line and "BK_INVALID_ARGUMENT" in line}
    assert "(not applied)" in line


@pytest.fixture(autouse=True)
def _no_query_is_left(source: Source) -> Iterator[None]:
    yield
    assert [query.id for query in source.spark.streams.active] == []
