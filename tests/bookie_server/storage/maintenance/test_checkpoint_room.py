# SPDX-License-Identifier: Apache-2.0
"""A disk without one free block: the room that was kept for a checkpoint is what it is written into."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bookie_server.storage.disk.files import Files, Handle
from bookie_server.storage.maintenance.checkpointer import ROOM_BYTES, ROOM_NAME, Checkpointer, CheckpointRoom
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from tests.kit.segment_world import Storage, entries, fence_record, key_record


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
