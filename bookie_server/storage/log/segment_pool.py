# SPDX-License-Identifier: Apache-2.0
"""Segments before and after their use: drained ones kept for recycling, and spares made ahead (RULES S4, S5).

A drained segment is renamed to ``<generation>.free``: its content is worthless, and its blocks stay allocated. A spare
has allocated blocks and the name ``<new generation>.segment.tmp``. When the log begins it, it gets a durable header and
then the name without ``.tmp``. So a name without ``.tmp`` promises an intact header, a file with ``.tmp`` was never
used, and a spare needs no scan. Each rename is durable before the next step, so a start never sees two valid names for
one file. Frames of an earlier life never match the stamps and group headers of the new generation (docs/formats.md
§3.4).

An empty file ``.unsealed`` exists beside a segment until the segment has its ``.idx``. Either file shows that the
segment exists, so the loss of a segment is noticed whatever happened to its neighbours. ``.unsealed`` is made once the
``.tmp`` is durable, and removed before the segment is put aside, because alone it means a loss.

Two threads of the server call this: the one that commits and the one that makes spares. A lock guards the making of
segments and the drained ones; taking a spare never waits for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bk_core.errors import DataDirectoryError
from bookie_server.storage.bytes.segment import (
    SegmentHeader,
    encode_segment_header,
    free_name,
    index_name,
    segment_name,
    unsealed_name,
)
from bookie_server.storage.disk.cookie import Identity
from bookie_server.storage.disk.files import BLOCK, Files, Handle, aligned_buffer
from bookie_server.storage.disk.health import NO_SPACE, DiskHealth

SEGMENTS_KEPT_FREE = 4
"""The number of drained segments that are kept for recycling. Further segments are given back to the file system."""


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A new segment of this generation. It has no groups yet, and a header only once it is begun. If ``recycled`` is
    True, its blocks were written in an earlier life. Otherwise they are allocated and read as zeros."""

    generation: int
    handle: Handle
    recycled: bool


class SegmentPool:
    """Makes segments, from drained ones if there are any. ``newest_generation`` and ``newest_sealed`` are those of
    :class:`~bookie_server.storage.log.segment_log.SegmentLog`; ``free`` has the generations of the ``.free`` files in
    the directory."""

    def __init__(
        self,
        path: str,
        identity: Identity,
        health: DiskHealth,
        *,
        files: Files,
        segment_size_bytes: int,
        newest_generation: int = 0,
        newest_sealed: int = 0,
        free: Iterable[int] = (),
        segments_kept_free: int = SEGMENTS_KEPT_FREE,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._path, self._identity, self._health, self._files = path, identity, health, files
        self._segment_bytes, self.kept_free_max = segment_size_bytes, segments_kept_free
        self._generation, self._newest_sealed = newest_generation, newest_sealed
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._free: deque[int] = deque(sorted(free))
        self._spares: deque[NewSegment] = deque()
        self._block = memoryview(aligned_buffer(BLOCK))
        self._lock = threading.RLock()
        self.recycled = 0
        """The number of segments that were made from drained ones."""

    # --- state ----------------------------------------------------------------------------------------------

    @property
    def spares(self) -> int:
        """The number of segments that are ready to be begun."""
        return len(self._spares)

    @property
    def free_segments(self) -> int:
        return len(self._free)

    @property
    def kept_bytes(self) -> int:
        """The number of bytes allocated to segments that hold nothing, which are spares and drained segments
        (``space.Usage``)."""
        return (len(self._spares) + len(self._free)) * self._segment_bytes

    @property
    def newest_sealed(self) -> int:
        """The generation of the newest segment with an ``.idx``, or 0 if there is none. The headers of later segments
        name it."""
        return self._newest_sealed

    def note_sealed(self, generation: int) -> None:
        """Note that this segment has its ``.idx``."""
        self._newest_sealed = max(self._newest_sealed, generation)

    # --- making -----------------------------------------------------------------------------------------------------

    def ensure(self, count: int) -> None:
        """Make spares until at least ``count`` are ready. Raises DataDirectoryError if there is no space; spares made
        so far stay. Raises StorageFailedError if a write or sync failed, now or earlier (RULES S6)."""
        while len(self._spares) < count:
            with self._lock:
                self._health.check()
                if len(self._spares) < count:
                    self._spares.append(self._make())

    def begin(self) -> NewSegment:
        """Begin the oldest spare: give it its header and its own name, durably. There must be a spare. The header is
        written now, and not when the spare is made, because it names the newest sealed segment. Raises
        StorageFailedError."""
        spare = self._spares.popleft()
        path = os.path.join(self._path, segment_name(spare.generation))
        header = SegmentHeader(
            spare.generation, self._identity.incarnation_bytes, self._segment_bytes, self._now_ms(),
            self._identity.boot_count, self._newest_sealed, self._identity.bookie_id,
        )  # fmt: skip
        try:
            self._mark_unsealed(spare.generation)
            self._block[:] = encode_segment_header(header)
            self._files.write(spare.handle, [self._block], 0)
            self._files.sync_data(spare.handle)
            self._files.rename(path + ".tmp", path)
        except OSError as error:
            self._files.close(spare.handle)
            self._health.fail("a new segment could not be made durable", self._path, error)
        return spare

    def _mark_unsealed(self, generation: int) -> None:
        """Make ``.unsealed``. It becomes durable with the segment's own name. If the disk has no room for it, the
        segment does without."""
        try:
            self._files.close(self._files.create(os.path.join(self._path, unsealed_name(generation))))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _make(self) -> NewSegment:
        generation = self._generation + 1
        temporary = os.path.join(self._path, segment_name(generation)) + ".tmp"
        recycled = self._recycle_into(temporary)
        handle = self._create(temporary) if recycled is None else recycled
        self._generation = generation
        return NewSegment(generation, handle, recycled is not None)

    def _recycle_into(self, temporary: str) -> Handle | None:
        """Rename a drained segment to ``temporary``, and return it open for writing. Return None if there is no usable
        one."""
        while self._free:
            path = os.path.join(self._path, free_name(self._free.popleft()))
            handle: Handle | None = None
            with contextlib.suppress(OSError):  # such a file is not used: it is unreadable, or has holes on a full disk
                handle = self._files.open_preallocated(path, self._segment_bytes)
            if handle is None:
                self._unlink(path)
                continue
            try:
                self._files.rename(path, temporary)
            except OSError as error:
                self._files.close(handle)
                self._health.fail("a drained segment could not be renamed", self._path, error)
            self.recycled += 1
            return handle
        return None

    def _create(self, temporary: str) -> Handle:
        try:
            if self._files.exists(temporary):  # left by a creation that failed on a full disk
                self._files.remove(temporary)
            handle = self._files.create_preallocated(temporary, self._segment_bytes)
        except OSError as error:
            raise DataDirectoryError(
                "no new segment can be made",
                value=f"{self._segment_bytes} bytes in {self._path}: {error.strerror or error}",
                remedy="free some space on the disk" if error.errno in NO_SPACE else "check the disk",
            ) from error
        try:
            self._files.sync_directory(self._path)  # before anything names it
        except OSError as error:
            self._files.close(handle)
            self._health.fail("a new segment could not be made durable", self._path, error)
        return handle

    # --- after use --------------------------------------------------------------------------------------------------

    def recycle(self, generation: int) -> None:
        """Give a drained segment, sealed or never used, to the pool, and remove its ``.idx``. Both are durable when
        this returns.

        The caller must know that no index entry leads into it, that a durable checkpoint holds its state (S4, I11), and
        that no reader has it open (S5). Raises StorageFailedError.
        """
        segment = os.path.join(self._path, segment_name(generation))
        beside = [os.path.join(self._path, name(generation)) for name in (index_name, unsealed_name)]
        with self._lock:
            self._health.check()
            try:
                # A crash in between leaves a segment that the next start scans, or one of these beside the ``.free``
                # file, which the next start recognises. The file is reused only after both are durable.
                for path in beside:
                    if self._files.exists(path):
                        self._files.remove(path)
                if not self._files.exists(segment):  # the file is lost, but the index had the segment
                    return self._files.sync_directory(self._path)
                self._files.rename(segment, os.path.join(self._path, free_name(generation)))
            except OSError as error:
                self._health.fail("a drained segment could not be put aside", self._path, error)
            self._free.append(generation)
        return None

    def trim(self, kept_free_max: int | None = None) -> bool:
        """Give one drained segment back to the file system if more than ``kept_free_max`` are kept, by default the
        configured number. Return False if none was given back."""
        with self._lock:
            if len(self._free) <= (self.kept_free_max if kept_free_max is None else kept_free_max):
                return False
            self._unlink(os.path.join(self._path, free_name(self._free.popleft())))
            return True

    def _unlink(self, path: str) -> None:
        """Remove a worthless file. It does not matter whether its name is still there after a crash."""
        with contextlib.suppress(OSError):
            self._files.remove(path)

    def close(self) -> None:
        """Close the spares. The next start gives them to the pool."""
        while self._spares:
            self._files.close(self._spares.popleft().handle)
