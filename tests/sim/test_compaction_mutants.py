# SPDX-License-Identifier: Apache-2.0
"""Every known defect of compaction, put back, is found by compaction's own tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from bk_core.errors import BookKeeperError
from tests.bookie_server.storage.bytes import test_joined_frames as joined
from tests.bookie_server.storage.maintenance import test_compaction as whole
from tests.bookie_server.storage.maintenance import test_compaction_meanwhile as meanwhile
from tests.bookie_server.storage.maintenance import test_live_frames as live
from tests.kit.segment_world import assert_honest
from tests.sim.mutants.compaction import COMPACTION_MUTANTS
from tests.sim.mutants.storage import Planted

pytestmark = pytest.mark.sim


def harmed(ledger_id: int, harm: str) -> None:
    """Damage in a frame of the ledger, compaction, and a look at everything."""
    world, frames = live.small_world()
    place = next(place for place in world.places_of(ledger_id) if place.generation == 1)
    live.HARMS[harm](world, place.offset, place.size)
    world.compact(major=True)
    assert 1 in world.storage.index.sealed_generations(), "a damaged segment is given up"
    assert_honest(world.storage, frames)


ATTEMPTS: list[Callable[[], object]] = [
    joined.test_one_entry_frames_in_a_row_become_one_frame_with_a_column_of_lacs,
    joined.test_what_stands_there_twice_is_copied_once,
    joined.test_entries_whose_digest_is_wrong_keep_the_checksum_of_their_writer,
    joined.test_ledger_lengths_near_their_greatest_do_not_make_a_frame_that_nobody_reads,
    live.test_what_only_the_page_cache_has_wrong_is_read_from_the_disk,
    live.test_what_looks_like_a_frame_inside_a_payload_is_not_taken_for_one,
    *(partial(harmed, ledger_id, harm) for ledger_id in (1, 2) for harm in live.HARMS),
    whole.test_everything_live_is_served_as_before_and_the_old_segments_are_given_up,
    whole.test_dropped_copies_are_not_copied_and_later_entries_are,
    whole.test_a_full_disk_is_given_up_to_and_the_rest_copied_when_there_is_room,
    *(
        partial(
            meanwhile.test_whatever_happens_meanwhile_what_is_dead_stays_dead_and_what_lives_is_served,
            what, "before the index learns",
        )
        for what in meanwhile.MEANWHILE
    ),
]  # fmt: skip


def kill(planted: Planted) -> str | None:
    """What a mutant dies of; None if it lives."""
    with planted():
        for attempt in ATTEMPTS:
            try:
                attempt()
            except (AssertionError, BookKeeperError, pytest.fail.Exception) as error:
                return str(error) or type(error).__name__
    return None


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("name", "rule", "planted"), COMPACTION_MUTANTS, ids=[name for name, *_ in COMPACTION_MUTANTS])
def test_a_defect_put_back_is_found(name: str, rule: str, planted: Planted) -> None:
    assert kill(planted), f"{name} ({rule}) lives"


def test_without_a_defect_nothing_is_found() -> None:
    for attempt in ATTEMPTS:
        attempt()
