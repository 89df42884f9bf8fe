# SPDX-License-Identifier: Apache-2.0
"""Everybody at once on one log, on a log that is deleted and on several, under every fault: clean and repeatable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.amount import some
from tests.sim.log_deletion import run_deletion_schedule
from tests.sim.log_fan_out import run_fan_out_schedule
from tests.sim.logs import run_log_schedule
from tests.sim.wanted import WANTED

OF_SEVERAL = {
    "fan-out differs",
    "fan-out done",
    "fan-out into several",
    "multi conflicted",
    "one log remembers for all",
}
"""States that only jobs that publish into several logs reach."""
OF_ONE = {*WANTED["logs"], "pages unlinked with what they name", "several schemas"} - OF_SEVERAL
OF_DELETION = {
    "answer lost, applied",
    "answer lost, late",
    "compaction failed BK_NO_SUCH_LOG",
    "crash",
    "deletion done",
    "deletion refused",
    "failed BK_NO_SUCH_LOG not applied",
    "failed BK_NO_SUCH_LOG outcome unknown",
    "late write applied",
    "leader fenced",
    "log deleted",
    "log kept",
    "vacuum of a deleted log done",
}
OF_FAN_OUT = OF_SEVERAL | {
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


def not_reached(wanted: set[str], run: Callable[[int], Any], seeds: int) -> set[str]:
    """Run the schedules, each of which checks itself. Return the wanted states that none of them reached."""
    reached: Counter[str] = Counter()
    for seed in range(seeds):
        reached += run(seed).reached
    return wanted - reached.keys()


@pytest.mark.long
@pytest.mark.rule("N2", "N3", "N4", "N5", "N6", "N7", "K8", "MUST15")
def test_a_log_keeps_its_promises_whoever_works_on_it_and_whatever_fails() -> None:
    assert not_reached(OF_ONE, run_log_schedule, 300) == set()


@pytest.mark.long
@pytest.mark.rule("N2", "N6")
def test_a_deleted_log_is_deleted_once_and_wholly_whoever_works_on_it_and_whatever_fails() -> None:
    assert not_reached(OF_DELETION, run_deletion_schedule, 150) == set()


@pytest.mark.long
@pytest.mark.rule("K10", "N4", "N5")
def test_several_logs_get_all_of_a_write_or_none_whatever_fails() -> None:
    assert not_reached(OF_FAN_OUT, run_fan_out_schedule, some(100, few=30)) == set()


@pytest.mark.long
def test_a_seed_is_a_schedule() -> None:
    assert [run_log_schedule(7).fingerprint for _ in range(2)] == [41724168] * 2  # under any PYTHONHASHSEED
