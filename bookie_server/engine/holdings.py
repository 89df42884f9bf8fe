# SPDX-License-Identifier: Apache-2.0
"""Presents storage to the machine: its index as :class:`~bookie_server.machine.state.Holdings`, its reads as events.

A look-up in the index becomes a plan. Adjacent pieces of one frame are joined, and a plan ends once its frames have the
bytes asked for. All of this happens in memory on the loop's thread; only :func:`answer_read` reads the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from bk_core.entries.frame import STRIPED, FrameKind, record_payload, slice_frame
from bk_core.errors import IntegrityError
from bk_core.model import EntryId, LedgerId
from bk_core.wire.lane.reasons import Buffer, Cut, EntryRange, Reason
from bookie_server.machine import events
from bookie_server.machine.disk_places import IndexBlock, Place, Unresolved
from bookie_server.machine.events import Piece
from bookie_server.machine.state import LedgerFacts, LookupPlan, Pending
from bookie_server.storage.bytes.membership import RunMembers, striping_of
from bookie_server.storage.bytes.segment import index_name, segment_name
from bookie_server.storage.index.cache import Remembered
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_reader import SegmentReader

logger = logging.getLogger(__name__)

_UNTIL_MADE_ANEW = (
    "entries that it may name are answered UNKNOWN until the index is rebuilt, which begins within seconds and takes "
    "as long as reading the segment; further damaged blocks of it are not logged"
)

_FACTS_MAX = 1024
"""The maximum number of ledgers whose facts are cached. A change of any ledger's state empties the cache."""

_ENTRIES = int(FrameKind.ENTRIES)
_ID_MAX = (1 << 63) - 1
GAP_BYTES_MAX, SPAN_BYTES_MAX = 16 << 10, 4 << 20
"""The limits of frames that are read together. Between frames of one ledger there are headers and padding of groups,
and short frames of other ledgers."""
_FRAMES_MAX = 1024
"""The maximum number of frames of a plan."""


class IndexHoldings:
    """The holdings of one data directory. Like its index, it is used only on the loop's thread. Without a reader no
    entry is in memory."""

    def __init__(self, index: LedgerIndex, reader: SegmentReader | None = None) -> None:
        self._index, self._reader = index, reader
        self._facts: dict[LedgerId, LedgerFacts] = {}  # cache, valid for this version of the index's states
        self._version = -1

    def facts(self, ledger_id: LedgerId) -> LedgerFacts:
        version = self._index.states_version
        if self._version != version:
            self._facts.clear()
            self._version = version
        facts = self._facts.get(ledger_id)
        if facts is None:
            if len(self._facts) >= _FACTS_MAX:
                self._facts.clear()
            facts = self._facts[ledger_id] = self._facts_of(ledger_id)
        return facts

    def _facts_of(self, ledger_id: LedgerId) -> LedgerFacts:
        if self._index.is_deleted(ledger_id):
            return LedgerFacts(known=True, fenced=True, deleted=True, trouble=Reason.DELETED)
        state, trouble = self._index.folded(ledger_id)
        if state is None:
            return LedgerFacts(trouble=trouble)
        return LedgerFacts(True, state.key, state.is_fenced, False, state.lac_body, trouble)

    def log_of(self, ledger_id: LedgerId) -> int:
        return 0

    def knows(self, ledger_id: LedgerId) -> bool:
        """Return whether this directory holds or held anything of the ledger: an entry, a record, or its deletion."""
        return self._index.is_deleted(ledger_id) or self._index.folded(ledger_id)[0] is not None

    def add(self, pending: Pending, place: Place) -> None:
        header, frame = pending.header, pending.frame
        if header.kind == _ENTRIES:
            striping = striping_of(frame, header) if header.flags & STRIPED else None
            self._index.add_frame(header.ledger_id, pending.extent, place, striping)
        else:
            self._index.add_record(header.kind, header.ledger_id, bytes(record_payload(frame, header)))

    def plan(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        bytes_max: int,
        resolved: Mapping[Unresolved, object],
    ) -> LookupPlan:
        known = cast(Mapping[Unresolved, Remembered], resolved)
        found = self._index.lookup(ledger_id, first, last, frames_max=_FRAMES_MAX, bytes_max=bytes_max, resolved=known)
        if found.unresolved:
            return LookupPlan((), (), (), found.unresolved, first - 1)
        pieces, through = _joined(found.pieces, bytes_max, found.through)
        absent = tuple(EntryRange(low, min(high, through)) for low, high in found.absent if low <= through)
        gaps = (u for u in found.unknown if u.first <= through)
        unknown = tuple(EntryRange(gap.first, min(gap.last, through), gap.reason) for gap in gaps)
        return LookupPlan(pieces, absent, unknown, (), through)

    def entry(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | bytearray | memoryview | None:
        if self._reader is None:
            return None
        place = self._index.place_of(ledger_id, entry_id)
        return None if place is None else _at_once(self._reader, place, entry_id, entry_id, ledger_id)

    def learn(self, ledger_id: LedgerId, place: Unresolved, membership: object) -> None:
        self._index.learn(ledger_id, place, cast(Remembered, membership))

    def overlaps(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> bool:
        found = self._index.lookup(ledger_id, first, last, frames_max=1)
        return bool(found.pieces or found.unresolved) or found.through < last

    def last_entry_id(self, ledger_id: LedgerId) -> EntryId:
        return self._index.last_entry(ledger_id).bound

    def lac(self, ledger_id: LedgerId) -> EntryId:
        return self._index.greatest_lac(ledger_id)

    def tail(self, ledger_id: LedgerId) -> tuple[Piece | None, Piece | None]:
        last = self._index.last_entry(ledger_id)
        if last.place is None:
            return None, None
        most = self._index.carried_lac(ledger_id)[1]
        wanted = Piece(most, 0, _ID_MAX, True) if most is not None and most != last.place else None
        return Piece(last.place, last.entry_id, last.entry_id), wanted

    def sealed_through(self, ledger_id: LedgerId) -> int:
        return self._index.sealed_through(ledger_id)

    def mark_damaged(self, ledger_id: LedgerId, place: Unresolved) -> None:
        self._index.mark_damaged(ledger_id, place)


def _joined(found: tuple[Piece, ...], bytes_max: int, through: EntryId) -> tuple[tuple[Piece, ...], EntryId]:
    """Return one piece for each frame, for at least one frame and as many as ``bytes_max`` allows, and the last id for
    which these pieces answer."""
    pieces: dict[Place, Piece] = {}  # in order of first id
    size = 0
    for run in found:
        known = pieces.get(run.place)
        if known is None:
            if size >= bytes_max:
                return tuple(pieces.values()), run.first - 1
            size += run.place.size
        pieces[run.place] = run if known is None else Piece(run.place, known.first, run.last)
    return tuple(pieces.values()), through


def read_at_once(reader: SegmentReader, effect: events.ReadFrames) -> events.FramesRead | None:
    """Return the answer to a read of one piece if no disk access is needed, else None. Any thread may call; it does not
    block."""
    if len(effect.pieces) != 1:
        return None
    piece = effect.pieces[0]
    if piece.last_only:
        return None
    frame = _at_once(reader, piece.place, piece.first, piece.last)
    return None if frame is None else events.FramesRead(effect.request, [frame])


def _at_once(
    reader: SegmentReader, place: Place, first: EntryId, last: EntryId, ledger_id: LedgerId | None = None
) -> bytes | bytearray | memoryview | None:
    try:
        return reader.read_at_once(place, first, last, ledger_id=ledger_id)
    except Exception:  # a bug must not end the bookie; the reader thread tries again
        logger.exception("%s cannot be read at once", place)
        return None


def answer_read(
    reader: SegmentReader, effect: events.ReadFrames | events.ReadMemberships
) -> events.FramesRead | events.MembershipsRead:
    """Carry out a read for the machine. This blocks.

    A piece is None in the answer if it fails its checks or cannot be read. The machine then has the index mark it as
    damaged, and plans again. A piece is None, too, if its segment was given back. Then the index no longer names that
    segment, but other copies, or none for a deleted ledger.
    """
    if isinstance(effect, events.ReadFrames):
        cut = effect.cut
        found: list[Buffer | None] = [None if cut is None else _read_parts(reader, each, cut) for each in effect.pieces]
        rest = [piece for piece, parts in zip(effect.pieces, found, strict=True) if parts is None]
        frames = (frame for pieces in spans(rest) for frame in _read_pieces(reader, pieces))
        return events.FramesRead(effect.request, [next(frames) if parts is None else parts for parts in found])
    return events.MembershipsRead(effect.request, [_read_membership(reader, place) for place in effect.places])


def spans(pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
    """Split pieces into those that are read together: whole frames that follow each other in a segment, with at most
    GAP_BYTES_MAX between two of them, up to SPAN_BYTES_MAX in all."""
    begin = 0
    for k in range(1, len(pieces) + 1):
        if k == len(pieces) or not _follows(pieces[begin], pieces[k - 1], pieces[k]):
            yield pieces[begin:k]
            begin = k


def _follows(first: Piece, before: Piece, piece: Piece) -> bool:
    if not (before.is_whole and piece.is_whole) or before.place.is_run or piece.place.is_run:
        return False
    place, end = piece.place, before.place.offset + before.place.size
    return (
        place.generation == before.place.generation
        and 0 <= place.offset - end <= GAP_BYTES_MAX
        and place.offset + place.size - first.place.offset <= SPAN_BYTES_MAX
    )


def _read_pieces(reader: SegmentReader, pieces: Sequence[Piece]) -> Iterator[bytes | bytearray | memoryview | None]:
    together = _read_together(reader, pieces) if len(pieces) > 1 else [None]
    for piece, frame in zip(pieces, together, strict=True):
        yield _read_piece(reader, piece) if frame is None else frame


def _read_together(reader: SegmentReader, pieces: Sequence[Piece]) -> Sequence[bytes | bytearray | memoryview | None]:
    """Read several pieces at once. The result has None for each piece that must be read alone."""
    if reader.is_given_up(pieces[0].place.generation):
        return [None] * len(pieces)
    try:
        found = reader.read_together([piece.place for piece in pieces])
        both = zip(pieces, found, strict=True)
        return [
            None if each is None else slice_frame(each[0], piece.first, piece.last, each[1]) for piece, each in both
        ]
    except Exception:  # a bug must not end the thread that serves all reads
        logger.exception("%s and the frames behind it cannot be read together", pieces[0].place)
        return [None] * len(pieces)


def _read_parts(reader: SegmentReader, piece: Piece, cut: Cut) -> bytearray | None:
    """Read only the parts in ``cut``. Return None if the piece must be read whole."""
    if reader.is_given_up(piece.place.generation):
        return None
    try:
        return reader.read_parts(piece.place, piece.first, piece.last, cut)
    except Exception:  # a bug must not end the thread that serves all reads
        logger.exception("parts of %s cannot be read", piece.place)
        return None


def _read_piece(reader: SegmentReader, piece: Piece) -> bytes | bytearray | memoryview | None:
    place = piece.place
    if reader.is_given_up(place.generation):
        return None
    try:
        if piece.last_only:
            return reader.read_lac_entry(place)
        return reader.read_entries(place, piece.first, piece.last, is_whole=piece.is_whole)
    except IntegrityError as error:
        _note_damage(reader, place, error)
        return None
    except Exception:  # a bug must not end the thread that serves all reads
        logger.exception("%s cannot be read", place)
        return None


def _read_membership(reader: SegmentReader, place: Unresolved) -> object | None:
    if reader.is_given_up(place.generation):
        return None
    try:
        return reader.membership(place)
    except IntegrityError as error:
        _note_damage(reader, place, error)
    except Exception:
        logger.exception("%s cannot be read", place)
    # The machine asks for a run's membership because a frame in it is damaged, so reporting the run as damaged again
    # says nothing new.
    return RunMembers((), (), (), ()) if isinstance(place, Place) and place.is_run else None


def _note_damage(reader: SegmentReader, place: Unresolved, error: IntegrityError) -> None:
    """Log a line for each damaged frame, but only one for each index file with damaged blocks and for each missing
    segment."""
    if isinstance(place, IndexBlock):
        name = index_name(place.generation)
        if reader.is_news(name):
            logger.error("damage: %s, block %d: %s; %s", name, place.number, error.what, _UNTIL_MADE_ANEW)
    elif isinstance(error.__cause__, FileNotFoundError):
        name = segment_name(place.generation)
        if reader.is_news(name):
            logger.error(
                "damage: %s is missing; its entries are answered UNKNOWN, and further reads of it are not logged", name
            )
    else:
        logger.error("damage: %s", error)
