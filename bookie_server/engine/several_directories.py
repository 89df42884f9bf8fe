# SPDX-License-Identifier: Apache-2.0
"""Makes one :class:`~bookie_server.machine.state.Holdings` of several data directories. Each ledger is in exactly one
of them.

A ledger stays in the directory in which an entry or record of it, or its deletion, is durable. So the bookie lacks
every entry of the ledger that this directory lacks. A ledger that no directory knows may have been in a directory with
damage in frames whose ledger could not be read. While such a directory is in limbo for unknown ledgers, they are
assigned to it, so that limbo applies to them before and after their first write (RULES S8). Otherwise ``choose`` picks
the directory of a new ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bk_core.errors import LocalProtocolError
from bk_core.model import EntryId, LedgerId
from bk_core.wire.lane.reasons import Reason
from bookie_server.engine.holdings import IndexHoldings
from bookie_server.machine.disk_places import Place, Unresolved
from bookie_server.machine.events import Piece
from bookie_server.machine.state import LedgerFacts, LookupPlan, Pending

_REMEMBERED_MAX = 1 << 17
"""The maximum number of ledgers whose directory is remembered."""


class SpreadHoldings:
    """The holdings of several directories. Like the indexes, it is used only on the loop's thread.
    ``choose(ledger_id)`` returns the number of a directory."""

    def __init__(self, parts: Sequence[IndexHoldings], choose: Callable[[LedgerId], int]) -> None:
        self._parts, self._choose = tuple(parts), choose
        self._found: dict[LedgerId, int] = {}  # the directory of known ledgers; it never changes

    def log_of(self, ledger_id: LedgerId) -> int:
        found = self._found.get(ledger_id)
        if found is not None:
            return found
        for number, part in enumerate(self._parts):
            if part.knows(ledger_id):
                self._remember(ledger_id, number)
                return number
        for number, part in enumerate(self._parts):
            if part.facts(ledger_id).trouble is not Reason.REASON_NONE:
                return number
        return self._choose(ledger_id)

    def _remember(self, ledger_id: LedgerId, number: int) -> None:
        if len(self._found) >= _REMEMBERED_MAX:
            self._found.clear()
        self._found[ledger_id] = number

    def _of(self, ledger_id: LedgerId) -> IndexHoldings:
        return self._parts[self.log_of(ledger_id)]

    def facts(self, ledger_id: LedgerId) -> LedgerFacts:
        return self._of(ledger_id).facts(ledger_id)

    def add(self, pending: Pending, place: Place) -> None:
        """Add a durable frame. Raises LocalProtocolError if it was written to another directory than its ledger's."""
        ledger_id, number = pending.header.ledger_id, pending.ledger.log.number
        if ledger_id not in self._found:
            known = next((k for k, part in enumerate(self._parts) if part.knows(ledger_id)), number)
            self._remember(ledger_id, known)
        if self._found[ledger_id] != number:
            raise LocalProtocolError(
                "a ledger was written to a second data directory",
                value=f"ledger {ledger_id}: log {number}, it is in {self._found[ledger_id]}",
            )
        self._parts[number].add(pending, place)

    def plan(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        bytes_max: int,
        resolved: Mapping[Unresolved, object],
    ) -> LookupPlan:
        return self._of(ledger_id).plan(ledger_id, first, last, bytes_max, resolved)

    def entry(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | bytearray | memoryview | None:
        return self._of(ledger_id).entry(ledger_id, entry_id)

    def learn(self, ledger_id: LedgerId, place: Unresolved, membership: object) -> None:
        self._of(ledger_id).learn(ledger_id, place, membership)

    def overlaps(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> bool:
        return self._of(ledger_id).overlaps(ledger_id, first, last)

    def last_entry_id(self, ledger_id: LedgerId) -> EntryId:
        return self._of(ledger_id).last_entry_id(ledger_id)

    def lac(self, ledger_id: LedgerId) -> EntryId:
        return self._of(ledger_id).lac(ledger_id)

    def tail(self, ledger_id: LedgerId) -> tuple[Piece | None, Piece | None]:
        return self._of(ledger_id).tail(ledger_id)

    def sealed_through(self, ledger_id: LedgerId) -> int:
        return self._of(ledger_id).sealed_through(ledger_id)

    def mark_damaged(self, ledger_id: LedgerId, place: Unresolved) -> None:
        self._of(ledger_id).mark_damaged(ledger_id, place)
