# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with watches, lost connections and lost sessions."""

from __future__ import annotations

import queue
import time

import pytest

from bk_core.errors import ClientClosedError, MetadataUnavailableError, Outcome
from bk_core.metadata.port import MetadataStore, SessionState
from bk_core.model import LedgerMetadata, Versioned
from tests.kit.metadata_worlds import MetadataWorld, a_ledger
from tests.kit.waiting import until


def test_watch_tells_each_newer_record_and_the_deletion(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    news: queue.Queue[Versioned[LedgerMetadata] | None] = queue.Queue()
    store.watch_ledger(ledger_id, news.put)
    writer = metadata_world.open()
    recovering = writer.write_ledger(ledger_id, created.value.in_recovery(), 0)
    assert news.get(timeout=5) == recovering
    closed = writer.write_ledger(ledger_id, created.value.closed_at(1, 2), 1)
    assert news.get(timeout=5) == closed
    writer.delete_ledger(ledger_id)
    assert news.get(timeout=5) is None
    assert news.empty()


def test_cancelled_watch_is_silent_and_others_go_on(store: MetadataStore) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    silent: queue.Queue[object] = queue.Queue()
    news: queue.Queue[object] = queue.Queue()
    cancel = store.watch_ledger(ledger_id, silent.put)
    store.watch_ledger(ledger_id, news.put)
    cancel()
    written = store.write_ledger(ledger_id, created.value.in_recovery(), 0)
    assert news.get(timeout=5) == written
    assert silent.empty()


def test_failing_callback_does_not_end_a_watch(store: MetadataStore) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    seen: queue.Queue[int] = queue.Queue()

    def callback(found: Versioned[LedgerMetadata] | None) -> None:
        assert found is not None
        seen.put(found.version)
        raise RuntimeError("a bug of the caller")

    store.watch_ledger(ledger_id, callback)
    store.write_ledger(ledger_id, created.value.in_recovery(), 0)
    assert seen.get(timeout=5) == 1
    store.write_ledger(ledger_id, created.value.closed_at(1, 2), 1)
    assert seen.get(timeout=5) == 2


@pytest.mark.parametrize("trouble", ["outage", "expiry"])
def test_watch_survives_an_outage_and_an_expired_session(
    metadata_world: MetadataWorld, store: MetadataStore, trouble: str
) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    news: queue.Queue[Versioned[LedgerMetadata] | None] = queue.Queue()
    writer = metadata_world.open()
    store.watch_ledger(ledger_id, news.put)
    metadata_world.suspend(store)
    recovering = writer.write_ledger(ledger_id, created.value.in_recovery(), 0)
    metadata_world.resume(store)
    assert news.get(timeout=8) == recovering
    if trouble == "expiry":
        metadata_world.expire(store)
    closed = writer.write_ledger(ledger_id, created.value.closed_at(1, 2), 1)
    assert news.get(timeout=8) == closed


def test_watch_survives_an_outage_longer_than_the_deadline_of_a_read(metadata_world: MetadataWorld) -> None:
    store, writer = metadata_world.open(timeout_s=0.3), metadata_world.open()
    store.initialize_cluster()
    ledger_id, created = store.create_ledger(a_ledger())
    news: queue.Queue[Versioned[LedgerMetadata] | None] = queue.Queue()
    store.watch_ledger(ledger_id, news.put)
    metadata_world.suspend(store)
    recovering = writer.write_ledger(ledger_id, created.value.in_recovery(), 0)
    with pytest.raises(queue.Empty):
        news.get(timeout=0.7)
    metadata_world.resume(store)
    assert news.get(timeout=8) == recovering


def test_outage_without_a_change_is_no_news(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    news: queue.Queue[Versioned[LedgerMetadata] | None] = queue.Queue()
    store.watch_ledger(ledger_id, news.put)
    states: queue.Queue[SessionState] = queue.Queue()
    store.on_session(states.put)
    metadata_world.suspend(store)
    metadata_world.resume(store)
    assert [states.get(timeout=8) for _ in range(2)] == [SessionState.SUSPENDED, SessionState.CONNECTED]
    with pytest.raises(queue.Empty):
        news.get(timeout=0.3)
    recovering = store.write_ledger(ledger_id, created.value.in_recovery(), 0)
    assert news.get(timeout=8) == recovering


@pytest.mark.rule("M2")
def test_outage_suspends_and_an_expired_session_is_lost(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    states: queue.Queue[SessionState] = queue.Queue()
    store.on_session(states.put)
    metadata_world.suspend(store)
    assert states.get(timeout=5) is SessionState.SUSPENDED
    metadata_world.resume(store)
    assert states.get(timeout=5) is SessionState.CONNECTED
    metadata_world.expire(store)
    assert [states.get(timeout=8) for _ in range(3)] == [
        SessionState.SUSPENDED,
        SessionState.LOST,
        SessionState.CONNECTED,
    ]


def test_calls_during_an_outage_end_at_their_deadline_and_writes_are_not_applied(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open(timeout_s=0.5)
    store.initialize_cluster()
    ledger_id, created = store.create_ledger(a_ledger())
    states: queue.Queue[SessionState] = queue.Queue()
    store.on_session(states.put)
    metadata_world.suspend(store)
    states.get(timeout=5)
    for call in (
        lambda: store.read_ledger(ledger_id),
        lambda: store.write_ledger(ledger_id, created.value.in_recovery(), 0),
        lambda: store.create_ledger(a_ledger()),
    ):
        started = time.monotonic()
        with pytest.raises(MetadataUnavailableError) as raised:
            call()
        assert raised.value.outcome is Outcome.NOT_APPLIED
        assert time.monotonic() - started < 2
    metadata_world.resume(store)
    until(lambda: _can_read(store, ledger_id))


def test_reading_goes_on_after_an_outage_shorter_than_the_deadline(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    metadata_world.expire(store)
    assert store.read_ledger(ledger_id) == created


def test_sync_shows_what_another_client_wrote(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    ledger_id, created = metadata_world.open().create_ledger(a_ledger())
    store.sync()
    assert store.read_ledger(ledger_id) == created


def test_closed_store_refuses_and_closing_twice_is_fine(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open()
    store.initialize_cluster()
    store.close()
    store.close()
    with pytest.raises(ClientClosedError):
        store.read_ledger(1)
    with pytest.raises(ClientClosedError):
        store.create_ledger(a_ledger(), 1)


def _can_read(store: MetadataStore, ledger_id: int) -> bool:
    try:
        return store.read_ledger(ledger_id).version == 0
    except MetadataUnavailableError:
        return False
