# SPDX-License-Identifier: Apache-2.0
"""Known defects of what compaction reads, joins and learns: those of its order and of
giving segments back are in ``maintenance.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from bk_core.errors import DataDirectoryError
from bookie_server.storage.bytes import joined_frames
from bookie_server.storage.bytes.joined_frames import _Columns
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.index.segment_directory import SegmentDirectory
from bookie_server.storage.maintenance.compaction import SegmentCompactor
from bookie_server.storage.maintenance.sealed import live_frames
from bookie_server.storage.maintenance.sealed.live_frames import LiveFrames
from tests.sim.mutants.mutant import Mutants

MUTANTS = Mutants()

_BELIEVED = (joined_frames, "_is_proven", lambda frame: True)


@MUTANTS.instead(LiveFrames, "next", "compaction skips what is damaged (D9)", "S5")
def intact_ones(_: Any, self: Any) -> Any:
    """What is damaged is left out, the rest of the segment goes on."""
    rows = self._rows[self._windows.pop()]
    start = int(rows["offset"][0]) // 4096 * 4096
    end = live_frames.round_up(int((rows["offset"] + rows["size"]).max()), 4096)
    return self._found(rows, self._window(start, end - start), start)[0]


@MUTANTS.instead(LiveFrames, "_are_right", "compaction checks no checksum", "S5")
def unchecked(_: Any, self: Any, view: Any, starts: Any, heads: Any, offset: int) -> Any:
    return np.ones(heads.size, dtype=np.bool_)


@MUTANTS.instead(LiveFrames, "_are_right", "compaction checks no stamp", "S5")
def unstamped(are_right: Any, self: Any, view: Any, starts: Any, heads: Any, offset: int) -> Any:
    """Checksums without the placement stamp."""
    heads = heads.copy()
    seeds = [self._seed] * heads.size
    places = np.empty((heads.size, 2), dtype="<u8")
    places[:, 0] = starts + offset
    packed = np.ascontiguousarray(heads).view(np.uint8).reshape(-1, 64)
    places[:, 1] = np.ascontiguousarray(packed[:, 52:60]).view("<u8")[:, 0]
    heads["tag"] = list(map(live_frames.crc32c, places.view("V16")[:, 0].tolist(), seeds))
    return are_right(self, view, starts, heads, offset)


@MUTANTS.instead(LiveFrames, "_second_look", "compaction trusts the page cache", "S5")
def looked_at_once(_: Any, self: Any, row: Any) -> Any:
    ledger_id, offset, size, bits = (int(row[name]) for name in ("ledger", "offset", "size", "bits"))
    place = live_frames.Place(self._generation, offset, size, ledger_id if bits & 2 else -1)
    self.damage.append((ledger_id, place))


@MUTANTS.instead(live_frames, "_tiled", "a run need not hold all its ids", "S7")
def tiled(_: Any, rows: Any, heads: Any, offsets: Any, of: Any) -> Any:
    return np.ones(rows.size, dtype=np.bool_)


@MUTANTS.instead(SegmentCompactor, "_open", "a segment leaves the index before its copies", "S4")
def dropped_first(begin: Any, self: Any, work: Any) -> None:
    begin(self, work)
    if work.is_open:
        self._port.ask(lambda index: index.drop_segment(work.generation))


@MUTANTS.instead(SegmentCompactor, "_write", "what a full disk refused counts as copied", "S4")
def refused_is_done(write: Any, self: Any, work: Any, copies: Any) -> int:
    try:
        return write(self, work, copies)
    except DataDirectoryError:
        work.copies, work.copied = None, 0
        return 1


@MUTANTS.instead(SegmentDirectory, "ledgers_in", "what is dead is copied", "S4")
def all_of_it_lives(_: Any, self: Any, generation: int) -> Any:
    """What compaction asks for is every ledger that was ever in the segment."""
    return self._ledgers_of[generation]


@MUTANTS.instead(LedgerIndex, "place_copies", "a sealed segment is taken for one being written", "S4")
def place_anywhere(_: Any, self: Any, copies: Any) -> None:
    for generation, rows in copies.items():
        self.add_rows(generation, rows)


@MUTANTS.instead(_Columns, "_numbers", "joined entries have the LAC of the one before", "P6", _BELIEVED)
def of_the_entry_before(numbers_of: Any, self: Any, flag: int, at: Any, otherwise: Any) -> Any:
    numbers = numbers_of(self, flag, at, otherwise)
    return np.roll(numbers, 1) if flag == joined_frames.LACS else numbers


MUTANTS.add("joined entries lose their ledger lengths", "P6", (joined_frames, "LEDGER_LENGTHS", 0), _BELIEVED)
MUTANTS.add("wrong digests get our checksum", "P6", _BELIEVED)
