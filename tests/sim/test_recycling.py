# SPDX-License-Identifier: Apache-2.0
"""Segments in a second life: recycling, rolling and sealing (RULES S3, S4, S6).

Bytes of the older life lie behind and under what the new one writes; none of them is ever answered, called a tail or
counted as something that was committed. ``test_crash_points.py`` stops the machine at every operation of ``WORKLOADS``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from bk_core.entries.frame import parse_header
from bookie_server.storage.bytes.scan import SegmentScanner
from tests.kit.segment_world import entries, fence_record, key_record
from tests.sim.crash_points import crash_everywhere, variant
from tests.sim.storage import SEGMENT_BYTES, SEGMENTS_DIR, ask
from tests.sim.storage_life import IDLE, KILL, POWER, STOP, Life, Step

pytestmark = pytest.mark.long

STALE = 500  # the first id of the entries that nobody was ever told of
OLD = [entries(1, range(STALE + 3 * k, STALE + 3 * k + 3), size=2000) for k in range(24)]
"""Two segments and a half of small frames, so that stale groups and frames begin at many places."""
LARGE = [entries(1, range(STALE + 4 * k, STALE + 4 * k + 4), size=10_000) for k in range(4)]


def many(first: int, end: int) -> list[bytes]:
    """Frames of two entries of ledger 1; ten fill a segment."""
    return [entries(1, range(k, min(end, k + 2)), size=3000) for k in range(first, end, 2)]


def waste(frames: list[bytes], life: Life) -> None:
    """Fill the first segments with what is not worth keeping: no index leads into it, nobody was told of it.

    One commit, so that no later segment names the first as sealed: then only its own name tells of it.
    """
    life.maybe += frames
    places = life.back_end.commit(frames)
    assert places[-1].generation >= places[0].generation + 2


def recycle(generation: int, life: Life) -> None:
    """The segment is drained; from here on none of its frames may be seen."""
    path = f"{SEGMENTS_DIR}/{generation:016x}.segment"
    if not life.disk.exists(path):
        return  # an earlier start has done it
    handle = life.disk.open_read(path)
    incarnation = life.back_end._open.directory.identity.incarnation_bytes
    scanned = SegmentScanner(partial(life.disk.read, handle), generation, incarnation, SEGMENT_BYTES).scan()
    life.disk.close(handle)
    life.back_end.log.pool.recycle(generation)
    gone = {int(row[1]) for row in _rows(scanned.rows)} | {frame.header.first_entry_id for frame in scanned.above}
    life.maybe = [frame for frame in life.maybe if parse_header(frame).first_entry_id not in gone]


def _rows(rows: bytearray) -> Iterator[tuple[int, ...]]:
    for at in range(0, len(rows), 64):
        yield tuple(int.from_bytes(rows[at + 8 * k : at + 8 * k + 8], "little", signed=True) for k in range(3))


def kept(suffix: str, count: int, life: Life) -> None:
    names = [name for name in life.disk.names(SEGMENTS_DIR) if name.endswith(suffix)]
    assert len(names) >= count, names


def recycled(count: int, life: Life) -> None:
    assert life.back_end.log.pool.recycled >= count


WORKLOADS: dict[str, list[Step]] = {
    "a drained segment is used again": [
        partial(waste, OLD),
        [key_record(1), entries(1, range(6))],
        partial(recycle, 1),
        [*many(6, 26), fence_record(2)],
        [entries(1, [6])],
        partial(recycled, 1),
        [entries(1, range(26, 30))],
        many(30, 46),
        IDLE,
        [fence_record(1)],
    ],
    "small groups over large frames": [
        partial(waste, LARGE),
        IDLE,
        partial(recycle, 1),
        [key_record(1), *many(0, 20)],
        partial(recycled, 1),
        [entries(1, range(20, 23))],
        [entries(1, range(23, 25)), key_record(3)],
        IDLE,
        [entries(1, [25])],
        POWER,
        [entries(1, range(26, 30))],
        STOP,
        [fence_record(1)],
    ],
    "recycled and not used": [
        partial(waste, OLD),
        [key_record(1), entries(1, range(6))],
        IDLE,
        partial(recycle, 1),
        partial(kept, ".free", 1),
        POWER,
        POWER,
        KILL,
        [entries(1, range(6, 9))],
        STOP,
        POWER,
        [fence_record(1)],
    ],
    "rolling and sealing": [
        [key_record(1), *many(0, 24)],
        [fence_record(2), *many(24, 48)],
        IDLE,
        [entries(3, range(3), size=9000), fence_record(1)],
        IDLE,
        partial(kept, ".idx", 3),
    ],
}


def recycled_life(frames: list[bytes] | None = None) -> tuple[Life, str]:
    """A life that goes on in a recycled segment full of older frames, and its path."""
    life = Life()
    life.run([partial(waste, frames or OLD), [key_record(1), entries(1, range(6))], IDLE, partial(recycle, 1), STOP])
    path = life.back_end.newest_segment()
    assert life.back_end.log.pool.recycled
    assert has_stale_groups(life, path)
    return life, path


def has_stale_groups(life: Life, path: str) -> bool:
    return b"BKGROUP1" in life.disk.durable_bytes(path)[4096:]


@pytest.mark.rule("S3")
def test_a_recycled_segment_that_was_never_used_is_empty_however_full_it_is_of_an_older_life() -> None:
    life, _ = recycled_life()
    for _ in range(6):
        path = life.back_end.newest_segment()
        life.crash(random.Random(1))
        life.open()
        assert life.back_end.report.tail_bytes_dropped == 0
        assert not life.disk.exists(path), "a segment that nothing was written to is not kept and sealed"
        life.check(more=False)
    names = life.disk.names(SEGMENTS_DIR)
    assert sum(name.endswith((".free", ".tmp")) for name in names) <= 6


@pytest.mark.rule("S3")
@pytest.mark.parametrize("old", [OLD, LARGE], ids=["small frames", "large frames"])
def test_a_torn_group_is_told_from_the_older_life_that_it_lies_in(old: list[bytes]) -> None:
    """Only the sectors behind the group's header arrived: they are a tail; what lies behind them is nothing."""
    for sectors in range(1, 12):
        life, path = recycled_life(old)
        life.run([[entries(4, range(3))]])
        position = life.back_end.log.position[1]
        before = life.disk.durable_bytes(path)
        life.maybe += (frames := [entries(4, range(3 + k, 4 + k), size=700) for k in range(8)])
        life.back_end.log.append_group(frames)
        written = life.disk.durable_bytes(path)[position : position + 512 * 16]
        life.disk.put_at_rest(path, position, before[position : position + len(written)])
        life.disk.put_at_rest(path, position + 512 * sectors, written[512 * sectors :])
        life.crash(random.Random(1), "nothing")
        life.open()
        dropped = life.back_end.report.tail_bytes_dropped
        assert 0 < dropped <= 8192, dropped
        life.check()


@pytest.mark.rule("S3", "S5")
def test_sectors_of_an_older_life_below_the_position_on_record_are_damage() -> None:
    for offset in range(0, 4096 * 2, 512):
        life, path = recycled_life()
        stale = life.disk.durable_bytes(path)
        first = life.back_end.log.position[1]
        life.run([[entries(4, range(3)), entries(4, range(3, 8), size=900)], IDLE, [entries(4, [8])], IDLE])
        if stale[first + offset : first + offset + 512] == life.disk.durable_bytes(path)[first + offset :][:512]:
            continue
        life.disk.put_at_rest(path, first + offset, stale[first + offset : first + offset + 512])
        life.crash(random.Random(1), "nothing")
        for _ in range(2):
            life.open()
            life.check(damaged=True)
            answer = ask(life.back_end, 4, 0, 8)
            assert set(answer.found) | set(answer.unknown) == set(range(9)), offset
            assert max(answer.found, default=0) < STALE
            life.crash(random.Random(1), "nothing")


def assert_sizes(life: Life) -> None:
    names = [name for name in life.disk.names(SEGMENTS_DIR) if not name.endswith((".idx", ".unsealed"))]
    paths = [f"{SEGMENTS_DIR}/{name}" for name in names]
    assert {life.disk.size(life.disk.open_read(path)) for path in paths} == {SEGMENT_BYTES}


def test_a_pool_file_of_another_size_is_not_used() -> None:
    for kind in ("free", "segment.tmp"):
        life = Life()
        life.run([[key_record(1), entries(1, range(5))]])
        handle = life.disk.create_preallocated(f"{SEGMENTS_DIR}/00000000000000aa.{kind}", SEGMENT_BYTES // 2)
        life.disk.sync_data(handle)
        life.disk.sync_directory(SEGMENTS_DIR)
        life.run([POWER, many(5, 50), STOP, POWER])
        life.check()
        assert_sizes(life)


def test_a_pool_file_that_shrank_while_the_bookie_ran_is_not_used() -> None:
    life = Life()
    life.run([partial(waste, OLD), [key_record(1), entries(1, range(6))], partial(recycle, 1)])
    life.disk.truncate(f"{SEGMENTS_DIR}/{1:016x}.free", 4096)
    life.run([many(6, 50), STOP])
    life.check()
    assert_sizes(life)


@pytest.mark.rule("S3")
def test_that_the_newest_segment_is_lost_is_noticed_though_spares_are_ready() -> None:
    life = Life()
    life.run([many(0, 12), many(12, 24), IDLE])
    assert life.back_end.log.pool.spares
    path = f"{SEGMENTS_DIR}/{life.back_end.log.position[0]:016x}.segment"
    life.crash(random.Random(1), "nothing")
    life.disk.lose_file(path)
    life.open()
    assert life.back_end.report.limbo
    life.check(damaged=True)


SCRIPTS: list[Callable[[], object]] = [
    partial(crash_everywhere, WORKLOADS["a drained segment is used again"], variant("nothing unsynced is kept")),
    partial(crash_everywhere, WORKLOADS["a drained segment is used again"], variant("names kept, bytes lost")),
    partial(crash_everywhere, WORKLOADS["recycled and not used"], variant("some sectors, some names")),
    test_a_recycled_segment_that_was_never_used_is_empty_however_full_it_is_of_an_older_life,
    partial(test_a_torn_group_is_told_from_the_older_life_that_it_lies_in, OLD),
    test_that_the_newest_segment_is_lost_is_noticed_though_spares_are_ready,
    test_a_pool_file_of_another_size_is_not_used,
    test_a_pool_file_that_shrank_while_the_bookie_ran_is_not_used,
]
"""What finds defects of recycling, for the mutants."""
