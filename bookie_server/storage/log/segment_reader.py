# SPDX-License-Identifier: Apache-2.0
"""The reading side: frames by place, every one checked (RULES S5). Synchronous; one thread.

Only places of durable frames exist (the index takes in nothing else), so a read never goes beyond the durable
watermark. Segments without an ``.idx`` are still being written: there read-ahead is off.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from bk_core.entries.frame import check_frame, entry_ids_of, frame_extent, slice_frame
from bk_core.errors import IntegrityError
from bk_core.model import EntryId, LedgerId
from bookie_server.machine.places import IndexBlock, Place, Unresolved
from bookie_server.storage.bytes.membership import runs_of_ids, striping_of
from bookie_server.storage.bytes.run_frames import check_stored_frame, entries_of_run, members_of_run
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.disk.cookie import Identity
from bookie_server.storage.disk.files import BLOCK, Files, Handle, round_up
from bookie_server.storage.index.cache import Remembered
from bookie_server.storage.index.reader import IndexReader

__all__ = ["OPEN_SEGMENTS_MAX", "SegmentReader", "check_stored_frame"]

T = TypeVar("T")

OPEN_SEGMENTS_MAX = 64
"""Handles kept open for reads."""
GIVEN_UP_MAX = 4096
"""Segments given up that are remembered: of older ones no read is under way."""


class SegmentReader:
    """Reads frames of a data directory's segments. Close it to release the handles."""

    def __init__(
        self, path: str, identity: Identity, *, files: Files | None = None, open_segments_max: int = OPEN_SEGMENTS_MAX
    ) -> None:
        self._path, self._files = path, files or Files()
        self._incarnation = identity.incarnation_bytes
        self._open_max = open_segments_max
        self._handles: OrderedDict[int, Handle] = OrderedDict()
        self._indexes = IndexReader(path, self._incarnation, self._files, open_segments_max)
        self._given_up: dict[int, None] = {}
        self._told: set[str] = set()  # files as a whole, each until it is another
        self.reads = 0
        self.rereads = 0
        """Reads that failed their check through the page cache; those that failed again were damage."""
        self.damaged = 0
        """Reads whose bytes failed their check on the disk, too."""
        self.io_errors = 0
        """Reads that the system refused twice (EIO, a missing file): signs of a failing disk."""

    def read(self, place: Place, *, ledger_id: LedgerId | None = None) -> memoryview:
        """The whole frame at ``place``, both CRCs and the stamp checked; with ``ledger_id`` also whose it is.

        What fails is read once more from the disk itself; if that fails too IntegrityError is raised: damage, to be
        answered as UNKNOWN. A read that the system refuses (EIO, a missing segment) raises IntegrityError as well,
        chained to the OSError.
        """
        return self._read_twice(place, lambda data: self._checked(data, place, ledger_id))

    def read_entries(
        self, place: Place, first: EntryId, last: EntryId, *, ledger_id: LedgerId | None = None
    ) -> bytes | bytearray | memoryview | None:
        """A frame of the entries first to last (both inclusive) of the frame at ``place``; None if it holds none of
        them. Of a run, which holds all of them, whole frames one behind the other. Bytes 60–63 are not meant for a
        receiver. Raises as :meth:`read`."""
        if place.is_run:
            return self._read_twice(place, lambda data: entries_of_run(data, place, self._incarnation, first, last))
        return slice_frame(self.read(place, ledger_id=ledger_id), first, last)

    def read_lac_entry(self, place: Place) -> bytes | bytearray | memoryview | None:
        """The last entry of the frame at ``place``; of a run, of the frame in it that carries the greatest LAC. Raises
        as :meth:`read`."""
        frame: bytes | memoryview
        if place.is_run:
            frame = self._read_twice(place, lambda data: _lac_frame(data, place, self._incarnation))
        else:
            frame = self.read(place)
        last = frame_extent(frame).last
        return slice_frame(frame, last, last)

    def membership(self, place: Unresolved) -> Remembered:
        """What a look-up wants to know of a place that it named as unresolved: which ids the frame holds, which frames
        of a damaged run are intact, or what an index block says. Raises as :meth:`read`."""
        if isinstance(place, IndexBlock):
            return self._indexes.read(place)
        if place.is_run:
            return members_of_run(self._legible(place), place, self._incarnation)
        frame = self.read(place)
        header = check_frame(frame)
        return striping_of(frame, header) or runs_of_ids(entry_ids_of(header, frame))

    def _read_twice(self, place: Place, take: Callable[[bytes], T]) -> T:
        """What ``take`` makes of the bytes at ``place``; read once more past the cache if it finds them bad."""
        self.reads += 1
        try:
            return take(self._pread(place))
        except (IntegrityError, OSError):
            self.rereads += 1
        self._forget(place.generation)
        try:
            path = self._segment_path(place.generation)
            return take(self._files.read_past_cache(path, place.size, place.offset))
        except IntegrityError:
            self.damaged += 1
            raise
        except OSError as error:
            self.io_errors += 1
            raise IntegrityError(
                "stored bytes cannot be read", value=f"{place}: {error}", remedy="read another copy; check the disk"
            ) from error

    def _legible(self, place: Place) -> bytes:
        """The bytes of a run, from the disk itself, with zeros where the system refuses to give them."""
        path, end = self._segment_path(place.generation), place.offset + place.size
        parts: list[bytes] = []
        at = place.offset
        while at < end:
            size = min(round_up(at + 1, BLOCK), end) - at
            try:
                parts.append(self._files.read_past_cache(path, size, at).ljust(size, b"\0"))
            except OSError:
                parts.append(bytes(size))
            at += size
        return b"".join(parts)

    def release(self, generation: int) -> None:
        """Close what is open of a segment whose ``.idx`` was made anew."""
        self._forget(generation)
        self._told -= {segment_name(generation), index_name(generation)}
        self._indexes.release(generation)

    def give_up(self, generation: int) -> None:
        """Close what is open of a segment whose file is to be used again: nobody may open it from now on. What still
        names it was planned before the index dropped it, and is to be planned again."""
        self.release(generation)
        self._given_up[generation] = None
        if len(self._given_up) > GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def is_given_up(self, generation: int) -> bool:
        """Whether :meth:`give_up` was told of this segment, lately."""
        return generation in self._given_up

    def is_news(self, name: str) -> bool:
        """Whether it was not said before that this file is missing or damaged: a line each is enough, however many
        reads find it out."""
        is_news = name not in self._told
        self._told.add(name)
        return is_news

    def close(self) -> None:
        """Close all handles."""
        while self._handles:
            self._files.close(self._handles.popitem()[1])
        self._indexes.close()

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


def _lac_frame(data: bytes, run: Place, incarnation: bytes) -> bytes:
    """The frame of a run that carries the greatest LAC."""
    members = members_of_run(data, run, incarnation)
    frames = [data[at - run.offset : at - run.offset + size] for at, size in zip(*members[2:], strict=True)]
    if not frames:
        raise IntegrityError("nothing in a run is intact", value=str(run), remedy="read another copy")
    return max(frames, key=lambda frame: frame_extent(frame).max_lac)
