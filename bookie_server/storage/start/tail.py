# SPDX-License-Identifier: Apache-2.0
"""Copies the frames above the highest durable position on record, which may have been acknowledged. The copies are
durable before the bookie answers anything (RULES S6)."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from bk_core.entries.frame import FrameKind, frame_extent, parse_header
from bookie_server.storage.bytes.index_rows import INDEX_ROW
from bookie_server.storage.bytes.membership import striping_of
from bookie_server.storage.bytes.scan import ScannedFrame, ScannedSegment
from bookie_server.storage.bytes.segment import segment_name
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_log import SegmentLog
from bookie_server.storage.log.segment_reader import check_stored_frame

_COPY_BYTES = 8 << 20


class TailCopier:
    """Copies the tails of scanned segments of the directory ``path`` into ``log`` and ``index``."""

    def __init__(
        self, files: Files, path: str, incarnation: bytes, log: SegmentLog, index: LedgerIndex, segment_bytes: int
    ) -> None:
        self._files, self._path, self._incarnation = files, path, incarnation
        self._log, self._index = log, index
        self._batch_bytes = min(_COPY_BYTES, segment_bytes // 2)
        self._greatest: dict[tuple[int, int, int, int], int] = {}
        self.frames = 0
        """The number of frames copied."""

    def copy(self, segments: Iterable[ScannedSegment]) -> None:
        """Copy the tails of these segments, durably. Raises as :meth:`SegmentLog.append_group`."""
        segments = list(segments)
        self._find_earlier_copies(segments)
        for segment in segments:
            batch: list[tuple[ScannedFrame, bytes]] = []
            size = 0
            for frame in segment.above:
                if self._is_copied(frame):
                    continue
                batch.append((frame, self._read(frame)))
                size += frame.place.size
                if size >= self._batch_bytes:
                    self._copy(batch)
                    batch, size = [], 0
            self._copy(batch)

    def _is_copied(self, frame: ScannedFrame) -> bool:
        """Return whether an earlier start has copied the frame already. Its segment is scanned again because its
        ``.idx`` was lost since."""
        if frame.header.kind != FrameKind.ENTRIES:
            return False
        extent, place = frame_extent(self._read(frame), frame.header), frame.place
        key = (frame.header.ledger_id, extent.first, extent.last, place.size)
        if self._greatest.get(key, 0) > place.generation:
            return True
        return self._index.has_copy(*key, place.generation)

    def _find_earlier_copies(self, segments: list[ScannedSegment]) -> None:
        """Note the frames of the tails' ledgers below the durable positions of scanned segments, so that
        :meth:`_is_copied` recognises the copies of an earlier start."""
        entries = [
            f.header.ledger_id for segment in segments for f in segment.above if f.header.kind == FrameKind.ENTRIES
        ]
        for segment in segments if entries else ():
            rows = np.frombuffer(segment.rows, INDEX_ROW)
            rows = rows[np.isin(rows["ledger"], entries)]
            for key in rows[["ledger", "first", "last", "size"]].tolist():
                self._greatest[key] = segment.generation

    def _read(self, frame: ScannedFrame) -> bytes:
        handle = self._files.open_read(os.path.join(self._path, segment_name(frame.place.generation)))
        try:
            data = self._files.read(handle, frame.place.size, frame.place.offset)
        finally:
            self._files.close(handle)
        check_stored_frame(data, frame.place, self._incarnation)
        return data

    def _copy(self, batch: list[tuple[ScannedFrame, bytes]]) -> None:
        if not batch:
            return
        places = self._log.append_group([data for _, data in batch], reserve=True)
        self.frames += len(batch)
        for (frame, data), place in zip(batch, places, strict=True):
            if frame.header.kind == FrameKind.ENTRIES:
                header = parse_header(data)
                extent, striping = frame_extent(data, header), striping_of(data, header)
                self._index.add_frame(header.ledger_id, extent, place, striping=striping)
