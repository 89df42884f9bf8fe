# SPDX-License-Identifier: Apache-2.0
"""Blocks that the disk refuses to read when a bookie starts: unknown, on record or not, and left as they are (S3, S8).

The corruption matrix refuses each sector of a segment in turn (``corruption_matrix.py``); here is what must come of it.
"""

from __future__ import annotations

import random

import pytest

from bk_core.wire.lane.reasons import Reason
from bookie_server.identity.known_state import record_positions
from bookie_server.storage.check.check import examine
from bookie_server.storage.disk.cookie import IDENTITY_NAME, decode_identity
from bookie_server.storage.index.ledger_states import EVERY_LEDGER
from tests.kit.index_state import state_of
from tests.kit.segment_world import entries, fence_record, key_record
from tests.sim.disk import SECTOR
from tests.sim.storage import DATA_DIR, SEGMENTS_DIR, ask
from tests.sim.storage_life import Life

FIRST = [key_record(1), entries(1, range(5))]
LAST = [entries(1, range(5, 9), size=3000), entries(2, range(3)), fence_record(3)]


def crashed(*groups: list[bytes], idle: bool = False) -> tuple[Life, str, tuple[int, int]]:
    """Power is lost behind these groups, all of them acked; the segment, and where the last one begins and ends."""
    life = Life()
    life.run([*groups[:-1]])
    begin = life.back_end.log.position[1]
    life.run([groups[-1]])
    end = life.back_end.log.position[1]
    if idle:
        life.back_end.idle()
    path = life.back_end.newest_segment()
    life.crash(random.Random(1), "nothing")
    return life, path, (begin, end)


def started_again(life: Life) -> None:
    life.crash(random.Random(2), "nothing")
    life.open()


@pytest.mark.rule("S3", "S8")
def test_an_acked_group_that_the_disk_refuses_is_unknown_and_served_once_it_is_read_again() -> None:
    life, path, (begin, _) = crashed(FIRST, LAST)
    life.disk.break_sector(path, begin)  # the group's header: nothing tells whose entries stand behind it
    found = examine(DATA_DIR, verify=True, files=life.disk)
    assert found.limbo
    assert "the disk refused" in found.segments[-1].damage[-1]
    life.open()
    assert life.back_end.report.limbo
    assert "the disk refused" in life.back_end.report.damage[-1]
    life.check(damaged=True)
    assert set(ask(life.back_end, 1, 5, 8).unknown) == {5, 6, 7, 8}
    assert state_of(life.back_end.index, EVERY_LEDGER).trouble is Reason.LIMBO
    life.disk.mend_sectors(path)
    started_again(life)
    life.check(damaged=True)
    assert set(ask(life.back_end, 1, 0, 8).found) | set(ask(life.back_end, 1, 0, 8).unknown) == set(range(9))


@pytest.mark.rule("S3", "S5")
def test_frames_whose_payload_is_refused_are_unknown_by_name_and_nothing_else_is() -> None:
    life, path, (begin, _) = crashed(FIRST, LAST)
    life.disk.break_sector(path, begin + 8 * SECTOR)  # in the payload of the entries 5 to 8
    assert not examine(DATA_DIR, verify=True, files=life.disk).limbo
    life.open()
    assert life.back_end.report.damage
    assert not life.back_end.report.limbo
    answer = ask(life.back_end, 1, 0, 9)
    assert (set(answer.found), set(answer.unknown), answer.absent) == (set(range(5)), {5, 6, 7, 8}, {9})
    assert set(ask(life.back_end, 2, 0, 2).found) == {0, 1, 2}
    assert life.back_end.holdings.facts(3).fenced
    life.check(damaged=True)
    started_again(life)
    assert set(ask(life.back_end, 1, 0, 9).unknown) == {5, 6, 7, 8}, "a start later it is not forgotten"
    life.disk.mend_sectors(path)
    started_again(life)
    assert set(ask(life.back_end, 1, 0, 9).found) == set(range(9)), "the disk reads again"


@pytest.mark.rule("S6")
def test_whole_frames_beside_refused_ones_are_copied_like_any_tail() -> None:
    """Their sync may not have returned: only a copy that was synced may be answered from."""
    life, path, (begin, _) = crashed(FIRST, LAST)
    life.disk.break_sector(path, begin + 8 * SECTOR)
    life.open()
    assert life.back_end.report.frames_copied == 2
    life.disk.lose_file(path)
    assert set(ask(life.back_end, 2, 0, 2).found) == {0, 1, 2}


@pytest.mark.rule("S3")
def test_what_is_on_record_needs_no_guess_and_a_refused_end_is_one() -> None:
    """Behind the group that records the position the next one may have been acked already."""
    life, path, (_, end) = crashed(FIRST, LAST, idle=True)
    life.disk.break_sector(path, end + 4096)
    life.open()
    assert life.back_end.report.limbo
    assert set(ask(life.back_end, 1, 0, 8).found) == set(range(9))
    life.check(damaged=True)


@pytest.mark.parametrize("groups", [[FIRST, LAST], [FIRST]])
def test_a_refused_block_behind_the_end_of_the_log_says_nothing_and_is_left_alone(groups: list[list[bytes]]) -> None:
    """It is neither damage nor given back to the file system: that would make zeros of what nobody has seen."""
    life, path, (_, end) = crashed(*groups)
    before = life.disk.durable_bytes(path)
    life.disk.break_sector(path, end + 3 * 4096)
    deallocated = life.disk.kinds["deallocate"]
    life.open()
    life.check()
    assert life.disk.kinds["deallocate"] == deallocated
    assert life.disk.durable_bytes(path) == before


def test_a_segment_with_refused_blocks_in_which_nothing_is_found_is_not_used_again() -> None:
    life = Life()
    life.open()
    path = life.back_end.newest_segment()
    life.crash(random.Random(1), "nothing")
    life.disk.break_sector(path, 5 * 4096)
    life.open()
    assert life.disk.exists(path)
    assert [name for name in life.disk.names(SEGMENTS_DIR) if name.endswith(".free")] == []


@pytest.mark.rule("S8")
def test_a_start_that_the_store_expects_more_of_is_not_stopped_by_a_refused_block() -> None:
    """Else one bad sector would keep the whole directory from being served."""
    life, path, (begin, end) = crashed(FIRST, LAST)
    identity = decode_identity(life.disk.durable_bytes(f"{DATA_DIR}/{IDENTITY_NAME}"))
    record_positions(life.store, identity.bookie_id, {identity.incarnation: (1, end)})
    life.disk.break_sector(path, begin)
    life.open()
    life.check(damaged=True)


STORIES = (
    test_an_acked_group_that_the_disk_refuses_is_unknown_and_served_once_it_is_read_again,
    test_frames_whose_payload_is_refused_are_unknown_by_name_and_nothing_else_is,
    test_what_is_on_record_needs_no_guess_and_a_refused_end_is_one,
    lambda: test_a_refused_block_behind_the_end_of_the_log_says_nothing_and_is_left_alone([FIRST, LAST]),
    test_a_start_that_the_store_expects_more_of_is_not_stopped_by_a_refused_block,
)
"""For those that put defects back (``mutants/damage.py``)."""
