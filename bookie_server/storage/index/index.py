# SPDX-License-Identifier: Apache-2.0
"""Which frames hold which entries, and the folded state of each ledger. In memory, one thread, no I/O (RULES S2, S7).

An id is answered FOUND with a place, ABSENT, or UNKNOWN with a reason. ABSENT is said only for a healthy ledger, and
only after every frame that could hold the id was considered. Frames of unsealed segments are all in memory. Of a sealed
segment only a summary is; its ``.idx`` is read block by block: a look-up names the blocks that it needs as
``unresolved``, and is repeated with their contents. State folds to the same result whatever the order of the records
(S4). Pending adds (S1) are the machine's; only durable frames are here.
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
"""How many frames one look-up considers unless told otherwise."""

_SEGMENTS_AHEAD = 4  # sealed segments of one look-up that begin above its first id


@dataclass(frozen=True, slots=True)
class Lookup:
    """The index's answer for ids first to ``through``: each is in exactly one piece, absent or unknown range.

    ``through`` is below the last requested id if there were more frames than one look-up considers, or if the rest must
    be read first. While ``unresolved`` is not empty it is first − 1: the caller has the reader find out what these
    frames and index blocks hold, and asks again.
    """

    pieces: tuple[Piece, ...]
    absent: tuple[tuple[EntryId, EntryId], ...]
    unknown: tuple[EntryRange, ...]
    unresolved: tuple[Unresolved, ...]
    through: EntryId


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The greatest entry id that is known to be intact here, and the frame that ends with it; −1 and None if there is
    none. ``bound``: no frame ends above it, damaged ones of sealed segments included."""

    entry_id: EntryId
    place: Place | None
    bound: EntryId


@dataclass(frozen=True, slots=True, eq=False)
class DamagedIndex:
    """``summary``: ledger, first, last and bytes of what the segment held and still counts. ``unreadable``: numbers of
    the blocks of its ``.idx`` that must not be believed."""

    summary: Rows
    unreadable: frozenset[int]


class LedgerIndex:
    """All ledgers of a data directory."""

    def __init__(self, index_cache_bytes: int = INDEX_CACHE_BYTES) -> None:
        self._states = LedgerStates()
        self._unsealed: dict[int, dict[LedgerId, LedgerFrames]] = {}
        self._directory = SegmentDirectory()
        self.cache = IndexCache(index_cache_bytes)
        self._damage = DamagedPlaces()
        self._unreadable: dict[int, set[int]] = {}  # blocks of an .idx
        self.newest_sealed = 0
        """The greatest generation that was ever sealed here, even if it was given back since; 0 if none was."""
        self.damaged_indexes: set[int] = set()
        """Sealed segments whose ``.idx`` fails a check: to be scanned and indexed anew."""
        self._suspects: dict[LedgerId, None] = {}

    # --- filling: frames --------------------------------------------------------------------------------------------

    def add(self, frame: bytes | bytearray | memoryview, place: Place, header: FrameHeader | None = None) -> None:
        """Take in one durable frame of any kind."""
        header = parse_header(frame) if header is None else header
        if header.kind != FrameKind.ENTRIES:
            self.add_record(header.kind, header.ledger_id, bytes(frame[FRAME_HEADER_BYTES : header.size]))
            return
        striping = striping_of(frame, header)
        self.add_frame(header.ledger_id, frame_extent(frame, header), place, striping=striping)

    def add_frame(
        self, ledger_id: LedgerId, extent: FrameExtent, place: Place, striping: Striping | None = None
    ) -> None:
        """Take in one durable frame of entries of an unsealed segment. ``striping`` is that of a STRIPED frame. Without
        it, or for IDS, the frame must be read before its ids are known."""
        try:
            frames = self._unsealed[place.generation][ledger_id]
        except KeyError:  # of a deleted ledger there are none
            if ledger_id in self._states.deleted:
                return
            frames = self._frames_in(place.generation, ledger_id)
        frames.add(extent, place, striping)

    def add_rows(self, generation: int, rows: Rows) -> None:
        """Take in the index records of an unsealed segment, sorted as ``sorted_rows`` does."""
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
        """Fold one durable record. Records may come in any order."""
        if kind == FrameKind.DELETED:
            self._states.deleted.add(ledger_id, ledger_id)  # from now on nothing else is known of it, for good
            self._forget(ledger_id)
        elif self._states.fold(ledger_id, kind, payload):
            self._directory.forget(ledger_id, self._states.drops[ledger_id])

    def load_ledgers(self, rows: Rows) -> None:
        """Fold the ledger records of a checkpoint, sorted by ledger."""
        for ledger_id in self._states.load(rows):
            self._directory.forget(ledger_id, self._states.drops[ledger_id])

    def load_deleted(self, intervals: I64) -> None:
        """Take in deleted ledgers: an array of (first, last)."""
        for ledger_id in self._states.load_deleted(intervals):
            self._forget(ledger_id)

    def _forget(self, ledger_id: LedgerId) -> None:
        self._states.forget(ledger_id)
        self._directory.forget(ledger_id)
        for ledgers in self._unsealed.values():
            ledgers.pop(ledger_id, None)

    # --- segments ---------------------------------------------------------------------------------------------------

    def seal(self, generation: int, summary: Rows) -> None:
        """The segment has an ``.idx`` with this summary: its frames leave the memory, if they were in it."""
        self._directory.add_segment(generation, summary[self._states.counting(generation, summary)])
        self.newest_sealed = max(self.newest_sealed, generation)
        self._unsealed.pop(generation, None)

    def drop_segment(self, generation: int) -> None:
        """The segment is given back, because all its live frames stand elsewhere. No look-up names it any more."""
        self._unsealed.pop(generation, None)
        self._directory.drop_segment(generation)
        self._damage.forget(generation)
        self._forget_index(generation)

    def index_rebuilt(self, generation: int, summary: Rows) -> None:
        """A sealed segment has a new ``.idx``. Ignored if the segment was dropped meanwhile."""
        if generation in self._directory:
            self._forget_index(generation)
            self.seal(generation, summary)

    def _forget_index(self, generation: int) -> None:
        self.cache.forget(generation)
        self._unreadable.pop(generation, None)
        self.damaged_indexes.discard(generation)

    # --- what the reader says ---------------------------------------------------------------------------------------

    def mark_damaged(self, ledger_id: LedgerId, place: Unresolved) -> None:
        """The bytes at ``place`` failed their check twice (RULES S5). A frame then serves nothing, a run only its
        intact frames, an index block nothing: ids that no other frame holds are UNKNOWN. Ignored for a place that is
        not indexed."""
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
        """Entries of these ledgers are lost here, or may be."""
        self._suspects.update(dict.fromkeys(ledger_ids))

    def take_suspects(self) -> list[LedgerId]:
        """The ledgers of which damage was noted since the last call, each once."""
        suspects, self._suspects = list(self._suspects), {}
        return suspects

    def learn(self, ledger_id: LedgerId, place: Unresolved, membership: Remembered) -> None:
        """Remember, within the cache's bound, what the reader found at an unresolved place."""
        unsealed = self._unsealed.get(place.generation)
        if unsealed is not None and isinstance(membership, Striping) and isinstance(place, Place):
            if ledger_id in unsealed:
                unsealed[ledger_id].learn(place, membership)
        elif unsealed is not None or place.generation in self._directory:
            self.cache.put(place, membership)

    # --- asking -----------------------------------------------------------------------------------------------------

    def lookup(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        *,
        frames_max: int = FRAMES_MAX,
        resolved: Mapping[Unresolved, Remembered] | Mapping[Place, Remembered] | None = None,
    ) -> Lookup:
        """Where the entries first to last (both inclusive) are. ``resolved`` has what the reader found at places that
        an earlier answer named as unresolved."""
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

        search = Search(ledger_id, first, last, frames_max, known, self._damage)
        lost = self._gather(search)
        if search.unresolved:
            return Lookup((), (), (), tuple(search.unresolved), first - 1)
        spans, gaps = search.covered()
        pieces = tuple(Piece(place, low, high) for low, high, place in spans)
        if not gaps:
            return Lookup(pieces, (), (), (), search.through)
        return self._answer(self._states.table.get(ledger_id), pieces, gaps, lost, search.through)

    def _at_once(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> Place | None:
        """A frame in memory that holds the whole range. No other frame needs to be considered, because all copies of an
        entry are alike (RULES P6)."""
        for generation, ledgers in reversed(self._unsealed.items()):
            frames = ledgers.get(ledger_id)
            if frames is not None and generation not in self._damage:
                k = frames.dense_over(first, last)
                if k is not None:
                    return frames.place(k, ledger_id)
        return None

    def _gather(self, search: Search) -> list[IntervalSet]:
        """Give the search every frame that may hold an id from ``search.first`` to ``search.through``, which this may
        lower. Returns the ids lost in memory."""
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
            if begin > first and len(search.frames) >= search.frames_max:
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

    # --- ends and state ---------------------------------------------------------------------------------------------

    def last_entry(self, ledger_id: LedgerId) -> LastEntry:
        """The end of what is stored of a ledger, without pending adds."""
        found: list[tuple[int, Place]] = []
        for frames in self._unsealed_frames(ledger_id):
            last, place = frames.last(ledger_id)
            if place is not None:
                found.append((last, place))
        found += self._directory.tops(ledger_id)
        return LastEntry(*greatest_intact(found, self._damage, self.cache.get))

    def carried_lac(self, ledger_id: LedgerId) -> tuple[EntryId, Place | None]:
        """The greatest LAC carried by a frame that is not known to be damaged, and that frame; −1 and None if there is
        none."""
        found = [frames.carried_lac(ledger_id) for frames in self._unsealed_frames(ledger_id)]
        found += self._directory.lacs(ledger_id)
        intact = [(lac, place) for lac, place in found if place is not None and not self._damage.hits(place)]
        return max(intact, key=lambda item: item[0], default=(-1, None))

    def folded(self, ledger_id: LedgerId) -> tuple[LedgerState | None, Reason]:
        """The folded records of a ledger that is not deleted, and its trouble."""
        state = self._states.table.get(ledger_id)
        return state, self._states.trouble(state)

    def troubled(self, first_ledger: LedgerId, limit: int) -> tuple[list[LedgerId], LedgerId | None]:
        """The ledgers that may have lost entries among the next ``limit`` from ``first_ledger`` on, and the ledger to
        continue with; None at the end. A dropped copy is none of them. :attr:`all_troubled` is said apart."""
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
        """Another number after each change of what :meth:`folded` and :meth:`is_deleted` say."""
        return self._states.table.version

    def is_deleted(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._states.deleted

    def are_deleted(self, ledger_ids: I64) -> npt.NDArray[np.bool_]:
        return self._states.deleted.holds(ledger_ids)

    def ledger_ids(self) -> list[LedgerId]:
        """Every ledger that is known and not deleted, sorted."""
        return self._states.ids()

    def sealed_through(self, ledger_id: LedgerId) -> int:
        """The newest sealed generation if a sealed segment holds anything of the ledger, else 0."""
        return self.newest_sealed if self._directory.has(ledger_id) else 0

    def has_copy(self, ledger_id: LedgerId, first: EntryId, last: EntryId, size: int, above: int) -> bool:
        """Whether a frame of exactly these bounds lies in a segment of a greater generation than ``above``. It may miss
        one in a sealed segment, which is then copied once more."""
        for generation, ledgers in self._unsealed.items():
            frames = ledgers.get(ledger_id)
            if generation > above and frames is not None and frames.has_copy(first, last, size):
                return True
        return self._directory.has_only(ledger_id, first, last, size, above)

    # --- what maintenance asks and tells ----------------------------------------------------------------------------

    def export_ledgers(self, first_ledger: LedgerId, limit: int) -> Rows:
        """A copy of at most ``limit`` ledger records from ``first_ledger`` on, sorted, EVERY_LEDGER's too; empty at the
        end. A checkpoint goes on with the last id + 1; changes made meanwhile may be in it or not."""
        return self._states.table.rows_from(first_ledger, limit)

    def deleted_intervals(self) -> I64:
        """Deleted ledgers: an array of (first, last)."""
        return self._states.deleted.pairs()

    def live_bytes(self) -> dict[int, int]:
        """For each sealed segment the bytes of frames that may still be served."""
        return self._directory.live_bytes()

    def ledgers_in(self, generation: int) -> I64:
        """Ledgers with live frames in a sealed segment, sorted."""
        return self._directory.ledgers_in(generation)

    def drop_dead(self) -> list[int]:
        """Drop every sealed segment that can serve nothing any more; returns their generations, ascending."""
        dead = sorted(generation for generation, size in self.live_bytes().items() if not size)
        for generation in dead:
            self.drop_segment(generation)
        return dead

    def sealed_generations(self) -> list[int]:
        return self._directory.generations()

    def unsealed_generations(self) -> list[int]:
        return sorted(self._unsealed)

    def generations(self) -> tuple[list[int], list[int], int]:
        """The sealed and the unsealed segments that are held, ascending, and the greatest generation that was ever
        sealed."""
        return self.sealed_generations(), self.unsealed_generations(), self.newest_sealed

    def is_sealed(self, generation: int) -> bool:
        """Whether a sealed segment of this generation is held: False once it is dropped."""
        return generation in self._directory

    def damaged_index(self, generation: int) -> DamagedIndex | None:
        """What memory knows of a sealed segment whose ``.idx`` must be made anew; None if it need not be, or is
        dropped."""
        if generation not in self.damaged_indexes or generation not in self._directory:
            return None
        return DamagedIndex(self._directory.summary(generation), frozenset(self._unreadable.get(generation, ())))

    def damaged_segments(self) -> set[int]:
        """Segments with known damage in them or in their ``.idx``. They stay in this set until they are dropped or, for
        an ``.idx``, until it is made anew."""
        return self._damage.generations() | self.damaged_indexes

    def place_copies(self, copies: Mapping[int, Rows]) -> None:
        """Take in index records of durable copies of frames, by generation and as ``add_rows`` wants them.

        What was deleted since the frames were read stays dead (RULES S4). Copies in a segment that was sealed meanwhile
        are left out: its summary names them, or they are all dead. A ledger whose copy was dropped meanwhile comes
        back, and is dropped again.
        """
        for generation, rows in copies.items():
            was_sealed = generation <= self.newest_sealed and generation not in self._unsealed
            if generation not in self._directory and not was_sealed:
                self.add_rows(generation, rows[self._states.counting(generation, rows)])

    # --- its size ---------------------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Roughly the memory of the whole index."""
        frames = sum(frames.memory_bytes() for ledgers in self._unsealed.values() for frames in ledgers.values())
        parts = (self._states.table, self._directory, self.cache)
        return frames + sum(part.memory_bytes() for part in parts)

    def __len__(self) -> int:
        return len(self._states)
