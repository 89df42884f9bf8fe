# SPDX-License-Identifier: Apache-2.0
"""Writes as Spark plans, runs and commits them: overwriting, transactions, batches of a stream, a log for each row.

Over 400 lines because every kind of write is tried with the same few helpers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from bk_core.blocking import BookKeeper
from bk_core.errors import (
    BookKeeperError,
    EntryTooLargeError,
    InvalidArgumentError,
    LogHasLeaderError,
    Outcome,
    PublishConflictError,
    SchemaMismatchError,
    TransactionReplayDiffersError,
    TransactionVersionRegressedError,
)
from bk_spark import compat
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.stream import checkpoint
from bk_spark.stream.stream_writer import StreamWriter
from bk_spark.write.log_writer import LogWriter
from bk_spark.write.written_ledgers import WrittenLedgers
from tests.spark.tables import ROUTED, VALUE, connected, job, rows, values

BY_LEDGER, BY_MESSAGE = "by-ledger", "by-message"


@pytest.fixture(params=[BY_LEDGER, BY_MESSAGE])
def uri(bookkeeper: BookKeeper, request: pytest.FixtureRequest) -> str:
    """A cluster of this test's own, whose name says where the tasks' rows travel."""
    return connected(bookkeeper, request)


def options(uri: str, **more: str) -> BkOptions:
    small = {"smalltaskbytes": "0"} if BY_LEDGER in uri else {}
    return parse_options({"metadataserviceuri": uri, **small, **more}, Use.WRITE)


def batch_of(options: BkOptions, number: int, *tasks: pa.RecordBatch, query: str = "q", **more: Any) -> None:
    """A micro-batch: planned and written, committed by another writer."""
    writer = StreamWriter.plan(options, VALUE, **more)
    messages = [writer.write(iter([task])) for task in tasks]
    location = writer.checkpoint_location
    committer = StreamWriter(options, None, overwrite=writer.overwrite, checkpoint_location=location)
    committer.commit([replace(m, query_id=query) for m in messages if isinstance(m, WrittenLedgers)], number)


# --- overwriting ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("N7")
def test_overwriting_puts_the_new_rows_in_the_place_of_all_old_ones_and_offsets_go_on(
    bookkeeper: BookKeeper, uri: str
) -> None:
    events = options(uri, path="events")
    job(events, rows("a", "b"))
    job(events, rows("c"), rows("d", "e"), overwrite=True)
    assert values(bookkeeper, "events") == ["c", "d", "e"]
    head = bookkeeper.log("events").head().value
    assert (head.epoch, head.start_offset, head.next_offset) == (1, 2, 5)
    job(events, rows("f"))
    assert values(bookkeeper, "events") == ["c", "d", "e", "f"]


def test_overwriting_with_nothing_empties_the_log_and_a_log_that_is_not_there_is_made(
    bookkeeper: BookKeeper, uri: str
) -> None:
    job(options(uri, path="new"), rows("x"), overwrite=True)
    assert values(bookkeeper, "new") == ["x"]
    job(options(uri, path="events"), rows("a"))
    job(options(uri, path="events"), rows(), overwrite=True)
    assert values(bookkeeper, "events") == []


def test_an_overwrite_that_fails_in_the_middle_leaves_the_old_rows(bookkeeper: BookKeeper, uri: str) -> None:
    job(options(uri, path="events"), rows("a"))
    writer = LogWriter.plan(options(uri, path="events"), VALUE, overwrite=True)
    message = writer.write(iter([rows("b")]))
    with pytest.raises(PublishConflictError, match="1 of 2 partitions"):
        writer.commit([message, None])
    writer.abort([message, None])
    assert values(bookkeeper, "events") == ["a"]
    assert len(bookkeeper.list_ledgers()) == 1


@pytest.mark.rule("N2")
def test_a_log_with_a_leader_is_not_overwritten(bookkeeper: BookKeeper, uri: str) -> None:
    job(options(uri, path="events"), rows("a"))
    with bookkeeper.log("events").lead() as leader:
        leader.append(b"b")
        with pytest.raises(LogHasLeaderError):
            LogWriter.plan(options(uri, path="events"), VALUE, overwrite=True)


# --- transactions -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("N5")
def test_a_job_with_a_transaction_is_published_once_however_often_it_is_run(
    bookkeeper: BookKeeper, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = options(uri, path="events", txnappid="nightly", txnversion="7")
    job(first, rows("a", "b"))
    with caplog.at_level(logging.WARNING):
        job(first, rows("a"), rows("b"))  # the same rows, cut into other partitions
    assert "2 rows are skipped" in caplog.text
    assert values(bookkeeper, "events") == ["a", "b"]
    with pytest.raises(TransactionReplayDiffersError, match="2 rows, now it has 3"):
        job(first, rows("a", "b", "c"))
    job(options(uri, path="events", txnappid="nightly", txnversion="9"), rows("c"))
    with pytest.raises(TransactionVersionRegressedError):
        job(options(uri, path="events", txnappid="nightly", txnversion="8"), rows("d"))
    job(options(uri, path="events", txnappid="other", txnversion="1"), rows("e"))
    assert values(bookkeeper, "events") == ["a", "b", "c", "e"]


@pytest.mark.rule("N5")
def test_an_overwrite_with_a_transaction_does_not_overwrite_what_came_later(bookkeeper: BookKeeper, uri: str) -> None:
    first = options(uri, path="events", txnappid="nightly", txnversion="1")
    job(options(uri, path="events"), rows("old"))
    job(first, rows("a"), overwrite=True)
    job(options(uri, path="events"), rows("b"))
    job(first, rows("a"), overwrite=True)
    assert values(bookkeeper, "events") == ["a", "b"]


@pytest.mark.rule("N5")
def test_a_version_without_rows_is_remembered_too(bookkeeper: BookKeeper, uri: str) -> None:
    job(options(uri, path="events", txnappid="app", txnversion="1"), rows())
    with pytest.raises(TransactionReplayDiffersError):
        job(options(uri, path="events", txnappid="app", txnversion="1"), rows("a"))


@pytest.mark.parametrize("half", [{"txnappid": "nightly"}, {"txnversion": "3"}])
def test_half_a_transaction_is_refused(uri: str, half: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="txnAppId and txnVersion go together"):
        LogWriter.plan(options(uri, path="events", **half), VALUE)


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("N5")
def test_a_batch_that_is_replayed_is_there_once_and_its_partitions_may_differ(bookkeeper: BookKeeper, uri: str) -> None:
    events = options(uri, path="events")
    batch_of(events, 0, rows("a", "b"), rows("c"))
    batch_of(events, 0, rows("a"), rows("b", "c"))
    batch_of(events, 1, rows("d"))
    batch_of(events, 1, rows("d"))
    assert values(bookkeeper, "events") == ["a", "b", "c", "d"]
    head = bookkeeper.log("events").head().value
    assert len(head.tail) == (3 if BY_LEDGER in uri else 2)  # the replays' ledgers are not listed
    batch_of(events, 0, rows("other query"), query="q2")
    assert values(bookkeeper, "events")[-1] == "other query"


@pytest.mark.rule("N5")
def test_an_older_checkpoint_is_stopped_where_its_batches_are_cut_otherwise(bookkeeper: BookKeeper, uri: str) -> None:
    events = options(uri, path="events")
    for number in (0, 1, 3):
        batch_of(events, number, rows("x", "y"))
    with pytest.raises(TransactionReplayDiffersError) as differs:
        batch_of(events, 1, rows("x"))
    with pytest.raises(TransactionVersionRegressedError) as regressed:
        batch_of(events, 2, rows("x"))
    assert [each.value.outcome for each in (differs, regressed)] == [Outcome.NOT_APPLIED] * 2
    assert "\n" not in f"{differs.value}{regressed.value}"
    assert len(values(bookkeeper, "events")) == 6


@pytest.mark.rule("N5")
def test_an_older_checkpoint_whose_batches_have_as_many_rows_and_not_the_same_ones_is_stopped(
    bookkeeper: BookKeeper, uri: str, tmp_path: Path
) -> None:
    """Planned anew, a limit is shared otherwise among the sources: more of one log, less of another one."""
    events = options(uri, path="events")
    first, anew = tmp_path / "first", tmp_path / "anew"
    for folder, (a, b) in {first: (3, 2), anew: (2, 3)}.items():
        (folder / "offsets").mkdir(parents=True)
        (folder / "offsets" / "0").write_text('v1\n{"batchTimestampMs":1}\n{"a":1,"b":1}')
        (folder / "offsets" / "1").write_text(f'v1\n{{"batchTimestampMs":{a}}}\n{{"a":{a},"b":{b}}}')
    batch_of(events, 0, rows("a1", "b1"), checkpoint_location=str(first))
    batch_of(events, 1, rows("a2", "a3", "b2"), checkpoint_location=first.as_uri())
    batch_of(events, 0, rows("a1", "b1"), checkpoint_location=str(anew))
    with pytest.raises(TransactionReplayDiffersError, match="other input") as refused:
        batch_of(events, 1, rows("a2", "b2", "b3"), checkpoint_location=str(anew))
    assert refused.value.outcome is Outcome.NOT_APPLIED
    for location in (str(first), None, "hdfs://host/checkpoint", str(tmp_path / "none")):  # the same, or not known
        batch_of(events, 1, rows("a2", "a3", "b2"), checkpoint_location=location)
    assert values(bookkeeper, "events") == ["a1", "b1", "a2", "a3", "b2"]


def test_complete_mode_replaces_the_rows_with_each_batch_and_makes_the_log(bookkeeper: BookKeeper, uri: str) -> None:
    events = options(uri, path="events")
    batch_of(events, 0, rows("a=1"), overwrite=True)
    batch_of(events, 1, rows("a=2", "b=1"), overwrite=True)
    batch_of(events, 1, rows("a=2", "b=1"), overwrite=True)
    assert values(bookkeeper, "events") == ["a=2", "b=1"]
    assert bookkeeper.log("events").head().value.epoch == 2


def test_a_stream_names_its_batches_by_txn_app_id_if_that_is_given(bookkeeper: BookKeeper, uri: str) -> None:
    named = options(uri, path="events", txnappid="copy")
    batch_of(named, 0, rows("a"), query="first checkpoint")
    batch_of(named, 0, rows("a"), query="second checkpoint")
    assert values(bookkeeper, "events") == ["a"]
    with pytest.raises(InvalidArgumentError, match="txnVersion is not for a stream"):
        StreamWriter.plan(options(uri, path="events", txnappid="copy", txnversion="1"), VALUE)


def test_the_continuous_trigger_is_refused_where_it_shows(bookkeeper: BookKeeper, uri: str, tmp_path: Path) -> None:
    """It plans before any batch is: Spark calls no Python writer for it, and passes over an error of its commit."""
    events, location = options(uri, path="events"), str(tmp_path)

    def plan() -> StreamWriter:
        return StreamWriter.plan(events, VALUE, checkpoint_location=location)

    plan()  # not the checkpoint of a query that runs here
    (tmp_path / "metadata").write_text("{}")
    with pytest.raises(InvalidArgumentError, match=r"continuous trigger.*use a micro-batch trigger"):
        plan()
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n1")
    plan()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    with pytest.raises(InvalidArgumentError, match="continuous trigger"):
        plan()


def test_a_commit_without_what_tasks_wrote_fails_instead_of_losing_rows(uri: str) -> None:
    writer = StreamWriter.plan(options(uri, path="events"), VALUE)
    with pytest.raises(PublishConflictError, match=r"2 of 2 partitions.*micro-batch trigger"):
        writer.commit([None, None], 0)


def test_a_batch_of_no_known_query_is_refused(uri: str) -> None:
    writer = StreamWriter.plan(options(uri, path="events"), VALUE)
    with pytest.raises(InvalidArgumentError, match="txnAppId"):
        writer.commit([writer.write(iter([rows("a")]))], 0)


def test_before_pyspark_4_1_a_stream_is_refused_with_the_version_to_use(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "HAS_STREAM_WRITER", False)
    with pytest.raises(InvalidArgumentError, match=r"needs pyspark 4\.1 or later"):
        StreamWriter.plan(options(uri, path="events"), VALUE)


@pytest.mark.rule("K9")
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_stream_that_reads_the_log_that_it_writes_is_refused(
    bookkeeper: BookKeeper, uri: str, tmp_path: Path, version: str
) -> None:
    job(options(uri, path="events"), rows("a"))
    job(options(uri, path="copy"), rows("a"))
    uuid = bookkeeper.log("events").head().value.uuid
    offset = {"cluster": "c", "logs": {"events": {"epoch": 0, "next": 1, "uuid": uuid}}, "v": 1}
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "9").write_text("v1\n{}\n{}")
    of_source = ("", "", "") if version == "v1" else ("one:", "two:", "three:")
    ends = "\n".join(map("".join, zip(of_source, (json.dumps(offset), "-", "17"), strict=True)))
    (tmp_path / "offsets" / "10").write_text(f'{version}\n{{"batchWatermarkMs":0}}\n{ends}')
    (tmp_path / "offsets" / ".10.crc").write_bytes(b"\xff")
    for location in (str(tmp_path), tmp_path.as_uri()):
        with pytest.raises(InvalidArgumentError, match="would never end; log events"):
            StreamWriter.plan(options(uri, path="events"), VALUE, checkpoint_location=location)
        StreamWriter.plan(options(uri, path="copy"), VALUE, checkpoint_location=location)
    assert checkpoint.source_logs("hdfs://host/checkpoint") == set()
    assert checkpoint.source_logs(str(tmp_path / "none")) == set()


# --- a log for each row -----------------------------------------------------------------------------------------------


def routed(uri: str, *tasks: pa.RecordBatch, **more: str) -> None:
    job(options(uri, **more), *tasks, schema=ROUTED)


@pytest.mark.rule("K10")
def test_each_row_goes_to_the_log_that_it_names_in_its_order(bookkeeper: BookKeeper, uri: str) -> None:
    first = rows("1", "2", "3", "4", "5", log=["b", "a", "b", "c", "a"])
    routed(uri, first, rows("6", "7", log=["a", "a"]), rows(log=[]))
    assert {log: values(bookkeeper, log) for log in bookkeeper.store.list_logs()} == {
        "a": ["2", "5", "6", "7"],
        "b": ["1", "3"],
        "c": ["4"],
    }


@pytest.mark.rule("K10", "N5")
def test_a_replay_into_several_logs_is_there_once_and_other_logs_are_refused(bookkeeper: BookKeeper, uri: str) -> None:
    txn = {"txnappid": "app", "txnversion": "1"}
    routed(uri, rows("1", "2", log=["a", "b"]), **txn)
    routed(uri, rows("1", log=["a"]), rows("2", log=["b"]), **txn)
    assert (values(bookkeeper, "a"), values(bookkeeper, "b")) == (["1"], ["2"])
    for other in (["a", "c"], ["a", "a"]):
        with pytest.raises(TransactionReplayDiffersError, match=r"log a"):
            routed(uri, rows("1", "2", log=other), **txn)
    assert values(bookkeeper, "a") == ["1"]


@pytest.mark.rule("K10")
def test_one_log_that_cannot_be_written_keeps_all_of_them_as_they_are(bookkeeper: BookKeeper, uri: str) -> None:
    writer = LogWriter.plan(options(uri), ROUTED)
    messages = [writer.write(iter([rows("1", "2", "3", log=["a", "b", "c"])]))]
    with bookkeeper.log("b").lead() as leader:
        leader.append(b"x")
        with pytest.raises(LogHasLeaderError, match="log b"):
            writer.commit(messages)
    assert (values(bookkeeper, "a"), values(bookkeeper, "c")) == ([], [])
    writer.commit(messages)
    assert (values(bookkeeper, "a"), values(bookkeeper, "b")) == (["1"], ["x", "2"])


@pytest.mark.long
@pytest.mark.rule("K10")
def test_more_than_a_hundred_logs_are_refused_and_nothing_is_left(bookkeeper: BookKeeper, uri: str) -> None:
    writer = LogWriter.plan(options(uri, ensemblesize="1", writequorumsize="1", ackquorumsize="1"), ROUTED)
    names = [f"log-{number}" for number in range(101)]
    with pytest.raises(InvalidArgumentError, match="at most 100 logs"):
        writer.write(iter([rows(*names, log=names)]))
    messages = [writer.write(iter([rows(*part, log=part)])) for part in (names[:60], names[60:])]
    with pytest.raises(InvalidArgumentError, match="101 logs"):
        writer.commit(messages)
    writer.abort(messages)
    assert bookkeeper.list_ledgers() == []
    assert {bookkeeper.log(name).head().value.next_offset for name in names[:60]} == {0}
    routed(uri, rows(*names[:100], log=names[:100]), ensemblesize="1", writequorumsize="1", ackquorumsize="1")
    assert [values(bookkeeper, name) for name in names[:100]] == [[name] for name in names[:100]]


@pytest.mark.rule("K10")
@pytest.mark.parametrize(
    ("names", "said"),
    [(["a", None], "partition 0, row 4"), (["a", "17"], "partition 0, column log"), (["a", "x/y"], "column log")],
)
def test_a_row_without_a_possible_log_ends_its_task_and_leaves_no_ledger(
    bookkeeper: BookKeeper, uri: str, names: list[str | None], said: str
) -> None:
    writer = LogWriter.plan(options(uri), ROUTED)
    good = rows("1", "2", "3", log=["a"] * 3)
    with pytest.raises(InvalidArgumentError, match=said):
        writer.write(iter([good, rows("4", "5", log=names)]))
    assert bookkeeper.list_ledgers() == []


@pytest.mark.rule("K9")
def test_a_row_that_cannot_be_written_is_named_with_its_partition(bookkeeper: BookKeeper, uri: str) -> None:
    null = pa.record_batch([pa.array([b"x", None], pa.binary())], names=["value"])
    wanted: list[tuple[pa.RecordBatch, type[BookKeeperError]]] = [
        (null, InvalidArgumentError),
        (rows("x", "y" * 2000), EntryTooLargeError),
    ]
    for bad, kind in wanted:
        writer = LogWriter.plan(options(uri, path="events", maxentrybytes="1k"), VALUE)
        with pytest.raises(kind, match=r"partition 0.*row 3"):
            writer.write(iter([rows("1", "2"), bad]))
    assert bookkeeper.list_ledgers() == []


@pytest.mark.rule("K10")
def test_the_option_wins_over_the_column(bookkeeper: BookKeeper, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bk_spark.write.log_writer"):
        routed(uri, rows("1", "2", log=["a", None]), path="events")
    assert "column log is left out" in caplog.text
    assert bookkeeper.store.list_logs() == ["events"]
    assert values(bookkeeper, "events") == ["1", "2"]


@pytest.mark.rule("E1")
def test_a_write_that_names_no_log_says_both_ways_to_name_one(uri: str) -> None:
    number = StructType([StructField("log", LongType()), StructField("value", BinaryType())])
    for schema, found in ((VALUE, "no column log"), (number, "column log is bigint")):
        with pytest.raises(InvalidArgumentError, match=rf'{found}.*\.save\("events"\).*column log STRING'):
            LogWriter.plan(options(uri), schema)
    with pytest.raises(InvalidArgumentError, match="overwriting needs the name of the log"):
        LogWriter.plan(options(uri), ROUTED, overwrite=True)
    with pytest.raises(InvalidArgumentError, match="one named log"):
        LogWriter.plan(options(uri, logs="a,b"), ROUTED)


# --- several rows an entry --------------------------------------------------------------------------------------------

NUMBERS = StructType([StructField("id", LongType())])
NUMBERS_OF_LOGS = StructType([StructField("log", StringType()), StructField("id", LongType())])


def numbers(*values: int, log: Sequence[str] | None = None) -> pa.RecordBatch:
    ids = pa.array(values, pa.int64())
    if log is None:
        return pa.record_batch([ids], names=["id"])
    return pa.record_batch([pa.array(log, pa.string()), ids], names=["log", "id"])


@pytest.mark.rule("N5")
def test_a_replay_has_the_same_rows_although_they_are_cut_into_other_entries(bookkeeper: BookKeeper, uri: str) -> None:
    once = options(uri, path="events", codec="arrow", txnappid="app", txnversion="1")
    job(once, numbers(1, 2, 3), schema=NUMBERS)
    job(once, numbers(1), numbers(2, 3), schema=NUMBERS)
    with pytest.raises(TransactionReplayDiffersError, match="3 rows, now it has 2"):
        job(once, numbers(1), numbers(2), schema=NUMBERS)
    head = bookkeeper.log("events").head().value
    assert (head.next_offset, head.published[-1].rows) == (1, 3)


@pytest.mark.rule("K8", "K10")
def test_columns_that_do_not_fit_one_log_keep_all_of_them_as_they_are(bookkeeper: BookKeeper, uri: str) -> None:
    arrow = options(uri, codec="arrow")
    job(arrow, numbers(1, 2, 3, log=["a", "b", "a"]), schema=NUMBERS_OF_LOGS)
    assert [bookkeeper.log(log).head().value.published[-1].rows for log in "ab"] == [2, 1]
    assert [list(bookkeeper.log(log).schemas()) for log in "ab"] == [[1], [1]]
    other = StructType([StructField("log", StringType()), StructField("id", StringType())])
    texts = pa.record_batch([pa.array(["b", "c"]), pa.array(["x", "y"])], names=["log", "id"])
    with pytest.raises(SchemaMismatchError, match=r"log b.*id is string and was bigint"):
        job(arrow, texts, schema=other)
    assert [bookkeeper.log(log).head().value.next_offset for log in "abc"] == [1, 1, 0]
