# SPDX-License-Identifier: Apache-2.0
"""Leading a log over bookies in memory: takeover, rolls, lost leadership, cancellation, and each entry's offset."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from bk_core.client import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    EntryTooLargeError,
    InvalidArgumentError,
    LeadershipLostError,
    LedgerClosedError,
    NotEnoughBookiesError,
    Outcome,
    WindowFullError,
)
from bk_core.model import LedgerState
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX
from tests.kit.memory_cluster import FAST, hold, memory_cluster, release
from tests.kit.waiting import eventually
from tests.logs.leader_kit import log_of, one_log, read_all


@pytest.mark.rule("MUST15")
async def test_a_leader_writes_a_log_that_did_not_exist_and_seals_it() -> None:
    async with one_log() as (_cluster, bookkeeper, log):
        async with await log.lead() as leader:
            assert leader.created
            assert [await leader.append(b"%d" % n) for n in range(5)] == [0, 1, 2, 3, 4]
            assert leader.next_offset == 5
            last = await leader.append_batch(EntryBatch.from_list([b"5", b"6"]))
            assert last == 6
            await leader.wait_confirmed(last)
            while await log.end_offset() < 7:  # the last LAC travels in a hint (RULES P9)
                await asyncio.sleep(0.005)
            ledger_id = leader.ledger_id
        head = (await log.head()).value
        assert (head.open_extents, head.next_offset) == ((), 7)
        assert [e.ledger_id for e in head.tail] == [ledger_id]
        assert await read_all(log) == [b"%d" % n for n in range(7)]
        metadata = (await bookkeeper.read_metadata(ledger_id)).value
        assert metadata.state is LedgerState.CLOSED
        assert metadata.custom_metadata["bk.log.uuid"] == head.uuid.encode()
        assert metadata.custom_metadata["application"] == b"pyspark-bookkeeper"
        with pytest.raises(LedgerClosedError):
            await leader.append(b"after the end")
        with pytest.raises(LedgerClosedError):
            leader.append_nowait(b"after the end")
        await leader.close()
        async with await log.lead() as leader:
            assert not leader.created
            assert await leader.append(b"7") == 7


@pytest.mark.rule("MUST15", "N2")
async def test_a_takeover_fences_the_leader_and_keeps_every_confirmed_entry_at_its_offset() -> None:
    async with memory_cluster() as cluster:
        old = await log_of(cluster.client()).lead()
        for n in range(5):
            assert await old.append(b"old %d" % n) == n
        log = log_of(cluster.client())
        new = await log.lead()
        assert await new.append(b"new") == 5
        with pytest.raises(LeadershipLostError) as caught:
            await old.append(b"too late")
        assert caught.value.outcome is Outcome.UNKNOWN
        assert not old.is_leader
        with pytest.raises(LeadershipLostError):
            await old.close()
        with pytest.raises(LeadershipLostError):
            await old.roll()
        await new.close()
        assert await read_all(log) == [*(b"old %d" % n for n in range(5)), b"new"]


@pytest.mark.rule("N2")
async def test_no_entry_enters_the_next_ledger_before_the_previous_one_is_confirmed() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        leader = await log.lead()
        await leader.append(b"0")
        first = leader.ledger_id
        hold(cluster)
        waiting = leader.append_nowait(b"1")
        rolling = asyncio.create_task(leader.roll())
        await eventually(lambda: leader.ledger_id != first)
        assert leader.append_nowait(b"2") == waiting + 1
        with pytest.raises(EntryTooLargeError):
            leader.append_nowait(bytes(ENTRY_BYTES_MAX + 1))
        held = asyncio.create_task(leader.wait_confirmed(waiting + 1))
        await asyncio.sleep(0.02)
        assert not held.done()
        assert leader._appends.writer._machine.lap == -1  # nothing was sent
        release(cluster)
        await held
        await rolling
        assert leader.ledger_id != first
        assert await leader.append(b"3") == 3
        await leader.close()
        assert await read_all(log) == [b"0", b"1", b"2", b"3"]


async def test_what_is_held_in_a_roll_is_bounded() -> None:
    async with memory_cluster() as cluster:
        small = ClientConfig(window_bytes_max=1 << 20, frame_bytes=1 << 19)
        log = log_of(cluster.client(small))
        leader = await log.lead()
        await leader.append(b"0")
        hold(cluster)
        leader.append_nowait(b"1")
        first, rolling = leader.ledger_id, asyncio.create_task(leader.roll())
        await eventually(lambda: leader.ledger_id != first)
        for _ in range(10):
            leader.append_nowait(bytes(100_000))
        with pytest.raises(WindowFullError):
            leader.append_nowait(bytes(100_000))
        queued = leader.next_offset
        assert queued == 12
        late = asyncio.create_task(leader.append(bytes(100_000)))
        await asyncio.sleep(0.02)
        release(cluster)
        await rolling
        assert await late == queued
        await leader.close()
        assert await log.end_offset() == queued + 1


async def test_a_batch_that_waits_for_room_when_a_roll_begins_stays_in_one_piece() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client(ClientConfig(window_bytes_max=1 << 20, frame_bytes=1 << 18)))
        leader = await log.lead()
        await leader.append(b"0")
        hold(cluster)
        batch = asyncio.create_task(leader.append_batch(EntryBatch.from_list([bytes(100_000)] * 30)))
        await asyncio.sleep(0.02)
        first, rolling = leader.ledger_id, asyncio.create_task(leader.roll())
        await eventually(lambda: not leader._appends._gate.is_set())
        later = asyncio.create_task(leader.append_batch(EntryBatch.from_list([b"1"])))
        await asyncio.sleep(0.02)
        release(cluster)
        assert await batch == 30
        assert await later == 31
        await rolling
        await leader.close()
        assert await read_all(log) == [b"0", *[bytes(100_000)] * 30, b"1"]
        assert [e.entry_count for e in await log.extents()] == [31, 1]
        assert (await log.extents())[0].ledger_id == first


async def test_a_ledger_is_rolled_by_age_only_if_something_was_appended() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client())
        leader = await log.lead(roll_age_s=0.05)
        first = leader.ledger_id
        await asyncio.sleep(0.15)
        assert leader.ledger_id == first
        await leader.append(b"0")
        await eventually(lambda: leader.ledger_id != first)
        await leader.close()
        assert await read_all(log) == [b"0"]


async def test_still_leader_is_asked_before_a_roll_and_a_no_ends_leadership() -> None:
    async with memory_cluster() as cluster:
        answers = iter([True, False])
        threads: list[threading.Thread] = []

        def still_leader() -> bool:
            threads.append(threading.current_thread())
            return next(answers)

        leader = await log_of(cluster.client()).lead(still_leader=still_leader)
        await leader.append(b"0")
        await leader.roll()
        with pytest.raises(LeadershipLostError, match="still_leader"):
            await leader.roll()
        with pytest.raises(LeadershipLostError):
            await leader.append(b"1")
        assert threading.main_thread() not in threads


async def test_an_answer_of_still_leader_that_fails_counts_as_no() -> None:
    async with memory_cluster() as cluster:
        leader = await log_of(cluster.client()).lead(still_leader=lambda: 1 // 0 == 1)
        with pytest.raises(LeadershipLostError):
            await leader.roll()


async def test_a_roll_without_enough_bookies_goes_on_in_the_current_ledger() -> None:
    async with memory_cluster(3) as cluster:
        log = log_of(cluster.client())
        leader = await log.lead()
        await leader.append(b"0")
        cluster.store.unregister_bookie("b0")
        with pytest.raises(NotEnoughBookiesError):
            await leader.roll()
        assert await leader.append(b"1") == 1
        cluster.register("b0")
        await leader.roll()
        assert await leader.append(b"2") == 2
        await leader.close()
        assert await read_all(log) == [b"0", b"1", b"2"]


async def test_what_cannot_lead_does_not_fence_who_does() -> None:
    async with memory_cluster(3) as cluster:
        log = log_of(cluster.client())
        leader = await log.lead()
        other = log_of(cluster.client())
        for options, error in (
            ({"write_quorum_size": 4}, InvalidArgumentError),
            ({"roll_bytes": 0}, InvalidArgumentError),
            ({"ensemble_size": 4}, NotEnoughBookiesError),
        ):
            with pytest.raises(error):
                await other.lead(**options)
        assert await leader.append(b"0") == 0
        await leader.close()


@pytest.mark.rule("N6")
async def test_a_ledger_that_a_vacuum_deleted_meanwhile_is_not_listed() -> None:
    async with one_log() as (cluster, bookkeeper, log):
        leader = await log.lead()
        assert await leader.append(b"0") == 0
        create, deleted = bookkeeper.create_ledger, []

        async def and_pause_for_days(**options: Any) -> Any:
            writer = await create(**options)
            cluster.store.delete_ledger(writer.ledger_id)
            deleted.append(writer.ledger_id)
            return writer

        setattr(bookkeeper, "create_ledger", and_pause_for_days)  # noqa: B010 - mypy refuses the plain assignment
        with pytest.raises(LeadershipLostError):
            await leader.roll()
        listed = [each.ledger_id for each in await log.extents()]
        assert not set(deleted) & set(listed)
        setattr(bookkeeper, "create_ledger", create)  # noqa: B010 - mypy refuses the plain assignment
        async with await log.lead() as successor:
            assert await successor.append(b"1") == 1
        assert await read_all(log) == [b"0", b"1"]


async def test_an_application_that_is_cancelled_while_it_takes_over_gives_the_log_back() -> None:
    async with memory_cluster() as cluster:
        old = await log_of(cluster.client()).lead()
        await old.append(b"0")
        hold(cluster)  # so that the fence has no answer
        log = log_of(cluster.client())
        taking = asyncio.create_task(log.lead())
        await asyncio.sleep(0.05)
        taking.cancel()
        await asyncio.sleep(0.01)
        release(cluster)
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert not (await log.head()).value.open_extents
        assert await read_all(log) == [b"0"]


async def test_a_leader_that_is_closed_twice_and_one_that_leaves_with_an_error_are_both_sealed() -> None:
    async with memory_cluster() as cluster:
        log = log_of(cluster.client(FAST))
        leader = await log.lead()

        async def fail() -> None:
            async with leader:
                await leader.append(b"0")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        await leader.close()
        assert not (await log.head()).value.open_extents
        assert await read_all(log) == [b"0"]
