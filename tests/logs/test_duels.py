# SPDX-License-Identifier: Apache-2.0
"""Everybody at once on one log, under every fault: clean and repeatable."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.logs import run_log_schedule
from tests.sim.wanted import WANTED

OF_SEVERAL = {
    "fan-out differs",
    "fan-out done",
    "fan-out into several",
    "multi conflicted",
    "one log remembers for all",
}
"""States that only jobs that publish into several logs reach (test_fan_out_duels.py)."""
SOMETIMES = {*WANTED["logs"], "pages unlinked with what they name", "several schemas"} - OF_SEVERAL


@pytest.mark.long
@pytest.mark.rule("N2", "N3", "N4", "N5", "N6", "N7", "K8", "MUST15")
def test_a_log_keeps_its_promises_whoever_works_on_it_and_whatever_fails() -> None:
    reached: Counter[str] = Counter()
    for seed in range(300):
        reached += run_log_schedule(seed).reached
    assert SOMETIMES - reached.keys() == set()


@pytest.mark.long
def test_a_seed_is_a_schedule() -> None:
    assert [run_log_schedule(7).fingerprint for _ in range(2)] == [41724168] * 2  # under any PYTHONHASHSEED
