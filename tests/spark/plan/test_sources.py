# SPDX-License-Identifier: Apache-2.0
"""Several ledgers or logs in one load: which, in which order, each between its own bounds."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from bk_core.blocking import BookKeeper
from bk_core.errors import (
    InvalidArgumentError,
    LedgerFencedError,
    MetadataCorruptError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    WrongPasswordError,
)
from bk_core.logs.model.head import Extent, LogHead, Published
from bk_spark.options.offsets import LATEST, offset_at
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.options.selection import LogSource
from bk_spark.plan import resolve
from bk_spark.plan.log_ranges import check_whole, ranges_of
from bk_spark.plan.packing import LedgerRange, PartitionLayout
from bk_spark.plan.resolved import Resolved, side_by_side
from tests.kit.extents import open_extent
from tests.spark.tables import publish, written

Found = list[tuple[str | None, int | None, int]]


def options(**more: str) -> BkOptions:
    return parse_options({"metadataserviceuri": "memory://x", **more}, Use.READ)


def found(bookkeeper: BookKeeper, **more: str) -> Found:
    """(log, offset, entries) of each range."""
    return [(r.log, r.offset, r.entries) for r in resolve.resolve_batch(bookkeeper, options(**more)).ranges]


def test_a_pattern_is_of_the_whole_name_and_looked_up_each_time(bookkeeper: BookKeeper) -> None:
    for name in ("ev1", "ev2", "dev1", "ev1x"):
        publish(bookkeeper, name, 1)
    assert [log for log, _, _ in found(bookkeeper, logpattern=r"ev\d")] == ["ev1", "ev2"]
    publish(bookkeeper, "ev0", 1)
    assert [log for log, _, _ in found(bookkeeper, logpattern=r"ev\d")] == ["ev0", "ev1", "ev2"]
    with pytest.raises(NoSuchLogError, match="logs of the cluster: dev1, ev0, ev1"):
        found(bookkeeper, logpattern="v")


def test_each_source_has_its_own_bounds(bookkeeper: BookKeeper) -> None:
    publish(bookkeeper, "a", 10)
    publish(bookkeeper, "b", 10, 10)
    cut = {"startingoffsets": '{"a":-2,"b":15}', "endingoffsets": '{"a":4,"b":-1}'}
    assert found(bookkeeper, logs="a,b", **cut) == [("a", 0, 4), ("b", 15, 5)]
    assert found(bookkeeper, logpattern=".*", **cut) == [("a", 0, 4), ("b", 15, 5)]
    with pytest.raises(InvalidArgumentError, match=r"log a holds 0 to 10 \(exclusive\), asked for 0 to 11"):
        found(bookkeeper, logs="a,b", endingoffsets='{"a":11,"b":1}')
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(InvalidArgumentError, match=f"{option} .*missing: b; not selected: c"):
            found(bookkeeper, logpattern=".*", **{option.lower(): '{"a":1,"c":1}'})


def test_data_loss_is_of_one_source_and_the_others_are_read_all_the_same(bookkeeper: BookKeeper) -> None:
    publish(bookkeeper, "a", 10, 10)
    publish(bookkeeper, "b", 10, 10)
    bookkeeper.log("a").trim(10)
    start = {"startingoffsets": '{"a":5,"b":5}'}
    with pytest.raises(NoSuchEntryError, match="log a holds 10 to 20"):
        found(bookkeeper, logs="a,b", **start)
    assert found(bookkeeper, logs="a,b", failondataloss="false", **start) == [("a", 10, 10), ("b", 5, 5), ("b", 10, 10)]


@pytest.mark.rule("N2")
def test_closed_only_leaves_out_what_is_still_written(bookkeeper: BookKeeper) -> None:
    publish(bookkeeper, "events", 10)
    closed = written(bookkeeper, 3)
    opened = written(bookkeeper, 3, close=False)
    with bookkeeper.log("events").lead() as leader:
        leader.append(b"x")
        leader.append(b"x")
        assert found(bookkeeper, log="events", readmode="closedOnly") == [("events", 0, 10)]
        assert found(bookkeeper, log="events")[0] == ("events", 0, 10)
        leader.roll()
        assert found(bookkeeper, log="events", readmode="closedOnly") == [("events", 0, 10), ("events", 10, 2)]
        with pytest.raises(InvalidArgumentError, match="holds 0 to 12"):
            found(bookkeeper, log="events", readmode="closedOnly", endingoffsets='{"events":13}')
    both = f"{closed.ledger_id},{opened.ledger_id}"
    assert found(bookkeeper, ledgerids=both, readmode="closedOnly") == [(None, None, 3)]
    opened.append(b"still mine")
    opened.close()
    assert found(bookkeeper, ledgerids=both, readmode="closedOnly") == [(None, None, 3), (None, None, 4)]


@pytest.mark.rule("K2")
def test_fencing_ends_the_writers_of_exactly_the_ledgers_that_are_named(bookkeeper: BookKeeper) -> None:
    one, two, other = (written(bookkeeper, 2, close=False) for _ in range(3))
    both = f"{one.ledger_id},{two.ledger_id}"
    assert found(bookkeeper, ledgerids=both, readmode="fence") == [(None, None, 2), (None, None, 2)]
    for writer in (one, two):
        with pytest.raises(LedgerFencedError):
            writer.append(b"too late")
    other.append(b"not named")
    other.close()


@pytest.mark.rule("K2")
def test_no_ledger_is_fenced_when_another_cannot_be(bookkeeper: BookKeeper) -> None:
    writer = written(bookkeeper, 2, close=False)
    with pytest.raises(NoSuchLedgerError):
        found(bookkeeper, ledgerids=f"{writer.ledger_id},999", readmode="fence")
    with bookkeeper.create_ledger(password=b"secret") as locked, pytest.raises(WrongPasswordError):
        found(bookkeeper, ledgerids=f"{writer.ledger_id},{locked.ledger_id}", readmode="fence")
    writer.append(b"still mine")
    assert found(bookkeeper, ledgerids=f"{writer.ledger_id},999", readmode="fence", failondataloss="false") == [
        (None, None, 3)
    ]
    with pytest.raises(LedgerFencedError):
        writer.append(b"too late")


@pytest.mark.rule("N1")
def test_an_extent_without_ensembles_is_looked_up(bookkeeper: BookKeeper) -> None:
    """Thousands of ensemble changes do not fit a page, so it leaves them to the ledger's record."""
    writers = [written(bookkeeper, 10) for _ in range(3)]
    extents = [
        replace(open_extent(writer.ledger_id), is_open=False, entry_count=10, size_bytes=100, base_offset=10 * number)
        for number, writer in enumerate(writers)
    ]
    extents[0] = replace(extents[0], fragments=writers[0].metadata.fragments)
    head = LogHead(uuid="6a3f9e52-7a0a-4f0e-9f57-0a6c3f3c9b11", next_offset=30)
    bookkeeper.delete_ledger(writers[0].ledger_id)  # its ensembles stand in the list, so nobody looks
    resolved = ranges_of(bookkeeper, options(log="events"), LogSource("events"), head, extents, 5, 25, ())
    assert [(r.ledger_id, r.first, r.last) for r in resolved.ranges] == [
        (writers[0].ledger_id, 5, 9),
        (writers[1].ledger_id, 0, 9),
        (writers[2].ledger_id, 0, 4),
    ]
    assert [r.layout for r in resolved.ranges] == [PartitionLayout.of(writer.metadata, b"") for writer in writers]
    bookkeeper.delete_ledger(writers[1].ledger_id)
    with pytest.raises(NoSuchLedgerError):
        ranges_of(bookkeeper, options(log="events"), LogSource("events"), head, extents, 5, 25, ())


def test_a_log_that_lists_less_than_it_says_is_not_read_as_less() -> None:
    ranges = [LedgerRange(ledger_id=i, first=0, last=9, bytes=0, offset=10 * i) for i in (0, 2)]
    check_whole(LogSource("events"), Resolved(tuple(ranges)), 0, 20)
    with pytest.raises(MetadataCorruptError, match="log events does not list all of its entries"):
        check_whole(LogSource("events"), Resolved(tuple(ranges)), 0, 30)


def test_times_bound_a_log_by_its_publishes_exactly(bookkeeper: BookKeeper) -> None:
    times = []
    for _ in range(3):
        publish(bookkeeper, "a", 10, 5)
        times.append(bookkeeper.log("a").head().value.published[-1].time_ms)
        time.sleep(0.005)
    jobs = [[("a", base, 10), ("a", base + 10, 5)] for base in (0, 15, 30)]
    assert found(bookkeeper, log="a", startingtimestamp=str(times[1])) == jobs[1] + jobs[2]
    assert found(bookkeeper, log="a", startingtimestamp=str(times[1] + 1)) == jobs[2]
    assert found(bookkeeper, log="a", endingtimestamp=str(times[1])) == jobs[0]
    assert found(bookkeeper, log="a", endingtimestamp=str(times[1] + 1)) == jobs[0] + jobs[1]
    between = {"startingtimestamp": str(times[0] + 1), "endingtimestamp": str(times[2])}
    assert found(bookkeeper, log="a", **between) == jobs[1]
    tomorrow = str(int(time.time() * 1000) + 86_400_000)
    assert found(bookkeeper, log="a", startingtimestamp=tomorrow) == []
    assert found(bookkeeper, log="a", endingtimestamp=tomorrow) == jobs[0] + jobs[1] + jobs[2]
    assert found(bookkeeper, log="a", startingtimestamp=str(times[1] + 1), endingoffsets='{"a":40}') == [("a", 30, 10)]


def test_each_log_has_its_own_time(bookkeeper: BookKeeper) -> None:
    for _ in range(2):
        publish(bookkeeper, "a", 10)
        publish(bookkeeper, "b", 10)
        time.sleep(0.005)
    last = {name: bookkeeper.log(name).head().value.published[-1].time_ms for name in "ab"}
    starts = json.dumps({"a": last["a"], "b": last["b"] + 1})
    assert found(bookkeeper, logs="a,b", startingtimestamp=starts) == [("a", 10, 10)]
    with pytest.raises(InvalidArgumentError, match="missing: b"):
        found(bookkeeper, logPattern="[ab]", startingtimestamp=json.dumps({"a": last["a"]}))


def test_the_time_of_a_leaders_rows_is_that_of_their_ledgers(bookkeeper: BookKeeper) -> None:
    publish(bookkeeper, "a", 10)
    time.sleep(0.005)
    log = bookkeeper.log("a")
    with log.lead() as leader:
        leader.append(b"x")
        time.sleep(0.02)
        during = int(time.time() * 1000)
        time.sleep(0.02)
        leader.append(b"y")
        while log.end_offset() < 12:
            time.sleep(0.005)
        assert found(bookkeeper, log="a", startingtimestamp=str(during)) == [("a", 10, 2)]  # the open ledger
        assert found(bookkeeper, log="a", endingtimestamp=str(during)) == [("a", 0, 10)]
        later = str(int(time.time() * 1000) + 60_000)
        assert found(bookkeeper, log="a", startingtimestamp=later) == []
    time.sleep(0.005)
    publish(bookkeeper, "a", 5)
    published = log.head().value.published[-1].time_ms
    assert found(bookkeeper, log="a", startingtimestamp=str(during)) == [("a", 10, 2), ("a", 12, 5)]
    assert found(bookkeeper, log="a", startingtimestamp=str(published + 1)) == []
    assert found(bookkeeper, log="a", endingtimestamp=str(published + 1)) == [("a", 0, 10), ("a", 10, 2), ("a", 12, 5)]


def test_a_time_before_the_remembered_publishes_begins_less_than_two_ledgers_early() -> None:
    extents = [extent(number * 10, 10, created_ms=number * 1_000) for number in range(1, 9)]
    head = LogHead(
        uuid="u", start_offset=10, next_offset=90, published=(publish_record(60, 30, 20_000),), tail=tuple(extents)
    )
    assert [offset_at(head, extents, at, 10**9) for at in (0, 3_000, 3_001, 5_000, 5_001, 20_000)] == [
        *(10, 10, 20, 30, 40, 40),
    ]
    assert [offset_at(head, extents, at, 10**9) for at in (20_001, 10**10)] == [LATEST, LATEST]


def test_compaction_leaves_the_times_of_publishes(bookkeeper: BookKeeper) -> None:
    merged = [extent(0, 30, created_ms=7_000)]
    jobs = (publish_record(0, 10, 5_000), publish_record(10, 10, 6_000), publish_record(20, 10, 8_000))
    for codec in ("raw", "arrow"):
        listed = [replace(each, codec=codec) for each in merged]
        head = LogHead(uuid="u", next_offset=30, published=jobs, tail=tuple(listed))
        assert [offset_at(head, listed, at, 10**9) for at in (5_000, 5_001, 6_001, 8_001)] == [0, 10, 20, LATEST]


def extent(base: int, count: int, *, created_ms: int) -> Extent:
    return Extent(ledger_id=base, entry_count=count, base_offset=base, created_ms=created_ms)


def publish_record(base: int, rows: int, time_ms: int) -> Published:
    return Published(publish_id=b"p" * 16, base_offset=base, rows=rows, time_ms=time_ms)


def test_what_is_looked_up_side_by_side_ends_with_the_first_error(bookkeeper: BookKeeper) -> None:
    asked: list[int] = []

    def work(item: int) -> Any:
        asked.append(item)
        if item == 3:
            raise NoSuchLedgerError("3")
        time.sleep(0.01)
        return None

    with pytest.raises(NoSuchLedgerError):
        side_by_side(work, range(10_000))
    assert len(asked) < 5_000
