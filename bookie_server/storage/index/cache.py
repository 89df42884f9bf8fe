# SPDX-License-Identifier: Apache-2.0
"""The bounded cache for parts of the ``.idx`` files of sealed segments, and the search in them (RULES S7).

Dropped parts are read again, so the cache may have any size. Even with a cache that keeps nothing a look-up makes
progress, because its caller passes each result from the disk to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import TypeAlias

from bookie_server.machine.disk_places import IndexBlock, Unresolved
from bookie_server.storage.bytes.index_rows import Rows
from bookie_server.storage.bytes.membership import RunMembers, Runs, Striping
from bookie_server.storage.index.ledger_frames import BlockFrames, column
from bookie_server.storage.index.search import SPARSE_SECTION, Search

INDEX_CACHE_BYTES = 64 << 20
"""The default of the maximum size of the cache, in bytes."""
_ENTRY_BYTES = 300
"""The approximate memory of an entry of the cache, in bytes, besides its contents."""


class SparseIndex:
    """The sparse records of a segment, which tell which index blocks can hold an id of a ledger. ``edition`` is that of
    the ``.idx``."""

    __slots__ = ("_first_ledgers", "_firsts", "_last_ledgers", "_peaks", "edition")

    def __init__(self, sparse: Rows, edition: int = 0) -> None:
        self.edition = edition
        self._first_ledgers, self._firsts = column(sparse["ledger"]), column(sparse["first"])
        self._last_ledgers, self._peaks = column(sparse["last_ledger"]), column(sparse["max_last"])

    def blocks(self, ledger_id: int, first: int, last: int) -> range:
        """Return the blocks that may have frames of the ledger with an id from first to last.

        This leaves out blocks that end below the range, because they hold smaller ledgers or have a running maximum
        below ``first``, and blocks that begin above it.
        """
        low = bisect_left(self._last_ledgers, ledger_id)
        end = bisect_right(self._last_ledgers, ledger_id, low)
        low = bisect_left(self._peaks, first, low, end)
        start = bisect_left(self._first_ledgers, ledger_id)
        stop = bisect_right(self._first_ledgers, ledger_id, start)
        return range(low, bisect_right(self._firsts, last, start, stop))

    def bounds(self, number: int, ledger_id: int, first: int, last: int) -> tuple[int, int]:
        """Return bounds of the ledger's ids in a block: the least first and the greatest last id of its frames. If
        another ledger is at an end of the block, the bound there is the given ``first`` or ``last``, which are those of
        the whole segment."""
        if self._first_ledgers[number] == ledger_id:
            first = self._firsts[number]
        if self._last_ledgers[number] == ledger_id:
            last = self._peaks[number]
        return first, last

    def memory_bytes(self) -> int:
        return 512 + 32 * len(self._firsts)


Remembered: TypeAlias = SparseIndex | BlockFrames | Striping | Runs | RunMembers
"""The contents of an index block, the ids of a frame that had to be read, or the intact frames of a damaged run."""


class IndexCache:
    """A cache of at most ``bytes_max`` that drops the least recently used entries. Only one thread may use it."""

    def __init__(self, bytes_max: int = INDEX_CACHE_BYTES) -> None:
        self.bytes_max = bytes_max
        self._entries: OrderedDict[Unresolved, Remembered] = OrderedDict()
        self._of_generation: dict[int, set[Unresolved]] = {}
        self._bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, place: Unresolved) -> Remembered | None:
        entry = self._entries.get(place)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(place)
        return entry

    def put(self, place: Unresolved, entry: Remembered) -> None:
        self._drop(place)
        self._entries[place] = entry
        self._of_generation.setdefault(place.generation, set()).add(place)
        self._bytes += _bytes_of(entry)
        while self._bytes > self.bytes_max:
            self._drop(next(iter(self._entries)))

    def forget(self, generation: int) -> None:
        """Drop the entries of a segment that is gone, or has a new ``.idx``."""
        for place in list(self._of_generation.get(generation, ())):
            self._drop(place)

    def _drop(self, place: Unresolved) -> None:
        entry = self._entries.pop(place, None)
        if entry is None:
            return
        self._bytes -= _bytes_of(entry)
        of_generation = self._of_generation[place.generation]
        of_generation.discard(place)
        if not of_generation:
            del self._of_generation[place.generation]

    def memory_bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)


def _bytes_of(entry: Remembered) -> int:
    if isinstance(entry, SparseIndex | BlockFrames):
        return _ENTRY_BYTES + entry.memory_bytes()
    if isinstance(entry, Runs):
        return _ENTRY_BYTES + 2 * entry.starts.nbytes
    if isinstance(entry, RunMembers):
        return _ENTRY_BYTES + 160 * len(entry.firsts)
    return _ENTRY_BYTES


def search_sealed(search: Search, generation: int, first: int, last: int, unreadable: set[int] | None) -> None:
    """Give the search the frames of a sealed segment in which the ledger has ids first to last. ``unreadable`` has the
    blocks of its ``.idx`` that fail their check. If a block must be read from the disk first, it is added to the search
    as unresolved, or the search is cut before it."""
    if unreadable is not None and SPARSE_SECTION in unreadable:
        search.lost.append((first, last))
        return
    place = IndexBlock(generation, SPARSE_SECTION)
    sparse = search.known(place)
    if sparse is None:
        _ask(search, place, first)
        return
    assert isinstance(sparse, SparseIndex)
    for number in sparse.blocks(search.ledger_id, search.first, search.through):
        begin, end = sparse.bounds(number, search.ledger_id, first, last)
        if begin > search.through or search.is_full:
            return
        if begin > search.first and search.has_enough:
            search.cut(begin - 1)
            return
        if unreadable is not None and number in unreadable:
            search.lost.append((begin, end))
            continue
        place = IndexBlock(generation, number)
        block = search.known(place)
        if block is None:
            _ask(search, place, begin)
            continue
        assert isinstance(block, BlockFrames)
        if block.edition == sparse.edition:
            block.candidates(search)
        else:  # the ``.idx`` was rebuilt in between, so ``number`` is another block in it
            _ask(search, IndexBlock(generation, SPARSE_SECTION), begin)
            _ask(search, place, begin)


def _ask(search: Search, block: IndexBlock, begin: int) -> None:
    """Cut the search before a block that begins inside the range. A block that may hold the first id must be read now,
    so it is added as unresolved."""
    if begin > search.first:
        search.cut(begin - 1)
    elif not search.is_full:
        search.unresolved.append(block)
