# SPDX-License-Identifier: Apache-2.0
"""Batch reads of topics: selection, columns, positions, splits, chunks, transactions, what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType, TimestampType

from bk_core.errors import (
    BookKeeperError,
    CorruptMessageError,
    InvalidArgumentError,
    LedgerOffloadedError,
    NoSuchEntryError,
    NoSuchTopicError,
    OffloadMissingError,
    UnsupportedTopicError,
    WrongPasswordError,
)
from bk_core.pulsar.lookup.nodes import SNAPSHOTS
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_spark.topics.columns import default_schema
from bk_spark.topics.task_reader import offloaded_reads
from tests.kit import pulsar_entries as kit
from tests.kit.pulsar_world import plain
from tests.pulsar.test_topic import marker, txn
from tests.spark.topics.world import NAME, SparkWorld, ids

PARTS = [f"{NAME}-partition-{number}" for number in range(3)]


def offsets(**places: Any) -> str:
    return json.dumps(places)


def refused(world: SparkWorld, kind: type[BookKeeperError] = InvalidArgumentError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        world.values(**options)
    return str(caught.value)


def test_a_topic_has_the_columns_of_pulsar_spark(world: SparkWorld) -> None:
    ledger = world.ledger(NAME, [kit.entry(b"a", partition_key=b"k", properties={"p": "1"}, event_time=5)])
    table = world.table()
    (row,) = table.to_pylist()
    assert table.schema.names == default_schema(world.reader().options).names
    assert (row["value"], row["__key"], row["__topic"]) == (b"a", b"k", NAME)
    assert MessageId.deserialize(row["__messageId"]) == MessageId(ledger.ledger_id, 0)
    assert (row["__publishTime"].timestamp(), row["__eventTime"].timestamp()) == (1_700_000_000, 0.005)
    assert row["__messageProperties"] == [("p", "1")]
    types = {field.name: field.dataType for field in default_schema(world.reader().options)}
    assert types["__publishTime"] == TimestampType()
    assert types["__messageProperties"] == MapType(StringType(), StringType())


def test_more_columns_on_demand_and_only_those_that_are_chosen(world: SparkWorld) -> None:
    world.ledger(NAME, [kit.entry(b"a", sequence_id=7, ordering_key=b"o")])
    (more,) = world.table(includemetadata="true").to_pylist()
    assert (more["__partition"], more["__producer"], more["__sequenceId"]) == (-1, "p", 7)
    assert len(more) == 10
    assert world.table(columns="__orderingKey,value").to_pylist() == [{"__orderingKey": b"o", "value": b"a"}]
    assert world.table(columns="__KEY").schema.names == ["__key"]
    assert world.table(StructType([StructField("VALUE", BinaryType())])).to_pylist() == [{"VALUE": b"a"}]
    with pytest.raises(InvalidArgumentError, match="no such column"):
        world.reader(StructType().add("log", "string"))
    assert "__messageId" in refused(world, columns="offset")


def test_topics_partitions_and_patterns_are_selected(world: SparkWorld) -> None:
    world.pulsar.partitioned(NAME, 3)
    world.ledger(PARTS[0], plain(b"p0"))
    world.ledger(PARTS[2], plain(b"p2"))
    world.ledger("other", plain(b"o"))
    world.ledger("__change_events", plain(b"system"))
    assert world.values() == [b"p0", b"p2"]
    assert world.values(topic=PARTS[2]) == [b"p2"]
    assert world.values(topics="other, orders,orders") == [b"p0", b"p2", b"o"]
    assert world.values(path=NAME) == [b"p0", b"p2"]
    for pattern in ("persistent://public/default/*", "public/default/.*", ".*", "o.*"):
        assert sorted(map(str, world.values(topicspattern=pattern))) == ["b'o'", "b'p0'", "b'p2'"]
    assert world.values(topicspattern="oth.*") == [b"o"]
    assert "topics of public/default: orders, other" in refused(world, NoSuchTopicError, topicspattern="x.*")
    assert "near names" in refused(world, NoSuchTopicError, topic="order")


def test_positions_choose_messages(world: SparkWorld) -> None:
    batch = kit.batch_entry([kit.single(b"b0"), kit.single(b"b1"), kit.single(b"b2")])
    ledger = world.ledger(NAME, [kit.entry(b"a"), batch, kit.entry(b"c")]).ledger_id
    middle = MessageId(ledger, 1, -1, 1, 3)
    for place in (list(middle.serialize()), str(middle)):
        assert world.values(startingoffsets=offsets(orders=place)) == [b"b1", b"b2", b"c"]
        assert world.values(endingoffsets=offsets(orders=place)) == [b"a", b"b0"]
    assert world.values(startingoffsets=offsets(orders=f"{ledger}:2")) == [b"c"]
    assert world.values(startingoffsets=offsets(orders=-2), endingoffsets=offsets(**{NAME: -1})) == [
        *(b"a", b"b0", b"b1", b"b2", b"c")
    ]
    assert world.values(startingoffsets=offsets(orders=f"{ledger}:3")) == []
    assert "beyond the end" in refused(world, startingoffsets=offsets(orders=f"{ledger}:4"))
    assert "beyond the end" in refused(world, endingoffsets=offsets(orders=f"{ledger + 5}:1"))
    both = {"startingoffsets": offsets(orders=f"{ledger}:2"), "endingoffsets": offsets(orders=f"{ledger}:1")}
    assert "ends before it starts" in refused(world, **both)


def test_positions_name_every_partition(world: SparkWorld) -> None:
    world.pulsar.partitioned(NAME, 2)
    ledgers = [world.ledger(part, plain(b"a", b"b")).ledger_id for part in PARTS[:2]]
    each = {part: f"{ledger}:1" for part, ledger in zip(PARTS, ledgers, strict=False)}
    assert world.values(startingoffsets=json.dumps(each)) == [b"b", b"b"]
    assert "missing: " + PARTS[1] in refused(world, startingoffsets=json.dumps({PARTS[0]: -2}))
    assert "missing: " + PARTS[0] in refused(world, endingoffsets=json.dumps({NAME: -1}))


def test_times_choose_messages_by_publishing(world: SparkWorld) -> None:
    hour = 3_600_000
    now = 1_700_000_000_000
    for number in range(3):
        world.ledger(NAME, [kit.entry(b"%d" % number, publish_time=now + number * hour)])
    begin, end = now + hour, now + 2 * hour
    assert world.values(startingtimestamp=begin) == [b"1", b"2"]
    assert world.values(endingtimestamp=end) == [b"0", b"1"]
    assert world.values(startingtimestamp=begin, endingtimestamp=end) == [b"1"]
    assert world.values(startingtimestamp=now + 9 * hour) == []


def test_a_subscription_begins_where_it_acknowledged(world: SparkWorld) -> None:
    first = world.ledger(NAME, plain(b"a", b"b")).ledger_id
    world.ledger(NAME, plain(b"c"))
    world.pulsar.cursor(NAME, "reports", EntryPosition(first, 0))
    assert world.values(subscription="reports") == [b"b", b"c"]
    world.pulsar.cursor(NAME, "reports", EntryPosition(first, 1))
    world.call(world.pulsar.trim(NAME))
    assert world.values(subscription="reports") == [b"c"]
    assert "near names: reports" in refused(world, subscription="report")


@pytest.mark.parametrize(
    "more", [{}, {"maxentriesperpartition": 1}, {"minpartitions": 5}, {"maxbytesperpartition": 90}]
)
def test_a_topic_is_split_anywhere_and_rows_stay_in_order(world: SparkWorld, more: dict[str, Any]) -> None:
    """Chunks of messages lie in several partitions; one message was begun again, and one has no end."""
    world.ledger(
        NAME,
        [
            kit.entry(b"plain"),
            kit.chunk(0, b"a", count=3, total=3),
            kit.chunk(0, b"x", count=2, total=2, uuid=b"v"),
            kit.chunk(1, b"b", count=3, total=3),
            kit.batch_entry([kit.single(b"b%d" % n) for n in range(3)]),
        ],
    )
    world.ledger(
        NAME,
        [
            kit.chunk(0, b"y", count=2, total=2, uuid=b"v"),
            kit.chunk(2, b"c", count=3, total=3),
            kit.chunk(1, b"z", count=2, total=2, uuid=b"v"),
            kit.chunk(1, b"z", count=2, total=2, uuid=b"v"),
            kit.chunk(1, b"lost", count=2, total=8, uuid=b"w"),
            kit.entry(b"behind"),
        ],
    )
    table = world.table(**more)
    assert table["value"].to_pylist() == [b"plain", b"b0", b"b1", b"b2", b"abc", b"yz", b"behind"]
    assert ids(table) == sorted(ids(table))
    if more:
        assert len(world.reader(**more).partitions()) >= 5


def test_each_processor_of_the_driver_has_a_partition_if_there_is_enough_to_read(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"%03d" % n * 100 for n in range(30)]
    world.ledger(NAME, [kit.entry(value) for value in values])
    assert len(world.reader().partitions()) == 1
    monkeypatch.setattr("bk_spark.read.tasks.PROCESSORS", 3)
    monkeypatch.setattr("bk_spark.plan.packing.PARALLEL_BYTES", 1_000)
    assert len(world.reader().partitions()) == 3
    assert len(world.reader(minPartitions="1").partitions()) == 1
    assert world.table()["value"].to_pylist() == values


def test_a_message_that_began_before_the_start_and_ends_after_it_is_shown(world: SparkWorld) -> None:
    first = world.ledger(NAME, [kit.entry(b"earlier"), kit.chunk(0, b"a", count=2, total=2)])
    second = world.ledger(NAME, [kit.chunk(1, b"b", count=2, total=2), kit.entry(b"later")])
    for at in (f"{first.ledger_id}:2", f"{second.ledger_id}:0"):
        assert world.values(startingoffsets=json.dumps({NAME: at})) == [b"ab", b"later"]
    assert world.values(startingoffsets=json.dumps({NAME: f"{second.ledger_id}:1"})) == [b"later"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_any_split_gives_the_rows_of_the_client(world: SparkWorld, seed: int) -> None:
    chance = random.Random(seed)
    entries = list[bytes]()
    for number in range(40):
        if chance.random() < 0.5:
            uuid = b"u%d" % chance.randrange(4)
            entries.append(kit.chunk(chance.randrange(3), b"%03d" % number, count=3, total=9, uuid=uuid))
        else:
            entries.append(kit.entry(b"%d" % number))
    for first in range(0, 40, 13):
        world.ledger(NAME, entries[first : first + 13])
    wanted = world.call(world.pulsar.topic(NAME).to_arrow())
    for size in (1, 2, 3, 7, 100):
        found = world.table(maxentriesperpartition=size)
        assert found["value"].to_pylist() == wanted["value"].to_pylist()
        assert found["__messageId"].to_pylist() == wanted["__messageId"].to_pylist()


def test_transactions_are_shown_once_they_are_committed(world: SparkWorld) -> None:
    world.ledger(NAME, [kit.entry(b"a"), txn(b"c", 1), txn(b"x", 2), marker(21, 1)])
    world.ledger(NAME, [marker(22, 2), kit.entry(b"d"), txn(b"open", 3), kit.entry(b"behind")])
    assert "outcomes of transactions" in refused(world, UnsupportedTopicError)
    everything = [b"a", b"c", b"x", b"d", b"open", b"behind"]
    assert world.values(isolation="read_uncommitted") == everything
    world.pulsar.set(f"/managed-ledgers/public/default/persistent/{SNAPSHOTS}", b"")
    for size in (1, 100):
        assert world.values(maxentriesperpartition=size) == [b"a", b"c", b"d"]
    assert world.values(isolation="read_uncommitted") == everything


def test_a_compacted_topic_shows_the_last_message_of_each_key(world: SparkWorld) -> None:
    first = world.ledger(NAME, [kit.entry(b"%d" % n, partition_key=b"k%d" % (n % 2)) for n in range(4)]).ledger_id
    world.ledger(NAME, [kit.entry(b"new")])
    compacted = world.call(world.pulsar.writer.create_ledger())
    for number in (2, 3):
        entry = kit.entry(b"%d" % number, partition_key=b"k%d" % (number % 2))
        world.call(compacted.append(kit.compacted(EntryPosition(first, number), entry)))
    world.call(compacted.close())
    properties = {"CompactedTopicLedger": compacted.ledger_id}
    world.pulsar.cursor(NAME, "__compaction", EntryPosition(first, 3), properties)
    assert world.values(readcompacted="true") == [b"2", b"3", b"new"]
    assert world.values(readcompacted="true", maxentriesperpartition=1) == [b"2", b"3", b"new"]
    assert world.values() == [b"0", b"1", b"2", b"3", b"new"]


def test_an_open_ledger_is_read_to_its_lac(world: SparkWorld) -> None:
    written = world.ledger(NAME, plain(b"a", b"b"), is_open=True)
    assert world.values() == [b"a"]
    world.call(written.write_lac())
    assert world.values() == [b"a", b"b"]


def test_trimmed_messages_are_missed_unless_their_loss_is_accepted(world: SparkWorld) -> None:
    first = world.ledger(NAME, plain(b"a")).ledger_id
    world.ledger(NAME, plain(b"b"))
    world.call(world.pulsar.trim(NAME))
    start = offsets(orders=f"{first}:0")
    assert "failOnDataLoss=false" in refused(world, NoSuchEntryError, startingoffsets=start)
    assert world.values(startingoffsets=start, failondataloss="false") == [b"b"]
    assert world.values() == [b"b"]


def test_damaged_and_foreign_entries_end_the_read_or_are_left_out(
    world: SparkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.ledger(NAME, [kit.entry(b"a"), b"\xff" * 20, kit.entry(b"b")])
    assert "entry" in refused(world, CorruptMessageError)
    assert world.values(corruptentries="skip") == [b"a", b"b"]
    assert "left out" in caplog.text


def test_offloaded_ledgers_and_wrong_passwords_are_named_on_the_driver(world: SparkWorld) -> None:
    world.ledger(NAME, plain(b"a"))
    assert "WRONG_PASSWORD" in refused(world, WrongPasswordError, ledgerpassword="x")
    world.pulsar.offload(NAME, 0, "filesystem", deleted=True)
    assert "Hadoop" in refused(world, LedgerOffloadedError)


@pytest.mark.long
def test_offloaded_ledgers_are_read_in_tasks_of_any_size(
    world: SparkWorld, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chunks = [
        kit.entry(b"%d" % n, uuid=b"u", chunk_id=n, num_chunks_from_msg=3, total_chunk_msg_size=3) for n in range(3)
    ]
    for number in range(3):
        world.ledger(NAME, [*plain(*(b"%d %d" % (number, n) * 9 for n in range(40))), chunks[number]])
    before = world.table()
    world.call(world.pulsar.offload_to(tmp_path, NAME, 0))
    data = world.call(world.pulsar.offload_to(tmp_path, NAME, 1, deleted=False))
    for size in ("1k", "3k", "128m"):
        found = world.table(pulsaroffloaduri=tmp_path.as_uri(), maxbytesperpartition=size)
        assert (ids(found), found["value"]) == (ids(before), before["value"])
    data.unlink()
    offloaded_reads.cache_clear()
    how = {"pulsaroffloaduri": tmp_path.as_uri()}
    assert data.name in refused(world, OffloadMissingError, **how)
    assert world.values(**how, offloadedreadpriority="bookkeeper-first") == before["value"].to_pylist()
    assert len(world.values(**how, failondataloss="false")) == before.num_rows - 41
    assert "41 entries are skipped" in caplog.text


def test_credentials_of_object_storage_are_read_on_the_driver_and_shown_nowhere(
    world: SparkWorld, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("aws_access_key_id=me\naws_secret_access_key=hush\n")
    options = world.reader(pulsaroffloadcredentialspath=tmp_path / "keys", pulsaroffloadregion="eu-1").options
    assert options.topics is not None
    assert options.topics.offload is not None
    assert (options.topics.offload.secret_key, options.topics.offload.region) == ("hush", "eu-1")
    assert "hush" not in repr(options)
    assert "twice" in refused(world, pulsaroffloaduri="file:///x", pulsaroffloadendpoint="http://h")


def test_a_topic_without_messages_has_no_rows(world: SparkWorld) -> None:
    world.ledger(NAME, [])
    assert world.values() == []
    assert world.reader().partitions() == []
    assert list(world.reader().read(InputPartition(None))) == []


def test_rows_are_as_spark_expects_them(world: SparkWorld) -> None:
    world.ledger(NAME, [kit.entry(b"a", null_value=True)])
    schema = StructType([StructField("value", BinaryType(), nullable=False)])
    with pytest.raises(InvalidArgumentError, match="NOT NULL"):
        world.table(schema)
    assert world.table().schema.field("__publishTime").type == pa.timestamp("us", "UTC")
