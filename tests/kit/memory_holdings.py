# SPDX-License-Identifier: Apache-2.0
"""The stored frames of a bookie in this process: a list for each ledger, searched id by id. It is simple on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bk_core.entries.frame import (
    FrameExtent,
    FrameHeader,
    FrameKind,
    entry_ids_of,
    frame_extent,
    parse_header,
    record_payload,
    slice_frame,
)
from bk_core.model import EntryId, LedgerId
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.state import LedgerFacts, LookupPlan, Pending


@dataclass
class StoredFrame:
    """A durable frame. If it is ``damaged``, its bytes cannot be read."""

    data: bytes
    header: FrameHeader
    extent: FrameExtent
    ids: frozenset[int] | None  # None: every id from first to last
    damaged: bool = False
    known_damaged: bool = False

    @property
    def size(self) -> int:
        """The size of the frame in bytes, as of a place on a disk."""
        return len(self.data)

    def holds(self, entry_id: EntryId) -> bool:
        return self.extent.first <= entry_id <= self.extent.last and (self.ids is None or entry_id in self.ids)

    def run_end(self, entry_id: EntryId) -> EntryId:
        """Return the last id of the run of present ids that begins at ``entry_id``."""
        if self.ids is None:
            return self.extent.last
        while entry_id + 1 in self.ids:
            entry_id += 1
        return entry_id

    def least_from(self, entry_id: EntryId) -> EntryId:
        """Return the least id that the frame holds from ``entry_id`` on, which is at most the frame's last id."""
        if self.ids is None:
            return max(entry_id, self.extent.first)
        return min(held for held in self.ids if held >= entry_id)


@dataclass
class StoredLedger:
    facts: LedgerFacts = field(default_factory=lambda: LedgerFacts(known=True))
    frames: list[StoredFrame] = field(default_factory=list)


class MemoryHoldings:
    """The index: a list of frames for each ledger, searched id by id. ``in_memory`` says which entries can be read
    without a read of storage."""

    def __init__(self, in_memory: Callable[[EntryId], bool] = lambda _: False) -> None:
        self.ledgers: dict[LedgerId, StoredLedger] = {}
        self.in_memory = in_memory

    def facts(self, ledger_id: LedgerId) -> LedgerFacts:
        ledger = self.ledgers.get(ledger_id)
        return ledger.facts if ledger else LedgerFacts()

    def log_of(self, ledger_id: LedgerId) -> int:
        return 0

    def add(self, pending: Pending, place: ev.Place) -> None:
        assert isinstance(place, StoredFrame)
        if pending.header.kind == FrameKind.ENTRIES:
            self.ledgers.setdefault(pending.header.ledger_id, StoredLedger()).frames.append(place)
        else:
            self.fold(pending.header.ledger_id, pending.header.kind, bytes(record_payload(pending.frame)))

    def fold(self, ledger_id: LedgerId, kind: int, payload: bytes = b"") -> None:
        ledger = self.ledgers.setdefault(ledger_id, StoredLedger())
        changes: dict[FrameKind, dict[str, Any]] = {
            FrameKind.LEDGER_KEY: {"ledger_key": payload},
            FrameKind.FENCE: {"fenced": True},
            FrameKind.LAC: {"lac_body": payload},
            FrameKind.DELETED: {"deleted": True},
            FrameKind.LIMBO: {"trouble": Reason.LIMBO},
            FrameKind.COPY_DROPPED: {"trouble": ledger.facts.trouble or Reason.COPY_DROPPED},
        }
        if kind == FrameKind.COPY_DROPPED and payload:
            ledger.frames.clear()
        ledger.facts = replace(ledger.facts, **changes[FrameKind(kind)])

    def sealed_through(self, ledger_id: LedgerId) -> int:
        """Return the generation up to which the ledger's frames are sealed, as if each frame were in a sealed segment
        of its own."""
        ledger = self.ledgers.get(ledger_id)
        return 1 if ledger and ledger.frames else 0

    def _frames(self, ledger_id: LedgerId) -> list[StoredFrame]:
        ledger = self.ledgers.get(ledger_id)
        return [frame for frame in ledger.frames if not frame.known_damaged] if ledger else []

    def plan(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        bytes_max: int,
        resolved: Mapping[ev.Place, object],
    ) -> LookupPlan:
        frames = self._frames(ledger_id)
        broken = [f for f in self.ledgers.get(ledger_id, StoredLedger()).frames if f.known_damaged]
        pieces: list[ev.Piece] = []
        absent: list[EntryRange] = []
        unknown: list[EntryRange] = []
        trouble = self.facts(ledger_id).trouble
        at, size = first, 0
        while at <= last and (size < bytes_max or not pieces):
            frame = next((f for f in frames if f.holds(at)), None)
            if frame:
                end = min(frame.run_end(at), last)
                if pieces and pieces[-1].place is frame:
                    pieces[-1] = ev.Piece(frame, pieces[-1].first, end)
                else:
                    pieces.append(ev.Piece(frame, at, end))
                size += len(frame.data) * (end - at + 1) // frame.extent.count
            elif bad := next((f for f in broken if f.holds(at)), None):
                others = [f.extent.first for f in frames if f.extent.first > at]
                end = min([bad.run_end(at), last, *(other - 1 for other in others)])
                unknown.append(EntryRange(at, end, Reason.DAMAGED))
            else:
                later = [f.least_from(at) for f in (*frames, *broken) if f.extent.last > at]
                end = min([last, *(other - 1 for other in later)])
                (unknown if trouble else absent).append(EntryRange(at, end, trouble))
            at = end + 1
        return LookupPlan(tuple(pieces), tuple(absent), tuple(unknown), (), at - 1)

    def entry(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        assert ledger_id >= 0
        assert entry_id >= 0
        if not self.in_memory(entry_id) or self.facts(ledger_id).deleted:
            return None
        frame = next((frame for frame in self._frames(ledger_id) if frame.holds(entry_id)), None)
        return read_piece(ev.Piece(frame, entry_id, entry_id)) if frame else None

    def learn(self, ledger_id: LedgerId, place: ev.Place, membership: object) -> None:
        raise AssertionError("nothing is unresolved here")

    def overlaps(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> bool:
        return any(f.extent.first <= last and f.extent.last >= first for f in self._frames(ledger_id))

    def last_entry_id(self, ledger_id: LedgerId) -> EntryId:
        return max((f.extent.last for f in self._frames(ledger_id)), default=-1)

    def lac(self, ledger_id: LedgerId) -> EntryId:
        return max((f.extent.max_lac for f in self._frames(ledger_id)), default=-1)

    def tail(self, ledger_id: LedgerId) -> tuple[ev.Piece | None, ev.Piece | None]:
        frames = self._frames(ledger_id)
        if not frames:
            return None, None
        last = max(frames, key=lambda f: f.extent.last)
        most: StoredFrame | None = max(frames, key=lambda f: f.extent.max_lac)
        if most and most.extent.max_lac <= last.extent.max_lac:
            most = None
        wanted = ev.Piece(most, most.extent.last, most.extent.last) if most else None
        return ev.Piece(last, last.extent.last, last.extent.last), wanted

    def mark_damaged(self, ledger_id: LedgerId, place: ev.Place) -> None:
        assert isinstance(place, StoredFrame)
        place.known_damaged = True


def stored(frame: bytes | bytearray | memoryview) -> StoredFrame:
    """Return a frame as it would be on disk."""
    data = bytes(frame)
    header = parse_header(data)
    extent = frame_extent(data, header)
    entries = header.kind == FrameKind.ENTRIES
    ids = None if extent.dense or not entries else frozenset(entry_ids_of(header, data).tolist())
    return StoredFrame(data, header, extent, ids)


def read_piece(piece: ev.Piece) -> bytes | None:
    """Return the storage's answer to a ReadFrames effect, or None if the frame is damaged."""
    frame = piece.place
    assert isinstance(frame, StoredFrame)
    if frame.damaged:
        return None
    found = slice_frame(frame.data, piece.first, piece.last)
    assert found is not None
    return bytes(found)


def every_second(entry_id: EntryId) -> bool:
    """Return whether the id is even. With this as ``in_memory`` a machine answers reads of single entries in both
    ways."""
    return entry_id % 2 == 0
