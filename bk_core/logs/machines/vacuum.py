# SPDX-License-Identifier: Apache-2.0
"""Vacuum: deletes what is not listed. A crash may end it at any point. Pure (N6).

Ledgers are deleted in two phases. First a compare-and-set condemns those that the log does not list and that no record
says were unlinked lately; from then on no publish can list them. Then they are deleted, and the head forgets those that
are certainly gone. Whether a ledger is listed is decided on the head that the condemnation is compared with, so no
listed ledger is ever deleted. Unlinked records are deleted before pages, so that no record names a page that is gone.

If it ends early, the next vacuum deletes the ledgers that stay condemned, and the pages and records that are left.
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
"""This many transaction records are read, and deleted, at a time."""
TXNS_LOOKS_MAX = 5
"""Attempts to delete a group of transaction records; if the log changes too fast, the next vacuum deletes them."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What was deleted; ``remaining`` are condemned ledgers that could not be, which the next vacuum tries again."""

    ledgers: tuple[LedgerId, ...] = ()
    remaining: tuple[LedgerId, ...] = ()
    pages: tuple[str, ...] = ()
    transactions: tuple[str, ...] = ()  # names of the applications or queries


class Vacuum:
    """One vacuum of the log ``name``. It deletes ledgers and pages that were made before ``before_ms`` and not unlinked
    since, by the store's clock, and transaction records last used before ``txns_before_ms``, by their writers' clocks
    (0: none). :meth:`run` is the sequence; run it once."""

    def __init__(self, name: str, log_uuid: str, before_ms: int, nonce: Nonce, *, txns_before_ms: int = 0) -> None:
        self.name, self.log_uuid = name, log_uuid
        self.before_ms, self.txns_before_ms = before_ms, txns_before_ms
        self._nonce = nonce
        self._done = Vacuumed()
        self._is_begun = False  # a request that changes the store was made

    def run(self) -> Steps[Vacuumed]:
        """What was deleted. Raises the error that ended it; ``outcome`` says whether anything may have been deleted."""
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
        """Condemns and deletes ledgers in rounds of as many as the head has room for."""
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
        """Deletes transaction records that were not used for long (N5), some at a time."""
        keys = yield ask.ListTransactions()
        for first in range(0, len(keys), TXNS_AT_ONCE):
            yield from self._delete_unused(keys[first : first + TXNS_AT_ONCE])

    def _delete_unused(self, keys: tuple[str, ...]) -> Steps[None]:
        """Deletes by compare-and-set with the head, so that a record which is used meanwhile stays."""
        asked: dict[str, str] = {}  # key → application, of records that may be deleted already
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
                continue  # read again to see what became of it
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
