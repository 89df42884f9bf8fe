# SPDX-License-Identifier: Apache-2.0
"""Which bookies are chosen, and what is said when there are too few."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import NotEnoughBookiesError, Outcome
from bk_core.model import Fragment
from bk_core.placement import DEFAULT_RACK, Landscape, choose_ensemble, replacement
from bk_core.protocol.replication.balance import can_take_over
from bk_core.quorum import write_set
from tests.protocol.kit import metadata

METADATA = metadata(fragments=(Fragment(0, ("b1", "b2", "b3")),)).value


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


# --- racks and weights ---


def racks_of(spread: str) -> dict[str, str]:
    """``"aab"``: bookies b0 and b1 in rack a, b2 in rack b."""
    return {f"b{number}": rack for number, rack in enumerate(spread)}


def racks_in_each_write_set(ensemble: tuple[str, ...], racks: dict[str, str], write_quorum: int) -> list[int]:
    members = [write_set(start, len(ensemble), write_quorum) for start in range(len(ensemble))]
    return [len({racks[ensemble[index]] for index in each}) for each in members]


@pytest.mark.rule("P13")
@given(
    st.lists(st.sampled_from("abcd"), min_size=5, max_size=12),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 999),
)
def test_write_sets_get_as_many_racks_as_a_search_of_all_ensembles_finds(
    spread: list[str], size: int, racks_min: int, seed: int
) -> None:
    """For one write set (E = Qw): the best possible is the number of racks, at most the wanted one."""
    racks = racks_of("".join(spread))
    chosen = choose_ensemble(
        list(racks), size, Random(seed), write_quorum=size, landscape=Landscape(racks, racks_min=racks_min)
    )
    assert len(set(chosen)) == size
    assert min(racks_in_each_write_set(chosen, racks, size)) >= min(size, racks_min, len(set(spread)))


@pytest.mark.rule("P13")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("spread", "size", "write_quorum"), [("aabb", 4, 2), ("aaabbbccc", 6, 2), ("aaaaab", 3, 3), ("abcabc", 5, 3)]
)
def test_striped_write_sets_span_two_racks_around_the_ring(
    spread: str, size: int, write_quorum: int, seed: int
) -> None:
    racks = racks_of(spread)
    chosen = choose_ensemble(list(racks), size, Random(seed), write_quorum=write_quorum, landscape=Landscape(racks))
    assert min(racks_in_each_write_set(chosen, racks, write_quorum)) >= 2


@pytest.mark.rule("P13")
@pytest.mark.parametrize("seed", range(20))
def test_the_spare_restores_the_racks(seed: int) -> None:
    racks = {**racks_of("abbb"), "b9": "a"}
    record = metadata().value
    chosen = replacement(record, (0,), ["b1", "b2", "b3", "b9"], (), Random(seed), landscape=Landscape(racks))
    assert chosen == ("b9", "b1", "b2")
    both = replacement(record, (0, 1), ["b2", "b3", "b9"], (), Random(seed), landscape=Landscape(racks))
    assert sorted(both) == ["b2", "b3", "b9"]
    assert both[2] == "b2"
    one = replacement(record, (0, 1), ["b2", "b3"], (), Random(seed), landscape=Landscape(racks), partly=True)
    assert one == ("b3", "b1", "b2"), "the second keeps its place until there is a spare"


def test_a_bookie_that_failed_lately_is_worse_than_a_rack_too_few() -> None:
    racks = racks_of("aaab")
    for seed in range(20):
        chosen = choose_ensemble(
            list(racks), 3, Random(seed), avoid=("b3",), write_quorum=3, landscape=Landscape(racks)
        )
        assert "b3" not in chosen


def test_bookies_of_no_known_rack_share_one() -> None:
    for seed in range(20):
        chosen = choose_ensemble(["b0", "b1", "b2"], 2, Random(seed), write_quorum=2, landscape=Landscape({"b0": "a"}))
        assert "b0" in chosen


@pytest.mark.rule("P13")
@pytest.mark.parametrize("seed", range(10))
def test_bookies_of_unknown_rack_are_left_out_where_racks_are_enforced(seed: int) -> None:
    racks = {**racks_of("ab"), "b3": DEFAULT_RACK}
    everybody = ["b0", "b1", "b2", "b3"]
    enforced = Landscape(racks, enforced=True)
    chosen = choose_ensemble(everybody, 2, Random(seed), write_quorum=2, landscape=enforced)
    assert sorted(chosen) == ["b0", "b1"], "b2 and b3 may stand in rack a or b"
    with pytest.raises(NotEnoughBookiesError) as caught:
        choose_ensemble(["b0", "b2", "b3"], 2, Random(seed), write_quorum=2, landscape=enforced)
    assert "b2 (its rack is unknown)" in str(caught.value)
    assert "rack_script" in caught.value.remedy
    assert len(choose_ensemble(everybody, 4, Random(seed), write_quorum=1, landscape=enforced)) == 4
    record = metadata(2, 2, 2).value
    error = replacement(record, (1,), ["b0", "b2", "b3"], (), Random(seed), landscape=enforced)
    assert isinstance(error, NotEnoughBookiesError)
    assert "b2 (its rack is unknown)" in error.value
    assert not can_take_over(record, "b1", "b2", enforced)


@pytest.mark.rule("P13")
def test_member_of_unknown_rack_is_no_rack_of_its_own_where_racks_are_enforced() -> None:
    racks = racks_of("a")
    assert Landscape(racks).fewest_racks(("b0", "b1"), 2) == 2
    assert Landscape(racks, enforced=True).fewest_racks(("b0", "b1"), 2) == 1


@pytest.mark.rule("P13")
def test_too_few_racks_are_refused_where_they_are_enforced() -> None:
    enforced = Landscape(racks_of("aaa"), enforced=True)
    with pytest.raises(NotEnoughBookiesError) as caught:
        choose_ensemble(["b0", "b1", "b2"], 3, Random(1), write_quorum=3, landscape=enforced)
    assert "write sets of 3 bookies in 2 racks are needed" in str(caught.value)
    assert "b0 in a, b1 in a, b2 in a" in str(caught.value)
    assert choose_ensemble(["b0", "b1"], 2, Random(1), write_quorum=1, landscape=enforced), "one copy has one rack"
    error = replacement(METADATA, (1,), ["b1", "b3", "b4"], (), Random(1), landscape=Landscape({}, enforced=True))
    assert isinstance(error, NotEnoughBookiesError)
    assert error.outcome is Outcome.UNKNOWN


@pytest.mark.rule("P14")
def test_more_free_space_is_chosen_more_often_and_no_bookie_always() -> None:
    weights = {"b0": 100, "b1": 200, "b2": 100, "b3": 100_000, "b4": 0}
    random, often = Random(3), Counter[str]()
    for _ in range(6000):
        often[
            choose_ensemble(["b0", "b1", "b2", "b3", "b4", "b5"], 1, random, landscape=Landscape(weights=weights))[0]
        ] += 1
    total = 100 + 200 + 100 + 300 + 100  # b3 counts thrice the median, b5 did not tell and counts as the median
    for bookie, weight in (("b0", 100), ("b1", 200), ("b2", 100), ("b3", 300), ("b5", 100)):
        assert often[bookie] == pytest.approx(6000 * weight / total, rel=0.2)
    assert often["b4"] < 60


def test_without_racks_and_weights_the_choice_is_what_it_was() -> None:
    for seed in range(10):
        flat = choose_ensemble(["b0", "b1", "b2", "b3"], 3, Random(seed))
        assert flat == tuple(Random(seed).sample(["b0", "b1", "b2", "b3"], 3))
