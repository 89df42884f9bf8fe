# SPDX-License-Identifier: Apache-2.0
"""What tries to find a defect of storage: whole lives, crash points, damage, scripts, random lives; the quick first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.sim import test_recycling as recycling
from tests.sim import test_storage_crashes as scripts
from tests.sim.corruption_matrix import check_sample
from tests.sim.crash_points import crash_everywhere, variant
from tests.sim.storage_life import Life
from tests.sim.storage_schedule import run_storage_schedule
from tests.sim.storage_workloads import WORKLOADS

SCHEDULES = 60


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something that raises AssertionError or BookKeeperError for a broken promise, and what it is."""

    engine: str
    name: str
    call: Callable[[], object]

    def __call__(self) -> None:
        self.call()


def _whole(workload: str) -> Attempt:
    """The workload as it is, then a power loss and a look at everything."""

    def run() -> None:
        life = Life()
        life.run(WORKLOADS[workload])
        life.check()
        life.crash(random.Random(1), "nothing")
        life.open()
        life.check()

    return Attempt("whole lives", workload, run)


def _crashes(workload: str, how: str) -> Attempt:
    return Attempt("crash points", f"{workload}, {how}", lambda: crash_everywhere(WORKLOADS[workload], variant(how)))


def _damage(kind: str, cases: int) -> Attempt:
    return Attempt("corruption", kind, lambda: check_sample(kind, cases))


def _script(call: Callable[[], object], name: str = "") -> Attempt:
    return Attempt("scripts", name or getattr(call, "__name__", "").removeprefix("test_").replace("_", " "), call)


SCRIPTS: list[Attempt] = [
    *map(_whole, WORKLOADS),
    _damage("index: each bit flipped", 40),
    _damage("checkpoint: each bit flipped", 40),
    _damage("newest segment: each bit of a group's header", 60),
    _crashes("small groups", "nothing unsynced is kept"),
    _crashes("fences and tombstones around restarts", "some sectors, some names"),
    _crashes("fences and tombstones around restarts", "nothing unsynced is kept"),
    _script(scripts.test_a_frame_written_over_another_ledgers_is_damage),
    _script(scripts.test_a_flipped_bit_in_the_last_group_of_an_idle_bookie_is_damage),
    _script(scripts.test_a_group_that_is_missing_between_whole_ones_is_damage),
    _script(scripts.test_what_the_cache_read_ahead_of_a_write_hides_nothing),
    _script(lambda: scripts.test_any_lost_file_is_never_a_denial("segment", True), "any lost file is never a denial"),
    _script(scripts.test_any_segment_that_is_lost_before_it_is_sealed_is_never_a_denial),
    _script(
        lambda: scripts.test_a_start_that_is_cut_off_after_it_found_a_loss_hides_nothing_of_it("nothing"),
        "a start that is cut off after it found a loss",
    ),
    _crashes("segments fill up", "nothing unsynced is kept"),
    _crashes("small groups", "again in the restart"),
    _script(scripts.test_a_sync_that_fails_and_lies_afterwards_ends_the_log_and_loses_nothing_acked),
    *(Attempt("crash points", f"recycling {number}", call) for number, call in enumerate(recycling.SCRIPTS)),
]


def attempts() -> Iterator[Attempt]:
    """All of them, then random lives."""
    yield from SCRIPTS
    for seed in range(SCHEDULES):
        yield Attempt("random lives", f"seed {seed}", lambda seed=seed: run_storage_schedule(seed))
