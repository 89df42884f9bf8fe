# SPDX-License-Identifier: Apache-2.0
"""When the auditor looks at all ledgers: at once for a new reason, a minute later once more, then at long intervals."""

from __future__ import annotations

import pytest

from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import BookieServiceInfo, DigestType, Fragment, LedgerId, LedgerMetadata, LedgerState
from bookie_server.autorecovery.auditor import AGAIN_S, Auditor
from bookie_server.autorecovery.presence import Presence
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from tests.kit.memory_store import MemoryStore

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
        fragments = (Fragment(0, ("b1",)),)
        record = LedgerMetadata(
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            fragments=fragments,
            last_entry_id=0,
            state=LedgerState.CLOSED,
            digest_type=DigestType.CRC32C,
        )
        return self.store.create_ledger(record)[0]

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
