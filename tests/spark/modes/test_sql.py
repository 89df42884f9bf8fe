# SPDX-License-Identifier: Apache-2.0
"""SQL: views keep their options, tables are read with those they were created with, writes need their own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.kit.amount import thorough
from tests.spark.modes.kit import Source, refusal, texts

NOT_KEPT = ("ledgerPassword 'hidden'", "readMode 'fence'", "bookkeeper.readTimeoutMs '5'")
"""Options that no table may keep."""

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

COUNT = "SELECT count(*) AS n, max(offset) AS last FROM {}"


@pytest.fixture
def view(source: Source, name: str) -> Iterator[str]:
    """A temporary view of the test's log, which has ten rows."""
    source.fill(10)
    source.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING bookkeeper OPTIONS ({source.sql_options()})")
    yield name
    source.sql(f"DROP VIEW IF EXISTS {name}")


@pytest.fixture
def table(source: Source, name: str) -> Iterator[str]:
    """A catalog table of the test's log, which has ten rows."""
    source.fill(10)
    source.sql(f"CREATE TABLE {name} USING bookkeeper OPTIONS ({source.sql_options()})")
    yield name
    source.sql(f"DROP TABLE IF EXISTS {name}")


def counted(source: Source, name: str) -> int:
    return int(source.sql(COUNT.format(name))[0].n)


# --- temporary views ------------------------------------------------------------------------------------------------


@pytest.mark.also_on("connect")
def test_a_temporary_view_is_queried_joined_and_frozen_at_its_first_use(source: Source, view: str) -> None:
    text = source.sql(f"SELECT CAST(value AS STRING) AS text FROM {view} WHERE offset BETWEEN 3 AND 4 ORDER BY offset")
    assert [row.text for row in text] == ["row 3", "row 4"]
    assert source.sql(f"SELECT count(*) AS n FROM {view} a JOIN {view} b USING (offset)")[0].n == 10
    source.append(source.rows(5))
    assert counted(source, view) == 10
    source.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} USING bookkeeper OPTIONS ({source.sql_options()})")
    assert counted(source, view) == 15


@pytest.mark.also_on("connect")
def test_rows_are_inserted_through_a_view_of_one_column(source: Source, view: str) -> None:
    options = source.sql_options()
    source.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view}_in (value BINARY) USING bookkeeper OPTIONS ({options})")
    source.sql(f"INSERT INTO {view}_in SELECT CAST('more' AS BINARY)")
    source.sql(f"INSERT INTO {view}_in VALUES (CAST('and more' AS BINARY))")
    assert source.values()[10:] == ["more", "and more"]
    source.sql(f"DROP VIEW {view}_in")


def test_one_view_serves_reads_and_inserts_when_it_ignores_the_columns_of_reads(source: Source, view: str) -> None:
    options = source.sql_options(ignoreMetadataColumns="true")
    source.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view}_io USING bookkeeper OPTIONS ({options})")
    source.sql(f"INSERT INTO {view}_io (value) SELECT CAST('more' AS BINARY)")
    source.sql(f"INSERT INTO {view}_io SELECT * FROM {view} WHERE offset < 2")
    assert source.values()[10:] == ["more", "row 0", "row 1"]
    source.sql(f"DROP VIEW {view}_io")


@pytest.mark.also_on("connect", always=True)
def test_overwriting_through_a_view_or_a_table_replaces_all_rows(source: Source, view: str) -> None:
    options = source.sql_options()
    source.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view}_in (value STRING) USING bookkeeper OPTIONS ({options})")
    source.sql(f"CREATE TABLE {view}_t (value STRING) USING bookkeeper")
    try:
        source.sql(f"INSERT OVERWRITE {view}_in SELECT 'by view'")
        assert source.values() == ["by view"]
        source.sql(f"INSERT OVERWRITE {view}_t WITH ({source.with_options()}) SELECT 'by table'")
        assert source.values() == ["by table"]
    finally:
        source.sql(f"DROP VIEW {view}_in")
        source.sql(f"DROP TABLE {view}_t")


# --- catalog tables: reads ------------------------------------------------------------------------------------------


@pytest.mark.also_on("connect")
def test_a_table_is_read_with_its_options_and_sees_new_rows(source: Source, table: str) -> None:
    assert counted(source, table) == 10
    source.append(source.rows(5))
    assert counted(source, table) == 15
    assert source.sql(f"SELECT DISTINCT log FROM {table}")[0].log == source.log
    source.sql(f"REFRESH TABLE {table}")
    source.sql(f"ALTER TABLE {table} ALTER COLUMN value COMMENT 'the payload'")
    assert counted(source, table) == 15


def test_options_of_a_query_go_before_those_of_the_table(source: Source, table: str) -> None:
    source.append(source.rows(3), f"{table}_other")
    bound = f'{{"{source.log}":6}}'
    assert source.sql(f"SELECT count(*) AS n FROM {table} WITH (startingOffsets = '{bound}')")[0].n == 4
    assert source.spark.read.option("startingOffsets", bound).table(table).count() == 4
    assert source.sql(f"SELECT count(*) AS n FROM {table} WITH (log = '{table}_other')")[0].n == 3
    assert counted(source, table) == 10


@pytest.mark.also_on("connect")
def test_the_catalog_api_creates_a_table_too(source: Source, name: str) -> None:
    source.fill(4)
    source.spark.catalog.createTable(name, source="bookkeeper", metadataServiceUri=source.uri, log=source.log)
    try:
        assert counted(source, name) == 4
    finally:
        source.sql(f"DROP TABLE {name}")
    assert len(source.values()) == 4


def test_a_table_shows_no_option_and_dropping_it_leaves_the_log(source: Source, table: str) -> None:
    shown = [str(row) for row in (*source.sql(f"DESCRIBE EXTENDED {table}"), *source.sql(f"SHOW CREATE TABLE {table}"))]
    assert not [line for line in shown if source.uri in line]
    source.sql(f"DROP TABLE {table}")
    assert len(source.values()) == 10


@pytest.mark.also_on("connect")
@pytest.mark.rule("K2")
@pytest.mark.parametrize("secret", thorough(NOT_KEPT, NOT_KEPT[1:]))
def test_no_table_holds_a_password_or_a_read_mode(source: Source, name: str, secret: str) -> None:
    options = source.sql_options() if "fence" not in secret else f"metadataServiceUri '{source.uri}', ledgerId '1'"
    told = refusal(lambda: source.sql(f"CREATE TABLE {name} USING bookkeeper OPTIONS ({options}, {secret})"))
    assert "cannot be stored in a table" in told
    assert "spark.read.option" in told
    assert "hidden" not in told
    assert not source.spark.catalog.tableExists(name)


def test_a_table_with_a_list_of_columns_says_how_to_read_it(source: Source, name: str) -> None:
    source.fill(2)
    source.sql(f"CREATE TABLE {name} (value BINARY, offset BIGINT) USING bookkeeper OPTIONS ({source.sql_options()})")
    try:
        assert "CREATE VIEW v AS SELECT * FROM t WITH" in refusal(lambda: source.sql(f"SELECT * FROM {name}"))
        assert texts(source.spark.sql(f"SELECT * FROM {name} WITH ({source.with_options()})")) == ["row 0", "row 1"]
        source.sql(f"CREATE VIEW {name}_v AS SELECT * FROM {name} WITH ({source.with_options()})")
        assert texts(source.spark.table(f"{name}_v")) == ["row 0", "row 1"]
        source.append(source.rows(1, start=2))
        assert texts(source.spark.table(f"{name}_v")) == ["row 0", "row 1", "row 2"]
    finally:
        source.sql(f"DROP VIEW IF EXISTS {name}_v")
        source.sql(f"DROP TABLE {name}")


def test_a_table_of_chosen_columns_keeps_its_options(source: Source, name: str) -> None:
    source.fill(2)
    source.sql(f"CREATE TABLE {name} USING bookkeeper OPTIONS ({source.sql_options(columns='OFFSET,value')})")
    try:
        assert source.spark.table(name).columns == ["offset", "value"]
        assert source.spark.readStream.table(name).columns == ["offset", "value"]
        assert texts(source.spark.table(name)) == ["row 0", "row 1"]
    finally:
        source.sql(f"DROP TABLE {name}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ADD COLUMNS (more INT)", "changed by ALTER TABLE or copied from another table; not there then: more int"),
        ("RENAME COLUMN value TO payload", "not there then: payload binary; not there now: value binary"),
        ("DROP COLUMNS (offset)", "not there now: offset bigint"),
    ],
)
def test_a_table_whose_columns_were_changed_says_so_and_what_to_do(
    source: Source, table: str, change: str, said: str
) -> None:
    try:
        source.sql(f"ALTER TABLE {table} {change}")
    except Exception as error:  # before 4.2 Spark cannot rename or drop columns of such a table
        assert "ALTER TABLE" in str(error)  # noqa: PT017 - only where Spark can
        return
    told = refusal(lambda: source.sql(f"SELECT * FROM {table}"))
    assert said in told
    assert "drop the table and create it again" in told
    source.sql(f"DROP TABLE {table}")
    source.sql(f"CREATE TABLE {table} USING bookkeeper OPTIONS ({source.sql_options()})")
    assert counted(source, table) == 10


@pytest.mark.also_on("connect")
def test_columns_are_found_in_other_letters_as_in_every_table_of_spark(source: Source, view: str) -> None:
    assert source.reader().schema("VALUE BINARY, Offset BIGINT").load(source.log).columns == ["VALUE", "Offset"]
    assert len(source.sql(f"SELECT VALUE FROM {view} WHERE OFFSET < 3")) == 3
    options = source.sql_options()
    source.sql(f"CREATE TEMPORARY VIEW {view}_in (VALUE STRING) USING bookkeeper OPTIONS ({options})")
    source.sql(f"INSERT INTO {view}_in SELECT 'more' AS Value")
    source.sql(f"DROP VIEW {view}_in")
    assert source.values()[10:] == ["more"]
    read = source.reader().schema("VALUE BINARY").load(source.log)
    assert [bytes(row.VALUE).decode() for row in read.where("value = 'more'").collect()] == ["more"]


# --- catalog tables: writes -----------------------------------------------------------------------------------------


@pytest.fixture
def sink(source: Source, name: str) -> Iterator[str]:
    """A table of the one column that is written."""
    source.sql(f"CREATE TABLE {name} (value STRING) USING bookkeeper")
    yield name
    source.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_write_to_a_table_needs_its_options_and_says_so(source: Source, sink: str) -> None:
    for statement in (f"INSERT INTO {sink} SELECT 'x'", f"INSERT INTO {sink} VALUES (1)"):
        assert "INSERT INTO t WITH (metadataServiceUri" in refusal(partial(source.sql, statement))
    assert "INSERT INTO t WITH (metadataServiceUri" in refusal(lambda: source.rows(1).write.insertInto(sink))


def test_rows_from_one_table_never_go_into_the_log_that_the_other_reads(source: Source, table: str) -> None:
    source.sql(f"CREATE TABLE {table}_in (value BINARY) USING bookkeeper")
    try:
        assert "needs" not in refusal(lambda: source.sql(f"INSERT INTO {table}_in SELECT value FROM {table}"))
        assert counted(source, table) == 10
        other = source.with_options(log=f"{table}_copy")
        source.sql(f"INSERT INTO {table}_in WITH ({other}) SELECT value FROM {table}")
        assert len(source.values(f"{table}_copy")) == 10
        assert counted(source, table) == 10
    finally:
        source.sql(f"DROP TABLE {table}_in")


@pytest.mark.also_on("connect")
def test_every_way_to_write_a_table_takes_options(source: Source, sink: str) -> None:
    given = {"metadataServiceUri": source.uri, "log": source.log}
    source.sql(f"INSERT INTO {sink} WITH ({source.with_options()}) SELECT 'by sql'")
    source.rows(1).writeTo(sink).options(**given).append()
    source.rows(1, start=1).write.format("bookkeeper").options(**given).mode("append").saveAsTable(sink)
    assert source.values() == ["by sql", "row 0", "row 1"]


@pytest.mark.also_on("connect")
def test_new_tables_are_made_of_frames_and_their_rows_read_with_options(source: Source, name: str) -> None:
    given = {"metadataServiceUri": source.uri, "log": source.log}
    try:
        source.rows(2).write.format("bookkeeper").options(**given).mode("append").saveAsTable(f"{name}_a")
        source.rows(2, start=2).writeTo(f"{name}_b").using("bookkeeper").options(**given).create()
        assert source.values() == ["row 0", "row 1", "row 2", "row 3"]
        read = source.spark.read.options(**given).schema("value BINARY")
        assert read.format("bookkeeper").load().count() == 4
        statement = f"CREATE TABLE {name}_c USING bookkeeper OPTIONS ({source.sql_options()}) AS SELECT 'x' AS value"
        assert "INSERT INTO t WITH" in refusal(lambda: source.sql(statement))
        assert not source.spark.catalog.tableExists(f"{name}_c")
    finally:
        for made in "abc":
            source.sql(f"DROP TABLE IF EXISTS {name}_{made}")
