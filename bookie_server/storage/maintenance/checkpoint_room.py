# SPDX-License-Identifier: Apache-2.0
"""Keeps room for one checkpoint allocated: without it a disk that is full to its last block would never get space back.

Segments are given back only after a durable checkpoint (RULES S4), and a checkpoint is a new file. If the disk has no
block for it, the file that keeps the room is removed, and the checkpoint is written in its place.
"""

from __future__ import annotations

import contextlib
import os

from bookie_server.storage.disk.files import Files, round_up

ROOM_NAME = "checkpoint.room"
"""In the folder of segments. Its content is worthless, and it may be missing."""
ROOM_BYTES = 64 << 10
"""Room kept beyond the size of the newest checkpoint: the next may be larger, and IDENTITY is written anew with it."""


class CheckpointRoom:
    """The room in the folder ``path``; used on the thread that writes checkpoints."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, os.path.join(path, ROOM_NAME)
        self._kept_bytes = 0

    def keep(self, checkpoint_bytes: int) -> None:
        """Keep room for a checkpoint a bit larger than this. On a disk without room nothing happens until the next
        call. The file need not be durable."""
        wanted = round_up(checkpoint_bytes + checkpoint_bytes // 8 + ROOM_BYTES, ROOM_BYTES)
        if self._kept_bytes >= wanted:
            return
        self.give_up()
        try:
            self._files.close(self._files.create_preallocated(self._path, wanted))
            self._kept_bytes = wanted
        except OSError:
            self._remove()  # left by a full disk

    def give_up(self) -> None:
        """Free the room, if any is kept."""
        self._kept_bytes = 0
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            if self._files.exists(self._path):
                self._files.remove(self._path)
