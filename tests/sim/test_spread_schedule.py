# SPDX-License-Identifier: Apache-2.0
"""Random schedules of a bookie with several data directories hold every promise."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.kit.amount import some
from tests.sim.spread_schedule import run_spread_schedule


@pytest.mark.long
@pytest.mark.rule("S1", "S8")
def test_promises_hold_with_several_directories() -> None:
    counts: Counter[str] = Counter()
    for seed in range(some(60, few=20)):
        counts += run_spread_schedule(seed).counts
    wanted = ("crash in a commit", "crash in a restart", "no space", "damaged", "groups of log 0", "groups of log 1")
    assert all(counts[what] > some(3, few=0) for what in wanted), counts
