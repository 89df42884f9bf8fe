# SPDX-License-Identifier: Apache-2.0
"""The reading side: frames by place, every one checked (RULES S5). Synchronous; one thread.

Only places of durable frames exist (the index takes in nothing else), so a read never goes beyond the durable
watermark. Segments without an ``.idx`` are still being written: there read-ahead is off.
"""

from __future__ import annotations

import os
from collections import OrderedDict

from bk_core.entries.frame import FrameHeader, check_frame, entry_ids_of, frame_tag, slice_frame
from bk_core.errors import IntegrityError
from bk_core.model import EntryId, LedgerId
from bookie_server.storage.cookie import Identity
from bookie_server.storage.files import Files, Handle
from bookie_server.storage.index import striping_of
from bookie_server.storage.membership import Membership, runs_of_ids
from bookie_server.storage.segment import Place, index_name, placement_stamp, segment_name

OPEN_SEGMENTS_MAX = 64
"""Handles kept open for reads."""


class SegmentReader:
    """Reads frames of a data directory's segments. Close it to release the handles."""

    def __init__(
        self, path: str, identity: Identity, *, files: Files | None = None, open_segments_max: int = OPEN_SEGMENTS_MAX
    ) -> None:
        self._path, self._files = path, files or Files()
        self._incarnation = identity.incarnation_bytes
        self._open_max = open_segments_max
        self._handles: OrderedDict[int, Handle] = OrderedDict()
        self.reads = 0
        self.rereads = 0
        """Reads that failed their check through the page cache; those that failed again were damage."""

    def read(self, place: Place, *, ledger_id: LedgerId | None = None) -> memoryview:
        """The whole frame at ``place``, both CRCs and the stamp checked; with ``ledger_id`` also whose it is.

        What fails is read once more from the disk itself; if that fails too IntegrityError is raised: damage, to be
        answered as UNKNOWN. A read that the system refuses (EIO, a missing segment) raises IntegrityError as well,
        chained to the OSError.
        """
        self.reads += 1
        try:
            return self._checked(self._pread(place), place, ledger_id)
        except (IntegrityError, OSError):
            self.rereads += 1
        self._forget(place.generation)
        try:
            data = self._files.read_past_cache(self._segment_path(place.generation), place.size, place.offset)
            return self._checked(data, place, ledger_id)
        except OSError as error:
            raise IntegrityError(
                "a frame cannot be read", value=f"{place}: {error}", remedy="read another copy; check the disk"
            ) from error

    def read_entries(
        self, place: Place, first: EntryId, last: EntryId, *, ledger_id: LedgerId | None = None
    ) -> bytes | bytearray | memoryview | None:
        """A frame of the entries first to last (both inclusive) of the frame at ``place``; None if it holds none of
        them. Bytes 60–63 are not meant for a receiver. Raises as :meth:`read`."""
        return slice_frame(self.read(place, ledger_id=ledger_id), first, last)

    def membership(self, place: Place) -> Membership:
        """Which ids the frame at ``place`` holds, for a look-up that named it as unresolved. Raises as :meth:`read`."""
        frame = self.read(place)
        header = check_frame(frame)
        return striping_of(frame, header) or runs_of_ids(entry_ids_of(header, frame))

    def close(self) -> None:
        """Close all handles."""
        while self._handles:
            self._files.close(self._handles.popitem()[1])

    def _pread(self, place: Place) -> bytes:
        return self._files.read(self._handle(place.generation), place.size, place.offset)

    def _checked(self, data: bytes, place: Place, ledger_id: LedgerId | None) -> memoryview:
        check_stored_frame(data, place, self._incarnation, ledger_id)
        return memoryview(data)

    def _handle(self, generation: int) -> Handle:
        handle = self._handles.get(generation)
        if handle is not None:
            self._handles.move_to_end(generation)
            return handle
        handle = self._files.open_read(self._segment_path(generation))
        if not self._files.exists(os.path.join(self._path, index_name(generation))):
            self._files.advise_random(handle)
        self._handles[generation] = handle
        if len(self._handles) > self._open_max:
            self._files.close(self._handles.popitem(last=False)[1])
        return handle

    def _forget(self, generation: int) -> None:
        handle = self._handles.pop(generation, None)
        if handle is not None:
            self._files.close(handle)

    def _segment_path(self, generation: int) -> str:
        return os.path.join(self._path, segment_name(generation))


def check_stored_frame(
    data: bytes | memoryview, place: Place, incarnation: bytes, ledger_id: LedgerId | None = None
) -> FrameHeader:
    """Header of a frame read from ``place``; IntegrityError if a CRC, the stamp or the ledger is wrong."""
    if len(data) != place.size:
        raise IntegrityError("a segment ends before a frame in it", value=str(place), remedy="read another copy")
    header = check_frame(data)
    if frame_tag(data) != placement_stamp(incarnation, place.generation, place.offset, data[52:60]):
        raise IntegrityError("a frame was not written to this place", value=str(place), remedy="read another copy")
    if ledger_id is not None and header.ledger_id != ledger_id:
        raise IntegrityError("a frame is another ledger's", value=f"{place}, ledger {header.ledger_id}")
    return header
