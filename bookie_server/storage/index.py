# SPDX-License-Identifier: Apache-2.0
"""Which frames hold which entries, and the folded state of each ledger. In memory, one thread, no I/O.

Three answers exist for an id (DESIGN §7): FOUND with a place, ABSENT, UNKNOWN with a reason. ABSENT is said only of a
healthy ledger and only after every frame that could hold the id was asked (RULES S2). State folds to the same whatever
the order of the records (S4). Pending adds (S1) are the server's: only durable frames come in here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bk_core.entries.frame import FrameExtent, FrameHeader, FrameKind, frame_extent, parse_header
from bk_core.entries.frame_layout import STRIPE_PREFIX, STRIPED
from bk_core.model import EntryId, LedgerId
from bk_core.wire.lane import Reason
from bookie_server.storage.index_file import Rows, counter_of, lac_of, newer_lac
from bookie_server.storage.intervals import IntervalSet
from bookie_server.storage.ledger_frames import LedgerFrames
from bookie_server.storage.membership import Membership, Runs, Striping, cover, runs_of
from bookie_server.storage.segment import Place

EVERY_UNHEARD_LEDGER: LedgerId = (1 << 63) - 1
"""Ledger id of LIMBO_SET records that stand for each ledger this bookie has not heard of: after damage that cannot be
named, one that it only fenced may have been lost whole."""

FRAMES_MAX = 64
"""Frames that one look-up considers unless told otherwise."""

_HEADER_BYTES = 64
_SEVERITY = {
    int(FrameKind.LIMBO_CLEARED): 0,
    int(FrameKind.COPY_RESTORED): 1,
    int(FrameKind.LIMBO_SET): 2,
    int(FrameKind.COPY_DROPPED): 3,
}
_REASON_OF_SEVERITY = (Reason.REASON_NONE, Reason.REASON_NONE, Reason.LIMBO, Reason.COPY_DROPPED)


@dataclass(frozen=True, slots=True)
class Piece:
    """Those entries of the frame at ``place`` whose ids are first to last; both are present in it."""

    first: EntryId
    last: EntryId
    place: Place


@dataclass(frozen=True, slots=True)
class UnknownRange:
    """Ids of which this bookie cannot say whether it has them."""

    first: EntryId
    last: EntryId
    reason: Reason


@dataclass(frozen=True, slots=True)
class Lookup:
    """Answer of the index for ids first to ``through``: each is in exactly one piece, absent or unknown range.

    ``through`` is below the last id asked for where there were more frames than one look-up considers; it is first − 1
    while ``unresolved`` is not empty: then the reader must say what these frames hold, and the caller asks again.
    """

    pieces: tuple[Piece, ...]
    absent: tuple[tuple[EntryId, EntryId], ...]
    unknown: tuple[UnknownRange, ...]
    unresolved: tuple[Place, ...]
    through: EntryId


@dataclass(frozen=True, slots=True)
class LastEntry:
    """Greatest entry id that is intact here and the frame that ends with it; −1 and None where there is none.
    ``certain`` is False where damage or limbo may hide a greater one."""

    entry_id: EntryId
    place: Place | None
    certain: bool


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """Folded state of a ledger. ``trouble`` other than REASON_NONE: what is not found is UNKNOWN, and a fence may have
    been lost, so that a normal add must not be accepted. ``counter`` is the highest known; the next record takes a
    greater one. ``lac`` and ``lac_body`` come from explicit LAC records, ``carried_lac`` from entries; none of them is
    verified (RULES P5)."""

    known: bool
    key: bytes | None
    fenced: bool
    deleted: bool
    lac: EntryId
    lac_body: bytes
    carried_lac: EntryId
    carried_place: Place | None
    counter: int
    trouble: Reason
    frames: int


_UNHEARD = LedgerStatus(False, None, False, False, -1, b"", -1, None, 0, Reason.REASON_NONE, 0)


class _Ledger:
    """State of one ledger; frames apart, because many ledgers have only a fence or a key."""

    __slots__ = (
        "copy_state", "counter", "damaged", "drop_counter", "fenced", "frames", "key", "key_conflict", "lac_body"
    )  # fmt: skip

    def __init__(self) -> None:
        self.frames: LedgerFrames | None = None
        self.key: bytes | None = None
        self.key_conflict = False
        self.fenced = False
        self.lac_body: bytes | None = None
        self.copy_state: tuple[int, int] = (-1, 0)  # (counter, severity) of the record that holds
        self.drop_counter = 0  # frames with a lower one are from before a drop and are not served
        self.counter = 0
        self.damaged: IntervalSet | None = None  # ids that stood in frames whose bytes are bad

    def fold(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.LEDGER_KEY:
            if self.key is not None and self.key != payload:
                self.key_conflict = True
            self.key = payload if self.key is None else min(self.key, payload)
        elif kind == FrameKind.FENCE:
            self.fenced = True
        elif kind == FrameKind.LAC:
            self.lac_body = newer_lac(self.lac_body, payload)
        elif kind >= FrameKind.LIMBO_SET:
            self._fold_counter(kind, counter_of(kind, payload))

    def _fold_counter(self, kind: int, counter: int) -> None:
        self.counter = max(self.counter, counter)
        severity = _SEVERITY.get(kind)
        if severity is not None:
            self.copy_state = max(self.copy_state, (counter, severity))
        if kind == FrameKind.COPY_DROPPED:
            self.drop_counter = max(self.drop_counter, counter)

    @property
    def trouble(self) -> Reason:
        return Reason.DAMAGED if self.key_conflict else _REASON_OF_SEVERITY[self.copy_state[1]]


class LedgerIndex:
    """All ledgers of a data directory."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerId, _Ledger] = {}
        self._deleted = IntervalSet()
        self._unheard = _Ledger()  # of EVERY_UNHEARD_LEDGER

    # --- filling ----------------------------------------------------------------------------------------------------

    def add(self, frame: bytes | bytearray | memoryview, place: Place, header: FrameHeader | None = None) -> None:
        """Take in one durable frame of any kind, in the order of the log; it inherits its ledger's highest counter."""
        header = parse_header(frame) if header is None else header
        if header.kind != FrameKind.ENTRIES:
            self.add_record(header.kind, header.ledger_id, bytes(frame[_HEADER_BYTES : header.size]))
            return
        striping = striping_of(frame, header)
        self.add_frame(header.ledger_id, frame_extent(frame, header), place, striping=striping)

    def add_frame(
        self,
        ledger_id: LedgerId,
        extent: FrameExtent,
        place: Place,
        *,
        counter: int | None = None,
        striping: Striping | None = None,
    ) -> None:
        """Take in one durable frame of entries. ``counter`` is what it inherits, by default the ledger's highest;
        ``striping`` that of a STRIPED frame: without it, or for IDS, the frame must be read before it can be asked."""
        if ledger_id in self._deleted:
            return
        ledger = self._ledger(ledger_id)
        if ledger.frames is None:
            ledger.frames = LedgerFrames()
        counter = ledger.counter if counter is None else counter
        ledger.frames.add(extent, place, counter, striping)

    def add_rows(self, generation: int, rows: Rows) -> None:
        """Take in the index records of a segment, sorted as ``sorted_rows`` does."""
        if not rows.size:
            return
        bounds = np.flatnonzero(np.diff(rows["ledger"])) + 1
        for part in np.split(rows, bounds):
            ledger_id = int(part["ledger"][0])
            if ledger_id in self._deleted:
                continue
            ledger = self._ledger(ledger_id)
            if ledger.frames is None:
                ledger.frames = LedgerFrames()
            ledger.frames.add_many(generation, part)

    def add_record(self, kind: int, ledger_id: LedgerId, payload: bytes) -> None:
        """Fold one durable record of kinds 2 to 10, in any order."""
        if ledger_id == EVERY_UNHEARD_LEDGER and kind >= FrameKind.LIMBO_SET:
            self._unheard.fold(kind, payload)
        elif kind == FrameKind.DELETED:
            self._ledgers.pop(ledger_id, None)
            self._deleted.add(ledger_id, ledger_id)
        elif ledger_id not in self._deleted:
            self._ledger(ledger_id).fold(kind, payload)

    def mark_damaged(self, ledger_id: LedgerId, place: Place) -> None:
        """The frame at ``place`` failed its check twice (RULES S5): it serves no more. Its ids are answered from other
        frames, else UNKNOWN. Does nothing for a frame that is not indexed."""
        ledger = self._ledgers.get(ledger_id)
        lost = ledger.frames.remove(place) if ledger is not None and ledger.frames is not None else None
        if ledger is not None and lost is not None:
            if ledger.damaged is None:
                ledger.damaged = IntervalSet()
            ledger.damaged.add(*lost)

    def learn(self, ledger_id: LedgerId, place: Place, membership: Membership) -> None:
        """Remember what the reader said of an unresolved frame, where that is small (a striping)."""
        ledger = self._ledgers.get(ledger_id)
        if isinstance(membership, Striping) and ledger is not None and ledger.frames is not None:
            ledger.frames.learn(place, membership)

    def _ledger(self, ledger_id: LedgerId) -> _Ledger:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers[ledger_id] = _Ledger()
        return ledger

    # --- asking -----------------------------------------------------------------------------------------------------

    def lookup(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        *,
        frames_max: int = FRAMES_MAX,
        resolved: Mapping[Place, Membership] | None = None,
    ) -> Lookup:
        """Where the entries first to last (both inclusive) are. ``resolved`` holds what the reader said of frames that
        an earlier answer named as unresolved."""
        assert 0 <= first <= last
        if ledger_id in self._deleted:
            return Lookup((), (), (UnknownRange(first, last, Reason.DELETED),), (), last)
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.frames is None:
            return self._answer(ledger, (), [(first, last)], last)
        found = ledger.frames.candidates(first, last, ledger.drop_counter, frames_max, resolved or {})
        if found.unresolved:
            return Lookup((), (), (), tuple(found.unresolved), first - 1)
        if found.sparse:
            spans, gaps = cover([runs_of(*frame, first, found.through) for frame in found.frames], first, found.through)
        else:
            spans, gaps = _cover_dense(found.frames, first, found.through)
        pieces = tuple(Piece(low, high, ledger.frames.place(found.rows[k])) for low, high, k in spans)
        return self._answer(ledger, pieces, gaps, found.through)

    def _answer(
        self, ledger: _Ledger | None, pieces: tuple[Piece, ...], gaps: list[tuple[int, int]], through: EntryId
    ) -> Lookup:
        trouble = self._trouble(ledger)
        if trouble is not Reason.REASON_NONE:
            return Lookup(pieces, (), tuple(UnknownRange(*gap, trouble) for gap in gaps), (), through)
        if ledger is None or ledger.damaged is None:
            return Lookup(pieces, tuple(gaps), (), (), through)
        absent: list[tuple[int, int]] = []
        unknown: list[UnknownRange] = []
        for gap in gaps:
            for low, high, inside in ledger.damaged.split(*gap):
                if inside:
                    unknown.append(UnknownRange(low, high, Reason.DAMAGED))
                else:
                    absent.append((low, high))
        return Lookup(pieces, tuple(absent), tuple(unknown), (), through)

    def _trouble(self, ledger: _Ledger | None) -> Reason:
        if ledger is not None and (ledger.key_conflict or ledger.copy_state[0] >= 0):
            return ledger.trouble
        return self._unheard.trouble

    def last_entry(self, ledger_id: LedgerId) -> LastEntry:
        """The end of what is stored of a ledger; pending adds are not in it."""
        ledger = self._ledgers.get(ledger_id)
        certain = ledger_id not in self._deleted and self._trouble(ledger) is Reason.REASON_NONE
        if ledger is None or ledger.frames is None:
            return LastEntry(-1, None, certain)
        last, place = ledger.frames.last(ledger.drop_counter)
        if ledger.damaged is not None and ledger.damaged.greatest > last:
            certain = False
        return LastEntry(last, place, certain)

    def state(self, ledger_id: LedgerId) -> LedgerStatus:
        """Folded state of a ledger, of one this bookie has never heard of too."""
        if ledger_id in self._deleted:
            return LedgerStatus(True, None, True, True, -1, b"", -1, None, 0, Reason.DELETED, 0)
        ledger = self._ledgers.get(ledger_id)
        trouble = self._trouble(ledger)
        if ledger is None:
            if trouble is Reason.REASON_NONE:
                return _UNHEARD
            return LedgerStatus(False, None, False, False, -1, b"", -1, None, 0, trouble, 0)
        carried, place = ledger.frames.carried_lac() if ledger.frames is not None else (-1, None)
        body = ledger.lac_body or b""
        return LedgerStatus(
            True, ledger.key, ledger.fenced, False, lac_of(body) if body else -1, body, carried, place, ledger.counter,
            trouble, len(ledger.frames) if ledger.frames is not None else 0,
        )  # fmt: skip

    def ledger_ids(self) -> list[LedgerId]:
        """Every ledger known and not deleted, sorted."""
        return sorted(self._ledgers)

    def counters(self) -> dict[LedgerId, int]:
        """Highest counter of each ledger that has one: what a new segment log starts from."""
        counters = {ledger_id: ledger.counter for ledger_id, ledger in self._ledgers.items() if ledger.counter}
        if self._unheard.counter:
            counters[EVERY_UNHEARD_LEDGER] = self._unheard.counter
        return counters

    def has_copy(self, ledger_id: LedgerId, first: EntryId, last: EntryId, size: int, above: int) -> bool:
        """Whether a frame of just these bounds lies in a segment of a greater generation than ``above``."""
        ledger = self._ledgers.get(ledger_id)
        return ledger is not None and ledger.frames is not None and ledger.frames.has_copy(first, last, size, above)

    def memory_bytes(self) -> int:
        """Roughly what the frames of all ledgers take."""
        return sum(ledger.frames.memory_bytes() for ledger in self._ledgers.values() if ledger.frames is not None)

    def __iter__(self) -> Iterator[LedgerId]:
        return iter(self.ledger_ids())

    def __len__(self) -> int:
        return len(self._ledgers)


def striping_of(frame: bytes | bytearray | memoryview, header: FrameHeader) -> Striping | None:
    """Striping of a STRIPED frame; None for others."""
    if not header.flags & STRIPED:
        return None
    ensemble_size, write_quorum, index, _, _ = STRIPE_PREFIX.unpack_from(frame, _HEADER_BYTES)
    return Striping(ensemble_size, write_quorum, index)


def _cover_dense(
    frames: list[tuple[int, int, Runs | Striping | None]], first: int, last: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Which dense frame serves which ids, and the gaps; the usual case, without numpy. Frames are sorted by first."""
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
