# SPDX-License-Identifier: Apache-2.0
"""Scripted lives in which maintenance works beside commits: compaction, checkpoints, recycling, and restarts in
between.

No segment is wholly dead before it is compacted, so that any loss on the way is a loss of live entries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bk_core.entries.frame import FrameKind, encode_record
from bk_core.errors import DataDirectoryError
from tests.kit.segment_world import entries, fence_record, key_record, lac_record, limbo_record, striped
from tests.sim.storage import SEGMENTS_DIR
from tests.sim.storage_life import IDLE, KILL, POWER, STOP, Life, Step, drop
from tests.sim.storage_upkeep import (
    beside_commits,
    compacting_beside,
    look,
    maintain,
    some_compacted,
    some_recycled,
)


def deleted(ledger_id: int) -> bytes:
    return encode_record(FrameKind.DELETED, ledger_id)


def mixed(turn: int, *ledgers: int, size: int = 1500) -> list[bytes]:
    """Return six frames of three entries, of each ledger in turn. Two ledgers fill a segment."""
    firsts = range(18 * turn, 18 * turn + 18, 3)
    return [entries(ledger_id, range(k, k + 3), lac=k - 1, size=size) for k in firsts for ledger_id in ledgers]


def small(turn: int, *ledgers: int) -> list[bytes]:
    """Return neighbouring frames of one small entry each, which compaction joins."""
    return [entries(k, [i], lac=i - 1, size=200) for k in ledgers for i in range(12 * turn, 12 * turn + 12)]


def disk_full(is_full: bool, life: Life) -> None:
    life.disk.faults.no_space = is_full


def until_refused(ledger_id: int, life: Life) -> None:
    """Write entries of one ledger until the disk takes no more."""
    for turn in range(20):
        try:
            life.commit(mixed(turn, ledger_id))
        except DataDirectoryError:
            return
    raise AssertionError("the disk never was full")


def reserved(frames: list[bytes], life: Life) -> None:
    """Make a commit that may use the reserve, which is kept for such commits."""
    life.maybe += frames
    for frame, place in zip(frames, life.back_end.log.append_group(frames, reserve=True), strict=True):
        life.back_end.index.add(frame, place)
    del life.maybe[-len(frames) :]
    life.acked += frames


def damage_sealed(life: Life) -> None:
    """Flip a bit of a live frame in the first segment. The frame has not been read yet."""
    life.expects_damage = True
    frames = [(ledger_id, place) for ledger_id, place in life.back_end.frames_on_record() if ledger_id == 1]
    if frames:  # otherwise an earlier start has recycled or lost all of them
        place = min(place for _, place in frames)
        life.disk.flip_bit(f"{SEGMENTS_DIR}/{place.generation:016x}.segment", place.offset + place.size // 2)


def steps(count: int) -> Callable[[Life], None]:
    return partial(maintain, steps=count)


MAINTAINED: dict[str, list[Step]] = {
    "half dead segments are compacted": [
        [key_record(1), key_record(2), *mixed(0, 1, 2)],
        [fence_record(7), lac_record(1, 4), *mixed(1, 1, 2)],
        [*small(0, 5, 6), striped(4, 0, 30), limbo_record(8)],
        [*mixed(2, 1, 2)],
        [deleted(2), deleted(6)],
        maintain,
        look,
        some_compacted(2),
        some_recycled(2),
        [*mixed(3, 1)],
        POWER,
        [entries(5, range(12, 15)), fence_record(5)],
        maintain,
    ],
    "maintenance between commits": [
        [key_record(1), *mixed(0, 1, 2)],
        partial(
            beside_commits,
            [mixed(1, 1, 2), [deleted(2), *mixed(2, 1, 3)], mixed(3, 1, 3), [fence_record(3), deleted(3)], mixed(4, 1)]
            + [[entries(1, [90 + k]), fence_record(20 + k)] for k in range(6)],
        ),
        some_compacted(1),
        look,
        STOP,
        partial(beside_commits, [mixed(6, 1), [deleted(20)], small(0, 9)]),
        maintain,
        some_recycled(1),
    ],
    "restarts in the midst of maintenance": [
        [key_record(1), *mixed(0, 1, 2)],
        [*mixed(1, 1, 2), deleted(2)],
        [*mixed(2, 1, 3)],
        steps(3),
        KILL,
        steps(2),
        [deleted(3), lac_record(1, 30)],
        POWER,
        steps(4),
        STOP,
        [*mixed(3, 1), fence_record(1)],
        steps(5),
        POWER,
        maintain,
        some_recycled(2),
        POWER,
        [entries(9, range(3))],
    ],
    "dropped copies are given back": [
        [key_record(1), *mixed(0, 1, 2)],
        [*mixed(1, 1, 2), fence_record(1)],
        [*mixed(2, 4, 5)],
        IDLE,
        partial(drop, 1),
        [entries(1, range(9), size=700), deleted(2), limbo_record(3)],
        look,
        maintain,
        some_recycled(1),
        partial(drop, 4),
        POWER,
        maintain,
        [entries(4, range(36, 40)), *mixed(3, 5)],
        [*mixed(4, 5)],
        partial(drop, 4),
        POWER,
        maintain,
        some_recycled(2),
    ],
    "what happens while a segment is compacted": [
        [key_record(1), key_record(2), *mixed(0, 1, 2)],
        [*mixed(1, 4, 2), *small(0, 5, 6), limbo_record(3)],
        [*mixed(2, 1, 2)],
        [*mixed(3, 4, 2), deleted(2)],
        IDLE,
        partial(
            compacting_beside,
            [[fence_record(20)], partial(drop, 4), [deleted(5)], partial(drop, 4)]
            + [[entries(4, range(6), size=300)], [*mixed(3, 1)]]
            + [[fence_record(k)] for k in range(21, 26)]
            + [partial(drop, 1), [deleted(20)]],
        ),
        look,
        POWER,
        maintain,
        some_recycled(1),
    ],
    "damage in a segment that is compacted": [
        [key_record(1), *mixed(0, 1, 2)],
        [*mixed(1, 1, 2), fence_record(8)],
        [*mixed(2, 1, 2)],
        IDLE,
        damage_sealed,
        [deleted(2)],
        maintain,
        look,
        POWER,
        maintain,
        [*mixed(3, 1)],
    ],
    "a full disk is emptied by compaction": [
        [key_record(1), *mixed(0, 1, 2)],
        [*mixed(1, 1, 2), fence_record(8)],
        [*mixed(2, 1, 2)],
        partial(disk_full, True),
        partial(until_refused, 30),
        partial(reserved, [deleted(2), deleted(30), fence_record(9)]),
        maintain,
        some_recycled(1),
        [*mixed(3, 1)],
        partial(disk_full, False),
        [*mixed(4, 1)],
        maintain,
    ],
}
"""The workloads by name. ``storage_workloads.py`` has all of them."""
