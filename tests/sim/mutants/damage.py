# SPDX-License-Identifier: Apache-2.0
"""Known defects of scrubbing, of new indexes and of starts on a disk that refuses reads, while a context lasts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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
from tests.sim.mutants.storage import Planted, _nothing, _planted

_mark, _scanner, _confirm = scrub._mark, StoredSegment.scanner, FoundFrames.confirm
_look_into_old, _merged, _states = reindex._look_into_old, reindex._merged, Reindexer._states
_add = DamagedPlaces.add


def _marks_nothing(index: Any, found: Any) -> bool:
    return bool(index.is_sealed(found.generation))


def _marks_what_is_gone(index: Any, found: Any) -> bool:
    _mark(index, found)
    return True


def _unchecked_block(sections: Any, number: int, data: bytes) -> Any:
    count = min(INDEX_RECORDS_PER_BLOCK, sections.index_records - number * INDEX_RECORDS_PER_BLOCK)
    return np.frombuffer(data[: count * INDEX_ROW.itemsize], INDEX_ROW)


def _confirms_all(self: Any, records: Any) -> Any:
    _confirm(self, records)
    return np.ones(records.size, dtype=bool)


def _keeps_nothing(stored: Any, known: Any, frames: Any) -> Any:
    kept, gaps = yield from _look_into_old(stored, known, frames)
    return kept[:0], gaps


def _knows_no_gaps(frames: Any, kept: Any, gaps: Any, known: Any, ranges: Any) -> Any:
    return _merged(frames, kept, [], known, ranges)


def _waits_for_nothing(self: Any, generation: int, scan: Any, stored: Any) -> Any:
    is_covered, self._is_covered = self._is_covered, lambda _: True
    try:
        return _states(self, generation, scan, stored)
    finally:
        self._is_covered = is_covered


def _of_one_edition(*fields: Any) -> IndexHeader:
    return IndexHeader(*fields[:4])


def _named_twice(self: Any, place: Place) -> None:
    if place.is_run and self.hits(place):
        for offset in range(place.offset, place.offset + place.size, 64):
            _add(self, Place(place.generation, offset, 64))
    _add(self, place)


class _RaisesAll:
    @staticmethod
    def suppress(*_: Any) -> AbstractContextManager[None]:
        return nullcontext()


def _gives_back_all(self: Any, segment: Any) -> int:
    found = 0 if self.report.damage else give_back_unused(self._files, self._path, segment, self._incarnation)
    return found


DAMAGE_MUTANTS: list[tuple[str, str, Planted]] = [
    ("the scrubber reports nothing", "S5", _planted((Scrubber, "_report", _nothing))),
    ("the scrubber does not tell the index", "S5", _planted((scrub, "_mark", _marks_nothing))),
    ("a segment that is gone is reported", "S4", _planted((scrub, "_mark", _marks_what_is_gone))),
    ("index blocks are scrubbed unchecked", "S7", _planted((stored, "decode_index_block", _unchecked_block))),
    ("index records are not compared with frames", "S7", _planted((FoundFrames, "confirm", _confirms_all))),
    (
        "frames that no index record names are not noticed", "S7",
        _planted((FoundFrames, "unnamed", property(lambda self: np.zeros(0, dtype=bool)))),
    ),
    (
        "the end of a sealed segment is called a tail", "S3",
        _planted((StoredSegment, "scanner", lambda self, data_end: _scanner(self, None))),
    ),
    ("a new index forgets damaged frames", "S2", _planted((reindex, "_look_into_old", _keeps_nothing))),
    ("a new index forgets what bad blocks named", "S2", _planted((reindex, "_merged", _knows_no_gaps))),
    ("an index is made anew though fences may be lost", "S4", _planted((Reindexer, "_states", _waits_for_nothing))),
    ("blocks of two editions are mixed", "S7", _planted((reindex, "IndexHeader", _of_one_edition))),
    ("a damaged run that is named twice serves nothing", "S5", _planted((DamagedPlaces, "add", _named_twice))),
    ("what the disk refuses at a start is torn", "S3", _planted((SegmentScanner, "_refused_end", lambda *_: 0))),
    (
        "a refused block at the end of the log is nothing", "S3",
        _planted((SegmentScanner, "_end_of_bad", lambda self, position: self._torn_end(position))),
    ),
    ("refused blocks are given back", "S3", _planted((Opening, "_give_back_unused", _gives_back_all))),
    ("one refused block stops a start", "S8", _planted((log_end, "contextlib", _RaisesAll))),
]  # fmt: skip
"""Name, rule, context."""
