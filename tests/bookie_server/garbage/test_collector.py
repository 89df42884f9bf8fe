# SPDX-License-Identifier: Apache-2.0
"""The collector: what it takes before a ledger is forgotten, and everything that does not suffice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_server.garbage.collector import (
    CANDIDATES_TIMER,
    COMPARE_TIMER,
    Collector,
    CollectorConfig,
    Compare,
    Compared,
    CompareFailed,
    Effect,
    Event,
    Forget,
    GarbageLook,
    GiveUp,
    Hinted,
    Looked,
    LookFailed,
    SessionLost,
    SetTimer,
    Started,
    TimerFired,
)

CONFIG = CollectorConfig(interval_ms=1000, grace_ms=100, pause_ms=10, retry_ms=20, tries_max=2, look_ids_max=3)
GRACE, NEXT = SetTimer(1, 100), SetTimer(CANDIDATES_TIMER, 10)


def collector(*past: Event, config: CollectorConfig = CONFIG) -> Collector:
    made = Collector(config)
    for event in past:
        made.step(event)
    return made


def gone(look: int, *ledger_ids: int, session: int = 1) -> Looked:
    return Looked(look, session, frozenset(ledger_ids), {})


HINTED = (Hinted((7,)), TimerFired(CANDIDATES_TIMER))  # look 1 is under way
SEEN_GONE = (*HINTED, gone(1, 7))  # the grace runs
SECOND_LOOK = (*SEEN_GONE, TimerFired(1))


def forgotten(effects: list[Effect]) -> list[int]:
    return [ledger_id for effect in effects if isinstance(effect, Forget) for ledger_id in effect.ledger_ids]


@pytest.mark.rule("S9")
def test_a_hint_is_looked_up_and_after_the_grace_once_more() -> None:
    made = collector()
    assert made.step(Hinted((7,))) == [NEXT]
    assert made.step(TimerFired(CANDIDATES_TIMER)) == [GarbageLook(1, (7,))]
    assert made.step(gone(1, 7)) == [GRACE]
    assert made.step(TimerFired(1)) == [GarbageLook(1, (7,))]
    assert made.step(gone(1, 7)) == [Forget((7,))]
    assert made.candidates == 0


@pytest.mark.rule("S9")
def test_what_a_comparison_missed_is_looked_up_by_its_id_twice() -> None:
    made = collector(Started(50))
    assert made.step(TimerFired(COMPARE_TIMER)) == [Compare()]
    assert made.step(Compared((7, 8), 90)) == [SetTimer(COMPARE_TIMER, 1000), NEXT]
    assert made.step(TimerFired(CANDIDATES_TIMER)) == [GarbageLook(1, (7, 8))]
    assert made.step(Looked(1, 1, {7}, {8: 3})) == [GRACE]
    assert made.step(TimerFired(1)) == [GarbageLook(1, (7,))]
    assert made.step(gone(1, 7)) == [Forget((7,))]


@pytest.mark.rule("S9")
def test_a_liars_hint_deletes_nothing() -> None:
    made = collector(*HINTED)
    assert made.step(Looked(1, 1, frozenset(), {7: 0})) == []
    assert made.candidates == 0
    assert made.step(TimerFired(1)) == []


@pytest.mark.rule("S9")
def test_a_ledger_that_came_into_being_again_is_kept() -> None:
    made = collector(*SECOND_LOOK)
    assert made.step(Looked(1, 1, frozenset(), {7: 0})) == []
    assert made.candidates == 0


@pytest.mark.rule("S9")
def test_what_both_gone_and_there_would_be_is_kept() -> None:
    assert collector(*SECOND_LOOK).step(Looked(1, 1, {7}, {7: 0})) == []


@pytest.mark.rule("S9")
def test_an_answer_that_says_nothing_of_a_ledger_keeps_it() -> None:
    made = collector(*SECOND_LOOK)
    assert made.step(gone(1)) == []
    assert made.candidates == 0
    assert collector(*SECOND_LOOK).step(gone(1, 9)) == [], "nor is a ledger forgotten that was not asked about"


@pytest.mark.rule("S9")
def test_an_empty_list_names_no_candidate() -> None:
    made = collector(Started(50), TimerFired(COMPARE_TIMER))
    assert made.step(Compared((7, 8), 0)) == [SetTimer(COMPARE_TIMER, 1000)]
    assert made.candidates == 0


@pytest.mark.rule("S9")
def test_a_failed_comparison_names_no_candidate_and_is_made_again() -> None:
    made = collector(Started(50), TimerFired(COMPARE_TIMER))
    assert made.step(CompareFailed()) == [SetTimer(COMPARE_TIMER, 100)]
    assert made.candidates == 0


@pytest.mark.rule("S9")
@pytest.mark.parametrize("past", [HINTED, SECOND_LOOK], ids=["first", "second"])
def test_after_a_look_that_failed_everything_begins_again(past: tuple[Event, ...]) -> None:
    made = collector(*past)
    assert made.step(LookFailed(1)) == [SetTimer(1, 20)]
    assert made.step(TimerFired(1)) == [GarbageLook(1, (7,))]
    assert made.step(gone(1, 7)) == [GRACE], "that was a first look"
    assert made.step(TimerFired(1)) == [GarbageLook(1, (7,))]
    assert made.step(gone(1, 7)) == [Forget((7,))]


def test_looks_that_go_on_failing_are_given_up() -> None:
    made = collector(*HINTED)
    assert made.step(LookFailed(1)) == [SetTimer(1, 20)]
    made.step(TimerFired(1))
    assert made.step(LookFailed(1)) == [SetTimer(1, 40)]
    made.step(TimerFired(1))
    assert made.step(LookFailed(1)) == []
    assert made.candidates == 0, "the next comparison meets it"


@pytest.mark.rule("S9", "M2")
def test_two_looks_in_different_sessions_are_two_first_looks() -> None:
    made = collector(*SECOND_LOOK)
    assert made.step(gone(1, 7, session=2)) == [GRACE]
    made.step(TimerFired(1))
    assert made.step(gone(1, 7, session=2)) == [Forget((7,))]


@pytest.mark.rule("S9", "M2")
@pytest.mark.parametrize("past", [SEEN_GONE, SECOND_LOOK], ids=["in the grace", "in the second look"])
def test_a_lost_session_voids_the_first_look(past: tuple[Event, ...]) -> None:
    made = collector(*past)
    assert made.step(SessionLost()) == []
    made.step(TimerFired(1))
    assert made.step(gone(1, 7)) == [GRACE], "even if the answer bears the old session's number"


@pytest.mark.rule("S9")
def test_answers_that_nobody_asked_for_delete_nothing() -> None:
    for past in ((), (Hinted((7,)),), SEEN_GONE):
        made = collector(*past)
        for event in (gone(1, 7), gone(1, 7), gone(99, 7), LookFailed(1), TimerFired(44)):
            assert forgotten(made.step(event)) == []


@pytest.mark.rule("S9")
def test_a_hint_does_not_shorten_the_grace() -> None:
    made = collector(*SEEN_GONE)
    assert made.step(Hinted((7,))) == []
    assert forgotten(made.step(gone(1, 7))) == []


def test_first_looks_come_one_at_a_time_and_are_small() -> None:
    made = collector()
    assert made.step(Hinted(range(8))) == [NEXT]
    assert made.step(TimerFired(CANDIDATES_TIMER)) == [GarbageLook(1, (0, 1, 2))]
    assert made.step(Hinted((50,))) == [], "waits for the answer"
    assert made.step(Looked(1, 1, {0}, {1: 0, 2: 0})) == [GRACE, NEXT]
    assert made.step(TimerFired(CANDIDATES_TIMER)) == [GarbageLook(2, (3, 4, 5))]
    assert made.step(LookFailed(2)) == [SetTimer(2, 20), NEXT], "others do not wait for a look that failed"
    assert made.step(TimerFired(CANDIDATES_TIMER)) == [GarbageLook(3, (6, 7, 50))]
    assert made.step(gone(3)) == []


def test_a_flood_of_hints_is_bounded() -> None:
    made = collector(config=CollectorConfig(candidates_max=5))
    made.step(Hinted(range(1000)))
    made.step(Hinted(range(1000, 2000)))
    assert made.candidates == 5


# --- copies that live elsewhere ---


def elsewhere(look: int, *ledger_ids: int, session: int = 1) -> Looked:
    return Looked(look, session, frozenset(), dict.fromkeys(ledger_ids, 3), frozenset(ledger_ids))


@pytest.mark.rule("S9")
def test_a_copy_is_given_up_only_if_both_looks_say_that_the_ledger_lives_elsewhere() -> None:
    made = collector(*HINTED)
    assert made.step(elsewhere(1, 7)) == [GRACE]
    assert made.step(TimerFired(1)) == [GarbageLook(1, (7,))]
    assert made.step(elsewhere(1, 7)) == [GiveUp((7,))]
    assert made.candidates == 0
    back = collector(*HINTED, elsewhere(1, 7), TimerFired(1))
    assert back.step(Looked(1, 1, frozenset(), {7: 4})) == [], "the record names this bookie again"
    assert back.candidates == 0


@pytest.mark.rule("S9")
@pytest.mark.parametrize("order", [(gone, elsewhere), (elsewhere, gone)])
def test_looks_that_differ_decide_nothing(order: tuple[Callable[..., Looked], Callable[..., Looked]]) -> None:
    made = collector(*HINTED, order[0](1, 7), TimerFired(1))
    assert made.step(order[1](1, 7)) == []
    assert made.candidates == 0


@pytest.mark.rule("S9")
def test_looks_of_two_sessions_give_no_copy_up() -> None:
    made = collector(*HINTED, elsewhere(1, 7), TimerFired(1))
    assert made.step(elsewhere(1, 7, session=2)) == [GRACE]


def test_one_comparison_of_several_reads_the_records() -> None:
    made = collector(Started(50), config=replace(CONFIG, records_every=3))
    for records in (False, False, True, False):
        assert made.step(TimerFired(COMPARE_TIMER)) == [Compare(records)]
        made.step(Compared((), 9))
    assert made.step(Compared((), 90, strays=(7,))) == [SetTimer(COMPARE_TIMER, 1000), NEXT]
