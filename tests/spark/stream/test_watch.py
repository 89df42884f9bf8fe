# SPDX-License-Identifier: Apache-2.0
"""The watch behind ``latestOffset``: answers from memory, ends by itself, tells trouble when it is due (RULES K1)."""

from __future__ import annotations

import threading
import time

import pytest

from bk_core.errors import BookKeeperError, ClientClosedError, MetadataUnavailableError, NoSuchLogError
from bk_spark.options.selection import LogSource, Source
from bk_spark.stream.positions import SourceSeen
from bk_spark.stream.watch import Board, Watch, WatchTimes
from tests.kit.waiting import comes_true
from tests.spark.tables import fails

A, B = LogSource("a"), LogSource("b")
QUICK = WatchTimes(first_look_s=10.0, idle_s=0.5, retry_s=0.01, give_up_s=1.0)


class Notes:
    """Sources that are what the test says; each run copies that onto its board every few milliseconds."""

    def __init__(self, *sources: Source, look_s: float = 0.0) -> None:
        self.nexts: dict[Source, int] = dict.fromkeys(sources, 0)
        self.errors: dict[Source | None, BookKeeperError] = {}
        self.look_s, self.runs, self.ended = look_s, 0, 0
        self.failure: Exception | None = None
        self._cancelled = threading.Event()

    def begin(self, times: WatchTimes) -> tuple[Board, Notes]:
        board = Board("cluster", times)
        self.runs += 1
        self._cancelled = threading.Event()
        threading.Thread(target=self._run, args=(board, self._cancelled), daemon=True).start()
        return board, self

    def cancel(self) -> None:
        self._cancelled.set()

    def _run(self, board: Board, cancelled: threading.Event) -> None:
        board.expect(self.nexts)
        time.sleep(self.look_s)
        while board.goes_on() and not cancelled.is_set():
            if self.failure is not None:
                board.fail(self.failure)
            for source, end in self.nexts.items():
                if source in self.errors:
                    board.trouble(source, self.errors[source])
                else:
                    board.note(source, SourceSeen(0, end))
            time.sleep(0.002)
        board.end()
        self.ended += 1


@pytest.mark.rule("K1")
def test_only_the_first_call_waits_for_the_cluster() -> None:
    notes = Notes(A, B, look_s=0.3)
    watch = Watch(notes.begin)
    assert not watch.is_running
    began = time.perf_counter()
    assert list(watch.seen().sources) == [A, B]
    assert time.perf_counter() - began >= 0.3
    took = []
    for _ in range(200):
        began = time.perf_counter()
        watch.seen()
        took.append(time.perf_counter() - began)
    assert sorted(took)[190] < 0.005
    watch.stop()
    assert comes_true(lambda: notes.ended == 1)


@pytest.mark.rule("K1")
def test_news_are_seen_and_watching_ends_without_calls() -> None:
    notes = Notes(A, B)
    watch = Watch(notes.begin, QUICK)
    first = watch.seen()
    assert first.sources[B].next == 0
    notes.nexts[B] = 7
    assert comes_true(lambda: watch.seen().sources[B].next == 7)
    assert first.sources[B].next == 0
    assert watch.seen().version > first.version
    assert comes_true(lambda: not watch.is_running)
    assert comes_true(lambda: notes.ended == 1)


@pytest.mark.rule("K1")
def test_a_call_after_the_end_looks_anew() -> None:
    notes = Notes(A)
    watch = Watch(notes.begin, QUICK)
    watch.seen()
    assert comes_true(lambda: not watch.is_running)
    notes.nexts[A] = 9
    assert watch.seen().sources[A].next == 9
    assert notes.runs == 2
    watch.stop()
    assert comes_true(lambda: notes.ended == 2)
    assert not watch.is_running


@pytest.mark.rule("K1")
def test_a_first_look_that_outlasts_the_idle_time_still_answers_who_waits_for_it() -> None:
    notes = Notes(A, look_s=0.3)
    watch = Watch(notes.begin, WatchTimes(first_look_s=5.0, idle_s=0.0))
    assert watch.seen().sources[A].next == 0
    assert comes_true(lambda: not watch.is_running)


def test_trouble_of_one_source_is_told_only_when_it_lasts_and_the_others_go_on() -> None:
    notes = Notes(A, B)
    watch = Watch(notes.begin, QUICK)
    watch.seen()
    notes.errors[A] = MetadataUnavailableError("no answer")
    notes.nexts[B] = 5
    assert comes_true(lambda: watch.seen().sources[B].next == 5)
    assert comes_true(lambda: fails(watch.seen, MetadataUnavailableError))
    notes.nexts[A] = 3
    del notes.errors[A]
    assert comes_true(lambda: not fails(watch.seen, MetadataUnavailableError) and watch.seen().sources[A].next == 3)
    watch.stop()


def test_final_trouble_is_told_at_once_and_the_next_call_looks_anew() -> None:
    notes = Notes(A)
    watch = Watch(notes.begin, QUICK)
    watch.seen()
    notes.failure = NoSuchLogError("no such log")
    assert comes_true(lambda: fails(watch.seen, NoSuchLogError))
    assert not watch.is_running
    notes.failure = None
    assert watch.seen().sources[A].next == 0
    watch.stop()


def test_a_source_that_never_answers_is_an_error_after_the_deadline() -> None:
    notes = Notes(A, look_s=0.4)
    watch = Watch(notes.begin, WatchTimes(first_look_s=0.05, idle_s=0.1))
    with pytest.raises(MetadataUnavailableError, match="metadataServiceUri"):
        watch.seen()
    assert comes_true(lambda: not watch.is_running)


def test_trouble_at_the_first_look_is_what_the_caller_hears() -> None:
    notes = Notes(A, B)
    notes.errors[A] = ClientClosedError("went away")
    watch = Watch(notes.begin, WatchTimes(first_look_s=0.1))
    with pytest.raises(ClientClosedError, match="went away"):
        watch.seen()
    watch.stop()


def test_a_source_that_is_gone_is_an_answer_and_may_come_back() -> None:
    board = Board("cluster", QUICK)
    board.expect([A, B])
    board.note(B, SourceSeen(0, 1))
    board.gone(A, NoSuchLogError("no such log"))
    seen = board.seen(1)
    assert seen is not None
    assert (list(seen.sources), list(seen.gone)) == ([B], [A])
    board.note(A, SourceSeen(0, 2))
    seen = board.seen(1)
    assert seen is not None
    assert (list(seen.sources), list(seen.gone)) == ([A, B], [])


def test_sources_that_come_later_keep_nobody_waiting() -> None:
    board = Board("cluster", QUICK)
    board.expect([A])
    board.note(A, SourceSeen(0, 1))
    board.expect([A, B])
    began = time.monotonic()
    seen = board.seen(5)
    assert seen is not None
    assert list(seen.sources) == [A]
    assert time.monotonic() - began < 1


def test_a_run_that_ends_before_it_answers_is_begun_again_until_the_deadline() -> None:
    begun = 0

    def begin(times: WatchTimes) -> tuple[Board, Notes]:
        nonlocal begun
        begun += 1
        board = Board("cluster", times)
        board.expect([A])
        if begun == 3:
            board.note(A, SourceSeen(0, 1))
        else:
            board.end()
        return board, Notes()

    assert Watch(begin, QUICK).seen().sources[A].next == 1

    def never(times: WatchTimes) -> tuple[Board, Notes]:
        board = Board("cluster", times)
        board.end()
        time.sleep(0.01)
        return board, Notes()

    with pytest.raises(ClientClosedError, match="start the query again"):
        Watch(never, WatchTimes(first_look_s=0.1)).seen()


def test_a_query_that_goes_on_waits_longer_for_a_first_look_than_one_that_begins() -> None:
    notes, refusals = Notes(A), [0]

    def begin(times: WatchTimes) -> tuple[Board, Notes]:
        if refusals[0]:
            refusals[0] -= 1
            raise MetadataUnavailableError("cannot connect")
        return notes.begin(times)

    watch = Watch(begin, WatchTimes(first_look_s=0.1, retry_s=0.01, give_up_s=10.0))
    refusals[0] = 1
    assert fails(watch.seen, MetadataUnavailableError), "a watch that begins raises its first error at once"
    watch.seen()
    watch.stop()  # as after a minute without a call
    refusals[0], notes.look_s = 3, 0.4
    assert list(watch.seen().sources) == [A]
    watch.stop()


def test_trouble_that_is_over_is_never_told() -> None:
    board = Board("cluster", WatchTimes(give_up_s=0.05))
    board.trouble(None, MetadataUnavailableError("the list cannot be read"))
    board.trouble(A, MetadataUnavailableError("a cannot be read"))
    board.trouble(B, MetadataUnavailableError("b cannot be read"))
    board.expect([A, B])
    board.gone(A, NoSuchLogError("no a"))
    board.note(B, SourceSeen(0, 1))
    time.sleep(0.1)
    found = board.seen(1.0)
    assert found is not None
    assert (list(found.gone), list(found.sources)) == ([A], [B])


def test_who_waits_for_a_first_look_hears_at_once_that_the_run_is_over() -> None:
    board, began = Board("cluster", WatchTimes()), time.monotonic()
    threading.Timer(0.1, board.end).start()
    assert board.seen(8.0) is None
    assert time.monotonic() - began < 4.0
