# SPDX-License-Identifier: Apache-2.0
"""Turns adds of Apache's wire into frames of sessions, and acks of frames into answers to adds.

A session stands for a ledger, its key, and whether the adds are those of a recovery. It is attached when its first add
comes. A refused frame ends the session. Then all its adds that are not durable are answered with the status for the
reason, and the next add attaches a new session. There is one exception: if other entries are stored at some ids of a
frame, only the adds of these ids are refused, and all others are offered again, because to a Java client each add is
independent.

Adds are columns from the burst to their answers, without Python code for each entry. If a burst has few adds of a
ledger, they are handled one by one, each in a frame of its own, because numpy's fixed cost for one frame is higher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import NamedTuple, TypeAlias

import numpy as np

from bk_core.entries.apache_frame import encode_apache_one
from bk_core.entries.frame import FRAME_HEADER_BYTES, FrameHeader, columns_of, parse_header
from bk_core.model import LEDGER_ID_MAX, LEDGER_KEY_BYTES, LedgerId
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.columns import U64
from bk_core.wire.bookie_rpc.frames import I64
from bk_core.wire.bookie_rpc.runs import LONE_ADDS_MAX, AddRun, LoneAdd
from bk_core.wire.bookie_rpc.status import Status, refused_add
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.machine import events
from bookie_server.ports.bookie_rpc.entries import cuts_of, frame_of
from bookie_server.ports.bounds.limits import ClientShare

IDLE_SESSIONS_MAX = 1024
"""The maximum number of attached sessions of a connection. Above it, the session that was not used for longest is
detached, unless it has adds in flight."""

_new = tuple.__new__  # faster than the constructor of a named tuple, which is a Python function

Key: TypeAlias = tuple[LedgerId, bool, bytes]
Made: TypeAlias = tuple[FrameHeader, bytearray | bytes]
"""A frame made of adds, with its header."""


class Sent(NamedTuple):
    """A frame that was given to the machine, with the transaction ids and entry ids for the answers to its adds:
    columns with an item for each entry, or two numbers for a single entry."""

    frame: bytearray | bytes
    txns: U64 | int
    ids: I64 | int
    wire: ModuleType

    def columns(self) -> tuple[U64, I64]:
        """Return ``txns`` and ``ids`` as columns."""
        if isinstance(self.txns, int) or isinstance(self.ids, int):
            return np.array([self.txns], dtype=np.int64).view(np.uint64), np.array([self.ids], dtype=np.int64)
        return self.txns, self.ids


@dataclass(slots=True, eq=False)
class Wait:
    """A call that waits until all adds before it are answered. ``sessions`` is the number of sessions that still have
    such adds."""

    answer: Callable[[], None]
    sessions: int


class ServedSession:
    __slots__ = ("acked", "alive", "key", "number", "pending", "refused")

    def __init__(self, key: Key, number: int) -> None:
        self.key, self.number = key, number
        self.pending: deque[Sent | Wait] = deque()  # oldest first
        self.acked = 0  # number of durable frames
        self.alive = True
        self.refused = Reason.REASON_NONE


class ServedAdds:
    """The adds of one connection. ``feed`` takes events for the machine, and ``send`` bytes for the client."""

    def __init__(
        self, stream: events.StreamId, feed: Callable[[events.Event], None], send: Callable[[bytes], None]
    ) -> None:
        self._stream, self._feed, self._send = stream, feed, send
        self._sessions: dict[Key, ServedSession] = {}  # the one used last is at the end
        self._by_number: dict[int, ServedSession] = {}
        self._latest: ServedSession | None = None  # the one used last
        self._attached = 0
        self.share: ClientShare | None = None
        """The client's share of the limits; None if it has no limits."""
        self.recovering: dict[int, LedgerId] = {}
        """The ledgers of recovery sessions of which no add was answered yet, by the session's number; for the audit
        log."""

    # --- from the client ---

    def take(self, run: AddRun, wire: ModuleType) -> None:
        """Give the adds of one burst to the machine, in order."""
        bodies = run.bodies()
        headers, ids = bodies.headers(), run.entry_ids
        ledgers = run.ledger_ids
        bad = (headers[:, 0] != ledgers) | (headers[:, 1] != ids) | (ids < 0) | (ids > LEDGER_ID_MAX)
        bad |= (run.key_lengths != LEDGER_KEY_BYTES) | (ledgers < 0)
        if bad.any():
            wrong = np.flatnonzero(bad)
            self._send(wire.add_answers(run.txns[wrong], ledgers[wrong], ids[wrong], int(Status.EBADREQ)))
            good = np.flatnonzero(~bad)
            if not good.size:
                return
            run, headers = AddRun(run.buffer, run._rows[:, good]), headers[good]
            bodies = run.bodies()
        message: list[Made] = []
        groups = _groups(run)
        if groups is None:
            _, ledger_id, _, recovery, key, _ = run.add(0)
            self._offer(self._session((ledger_id, recovery, key)), headers, bodies, run.txns, wire, message)
        else:
            self._take_groups(run, groups, headers, wire, message)
        self._hand_over(message)

    def _take_groups(
        self, run: AddRun, groups: Sequence[I64], headers: I64, wire: ModuleType, message: list[Made]
    ) -> None:
        """Offer the adds of several sessions. The adds of a session that has few are offered one by one."""
        bodies, rows = run.bodies(), run.rows()
        for at in groups:
            if at.size <= LONE_ADDS_MAX:
                message += self._lone((run.add_of(rows[k]) for k in at.tolist()), wire)
                continue
            _, ledger_id, _, recovery, key, _ = run.add_of(rows[at[0]])
            session = self._session((ledger_id, recovery, key))
            part = Bodies(bodies.payload, bodies.offsets[at], bodies.lengths[at])
            self._offer(session, headers[at], part, run.txns[at], wire, message)

    def take_one(self, add: LoneAdd, wire: ModuleType) -> None:
        """Give an add that came alone to the machine, without numpy's fixed cost, because a client that waits for each
        add sends one at a time. The frame is passed on with its header, which need not be parsed again."""
        made = self._made_of(add, wire)
        if made is not None:
            header, frame = made
            self._feed(_new(events.FramesArrived, (self._stream, memoryview(frame), (header,))))

    def take_lone(self, adds: Sequence[LoneAdd], wire: ModuleType) -> None:
        """Give adds that came together to the machine, in order, each in a frame of its own."""
        self._hand_over(self._lone(adds, wire))

    def _lone(self, adds: Iterable[LoneAdd], wire: ModuleType) -> list[Made]:
        return [made for add in adds if (made := self._made_of(add, wire)) is not None]

    def _made_of(self, add: LoneAdd, wire: ModuleType) -> Made | None:
        """Make the frame of one add, which the caller gives to the machine, without numpy's fixed cost. Return None if
        the add was refused and answered."""
        txn, ledger_id, entry_id, recovery, key, body = add
        if len(key) != LEDGER_KEY_BYTES or ledger_id < 0 or not 0 <= entry_id <= LEDGER_ID_MAX:
            self._send(wire.add_answer(txn, ledger_id, entry_id, int(Status.EBADREQ)))
            return None
        wanted, session = (ledger_id, recovery, key), self._latest
        if session is None or session.key != wanted or not session.alive:  # usually the session is the last one
            session = self._session(wanted)
        made = encode_apache_one(ledger_id, entry_id, body, session.number)
        if made is None or not session.alive:
            status = Status.EBADREQ if made is None else refused_add(session.refused)
            self._send(wire.add_answer(txn, ledger_id, entry_id, int(status)))
            return None
        session.pending.append(_new(Sent, (made[1], txn, entry_id, wire)))
        return made

    def after(self, ledger_id: LedgerId, answer: Callable[[], None]) -> None:
        """Call ``answer`` once all earlier adds of the ledger are answered."""
        waited = [session for session in self._by_number.values() if session.key[0] == ledger_id and session.pending]
        if not waited:
            answer()
            return
        wait = Wait(answer, len(waited))
        for session in waited:
            session.pending.append(wait)

    def _session(self, key: Key) -> ServedSession:
        """Return the session of a key, and attach it if there is none. It is not alive if it was just refused."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._sessions[key] = self._latest = session
            return session
        if self.share is not None and not self._may_open(self.share, key[1]):
            session = ServedSession(key, 0)
            session.alive, session.refused = False, Reason.OVERLOADED
            return session
        self._attached += 1
        session = self._sessions[key] = self._by_number[self._attached] = ServedSession(key, self._attached)
        self._latest = session
        ledger_id, recovery, ledger_key = key
        mode = AttachMode.RECOVER if recovery else AttachMode.WRITE
        if recovery:
            self.recovering[session.number] = ledger_id
        self._let_go()
        self._feed(events.SessionAttached(self._stream, session.number, ledger_id, ledger_key, mode))
        return session

    def _may_open(self, share: ClientShare, recover: bool) -> bool:
        """Return whether the client may open another ledger. While it has reached its limit, close sessions without
        adds in flight, the longest unused first, because clients on this wire do not say when they have finished with a
        ledger."""
        while share.is_full(recover=recover):
            idle = next((each for each in self._sessions.values() if each.key[1] is recover and not each.pending), None)
            if idle is None:
                break
            self._drop(idle)
        return not share.open_ledger(recover=recover)

    def _let_go(self) -> None:
        """If there are too many sessions, detach the one that was not used for longest, unless it has adds in
        flight."""
        if len(self._sessions) <= IDLE_SESSIONS_MAX:
            return
        oldest = next(iter(self._sessions.values()))
        if not oldest.pending:
            self._drop(oldest)

    def _drop(self, session: ServedSession) -> None:
        session.alive = False
        self.recovering.pop(session.number, None)
        if self._by_number.pop(session.number, None) is not None and self.share is not None:
            self.share.close_ledger(recover=session.key[1])
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
        self._feed(events.SessionsDetached(self._stream, [session.number]))

    def _offer(
        self,
        session: ServedSession,
        headers: I64,
        bodies: Bodies,
        txns: U64,
        wire: ModuleType,
        message: list[Made],
    ) -> None:
        ledger_id, ids = session.key[0], headers[:, 1]
        if not session.alive:
            self._send(wire.add_answers(txns, ledger_id, ids, int(refused_add(session.refused))))
            return
        cuts = cuts_of(ids, bodies.lengths)
        for begin, end in pairwise(cuts):
            made = frame_of(ledger_id, headers[begin:end], bodies.slice(begin, end), session.number)
            session.pending.append(Sent(made[1], txns[begin:end].copy(), ids[begin:end].copy(), wire))
            message.append(made)

    def _hand_over(self, message: list[Made]) -> None:
        if message:
            made, frames = zip(*message, strict=True)
            joined = frames[0] if len(frames) == 1 else b"".join(frames)
            self._feed(events.FramesArrived(self._stream, memoryview(joined).toreadonly(), made))

    # --- from the machine ---

    def told(self, effect: events.SendAcks) -> None:
        if len(effect.sessions) == 1 and not effect.ended and self._told_one(effect.sessions[0], effect.frames[0]):
            return
        durable: list[tuple[Sent, LedgerId]] = []
        waits: list[Wait] = []
        for number, frames in zip(effect.sessions, effect.frames, strict=True):
            session = self._by_number.get(number)
            if session:
                self._settle(session, frames, durable, waits)
        if effect.ended:
            self._told_ends(effect.ended, durable, waits)
        else:
            self._answer(durable, Status.EOK)
        for wait in waits:
            wait.sessions -= 1
            if not wait.sessions:
                wait.answer()

    def _told_one(self, number: int, frames: int) -> bool:
        """Answer the only add in flight of a session, if it came alone and is durable now, without building lists.
        Return False in all other cases; then nothing was done."""
        session = self._by_number.get(number)
        if session is None or len(session.pending) != 1 or session.acked + 1 != frames:
            return False
        sent = session.pending[0]
        if sent.__class__ is not Sent or sent.ids.__class__ is not int:
            return False
        session.pending.clear()
        session.acked = frames
        self._send(sent.wire.add_answer(sent.txns, session.key[0], sent.ids, 0))
        return True

    def _told_ends(self, ends: Sequence[events.Ended], durable: list[tuple[Sent, LedgerId]], waits: list[Wait]) -> None:
        over = [(end, session) for end in ends if (session := self._by_number.get(end.session))]
        for end, session in over:
            self._settle(session, end.frames, durable, waits)
        self._answer(durable, Status.EOK)
        for end, session in over:
            self._ended(session, end, waits)

    def _settle(
        self, session: ServedSession, frames: int, durable: list[tuple[Sent, LedgerId]], waits: list[Wait]
    ) -> None:
        pending = session.pending
        while pending:
            first = pending[0]
            if isinstance(first, Wait):
                waits.append(first)
            elif session.acked < frames:
                session.acked += 1
                durable.append((first, session.key[0]))
            else:
                return
            pending.popleft()

    def _ended(self, session: ServedSession, end: events.Ended, waits: list[Wait]) -> None:
        session.refused = end.reason
        self._drop(session)
        pending = session.pending
        if end.reason is not Reason.INTEGRITY:
            refused = [(each, session.key[0]) for each in pending if isinstance(each, Sent)]
            self._answer(refused, refused_add(end.reason))
            waits += [each for each in pending if isinstance(each, Wait)]
            pending.clear()
            return
        self._offer_again(session, end.differing, waits)

    def _offer_again(self, session: ServedSession, differing: Sequence[int], waits: list[Wait]) -> None:
        """Refuse the adds of the first pending frame whose ids are in ``differing``, or all of them if it is empty.
        Offer the rest of that frame, and all frames behind it, in a new session."""
        first, message = session.pending.popleft(), list[Made]()
        assert isinstance(first, Sent)
        txns, ids = first.columns()
        bad = np.isin(ids, np.array(differing, dtype=np.int64)) if differing else np.ones(ids.size, bool)
        refused = first._replace(txns=txns[bad], ids=ids[bad])
        self._answer([(refused, session.key[0])], Status.EBADREQ)
        rest = [] if bad.all() else [(first, np.flatnonzero(~bad))]
        rest += [(each, np.arange(each.columns()[1].size)) for each in session.pending if isinstance(each, Sent)]
        again = self._session(session.key) if rest else session
        for each, at in rest:
            self._offer_stored(again, each, at, message)
        waiting = [each for each in session.pending if isinstance(each, Wait)]
        (again.pending if again.pending and again is not session else waits).extend(waiting)
        self._hand_over(message)

    def _offer_stored(self, session: ServedSession, sent: Sent, at: I64, message: list[Made]) -> None:
        header = parse_header(sent.frame)
        lengths = columns_of(header, sent.frame).lengths.astype(np.int64)
        payload = memoryview(sent.frame)[FRAME_HEADER_BYTES + header.columns_bytes :]
        bodies = Bodies(payload, (lengths.cumsum() - lengths)[at], lengths[at])
        self._offer(session, bodies.headers(), bodies, sent.columns()[0][at], sent.wire, message)

    def _answer(self, sent: Sequence[tuple[Sent, LedgerId]], status: Status) -> None:
        """Answer all adds of these frames with one status."""
        if len(sent) == 1:
            one, ledger_id = sent[0]
            answer = one.wire.add_answer if one.ids.__class__ is int else one.wire.add_answers
            self._send(answer(one.txns, ledger_id, one.ids, int(status)))
            return
        for wire in dict.fromkeys(each.wire for each, _ in sent):
            of_wire = [(each, ledger_id) for each, ledger_id in sent if each.wire is wire]
            if all(each.ids.__class__ is int for each, _ in of_wire):
                made = (wire.add_answer(each.txns, ledger, each.ids, int(status)) for each, ledger in of_wire)
                self._send(b"".join(made))
                continue
            columns = [each.columns() for each, _ in of_wire]
            counts = [ids.size for _, ids in columns]
            ledgers = np.repeat(np.array([ledger_id for _, ledger_id in of_wire], dtype=np.int64), counts)
            txns, ids = (np.concatenate(column) for column in zip(*columns, strict=True))
            self._send(wire.add_answers(txns, ledgers, ids, int(status)))


def _groups(run: AddRun) -> list[I64] | None:
    """Return the positions of the adds of each session, in order, or None if all adds belong to one session."""
    count = len(run)
    if count == 1:
        return None
    keys = run.keys()
    assert keys is not None  # all have the length of a ledger key
    ledgers, recovery = run.ledger_ids, run.recovery
    if (ledgers == ledgers[0]).all() and (recovery == recovery[0]).all() and (keys == keys[0]).all():
        return None
    order = np.lexsort((recovery, ledgers))  # stable
    ledgers, recovery, keys = ledgers[order], recovery[order], keys[order]
    other = (ledgers[1:] != ledgers[:-1]) | (recovery[1:] != recovery[:-1]) | (keys[1:] != keys[:-1]).any(axis=1)
    cuts = [0, *(np.flatnonzero(other) + 1).tolist(), count]
    return [order[begin:end] for begin, end in pairwise(cuts)]
