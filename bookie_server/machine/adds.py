# SPDX-License-Identifier: Apache-2.0
"""The add path of the bookie's machine: sessions, admission, acks (RULES P1, P6, L2, L4, MUST 2).

A frame is checked, given to the log and counted in one step, so nothing can come between the fence check and the log.
The acks of a step go out as two columns, one effect for each stream.

Admission bounds the frames that wait for a commit: their bytes and their number over all streams, and their bytes for
each stream. Above a bound the stream is paused, and its message waits for room behind earlier ones. Frames are refused
only when three times as much waits. Recovery adds have room of their own, so a flood of normal adds delays them only by
the frames that the log already has (:class:`~bookie_server.machine.state.Flight`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import accumulate, pairwise

from bk_core.entries.apache_frame import check_apache
from bk_core.entries.frame import (
    APACHE_BYTES,
    FrameExtent,
    FrameHeader,
    FrameKind,
    check_frame,
    frame_extent,
    split_frames,
)
from bk_core.errors import IntegrityError
from bk_core.model import LEDGER_ID_MAX, EntryId, LedgerId
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.machine.core import Core, Refusal
from bookie_server.machine.events import (
    CloseStream,
    Ended,
    FramesArrived,
    PauseStream,
    ResumeStream,
    SendAcks,
    SessionAttached,
    StreamId,
    StreamOwned,
)
from bookie_server.machine.state import Flight, Ledger, Pending, Session, Stream

_ENTRIES = int(FrameKind.ENTRIES)
Compare = Callable[[Session, FrameExtent, memoryview], None]
_TAKES_ADDS = (Reason.REASON_NONE, Reason.COPY_DROPPED)
"""The states of a ledger in which it still takes normal adds. A dropped copy lost entries, but no fence (RULES S4)."""


class Adds:
    """The sessions of all streams. ``compare`` begins a comparison with stored entries; :meth:`compared` ends it."""

    __slots__ = (
        "_accepted",
        "_compare",
        "_core",
        "_pause_above",
        "_paused",
        "_resume_at",
        "_sessions",
        "_streams",
        "_to_ack",
        "_to_end",
        "normal",
        "recovery",
    )

    def __init__(self, core: Core, compare: Compare) -> None:
        self._core, self._compare = core, compare
        limits = core.limits
        self.normal = Flight(limits.in_flight_bytes_max, limits.in_flight_frames_max)
        self.recovery = Flight(limits.recovery_bytes_max, limits.in_flight_frames_max)
        self._pause_above, self._resume_at = limits.stream_bytes_max, limits.stream_bytes_max // 2
        self._streams: dict[StreamId, Stream] = {}
        self._sessions = 0  # of all streams
        self._accepted: list[Pending] = []  # frames of the current message
        self._paused: dict[StreamId, Stream] = {}
        self._to_ack: dict[Session, None] = {}  # sessions with newly durable frames in this step
        self._to_end: dict[Session, None] = {}

    # --- sessions ---

    @property
    def sessions(self) -> int:
        """The number of sessions that are open on all streams."""
        return self._sessions

    def _stream(self, stream_id: StreamId) -> Stream:
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = Stream(stream_id, self._core.owners.of(stream_id))
        return stream

    def own(self, event: StreamOwned) -> None:
        """Set the owners of a stream that has sent nothing yet. Once it has, this does nothing: the bytes in flight
        were counted for no owner."""
        if event.stream not in self._streams:
            self._core.owners.own(event.stream, event.owners)

    def frames_of(self, stream_id: StreamId) -> int:
        """Return the number of frames of a stream that were taken so far, including refused frames. It is 0 for an
        unknown stream."""
        stream = self._streams.get(stream_id)
        return stream.frames if stream is not None else 0

    def attach(self, event: SessionAttached) -> None:
        stream = self._stream(event.stream)
        if event.session == 0 or event.session in stream.sessions:
            self._close(stream, f"session number {event.session} is 0 or in use")
            return
        if len(stream.sessions) >= self._core.limits.sessions_per_stream_max:
            self._close(stream, f"more than {self._core.limits.sessions_per_stream_max} sessions on one stream")
            return
        if self._sessions >= self._core.limits.sessions_max * (2 if event.mode is AttachMode.RECOVER else 1):
            problem = Reason.OVERLOADED, f"{self._sessions} sessions are open"
            self._refuse(Session(stream, event.session, None, event.mode), problem)
            return
        known_id = 0 <= event.ledger_id <= LEDGER_ID_MAX
        ledger = self._core.ledger(event.ledger_id) if known_id else None
        session = Session(stream, event.session, ledger, event.mode)
        self._remember(session)
        if ledger is None:
            self._refuse(session, (Reason.BAD_REQUEST, f"ledger id {event.ledger_id}"))
            return
        ledger.sessions += 1
        refusal = self._attach_problem(event, ledger) or self._state_problem(session, ledger)
        if refusal:
            self._refuse(session, refusal)

    def _remember(self, session: Session) -> None:
        self._sessions += 1
        session.stream.sessions[session.number] = session
        session.stream.recovering += session.recover

    def _attach_problem(self, event: SessionAttached, ledger: Ledger) -> Refusal | None:
        if event.explicit_ids:
            return Reason.UNIMPLEMENTED, "ledgers with caller-given entry ids are not built yet"
        return self._core.key_problem(ledger, event.ledger_key)

    def _state_problem(self, session: Session, ledger: Ledger) -> Refusal | None:
        """Return why the ledger takes no frame of this session now, or None. This is checked in the same step that
        gives a frame to the log (MUST 2)."""
        if self._core.failed:
            return self._core.failed
        if ledger.deleted:
            return Reason.DELETED, f"ledger {ledger.ledger_id} is deleted"
        if session.recover:
            return None
        if ledger.trouble not in _TAKES_ADDS:  # first: after LIMBO, unlike FENCED, a writer may go on
            return ledger.trouble, f"this bookie may have lost entries or a fence of ledger {ledger.ledger_id}"
        if ledger.fenced:
            return Reason.FENCED, f"ledger {ledger.ledger_id} is fenced"
        if ledger.log.read_only:
            return Reason.READ_ONLY, "this bookie is read-only, or the data directory of this ledger is"
        return None

    def detach(self, stream_id: StreamId, numbers: list[int]) -> None:
        stream = self._streams.get(stream_id)
        if stream:
            self._take_waiting(stream)
        for number in numbers:
            session = stream.sessions.pop(number, None) if stream else None
            if session:
                self._drop(session)

    def close(self, stream_id: StreamId) -> None:
        """Forget a stream that is gone. Its frames in the log are still written, without acks."""
        stream = self._streams.pop(stream_id, None)
        self._paused.pop(stream_id, None)
        if stream:
            stream.closed = True
            self.normal.waiting -= sum(message.frames.nbytes for message in stream.waiting)
            stream.waiting.clear()
            for session in stream.sessions.values():
                self._drop(session)
            stream.sessions.clear()

    def _drop(self, session: Session) -> None:
        """Take no more frames of this session and send nothing more about it."""
        self._sessions -= 1
        session.stream.recovering -= session.recover
        session.gone = True
        session.end = session.end or (Reason.NOT_ATTACHED, "detached")
        self._drop_held(session)
        if session.ledger:
            session.ledger.sessions -= 1
            self._core.forget_if_idle(session.ledger)

    def _drop_held(self, session: Session) -> None:
        held, session.held = session.held, None
        for _, frame in held or ():
            self._released(session, frame.nbytes)

    def _close(self, stream: Stream, message: str) -> None:
        self._core.effects.append(CloseStream(stream.stream_id, message))
        self.close(stream.stream_id)

    # --- frames ---

    def frames(self, event: FramesArrived) -> None:
        stream = self._stream(event.stream)
        if stream.waiting or (not stream.recovering and self.normal.holds_up()):
            stream.waiting.append(event)
            self.normal.waiting += event.frames.nbytes
            self._pause(stream)
        else:
            self._take(stream, event)

    def _take_waiting(self, stream: Stream) -> None:
        """Process the waiting messages of this stream, whether or not there is room."""
        while stream.waiting:
            message = stream.waiting.popleft()
            self.normal.waiting -= message.frames.nbytes
            self._take(stream, message)

    def _take(self, stream: Stream, event: FramesArrived) -> None:
        message, made = event.frames, event.made
        is_alone = made is not None and made[0] is made[-1]  # costs less than len(), on the path of each single add
        try:
            if made is None:
                frames = split_frames(message)
            else:
                frames = [(made[0], message)] if is_alone else _frames_made(message, made)
        except IntegrityError as error:
            self._close(stream, str(error))
            return
        self._accepted = []
        stream.frames += len(frames)
        for header, frame in frames:
            session = stream.sessions.get(header.tag) or self._unknown_session(stream, header.tag)
            self._taken(session, frame.nbytes)
            self._offer(session, header, frame, made is not None)
        if not is_alone:
            self._let_go(message)
        if self._is_too_much(stream):
            self._pause(stream)
        elif stream.owners and any(owner.full(**stream.sends) for owner in stream.owners):
            self._core.counts.held += not stream.paused
            self._pause(stream)

    def _pause(self, stream: Stream) -> None:
        if not stream.paused:
            stream.paused = True
            self._paused[stream.stream_id] = stream
            self._core.effects.append(PauseStream(stream.stream_id))

    def _let_go(self, message: memoryview) -> None:
        """Copy the accepted frames if they are less than half of their message. Otherwise they would keep the whole
        message in memory, and the bound counts only the frames."""
        accepted, size = self._accepted, 0
        for pending in accepted:
            size += pending.header.payload_bytes  # most of a frame's bytes, and a plain field
        if 2 * size < memoryview(message.obj).nbytes:
            for pending in accepted:
                pending.frame = bytes(pending.frame)

    def _unknown_session(self, stream: Stream, number: int) -> Session:
        """Return a session for a number that has none, and refuse it. The session is remembered, so that it is refused
        only once."""
        session = Session(stream, number, None, AttachMode.WRITE)
        limits = self._core.limits
        if len(stream.sessions) < limits.sessions_per_stream_max and self._sessions < limits.sessions_max:
            self._remember(session)
        self._refuse(session, (Reason.NOT_ATTACHED, f"no session {number} on this stream"))
        return session

    def _offer(self, session: Session, header: FrameHeader, frame: memoryview, checked: bool) -> None:
        """Handle the next frame of a session: give it to the log, hold it for a comparison, or end the session."""
        ledger = session.ledger
        if session.end or ledger is None:
            self._released(session, frame.nbytes)
            return
        if session.held is not None:
            session.held.append((header, memoryview(bytes(frame))))
            return
        problem = self._frame_problem(session, ledger, header, None if checked else frame)
        if problem:
            self._released(session, frame.nbytes)
            self._refuse(session, problem)
            return
        extent = frame_extent(frame, header)
        if not session.recover and extent.first <= ledger.top and self._overlaps(ledger, extent.first, extent.last):
            frame = memoryview(bytes(frame))  # a copy: it may stay long and must not keep its message in memory
            session.held = deque(((header, frame),))
            self._compare(session, extent, frame)
            return
        self._accept(session, ledger, header, extent, frame)

    def _frame_problem(
        self, session: Session, ledger: Ledger, header: FrameHeader, frame: memoryview | None
    ) -> Refusal | None:
        """Return why this frame is refused, or None. ``frame`` has its bytes if they must be checked."""
        if header.kind != _ENTRIES or header.ledger_id != ledger.ledger_id:
            return Reason.BAD_REQUEST, f"a frame of kind {header.kind}, ledger {header.ledger_id}"
        problem = self._state_problem(session, ledger)
        if problem:
            return problem
        flight = self.recovery if session.recover else self.normal
        if flight.refuses():
            return Reason.OVERLOADED, f"{flight.bytes} bytes in {flight.frames} frames wait for a commit"
        if frame is None:
            return None
        try:
            check_frame(frame, header)
            if header.flags & APACHE_BYTES:
                check_apache(header, frame)
        except IntegrityError as error:
            return Reason.INTEGRITY, error.what
        return None

    def _overlaps(self, ledger: Ledger, first: int, last: int) -> bool:
        return bool(ledger.pending_over(first, last)) or self._core.holdings.overlaps(ledger.ledger_id, first, last)

    def _accept(
        self, session: Session, ledger: Ledger, header: FrameHeader, extent: FrameExtent, frame: memoryview
    ) -> None:
        if not ledger.key_logged:
            self._core.log_key(ledger)
        pending = Pending(header, extent, frame, ledger, session)
        self._core.enqueue(pending)
        self._accepted.append(pending)
        session.accepted += 1

    def compared(self, session: Session, differing: Sequence[EntryId]) -> None:
        """Take the result of comparing the first held frame with the entries stored at its ids. If some differ, the
        frame is refused (RULES P6)."""
        held, ledger = session.held, session.ledger
        if held is None or ledger is None or session.end:
            return
        session.held = None
        header, frame = held.popleft()
        problem = self._state_problem(session, ledger)  # a fence may have come in between (MUST 2)
        if not problem and differing:
            session.differing = differing
            problem = (Reason.INTEGRITY, f"another entry is stored at an id from {header.first_entry_id} on")
        if problem:
            self._released(session, frame.nbytes)
            self._refuse(session, problem)
        else:
            self._accept(session, ledger, header, frame_extent(frame, header), frame)
        for header, frame in held:
            self._offer(session, header, frame, False)

    # --- ends and acks ---

    def _refuse(self, session: Session, problem: Refusal) -> None:
        """End a session, because its frame ``accepted`` + 1 was refused. The client gets the refusal once all frames
        before it are durable (RULES P1)."""
        session.end = problem
        refused = self._core.counts.refused
        refused[problem[0]] = refused.get(problem[0], 0) + 1
        if session.durable == session.accepted:
            self._to_end[session] = None

    def committed(self, pending: Pending, size: int) -> None:
        """Count a frame of ``size`` bytes that has become durable, for the next ack of its session."""
        session = pending.session
        assert session is not None
        self._released(session, size)
        session.durable += 1
        if session.end and session.durable == session.accepted:
            self._to_end[session] = None
        elif not session.end:
            self._to_ack[session] = None

    def dropped(self, pending: Pending, problem: Refusal) -> None:
        """End the session of a frame that will never be durable. Its last durable frame is the session's last."""
        session = pending.session
        assert session is not None
        self._released(session, pending.header.size)
        session.accepted = session.durable
        self._drop_held(session)
        session.end = problem
        self._to_end[session] = None

    def fail_all(self, problem: Refusal) -> None:
        """End every session, because a sync failed (RULES S6)."""
        for stream in self._streams.values():
            for session in stream.sessions.values():
                if not session.end:
                    self._drop_held(session)
                    session.accepted = session.durable
                    self._refuse(session, problem)

    def end_deleted(self, ledgers: Container[LedgerId]) -> None:
        """End the sessions of ledgers that are being deleted. Each ends after the frames that the log already has."""
        for stream in self._streams.values():
            for session in stream.sessions.values():
                ledger = session.ledger
                if ledger is not None and ledger.ledger_id in ledgers and not session.end:
                    self._drop_held(session)
                    self._refuse(session, (Reason.DELETED, f"ledger {ledger.ledger_id} is deleted"))

    def flush(self) -> None:
        """Finish a step: resume paused streams if there is room, and emit the acks and ends, one effect for each
        stream."""
        if self._accepted:
            self._accepted = []
        if self._paused:
            self._resume()
        if self._to_ack or self._to_end:
            self._flush_acks()

    def _flush_acks(self) -> None:
        acks: dict[StreamId, SendAcks] = {}
        for session in self._to_ack:
            if not session.gone and not session.end:
                of_stream = acks.get(session.stream.stream_id) or self._acks_of(session.stream.stream_id, acks)
                of_stream.sessions.append(session.number)
                of_stream.frames.append(session.durable)
        for session in self._to_end:
            if not session.gone and session.end and not session.told:
                session.told = True
                of_stream = acks.get(session.stream.stream_id) or self._acks_of(session.stream.stream_id, acks)
                of_stream.ended.append(Ended(session.number, session.durable, *session.end, session.differing))
        self._to_ack = {}
        self._to_end = {}

    def _acks_of(self, stream_id: StreamId, acks: dict[StreamId, SendAcks]) -> SendAcks:
        """Make the effect for a stream's acks, behind the other effects. The caller fills it."""
        made = acks[stream_id] = SendAcks(stream_id, [], [], [])
        self._core.effects.append(made)
        return made

    # --- admission ---

    def _taken(self, session: Session, size: int) -> None:
        flight = self.recovery if session.recover else self.normal
        flight.bytes += size
        flight.frames += 1
        session.stream.pending_bytes += size
        if session.stream.owners:
            self._owned(session, size)

    def _released(self, session: Session, size: int) -> None:
        flight = self.recovery if session.recover else self.normal
        flight.bytes -= size
        flight.frames -= 1
        session.stream.pending_bytes -= size
        if session.stream.owners:
            self._owned(session, -size)

    def _owned(self, session: Session, size: int) -> None:
        if not session.recover:
            session.stream.normal_bytes += size
        for owner in session.stream.owners:
            if session.recover:
                owner.recovery += size
            else:
                owner.normal += size
            if not owner.streams:
                self._core.owners.settled(owner)

    def bound_streams(self) -> None:
        """Set the bytes in flight at which a stream is paused and resumed. Two groups of each log keep the disks busy:
        one is being written, another waits. More from one stream gains nothing and delays the other streams. A paused
        stream resumes when one group of each log is left."""
        limit = self._core.limits.stream_bytes_max
        group = sum(log.group_bytes for log in self._core.logs)
        self._pause_above = min(2 * group - 1, limit) if group else limit
        self._resume_at = (self._pause_above + 1) // 2

    def _is_too_much(self, stream: Stream) -> bool:
        """Return whether this stream, which has just sent a message, must be paused. While it recovers a ledger, only
        its own bytes and those of other recoveries count."""
        flight = self.recovery if stream.recovering else self.normal
        return stream.pending_bytes > self._pause_above or flight.full()

    def _has_room(self, stream: Stream) -> bool:
        """Return whether a paused stream and its owners have few enough bytes in flight for the stream to resume."""
        if stream.pending_bytes > self._resume_at:
            return False
        return all(owner.has_room(**stream.sends) for owner in stream.owners)

    def _resume(self) -> None:
        """While there is room, resume paused streams, the longest paused first, and process their waiting messages."""
        for stream in list(self._paused.values()):
            flight = self.recovery if stream.recovering else self.normal
            if not flight.full() and self._has_room(stream):
                stream.paused = False
                del self._paused[stream.stream_id]
                self._core.effects.append(ResumeStream(stream.stream_id))
                self._take_waiting(stream)


def _frames_made(message: memoryview, made: Sequence[FrameHeader]) -> list[tuple[FrameHeader, memoryview]]:
    """Return the header and bytes of each frame that this bookie built itself."""
    cuts = pairwise(accumulate((header.size for header in made), initial=0))
    return [(header, message[begin:end]) for header, (begin, end) in zip(made, cuts, strict=True)]
