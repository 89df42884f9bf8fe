# SPDX-License-Identifier: Apache-2.0
"""Spark's driver with a metadata server that does not know yet what others were told is done."""

from __future__ import annotations

import threading

import pytest

from bk_core.blocking import BookKeeper
from bk_core.errors import LogHasLeaderError
from bk_core.model import BookieServiceInfo, Versioned
from bk_spark.options.options import BkOptions, Use, parse_options
from bk_spark.options.selection import LogSource
from bk_spark.plan import resolve
from bk_spark.stream.follow import begin_following
from bk_spark.stream.positions import Reading
from bk_spark.stream.stream_reader import StreamReader
from bk_spark.stream.watch import Watch, WatchTimes
from bk_spark.write.log_writer import LogWriter
from tests.kit.memory_store import MemoryStore
from tests.spark.tables import VALUE, job, memory_uri, rows

pytestmark = pytest.mark.rule("M5")
uri = memory_uri


def options(uri: str, use: Use = Use.READ, **more: str) -> BkOptions:
    return parse_options({"metadataserviceuri": uri, "path": "events", **more}, use)


def store_of(bookkeeper: BookKeeper) -> MemoryStore:
    assert isinstance(bookkeeper.store, MemoryStore)
    return bookkeeper.store


def save(uri: str, count: int) -> None:
    job(options(uri, Use.WRITE), rows(*["x" * 10] * count))


def test_batch_reads_what_was_published_before_it_began(bookkeeper: BookKeeper, uri: str) -> None:
    save(uri, 3)
    before = store_of(bookkeeper).cluster.copy()
    save(uri, 4)
    store_of(bookkeeper).tree.lag(before)
    assert bookkeeper.log("events").head(sync=False).value.next_offset == 3, "a bare read is old"
    assert [r.entries for r in resolve.resolve_batch(bookkeeper, options(uri)).ranges] == [3, 4]


def test_pattern_finds_a_log_that_was_made_before_the_batch_began(bookkeeper: BookKeeper, uri: str) -> None:
    before = store_of(bookkeeper).cluster.copy()
    save(uri, 4)
    store_of(bookkeeper).tree.lag(before)
    assert bookkeeper.store.list_logs() == [], "a bare list is old"
    asked = parse_options({"metadataserviceuri": uri, "logpattern": "eve.*"}, Use.READ)
    assert [r.entries for r in resolve.resolve_batch(bookkeeper, asked).ranges] == [4]


def test_job_is_planned_though_leaders_ended_and_bookies_came_a_moment_ago(bookkeeper: BookKeeper, uri: str) -> None:
    store = store_of(bookkeeper)
    with bookkeeper.log("events").lead():
        with pytest.raises(LogHasLeaderError):
            LogWriter.plan(options(uri, Use.WRITE), VALUE)
        before = store.cluster.copy()
    store.register_bookie(BookieServiceInfo("b9"))
    store.tree.lag(before)
    assert len(store.writable_bookies()) == 4, "a bare list is old"
    LogWriter.plan(options(uri, Use.WRITE, ensemblesize="5"), VALUE)


def test_latest_offset_never_waits_for_a_sync(bookkeeper: BookKeeper, uri: str) -> None:
    save(uri, 3)
    reader = StreamReader(options(uri, Use.STREAM), VALUE)
    first = reader.latestOffset()
    store_of(bookkeeper).tree.lag()
    for _ in range(50):
        assert reader.latestOffset() == first
    assert store_of(bookkeeper).tree.lags
    reader.stop()


def test_streams_read_the_heads_of_logs_without_a_sync(bookkeeper: BookKeeper, uri: str) -> None:
    """A thousand of them would ask one leader all day; a watch tells of what is new."""
    save(uri, 3)
    watch = Watch(begin_following(options(uri, Use.STREAM), Reading()), WatchTimes(head_age_s=0.01))
    assert watch.seen().sources[LogSource("events")].next == 3
    store_of(bookkeeper).tree.lag()
    reads, read_log = threading.Semaphore(0), bookkeeper.store.read_log

    def counted(name: str) -> Versioned[bytes]:
        reads.release()
        return read_log(name)

    bookkeeper.store.read_log = counted  # type: ignore[method-assign] - it counts calls
    for _ in range(5):
        assert reads.acquire(timeout=10)
    assert store_of(bookkeeper).tree.lags
    watch.stop()
