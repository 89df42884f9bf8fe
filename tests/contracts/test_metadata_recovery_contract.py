# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does for auto-recovery: marks removed by version, locks, one election, and the records that
Apache's auditors and workers obey, each in Apache's bytes and place."""

from __future__ import annotations

import pytest

from bk_core.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    MetadataError,
    NoSuchLedgerError,
)
from bk_core.metadata.port import Audit, MetadataStore
from bk_core.metadata.records import UnderreplicationMark
from bk_core.metadata.tree.tree import ensure_path
from bk_core.model import Versioned
from tests.kit.metadata_worlds import MetadataWorld, a_ledger, tree_of
from tests.kit.waiting import until


def folder_of(world: MetadataWorld) -> str:
    return f"{world.root}/underreplication"


@pytest.mark.rule("P8")
def test_mark_is_removed_only_in_the_version_that_was_repaired(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.mark_underreplicated(5, ["b1:3181"])
    assert store.lock_underreplicated(5, "host1")
    found = store.read_underreplicated(5)
    assert found is not None
    assert found.value.missing == ("b1:3181",)
    store.mark_underreplicated(5, ["b1:3181"])  # a copy is missing again, while the first repair is under way
    assert store.remove_underreplicated(5, found.version) is False
    again = store.read_underreplicated(5)
    assert again is not None
    assert store.remove_underreplicated(5, again.version) is True
    assert store.read_underreplicated(5) is None
    assert store.remove_underreplicated(5, again.version) is True  # Apache's worker was faster


@pytest.mark.rule("P8")
def test_mark_made_again_is_not_removed_by_who_lost_the_lock(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    slow = metadata_world.open()
    store.mark_underreplicated(5, ["b1:3181"])
    assert slow.lock_underreplicated(5, "slow")
    found = slow.read_underreplicated(5)
    metadata_world.expire(slow)
    until(lambda: store.lock_underreplicated(5, "host1"))
    assert store.remove_underreplicated(5, 0)
    store.mark_underreplicated(5, ["b2:3181"])  # a new mark, of the version that the slow worker knows
    assert found is not None
    assert store.read_underreplicated(5) == Versioned(UnderreplicationMark(("b2:3181",), _ctime(store)), found.version)
    assert slow.remove_underreplicated(5, found.version) is False
    store.unlock_underreplicated(5)
    assert slow.remove_underreplicated(5, found.version) is False
    assert dict(store.list_underreplicated()) == {5: ("b2:3181",)}


def _ctime(store: MetadataStore) -> int | None:
    found = store.read_underreplicated(5)
    return None if found is None else found.value.ctime_ms


def test_folders_above_a_removed_mark_go_unless_another_mark_needs_them(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    near, far = 2**16 + 1, 2**16 + 2
    for ledger_id in (near, far):
        store.mark_underreplicated(ledger_id, ["b1:3181"])
        assert store.lock_underreplicated(ledger_id, "host1")
    assert store.remove_underreplicated(near, 0)
    assert dict(store.list_underreplicated()) == {far: ("b1:3181",)}
    assert store.remove_underreplicated(far, 0)
    assert tree_of(store).children(f"{folder_of(metadata_world)}/ledgers") == []
    store.mark_underreplicated(near, ["b2:3181"])
    assert dict(store.list_underreplicated()) == {near: ("b2:3181",)}


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.rule("MUST8")
def test_lost_answers_leave_one_lock_one_vote_and_no_mark(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    store.mark_underreplicated(5, ["b1:3181"])
    metadata_world.lose_next_answer(store, applied=applied)
    assert store.lock_underreplicated(5, "w1") is True
    metadata_world.lose_next_answer(store, applied=applied)
    assert store.remove_underreplicated(5, 0) is True
    assert store.read_underreplicated(5) is None
    ensure_path(tree_of(store), f"{folder_of(metadata_world)}/auditorelection")
    metadata_world.lose_next_answer(store, applied=applied)
    assert store.vote_for_auditor("w1") is True
    votes = tree_of(store).children(f"{folder_of(metadata_world)}/auditorelection")
    assert [name[:2] for name in votes] == ["V_"]


def test_lock_is_held_by_one_session_until_it_is_given_back_or_ends(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    other = metadata_world.open()
    assert store.lock_underreplicated(5, "host1") is True
    assert store.lock_underreplicated(5, "host1") is True  # again by the holder
    assert other.lock_underreplicated(5, "host2") is False
    assert other.lock_underreplicated(6, "host2") is True
    data, stat = tree_of(store).get(f"{folder_of(metadata_world)}/locks/urL0000000005")
    assert (data, stat.owner) == (b'bookieId: "host1"\n', store.session_id)
    assert store.underreplication_locks() == {5: "host1", 6: "host2"}
    other.unlock_underreplicated(5)  # a lock that it does not hold
    assert other.lock_underreplicated(5, "host2") is False
    store.unlock_underreplicated(5)
    store.unlock_underreplicated(5)
    assert other.lock_underreplicated(5, "host2") is True
    metadata_world.expire(other)
    until(lambda: store.lock_underreplicated(5, "host1"))


@pytest.mark.rule("MUST7")
def test_record_of_a_repaired_ledger_is_written_only_by_who_holds_its_lock(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    slow = metadata_world.open()
    ledger_id, made = store.create_ledger(a_ledger())
    wanted = made.value.closed_at(3, 30)
    with pytest.raises(MetadataError, match="lock"):
        slow.write_repaired_ledger(ledger_id, wanted, made.version)
    assert slow.lock_underreplicated(ledger_id, "slow")
    with pytest.raises(MetadataConflictError):
        slow.write_repaired_ledger(ledger_id, wanted, made.version + 1)
    written = slow.write_repaired_ledger(ledger_id, wanted, made.version)
    assert written == slow.read_ledger(ledger_id)
    metadata_world.expire(slow)
    until(lambda: store.lock_underreplicated(ledger_id, "host1"))
    with pytest.raises(MetadataError, match="lock"):
        slow.write_repaired_ledger(ledger_id, made.value, written.version)
    store.sync()
    assert store.read_ledger(ledger_id) == written
    store.delete_ledger(ledger_id)
    with pytest.raises(NoSuchLedgerError):
        store.write_repaired_ledger(ledger_id, wanted, written.version)


def test_locks_that_apaches_workers_took_are_respected(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    apache = metadata_world.open()
    locks = f"{folder_of(metadata_world)}/locks"
    ensure_path(tree_of(store), locks)
    tree_of(apache).create(f"{locks}/urL0000000009", b"", ephemeral=True)  # it may not know its own host's name
    assert store.lock_underreplicated(9, "host1") is False
    assert store.underreplication_locks() == {9: ""}


def test_the_lowest_vote_is_the_auditor_and_the_next_follows_it(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    second, third = metadata_world.open(), metadata_world.open()
    assert store.current_auditor() is None
    assert store.vote_for_auditor("b1:3181") is True
    assert second.vote_for_auditor("b2:3181") is False
    assert third.vote_for_auditor("b3:3181") is False
    assert [store.vote_for_auditor("b1:3181"), second.vote_for_auditor("b2:3181")] == [True, False]
    votes = f"{folder_of(metadata_world)}/auditorelection"
    assert len(tree_of(store).children(votes)) == 3
    assert tree_of(store).get(votes)[0] == b'bookieId: "b1:3181"\n'
    assert third.current_auditor() == "b1:3181"
    metadata_world.expire(store)
    until(lambda: second.vote_for_auditor("b2:3181"))
    assert tree_of(second).get(votes)[0] == b'bookieId: "b2:3181"\n'
    second.withdraw_vote()
    second.withdraw_vote()
    assert third.vote_for_auditor("b3:3181") is True
    until(lambda: not store.vote_for_auditor("b1:3181"))  # a new session votes behind the others


def test_a_vote_of_apaches_auditor_counts(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    apache = metadata_world.open()
    votes = f"{folder_of(metadata_world)}/auditorelection"
    ensure_path(tree_of(apache), votes)
    vote = b'bookieId: "apache:3181"\n'
    made = tree_of(apache).create(f"{votes}/V_", vote, ephemeral=True, sequential=True)
    assert store.vote_for_auditor("b1:3181") is False
    assert store.current_auditor() == "apache:3181"
    tree_of(apache).delete(made)
    assert store.vote_for_auditor("b1:3181") is True


def test_replication_can_be_switched_off_and_on(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    assert store.replication_enabled()
    for _ in range(2):
        store.enable_replication(False)
    assert tree_of(store).exists(f"{folder_of(metadata_world)}/disable") is not None
    assert not store.replication_enabled()
    for _ in range(2):
        store.enable_replication(True)
    assert store.replication_enabled()


def test_delay_before_a_bookie_is_lost_is_decimal_text(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    assert store.lost_bookie_recovery_delay_s() is None
    for seconds in (0, 300):
        store.set_lost_bookie_recovery_delay_s(seconds)
        assert store.lost_bookie_recovery_delay_s() == seconds
    path = f"{folder_of(metadata_world)}/lostBookieRecoveryDelay"
    assert tree_of(store).get(path)[0] == b"300"
    with pytest.raises(InvalidArgumentError):
        store.set_lost_bookie_recovery_delay_s(-1)
    for unreadable in (b"soon", b"", b"-1", b"9" * 5000):
        tree_of(store).set(path, unreadable, -1)
        assert store.lost_bookie_recovery_delay_s() is None, "each auditor's own setting holds"
        assert [node.path for node in store.unreadable.nodes()] == [path]


@pytest.mark.parametrize("audit", list(Audit))
def test_time_of_each_audit_is_apaches_bytes(metadata_world: MetadataWorld, store: MetadataStore, audit: Audit) -> None:
    assert store.audit_time_ms(audit) is None
    store.write_audit_time_ms(audit, 300)
    store.write_audit_time_ms(audit, 1_700_000_000_000)
    assert store.audit_time_ms(audit) == 1_700_000_000_000
    data = tree_of(store).get(f"{folder_of(metadata_world)}/{audit.value}")[0]
    assert data == b"\x08\x80\xd0\x95\xff\xbc1"  # field 1, varint
