# SPDX-License-Identifier: Apache-2.0
"""Known defects of what compaction reads, joins and learns, put back while a context lasts. Those of its order and of
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
from tests.sim.mutants.storage import Planted, _planted

_open, _write, _second_look, _numbers = (
    SegmentCompactor._open,
    SegmentCompactor._write,
    LiveFrames._second_look,
    _Columns._numbers,
)
_are_right = LiveFrames._are_right


def _intact_ones(self: Any) -> Any:
    """What is damaged is left out, the rest of the segment goes on."""
    rows = self._rows[self._windows.pop()]
    start = int(rows["offset"][0]) // 4096 * 4096
    end = live_frames.round_up(int((rows["offset"] + rows["size"]).max()), 4096)
    return self._found(rows, self._window(start, end - start), start)[0]


def _unchecked(self: Any, view: Any, starts: Any, heads: Any, offset: int) -> Any:
    return np.ones(heads.size, dtype=np.bool_)


def _unstamped(self: Any, view: Any, starts: Any, heads: Any, offset: int) -> Any:
    """Checksums without the placement stamp."""
    heads = heads.copy()
    seeds = [self._seed] * heads.size
    places = np.empty((heads.size, 2), dtype="<u8")
    places[:, 0] = starts + offset
    packed = np.ascontiguousarray(heads).view(np.uint8).reshape(-1, 64)
    places[:, 1] = np.ascontiguousarray(packed[:, 52:60]).view("<u8")[:, 0]
    heads["tag"] = list(map(live_frames.crc32c, places.view("V16")[:, 0].tolist(), seeds))
    return _are_right(self, view, starts, heads, offset)


def _looked_at_once(self: Any, row: Any) -> Any:
    ledger_id, offset, size, bits = (int(row[name]) for name in ("ledger", "offset", "size", "bits"))
    place = live_frames.Place(self._generation, offset, size, ledger_id if bits & 2 else -1)
    self.damage.append((ledger_id, place))


def _tiled(rows: Any, heads: Any, offsets: Any, of: Any) -> Any:
    return np.ones(rows.size, dtype=np.bool_)


def _dropped_first(self: Any, work: Any) -> None:
    """The old segment leaves the index before the copies are in it."""
    _open(self, work)
    if work.is_open:
        self._port.ask(lambda index: index.drop_segment(work.generation))


def _refused_is_done(self: Any, work: Any, copies: Any) -> int:
    try:
        return _write(self, work, copies)
    except DataDirectoryError:
        work.copies, work.copied = None, 0
        return 1


def _all_of_it_lives(self: Any, generation: int) -> Any:
    """What compaction asks for is every ledger that was ever in the segment."""
    return self._ledgers_of[generation]


def _place_anywhere(self: Any, copies: Any) -> None:
    for generation, rows in copies.items():
        self.add_rows(generation, rows)


def _of_the_entry_before(self: Any, flag: int, at: Any, otherwise: Any) -> Any:
    numbers = _numbers(self, flag, at, otherwise)
    return np.roll(numbers, 1) if flag == joined_frames.LACS else numbers


_BELIEVED = (joined_frames, "_is_proven", lambda frame: True)

COMPACTION_MUTANTS: list[tuple[str, str, Planted]] = [
    ("compaction skips what is damaged (D9)", "S5", _planted((LiveFrames, "next", _intact_ones))),
    ("compaction checks no checksum", "S5", _planted((LiveFrames, "_are_right", _unchecked))),
    ("compaction checks no stamp", "S5", _planted((LiveFrames, "_are_right", _unstamped))),
    ("compaction trusts the page cache", "S5", _planted((LiveFrames, "_second_look", _looked_at_once))),
    ("a run need not hold all its ids", "S7", _planted((live_frames, "_tiled", _tiled))),
    ("a segment leaves the index before its copies", "S4", _planted((SegmentCompactor, "_open", _dropped_first))),
    ("what a full disk refused counts as copied", "S4", _planted((SegmentCompactor, "_write", _refused_is_done))),
    ("what is dead is copied", "S4", _planted((SegmentDirectory, "ledgers_in", _all_of_it_lives))),
    ("a sealed segment is taken for one being written", "S4",
     _planted((LedgerIndex, "place_copies", _place_anywhere))),
    ("joined entries have the LAC of the one before", "P6", _planted((_Columns, "_numbers", _of_the_entry_before),
                                                                    _BELIEVED)),
    ("joined entries lose their ledger lengths", "P6", _planted((joined_frames, "LEDGER_LENGTHS", 0), _BELIEVED)),
    ("wrong digests get our checksum", "P6", _planted(_BELIEVED)),
]  # fmt: skip
"""Name, rule, context."""
