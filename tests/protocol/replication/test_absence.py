# SPDX-License-Identifier: Apache-2.0
"""When a bookie counts as lost."""

from __future__ import annotations

from bk_core.protocol.replication.absence import Absences

KNOWN = ("b1", "b2", "b3")


def test_bookie_is_lost_once_it_was_away_for_the_delay_and_not_before() -> None:
    absences = Absences()
    assert absences.lost(KNOWN, ("b1", "b2"), 1_000, 300) == ()
    assert absences.lost(KNOWN, ("b1", "b2"), 1_299, 300) == ()
    assert absences.lost(KNOWN, ("b1", "b2"), 1_300, 300) == ("b3",)
    assert absences.waiting() == {"b3": 1_000}


def test_bookie_that_came_back_has_the_whole_delay_again() -> None:
    absences = Absences()
    absences.lost(KNOWN, ("b1", "b2"), 0, 300)
    assert absences.lost(KNOWN, KNOWN, 290, 300) == ()
    assert absences.lost(KNOWN, ("b1", "b2"), 310, 300) == ()
    assert absences.lost(KNOWN, ("b1", "b2"), 610, 300) == ("b3",)


def test_a_rolling_restart_of_many_bookies_is_no_loss() -> None:
    absences = Absences()
    assert absences.lost(KNOWN, (), 0, 300) == ()
    assert absences.lost(KNOWN, ("b1",), 200, 300) == ()
    assert absences.lost(KNOWN, ("b1",), 300, 300) == ("b2", "b3")


def test_without_a_delay_a_bookie_is_lost_at_once() -> None:
    assert Absences().lost(KNOWN, ("b1",), 5, 0) == ("b2", "b3")
