# SPDX-License-Identifier: Apache-2.0
"""Ledgers that lack copies, and who puts them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, LedgerId


def status(store: MetadataStore) -> dict[str, object]:
    """Whether copies are put back, by whom, and after how long a bookie is lost; as ``bk replication status --json``
    prints it."""
    return {
        "enabled": store.replication_enabled(),
        "auditor": store.current_auditor(),
        "lostBookieDelayS": store.lost_bookie_recovery_delay_s(),
    }


def mark_object(
    store: MetadataStore, ledger_id: LedgerId, missing: Sequence[BookieId], locks: Mapping[LedgerId, str]
) -> dict[str, object]:
    """A ledger that lacks copies; ``locks`` are those of all repairs."""
    since = since_ms(store, ledger_id)
    return {"ledgerId": ledger_id, "missing": list(missing), "sinceMs": since, "repairedBy": locks.get(ledger_id)}


def since_ms(store: MetadataStore, ledger_id: LedgerId) -> int | None:
    """Since when a ledger lacks copies, as far as its mark tells."""
    mark = store.read_underreplicated(ledger_id)
    return mark.value.ctime_ms if mark is not None else None
