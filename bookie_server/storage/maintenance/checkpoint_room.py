# SPDX-License-Identifier: Apache-2.0
"""Room for one checkpoint, kept allocated: without it a disk that is full to its last block would never get space back.

Segments are given back only under a durable checkpoint (RULES S4), and a checkpoint is a new file. When the disk has no
block for it, the file that keeps the room is removed, and the checkpoint is written in its place.
"""

from __future__ import annotations

import contextlib
import os

from bookie_server.storage.disk.files import Files, round_up

ROOM_NAME = "checkpoint.room"
"""In the folder of segments; its content is worthless, and it may be missing."""
ROOM_BYTES = 64 << 10
"""Kept beyond the size of the newest checkpoint: it may grow, and IDENTITY is written anew with it."""


class CheckpointRoom:
    """The room in the folder ``path``; the thread that writes checkpoints."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, os.path.join(path, ROOM_NAME)
        self._kept_bytes = 0

    def keep(self, checkpoint_bytes: int) -> None:
        """Have room for a checkpoint of this size and some more. A disk that has none is left alone: tried again at the
        next call. Nothing of it needs to be durable."""
        wanted = round_up(checkpoint_bytes + checkpoint_bytes // 8 + ROOM_BYTES, ROOM_BYTES)
        if self._kept_bytes >= wanted:
            return
        self.give_up()
        try:
            self._files.close(self._files.create_preallocated(self._path, wanted))
            self._kept_bytes = wanted
        except OSError:
            self._remove()  # what a full disk began

    def give_up(self) -> None:
        """There is more room now, if any was kept."""
        self._kept_bytes = 0
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            if self._files.exists(self._path):
                self._files.remove(self._path)
