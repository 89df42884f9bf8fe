# SPDX-License-Identifier: Apache-2.0
"""The index of a data directory: which frames hold which entries, and the folded state of each ledger. It is in memory,
belongs to one thread, and does no I/O (RULES S2, S7).

For each id the answer is FOUND with a place, ABSENT, or UNKNOWN with a reason. It is ABSENT only for a healthy ledger,
and only after every frame that could hold the id was considered. All frames of unsealed segments are in memory. For a
sealed segment only a summary is in memory, and its ``.idx`` is read block by block: a look-up names the blocks that it
needs as ``unresolved``, and is repeated with their contents. State folds to the same result whatever the order of the
records (S4). Only durable frames are here; the machine has the pending adds (S1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from bk_core.entries.frame import FRAME_HEADER_BYTES, FrameExtent, FrameHeader, FrameKind, frame_extent, parse_header
from bk_core.model import EntryId, LedgerId
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.machine.disk_places import IndexBlock, Place, Unresolved
from bookie_server.machine.events import Piece
from bookie_server.storage.bytes.index_rows import I64, Rows
from bookie_server.storage.bytes.intervals import IntervalSet
from bookie_server.storage.bytes.membership import Striping, striping_of
from bookie_server.storage.index.cache import INDEX_CACHE_BYTES, IndexCache, Remembered, search_sealed
from bookie_server.storage.index.ledger_frames import STRIDE, LedgerFrames, column, columns_of_rows
from bookie_server.storage.index.ledger_states import EVERY_LEDGER, LedgerStates
from bookie_server.storage.index.ledger_table import KEY_CONFLICT, NO_ADDS, LedgerState
from bookie_server.storage.index.search import DamagedPlaces, Search, greatest_intact
from bookie_server.storage.index.segment_directory import Reach, SegmentDirectory

FRAMES_MAX = 64
"""The default of the maximum number of frames that one look-up considers."""
BYTES_MAX = 1 << 62
"""The default of the size of frames, in bytes, after which a look-up considers no further frames. It is no limit."""

_SEGMENTS_AHEAD = 4  # how many sealed segments that begin above the first id one look-up considers


@dataclass(frozen=True, slots=True)
class Lookup:
    """The index's answer for the ids from ``first`` to ``through``. Each of them is in exactly one piece, absent range
    or unknown range. ``through`` is below the last requested id if there were more frames than one look-up considers,
    or if the rest must be read first. If ``unresolved`` is not empty, ``through`` is first − 1. The caller must then
    read these frames and index blocks, and look up again."""

    pieces: tuple[Piece, ...]
    absent: tuple[tuple[EntryId, EntryId], ...]
    unknown: tuple[EntryRange, ...]
    unresolved: tuple[Unresolved, ...]
    through: EntryId


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The greatest entry id that is known to be intact here, and the frame that ends with it. They are −1 and None if
    there is none. No frame ends above ``bound``, including damaged frames of sealed segments."""

    entry_id: EntryId
    place: Place | None
    bound: EntryId


@dataclass(frozen=True, slots=True, eq=False)
class DamagedIndex:
    """The part of a damaged ``.idx`` that memory has. ``summary`` has ledger, first, last and bytes of the segment's
    live content. ``unreadable`` has the numbers of the blocks of the ``.idx`` that must not be trusted."""

    summary: Rows
    unreadable: frozenset[int]


class LedgerIndex:
    """The index of all ledgers of a data directory."""

    def __init__(self, index_cache_bytes: int = INDEX_CACHE_BYTES) -> None:
        self._states = LedgerStates()
        self._unsealed: dict[int, dict[LedgerId, LedgerFrames]] = {}
        self._directory = SegmentDirectory()
        self.cache = IndexCache(index_cache_bytes)
        self._damage = DamagedPlaces()
        self._unreadable: dict[int, set[int]] = {}  # by generation, the unreadable blocks of its .idx
        self.newest_sealed = 0
        """The greatest generation that was ever sealed here, even if it was given back since; 0 if none."""
        self.damaged_indexes: set[int] = set()
        """Sealed segments whose ``.idx`` fails a check, and must be rebuilt by a scan."""
        self._suspects: dict[LedgerId, None] = {}

    # --- filling: frames --------------------------------------------------------------------------------------------

    def add(self, frame: bytes | bytearray | memoryview, place: Place, header: FrameHeader | None = None) -> None:
        """Add a durable frame of any kind."""
        header = parse_header(frame) if header is None else header
        if header.kind != FrameKind.ENTRIES:
            self.add_record(header.kind, header.ledger_id, bytes(frame[FRAME_HEADER_BYTES : header.size]))
            return
        striping = striping_of(frame, header)
        self.add_frame(header.ledger_id, frame_extent(frame, header), place, striping=striping)

    def add_frame(
        self, ledger_id: LedgerId, extent: FrameExtent, place: Place, striping: Striping | None = None
    ) -> None:
        """Add a durable frame of entries in an unsealed segment. ``striping`` is that of a STRIPED frame. A frame
        without it whose ids are not consecutive must be read before its ids are known."""
        try:
            frames = self._unsealed[place.generation][ledger_id]
        except KeyError:  # there is no frame of this ledger in this segment yet
            if ledger_id in self._states.deleted:
                return
            frames = self._frames_in(place.generation, ledger_id)
        frames.add(extent, place, striping)

    def add_rows(self, generation: int, rows: Rows) -> None:
        """Add the index records of an unsealed segment, sorted as by ``sorted_rows``."""
        if not rows.size:
            return
        cuts = [0, *(np.flatnonzero(np.diff(rows["ledger"])) + 1).tolist(), rows.size]
        firsts, lasts = column(rows["first"]), column(rows["last"])
        columns = column(columns_of_rows(generation, rows))
        for ledger_id, low, high in zip(rows["ledger"][cuts[:-1]].tolist(), cuts[:-1], cuts[1:], strict=True):
            if ledger_id not in self._states.deleted:
                part = columns[low * STRIDE : high * STRIDE]
                self._frames_in(generation, ledger_id).add_many(firsts[low:high], lasts[low:high], part)

    def _frames_in(self, generation: int, ledger_id: LedgerId) -> LedgerFrames:
        ledgers = self._unsealed.setdefault(generation, {})
        if ledger_id not in ledgers:
            ledgers[ledger_id] = LedgerFrames()
            self._states.table.ensure(np.array([ledger_id]))
        return ledgers[ledger_id]

    # --- filling: state ---------------------------------------------------------------------------------------------

    def add_record(self, kind: int, ledger_id: LedgerId, payload: bytes) -> None:
        """Fold a durable record into the state of its ledger. Records may come in any order."""
        if kind == FrameKind.DELETED:
            self._states.deleted.add(ledger_id, ledger_id)  # a deleted ledger has no other state, for good
            self._forget(ledger_id)
        elif self._states.fold(ledger_id, kind, payload):
            self._directory.forget(ledger_id, self._states.drops[ledger_id])

    def load_ledgers(self, rows: Rows) -> None:
        """Fold the ledger records of a checkpoint, sorted by ledger."""
        for ledger_id in self._states.load(rows):
            self._directory.forget(ledger_id, self._states.drops[ledger_id])

    def load_deleted(self, intervals: I64) -> None:
        """Add deleted ledgers: an array of (first, last)."""
        for ledger_id in self._states.load_deleted(intervals):
            self._forget(ledger_id)

    def _forget(self, ledger_id: LedgerId) -> None:
        self._states.forget(ledger_id)
        self._directory.forget(ledger_id)
        for ledgers in self._unsealed.values():
            ledgers.pop(ledger_id, None)

    # --- segments ---------------------------------------------------------------------------------------------------

    def seal(self, generation: int, summary: Rows) -> None:
        """Turn a segment into a sealed one, whose ``.idx`` has this summary. Its frames are dropped from memory, if
        they were there."""
        self._directory.add_segment(generation, summary[self._states.counting(generation, summary)])
        self.newest_sealed = max(self.newest_sealed, generation)
        self._unsealed.pop(generation, None)

    def drop_segment(self, generation: int) -> None:
        """Drop a segment that is given back, because all its live frames are elsewhere. Later look-ups do not name
        it."""
        self._unsealed.pop(generation, None)
        self._directory.drop_segment(generation)
        self._damage.forget(generation)
        self._forget_index(generation)

    def index_rebuilt(self, generation: int, summary: Rows) -> None:
        """Use the new ``.idx`` of a sealed segment, with this summary. Ignored if the segment was dropped meanwhile."""
        if generation in self._directory:
            self._forget_index(generation)
            self.seal(generation, summary)

    def _forget_index(self, generation: int) -> None:
        self.cache.forget(generation)
        self._unreadable.pop(generation, None)
        self.damaged_indexes.discard(generation)

    # --- results of reads ---------------------------------------------------------------------------------------

    def mark_damaged(self, ledger_id: LedgerId, place: Unresolved) -> None:
        """Mark the bytes at ``place`` as damaged, after they failed their check twice (RULES S5). A damaged frame or
        index block serves no entries, and a damaged run only its intact frames; ids that no other frame holds are
        UNKNOWN. Ignored for a place that is not indexed."""
        generation = place.generation
        if isinstance(place, IndexBlock):
            if generation in self._directory:
                self._unreadable.setdefault(generation, set()).add(place.number)
                self.damaged_indexes.add(generation)
            return
        if generation in self._unsealed:
            frames = self._unsealed[generation].get(ledger_id)
            if frames is None or not (place.is_run or frames.remove(place)):
                return
        elif generation not in self._directory:
            return
        self._damage.add(place)
        self.suspect((ledger_id,))

    def suspect(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Note ledgers that have lost entries here, or may have."""
        self._suspects.update(dict.fromkeys(ledger_ids))

    def take_suspects(self) -> list[LedgerId]:
        """Return the ledgers for which damage was noted since the last call, each once."""
        suspects, self._suspects = list(self._suspects), {}
        return suspects

    def learn(self, ledger_id: LedgerId, place: Unresolved, membership: Remembered) -> None:
        """Remember, within the cache's bound, the result of reading an unresolved place."""
        unsealed = self._unsealed.get(place.generation)
        if unsealed is not None and isinstance(membership, Striping) and isinstance(place, Place):
            if ledger_id in unsealed:
                unsealed[ledger_id].learn(place, membership)
        elif unsealed is not None or place.generation in self._directory:
            self.cache.put(place, membership)

    # --- look-ups -----------------------------------------------------------------------------------------------------

    def lookup(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        *,
        frames_max: int = FRAMES_MAX,
        bytes_max: int = BYTES_MAX,
        resolved: Mapping[Unresolved, Remembered] | Mapping[Place, Remembered] | None = None,
    ) -> Lookup:
        """Return where the entries first to last (both inclusive) are. The answer ends once it has ``frames_max``
        frames, or frames of ``bytes_max`` bytes or more. ``resolved`` has the results of reading the places that an
        earlier answer named as unresolved."""
        assert 0 <= first <= last
        if ledger_id in self._states.deleted:
            return Lookup((), (), (EntryRange(first, last, Reason.DELETED),), (), last)
        place = self._at_once(ledger_id, first, last)
        if place is not None:
            return Lookup((Piece(place, first, last),), (), (), (), last)
        told = cast(Mapping[Unresolved, Remembered], resolved or {})

        def known(place: Unresolved) -> Remembered | None:
            answer = told.get(place)
            return self.cache.get(place) if answer is None else answer

        search = Search(ledger_id, first, last, frames_max, bytes_max, known, self._damage)
        lost = self._gather(search)
        if search.unresolved:
            return Lookup((), (), (), tuple(search.unresolved), first - 1)
        pieces, gaps = search.covered()
        if not gaps:
            return Lookup(tuple(pieces), (), (), (), search.through)
        return self._answer(self._states.table.get(ledger_id), tuple(pieces), gaps, lost, search.through)

    def place_of(self, ledger_id: LedgerId, entry_id: EntryId) -> Place | None:
        """Return a frame or run that holds this entry. Return None if there is none, or if something must be read
        before it is known."""
        place = self._at_once(ledger_id, entry_id, entry_id)
        if place is None:
            found = self.lookup(ledger_id, entry_id, entry_id)
            place = found.pieces[0].place if found.pieces else None
        return place

    def _at_once(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> Place | None:
        """Return a frame in memory that holds the whole range, if there is one. No other frame needs to be considered,
        because all copies of an entry are equal (RULES P6)."""
        for generation, ledgers in reversed(self._unsealed.items()):
            frames = ledgers.get(ledger_id)
            if frames is not None and generation not in self._damage:
                k = frames.dense_over(first, last)
                if k is not None:
                    return frames.place(k, ledger_id)
        return None

    def _gather(self, search: Search) -> list[IntervalSet]:
        """Give the search every frame that may hold an id from ``search.first`` to ``search.through``, which this may
        lower. Return the ids that are known to be lost."""
        ledger_id, first = search.ledger_id, search.first
        lost: list[IntervalSet] = []
        sources: list[tuple[EntryId, LedgerFrames | Reach]] = []
        for frames in self._unsealed_frames(ledger_id):
            if frames.lost is not None:
                lost.append(frames.lost)
            if len(frames) and frames.peak >= first and frames.first <= search.through:
                sources.append((frames.first, frames))
        reaches, through = self._directory.reaching(ledger_id, first, search.through, _SEGMENTS_AHEAD)
        search.cut(through)
        sources += [(reach.first, reach) for reach in reaches]
        sources.sort(key=lambda source: source[0])
        for begin, source in sources:
            if begin > search.through or search.is_full:
                break
            if begin > first and search.has_enough:
                search.cut(begin - 1)
                break
            if isinstance(source, LedgerFrames):
                source.candidates(search)
            else:
                unreadable = self._unreadable.get(source.generation)
                search_sealed(search, source.generation, source.first, source.last, unreadable)
        if search.lost:
            lost.append(IntervalSet(search.lost))
        return lost

    def _unsealed_frames(self, ledger_id: LedgerId) -> list[LedgerFrames]:
        return [ledgers[ledger_id] for ledgers in self._unsealed.values() if ledger_id in ledgers]

    def _answer(
        self,
        state: LedgerState | None,
        pieces: tuple[Piece, ...],
        gaps: list[tuple[int, int]],
        lost: list[IntervalSet],
        through: EntryId,
    ) -> Lookup:
        trouble = self._states.trouble(state)
        if trouble is not Reason.REASON_NONE:
            return Lookup(pieces, (), tuple(EntryRange(*gap, trouble) for gap in gaps), (), through)
        absent, unknown = gaps, list[tuple[int, int]]()
        for intervals in lost:
            parts = [part for gap in absent for part in intervals.split(*gap)]
            absent = [(low, high) for low, high, inside in parts if not inside]
            unknown += [(low, high) for low, high, inside in parts if inside]
        ranges = tuple(EntryRange(low, high, Reason.DAMAGED) for low, high in sorted(unknown))
        return Lookup(pieces, tuple(absent), ranges, (), through)

    # --- last entries and state
    # ---------------------------------------------------------------------------------------------

    def last_entry(self, ledger_id: LedgerId) -> LastEntry:
        """Return the last stored entry of a ledger, without pending adds."""
        found: list[tuple[int, Place]] = []
        for frames in self._unsealed_frames(ledger_id):
            last, place = frames.last(ledger_id)
            if place is not None:
                found.append((last, place))
        found += self._directory.tops(ledger_id)
        return LastEntry(*greatest_intact(found, self._damage, self.cache.get))

    def carried_lac(self, ledger_id: LedgerId) -> tuple[EntryId, Place | None]:
        """Return the greatest LAC carried by a frame that is not known to be damaged, and that frame. Return −1 and
        None if there is none."""
        found = [frames.carried_lac(ledger_id) for frames in self._unsealed_frames(ledger_id)]
        found += self._directory.lacs(ledger_id)
        intact = [(lac, place) for lac, place in found if place is not None and not self._damage.hits(place)]
        return max(intact, key=lambda item: item[0], default=(-1, None))

    def greatest_lac(self, ledger_id: LedgerId) -> EntryId:
        """Return the LAC that :meth:`carried_lac` returns. Without damage this costs less."""
        if self._damage:
            return self.carried_lac(ledger_id)[0]
        lac = self._directory.greatest_lac(ledger_id)
        for ledgers in self._unsealed.values():
            frames = ledgers.get(ledger_id)
            if frames is not None and frames.lac > lac:
                lac = frames.lac
        return lac

    def folded(self, ledger_id: LedgerId) -> tuple[LedgerState | None, Reason]:
        """Return the folded state of a ledger that is not deleted, or None, and the reason to answer UNKNOWN for it."""
        state = self._states.table.get(ledger_id)
        return state, self._states.trouble(state)

    def troubled(self, first_ledger: LedgerId, limit: int) -> tuple[list[LedgerId], LedgerId | None]:
        """Search the next ``limit`` ledgers from ``first_ledger`` on. Return those that may have lost entries, and the
        ledger to continue with; None at the end. Dropped copies do not count, and :attr:`all_troubled` is separate."""
        rows = self._states.table.rows_from(first_ledger, limit)
        of_all = rows["ledger"] == EVERY_LEDGER
        found: list[int] = rows["ledger"][(rows["flags"] & (NO_ADDS | KEY_CONFLICT) != 0) & ~of_all].tolist()
        return found, int(rows["ledger"][-1]) + 1 if rows.size == limit and not of_all.any() else None

    @property
    def all_troubled(self) -> bool:
        """Whether every ledger, known or not, may have lost entries here."""
        return self._states.trouble(None) is not Reason.REASON_NONE

    @property
    def states_version(self) -> int:
        """A number that changes with each change in the results of :meth:`folded` and :meth:`is_deleted`."""
        return self._states.table.version

    def is_deleted(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._states.deleted

    def are_deleted(self, ledger_ids: I64) -> npt.NDArray[np.bool_]:
        return self._states.deleted.holds(ledger_ids)

    def ledger_ids(self) -> list[LedgerId]:
        """Return every ledger that is known and not deleted, sorted."""
        return self._states.ids()

    def sealed_through(self, ledger_id: LedgerId) -> int:
        """Return the newest sealed generation if a sealed segment holds an entry or record of the ledger, and otherwise
        0."""
        return self.newest_sealed if self._directory.has(ledger_id) else 0

    def has_copy(self, ledger_id: LedgerId, first: EntryId, last: EntryId, size: int, above: int) -> bool:
        """Return whether a frame of exactly these bounds and this size is in a segment of a greater generation than
        ``above``. This may miss such a frame in a sealed segment; then the frame is copied again."""
        for generation, ledgers in self._unsealed.items():
            frames = ledgers.get(ledger_id)
            if generation > above and frames is not None and frames.has_copy(first, last, size):
                return True
        return self._directory.has_only(ledger_id, first, last, size, above)

    # --- for maintenance ----------------------------------------------------------------------------

    def export_ledgers(self, first_ledger: LedgerId, limit: int) -> Rows:
        """Return a copy of at most ``limit`` ledger records from ``first_ledger`` on, sorted, including that of
        EVERY_LEDGER; empty at the end. A checkpoint continues with the last id + 1; it may have changes made meanwhile
        or not."""
        return self._states.table.rows_from(first_ledger, limit)

    def deleted_intervals(self) -> I64:
        """Return the deleted ledgers as an array of (first, last)."""
        return self._states.deleted.pairs()

    def live_bytes(self) -> dict[int, int]:
        """Return for each sealed segment the bytes of frames that may still be served."""
        return self._directory.live_bytes()

    def ledgers_in(self, generation: int) -> I64:
        """Return the ledgers with live frames in a sealed segment, sorted."""
        return self._directory.ledgers_in(generation)

    def drop_dead(self) -> list[int]:
        """Drop every sealed segment without live frames; return their generations, ascending."""
        dead = sorted(generation for generation, size in self.live_bytes().items() if not size)
        for generation in dead:
            self.drop_segment(generation)
        return dead

    def sealed_generations(self) -> list[int]:
        return self._directory.generations()

    def unsealed_generations(self) -> list[int]:
        return sorted(self._unsealed)

    def generations(self) -> tuple[list[int], list[int], int]:
        """Return the sealed and the unsealed segments that are held, ascending, and the greatest generation that was
        ever sealed."""
        return self.sealed_generations(), self.unsealed_generations(), self.newest_sealed

    def is_sealed(self, generation: int) -> bool:
        """Return whether the index holds a sealed segment of this generation. It is False once the segment is
        dropped."""
        return generation in self._directory

    def damaged_index(self, generation: int) -> DamagedIndex | None:
        """Return the summary of a sealed segment whose ``.idx`` must be rebuilt, and the blocks that cannot be read.
        Return None if the ``.idx`` need not be rebuilt, or if the segment is dropped."""
        if generation not in self.damaged_indexes or generation not in self._directory:
            return None
        return DamagedIndex(self._directory.summary(generation), frozenset(self._unreadable.get(generation, ())))

    def damaged_segments(self) -> set[int]:
        """Return the segments with known damage in them or in their ``.idx``. A segment stays in this set until it is
        dropped or, for damage in an ``.idx``, until that is rebuilt."""
        return self._damage.generations() | self.damaged_indexes

    def place_copies(self, copies: Mapping[int, Rows]) -> None:
        """Add the index records of durable copies of frames, by generation and sorted as for ``add_rows``.

        Ledgers that were deleted since the frames were read stay deleted (RULES S4). Copies in a segment that was
        sealed meanwhile are left out: its summary names them, or they are all dead. A ledger whose copy was dropped
        meanwhile comes back, and is dropped again later.
        """
        for generation, rows in copies.items():
            was_sealed = generation <= self.newest_sealed and generation not in self._unsealed
            if generation not in self._directory and not was_sealed:
                self.add_rows(generation, rows[self._states.counting(generation, rows)])

    # --- memory ---------------------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Return the approximate memory of the whole index."""
        frames = sum(frames.memory_bytes() for ledgers in self._unsealed.values() for frames in ledgers.values())
        parts = (self._states.table, self._directory, self.cache)
        return frames + sum(part.memory_bytes() for part in parts)

    def __len__(self) -> int:
        return len(self._states)
