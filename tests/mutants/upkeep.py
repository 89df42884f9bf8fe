# SPDX-License-Identifier: Apache-2.0
"""Mutants of the upkeep of logs: who may act, how much, and when."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WORKER = "bk_core/logs/upkeep_worker.py"
_PLAN = "bk_core/logs/model/upkeep_plan.py"
_WORKER_TEST = "tests/logs/test_upkeep_worker.py::"
_PLAN_TEST = "tests/logs/test_upkeep_plan.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a worker goes on when another has written the record",
        _WORKER,
        "            raise _Deposed(str(error)) from error\n",
        "            self._version += 1\n",
        (f"{_WORKER_TEST}test_a_worker_whose_session_goes_on_is_fenced_by_the_record",),
        "two workers spend one budget each, and copy the same ledgers",
    ),
    Mutant(
        "a worker goes on when its session ended",
        _WORKER,
        "        if self._store.session_id != record.session:\n",
        "        if False:\n",
        (f"{_WORKER_TEST}test_a_worker_whose_session_ended_takes_no_further_step",),
        "a worker that nobody elected acts until another one is",
    ),
    Mutant(
        "retention goes by the worker's clock",
        _WORKER,
        "                return self._store.log_clock_ms(name)\n",
        "                return int(time.time() * 1000)\n",
        (f"{_WORKER_TEST}test_retention_goes_by_the_stores_clock",),
        "a host whose clock is a year ahead trims what the retention keeps",
        "N6",
    ),
    Mutant(
        "a trim goes by the retention of the plan",
        _WORKER,
        "await log.trim(min(step.before_offset, await log.expired_offset(now_ms=now_ms)))",
        "await log.trim(step.before_offset)",
        (f"{_WORKER_TEST}test_a_retention_that_is_lifted_after_the_plan_is_obeyed",),
        "an operator lifts a retention in time, and the log is trimmed all the same",
    ),
    Mutant(
        "one log that fails ends the round",
        _WORKER,
        "            self._fail(step.log, f\"{step.kind.value} failed: {' '.join(str(error).split())}\")\n"
        "            return False\n",
        "            raise\n",
        (f"{_WORKER_TEST}test_a_step_that_fails_puts_its_log_off_and_is_tried_again",),
        "one log that cannot be compacted keeps all others from being kept",
    ),
    Mutant(
        "what runs unattended deletes at once",
        _PLAN,
        '            ("delete_delay_ms", DELETE_DELAY_MIN_MS),\n',
        '            ("delete_delay_ms", 0),\n',
        (f"{_PLAN_TEST}test_delay_of_what_runs_unattended_cannot_be_shortened",),
        "ledgers go under running readers and jobs",
        "N6",
    ),
    Mutant(
        "copied bytes are not spent",
        _PLAN,
        "        return replace(record, copied_bytes=copied, ledgers=ledgers, turn=step.log)\n",
        "        return replace(record, turn=step.log)\n",
        (f"{_PLAN_TEST}test_steps_that_are_planned_fit_the_budget_they_then_spend",),
        "each look at the logs has the budget of an hour",
    ),
    Mutant(
        "compaction always begins with the first log",
        _PLAN,
        "    return [log for log in ordered if log.name > turn] + [log for log in ordered if log.name <= turn]\n",
        "    return ordered\n",
        (f"{_PLAN_TEST}test_plan",),
        "a busy log takes the whole budget, and others are never compacted",
    ),
)
