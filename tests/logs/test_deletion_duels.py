# SPDX-License-Identifier: Apache-2.0
"""A log that is deleted, by several at a time and under every fault, while everybody works on it: clean, repeatable."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.log_deletion import run_deletion_schedule

SOMETIMES = {
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


@pytest.mark.long
@pytest.mark.rule("N2", "N6")
def test_a_deleted_log_is_deleted_once_and_wholly_whoever_works_on_it_and_whatever_fails() -> None:
    reached: Counter[str] = Counter()
    for seed in range(150):
        reached += run_deletion_schedule(seed).reached
    assert SOMETIMES - reached.keys() == set()
