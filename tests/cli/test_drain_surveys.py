# SPDX-License-Identifier: Apache-2.0
"""When a drain may say that a bookie is drained: no ledger names it, also none that was made during the drain."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from bk_cli.bookies.bookie_leaving import DrainWatch
from bk_core.metadata import open_store
from bk_core.model import BookieServiceInfo, Fragment, LedgerMetadata, LedgerState
from tests.kit.memory_store import MemoryStore


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    opened = open_store(f"memory://{uuid.uuid4().hex}")
    assert isinstance(opened, MemoryStore)
    opened.initialize_cluster()
    for name in ("b1", "b2", "b3", "b4"):
        opened.register_bookie(BookieServiceInfo(name), read_only=False)
    yield opened
    opened.close()


def a_ledger(store: MemoryStore, *ensemble: str) -> int:
    quorum = len(ensemble)
    value = LedgerMetadata(
        ensemble_size=quorum,
        write_quorum_size=quorum,
        ack_quorum_size=1,
        fragments=(Fragment(0, ensemble),),
        state=LedgerState.CLOSED,
        last_entry_id=9,
        length=1_000,
    )
    return store.create_ledger(value)[0]


def becomes_read_only(store: MemoryStore, name: str) -> None:
    store.unregister_bookie(name)
    store.register_bookie(BookieServiceInfo(name), read_only=True)


@pytest.mark.rule("D23")
def test_a_bookie_is_not_drained_while_a_ledger_made_after_the_first_survey_names_it(store: MemoryStore) -> None:
    watch = DrainWatch(store, "b1")
    watch.survey()
    made_late = a_ledger(store, "b1", "b2")
    becomes_read_only(store, "b1")
    assert not watch.look()
    assert list(watch.left) == [made_late]
    assert (watch.begun, watch.size) == (1, 1_000)
    assert not watch.look()
    assert dict(store.list_underreplicated()) == {made_late: ("b1",)}, "somebody moves its copy"
    store.delete_ledger(made_late)
    assert watch.look()


@pytest.mark.rule("D23")
def test_a_bookie_that_takes_new_entries_is_never_drained(store: MemoryStore) -> None:
    watch = DrainWatch(store, "b1")
    watch.survey()
    assert not watch.look()
    becomes_read_only(store, "b1")
    assert watch.look()


def test_what_is_left_of_a_drain_is_looked_at_by_turns(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_cli.bookies.bookie_leaving.LOOKS_MAX", 2)
    ledgers = [a_ledger(store, "b1", "b2") for _ in range(5)]
    watch = DrainWatch(store, "b1")
    watch.survey()
    for marked in (2, 4, 5):
        assert not watch.look()
        assert {ledger_id for ledger_id, _ in store.list_underreplicated()} == set(ledgers[:marked])
