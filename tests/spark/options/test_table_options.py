# SPDX-License-Identifier: Apache-2.0
"""The options of CREATE TABLE: what is kept with the columns, what never is, and what a read makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from bk_core.errors import InvalidArgumentError
from bk_spark.options import table_options
from bk_spark.options.offsets import Bound
from bk_spark.options.options import OPTIONS, OptionKind, Use, normalise, parse_options
from bk_spark.source import BookKeeperDataSource

URI = "zk://h/ledgers"
BY_SPARK = {"provider": "bookkeeper", "owner": "root", "location": "events"}


def created(**options: str) -> StructType:
    """The columns as Spark stores them after CREATE TABLE with these options."""
    given = {"metadataserviceuri": URI, "path": "events", **{k.lower(): v for k, v in options.items()}}
    given |= {f"option.{key}": text for key, text in given.items()} | BY_SPARK
    columns = BookKeeperDataSource(given).schema()
    assert isinstance(columns, StructType)
    return StructType.fromJson(json.loads(columns.json()))  # through Spark and a catalog


def read(columns: StructType, **given: str) -> Any:
    return parse_options(table_options.for_read({k.lower(): v for k, v in given.items()}, columns), Use.READ)


@pytest.mark.long
def test_a_table_is_read_with_the_options_it_was_created_with() -> None:
    columns = created(startingOffsets='{"events":5}', minPartitions="3", failOnDataLoss="false")
    options = read(columns)
    assert options.metadata_service_uri == URI
    assert str(options.selection) == "log events"
    assert (options.min_partitions, options.fail_on_data_loss) == (3, False)
    assert options.starting == read(created(), startingOffsets='{"events":5}').starting


def test_every_spelling_and_alias_is_kept() -> None:
    columns = created(max_entries_per_partition="7", maxOffsetsPerTrigger="9")
    assert read(columns).max_entries_per_partition == 7
    assert read(columns).max_entries_per_trigger == 9


def test_properties_of_the_user_are_no_options_and_unknown_options_are_refused() -> None:
    given = {**BY_SPARK, "metadataServiceUri": "zk://h/ledgers", "log": "events", "option.log": "events"}
    properties = {"note": "x", "team.owner": "y", "path": "file:/where/LOCATION/says"}
    assert table_options.without_properties({**given, **properties}) == given
    misspelt = {**given, "lgo": "events", "option.lgo": "events"}
    assert table_options.without_properties(misspelt) == misspelt
    with pytest.raises(InvalidArgumentError, match="lgo"):
        parse_options(table_options.without_properties(misspelt), None)


def test_a_load_and_a_view_put_nothing_into_the_columns() -> None:
    columns = BookKeeperDataSource({"metadataserviceuri": URI, "path": "events"}).schema()
    assert all(not field.metadata for field in columns.fields)


def test_options_of_the_read_win() -> None:
    columns = created(minPartitions="3", startingOffsets='{"events":5}')
    assert read(columns, minPartitions="8").min_partitions == 8
    assert read(columns, min_partitions="8").min_partitions == 8
    assert read(columns, startingTimestamp="1769860800123").starting_timestamp == Bound(1769860800123)


def test_a_read_that_names_another_log_takes_neither_log_nor_bounds_of_the_table() -> None:
    columns = created(minPartitions="3", startingOffsets='{"events":5}', endingOffsets='{"events":9}')
    options = read(columns, log="other")
    assert str(options.selection) == "log other"
    assert (options.starting, options.ending) == (read(created()).starting, read(created()).ending)
    assert options.min_partitions == 3


def test_a_read_that_names_a_cluster_takes_nothing_of_the_table() -> None:
    options = read(created(minPartitions="3"), metadataServiceUri="zk://elsewhere/ledgers", log="b")
    assert (options.metadata_service_uri, options.min_partitions) == ("zk://elsewhere/ledgers", None)


@pytest.mark.rule("K2")
@pytest.mark.parametrize(
    ("name", "text"),
    [("ledgerPassword", "secret"), ("readMode", "fence"), ("readMode", "closedOnly"), ("bookkeeper.addTimeoutMs", "5")],
)
def test_secrets_read_modes_and_client_settings_cannot_be_in_a_table(name: str, text: str) -> None:
    chosen = {"ledgerid": "17", "path": "ledger:17"} if text == "fence" else {}
    given = {"metadataserviceuri": URI, **(chosen or {"log": "events"}), name.lower(): text, **BY_SPARK}
    given.pop("path", None) if chosen else None
    with pytest.raises(InvalidArgumentError, match=r"cannot be stored in a table.*spark\.read\.option") as caught:
        BookKeeperDataSource(given).schema()
    assert "secret" not in str(caught.value)


@pytest.mark.rule("K2")
def test_who_makes_a_table_does_not_choose_which_file_its_readers_prove_themselves_with() -> None:
    own = {"token.path": "/etc/token", "zookeeper.auth.path": "/etc/zookeeper.auth"}
    columns = created(**{"tls.ca.path": "/etc/ca.crt", **own})
    assert dict(read(columns).client_settings) == {"tlscapath": "/etc/ca.crt"}
    assert not any(path in columns.json() for path in own.values())
    told = dict(read(columns, **own).client_settings)
    assert told == {"tlscapath": "/etc/ca.crt", "tokenpath": "/etc/token", "zookeeperauthpath": "/etc/zookeeper.auth"}


@pytest.mark.rule("K2")
def test_columns_made_up_by_hand_bring_no_option_that_is_not_on_the_list() -> None:
    for forged in ("readMode", "ledgerPassword", "bookkeeper.readTimeoutMs", *table_options.OF_WHO_READS):
        columns = created()
        data = json.loads(columns.fields[0].metadata[table_options.METADATA_KEY])
        data["options"][forged] = "fence"
        columns.fields[0].metadata[table_options.METADATA_KEY] = json.dumps(data)
        with pytest.raises(InvalidArgumentError, match="cannot be used"):
            table_options.for_read({}, columns)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"options":{"log":"a"},"columns":[],"v":2}', '{"options":3}'])
def test_damaged_or_future_options_are_an_error_and_not_a_guess(text: str) -> None:
    columns = created()
    columns.fields[0].metadata[table_options.METADATA_KEY] = text
    with pytest.raises(InvalidArgumentError, match="create it again"):
        table_options.for_read({}, columns)


def test_columns_that_went_into_another_table_do_not_read_the_first_ones_log() -> None:
    columns = created()
    changes = {
        r"not there now: log string, ledger_id bigint, entry_id bigint, offset bigint; drop": columns.fields[:1],
        r"not there then: more bigint; drop": [*columns.fields, StructField("more", LongType())],
        r"in another order": columns.fields[::-1],
    }
    for said, others in changes.items():
        with pytest.raises(InvalidArgumentError, match=r"changed by ALTER TABLE or copied.*" + said):
            table_options.for_read({}, StructType(others))
    assert read(StructType(columns.fields[:1]), metadataServiceUri=URI, log="mine").min_partitions is None


def test_a_comment_on_the_column_changes_nothing() -> None:
    columns = created()
    columns.fields[0].metadata["comment"] = "the payload"
    assert str(read(columns).selection) == "log events"


def test_a_table_with_a_list_of_columns_tells_what_to_do_instead() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"without columns, or once for all reads CREATE VIEW v AS SELECT . FROM t WITH"
    ):
        table_options.for_read({}, StructType([StructField("offset", LongType())]))


def test_a_write_never_takes_options_from_columns() -> None:
    source = BookKeeperDataSource({})
    for call in (source.writer, source.streamWriter):
        with pytest.raises(InvalidArgumentError, match="INSERT INTO t WITH"):
            call(created(), False)


def test_each_option_of_reads_is_decided_on_and_no_secret_is_kept() -> None:
    kept = {normalise(name) for name in table_options.KEPT}
    decided = kept | {normalise(name) for name in (*table_options.REFUSED, *table_options.OF_WHO_READS)}
    reads = [d for d in OPTIONS if {Use.READ, Use.STREAM} & set(d.uses)]
    assert {d.name for d in reads if normalise(d.name) not in decided} == set()
    assert not [d.name for d in OPTIONS if d.kind is OptionKind.SECRET and normalise(d.name) in kept]
