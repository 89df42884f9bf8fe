# SPDX-License-Identifier: Apache-2.0
"""The watch behind ``latestOffset``: answers from memory, one thread, ends by itself (RULES K1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from bk_core.errors import MetadataUnavailableError, NoSuchLogError
from bk_spark.watch import Seen, Watch, WatchTimes

QUICK = WatchTimes(first_look_s=2.0, idle_s=0.2, wait_s=0.01, retry_s=0.01, give_up_s=0.3)


class Counter:
    """A source that moves when it is told to; looking at it takes ``look_s``."""

    def __init__(self, look_s: float = 0.0) -> None:
        self.value, self.look_s, self.looks, self.closed = 0, look_s, 0, 0
        self.error: Exception | None = None
        self.news = threading.Event()

    def look(self) -> Seen:
        self.looks += 1
        time.sleep(self.look_s)
        if self.error is not None:
            raise self.error
        return Seen("cluster", 0, self.value)

    def wait(self, timeout_s: float) -> None:
        self.news.wait(timeout_s)
        self.news.clear()

    def close(self) -> None:
        self.closed += 1


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


@pytest.mark.rule("K1")
def test_only_the_first_call_waits_for_the_cluster() -> None:
    source = Counter(look_s=0.3)
    watch = Watch(lambda: source, WatchTimes())
    assert not watch.is_running
    began = time.perf_counter()
    watch.seen()
    assert time.perf_counter() - began >= 0.3
    took = []
    for _ in range(200):
        began = time.perf_counter()
        watch.seen()
        took.append(time.perf_counter() - began)
    assert sorted(took)[190] < 0.005
    watch.stop()


@pytest.mark.rule("K1")
def test_news_are_seen_and_the_thread_ends_without_calls() -> None:
    source = Counter()
    watch = Watch(lambda: source, QUICK)
    assert watch.seen().next == 0
    source.value = 7
    source.news.set()
    assert eventually(lambda: watch.seen().next == 7)
    assert eventually(lambda: not watch.is_running)
    assert source.closed == 1


@pytest.mark.rule("K1")
def test_a_call_after_the_end_looks_anew() -> None:
    source = Counter()
    watch = Watch(lambda: source, QUICK)
    watch.seen()
    assert eventually(lambda: not watch.is_running)
    source.value = 9
    assert watch.seen().next == 9
    watch.stop()
    assert eventually(lambda: not watch.is_running)


@pytest.mark.rule("K1")
def test_a_first_look_that_outlasts_the_idle_time_still_answers_who_waits_for_it() -> None:
    slow = Counter()

    def make() -> Counter:
        time.sleep(0.3)
        return slow

    watch = Watch(make, WatchTimes(first_look_s=5.0, idle_s=0.0, wait_s=0.01))
    assert watch.seen().next == 0
    assert eventually(lambda: not watch.is_running)


def test_trouble_that_may_pass_is_told_only_when_it_lasts() -> None:
    source = Counter()
    watch = Watch(lambda: source, QUICK)
    watch.seen()
    source.error = MetadataUnavailableError("no answer")
    looked = source.looks
    assert eventually(lambda: source.looks > looked)
    assert watch.seen().next == 0

    def told() -> bool:
        try:
            watch.seen()
        except MetadataUnavailableError:
            return True
        return False

    assert eventually(told)
    source.error, source.value = None, 3
    assert eventually(lambda: not told() and watch.seen().next == 3)
    watch.stop()


def test_final_trouble_is_told_at_once() -> None:
    source = Counter()
    source.error = NoSuchLogError("no such log")
    watch = Watch(lambda: source, QUICK)
    began = time.perf_counter()
    with pytest.raises(NoSuchLogError):
        watch.seen()
    assert time.perf_counter() - began < 1
    watch.stop()


def test_a_source_that_never_answers_is_an_error_after_the_deadline() -> None:
    source = Counter(look_s=1.0)
    watch = Watch(lambda: source, WatchTimes(first_look_s=0.05, idle_s=0.1))
    with pytest.raises(MetadataUnavailableError, match="metadataServiceUri"):
        watch.seen()
    assert eventually(lambda: not watch.is_running)
