# SPDX-License-Identifier: Apache-2.0
"""The three streams of a lane on the bookie's side: messages to events, effects to messages (RULES L1 to L6).

No socket here: whatever carries the messages feeds :meth:`LaneStream.receive` and writes what
:meth:`LaneStream.next_message` gives. What is ready in one turn of the loop leaves in one message, frames uncopied.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from bk_core.errors import RemoteProtocolError
from bk_core.model import BookieId
from bk_core.transport.messages import LANE_VERSION, evidence_to_proto, proto_reason, trailer_to_proto
from bk_core.transport.port import ReadTrailer
from bk_core.wire.frames_codec import pack, unpack
from bk_core.wire.lane import ENTRY_BYTES_MAX, FRAME_BYTES_MAX, AttachMode, Reason
from bk_core.wire.proto import lane_pb2
from bookie_server import machine_events as events
from bookie_server.engine import BookieEngine, StreamEffect

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieFacts:
    """What this bookie says of itself in the answer to hello (RULES L1)."""

    bookie_id: BookieId
    instance_id: str
    incarnation: str
    in_flight_bytes_max: int
    read_only: Callable[[], bool]
    version: str = ""
    space: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Total and free bytes of the data directory."""


class LaneStream:
    """What the three streams share: hello first, back-pressure, an end.

    ``wake`` is set when there is something to write or the end has come; ``flow`` is clear while nothing more may be
    received; ``closing`` says why the stream ends once what is ready has been written.
    """

    def __init__(self, engine: BookieEngine, facts: BookieFacts) -> None:
        self.engine, self.facts = engine, facts
        self.stream: events.StreamId = engine.open_stream(self)
        self.wake = asyncio.Event()
        self.flow = asyncio.Event()
        self.flow.set()
        self.closing = ""
        self._greeted = False
        self._hello: lane_pb2.HelloAnswer | None = None  # to be sent

    def receive(self, message: bytes) -> None:
        """One message of the client. Raises RemoteProtocolError, which must end the stream."""
        self._greeted = self._greeted or self._greet(message)
        if self._greeted:
            self.take(message)

    def end(self) -> None:
        """The stream is gone."""
        self.engine.close_stream(self.stream)
        self.close("the stream ended")

    def _greet(self, message: bytes) -> bool:
        """Check the first message's hello and answer it; False if the stream is to end."""
        said = self.hello_of(message)
        reason, text = self._hello_problem(said)
        facts = self.facts
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
        )
        self.wake.set()
        if reason:
            self.closing = text
            log.warning("stream %d: hello refused: %s %s", self.stream, reason.name, text)
        return not reason

    def _hello_problem(self, said: lane_pb2.Hello | None) -> tuple[Reason, str]:
        facts = self.facts
        if said is None:
            return Reason.BAD_REQUEST, "the first message carries no hello"
        if not said.version_min <= LANE_VERSION <= said.version_max:
            return Reason.UNSUPPORTED_VERSION, f"this bookie speaks version {LANE_VERSION}"
        if said.bookie_id != facts.bookie_id:
            return Reason.WRONG_BOOKIE, f"this is bookie {facts.bookie_id}, not {said.bookie_id or 'named'}"
        if said.instance_id and said.instance_id != facts.instance_id:
            return Reason.WRONG_CLUSTER, f"this bookie belongs to cluster {facts.instance_id}"
        if said.incarnation and said.incarnation != facts.incarnation:
            return Reason.WRONG_INCARNATION, f"this is incarnation {facts.incarnation}"
        return Reason.REASON_NONE, ""

    def close(self, message: str) -> None:
        """End the stream once what is ready has been written."""
        self.closing = self.closing or message
        self.flow.set()
        self.wake.set()

    def deliver(self, effect: StreamEffect) -> None:
        match effect:
            case events.PauseStream():
                self.flow.clear()
            case events.ResumeStream():
                self.flow.set()
            case events.CloseStream(_, message):
                self.close(message)
            case _:
                self.take_effect(effect)
                self.wake.set()

    # --- what differs ---

    def hello_of(self, message: bytes) -> lane_pb2.Hello | None:
        raise NotImplementedError

    def take(self, message: bytes) -> None:
        """Turn a message into events. Raises RemoteProtocolError, which ends the stream."""
        raise NotImplementedError

    def take_effect(self, effect: StreamEffect) -> None:
        """Keep an answer until the writer asks for it."""
        raise NotImplementedError

    def next_message(self) -> bytes | None:
        """All that is ready, as one message; None if nothing is."""
        raise NotImplementedError

    def message_left(self) -> None:
        """The last message was written."""


class AddStream(LaneStream):
    """Frames in, acks out. Acks that wait for the writer are merged: the newest count of a session is enough."""

    def __init__(self, engine: BookieEngine, facts: BookieFacts) -> None:
        super().__init__(engine, facts)
        self._acks: dict[int, int] = {}
        self._ended: list[events.Ended] = []

    def hello_of(self, message: bytes) -> lane_pb2.Hello | None:
        request = _parse(lane_pb2.AddRequest, unpack(message)[1])
        return request.hello if request.HasField("hello") else None

    def take(self, message: bytes) -> None:
        frames, rest = unpack(message)
        if not rest:
            if frames:
                self.engine.feed(events.FramesArrived(self.stream, frames))
            return
        request = _parse(lane_pb2.AddRequest, rest)
        for attach in request.attach:
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
            self.engine.feed(events.FramesArrived(self.stream, frames))
        if request.detach:
            self.engine.feed(events.SessionsDetached(self.stream, list(request.detach)))

    def take_effect(self, effect: StreamEffect) -> None:
        assert isinstance(effect, events.SendAcks)
        self._acks.update(zip(effect.sessions, effect.frames, strict=True))
        for ended in effect.ended:
            self._acks.pop(ended.session, None)
            self._ended.append(ended)

    def next_message(self) -> bytes | None:
        if not (self._acks or self._ended or self._hello):
            return None
        answer = lane_pb2.AddResponse(
            sessions=self._acks.keys(),
            frames=self._acks.values(),
            ended=[
                lane_pb2.SessionEnded(
                    session=end.session, frames=end.frames, reason=proto_reason(end.reason), message=end.message
                )
                for end in self._ended
            ],
            hello=self._hello,
        )
        self._acks, self._ended, self._hello = {}, [], None
        return answer.SerializeToString()


class ReadStream(LaneStream):
    """Read requests in, frames and trailers out."""

    def __init__(self, engine: BookieEngine, facts: BookieFacts) -> None:
        super().__init__(engine, facts)
        self._answers: deque[events.SendPart | events.SendTrailer] = deque()  # bounded by the machine's turns
        self._leaving: events.RequestId | None = None

    def hello_of(self, message: bytes) -> lane_pb2.Hello | None:
        request = _parse(lane_pb2.ReadRequest, message)
        return request.hello if request.HasField("hello") else None

    def take(self, message: bytes) -> None:
        request = _parse(lane_pb2.ReadRequest, message)
        for cancelled in request.cancel:
            self._cancel((self.stream, cancelled))
        if not request.id:
            return
        request_id = (self.stream, request.id)
        if request.ids_only:
            trailer = ReadTrailer(request.first_entry_id - 1)
            self.deliver(events.SendTrailer(request_id, trailer, Reason.UNIMPLEMENTED, "ids_only is not built yet"))
            return
        self.engine.feed(
            events.ReadRequested(
                request_id,
                request.ledger_id,
                request.first_entry_id,
                request.last_entry_id,
                request.bytes_max,
                request.ledger_key if request.fence else None,
            )
        )

    def _cancel(self, request_id: events.RequestId) -> None:
        self.engine.feed(events.RequestCancelled(request_id))
        kept = [answer for answer in self._answers if answer.request != request_id]
        dropped = len(self._answers) - len(kept)
        self._answers = deque(kept)
        for _ in range(dropped):
            self.engine.feed(events.PartSent(request_id))

    def take_effect(self, effect: StreamEffect) -> None:
        assert isinstance(effect, (events.SendPart, events.SendTrailer))
        self._answers.append(effect)

    def next_message(self) -> bytes | None:
        if self._hello:
            answer, self._hello = lane_pb2.ReadResponse(hello=self._hello), None
            return answer.SerializeToString()
        if not self._answers:
            return None
        first = self._answers.popleft()
        rest = lane_pb2.ReadResponse(id=first.request[1])
        if isinstance(first, events.SendTrailer):
            rest.trailer.CopyFrom(trailer_to_proto(first.trailer, first.reason, first.message))
            return rest.SerializeToString()
        self._leaving = first.request
        last = self._answers[0] if self._answers else None
        if isinstance(last, events.SendTrailer) and last.request == first.request:
            self._answers.popleft()
            rest.trailer.CopyFrom(trailer_to_proto(last.trailer, last.reason, last.message))
        return pack([memoryview(frame) for frame in first.frames], rest.SerializeToString())

    def message_left(self) -> None:
        request, self._leaving = self._leaving, None
        if request:
            self.engine.feed(events.PartSent(request))


class ControlStream(LaneStream):
    """Fences, LAC reads and writes, watches: small calls, each with a deadline of its own."""

    def __init__(self, engine: BookieEngine, facts: BookieFacts) -> None:
        super().__init__(engine, facts)
        self._answers: deque[lane_pb2.ControlResponse] = deque()
        self._deadlines: dict[int, asyncio.TimerHandle] = {}

    def hello_of(self, message: bytes) -> lane_pb2.Hello | None:
        request = _parse(lane_pb2.ControlRequest, message)
        return request.hello if request.HasField("hello") else None

    def take(self, message: bytes) -> None:
        request = _parse(lane_pb2.ControlRequest, message)
        call = request.WhichOneof("call")
        if call is None:
            return
        if call == "cancel":
            self._finish(request.cancel.id)
            self.engine.feed(events.RequestCancelled((self.stream, request.cancel.id)))
            return
        event = _control_event((self.stream, request.id), call, request)
        if event is None:
            self._answer(self._other(request.id, call))
            return
        if request.deadline_ms and call != "watch_lac":
            loop = asyncio.get_running_loop()
            handle = loop.call_later(request.deadline_ms / 1000, self._too_late, request.id)
            self._deadlines[request.id] = handle
        self.engine.feed(event)

    def _other(self, request: int, call: str) -> lane_pb2.ControlResponse:
        if call != "bookie_info":
            message = f"{call} is not built yet"
            return lane_pb2.ControlResponse(id=request, reason=lane_pb2.UNIMPLEMENTED, message=message)
        total, free = self.facts.space()
        info = lane_pb2.BookieInfo(
            total_bytes=total, free_bytes=free, read_only=self.facts.read_only(), version=self.facts.version
        )
        return lane_pb2.ControlResponse(id=request, info=info)

    def _too_late(self, request: int) -> None:
        if self._deadlines.pop(request, None):
            self.engine.feed(events.RequestCancelled((self.stream, request)))
            self._answer(lane_pb2.ControlResponse(id=request, reason=lane_pb2.TIMEOUT, message="no answer in time"))

    def _finish(self, request: int) -> None:
        handle = self._deadlines.pop(request, None)
        if handle:
            handle.cancel()

    def take_effect(self, effect: StreamEffect) -> None:
        assert isinstance(effect, (events.SendLac, events.SendReply))
        request = effect.request[1]
        self._finish(request)
        if isinstance(effect, events.SendLac):
            self._answer(lane_pb2.ControlResponse(id=request, lac=evidence_to_proto(effect.evidence)))
        else:
            reason = proto_reason(effect.reason)
            self._answer(lane_pb2.ControlResponse(id=request, reason=reason, message=effect.message))

    def _answer(self, answer: lane_pb2.ControlResponse) -> None:
        self._answers.append(answer)
        self.wake.set()

    def next_message(self) -> bytes | None:
        if self._hello:
            answer, self._hello = lane_pb2.ControlResponse(hello=self._hello), None
            return answer.SerializeToString()
        return self._answers.popleft().SerializeToString() if self._answers else None


def _control_event(request_id: events.RequestId, call: str, request: lane_pb2.ControlRequest) -> events.Event | None:
    match call:
        case "fence":
            return events.FenceRequested(request_id, request.fence.ledger_id, request.fence.ledger_key)
        case "read_lac":
            return events.ReadLacRequested(request_id, request.read_lac.ledger_id)
        case "write_lac":
            wanted = request.write_lac
            return events.WriteLacRequested(request_id, wanted.ledger_id, wanted.ledger_key, wanted.lac_body)
        case "delete_hint":
            return events.DeleteHintRequested(request_id, request.delete_hint.ledger_ids)
        case "watch_lac":
            watch = request.watch_lac
            return events.WatchLacRequested(request_id, watch.ledger_id, watch.previous_lac, watch.timeout_ms)
    return None


def _parse(kind: Any, data: bytes | memoryview) -> Any:
    """Raises RemoteProtocolError for what is not such a message."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise RemoteProtocolError("a message cannot be parsed", value=kind.DESCRIPTOR.name) from error
