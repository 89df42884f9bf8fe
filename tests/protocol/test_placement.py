# SPDX-License-Identifier: Apache-2.0
"""Which bookies are chosen, and what is said when there are too few."""

from __future__ import annotations

from random import Random

import pytest

from bk_core.errors import NotEnoughBookiesError, Outcome
from bk_core.model import Fragment, LedgerMetadata
from bk_core.placement import choose_ensemble, replacement

METADATA = LedgerMetadata(
    ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, fragments=(Fragment(0, ("b1", "b2", "b3")),)
)


def refused(indices: tuple[int, ...], writable: list[str], gone: tuple[str, ...] = ()) -> NotEnoughBookiesError:
    chosen = replacement(METADATA, indices, writable, (), Random(1), gone=gone)
    assert isinstance(chosen, NotEnoughBookiesError)
    return chosen


def test_good_bookies_keep_their_place_and_failed_ones_are_replaced() -> None:
    assert replacement(METADATA, (1,), ["b1", "b3", "b4"], (), Random(1)) == ("b1", "b4", "b3")


@pytest.mark.rule("E1")
def test_too_few_for_an_ensemble_names_those_that_are_writable() -> None:
    with pytest.raises(NotEnoughBookiesError) as caught:
        choose_ensemble(["b2", "b1"], 3, Random(1))
    assert "3 writable bookies are needed and 2 can be used; writable: b1, b2;" in str(caught.value)


@pytest.mark.rule("E1")
def test_no_spare_names_every_writable_bookie_and_why_it_is_none() -> None:
    """It said "writable: none" while three were: they were in the ensemble, or had failed before."""
    error = refused((1,), ["b1", "b2", "b3", "b4"], gone=("b4",))
    assert "1 of 3 bookies of the ensemble failed (b2) and no spare can take over" in error.what
    assert error.value == (
        "writable: b1 (in the ensemble), b2 (failed), b3 (in the ensemble), b4 (failed before in this ledger)"
    )
    assert error.outcome is Outcome.UNKNOWN


def test_one_spare_for_two_is_not_called_none() -> None:
    error = refused((0, 2), ["b2", "b4"])
    assert "failed (b1, b3) and only 1 can be replaced" in error.what
    assert error.value == "writable: b2 (in the ensemble), b4"


def test_nothing_is_writable_is_said_so() -> None:
    assert refused((0,), []).value == "writable: none"
