# SPDX-License-Identifier: Apache-2.0
"""Small tasks send their entries to the driver, which writes them into ledgers of its own before it publishes: how much
a task may hold, and how its entries travel."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from bk_core.blocking import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import BookKeeperError, PublishConflictError
from bk_core.logs.model.head import PublishId
from bk_core.model import DigestType
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.write import gathered, held, log_writer
from bk_spark.write.held import FULL_TASKS, HeldEntries, LogAt
from bk_spark.write.log_writer import LogWriter
from bk_spark.write.new_ledger import Attempt, NewLedger
from bk_spark.write.written_ledgers import WrittenLedgers
from tests.kit.memory_cluster import MemoryBookKeeper
from tests.spark.tables import ROUTED, VALUE, memory_uri, rows, values

uri = memory_uri


def options(uri: str, **more: str) -> BkOptions:
    return parse_options({"metadataserviceuri": uri, **more}, Use.WRITE)


def written(
    writer: LogWriter, monkeypatch: pytest.MonkeyPatch, *tasks: pa.RecordBatch, first: int = 0
) -> list[WrittenLedgers]:
    """What tasks from partition ``first`` on report."""
    messages = []
    for partition, task in enumerate(tasks, first):
        monkeypatch.setattr(log_writer, "task_numbers", lambda number=partition: (number, 0))
        message = writer.write(iter([task]))
        assert isinstance(message, WrittenLedgers)
        messages.append(message)
    return messages


def extents(bookkeeper: BookKeeper, log: str) -> list[int]:
    """The entries of each ledger of a log."""
    return [extent.entry_count for extent in bookkeeper.log(log).head().value.tail]


def test_small_tasks_make_no_ledger_and_the_driver_makes_one_for_all(
    bookkeeper: BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter.plan(options(uri, path="events"), VALUE)
    messages = written(writer, monkeypatch, *(rows(f"{task}a", f"{task}b") for task in range(200)), rows())
    assert bookkeeper.list_ledgers() == []
    writer.commit(messages)
    assert values(bookkeeper, "events") == [f"{task}{row}" for task in range(200) for row in "ab"]
    assert extents(bookkeeper, "events") == [400]
    (ledger,) = bookkeeper.list_ledgers()
    custom = bookkeeper.read_metadata(ledger).value.custom_metadata
    assert custom["bk.log.uuid"].decode() == bookkeeper.log("events").head().value.uuid
    assert custom["bk.publish.id"].decode() == writer.publish_id.text


@pytest.mark.rule("N8")
def test_the_driver_says_which_log_it_made_what_it_wrote_and_what_it_published(
    bookkeeper: BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bk_spark")
    writer = LogWriter.plan(options(uri, path="events"), VALUE)
    writer.commit(written(writer, monkeypatch, rows("a"), rows("b")))
    (ledger,) = bookkeeper.list_ledgers()
    assert [record.getMessage() for record in caplog.records if record.name == log_writer.logger.name] == [
        "created log events",
        f"wrote 2 entries of small tasks into ledger {ledger}",
        f"published 2 rows to log events as {writer.publish_id.text}",
    ]


def test_a_ledger_that_is_given_up_is_gone_and_takes_no_more_entries(bookkeeper: BookKeeper, uri: str) -> None:
    given = options(uri, path="events")
    attempt = Attempt(0, 0, PublishId.txn("a-job", 1))
    ledger = NewLedger(given, LogAt("events", "an-uuid", DigestType.CRC32C), attempt)
    ledger.append(EntryBatch.from_list([b"a"]), 1 << 20)
    writer = ledger._ledger
    assert writer is not None
    ledger.give_up()
    assert bookkeeper.list_ledgers() == []
    with pytest.raises(BookKeeperError):
        writer.append(b"late")
    ledger.give_up()


def test_partitions_stay_in_order_where_large_tasks_stand_between_small_ones(
    bookkeeper: BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter.plan(options(uri, path="events", smalltaskbytes="100"), VALUE)
    large = [f"{number:0100d}" for number in range(3)]
    tasks = (rows("a"), rows("b"), rows(*large), rows("c"), rows(), rows("d", "e"), rows(*large))
    writer.commit(written(writer, monkeypatch, *tasks))
    assert values(bookkeeper, "events") == ["a", "b", *large, "c", "d", "e", *large]
    assert extents(bookkeeper, "events") == [2, 3, 3, 3]


def test_a_task_that_grows_sends_what_it_held_to_its_ledger_first(
    bookkeeper: BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter.plan(options(uri, path="events", smalltaskbytes="100"), VALUE)
    batches = [rows(f"{number:030d}") for number in range(20)]
    message = writer.write(iter(batches))
    assert isinstance(message, WrittenLedgers)
    assert (len(message.extents), message.held) == (1, ())
    writer.commit([message])
    assert values(bookkeeper, "events") == [f"{number:030d}" for number in range(20)]


def test_a_task_of_a_high_partition_holds_less(
    bookkeeper: BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter.plan(options(uri, path="events"), VALUE)
    tasks = [rows("x" * 1000)] * 2
    low, high = written(writer, monkeypatch, tasks[0]) + written(writer, monkeypatch, tasks[1], first=100_000)
    assert (len(low.held), len(high.held), len(high.extents)) == (1, 0, 1)


def test_a_log_that_got_a_ledger_leaves_its_room_to_the_other_logs_of_the_task(
    bookkeeper: BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter.plan(options(uri, smalltaskbytes="100"), ROUTED)
    tasks = [rows(letter * 80, log=[log]) for log, letter in (("a", "x"), ("a", "x"), ("b", "y"))]
    message = writer.write(iter(tasks))
    assert isinstance(message, WrittenLedgers)
    assert ([log for log, _ in message.extents], [each.log.name for each in message.held]) == (["a"], ["b"])
    writer.commit([message])
    assert (extents(bookkeeper, "a"), values(bookkeeper, "b")) == ([2], ["y" * 80])


@pytest.mark.rule("N4")
def test_the_ledgers_of_a_commit_that_failed_before_its_publish_are_deleted(
    bookkeeper: BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = LogWriter.plan(options(uri, path="events", smalltaskbytes="100"), VALUE)
    first, large, last = written(writer, monkeypatch, rows("a"), rows("x" * 200), rows("b"))
    (of_task,) = bookkeeper.list_ledgers()
    impossible = EntryBatch(lengths=np.array([ENTRY_BYTES_MAX + 1], np.uint32), payload=memoryview(bytes(6 << 20)))
    last = replace(last, held=(HeldEntries.of(first.held[0].log, [impossible], 1),))
    with pytest.raises(BookKeeperError):
        writer.commit([first, large, last])
    assert caplog.text.count("are written again") == gathered.TRIES - 1
    assert bookkeeper.list_ledgers() == [of_task], "those of the driver are deleted, whether they were closed or not"
    with pytest.raises(PublishConflictError):
        writer.commit([first, large, None])
    writer.abort([first, large, None])
    assert (bookkeeper.list_ledgers(), bookkeeper.log("events").head().value.next_offset) == ([], 0)


def test_a_driver_that_cannot_write_at_first_tries_again_as_spark_does_with_tasks(
    in_memory: tuple[BookKeeper, MemoryBookKeeper],
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bookkeeper, cluster = in_memory
    writer = LogWriter.plan(options(uri, path="events"), VALUE)
    messages = written(writer, monkeypatch, rows("a"), rows("b"))
    for name in cluster.names:
        cluster.store.unregister_bookie(name)

    class Returning(logging.Handler):
        """The bookies are back when the driver says that it tries again."""

        def emit(self, record: logging.LogRecord) -> None:
            for name in cluster.names:
                cluster.register(name)

    handler = Returning()
    gathered.logger.addHandler(handler)
    try:
        writer.commit(messages)
    finally:
        gathered.logger.removeHandler(handler)
    assert "are written again: [BK_NOT_ENOUGH_BOOKIES]" in caplog.text
    assert values(bookkeeper, "events") == ["a", "b"]
    assert len(bookkeeper.list_ledgers()) == 1


LOG = LogAt("events", "uuid", DigestType.CRC32C)


@pytest.mark.rule("K5")
@pytest.mark.parametrize("tasks", [1, 200, FULL_TASKS, 10_000, 1_000_000])
def test_all_tasks_of_a_write_hold_a_bounded_number_of_bytes_however_many_they_are(tasks: int) -> None:
    limit = 32 << 10
    shares = [held.bytes_max(partition, limit) for partition in range(tasks)]
    assert sum(shares) <= min(tasks, 2 * FULL_TASKS) * limit
    assert shares == sorted(shares, reverse=True)
    assert all(share == limit for share in shares[:FULL_TASKS])


def test_entries_arrive_as_they_were_sent_in_a_message_of_their_size() -> None:
    batches = [EntryBatch.from_list([b"a", b""]), EntryBatch.from_list([b"bcd" * 1000])]
    sent = pickle.dumps(HeldEntries.of(LOG, batches, 3))
    assert len(sent) < sum(map(held.size_of, batches)) + 1000
    arrived = pickle.loads(sent)
    assert arrived.entries().to_list() == [b"a", b"", b"bcd" * 1000]
    assert (arrived.log, arrived.rows) == (LOG, 3)
