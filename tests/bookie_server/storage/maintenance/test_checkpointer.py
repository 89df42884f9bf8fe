# SPDX-License-Identifier: Apache-2.0
"""Writing checkpoints beside the work, on a disk that loses what was not synced, and on one without a
free block (RULES S4, S6, I11)."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_core.entries.batch import I64
from bk_core.errors import StorageFailedError
from bookie_server.storage.bytes.index_rows import Rows
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.disk.files import BLOCK, Files, Handle
from bookie_server.storage.disk.health import DiskHealth
from bookie_server.storage.index.checkpoint import (
    FoundCheckpoints,
    checkpoint_numbers,
    find_checkpoint,
)
from bookie_server.storage.index.ledger_table import FENCED, LEDGER_ROW
from bookie_server.storage.maintenance.checkpointer import ROOM_BYTES, ROOM_NAME, Checkpointer, CheckpointRoom
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from bookie_server.storage.start.replay import find_starting_point
from tests.kit.segment_world import BOOKIE_ID, CLUSTER, Storage, entries, fence_record, key_record
from tests.sim.disk import SimDisk

LIFE = "0f0e0d0c-0b0a-4908-8706-050403020100"
MANY = 40_000


class Table:
    """What a checkpoint asks of an index: the state of some ledgers, their flags."""

    def __init__(self, ledgers: int = 100) -> None:
        self.flags = dict.fromkeys(range(0, 2 * ledgers, 2), 0)
        self.intervals: list[tuple[int, int]] = []
        self.sealed: list[int] = [1, 2, 3]
        self.unsealed: list[int] = [4]
        self.newest_sealed = 3

    def ask(self, question: Callable[[Any], Any]) -> Any:
        return question(self)

    def generations(self) -> tuple[Sequence[int], Sequence[int], int]:
        return list(self.sealed), list(self.unsealed), self.newest_sealed

    def export_ledgers(self, first_ledger: int, limit: int) -> Rows:
        ids = sorted(ledger_id for ledger_id in self.flags if ledger_id >= first_ledger)[:limit]
        rows = np.zeros(len(ids), LEDGER_ROW)
        rows["ledger"] = ids
        rows["flags"] = [self.flags[ledger_id] for ledger_id in ids]
        return rows

    def deleted_intervals(self) -> I64:
        return np.array(self.intervals, np.int64).reshape(-1, 2)


class Bookie:
    """A data directory on a simulated disk, and its checkpointer."""

    def __init__(self, disk: SimDisk | None = None, table: Table | None = None) -> None:
        self.disk, self.table, self.health = disk or SimDisk(), table or Table(), DiskHealth()
        if DataDirectory.exists("/data", files=self.disk):
            self.directory = DataDirectory.open("/data", BOOKIE_ID, CLUSTER, files=self.disk)
        else:
            self.directory = DataDirectory.create("/data", BOOKIE_ID, CLUSTER, files=self.disk, incarnation=LIFE)
            self.directory.record_boot()
        self.checkpointer = Checkpointer(self.directory, self.table, self.health)

    def checkpoint(self, budget: int = 1 << 30) -> None:
        assert self.checkpointer.start()
        while self.checkpointer.busy:
            assert self.checkpointer.step(budget) > 0

    def found(self) -> FoundCheckpoints:
        return find_checkpoint(self.disk, "/data/segments", self.directory.identity.incarnation_bytes)


def test_a_checkpoint_is_found_again() -> None:
    bookie = Bookie()
    bookie.table.intervals = [(3, 9)]
    bookie.checkpoint()
    found = bookie.found()
    assert found.newest.ledgers["ledger"].tolist() == sorted(bookie.table.flags)
    assert found.newest.deleted.tolist() == [[3, 9]]
    assert (found.newest.through, found.newest.segments) == (3, (1, 2, 3))
    assert found.newest.number == bookie.directory.identity.checkpoint == bookie.checkpointer.newest.number == 1
    assert bookie.checkpointer.newest.file_bytes == found.file_bytes


@pytest.mark.rule("S4")
def test_what_was_known_at_the_beginning_is_in_it_whatever_happens_meanwhile() -> None:
    bookie = Bookie(table=Table(MANY))
    table, chance = bookie.table, random.Random(2)
    known = set(table.flags)
    assert bookie.checkpointer.start()
    steps = 0
    while bookie.checkpointer.busy:
        steps += 1
        for _ in range(100):
            table.flags[chance.randrange(2 * MANY)] = FENCED
        table.sealed, table.unsealed, table.newest_sealed = [1, 2, 3, 4], [5], 4
        bookie.checkpointer.step(1)
    newest = bookie.found().newest
    assert steps > 4
    assert known <= set(newest.ledgers["ledger"].tolist())
    assert (newest.through, newest.segments) == (3, (1, 2, 3)), "segment 4 was not sealed when the copy began"


@pytest.mark.rule("S4")
def test_nothing_is_recycled_that_a_checkpoint_counts_on_or_does_not_cover() -> None:
    bookie = Bookie()
    assert not any(bookie.checkpointer.may_recycle(generation) for generation in range(1, 10))
    bookie.checkpoint()
    assert not any(bookie.checkpointer.may_recycle(generation) for generation in (1, 2, 3, 4, 5))
    bookie.table.sealed.remove(2)  # drained
    assert not bookie.checkpointer.may_recycle(2), "the checkpoint says that it must exist"
    bookie.checkpoint()
    assert [generation for generation in range(1, 6) if bookie.checkpointer.may_recycle(generation)] == [2]
    bookie.table.sealed, bookie.table.unsealed, bookie.table.newest_sealed = [1, 5], [4, 6], 5
    bookie.checkpoint()
    assert [generation for generation in range(1, 7) if bookie.checkpointer.may_recycle(generation)] == [2, 3]
    assert bookie.checkpointer.newest.through == 3, "not all that segment 4 says may have been folded"


@pytest.mark.rule("S4")
def test_a_segment_that_drains_as_the_newest_sealed_one_is_covered_too() -> None:
    bookie = Bookie()
    bookie.table.sealed = []
    bookie.checkpoint()
    assert bookie.checkpointer.newest.through == 3
    assert bookie.checkpointer.may_recycle(3)


@pytest.mark.rule("S4")
def test_a_segment_that_could_not_be_sealed_again_stays_on_the_list() -> None:
    """Its index was lost, and a full disk had no room for another: it is unsealed, though the last checkpoint covers
    it."""
    bookie = Bookie()
    bookie.checkpoint()
    bookie.table.sealed, bookie.table.unsealed = [1, 3], [2, 4]
    bookie.checkpoint()
    assert bookie.checkpointer.newest.through == 3
    assert bookie.checkpointer.newest.segments == {1, 2, 3}


def test_two_checkpoints_are_kept() -> None:
    bookie = Bookie()
    for number in range(1, 6):
        bookie.checkpoint()
        assert checkpoint_numbers(bookie.disk.names("/data/segments")) == [n for n in (number - 1, number) if n]


def test_a_full_disk_costs_nothing_but_the_checkpoint() -> None:
    bookie = Bookie()
    bookie.checkpoint()
    bookie.table.sealed.remove(1)
    assert bookie.checkpointer.start()
    bookie.disk.faults.no_byte = True
    while bookie.checkpointer.busy:
        bookie.checkpointer.step(BLOCK)
    assert bookie.disk.names("/data/segments") == ["0000000000000001.checkpoint"]
    assert not bookie.checkpointer.start()
    assert bookie.disk.names("/data/segments") == ["0000000000000001.checkpoint"]
    assert not bookie.checkpointer.may_recycle(1)
    bookie.disk.faults.no_byte = False
    bookie.checkpoint()
    assert bookie.checkpointer.may_recycle(1)


def test_no_room_to_name_it_in_the_identity_takes_the_checkpoint_back() -> None:
    bookie = Bookie()

    class Full(SimDisk):
        def _replace(self, old: str, new: str) -> None:
            super()._replace(old, new)
            self.faults.no_byte = new.endswith(".checkpoint")

    bookie.disk.__class__ = Full
    assert bookie.checkpointer.start()
    while bookie.checkpointer.busy:
        bookie.checkpointer.step(BLOCK)
    assert bookie.disk.names("/data/segments") == []
    assert not bookie.checkpointer.may_recycle(1)
    assert bookie.directory.identity.checkpoint == 0
    assert not bookie.health.failed


@pytest.mark.rule("S6")
@pytest.mark.parametrize("sync", [1, 2, 3, 4])
def test_a_sync_that_fails_is_final(sync: int) -> None:
    """Of the file, of its name, of IDENTITY, of its name."""
    bookie = Bookie()
    bookie.checkpoint()
    bookie.table.sealed.remove(1)

    class Failing(SimDisk):
        def _sync_fails(self) -> bool:
            nonlocal sync
            sync -= 1
            return sync == 0

    bookie.disk.__class__ = Failing
    with pytest.raises(StorageFailedError):
        bookie.checkpoint()
    assert bookie.health.failed
    assert not bookie.checkpointer.may_recycle(1)
    with pytest.raises(StorageFailedError):
        bookie.checkpointer.start()
    with pytest.raises(StorageFailedError):
        bookie.checkpointer.step(1)
    bookie.disk.kill()
    assert not find_starting_point(Bookie(bookie.disk).directory).lost, "what IDENTITY names may not be removed"


def test_a_checkpoint_of_another_number_or_directory_under_a_name_is_not_used() -> None:
    bookie = Bookie()
    bookie.checkpoint()
    bookie.checkpoint()
    segments = "/data/segments/"
    content = bookie.disk.read_file(segments + "0000000000000001.checkpoint")
    bookie.disk.write_atomically(segments + "0000000000000002.checkpoint", content)
    found = bookie.found()
    assert (found.newest.number, len(found.damage)) == (1, 1)
    assert find_checkpoint(bookie.disk, "/data/segments", bytes(16)).newest is None


# --- the room that is kept ---


class BrimFiles(Files):
    """A file system on which other programs have taken every block but what ``checkpoint.room`` holds."""

    def __init__(self, path: Path) -> None:
        self.room, self.full = str(path / "segments" / ROOM_NAME), False

    def _is_full(self) -> bool:
        return self.full and os.path.exists(self.room)

    def _append(self, handle: Handle, data: memoryview) -> None:
        if self._is_full():
            raise OSError(errno.ENOSPC, "no block is left")
        super()._append(handle, data)

    def create_preallocated(self, path: str, size: int) -> Handle:
        if self.full:
            raise OSError(errno.ENOSPC, "no block is left")
        return super().create_preallocated(path, size)


def checkpointer_on(path: Path) -> tuple[BrimFiles, Storage, Checkpointer]:
    files = BrimFiles(path)
    storage = Storage(path, files=files)
    storage.append(key_record(1), entries(1, range(5)), fence_record(1))
    made = Checkpointer(
        storage.directory, DirectIndexPort(storage.index), storage.log.health, storage.report.checkpoint
    )
    return files, storage, made


def finish(checkpointer: Checkpointer) -> None:
    while checkpointer.busy:
        checkpointer.step(1 << 20)


@pytest.mark.rule("S4")
def test_a_checkpoint_is_written_into_the_room_that_was_kept_for_it(tmp_path: Path) -> None:
    files, storage, checkpointer = checkpointer_on(tmp_path / "data")
    checkpointer.keep_room()
    assert os.path.getsize(files.room) == ROOM_BYTES
    files.full = True
    assert not checkpointer.start()
    assert not os.path.exists(files.room)
    checkpointer.keep_room()  # the room is not taken back before it was used
    assert checkpointer.start()
    finish(checkpointer)
    assert checkpointer.newest.number == 1
    checkpointer.keep_room()
    assert not os.path.exists(files.room), "the disk has no room yet"
    files.full = False
    checkpointer.keep_room()
    assert os.path.exists(files.room)
    storage.close()


@pytest.mark.rule("S6")
def test_without_room_kept_a_full_disk_is_tried_again_and_nothing_fails(tmp_path: Path) -> None:
    files, storage, checkpointer = checkpointer_on(tmp_path / "data")
    Path(files.room).touch()  # somebody else's: it goes as ours does
    files.full = True
    assert not checkpointer.start()
    assert not storage.log.health.failed
    assert checkpointer.start()
    finish(checkpointer)
    storage.close()


def test_room_grows_with_the_checkpoint(tmp_path: Path) -> None:
    room, path = CheckpointRoom(Files(), str(tmp_path)), tmp_path / ROOM_NAME
    room.keep(0)
    room.keep(8_000_000)
    assert path.stat().st_size >= 9_000_000
    assert path.stat().st_blocks * 512 >= 9_000_000, "allocated, not only named"
    room.keep(10)
    assert path.stat().st_size >= 9_000_000
    room.give_up()
    assert not path.exists()


def test_a_start_and_a_check_know_the_file(tmp_path: Path) -> None:
    _, storage, checkpointer = checkpointer_on(tmp_path / "data")
    checkpointer.keep_room()
    storage.close()
    again = Storage(tmp_path / "data")
    assert again.report.damage == []
    again.close()
