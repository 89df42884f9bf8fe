# SPDX-License-Identifier: Apache-2.0
"""A named log's records over each metadata store, a real ZooKeeper included: sizes, lost answers, conflicts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import LogHead, Published, PublishId
from bk_core.logs.model.paging import Change, Pages
from bk_core.logs.store import LogStore, nonce
from bk_core.metadata.port import MetadataStore
from tests.kit.extents import new_extent
from tests.kit.log_changes import change
from tests.kit.metadata_worlds import MetadataWorld

EMPTY = LogHead(uuid="12345678-9abc-def0-1234-56789abcdef0", created_ms=1, ledger_key=b"k" * 20)


def publish(store: MetadataStore, first: int, count: int) -> Published:
    new = [new_extent(ledger, 1, 10, 2) for ledger in range(first, first + count)]
    publish_id = PublishId.job(str(first))

    def apply(head: LogHead, pages: Pages) -> Change:
        return commit.publish(head, new, publish_id, now_ms=3, nonce=nonce, pages=pages)

    return change(LogStore(store, "events"), apply, lambda head: commit.already_published(head, publish_id, count))


@pytest.mark.long
@pytest.mark.rule("N1", "N3")
def test_a_publish_of_many_ledgers_is_one_small_write_of_the_head(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open()
    store.initialize_cluster()
    LogStore(store, "events").create(EMPTY)
    publish(store, 0, 20_000)
    assert len(store.read_log("events").value) < 1024
    reader = LogStore(metadata_world.open(), "events")
    head = reader.read().value
    assert [e.ledger_id for e in reader.extents(head, 0, head.next_offset)] == list(range(20_000))
    assert [e.ledger_id for e in reader.extents(head, 12_345, 12_346)] == [12_345]


@pytest.mark.rule("N4")
@pytest.mark.parametrize("applied", [True, False])
def test_rivals_and_lost_answers_never_double_or_lose_a_publish(metadata_world: MetadataWorld, applied: bool) -> None:
    first = metadata_world.open()
    first.initialize_cluster()
    LogStore(first, "events").create(EMPTY)
    stores = [first, metadata_world.open(), metadata_world.open()]

    def work(number: int) -> None:
        for turn in range(6):
            if turn == 3 and number == 0:
                metadata_world.lose_next_answer(stores[number], applied=applied)
            publish(stores[number], 100 * number + 10 * turn, 10)

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(work, range(len(stores))))
    store = LogStore(first, "events")
    head = store.read().value
    found = [e.ledger_id for e in store.extents(head, 0, head.next_offset)]
    assert sorted(found) == sorted(100 * number + n for number in range(3) for n in range(60))
    assert len(head.published) == 18
