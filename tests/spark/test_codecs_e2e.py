# SPDX-License-Identifier: Apache-2.0
"""Codecs through Spark itself: its strict columns, its SQL, its streams, and logs whose schema grows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bk_core.blocking import BookKeeper
from bk_core.logs.model.head import COMPRESSIONS
from tests.spark.frames import append, failure, load

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

WIDE = """
  id % 2 = 0 AS flag, CAST(id % 250 - 125 AS TINYINT) AS tiny, CAST(id AS SMALLINT) AS small,
  CAST(id AS INT) AS number, id,
  CAST(id / 7 AS FLOAT) AS single, id / 3 AS double, CAST(id AS DECIMAL(20, 4)) / 8 AS price,
  concat('row ', id) AS name,
  CAST(concat('b', id) AS BINARY) AS bytes, date_add(DATE'2026-01-31', CAST(id AS INT)) AS day,
  TIMESTAMP'2026-01-31 12:34:56.789012' + make_dt_interval(0, 0, 0, id) AS at,
  TIMESTAMP_NTZ'0001-01-01 00:00:00' AS local, make_dt_interval(CAST(id AS INT)) AS took,
  IF(id % 3 = 0, NULL, array(id, NULL)) AS list, named_struct('x', id, 'y', array(concat('y', id))) AS parts,
  map('a', id / 2, 'b', NULL) AS map, IF(id % 2 = 0, NULL, id) AS sometimes
"""
WITHOUT_JSON_FORM = ("bytes", "took", "map")


def wide(spark: Any, count: int, partitions: int = 2) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr(*split(WIDE))


def split(text: str) -> list[str]:
    """Expressions between commas that are in no brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def columns_of(frame: Any) -> list[tuple[str, str]]:
    """Names and types, without which parts of them are never null: what is read is nullable throughout."""
    return [(each.name, each.dataType.simpleString()) for each in frame.schema]


def rows(frame: Any, key: str = "id") -> list[Any]:
    return [tuple(row) for row in frame.orderBy(key).collect()]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_type_comes_back_from_arrow(spark: Any, uri: str, log: str, compression: str) -> None:
    frame = wide(spark, 3000)
    append(frame, uri, log, codec="arrow", compression=compression)
    found = load(spark, uri, log, codec="arrow")
    assert columns_of(found)[: len(frame.columns)] == columns_of(frame)
    assert found.columns[len(frame.columns) :] == ["log", "ledger_id", "entry_id", "offset"]
    assert rows(found.select(frame.columns)) == rows(frame)
    few = load(spark, uri, log, codec="arrow", columns="name,offset")
    assert few.columns == ["name", "offset"]
    assert few.count() == 3000


def test_every_type_with_a_json_form_comes_back(spark: Any, uri: str, log: str) -> None:
    frame = wide(spark, 3000).drop(*WITHOUT_JSON_FORM)
    append(frame, uri, log, codec="json")
    found = load(spark, uri, log, codec="json", schema=", ".join(" ".join(each) for each in columns_of(frame)))
    assert rows(found) == rows(frame)
    text = load(spark, uri, log).selectExpr("from_json(CAST(value AS STRING), 'id BIGINT, name STRING') AS row")
    assert rows(text.select("row.*")) == rows(frame.select("id", "name")), "Spark itself reads what we write"


def test_envelopes_come_back_and_are_like_kafkas(spark: Any, uri: str, log: str) -> None:
    frame = spark.range(1000).selectExpr(
        "CAST(id AS STRING) AS key",
        "IF(id % 5 = 0, NULL, concat('value ', id)) AS value",
        "timestamp_millis(id) AS timestamp",
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers",
    )
    append(frame, uri, log, codec="envelope")
    found = load(spark, uri, log, codec="envelope", includeMetadata="true")
    assert found.columns[:4] == ["key", "value", "timestamp", "headers"]
    assert found.columns[-3:] == ["entry_length", "ledger_ctime", "ledger_closed"]
    texts = found.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "timestamp", "headers")
    assert rows(texts, "timestamp") == rows(frame, "timestamp")
    assert found.where("ledger_closed AND entry_length > 16 AND ledger_ctime IS NOT NULL").count() == 1000


@pytest.mark.rule("K8")
def test_a_schema_grows_and_old_rows_have_nulls(spark: Any, uri: str, log: str, client: BookKeeper) -> None:
    first = spark.range(10).selectExpr("id", "'old' AS name")
    append(first, uri, log, codec="arrow")
    append(first, uri, log, codec="arrow")
    wider = spark.range(10, 12).selectExpr("id * 1.5D AS score", "'new' AS name", "id")
    refused = failure(lambda: append(wider, uri, log, codec="arrow"))
    assert "BK_SCHEMA_MISMATCH" in refused
    assert "score is new" in refused
    append(wider, uri, log, codec="arrow", mergeSchema="true")
    found = load(spark, uri, log, codec="arrow")
    assert found.columns[:3] == ["id", "name", "score"]
    assert found.where("score IS NULL").count() == 20
    assert rows(found.where("id > 9").select("id", "name", "score")) == [(10, "new", 15.0), (11, "new", 16.5)]
    assert sorted(client.log(log).schemas()) == [1, 2]
    refused = failure(lambda: append(spark.range(1).selectExpr("CAST(id AS INT) AS id"), uri, log, codec="arrow"))
    assert "name is missing" in refused
    assert "id is int and was bigint" in refused


@pytest.mark.rule("K8")
def test_a_stream_stops_at_a_newer_schema_and_goes_on_when_it_is_started_again(
    spark: Any, uri: str, log: str, tmp_path: Path
) -> None:
    append(spark.range(5).selectExpr("id"), uri, log, codec="arrow")

    def run() -> None:
        source = spark.readStream.format("bookkeeper").options(
            metadataServiceUri=uri, codec="arrow", startingOffsets="earliest"
        )
        query = source.load(log)
        state["columns"] = query.columns
        state["grow"](query)

    def drain(frame: Any) -> None:
        (
            frame.drop("ledger_id", "log")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
            .awaitTermination(120)
        )

    state: dict[str, Any] = {"grow": drain}
    run()

    def grown(frame: Any) -> None:
        append(spark.range(5, 8).selectExpr("id", "'x' AS more"), uri, log, codec="arrow", mergeSchema="true")
        drain(frame)

    state["grow"] = grown
    assert "BK_SCHEMA_CHANGED" in failure(run)
    state["grow"] = drain
    run()
    assert state["columns"][:2] == ["id", "more"]
    out = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out"))
    assert rows(out.select("id", "more")) == [(n, None) for n in range(5)] + [(n, "x") for n in range(5, 8)]


def test_a_corrupt_entry_fails_is_skipped_or_null(spark: Any, uri: str, log: str) -> None:
    frame = spark.sql("""SELECT * FROM VALUES ('{"a":1}'), ('{"a":"x"}'), ('{"a":3}') AS t(value)""")
    append(frame.coalesce(1), uri, log)
    schema = "a INT, offset BIGINT"
    assert "BK_CORRUPT_ENTRY" in failure(load(spark, uri, log, codec="json", schema=schema).collect)
    skipped = load(spark, uri, log, codec="json", schema=schema, corruptEntries="skip")
    assert rows(skipped, "offset") == [(1, 0), (3, 2)]
    nulls = load(spark, uri, log, codec="json", schema=schema, corruptEntries="null")
    assert rows(nulls, "offset") == [(1, 0), (None, 1), (3, 2)]
    assert "BK_CORRUPT_ENTRY" in failure(load(spark, uri, log, codec="envelope").collect)
    assert load(spark, uri, log, codec="envelope", corruptEntries="skip").count() == 0


def test_views_and_tables_of_sql_take_the_columns_of_the_log(spark: Any, uri: str, log: str) -> None:
    append(spark.range(3).selectExpr("id", "concat('n', id) AS name"), uri, log, codec="arrow")
    given = f"metadataServiceUri '{uri}', log '{log}', codec 'arrow'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW arrow_view USING bookkeeper OPTIONS ({given})")
    assert rows(spark.sql("SELECT id, name FROM arrow_view")) == [(0, "n0"), (1, "n1"), (2, "n2")]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW arrow_sink (id BIGINT, name STRING) USING bookkeeper OPTIONS ({given})"
    )
    spark.sql("INSERT INTO arrow_sink VALUES (7, 'seven')")
    assert load(spark, uri, log, codec="arrow").where("id = 7").count() == 1


def test_types_with_attributes_are_refused_with_the_casts_that_a_write_takes(spark: Any, uri: str, log: str) -> None:
    spark.sql("CREATE TABLE declared (code VARCHAR(5), name STRING COLLATE UNICODE_CI) USING parquet")
    try:
        spark.sql("INSERT INTO declared VALUES ('a', 'B')")
        frame = spark.table("declared")
        refused = failure(lambda: append(frame, uri, log, codec="arrow"))
        for part in ("code varchar(5)", "name string collate UNICODE_CI", "CAST(`code` AS STRING)"):
            assert part in refused
        append(frame.selectExpr("CAST(code AS STRING)", "CAST(name AS STRING)"), uri, log, codec="arrow")
    finally:
        spark.sql("DROP TABLE declared")
    found = load(spark, uri, log, codec="arrow")
    assert [field.dataType.simpleString() for field in found.schema.fields[:2]] == ["string", "string"]
    assert rows(found.select("code", "name"), "code") == [("a", "B")]


def test_a_row_that_cannot_be_written_is_named_and_nothing_is_published(spark: Any, uri: str, log: str) -> None:
    frame = spark.range(0, 100, 1, 1).selectExpr("IF(id = 42, NULL, CAST(id AS STRING)) AS value")
    refused = failure(lambda: append(frame, uri, log))
    assert "row 42" in refused
    large = spark.range(0, 100, 1, 1).selectExpr("repeat('x', CAST(id * 100 AS INT)) AS text")
    refused = failure(lambda: append(large, uri, log, codec="arrow", compression="none", maxEntryBytes="5k"))
    assert "BK_ENTRY_TOO_LARGE" in refused
    assert load(spark, uri, log).count() == 0
    append(frame, uri, log, nullValues="skip")
    assert load(spark, uri, log).count() == 99


def test_json_has_the_numbers_that_to_json_writes(spark: Any, uri: str, log: str) -> None:
    numbers = "CAST(IF(id = 0, 'NaN', IF(id = 1, 'Infinity', IF(id = 2, '-Infinity', '1.5'))) AS DOUBLE)"
    frame = spark.range(0, 4, 1, 1).selectExpr("id", f"{numbers} AS x", f"array({numbers}, 2.5D) AS l")
    append(frame, uri, log, codec="json")
    raw = load(spark, uri, log, codec="raw").selectExpr("CAST(value AS STRING) AS value").collect()
    assert [row.value for row in raw] == [row[0] for row in frame.selectExpr("to_json(struct(*))").collect()]
    found = load(spark, uri, log, codec="json", schema="id BIGINT, x DOUBLE, l ARRAY<DOUBLE>")
    assert str(rows(found)) == str(rows(frame))


def test_spark_reads_every_type_that_python_stores(spark: Any, uri: str, log: str, client: BookKeeper) -> None:
    """Of all types of Arrow: each is refused with a cast, or Spark reads the values that were written."""
    kinds: list[tuple[pa.DataType, list[Any]]] = [
        *((kind, [1, None]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *((kind, [1, None]) for kind in (pa.uint8(), pa.uint16(), pa.uint32())),
        *((kind, [0.5, None]) for kind in (pa.float16(), pa.float32(), pa.float64())),
        *((kind, ["a", None]) for kind in (pa.string(), pa.large_string(), pa.string_view())),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None]),
        *((kind, [b"a", None]) for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))),
        *((kind, [Decimal("1.50"), None]) for kind in (pa.decimal32(5, 2), pa.decimal64(9, 2))),
        *((kind, [Decimal("1.50"), None]) for kind in (pa.decimal128(38, 2), pa.decimal256(38, 2))),
        (pa.bool_(), [True, None]),
        (pa.date32(), [dt.date(2026, 1, 31), None]),
        (pa.date64(), [dt.date(2026, 1, 31), None]),
        *((pa.timestamp(unit), [dt.datetime(2026, 1, 31, 12), None]) for unit in ("s", "ms", "us", "ns")),
        (pa.duration("us"), [dt.timedelta(seconds=5), None]),
        (pa.list_(pa.int32()), [[1, None], None]),
        (pa.large_list(pa.string_view()), [["a", None], None]),
        (pa.list_(pa.int64(), 2), [[1, 2], None]),
        (pa.struct([("a", pa.uint8()), ("b", pa.large_string())]), [{"a": 1, "b": "x"}, None]),
        (pa.map_(pa.string(), pa.list_(pa.float32())), [[("k", [0.5])], None]),
        (pa.json_(), ['{"a":1}', None]),
    ]  # fmt: skip
    table = pa.table({f"c{n}": pa.array(values, kind) for n, (kind, values) in enumerate(kinds)})
    client.log(log).append_arrow(table)
    found = load(spark, uri, log, codec="arrow").collect()
    for n, (kind, values) in enumerate(kinds):
        read = [row[f"c{n}"] for row in found]
        wanted: list[Any] = values
        if pa.types.is_struct(kind):
            read = [None if each is None else each.asDict() for each in read]
        elif pa.types.is_map(kind):
            wanted = [None if each is None else dict(each) for each in values]
        elif b"a" in values:
            read = [None if each is None else bytes(each) for each in read]
        assert read == wanted, kind
