# SPDX-License-Identifier: Apache-2.0
"""Decides which of its own copies a bookie checks and when, and finds the entries that such a copy lacks (decision
0053). Pure; the time is an argument."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bk_core.model import ENTRY_ID_MAX, BookieId, EntryId, LedgerId, LedgerMetadata
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import EntryRange, Reason

LOOK_AGAIN_S = 60.0
"""The number of seconds from a mark until the ledger is checked again. Each further mark doubles it, up to
``LOOK_AGAIN_MAX_S``."""
LOOK_AGAIN_MAX_S = 3_600.0
NOT_NAMED_LOOKS = 10
"""The number of checks of a damaged copy that the ledger's record does not assign to this bookie. They take five hours,
because a repair that wrote the copy may still put the bookie into the record."""


@dataclass(slots=True)
class _Suspect:
    due_s: float
    times: int = 0  # how often the ledger was marked, or could not be judged


class Suspects:
    """Ledgers of which this bookie may lack entries, each with the time of the next look."""

    def __init__(self) -> None:
        self._suspects: dict[LedgerId, _Suspect] = {}
        self._queue: list[tuple[float, LedgerId]] = []

    def __len__(self) -> int:
        return len(self._suspects)

    def note(self, ledger_ids: Iterable[LedgerId], now_s: float) -> None:
        """Add suspects that are due now. A ledger that is a suspect already keeps its time."""
        for ledger_id in ledger_ids:
            if ledger_id not in self._suspects:
                self._suspects[ledger_id] = _Suspect(now_s)
                heapq.heappush(self._queue, (now_s, ledger_id))

    def due(self, now_s: float, most: int) -> list[LedgerId]:
        """Return the suspects to check now, at most ``most``, the longest due first. Each stays due until the caller
        reports the result by :meth:`again` or :meth:`forget`."""
        found: list[LedgerId] = []
        while self._queue and self._queue[0][0] <= now_s and len(found) < most:
            due_s, ledger_id = heapq.heappop(self._queue)
            suspect = self._suspects.get(ledger_id)
            if suspect is not None and suspect.due_s == due_s:
                found.append(ledger_id)
        for ledger_id in found:
            heapq.heappush(self._queue, (self._suspects[ledger_id].due_s, ledger_id))
        return found

    def again(self, ledger_id: LedgerId, now_s: float, *, tried: bool) -> None:
        """Schedule the next check of a copy that is not known to be complete. ``tried`` means that a mark was made for
        the copy, or that it could not be judged. Each ``tried`` after the first doubles the time."""
        suspect = self._suspects[ledger_id]
        suspect.times += tried
        suspect.due_s = now_s + min(LOOK_AGAIN_S * 2 ** max(suspect.times - 1, 0), LOOK_AGAIN_MAX_S)
        heapq.heappush(self._queue, (suspect.due_s, ledger_id))

    def for_a_while(self, ledger_id: LedgerId, now_s: float) -> None:
        """Schedule the next check of a copy that lacks nothing by the present record. After ``NOT_NAMED_LOOKS`` the
        suspect is forgotten."""
        self.again(ledger_id, now_s, tried=True)
        if self._suspects[ledger_id].times > NOT_NAMED_LOOKS:
            self.forget(ledger_id)

    def forget(self, ledger_id: LedgerId) -> None:
        """Remove a suspect whose copy is complete, or which this bookie need not hold."""
        self._suspects.pop(ledger_id, None)


@dataclass(frozen=True, slots=True)
class OwnPart:
    """The entries of one fragment that a bookie must hold: those whose write sets include member ``index`` of the
    ensemble. ``last`` is None while the fragment has no end."""

    first: EntryId
    last: EntryId | None
    index: int
    ensemble_size: int
    write_quorum: int

    @property
    def asked_last(self) -> EntryId:
        return ENTRY_ID_MAX if self.last is None else self.last

    def lacking(self, trailer: ReadTrailer) -> list[EntryRange]:
        """Return the ranges of this answer that the copy must hold and lacks. Absent entries in a fragment without an
        end do not count, because they may never have been written."""
        absent = trailer.absent if self.last is not None else ()
        gaps = sorted((*absent, *trailer.unknown), key=lambda gap: gap.first)
        return [gap for gap in gaps if self._holds_any(max(gap.first, self.first), min(gap.last, self.asked_last))]

    def _holds_any(self, first: EntryId, last: EntryId) -> bool:
        last = min(last, first + self.ensemble_size - 1)  # this many ids include every write set
        ids = range(first, last + 1)
        return any((self.index - entry_id) % self.ensemble_size < self.write_quorum for entry_id in ids)


def own_parts(record: LedgerMetadata, bookie_id: BookieId) -> list[OwnPart]:
    """Return the parts of a ledger that this bookie must hold. There are none if the record does not name it."""
    sizes = record.ensemble_size, record.write_quorum_size
    parts = [
        OwnPart(fragment.first_entry_id, record.last_entry_of(at), fragment.ensemble.index(bookie_id), *sizes)
        for at, fragment in enumerate(record.fragments)
        if bookie_id in fragment.ensemble
    ]
    return [part for part in parts if part.last is None or part.first <= part.last]


def is_limbo(lacking: Sequence[EntryRange]) -> bool:
    """Return whether any of these entries is missing because of limbo."""
    return any(gap.reason is Reason.LIMBO for gap in lacking)
