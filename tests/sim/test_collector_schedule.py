# SPDX-License-Identifier: Apache-2.0
"""I12 under a store that fails, lags, is emptied and comes back."""

from __future__ import annotations

import pytest

from tests.kit.amount import some
from tests.sim.collector_schedule import CollectorWorld

pytestmark = pytest.mark.long

SEEDS = some(60, few=15)


@pytest.mark.rule("S9")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_ledger_that_the_store_assigns_is_ever_forgotten(seed: int) -> None:
    CollectorWorld(seed).run()


def test_the_schedules_reach_what_they_are_for() -> None:
    told = []
    for seed in range(20):
        world = CollectorWorld(seed)
        world.run()
        told += world.told
    text = "\n".join(told)
    for wanted in ("forgets", "MetadataUnavailableError", "MetadataCorruptError", "BookieIdentityError"):
        assert wanted in text
