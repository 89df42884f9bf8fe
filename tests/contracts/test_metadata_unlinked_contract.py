# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with the records of ledgers that a log unlinked, and with its own clock (RULES N6)."""

from __future__ import annotations

import pytest

from bk_core.errors import MetadataConflictError, MetadataUnavailableError, NoSuchLogError
from bk_core.metadata.port import LogWrite, MetadataStore, TxnWrite
from tests.kit.metadata_worlds import MetadataWorld, tree_of

KEY = "ab" * 32


@pytest.mark.rule("N6")
def test_what_a_head_unlinks_is_on_record_in_the_same_step_with_the_stores_time(store: MetadataStore) -> None:
    store.create_log("events", b"0")
    assert store.read_unlinked("events") == store.read_unlinked("none") == []
    before_ms = store.log_clock_ms("events")
    store.write_logs([LogWrite("events", b"1", 0, unlinked=b"u1")])
    store.write_logs([LogWrite("events", b"2", 1, TxnWrite(KEY, b"t", None))])
    store.write_logs([LogWrite("events", b"3", 2, TxnWrite(KEY, b"t", 0), b"u3")])
    (first, made_ms, data), (third, later_ms, _) = store.read_unlinked("events")
    assert (first, data, third) == ("0000000001", b"u1", "0000000003")
    assert before_ms <= made_ms <= later_ms <= store.log_clock_ms("events")
    with pytest.raises(MetadataConflictError):
        store.write_logs([LogWrite("events", b"x", 2, unlinked=b"late")])
    assert [name for name, _, _ in store.read_unlinked("events")] == [first, third], "refused, and on record"
    store.delete_unlinked("events", [first])
    store.delete_unlinked("events", [first, third])
    assert store.read_unlinked("events") == []


@pytest.mark.rule("N6")
@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_leaves_head_and_record_both_changed_or_neither(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    store.create_log("events", b"0")
    metadata_world.lose_next_answer(store, applied=applied)
    with pytest.raises(MetadataUnavailableError):
        store.write_logs([LogWrite("events", b"1", 0, unlinked=b"u1")])
    assert (store.read_log("events").version, len(store.read_unlinked("events"))) == ((1, 1) if applied else (0, 0))
    store.write_logs([LogWrite("events", b"2", int(applied), unlinked=b"u2")])
    records = [name for name, _, _ in store.read_unlinked("events")]
    metadata_world.lose_next_answer(store, applied=applied)
    store.delete_unlinked("events", records)
    assert store.read_unlinked("events") == []


@pytest.mark.rule("N6")
@pytest.mark.parametrize("applied", [True, False])
def test_the_stores_clock_is_read_though_an_answer_is_lost(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    with pytest.raises(NoSuchLogError):
        store.log_clock_ms("none")
    store.create_log("events", b"0")
    made_ms = tree_of(store).exists(f"{metadata_world.root}-logs/events").ctime_ms
    metadata_world.lose_next_answer(store, applied=applied)
    assert made_ms <= store.log_clock_ms("events") <= made_ms + 60_000


@pytest.mark.rule("N6")
def test_a_log_without_a_folder_for_what_is_unlinked_gets_one(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    folder = f"{metadata_world.root}-logs/events/unlinked"
    store.create_log("events", b"0")
    tree_of(store).delete(folder)
    store.write_logs([LogWrite("events", b"1", 0, unlinked=b"u1")])
    assert [data for _, _, data in store.read_unlinked("events")] == [b"u1"]
    store.delete_unlinked("events", ["0000000001"])
    tree_of(store).delete(folder)
    assert store.log_clock_ms("events") > 0
    tree_of(store).delete(folder)
    store.delete_log("events")
    assert store.list_logs() == []
