# SPDX-License-Identifier: Apache-2.0
"""Quorum arithmetic against brute-force twins, for every shape with E ≤ 7. What is small is tried whole."""

from __future__ import annotations

from itertools import chain, combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core import quorum
from bk_core.model import Fragment, LedgerMetadata
from tests.kit.amount import examples

SHAPES = [(e, qw, qa) for e in range(1, 8) for qw in range(1, e + 1) for qa in range(1, qw + 1)]
PAIRS = sorted({(e, qw) for e, qw, _ in SHAPES})

HUGE = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 2, 2**63 - 1]


def brute_write_set(entry: int, e: int, qw: int) -> tuple[int, ...]:
    """Walk around the ring one bookie at a time."""
    members, index = [], entry % e
    for _ in range(qw):
        members.append(index)
        index = 0 if index + 1 == e else index + 1
    return tuple(members)


def brute_confirmed(watermarks: list[int], qw: int, qa: int, last_sent: int) -> int:
    entry = 0
    while entry <= last_sent:
        holders = [i for i in brute_write_set(entry, len(watermarks), qw) if watermarks[i] >= entry]
        if len(holders) < qa:
            break
        entry += 1
    return entry - 1


def subsets(e: int) -> list[set[int]]:
    return [set(known) for known in chain.from_iterable(combinations(range(e), n) for n in range(e + 1))]


# --- write sets ---


@pytest.mark.parametrize(("e", "qw"), PAIRS)
def test_write_set_is_a_walk_around_the_ring(e: int, qw: int) -> None:
    for entry in [*range(3 * e), *HUGE]:
        members = quorum.write_set(entry, e, qw)
        assert members == brute_write_set(entry, e, qw)
        assert len(set(members)) == qw


@pytest.mark.parametrize(("e", "qw"), PAIRS)
def test_every_bookie_holds_qw_of_e_entries_in_a_row(e: int, qw: int) -> None:
    for index in range(e):
        assert sum(index in quorum.write_set(entry, e, qw) for entry in range(e)) == qw


# --- coverage ---


@pytest.mark.parametrize(("e", "qw", "qa"), SHAPES)
def test_coverage_is_that_every_ack_quorum_of_every_write_set_was_heard(e: int, qw: int, qa: int) -> None:
    quorums = {frozenset(c) for r in range(e) for c in combinations(brute_write_set(r, e, qw), qa)}
    for known in subsets(e):
        assert quorum.covers(known, e, qw, qa) == all(q & known for q in quorums)


@pytest.mark.parametrize(("e", "qw", "qa"), SHAPES)
def test_ensemble_coverage_implies_coverage_and_is_the_same_without_striping(e: int, qw: int, qa: int) -> None:
    for known in subsets(e):
        enough = len(known) >= e - qa + 1
        covered = quorum.covers(known, e, qw, qa)
        assert covered or not enough
        if e == qw:
            assert covered == enough


@pytest.mark.parametrize(("e", "qw", "qa"), SHAPES)
def test_hearing_one_more_bookie_never_takes_coverage_back(e: int, qw: int, qa: int) -> None:
    for known in subsets(e):
        if quorum.covers(known, e, qw, qa):
            assert all(quorum.covers(known | {one}, e, qw, qa) for one in range(e))


@pytest.mark.parametrize(
    ("shape", "fewest_enough", "most_too_few"),
    [
        ((3, 3, 2), 2, 1),
        ((3, 2, 2), 2, 1),
        ((4, 3, 2), 3, 2),
        ((4, 2, 2), 2, 2),
        ((5, 3, 2), 4, 3),
        ((5, 2, 2), 3, 3),
        ((5, 3, 3), 2, 2),
        ((6, 3, 2), 4, 4),
        ((6, 3, 3), 2, 3),
        ((6, 2, 2), 3, 4),
        ((7, 3, 3), 3, 4),
    ],
)
def test_coverage_needs_as_many_answers_as_the_table_says(
    shape: tuple[int, int, int], fewest_enough: int, most_too_few: int
) -> None:
    """The table of docs/protocol.md."""
    sizes: dict[bool, set[int]] = {True: set(), False: set()}
    for known in subsets(shape[0]):
        sizes[quorum.covers(known, *shape)].add(len(known))
    assert (min(sizes[True]), max(sizes[False])) == (fewest_enough, most_too_few)


# --- negatives ---


@pytest.mark.parametrize(("qw", "qa"), sorted({(qw, qa) for _, qw, qa in SHAPES}))
def test_so_many_negatives_and_no_fewer_exclude_every_ack_quorum(qw: int, qa: int) -> None:
    needed = quorum.negatives_needed(qw, qa)
    for deniers in subsets(qw):
        could_be_acked = any(not deniers & set(q) for q in combinations(range(qw), qa))
        assert could_be_acked == (len(deniers) < needed)


# --- the confirmed id ---


@pytest.mark.rule("P2")
@pytest.mark.parametrize(("e", "qw", "qa"), [shape for shape in SHAPES if shape[0] <= 4])
def test_confirmed_id_is_what_counting_gives_for_all_watermarks_of_small_shapes(e: int, qw: int, qa: int) -> None:
    last_sent = 2 * e - 1 if e < 4 else 5  # twice around the ring, so that wrapping around it counts
    for watermarks in product(range(-1, last_sent + 1), repeat=e):
        found = quorum.confirmed_id(watermarks, qw, qa, last_sent)
        assert found == brute_confirmed(list(watermarks), qw, qa, last_sent), watermarks


@pytest.mark.rule("P2")
@examples(3)
@given(data=st.data())
def test_confirmed_id_is_what_counting_every_entry_gives(data: st.DataObject) -> None:
    e, qw, qa = data.draw(st.sampled_from(SHAPES))
    last_sent = data.draw(st.integers(-1, 30))
    watermarks = data.draw(st.lists(st.integers(-1, last_sent), min_size=e, max_size=e))
    assert quorum.confirmed_id(watermarks, qw, qa, last_sent) == brute_confirmed(watermarks, qw, qa, last_sent)


@pytest.mark.rule("P2")
@given(data=st.data())
def test_confirmed_id_never_passes_what_was_sent_even_if_watermarks_do(data: st.DataObject) -> None:
    """A lane of another ensemble index is known durable up to an id that was not sent yet in this one."""
    e, qw, qa = data.draw(st.sampled_from(SHAPES))
    last_sent = data.draw(st.integers(-1, 20))
    watermarks = data.draw(st.lists(st.integers(-1, 40), min_size=e, max_size=e))
    found = quorum.confirmed_id(watermarks, qw, qa, last_sent)
    assert found <= last_sent
    assert found == brute_confirmed(watermarks, qw, qa, last_sent)


@pytest.mark.rule("P2")
@given(data=st.data())
def test_confirmed_id_of_huge_ids_is_that_of_small_ones_moved_up(data: st.DataObject) -> None:
    e, qw, qa = data.draw(st.sampled_from(SHAPES))
    base = data.draw(st.sampled_from([2**31, 2**32, 2**63 - 100])) // e * e
    watermarks = data.draw(st.lists(st.integers(-1, 20), min_size=e, max_size=e))
    small = quorum.confirmed_id(watermarks, qw, qa, 20)
    assert quorum.confirmed_id([base + mark for mark in watermarks], qw, qa, base + 20) == base + small


@pytest.mark.rule("P2")
def test_the_second_largest_watermark_is_not_the_confirmed_id_of_a_striped_ledger() -> None:
    assert quorum.confirmed_id([100, 100, -1, -1, -1], 3, 2, 100) == 0  # entry 1 is on bookie 1 alone


@pytest.mark.rule("P9")
def test_the_holders_of_an_entry_are_its_write_set_in_the_fragment_that_holds_it() -> None:
    fragments = (Fragment(0, ("a", "b", "c", "d")), Fragment(6, ("a", "b", "c", "e")))
    value = LedgerMetadata(ensemble_size=4, write_quorum_size=2, ack_quorum_size=2, fragments=fragments)
    assert [quorum.holders(entry, value) for entry in (0, 2, 3, 6, 7)] == [
        ("a", "b"), ("c", "d"), ("d", "a"), ("c", "e"), ("e", "a"),
    ]  # fmt: skip
