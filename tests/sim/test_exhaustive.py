# SPDX-License-Identifier: Apache-2.0
"""Every way that a small world can go, with the machines that run in production."""

from __future__ import annotations

import pytest

from tests.sim.exhaustive.checks import LOSS
from tests.sim.exhaustive.scopes import scope
from tests.sim.exhaustive.search import explore
from tests.sim.mutants.exhaustive import MUTANTS

SECONDS = 25.0


@pytest.mark.rule("P11")
@pytest.mark.parametrize(
    "name",
    ["pair", "change", "change-lost"]
    + [
        pytest.param(name, marks=pytest.mark.long)
        for name in ("pair-crash", "close-and-recovery", "degraded", "two-recoveries-one-copy")
    ],
)
def test_no_way_through_a_small_world_breaks_a_promise(name: str) -> None:
    found = explore(scope(name), seconds=SECONDS)

    assert found.violation is None, f"{found.violation.problem}\n{found.violation}"
    assert found.exhausted
    expected = scope(name).states
    assert expected is not None
    assert expected / 2 <= found.states <= expected * 2, "the machines go other ways than before: look, then note it"


@pytest.mark.parametrize("name", ["D1", "D13"])
def test_a_known_defect_put_back_is_found_by_what_it_loses(name: str) -> None:
    """Two of them; ``scripts/sim --mutants`` tries all."""
    mutant = next(found for found in MUTANTS if found.name == name)

    with mutant.planted():
        found = explore(scope(mutant.shown_by), seconds=SECONDS, checks=LOSS)

    assert found.violation is not None, f"{name} survived {found.states} states"
    assert found.violation.problem.partition(":")[0] in LOSS
    assert found.violation.steps
