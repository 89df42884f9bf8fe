# SPDX-License-Identifier: Apache-2.0
"""Codecs through the data source as Spark calls it, on a cluster in this process."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from bk_core.blocking import BookKeeper
from bk_core.client.reading.read_ahead import WantedRange
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    NotEnoughBookiesError,
    SchemaChangedError,
    SchemaMismatchError,
)
from bk_spark import codecs
from bk_spark.codecs import spark_types
from bk_spark.options.options import OPTIONS
from bk_spark.source import BookKeeperDataSource
from bk_spark.workers import clients
from tests.kit.waiting import until
from tests.spark.codecs.codec_kit import struct
from tests.spark.tables import connected

AB = struct(("a", "int"), ("b", "string"))
ABC = struct(("a", "int"), ("b", "string"), ("c", "double"))


@pytest.fixture
def uri(bookkeeper: BookKeeper, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(clients, "detached_reader", lambda *_: _Reader(bookkeeper))
    return connected(bookkeeper, request)


class _Reader:
    """Reads as a task would, from the cluster of this process, which no other one could reach."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self._bookkeeper = bookkeeper

    def read_all(self, wanted: Iterable[WantedRange], *, prefer: int) -> Generator[tuple[int, EntryBatch], None, None]:
        for number, each in enumerate(wanted):
            with self._bookkeeper.open_ledger(each.ledger_id, recover=False) as reader:
                for batch in reader.read(each.first, each.last):
                    yield number, batch


def source(uri: str, **given: str) -> BookKeeperDataSource:
    """What Spark makes: keys in lower case, and pickled before it is used."""
    options = {"metadataserviceuri": uri, **{name.lower(): value for name, value in given.items()}}
    made: BookKeeperDataSource = pickle.loads(pickle.dumps(BookKeeperDataSource(options)))
    return made


def append(uri: str, schema: types.StructType, *tasks: list[dict[str, Any]], log: str = "events", **given: str) -> None:
    writer = source(uri, path=log, **given).writer(schema, False)
    arrow = spark_types.arrow_schema_of(schema)
    batches = [pa.RecordBatch.from_pylist(rows, schema=arrow) for rows in tasks]
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([batch])) for batch in batches])


def read(uri: str, schema: types.StructType | None = None, log: str = "events", **given: str) -> pa.Table:
    made = source(uri, path=log, **given)
    columns = schema if schema is not None else made.schema()
    reader = pickle.loads(pickle.dumps(made.reader(columns)))
    expected = spark_types.arrow_schema_of(columns)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert all(batch.schema.equals(expected) for batch in batches), "Spark compares them"
    return pa.Table.from_batches(batches, schema=expected)


@pytest.mark.rule("K8")
def test_arrow_columns_come_from_the_log_and_grow_with_it(bookkeeper: BookKeeper, uri: str) -> None:
    append(uri, AB, [{"a": 1, "b": "x"}, {"a": 2, "b": None}], [{"a": 3, "b": "z"}], codec="arrow")
    append(uri, AB, [{"a": 4, "b": "y"}], codec="arrow")
    assert sorted(bookkeeper.log("events").schemas()) == [1]
    with pytest.raises(SchemaMismatchError, match="c is new"):
        append(uri, ABC, [{"a": 5, "b": "w", "c": 0.5}], codec="arrow")
    append(uri, ABC, [{"a": 5, "b": "w", "c": 0.5}], codec="arrow", mergeSchema="true")
    found = read(uri, codec="arrow")
    assert found.column_names == ["a", "b", "c", "log", "ledger_id", "entry_id", "offset"]
    assert found["a"].to_pylist() == [1, 2, 3, 4, 5]
    assert found["c"].to_pylist() == [None] * 4 + [0.5]
    assert found["offset"].to_pylist() == [0, 0, 1, 2, 3], "offsets count entries"
    assert {extent.schema_number for extent in bookkeeper.log("events").extents()} == {1, 2}


@pytest.mark.rule("K8")
def test_a_write_that_was_planned_before_another_one_grew_the_schema_keeps_its_own(
    bookkeeper: BookKeeper, uri: str
) -> None:
    append(uri, AB, [{"a": 1, "b": "x"}], codec="arrow")
    early = source(uri, path="events", codec="arrow").writer(AB, False)
    batch = pa.RecordBatch.from_pylist([{"a": 2, "b": "y"}], schema=spark_types.arrow_schema_of(AB))
    message = early.write(iter([batch]))
    append(uri, ABC, [{"a": 3, "b": "z", "c": 1.0}], codec="arrow", mergeSchema="true")
    early.commit([message])
    assert [extent.schema_number for extent in bookkeeper.log("events").extents()] == [1, 2, 1]
    assert read(uri, codec="arrow").select(["a", "c"]).to_pydict() == {"a": [1, 3, 2], "c": [None, 1.0, None]}


@pytest.mark.rule("K8")
def test_two_first_writes_at_once_do_not_mix_their_columns(uri: str) -> None:
    writers = [source(uri, path="events", codec="arrow").writer(schema, False) for schema in (AB, struct(("z", "int")))]
    rows = [{"a": 1, "b": "x"}], [{"z": 1}]
    messages = [
        writer.write(iter([pa.RecordBatch.from_pylist(each, schema=spark_types.arrow_schema_of(schema))]))
        for writer, each, schema in zip(writers, rows, (AB, struct(("z", "int"))), strict=True)
    ]
    writers[0].commit([messages[0]])
    with pytest.raises(SchemaMismatchError, match="not applied"):
        writers[1].commit([messages[1]])
    assert read(uri, codec="arrow")["a"].to_pylist() == [1]


@pytest.mark.parametrize("earlier", ["envelope", "json", "arrow"])
def test_a_write_with_another_codec_than_the_logs_is_refused_before_anything_is_made(
    bookkeeper: BookKeeper, uri: str, earlier: str
) -> None:
    columns, row = (struct(("value", "string")), {"value": "x"}) if earlier != "arrow" else (AB, {"a": 1, "b": "x"})
    append(uri, columns, [row], codec=earlier)
    head, ledgers = bookkeeper.log("events").head(), bookkeeper.list_ledgers()
    value, rows = struct(("value", "string")), [{"value": "y"}]
    with pytest.raises(InvalidArgumentError, match=rf"codec=raw, the log's is {earlier}.*mixedCodecs"):
        append(uri, value, rows)
    routed = struct(("log", "string"), ("value", "string"))
    writer = BookKeeperDataSource({"metadataserviceuri": uri}).writer(routed, False)
    with pytest.raises(InvalidArgumentError, match=rf"the log's is {earlier}"):
        writer.write(iter([pa.RecordBatch.from_pylist([{"log": "events", "value": "y"}])]))
    assert (bookkeeper.log("events").head(), bookkeeper.list_ledgers()) == (head, ledgers), "nothing was made"
    append(uri, value, rows, mixedCodecs="true")
    assert read(uri)["value"].to_pylist()[-1] == b"y"
    with pytest.raises(InvalidArgumentError, match=rf"several codecs.*{earlier}, raw.*raw.* alone"):
        read(uri, AB, codec="arrow")


@pytest.mark.rule("E1")
def test_a_write_that_is_refused_makes_no_log(bookkeeper: BookKeeper, uri: str) -> None:
    refused: list[tuple[types.StructType, dict[str, str], type[BookKeeperError]]] = [
        (AB, {}, InvalidArgumentError),
        (types.StructType().add("v", types.YearMonthIntervalType()), {"codec": "arrow"}, InvalidArgumentError),
        (AB, {"codec": "arrow", "ensemblesize": "9"}, NotEnoughBookiesError),
    ]
    for schema, options, error in refused:
        with pytest.raises(error):
            source(uri, path="events", **options).writer(schema, False)
    assert bookkeeper.store.list_logs() == []


def test_columns_are_chosen_by_name_or_by_a_schema_and_must_be_there(uri: str) -> None:
    append(uri, AB, [{"a": n, "b": "x"} for n in range(3)], codec="arrow")
    assert read(uri, codec="arrow", columns="a, offset").to_pydict() == {"a": [0, 1, 2], "offset": [0, 0, 0]}
    with pytest.raises(InvalidArgumentError, match=r"nope; choose from a, b, log"):
        source(uri, path="events", codec="arrow", columns="a,nope").schema()
    with pytest.raises(InvalidArgumentError, match="leave one of the two out"):
        source(uri, path="events", codec="arrow", columns="a").reader(AB)


def test_not_null_inside_a_type_is_dropped_by_a_write_and_kept_by_a_read_that_declares_it(uri: str) -> None:
    strict = types.StructType().add("n", types.LongType(), False)
    whole = types.StructType()
    whole.add("s", strict)
    whole.add("l", types.ArrayType(strict, False))
    whole.add("m", types.MapType(types.StringType(), types.LongType(), False))
    row = {"s": {"n": 1}, "l": [{"n": 2}, {"n": 3}], "m": [("k", 4)]}
    nothing = {"s": None, "l": None, "m": None}
    for codec in ("arrow", "json"):
        columns = whole if codec == "arrow" else types.StructType(whole.fields[:2])
        given = [{name: each[name] for name in columns.names} for each in (row, nothing, row)]
        append(uri, columns, given, log=codec, codec=codec)
        found = read(uri, columns, log=codec, codec=codec)
        assert found.to_pylist() == given
        assert found.schema == spark_types.arrow_schema_of(columns)
    loose = types.StructType().add("s", types.StructType().add("n", types.LongType()))
    append(uri, loose, [{"s": {"n": None}}], log="loose", codec="arrow")
    with pytest.raises(InvalidArgumentError, match=r"NOT NULL holds nulls; s, in which n is null, ledger"):
        read(uri, types.StructType().add("s", strict), log="loose", codec="arrow")


def test_a_null_is_skipped_or_empty_or_fails_with_partition_and_row(uri: str) -> None:
    value, rows = struct(("value", "string")), [{"value": "a"}, {"value": None}]
    with pytest.raises(BookKeeperError, match=r"partition 0.*row 1"):
        append(uri, value, rows)
    assert read(uri).num_rows == 0
    append(uri, value, rows, nullValues="skip")
    append(uri, value, rows, nullValues="empty")
    assert read(uri)["value"].to_pylist() == [b"a", b"a", b""]


def test_what_a_read_added_can_be_written_again(uri: str) -> None:
    append(uri, AB, [{"a": 1, "b": "x"}], codec="arrow")
    found = read(uri, codec="arrow", includeMetadata="true")
    schema = source(uri, path="events", codec="arrow", includeMetadata="true").schema()
    with pytest.raises(InvalidArgumentError, match="ignoreMetadataColumns"):
        append(uri, schema, found.to_pylist(), log="copy", codec="arrow")
    append(uri, schema, found.to_pylist(), log="copy", codec="arrow", ignoreMetadataColumns="true")
    assert read(uri, log="copy", codec="arrow").select(["a", "b"]).to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.rule("K8")
def test_a_stream_stops_where_the_schema_grew_and_a_new_load_goes_on(uri: str) -> None:
    append(uri, AB, [{"a": 1, "b": "x"}], codec="arrow")
    made = source(uri, path="events", codec="arrow", startingOffsets="earliest")
    stream = made.streamReader(made.schema())
    try:
        start = stream.initialOffset()
        append(uri, ABC, [{"a": 2, "b": "y", "c": 1.0}], codec="arrow", mergeSchema="true")
        until(lambda: stream.latestOffset(start, None)["logs"]["events"]["next"] == 2)
        end = stream.latestOffset(start, None)
        with pytest.raises(SchemaChangedError, match=r"BK_SCHEMA_CHANGED"):
            stream.partitions(start, end)
        again = made.streamReader(made.schema())
        batches = [batch for partition in again.partitions(start, end) for batch in again.read(partition)]
        again.stop()
        assert pa.Table.from_batches(batches).select(["a", "c"]).to_pydict() == {"a": [1, 2], "c": [None, 1.0]}
    finally:
        stream.stop()


def test_the_codecs_are_those_that_the_option_offers_and_one_keeps_its_columns_in_the_log() -> None:
    (offered,) = (definition.choices for definition in OPTIONS if definition.name == "codec")
    assert tuple(codecs.CODECS) == offered
    assert [codec.name for codec in codecs.CODECS.values() if codec.keeps_schema] == ["arrow"]
