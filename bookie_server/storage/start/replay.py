# SPDX-License-Identifier: Apache-2.0
"""Opens a data directory: builds the index of everything in it, copies the tail, and returns a log that continues in a
new segment.

First it reads the newest checkpoint (:class:`StartingPoint`). Then it reads the segments in the order of their
generations. For a segment with a valid ``.idx`` it reads the summary, and the state records unless the checkpoint has
them. It scans any other segment (``scan.py``), except drained ones, which are put aside unread. Then, before the bookie
answers anything (RULES S6), it does the following. It copies intact frames above the highest recorded durable position
to a new segment and syncs them. If there is damage whose ledger is unknown, it durably puts every ledger in limbo (S8).
It seals the scanned segments at their durable position, so that each start has only one segment to scan. A segment is
never appended to after a restart, and unreadable data never counts as empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from bk_core.entries.frame import FRAME_HEADER_BYTES, FrameKind, encode_record
from bk_core.errors import DataDirectoryError, IntegrityError, StorageFailedError
from bookie_server.storage.bytes.index_file import (
    STATE_ROW,
    IndexHeader,
    StateCollector,
    build_index,
    decode_index_header,
    decode_states,
    decode_summary,
)
from bookie_server.storage.bytes.index_rows import I64, Rows, sorted_rows
from bookie_server.storage.bytes.scan import ScannedSegment, SegmentScanner
from bookie_server.storage.bytes.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    index_name,
    segment_name,
)
from bookie_server.storage.bytes.verify import refused_words
from bookie_server.storage.disk.cookie import LIMBO_NAME, DataDirectory
from bookie_server.storage.disk.files import BLOCK, Files, Handle
from bookie_server.storage.disk.health import NO_SPACE
from bookie_server.storage.index.cache import INDEX_CACHE_BYTES
from bookie_server.storage.index.checkpoint import find_checkpoint, parse_checkpoint_name
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.index.ledger_states import EVERY_LEDGER
from bookie_server.storage.index.ledger_table import LEDGER_ROW
from bookie_server.storage.index.state_rows import deleted_by, folded, ledger_rows
from bookie_server.storage.log.sealing import SealJob, unmark, write_index
from bookie_server.storage.log.segment_log import SEGMENT_SIZE_BYTES, SegmentLog
from bookie_server.storage.log.segment_pool import SEGMENTS_KEPT_FREE
from bookie_server.storage.maintenance.checkpointer import Checkpointer, CheckpointSummary
from bookie_server.storage.maintenance.index_port import DirectIndexPort
from bookie_server.storage.start.listing import Listing, list_segments
from bookie_server.storage.start.log_end import give_back_unused
from bookie_server.storage.start.tail import TailCopier

_CHECK = "check the disk"
_COPY_BYTES = 8 << 20


def read_header(
    files: Files, path: str, handle: Handle, generation: int, incarnation: bytes
) -> tuple[SegmentHeader | None, str | None]:
    """Read the header of an open segment of the directory ``path``. Return it, or None if it cannot be read, and a text
    about what is wrong with it or with the segment's size, or None. A header that fails its check is read again past
    the page cache (RULES S5)."""
    name, size = segment_name(generation), files.size(handle)
    try:
        try:
            header = decode_segment_header(files.read(handle, SEGMENT_HEADER_BYTES, 0))
        except (IntegrityError, OSError):
            block = files.read_past_cache(os.path.join(path, name), SEGMENT_HEADER_BYTES, 0)
            header = decode_segment_header(block)
    except (IntegrityError, OSError) as error:
        return None, f"{name}: {error}"
    if header.generation != generation or header.incarnation != incarnation:
        return header, f"{name} is of generation {header.generation} or of another directory"
    if header.segment_bytes != size:
        return header, f"{name} has {size} bytes instead of {header.segment_bytes}"
    return header, None


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The facts that a start has before it reads any segment. They are the newest checkpoint, and what follows from it
    (RULES S4, S8). If a checkpoint is missing or cannot be read, state may be lost with the segments that were recycled
    under it. That never leads to an empty start, but to limbo.

    ``checkpoint`` is the checkpoint that is used, with number 0 if there is none, and ``ledgers`` and ``deleted`` are
    its contents. ``damage`` has a line for each bad file. ``lost`` means that a newer checkpoint was made and cannot be
    read, and that segments may have been recycled under it.
    """

    checkpoint: CheckpointSummary
    ledgers: Rows
    deleted: I64
    damage: tuple[str, ...]
    lost: bool

    def covers(self, generation: int) -> bool:
        """Return whether the checkpoint holds all ledger state of this segment."""
        return generation <= self.checkpoint.through

    def is_drained(self, generation: int) -> bool:
        """Return whether this segment was drained, so that the rest of its files can be recycled."""
        return self.covers(generation) and generation not in self.checkpoint.segments

    def without_state(self) -> StartingPoint:
        """Return a copy without the state, once that is in the index. This frees about a hundred bytes for each
        ledger."""
        return replace(self, ledgers=self.ledgers[:0].copy(), deleted=self.deleted[:0].copy())

    @property
    def must_exist(self) -> frozenset[int]:
        """The segments whose absence is a loss. Empty if checkpoints are lost, because that puts every ledger in limbo
        anyway."""
        return frozenset() if self.lost else self.checkpoint.segments


def find_starting_point(directory: DataDirectory) -> StartingPoint:
    """Read the newest readable checkpoint, and remove the files of an unfinished one. Raises OSError if the directory
    cannot be read."""
    files, path, identity = directory.files, directory.segments_path, directory.identity
    for name in files.names(path):
        if name.endswith(".tmp") and parse_checkpoint_name(name.removesuffix(".tmp")) is not None:
            files.remove(os.path.join(path, name))
    found = find_checkpoint(files, path, identity.incarnation_bytes)
    newest, damage = found.newest, list(found.damage)
    number = newest.number if newest is not None else 0
    lost = number < identity.checkpoint
    if lost:
        damage.append(f"checkpoint {identity.checkpoint} is lost, the newest that can be read is {number}")
    if newest is None:
        nothing = np.empty((0, 2), np.int64)
        return StartingPoint(CheckpointSummary(), np.empty(0, LEDGER_ROW), nothing, tuple(damage), lost)
    summary = CheckpointSummary(number, newest.through, frozenset(newest.segments), found.file_bytes)
    return StartingPoint(summary, newest.ledgers, newest.deleted, tuple(damage), lost)


@dataclass(slots=True)
class OpenReport:
    """The findings and actions of opening a data directory. ``damage`` has a line for each piece of damage, for the log
    and the operator. ``tail_bytes_dropped`` counts bytes of groups whose sync never returned."""

    segments: int = 0
    indexes_loaded: int = 0
    indexes_rebuilt: list[int] = field(default_factory=list)
    segments_scanned: int = 0
    frames_copied: int = 0
    tail_bytes_dropped: int = 0
    damage: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    """The lines of ``damage`` whose ledger is unknown. They put every ledger in limbo."""
    ledgers_in_limbo: list[int] = field(default_factory=list)
    """The ledgers that have lost a record of their own, and so are put in limbo."""
    newest_sealed: int = 0
    checkpoint: CheckpointSummary = field(default_factory=CheckpointSummary)
    """The newest durable checkpoint, from which the Checkpointer continues. It has number 0 if there is none."""
    checkpoint_lost: bool = False
    """Whether a newer checkpoint than the one used was made and cannot be read. That puts every ledger in limbo."""
    drained: list[int] = field(default_factory=list)
    """The segments that were drained earlier and that this start put aside for recycling."""

    @property
    def limbo(self) -> bool:
        """Whether every ledger is put in limbo."""
        return bool(self.unnamed)


def open_segments(
    directory: DataDirectory,
    *,
    segment_size_bytes: int = SEGMENT_SIZE_BYTES,
    segments_kept_free: int = SEGMENTS_KEPT_FREE,
    index_cache_bytes: int = INDEX_CACHE_BYTES,
    now_ms: Callable[[], int] | None = None,
) -> tuple[LedgerIndex, SegmentLog, OpenReport]:
    """Open the directory's segments. Return the index of everything in them, a log that continues in a new segment, and
    a report.

    When this returns, everything in the index is durable. Raises DataDirectoryError if a segment cannot be read for a
    reason other than damage, or the disk is too full to copy the tail; then nothing is lost, and a later try may
    succeed. Raises StorageFailedError if a sync fails.
    """
    try:
        opening = Opening(directory, segment_size_bytes, segments_kept_free, index_cache_bytes, now_ms)
        opening.read()
        return opening.index, opening.write(), opening.report
    except OSError as error:
        raise DataDirectoryError(
            "the segments of a data directory cannot be read", value=f"{directory.path}: {error}", remedy=_CHECK
        ) from error


class Opening:
    """One opening of a data directory, by :meth:`read` and then :meth:`write`. The offline check runs it over files
    that keep its writes in memory, and uses its findings.

    ``start`` has the facts before any segment was read, without the state. ``listing`` has the existing files, and
    ``drained`` the segments among them that do not count. ``scanned`` has the scanned segments in order, each with its
    rows. ``missing`` are segments that are gone but named by other files, and ``lost`` those of which only the
    ``.unsealed`` is left.
    """

    def __init__(
        self,
        directory: DataDirectory,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        segments_kept_free: int = SEGMENTS_KEPT_FREE,
        index_cache_bytes: int = INDEX_CACHE_BYTES,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._directory, self._files = directory, directory.files
        self._path, self._incarnation = directory.segments_path, directory.identity.incarnation_bytes
        self._segment_size_bytes, self._now_ms = segment_size_bytes, now_ms
        self._segments_kept_free = segments_kept_free
        self.index, self.report = LedgerIndex(index_cache_bytes), OpenReport()
        self.start, self.listing = find_starting_point(directory), Listing()
        self.drained: set[int] = set()
        self.scanned: list[ScannedSegment] = []
        self.missing: list[int] = []  # these get an empty index, which shows that they existed
        self.lost: list[int] = []  # the ``.unsealed`` of these is removed
        self._sealed: set[int] = set()
        self._summaries: list[tuple[int, Rows]] = []
        self._states: list[Rows] = [np.empty(0, STATE_ROW)]

    def read(self) -> None:
        """Read the whole directory into the index and the report. This writes nothing; it only tidies up file names."""
        listing = self.listing = list_segments(self._files, self._path, self._segment_size_bytes)
        self._note_starting_point()
        self.drained = {
            generation for generation in listing.segments | listing.indexes if self.start.is_drained(generation)
        }
        generations, indexes = listing.segments - self.drained, listing.indexes - self.drained
        self.report.segments = len(generations)
        if self._directory.has_mark(LIMBO_NAME):
            self._unnamed_damage("an earlier start found damage and was cut off before all of it was on record")
        for generation in sorted(listing.lost):
            self._note_lost(generation)
        if not generations and self._directory.used_before:
            self._unnamed_damage("the directory was used before and holds no segment")
        for generation in sorted({*generations, *indexes, *self.start.must_exist}):
            self._load(generation, generation in generations, generation in indexes)
        if generations and not self.scanned and self._directory.used_before:
            # A segment gets its index only after the next one is begun, so there is always one without an index.
            self._unnamed_damage("every segment is sealed: the newest one, which was being written, is missing")
        self._fold()

    def write(self) -> SegmentLog:
        """Make the consequences of the findings durable; return the log, ready for writes."""
        log = self._open_log(self.listing)
        try:
            if self.report.limbo:
                self._directory.set_mark(LIMBO_NAME)
            self._put_aside(log)
            self._copy_tails(log)
            self._put_in_limbo(log)
            self._with_room(log.record_position)  # bad bytes in the copies then count as damage, not as a tail
            prepared = self._prepare(log)
            self._seal_scanned(log, prepared)
            self._renew_checkpoint(log)
            if self.report.limbo:
                self._directory.clear_mark(LIMBO_NAME)
            self._directory.record_boot()
        except BaseException:
            log.close(record=False)
            raise
        self.report.newest_sealed = max(self._sealed, default=0)
        log.note_sealed(self.report.newest_sealed)
        return log

    def _unnamed_damage(self, what: str) -> None:
        self.report.damage.append(what)
        self.report.unnamed.append(what)

    def _note_starting_point(self) -> None:
        start = self.start
        self.report.damage += start.damage
        self.report.checkpoint, self.report.checkpoint_lost = start.checkpoint, start.lost
        if start.lost:
            self._unnamed_damage("segments may have been recycled under a checkpoint that is lost")

    def _note_lost(self, generation: int) -> None:
        """Record a segment of which only the ``.unsealed`` is left."""
        if self.start.covers(generation):
            unmark(self._files, self._path, generation)
        else:
            self._unnamed_damage(f"{segment_name(generation)} is missing, and it had no index yet")
            self.lost.append(generation)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _load(self, generation: int, has_segment: bool, has_index: bool) -> None:
        name = segment_name(generation)
        sealed = has_index and self._load_index(generation)
        if sealed and not has_segment:
            # The index names every frame in it, so reads of them fail and are answered UNKNOWN.
            self.report.damage.append(f"{name} is missing; its index names what was in it")
            return
        if not has_segment:
            self._unnamed_damage(f"{name} is missing and has no readable index")
            self.missing.append(generation)
            return
        handle = self._files.open_read(os.path.join(self._path, name))
        try:
            self._look_into(name, handle, generation, sealed=sealed)
        finally:
            self._files.close(handle)
        if has_index and not sealed and self.scanned[-1].is_empty:
            self._unnamed_damage(f"{name} was sealed, its index is unreadable and nothing is found in it")

    def _look_into(self, name: str, handle: Handle, generation: int, *, sealed: bool) -> None:
        """Check the header of a segment, and scan the segment if it is not sealed. A wrong header or size is damage.
        Its ledgers are known if an ``.idx`` names the segment's contents, and unknown otherwise."""
        if not sealed:
            self._files.drop_cache(handle)
        header, problem = read_header(self._files, self._path, handle, generation, self._incarnation)
        if problem is not None and sealed:
            self.report.damage.append(problem)
        elif problem is not None:
            self._unnamed_damage(problem)
        if header is not None and header.newest_sealed and not self._is_known(header.newest_sealed):
            self._unnamed_damage(f"{segment_name(header.newest_sealed)} is missing; {name} was begun after it")
            self.missing.append(header.newest_sealed)
        if not sealed:
            self._scan(generation, handle, self._files.size(handle))

    def _is_known(self, generation: int) -> bool:
        if self.start.covers(generation):
            return True  # it is drained, or is on the checkpoint's list and so looked for anyway
        scanned = any(segment.generation == generation for segment in self.scanned)
        return scanned or generation in self._sealed or generation in self.missing

    def _load_index(self, generation: int) -> bool:
        """Load the summary and the state records of an ``.idx``. Return False, without loading anything, if it cannot
        be read or its parts are not intact; then the segment must be scanned."""
        try:
            summary, states = self._read_index(generation)
        except (IntegrityError, OSError):
            self.report.indexes_rebuilt.append(generation)
            return False
        self._summaries.append((generation, summary))
        self._states.append(states)
        self._sealed.add(generation)
        self.report.indexes_loaded += 1
        return True

    def _read_index(self, generation: int) -> tuple[Rows, Rows]:
        """Return the summary and the state records of an ``.idx``; no state records if the checkpoint has them. Raises
        IntegrityError if they are not intact, if the file's size is not that in its header, or if it belongs to another
        segment or directory."""
        handle = self._files.open_read(os.path.join(self._path, index_name(generation)))

        def read(offset: int, size: int) -> bytes:
            return self._files.read(handle, size, offset)

        try:
            sections = decode_index_header(read(0, BLOCK))
            if (sections.header.generation, sections.header.incarnation) != (generation, self._incarnation):
                raise IntegrityError("an index file is of another segment", value=f"{sections.header.generation}")
            if self._files.size(handle) != sections.file_bytes:
                raise IntegrityError("an index file has another size than its header says")
            summary = decode_summary(sections, read(*sections.summary_range))
            if self.start.covers(generation):
                return summary, np.empty(0, STATE_ROW)
            return summary, decode_states(sections, read(*sections.state_range))
        finally:
            self._files.close(handle)

    def _scan(self, generation: int, handle: Handle, size: int) -> None:
        segment = SegmentScanner(partial(self._files.read, handle), generation, self._incarnation, size).scan()
        self.scanned.append(segment)
        self._states.append(segment.states.rows())
        self.report.segments_scanned += 1
        self.report.tail_bytes_dropped += sum(size for _, size, _ in segment.tail)
        for offset, size, what in segment.damage:
            self._unnamed_damage(f"{segment_name(generation)} at {offset}, {size} bytes: {what}")
        for frame in segment.bad_frames:
            ledger_id = frame.header.ledger_id
            self.report.damage.append(
                f"{segment_name(generation)} at {frame.place.offset}: a frame of ledger {ledger_id} has a bad payload"
            )
            known = frame.header.kind == FrameKind.ENTRIES or self.start.covers(generation)
            if not known and ledger_id not in self.report.ledgers_in_limbo:
                self.report.ledgers_in_limbo.append(ledger_id)
        if segment.refused and (segment.damage or segment.bad_frames):
            self.report.damage.append(f"{segment_name(generation)}: {refused_words(segment)}")

    def _fold(self) -> None:
        """Load everything read so far into the index: first all state at once, then the segments."""
        states = np.concatenate(self._states)
        self.index.load_deleted(self.start.deleted)
        self.index.load_deleted(deleted_by(states))
        self._states.clear()
        ledgers = self.start.ledgers
        self.start = self.start.without_state()
        if states.size:
            ledgers = folded(np.concatenate((ledgers, ledger_rows(states))))
        self.index.load_ledgers(ledgers)
        del ledgers, states
        for generation, summary in self._summaries:
            self.index.seal(generation, summary)
        self._summaries.clear()
        for segment in self.scanned:  # the tail's state records hold before anything is written
            handle = self._files.open_read(os.path.join(self._path, segment_name(segment.generation)))
            try:
                for frame in segment.above:
                    if frame.header.kind != FrameKind.ENTRIES:
                        start = frame.place.offset + FRAME_HEADER_BYTES
                        payload = self._files.read(handle, frame.header.payload_bytes, start)
                        self.index.add_record(frame.header.kind, frame.header.ledger_id, payload)
            finally:
                self._files.close(handle)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _open_log(self, listing: Listing) -> SegmentLog:
        return SegmentLog(
            self._path,
            self._directory.identity,
            files=self._files,
            segment_size_bytes=self._segment_size_bytes,
            newest_generation=max(listing.newest, self.start.checkpoint.through),
            newest_sealed=max(self._sealed, default=0),
            free=listing.free,
            segments_kept_free=self._segments_kept_free,
            now_ms=self._now_ms,
        )

    def _copy_tails(self, log: SegmentLog) -> None:
        copier = TailCopier(self._files, self._path, self._incarnation, log, self.index, self._segment_size_bytes)
        self._with_room(lambda: copier.copy(self.scanned))
        self.report.frames_copied += copier.frames

    def _put_in_limbo(self, log: SegmentLog) -> None:
        """Write limbo records for the damage, so that it is still known after the scanned segment is sealed and its
        index trusted."""
        ledger_ids = [*self.report.ledgers_in_limbo, *([EVERY_LEDGER] if self.report.limbo else ())]
        if ledger_ids:
            log.append_group([encode_record(FrameKind.LIMBO, ledger_id) for ledger_id in ledger_ids], reserve=True)
        for ledger_id in ledger_ids:
            self.index.add_record(FrameKind.LIMBO, ledger_id, b"")

    def _prepare(self, log: SegmentLog) -> bool:
        """Begin the next segment, so that a directory in use always has one that is not sealed. Return False on a full
        disk; then the bookie only serves reads, and the newest segment stays unsealed. A new directory must have room
        for its first segment."""
        try:
            if log.position == (0, 0):
                self._with_room(log.prepare_segment)
        except DataDirectoryError:
            if not self._directory.used_before:
                raise
            return False
        return True

    def _with_room(self, write: Callable[[], None]) -> None:
        """Call ``write``. On a full disk first give back the unused ends of the scanned segments: each start leaves a
        nearly empty segment, whose unused end makes room for the next one."""
        try:
            write()
        except DataDirectoryError:
            if not sum(map(self._give_back_unused, self.scanned)):
                raise
            write()

    def _give_back_unused(self, segment: ScannedSegment) -> int:
        is_sound = not (self.report.damage or segment.refused)
        return give_back_unused(self._files, self._path, segment, self._incarnation) if is_sound else 0

    def _seal_scanned(self, log: SegmentLog, prepared: bool) -> None:
        for segment in self.scanned:
            generation, may_seal = segment.generation, prepared or segment is not self.scanned[-1]
            if may_seal and segment.is_empty and not (segment.refused or self.report.limbo):
                log.pool.recycle(generation)
                continue
            header = IndexHeader(generation, self._incarnation, segment.durable, segment.groups_below_durable)
            built = build_index(header, segment.rows, segment.states.rows()) if may_seal else None
            if built is not None and self._seal(header, built.data):
                self.index.seal(generation, built.summary)
                self._give_back_unused(segment)
            else:
                self.index.add_rows(generation, sorted_rows(segment.rows))
                log.seal_later(SealJob(generation, segment.rows, segment.states, segment.durable, header.group_count))
            for frame in segment.bad_frames:
                if frame.header.kind == FrameKind.ENTRIES:
                    self.index.mark_damaged(frame.header.ledger_id, frame.place)
        for generation in self.missing:  # limbo is on record; an empty index shows that the segment existed
            header = IndexHeader(generation, self._incarnation, SEGMENT_HEADER_BYTES, 0)
            self._seal(header, build_index(header, b"", StateCollector().rows()).data)
        for generation in self.lost:
            unmark(self._files, self._path, generation)  # a segment that has got an index has none

    def _seal(self, header: IndexHeader, data: bytes) -> bool:
        try:
            write_index(self._files, self._path, header.generation, data)
        except OSError as error:
            if error.errno in NO_SPACE:  # the next start scans it again, with the same outcome
                return False
            raise StorageFailedError(
                "the index of a segment could not be made durable", value=f"{self._path}: {error}", remedy=_CHECK
            ) from error
        self._sealed.add(header.generation)
        return True

    def _put_aside(self, log: SegmentLog) -> None:
        """Give drained segments that a crash left over to the pool, after IDENTITY names the checkpoint that proves
        that they are drained. If checkpoints are lost, this is left to a later start with a new checkpoint."""
        if not self.drained or self.start.lost:
            return
        try:
            self._directory.record_checkpoint(self.start.checkpoint.number)
        except OSError as error:
            if error.errno in NO_SPACE:
                return
            raise StorageFailedError(
                "the identity file could not be made durable", value=f"{self._directory.path}: {error}", remedy=_CHECK
            ) from error
        for generation in sorted(self.drained):
            if generation in self.listing.segments:
                log.pool.recycle(generation)
            else:
                self._files.remove(os.path.join(self._path, index_name(generation)))
        self.report.drained = sorted(self.drained)

    def _renew_checkpoint(self, log: SegmentLog) -> None:
        """Write a new checkpoint if one is lost, once limbo is on record, because otherwise the next start would find
        the same loss again. On a full disk this is left to that start."""
        if not self.start.lost:
            return
        checkpointer = Checkpointer(self._directory, DirectIndexPort(self.index), log.health, self.start.checkpoint)
        if checkpointer.start():
            while checkpointer.busy:
                checkpointer.step(_COPY_BYTES)
        self.report.checkpoint = checkpointer.newest
