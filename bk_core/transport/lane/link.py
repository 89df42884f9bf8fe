# SPDX-License-Identifier: Apache-2.0
"""Has the base class of links over our lanes. A link makes its three streams when they are needed, and breaks all of
them together."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import socket
from collections.abc import Sequence
from copy import copy
from typing import Any, TypeVar

from bk_core.access.grants import NO_LEDGER
from bk_core.access.roles import Right
from bk_core.access.tls import failure
from bk_core.errors import BookieUnreachableError, BookKeeperError, Outcome, TlsError, TransportError
from bk_core.model import INCARNATION_PROPERTY, BookieId, Endpoint, EntryId, LedgerId
from bk_core.transport.caller import Caller
from bk_core.transport.lane.messages import evidence_from_proto, hello, info_from_proto
from bk_core.transport.lane.streams import AddStream, ControlStream, LaneStream, ReadCall, ReadStream
from bk_core.transport.port import BookieInfo, NewSession, RefusedError
from bk_core.transport.wallet import GRANT_DEADLINE_S, Held, Permits
from bk_core.transport.whereabouts import At, Whereabouts, reach
from bk_core.wire.lane.evidence import LacEvidence
from bk_core.wire.lane.reasons import Cut, Reason
from bk_core.wire.proto import lane_pb2

logger = logging.getLogger(__name__)

HINT_DEADLINE_MS = 5_000

_WATCH_SLACK_S = 5.0

S = TypeVar("S", bound=LaneStream)


class LaneLink:
    """A :class:`~bk_core.transport.port.Link` over three streams. Each lane has a subclass, which carries the messages
    of a stream (:meth:`carry`) and ends the connection (:meth:`disconnect`).

    When one stream loses its connection, the link breaks and all its streams fail. Until the bookie has answered hello,
    the link follows it to other addresses.
    """

    def __init__(self, at: At, caller: Caller, whereabouts: Whereabouts) -> None:
        self._at, self._whereabouts, self._caller = at, whereabouts, caller
        self.bookie_id, self.connect_timeout_s = at.info.bookie_id, caller.connect_timeout_s
        self.tls, self._token = caller.tls, caller.token
        wallet = caller.wallet
        self._permits = Permits(wallet, self._ask_grant) if wallet is not None else None
        self._streams: dict[type[LaneStream], LaneStream] = {}
        self._adds: AddStream | None = None  # these two are kept here because each frame and each read needs them
        self._reads: ReadStream | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self.broken: TransportError | None = None

    # --- carried by each lane ---

    async def carry(self, stream: LaneStream, endpoint: Endpoint) -> None:
        """Carry a stream's messages between this client and the bookie at this endpoint, until the stream breaks. This
        always ends with an error, which is the result of :meth:`lost` or another BookKeeperError. It may be
        cancelled."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """End the connection."""
        raise NotImplementedError

    # --- calls ---

    def attach(self, session: NewSession) -> None:
        """Open a session, as in the port. ``deferred`` has no effect, because bookies on this wire sync every frame
        before they ack it."""
        if self._permits is None:
            self._stream(AddStream).attach(session)
        else:
            self._permits.attach(self._stream(AddStream), session)

    def send(self, session: int, frame: bytes | bytearray | memoryview) -> None:
        permits = self._permits
        if permits is not None and permits.waiting and permits.holds(session, frame):
            return
        if self._adds is not None:
            self._adds.send(session, frame)

    def send_all(self, sessions: Sequence[int], frames: Sequence[bytes]) -> None:
        if self._permits is not None and self._permits.waiting:
            for session, frame in zip(sessions, frames, strict=True):
                self.send(session, frame)
        elif self._adds is not None:
            self._adds.send_all(sessions, frames)

    def detach(self, session: int) -> None:
        if self._permits is not None and self._permits.detach(session):
            return
        if self._adds is not None:
            self._adds.detach(session)

    async def force(self, ledger_id: LedgerId, session: int, *, deadline_s: float) -> None:
        """Do nothing, because frames that were acked on this wire are durable."""

    def read(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        *,
        bytes_max: int,
        fence_key: bytes | None = None,
        cut: Cut | None = None,
        ids_only: bool = False,
        deadline_s: float,
    ) -> ReadCall:
        """Read entries, as in the port. ``deadline_s`` limits the wait for each part of the answer."""
        stream = self._reads
        if stream is None or stream.broken:
            stream = self._reads = self._stream(ReadStream)
        return stream.read(ledger_id, first, last, bytes_max, fence_key, cut, ids_only, deadline_s)

    async def permit(self, ledger_id: LedgerId, right: Right) -> None:
        if self._permits is not None:
            await self._permits.get(ledger_id, right)
        elif not any(stream.greeted for stream in self._streams.values()):
            await self.bookie_info(deadline_s=GRANT_DEADLINE_S)

    async def fence(self, ledger_id: LedgerId, ledger_key: bytes, *, deadline_s: float) -> LacEvidence:
        call = lane_pb2.FenceRequest(ledger_id=ledger_id, ledger_key=ledger_key)
        return _evidence_of(await self.call(deadline_s, Right.RECOVER, ledger_id, fence=call))

    async def read_lac(self, ledger_id: LedgerId, *, deadline_s: float) -> LacEvidence:
        call = lane_pb2.ReadLacRequest(ledger_id=ledger_id)
        return _evidence_of(await self.call(deadline_s, Right.READ, ledger_id, read_lac=call))

    async def watch_lac(self, ledger_id: LedgerId, previous_lac: EntryId, *, timeout_s: float) -> LacEvidence:
        timeout_ms = max(1, int(timeout_s * 1000))
        call = lane_pb2.WatchLacRequest(ledger_id=ledger_id, previous_lac=previous_lac, timeout_ms=timeout_ms)
        return _evidence_of(await self.call(timeout_s + _WATCH_SLACK_S, Right.READ, ledger_id, watch_lac=call))

    async def write_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, *, deadline_s: float) -> None:
        call = lane_pb2.WriteLacRequest(ledger_id=ledger_id, ledger_key=ledger_key, lac_body=lac_body)
        await self.call(deadline_s, Right.WRITE, ledger_id, write_lac=call)

    def hint_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes) -> None:
        grant = b""
        if self._permits is not None:
            held = self._permits.now(ledger_id, Right.WRITE)
            if held is None:
                return  # only the ledger's writer has a grant; a hint without a grant is dropped
            grant = held.grant
        call = lane_pb2.WriteLacRequest(ledger_id=ledger_id, ledger_key=ledger_key, lac_body=lac_body)
        request = lane_pb2.ControlRequest(deadline_ms=HINT_DEADLINE_MS, write_lac=call)
        self._stream(ControlStream).tell(request, ledger_id, grant)

    async def delete_hint(self, ledger_ids: Sequence[LedgerId], *, deadline_s: float) -> None:
        call = lane_pb2.DeleteHintRequest(ledger_ids=ledger_ids)
        await self.call(deadline_s, Right.HINT, delete_hint=call)

    async def bookie_info(self, *, deadline_s: float) -> BookieInfo:
        answer = await self.call(deadline_s, Right.LOOK, bookie_info=lane_pb2.BookieInfoRequest())
        _check_answer(answer, "info")
        return info_from_proto(answer.info)

    async def call(
        self, deadline_s: float, right: Right = Right.NONE, ledger_id: LedgerId = NO_LEDGER, **call: Any
    ) -> lane_pb2.ControlResponse:
        """Make a call that needs this right, with a grant for it. If the bookie does not accept another bookie's grant,
        get a grant from this bookie and make the call once more."""
        permits = self._permits if right else None
        if permits is None:
            return await self._call(deadline_s, ledger_id, b"", call)
        try:
            return await self._call(deadline_s, ledger_id, await permits.get(ledger_id, right), call)
        except RefusedError as error:
            if error.reason is not Reason.GRANT_NEEDED:
                raise
        return await self._call(deadline_s, ledger_id, await permits.get(ledger_id, right), call)

    async def _call(
        self, deadline_s: float, ledger_id: LedgerId, grant: bytes, call: dict[str, Any]
    ) -> lane_pb2.ControlResponse:
        request = lane_pb2.ControlRequest(deadline_ms=max(1, int(deadline_s * 1000)), **call)
        return await self._stream(ControlStream).call(request, deadline_s, ledger_id, grant)

    async def _ask_grant(self, ledger_id: LedgerId, right: Right) -> Held:
        """Request a grant from this bookie. Raises the errors of :meth:`call`."""
        call = lane_pb2.GrantRequest(ledger_id=ledger_id, wanted=int(right))
        answer = await self.call(GRANT_DEADLINE_S, grant=call)
        _check_answer(answer, "grant")
        said, now = answer.grant, asyncio.get_running_loop().time()
        life_s = said.life_ms / 1000
        return Held(said.grant, Right(said.rights), now + life_s / 2, now + life_s)

    def _stream(self, kind: type[S]) -> S:
        """Return the open stream of this kind, or a new one."""
        stream = self._streams.get(kind)
        if stream is None or stream.broken:
            stream = self._streams[kind] = kind(self._hello(self._at))
            if isinstance(stream, AddStream):
                self._adds = stream
            if self._permits is not None:
                stream.distrusted = self._permits.distrust
                if isinstance(stream, ReadStream):
                    stream.permits = self._permits
            name = f"{kind.method} {self.bookie_id}"
            nobodys = contextvars.Context()  # all operations use the connection, not only the one that needed it first
            task = asyncio.get_running_loop().create_task(self._carry(stream), name=name, context=nobodys)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        assert isinstance(stream, kind)
        return stream

    # --- ends ---

    async def _carry(self, stream: LaneStream) -> None:
        async def attempt(at: At) -> None:
            token = b""
            if self._token is not None and self.tls is not None:
                token = self._token.read()
            stream.begin(self._hello(at), token)
            await self.carry(stream, at.endpoint)

        def reached() -> bool:
            if stream.greeted:
                self._whereabouts.reached(self.bookie_id)
            return stream.greeted

        try:
            await reach(self._at, attempt, reached=reached, moved=self._moved)
        except BookKeeperError as error:
            self.fail(
                self._broken_by(error)
            )  # no bookie answered, or the wrong bookie, or the bookie broke the protocol
        finally:
            stream.fail(self.broken or TransportError("the stream ended"))

    async def _moved(self, at: At) -> At | None:
        """Return the bookie's present registration and endpoint, or None if they are still ``at``. All streams of a
        link go to one process of the bookie, so they do not change once a stream was greeted."""
        if self._at == at and not any(stream.greeted for stream in self._streams.values()):
            found = await self._whereabouts.moved(at)
            if found is not None and self._at == at:
                self._at = found
        return self._at if self._at != at else None

    def _hello(self, at: At) -> lane_pb2.Hello:
        caller, incarnation = self._caller, at.info.properties.get(INCARNATION_PROPERTY, "")
        return hello(self.bookie_id, caller.instance_id, incarnation, caller.client, grants=self._permits is not None)

    def _broken_by(self, error: BookKeeperError) -> TransportError:
        """Make the error for callers that wait on this link. Its value and its cause keep the original error."""
        if isinstance(error, TransportError):
            return error
        logger.warning("bookie %s: %s", self.bookie_id, error)
        broken = TransportError(f"the connection to bookie {self.bookie_id} was closed", value=str(error))
        broken.__cause__ = error
        return broken

    def lost(self, stream: LaneStream, endpoint: Endpoint, detail: str) -> TransportError:
        """Make the error for a connection that failed. If the bookie has not answered hello yet, it is a
        BookieUnreachableError, which names both hosts."""
        where = endpoint.where
        if stream.greeted:
            return TransportError(f"the connection to bookie {self.bookie_id} broke", value=f"{where}: {detail}")
        return unreachable(self.bookie_id, where, detail)

    def tls_failure(self, endpoint: Endpoint, error: BaseException) -> TlsError:
        """Make the error for a failed TLS handshake with this bookie."""
        return failure(f"bookie {self.bookie_id}", endpoint.where, error)

    def fail(self, error: TransportError) -> None:
        """Break the link and all its streams with ``error``."""
        if self.broken is None:
            if self._adds is not None and self._adds.greeted and error.outcome is Outcome.NOT_APPLIED:
                error = _with_adds(error)
            self.broken = error
            if self._permits is not None:
                self._permits.lost(str(error))
            for stream in self._streams.values():
                stream.fail(error)
            for task in self._tasks:
                task.cancel()
            self._closing = asyncio.get_running_loop().create_task(self.disconnect())

    async def close(self) -> None:
        self.fail(TransportError("the transport was closed"))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._closing:
            await self._closing


def _with_adds(error: TransportError) -> TransportError:
    """Return a copy of the error of another stream with outcome UNKNOWN, because adds were sent over this link and may
    have been applied."""
    again = copy(error)
    again.outcome, again.__cause__ = Outcome.UNKNOWN, error.__cause__
    return again


def unreachable(bookie_id: BookieId, where: str, detail: str) -> BookieUnreachableError:
    """Make the error for a bookie to which no connection succeeded."""
    return BookieUnreachableError(
        f"bookie {bookie_id} at {where} cannot be reached from host {socket.gethostname()}",
        value=detail,
        remedy="check that the bookie runs and that this host can connect to it",
    )


def _evidence_of(answer: lane_pb2.ControlResponse) -> LacEvidence:
    _check_answer(answer, "lac")
    return evidence_from_proto(answer.lac)


def _check_answer(answer: lane_pb2.ControlResponse, wanted: str) -> None:
    """Raise RefusedError if the control answer does not carry the field ``wanted``."""
    if answer.WhichOneof("answer") != wanted:
        raise RefusedError(Reason.BAD_REQUEST, f"the answer carries no {wanted}")
