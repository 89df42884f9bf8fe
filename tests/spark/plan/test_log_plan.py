# SPDX-License-Identifier: Apache-2.0
"""Logs as Spark plans, publishes and follows them; bookies of this process behind the blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from bk_core.blocking import BookKeeper
from bk_core.errors import (
    InvalidArgumentError,
    LogHasLeaderError,
    LogRecreatedError,
    NoSuchLogError,
    PackageMismatchError,
    PublishConflictError,
)
from bk_core.logs.model.codec import decode_head, encode_head
from bk_core.logs.model.deleted import mark_of
from bk_core.metadata.port import LogWrite
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.plan import resolve
from bk_spark.stream.stream_reader import StreamReader
from bk_spark.write.log_writer import LogWriter, abort
from bk_spark.write.written_ledgers import WrittenLedgers
from tests.kit.waiting import comes_true, in_thread
from tests.spark.tables import VALUE, memory_uri, rows

uri = memory_uri


def options(uri: str, use: Use = Use.READ, **more: str) -> BkOptions:
    each_task_makes_a_ledger = {"smalltaskbytes": "0"}
    return parse_options({"metadataserviceuri": uri, "path": "events", **each_task_makes_a_ledger, **more}, use)


def job(uri: str, *tasks: int, **more: str) -> tuple[LogWriter, list[WriterCommitMessage]]:
    """A write with so many rows in each task, ready to commit."""
    writer = LogWriter.plan(options(uri, Use.WRITE, **more), VALUE)
    return writer, [writer.write(iter([rows(*["x" * 10] * count)])) for count in tasks]


def save(uri: str, *tasks: int, **more: str) -> None:
    writer, messages = job(uri, *tasks, **more)
    writer.commit(messages)


def planned(bookkeeper: BookKeeper, uri: str, **more: str) -> list[tuple[int | None, int, int]]:
    found = resolve.resolve_batch(bookkeeper, options(uri, **more))
    return [(r.offset, r.entries, r.bytes) for r in found.ranges]


@pytest.mark.rule("N1")
def test_planning_a_sealed_log_asks_for_no_ledger(bookkeeper: BookKeeper, uri: str) -> None:
    save(uri, 10, 10)
    ids = bookkeeper.list_ledgers()
    for ledger_id in ids:
        bookkeeper.delete_ledger(ledger_id)  # the records are gone: planning does not notice, reading would
    assert planned(bookkeeper, uri) == [(0, 10, 100), (10, 10, 100)]


@pytest.mark.rule("N4")
def test_jobs_that_commit_at_once_both_appear_whole(bookkeeper: BookKeeper, uri: str) -> None:
    jobs = [job(uri, 10, 20) for _ in range(6)]
    for commit in [in_thread(writer.commit, messages) for writer, messages in jobs]:
        commit.result(60)
    assert [entries for _, entries, _ in planned(bookkeeper, uri)] == [10, 20] * 6


@pytest.mark.rule("N4")
def test_a_missing_message_publishes_nothing(bookkeeper: BookKeeper, uri: str) -> None:
    writer, messages = job(uri, 10, 10)
    with pytest.raises(PublishConflictError, match="1 of 3 partitions"):
        writer.commit([*messages, None])
    assert bookkeeper.log("events").head().value.next_offset == 0


@pytest.mark.rule("N4")
def test_abort_deletes_only_what_was_never_offered_for_publishing(bookkeeper: BookKeeper, uri: str) -> None:
    writer, messages = job(uri, 10, 10)
    writer.abort(messages)  # a commit that failed: its compare-and-set may have been applied
    assert len(bookkeeper.list_ledgers()) == 2
    writer.abort([messages[0], None])
    second = messages[1]
    assert isinstance(second, WrittenLedgers)
    assert bookkeeper.list_ledgers() == [extent.ledger_id for _, extent in second.extents]
    writer.abort([*messages, None])  # again: what is gone already is passed over
    assert bookkeeper.list_ledgers() == []
    writer.abort([*messages, None])  # and it does not raise


def test_a_task_that_fails_leaves_no_ledger(bookkeeper: BookKeeper, uri: str) -> None:
    writer = LogWriter.plan(options(uri, Use.WRITE), VALUE)
    bad = pa.record_batch([pa.array([b"x", None])], names=["value"])
    with pytest.raises(InvalidArgumentError, match="nulls"):
        writer.write(iter([rows(*["x"] * 10), bad]))
    assert bookkeeper.list_ledgers() == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_a_task_that_is_interrupted_leaves_no_ledger(
    bookkeeper: BookKeeper, uri: str, interruption: type[BaseException]
) -> None:
    writer = LogWriter.plan(options(uri, Use.WRITE), VALUE)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(*["x"] * 10)
        raise interruption

    with pytest.raises(interruption):
        writer.write(batches())
    assert bookkeeper.list_ledgers() == []


@pytest.mark.rule("E1")
def test_a_worker_with_another_version_writes_nothing_and_says_so(bookkeeper: BookKeeper, uri: str) -> None:
    writer = LogWriter.plan(options(uri, Use.WRITE), VALUE)
    writer.target = replace(writer.target, version="0.0.9")
    with pytest.raises(PackageMismatchError, match=r"driver 0\.0\.9, worker"):
        writer.write(iter([rows("x")]))
    assert bookkeeper.list_ledgers() == []


def test_a_task_that_cannot_clean_up_says_what_was_wrong_with_it(bookkeeper: BookKeeper, uri: str) -> None:
    writer = LogWriter.plan(options(uri, Use.WRITE), VALUE)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(*["x"] * 10)
        for ledger_id in bookkeeper.list_ledgers():
            bookkeeper.delete_ledger(ledger_id)
        raise InvalidArgumentError("the cause")

    with pytest.raises(InvalidArgumentError, match="the cause"):
        writer.write(batches())


def test_an_abort_that_reaches_nobody_is_silent() -> None:
    given = {"metadataserviceuri": "zk://127.0.0.1:1/ledgers", "path": "events", "bookkeeper.metadatatimeouts": "0.1"}
    abort(parse_options(given, Use.WRITE), [None])
    abort(parse_options({**given, "bookkeeper.nosuchsetting": "1"}, Use.WRITE), [None])


@pytest.mark.rule("N2")
def test_a_leaders_entries_are_planned_to_the_lac_and_publishing_is_refused(bookkeeper: BookKeeper, uri: str) -> None:
    save(uri, 10)
    with bookkeeper.log("events").lead() as leader:
        for _ in range(5):
            leader.append(b"y" * 20)
        assert comes_true(lambda: planned(bookkeeper, uri) == [(0, 10, 100), (10, 5, 100)])
        with pytest.raises(LogHasLeaderError):
            job(uri)
        leader.append(b"still the leader")
    assert planned(bookkeeper, uri)[-1][:2] == (10, 6)


@pytest.mark.rule("N7")
def test_a_stream_notices_that_its_log_is_another_one(bookkeeper: BookKeeper, uri: str) -> None:
    save(uri, 10)
    first = StreamReader(options(uri, Use.STREAM, startingoffsets="earliest"), VALUE)
    end = first.latestOffset(first.initialOffset(), None)
    assert [r.offset for p in first.partitions(first.initialOffset(), end) for r in p.value.ranges] == [0]
    first.stop()
    bookkeeper.log("events").delete()
    save(uri, 20)
    second = StreamReader(options(uri, Use.STREAM), VALUE)
    with pytest.raises(LogRecreatedError):
        second.latestOffset(end, None)
    second.stop()


@pytest.mark.rule("N6")
def test_a_pattern_leaves_out_a_log_that_is_being_deleted(bookkeeper: BookKeeper, uri: str) -> None:
    """The client that deletes it died half-way, so its name is listed still."""
    save(uri, 10)
    save(uri, 7, path="events2")
    found = bookkeeper.store.read_log("events2")
    mark = encode_head(mark_of(decode_head(found.value)))
    bookkeeper.store.write_logs([LogWrite("events2", mark, found.version)])
    assert bookkeeper.store.list_logs() == ["events", "events2"]
    wanted = {"metadataserviceuri": uri, "logpattern": "events.*"}
    ranges = resolve.resolve_batch(bookkeeper, parse_options(wanted, Use.READ)).ranges
    assert [each.entries for each in ranges] == [10]
    with pytest.raises(NoSuchLogError):
        planned(bookkeeper, uri, path="events2")
