# SPDX-License-Identifier: Apache-2.0
"""Examining one segment and its ``.idx``, offline: every frame or the index's word (``check.py`` has the whole).

An index is repaired only where the segment itself is whole: of a damaged segment the start-up must find the damage, and
an index would hide it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import numpy as np

from bk_core.errors import IntegrityError
from bookie_server.storage.bytes.index_file import (
    INDEX_ROW,
    STATE_ROW,
    IndexHeader,
    Rows,
    build_index,
    decode_index_file,
    sorted_rows,
)
from bookie_server.storage.bytes.index_rows import summary_of
from bookie_server.storage.bytes.scan import ScannedSegment, SegmentScanner
from bookie_server.storage.bytes.sealed import read_header, read_sealed
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.bytes.verify import (
    FoundFrames,
    Mask,
    bad_ranges,
    describe,
    names_damage,
    overlapping,
    refused_words,
)
from bookie_server.storage.check.findings import MISSING, OPEN, SEALED, LostEntries, SegmentFindings
from bookie_server.storage.disk.files import Files, Handle


@dataclass(slots=True)
class ExaminedSegment:
    """What one segment came to. ``limbo``: damage that cannot be named; ``predecessor``: the generation that its header
    says was sealed before, 0 if none; ``data_end``: how far it was written, where an index says so."""

    findings: SegmentFindings
    rows: Rows = field(default_factory=lambda: np.empty(0, INDEX_ROW))
    states: Rows = field(default_factory=lambda: np.empty(0, STATE_ROW))
    lost: list[LostEntries] = field(default_factory=list)
    limbo: list[str] = field(default_factory=list)
    predecessor: int = 0
    data_end: int | None = None

    @property
    def summary(self) -> Rows:
        return summary_of(self.rows)


class SegmentExaminer:
    """Examines segments of the folder ``path``. ``through``: up to this generation a checkpoint has the state;
    ``verify`` and ``repair`` are those of ``check.examine``."""

    def __init__(
        self, files: Files, path: str, incarnation: bytes, *, verify: bool, repair: bool, through: int
    ) -> None:
        self._files, self._path, self._incarnation = files, path, incarnation
        self._verify, self._repair, self._through = verify, repair, through

    def examine(self, generation: int, *, is_there: bool, has_index: bool, is_newest: bool) -> ExaminedSegment:
        """Look at a segment that is there or has an index. OSError where a repair cannot be written."""
        name = segment_name(generation)
        found = ExaminedSegment(SegmentFindings(generation, name, SEALED if has_index else OPEN))
        segment = found.findings
        sealed = has_index and self._is_sealed(found)
        is_named = has_index and self._load_index(found)
        if not is_there:
            segment.state = MISSING
            segment.damage.append("the segment is missing" + ("; its index names what was in it" if is_named else ""))
            self._lose(found, np.ones(found.rows.size, dtype=bool))
            if not sealed:
                found.limbo.append(f"{name} is missing and has no readable index")
        else:
            handle = self._files.open_read(os.path.join(self._path, name))
            try:
                self._look_inside(found, handle, sealed=sealed, is_named=is_named, is_newest=is_newest)
            finally:
                self._files.close(handle)
        segment.frames, segment.frame_bytes = int(found.rows.size), int(found.summary["bytes"].sum())
        segment.ledgers = int(np.unique(found.rows["ledger"]).size)
        return found

    def _is_sealed(self, found: ExaminedSegment) -> bool:
        """Whether a start would take the index, of which it reads a part only (RULES S7), and not scan the segment."""
        generation = found.findings.generation
        try:
            index = read_sealed(
                self._files, self._path, generation, self._incarnation, states=generation > self._through
            )
        except (IntegrityError, OSError):
            return False
        found.data_end = index.sections.header.data_end
        return True

    def _load_index(self, found: ExaminedSegment) -> bool:
        """Whether the whole index can be used; its records are those of the segment then."""
        segment = found.findings
        try:
            data = self._files.read_file(os.path.join(self._path, index_name(segment.generation)))
            header, rows, states = decode_index_file(data)
        except (IntegrityError, OSError) as error:
            segment.index_problem = error.what if isinstance(error, IntegrityError) else str(error)
            return False
        if (header.generation, header.incarnation) != (segment.generation, self._incarnation):
            segment.index_problem = "it is of another segment or directory"
            return False
        found.rows, found.states = rows, states
        return True

    def _look_inside(
        self, found: ExaminedSegment, handle: Handle, *, sealed: bool, is_named: bool, is_newest: bool
    ) -> None:
        """``sealed``: a start would not scan it; ``is_named``: the index says what is in it."""
        segment = found.findings
        segment.size = self._files.size(handle)
        header, problem = read_header(self._files, self._path, handle, segment.generation, self._incarnation)
        found.predecessor = header.newest_sealed if header is not None else 0
        if problem is not None:
            segment.damage.append(problem.removeprefix(segment.name).lstrip(": "))
            if not sealed:
                found.limbo.append(problem)
        if is_named and sealed and not self._verify:
            return
        self._files.drop_cache(handle)
        scan = SegmentScanner(
            self._files, handle, segment.generation, self._incarnation, segment.size, durable=found.data_end
        ).scan()
        self._note_damage(found, scan, sealed=sealed)
        if scan.refused:
            segment.notes.append(refused_words(scan))
        if not sealed:
            _note_tail(segment, scan)
        if is_named:
            self._compare(found, scan)
        else:
            found.rows, found.states = sorted_rows(scan.rows), scan.states.rows()
            self._lose(found, overlapping(found.rows, bad_ranges(scan)))
        if segment.index_problem:
            self._repair_index(segment, scan, is_newest=is_newest)

    def _note_damage(self, found: ExaminedSegment, scan: ScannedSegment, *, sealed: bool) -> None:
        segment = found.findings
        segment.damage += describe(scan)
        if not sealed:
            unnamed = describe(replace(scan, bad_frames=[]))
            found.limbo += [f"{segment.name}, {line}" for line in unnamed]

    def _compare(self, found: ExaminedSegment, scan: ScannedSegment) -> None:
        """The index against the segment: records that lead into damage, or an index that lies."""
        ranges, frames = bad_ranges(scan), FoundFrames(scan)
        astray = ~frames.confirm(found.rows)
        bad_frames = [(frame.place.offset, frame.place.size) for frame in scan.bad_frames]
        lost = astray & (overlapping(found.rows, ranges) | names_damage(found.rows))
        self._lose(found, lost | overlapping(found.rows, bad_frames))
        lies = bool((astray & ~lost).any())
        if not ranges:
            lies |= bool(astray.any() or frames.unnamed.any()) or not np.array_equal(found.states, scan.states.rows())
        if lies:
            found.findings.index_problem = "it does not say what is in the segment"

    def _lose(self, found: ExaminedSegment, hit: Mask) -> None:
        """Note the entries of these index records."""
        for ledger_id, first, last in found.rows[hit][["ledger", "first", "last"]].tolist():
            found.lost.append(LostEntries(ledger_id, first, last, found.findings.name))

    # --- the index --------------------------------------------------------------------------------------------------

    def _rebuilt(self, segment: SegmentFindings, scan: ScannedSegment) -> bytes:
        header = IndexHeader(segment.generation, self._incarnation, scan.durable, scan.groups_below_durable)
        return build_index(header, sorted_rows(scan.rows), scan.states.rows()).data

    def _repair_index(self, segment: SegmentFindings, scan: ScannedSegment, *, is_newest: bool) -> None:
        if segment.damage or scan.above or is_newest or not scan.groups:
            segment.notes.append("its index is left to the bookie, which has more to do with this segment")
        elif self._repair:
            path = os.path.join(self._path, index_name(segment.generation))
            self._files.write_atomically(path, self._rebuilt(segment, scan))
            segment.repaired = True


def _note_tail(segment: SegmentFindings, scan: ScannedSegment) -> None:
    torn = sum(size for _, size, _ in scan.tail)
    if torn:
        segment.notes.append(
            f"a torn tail of {torn} bytes above the last position on record, which the next start drops: of a group "
            "whose sync never returned, or, if the disk damaged it since, of one acknowledged within the last 100 ms"
        )
    if scan.above:
        segment.notes.append(
            f"{len(scan.above)} whole frames above the last position on record: they may have been acknowledged just "
            "before the end, and are copied at the next start"
        )
