# SPDX-License-Identifier: Apache-2.0
"""Examining a data directory that no bookie uses: what is in it, what is damaged, what a start would make of it.

Nothing is written but indexes, when they are to be repaired (``segment_examiner.py``). The rules are the start-up's own
(``replay.py``; docs/formats.md §3.2, §3.3), and the scan is the same code.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from bk_core.errors import BookKeeperError, DataDirectoryError
from bk_core.metadata.records import decode_cookie
from bk_core.wire.lane import Reason
from bookie_server.storage.bytes.index_file import (
    STATE_ROW,
    Rows,
)
from bookie_server.storage.bytes.sealed import read_header
from bookie_server.storage.bytes.segment import parse_name, segment_name, unsealed_name
from bookie_server.storage.check.findings import (
    DRAINED,
    MISSING,
    OPEN,
    DirectoryFindings,
    LedgerFindings,
    LostEntries,
    SegmentFindings,
)
from bookie_server.storage.check.segment_examiner import ExaminedSegment, SegmentExaminer
from bookie_server.storage.disk.cookie import (
    COOKIE_NAME,
    IDENTITY_NAME,
    LIMBO_NAME,
    LOCK_NAME,
    LOSS_NAME,
    SEGMENTS_NAME,
    Identity,
    decode_identity,
)
from bookie_server.storage.disk.files import Files, Handle
from bookie_server.storage.index.checkpoint import find_checkpoint
from bookie_server.storage.index.index import EVERY_LEDGER, LedgerIndex
from bookie_server.storage.index.ledger_table import LEDGER_ROW
from bookie_server.storage.index.state_rows import deleted_by, folded, ledger_rows

_TROUBLES = {
    Reason.REASON_NONE: "",
    Reason.LIMBO: "limbo",
    Reason.COPY_DROPPED: "copy dropped",
    Reason.DAMAGED: "two different keys",
}

OnSegment = Callable[[str, int, int], None]
"""Told before each segment: its name, how many were examined, how many there are."""


def examine(
    path: str,
    *,
    verify: bool,
    repair: bool = False,
    files: Files | None = None,
    on_segment: OnSegment = lambda *_: None,
) -> DirectoryFindings:
    """Look at everything in a data directory. ``verify`` reads every frame; without it a sealed segment is taken at its
    index's word. ``repair`` (with ``verify``) writes indexes that are bad.

    Raises DataDirectoryError if this is no data directory, a bookie uses it, or it cannot be listed, and when a repair
    cannot be written.
    """
    files, path = files or Files(), os.path.abspath(path)
    try:
        if not files.exists(os.path.join(path, SEGMENTS_NAME)):
            raise DataDirectoryError(
                "this is not a bookie's data directory", value=f"{path} has no {SEGMENTS_NAME}", remedy="name another"
            )
        with _locked(path, files):
            return _Examination(path, files, verify, repair, on_segment).run()
    except OSError as error:
        raise DataDirectoryError("cannot examine the data directory", value=f"{path}: {error}") from error


@contextmanager
def _locked(path: str, files: Files) -> Iterator[None]:
    """Nobody else uses the directory meanwhile. A read-only file system cannot be in use."""
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
    """One look at one directory."""

    def __init__(self, path: str, files: Files, verify: bool, repair: bool, on_segment: OnSegment) -> None:
        self._path, self._files, self._verify, self._repair = path, files, verify, repair
        self._on_segment = on_segment
        self._segments_path = os.path.join(path, SEGMENTS_NAME)
        self._found = DirectoryFindings(path, verify)
        self._incarnation = b""
        self._states: list[Rows] = [np.empty(0, STATE_ROW)]
        self._summaries: dict[int, Rows] = {}
        self._lost: list[LostEntries] = []
        self._named: dict[int, str] = {}  # segments that a later one's header names, and which one
        self._unsealed: set[int] = set()  # what has a file that says so
        self._unused: set[int] = set()  # spares and drained ones
        self._drained: set[int] = set()
        self._through = 0  # segments up to this generation are in the checkpoint

    def run(self) -> DirectoryFindings:
        segments, indexes = self._list()
        self._look_at_identity(segments)
        ledgers, deleted = self._look_at_checkpoint(segments)
        generations = sorted(segments | indexes)
        examiner = SegmentExaminer(
            self._files,
            self._segments_path,
            self._incarnation,
            verify=self._verify,
            repair=self._repair,
            through=self._through,
        )
        for k, generation in enumerate(generations):
            self._on_segment(segment_name(generation), k, len(generations))
            if generation in self._drained:
                self._found.segments.append(SegmentFindings(generation, segment_name(generation), DRAINED))
                continue
            examined = examiner.examine(
                generation,
                is_there=generation in segments,
                has_index=generation in indexes,
                is_newest=generation == generations[-1],
            )
            self._take(examined)
        self._look_for_missing(segments, indexes)
        self._fold(ledgers, deleted)
        return self._found

    # --- the directory ----------------------------------------------------------------------------------------------

    def _list(self) -> tuple[set[int], set[int]]:
        segments: set[int] = set()
        indexes: set[int] = set()
        for name in self._files.names(self._segments_path):
            parsed = parse_name(name.removesuffix(".tmp"))
            if parsed is None:
                continue
            generation, kind = parsed
            if kind == "unsealed":
                self._unsealed.add(generation)
            elif kind == "free" or name.endswith(".tmp"):
                self._unused.add(generation)
                self._found.free_segments += kind != "idx"
            else:
                (segments if kind == "segment" else indexes).add(generation)
        return segments, indexes

    def _look_at_identity(self, segments: set[int]) -> None:
        found = self._found
        try:
            identity = found.identity = decode_identity(self._read(IDENTITY_NAME))
            self._incarnation = identity.incarnation_bytes
            self._compare_cookie(identity)
        except (BookKeeperError, OSError) as error:
            found.damage.append(f"{IDENTITY_NAME}: {_words(error)}")
        if self._files.exists(os.path.join(self._path, LOSS_NAME)):
            found.damage.append("a start with --accept-loss did not come to its end: start it so once more")
        if self._files.exists(os.path.join(self._path, LIMBO_NAME)):
            found.limbo.append("a start that found damage was cut off before all of it was on record")
        for generation in sorted(segments, reverse=True) if not self._incarnation else ():
            handle = self._files.open_read(self._path_of(segment_name(generation)))
            header, _ = read_header(self._files, self._segments_path, handle, generation, b"")
            self._files.close(handle)
            if header is not None:
                self._incarnation = header.incarnation
                found.notes.append(f"{segment_name(generation)} says that this is the directory of {header.bookie_id}")
                return

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

    def _look_at_checkpoint(self, segments: set[int]) -> tuple[Rows, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
        result = find_checkpoint(self._files, self._segments_path, self._incarnation)
        found, newest = self._found, result.newest
        found.checkpoint = newest.number if newest is not None else 0
        wanted = found.identity.checkpoint if found.identity is not None else 0
        if found.checkpoint < wanted:
            found.damage += result.damage
            found.limbo.append(f"checkpoint {wanted} is lost, and segments may have been recycled under it")
        elif result.damage:
            found.notes += [f"{line}; it is not needed" for line in result.damage]
        if newest is None:
            return np.empty(0, LEDGER_ROW), np.empty((0, 2), np.int64)
        self._through = newest.through
        self._drained = {g for g in segments if g <= newest.through and g not in newest.segments}
        for generation in newest.segments if found.checkpoint >= wanted else ():
            self._named[generation] = f"checkpoint {newest.number}"
        return newest.ledgers, newest.deleted

    def _look_for_missing(self, segments: set[int], indexes: set[int]) -> None:
        found = self._found
        for generation in self._unsealed - self._unused - segments - indexes:
            if generation > self._through:
                self._named.setdefault(generation, unsealed_name(generation))
        for generation, who in sorted(self._named.items()):
            if generation not in segments | indexes:
                found.segments.append(SegmentFindings(generation, segment_name(generation), MISSING))
                found.limbo.append(f"{segment_name(generation)} is missing; {who} names it")
        was_used = found.identity is not None and found.identity.boot_count > 0
        is_open = any(segment.state == OPEN or segment.index_problem for segment in found.segments)
        if was_used and not is_open:
            found.limbo.append("the newest segment, which was being written, is missing")

    def _read(self, name: str) -> bytes:
        return self._files.read_file(os.path.join(self._path, name))

    def _path_of(self, name: str) -> str:
        return os.path.join(self._segments_path, name)

    # --- ledgers ----------------------------------------------------------------------------------------------------

    def _take(self, examined: ExaminedSegment) -> None:
        segment = examined.findings
        self._found.segments.append(segment)
        self._found.limbo += examined.limbo
        self._summaries[segment.generation] = examined.summary
        self._states.append(examined.states)
        self._lost += examined.lost
        if examined.predecessor > self._through:
            self._named.setdefault(examined.predecessor, segment.name)

    def _fold(self, ledgers: Rows, deleted: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
        found, index = self._found, LedgerIndex()
        states = np.concatenate(self._states)
        index.load_deleted(deleted)
        index.load_deleted(deleted_by(states))
        index.load_ledgers(folded(np.concatenate((ledgers, ledger_rows(states)))))
        for generation, summary in self._summaries.items():
            index.load_segment(generation, summary)
        intervals = index.deleted_intervals()
        found.deleted_ledgers = int((intervals[:, 1] - intervals[:, 0] + 1).sum()) if intervals.size else 0
        for ledger_id in index.ledger_ids():
            state, trouble = index.folded(ledger_id)
            is_fenced = state is not None and state.is_fenced
            found.ledgers[ledger_id] = LedgerFindings(
                ledger_id, is_fenced=is_fenced, trouble=_TROUBLES.get(trouble, trouble.name)
            )
        if index.state(EVERY_LEDGER).trouble is Reason.LIMBO:
            found.notes.append("every ledger is in limbo, new ones too: this bookie takes no new ledgers")
        for summary in self._summaries.values():
            self._add_bounds(summary)
        for one in self._lost:
            if one.ledger_id in found.ledgers:
                found.ledgers[one.ledger_id].lost.append(one)
        live = index.live_bytes()
        for segment in found.segments:
            segment.live_bytes = live.get(segment.generation, 0)

    def _add_bounds(self, summary: Rows) -> None:
        for row in summary[["ledger", "first", "last", "bytes"]].tolist():
            ledger = self._found.ledgers.get(row[0])
            if ledger is None:
                continue
            ledger.first = row[1] if ledger.first < 0 else min(ledger.first, row[1])
            ledger.last, ledger.frame_bytes = max(ledger.last, row[2]), ledger.frame_bytes + row[3]


def _words(error: Exception) -> str:
    return error.what if isinstance(error, BookKeeperError) else str(error)
