# SPDX-License-Identifier: Apache-2.0
"""Intents on a head: publish, seal, add an open extent; and random sequences of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import (
    InvalidArgumentError,
    LogHasLeaderError,
    PublishConflictError,
    TransactionReplayDiffersError,
)
from bk_core.logs.model.codec import decode_head, decode_page, encode_head
from bk_core.logs.model.head import PAGE_BYTES_MAX, PUBLISHED_MAX, Extent, LogHead, LogPage, NewExtent, PublishId
from bk_core.logs.model.next_head import (
    LedgerEnd,
    add_open_extent,
    already_published,
    publish,
    replace_extents,
    seal,
)
from bk_core.logs.model.paging import Change, merge_candidates
from bk_core.model import Fragment
from tests.kit.amount import examples
from tests.kit.extents import new_extent, open_extent

UUID = "12345678-9abc-def0-1234-56789abcdef0"
EMPTY = LogHead(uuid=UUID, created_ms=1, ledger_key=b"k" * 20)
NONCE = itertools.count().__next__


def new(ledger_id: int, count: int, **more: int) -> NewExtent:
    return new_extent(
        ledger_id, count, count * 100, 2, fragments=(Fragment(0, ("b1:3181", "b2:3181", "b3:3181")),), **more
    )


def add(head: LogHead, ledger_id: int) -> LogHead:
    return add_open_extent(head, open_extent(ledger_id), nonce=NONCE).head


def end(count: int) -> LedgerEnd:
    return LedgerEnd(entry_count=count, size_bytes=count * 100)


def job(name: str) -> PublishId:
    return PublishId.job(name)


def test_a_publish_appends_its_extents_in_order_and_is_remembered() -> None:
    head = publish(EMPTY, [new(5, 10), new(6, 0), new(4, 7)], job("a"), now_ms=9, nonce=NONCE).head
    assert [(e.ledger_id, e.base_offset, e.entry_count) for e in head.tail] == [(5, 0, 10), (4, 10, 7)]
    assert head.next_offset == 17
    record = already_published(head, job("a"), 17)
    assert record is not None
    assert (record.base_offset, record.rows, record.time_ms) == (0, 17, 9)
    assert already_published(head, job("b"), 17) is None


@pytest.mark.rule("N4")
def test_the_same_publish_id_with_other_rows_is_refused() -> None:
    head = publish(EMPTY, [new(5, 10)], job("a"), now_ms=9, nonce=NONCE).head
    with pytest.raises(TransactionReplayDiffersError, match="with 10 rows, now it has 11"):
        already_published(head, job("a"), 11)


@pytest.mark.rule("N4")
def test_the_last_128_publishes_are_remembered() -> None:
    head = EMPTY
    for number in range(PUBLISHED_MAX + 1):
        head = publish(head, [], job(str(number)), now_ms=9, nonce=NONCE).head
    assert already_published(head, job("0"), 0) is None
    assert already_published(head, job("1"), 0) is not None
    assert already_published(head, job("128"), 0) is not None


@pytest.mark.rule("N2")
def test_a_publish_into_a_log_with_a_leader_is_refused() -> None:
    with pytest.raises(LogHasLeaderError, match="ledger 7"):
        publish(add(EMPTY, 7), [new(5, 1)], job("a"), now_ms=9, nonce=NONCE)


@pytest.mark.rule("N6")
def test_a_condemned_ledger_is_neither_published_nor_opened() -> None:
    head = replace(EMPTY, condemned=(5,))
    with pytest.raises(PublishConflictError, match="condemned"):
        publish(head, [new(4, 1), new(5, 1)], job("a"), now_ms=9, nonce=NONCE)
    with pytest.raises(PublishConflictError, match="condemned"):
        add(head, 5)


@pytest.mark.rule("N6")
def test_a_condemned_ledger_is_not_listed_in_place_of_what_it_has_compacted() -> None:
    head = publish(EMPTY, [new(4, 5), new(5, 5)], job("a"), now_ms=9, nonce=NONCE).head
    with pytest.raises(PublishConflictError, match="condemned"):
        replace_extents(replace(head, condemned=(6,)), head.tail, new(6, 10), nonce=NONCE)
    listed = replace_extents(head, head.tail, new(6, 10), nonce=NONCE).head
    assert [(extent.ledger_id, extent.base_offset, extent.entry_count) for extent in listed.tail] == [(6, 0, 10)]


def test_entries_stand_in_a_log_once() -> None:
    head = publish(EMPTY, [new(5, 10)], job("a"), now_ms=9, nonce=NONCE).head
    with pytest.raises(PublishConflictError, match="twice"):
        publish(head, [new(5, 1, first_entry_id=9)], job("b"), now_ms=9, nonce=NONCE)
    with pytest.raises(PublishConflictError, match="twice"):
        publish(EMPTY, [new(5, 3), new(5, 3)], job("b"), now_ms=9, nonce=NONCE)
    both = publish(head, [new(5, 3, first_entry_id=10)], job("b"), now_ms=9, nonce=NONCE).head
    assert both.next_offset == 13


def test_impossible_extents_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="negative"):
        publish(EMPTY, [new(5, -1)], job("a"), now_ms=9, nonce=NONCE)
    with pytest.raises(InvalidArgumentError, match="codec"):
        publish(EMPTY, [replace(new(5, 1), codec="x" * 33)], job("a"), now_ms=9, nonce=NONCE)


@pytest.mark.rule("N2")
def test_at_most_two_extents_are_open() -> None:
    head = add(add(EMPTY, 7), 8)
    assert [(e.ledger_id, e.base_offset) for e in head.open_extents] == [(7, 0), (8, 0)]
    with pytest.raises(LogHasLeaderError, match="ledgers 7, 8"):
        add(head, 9)
    with pytest.raises(PublishConflictError, match="already in the log"):
        add(add(EMPTY, 7), 7)


@pytest.mark.rule("N2")
def test_sealing_fixes_the_count_and_the_base_of_the_successor() -> None:
    head = add(add(publish(EMPTY, [new(5, 10)], job("a"), now_ms=9, nonce=NONCE).head, 7), 8)
    sealed = seal(head, {7: end(4)}, nonce=NONCE).head
    assert [(e.ledger_id, e.base_offset, e.entry_count, e.is_open) for e in sealed.tail] == [
        (5, 0, 10, False),
        (7, 10, 4, False),
        (8, 14, 0, True),
    ]
    assert sealed.next_offset == 14


@pytest.mark.rule("N2")
def test_the_second_open_extent_is_not_sealed_before_the_first() -> None:
    head = add(add(EMPTY, 7), 8)
    assert seal(head, {8: end(4)}, nonce=NONCE).head == head


def test_sealing_again_changes_nothing_and_an_empty_extent_leaves_the_list() -> None:
    head = add(add(EMPTY, 7), 8)
    sealed = seal(head, {7: end(0), 8: end(3)}, nonce=NONCE).head
    assert [(e.ledger_id, e.base_offset) for e in sealed.tail] == [(8, 0)]
    assert seal(sealed, {7: end(0), 8: end(3)}, nonce=NONCE).head == sealed


def extents_of(head: LogHead, pages: dict[str, LogPage]) -> list[Extent]:
    """Every extent of the log, walked through all levels of pages."""
    found: list[Extent] = []

    def walk(name: str, level: int) -> tuple[int, int]:
        page = pages[name]
        assert bool(page.pages) == (level > 0)
        for ref in page.pages:
            assert ref.level == level - 1
            assert walk(ref.name, ref.level) == (ref.extents, ref.size_bytes)
        found.extend(page.extents)
        parts = [*page.extents, *page.pages]
        count = len(page.extents) + sum(ref.extents for ref in page.pages)
        return count, sum(part.size_bytes for part in parts)

    for ref in head.pages:
        before = len(found)
        assert walk(ref.name, ref.level) == (ref.extents, ref.size_bytes)
        assert (found[before].base_offset, found[-1].next_offset) == (ref.base_offset, ref.next_offset)
    return [*found, *head.tail]


class World:
    """A log with its page store, beside a plain list of what it must hold."""

    def __init__(self, seed: int, *, big: bool) -> None:
        self.random, self.big = Random(seed), big
        self.head, self.pages, self.bytes_written = EMPTY, dict[str, LogPage](), 0
        self.expected: list[tuple[int, int]] = []  # ledger, count: sealed
        self.opened: list[int] = []
        self.ledger = (1 << 61) if big else 0
        if big:  # what leaves the least room: everything else at its limit
            condemned = tuple((1 << 62) + n for n in range(256))
            self.head = replace(EMPTY, condemned=condemned, start_offset=1 << 48, next_offset=1 << 48)

    def nonce(self) -> int:
        return self.random.getrandbits(64)

    def candidates(self) -> dict[str, LogPage]:
        return {ref.name: self.pages[ref.name] for ref in merge_candidates(self.head)}

    def apply(self, change: Change) -> None:
        before = self.head.next_offset
        for made in change.new_pages:
            assert len(made.data) <= PAGE_BYTES_MAX
            assert decode_page(made.data, made.name) == made.page
            self.pages[made.name] = made.page
        data = encode_head(change.head)  # raises over 8 KiB
        self.bytes_written += len(data) + sum(len(made.data) for made in change.new_pages)
        self.head = decode_head(data)
        assert self.head == change.head
        assert self.head.next_offset >= before
        found = extents_of(self.head, self.pages)
        assert [(e.ledger_id, e.entry_count) for e in found if not e.is_open] == self.expected
        assert [e.ledger_id for e in found if e.is_open] == self.opened
        reached = {ref.name for page in self.pages.values() for ref in page.pages} | {
            ref.name for ref in self.head.pages
        }
        assert {made.name for made in change.new_pages} <= reached

    def new_extent(self) -> NewExtent:
        self.ledger += 1
        hosts = [f"bookie-{self.random.randrange(40)}-{n}.storage.example.org:3181" for n in range(3)]
        ensembles = self.random.choice((1, 1, 1, 2, 30))
        fragments = tuple(Fragment(n, tuple(hosts)) for n in range(ensembles))
        count = self.random.randrange(1, 1 << 34) if self.big else self.random.randrange(3)
        return replace(new(self.ledger, count), created_ms=1 << 41, fragments=fragments)

    def publish(self, count: int) -> None:
        extents = [self.new_extent() for _ in range(count)]
        self.expected += [(e.ledger_id, e.entry_count) for e in extents if e.entry_count]
        name = job(str(self.ledger))
        self.apply(publish(self.head, extents, name, now_ms=1 << 41, nonce=self.nonce, pages=self.candidates()))

    def open(self) -> None:
        self.ledger += 1
        self.opened.append(self.ledger)
        self.apply(add_open_extent(self.head, open_extent(self.ledger), nonce=self.nonce, pages=self.candidates()))

    def seal(self) -> None:
        counts = {ledger: self.random.randrange(3) for ledger in self.opened[: self.random.randrange(1, 3)]}
        self.opened = self.opened[len(counts) :]
        self.expected += [(ledger, count) for ledger, count in counts.items() if count]
        fragments = tuple(Fragment(n, ("b1", "b2", "b3")) for n in range(self.random.choice((1, 200))))
        ends = {ledger: replace(end(count), fragments=fragments) for ledger, count in counts.items()}
        self.apply(seal(self.head, ends, nonce=self.nonce, pages=self.candidates()))

    def step(self) -> None:
        if self.opened and (len(self.opened) == 2 or self.random.random() < 0.6):
            self.seal()
        elif self.opened or self.random.random() < 0.3:
            self.open()
        else:
            self.publish(self.random.choice((0, 1, 3, 10, 70)))


@pytest.mark.long
@pytest.mark.rule("N3")
@given(seed=st.integers(0, 1 << 32), big=st.booleans())
@examples(0.15)
def test_random_intents_keep_the_log_whole_and_the_head_small(seed: int, big: bool) -> None:
    world = World(seed, big=big)
    for _ in range(60):
        world.step()


@pytest.mark.rule("N3")
def test_a_head_with_everything_at_its_limit_still_fits() -> None:
    world = World(1, big=True)
    for _ in range(PUBLISHED_MAX + 10):
        world.publish(1)
    world.open()
    world.open()
    assert len(world.head.published) == PUBLISHED_MAX
    assert len(world.head.condemned) == 256


@pytest.mark.long
@pytest.mark.rule("N3")
def test_a_publish_of_100_000_extents_becomes_pages_under_their_limit() -> None:
    extents = [new(n, 1 + n % 3) for n in range(100_000)]
    change = publish(EMPTY, extents, job("a"), now_ms=9, nonce=NONCE)
    assert max(len(made.data) for made in change.new_pages) <= PAGE_BYTES_MAX
    assert len(encode_head(change.head)) < 1024
    pages = {made.name: made.page for made in change.new_pages}
    assert [e.ledger_id for e in extents_of(change.head, pages)] == list(range(100_000))


@pytest.mark.long
@pytest.mark.rule("N3")
def test_a_long_log_keeps_few_references_and_writes_little_a_publish() -> None:
    world = World(3, big=False)
    for number in range(4000):
        extent = new(number, 1)
        change = publish(
            world.head, [extent], job(str(number)), now_ms=1 << 41, nonce=world.nonce, pages=world.candidates()
        )
        world.head = change.head
        world.pages.update((made.name, made.page) for made in change.new_pages)
        world.bytes_written += sum(len(made.data) for made in change.new_pages)
    assert len(world.head.pages) <= 8
    assert len(extents_of(world.head, world.pages)) == 4000
    assert world.bytes_written / 4000 < 2048


def test_an_extent_with_more_fragments_than_a_page_holds_leaves_them_to_the_ledger() -> None:
    fragments = tuple(Fragment(n, ("b1", "b2", "b3")) for n in range(60_000))
    change = publish(EMPTY, [replace(new(1, 60_000), fragments=fragments)], job("a"), now_ms=9, nonce=NONCE)
    assert change.new_pages[0].page.extents[0].fragments == ()
    assert len(encode_head(change.head)) < 1024
