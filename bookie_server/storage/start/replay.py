# SPDX-License-Identifier: Apache-2.0
"""Opening a data directory: state and index of everything it holds, the tail copied, the log ready to go on.

First the newest checkpoint (:class:`StartingPoint`). Then, in generation order, the segments: of one with a valid
``.idx`` the summary, and its state records where no checkpoint has them; any other is scanned (``scan.py``); one that
is drained is put aside unread. Then, before anything is answered (RULES S6): intact frames above the highest recorded
durable position are copied to a new segment and synced; damage that cannot be named puts every ledger in limbo,
durably (S8); the scanned segments are sealed at their durable position, so that each start finds only one segment to
scan. A segment is never appended to after a restart, and nothing is ever taken for empty because it cannot be read.
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
    """The header of an open segment of the directory ``path``, or None if it cannot be read; and what is wrong with it,
    or with the segment's size, in words. A header that fails its check is read once more past the page cache (RULES
    S5)."""
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
    """What a start knows before it looks at any segment: the newest checkpoint, and what follows from it (RULES S4,
    S8). A checkpoint that should be there and is not, or cannot be read, is state that may be lost with the segments
    that were recycled under it: never an empty start, but limbo.

    ``checkpoint``: the one used (number 0: none); ``ledgers`` and ``deleted`` are what it says. ``damage``: a line
    for each file that is not what it should be. ``lost``: a newer one was made and is not readable, and segments may
    have been recycled under it."""

    checkpoint: CheckpointSummary
    ledgers: Rows
    deleted: I64
    damage: tuple[str, ...]
    lost: bool

    def covers(self, generation: int) -> bool:
        """Whether the checkpoint holds all that this segment says of the state of ledgers."""
        return generation <= self.checkpoint.through

    def is_drained(self, generation: int) -> bool:
        """Whether nothing in this segment counts any more; what is left of its files is to be recycled."""
        return self.covers(generation) and generation not in self.checkpoint.segments

    def without_state(self) -> StartingPoint:
        """The same for when the state is in the index: a hundred bytes for each ledger are free again."""
        return replace(self, ledgers=self.ledgers[:0].copy(), deleted=self.deleted[:0].copy())

    @property
    def must_exist(self) -> frozenset[int]:
        """Segments whose absence is a loss. Empty after a loss of checkpoints, which says as much of all of them."""
        return frozenset() if self.lost else self.checkpoint.segments


def find_starting_point(directory: DataDirectory) -> StartingPoint:
    """Read the newest checkpoint that can be read. What is left of one in the making is removed. OSError where the
    directory cannot be read."""
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
    """What opening a data directory found and did. ``damage`` is one line for each piece of damage, for the log and the
    operator; ``tail_bytes_dropped`` counts bytes of groups whose sync never returned."""

    segments: int = 0
    indexes_loaded: int = 0
    indexes_rebuilt: list[int] = field(default_factory=list)
    segments_scanned: int = 0
    frames_copied: int = 0
    tail_bytes_dropped: int = 0
    damage: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    """Those lines of ``damage`` whose ledger cannot be named: every ledger is in limbo from now on."""
    ledgers_in_limbo: list[int] = field(default_factory=list)
    """Ledgers that lost a record of their own: in limbo from now on."""
    newest_sealed: int = 0
    checkpoint: CheckpointSummary = field(default_factory=CheckpointSummary)
    """The newest one that is durable: for the Checkpointer that goes on from it. Number 0: there is none."""
    checkpoint_lost: bool = False
    """A newer checkpoint than the one used was made and cannot be read: every ledger is in limbo from now on."""
    drained: list[int] = field(default_factory=list)
    """Segments that were drained before and are put aside for recycling now."""

    @property
    def limbo(self) -> bool:
        """Whether every ledger is in limbo from now on."""
        return bool(self.unnamed)


def open_segments(
    directory: DataDirectory,
    *,
    segment_size_bytes: int = SEGMENT_SIZE_BYTES,
    segments_kept_free: int = SEGMENTS_KEPT_FREE,
    index_cache_bytes: int = INDEX_CACHE_BYTES,
    now_ms: Callable[[], int] | None = None,
) -> tuple[LedgerIndex, SegmentLog, OpenReport]:
    """Index of everything the directory holds, a log that goes on in a new segment, and what was found.

    When this returns, all that the index says is durable. Raises DataDirectoryError when a segment cannot be read for
    a reason other than damage, or the disk is too full to copy the tail: nothing is lost, a later try may succeed.
    StorageFailedError when a sync failed.
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
    """One opening of a data directory: :meth:`read`, then :meth:`write`. The offline check lets it run over files that
    keep in memory what is written, and looks at what it found.

    ``start``: what was known before any segment was looked at, without the state; ``listing``: the files there are, and
    ``drained`` those segments of them that do not count; ``scanned`` in order, each with its rows; ``missing``: named
    by what stays; ``lost``: named by their mark only."""

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
        self.missing: list[int] = []  # known from an index of nothing from now on
        self.lost: list[int] = []  # their mark goes
        self._sealed: set[int] = set()
        self._summaries: list[tuple[int, Rows]] = []
        self._states: list[Rows] = [np.empty(0, STATE_ROW)]

    def read(self) -> None:
        """Everything that the directory says into the index and the report. Nothing is written but names tidied up."""
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
            # The segment that is being written has no index, and the next one is begun before it gets one.
            self._unnamed_damage("every segment is sealed: the newest one, which was being written, is missing")
        self._fold()

    def write(self) -> SegmentLog:
        """Make durable what follows from it; the log, ready to go on."""
        log = self._open_log(self.listing)
        try:
            if self.report.limbo:
                self._directory.set_mark(LIMBO_NAME)
            self._put_aside(log)
            self._copy_tails(log)
            self._put_in_limbo(log)
            self._with_room(log.record_position)  # what is bad in the copies from now on is damage, and no tail
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
        """Nothing is left of this segment but the file that says that it was there."""
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
            # Every frame in it is named: reads of them fail and are answered UNKNOWN.
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
        """Check the header of a segment, and scan what is not sealed. What is wrong with the header or the size is
        damage: named where an ``.idx`` says what was in the segment, else not."""
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
            return True  # it is drained, or on the checkpoint's list and looked for because of that
        scanned = any(segment.generation == generation for segment in self.scanned)
        return scanned or generation in self._sealed or generation in self.missing

    def _load_index(self, generation: int) -> bool:
        """Take in what the ``.idx`` says. False, and nothing is taken in, if it cannot be read or its parts are not
        intact: then the segment must be scanned."""
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
        """Summary and state records of an ``.idx``; no state records if a checkpoint has them. Raises
        IntegrityError if they are not intact, its size is not what it says, or it is of another segment or
        directory."""
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
        """Everything read so far into the index: state first, all at once."""
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
        for segment in self.scanned:  # what the tail says of ledgers holds before anything is written
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
        """Damage is written down, so that it is known after the scanned segment is sealed and its index trusted."""
        ledger_ids = [*self.report.ledgers_in_limbo, *([EVERY_LEDGER] if self.report.limbo else ())]
        if ledger_ids:
            log.append_group([encode_record(FrameKind.LIMBO, ledger_id) for ledger_id in ledger_ids], reserve=True)
        for ledger_id in ledger_ids:
            self.index.add_record(FrameKind.LIMBO, ledger_id, b"")

    def _prepare(self, log: SegmentLog) -> bool:
        """Begin the next segment, so that a directory in use always has one that is not sealed. On a full disk it stays
        with reads, and the newest segment unsealed: False. A new directory must have room for its first."""
        try:
            if log.position == (0, 0):
                self._with_room(log.prepare_segment)
        except DataDirectoryError:
            if not self._directory.used_before:
                raise
            return False
        return True

    def _with_room(self, write: Callable[[], None]) -> None:
        """Each start leaves a segment nearly empty: on a full disk its unused end makes room for the next one's."""
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
        for generation in self.missing:  # limbo is on record now; an index of nothing says that this one is known of
            header = IndexHeader(generation, self._incarnation, SEGMENT_HEADER_BYTES, 0)
            self._seal(header, build_index(header, b"", StateCollector().rows()).data)
        for generation in self.lost:
            unmark(self._files, self._path, generation)  # one that has an index since then has no mark

    def _seal(self, header: IndexHeader, data: bytes) -> bool:
        try:
            write_index(self._files, self._path, header.generation, data)
        except OSError as error:
            if error.errno in NO_SPACE:  # scanned again at the next start, with the same outcome
                return False
            raise StorageFailedError(
                "the index of a segment could not be made durable", value=f"{self._path}: {error}", remedy=_CHECK
            ) from error
        self._sealed.add(header.generation)
        return True

    def _put_aside(self, log: SegmentLog) -> None:
        """What a crash left of drained segments goes to the pool, once IDENTITY names the checkpoint that says so. Not
        after a loss of checkpoints: then the next one says it again."""
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
        """After a loss, and once limbo is on record: else the next start would find the same loss again. A full disk
        leaves it to that start."""
        if not self.start.lost:
            return
        checkpointer = Checkpointer(self._directory, DirectIndexPort(self.index), log.health, self.start.checkpoint)
        if checkpointer.start():
            while checkpointer.busy:
                checkpointer.step(_COPY_BYTES)
        self.report.checkpoint = checkpointer.newest
