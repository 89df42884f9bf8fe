# SPDX-License-Identifier: Apache-2.0
"""Following ledgers, logs and patterns; bookies of this process behind the blocking client. Never fences.

Over 400 lines because every way to follow is tried with the same few helpers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from bk_core.blocking import BookKeeper
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    EntryUnreadableError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLogError,
    WrongDigestTypeError,
    WrongPasswordError,
)
from bk_core.logs.model.head import PublishId
from bk_spark.options.options import Use, parse_options
from bk_spark.options.selection import LedgerSource, LogSource
from bk_spark.plan.packing import Span
from bk_spark.stream.follow import begin_following
from bk_spark.stream.positions import Reading, SourceSeen
from bk_spark.stream.watch import Watch, WatchTimes
from tests.kit.extents import new_extent
from tests.kit.waiting import comes_true
from tests.spark.tables import fails, memory_uri, publish, written

QUICK = WatchTimes(retry_s=0.05, list_s=0.05, head_age_s=1000.0)  # so that only watches tell of news

Follow = Callable[..., Watch]
uri = memory_uri


@pytest.fixture
def follow(uri: str) -> Iterator[Follow]:
    """Begins to follow what the options select."""
    with ExitStack() as stack:

        def begin(reading: Reading | None = None, times: WatchTimes = QUICK, **given: str) -> Watch:
            options = parse_options({"metadataserviceuri": uri, **given}, Use.STREAM)
            watch = Watch(begin_following(options, reading or Reading()), times)
            stack.callback(watch.stop)
            return watch

        yield begin


def ends(watch: Watch) -> dict[str, int]:
    return {source.key: seen.next for source, seen in watch.seen().sources.items()}


def seen_of(watch: Watch, name: str) -> SourceSeen:
    return watch.seen().sources[LogSource(name)]


@pytest.mark.rule("K2")
def test_open_and_closed_ledgers_are_followed_and_never_fenced(bookkeeper: BookKeeper, follow: Follow) -> None:
    done, growing = written(bookkeeper, 30), written(bookkeeper, 50, close=False)
    ids = [str(each.ledger_id) for each in (done, growing)]
    watch = follow(ledgerids=",".join(ids))
    assert comes_true(lambda: ends(watch) == dict(zip(ids, (30, 50), strict=True)))
    growing.append(b"x" * 10)
    assert comes_true(lambda: ends(watch)[ids[1]] == 51)
    assert watch.seen().sources[LedgerSource(growing.ledger_id)].spans == (Span(0, 51, 510),)
    growing.append(b"x" * 10)
    growing.close()
    assert comes_true(lambda: not watch.seen().sources[LedgerSource(growing.ledger_id)].is_open)
    assert ends(watch) == dict(zip(ids, (30, 52), strict=True))


def test_the_average_entry_is_looked_up_anew_as_a_ledger_grows(bookkeeper: BookKeeper, follow: Follow) -> None:
    growing = written(bookkeeper, 4, close=False)
    watch = follow(ledgerid=str(growing.ledger_id))
    (source,) = watch.seen().sources

    def spans() -> Sequence[Span]:
        return watch.seen().sources[source].spans

    assert comes_true(lambda: spans() == (Span(0, 4, 40),))
    growing.wait_confirmed(growing.append_batch(EntryBatch.from_list([b"y" * 100] * 20)))
    assert comes_true(lambda: spans() == (Span(0, 24, 2040),))


def test_the_average_entry_of_a_logs_open_ledger_is_looked_up_anew(bookkeeper: BookKeeper, follow: Follow) -> None:
    publish(bookkeeper, "events", 5)
    watch = follow(log="events")
    with bookkeeper.log("events").lead() as leader:
        leader.append(b"x" * 10)
        assert comes_true(lambda: seen_of(watch, "events").spans == (Span(0, 5, 50), Span(5, 6, 10)))
        for _ in range(10):
            leader.append(b"x" * 100)
        assert comes_true(lambda: seen_of(watch, "events").next == 16)
        assert comes_true(lambda: 600 < seen_of(watch, "events").spans[1].bytes <= 1010)


@pytest.mark.rule("N2")
def test_a_log_is_followed_over_leaders_and_rolls(bookkeeper: BookKeeper, follow: Follow) -> None:
    publish(bookkeeper, "events", 10)
    watch = follow(log="events")

    def reaches(end: int) -> bool:
        return ends(watch) == {"events": end}

    assert reaches(10)
    with bookkeeper.log("events").lead() as leader:
        leader.append(b"1")
        assert comes_true(lambda: ends(watch) == {"events": 11})
        leader.roll()
        for end in (12, 13, 14):
            leader.append(b"22")
            assert comes_true(partial(reaches, end))
        with bookkeeper.log("events").lead() as successor:
            successor.append(b"333")
            assert comes_true(lambda: ends(watch) == {"events": 15})
    assert comes_true(lambda: not seen_of(watch, "events").is_open)
    spans = seen_of(watch, "events").spans
    assert [(s.begin, s.end) for s in spans] == [(0, 10), (10, 11), (11, 14), (14, 15)]
    assert sum(s.bytes for s in spans) == 100 + 1 + 6 + 3


def test_new_logs_of_a_pattern_are_taken_up_and_deleted_ones_are_gone(bookkeeper: BookKeeper, follow: Follow) -> None:
    publish(bookkeeper, "ev-b", 10)
    publish(bookkeeper, "other", 10)
    watch = follow(logpattern="ev-.*")
    assert ends(watch) == {"ev-b": 10}
    publish(bookkeeper, "ev-a", 3)
    assert comes_true(lambda: ends(watch) == {"ev-a": 3, "ev-b": 10})
    bookkeeper.store.delete_log("ev-b")
    assert comes_true(lambda: ends(watch) == {"ev-a": 3})
    assert list(watch.seen().gone) == [LogSource("ev-b")]
    publish(bookkeeper, "ev-b", 4)
    assert comes_true(lambda: ends(watch) == {"ev-a": 3, "ev-b": 4})
    assert not watch.seen().gone


def test_a_pattern_without_a_log_is_no_error(bookkeeper: BookKeeper, follow: Follow) -> None:
    watch = follow(logpattern="ev-.*")
    assert ends(watch) == {}
    publish(bookkeeper, "ev-a", 3)
    assert comes_true(lambda: ends(watch) == {"ev-a": 3})


def test_a_wrong_password_or_digest_type_ends_the_stream(bookkeeper: BookKeeper, follow: Follow) -> None:
    closed, growing = (written(bookkeeper, 3, close=close, password=b"secret") for close in (True, False))
    publish(bookkeeper, "events", 1)
    for each in (closed, growing):
        with pytest.raises(WrongPasswordError):
            follow(ledgerid=str(each.ledger_id)).seen()
        with pytest.raises(WrongDigestTypeError):
            follow(ledgerid=str(each.ledger_id), ledgerpassword="secret", digesttype="MAC").seen()
    with pytest.raises(WrongDigestTypeError):
        follow(log="events", digesttype="MAC").seen()
    with pytest.raises(WrongPasswordError):
        follow(log="events", ledgerpassword="another").seen()


@pytest.mark.rule("K1")
def test_following_ends_a_while_after_the_last_call(bookkeeper: BookKeeper, follow: Follow) -> None:
    growing = written(bookkeeper, 3, close=False)
    watch = follow(ledgerid=str(growing.ledger_id), times=WatchTimes(idle_s=0.2, list_s=0.05))
    watch.seen()
    assert comes_true(lambda: not watch.is_running)
    assert comes_true(lambda: bookkeeper.begin(_tasks).result() == 0)
    growing.append(b"x")
    assert comes_true(lambda: list(ends(watch).values()) == [4])


def test_what_is_not_followed_any_more_leaves_nothing_behind(bookkeeper: BookKeeper, follow: Follow) -> None:
    publish(bookkeeper, "events", 1)
    growing = written(bookkeeper, 3, close=False)
    ledger, log = follow(ledgerid=str(growing.ledger_id)), follow(log="events")
    with bookkeeper.log("events").lead() as leader:
        listening = watched(bookkeeper, "events")
        leader.append(b"x")
        assert comes_true(lambda: ends(log) == {"events": 2})
        leader.roll()
        leader.append(b"y")
        assert comes_true(lambda: ends(log) == {"events": 3})
        assert seen_of(log, "events").is_open
        assert ends(ledger) == {str(growing.ledger_id): 3}
        assert comes_true(lambda: bookkeeper.begin(_waiting).result() == 2), "one open ledger each"
        log.stop()
        ledger.stop()
        assert comes_true(lambda: bookkeeper.begin(_tasks).result() == 0)
        assert comes_true(lambda: bookkeeper.begin(_waiting).result() == 0)
        assert comes_true(lambda: watched(bookkeeper, "events") == listening)


async def _tasks(_: object) -> int:
    """Tasks on the client's loop that follow something."""
    return sum("Follow" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def _waiting(_: object) -> int:
    """Tasks on the client's loop that wait for an open ledger to grow."""
    return sum("OpenLedger" in repr(task.get_coro()) for task in asyncio.all_tasks())


def watched(bookkeeper: BookKeeper, log: str) -> int:
    """How many listen to changes of a log through this client."""
    nodes: dict[Any, Any] = bookkeeper.store._watches._nodes  # type: ignore[attr-defined]  # of every store on a tree
    return sum(len(node.listeners) for (path, _), node in nodes.items() if path.endswith(f"/{log}"))


def test_a_client_that_was_closed_is_replaced(bookkeeper: BookKeeper, follow: Follow) -> None:
    publish(bookkeeper, "events", 1)
    watch = follow(log="events", times=WatchTimes(first_look_s=1.0))
    watch.seen()
    bookkeeper._thread.call(_cancel_others())
    assert comes_true(lambda: not watch.is_running)
    assert ends(watch) == {"events": 1}


async def _cancel_others() -> None:
    """What closing a client does to everything on its loop."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def test_a_log_that_cannot_be_reached_keeps_its_last_answer_and_is_reported_when_it_lasts(
    bookkeeper: BookKeeper, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bookkeeper, "a", 1)
    publish(bookkeeper, "b", 1)
    watch = follow(logs="a,b", times=WatchTimes(retry_s=0.02, list_s=0.05, give_up_s=0.5, head_age_s=0.05))
    assert ends(watch) == {"a": 1, "b": 1}
    read_log = bookkeeper.store.read_log

    def unreachable(name: str) -> object:
        if name == "a":
            raise MetadataUnavailableError("no answer")
        return read_log(name)

    with monkeypatch.context() as patch:
        patch.setattr(bookkeeper.store, "read_log", unreachable)
        began = time.monotonic()
        publish(bookkeeper, "b", 1)
        assert comes_true(lambda: ends(watch) == {"a": 1, "b": 2})
        assert comes_true(lambda: fails(watch.seen, MetadataUnavailableError))
        assert time.monotonic() - began > 0.4
    publish(bookkeeper, "a", 1)
    assert comes_true(lambda: not fails(watch.seen, MetadataUnavailableError) and ends(watch) == {"a": 2, "b": 2})


def test_sizes_are_known_where_the_stream_reads_and_by_page_elsewhere(bookkeeper: BookKeeper, follow: Follow) -> None:
    log = bookkeeper.log("events")
    log.open_or_create()
    for job in range(3):
        ledger = written(bookkeeper, 400)
        fragments = bookkeeper.read_metadata(ledger.ledger_id).value.fragments
        extents = [
            new_extent(ledger.ledger_id, 1, 10, first_entry_id=entry, fragments=fragments) for entry in range(400)
        ]
        log.publish(extents, PublishId.job(str(job)))
    head = log.head().value
    assert head.pages
    reading = Reading()
    watch = follow(reading, log="events", maxbytespertrigger="100")
    coarse = seen_of(watch, "events").spans
    assert len(coarse) == len(head.pages) + len(head.sealed_tail)
    assert sum(span.bytes for span in coarse) == 12_000
    reading.positions = {LogSource("events"): 50}
    watch.stop()
    fine = seen_of(watch, "events").spans
    assert fine[:3] == (Span(50, 51, 10), Span(51, 52, 10), Span(52, 53, 10))
    assert sum(span.bytes for span in fine) == 12_000 - 500
    reading.positions = {LogSource("events"): 66}
    assert comes_true(lambda: seen_of(watch, "events").spans[0] == Span(66, 67, 10))


def test_a_server_that_is_behind_does_not_make_a_log_of_the_checkpoint_look_deleted(
    bookkeeper: BookKeeper, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bookkeeper, "ev-a", 1)
    publish(bookkeeper, "ev-b", 2)
    store, synced = bookkeeper.store, threading.Event()
    read_log, sync = store.read_log, store.sync

    def behind(name: str) -> object:
        if name == "ev-b" and not synced.is_set():
            raise NoSuchLogError("this server has not heard of it")
        return read_log(name)

    def catch_up() -> None:
        sync()
        synced.set()

    monkeypatch.setattr(store, "list_logs", lambda: ["ev-a"])
    monkeypatch.setattr(store, "read_log", behind)
    monkeypatch.setattr(store, "sync", catch_up)
    watch = follow(Reading({LogSource("ev-b"): 1}), logpattern="ev-.*")
    assert ends(watch) == {"ev-a": 1, "ev-b": 2}


def test_a_list_that_cannot_be_read_at_all_ends_the_stream_with_the_reason(
    bookkeeper: BookKeeper, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged() -> list[str]:
        raise MetadataCorruptError("the list of logs is damaged")

    monkeypatch.setattr(bookkeeper.store, "list_logs", damaged)
    watch = follow(logpattern="ev.*", times=WatchTimes(first_look_s=1.0))
    with pytest.raises(MetadataCorruptError, match="is damaged"):
        watch.seen()


def test_a_list_that_cannot_be_read_for_a_while_keeps_what_is_known(
    bookkeeper: BookKeeper, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bookkeeper, "events", 1)
    watch = follow(logpattern="ev.*")
    assert ends(watch) == {"events": 1}
    asked = list[int]()

    def away() -> list[str]:
        asked.append(1)
        raise MetadataUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(bookkeeper.store, "list_logs", away)
        assert comes_true(lambda: len(asked) > 1)
        assert ends(watch) == {"events": 1}
    publish(bookkeeper, "events-2", 1)
    assert comes_true(lambda: ends(watch) == {"events": 1, "events-2": 1})


def test_a_log_whose_open_ledger_is_gone_is_in_trouble_and_not_gone(bookkeeper: BookKeeper, follow: Follow) -> None:
    publish(bookkeeper, "events", 1)
    leader = bookkeeper.log("events").lead()
    leader.append(b"x")
    opened = bookkeeper.log("events").head().value.open_extents[0].ledger_id
    bookkeeper.delete_ledger(opened)
    with pytest.raises(EntryUnreadableError, match="the open ledger of log events is gone"):
        follow(log="events", times=WatchTimes(first_look_s=0.5, retry_s=0.05)).seen()


def test_a_closed_ledger_is_looked_at_once(
    bookkeeper: BookKeeper, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = written(bookkeeper, 3).ledger_id
    read_ledger, looks = bookkeeper.store.read_ledger, []

    def counted(ledger_id: int, *, fresh: bool = False) -> object:
        looks.append(ledger_id)
        return read_ledger(ledger_id, fresh=fresh)

    monkeypatch.setattr(bookkeeper.store, "read_ledger", counted)
    watch = follow(ledgerid=str(done))
    watch.seen()
    time.sleep(10 * QUICK.list_s)
    assert watch.seen().sources[LedgerSource(done)].next == 3
    assert looks == [done]
