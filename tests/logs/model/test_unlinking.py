# SPDX-License-Identifier: Apache-2.0
"""What was unlinked at t exists until t + deleteDelayMs, however old it was (RULES N6)."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import pytest

from bk_core.logs.machines.publication import PublishOptions
from bk_core.logs.model import next_head as commit
from bk_core.logs.model import paging, unlinking
from bk_core.logs.model.codec import encode_unlinked
from bk_core.logs.model.head import HEAD_BYTES_MAX, LogHead, NewExtent, PublishId, Unlinked
from bk_core.logs.model.paging import Change, Pages
from bk_core.logs.model.unlinking import UNLINKED_BYTES_MAX, unlinked_by
from bk_core.logs.named_log import DELETE_DELAY_MS, TXN_RETENTION_MS, NamedLog, publish_to_logs
from bk_core.logs.store import PageCache
from tests.kit.memory_cluster import MemoryBookKeeper, memory_cluster
from tests.logs.change_kit import EMPTY, NONCE, extent
from tests.logs.leader_kit import PASSWORD, StoreClock, content_of, log_of
from tests.logs.model.test_compaction import publish, values

OVERWRITE = PublishOptions(overwrite=True)
AGE_MS = 10 * DELETE_DELAY_MS
ENTRIES = 20


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages after a few extents."""
    monkeypatch.setattr(paging, "TAIL_EXTENTS_MAX", 3)
    monkeypatch.setattr(paging, "TAIL_EXTENTS_KEPT", 1)
    monkeypatch.setattr(paging, "MERGE_PARTS_MAX", 4)


async def old_log(cluster: MemoryBookKeeper, clock: StoreClock) -> tuple[NamedLog, LogHead, set[int], set[str]]:
    """A log of twenty ledgers, two months old; its head, ledgers, and the pages that the head reaches."""
    bookkeeper = cluster.client()
    log = log_of(bookkeeper)
    for n in range(ENTRIES):
        await publish(bookkeeper, log, values(n, 1))
    clock.now_ms += AGE_MS
    await log.vacuum()  # pages that were replaced long ago
    assert cluster.store.read_unlinked("events") == []
    head = (await log.head()).value
    return log, head, set(await bookkeeper.list_ledgers()), set(cluster.store.list_pages("events"))


def would_take(log: NamedLog) -> tuple[int, ...]:
    """What a dry run says."""
    return log._store.vacuum_candidates(DELETE_DELAY_MS, TXN_RETENTION_MS).ledgers


async def overwrite(log: NamedLog) -> None:
    await log.overwrite([], PublishId.job("anew"))


async def trim(log: NamedLog) -> None:
    await log.trim(ENTRIES)


async def compact(log: NamedLog) -> None:
    assert (await log.compactor().run()).extents == ENTRIES


@pytest.mark.rule("N6")
@pytest.mark.parametrize("unlink", [overwrite, trim, compact])
async def test_what_an_old_log_unlinks_today_is_there_for_the_delay_and_goes_then(
    unlink: Callable[[NamedLog], Awaitable[None]],
) -> None:
    clock = StoreClock()
    async with memory_cluster(clock_ms=clock) as cluster:
        log, before, ledgers, pages = await old_log(cluster, clock)
        await unlink(log)
        for wait_ms in (0, DELETE_DELAY_MS - 1, 1):
            clock.now_ms += wait_ms
            assert would_take(log) == ()
            done = await log.vacuum()
            assert (done.ledgers, done.pages) == ((), ())
        reader = log_of(cluster.client())  # which planned with the head of seven days ago
        extents = reader._store.extents(before, 0, ENTRIES)
        assert {each.ledger_id for each in extents} == ledgers
        found = [b async for _, b in reader._reading.read(extents, 0, ENTRIES)]
        assert [entry for batch in found for entry in batch.to_list()] == values(0, ENTRIES)

        clock.now_ms += 1
        assert set(would_take(log)) == ledgers
        done = await log.vacuum()
        assert set(done.ledgers) == ledgers
        assert set(done.pages) >= pages
        assert cluster.store.read_unlinked("events") == []
        assert await content_of(log) == (values(0, ENTRIES) if unlink is compact else [])


@pytest.mark.rule("N6")
async def test_a_ledger_that_is_unlinked_later_outlives_the_page_that_named_it_before() -> None:
    clock = StoreClock()
    async with memory_cluster(clock_ms=clock) as cluster:
        log, _, ledgers, _ = await old_log(cluster, clock)
        extents = await log.extents()
        await log.trim(extents[0].next_offset)  # makes the first page anew: the others are carried over
        clock.now_ms += DELETE_DELAY_MS // 2
        await log.trim(ENTRIES)
        clock.now_ms += DELETE_DELAY_MS // 2 + 1
        assert (await log.vacuum()).ledgers == (extents[0].ledger_id,)
        clock.now_ms += DELETE_DELAY_MS // 2
        assert set((await log.vacuum()).ledgers) == ledgers - {extents[0].ledger_id}


@pytest.mark.rule("N6")
async def test_a_page_that_a_publish_merges_into_another_is_there_for_the_delay() -> None:
    clock = StoreClock()
    async with memory_cluster(clock_ms=clock) as cluster:
        log, before, ledgers, _ = await old_log(cluster, clock)
        for n in range(8):
            await publish(cluster.client(), log, values(n, 1))
        assert {ref.name for ref in before.pages} - {ref.name for ref in (await log.head()).value.pages}
        clock.now_ms += DELETE_DELAY_MS
        assert (await log.vacuum()).pages == ()
        log._store._cache = PageCache()
        assert {each.ledger_id for each in log._store.extents(before, 0, ENTRIES)} == ledgers
        clock.now_ms += 1
        assert (await log.vacuum()).pages
        assert len(await content_of(log)) == ENTRIES + 8


@pytest.mark.rule("N6", "K10")
async def test_an_overwrite_of_several_logs_says_of_each_what_it_unlinked() -> None:
    async with memory_cluster() as cluster:
        bookkeeper, listed = cluster.client(), {}
        for name in ("a", "b"):
            log = NamedLog(bookkeeper, name, password=PASSWORD)
            listed[name] = (await publish(bookkeeper, log, values(0, 2))).ledger_id
        anew: dict[str, list[NewExtent]] = {name: [] for name in listed}
        await publish_to_logs(bookkeeper, anew, PublishId.job("anew"), password=PASSWORD, options=OVERWRITE)
        for name, ledger_id in listed.items():
            (record,) = NamedLog(bookkeeper, name, password=PASSWORD)._store.unlinked()
            assert record.unlinked == Unlinked(ledgers=(ledger_id,))


# --- what is put on record --------------------------------------------------------------------------------------------


def grown(head: LogHead, ledgers: range, pages: dict[str, paging.LogPage]) -> LogHead:
    """The head with so many ledgers more; what it reaches is added to ``pages``."""
    change = commit.publish(
        head, [extent(each) for each in ledgers], PublishId.job(str(ledgers)), now_ms=1, nonce=NONCE, pages=pages
    )
    pages.update({new.name: new.page for new in change.new_pages})
    return change.head


def emptied(head: LogHead, pages: Pages) -> Change:
    return commit.overwrite(head, [], PublishId.job("anew"), now_ms=1, nonce=NONCE, pages=pages)


@pytest.mark.rule("N6")
def test_a_publish_that_moves_extents_into_a_page_unlinks_nothing() -> None:
    pages: dict[str, paging.LogPage] = {}
    head = grown(EMPTY, range(1, 4), pages)
    spilled = commit.publish(head, [extent(4)], PublishId.job("j"), now_ms=1, nonce=NONCE, pages=pages)
    assert spilled.new_pages
    assert unlinked_by(head, spilled, pages).is_empty


@pytest.mark.rule("N6")
def test_a_page_that_is_known_is_named_alone_with_the_ledgers_that_go_and_another_with_all_that_it_names() -> None:
    pages: dict[str, paging.LogPage] = {}
    head = grown(EMPTY, range(1, 6), pages)
    (ref,) = head.pages
    cut = commit.trim(head, 2, nonce=NONCE, pages=pages)
    assert unlinked_by(head, cut, pages) == Unlinked(names=(ref.name,), ledgers=(1,))
    assert unlinked_by(head, cut, {}) == Unlinked(pages=(ref,))
    tail = tuple(each.ledger_id for each in head.tail)
    assert unlinked_by(head, emptied(head, pages), {}) == Unlinked(pages=(ref,), ledgers=tail)


@pytest.mark.rule("N6", "N3")
def test_a_record_is_small_however_much_is_unlinked(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: dict[str, paging.LogPage] = {}
    head, first = EMPTY, itertools.count(10**12, 40)
    for _ in range(60):
        start = next(first)
        head = grown(head, range(start, start + 40), pages)
    assert any(ref.level for ref in head.pages)
    unlinked = unlinked_by(head, emptied(head, pages), pages)
    assert unlinked.pages == head.pages
    assert len(encode_unlinked(unlinked)) <= HEAD_BYTES_MAX
    monkeypatch.setattr(unlinking, "UNLINKED_BYTES_MAX", 1 << 20)
    exact = unlinked_by(head, emptied(head, pages), pages)
    assert len(exact.ledgers) == 60 * 40
    assert len(encode_unlinked(exact)) > UNLINKED_BYTES_MAX
    for records in (unlinked, exact):
        record = unlinking.UnlinkedRecord("r", 1, records)
        assert unlinking.ledgers_kept(EMPTY, [record], pages) == paging.ledgers_listed(head, pages)
        assert unlinking.pages_kept(EMPTY, [record], pages) == paging.page_names(head, pages)
