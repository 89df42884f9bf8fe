# SPDX-License-Identifier: Apache-2.0
"""Deletes a log, and later the ledgers of a deleted log. Pure (N6, decision 0072).

1. One compare-and-set replaces the head by a *mark*. At this moment the log is deleted: a change that was under way
finds another version, and every later read of the head raises NoSuchLogError. If a leader writes the log, its
   ledgers are fenced before, so that no append is confirmed after the deletion.
2. A record of the deletion is created. Its age is the age of the deletion.
3. The mark is removed, with the log's pages, transactions and unlinked records. The name can then be used again.
4. When the record is as old as the delay, every ledger that was made for the log is deleted, and then the record.

A crash leaves a mark or a record. A second deletion, the creation of a log of this name, a vacuum and upkeep continue
at step 2 or 4. A step may be repeated, and several processes may take it at the same time. No step is ever undone.
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.errors import (
    BookKeeperError,
    LogHasLeaderError,
    LogRecreatedError,
    NoSuchLogError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps
from bk_core.logs.machines.change import Ask, Facts, HeadChange, Intent
from bk_core.logs.model.deleted import DeletedLog, mark_of
from bk_core.logs.model.head import LogHead
from bk_core.logs.model.paging import Change, last_ledgers
from bk_core.model import LedgerId


@dataclass(frozen=True)
class Mark(Intent[LogHead]):
    """Replaces the head of the log ``log_uuid`` by the mark. With ``takeover`` it first fences the log's leader. The
    result is the mark."""

    log_uuid: str
    takeover: bool = False

    def settled(self, head: LogHead, facts: Facts) -> LogHead | None:
        """Return the mark, once it is written. Raises LogRecreatedError for the head of another log."""
        if head.uuid != self.log_uuid:
            raise LogRecreatedError("the log was deleted and made again", remedy="look at the new one first")
        return head if head.is_deleted else None

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Return the change to the mark once no leader can append. A leader's ledger that does not exist takes no
        entries either, so it needs no fence."""
        if head.open_extents:
            if not self.takeover:
                raise LogHasLeaderError(
                    "a leader writes the log",
                    value=", ".join(f"ledger {extent.ledger_id}" for extent in head.open_extents),
                    remedy="stop it first, or fence it (takeover=True, --takeover)",
                )
            opened = [extent.ledger_id for extent in head.open_extents]
            ledgers = tuple(dict.fromkeys((*opened, *last_ledgers(head, facts.pages))))
            if not facts.missing.union(facts.ends) >= set(ledgers):
                return ask.RecoverLedgers(ledgers)
        return Change(mark_of(head))

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """Return True, because a mark is never replaced. A log that has changed without it was not marked."""
        return True


class DeleteLog:
    """Deletes the log ``name`` that has this uuid. :meth:`run` is the sequence; run it once."""

    def __init__(self, name: str, log_uuid: str, *, takeover: bool = False) -> None:
        self.name, self.log_uuid, self._takeover = name, log_uuid, takeover

    def run(self) -> Steps[DeletedLog]:
        """Delete the log and return it, even if another client deleted it before. Raises the error that ends the
        deletion. Its ``outcome`` says whether the log may have been deleted, or may still be deleted."""
        change = HeadChange({self.name: Mark(self.log_uuid, self._takeover)})
        refused: BookKeeperError | None = None
        try:
            yield from change.run()
        except (NoSuchLogError, LogRecreatedError, PublishConflictError) as error:
            refused = error  # a write whose answer was lost, or another client, deleted it already
        try:
            return (yield from finish(self.log_uuid))
        except NoSuchLogError:
            if refused is None:  # our mark is written; another client has already deleted mark and record
                return DeletedLog(name=self.name, uuid=self.log_uuid)
            raise refused from None
        except BookKeeperError as error:
            if refused is None or refused.outcome is Outcome.UNKNOWN:  # the mark is written, or may be
                error.outcome = Outcome.UNKNOWN
            raise


def finish(log_uuid: str) -> Steps[DeletedLog]:
    """Take steps 2 and 3 of the deletion of a marked log. Raises NoSuchLogError if there is neither its mark nor its
    record."""
    deleted: DeletedLog = yield ask.RecordDeleted(log_uuid)
    yield ask.RemoveMark(log_uuid)
    return deleted


@dataclass(frozen=True, slots=True)
class VacuumedDeleted:
    """The result of step 4 for a deleted log. ``ledgers`` were deleted. ``remaining`` could not be deleted; the next
    vacuum tries them again."""

    ledgers: tuple[LedgerId, ...] = ()
    remaining: tuple[LedgerId, ...] = ()


class VacuumDeleted:
    """Takes step 4 for one deleted log. :meth:`run` is the sequence; run it once.

    With ``among`` it deletes only ledgers of this list. With ``forget`` it also deletes the record of the deletion, if
    no ledger is left. Without ``forget`` a later vacuum checks again, because a job that has not noticed the deletion
    may make more ledgers.
    """

    def __init__(self, log_uuid: str, *, forget: bool, among: tuple[LedgerId, ...] | None = None) -> None:
        self.log_uuid, self._forget, self._among = log_uuid, forget, among

    def run(self) -> Steps[VacuumedDeleted]:
        """Delete the ledgers. They need not be condemned before, because no publish can list a ledger of a deleted log.
        Raises the error that ends it; the next vacuum then deletes the rest."""
        ledgers = yield ask.ListOrphans(self.log_uuid, ask.ANY_AGE_MS, self._among)
        gone = (yield ask.DeleteLedgers(ledgers, self.log_uuid)) if ledgers else ()
        remaining = tuple(each for each in ledgers if each not in gone)
        if self._forget and not remaining:
            yield ask.ForgetDeleted(self.log_uuid)
        return VacuumedDeleted(gone, remaining)
