# SPDX-License-Identifier: Apache-2.0
"""Everybody at once on one log, under every fault: clean and repeatable."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.logs import run_log_schedule

SOMETIMES = {
    "answer lost, applied",
    "answer lost, late",
    "answer lost, never",
    "answer lost, refused",
    "bad copy",
    "compact done",
    "compaction done",
    "conflict",
    "copy listed",
    "copy not wanted any more",
    "crash",
    "late write applied",
    "leader fenced",
    "leader serves",
    "ledger gone before its publish",
    "old actor came back",
    "overwritten",
    "pages of pages",
    "pages unlinked with what they name",
    "pages vacuumed",
    "publish done",
    "replay differs",
    "replayed by its transaction alone",
    "rolled",
    "several schemas",
    "short read",
    "stale read",
    "takeover by a publish",
    "transactions vacuumed",
    "trim done",
    "vacuum done",
    "vacuumed",
    "version regressed",
}


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
