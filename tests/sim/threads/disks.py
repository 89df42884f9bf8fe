# SPDX-License-Identifier: Apache-2.0
"""The simulated disk for threads that take turns. Another thread may go on around each operation."""

from __future__ import annotations

import threading

from bookie_server.machine.disk_places import Place
from bookie_server.storage.disk.files import Handle
from tests.sim.disk import SimDisk, _Inode
from tests.sim.storage import SEGMENTS_DIR
from tests.sim.threads.baton import Turns

STAMP = slice(60, 64)
"""The bytes of a frame that the log writes itself."""


class TurnsDisk(SimDisk):
    """``failed_at`` is the point of the first failed sync. ``synced_at`` returns when bytes became durable.

    A thread whose sync has failed goes on alone until the directory's health has the failure. At most it removes the
    file that it could not write. Acts of other threads meanwhile have no order relative to the failure.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turns: Turns | None = None
        self.failed_at: int | None = None
        self._failing = 0  # the thread whose last operation was a failed sync
        self.surprise: Exception | None = None
        """The exception of the next operation. No disk raises it, but code may."""
        self._synced: dict[_Inode, list[tuple[int, int, int]]] = {}  # (first byte, end, point)

    def _point(self, kind: str) -> None:
        failing, self._failing = self._failing, 0
        if self.turns is not None and not (kind == "remove" and failing == threading.get_ident()):
            self.turns.point(f"disk: {kind}")
        super()._point(kind)
        if self.surprise is not None:
            surprise, self.surprise = self.surprise, None
            raise surprise

    def _pread(self, handle: Handle, size: int, offset: int) -> bytes:
        if self.turns is not None:
            self.turns.point("disk: read")
        return super()._pread(handle, size, offset)

    def _sync(self, handle: Handle) -> None:
        inode = self._inode(handle)
        written = [(at, at + len(data)) for at, data in inode.writes]
        try:
            super()._sync(handle)
        finally:
            if self.turns is not None:
                now = self.turns.points
                self._synced.setdefault(inode, []).extend((first, end, now) for first, end in written)
        if self.turns is not None:
            self.turns.point("disk: synced")

    def _sync_fails(self) -> bool:
        fails = super()._sync_fails()
        if fails and self.failed_at is None and self.turns is not None:
            self.failed_at = self.turns.points
        if fails:
            self._failing = threading.get_ident()
        return fails

    def _replace(self, old: str, new: str) -> None:
        if self.turns is not None and new.endswith(".free") and any(path == old for path, _ in self._handles.values()):
            self.turns.fail(f"{old} is given back while somebody has it open (S5)")
        super()._replace(old, new)

    def stop_now(self) -> None:
        """Stop the machine. No thread changes anything any more."""
        self._down = True

    def wrong_with(self, frame: bytes | memoryview, place: Place) -> str:
        """Return why this frame is not durable at its place, or an empty text if it is."""
        path = f"{SEGMENTS_DIR}/{place.generation:016x}.segment"
        inode = self._durable.get(path)
        if inode is None:
            return f"{path} has no durable name"
        stored, given = bytearray(inode.durable[place.offset : place.offset + place.size]), bytearray(frame)
        stored[STAMP] = given[STAMP] = bytes(4)
        return "" if stored == given else f"{path} holds other bytes at {place.offset}"

    def synced_at(self, place: Place) -> int:
        """Return the last point at which bytes of this place became durable."""
        inode = self._names[f"{SEGMENTS_DIR}/{place.generation:016x}.segment"]
        return max(now for first, end, now in self._synced[inode] if first <= place.offset < end)
