# SPDX-License-Identifier: Apache-2.0
"""Entries that are received while others are made into rows: joined, in order, bounded, and ended with their reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from bk_core.entries.batch import EntryBatch
from bk_core.model import LedgerMetadata
from bk_core.pulsar import gathering
from bk_core.pulsar.gathering import (
    ENOUGH_BYTES,
    JOINED_BYTES_MAX,
    WAITING_BYTES_MAX,
    Received,
    follows,
    gathered,
    joined,
)
from bk_core.pulsar.model.plan import TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from tests.kit.pulsar_entries import ledger

TOPIC = TopicName("public", "default", "x")


def piece(ledger_id: int) -> TopicRange:
    metadata = LedgerMetadata(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, fragments=())
    return TopicRange(TOPIC, ledger_id, metadata, 0, 1_000_000, 0)


async def source(batches: Sequence[EntryBatch], fails: bool = False) -> AsyncGenerator[Received, None]:
    for batch in batches:
        yield piece(batch.ledger_id), batch
        await asyncio.sleep(0)
    if fails:
        raise ValueError("the end")


async def test_what_came_meanwhile_is_joined_by_ledger() -> None:
    batches = [ledger([b"%d" % n], ledger_id=1 + n // 5, first=n % 5) for n in range(10)]
    found = list[EntryBatch]()
    async with aclosing(gathered(source(batches))) as taken:
        async for at, some in taken:
            batch = joined(some)
            assert at.ledger_id == batch.ledger_id
            found.append(batch)
            await asyncio.sleep(0.02)  # all others come meanwhile
    assert [entry for batch in found for entry in batch.to_list()] == [b"%d" % n for n in range(10)]
    assert [batch.ledger_id for batch in found] == [1, 1, 2]
    assert found[1].entry_ids().tolist() == [1, 2, 3, 4]


async def test_the_reader_waits_a_short_time_for_as_much_as_it_took_before_or_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quarter, come = ENOUGH_BYTES // 4, asyncio.Event()

    async def slow() -> AsyncGenerator[Received, None]:
        yield piece(1), ledger([b"a"], first=0)
        await asyncio.sleep(0.01)
        yield piece(1), ledger([b"b"], first=1)
        await asyncio.sleep(0.01)
        for number in range(3):  # three quarters are less than enough
            yield piece(1), ledger([bytes(quarter)] * 3, first=2 + 3 * number)
            await asyncio.sleep(0.01)
        await come.wait()
        yield piece(1), ledger([b"c"], first=11)
        await asyncio.Event().wait()

    async with aclosing(gathered(slow())) as taken:
        monkeypatch.setattr(gathering, "GATHER_S", 60.0)
        found = [len(joined((await anext(taken))[1])) for _ in range(4)]
        monkeypatch.setattr(gathering, "GATHER_S", 0.01)
        come.set()
        found.append(len(joined((await anext(taken))[1])))
    assert found == [1, 1, 3, 6, 1], "the last one waited in vain"


def test_joined_entries_keep_their_heads() -> None:
    plain = ledger([b"a"], first=0)
    kept = replace(ledger([b"head, b", b"c"], first=1), heads=np.array([6, 0], dtype=np.uint32))
    assert joined([plain, plain]).heads is None
    assert joined([plain, kept]).heads.tolist() == [0, 6, 0]


def test_entries_that_name_their_ids_follow_nothing_because_joining_would_lose_the_ids() -> None:
    before, plain = ledger([b"a"], first=0), ledger([b"b", b"c"], first=1)
    named = replace(plain, ids=np.array([1, 3]))
    assert follows(before, plain)
    assert not follows(before, named)


async def test_entries_that_do_not_follow_each_other_are_not_joined() -> None:
    batches = [ledger([b"a"], first=0), ledger([b"b"], first=5), ledger([b"c"], first=6)]
    async with aclosing(gathered(source(batches))) as taken:
        await asyncio.sleep(0.02)
        found = [joined(some).entry_ids().tolist() async for _, some in taken]
    assert sorted(id for ids in found for id in ids) == [0, 5, 6]
    assert [0] in found


async def test_error_comes_after_the_entries_before_it() -> None:
    found = list[bytes]()

    async def read() -> None:
        async with aclosing(gathered(source([ledger([b"a"]), ledger([b"b"], first=1)], fails=True))) as taken:
            async for _, some in taken:
                found.extend(joined(some).to_list())
                await asyncio.sleep(0.01)

    with pytest.raises(ValueError, match="the end"):
        await read()
    assert found == [b"a", b"b"]


async def test_source_that_is_cancelled_is_not_taken_for_one_that_has_ended() -> None:
    async def cancelled() -> AsyncGenerator[Received, None]:
        yield piece(1), ledger([b"a"])
        raise asyncio.CancelledError

    async with aclosing(gathered(cancelled())) as taken:
        assert joined((await anext(taken))[1]).to_list() == [b"a"]
        with pytest.raises(asyncio.CancelledError):
            await anext(taken)


async def test_what_waits_is_bounded_and_its_source_ends_with_the_reader() -> None:
    given, ended = 0, False

    async def endless() -> AsyncGenerator[Received, None]:
        nonlocal given, ended
        try:
            while True:
                yield piece(1), ledger([bytes(1 << 20)], ledger_id=1, first=given)
                given += 1
        finally:
            ended = True

    async with aclosing(gathered(endless())) as taken:
        await anext(taken)
        await asyncio.sleep(0.05)
        assert given <= (WAITING_BYTES_MAX + JOINED_BYTES_MAX >> 20) + 2
        _, some = await anext(taken)
        assert sum(batch.payload_bytes for batch in some) <= JOINED_BYTES_MAX + (1 << 20)
    assert ended
