# SPDX-License-Identifier: Apache-2.0
"""Bookies that one operation could not use because of this client's identity or of theirs. Then a missing quorum is not
the cause, and waiting for bookies does not help."""

from __future__ import annotations

from bk_core.errors import (
    AuthenticationError,
    BookKeeperError,
    EntryUnreadableError,
    InsecureBookieError,
    Outcome,
    QuorumError,
    TlsError,
)
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.reasons import Reason

NOT_LET_IN = (TlsError, InsecureBookieError, AuthenticationError)


class Refused:
    """``cause``: why a bookie could not be used, the last one. ``served``: a bookie answered, or refused for a reason
    that is none of these."""

    def __init__(self) -> None:
        self.cause: BookKeeperError | None = None
        self.served = False

    def heard(self, answer: object) -> None:
        """What a bookie answered, or the error in its place. No connection, and no answer in time, say nothing."""
        if isinstance(answer, NOT_LET_IN):
            self.cause = answer
        elif isinstance(answer, RefusedError):
            self.served = self.served or answer.reason is not Reason.TIMEOUT
        elif not isinstance(answer, Exception):
            self.served = True

    def forget(self) -> None:
        """What was heard so far is over."""
        self.cause, self.served = None, False

    @property
    def by_all(self) -> BookKeeperError | None:
        """The error for an operation of which nothing was done, because no bookie that could be asked lets this client
        in, or because this client uses none of them."""
        cause = self.cause
        if self.served or not isinstance(cause, AuthenticationError | InsecureBookieError):
            return None
        return type(cause)(cause.what, value=cause.value, remedy=cause.remedy, outcome=Outcome.NOT_APPLIED)

    def because(self, error: BookKeeperError, *, not_applied: bool = True) -> BookKeeperError:
        """``error``, of bookies that are missing, or one that names the cause and its remedy: AuthenticationError, if
        it is the cause of all, and it is certain that nothing was applied."""
        cause = self.cause
        if cause is None or not isinstance(error, QuorumError | EntryUnreadableError):
            return error
        refused = self.by_all
        if not_applied and isinstance(refused, AuthenticationError):
            refused.__cause__ = error
            return refused
        named = (cause.what, cause.value) if cause.what not in str(error) else ()
        value = "; ".join(part for part in (error.value, *named) if part)
        remedy = cause.remedy or "the bookie's log says why"
        because = type(error)(error.what, value=value, remedy=remedy, outcome=error.outcome)
        because.__cause__ = cause
        return because
