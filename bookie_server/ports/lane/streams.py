# SPDX-License-Identifier: Apache-2.0
"""Has the bookie's side of a lane's streams, which turn messages into events, and effects into messages (RULES L1 to
L6). This file has the code that all streams share, and the streams for adds and reads. The control stream is in
``control_stream.py``.

The streams have no socket. The driver calls :meth:`LaneStream.receive` and writes the results of
:meth:`LaneStream.next_message`. The acks of one turn of the loop are sent in one message, and frames are not copied.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError, Message

from bk_core.access.grants import NO_LEDGER
from bk_core.access.needs import LANES as NEEDS
from bk_core.access.tokens import MECHANISM
from bk_core.errors import AuthenticationError, RemoteProtocolError
from bk_core.model import BookieId, EntryId, LedgerId
from bk_core.observe.audit import TEXT_MAX
from bk_core.observe.log_throttle import LogThrottle
from bk_core.observe.traces import spans
from bk_core.transport.lane.messages import LANE_VERSION, asleep, cut_from_proto, proto_reason, trailer_to_proto
from bk_core.transport.port import BookieInfo
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import (
    ENTRY_BYTES_MAX,
    FRAME_BYTES_MAX,
    NAMED_TAKEN_MAX,
    AttachMode,
    Buffer,
    LaneMessage,
    Reason,
)
from bk_core.wire.proto import lane_pb2
from bookie_server.audit import AuditLog, outcome_of
from bookie_server.engine.engine import BookieEngine, StreamEffect
from bookie_server.machine import events
from bookie_server.ports.access.authority import Authority
from bookie_server.ports.access.gate import Gate, Refusal
from bookie_server.ports.access.principal import UNKNOWN, Principal
from bookie_server.ports.access.tls import PortTls
from bookie_server.ports.bounds.limits import ClientShare, LimitReached, Limits, RequestKind
from bookie_server.ports.bounds.memory_bounds import AnswerRoom

logger = logging.getLogger(__name__)

MESSAGE_BYTES_MAX_SHORT = 256 << 10
"""The maximum size, in bytes, of a message without frames. A hint about ten thousand deleted ledgers fits."""

ADD_REST_BYTES_MAX = 1 << 20
"""The maximum size of the part of an add message that is not frames. The bookie's loop does nothing else while it
handles this part."""

_ENDS_OF_A_MESSAGE = 8192
_RECOVERS = "attach RECOVER"

_new = tuple.__new__  # costs less than the constructor of a named tuple

_TOGETHER_MAX = 64
"""The maximum number of reads of one entry that the machine gets together. They are answered in one step, so with more
of them a client would hold up the others, and would be paused too late."""

_Entry: TypeAlias = tuple[int, int, Buffer, bool]
"""The answer to a read of one entry: the request's number, the entry's id, its frame, and whether the ledger is
fenced."""

_LOOK_S = 60.0
"""The longest time, in seconds, between two checks of the grants of sessions. It is short because the system's clock
may be set."""

_TELL_CLIENT = 'set security="secure" in the client (Spark: option security, bk: --security)'


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieFacts:
    """Facts about this bookie, for the answer to hello (RULES L1) and for requests that ask for them."""

    bookie_id: BookieId
    instance_id: str
    incarnation: str
    in_flight_bytes_max: int
    read_only: Callable[[], bool]
    version: str = ""
    space: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Returns the total and the free bytes of the data directories."""
    lacking: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Returns the numbers of ledgers whose copies are incomplete here: because of limbo, and for other reasons."""
    answers: AnswerRoom = field(default_factory=AnswerRoom)
    """The bound on control answers of all streams."""
    authority: Authority | None = None
    """The object that decides the rights of clients, or None in mode ``open``."""
    port_tls: PortTls | None = None
    """The TLS and authentication of the ports, or None without TLS."""
    limits: Limits | None = None
    """The limits of clients, or None without limits."""
    audit: AuditLog | None = None
    refusals: LogThrottle = field(default_factory=LogThrottle)
    """Limits repeated log lines about refused clients."""

    def info(self) -> BookieInfo:
        total, free = self.space()
        return BookieInfo(total, free, self.read_only(), self.version, *self.lacking())


def refusal(facts: BookieFacts, why: str) -> lane_pb2.HelloAnswer:
    """Return the answer to the hello of a client that is not let in, for the reason ``why``."""
    return lane_pb2.HelloAnswer(
        reason=proto_reason(Reason.UNAUTHENTICATED),
        message=why,
        version=LANE_VERSION,
        instance_id=facts.instance_id,
        bookie_id=facts.bookie_id,
    )


class LaneStream:
    """The common part of the three kinds of streams: hello, back-pressure, and the end. ``principal`` is the client's
    identity.

    The driver sets ``wake``. It is called when there is a message to write, when the stream ends, and when ``flows``
    changes. After setting it the driver checks once by itself. ``flows`` is False while nothing may be received,
    because the machine paused the stream, too many answers wait for the client, or the client has sent too many
    requests. ``closing`` is the reason why the stream ends once its queued answers are written; with ``was_cut`` it
    ends without writing them. The driver sets ``reading_since`` to its loop's time when it begins to wait for a
    message, and ``writing`` while a message is being written.
    """

    name: str
    """The stream's name on the wire, and in the table ``NEEDS``."""

    request_type: type[Message]
    """The type of the client's messages, each of which may carry a hello."""

    gets_frames = False
    """Whether the client's messages carry frames, in field 1."""

    rest_bytes_max = MESSAGE_BYTES_MAX_SHORT
    """The maximum size of a message without its frames."""

    waiting_max = 0
    """The maximum number of waiting answers while messages are received. Above it, nothing is received. The unit is
    that of ``waiting``."""

    def __init__(self, engine: BookieEngine, facts: BookieFacts, principal: Principal = UNKNOWN) -> None:
        self.engine, self.facts, self.principal = engine, facts, principal
        self.gate = None if facts.authority is None else Gate(facts.authority, principal.identity or "")
        self.stream: events.StreamId = engine.open_stream(self)
        self.wake: Callable[[], object] = asleep
        self.leave: Callable[[], None] = asleep  # set by a driver that can write at once
        self.lane = ""
        """The lane's name in endpoints, for the audit log; the driver sets it."""
        self.flows = True
        self.closing = ""
        self.was_cut = self.writing = self._stalled = self._paused = False
        self.on_cut: Callable[[], object] | None = None
        self.reading_since = math.inf
        self.waiting = 0
        """The amount of answers that wait for the client, in the unit of the subclass."""
        self.share: ClientShare | None = None
        """The client's share of the limits, after its hello; None if it has no limits."""
        self._held: asyncio.TimerHandle | None = None  # the stream is not read until this timer fires
        self._greeted = False
        self._hello: lane_pb2.HelloAnswer | None = None  # to be sent
        self._spans = spans()

    def receive(self, rest: Buffer, frames: memoryview | None = None) -> None:
        """Handle a message of the client. Raises RemoteProtocolError, which must end the stream."""
        if len(rest) > self.rest_bytes_max:
            raise too_much("a message is too long", len(rest), self.rest_bytes_max)
        self._greeted = self._greeted or self._greet(rest)
        if self._greeted:
            self.take(rest, frames)
            if self.waiting or not self.flows:
                self._flow()

    def end(self) -> None:
        """Release everything that the stream holds, because it is gone."""
        self.engine.close_stream(self.stream)
        self.close("the stream ended")
        if self._held is not None:
            self._held.cancel()
        if self.share is not None:
            self.share.end()

    def _greet(self, rest: Buffer) -> bool:
        """Check the hello in the first message and answer it. Return False if the stream must end."""
        request: Any = parse(self.request_type, rest)
        said = request.hello if request.HasField("hello") else None
        facts = self.facts
        try:
            reason, text = self._hello_problem(said)
            if not reason:
                reason, text = self._enter()
        except AuthenticationError as error:
            self._hello, self.closing = refusal(facts, error.what), error.what
            self.wake()
            return False
        self._hello = lane_pb2.HelloAnswer(
            reason=proto_reason(reason),
            message=text,
            version=LANE_VERSION,
            instance_id=facts.instance_id,
            bookie_id=facts.bookie_id,
            incarnation=facts.incarnation,
            frame_bytes_max=FRAME_BYTES_MAX,
            entry_bytes_max=ENTRY_BYTES_MAX,
            in_flight_bytes_max=facts.in_flight_bytes_max,
            read_only=facts.read_only(),
            server=facts.version,
            parts=True,
            secure=facts.authority is not None,
        )
        self.wake()
        if reason:
            self.closing = text
            who = self.principal
            if facts.refusals.allows(who.host, f"hello {reason.name} {who.identity}"):
                logger.warning("stream %d: hello refused: %s %s (%s)", self.stream, reason.name, text, who)
            self.audit("connect", reason, text)
        return not reason

    def _hello_problem(self, said: lane_pb2.Hello | None) -> tuple[Reason, str]:
        """Return the reason why the hello is refused, and a text. The reason is REASON_NONE if the hello is accepted.
        Raises AuthenticationError for a client that is not admitted."""
        facts = self.facts
        if said is None:
            return Reason.BAD_REQUEST, "the first message carries no hello"
        if not said.version_min <= LANE_VERSION <= said.version_max:
            return Reason.UNSUPPORTED_VERSION, f"this bookie speaks version {LANE_VERSION}"
        if facts.port_tls is not None:
            token = said.token if said.mechanism == MECHANISM else b""
            self.principal = facts.port_tls.admitted(self.principal, token, "hello")
            if facts.authority is not None:
                self.gate = Gate(facts.authority, self.principal.identity or "")
        if said.bookie_id != facts.bookie_id:
            return Reason.WRONG_BOOKIE, f"this is bookie {facts.bookie_id}, not {said.bookie_id[:TEXT_MAX]!r}"
        if said.instance_id and said.instance_id != facts.instance_id:
            return Reason.WRONG_CLUSTER, f"this bookie belongs to cluster {facts.instance_id}"
        if said.incarnation and said.incarnation != facts.incarnation:
            return Reason.WRONG_INCARNATION, f"this is incarnation {facts.incarnation}"
        if self.gate is not None and not self.principal.identity:
            return Reason.UNAUTHENTICATED, "this bookie is secure, and this client has shown no identity"
        if self.gate is not None and not said.grants:
            return Reason.UNAUTHENTICATED, f"this bookie is secure, and this client is not; {_TELL_CLIENT}"
        return Reason.REASON_NONE, ""

    def _enter(self) -> Refusal:
        """Count the stream for the client's limits. Return the refusal, whose reason is REASON_NONE if the stream is
        accepted."""
        if self.facts.limits is not None:
            try:
                self.share = self.facts.limits.enter(self.principal)
            except LimitReached as reached:
                return Reason.OVERLOADED, str(reached)
            if self.share is not None and self.share.owners:
                self.engine.feed(events.StreamOwned(self.stream, self.share.owners))
        return Reason.REASON_NONE, ""

    def audit(self, did: str, reason: Reason = Reason.REASON_NONE, why: str = "", **to: object) -> None:
        """Write an action of the client to the audit log. ``to`` has the object of the action."""
        if self.facts.audit is not None:
            why = f"{reason.name}: {why}" if why else reason.name if reason else ""
            self.facts.audit.say(did, outcome_of(reason), lane=self.lane, why=why, **self.principal.as_event(), **to)

    def over_limit(self, kind: RequestKind) -> str:
        """Charge the client for a request. Return why it is refused because the client sends too many requests, or an
        empty text if it is accepted."""
        if self.share is None:
            return ""
        why = self.share.refuses(kind)
        self.hold(self.share.pay(kind, 0 if why else 1))
        if why:
            self.audit("ask", Reason.OVERLOADED, why)
        return why

    def hold(self, wait_s: float) -> None:
        """Read nothing from the stream for ``wait_s``."""
        if wait_s > 0 and self._held is None and not self.closing:
            self._held = asyncio.get_running_loop().call_later(wait_s, self._let_go)
            self._flow()

    def _let_go(self) -> None:
        self._held = None
        self._flow()

    def close(self, message: str) -> None:
        """End the stream once its queued answers are written."""
        self.closing = self.closing or message
        self.flows = True
        self.wake()
        if self._stalled:
            self.cut(message)

    def cut(self, message: str) -> None:
        """End the stream immediately. Queued answers are lost."""
        if not self.was_cut:
            logger.info("stream %d is cut: %s", self.stream, message)
            self.was_cut = True
            self.close(message)
            if self.on_cut:
                self.on_cut()

    def stall(self) -> None:
        """Handle a client that has read nothing for a while. The driver calls this while it writes."""
        self._stalled = True
        if self.closing or self.waiting > self.waiting_max:
            self.cut("the client reads nothing")
        else:
            self.engine.feed(events.StreamStalled(self.stream))

    def message_left(self) -> None:
        """Note that all messages from :meth:`next_message` are written."""
        self._stalled = False
        if not self.flows:
            self._flow()

    def _flow(self) -> None:
        waiting, before = self.waiting, self.flows
        paused = self._paused or self._held is not None
        if self.closing or (not paused and waiting <= self.waiting_max // 2):
            self.flows = True
        elif paused or waiting > self.waiting_max:
            self.flows = False
        if self.flows is not before:
            self.wake()

    def deliver(self, effect: StreamEffect) -> None:
        match effect:
            case events.PauseStream():
                self._paused = True
                self._flow()
            case events.ResumeStream():
                self._paused = False
                self._flow()
            case events.CloseStream(_, message):
                self.close(message)
            case _:
                self.take_effect(effect)
                self.wake()
                if self.waiting:
                    self._flow()

    def refused(self, operation: str, ledger_id: LedgerId = NO_LEDGER) -> Refusal | None:
        """Return why the client may not do this with a ledger, or None if it may."""
        if self.gate is None:
            return None
        found = self.gate.refusal(NEEDS[self.name].get(operation), ledger_id)
        # a client without a grant is asked to show one, which is not a refusal
        if found is not None and found[0] is not Reason.GRANT_NEEDED:
            self.audit(operation, *found, ledger=ledger_id)
        return found

    def show(self, grants: Sequence[bytes]) -> None:
        """Verify and remember grants that the client shows. In mode ``open`` they are ignored."""
        if grants and self.gate is not None:
            if len(grants) > NAMED_TAKEN_MAX:
                raise too_much("a message shows too many grants", len(grants), NAMED_TAKEN_MAX)
            self.gate.show(grants)

    # --- for subclasses ---

    def take(self, rest: Buffer, frames: memoryview | None) -> None:
        """Turn a message into events. Raises RemoteProtocolError, which ends the stream."""
        raise NotImplementedError

    def take_effect(self, effect: StreamEffect) -> None:
        """Queue an answer until the writer takes it."""
        raise NotImplementedError

    def next_message(self) -> LaneMessage | None:
        """Return the queued answers that fit into one message, or None if there are none."""
        raise NotImplementedError


class AddStream(LaneStream):
    """The stream on which a client sends frames of adds and gets acks. Acks that wait for the writer are merged,
    because the newest count of a session is enough."""

    name = "Add"
    request_type = lane_pb2.AddRequest
    gets_frames = True
    rest_bytes_max = ADD_REST_BYTES_MAX
    waiting_max = 4096  # ends of sessions

    def __init__(self, engine: BookieEngine, facts: BookieFacts, principal: Principal = UNKNOWN) -> None:
        super().__init__(engine, facts, principal)
        self._acks: dict[int, int] = {}
        self._ended: list[events.Ended] = []
        # only in mode secure, or for a client with limits: the operation and ledger of each attached session, and how
        # many of its frames were acknowledged to the client
        self._attached: dict[int, tuple[str, LedgerId]] = {}
        self._durable: dict[int, int] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._recovering: dict[int, LedgerId] = {}  # recovery sessions that are not in the audit log yet
        self._frames_paid = 0  # number of frames that were charged to the limit on requests

    def end(self) -> None:
        super().end()
        if self._looking is not None:
            self._looking.cancel()

    def take(self, rest: Buffer, frames: memoryview | None) -> None:
        if not rest:
            if frames:
                self._frames(frames)
            return
        request = parse(lane_pb2.AddRequest, rest)
        self.show(request.grants)
        if self._spans is None or not request.traceparent:
            self._take(request, frames)
            return
        about = {"bookie": self.facts.bookie_id, "attached": [each.session for each in request.attach]}
        with self._spans.arrival("bookie.add", request.traceparent, **about):
            self._take(request, frames)

    def _take(self, request: lane_pb2.AddRequest, frames: memoryview | None) -> None:
        if len(request.attach) > NAMED_TAKEN_MAX:
            raise too_much("a message opens too many sessions", len(request.attach), NAMED_TAKEN_MAX)
        if self.share is not None:
            self._forget(request.detach)  # a new session may take the place of one that this message detaches
        for attach in request.attach:
            if (self.gate is None and self.share is None) or self._may_attach(attach):
                if attach.mode == lane_pb2.RECOVER and self.facts.audit is not None:
                    self._recovering[attach.session] = attach.ledger_id
                self.engine.feed(
                    events.SessionAttached(
                        self.stream,
                        attach.session,
                        attach.ledger_id,
                        attach.ledger_key,
                        AttachMode.RECOVER if attach.mode == lane_pb2.RECOVER else AttachMode.WRITE,
                        attach.explicit_ids,
                    )
                )
        frames = frames or (memoryview(request.frames) if request.frames else None)
        if frames:
            self._frames(frames)
        if self.share is not None and request.attach:  # after the frames, so that attaching does not make them refused
            self.hold(self.share.pay(self._kind(self.share), len(request.attach)))
        if request.detach:
            for session in request.detach if self._recovering else ():
                self._recovering.pop(session, None)
            self.engine.feed(events.SessionsDetached(self.stream, list(request.detach)))
            self._forget(request.detach)

    def _frames(self, frames: memoryview) -> None:
        share = self.share
        if share is None:
            self.engine.feed(events.FramesArrived(self.stream, frames))
            return
        kind = self._kind(share)
        why = share.refuses(kind) if self._attached else ""  # without sessions the machine refuses the frames
        if why:
            self._refuse_adds(why)
            self.hold(share.pay(kind, 0))
            self.audit("add", Reason.OVERLOADED, why)
            return
        self.engine.feed(events.FramesArrived(self.stream, frames))
        brought = self.engine.frames_of(self.stream)
        self.hold(share.pay(kind, max(1, brought - self._frames_paid)))
        self._frames_paid = brought

    def _kind(self, share: ClientShare) -> RequestKind:
        """Return the kind of request as which adds of this stream count. If a recovery is open on the stream, all its
        adds count as recovery, as in the machine."""
        return RequestKind.RECOVER if share.recovers else RequestKind.ADD

    def _refuse_adds(self, why: str) -> None:
        """End all sessions, because the client sends too much too early. Frames that the log has already are still
        written."""
        ended = list(self._attached)
        self.engine.feed(events.SessionsDetached(self.stream, ended))
        for session in ended:
            self._end_session(session, (Reason.OVERLOADED, why))
        self._forget(ended)

    # --- mode secure, and limits ---

    def _may_attach(self, attach: lane_pb2.Attach) -> bool:
        """Return whether a session may begin. If not, its end is queued."""
        operation = _RECOVERS if attach.mode == lane_pb2.RECOVER else "attach"
        refused = self.refused(operation, attach.ledger_id)
        if refused is None and self.share is not None:
            why = self.share.open_ledger(recover=operation == _RECOVERS)
            refused = (Reason.OVERLOADED, why) if why else None
            if why:
                self.audit(operation, Reason.OVERLOADED, why)
        if refused is not None:
            self._end_session(attach.session, refused)
            return False
        self._attached[attach.session] = operation, attach.ledger_id
        if self.gate is not None:
            self._look_at(attach.ledger_id)
        return True

    def _end_session(self, session: int, refused: Refusal) -> None:
        durable = self._acks.pop(session, self._durable.get(session, 0))
        self._recovering.pop(session, None)
        self._ended.append(events.Ended(session, durable, *refused))
        self.waiting += 1
        self.wake()

    def _forget(self, sessions: Iterable[int]) -> None:
        if self._attached:
            for session in sessions:
                attached = self._attached.pop(session, None)
                self._durable.pop(session, None)
                self._acks.pop(session, None)  # the client does not wait for these acks
                if attached is not None and self.share is not None:
                    self.share.close_ledger(recover=attached[0] == _RECOVERS)

    def _look_at(self, ledger_id: LedgerId) -> None:
        """Schedule a check of all sessions for the end of this ledger's grant, unless an earlier one is scheduled."""
        assert self.gate is not None
        loop = asyncio.get_running_loop()
        due = loop.time() + min(self.gate.left_ms(ledger_id) / 1000, _LOOK_S)
        if self._looking is None or self._looking.when() > due:
            if self._looking is not None:
                self._looking.cancel()
            self._looking = loop.call_at(due, self._look)

    def _look(self) -> None:
        """End the sessions whose grants have ended."""
        self._looking = None
        ended = [
            session for session, (operation, ledger_id) in self._attached.items() if self.refused(operation, ledger_id)
        ]
        if ended:
            self.engine.feed(events.SessionsDetached(self.stream, ended))
        for session in ended:
            what = f"the grant for ledger {self._attached[session][1]} has ended, and no other one was shown"
            self._end_session(session, (Reason.PERMISSION_DENIED, what))
        self._forget(ended)
        for ledger_id in {ledger_id for _, ledger_id in self._attached.values()}:
            self._look_at(ledger_id)

    # --- answers ---

    def take_effect(self, effect: StreamEffect) -> None:
        assert isinstance(effect, events.SendAcks)
        self._acks.update(zip(effect.sessions, effect.frames, strict=True))
        if self._recovering:
            self._audit_recoveries(effect)
        for ended in effect.ended:
            self._acks.pop(ended.session, None)
            self._ended.append(ended)
            self.waiting += 1
        if effect.ended:
            self._forget(ended.session for ended in effect.ended)

    def _audit_recoveries(self, effect: events.SendAcks) -> None:
        """Write to the audit log, once for each session, that a recovery has written entries, or was refused."""
        for session in effect.sessions:
            if session in self._recovering:
                self.audit("recovery-add", ledger=self._recovering.pop(session))
        for ended in effect.ended:
            if ended.session in self._recovering:
                self.audit("recovery-add", ended.reason, ledger=self._recovering.pop(ended.session))

    def next_message(self) -> LaneMessage | None:
        if not (self._acks or self._ended or self._hello):
            return None
        acks = self._acks
        if self._attached:
            self._durable |= acks
        answer = lane_pb2.AddResponse(sessions=acks.keys(), frames=acks.values(), hello=self._hello)
        self._acks, self._hello = {}, None
        if self._ended:
            answer.ended.extend(self._next_ends())
        return LaneMessage(answer.SerializeToString())

    def _next_ends(self) -> list[lane_pb2.SessionEnded]:
        ends, self._ended = self._ended[:_ENDS_OF_A_MESSAGE], self._ended[_ENDS_OF_A_MESSAGE:]
        self.waiting = len(self._ended)
        return [
            lane_pb2.SessionEnded(
                session=end.session, frames=end.frames, reason=proto_reason(end.reason), message=end.message
            )
            for end in ends
        ]


class ReadStream(LaneStream):
    name = "Read"
    request_type = lane_pb2.ReadRequest
    waiting_max = 1 << 14  # ranges of the queued trailers, plus one for each trailer

    def __init__(self, engine: BookieEngine, facts: BookieFacts, principal: Principal = UNKNOWN) -> None:
        super().__init__(engine, facts, principal)
        self._arrived: list[tuple[int, LedgerId, EntryId]] = []  # reads of one entry that the machine gets together
        self._answers: deque[events.SendPart | events.SendTrailer | _Entry] = deque()  # turns bound the parts
        self._leaving: list[events.RequestId] = []  # requests whose parts are being written
        self._entries_leaving = 0  # answers of one entry that are being written
        answer = lane_pb2.ReadResponse()
        self._entry_answer = answer, answer.trailer  # are filled again for each of those: cheaper than making them
        self._traced: dict[events.RequestId, Any] = {}  # the spans of reads under way
        self._fencing: dict[events.RequestId, LedgerId] = {}  # fencing reads under way, for the audit log

    def end(self) -> None:
        super().end()
        self._arrived = []
        for ledger_id in self._fencing.values():
            self.audit("fence", Reason.TIMEOUT, "the client is gone", ledger=ledger_id)
        for request in list(self._traced):
            self._traced.pop(request).end()

    def take(self, rest: Buffer, frames: memoryview | None) -> None:
        request = parse(lane_pb2.ReadRequest, short(rest, frames))
        if request.cancel:
            self._ask_arrived()
            self._cancel({(self.stream, each) for each in request.cancel})
        if self.gate is not None:
            self.show(request.grants)
        number = request.id
        if not number:
            return
        request_id = (self.stream, number)
        refused = self._problem(request) if self.gate is not None or self.share is not None else None
        if refused is not None:
            self._keep(events.SendTrailer(request_id, ReadTrailer(request.first_entry_id - 1), *refused))
            self.wake()
            return
        if self._spans is not None and request.traceparent:
            self._traced[request_id] = self._spans.arrived(
                "bookie.read",
                request.traceparent,
                bookie=self.facts.bookie_id,
                ledger=request.ledger_id,
                first_entry=request.first_entry_id,
                last_entry=request.last_entry_id,
                fence=request.fence,
            )
        entry_id = request.first_entry_id
        if request.last_entry_id == entry_id and not (
            request.fence or request.ids_only or request.head_bytes or request.range_counts
        ):
            arrived = self._arrived
            arrived.append((number, request.ledger_id, entry_id))
            if len(arrived) == 1:
                self.engine.at_burst_end(self._ask_arrived)
            elif len(arrived) >= _TOGETHER_MAX:
                self._ask_arrived()
            return
        if request.fence and self.facts.audit is not None:
            self._fencing[request_id] = request.ledger_id
        self.engine.feed(
            events.ReadRequested(
                request_id,
                request.ledger_id,
                request.first_entry_id,
                request.last_entry_id,
                request.bytes_max,
                request.ledger_key if request.fence else None,
                request.ids_only,
                cut_from_proto(request),
            )
        )

    def _ask_arrived(self) -> None:
        """Give the machine the reads of one entry that arrived together."""
        if self._arrived:
            numbers, ledger_ids, entry_ids = zip(*self._arrived, strict=True)
            self._arrived = []
            self.engine.feed(events.EntriesRequested(self.stream, numbers, ledger_ids, entry_ids))

    def _problem(self, request: Any) -> Refusal | None:
        refused = self.refused("id fence" if request.fence else "id", request.ledger_id)
        if refused is None and (why := self.over_limit(RequestKind.RECOVER if request.fence else RequestKind.ASK)):
            return Reason.OVERLOADED, why
        return refused

    def _cancel(self, cancelled: set[events.RequestId]) -> None:
        for request_id in cancelled:
            self.engine.feed(events.RequestCancelled(request_id))
            if request_id in self._traced:
                self._traced.pop(request_id).end()
            if request_id in self._fencing:
                self.audit("fence", Reason.TIMEOUT, "cancelled", ledger=self._fencing.pop(request_id))
        answers, self._answers = self._answers, deque()
        self.waiting = 0
        dropped = list[events.RequestId]()
        for answer in answers:
            request_id = (self.stream, answer[0]) if isinstance(answer, tuple) else answer.request
            if request_id not in cancelled:
                self._keep(answer)
            elif not isinstance(answer, events.SendTrailer):
                dropped.append(request_id)
        for request_id in dropped:
            self.engine.feed(events.PartSent(request_id))

    def _keep(self, answer: events.SendPart | events.SendTrailer | _Entry) -> None:
        self._answers.append(answer)
        self.waiting += _ranges_of(answer)

    def take_effect(self, effect: StreamEffect) -> None:
        if isinstance(effect, events.SendEntries):
            self._answers.extend(zip(effect.numbers, effect.entry_ids, effect.frames, effect.fenced, strict=True))
            self.waiting += len(effect.numbers)
            for number in effect.numbers if self._traced else ():
                if span := self._traced.pop((self.stream, number), None):
                    span.end()
            return
        assert isinstance(effect, (events.SendPart, events.SendTrailer))
        self._keep(effect)
        if self._fencing and isinstance(effect, events.SendTrailer) and effect.request in self._fencing:
            self.audit("fence", effect.reason, ledger=self._fencing.pop(effect.request))
        if self._spans is not None and isinstance(effect, events.SendTrailer) and effect.request in self._traced:
            span = self._traced.pop(effect.request)
            if effect.reason:
                self._spans.failed(span, effect.reason.name, effect.message)
            span.end()

    def next_message(self) -> LaneMessage | None:
        if self._hello:
            answer, self._hello = lane_pb2.ReadResponse(hello=self._hello), None
            return LaneMessage(answer.SerializeToString())
        if not self._answers:
            return None
        first = self._answers.popleft()
        self.waiting -= _ranges_of(first)
        if isinstance(first, tuple):
            number, entry_id, frame, fenced = first
            self._entries_leaving += 1
            rest, trailer = self._entry_answer
            rest.id, trailer.answered_through, trailer.fenced = number, entry_id, fenced
            return _new(LaneMessage, (rest.SerializeToString(), (frame,)))
        rest = lane_pb2.ReadResponse(id=first.request[1])
        if isinstance(first, events.SendTrailer):
            rest.trailer.CopyFrom(trailer_to_proto(first.trailer, first.reason, first.message))
            return LaneMessage(rest.SerializeToString())
        self._leaving.append(first.request)
        last = self._answers[0] if self._answers else None
        if isinstance(last, events.SendTrailer) and last.request == first.request:
            self._answers.popleft()
            self.waiting -= _ranges_of(last)
            rest.trailer.CopyFrom(trailer_to_proto(last.trailer, last.reason, last.message))
        return LaneMessage(rest.SerializeToString(), first.frames)

    def message_left(self) -> None:
        super().message_left()
        left, self._leaving = self._leaving, []
        for request in left:
            self.engine.feed(events.PartSent(request))
        if self._entries_leaving:
            count, self._entries_leaving = self._entries_leaving, 0
            self.engine.feed(events.EntriesSent(self.stream, count))


def _ranges_of(answer: events.SendPart | events.SendTrailer | _Entry) -> int:
    if isinstance(answer, tuple):
        return 1
    if isinstance(answer, events.SendPart):
        return 0
    return 1 + len(answer.trailer.absent) + len(answer.trailer.unknown)


def short(rest: Buffer, frames: memoryview | None) -> Buffer:
    """Return the message, which must carry no frames. Raises RemoteProtocolError if it carries frames or is too
    long."""
    if frames or len(rest) > MESSAGE_BYTES_MAX_SHORT:
        size = len(rest) + len(frames or b"")
        raise too_much("a message carries frames, or is too long", size, MESSAGE_BYTES_MAX_SHORT)
    return rest


def too_much(what: str, found: int, most: int) -> RemoteProtocolError:
    return RemoteProtocolError(what, value=f"{found}, at most {most}")


def parse(kind: Any, data: Buffer) -> Any:
    """Parse a message of this type. Raises RemoteProtocolError if that fails."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise RemoteProtocolError("a message cannot be parsed", value=kind.DESCRIPTOR.name) from error
