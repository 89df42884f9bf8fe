# SPDX-License-Identifier: Apache-2.0
"""Upkeep of a log. Pure (N6, N7). Trim and compact only unlink ledgers; vacuum deletes ledgers and pages that the log
does not list.

Vacuum deletes ledgers in two phases. First a compare-and-set condemns the ledgers that the log does not list and that
no recent unlinked record names; from then on no publish can list them. Then they are deleted, and the head forgets the
ledgers that are certainly gone. The head with which the condemnation is compared decides whether a ledger is listed, so
no listed ledger is ever deleted. Unlinked records are deleted before pages, so that no record names a deleted page.

A crash may end vacuum at any point. The next vacuum deletes the ledgers that are still condemned, and the pages and
records that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LogRecreatedError,
    MetadataConflictError,
    MetadataUnavailableError,
    Outcome,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps
from bk_core.logs.machines.change import Ask, Facts, HeadChange, Intent
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import CONDEMNED_MAX, Extent, LogHead, LogTransactions, NewExtent
from bk_core.logs.model.paging import Change, Nonce, fit, ledgers_listed, sealed_extents
from bk_core.logs.model.unlinking import UnlinkedRecord, ledgers_kept, pages_kept
from bk_core.model import LedgerId

RETENTION_MAX = 2**62
"""The maximum retention, in milliseconds or bytes. A sum of two such numbers still fits into 64 bits."""


@dataclass(frozen=True)
class SetRetention(Intent[LogHead]):
    """Sets the retention of a log. Trims keep entries that are not older than ``retention_ms``, and the newest
    ``retention_bytes``. 0 keeps everything, and None leaves the value as it is. The result is the head. Raises
    InvalidArgumentError for a negative number."""

    retention_ms: int | None
    retention_bytes: int | None
    nonce: Nonce

    def __post_init__(self) -> None:
        for name in ("retention_ms", "retention_bytes"):
            if (value := getattr(self, name)) is not None and not 0 <= value <= RETENTION_MAX:
                raise InvalidArgumentError(f"{name} is 0, for ever, or a positive number", value=f"{name}={value}")

    def settled(self, head: LogHead, facts: Facts) -> LogHead | None:
        return head if self._wanted(head) == head else None

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        return fit(self._wanted(head), self.nonce, facts.pages)

    def _wanted(self, head: LogHead) -> LogHead:
        return replace(
            head,
            retention_ms=head.retention_ms if self.retention_ms is None else self.retention_ms,
            retention_bytes=head.retention_bytes if self.retention_bytes is None else self.retention_bytes,
        )


@dataclass(frozen=True)
class Trim(Intent[int]):
    """Unlinks the extents below ``before_offset``. The result is the log's start offset."""

    before_offset: int
    nonce: Nonce

    def settled(self, head: LogHead, facts: Facts) -> int | None:
        """Return the log's start offset if a trim would not move it, else None."""
        start = head.start_offset
        return start if commit.trimmed_start(head, self.before_offset) == start else None

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        return commit.trim(head, self.before_offset, nonce=self.nonce, pages=facts.pages)

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """Return whether the start is lower than the trim would have made it. The start never goes back, so the trim
        was then not applied. (``settled`` may be false although the trim was applied, because more is sealed now.)"""
        return head.start_offset < made.start_offset


@dataclass(frozen=True)
class Compact(Intent[Extent]):
    """Lists ``new``, which has the same entries, in place of ``run``. The result is the extent of ``new``."""

    run: tuple[Extent, ...]
    new: NewExtent
    nonce: Nonce

    def settled(self, head: LogHead, facts: Facts) -> Extent | None:
        start = self.run[0].base_offset
        found = sealed_extents(head, facts.pages, start, start + 1)
        return found[0] if found and found[0].ledger_id == self.new.ledger_id else None

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Replace the run, if all of it is still listed."""
        change = commit.replace_extents(head, self.run, self.new, nonce=self.nonce, pages=facts.pages)
        return change if facts.is_checked else ask.CheckLedgers(head, (self.new,))

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """Return whether the run is still listed. A replaced run never comes back, so the write was then not
        applied."""
        return commit.has_run(head, self.run, facts.pages)


@dataclass(frozen=True)
class Condemn(Intent[tuple[LedgerId, ...]]):
    """Condemns ``candidates``, as many as the head can hold (CONDEMNED_MAX). It condemns no ledger that is listed, or
    that was unlinked at ``before_ms`` or later. The result is every condemned ledger that is not listed, including
    those that an interrupted vacuum left."""

    candidates: tuple[LedgerId, ...]
    before_ms: int
    log_uuid: str
    nonce: Nonce

    def settled(self, head: LogHead, facts: Facts) -> tuple[LedgerId, ...] | None:
        """Return the condemned ledgers if no more ledgers have to be condemned, else None. Raises LogRecreatedError for
        the head of another log."""
        if head.uuid != self.log_uuid:
            raise LogRecreatedError("the log was deleted and made again", remedy="vacuum the new one")
        if self.candidates and facts.unlinked is None:
            return None
        if self._to_add(head, facts):
            return None
        listed = ledgers_listed(head, facts.pages) if head.condemned else set()
        return tuple(ledger for ledger in head.condemned if ledger not in listed)

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Return the change that condemns the ledgers. The unlinked records are read after the head. A change that
        unlinks something in between gives the head another version, so that this compare-and-set fails."""
        if facts.unlinked is None:
            return ask.ReadUnlinked()
        return commit.condemn(head, self._to_add(head, facts), nonce=self.nonce, pages=facts.pages)

    def _to_add(self, head: LogHead, facts: Facts) -> Sequence[LedgerId]:
        room = CONDEMNED_MAX - len(head.condemned)
        if room <= 0 or not self.candidates:
            return ()
        kept = ledgers_kept(head, young(facts, self.before_ms), facts.pages).union(head.condemned)
        return [ledger for ledger in self.candidates if ledger not in kept][:room]


@dataclass(frozen=True)
class Absolve(Intent[LogHead]):
    """Removes ledgers that were deleted from the condemned ledgers. The result is the head."""

    ledgers: tuple[LedgerId, ...]
    nonce: Nonce

    def settled(self, head: LogHead, facts: Facts) -> LogHead | None:
        return None if set(self.ledgers).intersection(head.condemned) else head

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        return commit.absolve(head, self.ledgers, nonce=self.nonce, pages=facts.pages)


def young(facts: Facts, before_ms: int) -> list[UnlinkedRecord]:
    """Return the unlinked records made at ``before_ms`` or later. The ledgers and pages that they name are kept."""
    assert facts.unlinked is not None
    return [record for record in facts.unlinked if record.made_ms >= before_ms]


@dataclass(frozen=True, slots=True)
class Unneeded:
    """The objects that a vacuum deletes besides ledgers: unlinked ``records`` that are old enough, and ``pages`` that
    no head and no other record names."""

    records: tuple[str, ...]
    pages: tuple[str, ...]


@dataclass(frozen=True)
class FencePages(Intent[Unneeded]):
    """Finds the pages among ``names`` that neither the head nor an unlinked record made at ``before_ms`` or later
    reaches.

    It writes the unchanged head as a new version. So every change that was under way fails its compare-and-set, and
    cannot make the head name one of these pages. ``names`` were listed before the head was read, so a later change
    makes pages with other names.
    """

    names: tuple[str, ...]
    before_ms: int

    def settled(self, head: LogHead, facts: Facts) -> Unneeded | None:
        """Return the unneeded records and pages, once the head was written or if there are no such pages."""
        if facts.unlinked is None:
            return None
        kept = pages_kept(head, young(facts, self.before_ms), facts.pages)
        unreached = tuple(name for name in self.names if name not in kept)
        old = tuple(record.name for record in facts.unlinked if record.made_ms < self.before_ms)
        return Unneeded(old, unreached) if facts.is_written or not unreached else None

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        return ask.ReadUnlinked() if facts.unlinked is None else Change(head)


TXNS_AT_ONCE = 100
"""The number of transaction records that are read, and deleted, in one request."""
TXNS_LOOKS_MAX = 5
"""The maximum number of attempts to delete a group of transaction records. If the log changes too fast, the next vacuum
deletes them."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The result of a vacuum: the deleted ledgers, pages and transaction records. ``remaining`` are condemned ledgers
    that could not be deleted; the next vacuum tries them again."""

    ledgers: tuple[LedgerId, ...] = ()
    remaining: tuple[LedgerId, ...] = ()
    pages: tuple[str, ...] = ()
    transactions: tuple[str, ...] = ()  # names of the applications or queries

    def and_of_deleted(self, more: Vacuumed) -> Vacuumed:
        """Return this result with the ledgers of deleted logs of the same name added."""
        ledgers, remaining = (*self.ledgers, *more.ledgers), (*self.remaining, *more.remaining)
        return replace(self, ledgers=ledgers, remaining=remaining)


class Vacuum:
    """One vacuum of the log ``name``. :meth:`run` is the sequence; run it once.

    It deletes ledgers and pages that the log does not list and that were made before ``before_ms`` and not unlinked
    since, by the store's clock. It deletes transaction records that were last used before ``txns_before_ms``, by their
    writers' clocks, or none if that is 0. With ``among`` it deletes only ledgers of this list, and those that an
    interrupted vacuum left.
    """

    def __init__(
        self,
        name: str,
        log_uuid: str,
        before_ms: int,
        nonce: Nonce,
        *,
        txns_before_ms: int = 0,
        among: tuple[LedgerId, ...] | None = None,
    ) -> None:
        self.name, self.log_uuid = name, log_uuid
        self.before_ms, self.txns_before_ms = before_ms, txns_before_ms
        self._nonce, self._among = nonce, among
        self._done = Vacuumed()
        self._is_begun = False  # a request that changes the store was made

    def run(self) -> Steps[Vacuumed]:
        """Vacuum the log, and return what was deleted. Raises the error that ends the vacuum. Its ``outcome`` says
        whether anything may have been deleted."""
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
        """Condemn and delete ledgers in rounds of at most CONDEMNED_MAX ledgers, the most that a head can hold."""
        candidates = yield ask.ListOrphans(self.log_uuid, self.before_ms, self._among)
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
        """Delete transaction records that were not used since ``txns_before_ms`` (N5), TXNS_AT_ONCE at a time."""
        keys = yield ask.ListTransactions()
        for first in range(0, len(keys), TXNS_AT_ONCE):
            yield from self._delete_unused(keys[first : first + TXNS_AT_ONCE])

    def _delete_unused(self, keys: tuple[str, ...]) -> Steps[None]:
        """Delete the unused records of these keys, by compare-and-set with the head, so that a record that is used
        meanwhile is kept."""
        asked: dict[str, str] = {}  # key → application of the records that an earlier attempt may have deleted
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
                continue  # read again to see whether they were deleted
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
