# SPDX-License-Identifier: Apache-2.0
"""What keeps a bookie in a ledger, and how much of the ledger it holds."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from bk_core.model import Fragment, LedgerMetadata, LedgerState
from bk_core.placement import Landscape
from bk_core.protocol.replication.copies import Blocked, copies_left, size_of
from bk_core.protocol.replication.events import ClusterRead

ALL = ("b1", "b2", "b3", "b4")


def a_value(*fragments: Fragment, closed: bool = True, quorum: int = 3) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=quorum,
        ack_quorum_size=quorum - 1,
        fragments=fragments or (Fragment(0, ("b1", "b2", "b3")),),
        state=LedgerState.CLOSED if closed else LedgerState.OPEN,
        last_entry_id=99 if closed else -1,
        length=5_000 if closed else 0,
    )


def kept_by(value: LedgerMetadata, **cluster: Any) -> Blocked | None:
    left = copies_left(7, value, "b1", ClusterRead(**{"writable": ALL, **cluster}), Random(1))
    return left.blocked if left is not None else None


def test_bytes_of_a_bookie_are_its_share_of_its_fragments() -> None:
    moved = a_value(Fragment(0, ("b1", "b2", "b3")), Fragment(40, ("b4", "b2", "b3")))
    assert [size_of(moved, bookie) for bookie in ("b1", "b2", "b4", "b9")] == [2_000, 5_000, 3_000, 0]
    assert size_of(a_value(quorum=2), "b1") == 3_333
    assert size_of(a_value(closed=False), "b1") == 0
    empty = a_value(Fragment(0, ("b1", "b2", "b3")), Fragment(100, ("b4", "b2", "b3")))
    assert size_of(empty, "b4") == 0


def test_closed_ledger_can_be_left_where_another_bookie_can_take_over() -> None:
    assert kept_by(a_value()) is Blocked.NOTHING
    assert kept_by(a_value(), writable=("b2", "b3"), read_only=("b1", "b4")) is Blocked.NO_BOOKIE
    assert kept_by(a_value(), leaving=("b4", "b1")) is Blocked.NO_BOOKIE, "another that is drained takes nothing"
    assert kept_by(a_value(Fragment(0, ("b4", "b2", "b3")))) is None
    old = a_value(Fragment(0, ("b1", "b2", "b4")), Fragment(40, ("b4", "b2", "b3")))
    assert kept_by(old) is Blocked.NOTHING, "it is in an older fragment"


def test_racks_that_are_enforced_keep_a_bookie() -> None:
    racks = {"b1": "/r1", "b2": "/r2", "b3": "/r2", "b4": "/r2"}
    assert kept_by(a_value(), landscape=Landscape(racks, enforced=True)) is Blocked.NO_BOOKIE
    assert kept_by(a_value(), landscape=Landscape({**racks, "b4": "/r3"}, enforced=True)) is Blocked.NOTHING


def test_open_ledger_waits_for_its_writer_unless_something_worse_keeps_it() -> None:
    assert kept_by(a_value(closed=False)) is Blocked.WRITER
    assert kept_by(a_value(closed=False), writable=("b1", "b2", "b3")) is Blocked.NO_BOOKIE


@pytest.mark.parametrize(
    ("quorum", "here", "kept"),
    [
        (3, ("b2", "b4"), Blocked.NOTHING),
        (3, ("b4", "b5"), Blocked.LAST_COPY),
        (2, ("b2", "b4"), Blocked.LAST_COPY),  # b1 and b3 hold a third of the entries, and both are away
        (2, ("b2", "b3", "b4"), Blocked.NOTHING),
    ],
)
def test_bookie_that_is_away_may_have_the_last_copy(quorum: int, here: tuple[str, ...], kept: Blocked) -> None:
    assert kept_by(a_value(quorum=quorum), writable=here) is kept
    assert kept_by(a_value(quorum=quorum), writable=here, read_only=("b1",)) is Blocked.NOTHING, "it can be read"
