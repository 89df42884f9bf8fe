# SPDX-License-Identifier: Apache-2.0
"""A publish into several logs over every metadata store: a rival in one of them, a store that stays away."""

from __future__ import annotations

import pytest

from bk_core.entries.digest import ledger_key
from bk_core.errors import MetadataUnavailableError, Outcome
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.publication import publish_among
from bk_core.logs.model.head import LogHead, NewExtent, Published, PublishId
from bk_core.logs.store import LogStore, nonce
from bk_core.metadata.port import MetadataStore
from bk_core.model import DigestType, Fragment, LedgerState
from tests.kit.extents import new_extent
from tests.kit.log_changes import carried_out
from tests.kit.metadata_worlds import MetadataWorld, a_ledger, before_write

pytestmark = pytest.mark.rule("K10")
FRAGMENTS = (Fragment(0, ("b1:3181", "b2:3181", "b3:3181")),)


def made(store: MetadataStore, *logs: str) -> None:
    for number, log in enumerate(logs):
        uuid = f"12345678-9abc-def0-1234-{number:012d}"
        head = LogHead(uuid=uuid, created_ms=1, digest_type=DigestType.CRC32C, ledger_key=ledger_key(b""))
        LogStore(store, log).create(head)


def ledger(store: MetadataStore, rows: int = 2) -> NewExtent:
    closed = a_ledger(state=LedgerState.CLOSED, last_entry_id=rows - 1, length=rows)
    ledger_id, _ = store.create_ledger(closed)
    return new_extent(ledger_id, rows, rows, fragments=FRAGMENTS)


def publish(store: MetadataStore, ledgers: dict[str, list[NewExtent]], job: str, **limits: int) -> dict[str, Published]:
    change = HeadChange(publish_among(ledgers, PublishId.job(job), now_ms=5, nonce=nonce), **limits)
    return carried_out([LogStore(store, log) for log in ledgers], change.run())


def ends(store: MetadataStore, *logs: str) -> list[int]:
    return [LogStore(store, log).read().value.next_offset for log in logs]


def test_a_rival_in_one_log_is_outlasted_and_both_are_there(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    made(store, "a", "b")
    rival, theirs = metadata_world.open(), ledger(store, 5)
    ledgers = {"a": [ledger(store)], "b": [ledger(store)]}
    before_write(store, 0, lambda: publish(rival, {"b": [theirs]}, "rival"))
    found = publish(store, ledgers, "j")
    assert (found["a"].base_offset, found["b"].base_offset) == (0, 5)
    assert ends(store, "a", "b") == [2, 7]


@pytest.mark.rule("N4")
def test_a_store_that_stays_away_leaves_the_outcome_unknown(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open(timeout_s=2.0)
    store.initialize_cluster()
    made(store, "a", "b")
    ledgers = {"a": [ledger(store)], "b": [ledger(store)]}

    metadata_world.lose_next_answer(store, applied=True)
    with pytest.raises(MetadataUnavailableError) as raised:
        publish(store, ledgers, "j", failures_max=1)
    assert raised.value.outcome is Outcome.UNKNOWN
    assert publish(metadata_world.open(), ledgers, "j")["a"].base_offset == 0
    assert ends(metadata_world.open(), "a", "b") == [2, 2]
