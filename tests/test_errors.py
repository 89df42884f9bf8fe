# SPDX-License-Identifier: Apache-2.0
"""An error says the same wherever it goes: a Spark worker pickles it for the driver, a thread copies it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from bk_core.errors import BookKeeperError, LedgerFencedError, Outcome, PermissionDeniedError
from bk_core.transport.port import RefusedError
from bk_core.wire.lane.reasons import Reason


def classes(base: type[BookKeeperError] = BookKeeperError) -> Iterator[type[BookKeeperError]]:
    yield base
    for child in base.__subclasses__():
        yield from classes(child)


def made(cls: type[BookKeeperError]) -> BookKeeperError:
    if cls is RefusedError:
        return RefusedError(Reason.FENCED, "the ledger is fenced", value="ledger 7", remedy="open it again")
    unusual = Outcome.NOT_APPLIED if cls.outcome is Outcome.UNKNOWN else Outcome.UNKNOWN
    return cls("it went wrong", value="option=3", remedy="give 4", outcome=unusual)


WAYS: dict[str, Callable[[BookKeeperError], BookKeeperError]] = {
    **{
        f"pickle {n}": lambda error, n=n: pickle.loads(pickle.dumps(error, n))
        for n in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.rule("E1")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cls", list(classes()), ids=lambda cls: cls.__name__)
def test_an_error_keeps_all_that_it_says(cls: type[BookKeeperError], way: str) -> None:
    error = made(cls)
    error.add_note("in partition 3")
    found = WAYS[way](error)
    assert type(found) is cls
    assert (str(found), found.args, found.code) == (str(error), error.args, error.code)
    assert (found.what, found.value, found.remedy, found.outcome) == (
        error.what,
        error.value,
        error.remedy,
        error.outcome,
    )
    assert vars(found) == vars(error), "what a class adds, and notes"


def test_a_refusal_of_another_outcome_keeps_its_reason_and_outcome() -> None:
    for reason in Reason:
        error = RefusedError(reason, "refused", remedy="wait")
        found = pickle.loads(pickle.dumps(error))
        assert (found.reason, found.outcome, str(found)) == (reason, error.outcome, str(error))
    told = PermissionDeniedError.told("app may not write; bk role grant", Outcome.UNKNOWN)
    assert str(pickle.loads(pickle.dumps(told))) == str(told)


def fail() -> None:
    raise RefusedError(Reason.TIMEOUT, "no answer", value="bookie b", remedy="try again")


@pytest.mark.long
def test_an_error_comes_out_of_another_process_as_it_was_raised_there() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, pytest.raises(RefusedError) as raised:
        pool.submit(fail).result(60)
    assert str(raised.value) == "[BK_REFUSED] no answer; bookie b; try again. (outcome unknown)"
    assert raised.value.reason is Reason.TIMEOUT
    assert LedgerFencedError("x").outcome is Outcome.UNKNOWN
