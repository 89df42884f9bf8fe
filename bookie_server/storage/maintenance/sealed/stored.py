# SPDX-License-Identifier: Apache-2.0
"""Reads a sealed segment and its ``.idx`` from the disk, and collects their problems instead of raising them.

:class:`StoredPair` has all findings about the two: the scrubber marks places from it, and the offline check makes
sentences of it. It reads past the page cache, because background work must see the disk itself, and must not evict data
that readers need from the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np

from bk_core.errors import IntegrityError
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.index_file import (
    IndexSections,
    decode_index_block,
    decode_index_header,
    decode_sparse,
    decode_states,
    decode_summary,
)
from bookie_server.storage.bytes.index_rows import RUN, Rows
from bookie_server.storage.bytes.scan import ScannedSegment, SegmentScanner
from bookie_server.storage.bytes.segment import SEGMENT_HEADER_BYTES, decode_segment_header, index_name, segment_name
from bookie_server.storage.bytes.verify import FoundFrames, bad_ranges, names_damage, overlapping
from bookie_server.storage.disk.files import BLOCK, Files
from bookie_server.storage.index.search import OTHER_SECTIONS, SPARSE_SECTION

_BLOCKS_AT_ONCE = 64
_WINDOW_BYTES = 64 << 10
"""The number of bytes that are read with a group header, so that many small groups take few reads."""


class StoredSegment:
    """A segment of the directory ``path``. ``problem`` says why it cannot be scanned, or that its header is bad;
    ``size`` is 0 if it cannot even be opened."""

    def __init__(self, files: Files, path: str, generation: int, incarnation: bytes) -> None:
        self._files, self._generation, self._incarnation = files, generation, incarnation
        self._path = os.path.join(path, segment_name(generation))
        self.size, self.problem = 0, ""
        try:
            self.size = _size_of(files, self._path)
            header = decode_segment_header(files.read_past_cache(self._path, SEGMENT_HEADER_BYTES, 0))
            if (header.generation, header.incarnation) != (generation, incarnation):
                self.problem = "it is of another generation or directory"
            elif header.segment_bytes != self.size:
                self.problem = f"it has {self.size} bytes instead of {header.segment_bytes}"
        except (IntegrityError, OSError) as error:
            self.problem = words_of(error)

    def scanner(self, data_end: int | None) -> SegmentScanner:
        """Return a scanner that reads from the disk. ``data_end`` is that of the index; with None the segment's own
        group headers determine the end."""
        end = self.size
        if data_end is not None:
            end = min(end, data_end + BLOCK)  # the group header behind the data records how far the log was durable
        fetch = _PastCache(self._files, self._path).fetch
        return SegmentScanner(fetch, self._generation, self._incarnation, end, durable=data_end)


class _PastCache:
    """Reads a segment past the page cache. Small reads also read the bytes that follow, for later calls."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._window, self._window_offset = b"", 0

    def fetch(self, size: int, offset: int) -> bytes:
        if size > BLOCK:
            return self._files.read_past_cache(self._path, size, offset)
        at = offset - self._window_offset
        if not 0 <= at <= len(self._window) - size:
            self._window = b""
            try:
                self._window = self._files.read_past_cache(self._path, _WINDOW_BYTES, offset)
            except OSError:
                return self._files.read_past_cache(self._path, size, offset)
            self._window_offset, at = offset, 0
        return self._window[at : at + size]


class StoredIndex:
    """The ``.idx`` of a segment of the directory ``path``. ``problems`` has what is wrong, by the number of the index
    block, or by SPARSE_SECTION or OTHER_SECTIONS. ``sections`` is None if not even the header can be used. ``summary``
    is None until :meth:`check_sparse_and_summary` has read it, and if it is bad."""

    def __init__(self, files: Files, path: str, generation: int, incarnation: bytes) -> None:
        self._files, self._path = files, os.path.join(path, index_name(generation))
        self.sections: IndexSections | None = None
        self.summary: Rows | None = None
        self.problems: dict[int, str] = {}
        try:
            sections = decode_index_header(files.read_past_cache(self._path, BLOCK, 0))
            if (sections.header.generation, sections.header.incarnation) != (generation, incarnation):
                self.problems[OTHER_SECTIONS] = "it is of another segment or directory"
                return
            self.sections = sections
            if _size_of(files, self._path) != sections.file_bytes:
                self.problems[OTHER_SECTIONS] = "it has another size than its header says"
        except (IntegrityError, OSError) as error:
            self.problems[OTHER_SECTIONS] = words_of(error)

    @property
    def data_end(self) -> int | None:
        """The end of the segment's data when it was sealed, or None if the header cannot be read."""
        return self.sections.header.data_end if self.sections is not None else None

    def states(self) -> Rows | None:
        """Return the state records. If they are bad, note that and return None."""
        sections = self.sections
        if sections is None:
            return None
        return self._decoded(OTHER_SECTIONS, lambda: decode_states(sections, self._read(sections.state_range)))

    def check_sparse_and_summary(self) -> int:
        """Check the sparse records and the summary, and note their problems; return their size."""
        sections = self.sections
        if sections is None:
            return 0
        self._decoded(SPARSE_SECTION, lambda: decode_sparse(sections, self._read(sections.sparse_range)))
        where = sections.summary_range
        self.summary = self._decoded(OTHER_SECTIONS, lambda: decode_summary(sections, self._read(where)))
        return sections.sparse_range[1] + sections.summary_range[1]

    def blocks(self) -> Iterator[list[tuple[int, Rows]]]:
        """Yield the numbers and records of the intact index blocks, some at a time; note the problems of the others."""
        count = self.sections.index_blocks if self.sections is not None else 0
        for first in range(0, count, _BLOCKS_AT_ONCE):
            numbers = range(first, min(first + _BLOCKS_AT_ONCE, count))
            try:
                data = self._files.read_past_cache(self._path, BLOCK * len(numbers), BLOCK * (1 + first))
            except OSError:  # one of them cannot be read; each is read alone to find out which
                data = b""
            yield [(number, rows) for number in numbers if (rows := self._block(number, data, first)) is not None]

    def _block(self, number: int, data: bytes, first: int) -> Rows | None:
        sections = self.sections
        assert sections is not None
        at = BLOCK * (number - first)

        def decode() -> Rows:
            block = data[at : at + BLOCK] or self._read(sections.index_block_range(number))
            return decode_index_block(sections, number, block)

        return self._decoded(number, decode)

    def _read(self, where: tuple[int, int]) -> bytes:
        return self._files.read_past_cache(self._path, where[1], where[0]) if where[1] else b""

    def _decoded(self, number: int, decode: Callable[[], Rows]) -> Rows | None:
        try:
            return decode()
        except (IntegrityError, OSError) as error:
            self.problems[number] = words_of(error)
            return None


class StoredPair:
    """A sealed segment and its ``.idx``: the problems of either, and whether they agree.

    After :meth:`steps`, ``problems`` has those of the index as in :class:`StoredIndex`, and blocks with wrong records.
    If the segment was scanned, ``scan`` has the result without its rows, ``frames`` has these rows, ``ranges`` are the
    damaged parts of the segment, and ``astray`` has index records that lead into damage, or that stand for entries that
    were lost earlier."""

    def __init__(self, files: Files, path: str, generation: int, incarnation: bytes) -> None:
        self.index = StoredIndex(files, path, generation, incarnation)
        self.segment = StoredSegment(files, path, generation, incarnation)
        self.problems: dict[int, str] = {}
        self.scan: ScannedSegment | None = None
        self.frames: FoundFrames | None = None
        self.ranges: list[tuple[int, int]] = []
        self.astray: list[Rows] = []

    def steps(self, *, scan: bool = True) -> Iterator[int]:
        """Read both files, piece by piece. Yield the size of each piece of work, in bytes. Without ``scan`` read only
        the index."""
        yield 2 * BLOCK
        if scan and self.segment.size:
            scanner = self.segment.scanner(self.index.data_end)
            yield from scanner.steps()
            self.scan = scanner.result
            self.frames, self.ranges = FoundFrames(self.scan), bad_ranges(self.scan)
            self.scan.rows = bytearray()  # ``frames`` has a copy of the rows
        yield self.index.check_sparse_and_summary()
        for blocks in self.index.blocks():
            yield BLOCK * len(blocks)
            if blocks and self.frames is not None:
                self._compare_records(blocks, self.frames)
        states = self.index.states()
        if states is not None:
            yield BLOCK + states.nbytes
            if self.scan is not None and self.frames is not None:
                self._compare_sections(states, self.scan, self.frames)
        self.problems.update(self.index.problems)

    def _compare_records(self, blocks: list[tuple[int, Rows]], frames: FoundFrames) -> None:
        """Find the records without frames. Either they lead into damage, or the block that has them is wrong."""
        rows = np.concatenate([rows for _, rows in blocks])
        numbers = np.repeat([number for number, _ in blocks], [rows.size for _, rows in blocks])
        nowhere = ~frames.confirm(rows)
        if not nowhere.any():
            return
        lost, named = nowhere & overlapping(rows, self.ranges), nowhere & names_damage(rows)
        self.astray.append(rows[lost | named])
        wrong = nowhere & ~lost & (~named if self.ranges else True)
        for number in np.unique(numbers[wrong]).tolist():
            self.problems[number] = "its records do not match the segment"

    def _compare_sections(self, states: Rows, scan: ScannedSegment, frames: FoundFrames) -> None:
        if self.ranges or self.index.problems:
            return
        unnamed = int(np.count_nonzero(frames.unnamed))
        if unnamed:
            self.problems[OTHER_SECTIONS] = f"it does not name {unnamed} frames of the segment"
        elif not np.array_equal(states, scan.states.rows()):
            self.problems[OTHER_SECTIONS] = "it has other records than the segment"


def _size_of(files: Files, path: str) -> int:
    handle = files.open_read(path)
    try:
        return files.size(handle)
    finally:
        files.close(handle)


def words_of(error: Exception) -> str:
    """Return the text of an error about a file."""
    return error.what if isinstance(error, IntegrityError) else str(error)


def place_of(generation: int, row: np.void) -> Place:
    """Return the place at which an index record says that its frames are."""
    ledger_id = int(row["ledger"])
    return Place(generation, int(row["offset"]), int(row["size"]), ledger_id if int(row["bits"]) & RUN else -1)
