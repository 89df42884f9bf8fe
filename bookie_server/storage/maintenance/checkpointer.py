# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints piece by piece beside all other work, and decides which segments may be recycled (S4, I11).

The thread that owns the index copies the state of the ledgers in chunks, and this module writes them. Records that
arrive during the copy may or may not be in it. That does no harm: a start folds every record of the segments above
``through`` into the state, and records may be folded more than once and in any order. The records of each segment up to
``through`` were folded before that segment was sealed, and so before the copy begins.

A checkpoint counts once it is durable *and* IDENTITY has its number. A start that finds no readable checkpoint with
that number or a newer one knows that one was lost. No segment is recycled before that.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.disk.files import BLOCK, Files, Handle, round_up
from bookie_server.storage.disk.health import NO_SPACE, DiskHealth
from bookie_server.storage.index.checkpoint import CheckpointParts, checkpoint_name, checkpoint_numbers
from bookie_server.storage.index.ledger_states import EVERY_LEDGER
from bookie_server.storage.maintenance.index_port import IndexPort

LEDGERS_PER_COPY = 8190
"""The number of ledgers copied at a time. They fill whole blocks, and take the thread that owns the index a few
milliseconds."""


ROOM_NAME = "checkpoint.room"
"""The name of the file that keeps room for a checkpoint, in the folder of segments. Its content is worthless, and it
may be missing."""
ROOM_BYTES = 64 << 10
"""The room kept beyond the size of the newest checkpoint, because the next one may be larger, and IDENTITY is rewritten
with it."""


class CheckpointRoom:
    """Keeps room for one checkpoint in the folder ``path``. It is used on the thread that writes checkpoints.

    Without it a disk that is full to its last block would never get space back: segments are given back only after a
    durable checkpoint (RULES S4), and a checkpoint is a new file. If the disk has no block for it, the file that keeps
    the room is removed, and the checkpoint is written in its place.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, os.path.join(path, ROOM_NAME)
        self._kept_bytes = 0

    def keep(self, checkpoint_bytes: int) -> None:
        """Keep room for a checkpoint a bit larger than this. If the disk has no room, nothing is kept until the next
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
        """Free the disk space that is kept for the next checkpoint, if any is kept."""
        self._kept_bytes = 0
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            if self._files.exists(self._path):
                self._files.remove(self._path)


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """Facts about a durable checkpoint that IDENTITY names. Number 0: there is none."""

    number: int = 0
    through: int = 0
    segments: frozenset[int] = frozenset()
    file_bytes: int = 0


@dataclass(slots=True)
class _Writing:
    """A checkpoint that is being written."""

    parts: CheckpointParts
    segments: tuple[int, ...]
    path: str
    handle: Handle | None
    next_ledger: int = 0


class Checkpointer:
    """Makes checkpoints of a data directory, on one thread. ``newest`` is the one that the start used; ``health`` is
    shared with the directory's other writers."""

    def __init__(
        self,
        directory: DataDirectory,
        port: IndexPort,
        health: DiskHealth | None = None,
        newest: CheckpointSummary | None = None,
    ) -> None:
        self._directory, self._port = directory, port
        self._health = health or DiskHealth()
        self.newest = newest or CheckpointSummary()
        """The newest durable checkpoint that IDENTITY names."""
        self._files: Files = directory.files
        self._writing: _Writing | None = None
        self._room = CheckpointRoom(self._files, directory.segments_path)
        self._room_in_use = False  # the room was freed for a checkpoint that is not durable yet

    @property
    def busy(self) -> bool:
        return self._writing is not None

    def may_recycle(self, generation: int) -> bool:
        """Return whether a durable checkpoint holds all state of this drained segment and does not require its file
        (S4, I11). Only for segments that the index has dropped. The caller must ensure that no reader has the segment
        open."""
        return generation <= self.newest.through and generation not in self.newest.segments

    def keep_room(self) -> None:
        """Allocate room for the next checkpoint, if the disk has any. Called regularly."""
        if self._writing is None and not self._room_in_use:
            self._room.keep(self.newest.file_bytes)

    def start(self) -> bool:
        """Begin a checkpoint. Return False if one is under way or the disk has no room; in the latter case the kept
        room is freed for a later try. Raises StorageFailedError if a write failed, now or earlier (RULES S6)."""
        self._health.check()
        if self._writing is not None:
            return False
        sealed, unsealed, newest_sealed = self._port.ask(lambda index: index.generations())
        # The state of an unsealed segment may not be folded yet; that of all segments below the first unsealed one is.
        through = max(self.newest.through, min(newest_sealed, min(unsealed, default=newest_sealed + 1) - 1))
        segments = tuple(sorted(generation for generation in (*sealed, *unsealed) if generation <= through))
        try:
            number = self._next_number()
            path = os.path.join(self._directory.segments_path, checkpoint_name(number))
            parts = CheckpointParts(number, self._directory.identity.incarnation_bytes, through)
            writing = _Writing(parts, segments, path, self._files.create(path + ".tmp"))
            self._writing = writing
            self._append(writing, bytes(BLOCK))  # room for the header, which is written last
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def step(self, budget_bytes: int) -> int:
        """Copy and write about ``budget_bytes`` of the checkpoint under way; return the bytes written, 0 if none is
        under way.

        The last step makes the checkpoint durable, names it in IDENTITY and removes all checkpoints but this and the
        last one. On a full disk this checkpoint is given up, and the last one stays. Raises StorageFailedError as
        :meth:`start`.
        """
        self._health.check()
        written = 0
        try:
            while self._writing is not None and written < budget_bytes:
                written += self._copy(self._writing)
        except OSError as error:
            self._give_up(error)
        return written

    def close(self) -> None:
        """Give up the checkpoint under way."""
        if self._writing is not None:
            self._discard(self._writing)
            self._writing = None

    # --- one checkpoint ---------------------------------------------------------------------------------------------

    def _next_number(self) -> int:
        """Return a number above that of every checkpoint in the directory, readable or not."""
        found = checkpoint_numbers(self._files.names(self._directory.segments_path))
        return max([*found, self.newest.number, self._directory.identity.checkpoint]) + 1

    def _copy(self, writing: _Writing) -> int:
        """Write the next chunk of ledgers, or finish; return the bytes written, at least 1."""
        more = writing.next_ledger <= EVERY_LEDGER
        first = writing.next_ledger
        rows = self._port.ask(lambda index: index.export_ledgers(first, LEDGERS_PER_COPY)) if more else None
        if rows is None or not rows.size:
            return self._finish(writing)
        writing.next_ledger = int(rows["ledger"][-1]) + 1
        data = writing.parts.add_ledgers(rows)
        self._append(writing, data)
        return len(data) or BLOCK

    def _append(self, writing: _Writing, data: bytes) -> None:
        assert writing.handle is not None
        self._files.append(writing.handle, data)

    def _finish(self, writing: _Writing) -> int:
        deleted = self._port.ask(lambda index: index.deleted_intervals())
        data = writing.parts.add_deleted(deleted) + writing.parts.add_segments(writing.segments)
        if data:
            self._append(writing, data)
        handle = writing.handle
        assert handle is not None
        self._files.write(handle, [memoryview(writing.parts.header())], 0)
        self._files.sync_data(handle)
        writing.handle = None
        self._files.close(handle)
        self._files.rename(writing.path + ".tmp", writing.path)
        number = writing.parts.number
        self._directory.record_checkpoint(number)
        before, self._writing = self.newest.number, None
        self.newest = CheckpointSummary(
            number, writing.parts.through, frozenset(writing.segments), writing.parts.blocks * BLOCK
        )
        self._prune({number, before})
        self._room_in_use = False
        return len(data) + BLOCK

    def _prune(self, kept: set[int]) -> None:
        """Remove all checkpoints but these. If one cannot be removed, that is tried again after the next checkpoint."""
        path = self._directory.segments_path
        with contextlib.suppress(OSError):
            for number in checkpoint_numbers(self._files.names(path)):
                if number not in kept:
                    self._files.remove(os.path.join(path, checkpoint_name(number)))

    # --- failing ----------------------------------------------------------------------------------------------------

    def _give_up(self, error: OSError) -> None:
        """Give up this checkpoint. On a full disk its files are removed, so that retries do not leave many files. Any
        other error is final (RULES S6), and nothing is removed, because IDENTITY may name this checkpoint already, and
        a start that does not find it assumes that state is lost."""
        writing, self._writing = self._writing, None
        if error.errno in NO_SPACE:
            if writing is not None:
                self._discard(writing)
            self._room.give_up()
            self._room_in_use = True
            return
        self._health.fail("a checkpoint could not be made durable", self._directory.segments_path, error)

    def _discard(self, writing: _Writing) -> None:
        if writing.handle is not None:
            self._files.close(writing.handle)
        for path in (writing.path + ".tmp", writing.path):
            with contextlib.suppress(OSError):
                self._files.remove(path)
