# SPDX-License-Identifier: Apache-2.0
"""Scripted lives of a bookie's storage, each about one thing that a crash may interrupt.

A step is a list of frames (one commit), an event, or a function of the life. ``crash_points.py`` stops the machine at
every operation of each life.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bk_core.entries.frame import FrameKind, encode_record
from bk_core.errors import DataDirectoryError, StorageFailedError
from tests.kit.segment_world import entries, fence_record, key_record, lac_record, limbo_record, striped
from tests.sim.maintained_workloads import MAINTAINED, deleted, disk_full
from tests.sim.storage import SEGMENTS_DIR, ask
from tests.sim.storage_life import IDLE, KILL, POWER, STOP, Life, Step, drop
from tests.sim.storage_upkeep import checkpoint, give_back, look, lose_checkpoint, some_recycled


def denying(ledger_id: int, last: int) -> Callable[[Life], None]:
    """Return a step that asks the bookie which ids are not here. These ids must stay absent (I6)."""

    def step(life: Life) -> None:
        life.denied[ledger_id] |= ask(life.back_end, ledger_id, 0, last).absent

    return step


def asking_one_by_one(ledger_id: int, last: int) -> Callable[[Life], None]:
    """Return a step that reads each acked entry by itself. A frame inside a larger one must not hide the rest of that
    one (S2)."""

    def step(life: Life) -> None:
        acked = life.acked_ids(ledger_id)
        for entry_id in range(last + 1):
            found = entry_id in ask(life.back_end, ledger_id, entry_id, entry_id).found
            assert found or entry_id not in acked, f"acked entry {entry_id} of ledger {ledger_id} is not found alone"

    return step


def perhaps_refused(frames: list[bytes]) -> Callable[[Life], None]:
    """Return a commit that a full disk may refuse. Then nothing of it may be written."""

    def step(life: Life) -> None:
        try:
            life.commit(frames)
        except DataDirectoryError:
            assert life.disk.faults.no_space, "a commit was refused on a disk that has room"

    return step


def failing_sync(frames: list[bytes]) -> Callable[[Life], None]:
    """Return a commit whose sync fails, while later syncs falsely succeed. The bookie ends, and the next process starts
    on the page cache."""

    def step(life: Life) -> None:
        life.disk.faults.syncs = 1
        try:
            life.commit(frames)
        except StorageFailedError:
            life.kill()
            life.open()
        else:
            raise AssertionError("a group was acked although its sync failed")

    return step


def lose(kind: str, number: int, life: Life) -> None:
    """Lose power and a file of a segment."""
    life.crash(_NO_CHANCE, "everything")
    paths = [path for path in life.disk.paths() if path.startswith(SEGMENTS_DIR) and path.endswith(kind)]
    life.expects_damage |= kind == "segment"
    if paths:
        life.disk.lose_file(paths[number % len(paths)])
    life.open()


def flip(life: Life) -> None:
    """Flip a bit of a frame on record while the bookie is down."""
    life.expects_damage = True
    life.back_end.flip_bit(_NO_CHANCE)
    life.crash(_NO_CHANCE, "everything")
    life.open()


class _NoChance:
    """A source of randomness that always gives the same answers."""

    def random(self) -> float:
        return 0.0

    def choice(self, what: list[object]) -> object:
        return what[0]

    def randrange(self, end: int) -> int:
        return end // 2


_NO_CHANCE: object = _NoChance()

WORKLOADS: dict[str, list[Step]] = {
    "small groups": [
        [key_record(1), entries(1, range(3))],
        [entries(1, range(3, 5), lac=2), key_record(2), entries(2, [0])],
        IDLE,
        [fence_record(2), lac_record(1, 4)],
        [entries(1, [5], lac=4)],
    ],
    "a large frame between small ones": [
        [key_record(1), entries(1, range(4))],
        [entries(1, [4], size=20_000), entries(1, range(5, 8), lac=4), fence_record(7)],
        IDLE,
        [entries(1, [8], size=30_000, lac=7)],
    ],
    "segments fill up": [
        [key_record(1), *(entries(1, range(10 * k, 10 * k + 10), size=1200) for k in range(3))],
        [entries(1, range(30, 60), lac=29, size=1000), fence_record(1)],
        [entries(2, range(40), size=900), deleted(5)],
        [entries(3, [9, 4, 2], size=9000), striped(4, 0, 30), entries(2, range(40, 50), size=2000)],
    ],
    "fences and tombstones around restarts": [
        [key_record(1), entries(1, range(5)), fence_record(2)],
        STOP,
        [fence_record(1), deleted(3), lac_record(4, 17)],
        POWER,
        [entries(4, range(2)), limbo_record(6)],
        STOP,
        [entries(6, range(3)), entries(3, range(3))],
        [lac_record(4, 5)],
    ],
    "killed and started on the page cache": [
        [key_record(1), entries(1, range(5))],
        KILL,
        [entries(1, range(5, 9), lac=4), fence_record(3)],
        KILL,
        IDLE,
        [striped(2, 0, 20), entries(2, [21, 23, 22])],
        KILL,
        [entries(1, range(9, 12), lac=8)],
    ],
    "overlapping copies": [
        [entries(1, range(30))],
        [entries(1, range(10, 15)), entries(1, range(28, 33))],
        asking_one_by_one(1, 34),
        IDLE,
        POWER,
        asking_one_by_one(1, 34),
        [entries(1, range(5, 40), lac=3)],
        partial(drop, 9),
        [entries(9, range(4))],
    ],
    "frames of one entry of many ledgers": [
        [record for ledger_id in range(1, 7) for record in (key_record(ledger_id), entries(ledger_id, [0]))],
        [entries(1 + k % 6, [1 + k // 6], size=1500, lac=k // 6) for k in range(24)],
        IDLE,
        [entries(1 + k % 6, [5 + k // 6], size=1800, lac=4 + k // 6) for k in range(24)],
        POWER,
        [entries(1 + k % 6, [9 + k // 6], size=60, lac=8) for k in range(12)],
        [fence_record(ledger_id) for ledger_id in range(1, 7, 3)],
    ],
    "limbo and drops in any order": [
        [key_record(1), entries(1, range(6)), limbo_record(1)],
        [entries(1, range(6, 9))],
        partial(drop, 2),
        POWER,
        [entries(1, range(9, 40), size=1500), limbo_record(2)],
        [entries(2, range(40), size=900), entries(3, range(5))],
        IDLE,
        partial(drop, 1),
        partial(drop, 3),
        STOP,
        [limbo_record(1), fence_record(1)],
    ],
    "a copy dropped and written again": [
        [key_record(1), entries(1, range(20), size=1400), fence_record(1)],
        [entries(2, range(40), size=1200)],
        IDLE,
        partial(drop, 1),
        [entries(1, range(5))],
        STOP,
        [entries(1, range(5, 10), size=1400), entries(2, range(40, 70), size=1200)],
        checkpoint,
        [entries(1, range(10, 20), size=2000)],
        POWER,
        look,
        partial(drop, 1),
        [entries(1, range(20, 24)), entries(2, range(70, 100), size=1200)],
    ],
    "two keys in the log": [
        [key_record(1), entries(1, range(4)), key_record(2)],
        [encode_record(FrameKind.LEDGER_KEY, 1, b"\x63" * 20)],
        POWER,
        [entries(2, range(40), size=1300), key_record(1)],
        [entries(2, range(40, 60), size=1300)],
        STOP,
        [fence_record(1)],
    ],
    "LACs in any order": [
        [key_record(1), lac_record(1, 4), entries(1, range(30), size=1100)],
        [lac_record(1, 2), lac_record(2, 9), entries(1, range(30, 60), size=1100, lac=29)],
        STOP,
        [lac_record(1, 40), lac_record(2, 3)],
        [lac_record(1, 39), entries(2, range(50), size=800, lac=7)],
        KILL,
        [lac_record(2, 11)],
        IDLE,
    ],
    "a full disk": [
        [key_record(1), entries(1, range(10), size=2000)],
        partial(disk_full, True),
        *(perhaps_refused([entries(1, range(10 + 9 * k, 19 + 9 * k), size=2000)]) for k in range(5)),
        IDLE,
        perhaps_refused([fence_record(1)]),
        partial(disk_full, False),
        [entries(2, range(20), size=2500)],
        [fence_record(2), entries(2, range(20, 30), size=2500)],
    ],
    "a sync that fails": [
        [key_record(1), entries(1, range(5))],
        failing_sync([entries(1, range(5, 9)), fence_record(2)]),
        [entries(1, range(9, 12))],
        failing_sync([entries(3, range(4), size=9000)]),
        [entries(3, range(4, 8))],
    ],
    "fenced and denied": [
        [key_record(1), entries(1, range(6))],
        [fence_record(1)],
        denying(1, 12),
        [entries(2, range(40), size=1200)],
        POWER,
        denying(1, 20),
        [entries(1, range(6, 8))],
        STOP,
        denying(1, 20),
        [entries(2, range(40, 80), size=1200)],
    ],
    "an index that is lost": [
        [key_record(1), *(entries(1, range(10 * k, 10 * k + 10), size=1200) for k in range(3))],
        [entries(1, range(30, 60), lac=29, size=1000), fence_record(1)],
        [entries(2, range(40), size=900), deleted(5)],
        partial(lose, "idx", 0),
        [entries(2, range(40, 44))],
        partial(lose, "idx", 1),
        [fence_record(2)],
    ],
    "a segment that is lost": [
        [key_record(1), *(entries(1, range(10 * k, 10 * k + 10), size=1200) for k in range(3))],
        [entries(1, range(30, 60), lac=29, size=1000), fence_record(1)],
        [entries(2, range(40), size=900)],
        partial(lose, "segment", 0),
        [entries(3, range(4))],
        STOP,
        [entries(3, range(4, 9)), key_record(4)],
    ],
    "a bit that flips": [
        [key_record(1), entries(1, range(6)), fence_record(2)],
        [entries(1, range(6, 12), lac=4), entries(3, range(9), size=2000)],
        IDLE,
        flip,
        [entries(1, range(12, 15))],
        STOP,
        [entries(3, range(9, 12), size=9000)],
    ],
    "checkpoints around restarts": [
        [key_record(1), fence_record(7), lac_record(3, 17), deleted(5), limbo_record(6)],
        checkpoint,
        [entries(1, range(30), size=1200), fence_record(8), lac_record(3, 12)],
        [entries(1, range(30, 60), size=1200), limbo_record(7)],
        checkpoint,
        POWER,
        [fence_record(9), deleted(4), lac_record(3, 30)],
        checkpoint,
        STOP,
        [entries(2, range(4))],
        KILL,
        checkpoint,
    ],
    "deleted ledgers are given back": [
        [key_record(1), fence_record(7), lac_record(3, 17), deleted(5), limbo_record(6)],
        [key_record(8), limbo_record(9)],
        partial(drop, 9),
        [entries(1, range(25), size=1700)],
        [entries(1, range(25, 50), size=1700), fence_record(10)],
        [entries(2, range(20), size=1700), deleted(1)],
        give_back,
        [entries(2, range(20, 50), size=1700), fence_record(2)],
        [entries(2, range(50, 53))],
        some_recycled(1),
        POWER,
        [entries(9, range(3)), entries(8, range(3))],
        [entries(4, range(30), size=1700)],
        [deleted(4), entries(11, range(30), size=1700)],
        give_back,
        STOP,
        give_back,
        [entries(11, range(30, 60), size=1700)],
    ],
    "a checkpoint that is lost": [
        [key_record(1), fence_record(7), lac_record(3, 17), deleted(5), entries(1, range(25), size=1700)],
        [entries(1, range(25, 50), size=1700), entries(2, range(4))],
        [deleted(1), entries(2, range(4, 30), size=1700)],
        give_back,
        [entries(12, range(30), size=1700), fence_record(2)],
        [deleted(12), entries(2, range(30, 60), size=1700)],
        give_back,
        lose_checkpoint,
        [entries(13, range(3))],
        STOP,
        [entries(13, range(3, 6))],
    ],
    **MAINTAINED,
}
"""The workloads by name."""
