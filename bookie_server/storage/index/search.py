# SPDX-License-Identifier: Apache-2.0
"""A look-up under way. It gathers the frames that may hold ids of a range, from memory and sealed segments (RULES S2).

Its sources may lower ``through``, but must never leave out a frame that begins at or below it, because ids up to
``through`` may be answered ABSENT. Pure memory; places that must be read from disk are named as ``unresolved``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Protocol

from bookie_server.machine.disk_places import Place, Unresolved
from bookie_server.machine.events import Piece
from bookie_server.storage.bytes.membership import Frame, Membership, RunMembers, Striping, cover, runs_of

UNRESOLVED_MAX = 8
"""The maximum number of unresolved places in one answer."""
SPARSE_SECTION = -1
OTHER_SECTIONS = -2
"""The number of a damaged index block if the damage is in a section of the ``.idx`` that look-ups do not read."""

DENSE_CODE, RUN_CODE, UNRESOLVED_CODE = 0, 1, 2  # the kind of a row; codes above are indices of _STRIPINGS
_STRIPINGS: list[Striping] = []
_CODE_OF: dict[Striping, int] = {}


def code_of(striping: Striping) -> int:
    """Return the code of a row whose frame has this striping."""
    code = _CODE_OF.get(striping)
    if code is None:
        code = _CODE_OF[striping] = len(_STRIPINGS) + UNRESOLVED_CODE + 1
        _STRIPINGS.append(striping)
    return code


class DamagedPlaces:
    """Has the damaged frames, and the runs with damaged frames, by segment."""

    __slots__ = ("_offsets", "_runs")

    def __init__(self) -> None:
        self._offsets: dict[int, list[int]] = {}  # by generation, the offsets of damaged frames
        self._runs: dict[int, set[Place]] = {}

    def add(self, place: Place) -> None:
        """Add a damaged frame, or a run with damaged frames, of which only the intact frames serve from then on."""
        if place.is_run:
            self._runs.setdefault(place.generation, set()).add(place)
            return
        offsets = self._offsets.setdefault(place.generation, [])
        k = bisect_left(offsets, place.offset)
        if k == len(offsets) or offsets[k] != place.offset:
            insort(offsets, place.offset)

    def hits(self, place: Place) -> bool:
        """Return whether the frame at ``place``, or a frame in the run there, is damaged."""
        if place.is_run and place in self._runs.get(place.generation, ()):
            return True
        offsets = self._offsets.get(place.generation)
        if offsets is None:
            return False
        k = bisect_left(offsets, place.offset)
        return k < len(offsets) and offsets[k] < place.offset + (place.size if place.is_run else 1)

    def forget(self, generation: int) -> None:
        self._offsets.pop(generation, None)
        self._runs.pop(generation, None)

    def generations(self) -> set[int]:
        return {*self._offsets, *self._runs}

    def __contains__(self, generation: int) -> bool:
        return generation in self._offsets or generation in self._runs

    def __bool__(self) -> bool:
        return bool(self._offsets or self._runs)


class Columns(Protocol):
    """The columns of frames, in which a row has a found frame."""

    def place(self, k: int, ledger_id: int) -> Place: ...


Known = Callable[[Unresolved], object | None]
"""A function that returns the contents of a place, if they were passed in or are in the cache."""


class Search:
    """A question to the index, and the frames gathered so far. ``bytes`` is the size of these frames; a frame with
    several copies counts several times."""

    __slots__ = (
        "bytes", "bytes_max", "damage", "first", "frames", "frames_max", "known", "ledger_id", "lost", "sources",
        "through", "unresolved",
    )  # fmt: skip

    def __init__(
        self,
        ledger_id: int,
        first: int,
        last: int,
        frames_max: int,
        bytes_max: int,
        known: Known,
        damage: DamagedPlaces,
    ) -> None:
        self.ledger_id, self.first, self.through = ledger_id, first, last
        self.frames_max, self.bytes_max, self.known, self.damage = frames_max, bytes_max, known, damage
        self.bytes = 0
        self.frames: list[Frame] = []
        self.sources: list[tuple[Columns, int] | Place] = []  # of each frame, the columns and row, or the place
        self.unresolved: list[Unresolved] = []
        self.lost: list[tuple[int, int]] = []  # ids that may be in bytes that cannot be read

    @property
    def is_full(self) -> bool:
        return len(self.unresolved) >= UNRESOLVED_MAX

    @property
    def has_enough(self) -> bool:
        """Whether the frames gathered so far are as many, or have as many bytes, as the answer may have. Frames that
        begin above ``first`` are then left for the next search."""
        return self.bytes >= self.bytes_max or len(self.frames) >= self.frames_max

    def cut(self, through: int) -> None:
        """Lower the end of the answer to ``through``, which is not below ``first``."""
        if through < self.through:
            self.through = through

    def resolve(self, place: Unresolved, first: int) -> None:
        """Add ``place``, whose ids begin at ``first``, to the places to read. If the answer has frames before it
        already, cut the answer there instead."""
        if first > self.first and (self.is_full or (self.frames and not self.unresolved)):
            self.cut(first - 1)
        elif not self.is_full:
            self.unresolved.append(place)

    def take(self, first: int, last: int, code: int, columns: Columns, k: int) -> None:
        """Add a row that overlaps the range. A damaged frame serves no entries, and its ids count as lost, not
        absent."""
        if self.damage:
            place = columns.place(k, self.ledger_id)
            if self.damage.hits(place):
                self._take_damaged(first, last, place)
                return
        membership: Membership | None = None
        if code == UNRESOLVED_CODE:
            place = columns.place(k, self.ledger_id)
            known = self.known(place)
            if known is None:
                self.resolve(place, first)
                return
            assert isinstance(known, tuple)
            membership = known  # type: ignore[assignment]  # only a run has RunMembers
        elif code > UNRESOLVED_CODE:
            membership = _STRIPINGS[code - UNRESOLVED_CODE - 1]
        self.frames.append((first, last, membership))
        self.sources.append((columns, k))

    def _take_damaged(self, first: int, last: int, place: Place) -> None:
        if place.is_run:
            members = self.known(place)
            if members is None:
                self.resolve(place, first)
                return
            assert isinstance(members, RunMembers)
            for low, high, offset, size in zip(*members, strict=True):
                member = Place(place.generation, offset, size)
                if high >= self.first and low <= self.through and not self.damage.hits(member):
                    self.frames.append((low, high, None))
                    self.sources.append(member)
        self.lost.append((first, last))

    # --- the end ----------------------------------------------------------------------------------------------------

    def covered(self) -> tuple[list[Piece], list[tuple[int, int]]]:
        """Return which frame serves which ids, and the gaps that no frame covers, from first to ``through``."""
        first, through = self.first, self.through
        picked = [k for k, frame in enumerate(self.frames) if frame[0] <= through]
        picked.sort(key=lambda k: self.frames[k][0])
        frames = [self.frames[k] for k in picked]
        if any(membership is not None for _, _, membership in frames):
            spans, gaps = cover([runs_of(*frame, first, through) for frame in frames], first, through)
        else:
            spans, gaps = _cover_dense(frames, first, through)
        return [
            Piece(self._place(picked[k]), low, high, is_whole=frames[k][:2] == (low, high)) for low, high, k in spans
        ], gaps

    def _place(self, k: int) -> Place:
        source = self.sources[k]
        return source if isinstance(source, Place) else source[0].place(source[1], self.ledger_id)


def greatest_intact(
    found: list[tuple[int, Place]], damage: DamagedPlaces, known: Known
) -> tuple[int, Place | None, int]:
    """Search frames and runs, each given with its last id and its place. Return the greatest id that is not damaged
    and its place, or −1 and None if there is none. Also return the greatest id, damaged or not."""
    best, best_place, bound = -1, None, -1
    for last, place in found:
        bound = max(bound, last)
        if last <= best:
            continue
        if not damage.hits(place):
            best, best_place = last, place
            continue
        members = known(place) if place.is_run else None
        if isinstance(members, RunMembers):
            for _, high, offset, size in zip(*members, strict=True):
                member = Place(place.generation, offset, size)
                if high > best and not damage.hits(member):
                    best, best_place = high, member
    return best, best_place, bound


def _cover_dense(
    frames: list[Frame], first: int, last: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Return which dense frame serves which ids, and the gaps. This is the usual case, and needs no numpy. The frames
    are sorted by first id."""
    spans: list[tuple[int, int, int]] = []
    gaps: list[tuple[int, int]] = []
    cursor = first
    for k, (low, high, _) in enumerate(frames):
        if high < cursor:
            continue
        if low > cursor:
            gaps.append((cursor, low - 1))
            cursor = low
        spans.append((cursor, min(high, last), k))
        cursor = high + 1
        if cursor > last:
            break
    if cursor <= last:
        gaps.append((cursor, last))
    return spans, gaps
