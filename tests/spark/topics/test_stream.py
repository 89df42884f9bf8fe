# SPDX-License-Identifier: Apache-2.0
"""Streams of topics, call by call as Spark makes them: every message once, whatever happens between the calls."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bk_core.errors import (
    BookKeeperError,
    ClusterMismatchError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchTopicError,
)
from bk_core.metadata.tree.tree import ANY_VERSION
from bk_core.pulsar.lookup.nodes import SNAPSHOTS
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from tests.kit import pulsar_entries as kit
from tests.kit.pulsar_world import plain
from tests.pulsar.test_broker import AdminPort
from tests.pulsar.test_topic import marker, txn
from tests.spark.topics.world import NAME, SparkWorld, Stream

PARTS = [f"{NAME}-partition-{number}" for number in range(3)]


def append(world: SparkWorld, written: Any, *entries: bytes) -> None:
    """More entries in an open ledger, all confirmed."""
    for entry in entries:
        world.call(written.append(entry))
    world.call(written.write_lac())


def refused(kind: type[BookKeeperError], work: Any) -> str:
    with pytest.raises(kind) as caught:
        work()
    return str(caught.value)


def test_a_stream_reads_what_comes_across_ledgers(world: SparkWorld) -> None:
    written = world.ledger(NAME, plain(b"a"), is_open=True)
    append(world, written)
    stream = world.stream().begin()
    assert stream.step() == [b"a"]
    assert stream.step() == []
    append(world, written, *plain(b"b", b"c"))
    assert stream.step() == [b"b", b"c"]
    world.call(world.pulsar.roll(NAME, written))
    second = world.ledger(NAME, plain(b"d"), is_open=True)
    append(world, second)
    assert stream.step() == [b"d"]
    assert stream.positions == {"orders": f"{second.ledger_id}:1"}


def test_a_ledger_that_was_read_whole_may_be_trimmed(world: SparkWorld) -> None:
    world.ledger(NAME, plain(b"a"))
    second = world.ledger(NAME, [], is_open=True)
    stream = world.stream().begin()
    assert stream.step() == [b"a"]
    assert stream.positions == {"orders": f"{second.ledger_id}:0"}
    world.call(world.pulsar.trim(NAME))
    append(world, second, *plain(b"b"))
    assert stream.step() == [b"b"]


def test_an_empty_ledger_that_a_broker_replaces_when_it_loads_the_topic_is_no_loss(world: SparkWorld) -> None:
    """Before the query moves on, between a batch's plan and its rows, and while its checkpoint is at rest."""
    world.ledger(NAME, plain(b"a"))
    second = world.ledger(NAME, [], is_open=True)
    stream = world.stream().begin()
    assert stream.step() == [b"a"]
    assert stream.positions == {"orders": f"{second.ledger_id}:0"}
    world.call(world.pulsar.load(NAME, second))
    third = world.ledger(NAME, [], is_open=True)
    assert stream.step() == []
    assert stream.positions == {"orders": f"{third.ledger_id}:0"}
    world.call(world.pulsar.load(NAME, third))
    start = stream.at
    append(world, world.ledger(NAME, [], is_open=True), *plain(b"b"))
    assert stream.step() == [b"b"]
    assert stream.restart(start).rows(start, stream.at) == [b"b"]


def test_a_ledger_may_be_offloaded_while_a_query_runs(world: SparkWorld, tmp_path: Path) -> None:
    """Between two batches, in the middle of what is read, and before a batch is repeated."""
    written = world.ledger(NAME, plain(*(b"%d" % n for n in range(9))), is_open=True)
    append(world, written)
    stream = world.stream(pulsaroffloaduri=tmp_path.as_uri(), maxentriespertrigger="4").begin()
    start = stream.at
    assert stream.step() == [b"0", b"1", b"2", b"3"]
    world.call(world.pulsar.roll(NAME, written))
    world.ledger(NAME, plain(b"next"))
    planned = stream.latest()
    world.call(world.pulsar.offload_to(tmp_path, NAME, 0, block_bytes=300))
    assert stream.rows(stream.at, planned) == [b"4", b"5", b"6", b"7"]
    assert stream.restart(start).rows(start, stream.at) == [b"0", b"1", b"2", b"3"]
    stream.at = planned
    assert stream.step() == [b"8", b"next"]
    assert stream.step() == []


def test_a_batch_above_the_end_of_an_offloaded_ledger_is_told_from_a_loss(world: SparkWorld, tmp_path: Path) -> None:
    """The checkpoint has a phantom of ``readMode=quorum``, and the ledger's own record is deleted."""
    written = world.ledger(NAME, plain(b"a", b"b"))
    strict, lenient = (
        world.stream(pulsaroffloaduri=tmp_path.as_uri(), failondataloss=loss).begin() for loss in ("true", "false")
    )
    end = json.loads(json.dumps(strict.latest()).replace(f"{written.ledger_id}:2", f"{written.ledger_id}:3"))
    assert end != strict.latest()
    world.call(world.pulsar.offload_to(tmp_path, NAME, 0))
    message = refused(NoSuchEntryError, lambda: strict.rows(strict.at, end))
    assert f"ledger {written.ledger_id} ends at entry 1, the batch at 2" in message
    assert lenient.rows(lenient.at, end) == [b"a", b"b"]


def test_trimmed_messages_end_the_query_unless_their_loss_is_accepted(world: SparkWorld) -> None:
    world.ledger(NAME, plain(b"a", b"b"))
    world.ledger(NAME, plain(b"c"))
    strict, lenient = world.stream().begin(), world.stream(failondataloss="false").begin()
    planned = strict.latest()
    world.call(world.pulsar.trim(NAME))
    assert "failOnDataLoss=false" in refused(NoSuchEntryError, strict.latest)
    assert "trimmed" in refused(NoSuchEntryError, lambda: strict.rows(strict.at, planned))
    assert lenient.rows(lenient.at, planned) == [b"c"]
    assert lenient.step() == [b"c"]


def test_a_deleted_topic_ends_the_query_unless_that_is_accepted(world: SparkWorld) -> None:
    world.ledger(NAME, plain(b"a"))
    world.ledger("other", plain(b"o"))
    strict, lenient = world.stream().begin(), world.stream(failondataloss="false").begin()
    pattern = world.stream(topicspattern=".*", failondataloss="false").begin()
    assert (strict.step(), lenient.step(), pattern.step()) == ([b"a"], [b"a"], [b"a", b"o"])
    world.pulsar.cluster.store.tree.delete("/managed-ledgers/public/default/persistent/orders", ANY_VERSION)
    refused(NoSuchTopicError, strict.latest)
    assert lenient.step() == []
    assert lenient.positions.keys() == {"orders"}
    assert pattern.step() == []
    assert pattern.positions.keys() == {"other"}


def test_a_query_from_the_end_makes_its_start_durable_first(world: SparkWorld) -> None:
    written = world.ledger(NAME, plain(b"a"), is_open=True)
    append(world, written)
    stream = world.stream(startingoffsets="latest").begin()
    start = dict(stream.at)
    append(world, written, *plain(b"b"))
    assert stream.step() == []
    assert stream.at == start
    assert stream.step() == [b"b"]
    assert stream.restart(start).step() == [b"b"]


def test_new_partitions_and_new_topics_are_read_from_their_begin(world: SparkWorld) -> None:
    world.pulsar.partitioned(NAME, 1)
    world.ledger(PARTS[0], plain(b"p0"))
    stream = world.stream(topicspattern=".*").begin()
    assert stream.step() == [b"p0"]
    world.pulsar.partitioned(NAME, 3)
    world.ledger(PARTS[1], plain(b"p1"))
    world.ledger("later", plain(b"l"))
    stream = stream.restart(stream.at)  # the list of topics is some seconds old in a running query
    assert stream.step() == []
    assert stream.positions.keys() == {"orders-partition-0", "orders-partition-1", "orders-partition-2", "later"}
    assert stream.positions["orders-partition-2"] == "-1:-1"
    world.ledger(PARTS[2], plain(b"p2"))
    assert stream.step() == [b"l", b"p1", b"p2"]


def test_each_start_is_where_it_says(world: SparkWorld) -> None:
    batch = kit.batch_entry([kit.single(b"b0"), kit.single(b"b1"), kit.single(b"b2")])
    ledger = world.ledger(NAME, [kit.entry(b"a", publish_time=1000), batch, kit.entry(b"c")]).ledger_id
    middle = MessageId(ledger, 1, -1, 1, 3)
    within = world.stream(startingoffsets=json.dumps({"orders": list(middle.serialize())})).begin()
    assert within.positions == {"orders": f"{ledger}:1:1"}
    assert within.restart(within.at).step() == [b"b1", b"b2", b"c"]
    world.pulsar.cursor(NAME, "reports", EntryPosition(ledger, 1))
    assert world.stream(subscription="reports").begin().step() == [b"c"]
    timed = world.stream(startingtimestamp=1_600_000_000_000).begin()
    assert timed.step() == [b"b0", b"b1", b"b2", b"c"]
    assert timed.at["from"] == 1_600_000_000_000
    assert "beyond the end" in refused(
        InvalidArgumentError, world.stream(startingoffsets=json.dumps({"orders": f"{ledger}:9"})).begin
    )
    assert "near names" in refused(NoSuchTopicError, world.stream(topic="order").begin)


def test_limits_share_a_micro_batch_between_partitions(world: SparkWorld) -> None:
    world.pulsar.partitioned(NAME, 2)
    for part in PARTS[:2]:
        for number in range(3):
            world.ledger(part, plain(*(b"%d%d" % (number, each) for each in range(4))))
    stream = world.stream(maxentriespertrigger=5).begin()
    steps = [stream.step() for _ in range(6)]
    assert [len(each) for each in steps] == [5, 5, 5, 5, 4, 0]
    wanted = sorted([b"%d%d" % (n, each) for n in range(3) for each in range(4)] * 2)
    assert sorted(value for step in steps for value in step if value is not None) == wanted
    everything = world.stream(maxentriespertrigger=5).begin()
    assert len(everything.step(ReadAllAvailable())) == 24


def test_available_now_ends_where_the_topic_ended(world: SparkWorld) -> None:
    written = world.ledger(NAME, plain(b"a", b"b", b"c"), is_open=True)
    append(world, written)
    stream = world.stream(maxentriespertrigger=2).begin()
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.step() == [b"a", b"b"]
    append(world, written, *plain(b"later"))
    assert stream.step() == [b"c"]
    end = dict(stream.at)
    assert stream.step() == []
    assert stream.at == end


def test_a_batch_waits_for_enough_entries(world: SparkWorld) -> None:
    written = world.ledger(NAME, plain(b"a"), is_open=True)
    append(world, written)
    stream = world.stream(minentriespertrigger=3).begin()
    assert stream.step() == [b"a"]
    append(world, written, *plain(b"b", b"c"))
    assert stream.step() == []
    append(world, written, *plain(b"d"))
    assert stream.step() == [b"b", b"c", b"d"]


@pytest.mark.parametrize("seed", range(3))
def test_every_message_comes_once_and_a_repeated_batch_is_the_same(world: SparkWorld, seed: int) -> None:
    """Chunks across micro-batches, ledgers that roll, restarts from the checkpoint, and batches that are repeated."""
    chance = random.Random(seed)
    written = world.ledger(NAME, [], is_open=True)
    stream = world.stream(maxentriespertrigger=4, maxentriesperpartition=2).begin()
    found, batches = list[bytes | None](), list[Any]()
    for number in range(30):
        if chance.random() < 0.5:
            uuid = b"u%d" % chance.randrange(3)
            append(world, written, kit.chunk(chance.randrange(3), b"%03d" % number, count=3, total=9, uuid=uuid))
        else:
            append(world, written, kit.entry(b"%d" % number))
        if chance.random() < 0.15:
            world.call(world.pulsar.roll(NAME, written))
            written = world.ledger(NAME, [], is_open=True)
        if chance.random() < 0.3:
            start, rows = stream.at, stream.step()
            found += rows
            batches.append((start, stream.at, rows))
        if chance.random() < 0.2:
            stream = stream.restart(stream.at)
    while rows := stream.step():
        found += rows
    wanted = world.call(world.pulsar.topic(NAME).to_arrow())["value"].to_pylist()
    while stream.latest() != stream.at:
        found += stream.step()
    assert found == wanted
    for start, end, rows in batches:
        assert stream.restart(start).rows(start, end) == rows


def test_a_stream_of_committed_messages_waits_for_open_transactions(world: SparkWorld) -> None:
    world.pulsar.set(f"/managed-ledgers/public/default/persistent/{SNAPSHOTS}", b"")
    written = world.ledger(NAME, [kit.entry(b"a"), txn(b"c", 1), txn(b"x", 2), kit.entry(b"d")], is_open=True)
    append(world, written)
    stream, dirty = world.stream().begin(), world.stream(isolation="read_uncommitted").begin()
    assert stream.step() == [b"a"]
    append(world, written, marker(22, 2))
    assert stream.step() == []
    append(world, written, marker(21, 1), txn(b"open", 3))
    start = stream.at
    assert stream.step() == [b"c", b"d"]
    assert stream.restart(start).rows(start, stream.at) == [b"c", b"d"]
    assert dirty.step() == [b"a", b"c", b"x", b"d", b"open"]


def test_an_entry_that_bookies_do_not_call_confirmed_any_more_is_read_again(world: SparkWorld) -> None:
    """As after a broker said where the end is, and the query starts again without its answer."""
    written = world.ledger(NAME, plain(b"a", b"b", b"c"), is_open=True)
    stream = world.stream().begin()
    ledger = written.ledger_id
    end = {**stream.at, "topics": {NAME: f"{ledger}:3"}}
    assert stream.rows(stream.at, end) == [b"a", b"b", b"c"]
    world.call(world.pulsar.roll(NAME, written))
    too_far = {**stream.at, "topics": {NAME: f"{ledger}:4"}}
    assert "micro-batch" in refused(NoSuchEntryError, lambda: stream.rows(stream.at, too_far))


def test_a_batch_is_not_planned_from_less_than_it_was_made_of(world: SparkWorld) -> None:
    written = world.ledger(NAME, plain(b"a"), is_open=True)
    stream = world.stream(metadatatimeout="100ms").begin()
    end = {**stream.at, "topics": {NAME: f"{written.ledger_id + 1}:1"}}
    assert "start the query again" in refused(MetadataUnavailableError, lambda: stream.rows(stream.at, end))


def test_a_checkpoint_belongs_to_its_cluster_and_topics(world: SparkWorld) -> None:
    world.ledger(NAME, plain(b"a"))
    stream = world.stream().begin()
    other = stream.restart({**stream.at, "cluster": "another"})
    refused(ClusterMismatchError, other.latest)
    strange = stream.restart({**stream.at, "topics": {f"{NAME}2": "1:2"}})
    assert "something else" in refused(InvalidArgumentError, strange.latest)
    assert "no offset of topics" in refused(InvalidArgumentError, stream.restart({"v": 1, "logs": {}}).latest)


def test_the_lag_is_the_distance_to_the_end(world: SparkWorld) -> None:
    world.ledger(NAME, plain(b"a", b"b"))
    stream = world.stream(maxentriespertrigger=1).begin()
    assert stream.step() == [b"a"]
    assert Stream.restart(stream, stream.at).reader.reportLatestOffset()["topics"].keys() == {NAME}
    assert stream.reader.reportLatestOffset()["topics"][NAME].endswith(":2")
    stream.reader.stop()


def test_a_broker_shows_the_last_message_of_an_idle_topic(
    world: SparkWorld, port: AdminPort, caplog: pytest.LogCaptureFixture
) -> None:
    """While it does not answer, the stream follows what bookies know."""
    written = world.ledger(NAME, plain(b"a", b"b"), is_open=True)
    stats = "/admin/v2/persistent/public/default/orders/internalStats"
    port.answers[stats] = (200, json.dumps({"lastConfirmedEntry": f"{written.ledger_id}:1"}).encode())
    assert world.values() == [b"a"]
    assert world.values(pulsaradminurl=port.url) == [b"a", b"b"]
    stream = world.stream(pulsaradminurl=port.url).begin()
    assert stream.step() == [b"a", b"b"]
    port.answers[stats] = (503, b"")
    world.call(written.append(kit.entry(b"c")))
    world.call(written.append(kit.entry(b"d")))
    assert stream.step() == [b"c"]
    assert "until a broker answers, the topic is followed to its LAC" in caplog.text
    assert "admin address" in refused(
        MetadataUnavailableError, lambda: world.values(pulsaradminurl=port.url, metadatatimeout="100ms")
    )
