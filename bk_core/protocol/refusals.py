# SPDX-License-Identifier: Apache-2.0
"""The errors that end the writer of a ledger. Pure."""

from __future__ import annotations

from copy import copy

from bk_core import errors as err
from bk_core.model import BookieId, EntryId, LedgerId
from bk_core.wire.lane.reasons import Reason


def refusal_error(
    reason: Reason, bookie: BookieId, ledger_id: LedgerId, lac: EntryId, lap: EntryId, message: str = ""
) -> err.BookKeeperError | None:
    """Return the error that ends the writer, or None if the refusal concerns only the bookie."""
    if reason is Reason.FENCED:
        return fenced_error(ledger_id, f"bookie {bookie} refused an add", lac, lap)
    if reason is Reason.UNAUTHORIZED:
        return err.WrongPasswordError(
            f"bookie {bookie} holds ledger {ledger_id} under another password",
            remedy="check the bookie: it may hold another cluster's ledger of the same id, or a damaged record",
            outcome=err.Outcome.UNKNOWN,
        )
    if reason is Reason.PERMISSION_DENIED:
        return err.PermissionDeniedError.told(message, err.Outcome.UNKNOWN if lap > lac else err.Outcome.NOT_APPLIED)
    if reason is Reason.DELETED:
        gone = f"ledger {ledger_id} was deleted while it was written"
        return err.NoSuchLedgerError(gone, outcome=err.Outcome.UNKNOWN)
    return None


def fenced_error(ledger_id: LedgerId, how: str, lac: EntryId, lap: EntryId) -> err.LedgerFencedError:
    """Return the error of a fenced writer. Its outcome is UNKNOWN: entries in flight may be in the ledger (MUST 11)."""
    in_flight = f"entries {lac + 1} to {lap} may or may not be part of it"
    return err.LedgerFencedError(
        f"ledger {ledger_id} was taken over by another client: {how}",
        value=in_flight if lap > lac else f"confirmed through entry {lac}",
        remedy="open it with recover=True to see its end; write on in a new ledger",
    )


def conflict_error(ledger_id: LedgerId, how: str, lac: EntryId) -> err.MetadataConflictError:
    """Return the error for a record that other clients keep changing, or that was closed at another entry."""
    return err.MetadataConflictError(
        f"ledger {ledger_id} {how}",
        value=f"this writer's last confirmed entry is {lac}",
        remedy="open it with recover=True to read what it holds",
        outcome=err.Outcome.UNKNOWN,
    )


def overdue_error(ledger_id: LedgerId, lac: EntryId, lap: EntryId, when: str, value: str) -> err.QuorumTimeoutError:
    """Return the error for entries that were not confirmed within a limit (MUST 12)."""
    return err.QuorumTimeoutError(
        f"entries {lac + 1} to {lap} of ledger {ledger_id} reached no ack quorum {when}",
        value=value,
        remedy="open it with recover=True to see its end",
    )


def unknown_error(error: err.BookKeeperError) -> err.BookKeeperError:
    """Return a copy of the metadata store's error with outcome UNKNOWN, for a writer or a recovery that the error ends.
    Entries may be in flight, and a close may have been applied although its answer was lost (MUST 8, MUST 11)."""
    again = copy(error)
    again.outcome, again.__cause__ = err.Outcome.UNKNOWN, error.__cause__
    return again
