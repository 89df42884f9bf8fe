# SPDX-License-Identifier: Apache-2.0
"""The records of a log in a metadata store: pages, lost answers, conflicts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bk_core.errors import (
    ClientClosedError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLogError,
    Outcome,
)
from bk_core.logs import sequences
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.publication import PublishOptions, publish_among
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import LogHead, LogPage, NewExtent, Published, PublishId, Unlinked
from bk_core.logs.model.paging import Change, Pages
from bk_core.logs.store import LogStore, PageCache, nonce
from bk_core.metadata.port import LogWrite
from tests.kit.extents import new_extent
from tests.kit.log_changes import carried_out, change
from tests.kit.memory_store import MemoryStore

EMPTY = LogHead(uuid="12345678-9abc-def0-1234-56789abcdef0", created_ms=1, ledger_key=b"k" * 20)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "BACKOFF_MAX_S", 0.006)


@pytest.fixture
def memory() -> MemoryStore:
    store = MemoryStore()
    store.initialize_cluster()
    return store


@pytest.fixture
def events(memory: MemoryStore) -> LogStore:
    store = LogStore(memory, "events")
    store.create(EMPTY)
    return store


def extents(first: int, count: int) -> list[NewExtent]:
    return [new_extent(ledger, 10, 10, 2) for ledger in range(first, first + count)]


def publish(store: LogStore, first: int, count: int, name: str = "") -> Published:
    new, publish_id = extents(first, count), PublishId.job(name or str(first))

    def apply(head: LogHead, pages: Pages) -> Change:
        return commit.publish(head, new, publish_id, now_ms=3, nonce=nonce, pages=pages)

    return change(store, apply, lambda head: commit.already_published(head, publish_id, 10 * count))


@pytest.mark.parametrize("applied", [True, False])
def test_a_log_whose_making_had_no_answer_is_made_once(memory: MemoryStore, applied: bool) -> None:
    for _ in range(3):
        memory.tree.lose_next_answer(applied=applied)
    store = LogStore(memory, "other")
    assert store.create(EMPTY).value == EMPTY
    assert store.read().value == EMPTY


@pytest.mark.parametrize("first", list(Outcome))
def test_a_log_that_may_have_been_made_is_not_called_unmade(
    memory: MemoryStore, first: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = itertools.chain([first], itertools.repeat(Outcome.NOT_APPLIED))

    def away(name: str, head: bytes) -> object:
        raise MetadataUnavailableError("away", outcome=next(outcomes))

    monkeypatch.setattr(memory, "create_log", away)
    with pytest.raises(MetadataUnavailableError) as raised:
        LogStore(memory, "other").create(EMPTY)
    assert raised.value.outcome is first


@pytest.mark.rule("N8")
def test_an_unknown_log_lists_the_nearest_names(memory: MemoryStore, events: LogStore) -> None:
    LogStore(memory, "payments").create(EMPTY)
    with pytest.raises(NoSuchLogError, match="near names: events"):
        LogStore(memory, "event").read()
    with pytest.raises(NoSuchLogError, match="events, payments"):
        LogStore(memory, "zzzzzz").read()


@pytest.mark.rule("N3")
def test_extents_are_found_through_all_pages(events: LogStore) -> None:
    for first in range(0, 9000, 3000):
        publish(events, first, 3000)
    publish(events, 9000, 5)
    head = events.read().value
    assert head.pages
    ledgers = [extent.ledger_id for extent in events.extents(head, 0, head.next_offset)]
    assert ledgers == list(range(9005))
    assert [e.ledger_id for e in events.extents(head, 45_005, 45_020)] == [4500, 4501]
    assert [e.ledger_id for e in events.extents(head, 89_990, 90_011)] == [8999, 9000, 9001]
    assert events.extents(head, 5, 5) == []
    assert events.last_ledgers(head) == (9003, 9004)


@pytest.mark.rule("N2")
def test_the_last_two_ledgers_are_found_wherever_they_are_listed(events: LogStore) -> None:
    publish(events, 0, 100)
    head = events.read().value
    paged = replace(head, tail=())
    inside = events.page(head.pages[-1].name).extents
    assert events.last_ledgers(paged) == (inside[-2].ledger_id, inside[-1].ledger_id)
    assert events.last_ledgers(EMPTY) == ()


def test_a_page_is_read_once_a_connection(
    memory: MemoryStore, events: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(events, 0, 100)
    head = events.read().value
    other_client = MemoryStore(memory.cluster)
    reads: list[str] = []
    real = other_client.read_page
    monkeypatch.setattr(other_client, "read_page", lambda name, page: (reads.append(page), real(name, page))[1])
    for _ in range(2):
        assert len(LogStore(other_client, "events").extents(head, 0, 1000)) == 100
    assert reads == [head.pages[0].name]


def test_a_damaged_page_is_not_read(memory: MemoryStore, events: LogStore) -> None:
    name = "0123456789abcdef-00000000"
    memory.create_page("events", name, b"something else")
    with pytest.raises(MetadataCorruptError):
        events.page(name)


def test_the_cache_forgets_the_least_recently_used_page_first() -> None:
    cache, page = PageCache(parts_max=5), LogPage(schema=b"x")
    for name in "abcde":
        cache.put(name, page)
    assert cache.get("a") is page
    cache.put("f", page)
    assert cache.get("b") is None
    assert cache.get("a") is page


@pytest.mark.rule("N4")
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("which", [0, 1])
def test_a_publish_whose_answer_is_lost_happens_once(
    memory: MemoryStore, events: LogStore, applied: bool, which: int
) -> None:
    """``which``: the answer to the page (0) or to the compare-and-set of the head (1)."""
    lost = 0
    real = memory.create_page if which == 0 else memory.write_logs

    def lose(*arguments: object) -> object:
        nonlocal lost
        lost += 1
        if lost == 1:
            memory.tree.lose_next_answer(applied=applied)
        return real(*arguments)

    setattr(memory, "create_page" if which == 0 else "write_logs", lose)
    record = publish(events, 0, 100)
    assert (record.base_offset, record.rows) == (0, 1000)
    head = events.read().value
    assert head.next_offset == 1000
    assert len(events.extents(head, 0, 1000)) == 100
    if which == 1:
        assert lost == (1 if applied else 2)


def hundred(head: LogHead, pages: Pages) -> Change:
    """A change that needs a page."""
    return commit.publish(head, extents(1, 100), PublishId.job("x"), now_ms=3, nonce=nonce, pages=pages)


@pytest.mark.rule("N4", "N3")
@pytest.mark.parametrize("applied", [True, False])
def test_pages_of_a_leaders_head_stay_when_its_answer_is_lost(
    memory: MemoryStore, events: LogStore, applied: bool
) -> None:
    real = memory.write_logs

    def lose(writes: list[LogWrite]) -> object:
        memory.tree.lose_next_answer(applied=applied)
        return real(writes)

    memory.write_logs = lose
    with pytest.raises(MetadataUnavailableError) as caught:
        events.write(events.read(), hundred)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert len(memory.list_pages("events")) == 1, "the head may name it, now or later"
    head = events.read().value
    reader = LogStore(MemoryStore(memory.cluster), "events")
    assert len(reader.extents(head, 0, 1000)) == (100 if applied else 0)


@pytest.mark.rule("N6")
def test_a_leaders_head_puts_on_record_what_it_unlinks(memory: MemoryStore, events: LogStore) -> None:
    written = events.write(events.read(), hundred)
    (page,) = written.value.pages
    events.write(written, lambda head, pages: Change(replace(head, start_offset=1000, pages=(), tail=())))
    (record,) = events.unlinked()
    assert record.unlinked == Unlinked(pages=(page,), ledgers=tuple(each.ledger_id for each in written.value.tail))


@pytest.mark.rule("N4")
def test_a_publish_under_which_the_client_is_closed_does_not_say_that_nothing_was_applied(
    memory: MemoryStore, events: LogStore
) -> None:
    real = memory.write_logs

    def close_meanwhile(writes: list[LogWrite]) -> object:
        real(writes)
        raise ClientClosedError("The metadata store was closed meanwhile", outcome=Outcome.UNKNOWN)

    memory.write_logs = close_meanwhile
    with pytest.raises(ClientClosedError) as caught:
        publish(events, 0, 100)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert len(LogStore(MemoryStore(memory.cluster), "events").extents(events.read().value, 0, 1000)) == 100

    intents = publish_among(
        {"events": []}, PublishId.job("fan"), now_ms=3, nonce=nonce, options=PublishOptions(overwrite=True)
    )
    with pytest.raises(ClientClosedError) as caught:
        carried_out([events], HeadChange(intents).run())
    assert caught.value.outcome is Outcome.UNKNOWN
    assert events.read().value.epoch == 1
