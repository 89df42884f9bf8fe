# SPDX-License-Identifier: Apache-2.0
"""Opening a data directory: every segment into the index, the tail copied, the log ready to go on.

In generation order: a valid ``.idx`` is loaded; any other segment is scanned (``scan.py``). Then, before anything is
answered (RULES S6): intact frames above the highest recorded durable position are copied to a new segment and synced;
damage that cannot be named puts every ledger in limbo, durably (S8); the scanned segments are sealed at their durable
position, so that each start finds only one segment to scan. A segment is never appended to after a restart, and nothing
is ever taken for empty because it cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from bk_core.entries.frame import (
    FRAME_HEADER_BYTES,
    FrameKind,
    encode_counter_record,
    frame_extent,
    parse_header,
)
from bk_core.errors import DataDirectoryError, IntegrityError, StorageFailedError
from bookie_server.storage.commit import NO_SPACE, SEGMENT_SIZE_BYTES, SegmentLog
from bookie_server.storage.cookie import DataDirectory
from bookie_server.storage.files import Handle
from bookie_server.storage.index import EVERY_UNHEARD_LEDGER, LedgerIndex, striping_of
from bookie_server.storage.index_file import (
    IndexHeader,
    Rows,
    StateCollector,
    decode_index_file,
    encode_index_file,
    sorted_rows,
)
from bookie_server.storage.reader import check_stored_frame
from bookie_server.storage.scan import ScannedFrame, ScannedSegment, SegmentScanner
from bookie_server.storage.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    index_name,
    parse_name,
    segment_name,
)

_COPY_BYTES = 8 << 20
_COUNTER_RECORD_ROOM = 128
_CHECK = "check the disk"


@dataclass(slots=True)
class OpenReport:
    """What opening a data directory found and did. ``damage`` is one line for each piece of damage, for the log and the
    operator; ``tail_bytes_dropped`` counts bytes of groups whose sync never returned."""

    segments: int = 0
    indexes_loaded: int = 0
    indexes_rebuilt: list[int] = field(default_factory=list)
    segments_scanned: int = 0
    frames: int = 0
    frames_copied: int = 0
    tail_bytes_dropped: int = 0
    damage: list[str] = field(default_factory=list)
    limbo: bool = False
    """Damage was found whose ledger cannot be named: every ledger is in limbo from now on."""
    ledgers_in_limbo: list[int] = field(default_factory=list)
    """Ledgers that lost a record of their own: in limbo from now on."""
    newest_sealed: int = 0


def open_segments(
    directory: DataDirectory,
    *,
    segment_size_bytes: int = SEGMENT_SIZE_BYTES,
    now_ms: Callable[[], int] | None = None,
) -> tuple[LedgerIndex, SegmentLog, OpenReport]:
    """Index of everything the directory holds, a log that goes on in a new segment, and what was found.

    When this returns, all that the index says is durable. Raises DataDirectoryError when a segment cannot be read for
    a reason other than damage, or the disk is too full to copy the tail: nothing is lost, a later try may succeed.
    StorageFailedError when a sync failed.
    """
    opening = _Opening(directory, segment_size_bytes, now_ms)
    try:
        return opening.run()
    except OSError as error:
        raise DataDirectoryError(
            "the segments of a data directory cannot be read", value=f"{directory.path}: {error}", remedy=_CHECK
        ) from error
    finally:
        opening.release()


class _Opening:
    """One opening of a data directory."""

    def __init__(self, directory: DataDirectory, segment_size_bytes: int, now_ms: Callable[[], int] | None) -> None:
        self._directory, self._files = directory, directory.files
        self._path, self._incarnation = directory.segments_path, directory.identity.incarnation_bytes
        self._segment_size_bytes, self._now_ms = segment_size_bytes, now_ms
        self._index, self._report = LedgerIndex(), OpenReport()
        self._scanned: list[ScannedSegment] = []
        self._handles: dict[int, Handle] = {}
        self._sealed: set[int] = set()
        self._missing: list[int] = []

    def release(self) -> None:
        for handle in self._handles.values():
            self._files.close(handle)
        self._handles.clear()

    def run(self) -> tuple[LedgerIndex, SegmentLog, OpenReport]:
        generations, indexes = self._list()
        self._report.segments = len(generations)
        if self._directory.limbo_begun:
            self._unnamed_damage("an earlier start found damage and was cut off before all of it was on record")
        if not generations and self._directory.used_before:
            self._unnamed_damage("the directory was used before and holds no segment")
        for generation in sorted({*generations, *indexes}):
            self._load(generation, generation in generations, generation in indexes)
        if generations and not self._scanned and self._directory.used_before:
            # The segment that is being written has no index, and the next one is begun before it gets one.
            self._unnamed_damage("every segment is sealed: the newest one, which was being written, is missing")
        log = self._open_log(max([0, *generations, *indexes]))
        try:
            if self._report.limbo:
                self._directory.begin_limbo()
            self._copy_tails(log)
            self._put_in_limbo(log)
            prepared = self._prepare(log)
            self._seal_scanned(prepared)
            if self._report.limbo:
                self._directory.end_limbo()
            self._directory.record_boot()
        except BaseException:
            log.close(record=False)
            raise
        self._report.newest_sealed = max(self._sealed, default=0)
        log.note_sealed(self._report.newest_sealed)
        return self._index, log, self._report

    def _list(self) -> tuple[set[int], set[int]]:
        generations: set[int] = set()
        indexes: set[int] = set()
        for name in self._files.names(self._path):
            parsed = parse_name(name)
            if parsed is not None:
                (generations if parsed[1] == "segment" else indexes).add(parsed[0])
            elif name.endswith(".tmp") and parse_name(name.removesuffix(".tmp")) is not None:
                self._files.remove(os.path.join(self._path, name))  # cut short before it was ever used
        return generations, indexes

    def _unnamed_damage(self, what: str) -> None:
        self._report.damage.append(what)
        self._report.limbo = True

    # --- reading ----------------------------------------------------------------------------------------------------

    def _load(self, generation: int, has_segment: bool, has_index: bool) -> None:
        name = segment_name(generation)
        loaded = self._load_index(generation) if has_index else None
        if loaded is not None:
            self._take_rows(generation, *loaded)
            self._sealed.add(generation)
            if not has_segment:
                # Every frame in it is named: reads of them fail and are answered UNKNOWN.
                self._report.damage.append(f"{name} is missing; its index names what was in it")
                return
        elif not has_segment:
            self._unnamed_damage(f"{name} is missing and its index is unreadable")
            self._missing.append(generation)
            return
        handle = self._handles[generation] = self._files.open_read(os.path.join(self._path, name))
        if loaded is None:
            self._files.drop_cache(handle)
        size = self._files.size(handle)
        header = self._check_header(name, handle, generation, size, named=loaded is not None)
        if header is not None and header.newest_sealed and not self._is_known(header.newest_sealed):
            self._unnamed_damage(f"{segment_name(header.newest_sealed)} is missing; {name} was begun after it")
            self._missing.append(header.newest_sealed)
        if loaded is None:
            self._scan(generation, handle, size)
        self._files.close(self._handles.pop(generation))

    def _is_known(self, generation: int) -> bool:
        scanned = any(segment.generation == generation for segment in self._scanned)
        return scanned or generation in self._sealed or generation in self._missing

    def _check_header(
        self, name: str, handle: Handle, generation: int, size: int, *, named: bool
    ) -> SegmentHeader | None:
        """The segment's header. What is wrong with it, or with its size, is damage: named where an ``.idx`` says what
        was in the segment, else not."""
        problem: str | None = None
        header: SegmentHeader | None = None
        try:
            header = self._read_header(name, handle)
            if header.generation != generation or header.incarnation != self._incarnation:
                problem = f"{name} is of generation {header.generation} or of another directory"
            elif header.segment_bytes != size:
                problem = f"{name} has {size} bytes instead of {header.segment_bytes}"
        except (IntegrityError, OSError) as error:
            problem = f"{name}: {error}"
        if problem is not None and named:
            self._report.damage.append(problem)
        elif problem is not None:
            self._unnamed_damage(problem)
        return header

    def _read_header(self, name: str, handle: Handle) -> SegmentHeader:
        """What fails its check is read once more from the disk itself (RULES S5)."""
        try:
            return decode_segment_header(self._files.read(handle, SEGMENT_HEADER_BYTES, 0))
        except (IntegrityError, OSError):
            path = os.path.join(self._path, name)
            return decode_segment_header(self._files.read_past_cache(path, SEGMENT_HEADER_BYTES, 0))

    def _load_index(self, generation: int) -> tuple[Rows, Rows] | None:
        try:
            data = self._files.read_file(os.path.join(self._path, index_name(generation)))
            header, rows, states = decode_index_file(data)
        except (IntegrityError, OSError):
            self._report.indexes_rebuilt.append(generation)
            return None
        if header.generation != generation or header.incarnation != self._incarnation:
            self._report.indexes_rebuilt.append(generation)
            return None
        self._report.indexes_loaded += 1
        return rows, states

    def _take_rows(self, generation: int, rows: Rows, states: Rows) -> None:
        self._index.add_rows(generation, rows)
        self._report.frames += int(rows.size)
        for row in states.tolist():
            ledger_id, kind, payload_bytes, _, _, payload, _ = row
            self._index.add_record(kind, ledger_id, bytes(payload[:payload_bytes]))

    def _scan(self, generation: int, handle: Handle, size: int) -> None:
        segment = SegmentScanner(self._files, handle, generation, self._incarnation, size).scan()
        self._scanned.append(segment)
        self._report.segments_scanned += 1
        self._report.tail_bytes_dropped += sum(size for _, size, _ in segment.tail)
        for offset, size, what in segment.damage:
            self._unnamed_damage(f"{segment_name(generation)} at {offset}, {size} bytes: {what}")
        self._take_rows(generation, sorted_rows(segment.rows), segment.states.rows())
        for frame in segment.bad_frames:
            ledger_id, kind = frame.header.ledger_id, frame.header.kind
            self._report.damage.append(
                f"{segment_name(generation)} at {frame.place.offset}: a frame of ledger {ledger_id} has a bad payload"
            )
            if kind == FrameKind.ENTRIES:
                self._index.mark_damaged(ledger_id, frame.place)
            elif ledger_id not in self._report.ledgers_in_limbo:
                self._report.ledgers_in_limbo.append(ledger_id)
        for frame in segment.above:  # counters and deletions of the tail hold for all that is written from here on
            if frame.header.kind != FrameKind.ENTRIES:
                self._index.add_record(frame.header.kind, frame.header.ledger_id, self._payload_of(frame, handle))

    def _payload_of(self, frame: ScannedFrame, handle: Handle) -> bytes:
        start = frame.place.offset + FRAME_HEADER_BYTES
        return self._files.read(handle, frame.header.payload_bytes, start)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _open_log(self, newest: int) -> SegmentLog:
        return SegmentLog(
            self._path,
            self._directory.identity,
            files=self._files,
            segment_size_bytes=self._segment_size_bytes,
            newest_generation=newest,
            newest_sealed=max(self._sealed, default=0),
            counters=self._index.counters(),
            now_ms=self._now_ms,
        )

    def _copy_tails(self, log: SegmentLog) -> None:
        """Frames above the durable position may have been acked: make them durable again, elsewhere (RULES S6)."""
        for segment in self._scanned:
            batch: list[tuple[ScannedFrame, bytes]] = []
            size = 0
            for frame in segment.above:
                if frame.header.kind == FrameKind.COUNTER:
                    continue  # written anew where it is needed
                if self._is_copied(frame):
                    continue
                batch.append((frame, self._read_frame(frame)))
                size += frame.place.size + _COUNTER_RECORD_ROOM
                if size >= min(_COPY_BYTES, self._segment_size_bytes // 2):
                    self._copy(log, batch)
                    batch, size = [], 0
            self._copy(log, batch)

    def _is_copied(self, frame: ScannedFrame) -> bool:
        """Whether an earlier start has copied it already (its ``.idx`` was lost since)."""
        if frame.header.kind != FrameKind.ENTRIES:
            return False
        extent, place = frame_extent(self._read_frame(frame), frame.header), frame.place
        return self._index.has_copy(frame.header.ledger_id, extent.first, extent.last, place.size, place.generation)

    def _read_frame(self, frame: ScannedFrame) -> bytes:
        name = segment_name(frame.place.generation)
        handle = self._files.open_read(os.path.join(self._path, name))
        try:
            data = self._files.read(handle, frame.place.size, frame.place.offset)
        finally:
            self._files.close(handle)
        check_stored_frame(data, frame.place, self._incarnation)
        return data

    def _copy(self, log: SegmentLog, batch: list[tuple[ScannedFrame, bytes]]) -> None:
        if not batch:
            return
        places = log.append_group([data for _, data in batch], counters=[frame.counter for frame, _ in batch])
        for (frame, data), place in zip(batch, places, strict=True):
            self._report.frames_copied += 1
            if frame.header.kind == FrameKind.ENTRIES:
                self._report.frames += 1
                header = parse_header(data)
                self._index.add_frame(
                    header.ledger_id, frame_extent(data, header), place,
                    counter=frame.counter, striping=striping_of(data, header),
                )  # fmt: skip

    def _put_in_limbo(self, log: SegmentLog) -> None:
        """Damage is written down, so that it is known after the scanned segment is sealed and its index trusted."""
        ledger_ids = sorted(self._report.ledgers_in_limbo)
        if self._report.limbo:
            ledger_ids = sorted({*self._index.ledger_ids(), *ledger_ids, EVERY_UNHEARD_LEDGER})
        counters = self._index.counters()
        for start in range(0, len(ledger_ids), 1024):
            part = ledger_ids[start : start + 1024]
            records = [
                encode_counter_record(FrameKind.LIMBO_SET, ledger_id, counters.get(ledger_id, 0) + 1)
                for ledger_id in part
            ]
            log.append_group(records)
            for ledger_id, record in zip(part, records, strict=True):
                self._index.add_record(FrameKind.LIMBO_SET, ledger_id, record[FRAME_HEADER_BYTES:])

    def _prepare(self, log: SegmentLog) -> bool:
        """Begin the next segment, so that a directory in use always has one that is not sealed. On a full disk it stays
        with reads, and the newest segment unsealed: False. A new directory must have room for its first."""
        try:
            if log.position == (0, 0):
                log.prepare_segment()
        except DataDirectoryError:
            if not self._directory.used_before:
                raise
            return False
        return True

    def _seal_scanned(self, prepared: bool) -> None:
        removed = False
        for segment in self._scanned if prepared else self._scanned[:-1]:
            if segment.is_empty and not self._report.limbo:
                self._files.remove(os.path.join(self._path, segment_name(segment.generation)))
                removed = True
                continue
            header = IndexHeader(segment.generation, self._incarnation, segment.durable, segment.groups_below_durable)
            self._seal(header, encode_index_file(header, sorted_rows(segment.rows), segment.states.rows()))
        for generation in self._missing:  # limbo is on record now; an index of nothing says that this one is known of
            header = IndexHeader(generation, self._incarnation, SEGMENT_HEADER_BYTES, 0)
            self._seal(header, encode_index_file(header, sorted_rows(b""), StateCollector().rows()))
        if removed:
            self._files.sync_directory(self._path)

    def _seal(self, header: IndexHeader, data: bytes) -> None:
        try:
            self._files.write_atomically(os.path.join(self._path, index_name(header.generation)), data)
        except OSError as error:
            if error.errno in NO_SPACE:  # scanned again at the next start, with the same outcome
                return
            raise StorageFailedError(
                "the index of a segment could not be made durable", value=f"{self._path}: {error}", remedy=_CHECK
            ) from error
        self._sealed.add(header.generation)
