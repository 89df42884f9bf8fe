# SPDX-License-Identifier: Apache-2.0
"""Returns facts about ledgers that lack copies, and about the workers that repair them, as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from bk_core.cluster.ledgers import ANSWERS
from bk_core.errors import MetadataCorruptError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, LedgerId, LedgerMetadata

UNREADABLE_NAMED = 50
"""The maximum number of unreadable nodes that are named. ``unreadableCount`` counts all of them."""


def unreadable(store: MetadataStore) -> dict[str, object]:
    """Return the nodes of the metadata store that walks have skipped so far, because they cannot be read (M6)."""
    nodes = store.unreadable.nodes()
    return {"unreadable": [node.as_object() for node in nodes[:UNREADABLE_NAMED]], "unreadableCount": len(nodes)}


def status(store: MetadataStore) -> dict[str, object]:
    """Return whether repair is enabled, the current auditor, and the delay after which an absent bookie is lost, as
    ``bk replication status --json`` prints them."""
    return {
        "enabled": store.replication_enabled(),
        "auditor": store.current_auditor(),
        "lostBookieDelayS": store.lost_bookie_recovery_delay_s(),
    }


def mark_object(
    store: MetadataStore, ledger_id: LedgerId, missing: Sequence[BookieId], locks: Mapping[LedgerId, str]
) -> dict[str, object]:
    """Return the object for a marked ledger, which lacks copies on the bookies ``missing``. ``locks`` has the worker of
    each ledger that is under repair."""
    since = since_ms(store, ledger_id)
    return {"ledgerId": ledger_id, "missing": list(missing), "sinceMs": since, "repairedBy": locks.get(ledger_id)}


def since_ms(store: MetadataStore, ledger_id: LedgerId) -> int | None:
    """Return the time in ms since 1970 from which a ledger has lacked copies, or None if its mark is gone, cannot be
    read, or has no time."""
    mark = None
    with contextlib.suppress(MetadataCorruptError):  # the mark was replaced after it was listed; the next walk names it
        mark = store.read_underreplicated(ledger_id)
    return mark.value.ctime_ms if mark is not None else None


def why_not_yet(
    value: LedgerMetadata,
    missing: Sequence[BookieId],
    states: Mapping[BookieId, str],
    status: Mapping[str, object],
    repaired_by: str | None,
) -> str:
    """Return the reason why a ledger still lacks copies. ``states`` has the states of all bookies, and ``status`` is
    the result of :func:`status`."""
    if repaired_by:
        return f"{repaired_by} repairs it now"
    if not status.get("enabled", True):
        return "repair is paused (bk replication resume)"
    if not status.get("auditor"):
        return "no worker repairs (start bk autorecovery)"
    leaving = [bookie for bookie in missing if states.get(bookie) == "draining"]
    lost = [bookie for bookie in missing if states.get(bookie) not in ANSWERS]
    members = {bookie for fragment in value.fragments for bookie in fragment.ensemble}
    spare = [bookie for bookie, state in states.items() if state == "writable" and bookie not in members]
    if (lost or leaving) and not spare:
        return "no other bookie can take the copy: start one"
    if leaving:
        return f"{', '.join(leaving)} drains; another bookie will get its copy when it is this ledger's turn"
    if lost:
        return f"it will be repaired in its turn, or when {', '.join(lost)} is back"
    return "it will be repaired in its turn; the bookie that lacks entries is registered"
