# SPDX-License-Identifier: Apache-2.0
"""Quorum arithmetic against brute-force twins, for every shape with E ≤ 7."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core import quorum

SHAPES = [(e, qw, qa) for e in range(1, 8) for qw in range(1, e + 1) for qa in range(1, qw + 1)]


def brute_confirmed(watermarks: list[int], qw: int, qa: int, last_sent: int) -> int:
    entry = 0
    while entry <= last_sent:
        holders = [i for i in quorum.write_set(entry, len(watermarks), qw) if watermarks[i] >= entry]
        if len(holders) < qa:
            break
        entry += 1
    return entry - 1


@pytest.mark.rule("P2")
@given(data=st.data())
def test_confirmed_id_is_what_counting_every_entry_gives(data: st.DataObject) -> None:
    e, qw, qa = data.draw(st.sampled_from(SHAPES))
    last_sent = data.draw(st.integers(-1, 30))
    watermarks = [data.draw(st.integers(-1, last_sent)) for _ in range(e)]
    assert quorum.confirmed_id(watermarks, qw, qa, last_sent) == brute_confirmed(watermarks, qw, qa, last_sent)


@pytest.mark.rule("P2")
def test_the_second_largest_watermark_is_not_the_confirmed_id_of_a_striped_ledger() -> None:
    assert quorum.confirmed_id([100, 100, -1, -1, -1], 3, 2, 100) == 0  # entry 1 is on bookie 1 alone


@pytest.mark.parametrize(("e", "qw", "qa"), [s for s in SHAPES if s[0] <= 6])
def test_coverage_is_that_every_ack_quorum_of_every_write_set_was_heard(e: int, qw: int, qa: int) -> None:
    quorums = [set(c) for r in range(e) for c in combinations(quorum.write_set(r, e, qw), qa)]
    for known in chain.from_iterable(combinations(range(e), n) for n in range(e + 1)):
        assert quorum.covers(set(known), e, qw, qa) == all(q & set(known) for q in quorums)


@pytest.mark.parametrize("entry", [2**31, 2**32, 2**63 - 1])
def test_write_sets_of_huge_ids_stay_inside_the_ensemble(entry: int) -> None:
    indices = quorum.write_set(entry, 5, 3)
    assert len(set(indices)) == 3
    assert all(0 <= i < 5 and quorum.holds(i, entry, 5, 3) for i in indices)
