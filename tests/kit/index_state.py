# SPDX-License-Identifier: Apache-2.0
"""Everything that the index knows about one ledger, as one value. A bookie itself reads only the parts that it
needs."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.model import EntryId, LedgerId
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine.disk_places import Place
from bookie_server.storage.index.index import LedgerIndex


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """The folded state of a ledger. If ``trouble`` is not REASON_NONE, ids that are not found are UNKNOWN. ``lac`` and
    ``lac_body`` come from explicit LAC records, ``carried_lac`` from entries; none of them is verified (RULES P5)."""

    known: bool
    key: bytes | None
    fenced: bool
    deleted: bool
    lac: EntryId
    lac_body: bytes
    carried_lac: EntryId
    carried_place: Place | None
    trouble: Reason


def state_of(index: LedgerIndex, ledger_id: LedgerId) -> LedgerStatus:
    """Return the folded state of a ledger. The bookie need not know the ledger."""
    if index.is_deleted(ledger_id):
        return LedgerStatus(True, None, True, True, -1, b"", -1, None, Reason.DELETED)
    state, trouble = index.folded(ledger_id)
    if state is None:
        return LedgerStatus(False, None, False, False, -1, b"", -1, None, trouble)
    carried, place = index.carried_lac(ledger_id)
    return LedgerStatus(True, state.key, state.is_fenced, False, state.lac, state.lac_body, carried, place, trouble)


def unsealed_places(index: LedgerIndex, ledger_id: LedgerId) -> list[Place]:
    """Return the places of the ledger's frames in unsealed segments."""
    return [frames.place(k, ledger_id) for frames in index._unsealed_frames(ledger_id) for k in range(len(frames))]
