# SPDX-License-Identifier: Apache-2.0
"""The scrubber reads every sealed segment again and again, so that damage is found before a client reads the data.

It reads one segment at a time, the oldest generation first, past the page cache. It checks each group header, each
frame's header and payload, each block of the ``.idx``, and that index records and frames agree (``stored.py``, which
the offline check uses, too). Damage is marked in the index, so that it is answered UNKNOWN and never ABSENT (RULES S2,
S5), and it is counted and logged; ``reindex.py`` rebuilds a damaged ``.idx``. Frames that cannot be read count as
damage, and the rest of their segment is still checked. Nothing is reported about a segment that was dropped meanwhile,
because its file may have been recycled while it was read.

Through the index the affected ledgers get to auto-recovery (decision 0053). The first pass after a start begins at
``first_at``, a share of the segments, so that all segments are checked even if the bookie is restarted often.

While a segment is checked, about 160 bytes are held for each frame of entries in it: 300 MB for a segment of 256 MiB
full of the smallest frames, 40 KB for frames of a mebibyte. Small frames count as FRAME_WORK_BYTES each, because they
take processor time and not disk time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from bookie_server.machine.disk_places import IndexBlock, Place
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.bytes.verify import describe, entries_lost, names_damage
from bookie_server.storage.disk.files import Files
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.maintenance.index_port import IndexPort
from bookie_server.storage.maintenance.sealed.stored import StoredPair, place_of

logger = logging.getLogger(__name__)

MARKS_MAX = 4096
"""The maximum number of damaged places of a segment that are marked in the index. Reads find the other places."""
LINES_MAX = 50
"""The maximum number of lines that are logged for a segment in one pass."""


@dataclass(slots=True)
class ScrubStats:
    """Totals since the start; each pass counts damage again. ``bytes`` counts the bytes checked, and ``passes`` the
    passes over all segments. ``damaged_frames`` counts frames, and stretches of bytes that are no frames.
    ``damaged_index_blocks`` counts blocks of ``.idx`` files, or files that are wrong as a whole. ``refused`` counts
    reads of a block that the system refused."""

    bytes: int = 0
    segments: int = 0
    passes: int = 0
    damaged_frames: int = 0
    damaged_index_blocks: int = 0
    refused: int = 0


@dataclass(slots=True)
class _Findings:
    """The findings in one segment."""

    generation: int
    places: list[tuple[int, Place]] = field(default_factory=list)  # damaged places, with their ledgers
    ledgers: set[int] = field(default_factory=set)  # ledgers that lost entries earlier, whose places are unknown
    is_lost: bool = False  # the whole segment is lost
    blocks: dict[int, str] = field(default_factory=dict)  # damaged index blocks, and what is wrong with each
    lines: list[str] = field(default_factory=list)
    damaged: int = 0
    refused: int = 0


class Scrubber:
    """Checks the segments of the folder ``path``, on one thread. Any thread may read ``stats``."""

    def __init__(self, files: Files, path: str, incarnation: bytes, port: IndexPort, *, first_at: float = 0.0) -> None:
        self._files, self._path, self._incarnation, self._port = files, path, incarnation, port
        self._first_at = first_at
        self._left: deque[int] = deque()  # segments that are left in this pass
        self._in_pass = False
        self._work: Iterator[int] | None = None
        self._found: _Findings | None = None  # findings that are not in the index yet
        self.stats = ScrubStats()

    def step(self, budget_bytes: int) -> int:
        """Check about ``budget_bytes``, and at most a group of frames more; return how many bytes were checked. 0 means
        that a pass has ended, or nothing is sealed; the next call begins another pass. Raises the errors of the port;
        the findings are kept then."""
        done = 0
        while done < budget_bytes:
            if self._found is not None:
                self._report(self._found)
                self._found = None
            if self._work is None:
                if (done and not self._left) or not self._begin():
                    break
                assert self._work is not None
            size = next(self._work, None)
            if size is None:
                self._work = None
                continue
            done += size
            self.stats.bytes += size
        return done

    def _begin(self) -> bool:
        if not self._left:
            if self._in_pass:
                self._in_pass = False
                self.stats.passes += 1
                return False
            self._left.extend(self._port.ask(lambda index: index.sealed_generations()))
            self._left.rotate(-int(self._first_at * len(self._left)))
            self._in_pass, self._first_at = bool(self._left), 0.0
        if self._left:
            self._work = self._look_at(self._left.popleft())
        return self._in_pass

    # --- one segment ------------------------------------------------------------------------------------------------

    def _look_at(self, generation: int) -> Iterator[int]:
        """Check a segment and keep the findings. Yield the size of each piece of this work, in bytes."""
        pair, found = StoredPair(self._files, self._path, generation, self._incarnation), _Findings(generation)
        yield from pair.steps()
        name, scan = segment_name(generation), pair.scan
        if pair.segment.problem:
            found.damaged += 1
            found.lines.append(f"{name}: {pair.segment.problem}")
        if scan is None:  # reads find that the frames in its index are gone
            found.is_lost = True
        else:
            found.damaged, found.refused = found.damaged + len(pair.ranges), scan.refused
            found.lines += [f"{name}: {line}" for line in describe(scan)]
            found.places += [(frame.header.ledger_id, frame.place) for frame in scan.bad_frames]
        for rows in pair.astray:
            lost_before = names_damage(rows)
            found.ledgers.update(rows["ledger"][lost_before].tolist())
            for row in rows[~lost_before]:
                found.places.append((int(row["ledger"]), place_of(generation, row)))
        if pair.astray and found.lines:
            found.lines[-1] += f"; lost here: {entries_lost(np.concatenate(pair.astray))}"
        found.blocks = pair.problems
        self._found = found

    # --- reporting ----------------------------------------------------------------------------------------------------

    def _report(self, found: _Findings) -> None:
        generation, stats = found.generation, self.stats
        is_bad = bool(found.lines or found.blocks)
        if is_bad and not self._port.ask(lambda index: _mark(index, found)):
            return
        stats.segments += 1
        stats.refused += found.refused
        stats.damaged_frames += found.damaged
        stats.damaged_index_blocks += len(found.blocks)
        name = index_name(generation)
        lines = found.lines + [f"{name}, block {number}: {what}" for number, what in sorted(found.blocks.items())]
        for line in lines[:LINES_MAX]:
            logger.error("damage: %s", line)
        if len(lines) > LINES_MAX:
            logger.error("damage: %d more in %s", len(lines) - LINES_MAX, segment_name(generation))


def _mark(index: LedgerIndex, found: _Findings) -> bool:
    """Mark the findings in the index. Return False, without marking anything, if the index has dropped the segment."""
    if not index.is_sealed(found.generation):
        return False
    for ledger_id, place in found.places[:MARKS_MAX]:
        index.mark_damaged(ledger_id, place)
    index.suspect({ledger_id for ledger_id, _ in found.places[MARKS_MAX:]} | found.ledgers)
    if found.is_lost:
        index.suspect(index.ledgers_in(found.generation).tolist())
    for number in list(found.blocks)[:MARKS_MAX]:
        index.mark_damaged(0, IndexBlock(found.generation, number))
    return True
