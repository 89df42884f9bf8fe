# SPDX-License-Identifier: Apache-2.0
"""A transport without a network, for tests and examples: bookies are objects of this process.

It keeps the promises of the port. A callback comes later, never inside the call that caused it. A cut connection breaks
its sessions and requests. Each request ends exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from bk_core.access.roles import Right
from bk_core.errors import BookKeeperError, TransportError
from bk_core.model import BookieId, BookieServiceInfo, EntryId, LedgerId
from bk_core.transport.port import AddListener, BookieInfo, NewSession, ReadListener, ReadPart, RefusedError, ToldRead
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.reasons import Cut, Reason
from bookie_server.machine import events as ev

if TYPE_CHECKING:
    from tests.kit.memory_bookie import MemoryConnection, MemoryNetwork


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call that returns no evidence: done (REASON_NONE) or refused."""

    reason: Reason = Reason.REASON_NONE
    message: str = ""


Ask: TypeAlias = Callable[[ev.RequestId], ev.Event]
"""Makes the event of a request from the request's number."""
Answer: TypeAlias = ReadPart | ReadTrailer | LacEvidence | BookieInfo | Reply


class MemoryTransport:
    """:class:`~bk_core.transport.port.Transport` to the bookies of a network. It belongs to one loop."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._links: dict[BookieId, MemoryLink] = {}
        self._closed = False

    def update_bookies(self, infos: Sequence[BookieServiceInfo]) -> None:
        """Do nothing: these bookies have no addresses."""

    async def close(self) -> None:
        self._closed = True
        for link in list(self._links.values()):
            await link.close()

    def link(self, bookie_id: BookieId) -> MemoryLink:
        if self._closed:
            raise TransportError("the transport is closed", value=f"bookie {bookie_id}")
        link = self._links.get(bookie_id)
        if link is None:
            link = MemoryLink(bookie_id, lambda: self._links.pop(bookie_id, None))
            link.connection = self._network.connect(bookie_id, link)
            self._links[bookie_id] = link
        return link


def read_through(transport: Any, read: Callable[..., AsyncIterator[Any]]) -> None:
    """Make every read of this transport call ``read`` with the bookie, the link's own method, and the arguments."""
    link, known = transport.link, set[MemoryLink]()

    def wrapped(bookie_id: BookieId) -> Any:
        found = link(bookie_id)
        if found not in known:
            known.add(found)
            found.read = partial(read, bookie_id, found.read)
        return found

    transport.link = wrapped


class Told(ToldRead):
    """A read of a memory link that passes its answers to a listener as they come, as the lanes do. It keeps its
    reference to the listener even after the last answer, as they do."""

    def __init__(self, answers: AsyncIterator[ReadPart | ReadTrailer]) -> None:
        self._answers = answers
        self.listener: ReadListener | None = None
        self._task: asyncio.Task[None] | None = None

    def tell(self, listener: ReadListener) -> None:
        self.listener = listener
        self._task = asyncio.get_running_loop().create_task(self._tell(listener))

    async def _tell(self, listener: ReadListener) -> None:
        try:
            async for answer in self._answers:
                if isinstance(answer, ReadPart):
                    listener(answer.frames, None)
                else:
                    listener(None, answer)
        except BookKeeperError as error:
            listener(None, error)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class MemoryLink:
    """:class:`~bk_core.transport.port.Link` to one bookie: a connection and the calls that wait on it."""

    connection: MemoryConnection

    def __init__(self, bookie_id: BookieId, forget: Callable[[], object]) -> None:
        self.bookie_id = bookie_id
        self.broken: TransportError | None = None
        self.listeners: dict[int, AddListener] = {}
        self.calls: dict[_CallUnderWay, None] = {}
        self._forget = forget

    def on_acks(self, sessions: Sequence[int], frames: Sequence[int]) -> None:
        for session, count in zip(sessions, frames, strict=True):
            listener = self.listeners.get(session)
            if listener:
                listener.on_acked(session, count)

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        listener = self.listeners.pop(session, None)
        if listener:
            self.connection.detach(session)
            listener.on_ended(session, frames, reason, message)

    def on_closed(self, message: str) -> None:
        self._forget()
        self.broken = TransportError("the connection broke", value=message)
        listeners, self.listeners = self.listeners, {}
        for session, listener in listeners.items():
            listener.on_broken(session, message)
        for call in list(self.calls):
            call.answers.put_nowait(TransportError("the connection broke", value=message))

    def attach(self, session: NewSession) -> None:
        self.listeners[session.number] = session.listener
        self.connection.attach(session.number, session.ledger_id, session.ledger_key, session.mode)

    def send(self, session: int, frame: bytes | bytearray | memoryview) -> None:
        if session in self.listeners:
            self.connection.frames(memoryview(frame))

    def send_all(self, sessions: Sequence[int], frames: Sequence[bytes]) -> None:
        for session, frame in zip(sessions, frames, strict=True):
            self.send(session, frame)

    def detach(self, session: int) -> None:
        if self.listeners.pop(session, None):
            self.connection.detach(session)

    async def force(self, ledger_id: LedgerId, session: int, *, deadline_s: float) -> None:
        """Do nothing: these bookies ack only durable frames."""

    async def read(
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
    ) -> AsyncIterator[ReadPart | ReadTrailer]:
        call = _CallUnderWay(
            self, lambda number: ev.ReadRequested(number, ledger_id, first, last, bytes_max, fence_key, ids_only, cut)
        )
        try:
            async with _deadline(self.bookie_id, deadline_s):
                answer = await call.next()
            while isinstance(answer, ReadPart):
                yield answer
                async with _deadline(self.bookie_id, deadline_s):
                    answer = await call.next()
            if not isinstance(answer, ReadTrailer):
                raise _refused(answer)
            yield answer
        finally:
            call.cancel()

    async def permit(self, ledger_id: LedgerId, right: Right) -> None:
        pass

    async def fence(self, ledger_id: LedgerId, ledger_key: bytes, *, deadline_s: float) -> LacEvidence:
        return _evidence(await self._call(lambda number: ev.FenceRequested(number, ledger_id, ledger_key), deadline_s))

    async def read_lac(self, ledger_id: LedgerId, *, deadline_s: float) -> LacEvidence:
        return _evidence(await self._call(lambda number: ev.ReadLacRequested(number, ledger_id), deadline_s))

    async def watch_lac(self, ledger_id: LedgerId, previous_lac: EntryId, *, timeout_s: float) -> LacEvidence:
        timeout_ms = int(timeout_s * 1000)
        return _evidence(
            await self._call(
                lambda number: ev.WatchLacRequested(number, ledger_id, previous_lac, timeout_ms), timeout_s + 5.0
            )
        )

    async def write_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, *, deadline_s: float) -> None:
        await self._tell(lambda number: ev.WriteLacRequested(number, ledger_id, ledger_key, lac_body), deadline_s)

    def hint_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes) -> None:
        if self.broken is None:
            self.connection.request(
                lambda number: ev.WriteLacRequested(number, ledger_id, ledger_key, lac_body), lambda _: None
            )

    async def delete_hint(self, ledger_ids: Sequence[LedgerId], *, deadline_s: float) -> None:
        await self._tell(lambda number: ev.DeleteHintRequested(number, tuple(ledger_ids)), deadline_s)

    async def bookie_info(self, *, deadline_s: float) -> BookieInfo:
        answer = await self._call(None, deadline_s)
        if not isinstance(answer, BookieInfo):
            raise _refused(answer)
        return answer

    async def _tell(self, ask: Ask, deadline_s: float) -> None:
        answer = await self._call(ask, deadline_s)
        if not isinstance(answer, Reply) or answer.reason:
            raise _refused(answer)

    async def close(self) -> None:
        self.connection.close()
        self.on_closed("the transport was closed")

    async def _call(self, ask: Ask | None, deadline_s: float) -> Answer:
        """Return the answer to a request. Without ``ask`` the request is for the bookie's facts."""
        call = _CallUnderWay(self, ask)
        try:
            async with _deadline(self.bookie_id, deadline_s):
                return await call.next()
        finally:
            call.cancel()


class _CallUnderWay:
    def __init__(self, link: MemoryLink, ask: Ask | None) -> None:
        self.answers: asyncio.Queue[Answer | TransportError] = asyncio.Queue()
        self._link = link
        link.calls[self] = None
        self._cancel = link.connection.request(ask, self.answers.put_nowait)

    async def next(self) -> Answer:
        answer = await self.answers.get()
        if isinstance(answer, TransportError):
            raise answer
        return answer

    def cancel(self) -> None:
        if self._link.calls.pop(self, self) is None:
            self._cancel()


class _deadline:  # noqa: N801 - reads as a statement
    """A context manager that ends its block after ``deadline_s`` with a refusal for reason TIMEOUT."""

    def __init__(self, bookie_id: BookieId, seconds: float) -> None:
        self._bookie_id, self._seconds = bookie_id, seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            await self._timeout.__aexit__(kind, error, None)
        except TimeoutError:
            raise RefusedError(
                Reason.TIMEOUT, f"bookie {self._bookie_id} did not answer in {self._seconds:g} s"
            ) from error


def _refused(answer: Answer) -> RefusedError:
    if isinstance(answer, Reply):
        return RefusedError(answer.reason, answer.message or answer.reason.name)
    return RefusedError(Reason.BAD_REQUEST, f"an answer of another kind: {type(answer).__name__}")


def _evidence(answer: Answer) -> LacEvidence:
    if not isinstance(answer, LacEvidence):
        raise _refused(answer)
    return answer
