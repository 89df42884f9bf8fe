# SPDX-License-Identifier: Apache-2.0
"""Examines a data directory that no bookie uses: its contents, its damage, and what a start would do with it.

No code here decides what damage is. The start itself (``start/replay.py``) runs over files that keep its writes in
memory, and its report says what is lost. The scrubber's code (``maintenance/stored.py``) reads what a start does not
read, the frames of sealed segments. This file turns both results into sentences. It writes nothing but indexes, when
asked to repair them, and only for a segment that is whole: in a damaged segment the start must find the damage, which
an index would hide.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from bk_core.errors import BookKeeperError, DataDirectoryError
from bk_core.metadata.records import decode_cookie
from bk_core.model import LedgerId
from bk_core.wire.lane.reasons import Reason
from bookie_server.storage.bytes.index_file import IndexHeader, build_index
from bookie_server.storage.bytes.index_rows import INDEX_ROW, Rows, sorted_rows, summary_of
from bookie_server.storage.bytes.scan import ScannedSegment
from bookie_server.storage.bytes.segment import index_name, parse_name, segment_name
from bookie_server.storage.bytes.verify import describe, refused_words
from bookie_server.storage.check.findings import (
    DRAINED,
    MISSING,
    OPEN,
    SEALED,
    DirectoryFindings,
    LedgerFindings,
    LostEntries,
    SegmentFindings,
)
from bookie_server.storage.disk.cookie import (
    COOKIE_NAME,
    IDENTITY_NAME,
    LOCK_NAME,
    LOSS_NAME,
    SEGMENTS_NAME,
    DataDirectory,
    Identity,
    decode_identity,
)
from bookie_server.storage.disk.files import Files, Handle
from bookie_server.storage.disk.overlay import Overlay
from bookie_server.storage.index.ledger_states import EVERY_LEDGER
from bookie_server.storage.maintenance.sealed.stored import StoredPair
from bookie_server.storage.start.replay import Opening, read_header

_TROUBLES = {
    Reason.REASON_NONE: "",
    Reason.LIMBO: "limbo",
    Reason.COPY_DROPPED: "copy dropped",
    Reason.DAMAGED: "two different keys",
}

OnSegment = Callable[[str, int, int], None]
"""A function that is called before each segment, with its name, the number of segments examined so far, and the number
of all."""


def examine(
    path: str,
    *,
    verify: bool,
    repair: bool = False,
    files: Files | None = None,
    on_segment: OnSegment = lambda *_: None,
) -> DirectoryFindings:
    """Examine a data directory. With ``verify`` every frame is read; without it the index of a sealed segment is
    trusted. ``repair`` (with ``verify``) rewrites bad indexes.

    Raises DataDirectoryError if this is no data directory, a bookie uses it, it cannot be listed, or a repair cannot be
    written.
    """
    files, path = files or Files(), os.path.abspath(path)
    try:
        if not files.exists(os.path.join(path, SEGMENTS_NAME)):
            raise DataDirectoryError(
                "this is not a bookie's data directory", value=f"{path} has no {SEGMENTS_NAME}", remedy="name another"
            )
        with _locked(path, files):
            return _Examination(path, files, verify, repair).run(on_segment)
    except OSError as error:
        raise DataDirectoryError("cannot examine the data directory", value=f"{path}: {error}") from error


@contextmanager
def _locked(path: str, files: Files) -> Iterator[None]:
    """Hold the directory's lock meanwhile. A directory on a read-only file system cannot be in use, and needs no
    lock."""
    lock: Handle | None = None
    if files.exists(os.path.join(path, LOCK_NAME)):
        try:
            lock = files.lock(os.path.join(path, LOCK_NAME))
        except BlockingIOError as error:
            raise DataDirectoryError(
                "the data directory is in use", value=path, remedy="stop its bookie first, or examine a snapshot"
            ) from error
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
    try:
        yield
    finally:
        if lock is not None:
            files.close(lock)


class _Examination:
    """One examination of one directory."""

    def __init__(self, path: str, files: Files, verify: bool, repair: bool) -> None:
        self._path, self._files, self._verify, self._repair = path, files, verify, repair
        self._segments_path = os.path.join(path, SEGMENTS_NAME)
        self._found = DirectoryFindings(path, verify)

    def run(self, on_segment: OnSegment) -> DirectoryFindings:
        found, identity = self._found, self._identity()
        self._incarnation = identity.incarnation_bytes
        overlay = Overlay(self._files)
        lock = overlay.lock(os.path.join(self._path, LOCK_NAME))
        opening = self._opening = Opening(DataDirectory(self._path, identity, b"", overlay, lock))
        opening.read()
        index = opening.index
        in_trouble = {ledger_id: index.folded(ledger_id)[1] for ledger_id in (*index.ledger_ids(), EVERY_LEDGER)}
        opening.write().close(record=False)  # this may put more ledgers in limbo
        self._note_ledgers(in_trouble)
        found.start = opening.report
        found.checkpoint = opening.start.checkpoint.number
        self._scanned = {scan.generation: scan for scan in opening.scanned}
        self._live = index.live_bytes()
        self._tell()
        names = self._files.names(self._segments_path)
        found.free_segments = sum(name.endswith((".free", ".segment.tmp")) for name in names)
        listing = opening.listing
        generations = sorted({*listing.segments, *listing.indexes, *opening.missing, *opening.lost})
        newest = max(listing.segments | listing.indexes, default=0)
        for k, generation in enumerate(generations):
            on_segment(segment_name(generation), k, len(generations))
            found.segments.append(self._segment(generation, is_newest=generation == newest))
        return found

    # --- the directory ----------------------------------------------------------------------------------------------

    def _identity(self) -> Identity:
        """Return the identity that the next start would have. If the file IDENTITY cannot be read, the newest readable
        segment gives the bookie's id."""
        found = self._found
        if self._files.exists(os.path.join(self._path, LOSS_NAME)):
            found.damage.append("an earlier start with --accept-loss was interrupted: start with it again")
        try:
            found.identity = decode_identity(self._read(IDENTITY_NAME))
        except (BookKeeperError, OSError) as error:
            found.damage.append(f"{IDENTITY_NAME}: {_words(error)}")
            return self._identity_of_segments()
        self._compare_cookie(found.identity)
        return replace(found.identity, boot_count=found.identity.boot_count + 1)

    def _identity_of_segments(self) -> Identity:
        parsed = [parse_name(name) for name in self._files.names(self._segments_path)]
        for generation in sorted((one[0] for one in parsed if one and one[1] == "segment"), reverse=True):
            handle = self._files.open_read(os.path.join(self._segments_path, segment_name(generation)))
            header, _ = read_header(self._files, self._segments_path, handle, generation, b"")
            self._files.close(handle)
            if header is not None:
                name, incarnation = segment_name(generation), str(uuid.UUID(bytes=header.incarnation))
                self._found.notes.append(f"{name} says that this is the directory of {header.bookie_id}")
                return Identity(header.bookie_id, "", incarnation, header.boot_count + 1)
        return Identity("", "", str(uuid.UUID(int=0)), 1)

    def _compare_cookie(self, identity: Identity) -> None:
        try:
            cookie = decode_cookie(self._read(COOKIE_NAME))
        except (BookKeeperError, OSError) as error:
            self._found.damage.append(f"{COOKIE_NAME}: {_words(error)}")
            return
        if (cookie.bookie_host, cookie.instance_id) != (identity.bookie_id, identity.cluster):
            self._found.damage.append(
                f"{COOKIE_NAME} is of {cookie.bookie_host}, cluster {cookie.instance_id}; {IDENTITY_NAME} of "
                f"{identity.bookie_id}, cluster {identity.cluster}: files of two directories were mixed"
            )

    def _read(self, name: str) -> bytes:
        return self._files.read_file(os.path.join(self._path, name))

    # --- the start's findings ----------------------------------------------------------------------------------------

    def _note_ledgers(self, in_trouble: dict[LedgerId, Reason]) -> None:
        """Collect the findings about ledgers. ``in_trouble`` has the troubles now, before a start; a ledger that it
        does not name has the trouble of EVERY_LEDGER."""
        found, index = self._found, self._opening.index
        intervals, of_every_ledger = index.deleted_intervals(), in_trouble[EVERY_LEDGER]
        found.deleted_ledgers = int((intervals[:, 1] - intervals[:, 0] + 1).sum())
        for ledger_id in index.ledger_ids():
            state, _ = index.folded(ledger_id)
            trouble = in_trouble.get(ledger_id, of_every_ledger)
            found.ledgers[ledger_id] = LedgerFindings(
                ledger_id,
                is_fenced=state is not None and state.is_fenced,
                trouble=_TROUBLES.get(trouble, trouble.name),
            )
        if of_every_ledger is Reason.LIMBO:
            found.notes.append("every ledger is in limbo, new ones too: this bookie takes no new ledgers")

    def _tell(self) -> None:
        """Distribute the lines of the start's report: a line about a segment begins with its name."""
        found, report, start = self._found, self._opening.report, self._opening.start
        found.limbo = list(report.unnamed)
        self._lines: defaultdict[str, list[str]] = defaultdict(list)
        for line in report.damage:
            name, is_of_segment, said = line.partition(".segment")
            if is_of_segment and parse_name(name + ".segment") is not None:
                self._lines[name + ".segment"].append(said.lstrip(" :,"))
            elif line in start.damage and not start.lost:
                found.notes.append(f"{line}; it is not needed")
            elif line not in report.unnamed:
                found.damage.append(line)
        if report.ledgers_in_limbo:
            ids = ", ".join(map(str, report.ledgers_in_limbo))
            found.notes.append(f"the next start puts these in limbo, because a record of theirs is lost: ledgers {ids}")

    # --- segments ---------------------------------------------------------------------------------------------------

    def _segment(self, generation: int, *, is_newest: bool) -> SegmentFindings:
        listing, name = self._opening.listing, segment_name(generation)
        is_there, has_index = generation in listing.segments, generation in listing.indexes
        found = SegmentFindings(generation, name, (SEALED if has_index else OPEN) if is_there else MISSING)
        if generation in self._opening.drained:
            found.state = DRAINED
            return found
        found.live_bytes, found.damage = self._live.get(generation, 0), self._lines[name]
        pair = StoredPair(self._files, self._segments_path, generation, self._incarnation)
        found.size, scan = pair.segment.size, self._scanned.get(generation)
        if has_index:
            for _ in pair.steps(scan=self._verify and scan is None):
                pass
            found.index_problem = "; ".join(dict.fromkeys(pair.problems.values()))
            if scan is not None and not found.index_problem:
                found.index_problem = "a start could not read it"
        if scan is not None:  # the start has scanned it
            rows = sorted_rows(scan.rows)
            self._count(found, rows.size, summary_of(rows))
            _note_tail(found, scan)
        else:
            rows, scan = self._sealed(found, pair), pair.scan
        self._lose(name, pair.astray if is_there else (some for blocks in pair.index.blocks() for _, some in blocks))
        if scan is not None:
            self._lose(name, [rows[np.isin(rows["offset"], [frame.place.offset for frame in scan.bad_frames])]])
            if scan.refused and not any("refused" in line for line in found.damage):
                found.notes.append(refused_words(scan))
            if found.index_problem:
                self._repair_index(found, scan, rows, is_newest=is_newest)
        return found

    def _sealed(self, found: SegmentFindings, pair: StoredPair) -> Rows:
        """Record the findings about a segment that a start does not scan, and return the index records of its frames
        found here."""
        sections = pair.index.sections
        self._count(found, sections.index_records if sections is not None else 0, pair.index.summary)
        if pair.segment.problem and not found.damage:  # the start reports the same problem if it sees it
            found.damage.append(pair.segment.problem)
        if pair.scan is not None:
            found.damage += describe(pair.scan)
        return pair.frames.rows if pair.frames is not None else np.empty(0, INDEX_ROW)

    def _count(self, found: SegmentFindings, frames: int, summary: Rows | None) -> None:
        summary = summary_of(np.empty(0, INDEX_ROW)) if summary is None else summary
        found.frames, found.ledgers, found.frame_bytes = frames, summary.size, int(summary["bytes"].sum())
        for ledger_id, first, last, size in summary[["ledger", "first", "last", "bytes"]].tolist():
            ledger = self._found.ledgers.get(ledger_id)
            if ledger is not None:
                ledger.first = first if ledger.first < 0 else min(ledger.first, first)
                ledger.last, ledger.frame_bytes = max(ledger.last, last), ledger.frame_bytes + size

    def _lose(self, name: str, records: Iterable[Rows]) -> None:
        """Note that the entries of these records have no intact copy in the segment."""
        for rows in records:
            for ledger_id, first, last in rows[["ledger", "first", "last"]].tolist():
                if ledger_id in self._found.ledgers:
                    self._found.ledgers[ledger_id].lost.append(LostEntries(ledger_id, first, last, name))

    def _repair_index(self, found: SegmentFindings, scan: ScannedSegment, rows: Rows, *, is_newest: bool) -> None:
        if found.damage or scan.above or is_newest or not scan.groups:
            found.notes.append("its index is left to the bookie, which has more to do with this segment")
        elif self._repair:
            header = IndexHeader(found.generation, self._incarnation, scan.durable, scan.groups_below_durable)
            path = os.path.join(self._segments_path, index_name(found.generation))
            self._files.write_atomically(path, build_index(header, rows, scan.states.rows()).data)
            found.repaired = True


def _note_tail(found: SegmentFindings, scan: ScannedSegment) -> None:
    torn = sum(size for _, size, _ in scan.tail)
    if torn:
        found.notes.append(
            f"a torn tail of {torn} bytes above the last position on record, which the next start drops: of a group "
            "whose sync never returned, or, if the disk damaged it since, of one acknowledged within the last 100 ms"
        )
    if scan.above:
        found.notes.append(
            f"{len(scan.above)} whole frames above the last position on record: they may have been acknowledged just "
            "before the end, and are copied at the next start"
        )


def _words(error: Exception) -> str:
    return error.what if isinstance(error, BookKeeperError) else str(error)
