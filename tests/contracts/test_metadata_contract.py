# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does: its ledgers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from bk_core.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    MetadataConflictError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    Outcome,
)
from bk_core.metadata.codec import encode_ledger
from bk_core.metadata.layout import Layout, last_id_below, ledger_path
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.tree.ids import RESERVED_MAX
from bk_core.metadata.tree.tree import ensure_path
from bk_core.model import Fragment, LedgerState, Versioned
from tests.kit.metadata_worlds import MetadataWorld, a_ledger, before_write, lose_write_number, tree_of

# --- the cluster ---


@pytest.mark.rule("M1")
def test_uri_with_another_layout_than_the_clusters_is_refused(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    with pytest.raises(InvalidArgumentError, match="hierarchical"):
        metadata_world.open(layout="longhierarchical").create_ledger(a_ledger())
    assert metadata_world.open(layout="hierarchical").create_ledger(a_ledger())[0] == 0


# --- creating ledgers ---


def test_created_ledger_reads_back_with_version_0(store: MetadataStore) -> None:
    metadata = a_ledger(custom_metadata={"application": b"test"}, password=b"p\x00w", ctime_ms=12)
    ledger_id, created = store.create_ledger(metadata)
    assert created == Versioned(replace(metadata, c_token=created.value.c_token), 0)
    assert created.value.c_token is not None
    assert 0 <= created.value.c_token < 2**63
    assert store.read_ledger(ledger_id) == created


@pytest.mark.parametrize(
    ("password", "custom"),
    [
        (b"", {}),
        (bytes(range(256)), {"binary": bytes(range(256)), "empty": b"", "": b"no name"}),
        (
            b"\xff" * 4096,
            {"key with = and \n": b"\x00", "\u043a\u043b\u044e\u0447": "\u0434\u0430".encode(), "big": bytes(100_000)},
        ),
    ],
    ids=["none", "every byte", "odd names"],
)
def test_passwords_and_custom_metadata_survive_every_step_of_a_ledger(
    store: MetadataStore, password: bytes, custom: dict[str, bytes]
) -> None:
    ledger_id, found = store.create_ledger(a_ledger(password=password, custom_metadata=custom))
    changed = found.value.with_ensemble(5, ("b4:3181", "b2:3181", "b3:3181"))
    for step in (changed, changed.in_recovery(), changed.closed_at(9, 90)):
        found = store.write_ledger(ledger_id, step, found.version)
        assert store.read_ledger(ledger_id) == found
        assert found.value == step
        assert (found.value.password, dict(found.value.custom_metadata)) == (password, custom)


def test_ids_of_many_ledgers_at_once_differ_and_leave_no_node_behind(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    other = metadata_world.open()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: (store, other)[number % 2].create_ledger(a_ledger())[0], range(120)))
    assert sorted(set(made)) == sorted(made)
    assert list(store.list_ledgers()) == sorted(made)
    idgen = f"{metadata_world.root}/idgen"
    assert len(tree_of(store).children(idgen)) <= 2 * RESERVED_MAX
    other.close()
    store.close()
    reader = metadata_world.open()
    assert tree_of(reader).children(idgen) == []


def test_ids_reserved_in_a_session_that_was_lost_are_used_all_the_same(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    made = [store.create_ledger(a_ledger())[0] for _ in range(30)]
    metadata_world.expire(store)
    made += [store.create_ledger(a_ledger())[0] for _ in range(30)]
    assert sorted(set(made)) == made
    assert list(metadata_world.open().list_ledgers()) == made


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("applied", [True, False])
def test_creating_a_ledger_together_with_its_id_survives_a_lost_answer(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    first, _ = store.create_ledger(a_ledger())  # the folders are there: what follows is the id, then the record
    lose_write_number(metadata_world, store, 1, applied=applied)
    ledger_id, created = store.create_ledger(a_ledger())
    assert store.read_ledger(ledger_id) == created
    assert list(store.list_ledgers()) == [first, ledger_id]
    assert tree_of(store).children(f"{metadata_world.root}/idgen") == []


def test_ledger_that_cannot_be_made_costs_no_second_wait_and_leaves_no_node(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    with pytest.raises(InvalidArgumentError):
        store.create_ledger(a_ledger(custom_metadata={"big": bytes(1_100_000)}))
    idgen = f"{metadata_world.root}/idgen"
    assert tree_of(store).children(idgen) == []
    hasty = metadata_world.open(timeout_s=0.5)
    hasty.create_ledger(a_ledger())
    deleted: list[str] = []
    tree_of(hasty).delete = deleted.append
    before_write(hasty, 1, lambda: metadata_world.suspend(hasty))
    with pytest.raises(MetadataUnavailableError):
        hasty.create_ledger(a_ledger())
    assert deleted == [], "the node of the id would be waited for once more"
    metadata_world.resume(hasty)


def test_made_id_skips_a_ledger_whose_id_was_given(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    for taken in (0, 1):
        store.create_ledger(a_ledger(), taken)
    assert store.create_ledger(a_ledger())[0] == 2
    assert tree_of(store).children(f"{metadata_world.root}/idgen") == []


@pytest.mark.parametrize("ledger_id", [0, 2**31 - 2, 2**31 - 1, 2**31, 2**40 + 5, 2**63 - 2])
def test_given_ids_of_any_size_can_be_created_once(store: MetadataStore, ledger_id: int) -> None:
    store.create_ledger(a_ledger(), ledger_id)
    assert store.read_ledger(ledger_id).version == 0
    assert list(store.list_ledgers()) == [ledger_id]
    with pytest.raises(LedgerExistsError):
        store.create_ledger(a_ledger(), ledger_id)


def test_ids_beyond_31_bits_are_made_once_the_long_generator_is_there(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    ensure_path(tree_of(store), f"{metadata_world.root}/idgen-long")  # as Apache's client leaves it after the overflow
    assert [store.create_ledger(a_ledger())[0] for _ in range(3)] == [2**32, 2**32 + 1, 2**32 + 2]
    assert list(store.list_ledgers()) == [2**32, 2**32 + 1, 2**32 + 2]


def test_long_ids_continue_in_the_newest_folder(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    for high in (1, 3):
        ensure_path(tree_of(store), f"{metadata_world.root}/idgen-long/HOB-{high:010d}")
    assert store.create_ledger(a_ledger())[0] == 3 << 32


def test_longhierarchical_cluster_makes_long_paths_for_small_ids(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open(layout="longhierarchical")
    store.initialize_cluster()
    store.create_ledger(a_ledger(), 5)
    assert tree_of(store).exists(f"{metadata_world.root}/000/0000/0000/0000/L0005") is not None
    assert list(metadata_world.open().list_ledgers()) == [5]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.rule("MUST8")
def test_creating_a_ledger_of_given_id_survives_a_lost_answer(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    store.create_ledger(a_ledger(), 1)  # so that the folders are there and the next write is the creation
    metadata_world.lose_next_answer(store, applied=applied)
    ledger_id, created = store.create_ledger(a_ledger(), 2)
    assert (ledger_id, created.version) == (2, 0)
    assert store.read_ledger(2) == created


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("lost_write", range(4))
@pytest.mark.parametrize("applied", [True, False])
def test_creating_a_ledger_survives_a_lost_answer_of_each_of_its_writes(
    metadata_world: MetadataWorld, store: MetadataStore, lost_write: int, applied: bool
) -> None:
    tree = tree_of(store)
    lose_write_number(metadata_world, store, lost_write, applied=applied)
    ledger_id, created = store.create_ledger(a_ledger())
    assert store.read_ledger(ledger_id) == created
    assert list(store.list_ledgers()) == [ledger_id]
    assert tree.exists(f"{metadata_world.root}/idgen") is not None


@pytest.mark.rule("MUST8")
def test_another_ledger_found_after_a_lost_answer_is_not_taken_for_ours(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.create_ledger(a_ledger(), 1)
    other = metadata_world.open()
    before_write(store, 1, lambda: other.create_ledger(a_ledger(c_token=7), 2))
    metadata_world.lose_next_answer(store, applied=False)
    with pytest.raises(LedgerExistsError):
        store.create_ledger(a_ledger(c_token=8), 2)
    assert store.read_ledger(2).value.c_token == 7


@pytest.mark.rule("MUST8")
def test_lost_answer_stays_unknown_when_the_store_cannot_be_asked_again(metadata_world: MetadataWorld) -> None:
    store = metadata_world.open(timeout_s=0.5)
    store.initialize_cluster()
    store.create_ledger(a_ledger(), 1)
    metadata_world.lose_next_answer(store, applied=True)
    before_write(store, 1, lambda: metadata_world.suspend(store))
    with pytest.raises(MetadataUnavailableError) as raised:
        store.create_ledger(a_ledger(), 2)
    assert raised.value.outcome is Outcome.UNKNOWN
    metadata_world.resume(store)


def test_old_format_without_a_token_leaves_the_outcome_unknown(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.create_ledger(a_ledger(), 1)
    metadata_world.lose_next_answer(store, applied=True)
    with pytest.raises(MetadataUnavailableError) as raised:
        store.create_ledger(a_ledger(format_version=2), 2)
    assert raised.value.outcome is Outcome.UNKNOWN


def test_inconsistent_metadata_is_refused_before_anything_is_written(store: MetadataStore) -> None:
    with pytest.raises(InvalidArgumentError, match="ensemble"):
        store.create_ledger(a_ledger(fragments=(Fragment(0, ("b1:3181",)),)))
    assert list(store.list_ledgers()) == []


def test_bytes_of_a_new_ledger_are_apaches(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    ledger_id, created = store.create_ledger(a_ledger(), 1_234_567_890)
    assert ledger_id == 1_234_567_890
    assert tree_of(store).get(f"{metadata_world.root}/12/3456/L7890")[0] == encode_ledger(created.value)


# --- compare-and-set ---


@pytest.mark.rule("MUST8")
def test_write_with_another_version_conflicts_and_changes_nothing(store: MetadataStore) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    recovering = store.write_ledger(ledger_id, created.value.in_recovery(), created.version)
    assert recovering.version == 1
    with pytest.raises(MetadataConflictError) as raised:
        store.write_ledger(ledger_id, created.value.closed_at(9, 90), created.version)
    assert raised.value.outcome is Outcome.NOT_APPLIED
    assert store.read_ledger(ledger_id) == recovering
    closed = store.write_ledger(ledger_id, recovering.value.closed_at(9, 90), recovering.version)
    assert store.read_ledger(ledger_id) == closed
    assert closed.value.state is LedgerState.CLOSED


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("applied", [True, False])
def test_lost_answer_of_a_write_is_unknown_and_reading_again_settles_it(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    closed = created.value.closed_at(4, 40)
    metadata_world.lose_next_answer(store, applied=applied)
    with pytest.raises(MetadataUnavailableError) as raised:
        store.write_ledger(ledger_id, closed, created.version)
    assert raised.value.outcome is Outcome.UNKNOWN
    assert store.read_ledger(ledger_id) == (Versioned(closed, 1) if applied else created)


def test_write_without_a_version_is_refused(store: MetadataStore) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    with pytest.raises(InvalidArgumentError, match="compare-and-set"):
        store.write_ledger(ledger_id, created.value, -1)


@pytest.mark.rule("M4")
def test_unknown_fields_of_a_newer_release_survive_our_rewrite(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    unknown = b"\xa2\x06\x05later"  # field 100
    ledger_id, _ = store.create_ledger(a_ledger(unknown_fields=unknown))
    read = metadata_world.open().read_ledger(ledger_id)
    store.write_ledger(ledger_id, read.value.closed_at(0, 1), read.version)
    assert store.read_ledger(ledger_id).value.unknown_fields == unknown
    assert unknown in tree_of(store).get(f"{metadata_world.root}/00/0000/L0000")[0]


@pytest.mark.rule("M4")
def test_rewrite_keeps_the_format_the_record_was_read_with(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    ledger_id, _ = store.create_ledger(a_ledger(format_version=2))
    read = store.read_ledger(ledger_id)
    store.write_ledger(ledger_id, read.value.closed_at(0, 1), read.version)
    assert tree_of(store).get(f"{metadata_world.root}/00/0000/L0000")[0].startswith(b"BookieMetadataFormatVersion\t2\n")


def test_damaged_record_names_its_ledger_and_its_znode(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    ledger_id, _ = store.create_ledger(a_ledger())
    path = f"{metadata_world.root}/00/0000/L0000"
    tree_of(store).set(path, b"BookieMetadataFormatVersion\t4\nxx", 0)
    with pytest.raises(MetadataCorruptError, match=rf"version 4.*ledger 0, znode {path}:"):
        store.read_ledger(ledger_id)


@pytest.mark.parametrize("ledger_id", [-1, 2**63 - 1, 2**63])
def test_id_that_no_bookie_takes_entries_of_makes_no_ledger(store: MetadataStore, ledger_id: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"from 0 to {2**63 - 2} .*ledgerId={ledger_id}"):
        store.create_ledger(a_ledger(), ledger_id)
    assert list(store.list_ledgers()) == []
    assert store.create_ledger(a_ledger(), 2**63 - 2)[0] == 2**63 - 2


def test_ledger_of_the_last_id_that_another_program_made_is_read_and_deleted(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    path = metadata_world.root + ledger_path(Layout.HIERARCHICAL, 2**63 - 1)
    ensure_path(tree_of(store), path.rpartition("/")[0])
    tree_of(store).create(path, encode_ledger(a_ledger()))
    assert list(store.list_ledgers()) == [2**63 - 1]
    assert store.read_ledger(2**63 - 1).value.write_quorum_size == 3
    store.delete_ledger(2**63 - 1)
    assert list(store.list_ledgers()) == []


# --- deleting, listing, ages ---


def test_deleted_ledger_is_gone_with_its_folders(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    for ledger_id in (0, 1, 2**40):
        store.create_ledger(a_ledger(), ledger_id)
    tree, root = tree_of(store), metadata_world.root
    store.delete_ledger(0)
    assert tree.children(f"{root}/00/0000") == ["L0001"]
    store.delete_ledger(1)
    store.delete_ledger(2**40)
    assert [name for name in tree.children(root) if name.isdigit()] == []
    with pytest.raises(NoSuchLedgerError):
        store.read_ledger(0)
    with pytest.raises(NoSuchLedgerError):
        store.delete_ledger(0)


def test_delete_compares_the_version_when_given(store: MetadataStore) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    store.write_ledger(ledger_id, created.value.in_recovery(), 0)
    with pytest.raises(MetadataConflictError):
        store.delete_ledger(ledger_id, 0)
    store.delete_ledger(ledger_id, 1)
    assert list(store.list_ledgers()) == []


@pytest.mark.parametrize("applied", [True, False])
def test_deleting_survives_a_lost_answer(metadata_world: MetadataWorld, store: MetadataStore, applied: bool) -> None:
    ledger_id, _ = store.create_ledger(a_ledger())
    metadata_world.lose_next_answer(store, applied=applied)
    store.delete_ledger(ledger_id)
    assert list(store.list_ledgers()) == []


def test_missing_ledger_cannot_be_read_written_or_watched(store: MetadataStore) -> None:
    attempts: list[Callable[[], Any]] = [
        lambda: store.read_ledger(5),
        lambda: store.write_ledger(5, a_ledger(), 0),
        lambda: store.watch_ledger(5, print),
        lambda: store.ledger_ctime_ms(5),
        lambda: store.ledger_times_ms(5),
    ]
    for attempt in attempts:
        with pytest.raises(NoSuchLedgerError):
            attempt()


def test_ledgers_are_listed_lazily_in_ascending_order_and_nothing_else_is(store: MetadataStore) -> None:
    ids = [7, 12_345, 2**31 - 2, 2**31 - 1, 2**33, 2**62]
    for ledger_id in reversed(ids):
        store.create_ledger(a_ledger(), ledger_id)
    store.write_cookie("b1:3181", b"cookie", None)
    store.mark_underreplicated(7, ["b1:3181"])
    assert list(store.list_ledgers()) == ids
    listing = store.list_ledgers()
    assert list(islice(listing, 2)) == ids[:2]
    store.delete_ledger(2**33)
    assert list(listing) == [i for i in ids[2:] if i != 2**33]


def test_a_list_of_ledgers_goes_on_after_any_id_without_reading_what_is_below(store: MetadataStore) -> None:
    ids = [7, 8, 9_999, 10_000, 12_345, 2**31 - 2, 2**31 - 1, 2**33, 2**62]
    for ledger_id in ids:
        store.create_ledger(a_ledger(), ledger_id)
    for after in (-1, *(i + step for i in ids for step in (-1, 0, 1))):
        assert list(store.list_ledgers(after)) == [i for i in ids if i > after]
    assert last_id_below("/00/0001") == 19_999
    assert last_id_below("/21") == 21_99_99_99_99
    assert last_id_below("/000/0000/0085") == int("0000000" + "0085" + 8 * "9")


@pytest.mark.rule("N6")
def test_age_of_a_ledger_is_known_by_the_stores_clock(store: MetadataStore) -> None:
    ledger_id, _ = store.create_ledger(a_ledger())
    assert abs(store.ledger_ctime_ms(ledger_id) - time.time() * 1000) < 60_000
    assert store.read_ledger(ledger_id).value.ctime_ms is None  # and does not leak into the record
