# SPDX-License-Identifier: Apache-2.0
"""Leading a log over bookies in memory: takeover, rolls under load, lost answers, duels, the offsets of every entry."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from bk_core.client import BookKeeper, ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.errors import (
    BookKeeperError,
    EntryTooLargeError,
    InvalidArgumentError,
    LeadershipLostError,
    LedgerClosedError,
    NotEnoughBookiesError,
    Outcome,
    WindowFullError,
)
from bk_core.logs.named_log import NamedLog
from bk_core.model import LedgerState
from bk_core.wire.lane import ENTRY_BYTES_MAX
from tests.kit.memory_cluster import FAST, MemoryBookKeeper, eventually, memory_cluster

PASSWORD = b"secret"


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(bounded())


def log_of(bookkeeper: BookKeeper) -> NamedLog:
    return NamedLog(bookkeeper, "events", password=PASSWORD)


async def read_all(log: NamedLog) -> list[bytes]:
    found: list[bytes] = []
    async for offset, batch in log.read(0, await log.end_offset()):
        assert offset == len(found)
        found += batch.to_list()
    return found


@pytest.mark.rule("MUST15")
def test_a_leader_writes_a_log_that_did_not_exist_and_seals_it() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
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

    run(work())


@pytest.mark.rule("MUST15")
@pytest.mark.rule("N2")
def test_a_takeover_fences_the_leader_and_keeps_every_confirmed_entry_at_its_offset() -> None:
    async def work() -> None:
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

    run(work())


def test_rolls_under_load_keep_order_offsets_and_every_entry() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            leader = await log.lead(roll_bytes=2_000)
            wanted: dict[int, bytes] = {}
            ledgers = set[int]()
            written = [0] * 5

            async def append(worker: int) -> None:
                while len(ledgers) < 5:
                    n = written[worker]
                    written[worker] += 1
                    ledgers.add(leader.ledger_id)
                    value = b"%d/%d " % (worker, n) + b"x" * 40
                    if n % 3 == 0:
                        offset = await leader.append_batch(EntryBatch.from_list([value]))
                        await leader.wait_confirmed(offset)
                    elif n % 3 == 1:
                        offset = leader.append_nowait(value)
                        await leader.wait_confirmed(offset)
                    else:
                        offset = await leader.append(value)
                    if n % 3:  # a batch's offset is that of the last entry queued, which may be another worker's
                        assert offset not in wanted
                        wanted[offset] = value
                    await asyncio.sleep(0)

            await asyncio.gather(*(append(worker) for worker in range(5)))
            await leader.close()
            found = await read_all(log)
            assert len(found) == sum(written)
            for offset, value in wanted.items():
                assert found[offset] == value
            for worker in range(5):
                mine = [value for value in found if value.startswith(b"%d/" % worker)]
                assert mine == [b"%d/%d " % (worker, n) + b"x" * 40 for n in range(written[worker])]
            head = (await log.head()).value
            assert len(head.tail) >= 4  # the last one may have stayed empty
            for extent in head.tail:
                assert (await bookkeeper.read_metadata(extent.ledger_id)).value.is_closed

    run(work())


@pytest.mark.rule("N2")
def test_no_entry_enters_the_next_ledger_before_the_previous_one_is_confirmed() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            log = log_of(cluster.client())
            leader = await log.lead()
            await leader.append(b"0")
            first = leader.ledger_id
            for name in cluster.names:
                cluster.network.bookies[name].hold_commits()
            waiting = leader.append_nowait(b"1")
            rolling = asyncio.create_task(leader.roll())
            await eventually(lambda: len(cluster.store.list_logs()) == 1 and leader._appends._held is not None)
            assert leader.append_nowait(b"2") == waiting + 1
            with pytest.raises(EntryTooLargeError):
                leader.append_nowait(bytes(ENTRY_BYTES_MAX + 1))
            held = asyncio.create_task(leader.wait_confirmed(waiting + 1))
            await asyncio.sleep(0.02)
            assert leader.ledger_id == first
            assert not held.done()
            for name in cluster.names:
                cluster.network.bookies[name].release_commits()
            await held
            await rolling
            assert leader.ledger_id != first
            assert await leader.append(b"3") == 3
            await leader.close()
            assert await read_all(log) == [b"0", b"1", b"2", b"3"]

    run(work())


def test_what_is_held_in_a_roll_is_bounded() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            small = ClientConfig(window_bytes_max=1 << 20, frame_bytes=1 << 19)
            log = log_of(cluster.client(small))
            leader = await log.lead()
            await leader.append(b"0")
            for name in cluster.names:
                cluster.network.bookies[name].hold_commits()
            leader.append_nowait(b"1")
            rolling = asyncio.create_task(leader.roll())
            await eventually(lambda: leader._appends._held is not None)
            for _ in range(10):
                leader.append_nowait(bytes(100_000))
            with pytest.raises(WindowFullError):
                leader.append_nowait(bytes(100_000))
            queued = leader.next_offset
            assert queued == 12
            late = asyncio.create_task(leader.append(bytes(100_000)))
            await asyncio.sleep(0.02)
            for name in cluster.names:
                cluster.network.bookies[name].release_commits()
            await rolling
            assert await late == queued
            await leader.close()
            assert await log.end_offset() == queued + 1

    run(work())


def test_a_batch_that_waits_for_room_when_a_roll_begins_stays_in_one_piece() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            log = log_of(cluster.client(ClientConfig(window_bytes_max=1 << 20, frame_bytes=1 << 18)))
            leader = await log.lead()
            await leader.append(b"0")
            for name in cluster.names:
                cluster.network.bookies[name].hold_commits()
            batch = asyncio.create_task(leader.append_batch(EntryBatch.from_list([bytes(100_000)] * 30)))
            await asyncio.sleep(0.02)
            first, rolling = leader.ledger_id, asyncio.create_task(leader.roll())
            await eventually(lambda: not leader._appends._gate.is_set())
            later = asyncio.create_task(leader.append_batch(EntryBatch.from_list([b"1"])))
            await asyncio.sleep(0.02)
            for name in cluster.names:
                cluster.network.bookies[name].release_commits()
            assert await batch == 30
            assert await later == 31
            await rolling
            await leader.close()
            assert await read_all(log) == [b"0", *[bytes(100_000)] * 30, b"1"]
            assert [e.entry_count for e in await log.extents()] == [31, 1]
            assert (await log.extents())[0].ledger_id == first

    run(work())


def test_a_ledger_is_rolled_by_age_only_if_something_was_appended() -> None:
    async def work() -> None:
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

    run(work())


def test_still_leader_is_asked_before_a_roll_and_a_no_ends_leadership() -> None:
    async def work() -> None:
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

    run(work())


def test_an_answer_of_still_leader_that_fails_counts_as_no() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            leader = await log_of(cluster.client()).lead(still_leader=lambda: 1 // 0 == 1)
            with pytest.raises(LeadershipLostError):
                await leader.roll()

    run(work())


def test_a_roll_without_enough_bookies_goes_on_in_the_current_ledger() -> None:
    async def work() -> None:
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

    run(work())


def test_what_cannot_lead_does_not_fence_who_does() -> None:
    async def work() -> None:
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
                    await other.lead(**options)  # type: ignore[arg-type]
            assert await leader.append(b"0") == 0
            await leader.close()

    run(work())


@pytest.mark.rule("N4")
@pytest.mark.parametrize("applied", [True, False])
def test_lost_answers_of_the_metadata_store_are_settled(applied: bool) -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            lose_every_second_head(bookkeeper, applied)
            leader = await log.lead()
            for n in range(3):
                assert await leader.append(b"%d" % n) == n
                await leader.roll()
            await leader.close()
            head = (await log.head()).value
            assert not head.open_extents
            assert await read_all(log) == [b"0", b"1", b"2"]

    run(work())


def lose_every_second_head(bookkeeper: BookKeeper, applied: bool) -> None:
    store: Any = bookkeeper.store
    real, count = store.write_logs, itertools.count()

    def write_logs(writes: Any) -> Any:
        if next(count) % 2 == 0:
            store.tree.lose_next_answer(applied=applied)
        return real(writes)

    store.write_logs = write_logs


def test_a_tail_follows_a_leader_across_rolls_and_a_takeover() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            first = await log_of(cluster.client()).lead()
            await first.append(b"0")
            found: list[bytes] = []
            seen = asyncio.Event()

            async def follow() -> None:
                async with aclosing(log_of(cluster.client()).tail(0)) as batches:
                    async for offset, batch in batches:
                        assert offset == len(found)
                        found.extend(batch.to_list())
                        seen.set()
                        if len(found) == 5:
                            return

            reading = asyncio.create_task(follow())
            await first.append(b"1")
            await first.roll()
            await first.append(b"2")
            await seen.wait()
            second = await log_of(cluster.client()).lead()
            await second.append(b"3")
            await second.append(b"4")
            await reading
            assert found == [b"%d" % n for n in range(5)]
            await second.close()

    run(work())


def test_duelling_leaders_keep_every_confirmed_entry_at_its_offset() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            confirmed: dict[int, bytes] = {}

            async def duel(number: int) -> None:
                for turn in range(4):
                    log = log_of(cluster.client())
                    try:
                        async with await log.lead(roll_bytes=60) as leader:
                            for n in range(8):
                                value = b"%d.%d.%d" % (number, turn, n)
                                offset = await leader.append(value)
                                assert offset not in confirmed
                                confirmed[offset] = value
                                await asyncio.sleep(0.002)
                    except BookKeeperError:
                        await asyncio.sleep(0.01 * number)

            await asyncio.gather(*(duel(number) for number in range(3)))
            log = log_of(cluster.client())
            async with await log.lead() as leader:
                await leader.append(b"last")
            found = await read_all(log)
            for offset, value in confirmed.items():
                assert found[offset] == value
            assert len(set(found)) == len(found)
            assert len(confirmed) > 20

    run(work())


def test_a_takeover_that_fails_leaves_no_ledger_and_no_task() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            bookkeeper = cluster.client()
            log = log_of(bookkeeper)
            await log.create()
            rival_of(bookkeeper, cluster)
            tasks = asyncio.all_tasks()
            with pytest.raises(LeadershipLostError, match="still_leader") as caught:
                await log.lead(still_leader=lambda: False)
            assert caught.value.outcome is Outcome.NOT_APPLIED
            assert await bookkeeper.list_ledgers() == []
            assert asyncio.all_tasks() <= tasks

    run(work())


def rival_of(bookkeeper: BookKeeper, cluster: MemoryBookKeeper) -> None:
    """Somebody else changes the head just before each compare-and-set of this client."""
    store: Any = bookkeeper.store
    real = store.write_logs

    def write_logs(writes: Any) -> Any:
        found = cluster.store.read_log("events")
        type(store).write_logs(cluster.store, [type(writes[0])("events", found.value, found.version)])
        return real(writes)

    store.write_logs = write_logs


def test_an_application_that_is_cancelled_while_it_takes_over_gives_the_log_back() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            old = await log_of(cluster.client()).lead()
            await old.append(b"0")
            for name in cluster.names:
                cluster.network.bookies[name].hold_commits()  # so that the fence has no answer
            log = log_of(cluster.client())
            taking = asyncio.create_task(log.lead())
            await asyncio.sleep(0.05)
            taking.cancel()
            await asyncio.sleep(0.01)
            for name in cluster.names:
                cluster.network.bookies[name].release_commits()
            with pytest.raises(asyncio.CancelledError):
                await taking
            assert not (await log.head()).value.open_extents
            assert await read_all(log) == [b"0"]

    run(work())


def test_append_nowait_may_be_called_from_any_thread_while_the_log_rolls() -> None:
    async def work() -> None:
        async with memory_cluster() as cluster:
            log = log_of(cluster.client())
            leader = await log.lead(roll_bytes=5_000)
            offsets: dict[int, bytes] = {}

            def produce(worker: int) -> None:
                for n in range(200):
                    value = b"%d/%d" % (worker, n) + b"x" * 50
                    offsets[leader.append_nowait(value)] = value

            await asyncio.gather(*(asyncio.to_thread(produce, worker) for worker in range(3)))
            await leader.wait_confirmed(leader.next_offset - 1)
            await leader.close()
            found = await read_all(log)
            assert len(offsets) == 600
            assert found == [offsets[offset] for offset in range(600)]

    run(work())


def test_a_leader_that_is_closed_twice_and_one_that_leaves_with_an_error_are_both_sealed() -> None:
    async def work() -> None:
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

    run(work())
