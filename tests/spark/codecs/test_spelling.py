# SPDX-License-Identifier: Apache-2.0
"""Names of columns in other letters mean the same columns, in reads and writes, as they do in Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types

from bk_core.columns.row_origins import LedgerAt
from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError, SchemaMismatchError
from bk_spark import codecs
from bk_spark.codecs import spelling
from bk_spark.options.options import Use, parse_options
from bk_spark.write import fan_out
from tests.spark.codecs.codec_kit import options, rows_of, struct, written

AB = struct(("a", "int"), ("b", "string"))
WRITE = options(Use.WRITE, codec="arrow")


def test_an_exact_name_wins_one_in_other_letters_is_found_and_several_are_an_error() -> None:
    assert spelling.found("a", ["A", "a"]) == "a"
    assert spelling.found("VALUE", ["value", "log"]) == "value"
    assert spelling.found("x", ["value"]) is None
    with pytest.raises(InvalidArgumentError, match="aB may mean ab, AB"):
        spelling.found("aB", ["ab", "AB"])
    assert spelling.respelled(["A", "x"], ["a", "b"]) == ["a", "x"]


@pytest.mark.parametrize("codec", ["raw", "envelope"])
def test_a_read_gives_columns_the_names_that_the_query_gives_them(codec: str) -> None:
    entries = written(codecs.entry_codec(options(Use.WRITE, codec=codec), struct(("Value", "binary"))), values("Value"))
    read = codecs.row_codec(options(codec=codec), struct(("OFFSET", "bigint"), ("VALUE", "binary")))
    found = rows_of(read, entries, LedgerAt(ledger_id=1, log="events", offset_shift=5))
    assert found.schema.names == ["OFFSET", "VALUE"]
    assert found.to_pylist() == [{"OFFSET": 5, "VALUE": b"x"}, {"OFFSET": 6, "VALUE": b"y"}]


def test_a_column_named_twice_in_other_letters_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="once each"):
        codecs.row_codec(options(), struct(("value", "binary"), ("VALUE", "binary")))


def test_option_columns_and_a_schema_may_spell_them_otherwise() -> None:
    named = options(columns="OFFSET,Value")
    assert codecs.default_schema(named).names == ["offset", "value"]
    codecs.row_codec(named, struct(("Offset", "bigint"), ("VALUE", "binary")))


def test_columns_of_an_arrow_log_are_read_and_written_in_other_letters() -> None:
    first = codecs.entry_codec(WRITE, AB)
    assert first.schema is not None
    schemas = {"events": {1: first.schema}}
    upper = codecs.entry_codec(WRITE, struct(("B", "string"), ("A", "int")), schemas)
    assert upper.schema == first.schema, "the log's schema stays as it is"
    entries = written(upper, pa.record_batch([pa.array(["x"]), pa.array([1], pa.int32())], names=["B", "A"]))
    read = codecs.row_codec(options(codec="arrow"), struct(("A", "int"), ("Offset", "bigint")), schemas)
    at = LedgerAt(ledger_id=1, log="events", offset_shift=0, schema=first.schema)
    read.check("events", {("arrow", 1)}, schemas["events"], stream=True)
    assert rows_of(read, entries, at).to_pylist() == [{"A": 1, "Offset": 0}]
    more = codecs.entry_codec(
        options(Use.WRITE, codec="arrow", mergeschema="true"),
        struct(("A", "int"), ("b", "string"), ("C", "int")),
        schemas,
    )
    assert list(codecs.fields_of(more.schema or b"")) == ["a", "b", "C"]


def test_logs_that_spell_a_column_otherwise_are_read_as_one() -> None:
    schemas = {
        log: {1: codecs.entry_codec(options(Use.WRITE, path=log, codec="arrow"), struct((name, "int"))).schema or b""}
        for log, name in (("one", "id"), ("two", "ID"))
    }
    both = parse_options({"metadataserviceuri": "zk://h/ledgers", "logs": "one,two", "codec": "arrow"}, Use.READ)
    assert codecs.default_schema(both, schemas).names[:1] == ["id"]
    assert "ID" not in codecs.default_schema(both, schemas).names
    read = codecs.row_codec(both, struct(("id", "int")), schemas)
    entries = written(
        codecs.entry_codec(options(Use.WRITE, path="two", codec="arrow"), struct(("ID", "int"))),
        pa.record_batch([pa.array([7], pa.int32())], names=["ID"]),
    )
    assert rows_of(read, entries, LedgerAt(ledger_id=1, log="two", schema=schemas["two"][1])).to_pylist() == [{"id": 7}]


def test_members_of_json_keep_their_letters_as_in_from_json() -> None:
    entries = EntryBatch.from_list([b'{"Log":"a","id":1,"ID":2}'])
    read = codecs.row_codec(options(codec="json"), struct(("Log", "string"), ("ID", "int"), ("log", "string")))
    found = rows_of(read, entries, LedgerAt(ledger_id=1, log="events")).to_pylist()
    assert found == [{"Log": "a", "ID": 2, "log": "events"}]


def test_the_column_that_names_the_log_and_those_to_leave_out_are_found_in_other_letters() -> None:
    routed = fan_out.columns_of_write(
        parse_options({"metadataserviceuri": "zk://h/ledgers"}, Use.WRITE),
        struct(("LOG", "string"), ("VALUE", "binary")),
    )
    assert (routed.log_column, routed.written.names) == ("LOG", ["VALUE"])
    rows = pa.record_batch([pa.array(["x", "y"]), pa.array([b"1", b"2"])], names=["LOG", "VALUE"])
    assert [log for log, _ in routed.routed(rows, 0, 0)] == ["x", "y"]
    left = options(Use.WRITE, ignoremetadatacolumns="true")
    codecs.check_input(left, struct(("Value", "binary"), ("OFFSET", "bigint")))


def test_errors_name_sparks_types() -> None:
    newest = codecs.entry_codec(WRITE, AB).schema or b""
    nested = struct(("a", types.MapType(types.StringType(), types.LongType())), ("b", "string"))
    with pytest.raises(SchemaMismatchError, match=r"a is map<string,bigint> and was int; select"):
        codecs.entry_codec(WRITE, nested, {"events": {1: newest}})


def values(name: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array([b"x", b"y"])], names=[name])
