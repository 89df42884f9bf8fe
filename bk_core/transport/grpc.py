# SPDX-License-Identifier: Apache-2.0
"""The transport over our gRPC lane, for asyncio: one channel and three long-lived streams for each bookie.

Channels and streams are made on first use and again after a break; nothing is made at import or in ``__init__``,
because Spark forks (K4). A child of a process that used gRPC is refused (:mod:`bk_core.after_fork`). For gRPC
messages are raw bytes; ``lane_streams.py`` parses them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import grpc

from bk_core.after_fork import check_can_connect, holds_grpc
from bk_core.errors import BookieUnreachableError, BookKeeperError, TransportError
from bk_core.model import INCARNATION_PROPERTY, BookieId, BookieServiceInfo, Endpoint, EntryId, LedgerId
from bk_core.transport.lane_streams import AddStream, ControlStream, LaneStream, ReadStream, evidence_of, too_late
from bk_core.transport.messages import CHANNEL_OPTIONS, SERVICE
from bk_core.transport.port import AddListener, LacEvidence, ReadPart, ReadTrailer
from bk_core.wire.lane import AttachMode
from bk_core.wire.proto import lane_pb2

logger = logging.getLogger(__name__)

_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.min_reconnect_backoff_ms", 1000))
_WATCH_SLACK_S = 5.0

S = TypeVar("S", bound=LaneStream)


class GrpcTransport:
    """:class:`~bk_core.transport.port.Transport` over gRPC. Belongs to the loop it is first used on.

    ``instance_id`` is the cluster's, which hello compares unless it is empty (L1). ``connect_timeout_s`` bounds
    connecting and hello together.
    """

    def __init__(
        self, *, instance_id: str = "", client: str = "pyspark-bookkeeper", connect_timeout_s: float = 5.0
    ) -> None:
        check_can_connect()
        self._instance_id, self._client, self._connect_timeout_s = instance_id, client, connect_timeout_s
        self._infos: dict[BookieId, BookieServiceInfo] = {}
        self._links: dict[BookieId, _Link] = {}
        self._closed = False

    # --- adds ---

    def attach(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        ledger_key: bytes,
        mode: AttachMode,
        session: int,
        listener: AddListener,
    ) -> None:
        try:
            stream = self._link(bookie_id).stream("Add", AddStream)
        except TransportError as error:
            asyncio.get_running_loop().call_soon(listener.on_broken, session, str(error))
            return
        stream.attach(session, ledger_id, ledger_key, mode, listener)

    def send(self, bookie_id: BookieId, session: int, frame: bytes | bytearray | memoryview) -> None:
        stream = self._add_stream(bookie_id)
        if stream:
            stream.send(session, frame)

    def detach(self, bookie_id: BookieId, session: int) -> None:
        stream = self._add_stream(bookie_id)
        if stream:
            stream.detach(session)

    def _add_stream(self, bookie_id: BookieId) -> AddStream | None:
        link = self._links.get(bookie_id)
        stream = link.streams.get("Add") if link else None
        return stream if isinstance(stream, AddStream) else None

    # --- reads ---

    async def read(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        *,
        bytes_max: int,
        fence_key: bytes | None = None,
        deadline_s: float,
    ) -> AsyncIterator[ReadPart | ReadTrailer]:
        """As in the port; ``deadline_s`` bounds the wait for each part of the answer."""
        call = self._link(bookie_id).stream("Read", ReadStream).read(ledger_id, first, last, bytes_max, fence_key)
        try:
            while True:
                try:
                    async with asyncio.timeout(deadline_s):
                        answer = await call.next()
                except TimeoutError as error:
                    raise too_late(bookie_id, deadline_s) from error
                yield answer
                if isinstance(answer, ReadTrailer):
                    return
        finally:
            call.cancel()

    # --- control ---

    async def fence(
        self, bookie_id: BookieId, ledger_id: LedgerId, ledger_key: bytes, *, deadline_s: float
    ) -> LacEvidence:
        call = lane_pb2.FenceRequest(ledger_id=ledger_id, ledger_key=ledger_key)
        return evidence_of(await self._call(bookie_id, deadline_s, fence=call))

    async def read_lac(self, bookie_id: BookieId, ledger_id: LedgerId, *, deadline_s: float) -> LacEvidence:
        call = lane_pb2.ReadLacRequest(ledger_id=ledger_id)
        return evidence_of(await self._call(bookie_id, deadline_s, read_lac=call))

    async def watch_lac(
        self, bookie_id: BookieId, ledger_id: LedgerId, previous_lac: EntryId, *, timeout_s: float
    ) -> LacEvidence:
        call = lane_pb2.WatchLacRequest(
            ledger_id=ledger_id, previous_lac=previous_lac, timeout_ms=max(1, int(timeout_s * 1000))
        )
        return evidence_of(await self._call(bookie_id, timeout_s + _WATCH_SLACK_S, watch_lac=call))

    async def write_lac(
        self, bookie_id: BookieId, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, *, deadline_s: float
    ) -> None:
        call = lane_pb2.WriteLacRequest(ledger_id=ledger_id, ledger_key=ledger_key, lac_body=lac_body)
        await self._call(bookie_id, deadline_s, write_lac=call)

    async def delete_hint(self, bookie_id: BookieId, ledger_ids: Sequence[LedgerId], *, deadline_s: float) -> None:
        call = lane_pb2.DeleteHintRequest(ledger_ids=ledger_ids)
        await self._call(bookie_id, deadline_s, delete_hint=call)

    async def bookie_info(self, bookie_id: BookieId, *, deadline_s: float) -> lane_pb2.BookieInfo:
        """What a bookie reports about itself. Hello comes first, so it is the expected bookie."""
        answer = await self._call(bookie_id, deadline_s, bookie_info=lane_pb2.BookieInfoRequest())
        return answer.info

    async def _call(self, bookie_id: BookieId, deadline_s: float, **call: Any) -> lane_pb2.ControlResponse:
        request = lane_pb2.ControlRequest(deadline_ms=max(1, int(deadline_s * 1000)), **call)
        return await self._link(bookie_id).stream("Control", ControlStream).call(request, deadline_s)

    # --- bookies ---

    def update_bookies(self, infos: Sequence[BookieServiceInfo]) -> None:
        self._infos.update((info.bookie_id, info) for info in infos)

    def _link(self, bookie_id: BookieId) -> _Link:
        """The connection to a bookie, made if there is none. Raises BookieUnreachableError, TransportError."""
        if self._closed:
            raise TransportError("the transport is closed", value=f"bookie {bookie_id}")
        link = self._links.get(bookie_id)
        if link is None or link.broken:
            info = self._infos.get(bookie_id)
            endpoint = info.endpoint("grpc") if info else None
            if info is None or endpoint is None:
                raise BookieUnreachableError(
                    f"no address of bookie {bookie_id} is known",
                    value="it is not registered" if info is None else "it has no grpc endpoint",
                    remedy="start the bookie, or wait until it registers",
                )
            incarnation = info.properties.get(INCARNATION_PROPERTY, "")
            said = (bookie_id, self._instance_id, incarnation, self._client)
            link = self._links[bookie_id] = _Link(said, endpoint, self._connect_timeout_s)
        return link

    async def close(self) -> None:
        self._closed = True
        for link in self._links.values():
            link.fail(TransportError("the transport was closed"))
        await asyncio.gather(*(link.ended() for link in self._links.values()))


class _Link:
    """One channel to one bookie with up to three streams. When its connection fails, the channel and all streams are
    broken."""

    def __init__(self, said: tuple[BookieId, str, str, str], endpoint: Endpoint, connect_timeout_s: float) -> None:
        self._said, self._endpoint, self._connect_timeout_s = said, endpoint, connect_timeout_s
        holds_grpc(self)  # and through it the channel
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        self._channel: Any = grpc.aio.insecure_channel(
            f"{host}:{endpoint.port}", options=_OPTIONS, compression=grpc.Compression.NoCompression
        )
        self.streams: dict[str, LaneStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self.broken: TransportError | None = None

    def stream(self, method: str, kind: type[S]) -> S:
        """The open stream for ``method``, or a new one of this kind."""
        stream = self.streams.get(method)
        if stream is None or stream.broken:
            stream = self.streams[method] = kind(*self._said)
            task = asyncio.get_running_loop().create_task(self._run(method, stream), name=f"{method} {self._said[0]}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        assert isinstance(stream, kind)
        return stream

    async def _run(self, method: str, stream: LaneStream) -> None:
        """Carries a stream's messages until it breaks."""
        call: Any = self._channel.stream_stream(f"/{SERVICE}/{method}")()  # no serializers: messages are bytes
        holds_grpc(call)
        writer = asyncio.get_running_loop().create_task(_write(stream, call))
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._receive(stream, call)
            while True:
                await self._receive(stream, call)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            self._lost(stream, error)
        except BookKeeperError as error:
            self.fail(self._broken_by(error))  # the wrong bookie, or one that breaks the protocol
        except asyncio.CancelledError:
            stream.fail(self.broken or TransportError("the stream was closed"))
            raise
        finally:
            stream.fail(TransportError("the stream ended"))
            writer.cancel()
            call.cancel()

    async def _receive(self, stream: LaneStream, call: Any) -> None:
        message = await call.read()
        if message is grpc.aio.EOF:
            await call.code()
            error = TransportError("the bookie ended the stream", value=f"bookie {self._said[0]}")
            self.fail(error)  # the bookie stops; the next use connects to its new address
            raise error
        stream.receive(message)

    def _broken_by(self, error: BookKeeperError) -> TransportError:
        """The error for callers that wait on this link; its value and cause keep the original error."""
        if isinstance(error, TransportError):
            return error
        logger.warning("bookie %s: %s", self._said[0], error)
        broken = TransportError(f"the connection to bookie {self._said[0]} was closed", value=str(error))
        broken.__cause__ = error
        return broken

    def _lost(self, stream: LaneStream, error: Exception) -> None:
        """The connection failed. Before the bookie's hello the error is BookieUnreachableError, with both hosts."""
        detail = error.details() if isinstance(error, grpc.aio.AioRpcError) else "no answer in time"
        where = f"{self._endpoint.host}:{self._endpoint.port}"
        if stream.greeted:
            self.fail(TransportError(f"the connection to bookie {self._said[0]} broke", value=f"{where}: {detail}"))
            return
        self.fail(
            BookieUnreachableError(
                f"bookie {self._said[0]} at {where} cannot be reached from host {socket.gethostname()}",
                value=str(detail),
                remedy="check that the bookie runs and that this host can connect to it",
            )
        )

    def fail(self, error: TransportError) -> None:
        """Breaks the channel and all streams; the next use makes a new link."""
        if self.broken is None:
            self.broken = error
            for stream in self.streams.values():
                stream.fail(error)
            for task in self._tasks:
                task.cancel()
            self._closing = asyncio.get_running_loop().create_task(self._channel.close())

    async def ended(self) -> None:
        """Waits until a failed link has ended its tasks and its channel."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._closing:
            await self._closing


async def _write(stream: LaneStream, call: Any) -> None:
    """Writes messages as they get ready. A failure is reported by the reading side."""
    while True:
        await stream.wake.wait()
        stream.wake.clear()
        while (message := stream.next_message()) is not None:
            try:
                await call.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return
