# SPDX-License-Identifier: Apache-2.0
"""Vacuum: delete what nobody lists, in steps that a crash may end at any point. Pure (RULES N6).

Ledgers are deleted in two phases. First those that the log does not list, and that no record says were unlinked lately,
are condemned by compare-and-set. From then on no publish takes them. Then they are deleted, and the head forgets those
that are gone for certain. A ledger is looked for in the head that its condemnation is compared with, so nothing that is
listed is ever deleted.

Where it ends early, ledgers stay condemned and are deleted by the next vacuum, or pages and records stay that it finds.
Records of what was unlinked go before the pages: no record ever names a page that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from bk_core.errors import (
    BookKeeperError,
    LogRecreatedError,
    MetadataConflictError,
    MetadataUnavailableError,
    Outcome,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps
from bk_core.logs.machines.change import HeadChange, Intent
from bk_core.logs.machines.upkeep import Absolve, Condemn, FencePages, Unneeded
from bk_core.logs.model.head import LogTransactions
from bk_core.logs.model.paging import Nonce
from bk_core.model import LedgerId

TXNS_AT_ONCE = 100
"""Transaction records read, and deleted, at a time."""
TXNS_LOOKS_MAX = 5
"""Looks at as many records before they are left to the next vacuum: others change the log too fast."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What was deleted, and the condemned ledgers that could not be; the next vacuum tries again."""

    ledgers: tuple[LedgerId, ...] = ()
    remaining: tuple[LedgerId, ...] = ()
    pages: tuple[str, ...] = ()
    transactions: tuple[str, ...] = ()  # by the names of their applications or queries


class Vacuum:
    """One vacuum of the log ``name``: ledgers and pages made before ``before_ms`` and not unlinked since, by the
    store's clock; transactions last used before ``txns_before_ms`` by their writers' (0: none). :meth:`run` is the
    sequence, to be run once."""

    def __init__(self, name: str, log_uuid: str, before_ms: int, nonce: Nonce, *, txns_before_ms: int = 0) -> None:
        self.name, self.log_uuid = name, log_uuid
        self.before_ms, self.txns_before_ms = before_ms, txns_before_ms
        self._nonce = nonce
        self._done = Vacuumed()
        self._is_begun = False  # something was asked for that changes the world

    def run(self) -> Steps[Vacuumed]:
        """What was deleted. Raises what ended it; ``outcome`` says whether anything may have been done."""
        try:
            yield from self._delete_ledgers()
            yield from self._delete_pages()
            if self.txns_before_ms > 0:
                yield from self._delete_transactions()
        except BookKeeperError as error:
            error.outcome = Outcome.UNKNOWN if self._is_begun else Outcome.NOT_APPLIED
            raise
        return self._done

    def _delete_ledgers(self) -> Steps[None]:
        """Rounds of as many ledgers as the head has room to condemn."""
        candidates = yield ask.ListOrphans(self.log_uuid, self.before_ms)
        while condemned := (yield from self._change(self._condemn(candidates))):
            self._is_begun = True
            gone = yield ask.DeleteLedgers(condemned, self.log_uuid)
            remaining = tuple(each for each in condemned if each not in gone)
            self._done = replace(self._done, ledgers=(*self._done.ledgers, *gone), remaining=remaining)
            if gone:
                yield from self._change(Absolve(gone, self._nonce))
            if remaining:
                return
            candidates = tuple(each for each in candidates if each not in gone)

    def _condemn(self, candidates: tuple[LedgerId, ...]) -> Condemn:
        return Condemn(candidates, self.before_ms, self.log_uuid, self._nonce)

    def _delete_pages(self) -> Steps[None]:
        names = yield ask.ListPages(self.before_ms)
        unneeded: Unneeded = yield from self._change(FencePages(names, self.before_ms))
        if unneeded.records:
            self._is_begun = True
            yield ask.DeleteUnlinked(unneeded.records)
        if unneeded.pages:
            self._is_begun = True
            yield ask.DeletePages(unneeded.pages)
            self._done = replace(self._done, pages=unneeded.pages)

    def _delete_transactions(self) -> Steps[None]:
        """Transaction records that nobody used for long (RULES N5), some at a time."""
        keys = yield ask.ListTransactions()
        for first in range(0, len(keys), TXNS_AT_ONCE):
            yield from self._delete_unused(keys[first : first + TXNS_AT_ONCE])

    def _delete_unused(self, keys: tuple[str, ...]) -> Steps[None]:
        """By compare-and-set with the head, so that a record which is used meanwhile stays."""
        asked: dict[str, str] = {}  # key → application of those that are perhaps deleted already
        for _ in range(TXNS_LOOKS_MAX):
            found: ask.TransactionsRead = yield ask.ReadTransactions(keys)
            if found.head.value.uuid != self.log_uuid:
                raise LogRecreatedError("the log was deleted and made again", remedy="vacuum the new one")
            self._count(name for key, name in asked.items() if key not in found.records)
            unused = {key: record for key, record in found.records.items() if self._is_unused(record.value)}
            if not unused:
                return
            asked = {key: record.value.app_id for key, record in unused.items()}
            versions = {key: record.version for key, record in unused.items()}
            self._is_begun = True
            try:
                yield ask.DeleteTransactions(versions, found.head.version)
            except (MetadataConflictError, MetadataUnavailableError):
                continue  # look what became of it
            self._count(asked.values())
            return

    def _is_unused(self, record: LogTransactions) -> bool:
        return record.last_used_ms < self.txns_before_ms

    def _count(self, applications: Iterable[str]) -> None:
        self._done = replace(self._done, transactions=(*self._done.transactions, *applications))

    def _change(self, intent: Intent[R]) -> Steps[R]:
        change = HeadChange({self.name: intent})
        try:
            results = yield from change.run()
        finally:
            self._is_begun = self._is_begun or change.was_attempted
        return results[self.name]
