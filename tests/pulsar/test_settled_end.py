# SPDX-License-Identifier: Apache-2.0
"""The last messages of an idle topic without a broker: an ack quorum of bookies has them (P15, decision 76)."""

from __future__ import annotations

import asyncio
import json

import pytest

from bk_core.errors import InvalidArgumentError
from bk_core.pulsar.lookup.settled_end import SettledEnd
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.topic_name import TopicName
from tests.kit import pulsar_entries as kit
from tests.kit.pulsar_world import plain, pulsar_world
from tests.pulsar.test_broker import AdminPort
from tests.pulsar.test_topic import NAME, following, txn, values

pytestmark = pytest.mark.rule("P15")
ADMIN = "/admin/v2/persistent/public/default"
SETTLE_MS = 300


async def test_last_message_of_an_idle_topic_is_read_after_the_settle_time_and_nothing_is_fenced() -> None:
    async with asyncio.timeout(20), pulsar_world() as world:
        written = await world.ledger(NAME, plain(b"a", b"b", b"c"), is_open=True)
        assert await values(world.topic(NAME)) == [b"a", b"b"]
        began = asyncio.get_running_loop().time()
        topic = world.topic(NAME, quorum_settle_ms=SETTLE_MS)
        assert await values(topic) == [b"a", b"b", b"c"]
        assert asyncio.get_running_loop().time() - began >= SETTLE_MS / 1000
        (plan,) = await topic.plan()
        assert plan.ranges[-1].last == 2
        await written.append(kit.entry(b"d"))
        assert await values(topic) == [b"a", b"b", b"c", b"d"]


async def test_settle_times_of_partitions_run_at_the_same_time() -> None:
    async with asyncio.timeout(20), pulsar_world() as world:
        world.partitioned(NAME, 5)
        for number in range(5):
            await world.ledger(f"{NAME}-partition-{number}", plain(b"%d" % number), is_open=True)
        topic, loop = world.topic(NAME, quorum_settle_ms=500), asyncio.get_running_loop()
        began = loop.time()
        assert await values(topic) == [b"%d" % number for number in range(5)]
        assert loop.time() - began < 2


async def test_read_that_ends_where_the_lac_is_does_not_wait() -> None:
    async with asyncio.timeout(20), pulsar_world() as world:
        closed = await world.ledger(NAME, plain(b"a"))
        written = await world.ledger(NAME, plain(b"b", b"c"), is_open=True)
        topic = world.topic(NAME, quorum_settle_ms=600_000)
        assert await values(topic, end=EntryPosition(closed.ledger_id, 1)) == [b"a"]
        assert await values(topic, end=EntryPosition(written.ledger_id, 1)) == [b"a", b"b"]


async def test_topic_without_ledgers_or_with_a_closed_one_is_not_waited_for() -> None:
    async with asyncio.timeout(20), pulsar_world() as world:
        world.partitioned(NAME, 2)
        await world.ledger(f"{NAME}-partition-1", plain(b"a"))
        assert await values(world.topic(NAME, quorum_settle_ms=600_000)) == [b"a"]


async def test_end_is_the_greatest_of_the_lac_the_quorum_and_the_broker() -> None:
    async with asyncio.timeout(30), pulsar_world() as world:
        written = await world.ledger(NAME, plain(b"a", b"b", b"c"), is_open=True)
        port = AdminPort()
        try:
            for said in (0, 1, 2):
                answer = {"lastConfirmedEntry": f"{written.ledger_id}:{said}"}
                port.answers[f"{ADMIN}/{TopicName.parse(NAME).local}/internalStats"] = 200, json.dumps(answer).encode()
                topic = world.topic(NAME, quorum_settle_ms=50, admin_url=port.url)
                assert await values(topic) == [b"a", b"b", b"c"]
        finally:
            port.close()


@pytest.mark.long
async def test_tail_shows_what_the_lac_confirms_at_once_and_the_rest_after_the_settle_time() -> None:
    async with asyncio.timeout(30), pulsar_world() as world:
        written = await world.ledger(NAME, plain(b"a", b"b"), is_open=True)
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with world.topic(NAME, quorum_settle_ms=1000).tail(columns=["value"]) as tail:
            assert await following(world, tail, 1) == [b"a"]
            assert loop.time() - began < 1
            assert await following(world, tail, 1) == [b"b"]
            assert loop.time() - began >= 1
            await written.append(kit.entry(b"c"))
            await written.append(kit.entry(b"d"))
            appended = loop.time()
            assert await following(world, tail, 1) == [b"c"], "confirmed by the one behind it"
            assert loop.time() - appended < 1
            await world.roll(NAME, written)
            await world.ledger(NAME, plain(b"e"), is_open=True)
            assert await following(world, tail, 2) == [b"d", b"e"]


async def test_tail_of_several_partitions_shows_all_last_messages_after_one_settle_time() -> None:
    async with asyncio.timeout(30), pulsar_world() as world:
        world.partitioned(NAME, 3)
        for number in range(3):
            await world.ledger(f"{NAME}-partition-{number}", plain(b"%d" % number), is_open=True)
        began = asyncio.get_running_loop().time()
        async with world.topic(NAME, quorum_settle_ms=500).tail(columns=["value"]) as tail:
            assert sorted(await following(world, tail, 3)) == [b"0", b"1", b"2"]
        assert asyncio.get_running_loop().time() - began < 1.5


async def test_transaction_above_the_lac_holds_a_read_back() -> None:
    async with asyncio.timeout(20), pulsar_world() as world:
        await world.ledger(NAME, [kit.entry(b"a"), txn(b"b", 1), kit.entry(b"c")], is_open=True)
        topic = world.topic(NAME, quorum_settle_ms=50)
        assert await values(topic) == [b"a"]
        assert await values(topic, isolation="read_uncommitted") == [b"a", b"b", b"c"]


async def test_negative_settle_time_is_refused() -> None:
    async with pulsar_world() as world:
        with pytest.raises(InvalidArgumentError, match="quorum_settle_ms"):
            world.topic(NAME, quorum_settle_ms=-1)


async def test_information_about_a_topic_does_not_wait() -> None:
    async with asyncio.timeout(10), pulsar_world() as world:
        await world.ledger(NAME, plain(b"a", b"b"), is_open=True)
        info = await world.topic(NAME, quorum_settle_ms=600_000).info()
        assert info.partitions[0].end.source == "lac"


async def test_end_of_one_ledger_says_nothing_of_the_next() -> None:
    async with asyncio.timeout(20), pulsar_world() as world:
        before = await world.ledger(NAME, plain(b"a", b"b"), is_open=True)
        after = await world.ledger(NAME, plain(b"c"), is_open=True)
        settled = SettledEnd(50, follows=False)
        async with await world.bookkeeper.open_ledger(before.ledger_id, recover=False) as reader:
            await settled.wait(reader)
            assert settled.known(reader, 0) == 1
        async with await world.bookkeeper.open_ledger(after.ledger_id, recover=False) as reader:
            assert settled.known(reader, -1) == -1
            await settled.wait(reader)
            assert settled.known(reader, -1) == 0


async def test_failed_search_in_the_background_is_repeated() -> None:
    async with asyncio.timeout(20), pulsar_world() as world:
        written = await world.ledger(NAME, plain(b"a", b"b"), is_open=True)
        closed = await world.bookkeeper.open_ledger(written.ledger_id, recover=False)
        await closed.close()
        settled = SettledEnd(100, follows=True)
        for _ in range(5):
            assert settled.known(closed, 0) == 0
            await asyncio.sleep(0.02)
        async with await world.bookkeeper.open_ledger(written.ledger_id, recover=False) as reader:
            while settled.known(reader, 0) == 0:
                await asyncio.sleep(0.01)
            assert settled.known(reader, 0) == 1
            await settled.close()


async def test_search_in_the_background_is_given_up_when_the_lac_moves() -> None:
    async with asyncio.timeout(20), pulsar_world() as world:
        written = await world.ledger(NAME, plain(b"a", b"b"), is_open=True)
        async with await world.bookkeeper.open_ledger(written.ledger_id, recover=False) as reader:
            settled = SettledEnd(500, follows=True)
            assert settled.known(reader, 0) == 0
            await asyncio.sleep(0.1)
            assert settled.known(reader, 0) == 0  # the search begins
            assert settled._search is not None
            await written.append(kit.entry(b"c"))
            assert settled.known(reader, 1) == 1
            assert settled._search is None
            while settled.known(reader, 1) == 1:
                await asyncio.sleep(0.01)
            assert settled.known(reader, 1) == 2
            await settled.close()
