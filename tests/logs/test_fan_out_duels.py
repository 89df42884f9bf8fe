# SPDX-License-Identifier: Apache-2.0
"""Jobs that publish into several logs at once, beside everybody else and under every fault: clean and repeatable."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.kit.amount import some
from tests.sim.log_fan_out import run_fan_out_schedule

SOMETIMES = {
    "fan-out done",
    "fan-out into several",
    "fan-out differs",
    "multi conflicted",
    "one log remembers for all",
    "fan-out failed BK_INVALID_ARGUMENT not applied",
    "fan-out failed BK_LOG_HAS_LEADER not applied",
    "fan-out failed BK_METADATA_UNAVAILABLE outcome unknown",
    "fan-out failed BK_PUBLISH_CONFLICT not applied",
    "fan-out failed BK_TXN_VERSION_REGRESSED not applied",
    "answer lost, applied",
    "answer lost, late",
    "answer lost, never",
    "answer lost, refused",
    "late write applied",
    "overwritten",
    "transactions vacuumed",
}


@pytest.mark.long
@pytest.mark.rule("K10", "N4", "N5")
def test_several_logs_get_all_of_a_write_or_none_whatever_fails() -> None:
    reached: Counter[str] = Counter()
    for seed in range(some(100, few=30)):
        reached += run_fan_out_schedule(seed).reached
    assert SOMETIMES - reached.keys() == set()
