# SPDX-License-Identifier: Apache-2.0
"""The stream source over several ledgers and logs, call by call as Spark calls it; bookies of this process.

Over 400 lines because each story needs the same cluster, clock of batches and helpers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bk_core.blocking import BookKeeper
from bk_core.errors import (
    InvalidArgumentError,
    LogOverwrittenError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from bk_core.logs.model.head import PublishId
from bk_spark.options import offsets
from bk_spark.options.options import Use, parse_options
from bk_spark.stream import follow, positions, stream_plan
from bk_spark.stream.stream_reader import StreamReader
from bk_spark.stream.watch import WatchTimes
from tests.kit.waiting import comes_true
from tests.spark.tables import VALUE, closed, fails, memory_uri, publish

Json = dict[str, Any]

Source = Callable[..., StreamReader]
uri = memory_uri


@pytest.fixture
def source(uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """A stream source with these options, stopped at the end. It looks for new logs often."""
    begin_following = follow.begin_following

    def quickly(*given: Any) -> Any:
        begin = begin_following(*given)
        return lambda _: begin(WatchTimes(list_s=0.05, retry_s=0.05))

    monkeypatch.setattr(follow, "begin_following", quickly)
    with ExitStack() as stack:

        def make(**given: str) -> StreamReader:
            reader = StreamReader(parse_options({"metadataserviceuri": uri, **given}, Use.STREAM), VALUE)
            stack.callback(reader.stop)
            return reader

        yield make


def nexts(offset: Json) -> dict[str, int]:
    return {name: at["next"] for name, at in offset.get("logs", {}).items()} or dict(offset.get("ledgers", {}))


def ask(reader: StreamReader, start: Json) -> Json:
    """As Spark asks: offsets go through JSON, the reader's own limit comes back."""
    return reader.latestOffset(json.loads(json.dumps(start)), reader.getDefaultReadLimit())


def planned(reader: StreamReader, start: Json, end: Json) -> list[tuple[str | None, int | None, int]]:
    plans = [part.value for part in reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))]
    return [(r.log, r.offset, r.entries) for plan in plans for r in plan.ranges]


def sees(reader: StreamReader, **ends: int) -> bool:
    """Whether the source knows of these ends, soon."""
    wanted = {name.replace("_", "-"): end for name, end in ends.items()}
    return comes_true(lambda: nexts(reader.reportLatestOffset()) == wanted)


def test_several_logs_advance_together_and_their_rows_come_log_by_log(bookkeeper: BookKeeper, source: Source) -> None:
    publish(bookkeeper, "a", 10, 5)
    publish(bookkeeper, "b", 20)
    reader = source(logs="b,a", startingoffsets='{"a":12,"b":-2}')
    start = reader.initialOffset()
    assert nexts(start) == {"a": 12, "b": 0}
    end = ask(reader, start)
    assert nexts(end) == {"a": 15, "b": 20}
    assert planned(reader, start, end) == [("a", 12, 3), ("b", 0, 20)]
    assert ask(reader, end) == end
    publish(bookkeeper, "a", 1)
    assert comes_true(lambda: nexts(ask(reader, end)) == {"a": 16, "b": 20})


def test_several_ledgers_advance_together(bookkeeper: BookKeeper, source: Source) -> None:
    done = closed(bookkeeper, 7).ledger_id
    growing = bookkeeper.create_ledger()
    growing.append(b"0")
    reader = source(ledgerids=f"{done},{growing.ledger_id}", startingoffsets="earliest")
    start = reader.initialOffset()
    assert comes_true(lambda: nexts(ask(reader, start)) == {str(done): 7, str(growing.ledger_id): 1})
    end = ask(reader, start)
    growing.append(b"1")
    assert comes_true(lambda: nexts(ask(reader, end)) == {str(done): 7, str(growing.ledger_id): 2})
    assert planned(reader, start, end) == [(None, None, 7), (None, None, 1)]


def test_a_limit_is_shared_and_a_quiet_log_goes_along(bookkeeper: BookKeeper, source: Source) -> None:
    publish(bookkeeper, "busy", 1000)
    publish(bookkeeper, "quiet", 2)
    reader = source(logs="busy,quiet", startingoffsets="earliest", maxentriespertrigger="10")
    at, seen = reader.initialOffset(), []
    for _ in range(3):
        at = ask(reader, at)
        seen.append(nexts(at))
    assert seen == [{"busy": 9, "quiet": 1}, {"busy": 18, "quiet": 2}, {"busy": 28, "quiet": 2}]
    by_bytes = source(logs="busy,quiet", startingoffsets="earliest", maxbytespertrigger="100")
    assert nexts(ask(by_bytes, by_bytes.initialOffset())) == {"busy": 8, "quiet": 1}


def test_logs_take_turns_when_there_is_not_room_for_all(bookkeeper: BookKeeper, source: Source) -> None:
    for name in ("a", "b", "c"):
        publish(bookkeeper, name, 5)
    reader = source(logs="a,b,c", startingoffsets="earliest", maxentriespertrigger="1")
    at = reader.initialOffset()
    for _ in range(3):
        at = ask(reader, at)
    assert nexts(at) == {"a": 1, "b": 1, "c": 1}


def test_a_new_log_of_a_pattern_is_read_from_its_beginning(bookkeeper: BookKeeper, source: Source) -> None:
    publish(bookkeeper, "ev-a", 5)
    publish(bookkeeper, "other", 5)
    reader = source(logpattern="ev-.*")
    start = reader.initialOffset()
    assert nexts(start) == {"ev-a": 5}
    assert ask(reader, start) == start
    publish(bookkeeper, "ev-b", 3)
    assert comes_true(lambda: nexts(ask(reader, start)) == {"ev-a": 5, "ev-b": 0})
    entered = ask(reader, start)
    assert planned(reader, start, entered) == []
    assert comes_true(lambda: nexts(ask(reader, entered)) == {"ev-a": 5, "ev-b": 3})
    end = ask(reader, entered)
    assert planned(reader, entered, end) == [("ev-b", 0, 3)]


def test_a_new_log_that_was_trimmed_meanwhile_has_the_same_rows_when_replayed(
    bookkeeper: BookKeeper, source: Source
) -> None:
    publish(bookkeeper, "ev-a", 5)
    reader = source(logpattern="ev-.*")
    start = reader.initialOffset()
    publish(bookkeeper, "ev-b", 3, 3)
    assert comes_true(lambda: nexts(ask(reader, start)) == {"ev-a": 5, "ev-b": 0})
    entered = ask(reader, start)
    bookkeeper.log("ev-b").trim(3)
    again = source(logpattern="ev-.*")
    assert planned(again, start, entered) == []
    with pytest.raises(NoSuchEntryError, match="log ev-b begins at 3, the stream needs 0"):
        ask(again, entered)


def test_available_now_ends_where_each_source_stood_and_takes_no_new_log(
    bookkeeper: BookKeeper, source: Source
) -> None:
    publish(bookkeeper, "ev-a", 5)
    publish(bookkeeper, "ev-b", 5)
    reader = source(logpattern="ev-.*", startingoffsets="earliest", maxentriespertrigger="4")
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    at = ask(reader, at)
    publish(bookkeeper, "ev-a", 9)
    publish(bookkeeper, "ev-c", 9)
    assert sees(reader, ev_a=14, ev_b=5, ev_c=9)
    ends = [nexts(at)]
    while (moved := ask(reader, at)) != at:
        at = moved
        ends.append(nexts(at))
    assert ends == [{"ev-a": 2, "ev-b": 2}, {"ev-a": 4, "ev-b": 4}, {"ev-a": 5, "ev-b": 5}]


def test_available_now_reads_a_log_that_is_new_since_the_checkpoint(bookkeeper: BookKeeper, source: Source) -> None:
    publish(bookkeeper, "ev-a", 5)
    at = source(logpattern="ev-.*").initialOffset()
    publish(bookkeeper, "ev-b", 5)
    reader = source(logpattern="ev-.*")
    reader.prepareForTriggerAvailableNow()
    entered = ask(reader, at)
    end = ask(reader, entered)
    assert (nexts(entered), nexts(end)) == ({"ev-a": 5, "ev-b": 0}, {"ev-a": 5, "ev-b": 5})
    assert ask(reader, end) == end


def test_a_batch_waits_for_enough_entries_but_not_for_available_now_nor_once(
    bookkeeper: BookKeeper, source: Source
) -> None:
    publish(bookkeeper, "a", 5)
    options = {"log": "a", "startingoffsets": "earliest", "minentriespertrigger": "4", "maxtriggerdelay": "1s"}
    reader = source(**options)
    first = ask(reader, reader.initialOffset())
    began = time.monotonic()
    publish(bookkeeper, "a", 3)
    assert sees(reader, a=8)
    assert ask(reader, first) == first
    assert nexts(reader.latestOffset(first, ReadAllAvailable())) == {"a": 8}
    assert comes_true(lambda: nexts(ask(reader, first)) == {"a": 8})
    assert time.monotonic() - began >= 0.9
    second = ask(reader, first)
    publish(bookkeeper, "a", 4)
    assert sees(reader, a=12)
    assert nexts(ask(reader, second)) == {"a": 12}
    now = source(**options)
    now.prepareForTriggerAvailableNow()
    assert nexts(ask(now, first)) == {"a": 12}
    assert nexts(ask(now, second)) == {"a": 12}


@pytest.mark.rule("N7")
def test_an_overwritten_log_is_skipped_to_what_replaced_it_if_so_wanted(bookkeeper: BookKeeper, source: Source) -> None:
    publish(bookkeeper, "a", 10)
    at = source(log="a", startingoffsets='{"a":4}').initialOffset()
    bookkeeper.log("a").overwrite([closed(bookkeeper, 6)], PublishId.job("overwrite"))
    strict = source(log="a")
    with pytest.raises(LogOverwrittenError, match="onOverwrite=skip"):
        ask(strict, at)
    reader = source(log="a", onoverwrite="skip")
    entered = ask(reader, at)
    end = ask(reader, entered)
    assert [o["logs"]["a"] | {"uuid": ""} for o in (entered, end)] == [
        {"epoch": 1, "next": 10, "uuid": ""},
        {"epoch": 1, "next": 16, "uuid": ""},
    ]
    assert planned(reader, at, entered) == []
    assert planned(reader, entered, end) == [("a", 10, 6)]


def test_trim_behind_the_stream_does_not_matter_and_before_it_is_data_loss(
    bookkeeper: BookKeeper, source: Source
) -> None:
    publish(bookkeeper, "a", 5, 5, 5)
    reader = source(log="a", startingoffsets='{"a":5}')
    start = reader.initialOffset()
    bookkeeper.log("a").trim(5)
    end = ask(reader, start)
    assert planned(reader, start, end) == [("a", 5, 5), ("a", 10, 5)]
    bookkeeper.log("a").trim(10)
    again = source(log="a")
    with pytest.raises(NoSuchEntryError, match="trimmed"):
        planned(again, start, end)
    lenient = source(log="a", failondataloss="false")
    assert planned(lenient, start, end) == [("a", 10, 5)]


def test_compaction_changes_the_ledgers_of_a_replayed_batch_and_not_its_rows(
    bookkeeper: BookKeeper, source: Source
) -> None:
    publish(bookkeeper, "a", 5, 5, 5)
    reader = source(log="a", startingoffsets='{"a":3}', maxentriespertrigger="9")
    start = reader.initialOffset()
    end = ask(reader, start)
    assert planned(reader, start, end) == [("a", 3, 2), ("a", 5, 5), ("a", 10, 2)]
    log = bookkeeper.log("a")
    log.compact(log.extents(0, 15), closed(bookkeeper, 15))
    again = source(log="a")
    assert planned(again, start, end) == [("a", 3, 9)]
    assert nexts(ask(again, end)) == {"a": 15}


def test_a_log_deleted_while_the_stream_runs_is_noticed(bookkeeper: BookKeeper, source: Source) -> None:
    publish(bookkeeper, "ev-a", 5)
    publish(bookkeeper, "ev-b", 5)
    reader = source(logpattern="ev-.*", startingoffsets="earliest")
    end = ask(reader, reader.initialOffset())
    bookkeeper.store.delete_log("ev-a")
    assert comes_true(lambda: fails(lambda: ask(reader, end), NoSuchLogError))


def test_a_deleted_ledger_stops_the_stream_when_it_is_to_be_read(bookkeeper: BookKeeper, source: Source) -> None:
    ids = [closed(bookkeeper, 5).ledger_id for _ in range(2)]
    text = ",".join(map(str, ids))
    reader = source(ledgerids=text, startingoffsets="earliest")
    start = reader.initialOffset()
    end = ask(reader, start)
    bookkeeper.delete_ledger(ids[0])
    with pytest.raises(NoSuchLedgerError):
        planned(reader, start, end)
    lenient = source(ledgerids=text, failondataloss="false")
    assert planned(lenient, start, end) == [(None, None, 5)]


def test_a_batch_beyond_what_the_log_holds_is_never_cut_short_silently(bookkeeper: BookKeeper, source: Source) -> None:
    publish(bookkeeper, "a", 5)
    reader = source(log="a", startingoffsets="earliest")
    start = reader.initialOffset()
    beyond = json.loads(json.dumps(ask(reader, start)).replace('"next": 5', '"next": 9'))
    with pytest.raises(NoSuchEntryError, match="readable to 5"):
        planned(reader, start, beyond)
    ledger = source(ledgerid=str(closed(bookkeeper, 5).ledger_id), startingoffsets="earliest")
    start = ledger.initialOffset()
    beyond = {**start, "ledgers": dict.fromkeys(start["ledgers"], 6)}
    with pytest.raises(NoSuchEntryError, match="readable to 5"):
        planned(ledger, start, beyond)


def test_a_replayed_batch_is_planned_from_the_newest_list_where_the_watch_is_behind(
    bookkeeper: BookKeeper, source: Source
) -> None:
    log = bookkeeper.log("a")
    log.open_or_create()
    reader = source(log="a", startingoffsets="earliest")
    with log.lead() as leader:
        for _ in range(3):
            leader.append(b"x")
        assert sees(reader, a=3)
        old, start = reader._seen(), reader.initialOffset()
    publish(bookkeeper, "a", 4)
    assert sees(reader, a=7)
    end = ask(reader, start)
    parts = positions.parts(offsets.from_json(start), offsets.from_json(end), old, reader.options)
    resolved = stream_plan.plan_parts(bookkeeper, reader.options, parts, old)
    assert [(r.offset, r.entries) for r in resolved.ranges] == [(0, 3), (3, 4)]


def test_time_decides_where_each_log_begins(bookkeeper: BookKeeper, source: Source) -> None:
    publish(bookkeeper, "a", 5)
    publish(bookkeeper, "b", 5)
    time.sleep(0.01)
    at_ms = int(time.time() * 1000)
    time.sleep(0.01)
    publish(bookkeeper, "b", 5)
    reader = source(logs="a,b", startingtimestamp=str(at_ms))
    start = nexts(reader.initialOffset())
    assert start == {"a": 5, "b": 5}
    assert nexts(ask(reader, reader.initialOffset())) == {"a": 5, "b": 10}
    ledger = closed(bookkeeper, 5).ledger_id
    with pytest.raises(InvalidArgumentError, match="startingTimestamp"):
        source(ledgerid=str(ledger), startingtimestamp=str(at_ms)).initialOffset()


@pytest.mark.long
@pytest.mark.rule("K1")
def test_two_hundred_logs_answer_from_memory(bookkeeper: BookKeeper, source: Source) -> None:
    extent = closed(bookkeeper, 3)
    for i in range(200):
        publish(bookkeeper, f"ev-{i}", extent)
    reader = source(logpattern="ev-.*", startingoffsets="earliest", maxentriespertrigger="450")
    began = time.monotonic()
    start = reader.initialOffset()
    assert time.monotonic() - began < 10
    took, computed = [], []
    for _ in range(50):
        began, cpu_began = time.perf_counter(), time.thread_time()
        ask(reader, start)
        took.append(time.perf_counter() - began)
        computed.append(time.thread_time() - cpu_began)
    assert sorted(computed)[40] < 0.005
    assert sorted(took)[5] < 0.005  # nobody was asked; on a busy machine the slower ones measure who else is there
    end = ask(reader, start)
    assert sum(nexts(end).values()) == 450
    assert sum(entries for _, _, entries in planned(reader, start, end)) == 450
