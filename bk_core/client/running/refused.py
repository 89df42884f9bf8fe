# SPDX-License-Identifier: Apache-2.0
"""Finds out whether an operation failed because bookies refused this client's identity, or this client refused the
bookies' identity. Then a missing quorum is not the cause, and to wait for bookies does not help."""

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
    """The answers of bookies to one operation. ``cause`` is the last error about an identity. ``served`` says that a
    bookie has answered, or has refused for another reason."""

    def __init__(self) -> None:
        self.cause: BookKeeperError | None = None
        self.served = False

    def heard(self, answer: object) -> None:
        """Note a bookie's answer, or the error in its place. A failed connection or a timeout proves nothing."""
        if isinstance(answer, NOT_LET_IN):
            self.cause = answer
        elif isinstance(answer, RefusedError):
            self.served = self.served or answer.reason is not Reason.TIMEOUT
        elif not isinstance(answer, Exception):
            self.served = True

    def forget(self) -> None:
        """Forget all answers so far."""
        self.cause, self.served = None, False

    @property
    def by_all(self) -> BookKeeperError | None:
        """The error if every bookie that answered refused this client, or this client refused every bookie; otherwise
        None. The operation then had no effect."""
        cause = self.cause
        if self.served or not isinstance(cause, AuthenticationError | InsecureBookieError):
            return None
        return type(cause)(cause.what, value=cause.value, remedy=cause.remedy, outcome=Outcome.NOT_APPLIED)

    def because(self, error: BookKeeperError, *, not_applied: bool = True) -> BookKeeperError:
        """Return the error to raise in place of ``error``. This is ``error`` itself, unless it is about missing bookies
        and an identity is the cause.

        Then the returned error names the cause and its remedy. It is an AuthenticationError if all bookies refused this
        client and, by ``not_applied``, nothing was applied.
        """
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
