# SPDX-License-Identifier: Apache-2.0
"""Several ledgers or logs in one load: which, in which order, each between its own bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bk_core.blocking import BookKeeper, LedgerWriter
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    InvalidArgumentError,
    LedgerFencedError,
    MetadataCorruptError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    WrongDigestTypeError,
    WrongPasswordError,
)
from bk_core.logs.model.head import Extent, LogHead, NewExtent, PublishId
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.options.selection import LogSource
from bk_spark.plan import resolve
from bk_spark.plan.log_ranges import check_whole, ranges_of
from bk_spark.plan.packing import Layout, LedgerRange
from bk_spark.plan.resolved import Resolved, side_by_side

Found = list[tuple[str | None, int | None, int]]


def options(**more: str) -> BkOptions:
    return parse_options({"metadataserviceuri": "memory://x", **more}, Use.READ)


def ledger(bookkeeper: BookKeeper, count: int, *, close: bool = True) -> LedgerWriter:
    writer = bookkeeper.create_ledger()
    if count:
        writer.wait_confirmed(writer.append_batch(EntryBatch.from_list([b"x" * 10] * count)))
    if close:
        writer.close()
    return writer


def publish(bookkeeper: BookKeeper, name: str, *counts: int, created_ms: int = 1) -> None:
    """Append ledgers of so many entries to a log, made if need be."""
    log = bookkeeper.log(name)
    log.open_or_create()
    extents = []
    for count in counts:
        writer = ledger(bookkeeper, count)
        extents.append(
            NewExtent(
                ledger_id=writer.ledger_id,
                entry_count=count,
                size_bytes=10 * count,
                created_ms=created_ms,
                ensemble_size=3,
                write_quorum_size=3,
                ack_quorum_size=2,
                fragments=writer.metadata.fragments,
            )
        )
    log.publish(extents, PublishId.job(f"{name}/{time.monotonic_ns()}"))


def found(bookkeeper: BookKeeper, **more: str) -> Found:
    """(log, offset, entries) of each range."""
    return [(r.log, r.offset, r.entries) for r in resolve.resolve_batch(bookkeeper, options(**more)).ranges]


def test_logs_are_read_one_after_the_other_in_order_of_their_names(bookkeeper: BookKeeper) -> None:
    publish(bookkeeper, "b", 10, 20)
    publish(bookkeeper, "a", 5)
    publish(bookkeeper, "c", 1)
    publish(bookkeeper, "empty")
    assert found(bookkeeper, logs="b,a,empty") == [("a", 0, 5), ("b", 0, 10), ("b", 10, 20)]
    assert found(bookkeeper, paths='["c","a"]') == [("a", 0, 5), ("c", 0, 1)]
    resolved = resolve.resolve_batch(bookkeeper, options(logs="a,b"))
    assert resolved.written == {"a": {("raw", 0)}, "b": {("raw", 0)}}


def test_ledgers_are_read_in_order_of_their_ids(bookkeeper: BookKeeper) -> None:
    ids = [ledger(bookkeeper, count).ledger_id for count in (3, 0, 5)]
    resolved = resolve.resolve_batch(bookkeeper, options(ledgerids=",".join(map(str, reversed(ids)))))
    assert [(r.ledger_id, r.entries, r.offset, r.log) for r in resolved.ranges] == [
        (ids[0], 3, None, None),
        (ids[2], 5, None, None),
    ]


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


def test_a_missing_ledger_or_log_is_named_though_others_are_there(bookkeeper: BookKeeper) -> None:
    publish(bookkeeper, "events", 10)
    (ledger_id,) = bookkeeper.list_ledgers()
    with pytest.raises(NoSuchLogError, match="near names: events"):
        found(bookkeeper, logs="events,evnts")
    with pytest.raises(NoSuchLedgerError, match="999"):
        found(bookkeeper, ledgerids=f"{ledger_id},999")
    assert found(bookkeeper, ledgerids=f"{ledger_id},999", failondataloss="false") == [(None, None, 10)]


def test_data_loss_is_of_one_source_and_the_others_are_read_all_the_same(bookkeeper: BookKeeper) -> None:
    publish(bookkeeper, "a", 10, 10)
    publish(bookkeeper, "b", 10, 10)
    bookkeeper.log("a").trim(10)
    start = {"startingoffsets": '{"a":5,"b":5}'}
    with pytest.raises(NoSuchEntryError, match="log a holds 10 to 20"):
        found(bookkeeper, logs="a,b", **start)
    assert found(bookkeeper, logs="a,b", failondataloss="false", **start) == [("a", 10, 10), ("b", 5, 5), ("b", 10, 10)]


def test_another_digest_type_names_the_log_that_has_it(bookkeeper: BookKeeper) -> None:
    publish(bookkeeper, "a", 1)
    publish(bookkeeper, "b", 1)
    with pytest.raises(WrongDigestTypeError, match="log a has another digest type"):
        found(bookkeeper, logs="a,b", digesttype="MAC")


@pytest.mark.rule("N2")
def test_closed_only_leaves_out_what_is_still_written(bookkeeper: BookKeeper) -> None:
    publish(bookkeeper, "events", 10)
    closed = ledger(bookkeeper, 3)
    opened = ledger(bookkeeper, 3, close=False)
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
    one, two, other = (ledger(bookkeeper, 2, close=False) for _ in range(3))
    both = f"{one.ledger_id},{two.ledger_id}"
    assert found(bookkeeper, ledgerids=both, readmode="fence") == [(None, None, 2), (None, None, 2)]
    for writer in (one, two):
        with pytest.raises(LedgerFencedError):
            writer.append(b"too late")
    other.append(b"not named")
    other.close()


@pytest.mark.rule("K2")
def test_no_ledger_is_fenced_when_another_cannot_be(bookkeeper: BookKeeper) -> None:
    writer = ledger(bookkeeper, 2, close=False)
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
    writers = [ledger(bookkeeper, 10) for _ in range(3)]
    extents = [
        Extent(
            ledger_id=writer.ledger_id,
            entry_count=10,
            size_bytes=100,
            base_offset=10 * i,
            ensemble_size=3,
            write_quorum_size=3,
            ack_quorum_size=2,
            fragments=() if i else writer.metadata.fragments,
        )
        for i, writer in enumerate(writers)
    ]
    head = LogHead(uuid="6a3f9e52-7a0a-4f0e-9f57-0a6c3f3c9b11", next_offset=30)
    bookkeeper.delete_ledger(writers[0].ledger_id)  # its ensembles stand in the list, so nobody looks
    resolved = ranges_of(bookkeeper, options(log="events"), LogSource("events"), head, extents, 5, 25, ())
    assert [(r.ledger_id, r.first, r.last) for r in resolved.ranges] == [
        (writers[0].ledger_id, 5, 9),
        (writers[1].ledger_id, 0, 9),
        (writers[2].ledger_id, 0, 4),
    ]
    assert [r.layout for r in resolved.ranges] == [Layout.of(writer.metadata, b"") for writer in writers]
    bookkeeper.delete_ledger(writers[1].ledger_id)
    with pytest.raises(NoSuchLedgerError):
        ranges_of(bookkeeper, options(log="events"), LogSource("events"), head, extents, 5, 25, ())


def test_a_log_that_lists_less_than_it_says_is_not_read_as_less() -> None:
    ranges = [LedgerRange(ledger_id=i, first=0, last=9, bytes=0, offset=10 * i) for i in (0, 2)]
    check_whole(LogSource("events"), Resolved(tuple(ranges)), 0, 20)
    with pytest.raises(MetadataCorruptError, match="log events does not list all of its entries"):
        check_whole(LogSource("events"), Resolved(tuple(ranges)), 0, 30)


def test_a_time_begins_each_log_with_what_may_have_come_later(bookkeeper: BookKeeper) -> None:
    now = int(time.time() * 1000)
    for created in (1_000, 2_000, 3_000, 4_000):
        publish(bookkeeper, "a", 10, created_ms=created)
    publish(bookkeeper, "b", 10, created_ms=9_000)
    assert found(bookkeeper, logs="a,b", startingtimestamp="3500") == [("a", i, 10) for i in (0, 10, 20, 30)] + [
        ("b", 0, 10)
    ]  # published now: the rows came after that time whatever their ledgers say
    later = str(now + 3_600_000)
    assert found(bookkeeper, logs="a,b", startingtimestamp=later) == [("a", 20, 10), ("a", 30, 10), ("b", 0, 10)]
    assert found(bookkeeper, log="a", startingtimestamp=later, endingoffsets='{"a":35}') == [
        ("a", 20, 10),
        ("a", 30, 5),
    ]


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
