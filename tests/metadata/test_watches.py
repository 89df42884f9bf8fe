# SPDX-License-Identifier: Apache-2.0
"""Lasting watches over one-shot ones, and the thread they are told on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.tree import watches as watches_module
from bk_core.metadata.tree.tree import Tree, Watcher
from bk_core.metadata.tree.watches import Watches, read_data
from bk_core.metadata.worker import Worker
from tests.kit.memory_store import MemoryCluster, MemoryTree


@pytest.fixture
def tree() -> Iterator[MemoryTree]:
    opened = MemoryTree(MemoryCluster(), timeout_s=1, session_timeout_s=1)
    yield opened
    opened.close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("test")
    yield made
    made.stop()


def test_missing_node_has_no_watch(tree: MemoryTree, worker: Worker) -> None:
    called: list[Any] = []
    present, cancel = Watches(tree, worker).add("/none", read_data, called.append)
    assert present is None
    tree.create("/none", b"x")
    cancel()
    _drain(worker)
    assert called == []


def test_node_is_seen_as_read_until_its_watch_tells_of_a_change(tree: MemoryTree, worker: Worker) -> None:
    watches = Watches(tree, worker)
    assert (watches.read("/a", read_data), watches.seen("/a", read_data)) == (None, None)
    tree.create("/a", b"0")
    first = watches.read("/a", read_data)
    assert watches.seen("/a", read_data) is first
    assert watches.read("/a", read_data) == first
    tree.set("/a", b"1", 0)
    assert watches.seen("/a", read_data) is None
    assert watches.read("/a", read_data)[0] == b"1"
    tree.delete("/a")
    assert (watches.seen("/a", read_data), watches.read("/a", read_data)) == (None, None)


def test_node_read_again_before_the_queued_read_stays_seen(tree: MemoryTree, worker: Worker) -> None:
    watches, go = Watches(tree, worker), threading.Event()
    tree.create("/a", b"0")
    watches.read("/a", read_data)
    worker.submit(lambda: go.wait(5))
    tree.set("/a", b"1", 0)
    present = watches.read("/a", read_data)
    go.set()
    _drain(worker)
    assert watches.seen("/a", read_data) is present


def test_change_met_by_a_read_before_its_watch_told_of_it_is_seen(tree: MemoryTree, worker: Worker) -> None:
    def late(tree: Tree, path: str, watch: Watcher | None) -> Any:
        return read_data(tree, path, None)  # this watch never tells

    watches = Watches(tree, worker)
    tree.create("/a", b"0")
    watches.read("/a", late)
    tree.set("/a", b"1", 0)
    assert watches.read("/a", late)[0] == b"1"
    assert watches.seen("/a", late)[0] == b"1"


def test_deleted_and_recreated_node_is_told_as_deleted_only(tree: MemoryTree, worker: Worker) -> None:
    news: queue.Queue[Any] = queue.Queue()
    tree.create("/a", b"x")
    Watches(tree, worker).add("/a", read_data, news.put)
    tree.delete("/a")
    assert news.get(timeout=5) is None
    tree.create("/a", b"y")
    _drain(worker)
    assert news.empty()


def test_listener_that_comes_later_hears_only_of_what_is_new_to_it(tree: MemoryTree, worker: Worker) -> None:
    watches, news = Watches(tree, worker), queue.Queue[Any]()
    tree.create("/a", b"0")
    watches.add("/a", read_data, lambda found: None)
    tree.set("/a", b"1", 0)
    _drain(worker)
    present, _ = watches.add("/a", read_data, news.put)
    assert present[0] == b"1"
    tree.set("/a", b"2", 1)
    assert news.get(timeout=5)[0] == b"2"
    assert news.empty()


@pytest.mark.parametrize("why", [RuntimeError("made to fail"), MetadataUnavailableError("made to fail")])
def test_watch_that_cannot_be_set_again_is_tried_until_it_can(
    tree: MemoryTree, worker: Worker, why: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches_module, "_RETRY_REFUSED_S", 0.05)
    monkeypatch.setattr(watches_module, "_RETRY_S", 0.05)
    watches, news, failures = Watches(tree, worker), queue.Queue[Any](), [why] * 3
    tree.create("/a", b"0")

    def read(tree: Tree, path: str, watch: Watcher) -> Any:
        if tree_changed and failures:
            raise failures.pop()
        return read_data(tree, path, watch)

    tree_changed = False
    watches.add("/a", read, news.put)
    tree_changed = True
    tree.set("/a", b"1", 0)
    assert news.get(timeout=5)[0] == b"1"
    tree.set("/a", b"2", 1)
    assert news.get(timeout=5)[0] == b"2"


def test_worker_whose_thread_could_not_start_runs_its_jobs_with_the_next(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: queue.Queue[str] = queue.Queue()

    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        worker.submit(lambda: done.put("first"))
    assert "can't start new thread" in caplog.text
    worker.submit(lambda: done.put("second"))
    assert [done.get(timeout=5), done.get(timeout=5)] == ["first", "second"]


def test_a_watch_has_one_read_in_the_queue_however_many_events_there_were(tree: MemoryTree, worker: Worker) -> None:
    """And who has read what the queued one reads is not told of it."""
    watches, reads, go = Watches(tree, worker), list[bytes](), threading.Event()
    told: list[list[bytes]] = [[], [], [], []]

    def read(tree: Any, path: str, watch: Any) -> Any:
        found = read_data(tree, path, watch)
        assert found is not None
        reads.append(found[0])
        return found

    tree.create("/a", b"0")
    worker.submit(lambda: go.wait(5))
    for version in range(3):
        listener = told[version]
        watches.add("/a", read, lambda found, told=listener: told.append(found[0]))  # reads: no watch is set now
        tree.set("/a", b"%d" % (version + 1), version)
    watches.add("/a", read, lambda found: told[3].append(found[0]))
    go.set()
    _drain(worker)
    assert reads == [b"0", b"1", b"2", b"3", b"3"]
    assert told == [[b"3"], [b"3"], [b"3"], []]


def test_worker_runs_jobs_at_their_time_and_survives_a_failing_one(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    done: queue.Queue[str] = queue.Queue()
    worker.submit(lambda: done.put("late"), 0.1)
    worker.submit(lambda: 1 / 0)
    worker.submit(lambda: done.put("soon"))
    assert [done.get(timeout=5), done.get(timeout=5)] == ["soon", "late"]
    assert "division" in caplog.text


def test_stopped_worker_drops_what_waits_and_takes_no_more() -> None:
    worker, ran = Worker("test"), threading.Event()
    worker.submit(ran.set, 0.2)
    worker.stop()
    worker.submit(ran.set)
    assert not ran.wait(0.3)


def test_worker_can_be_stopped_by_its_own_job() -> None:
    worker, stopped = Worker("test"), threading.Event()
    worker.submit(lambda: (worker.stop(), stopped.set()))
    assert stopped.wait(2)


def _drain(worker: Worker) -> None:
    reached = threading.Event()
    worker.submit(reached.set)
    assert reached.wait(5)


def test_a_node_that_was_missing_when_it_was_read_is_not_seen_stale_later(tree: MemoryTree, worker: Worker) -> None:
    watches = Watches(tree, worker)
    assert watches.read("/late", read_data) is None
    tree.create("/late", b"0")
    assert watches.read("/late", read_data)[0] == b"0"
    tree.set("/late", b"1", 0)
    assert watches.seen("/late", read_data) is None, "the read that found it has set a watch"
    assert watches.read("/late", read_data)[0] == b"1"
