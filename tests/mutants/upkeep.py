# SPDX-License-Identifier: Apache-2.0
"""Mutants of the upkeep of logs: which worker may act, how much, and when."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WORKER = "bk_core/logs/upkeep_worker.py"
_PLAN = "bk_core/logs/model/upkeep_plan.py"
_WORKER_TEST = "tests/logs/test_upkeep_worker.py::"
_PLAN_TEST = "tests/logs/test_upkeep_plan.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "retention goes by the worker's clock",
        _WORKER,
        "                return self._store.log_clock_ms(name)\n",
        "                return int(time.time() * 1000)\n",
        (f"{_WORKER_TEST}test_retention_goes_by_the_stores_clock",),
        "a host whose clock is a year ahead trims what the retention keeps",
    ),
    Mutant(
        "what runs unattended deletes at once",
        _PLAN,
        '            ("delete_delay_ms", DELETE_DELAY_MIN_MS),\n',
        '            ("delete_delay_ms", 0),\n',
        (f"{_PLAN_TEST}test_delay_of_what_runs_unattended_cannot_be_shortened",),
        "ledgers go under running readers and jobs",
    ),
)
