# SPDX-License-Identifier: Apache-2.0
"""The metadata service is away for longer than one call of the client waits: what goes on, and what ends when.

A real ZooKeeper is killed for 30 s under a real query by ``scripts/trial spark --kind outages``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from bk_core.blocking import BookKeeper
from bk_core.errors import ClientClosedError, MetadataUnavailableError
from bk_core.metadata.port import MetadataStore
from bk_spark.options.options import Use, parse_options
from bk_spark.read.ledger_reader import LedgerReader
from bk_spark.source import BookKeeperDataSource
from bk_spark.stream import stream_reader
from bk_spark.stream.stream_reader import StreamReader
from bk_spark.stream.stream_writer import StreamWriter
from bk_spark.stream.watch import WatchTimes
from bk_spark.workers import clients
from bk_spark.write import commit
from bk_spark.write.log_writer import LogWriter
from bk_spark.write.written_ledgers import WrittenLedgers
from tests.kit.extents import new_extent
from tests.spark.tables import ROUTED, VALUE, closed, connected, rows, values

CALL_S, AWAY_S = 0.05, 0.3
"""How long one call waits, and how long the service is away after an answer was lost."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "AGAIN_S", 0.01)
    monkeypatch.setattr(stream_reader, "WatchTimes", partial(WatchTimes, retry_s=0.01))


@pytest.fixture
def uri(bookkeeper: BookKeeper, request: pytest.FixtureRequest) -> Iterator[str]:
    tree(bookkeeper.store)._timeout_s = CALL_S
    yield connected(bookkeeper, request)
    tree(bookkeeper.store).resume()


def tree(store: MetadataStore) -> Any:
    return store.tree  # type: ignore[attr-defined]  # the memory store's, with the faults


class Outage:
    """How many calls were refused."""

    refused = 0


@contextmanager
def outage(bookkeeper: BookKeeper, calls: int | None = 3) -> Iterator[Outage]:
    """Begins here, and ends once so many calls were refused, which must happen; ``calls`` None: at the end."""
    store, found = tree(bookkeeper.store), Outage()
    whole = store._await_connected

    def counted(path: str) -> None:
        try:
            whole(path)
        except MetadataUnavailableError:
            found.refused += 1
            if found.refused == calls:
                store.resume()
            raise

    store._await_connected = counted
    store.suspend()
    try:
        yield found
    finally:
        store._await_connected = whole
    store.resume()
    assert found.refused >= (calls or 1), "nobody met the outage"


def sink(uri: str, **more: str) -> StreamWriter:
    options = parse_options({"metadataserviceuri": uri, "path": "events", **more}, Use.WRITE, is_sink=True)
    return StreamWriter.plan(options, VALUE)


def of_query(message: Any) -> Any:
    assert isinstance(message, WrittenLedgers)
    return replace(message, query_id="q")


def test_the_times_are_a_batchs_a_streams_and_what_the_option_says() -> None:
    given = {"metadataserviceuri": "zk://h/ledgers", "path": "events"}
    assert parse_options(given, Use.READ).metadata_timeout_ms == 8_000
    assert parse_options(given, Use.WRITE).metadata_timeout_ms == 8_000
    assert parse_options(given, Use.STREAM).metadata_timeout_ms == 60_000
    assert parse_options(given, Use.WRITE, is_sink=True).metadata_timeout_ms == 60_000
    for use in Use:
        assert parse_options({**given, "metadatatimeout": "5m"}, use).metadata_timeout_ms == 300_000


def test_spark_gets_a_sink_that_waits_as_a_stream_and_a_writer_that_does_not(uri: str) -> None:
    source = BookKeeperDataSource({"metadataserviceuri": uri, "path": "events"})
    assert source.streamWriter(VALUE, False).options.metadata_timeout_ms == 60_000
    assert source.writer(VALUE, False).target.options.metadata_timeout_ms == 8_000
    reader = source.streamReader(VALUE)
    assert reader.options.metadata_timeout_ms == 60_000


@pytest.mark.parametrize("small", ["0", "32k"])
def test_a_micro_batch_is_planned_written_and_committed_through_outages_and_is_there_once(
    bookkeeper: BookKeeper, uri: str, small: str
) -> None:
    with outage(bookkeeper):
        writer = sink(uri, smalltaskbytes=small)
    with outage(bookkeeper) if small == "0" else nullcontext():  # a small task asks nobody
        message = of_query(writer.write(iter([rows("a", "b")])))
    with outage(bookkeeper):
        writer.commit([message], 0)
    assert values(bookkeeper, "events") == ["a", "b"]
    writer.commit([message], 0)
    assert values(bookkeeper, "events") == ["a", "b"]


def test_a_task_that_finds_its_logs_in_its_rows_waits_and_keeps_the_ledgers_that_it_has(
    bookkeeper: BookKeeper, uri: str
) -> None:
    options = parse_options({"metadataserviceuri": uri, "smalltaskbytes": "0"}, Use.WRITE, is_sink=True)
    writer = StreamWriter.plan(options, ROUTED)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows("1", log=["a"])
        with outage(bookkeeper):
            yield rows("2", log=["b"])

    writer.commit([of_query(writer.write(batches()))], 0)
    assert (values(bookkeeper, "a"), values(bookkeeper, "b")) == (["1"], ["2"])


def test_a_ledger_whose_making_got_no_answer_is_made_again_and_its_rows_are_there_once(
    bookkeeper: BookKeeper, uri: str
) -> None:
    writer = sink(uri)
    tree(bookkeeper.store).lose_next_answer(applied=True)
    writer.commit([of_query(writer.write(iter([rows("a")])))], 0)
    assert values(bookkeeper, "events") == ["a"]


@pytest.mark.rule("N4")
@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_whose_answer_is_lost_in_an_outage_is_settled_by_its_id(
    bookkeeper: BookKeeper, uri: str, applied: bool
) -> None:
    writer = sink(uri, smalltaskbytes="0")
    message = of_query(writer.write(iter([rows("a")])))
    store = tree(bookkeeper.store)
    whole = store._cluster.multi

    def lost(*arguments: Any) -> None:
        store._cluster.multi = whole
        if applied:
            whole(*arguments)
        store.suspend()
        threading.Timer(AWAY_S, store.resume).start()
        raise MetadataUnavailableError("the answer was lost")

    store._cluster.multi = lost
    writer.commit([message], 0)
    assert values(bookkeeper, "events") == ["a"]


def test_jobs_and_loads_wait_as_long_as_their_option_says(bookkeeper: BookKeeper, uri: str) -> None:
    given = {"metadataserviceuri": uri, "path": "events", "metadatatimeout": "20s"}
    with outage(bookkeeper):
        writer = LogWriter.plan(parse_options(given, Use.WRITE), VALUE)
    message = writer.write(iter([rows("a")]))
    with outage(bookkeeper):
        writer.commit([message])
    reader = LedgerReader(parse_options(given, Use.READ), VALUE)
    with outage(bookkeeper):
        (partition,) = reader.partitions()
    assert partition.value.ranges[0].entries == 1
    with outage(bookkeeper):
        assert LedgerReader(parse_options({**given, "codec": "arrow"}, Use.READ), VALUE)


def test_a_client_that_is_of_no_use_is_dropped_at_the_end_and_one_that_is_closed_is_replaced(
    bookkeeper: BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_options({"metadataserviceuri": uri, "path": "events", "metadatatimeout": "200ms"}, Use.WRITE)
    with outage(bookkeeper, None):
        with pytest.raises(MetadataUnavailableError):
            LogWriter.plan(options, VALUE)
        assert not clients.is_connected(options), "the next job of this process begins a session of its own"

    class Closing:
        is_usable = True

        def close(self) -> None:
            self.is_usable = False

    closing: Any = Closing()
    clients._clients.get((uri, ()), lambda: closing)

    def work(client: Any) -> str:
        if client is closing:
            client.close()
            raise ClientClosedError("closed meanwhile")
        return "done"

    monkeypatch.setattr("bk_core.blocking.connect", lambda *_, **__: bookkeeper)
    assert clients.patiently(options, work) == "done"


def test_an_abort_does_not_wait_for_each_of_its_ledgers(bookkeeper: BookKeeper, uri: str) -> None:
    extents = [new_extent(number, 1, 1) for number in range(50)]
    with outage(bookkeeper, None) as found:
        assert commit.delete(bookkeeper, extents) == 0
    assert found.refused == 1


@pytest.mark.rule("K1")
def test_a_stream_source_plans_and_looks_anew_through_outages(bookkeeper: BookKeeper, uri: str) -> None:
    given = {"metadataserviceuri": uri, "ledgerid": str(closed(bookkeeper, 3).ledger_id), "startingoffsets": "earliest"}
    source = StreamReader(parse_options(given, Use.STREAM), VALUE)
    start = source.initialOffset()
    end = source.latestOffset(start)
    with outage(bookkeeper):
        (partition,) = source.partitions(start, end)
    assert partition.value.ranges[0].entries == 3
    assert source._watch is not None
    source._watch.stop()  # as after a minute without a call: the next one begins anew
    with outage(bookkeeper):
        assert source.latestOffset(start) == end
    source.stop()
