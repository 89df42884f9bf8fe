# SPDX-License-Identifier: Apache-2.0
"""Heads, ledgers and machines for the tests of leadership."""

from __future__ import annotations

from bk_core.logs.machines.leadership import LogLeadership, State
from bk_core.logs.machines.leadership_events import (
    HeadRead,
    HeadWritten,
    LeaderAnswered,
    LeadershipEffect,
    LeadershipEvent,
    LedgerCreated,
    Roll,
    TakeOver,
)
from bk_core.logs.model.head import LogHead, PublishId
from bk_core.logs.model.next_head import LedgerEnd, add_open_extent, publish, seal
from bk_core.model import Versioned
from tests.kit.extents import new_extent, open_extent
from tests.logs.change_kit import EMPTY, NONCE


def end(count: int) -> LedgerEnd:
    return LedgerEnd(entry_count=count, size_bytes=count)


def listed(head: LogHead, *ledgers: int) -> LogHead:
    for ledger in ledgers:
        head = add_open_extent(head, open_extent(ledger), nonce=NONCE).head
    return head


def published(head: LogHead, *ledgers: int) -> LogHead:
    extents = [new_extent(ledger, 10, 10, 2) for ledger in ledgers]
    return publish(head, extents, PublishId.job(str(ledgers)), now_ms=3, nonce=NONCE).head


def v(head: LogHead, version: int) -> Versioned[LogHead]:
    return Versioned(head, version)


def run(machine: LogLeadership, *events: LeadershipEvent) -> list[LeadershipEffect]:
    """Step through ``events``; returns the effects of the last."""
    effects: list[LeadershipEffect] = []
    for event in events:
        effects = machine.step(event)
    return effects


def serving() -> LogLeadership:
    machine = LogLeadership()
    run(machine, TakeOver(), HeadRead(v(EMPTY, 0)), LedgerCreated(open_extent(7)), HeadWritten(v(listed(EMPTY, 7), 1)))
    assert machine.state is State.SERVING
    return machine


BOTH = listed(EMPTY, 7, 8)
ROLLED = seal(BOTH, {7: end(5)}, nonce=NONCE).head


def rolling() -> LogLeadership:
    machine = serving()
    run(machine, Roll(), LeaderAnswered(True), LedgerCreated(open_extent(8)))
    return machine
