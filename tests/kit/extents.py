# SPDX-License-Identifier: Apache-2.0
"""Extents of logs, as tasks and leaders report them."""

from __future__ import annotations

from typing import Any

from bk_core.logs.model.head import Extent, NewExtent


def new_extent(ledger_id: int, entry_count: int, size_bytes: int, created_ms: int = 1, **more: Any) -> NewExtent:
    """Return the extent of a ledger with ensemble size 3, write quorum 3 and ack quorum 2."""
    return NewExtent(
        ledger_id=ledger_id,
        entry_count=entry_count,
        size_bytes=size_bytes,
        created_ms=created_ms,
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        **more,
    )


def open_extent(ledger_id: int) -> Extent:
    """Return the extent of a ledger that a leader writes."""
    quorums = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
    return Extent(is_open=True, ledger_id=ledger_id, created_ms=2, **quorums)
