# SPDX-License-Identifier: Apache-2.0
"""The reading side of the segment log: it reads frames by place and checks each (RULES S5). It is synchronous and
belongs to one thread; only :meth:`SegmentReader.read_at_once` may be called by any thread.

For a few entries of a long frame, or for parts of entries, it reads only these bytes, and keeps the frame's columns in
memory.

The index names only durable frames, so a read never goes beyond the durable position. Read-ahead is off in segments
without an ``.idx``, which are still being written.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from bk_core.entries.frame import FrameHeader, FrameKind, check_frame, entry_ids_of, frame_extent, slice_frame
from bk_core.errors import IntegrityError
from bk_core.memory.slots import SLOT_BYTES_MIN, Slots
from bk_core.model import EntryId, LedgerId
from bk_core.wire.lane.reasons import Cut
from bookie_server.machine.disk_places import IndexBlock, Place, Unresolved
from bookie_server.storage.bytes.entry_cuts import ENTRIES_MAX, FrameColumns, columns_of_place
from bookie_server.storage.bytes.membership import runs_of_ids, striping_of
from bookie_server.storage.bytes.run_frames import check_stored_frame, entries_of_run, members_of_run
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.disk.cookie import Identity
from bookie_server.storage.disk.files import BLOCK, Files, Handle, round_up
from bookie_server.storage.index.cache import Remembered
from bookie_server.storage.index.reader import IndexReader

__all__ = ["OPEN_SEGMENTS_MAX", "SegmentReader", "check_stored_frame"]

T = TypeVar("T")
_ENTRIES = int(FrameKind.ENTRIES)

OPEN_SEGMENTS_MAX = 64
"""The maximum number of segments that are kept open for reads."""
GIVEN_UP_MAX = 4096
"""The maximum number of given-up segments that are remembered. No read of an older one can still be under way."""
COLUMNS_BYTES_MAX = 16 << 20
"""The maximum memory for the columns of long frames, in bytes."""


class _Open:
    """An open segment. It is closed once there is no reference to it, because another thread may be reading from it."""

    __slots__ = ("_files", "handle")

    def __init__(self, files: Files, handle: Handle) -> None:
        self._files, self.handle = files, handle

    def __del__(self) -> None:
        self._files.close(self.handle)


class SegmentReader:
    """Reads frames of a data directory's segments. Close it to release the handles."""

    def __init__(
        self, path: str, identity: Identity, *, files: Files | None = None, open_segments_max: int = OPEN_SEGMENTS_MAX
    ) -> None:
        self._path, self._files = path, files or Files()
        self._incarnation = identity.incarnation_bytes
        self._open_max = open_segments_max
        self._handles: OrderedDict[int, _Open] = OrderedDict()
        self._columns: dict[tuple[int, int], FrameColumns] = {}  # by the frame's generation and offset
        self._columns_bytes = 0
        self._indexes = IndexReader(path, self._incarnation, self._files, open_segments_max)
        self._given_up: dict[int, None] = {}
        self._told: set[str] = set()  # missing or damaged files that were logged, until they are replaced
        self._slots = Slots()
        self.reads = 0
        self.rereads = 0
        """Reads that failed through the page cache and were repeated from the disk."""
        self.damaged = 0
        """Reads that failed their check when repeated from the disk."""
        self.io_errors = 0
        """Reads that the system refused twice (EIO, a missing file): signs of a failing disk."""

    def read(self, place: Place, *, ledger_id: LedgerId | None = None) -> memoryview:
        """Return the whole frame at ``place``. Both CRCs and the stamp are checked, and with ``ledger_id`` also the
        ledger.

        A frame that fails is read again past the page cache. If it fails again, this raises IntegrityError: the frame
        is damaged, and must be answered as UNKNOWN. If the system refuses the read (EIO, a missing segment), the
        IntegrityError is chained to the OSError.
        """
        return self._read_checked(place, ledger_id)[0]

    def _read_checked(self, place: Place, ledger_id: LedgerId | None) -> tuple[memoryview, FrameHeader]:
        """Do the same as :meth:`read`, and also return the frame's header."""

        def checked(data: bytes | memoryview) -> tuple[memoryview, FrameHeader]:
            return memoryview(data), check_stored_frame(data, place, self._incarnation, ledger_id)

        return self._read_twice(place, checked)

    def read_entries(
        self,
        place: Place,
        first: EntryId,
        last: EntryId,
        *,
        ledger_id: LedgerId | None = None,
        is_whole: bool = False,
    ) -> bytes | bytearray | memoryview | None:
        """Return the entries first to last (both inclusive) of the frame at ``place`` as a frame, or None if it holds
        none of them. A run must hold all of them, and the result is then several whole frames, one behind the other.
        Receivers must ignore bytes 60–63. ``is_whole`` says that these are probably all entries of the frame, so that
        the frame is read at once. Raises the errors of :meth:`read`."""
        if place.is_run:
            return self._read_twice(place, lambda data: entries_of_run(data, place, self._incarnation, first, last))
        cut = self._cut(place, first, last) if not is_whole and _is_cut(place, first, last) else None
        if cut is not None:
            return cut
        frame, header = self._read_checked(place, ledger_id)
        return slice_frame(frame, first, last, header)

    def read_together(self, places: Sequence[Place]) -> list[tuple[memoryview, FrameHeader] | None]:
        """Return whole frames of one segment, each with its header, after one read of everything from the first to the
        last. The places are in order, and each frame is checked as :meth:`read` checks it. The result has None for a
        frame that must be read alone, because a check failed or the system refused the read."""
        begin, end = places[0].offset, places[-1].offset + places[-1].size
        try:
            data = self._pread(Place(places[0].generation, begin, end - begin))
        except OSError:
            return [None] * len(places)
        self.reads += 1
        view = memoryview(data)
        return [self._of_span(view[place.offset - begin :][: place.size], place) for place in places]

    def _of_span(self, frame: memoryview, place: Place) -> tuple[memoryview, FrameHeader] | None:
        try:
            return frame, check_stored_frame(frame, place, self._incarnation)
        except IntegrityError:
            return None

    def read_at_once(
        self, place: Place, first: EntryId, last: EntryId, *, ledger_id: LedgerId | None = None
    ) -> bytes | bytearray | memoryview | None:
        """Return what :meth:`read_entries` would return, if that needs no disk access: a few entries of a frame whose
        segment is open and, if the frame is long, whose columns are in memory. Return None in all other cases,
        including failed checks; then call :meth:`read_entries`. Any thread may call."""
        opened = self._handles.get(place.generation)
        if opened is None or place.run_of >= 0 or place.generation in self._given_up:
            return None
        try:
            if place.size < SLOT_BYTES_MIN:
                data = self._files.read_at_once(opened.handle, place.size, place.offset)
                if data is None:
                    return None
                header = check_stored_frame(data, place, self._incarnation, ledger_id)
                is_this = header.count == 1 and first == last == header.first_entry_id and not header.flags
                return data if is_this and header.kind == _ENTRIES else slice_frame(data, first, last, header)
            columns = self._columns.get((place.generation, place.offset))
            bounds = columns.bounds(first, last) if columns and _is_cut(place, first, last) else None
            if columns is None or bounds is None:
                return None
            begin, end = bounds
            data = self._files.read_at_once(opened.handle, end - begin, place.offset + begin)
            return None if data is None else columns.cut(first, last, data)
        except (IntegrityError, OSError):
            return None

    def _cut(self, place: Place, first: EntryId, last: EntryId) -> bytes | bytearray | None:
        """Return a few entries of a long frame, or None if the whole frame must be read and checked."""
        try:
            columns, read = self._columns_at(place)
            bounds = columns.bounds(first, last) if columns else None
            if columns is None or bounds is None:
                return None
            cut = columns.cut(first, last, read(bounds[0], bounds[1] - bounds[0]))
        except (IntegrityError, OSError):
            return None
        self.reads += 1
        return cut

    def read_parts(self, place: Place, first: EntryId, last: EntryId, wanted: Cut) -> bytearray | None:
        """Return a frame with PARTIAL that has the wanted parts of the entries first to last, as far as the frame at
        ``place`` has them. Its header and columns are checked, but not the parts. Return None if the frame must be read
        with :meth:`read_entries`: it is short or not plain, too little would be saved, or something cannot be read."""
        if place.is_run or place.size < SLOT_BYTES_MIN:
            return None
        try:
            columns, read = self._columns_at(place)
            found = columns.parts(first, last, wanted, read) if columns else None
        except (IntegrityError, OSError):
            return None
        self.reads += found is not None
        return found

    def _columns_at(self, place: Place) -> tuple[FrameColumns | None, Callable[[int, int], bytes]]:
        """Return the columns of the frame at ``place``, or None if the whole frame must be read, and a function that
        reads from this frame at an offset a number of bytes."""
        handle = self._handle(place.generation)

        def read(at: int, size: int) -> bytes:
            return self._files.read(handle, size, place.offset + at)

        columns = self._columns.get((place.generation, place.offset))
        if columns is None:
            columns = columns_of_place(read, place, self._incarnation)
            if columns is not None:
                self._remember(place, columns)
        return columns, read

    def _remember(self, place: Place, columns: FrameColumns) -> None:
        self._columns[place.generation, place.offset] = columns
        self._columns_bytes += columns.memory_bytes
        while self._columns_bytes > COLUMNS_BYTES_MAX:
            self._columns_bytes -= self._columns.pop(next(iter(self._columns))).memory_bytes

    def read_lac_entry(self, place: Place) -> bytes | bytearray | memoryview | None:
        """Return the last entry of the frame at ``place``. For a run, return the last entry of the frame that carries
        the greatest LAC. Raises the errors of :meth:`read`."""
        frame: bytes | memoryview
        if place.is_run:
            frame = self._read_twice(place, lambda data: _lac_frame(data, place, self._incarnation))
        else:
            frame = self.read(place)
        last = frame_extent(frame).last
        return slice_frame(frame, last, last)

    def membership(self, place: Unresolved) -> Remembered:
        """Return what a look-up needs about an unresolved place: which ids the frame holds, which frames of a damaged
        run are intact, or the contents of an index block. Raises as :meth:`read`."""
        if isinstance(place, IndexBlock):
            return self._indexes.read(place)
        if place.is_run:
            return members_of_run(self._legible(place), place, self._incarnation)
        frame = self.read(place)
        header = check_frame(frame)
        return striping_of(frame, header) or runs_of_ids(entry_ids_of(header, frame))

    def _read_twice(self, place: Place, take: Callable[[bytes | memoryview], T]) -> T:
        """Call ``take`` with the bytes at ``place``, and return its result. If it raises IntegrityError, or the read
        fails, the bytes are read again past the page cache."""
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
        """Return the bytes of a run, read past the page cache, with zeros for blocks that the system refuses to
        read."""
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
        """Close the open files of a segment whose ``.idx`` was rebuilt."""
        self._forget(generation)
        self._told -= {segment_name(generation), index_name(generation)}
        self._indexes.release(generation)

    def give_up(self, generation: int) -> None:
        """Close the open files of a segment whose file will be used again, and remember that it must not be opened. A
        read that still names it was planned before the index dropped the segment, and must be planned again."""
        self.release(generation)
        self._given_up[generation] = None
        if len(self._given_up) > GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def is_given_up(self, generation: int) -> bool:
        """Return whether :meth:`give_up` was called for this segment recently."""
        return generation in self._given_up

    def is_news(self, name: str) -> bool:
        """Return whether a missing or damaged file is still to be logged, and count it as logged. One line for each
        file is enough, however many reads find it."""
        is_news = name not in self._told
        self._told.add(name)
        return is_news

    def close(self) -> None:
        while self._handles:
            self._forget(next(iter(self._handles)))
        self._indexes.close()

    def _pread(self, place: Place) -> bytes | memoryview:
        """Return the bytes at a place. Many bytes are read into a slot, which is reused once there is no reference to
        them."""
        handle = self._handle(place.generation)
        if place.size < SLOT_BYTES_MIN:
            return self._files.read(handle, place.size, place.offset)
        slot = self._slots.take(place.size)
        return slot[: self._files.read_into(handle, slot, place.offset)]

    def _handle(self, generation: int) -> Handle:
        opened = self._handles.get(generation)
        if opened is not None:
            self._handles.move_to_end(generation)
            return opened.handle
        handle = self._files.open_read(self._segment_path(generation))
        opened = _Open(self._files, handle)
        if not self._files.exists(os.path.join(self._path, index_name(generation))):
            self._files.advise_random(handle)
        self._handles[generation] = opened
        if len(self._handles) > self._open_max:
            self._forget(next(iter(self._handles)))
        return handle

    def _forget(self, generation: int) -> None:
        """Close a segment. If another thread is reading from it, the file is closed when that read ends."""
        self._handles.pop(generation, None)
        for at in [at for at in self._columns if at[0] == generation]:
            self._columns_bytes -= self._columns.pop(at).memory_bytes

    def _segment_path(self, generation: int) -> str:
        return os.path.join(self._path, segment_name(generation))


def _is_cut(place: Place, first: EntryId, last: EntryId) -> bool:
    """Return whether these may be a few entries of a long frame."""
    return place.size >= SLOT_BYTES_MIN and last - first < ENTRIES_MAX


def _lac_frame(data: bytes | memoryview, run: Place, incarnation: bytes) -> bytes | memoryview:
    """Return the frame of a run that carries the greatest LAC."""
    members = members_of_run(data, run, incarnation)
    frames = [data[at - run.offset : at - run.offset + size] for at, size in zip(*members[2:], strict=True)]
    if not frames:
        raise IntegrityError("nothing in a run is intact", value=str(run), remedy="read another copy")
    return max(frames, key=lambda frame: frame_extent(frame).max_lac)
