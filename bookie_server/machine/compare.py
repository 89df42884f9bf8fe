# SPDX-License-Identifier: Apache-2.0
"""The path of the bookie's machine that compares an offered frame with the entries stored at its ids (RULES P6).

A re-sent entry may be on disk twice, but a normal add over an existing id with another length or payload is refused.
For entries in Apache's form the ledger length must agree, too. LAC and digest may differ, because a recovery writes
back the entries that it read with a LAC of its own. Comparisons are rare, because only frames that begin at or below
the ledger's highest id are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bk_core.entries.apache import HEADER_BYTES, entry_headers_of
from bk_core.entries.batch import I64
from bk_core.entries.digest import CHECKSUMS
from bk_core.entries.frame import (
    APACHE_BYTES,
    FRAME_HEADER_BYTES,
    FrameExtent,
    columns_of,
    decode_frame,
    entry_ids_of,
    split_frames,
)
from bk_core.errors import IntegrityError
from bk_core.model import EntryId
from bookie_server.machine.core import Core, Refusal
from bookie_server.machine.events import Piece
from bookie_server.machine.requests import Frame, Path, Request, Requests
from bookie_server.machine.state import Session


class FrameComparison(Request):
    """The comparison for the first held frame of a session. The ids below ``next`` are compared. ``differing`` has the
    ids at which another entry is stored."""

    __slots__ = ("differing", "frame", "last", "next", "planned_through", "session")

    def __init__(
        self, number: int, session: Session, extent: FrameExtent, frame: memoryview, path: Comparisons
    ) -> None:
        assert session.ledger is not None
        super().__init__((session.stream.stream_id, number), session.ledger.ledger_id, path)
        self.session, self.frame = session, frame
        self.next, self.last = extent.first, extent.last
        self.planned_through = self.next
        self.differing: list[EntryId] = []


class Comparisons(Path):
    """The path for comparisons. It calls ``compared`` with the ids of each frame at which other entries are stored. A
    damaged copy yields to any intact one, and so to the offered one (RULES P6)."""

    def __init__(self, core: Core, requests: Requests, compared: Callable[[Session, Sequence[EntryId]], None]) -> None:
        self._core, self._requests, self._compared = core, requests, compared
        self._begun = 0

    def begin(self, session: Session, extent: FrameExtent, frame: memoryview) -> None:
        # The session's number cannot name the request: the client may use it again while storage still reads for the
        # old
        # session. Numbers below 0 differ from those of the client's own requests, which Apache's wire sends on the same
        # stream.
        self._begun -= 1
        self._requests.begin(FrameComparison(self._begun, session, extent, frame, self), admit=False)

    def run(self, request: Request) -> None:
        """Compare with the durable entries, once no frame over these ids is pending."""
        assert isinstance(request, FrameComparison)
        core = self._core
        if request.session.gone:
            self._requests.forget(request)
            return
        ledger = core.ledger(request.ledger_id)
        over = ledger.pending_over(request.next, request.last)
        if over:
            ledger.log.park(request.request_id, over[0])
            return
        while request.next <= request.last:
            size = core.limits.read_part_bytes
            plan = core.holdings.plan(request.ledger_id, request.next, request.last, size, request.resolved)
            if plan.unresolved:
                self._requests.resolve(request, plan.unresolved)
                return
            if plan.pieces:
                request.planned_through = plan.answered_through
                self._requests.read(request, plan.pieces)
                return
            request.next = plan.answered_through + 1
        self._requests.forget(request)
        self._compared(request.session, request.differing)

    def frames_read(self, request: Request, pieces: Sequence[Piece], frames: Sequence[Frame | None]) -> None:
        assert isinstance(request, FrameComparison)
        for stored in frames:
            if stored is not None:
                request.differing += differing_ids(stored, request.frame)
        request.next = request.planned_through + 1
        self._requests.run(request)

    def refuse(self, request: Request, problem: Refusal) -> None:
        assert isinstance(request, FrameComparison)
        self._compared(request.session, ())  # the add path checks for the same problem itself


class _Entries(NamedTuple):
    """The entries of a frame, as columns: the id of each, its place and length in ``payload``, and the ledger length up
    to it. In our form this piece of ``payload`` is the entry's payload alone, and ``width`` is the size of a digest. In
    Apache's form (``width`` −1) the piece also has the entry's header and digest."""

    ids: I64
    begins: I64
    lengths: I64
    totals: I64
    payload: memoryview
    width: int

    def taken(self, at: I64) -> _Entries:
        return self._replace(ids=self.ids[at], begins=self.begins[at], lengths=self.lengths[at], totals=self.totals[at])

    def without_prefix(self, width: int) -> _Entries:
        """Return Apache's entries without header and digest, for a digest of ``width`` bytes. The length of an entry
        that is too short for them becomes negative."""
        prefix = HEADER_BYTES + width
        return self._replace(begins=self.begins + prefix, lengths=self.lengths - prefix, width=width)


def differing_ids(stored: Frame, offered: Frame) -> list[EntryId]:
    """Return the ids of the offered frame at which the stored frames have other entries. ``stored`` may be several
    small neighbouring frames."""
    mine = _entries_of(offered)
    try:
        return [entry_id for _, frame in split_frames(stored) for entry_id in _differing(_entries_of(frame), mine)]
    except IntegrityError:
        return [int(entry_id) for entry_id in mine.ids]


def _entries_of(frame: Frame) -> _Entries:
    [(header, view)] = split_frames(frame)
    if not header.flags & APACHE_BYTES:
        batch = decode_frame(frame)
        offsets = batch.offsets()
        totals = batch.cumulative_lengths()
        width = header.digest_bytes
        return _Entries(batch.entry_ids(), offsets[:-1], np.diff(offsets), totals, batch.payload, width)
    lengths = columns_of(header, view).lengths.astype(np.int64)
    payload = view[FRAME_HEADER_BYTES + header.columns_bytes :]
    begins = lengths.cumsum() - lengths
    totals = entry_headers_of(payload, begins)[:, 3]
    return _Entries(entry_ids_of(header, view), begins, lengths, totals, payload, -1)


def _differing(stored: _Entries, offered: _Entries) -> list[EntryId]:
    _, at_left, at_right = np.intersect1d(stored.ids, offered.ids, assume_unique=True, return_indices=True)
    left, right = stored.taken(at_left), offered.taken(at_right)
    one_whole, both_whole = -1 in (left.width, right.width), left.width == right.width == -1
    if not both_whole:  # a frame in our form names the digest type, which is the ledger's
        width = max(left.width, right.width)
        left, right = (each.without_prefix(width) if each.width == -1 else each for each in (left, right))
    same = (left.lengths == right.lengths) & (right.lengths >= 0)
    if one_whole:  # Apache's form includes the ledger length
        same &= left.totals == right.totals
    same[same] = _equal(left.taken(np.flatnonzero(same)), right.taken(np.flatnonzero(same)), whole=both_whole)
    at = np.flatnonzero(~same).tolist()
    if both_whole:
        at = [k for k in at if not _explained(_piece(left, k), _piece(right, k))]
    return [int(right.ids[k]) for k in at]


def _equal(left: _Entries, right: _Entries, *, whole: bool) -> npt.NDArray[np.bool_]:
    """Return for each pair of pieces, which have the same length, whether they are equal. For ``whole`` entries the LAC
    may differ."""
    count = int(left.lengths.size)
    if not count:
        return np.empty(0, dtype=np.bool_)
    pieces = [np.frombuffer(b"".join(_piece(each, k) for k in range(count)), np.uint8) for each in (left, right)]
    differs = pieces[0] != pieces[1]
    begins = left.lengths.cumsum() - left.lengths
    if whole:
        differs[(begins[:, None] + np.arange(16, 24)).ravel()] = False
    sums = np.concatenate(([0], differs.cumsum()))
    equal: npt.NDArray[np.bool_] = sums[begins + left.lengths] == sums[begins]
    return equal


def _piece(entries: _Entries, k: int) -> memoryview:
    begin = int(entries.begins[k])
    return entries.payload[begin : begin + int(entries.lengths[k])]


def _explained(left: memoryview, right: memoryview) -> bool:
    """Return whether two whole entries differ in LAC and digest alone. The digest type is unknown here, so any type
    that verifies both entries will do. A MAC cannot be verified without the password, so entries with a MAC count as
    different."""
    if len(left) != len(right) or left[:16] != right[:16] or left[24:32] != right[24:32]:
        return False
    return any(
        left[HEADER_BYTES + kind.digest_bytes :] == right[HEADER_BYTES + kind.digest_bytes :]
        and _verifies(left, kind.digest_bytes, crc)
        and _verifies(right, kind.digest_bytes, crc)
        for kind, (crc, _) in CHECKSUMS.items()
    )


def _verifies(entry: memoryview, width: int, crc: Callable[..., int]) -> bool:
    digest = entry[HEADER_BYTES : HEADER_BYTES + width]
    return len(digest) == width and int(crc(entry[HEADER_BYTES + width :], crc(entry[:HEADER_BYTES]))) == (
        int.from_bytes(digest, "big")
    )
