# SPDX-License-Identifier: Apache-2.0
"""Makes a new ``.idx`` for a sealed segment whose ``.idx`` is damaged. The new file still accounts for every frame that
the old one named.

The segment is scanned. If it is whole, the scan finds everything. If bytes of it are bad, it had frames that the scan
does not find. Their ids must be answered UNKNOWN and not ABSENT (RULES S2, S7), after every later start, too:

- Records in intact index blocks that lead into bad bytes are kept as they are, because reading there fails.
- A bad index block may have named a ledger. Its summary in memory has the size of the ledger's frames in the segment.
  If the scan finds less, the new index gets a record for the lost frames. This record names every id between the
  ledger's first and last in the segment, and an offset where no frame can be (no multiple of 64), so that reading it
  always fails. Ids that other frames hold are served by those.

State records come from the old index or, if the segment is whole, from the scan. If both are damaged, some records,
even fences, may be lost. Then the new index must wait until a checkpoint holds the state of this segment, because the
next start trusts an ``.idx`` that can be read, while one that cannot be read puts the ledgers in limbo.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from bk_core.entries.digest import crc32c
from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.index_file import BuiltIndex, IndexHeader, StateCollector, build_index
from bookie_server.storage.bytes.index_rows import INDEX_ROW, RUN, Rows
from bookie_server.storage.bytes.scan import ScannedSegment
from bookie_server.storage.bytes.segment import FRAME_ALIGNMENT, SEGMENT_HEADER_BYTES, index_name, segment_name
from bookie_server.storage.bytes.verify import FoundFrames, bad_ranges, names_damage, overlapping
from bookie_server.storage.disk.files import BLOCK, Files, round_up
from bookie_server.storage.disk.health import NO_SPACE, DiskHealth
from bookie_server.storage.index.index import DamagedIndex, LedgerIndex
from bookie_server.storage.maintenance.index_port import IndexPort
from bookie_server.storage.maintenance.sealed.stored import StoredIndex, StoredSegment, place_of

logger = logging.getLogger(__name__)

STEP_BYTES = 4 << 20
"""The amount of work in one step, in bytes. It is small, so that sealing and spares do not wait long."""
PUT_OFF_STEPS = 12
"""The number of calls of :meth:`Reindexer.step` without work after which a postponed index is tried again."""
LOST_OFFSET = 1
"""The offset in records that name lost entries. It is within the segment's header, and no multiple of 64."""
_MARKS_MAX = 4096
"""The maximum number of lost entries, and of bad frames, of one segment whose ledgers are marked."""


@dataclass(slots=True)
class ReindexStats:
    """Totals since the start. ``rebuilt`` counts indexes. ``put_off`` counts postponements because of a full disk, or
    of state that a checkpoint must hold first. ``lost_records`` counts records in rebuilt indexes whose entries cannot
    be read."""

    rebuilt: int = 0
    put_off: int = 0
    lost_records: int = 0


class Reindexer:
    """Rebuilds the ``.idx`` files that the index behind ``port`` lists as damaged, on the thread that recycles
    segments.

    ``is_covered(generation)`` returns whether a durable checkpoint holds the state of this segment.
    ``release(generation)`` is called once the new file is durable, so that readers close the old one.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        incarnation: bytes,
        port: IndexPort,
        health: DiskHealth,
        *,
        is_covered: Callable[[int], bool],
        release: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._files, self._path, self._incarnation = files, path, incarnation
        self._port, self._health = port, health
        self._is_covered, self._release = is_covered, release
        self._work: Iterator[int] | None = None
        self._put_off: dict[int, int] = {}
        self._uncovered: set[int] = set()
        self.stats = ReindexStats()

    @property
    def wants_checkpoint(self) -> bool:
        """Whether an index waits for a checkpoint that holds the state of its segment."""
        return bool(self._uncovered)

    def step(self) -> bool:
        """Do about STEP_BYTES of work. Return False if no index is damaged, or none can be rebuilt now. Raises the
        errors of the port, and StorageFailedError if a write or sync failed (RULES S6)."""
        if self._work is None:
            generation = self._next()
            if generation is None:
                return False
            self._work = self._rebuild(generation)
        done, work, self._work = 0, self._work, None
        while done < STEP_BYTES:
            size = next(work, None)
            if size is None:
                return True
            done += size
        self._work = work  # after an error it is not kept, and begins again
        return True

    def _next(self) -> int | None:
        damaged = sorted(self._port.ask(lambda index: index.damaged_indexes))
        self._uncovered = {g for g in self._uncovered if g in damaged and not self._is_covered(g)}
        for generation in damaged:
            if generation not in self._uncovered and generation not in self._put_off:
                return generation
        self._put_off = {g: left - 1 for g, left in self._put_off.items() if left > 1}
        return None

    # --- one segment ------------------------------------------------------------------------------------------------

    def _rebuild(self, generation: int) -> Iterator[int]:
        known = self._port.ask(lambda index: index.damaged_index(generation))
        if known is None:
            return
        stored = StoredIndex(self._files, self._path, generation, self._incarnation)
        yield BLOCK
        scan = yield from self._scan(generation, stored)
        states = self._states(generation, scan, stored)
        if states is None:
            return
        frames = FoundFrames(scan)
        scan.rows = bytearray()  # ``frames`` has a copy of the rows
        kept, gaps = yield from _look_into_old(stored, known, frames)
        rows, lost = _merged(frames, kept, gaps, known, bad_ranges(scan))
        header = stored.sections.header if stored.sections is not None else None
        new = IndexHeader(
            generation,
            self._incarnation,
            header.data_end if header is not None else scan.durable,
            header.group_count if header is not None else scan.groups_below_durable,
            header.edition + 1 if header is not None else crc32c(rows.tobytes()) | 1 << 32,
        )
        built = build_index(new, rows, states)
        places = [(int(row["ledger"]), place_of(generation, row)) for row in lost[:_MARKS_MAX]]
        places += [(frame.header.ledger_id, frame.place) for frame in scan.bad_frames[:_MARKS_MAX]]
        self._replace(generation, built, places, lost)

    def _scan(self, generation: int, stored: StoredIndex) -> Generator[int, None, ScannedSegment]:
        """Scan the segment; return everything in it that can still be read."""
        segment = StoredSegment(self._files, self._path, generation, self._incarnation)
        if not segment.size:
            end = stored.data_end or 2 * BLOCK
            nothing = ScannedSegment(generation, end)
            nothing.damage.append((SEGMENT_HEADER_BYTES, end - SEGMENT_HEADER_BYTES, segment.problem))
            return nothing
        scanner = segment.scanner(stored.data_end)
        yield from scanner.steps()
        above = scanner.result.above
        if stored.data_end is None and above:
            # All whole frames of a sealed segment were durable; only the group headers that recorded that are damaged.
            scanner = segment.scanner(round_up(max(frame.place.offset + frame.place.size for frame in above), BLOCK))
            yield from scanner.steps()
        return scanner.result

    def _states(self, generation: int, scan: ScannedSegment, stored: StoredIndex) -> Rows | None:
        """Return all state records of the segment. Return None if some may be lost and no checkpoint has them."""
        old = stored.states()
        is_whole = stored.sections is not None and not scan.damage and not scan.bad_frames
        if old is None and not is_whole and not self._is_covered(generation):
            self._uncovered.add(generation)
            self.stats.put_off += 1
            logger.warning("the index of %s waits for a checkpoint", segment_name(generation))
            return None
        states = StateCollector()
        for rows in (old, scan.states.rows()):
            for ledger_id, payload, kind, size, _ in rows.tolist() if rows is not None else ():
                states.add(ledger_id, kind, bytes(payload[:size]))
        return states.rows()

    def _replace(self, generation: int, built: BuiltIndex, places: list[tuple[int, Place]], lost: Rows) -> None:
        if not self._port.ask(lambda index: index.is_sealed(generation)):
            return
        name = index_name(generation)
        try:
            self._health.check()
            self._files.write_atomically(os.path.join(self._path, name), built.data)
        except OSError as error:
            if error.errno not in NO_SPACE:
                self._health.fail("a new index could not be made durable", self._path, error)
            self._put_off[generation] = PUT_OFF_STEPS
            self.stats.put_off += 1
            return
        self._release(generation)
        self._port.ask(lambda index: _take_over(index, generation, built.summary, places, lost))
        self.stats.rebuilt += 1
        self.stats.lost_records += lost.size
        logger.warning("%s was rebuilt; %d of its records name entries that cannot be read", name, lost.size)


def _take_over(index: LedgerIndex, generation: int, summary: Rows, places: list[tuple[int, Place]], lost: Rows) -> None:
    index.index_rebuilt(generation, summary)
    index.suspect(lost["ledger"].tolist())
    for ledger_id, place in places:
        index.mark_damaged(ledger_id, place)


Gaps: TypeAlias = list[tuple[int, int]]
"""Ranges of ledgers that unreadable blocks of the old index may have named, as pairs of the least and the greatest."""


def _look_into_old(
    stored: StoredIndex, known: DamagedIndex, frames: FoundFrames
) -> Generator[int, None, tuple[Rows, Gaps]]:
    """Return the records of intact blocks that the scan does not confirm, and the ranges of ledgers that the other
    blocks may have named."""
    count = stored.sections.index_blocks if stored.sections is not None else 0
    next_number, last_ledger = 0, -1  # the block behind the last intact one, and that one's last ledger
    kept, gaps = [np.zeros(0, INDEX_ROW)], Gaps()
    for blocks in stored.blocks():
        yield BLOCK * len(blocks)
        for number, rows in blocks:
            if number in known.unreadable:
                continue
            if number > next_number:
                gaps.append((last_ledger, int(rows["ledger"][0])))
            next_number, last_ledger = number + 1, int(rows["ledger"][-1])
            kept.append(rows[~frames.confirm(rows)])
    if next_number < count or stored.sections is None:
        gaps.append((last_ledger, np.iinfo(np.int64).max))
    return np.concatenate(kept), gaps


def _merged(
    frames: FoundFrames, kept: Rows, gaps: Gaps, known: DamagedIndex, ranges: list[tuple[int, int]]
) -> tuple[Rows, Rows]:
    """Return all records of the new index, and those of them whose frames cannot be read."""
    is_named, is_run = names_damage(kept), kept["bits"] & RUN != 0
    suspects = set(kept["ledger"][is_named].tolist())
    kept, is_run = kept[~is_named], is_run[~is_named]
    found = frames.rows
    # A run does not have the size of its frames, and a record at the place of a whole frame cannot be trusted.
    sure = kept[~is_run & overlapping(kept, ranges) & ~np.isin(kept["offset"], found["offset"])]
    sizes = _bytes_by_ledger(np.concatenate((found, sure)))
    lost = []
    for ledger_id, first, last, size in known.summary[["ledger", "first", "last", "bytes"]].tolist():
        is_suspect = ledger_id in suspects or any(low <= ledger_id <= high for low, high in gaps)
        if is_suspect and sizes.get(ledger_id, 0) < size:
            lost.append((ledger_id, first, last, 0, -1, LOST_OFFSET, FRAME_ALIGNMENT, 1, 0, 0, 0, 0))
    nowhere = np.concatenate((kept, np.array(lost, dtype=INDEX_ROW)))
    return np.concatenate((found[~frames.inside(kept[is_run])], nowhere)), nowhere


def _bytes_by_ledger(rows: Rows) -> dict[int, int]:
    """Return for each ledger the size of its frames."""
    ledgers, of = np.unique(rows["ledger"], return_inverse=True)
    sizes = np.bincount(of, weights=rows["size"], minlength=ledgers.size).astype(np.int64)
    return dict(zip(ledgers.tolist(), sizes.tolist(), strict=True))
