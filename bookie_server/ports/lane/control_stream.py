# SPDX-License-Identifier: Apache-2.0
"""The control stream of a lane on the bookie's side: fences, LACs, watches and hints (RULES L3).

LAC evidence may be as large as two entries. So the answers that wait for clients are bounded, for each stream and for
all streams together. A stream above its bound is not read, and far above it LAC evidence is refused. Fences have some
extra room in the bound for all streams.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bk_core.access.grants import NO_LEDGER
from bk_core.access.roles import Right
from bk_core.model import LedgerId
from bk_core.observe.audit import LEDGERS_MAX
from bk_core.transport.lane.messages import evidence_to_proto, info_to_proto, proto_reason
from bk_core.wire.lane.grpc_frames import MESSAGE_BYTES_MAX, MESSAGE_OVERHEAD_BYTES
from bk_core.wire.lane.reasons import Buffer, LaneMessage, Reason
from bk_core.wire.proto import lane_pb2
from bookie_server.engine.engine import BookieEngine, StreamEffect
from bookie_server.machine import events
from bookie_server.ports.access.authority import Denied
from bookie_server.ports.access.gate import Refusal
from bookie_server.ports.access.principal import UNKNOWN, Principal
from bookie_server.ports.bounds.limits import RequestKind
from bookie_server.ports.lane.streams import AddStream, BookieFacts, LaneStream, ReadStream, parse, short

_REPLY_BYTES = 512  # rough memory of a waiting answer without evidence
GRANTS_AT_ONCE_MAX = 64
"""The maximum number of grants that are being made for one stream."""
_KINDS = {"fence": RequestKind.RECOVER, "grant": RequestKind.RECOVER}
_STREAM_FACTOR = 4  # evidence is refused when this many times ``waiting_max`` waits on a stream


class ControlStream(LaneStream):
    """The stream of small calls: fences, LAC reads and writes, and watches. Each call has its own deadline."""

    name = "Control"
    request_type = lane_pb2.ControlRequest
    waiting_max = 4 << 20  # bytes of answers

    def __init__(self, engine: BookieEngine, facts: BookieFacts, principal: Principal = UNKNOWN) -> None:
        super().__init__(engine, facts, principal)
        self._answers: deque[tuple[events.SendLac | lane_pb2.ControlResponse, int]] = deque()  # each with its size
        self._deadlines: dict[int, asyncio.TimerHandle] = {}
        self._fences: dict[int, LedgerId] = {}  # requests under way that fence
        self._traced: dict[int, Any] = {}  # the spans of requests under way
        self._granting: set[asyncio.Task[None]] = set()

    def end(self) -> None:
        super().end()
        for handle in self._deadlines.values():
            handle.cancel()
        self._deadlines.clear()
        for request in list(self._fences):
            self._fence_ended(request, Reason.TIMEOUT, "the client is gone")
        for request in list(self._traced):
            self._traced.pop(request).end()
        for task in self._granting:
            task.cancel()
        while self._answers:
            self._next()

    def take(self, rest: Buffer, frames: memoryview | None) -> None:
        request = parse(lane_pb2.ControlRequest, short(rest, frames))
        self.show(request.grants)
        call = request.WhichOneof("call")
        if call is None:
            return
        if (self.gate is not None or self.share is not None) and (refused := self._refused(call, request)) is not None:
            reason, message = refused
            self._answer(lane_pb2.ControlResponse(id=request.id, reason=proto_reason(reason), message=message))
            return
        if call == "cancel":
            self._fence_ended(request.cancel.id, Reason.TIMEOUT, "cancelled")
            self._finish(request.cancel.id)
            self.engine.feed(events.RequestCancelled((self.stream, request.cancel.id)))
            return
        if call == "grant" and self.gate is not None:
            self._begin_grant(request)
            return
        event = _control_event((self.stream, request.id), call, request)
        if event is None:
            self._answer(self._other(request.id, call))
            return
        if self._spans is not None and request.traceparent:
            about = {"bookie": self.facts.bookie_id, "ledgers": _ledgers_of(getattr(request, call))}
            self._traced[request.id] = self._spans.arrived(f"bookie.{call}", request.traceparent, **about)
        if call == "delete_hint":
            told = list(request.delete_hint.ledger_ids)
            self.audit("delete-hint", ledgers=tuple(told[:LEDGERS_MAX]), count=len(told))
        if call == "fence":
            self._fences[request.id] = request.fence.ledger_id
        if request.deadline_ms and call != "watch_lac":
            loop = asyncio.get_running_loop()
            handle = loop.call_later(request.deadline_ms / 1000, self._too_late, request.id)
            self._deadlines[request.id] = handle
        self.engine.feed(event)

    # --- mode secure, and limits ---

    def _refused(self, call: str, request: lane_pb2.ControlRequest) -> Refusal | None:
        """Return why the client may not make this call, or None. Shortens a watch so that it ends with the client's
        grant."""
        said = getattr(request, call)
        ledger_id: LedgerId = getattr(said, "ledger_id", NO_LEDGER)
        refused = self.refused(call, ledger_id)
        if refused is None and call == "watch_lac" and self.gate is not None:
            said.timeout_ms = min(said.timeout_ms, max(1, self.gate.left_ms(ledger_id)))
        if refused is None and call != "cancel" and (why := self.over_limit(_KINDS.get(call, RequestKind.ASK))):
            return Reason.OVERLOADED, why
        return refused

    def hold(self, wait_s: float) -> None:
        """Do nothing. A control stream is always read, because a fence must not wait behind refused requests."""

    def _begin_grant(self, request: lane_pb2.ControlRequest) -> None:
        if len(self._granting) >= GRANTS_AT_ONCE_MAX:
            message = "too many grants are being made for this client"
            self._answer(lane_pb2.ControlResponse(id=request.id, reason=lane_pb2.OVERLOADED, message=message))
            return
        wanted = Right(request.grant.wanted)
        task = asyncio.get_running_loop().create_task(self._grant(request.id, request.grant.ledger_id, wanted))
        self._granting.add(task)
        task.add_done_callback(self._granting.discard)

    async def _grant(self, request: int, ledger_id: LedgerId, wanted: Right) -> None:
        assert self.facts.authority is not None
        assert self.principal.identity is not None
        try:
            made = await self.facts.authority.grant(self.principal.identity, ledger_id, wanted)
        except Denied as denied:
            reason = proto_reason(denied.reason)
            self.audit("grant", denied.reason, ledger=ledger_id, right=wanted.name)
            self._answer(lane_pb2.ControlResponse(id=request, reason=reason, message=str(denied)))
            return
        self.audit("grant", ledger=ledger_id, right=wanted.name)
        granted = lane_pb2.GrantAnswer(grant=made.grant, rights=int(made.rights), life_ms=made.life_ms)
        self._answer(lane_pb2.ControlResponse(id=request, grant=granted))

    def _other(self, request: int, call: str) -> lane_pb2.ControlResponse:
        if call != "bookie_info":
            message = f"{call} is not built yet"
            return lane_pb2.ControlResponse(id=request, reason=lane_pb2.UNIMPLEMENTED, message=message)
        return lane_pb2.ControlResponse(id=request, info=info_to_proto(self.facts.info()))

    def _too_late(self, request: int) -> None:
        if request in self._deadlines:
            self._finish(request, Reason.TIMEOUT, "no answer in time")
            self.engine.feed(events.RequestCancelled((self.stream, request)))
            self._answer(lane_pb2.ControlResponse(id=request, reason=lane_pb2.TIMEOUT, message="no answer in time"))

    def _fence_ended(self, request: int, reason: Reason, message: str) -> None:
        if request in self._fences:
            self.audit("fence", reason, message, ledger=self._fences.pop(request))

    def _finish(self, request: int, reason: Reason = Reason.REASON_NONE, message: str = "") -> None:
        self._fence_ended(request, reason, message)
        if self._spans is not None and request in self._traced:
            span = self._traced.pop(request)
            if reason:
                self._spans.failed(span, reason.name, message)
            span.end()
        handle = self._deadlines.pop(request, None)
        if handle:
            handle.cancel()

    def take_effect(self, effect: StreamEffect) -> None:
        assert isinstance(effect, (events.SendLac, events.SendReply))
        request = effect.request[1]
        fence = request in self._fences
        if isinstance(effect, events.SendReply):
            self._finish(request, effect.reason, effect.message)
            reason = proto_reason(effect.reason)
            self._answer(lane_pb2.ControlResponse(id=request, reason=reason, message=effect.message))
            return
        self._finish(request)
        beyond = self.waiting > _STREAM_FACTOR * self.waiting_max
        if beyond or self.facts.answers.refuses(fence=fence):
            message = "too many answers wait to be taken"
            self._answer(lane_pb2.ControlResponse(id=request, reason=lane_pb2.OVERLOADED, message=message))
            return
        evidence = effect.evidence
        if len(evidence.last_entry_frame) + len(evidence.lac_frame) > MESSAGE_BYTES_MAX - MESSAGE_OVERHEAD_BYTES:
            effect = replace(effect, evidence=replace(evidence, lac_frame=b""))  # less evidence, but it fits
        self._answer(effect, len(effect.evidence.last_entry_frame) + len(effect.evidence.lac_frame))

    def _answer(self, answer: events.SendLac | lane_pb2.ControlResponse, size: int = 0) -> None:
        size += _REPLY_BYTES
        self._answers.append((answer, size))
        self.waiting += size
        self.facts.answers.bytes += size
        self.wake()

    def _next(self) -> events.SendLac | lane_pb2.ControlResponse:
        answer, size = self._answers.popleft()
        self.waiting -= size
        self.facts.answers.bytes -= size
        return answer

    def next_message(self) -> LaneMessage | None:
        if self._hello:
            answer, self._hello = lane_pb2.ControlResponse(hello=self._hello), None
            return LaneMessage(answer.SerializeToString())
        if not self._answers:
            return None
        ready = self._next()
        if isinstance(ready, events.SendLac):
            ready = lane_pb2.ControlResponse(id=ready.request[1], lac=evidence_to_proto(ready.evidence))
        return LaneMessage(ready.SerializeToString())


STREAMS: Mapping[str, type[LaneStream]] = {"Add": AddStream, "Read": ReadStream, "Control": ControlStream}
"""The three kinds of streams of our lanes, by their names on the wire."""


def _ledgers_of(call: Any) -> list[int]:
    return list(call.ledger_ids) if hasattr(call, "ledger_ids") else [call.ledger_id]


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
