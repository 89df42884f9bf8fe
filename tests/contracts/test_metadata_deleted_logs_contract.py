# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with the records of deleted logs (N6)."""

from __future__ import annotations

import pytest

from bk_core.errors import InvalidArgumentError
from bk_core.metadata.port import MetadataStore
from tests.kit.metadata_worlds import MetadataWorld

FIRST, SECOND = "11111111-9abc-def0-1234-56789abcdef0", "22222222-9abc-def0-1234-56789abcdef0"


@pytest.mark.rule("N6")
def test_a_deleted_log_is_on_record_with_the_stores_time_until_it_is_forgotten(store: MetadataStore) -> None:
    assert store.read_deleted_logs() == []
    assert store.read_deleted_log(FIRST) is None
    store.forget_deleted_log(FIRST)
    before_ms = store.deleted_logs_clock_ms()
    store.create_deleted_log(SECOND, b"2")
    store.create_deleted_log(FIRST, b"1")
    (first, made_ms, data), (second, _, _) = store.read_deleted_logs()
    assert (first, data, second) == (FIRST, b"1", SECOND)
    assert before_ms <= made_ms <= store.deleted_logs_clock_ms()
    store.create_deleted_log(FIRST, b"another client finishes the deletion")
    assert store.read_deleted_log(FIRST) == (made_ms, b"1"), "the time of the deletion must not move"
    store.forget_deleted_log(FIRST)
    assert [each for each, _, _ in store.read_deleted_logs()] == [SECOND]
    assert store.list_logs() == []
    with pytest.raises(InvalidArgumentError):
        store.create_deleted_log("../events", b"")


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_is_settled(metadata_world: MetadataWorld, store: MetadataStore, applied: bool) -> None:
    store.create_deleted_log(SECOND, b"2")
    metadata_world.lose_next_answer(store, applied=applied)
    store.create_deleted_log(FIRST, b"1")
    assert len(store.read_deleted_logs()) == 2
    metadata_world.lose_next_answer(store, applied=applied)
    assert store.deleted_logs_clock_ms() > 0
    metadata_world.lose_next_answer(store, applied=applied)
    store.forget_deleted_log(FIRST)
    assert store.read_deleted_log(FIRST) is None
