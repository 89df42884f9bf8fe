# SPDX-License-Identifier: Apache-2.0
"""The stream source call by call, as Spark calls it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from bk_core.blocking import BookKeeper, LedgerWriter
from bk_core.errors import NoSuchEntryError, NoSuchLogError
from bk_spark.options.options import Use, parse_options
from bk_spark.stream import stream_reader as stream_read
from bk_spark.stream.stream_reader import StreamReader
from tests.kit.waiting import comes_true
from tests.spark.tables import VALUE, memory_uri

uri = memory_uri


@pytest.fixture
def ledger(bookkeeper: BookKeeper) -> Iterator[LedgerWriter]:
    """An open ledger of ten entries of ten bytes, all of them visible."""
    writer = bookkeeper.create_ledger()
    for _ in range(10):
        writer.append(b"x" * 10)
    reader = bookkeeper.open_ledger(writer.ledger_id, recover=False)
    assert reader.wait_lac(8, 5) == 9
    reader.close()
    yield writer
    writer.close()


def source(uri: str, ledger: LedgerWriter, **more: str) -> StreamReader:
    given = {"metadataserviceuri": uri, "ledgerid": str(ledger.ledger_id), **more}
    return StreamReader(parse_options(given, Use.STREAM), VALUE)


def position(offset: dict[str, Any]) -> int:
    (number,) = offset["ledgers"].values()
    return int(number)


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(offset)))


def grows_to(reader: StreamReader, start: dict[str, Any], end: int) -> bool:
    return comes_true(lambda: position(reader.latestOffset(start, reader.getDefaultReadLimit())) == end, 5)


def sees(reader: StreamReader, end: int) -> bool:
    """Whether the source knows of entries up to ``end``, soon."""
    return comes_true(lambda: position(reader.reportLatestOffset()) == end, 5)


def test_a_source_that_ends_before_the_stream_is_an_error_when_that_lasts_and_forgiven_when_it_passes(
    uri: str, ledger: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_read, "BEHIND_MAX_S", 0.2)
    ledger.close()
    reader = source(uri, ledger, startingoffsets="earliest")
    first = reader.initialOffset()
    ahead = {**first, "ledgers": {str(ledger.ledger_id): 50}}
    assert reader.latestOffset(ahead) == ahead
    assert position(reader.latestOffset(first)) == 10, "its server knows of it again"
    time.sleep(0.3)
    assert reader.latestOffset(ahead) == ahead, "the trouble before had passed"
    time.sleep(0.3)
    with pytest.raises(NoSuchEntryError, match="ends at 10, the stream is at 50"):
        reader.latestOffset(ahead)
    lenient = source(uri, ledger, failondataloss="false")
    monkeypatch.setattr(stream_read, "BEHIND_MAX_S", -1.0)
    assert lenient.latestOffset(ahead) == ahead
    lenient.stop()
    reader.stop()
    assert reader._watch is not None
    assert not reader._watch.is_running


@pytest.mark.rule("P9")
def test_an_idle_writers_last_entry_arrives(uri: str, ledger: LedgerWriter) -> None:
    reader = source(uri, ledger, startingoffsets="earliest")
    start = reader.initialOffset()
    assert grows_to(reader, start, 10)
    ledger.append(b"last")
    began = time.monotonic()
    assert grows_to(reader, start, 11)
    assert time.monotonic() - began < 0.5
    reader.stop()


@pytest.mark.rule("K1")
def test_offsets_come_from_memory(uri: str, ledger: LedgerWriter) -> None:
    reader = source(uri, ledger, startingoffsets="earliest")
    start = reader.initialOffset()
    took = []
    for _ in range(100):
        began = time.perf_counter()
        reader.latestOffset(through_json(start), ReadMaxBytes(1))
        took.append(time.perf_counter() - began)
    assert sorted(took)[95] < 0.005
    reader.stop()


def test_a_new_query_from_latest_begins_with_an_empty_batch(uri: str, ledger: LedgerWriter) -> None:
    reader = source(uri, ledger)
    start = reader.initialOffset()
    assert position(start) == 10
    ledger.append(b"x")
    assert sees(reader, 11)
    assert reader.latestOffset(through_json(start), ReadMaxBytes(1000)) == start
    assert reader.partitions(start, start) == []
    assert grows_to(reader, start, 11)
    reader.stop()


def test_triggers_are_bounded_in_entries_and_bytes(uri: str, ledger: LedgerWriter) -> None:
    reader = source(uri, ledger, startingoffsets="earliest", maxoffsetspertrigger="4")
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    assert position(reader.latestOffset(start, limit)) == 4
    assert position(reader.latestOffset(start, ReadAllAvailable())) == 10
    reader.stop()
    small = source(uri, ledger, startingoffsets="earliest", maxbytespertrigger="35")
    assert small.getDefaultReadLimit() == ReadMaxBytes(35)
    assert position(small.latestOffset(small.initialOffset(), ReadMaxBytes(35))) == 3
    small.stop()


def test_an_older_pyspark_asks_without_arguments(uri: str, ledger: LedgerWriter) -> None:
    reader = source(uri, ledger, startingoffsets="earliest", maxentriespertrigger="3")
    assert position(reader.latestOffset()) == 10
    reader.stop()


@pytest.mark.rule("K3")
def test_partitions_of_a_batch_are_those_of_its_offsets(uri: str, ledger: LedgerWriter) -> None:
    reader = source(uri, ledger, startingoffsets="earliest", minpartitions="2")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    plans = [part.value for part in reader.partitions(through_json(start), through_json(end))]
    assert [(p.ranges[0].first, p.ranges[0].last) for p in plans] == [(0, 4), (5, 9)]
    assert json.dumps(reader.reportLatestOffset()) == json.dumps(end)
    reader.stop()


def test_a_stream_of_an_unknown_log_names_the_nearest(uri: str, bookkeeper: BookKeeper) -> None:
    bookkeeper.log("events").open_or_create()
    reader = StreamReader(parse_options({"metadataserviceuri": uri, "path": "evnts"}, Use.STREAM), VALUE)
    with pytest.raises(NoSuchLogError, match="near names: events"):
        reader.initialOffset()
    reader.stop()
