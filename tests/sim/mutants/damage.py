# SPDX-License-Identifier: Apache-2.0
"""Known defects of scrubbing, of new indexes and of starts on a disk that refuses reads."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from bookie_server.machine.disk_places import Place
from bookie_server.storage.bytes.index_file import INDEX_RECORDS_PER_BLOCK, IndexHeader
from bookie_server.storage.bytes.index_rows import INDEX_ROW
from bookie_server.storage.bytes.scan import SegmentScanner
from bookie_server.storage.bytes.verify import FoundFrames
from bookie_server.storage.index.search import DamagedPlaces
from bookie_server.storage.maintenance.sealed import reindex, scrub, stored
from bookie_server.storage.maintenance.sealed.reindex import Reindexer
from bookie_server.storage.maintenance.sealed.scrub import Scrubber
from bookie_server.storage.maintenance.sealed.stored import StoredSegment
from bookie_server.storage.start import log_end
from bookie_server.storage.start.log_end import give_back_unused
from bookie_server.storage.start.replay import Opening
from tests.sim.mutants.mutant import Mutants
from tests.sim.mutants.storage import nothing

MUTANTS = Mutants()


@MUTANTS.instead(scrub, "_mark", "the scrubber does not tell the index", "S5")
def marks_nothing(_: Any, index: Any, found: Any) -> bool:
    return bool(index.is_sealed(found.generation))


@MUTANTS.instead(scrub, "_mark", "a segment that is gone is reported", "S4")
def marks_what_is_gone(mark: Any, index: Any, found: Any) -> bool:
    mark(index, found)
    return True


@MUTANTS.instead(stored, "decode_index_block", "index blocks are scrubbed unchecked", "S7")
def unchecked_block(_: Any, sections: Any, number: int, data: bytes) -> Any:
    count = min(INDEX_RECORDS_PER_BLOCK, sections.index_records - number * INDEX_RECORDS_PER_BLOCK)
    return np.frombuffer(data[: count * INDEX_ROW.itemsize], INDEX_ROW)


@MUTANTS.instead(FoundFrames, "confirm", "index records are not compared with frames", "S7")
def confirms_all(confirm: Any, self: Any, records: Any) -> Any:
    confirm(self, records)
    return np.ones(records.size, dtype=bool)


@MUTANTS.instead(StoredSegment, "scanner", "the end of a sealed segment is called a tail", "S3")
def scans_to_the_end(scanner: Any, self: Any, data_end: Any) -> Any:
    return scanner(self, None)


@MUTANTS.instead(reindex, "_look_into_old", "a new index forgets damaged frames", "S2")
def keeps_nothing(look_into_old: Any, stored: Any, known: Any, frames: Any) -> Any:
    kept, gaps = yield from look_into_old(stored, known, frames)
    return kept[:0], gaps


@MUTANTS.instead(reindex, "_merged", "a new index forgets what bad blocks named", "S2")
def knows_no_gaps(merged: Any, frames: Any, kept: Any, gaps: Any, known: Any, ranges: Any) -> Any:
    return merged(frames, kept, [], known, ranges)


@MUTANTS.instead(Reindexer, "_states", "an index is made anew though fences may be lost", "S4")
def waits_for_nothing(states: Any, self: Any, generation: int, scan: Any, stored: Any) -> Any:
    is_covered, self._is_covered = self._is_covered, lambda _: True
    try:
        return states(self, generation, scan, stored)
    finally:
        self._is_covered = is_covered


@MUTANTS.instead(reindex, "IndexHeader", "blocks of two editions are mixed", "S7")
def of_one_edition(_: Any, *fields: Any) -> IndexHeader:
    return IndexHeader(*fields[:4])


@MUTANTS.instead(DamagedPlaces, "add", "a damaged run that is named twice serves nothing", "S5")
def named_twice(add: Any, self: Any, place: Place) -> None:
    if place.is_run and self.hits(place):
        for offset in range(place.offset, place.offset + place.size, 64):
            add(self, Place(place.generation, offset, 64))
    add(self, place)


@MUTANTS.instead(Opening, "_give_back_unused", "refused blocks are given back", "S3")
def gives_back_all(_: Any, self: Any, segment: Any) -> int:
    return 0 if self.report.damage else give_back_unused(self._files, self._path, segment, self._incarnation)


MUTANTS.add("the scrubber reports nothing", "S5", (Scrubber, "_report", nothing))
MUTANTS.add(
    "frames that no index record names are not noticed", "S7",
    (FoundFrames, "unnamed", property(lambda self: np.zeros(0, dtype=bool))),
)  # fmt: skip
MUTANTS.add("what the disk refuses at a start is torn", "S3", (SegmentScanner, "_refused_end", lambda *_: 0))
MUTANTS.add(
    "a refused block at the end of the log is nothing", "S3",
    (SegmentScanner, "_end_of_bad", lambda self, position: self._torn_end(position)),
)  # fmt: skip
MUTANTS.add("one refused block stops a start", "S8", (log_end, "contextlib", SimpleNamespace(suppress=nullcontext)))
