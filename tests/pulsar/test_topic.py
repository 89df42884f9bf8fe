# SPDX-License-Identifier: Apache-2.0
"""Topics read from ledgers in memory: selection, positions, the end, transactions, compaction, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bk_core.errors import (
    BookKeeperError,
    CorruptMessageError,
    InvalidArgumentError,
    LedgerOffloadedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchTopicError,
    OffloadMissingError,
    UnsupportedTopicError,
    WrongPasswordError,
)
from bk_core.model import LedgerState
from bk_core.pulsar.messages import decoder
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds, TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.offloaded.access import OffloadStorage
from bk_core.pulsar.planning import TopicEnd
from bk_core.pulsar.proto import managed_ledger_pb2 as proto
from bk_core.pulsar.reading import MADE_TOGETHER
from bk_core.pulsar.tailing import POLL_S
from bk_core.pulsar.topic import Topic
from tests.kit import pulsar_entries as kit
from tests.kit.offloaded import uuid_of
from tests.kit.pulsar_world import PulsarWorld, plain, pulsar_world

NAME = "persistent://public/default/orders"


async def values(topic: Topic, *where: Any, **how: Any) -> list[bytes | None]:
    table = await topic.to_arrow(*where, columns=["value"], **how)
    found: list[bytes | None] = table["value"].to_pylist()
    return found


def txn(value: bytes, number: int) -> bytes:
    return kit.entry(value, txnid_most_bits=1, txnid_least_bits=number)


def marker(kind: int, number: int) -> bytes:
    return kit.entry(marker_type=kind, txnid_most_bits=1, txnid_least_bits=number)


async def test_topic_is_read_across_its_ledgers() -> None:
    async with pulsar_world() as world:
        first = await world.ledger(NAME, plain(b"a", b"b"))
        await world.ledger(NAME, [])
        last = await world.ledger(NAME, [kit.batch_entry([kit.single(b"c"), kit.single(b"d")])])
        table = await world.topic("orders").to_arrow()
        assert table["value"].to_pylist() == [b"a", b"b", b"c", b"d"]
        assert [MessageId.deserialize(each) for each in table["__messageId"].to_pylist()] == [
            MessageId(first.ledger_id, 0),
            MessageId(first.ledger_id, 1),
            MessageId(last.ledger_id, 0, -1, 0, 2),
            MessageId(last.ledger_id, 0, -1, 1, 2),
        ]
        assert table["__topic"].to_pylist() == [NAME] * 4


async def test_open_ledger_is_read_to_its_lac_and_never_fenced() -> None:
    async with pulsar_world() as world:
        written = await world.ledger(NAME, plain(b"a", b"b"), is_open=True)
        await written.write_lac()
        assert await values(world.topic(NAME)) == [b"a", b"b"]
        await written.append(kit.entry(b"c"))
        await written.write_lac()
        assert await values(world.topic(NAME)) == [b"a", b"b", b"c"]
        metadata = (await world.bookkeeper.read_metadata(written.ledger_id)).value
        assert metadata.state is LedgerState.OPEN


async def test_partitions_are_read_one_after_the_other_with_their_names() -> None:
    async with pulsar_world() as world:
        world.partitioned(NAME, 3)
        await world.ledger(f"{NAME}-partition-0", plain(b"a"))
        await world.ledger(f"{NAME}-partition-2", plain(b"c"))
        table = await world.topic(NAME).to_arrow(columns=["value", "__topic", "__partition", "__messageId"])
        assert table["value"].to_pylist() == [b"a", b"c"]
        assert table["__partition"].to_pylist() == [0, 2]
        assert table["__topic"].to_pylist() == [f"{NAME}-partition-0", f"{NAME}-partition-2"]
        assert [MessageId.deserialize(each).partition for each in table["__messageId"].to_pylist()] == [0, 2]
        assert await values(world.topic(f"{NAME}-partition-2")) == [b"c"]
        assert await values(world.topic(f"{NAME}-partition-1")) == []
        with pytest.raises(NoSuchTopicError):
            await values(world.topic(f"{NAME}-partition-3"))


async def test_positions_choose_messages_within_batches_too() -> None:
    async with pulsar_world() as world:
        batch = kit.batch_entry([kit.single(b"b0"), kit.single(b"b1"), kit.single(b"b2")])
        ledger = (await world.ledger(NAME, [kit.entry(b"a"), batch, kit.entry(b"c")])).ledger_id
        topic = world.topic(NAME)
        middle = MessageId(ledger, 1, -1, 1, 3)
        assert await values(topic, middle) == [b"b1", b"b2", b"c"]
        assert await values(topic, middle.serialize()) == [b"b1", b"b2", b"c"]
        assert await values(topic, after=middle) == [b"b2", b"c"]
        assert await values(topic, after=MessageId(ledger, 1, -1, 2, 3)) == [b"c"]
        assert await values(topic, end=middle) == [b"a", b"b0"]
        assert await values(topic, f"{ledger}:1") == [b"b0", b"b1", b"b2", b"c"]
        assert await values(topic, after=EntryPosition(ledger, 1)) == [b"c"]
        assert await values(topic, middle, MessageId(ledger, 2)) == [b"b1", b"b2"]
        assert await values(topic, middle, middle) == []
        assert await values(topic, EntryPosition(ledger, 9)) == []


async def test_chunked_message_is_read_by_the_read_that_has_its_last_chunk() -> None:
    """So reads that follow each other give it once, also if it began before the second."""
    async with pulsar_world() as world:
        first = await world.ledger(NAME, [chunk(0, b"a"), kit.entry(b"x"), chunk(1, b"b")])
        second = await world.ledger(NAME, [kit.entry(b"y"), chunk(2, b"c"), kit.entry(b"z")])
        topic, x = world.topic(NAME), EntryPosition(first.ledger_id, 1)
        assert await values(topic, end=EntryPosition(second.ledger_id, 1)) == [b"x", b"y"]
        assert await values(topic, after=x) == [b"y", b"abc", b"z"]
        assert await values(topic, EntryPosition(second.ledger_id, 1)) == [b"abc", b"z"]
        assert await values(topic, EntryPosition(second.ledger_id, 2)) == [b"z"]
        whole = MessageId.deserialize((await topic.to_arrow())["__messageId"][2].as_py())
        assert whole == MessageId(second.ledger_id, 1, first_chunk=EntryPosition(first.ledger_id, 0))
        assert await values(topic, whole) == [b"abc", b"z"]
        assert await values(topic, after=whole) == [b"z"]
        async with topic.tail(columns=["value"], after=x) as tail:
            assert await following(world, tail, 3) == [b"y", b"abc", b"z"]
        await world.trim(NAME)
        assert await values(topic, EntryPosition(second.ledger_id, 0)) == [b"y", b"z"]


async def test_chunks_of_a_message_are_joined_although_entries_before_the_first_take_long() -> None:
    slow = [kit.entry(b"%d" % number, compression=2) for number in range(2000)]
    async with pulsar_world() as world:
        await world.ledger(NAME, [*slow, chunk(0, b"a")])
        await world.ledger(NAME, [chunk(1, b"b")])
        await world.ledger(NAME, [chunk(2, b"c"), kit.entry(b"z")])
        assert (await values(world.topic(NAME)))[2000:] == [b"abc", b"z"]


async def test_entries_with_many_record_batches_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "BYTES_AT_ONCE", 100)  # a batch has few entries then
    async with pulsar_world() as world:
        wanted = [b"%04d" % number for number in range(200)]
        await world.ledger(NAME, plain(*wanted[:150]))
        await world.ledger(NAME, plain(*wanted[150:]))
        table = await world.topic(NAME).to_arrow(columns=["value"])
        assert table["value"].num_chunks > 2 * MADE_TOGETHER
        assert table["value"].to_pylist() == wanted


def chunk(number: int, body: bytes) -> bytes:
    return kit.entry(
        body, uuid=b"u", chunk_id=number, num_chunks_from_msg=3, total_chunk_msg_size=3, publish_time=1 + number
    )


async def test_publish_time_chooses_messages() -> None:
    async with pulsar_world() as world:
        await world.ledger(NAME, [kit.entry(b"%d" % n, publish_time=1000 + n) for n in range(5)])
        assert await values(world.topic(NAME), published_from=1003) == [b"3", b"4"]


async def test_positions_that_cannot_be_are_refused() -> None:
    async with pulsar_world() as world:
        world.partitioned(NAME, 2)
        await world.ledger(f"{NAME}-partition-1", plain(b"a", b"b"))
        topic = world.topic(NAME)
        for wrong in (MessageId(1, 0, 1), "1:0", 5, b"", "x"):
            with pytest.raises(InvalidArgumentError):
                await values(topic, wrong)
        with pytest.raises(InvalidArgumentError):
            await values(topic, {1: "0:0"}, after={1: "0:0"})
        found = await topic.to_arrow()
        ids = [MessageId.deserialize(each) for each in found["__messageId"].to_pylist()]
        assert await values(topic, {1: ids[1]}) == [b"b"]
        with pytest.raises(InvalidArgumentError):
            await values(topic, isolation="serializable")
        with pytest.raises(InvalidArgumentError):
            await values(topic, corrupt="null")


async def test_start_in_a_trimmed_ledger_is_an_error_and_the_begin_is_not() -> None:
    async with pulsar_world() as world:
        gone = await world.ledger(NAME, plain(b"a"))
        await world.ledger(NAME, plain(b"b"))
        await world.trim(NAME)
        assert await values(world.topic(NAME)) == [b"b"]
        with pytest.raises(NoSuchEntryError, match="trimmed"):
            await values(world.topic(NAME), EntryPosition(gone.ledger_id, 0))
        await world.trim(NAME)
        assert await values(world.topic(NAME)) == []


async def test_topics_that_are_not_there_are_named_with_what_is() -> None:
    async with pulsar_world() as world:
        await world.ledger(NAME, plain(b"a"))
        with pytest.raises(NoSuchTopicError, match="orders"):
            await values(world.topic("ordes"))
        with pytest.raises(NoSuchTopicError, match="public/default"):
            await values(world.topic("public/defaul/orders"))
        world.set(TopicName.parse("new").scalable_path, b"{}")
        with pytest.raises(UnsupportedTopicError, match="scalable"):
            await values(world.topic("new"))
        with pytest.raises(UnsupportedTopicError, match="non-persistent"):
            world.topic("non-persistent://public/default/x")


async def test_cluster_without_pulsar_says_so() -> None:
    async with pulsar_world() as world:
        world.cluster.store.tree.delete("/managed-ledgers")
        with pytest.raises(NoSuchTopicError, match="no metadata"):
            await values(world.topic("x"))


async def test_messages_of_transactions_are_shown_once_committed() -> None:
    async with pulsar_world() as world:
        await world.ledger(NAME, [kit.entry(b"1"), txn(b"2", 1), txn(b"3", 2), kit.entry(b"4")])
        topic = world.topic(NAME)
        assert await values(topic) == [b"1"]
        assert await values(topic, isolation="read_uncommitted") == [b"1", b"2", b"3", b"4"]
        await world.ledger(NAME, [marker(22, 1), kit.entry(b"5")])
        assert await values(topic) == [b"1"]
        await world.ledger(NAME, [marker(21, 2), txn(b"6", 3), kit.entry(b"7")])
        assert await values(topic) == [b"1", b"3", b"4", b"5"]
        assert await values(topic, isolation="read_uncommitted") == [b"%d" % n for n in range(1, 8)]


async def test_transaction_that_ends_behind_the_end_of_a_read_is_known() -> None:
    async with pulsar_world() as world:
        ledger = await world.ledger(NAME, [txn(b"1", 1), txn(b"2", 2), kit.entry(b"3"), marker(21, 1)])
        await world.ledger(NAME, [marker(22, 2), txn(b"4", 3)])
        assert await values(world.topic(NAME), end=EntryPosition(ledger.ledger_id, 3)) == [b"1", b"3"]
        assert await values(world.topic(NAME), end=EntryPosition(ledger.ledger_id, 1)) == [b"1"]


async def test_compacted_topic_shows_its_compacted_part_and_what_came_behind() -> None:
    async with pulsar_world() as world:
        topic = await world.ledger(NAME, [kit.entry(b"%d" % n, partition_key=b"k%d" % (n % 2)) for n in range(6)])
        at = topic.ledger_id
        compacted = await world.writer.create_ledger()
        for n in (2, 3):
            await compacted.append(
                kit.compacted(EntryPosition(at, n), kit.entry(b"%d" % n, partition_key=b"k%d" % (n % 2)))
            )
        await compacted.close()
        properties = {"CompactedTopicLedger": compacted.ledger_id}
        world.cursor(NAME, "__compaction", EntryPosition(at, 3), properties)
        found = await world.topic(NAME).to_arrow(compacted=True)
        assert found["value"].to_pylist() == [b"2", b"3", b"4", b"5"]
        ids = [MessageId.deserialize(each) for each in found["__messageId"].to_pylist()]
        assert ids == [MessageId(at, n) for n in (2, 3, 4, 5)]
        assert len(await values(world.topic(NAME))) == 6


@pytest.mark.parametrize("is_closed", [True, False])
async def test_cursor_in_a_ledger_of_its_own_is_found(is_closed: bool) -> None:
    """Also in the last entry of an open ledger, which bookies do not know to be confirmed."""
    async with pulsar_world() as world:
        await world.ledger(NAME, plain(b"a"))
        ledger = await world.writer.create_ledger()
        for entry_id in range(3):
            await ledger.append(proto.CursorPosition(ledger_id=5, entry_id=entry_id).SerializeToString())
        if is_closed:
            await ledger.close()
        record = proto.CursorInfo(cursors_ledger_id=ledger.ledger_id)
        world.set(TopicName.parse(NAME).managed_ledger_path + "/a+b", record.SerializeToString())
        info = await world.topic(NAME).info()
        assert info.partitions[0].cursors["a b"].mark_delete == EntryPosition(5, 2)


async def test_read_begins_where_a_subscription_stands() -> None:
    async with pulsar_world() as world:
        first = await world.ledger(NAME, plain(b"a", b"b"))
        second = await world.ledger(NAME, plain(b"c", b"d"))
        topic = world.topic(NAME)
        for at, expected in (
            ((first.ledger_id, -1), [b"a", b"b", b"c", b"d"]),
            ((first.ledger_id, 0), [b"b", b"c", b"d"]),
            ((second.ledger_id, 0), [b"d"]),
            ((second.ledger_id, 1), []),
        ):
            world.cursor(NAME, "reports", EntryPosition(*at))
            assert await values(topic, await topic.subscription("reports")) == expected
        world.cursor(NAME, "reports", EntryPosition(first.ledger_id, 1))
        await world.trim(NAME)
        assert await values(topic, await topic.subscription("reports")) == [b"c", b"d"]
        with pytest.raises(InvalidArgumentError, match="reports"):
            await topic.subscription("report")


async def test_offloaded_ledger_is_read_while_bookies_have_it_and_named_after() -> None:
    async with pulsar_world() as world:
        await world.ledger(NAME, plain(b"a"))
        second = await world.ledger(NAME, plain(b"b"))
        world.offload(NAME, 0, "filesystem", deleted=False)
        assert await values(world.topic(NAME)) == [b"a", b"b"]
        for driver in ("filesystem", "azureblob", "transient", "kodo"):
            world.offload(NAME, 0, driver, deleted=True)
            with pytest.raises(LedgerOffloadedError, match=driver):
                await values(world.topic(NAME))
        world.offload(NAME, 0, "aws-s3", deleted=False)
        bookies_first = OffloadStorage(read_priority="bookkeeper-first")
        assert await values(world.topic(NAME, offload=bookies_first)) == [b"a", b"b"]
        assert await values(world.topic(NAME), EntryPosition(second.ledger_id, 0)) == [b"b"]


async def test_topic_whose_last_ledger_cannot_be_read_is_described() -> None:
    """Where it ends is in its record. So is the end of a ledger whose entries a read does not want."""
    async with pulsar_world() as world:
        last = (await world.ledger(NAME, plain(b"a", b"b"))).ledger_id
        world.terminate(NAME, EntryPosition(last, 1))
        world.offload(NAME, 0, "filesystem", deleted=True)
        await world.writer.delete_ledger(last)
        (part,) = (await world.topic(NAME).info()).partitions
        assert (part.end, part.is_terminated) == (TopicEnd(EntryPosition(last, 1), "terminated"), True)
        assert await values(world.topic(NAME), EntryPosition(last, 2)) == []
        with pytest.raises(LedgerOffloadedError, match="Hadoop"):
            await values(world.topic(NAME), EntryPosition(last, 1))


async def test_offloaded_ledgers_are_read_from_object_storage(tmp_path: Path) -> None:
    async with pulsar_world() as world:
        entries = [kit.entry(bytes([n]) * (n * 20)) for n in range(60)]
        ledgers = [await world.ledger(NAME, entries[at : at + 20]) for at in range(0, 60, 20)]
        plain_rows = await world.topic(NAME).to_arrow()
        await world.offload_to(tmp_path, NAME, 0)
        await world.offload_to(tmp_path, NAME, 1, deleted=False)
        topic = world.topic(NAME, offload=OffloadStorage(uri=tmp_path.as_uri()))
        assert await topic.to_arrow() == plain_rows
        start = EntryPosition(ledgers[0].ledger_id, 7)
        assert (await topic.to_arrow(start)).num_rows == 53
        assert (await topic.to_arrow(start, EntryPosition(ledgers[1].ledger_id, 3))).num_rows == 16
        (tmp_path / f"{uuid_of(ledgers[1].ledger_id)}-ledger-{ledgers[1].ledger_id}").unlink()
        with pytest.raises(OffloadMissingError, match=f"ledger {ledgers[1].ledger_id} of {NAME}"):
            await world.topic(NAME, offload=OffloadStorage(uri=tmp_path.as_uri())).to_arrow()
        bookies = OffloadStorage(uri=tmp_path.as_uri(), read_priority="bookkeeper-first")
        assert await world.topic(NAME, offload=bookies).to_arrow() == plain_rows


async def test_ledger_that_is_offloaded_and_deleted_under_a_read_is_read_on(tmp_path: Path) -> None:
    async with pulsar_world() as world:
        for at in range(3):
            await world.ledger(NAME, plain(*(bytes([at, n]) for n in range(10))))
        topic = world.topic(NAME, offload=OffloadStorage(uri=tmp_path.as_uri()))
        before = await values(topic)
        nodes = await topic._cluster.nodes()
        planner = topic._cluster.planner(nodes, TopicName.parse(NAME))
        ranges = await planner.ranges(Bounds())
        await world.offload_to(tmp_path, NAME, 1)
        reads = topic._cluster.reads(planner.moved)
        found = [entry async for each in _all(ranges) async for batch in reads.read(each) for entry in batch.to_list()]
        assert len(found) == 30
        assert await values(topic) == before
        with pytest.raises(NoSuchLedgerError):
            async for _ in topic._cluster.reads().read(ranges[1]):
                pass
        left, _ = await topic._cluster.outcomes(planner).decide(ranges)
        assert left == ranges


async def test_chunks_and_transactions_cross_from_object_storage_to_bookies(tmp_path: Path) -> None:
    async with pulsar_world() as world:
        chunks = [
            kit.entry(b"abc"[n : n + 1], uuid=b"u", chunk_id=n, num_chunks_from_msg=3, total_chunk_msg_size=3)
            for n in range(3)
        ]
        await world.ledger(NAME, [kit.entry(b"first"), chunks[0], txn(b"in", 1), txn(b"out", 2)])
        second = await world.ledger(NAME, [chunks[1], marker(21, 1)])
        last = await world.ledger(NAME, [chunks[2], marker(22, 2), kit.entry(b"last")])
        topic = world.topic(NAME, offload=OffloadStorage(uri=tmp_path.as_uri()))
        before = await topic.to_arrow()
        assert before["value"].to_pylist() == [b"first", b"in", b"abc", b"last"]
        for number in (0, 1):
            await world.offload_to(tmp_path, NAME, number)
            assert await topic.to_arrow() == before
            assert await values(topic, EntryPosition(last.ledger_id, 0)) == [b"abc", b"last"]
            assert await values(topic, EntryPosition(second.ledger_id, 1)) == [b"abc", b"last"]


async def _all(ranges: list[TopicRange]) -> AsyncIterator[TopicRange]:
    for each in ranges:
        yield each


async def test_terminated_topic_ends_where_it_was_terminated() -> None:
    async with pulsar_world() as world:
        ledger = await world.ledger(NAME, plain(b"a", b"b", b"c"))
        world.terminate(NAME, EntryPosition(ledger.ledger_id, 1))
        assert await values(world.topic(NAME)) == [b"a", b"b"]
        async with world.topic(NAME).tail() as tail:
            assert sum([batch.num_rows async for batch in tail]) == 2
        info = await world.topic(NAME).info()
        assert info.partitions[0].is_terminated
        assert info.partitions[0].end.source == "terminated"


async def test_corrupt_entries_fail_or_are_left_out() -> None:
    async with pulsar_world() as world:
        await world.ledger(NAME, [kit.entry(b"a"), b"rubbish", kit.entry(b"c")])
        with pytest.raises(CorruptMessageError, match=NAME):
            await values(world.topic(NAME))
        assert await values(world.topic(NAME), corrupt="skip") == [b"a", b"c"]


async def test_password_of_the_ledgers_is_needed() -> None:
    async with pulsar_world() as world:
        await world.ledger(NAME, plain(b"a"))
        with pytest.raises(WrongPasswordError):
            await values(world.topic(NAME, password=b"other"))


async def following(world: PulsarWorld, tail: Any, count: int) -> list[bytes | None]:
    found = list[bytes | None]()
    async with asyncio.timeout(20):
        while len(found) < count:
            found += (await anext(tail))["value"].to_pylist()
    return found


@pytest.mark.long
async def test_tail_follows_appends_rolls_trims_and_new_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.pulsar.tailing.PARTITIONS_S", 0.1)
    async with pulsar_world() as world:
        world.partitioned(NAME, 1)
        zero = f"{NAME}-partition-0"
        written = await world.ledger(zero, plain(b"a"), is_open=True)
        await written.write_lac()
        async with world.topic(NAME).tail() as tail:
            assert await following(world, tail, 1) == [b"a"]
            await written.append(kit.entry(b"b"))
            await written.write_lac()
            assert await following(world, tail, 1) == [b"b"]
            await world.roll(zero, written)
            second = await world.ledger(zero, plain(b"c"), is_open=True)
            await second.write_lac()
            assert await following(world, tail, 1) == [b"c"]
            await world.trim(zero)
            await second.append(kit.entry(b"d"))
            await second.write_lac()
            assert await following(world, tail, 1) == [b"d"]
            await world.roll(zero, second)
            empty = await world.ledger(zero, [], is_open=True)
            step = asyncio.ensure_future(following(world, tail, 1))
            await asyncio.sleep(2 * POLL_S)  # the tail waits in the empty ledger
            await world.load(zero, empty)
            third = await world.ledger(zero, plain(b"e"), is_open=True)
            await third.write_lac()
            assert await step == [b"e"]
            world.partitioned(NAME, 2)
            await world.ledger(f"{NAME}-partition-1", plain(b"new"))
            assert await following(world, tail, 1) == [b"new"]


async def test_tail_from_latest_shows_only_what_comes() -> None:
    async with pulsar_world() as world:
        written = await world.ledger(NAME, plain(b"old"), is_open=True)
        await written.write_lac()
        async with world.topic(NAME).tail("latest") as tail:
            step = asyncio.ensure_future(following(world, tail, 1))
            await asyncio.sleep(0.3)
            await written.append(kit.entry(b"new"))
            await written.write_lac()
            assert await step == [b"new"]


async def test_tail_holds_back_what_is_undecided() -> None:
    async with pulsar_world() as world:
        written = await world.ledger(NAME, [kit.entry(b"1"), txn(b"2", 1), kit.entry(b"3")], is_open=True)
        await written.write_lac()
        async with world.topic(NAME).tail() as tail:
            assert await following(world, tail, 1) == [b"1"]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.8):
                    raise AssertionError(await anext(tail))
            for entry in (txn(b"4", 2), marker(22, 2), marker(21, 1)):
                await written.append(entry)
            await written.write_lac()
            assert await following(world, tail, 2) == [b"2", b"3"]


async def test_tail_ends_with_an_error_when_unread_messages_are_trimmed() -> None:
    async with pulsar_world() as world:
        first = await world.ledger(NAME, plain(b"a", b"b"))
        await world.ledger(NAME, plain(b"c"))
        await world.trim(NAME)
        with pytest.raises(NoSuchEntryError):
            async with world.topic(NAME).tail(after=EntryPosition(first.ledger_id, 0)) as tail:
                await anext(tail)


async def test_record_batch_reader_is_pulled_by_another_thread() -> None:
    async with pulsar_world() as world:
        await world.ledger(NAME, plain(*(b"%d" % n for n in range(100))))
        reader = await world.topic(NAME).record_batch_reader(columns=["value"])
        table = await asyncio.to_thread(reader.read_all)
        assert table["value"].to_pylist() == [b"%d" % n for n in range(100)]
        await world.ledger(NAME, [b"rubbish"])
        reader = await world.topic(NAME).record_batch_reader()
        with pytest.raises(pa.ArrowInvalid, match="BK_CORRUPT_MESSAGE"):
            await asyncio.to_thread(reader.read_all)


async def test_plan_has_all_that_a_reader_without_a_store_needs() -> None:
    async with pulsar_world() as world:
        first = await world.ledger(NAME, plain(*[b"x" * 1000] * 10))
        second = await world.ledger(NAME, plain(b"y"))
        (plan,) = await world.topic(NAME).plan(EntryPosition(first.ledger_id, 4))
        assert [(each.ledger_id, each.first, each.last) for each in plan.ranges] == [
            (first.ledger_id, 4, 9),
            (second.ledger_id, 0, 0),
        ]
        assert plan.end == EntryPosition(second.ledger_id, 1)
        assert plan.ranges[0].metadata.is_closed
        assert 6000 < plan.ranges[0].bytes < 8000
        pieces = list(plan.ranges[0].pieces(2500))
        assert [(each.first, each.last) for each in pieces] == [(4, 5), (6, 7), (8, 9)]


async def test_info_says_what_is_there() -> None:
    async with pulsar_world() as world:
        ledger = await world.ledger(NAME, plain(b"a"), is_open=True)
        await ledger.write_lac()
        world.cursor(NAME, "reports", EntryPosition(ledger.ledger_id, -1))
        info = await world.topic(NAME).info()
        (part,) = info.partitions
        assert not info.is_partitioned
        assert (part.end.last, part.end.source) == (EntryPosition(ledger.ledger_id, 0), "lac")
        assert list(part.cursors) == ["reports"]
        assert info.schema_versions == ()


async def test_schema_is_read_from_its_ledger() -> None:
    async with pulsar_world() as world:
        await world.ledger(NAME, plain(b"a"))
        index = list[proto.SchemaIndexEntry]()
        for version, text in enumerate((b"one", b"two")):
            ledger = await world.writer.create_ledger()
            info = proto.SchemaInfo(type=5, schema=text)
            await ledger.append(
                proto.SchemaEntry(schema_data=info.SerializeToString(), index=index).SerializeToString()
            )
            at = proto.Position(ledger_id=ledger.ledger_id, entry_id=0)
            index.append(proto.SchemaIndexEntry(version=version, position=at))
        locator = proto.SchemaLocator(info=index[-1], index=index[-1:])
        world.set(TopicName.parse(NAME).schema_path, locator.SerializeToString())
        found = await world.topic(NAME).schemas()
        assert [(each.version, each.kind, each.definition) for each in found] == [
            (0, "AVRO", b"one"),
            (1, "AVRO", b"two"),
        ]


async def test_metadata_elsewhere_have_a_uri_of_their_own() -> None:
    async with pulsar_world() as world:
        for wrong in ("etcd:http://x", "oxia://x:6648", "zk://", "x"):
            with pytest.raises((InvalidArgumentError, BookKeeperError), match="ZooKeeper only"):
                await values(world.topic(NAME, metadata_uri=wrong))
