# SPDX-License-Identifier: Apache-2.0
"""Every mutant of storage still finds what it changes; whether it is killed is for ``scripts/sim --mutants``."""

from __future__ import annotations

import pytest

from tests.sim.mutants.checkpoints import CHECKPOINT_MUTANTS
from tests.sim.mutants.maintenance import MAINTENANCE_MUTANTS
from tests.sim.mutants.marks import MARK_MUTANTS
from tests.sim.mutants.storage import STORAGE_MUTANTS, Planted

MUTANTS = [*STORAGE_MUTANTS, *MARK_MUTANTS, *CHECKPOINT_MUTANTS, *MAINTENANCE_MUTANTS]


@pytest.mark.parametrize(("name", "rule", "planted"), MUTANTS, ids=[name for name, _, _ in MUTANTS])
def test_what_a_mutant_changes_is_there(name: str, rule: str, planted: Planted) -> None:
    with planted():
        pass


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len({name for name, _, _ in MUTANTS}) == len(MUTANTS) >= 25
