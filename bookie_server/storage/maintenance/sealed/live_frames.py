# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the live frames of one sealed segment, in the order of their places, for compaction (RULES S4, S5).

The ``.idx`` lists the segment's frames, and the index says which of them are live. Live frames are read in windows; all
frames of a window are found and checked at once. Python code runs a few times for each window, and only C code checks
each frame. Frames that fail are read again past the page cache, one index record at a time, before they count as
damaged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from operator import eq

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import I64, U8, array_view
from bk_core.entries.digest import crc32c
from bk_core.entries.frame import FRAME_HEADER_BYTES, FRAME_MAGIC, FRAME_VERSION, FrameKind
from bk_core.errors import IntegrityError
from bookie_server.machine.disk_places import IndexBlock, Place, Unresolved
from bookie_server.storage.bytes.index_rows import INDEX_ROW, RUN, Rows
from bookie_server.storage.bytes.joined_frames import FRAME_HEAD, FrameTable, dense_rows, frame_sizes
from bookie_server.storage.bytes.run_frames import check_stored_frame, members_of_run
from bookie_server.storage.bytes.segment import FRAME_ALIGNMENT, segment_name, stamp_seed
from bookie_server.storage.disk.files import BLOCK, Files, Handle, round_up
from bookie_server.storage.maintenance.sealed.stored import StoredIndex

WINDOW_BYTES = 1 << 20
"""The number of bytes of a segment that are read together. A larger frame is read alone, as a whole."""
GAP_BYTES = 128 << 10
"""The maximum number of dead bytes between two live frames that are read, too, because that takes less time than
another read."""
DAMAGE_MAX = 64
"""The number of damaged places in one window after which the rest of the window is not checked. The segment is kept
anyway."""
_CHECKED_BYTES = 52  # bytes of a header under the header's CRC, which also covers the columns


class LiveFrames:
    """Reads one segment of the directory ``path``, window after window. Close it to release the file."""

    def __init__(self, files: Files, path: str, generation: int, incarnation: bytes) -> None:
        self._files, self._generation, self._incarnation = files, generation, incarnation
        self._path = os.path.join(path, segment_name(generation))
        self._seed = stamp_seed(incarnation, generation)
        self._index = StoredIndex(files, path, generation, incarnation)
        self._parts = self._index.blocks()
        self._of_index: list[Rows] = [np.empty(0, dtype=INDEX_ROW)]  # live records read so far
        self._rows: Rows = self._of_index[0]
        self._windows: list[slice] = []
        self._handle: Handle | None = None
        self.read_bytes = 0
        self.damage: list[tuple[int, Unresolved]] = []
        """The places that failed their check twice, with their ledgers (−1: an index block). After the first one, no
        frames are returned."""

    def read_index(self, live: I64) -> bool:
        """Read a part of the index and keep the records of the ledgers in ``live``, which are sorted. Return True once
        the whole index is read; damaged blocks are noted."""
        blocks = next(self._parts, None)
        if blocks is not None:
            for _, rows in blocks:
                self.read_bytes += BLOCK
                self._of_index.append(rows[_are_of(live, rows)])
            return False
        self.damage += [(-1, IndexBlock(self._generation, number)) for number in self._index.problems]
        rows = np.concatenate(self._of_index)
        self._of_index.clear()
        self._rows = rows[np.argsort(rows["offset"], kind="stable")]
        self._windows = _windows(self._rows)
        return True

    @property
    def padding_bytes(self) -> int:
        """The number of bytes that alignment adds to live frames outside runs."""
        sizes = self._rows["size"][self._rows["bits"] & RUN == 0].astype(np.int64)
        return int((-sizes % FRAME_ALIGNMENT).sum())

    @property
    def at_end(self) -> bool:
        return not self._windows

    def next(self) -> FrameTable | None:
        """Return the frames of the next window, or None if any of them is damaged. There must be a next window."""
        rows = self._rows[self._windows.pop()]
        start = int(rows["offset"][0]) // BLOCK * BLOCK
        end = round_up(int((rows["offset"] + rows["size"]).max()), BLOCK)
        table, doubtful = self._found(rows, self._window(start, end - start), start)
        if not doubtful.any():
            return table
        tables = [table]
        for row in rows[doubtful]:
            again = self._second_look(row)
            if again is not None:
                tables.append(again)
            elif len(self.damage) >= DAMAGE_MAX:
                break
        return None if self.damage else together(tables)

    def close(self) -> None:
        """Close the file, and drop its bytes from the page cache, because the segment is going to be given up. Further
        calls do nothing."""
        if self._handle is not None:
            self._files.drop_cache(self._handle)
            self._files.close(self._handle)
            self._handle = None

    # --- windows ----------------------------------------------------------------------------------------------------

    def _window(self, start: int, size: int) -> U8:
        """Read bytes of the segment, with zeros behind its end, or instead of them if the system refuses the read."""
        try:
            if self._handle is None:
                self._handle = self._files.open_read(self._path)
            data = self._files.read(self._handle, size, start)
        except OSError:
            data = b""
        self.read_bytes += len(data)
        return np.frombuffer(data if len(data) == size else data.ljust(size, b"\0"), dtype=np.uint8)

    def _found(self, rows: Rows, data: U8, start: int) -> tuple[FrameTable, npt.NDArray[np.bool_]]:
        """Return the intact frames of a window that begins at ``start`` in the segment, and for each row whether it is
        in doubt. Frames of rows in doubt are left out."""
        heads = data.reshape(-1, FRAME_HEADER_BYTES).view(FRAME_HEAD)[:, 0]
        at, of = _candidates(rows, heads, start)
        heads = heads[at]
        right = self._are_right(array_view(data), at * FRAME_ALIGNMENT, heads, start)
        doubtful = ~_tiled(rows, heads, at * FRAME_ALIGNMENT + start, of)
        doubtful[of[~right]] = True
        keep = ~doubtful[of]
        at, heads, of = at[keep], heads[keep], of[keep]
        is_run = rows["bits"][of] & RUN != 0
        made = np.where(is_run, dense_rows(heads), rows[of])
        return _compact(FrameTable(data, at * FRAME_ALIGNMENT, heads, made)), doubtful

    def _are_right(self, view: memoryview, starts: I64, heads: Rows, offset: int) -> npt.NDArray[np.bool_]:
        """Return for each frame whether its stamp and both CRCs are right; ``offset`` is that of ``view`` in the
        segment."""
        if not heads.size:
            return np.empty(0, dtype=np.bool_)
        packed = np.ascontiguousarray(heads).view(np.uint8).reshape(-1, FRAME_HEADER_BYTES)
        checked = np.ascontiguousarray(packed[:, :_CHECKED_BYTES]).view(f"V{_CHECKED_BYTES}")[:, 0].tolist()
        places = np.empty((heads.size, 2), dtype="<u8")
        places[:, 0] = starts + offset
        places[:, 1] = np.ascontiguousarray(packed[:, 52:60]).view("<u8")[:, 0]
        stamps = map(crc32c, places.view("V16")[:, 0].tolist(), [self._seed] * heads.size)
        columns = starts + FRAME_HEADER_BYTES
        payloads = columns + heads["columns"]
        ends = payloads + heads["payload"]
        header_crcs = map(crc32c, _slices(view, columns, payloads), map(crc32c, checked))
        payload_crcs = map(crc32c, _slices(view, payloads, ends))
        right = np.ones(heads.size, dtype=np.bool_)
        for found, name in ((stamps, "tag"), (header_crcs, "header_crc"), (payload_crcs, "payload_crc")):
            right &= np.fromiter(map(eq, found, heads[name].tolist()), dtype=np.bool_, count=heads.size)
        return right

    # --- doubt ------------------------------------------------------------------------------------------------------

    def _second_look(self, row: np.void) -> FrameTable | None:
        """Return the frames of one index record, read past the page cache. If they are damaged, note that and return
        None."""
        ledger_id, offset, size, bits = (int(row[name]) for name in ("ledger", "offset", "size", "bits"))
        place = Place(self._generation, offset, size, ledger_id if bits & RUN else -1)
        try:
            data = self._files.read_past_cache(self._path, size, offset)
            self.read_bytes += len(data)
            if not bits & RUN:
                check_stored_frame(data, place, self._incarnation, ledger_id)
                return _table_of(data, [0], row)
            members = members_of_run(data, place, self._incarnation)
            if _follow(members.firsts, members.lasts, int(row["first"]), int(row["last"])):
                return _table_of(data, [at - offset for at in members.offsets], row)
        except (IntegrityError, OSError):
            pass
        self.damage.append((ledger_id, place))
        return None


def _are_of(ledgers: I64, rows: Rows) -> npt.NDArray[np.bool_]:
    """Return for each index record whether it is of one of these sorted ledgers."""
    if not ledgers.size:
        return np.zeros(rows.size, dtype=np.bool_)
    at = np.minimum(np.searchsorted(ledgers, rows["ledger"]), ledgers.size - 1)
    found: npt.NDArray[np.bool_] = ledgers[at] == rows["ledger"]
    return found


def _windows(rows: Rows) -> list[slice]:
    """Return the slices of rows (sorted by offset) that are read together, in reverse order."""
    if not rows.size:
        return []
    starts = rows["offset"].astype(np.int64)
    ends = np.maximum.accumulate(starts + rows["size"])
    far = np.append(True, starts[1:] - ends[:-1] > GAP_BYTES)
    # where the stretch without a large gap begins
    begins = starts[np.maximum.accumulate(np.where(far, np.arange(rows.size), 0))]
    number = (starts - begins) // WINDOW_BYTES
    far[1:] |= np.diff(number) != 0
    cuts = [*np.flatnonzero(far).tolist(), rows.size]
    return [slice(low, high) for low, high in pairwise(cuts)][::-1]


def _slices(view: memoryview, begins: I64, ends: I64) -> Iterator[memoryview]:
    return map(view.__getitem__, map(slice, begins.tolist(), ends.tolist()))


def _candidates(rows: Rows, heads: Rows, start: int) -> tuple[I64, I64]:
    """Return the blocks of 64 bytes that look like the header of a frame of one of the rows, sorted by row and place,
    and their rows. The ``rows`` of one ledger never overlap."""
    looks = (heads["magic"] == FRAME_MAGIC) & (heads["version"] == FRAME_VERSION) & (heads["kind"] == FrameKind.ENTRIES)
    at = np.flatnonzero(looks)
    ledgers, rank = np.unique(rows["ledger"], return_inverse=True)
    keys = rank.astype(np.int64) << 40 | rows["offset"].astype(np.int64)
    order = np.argsort(keys)
    found = np.minimum(np.searchsorted(ledgers, heads["ledger"][at]), ledgers.size - 1)
    offsets = at * FRAME_ALIGNMENT + start
    wanted = found << 40 | offsets
    of = order[np.maximum(np.searchsorted(keys[order], wanted, "right") - 1, 0)]
    first = rows["offset"][of].astype(np.int64)
    here = (rows["ledger"][of] == heads["ledger"][at]) & (first <= offsets)
    here &= np.where(rows["bits"][of] & RUN != 0, offsets < first + rows["size"][of], offsets == first)
    at, of, wanted = at[here], of[here], wanted[here]
    by_row = np.argsort(wanted, kind="stable")
    return at[by_row], of[by_row]


def _tiled(rows: Rows, heads: Rows, offsets: I64, of: I64) -> npt.NDArray[np.bool_]:
    """Return for each row whether its frames, sorted by row and place, match it exactly: one frame of its size, or for
    a run all ids from first to last, one frame behind the other."""
    tiled = np.zeros(rows.size, dtype=np.bool_)
    if not of.size:
        return tiled
    ends = offsets + frame_sizes(heads)
    begins = np.flatnonzero(np.append(True, np.diff(of) != 0))
    tails = np.append(begins[1:], of.size) - 1
    row = rows[of[begins]]
    row_ends = row["offset"].astype(np.int64) + row["size"]
    is_run = row["bits"] & RUN != 0
    right = (offsets[begins] == row["offset"]) & (ends[tails] == row_ends) & (is_run | (begins == tails))
    after = heads["first"] + heads["count"]
    right &= ~is_run | ((heads["first"][begins] == row["first"]) & (after[tails] == row["last"] + 1))
    breaks = np.append(False, (heads["first"][1:] != after[:-1]) | (offsets[1:] < ends[:-1]))
    breaks[begins] = False
    right &= ~np.logical_or.reduceat(breaks, begins)
    tiled[of[begins]] = right
    return tiled


def _compact(table: FrameTable) -> FrameTable:
    """Copy the frames into a smaller buffer if more than a quarter of the data is not theirs."""
    blocks = -(-frame_sizes(table.heads) // FRAME_ALIGNMENT)
    total = int(blocks.sum())
    if total * FRAME_ALIGNMENT * 4 >= table.data.size * 3:
        return table
    ends = np.cumsum(blocks)
    which = np.repeat(table.starts // FRAME_ALIGNMENT - (ends - blocks), blocks) + np.arange(total)
    data = table.data.reshape(-1, FRAME_ALIGNMENT)[which].reshape(-1)
    return FrameTable(data, (ends - blocks) * FRAME_ALIGNMENT, table.heads, table.rows)


def _table_of(data: bytes, starts: list[int], row: np.void) -> FrameTable:
    """Make a table of the checked frames of one index record."""
    padded = np.frombuffer(data.ljust(round_up(len(data), FRAME_ALIGNMENT), b"\0"), dtype=np.uint8)
    at = np.array(starts, dtype=np.int64)
    heads = padded.reshape(-1, FRAME_HEADER_BYTES).view(FRAME_HEAD)[:, 0][at // FRAME_ALIGNMENT]
    rows = np.array([row], dtype=INDEX_ROW)
    if row["bits"] & RUN:
        rows = dense_rows(heads)
    return FrameTable(padded, at, heads, rows)


def _follow(firsts: tuple[int, ...], lasts: tuple[int, ...], first: int, last: int) -> bool:
    """Return whether the frames hold each id from first to last once."""
    return (
        bool(firsts)
        and (firsts[0], lasts[-1]) == (first, last)
        and all(after == before + 1 for after, before in zip(firsts[1:], lasts[:-1], strict=True))
    )


def together(tables: list[FrameTable]) -> FrameTable:
    """Join several tables into one."""
    if len(tables) == 1:
        return tables[0]
    ends = np.cumsum([table.data.size for table in tables])
    starts = [table.starts + end - table.data.size for table, end in zip(tables, ends.tolist(), strict=True)]
    return FrameTable(
        np.concatenate([table.data for table in tables]),
        np.concatenate(starts),
        np.concatenate([table.heads for table in tables]),
        np.concatenate([table.rows for table in tables]),
    )
