# SPDX-License-Identifier: Apache-2.0
"""Every known defect of scrubbing, new indexes and starts on a disk that refuses reads is found by their tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from bk_core.errors import BookKeeperError
from tests.bookie_server.storage.maintenance import test_reindex as reindexing
from tests.bookie_server.storage.maintenance import test_scrub as scrubbing
from tests.kit.damaged_world import PLAIN, RUNS, DamagedWorld
from tests.sim import test_refused_reads as refusing
from tests.sim.mutants.damage import DAMAGE_MUTANTS
from tests.sim.mutants.storage import Planted

pytestmark = pytest.mark.sim

Script = Callable[[DamagedWorld], None]
SCRIPTS: list[Script] = [
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
    *(lambda world, story=story: story() for story in refusing.STORIES),
]


def kill(planted: Planted) -> str | None:
    """What a mutant dies of; None if it lives."""
    with planted():
        for script in SCRIPTS:
            try:
                script(DamagedWorld())
            except (AssertionError, BookKeeperError, ValueError, pytest.fail.Exception) as error:
                return str(error) or type(error).__name__
    return None


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "rule", "planted"), DAMAGE_MUTANTS, ids=[name for name, _, _ in DAMAGE_MUTANTS])
def test_a_defect_put_back_is_found(name: str, rule: str, planted: Planted) -> None:
    assert kill(planted), f"{name} ({rule}) lives"


def test_without_a_defect_no_script_fails() -> None:
    for script in SCRIPTS:
        script(DamagedWorld())
