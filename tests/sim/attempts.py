# SPDX-License-Identifier: Apache-2.0
"""Attempts to find a planted defect of the bookie: whole lives, crash points, damage, stories, random lives.

An attempt that finds a defect is tried once more without the defect (``mutants/table.py``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.bookie_server.machine import test_machine_admission as admission
from tests.bookie_server.storage.bytes import test_joined_frames as joined
from tests.bookie_server.storage.maintenance import test_compaction as whole
from tests.bookie_server.storage.maintenance import test_live_frames as live
from tests.bookie_server.storage.maintenance import test_reindex as reindexing
from tests.bookie_server.storage.maintenance import test_scrub as scrubbing
from tests.kit.damaged_world import PLAIN, RUNS, DamagedWorld
from tests.kit.segment_world import assert_honest
from tests.sim import test_recycling as recycling
from tests.sim import test_refused_reads as refusing
from tests.sim import test_storage_crashes as scripts
from tests.sim.corruption_matrix import check_sample
from tests.sim.crash_points import crash_everywhere, variant
from tests.sim.storage_life import Life
from tests.sim.storage_schedule import run_storage_schedule
from tests.sim.storage_workloads import WORKLOADS

SCHEDULES = 60


@dataclass(frozen=True, slots=True)
class Attempt:
    """A function that raises AssertionError or BookKeeperError for a broken promise, and its description."""

    engine: str
    name: str
    call: Callable[[], object]

    def __call__(self) -> None:
        self.call()


def _whole(workload: str) -> Attempt:
    """Return an attempt that runs the workload, then loses power and checks everything."""

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


STORAGE: list[Attempt] = [
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


def of_storage() -> Iterator[Attempt]:
    """Yield all attempts, and then random lives."""
    yield from STORAGE
    for seed in range(SCHEDULES):
        yield Attempt("random lives", f"seed {seed}", lambda seed=seed: run_storage_schedule(seed))


def _told(engine: str, call: Callable[[], object]) -> Attempt:
    """Return a test as an attempt. A defect may break the test in any way, so every exception counts as a find."""

    def run() -> None:
        try:
            call()
        except Exception as error:
            raise AssertionError(str(error) or type(error).__name__) from error

    inner = getattr(call, "func", call)
    return Attempt(engine, getattr(inner, "__name__", "").replace("<lambda>", ""), run)


# --- compaction -------------------------------------------------------------------------------------------------------


def _harmed(ledger_id: int, harm: str) -> None:
    """Damage a frame of the ledger, compact, and check everything."""
    world, frames = live.small_world()
    place = next(place for place in world.places_of(ledger_id) if place.generation == 1)
    live.HARMS[harm](world, place.offset, place.size)
    world.compact(major=True)
    assert 1 in world.storage.index.sealed_generations(), "a damaged segment is given up"
    assert_honest(world.storage, frames)


COMPACTION = [
    _told("compaction tests", call)
    for call in (
        joined.test_one_entry_frames_in_a_row_become_one_frame_with_a_column_of_lacs,
        joined.test_what_stands_there_twice_is_copied_once,
        joined.test_entries_whose_digest_is_wrong_keep_the_checksum_of_their_writer,
        joined.test_ledger_lengths_near_their_greatest_do_not_make_a_frame_that_nobody_reads,
        live.test_what_only_the_page_cache_has_wrong_is_read_from_the_disk,
        live.test_what_looks_like_a_frame_inside_a_payload_is_not_taken_for_one,
        *(partial(_harmed, ledger_id, harm) for ledger_id in (1, 2) for harm in live.HARMS),
        whole.test_everything_live_is_served_as_before_and_the_old_segments_are_given_up,
        whole.test_dropped_copies_are_not_copied_and_later_entries_are,
        whole.test_a_full_disk_is_given_up_to_and_the_rest_copied_when_there_is_room,
        *(
            partial(
                whole.test_whatever_happens_meanwhile_what_is_dead_stays_dead_and_what_lives_is_served,
                what,
                "before the index learns",
            )
            for what in whole.MEANWHILE
        ),
    )
]

# --- scrubbing, new indexes, refused reads ----------------------------------------------------------------------------

_Script = Callable[[DamagedWorld], None]
_SCRIPTS: list[_Script] = [
    scrubbing.test_healthy_directory_is_looked_at_to_its_last_byte_and_nothing_is_found,
    scrubbing.test_sector_that_cannot_be_read_is_damage_and_the_rest_of_the_segment_is_looked_at,
    scrubbing.test_segment_that_begins_another_life_while_it_is_read_is_not_damaged,
    lambda world: scrubbing.test_end_of_a_segment_is_not_taken_for_a_tail(world, "zeroed"),
    lambda world: scrubbing.test_damaged_frame_of_a_run_takes_no_neighbour_along_however_often_it_is_found(world, 20),
    lambda world: scrubbing.test_every_block_of_an_index_is_checked(world, scrubbing.BLOCKS[1][1], False),
    lambda world: scrubbing.test_index_that_is_whole_and_lies_is_found_and_made_anew(world, scrubbing.swap),
    lambda world: scrubbing.test_index_that_is_whole_and_lies_is_found_and_made_anew(world, scrubbing.forget_a_frame),
    *(
        lambda world, ledger_id=ledger_id, named=named: (
            reindexing.test_frame_that_the_old_index_named_and_the_scan_does_not_find_stays_unknown(
                world, ledger_id, named
            )
        )
        for ledger_id in (PLAIN, RUNS)
        for named in (True, False)
    ),
    lambda world: reindexing.test_index_waits_for_a_checkpoint_where_records_may_be_lost_with_both(world, "states"),
    reindexing.test_blocks_of_two_editions_are_never_taken_together,
]
DAMAGE = [
    *(_told("scrub and index tests", partial(lambda script: script(DamagedWorld()), script)) for script in _SCRIPTS),
    *(_told("scrub and index tests", story) for story in refusing.STORIES),
]

# --- admission --------------------------------------------------------------------------------------------------------

_OF_MANY = admission.test_client_with_many_requests_does_not_delay_another
ADMISSION = [
    _told("stories of admission", story)
    for story in (
        *(partial(_OF_MANY, active) for active in (1, 8)),
        *(story for name, story in vars(admission).items() if name.startswith("test_") and story is not _OF_MANY),
    )
]
