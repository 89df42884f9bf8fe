# SPDX-License-Identifier: Apache-2.0
"""Carries the sessions of a connection over single adds. It converts frames to add requests. The bookie answers single
entries in any order, and listeners get the number of whole frames of a session that are durable (P1). Pure.

A session is *open*, and becomes *refused* once this side or the bookie refuses a frame. A refused session drops the
frames that it has not sent, and ends once all frames before the refused frame are durable. If the bookie refuses an add
because it has too much to do, the add is sent again after a pause, with fewer adds in flight. After ``PAUSES_MAX``
pauses in which the bookie took no add, the session ends as OVERLOADED.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bk_core.errors import BookKeeperError, IntegrityError, RemoteProtocolError
from bk_core.transport.bookie_rpc.packing import AddPiece, How, Packer, Waiting, take_once
from bk_core.transport.port import AddListener, NewSession
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.frames import I64, Buffer
from bk_core.wire.bookie_rpc.runs import AddAnswers
from bk_core.wire.bookie_rpc.status import Status, reason_of
from bk_core.wire.lane.reasons import AttachMode, Reason

ADDS_MAX = 5_000
"""The maximum number of adds of one client that wait for answers of one bookie. Apache's bookies refuse adds beyond
10,000 of all clients together."""

ADDS_MIN = 16
"""The lowest limit of adds in flight. A bookie that has too much to do halves the limit, but not below this number."""

PAUSES_MAX = 8
"""The maximum number of pauses in a row in which the bookie takes no add. After one more the session ends as
OVERLOADED."""


@dataclass(slots=True)
class WireSession:
    """A session on the connection. ``frames`` has the number of entries that are not durable yet of each frame that is
    not acked. ``acked`` is the number of durable frames, and ``told`` the number that the listener has got."""

    number: int
    how: How
    listener: AddListener
    frames: deque[int] = field(default_factory=deque)  # entries not durable yet, of each frame not acked
    acked: int = 0  # frames that are durable
    told: int = 0
    refused_at: int | None = None  # the first frame that was refused
    reason: Reason = Reason.REASON_NONE
    message: str = ""

    def refuse(self, frame: int, reason: Reason, message: str) -> None:
        if self.refused_at is None or frame < self.refused_at:
            self.refused_at, self.reason, self.message = frame, reason, message


@dataclass(slots=True, eq=False)
class SentPiece:
    """A piece of a frame that was sent to this bookie, or is queued for it. ``session`` is None once the session has
    ended."""

    session: WireSession | None
    frame: int  # number of its frame in the session
    piece: AddPiece
    open: npt.NDArray[np.bool_]  # which entries are in flight
    left: int  # entries in flight or waiting to be sent again

    @property
    def first_txn(self) -> int:
        return self.piece.first_txn

    @property
    def count(self) -> int:
        return int(self.open.size)


class WireAdds:
    """Handles the adds of one connection."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._sessions: dict[int, WireSession] = {}
        self._ready: deque[SentPiece] = deque()  # pieces to be sent, in order
        self._again: deque[tuple[SentPiece, I64]] = deque()  # entries to be sent again
        self._flight: Waiting[SentPiece] = Waiting()
        self._news: dict[int, WireSession] = {}
        self._last_txn = 0  # the first transaction of the frame that was sent last
        self.in_flight = 0
        self.limit = ADDS_MAX
        self.pauses = 0  # in a row without an add that was taken
        self.pausing = False  # until resume()

    # --- calls ---

    def attach(self, session: NewSession) -> None:
        recovery, flags = session.mode is AttachMode.RECOVER, v3.DEFERRED_SYNC if session.deferred else 0
        how = How(session.ledger_id, session.ledger_key, recovery, flags)
        self._sessions[session.number] = WireSession(session.number, how, session.listener)

    def has(self, session: int) -> bool:
        """Return whether the session has not ended."""
        return session in self._sessions

    def send(self, number: int, frame: Buffer) -> None:
        session = self._sessions.get(number)
        if session is None or session.refused_at is not None:
            return
        at = session.acked + len(session.frames)
        try:
            pieces = self._pieces(session, frame)
        except IntegrityError as error:
            self._refuse(session, at, Reason.INTEGRITY, str(error))
        except BookKeeperError as error:  # a frame of another ledger, or a record
            self._refuse(session, at, Reason.BAD_REQUEST, str(error))
        else:
            sizes = [int(piece.entry_ids.size) for piece in pieces]
            session.frames.append(sum(sizes))
            for piece, size in zip(pieces, sizes, strict=True):
                self._ready.append(SentPiece(session, at, piece, np.ones(size, dtype=np.bool_), size))

    def _pieces(self, session: WireSession, frame: Buffer) -> tuple[AddPiece, ...]:
        pieces = self._packer.pieces(frame, session.how)
        if pieces[0].first_txn == self._last_txn:  # the frame was already sent here: it needs new transactions
            self._packer.forget()
            pieces = self._packer.pieces(frame, session.how)
        self._last_txn = pieces[0].first_txn
        return pieces

    def detach(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session:
            self._drop(session)

    def _drop(self, session: WireSession) -> None:
        """Drop the queued entries of a session, and ignore further answers to its adds."""
        self._news.pop(session.number, None)
        self._drop_queued(session, 0)
        for sent in self._flight.owners():
            if sent.session is session:
                sent.session = None

    def resume(self) -> None:
        """End the pause."""
        self.pausing = False

    # --- out ---

    def next_buffers(self) -> list[Buffer] | None:
        """Return the next adds to send, or None."""
        if self.pausing:
            return None
        room = self.limit - self.in_flight
        if self._again:
            return self._resend(min(room, self.limit)) if room > 0 else None
        if not self._ready or (self.in_flight and self._ready[0].count > room):
            return None
        sent = self._ready.popleft()
        self._flight.add(sent)
        self.in_flight += sent.count
        return sent.piece.buffers

    def _resend(self, room: int) -> list[Buffer]:
        sent, places = self._again.popleft()
        if places.size > room:
            self._again.appendleft((sent, places[room:]))
            places = places[:room]
        session, piece = sent.session, sent.piece
        assert session is not None
        sent.open[places] = True
        self.in_flight += places.size
        bodies = piece.bodies
        heads = None if bodies.heads is None else bodies.heads[places]
        some = Bodies(bodies.payload, bodies.offsets[places], bodies.lengths[places], heads)
        return session.how.requests((piece.first_txn + places).astype(np.uint64), piece.entry_ids[places], some)

    # --- in ---

    def take(self, run: AddAnswers) -> None:
        """Take answers to adds. Raises RemoteProtocolError for an answer that belongs to no add."""
        ids, ledgers, statuses = run.entry_ids, run.ledger_ids, run.statuses
        for sent, at, places in self._flight.groups(run.txns):
            said, entry_ids, ledger_ids = statuses[at], ids[at], ledgers[at]
            wrong = (entry_ids != sent.piece.entry_ids[places]) | (ledger_ids != sent.piece.ledger_id)
            if wrong.any() and bool((wrong & ~((said != Status.EOK) & (entry_ids == -1) & (ledger_ids == -1))).any()):
                raise RemoteProtocolError("a bookie answers an add with the ids of another add")
            take_once(sent.open, places, sent.first_txn)
            self.in_flight -= int(places.size)
            taken = said == Status.EOK
            self._taken(sent, int(np.count_nonzero(taken)))
            if not taken.all():
                self._refused(sent, places[~taken], said[~taken])

    def _taken(self, sent: SentPiece, count: int) -> None:
        if not count:
            return
        self.pauses, self.limit = 0, min(ADDS_MAX, self.limit + count // 8 + 1)
        session = sent.session
        if session is not None:
            session.frames[sent.frame - session.acked] -= count
            self._news[session.number] = session
        self._forget(sent, count)

    def _refused(self, sent: SentPiece, places: I64, statuses: I64) -> None:
        session = sent.session
        busy = statuses == Status.ETOOMANYREQUESTS
        if session is None or (session.refused_at is not None and sent.frame >= session.refused_at):
            self._forget(sent, int(places.size))
            return
        if busy.any():
            self._too_many(session, sent, places[busy])
        if not busy.all():
            final = places[~busy]
            status = Status(int(statuses[~busy][int(final.argmin())]))
            reason = reason_of(status) or Reason.BAD_REQUEST  # ENOLEDGER and ENOENTRY are no answers to an add
            self._forget(sent, int(final.size))
            self._refuse(session, sent.frame, reason, f"entry {_first_id(sent, final)}: {status.name}")

    def _too_many(self, session: WireSession, sent: SentPiece, places: I64) -> None:
        """Begin a pause, because the bookie has too much to do, and halve the limit of adds in flight."""
        if not self.pausing:
            self.pausing, self.pauses = True, self.pauses + 1
            self.limit = max(ADDS_MIN, min(self.limit, self.in_flight + int(places.size)) // 2)
        if self.pauses <= PAUSES_MAX:
            self._again.append((sent, np.sort(places)))
            return
        self._forget(sent, int(places.size))
        self._refuse(
            session, sent.frame, Reason.OVERLOADED, f"entry {_first_id(sent, places)}: refused again and again"
        )

    def _forget(self, sent: SentPiece, count: int) -> None:
        """Note that ``count`` more entries of a piece are finished."""
        sent.left -= count
        if not sent.left:
            self._flight.remove(sent)

    def _refuse(self, session: WireSession, frame: int, reason: Reason, message: str) -> None:
        session.refuse(frame, reason, message)
        assert session.refused_at is not None
        self._news[session.number] = session
        self._drop_queued(session, session.refused_at)

    def _drop_queued(self, session: WireSession, first_frame: int) -> None:
        """Drop the queued entries of this session's frames from ``first_frame`` on."""
        self._ready = deque(s for s in self._ready if s.session is not session or s.frame < first_frame)
        again, self._again = self._again, deque()
        for sent, places in again:
            if sent.session is session and sent.frame >= first_frame:
                self._forget(sent, int(places.size))
            else:
                self._again.append((sent, places))

    # --- callbacks ---

    def tell(self) -> None:
        """Call the listeners of the sessions that have changed since the last call."""
        news, self._news = self._news, {}
        for session in news.values():
            if self._sessions.get(session.number) is not session:
                continue
            while session.frames and session.frames[0] == 0:
                session.frames.popleft()
                session.acked += 1
            if session.refused_at is not None and session.acked >= session.refused_at:
                del self._sessions[session.number]
                self._drop(session)
                session.listener.on_ended(session.number, session.acked, session.reason, session.message)
            elif session.acked > session.told:
                session.told = session.acked
                session.listener.on_acked(session.number, session.acked)

    def lost(self, message: str) -> None:
        """End all sessions after the connection broke. The outcome of unanswered adds is unknown."""
        sessions, self._sessions = self._sessions, {}
        self._ready.clear()
        self._again.clear()
        self._news.clear()
        self._flight, self.in_flight = Waiting(), 0
        for session in sessions.values():
            session.listener.on_broken(session.number, message)

    @property
    def owes(self) -> bool:
        """Whether the bookie owes answers to adds."""
        return self.in_flight > 0


def _first_id(sent: SentPiece, places: I64) -> int:
    return int(sent.piece.entry_ids[int(places.min())])
