# SPDX-License-Identifier: Apache-2.0
"""A plan is read in pieces, each by a reader of its own that has no metadata store: together they give what one read
gives, wherever the pieces are cut."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from bk_core.client.detached import DetachedReader
from bk_core.entries.batch import EntryBatch
from bk_core.errors import UnsupportedTopicError
from bk_core.model import BookieServiceInfo
from bk_core.pulsar import planning
from bk_core.pulsar.cluster import PulsarAccess, PulsarCluster
from bk_core.pulsar.lookup.nodes import SNAPSHOTS
from bk_core.pulsar.messages.row_maker import RowMaker, committed
from bk_core.pulsar.messages.rows import schema_of
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import PartitionPlan, TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from tests.kit import pulsar_entries as kit
from tests.kit.pulsar_world import PulsarWorld, pulsar_world
from tests.pulsar.test_topic import NAME, marker, txn

SCHEMA = schema_of(["__messageId", "value"])
Row = tuple[MessageId, bytes]


async def fill(world: PulsarWorld) -> None:
    """Chunks of several messages across ledgers, one of them begun again, beside transactions and batches."""
    await world.ledger(
        NAME,
        [
            kit.entry(b"plain"),
            kit.chunk(0, b"a", count=3, total=3),
            txn(b"committed", 1),
            kit.chunk(0, b"x", count=2, total=2, uuid=b"v"),
            kit.chunk(1, b"b", count=3, total=3),
            kit.batch_entry([kit.single(b"b%d" % n) for n in range(3)]),
            kit.chunk(0, b"1", count=3, total=3, uuid=b"w"),
        ],
    )
    await world.ledger(
        NAME,
        [
            kit.chunk(1, b"2", count=3, total=3, uuid=b"w"),
            kit.chunk(2, b"3", count=3, total=3, uuid=b"w"),
            txn(b"aborted", 2),
            kit.chunk(0, b"y", count=2, total=2, uuid=b"v"),
            marker(21, 1),
            kit.chunk(2, b"c", count=3, total=3),
            kit.chunk(1, b"z", count=2, total=2, uuid=b"v"),
            kit.chunk(1, b"?", count=2, total=2, uuid=b"begin is trimmed"),
            marker(22, 2),
            txn(b"open", 3),
            kit.entry(b"behind"),
        ],
    )
    world.set(kit_path(), b"")


def kit_path() -> str:
    return f"/managed-ledgers/public/default/persistent/{SNAPSHOTS}"


async def entries_of(world: PulsarWorld, piece: TopicRange) -> list[EntryBatch]:
    async with await world.bookkeeper.open_ledger(piece.ledger_id, recover=False) as reader:
        return [batch async for batch in reader.read(piece.first, piece.last)]


async def read_piece(world: PulsarWorld, plan: PartitionPlan, pieces: Sequence[TopicRange], number: int) -> list[Row]:
    """What a task does: its own piece, behind what it lacks of messages that end there."""
    maker, found = RowMaker(plan.topic, SCHEMA), list[Any]()
    for batch in await entries_of(world, pieces[number]):
        heads = maker.heads(batch)
        if (look_back := maker.missing(heads)) is not None:
            for before in reversed(pieces[:number]):
                batches = [maker.heads(each) for each in await entries_of(world, before)]
                if not all(map(look_back.add, reversed(batches))):
                    break
            look_back.finish()
        keep = committed(heads, plan.aborted, decided=plan.decided)
        found += maker.rows(heads, plan.bounds, keep)
    return [(MessageId.deserialize(row["__messageId"]), row["value"]) for batch in found for row in batch.to_pylist()]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
async def test_pieces_together_give_what_one_read_gives(size: int) -> None:
    async with pulsar_world() as world:
        await fill(world)
        table = await world.topic(NAME).to_arrow(columns=SCHEMA.names)
        whole = [(MessageId.deserialize(row["__messageId"]), row["value"]) for row in table.to_pylist()]
        assert [value for _, value in whole] == [b"plain", b"committed", b"b0", b"b1", b"b2", b"123", b"abc", b"yz"]
        (plan,) = pickle.loads(pickle.dumps(await world.topic(NAME).plan()))
        assert plan.decided
        assert len(plan.aborted) == 1
        pieces = [
            each.part(first, min(first + size - 1, each.last))
            for each in plan.ranges
            for first in range(each.first, each.last + 1, size)
        ]
        found = [row for number in range(len(pieces)) for row in await read_piece(world, plan, pieces, number)]
        assert found == whole


async def test_plan_without_outcomes_refuses_messages_of_transactions() -> None:
    async with pulsar_world() as world:
        await fill(world)
        world.cluster.store.tree.delete(kit_path())
        (plan,) = await world.topic(NAME).plan()
        assert not plan.decided
        assert plan.ranges[-1].last == 10
        with pytest.raises(UnsupportedTopicError, match="outcomes of transactions"):
            await read_piece(world, plan, plan.ranges, 0)


async def test_plan_is_read_by_a_reader_without_a_metadata_store() -> None:
    """The metadata in the plan are enough, and an address of each bookie."""
    async with pulsar_world() as world:
        ledger = await world.ledger(NAME, [kit.entry(b"a"), kit.entry(b"b")])
        (plan,) = await world.topic(NAME).plan(EntryPosition(ledger.ledger_id, 1))
        (piece,) = plan.ranges
        infos = {name: BookieServiceInfo(name) for name in world.cluster.names}
        async with DetachedReader(infos, instance_id=world.bookkeeper.instance_id) as reader:
            reader._transport = world.cluster.network.transport()
            async for batch in reader.read(piece.ledger_id, piece.metadata, piece.first, piece.last):
                (rows,) = RowMaker(plan.topic, SCHEMA).rows(RowMaker(plan.topic, SCHEMA).heads(batch), plan.bounds)
                assert rows.column("value").to_pylist() == [b"b"]


async def test_plans_that_follow_each_other_give_each_message_once() -> None:
    """What a stream does, while ledgers roll and are trimmed and a transaction is open for a while."""
    async with pulsar_world() as world:
        world.set(kit_path(), b"")
        topic, start = world.topic(NAME), None

        async def micro_batch() -> list[bytes]:
            nonlocal start
            (plan,) = await topic.plan(start)
            start = plan.next_entry or start
            pieces = [*plan.history, *plan.ranges]
            numbers = range(len(plan.history), len(pieces))
            rows = [await read_piece(world, plan, pieces, number) for number in numbers]
            return [value for part in rows for _, value in part]

        written = await world.ledger(NAME, [kit.entry(b"1"), kit.chunk(0, b"2", count=2, total=2)], is_open=True)
        await written.write_lac()
        assert await micro_batch() == [b"1"]
        for entry in (kit.chunk(1, b"3", count=2, total=2), txn(b"4", 1), kit.entry(b"5")):
            await written.append(entry)
        await world.roll(NAME, written)
        assert await micro_batch() == [b"23"]
        assert start == EntryPosition(written.ledger_id, 3)
        await world.ledger(NAME, [marker(21, 1), kit.entry(b"6")])
        assert await micro_batch() == [b"4", b"5", b"6"]
        assert await micro_batch() == []
        await world.trim(NAME, 1)
        last = await world.ledger(NAME, [kit.entry(b"7")])
        assert await micro_batch() == [b"7"]
        assert start == EntryPosition(last.ledger_id, 1)


async def test_history_has_few_ledgers_that_bookies_have(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pulsar_world() as world:
        ledgers = [await world.ledger(NAME, [kit.entry(b"%d" % n), kit.entry(b"x")]) for n in range(6)]
        ids = [each.ledger_id for each in ledgers]
        start = EntryPosition(ids[4], 1)

        async def history(**limits: int) -> list[tuple[int, int, int]]:
            async with PulsarCluster(world.bookkeeper, PulsarAccess()) as cluster:
                planner = cluster.planner(await cluster.nodes(), TopicName.parse(NAME))
                found = await planner.history(start, **limits)
                assert await planner.history(start, **limits) == found
            return [(each.ledger_id, each.first, each.last) for each in found]

        whole = [(ids[n], 0, 1) for n in range(4)]
        assert await history() == [*whole, (ids[4], 0, 0)], "not the entry at the start, nor what follows it"
        assert await history(bytes_max=1) == [(ids[4], 0, 0)]
        monkeypatch.setattr(planning, "LOOK_BACK_RANGES", 3)
        assert await history() == [*whole[2:], (ids[4], 0, 0)]
        world.offload(NAME, 3, "filesystem", deleted=True)
        assert await history() == [(ids[4], 0, 0)], "a chunk is not looked for behind a ledger that is elsewhere"
