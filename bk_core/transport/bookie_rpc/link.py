# SPDX-License-Identifier: Apache-2.0
"""The lane's link: an :class:`~bk_core.transport.bookie_rpc.exchange.Exchange` over a TCP connection.

What is sent in one turn of the loop leaves together (L4). The socket takes a few pieces at a time, so that what waits
stays in the exchange, where it is counted. A connection on which a bookie owes answers and says nothing for
``SILENCE_S`` is broken: TCP alone would wait for a machine that is gone for many minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from bk_core.errors import BookKeeperError, TransportError
from bk_core.model import BookieServiceInfo, Endpoint, EntryId, LedgerId
from bk_core.transport.bookie_rpc.exchange import Exchange
from bk_core.transport.bookie_rpc.lac import Lacs, Told
from bk_core.transport.bookie_rpc.packing import Packer
from bk_core.transport.bookie_rpc.reads import RangeRead, refused
from bk_core.transport.lane_streams import READ_BYTES_MAX, too_late, unreachable
from bk_core.transport.port import (
    AddListener,
    BookieInfo,
    Caller,
    LacEvidence,
    ReadPart,
    ReadTrailer,
    RefusedError,
)
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX
from bk_core.wire.bookie_rpc.runs import Answer
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane import HINT_IDS_MAX, AttachMode, Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 64 << 10
RECEIVE_BYTES_MAX = 1 << 20
"""A connection receives into a buffer of so many bytes: of few, and of more each time that it was full."""

UNSENT_BYTES = 1 << 20
"""The socket's buffer takes this much more than the kernel takes."""

PAUSE_S = 0.01
PAUSE_S_MAX = 1.0
SILENCE_S = 15.0
_WATCH_SLACK_S = 5.0
_INFO_FLAGS = pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY | pb.GetBookieInfoRequest.FREE_DISK_SPACE

T = TypeVar("T")


class BookieRpcLane:
    """The lane of one client: what its links share."""

    def __init__(self) -> None:
        self._packer = Packer()

    def connect(self, info: BookieServiceInfo, endpoint: Endpoint, caller: Caller) -> BookieRpcLink:
        return BookieRpcLink(info, endpoint, caller, self._packer)


class BookieRpcLink:
    """:class:`~bk_core.transport.port.Link` over Apache's wire."""

    def __init__(self, info: BookieServiceInfo, endpoint: Endpoint, caller: Caller, packer: Packer) -> None:
        self.bookie_id, self.endpoint, self._connect_timeout_s = info.bookie_id, endpoint, caller.connect_timeout_s
        self.broken: TransportError | None = None
        self._packer = packer
        self._exchange = Exchange(packer)
        self._lacs = Lacs(self._exchange, info.bookie_id)
        self._calls: set[asyncio.Future[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._ended = self._loop.create_future()
        self._writable = True
        self._flushing = self._resuming = self._watched = False
        self._heard = 0  # answers so far

    # --- adds ---

    def attach(
        self,
        ledger_id: LedgerId,
        ledger_key: bytes,
        mode: AttachMode,
        session: int,
        listener: AddListener,
        *,
        deferred: bool = False,
    ) -> None:
        self._exchange.adds.attach(ledger_id, ledger_key, mode, session, listener, deferred=deferred)
        self._wake()

    def send(self, session: int, frame: bytes | bytearray | memoryview) -> None:
        self._exchange.adds.send(session, frame)
        self._wake()

    def detach(self, session: int) -> None:
        self._exchange.adds.detach(session)

    async def force(self, ledger_id: LedgerId, session: int, *, deadline_s: float) -> None:
        """As in the port. Over another connection than the session's a bookie that restarted would answer that it has
        synced what it has lost."""
        if not self._exchange.adds.has(session):
            raise RefusedError(Reason.NOT_ATTACHED, f"the session with bookie {self.bookie_id} is over")
        answer: asyncio.Future[Status] = self._call()
        self._exchange.force(ledger_id, _once(answer))
        async with self._within(deadline_s):
            status = await answer
        if status is not Status.EOK:
            raise refused(status, f"bookie {self.bookie_id} could not sync ledger {ledger_id}")

    # --- reads ---

    async def read(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        *,
        bytes_max: int,
        fence_key: bytes | None = None,
        deadline_s: float,
    ) -> AsyncIterator[ReadPart | ReadTrailer]:
        """As in the port; ``deadline_s`` bounds the wait for each part of the answer."""
        if self.broken is not None:  # since the caller asked for this iterator
            raise self.broken
        answers = _Answers()
        asked = RangeRead(ledger_id, first, last, bytes_max or READ_BYTES_MAX, fence_key, answers)
        self._exchange.read(asked)
        self._wake()
        try:
            while True:
                try:
                    async with asyncio.timeout(deadline_s):
                        answer = await answers.queue.get()
                except TimeoutError as error:
                    raise too_late(self.bookie_id, deadline_s) from error
                if isinstance(answer, BookKeeperError):
                    raise answer
                yield answer
                if isinstance(answer, ReadTrailer):
                    return
        finally:
            asked.forget()

    async def fence(self, ledger_id: LedgerId, ledger_key: bytes, *, deadline_s: float) -> LacEvidence:
        return await self._evidence(lambda told: self._lacs.fence(ledger_id, ledger_key, told), deadline_s)

    async def read_lac(self, ledger_id: LedgerId, *, deadline_s: float) -> LacEvidence:
        return await self._evidence(lambda told: self._lacs.read(ledger_id, told), deadline_s)

    async def watch_lac(self, ledger_id: LedgerId, previous_lac: EntryId, *, timeout_s: float) -> LacEvidence:
        timeout_ms = max(1, int(timeout_s * 1000))
        return await self._evidence(
            lambda told: self._lacs.watch(ledger_id, previous_lac, timeout_ms, told), timeout_s + _WATCH_SLACK_S
        )

    async def _evidence(self, ask: Callable[[Told], None], deadline_s: float) -> LacEvidence:
        answer: asyncio.Future[LacEvidence | RefusedError] = self._call()
        ask(_once(answer))
        async with self._within(deadline_s):
            said = await answer
        if isinstance(said, RefusedError):
            raise said
        return said

    # --- control ---

    async def write_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, *, deadline_s: float) -> None:
        answer: asyncio.Future[RefusedError | None] = self._call()
        self._lacs.write(ledger_id, ledger_key, lac_body, _once(answer))
        async with self._within(deadline_s):
            said = await answer
        if said is not None:
            raise said

    async def delete_hint(self, ledger_ids: Sequence[LedgerId], *, deadline_s: float) -> None:
        """Does nothing: this wire has no such message, and these bookies look by themselves."""
        if len(ledger_ids) > HINT_IDS_MAX:
            raise RefusedError(Reason.TOO_LARGE, "too many ledgers in a hint", value=f"{len(ledger_ids)}")

    async def bookie_info(self, *, deadline_s: float) -> BookieInfo:
        request = v3.request(pb.GET_BOOKIE_INFO, 0)
        request.getBookieInfoRequest.requested = _INFO_FLAGS
        async with self._within(deadline_s):
            answer = await self._control(request)
        if answer.status is not Status.EOK:
            raise refused(answer.status, f"bookie {self.bookie_id} tells nothing about itself")
        told = answer.response.getBookieInfoResponse
        return BookieInfo(told.totalDiskCapacity, told.freeDiskSpace)

    def _control(self, request: pb.Request) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = self._call()
        self._exchange.control(request, _once(answer))
        return answer

    def _call(self) -> asyncio.Future[Any]:
        """A future that fails if the link breaks."""
        call: asyncio.Future[Any] = self._loop.create_future()
        if self.broken is not None:
            call.set_exception(self.broken)
        self._calls.add(call)
        call.add_done_callback(self._answered)
        self._wake()
        return call

    def _answered(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # who waits for two answers may have left after the first failed

    @contextlib.asynccontextmanager
    async def _within(self, deadline_s: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(deadline_s):
                yield
        except TimeoutError as error:
            raise too_late(self.bookie_id, deadline_s) from error

    # --- the connection ---

    def _wake(self) -> None:
        """Sends what there is, at the end of this turn of the loop."""
        if not self._flushing and self.broken is None:
            self._flushing = True
            self._loop.call_soon(self._flush)
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect(), name=f"bookie-rpc {self.bookie_id}")

    def _flush(self) -> None:
        self._flushing = False
        self._packer.forget()
        if self.broken is not None:
            return
        exchange = self._exchange
        exchange.tell()
        while self._transport is not None and self._writable:
            buffers = exchange.next_buffers()
            if buffers is None:
                break
            self._transport.writelines(buffers)
        if exchange.adds.pausing and not self._resuming:
            self._resuming = True
            pause_s = min(PAUSE_S * 2 ** (exchange.adds.pauses - 1), PAUSE_S_MAX)
            self._loop.call_later(pause_s, self._resume)
        if exchange.owes and not self._watched:
            self._watched = True
            self._loop.call_later(SILENCE_S, self._look_for_silence, self._heard)

    def _resume(self) -> None:
        self._resuming = False
        self._exchange.adds.resume()
        self._wake()

    def _look_for_silence(self, heard: int) -> None:
        self._watched = False
        if self.broken is None and self._exchange.owes:
            if self._heard == heard and self._transport is not None:
                self._lost(f"it owes answers and said nothing for {SILENCE_S:g} s")
            else:
                self._wake()

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._loop.create_connection(lambda: _Socket(self), self.endpoint.host, self.endpoint.port)
        except TimeoutError:
            self._lost("no answer in time")
        except OSError as error:
            self._lost(str(error))

    def connected(self, transport: asyncio.WriteTransport) -> None:
        if self.broken is not None:
            transport.abort()
            return
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        _set_options(transport.get_extra_info("socket"))
        self._wake()

    def set_writable(self, writable: bool) -> None:
        self._writable = writable
        if writable:
            self._flush()

    def receive(self, received: memoryview) -> int:
        """Takes what was received; returns how many bytes of it are dealt with."""
        self._heard += 1
        try:
            used = self._exchange.receive(received)
        except BookKeeperError as error:
            self._exchange.tell()
            logger.warning("bookie %s: %s", self.bookie_id, error)
            broken = TransportError(f"the connection to bookie {self.bookie_id} was closed", value=str(error))
            broken.__cause__ = error
            self._fail(broken)
            return len(received)
        self._flush()
        return used

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._lost(str(error) if error else "the bookie closed it")

    def _lost(self, detail: str) -> None:
        where = f"{self.endpoint.host}:{self.endpoint.port}"
        if self._transport is None:
            self._fail(unreachable(self.bookie_id, where, detail))
        else:
            self._fail(TransportError(f"the connection to bookie {self.bookie_id} broke", value=f"{where}: {detail}"))

    def _fail(self, error: TransportError) -> None:
        """Breaks the link: all that waits on it fails."""
        if self.broken is not None:
            return
        self.broken = error
        for call in tuple(self._calls):
            if not call.done():
                call.set_exception(error)
        self._exchange.lost(error)
        if self._transport is None:
            if self._connecting is not None:
                self._connecting.cancel()
            if not self._ended.done():
                self._ended.set_result(None)
            return
        with contextlib.suppress(OSError):  # a forked child may hold the socket: closing it would not end it
            self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._transport.abort()

    async def close(self) -> None:
        self._fail(TransportError("the transport was closed"))
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self._ended


class _Answers:
    """The answers to one range read, at most ``bytes_max`` and one frame, wait here."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[ReadPart | ReadTrailer | BookKeeperError] = asyncio.Queue()

    def part(self, frame: bytearray) -> None:
        self.queue.put_nowait(ReadPart(memoryview(frame)))

    def ended(self, end: ReadTrailer | BookKeeperError) -> None:
        self.queue.put_nowait(end)


class _Socket(asyncio.BufferedProtocol):
    """What the connection's socket receives: the link takes it from one buffer, which grows to the longest frame."""

    def __init__(self, link: BookieRpcLink) -> None:
        self._link = link
        self._buffer, self._filled, self._full = bytearray(RECEIVE_BYTES), 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._link.connected(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        size = len(self._buffer)
        if self._filled == size or (self._full and size < RECEIVE_BYTES_MAX):
            grown = bytearray(min(2 * size, FRAME_BYTES_MAX + RECEIVE_BYTES_MAX))
            grown[: self._filled] = self._buffer[: self._filled]
            self._buffer, self._full = grown, False
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        filled = self._filled + nbytes
        self._full = filled == len(self._buffer)
        used = self._link.receive(memoryview(self._buffer)[:filled])
        self._filled = filled - used
        if used and self._filled:
            self._buffer[: self._filled] = self._buffer[used:filled]

    def pause_writing(self) -> None:
        self._link.set_writable(False)

    def resume_writing(self) -> None:
        self._link.set_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.connection_lost(exc)


def _set_options(sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _once(call: asyncio.Future[T]) -> Callable[[T], None]:
    """Answers a call, unless nobody waits for it any more."""

    def answer(result: T) -> None:
        if not call.done():
            call.set_result(result)

    return answer
