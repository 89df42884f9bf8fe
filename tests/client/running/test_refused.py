# SPDX-License-Identifier: Apache-2.0
"""What an operation says whose bookies are missing because of who this client is."""

from __future__ import annotations

import pytest

from bk_core.access.tokens import not_let_in
from bk_core.client.running.refused import Refused
from bk_core.errors import (
    AuthenticationError,
    BookieUnreachableError,
    BookKeeperError,
    EntryUnreadableError,
    InsecureBookieError,
    LedgerFencedError,
    NotEnoughBookiesError,
    Outcome,
    QuorumTimeoutError,
    TlsError,
)
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.reasons import Reason

EXPIRED = not_let_in("bookie b1", "the token has expired", has_token=True)
AWAY = BookieUnreachableError("bookie b2 cannot be reached")
LATE = RefusedError(Reason.TIMEOUT, "bookie b3 did not answer")
BUSY = RefusedError(Reason.OVERLOADED, "bookie b3 is busy")
MISSING = QuorumTimeoutError("too few bookies answered", remedy="bring these bookies back")


def after(*heard: object) -> Refused:
    refused = Refused()
    for each in heard:
        refused.heard(each)
    return refused


@pytest.mark.parametrize("heard", [(EXPIRED,), (AWAY, EXPIRED, LATE), (EXPIRED, AWAY)])
@pytest.mark.parametrize("error", [MISSING, EntryUnreadableError("entry 1 cannot be read now")])
def test_who_only_hears_that_it_is_not_let_in_is_told_that_and_that_nothing_was_done(
    heard: tuple[object, ...], error: BookKeeperError
) -> None:
    told = after(*heard).because(error)
    assert isinstance(told, AuthenticationError)
    assert (told.what, told.value, told.outcome) == (EXPIRED.what, "the token has expired", Outcome.NOT_APPLIED)
    assert "token_path" in told.remedy
    assert told.__cause__ is error


@pytest.mark.parametrize("heard", [(EXPIRED, BUSY), (object(), EXPIRED)])
def test_where_a_bookie_answered_or_something_was_sent_the_error_stays_and_names_the_cause(
    heard: tuple[object, ...],
) -> None:
    for told in (after(*heard).because(MISSING), after(EXPIRED).because(MISSING, not_applied=False)):
        assert type(told) is QuorumTimeoutError
        assert told.outcome is Outcome.UNKNOWN
        assert "the token has expired" in told.value
        assert told.remedy == EXPIRED.remedy


def test_an_error_of_something_else_and_one_without_a_cause_stay_as_they_are() -> None:
    fenced = LedgerFencedError("taken over")
    assert after(EXPIRED).because(fenced) is fenced
    assert after(AWAY, BUSY).because(MISSING) is MISSING
    forgotten = after(EXPIRED)
    forgotten.forget()
    assert forgotten.because(MISSING) is MISSING


@pytest.mark.parametrize("cause", [TlsError("bookie b1 shows another name"), InsecureBookieError("b1 allows anybody")])
def test_bookies_that_are_not_believed_are_the_cause_of_what_is_missing(cause: BookKeeperError) -> None:
    missing = NotEnoughBookiesError("no spare", remedy="start more bookies")
    told = after(cause).because(missing)
    assert type(told) is NotEnoughBookiesError
    assert cause.what in told.value
    assert "start more" not in told.remedy
