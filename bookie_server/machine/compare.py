# SPDX-License-Identifier: Apache-2.0
"""Compares an offered frame with the entries stored at its ids (RULES P6): a path of the bookie's machine.

A re-sent entry may stand on disk twice, but a normal add over an existing id with another length or payload is refused.
This is rare: only frames that begin at or below the ledger's highest id are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bk_core.entries.frame import FrameExtent, decode_frame, split_frames
from bk_core.errors import IntegrityError
from bookie_server.machine.core import Core, Refusal
from bookie_server.machine.events import Piece
from bookie_server.machine.requests import Frame, Request, Requests
from bookie_server.machine.state import Session


class Comparison(Request):
    """The comparison for the first held frame of a session; ids below ``next`` agree."""

    __slots__ = ("frame", "last", "next", "planned_through", "session")

    def __init__(
        self, number: int, session: Session, extent: FrameExtent, frame: memoryview, path: Comparisons
    ) -> None:
        assert session.ledger is not None
        super().__init__((session.stream.stream_id, number), session.ledger.ledger_id, path)
        self.session, self.frame = session, frame
        self.next, self.last = extent.first, extent.last
        self.planned_through = self.next


class Comparisons:
    """``compared`` is told the result of each comparison."""

    def __init__(self, core: Core, requests: Requests, compared: Callable[[Session, bool], None]) -> None:
        self._core, self._requests, self._compared = core, requests, compared
        self._begun = 0

    def begin(self, session: Session, extent: FrameExtent, frame: memoryview) -> None:
        self._begun += 1  # not the session's number: that may be used again while storage still reads for the old one
        self._requests.begin(Comparison(self._begun, session, extent, frame, self), admit=False)

    def run(self, request: Request) -> None:
        """Compare with the durable entries, once no frame over these ids is pending."""
        assert isinstance(request, Comparison)
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
        self._end(request, True)

    def frames_read(self, request: Request, pieces: Sequence[Piece], frames: Sequence[Frame | None]) -> None:
        assert isinstance(request, Comparison)
        if all(_agree(stored, request.frame) for stored in frames if stored is not None):
            request.next = request.planned_through + 1
            self._requests.run(request)
        else:
            self._end(request, False)

    def damaged(self, request: Request) -> None:
        """A damaged copy yields to any intact one, and so to the offered one (RULES P6)."""
        self._requests.run(request)

    def _end(self, request: Comparison, same: bool) -> None:
        self._requests.forget(request)
        self._compared(request.session, same)

    def refuse(self, request: Request, problem: Refusal) -> None:
        assert isinstance(request, Comparison)
        self._compared(request.session, True)  # True, because the add path finds the same problem itself

    def forgotten(self, request: Request) -> None:
        """Nothing is kept."""


def _agree(stored: Frame, offered: memoryview) -> bool:
    """Whether the offered frame and the stored ones (``stored`` may hold several small neighbours) have the same length
    and payload for each id that both hold."""
    try:
        return all(_same(frame, offered) for _, frame in split_frames(stored))
    except IntegrityError:
        return False


def _same(stored: Frame, offered: memoryview) -> bool:
    left, right = decode_frame(stored), decode_frame(offered)
    _, at_left, at_right = np.intersect1d(left.entry_ids(), right.entry_ids(), assume_unique=True, return_indices=True)
    left, right = left.select(at_left), right.select(at_right)
    if not np.array_equal(left.lengths, right.lengths):
        return False
    return np.array_equal(np.frombuffer(left.payload, np.uint8), np.frombuffer(right.payload, np.uint8))
