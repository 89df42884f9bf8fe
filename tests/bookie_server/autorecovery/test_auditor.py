# SPDX-License-Identifier: Apache-2.0
"""One audit of many records, some of which cannot be read; and when the auditor looks at all ledgers: at once for a new
reason, a minute later once more, then at long intervals."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest

from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.codec import encode_ledger
from bk_core.metadata.layout import Layout, ledger_path
from bk_core.metadata.records import BookieOrder, Order
from bk_core.metadata.scan import PART
from bk_core.model import BookieServiceInfo, DigestType, Fragment, LedgerId, LedgerMetadata, LedgerState, Versioned
from bookie_server.autorecovery.auditor import AGAIN_S, VOTE_EVERY, Auditor
from bookie_server.autorecovery.presence import Presence
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from tests.kit.memory_store import MemoryStore
from tests.kit.metadata_worlds import a_ledger, a_ledger_on

LAST = PART - 1
"""Read with the first ones, and looked at long afterwards."""
LEDGERS = PART + VOTE_EVERY + 7
"""More than are read together."""


class Failing(MemoryStore):
    """Does not answer about some ledgers. ``last_read``: the record of LAST and of the one before were read."""

    mute: Collection[LedgerId] = ()

    def __init__(self) -> None:
        super().__init__()
        self.was_read, self.last_read = set[LedgerId](), threading.Event()

    def read_ledger(self, ledger_id: LedgerId, *, fresh: bool = False) -> Versioned[LedgerMetadata]:
        if ledger_id in self.mute:
            raise MetadataUnavailableError("it does not answer")
        found = super().read_ledger(ledger_id, fresh=fresh)
        self.was_read.add(ledger_id)  # by several threads
        if {LAST - 1, LAST} <= self.was_read:
            self.last_read.set()
        return found


def a_cluster() -> tuple[Failing, Auditor]:
    """Every ledger names the bookie that is lost."""
    store = Failing()
    store.initialize_cluster()
    for number in range(LEDGERS):
        store.create_ledger(a_ledger(), number)
    first, *others = a_ledger().fragments[0].ensemble
    store.write_cookie(first, b"4\n", None)
    for bookie in others:
        store.register_bookie(BookieServiceInfo(bookie))
    presence = Presence(store, 0)
    presence.look()
    return store, Auditor(store, "host", presence, AutoRecoveryConfig(lost_bookie_delay_s=0))


def marked(store: MemoryStore) -> set[LedgerId]:
    return {ledger_id for ledger_id, _ in store.list_underreplicated()}


@pytest.mark.long
def test_records_that_cannot_be_read_hide_no_other_and_are_looked_at_again() -> None:
    store, auditor = a_cluster()
    store.mute = (3, PART + 3)
    store.tree.set(f"/ledgers{ledger_path(Layout.HIERARCHICAL, 5)}", b"no record", -1)
    auditor.look()
    assert marked(store) == set(range(LEDGERS)) - {3, 5, PART + 3}
    assert auditor.marked == LEDGERS - 3
    store.mute = ()
    auditor.look()
    assert marked(store) == set(range(LEDGERS)) - {5}
    assert auditor.marked == LEDGERS - 1, "what is marked is not marked again"


@pytest.mark.long
def test_what_is_repaired_or_deleted_after_it_was_read_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    store, auditor = a_cluster()
    _, *others = a_ledger().fragments[0].ensemble
    vote, is_done = store.vote_for_auditor, False

    def meanwhile(owner: str) -> bool:
        """Votes are asked for while the audit is under way, and the first ledgers are marked."""
        nonlocal is_done
        if marked(store) and not is_done:
            is_done = store.last_read.wait(10)
            record = store.read_ledger(LAST)
            moved = replace(record.value, fragments=(Fragment(0, ("new", *others)),))
            store.write_ledger(LAST, moved, record.version)
            store.delete_ledger(LAST - 1)
        return vote(owner)

    monkeypatch.setattr(store, "vote_for_auditor", meanwhile)
    auditor.look()
    assert marked(store) == set(range(LEDGERS)) - {LAST, LAST - 1}


def test_who_is_no_longer_elected_goes_on_no_further_than_its_next_look_at_the_vote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, auditor = a_cluster()
    votes = iter([True, True, False])  # before the audit, at its beginning, and after so many ledgers
    monkeypatch.setattr(store, "vote_for_auditor", lambda owner: next(votes))
    auditor.look()
    assert len(marked(store)) == VOTE_EVERY


class Counting(MemoryStore):
    """Counts how often all ledgers are listed."""

    lists = 0

    def list_ledgers(self, after: LedgerId = -1) -> Iterator[LedgerId]:
        self.lists += 1
        return super().list_ledgers(after)


@pytest.mark.rule("M6")
def test_record_that_cannot_be_read_makes_no_audit_of_all_ledgers_at_every_look() -> None:
    store, now = Counting(), [0.0]
    store.initialize_cluster()
    for ledger_id in range(3):
        store.create_ledger(a_ledger(), ledger_id)
    store.tree.set(f"/ledgers{ledger_path(Layout.HIERARCHICAL, 1)}", b"no record", -1)
    config = AutoRecoveryConfig(lost_bookie_delay_s=0)
    auditor = Auditor(store, "host", Presence(store, 0), config, clock=lambda: now[0])
    auditor.look()  # which tells it whom the ledgers name
    auditor.look()
    assert marked(store) == {0, 2}
    so_far = store.lists
    for _ in range(5):
        auditor.look()
    assert store.lists == so_far
    store.write_ledger(0, store.read_ledger(0).value, 0)
    store.tree.set(f"/ledgers{ledger_path(Layout.HIERARCHICAL, 1)}", encode_ledger(a_ledger()), -1)
    now[0] = config.rescan_s
    auditor.look()
    assert marked(store) == {0, 1, 2}


def test_an_auditor_that_withdraws_is_not_elected_and_another_is() -> None:
    store, auditor = a_cluster()
    auditor.look()
    assert auditor.elected
    auditor.withdraw()
    assert not auditor.elected
    assert store.vote_for_auditor("another")


# --- when it looks ---


RESCAN_S = 3_600.0


class World:
    """An auditor on a clock of the test, in a cluster whose bookie ``b1`` is drained."""

    def __init__(self) -> None:
        self.store, self.now = MemoryStore(), 0.0
        self.store.initialize_cluster()
        self.store.register_bookie(BookieServiceInfo("b1"))
        self.store.write_bookie_order("b1", BookieOrder(Order.DRAIN, 0))
        config = AutoRecoveryConfig(rescan_s=RESCAN_S)
        presence = Presence(self.store, 5, clock=lambda: self.now)
        self.auditor = Auditor(self.store, "host1", presence, config, clock=lambda: self.now)

    def ledger(self) -> LedgerId:
        closed = {"last_entry_id": 0, "state": LedgerState.CLOSED, "digest_type": DigestType.CRC32C}
        return self.store.create_ledger(a_ledger_on(("b1",), **closed))[0]

    def marks_new_ones(self, at_s: float) -> bool:
        """Whether an audit at this time finds what was made just before it."""
        self.now = at_s
        made = self.ledger()
        self.auditor.look()
        return made in {ledger_id for ledger_id, _ in self.store.list_underreplicated()}


@pytest.mark.rule("D23")
def test_a_reason_is_audited_at_once_and_a_minute_later_and_then_only_with_the_rescan() -> None:
    world = World()
    assert world.marks_new_ones(0)
    assert [world.marks_new_ones(AGAIN_S - 1), world.marks_new_ones(AGAIN_S)] == [False, True]
    assert [world.marks_new_ones(times * AGAIN_S + 1) for times in (2, 3, 10)] == [False] * 3
    assert not world.marks_new_ones(AGAIN_S + RESCAN_S - 1)
    assert world.marks_new_ones(AGAIN_S + RESCAN_S)


@pytest.mark.rule("D23")
def test_nothing_is_audited_while_replication_is_paused_and_all_of_it_afterwards() -> None:
    world = World()
    world.store.enable_replication(False)
    assert not world.marks_new_ones(0)
    world.store.enable_replication(True)
    assert world.marks_new_ones(1)
