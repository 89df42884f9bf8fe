# SPDX-License-Identifier: Apache-2.0
"""Makes the calls of the port over Apache's wire, by an :class:`~bk_core.transport.bookie_rpc.exchange.Exchange`. The
first read of a long range makes a second connection, for :class:`~bk_core.transport.bookie_rpc.batches.Batches`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from bk_core.access.roles import Right
from bk_core.errors import BookKeeperError, TransportError
from bk_core.model import EntryId, LedgerId
from bk_core.transport.bookie_rpc.batches import Batches
from bk_core.transport.bookie_rpc.connection import BookieConnection
from bk_core.transport.bookie_rpc.exchange import Exchange
from bk_core.transport.bookie_rpc.lac import Told, WireLacs
from bk_core.transport.bookie_rpc.packing import Packer
from bk_core.transport.bookie_rpc.reads import WireRangeRead, refused
from bk_core.transport.caller import Caller
from bk_core.transport.lane.streams import READ_BYTES_MAX, too_late
from bk_core.transport.port import BookieInfo, NewSession, ReadPart, RefusedError
from bk_core.transport.whereabouts import At, Whereabouts
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.runs import WireAnswer
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.reasons import HINT_IDS_MAX, Cut, Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb

logger = logging.getLogger(__name__)

PART_S = 0.25
"""The number of seconds after which the entries of a range that have come are passed on, however few they are.
Otherwise a slow bookie would seem silent."""

PAUSE_S = 0.01
PAUSE_S_MAX = 1.0
PERMIT_DEADLINE_S = 10.0
"""The seconds that a bookie has to show that it accepts the client."""
_WATCH_SLACK_S = 5.0
_INFO_FLAGS = pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY | pb.GetBookieInfoRequest.FREE_DISK_SPACE

T = TypeVar("T")


class BookieRpcLink:
    """A :class:`~bk_core.transport.port.Link` over Apache's wire."""

    def __init__(self, at: At, caller: Caller, whereabouts: Whereabouts, packer: Packer) -> None:
        self.bookie_id = at.info.bookie_id
        self._packer = packer
        self._exchange = Exchange(packer)
        self._lacs = WireLacs(self._exchange, self.bookie_id)
        self._calls: set[asyncio.Future[Any]] = set()
        self._loop = asyncio.get_running_loop()
        timeout_s, tls, token = caller.connect_timeout_s, caller.tls, caller.token
        self._connection = BookieConnection(
            at, whereabouts, timeout_s, self._exchange, turn=self._turn, failed=self._failed, tls=tls, token=token
        )
        self._batches = Batches(packer, self._exchange.reads)
        self._batches.over = not caller.batch_reads
        turn, failed = self._connection.wake, self._no_batches
        self._second = BookieConnection(
            at, whereabouts, timeout_s, self._batches, turn=turn, failed=failed, tls=tls, token=token
        )
        self._resuming = False

    @property
    def broken(self) -> TransportError | None:
        return self._connection.broken

    # --- adds ---

    def attach(self, session: NewSession) -> None:
        self._exchange.adds.attach(session)
        self._connection.wake()

    def send(self, session: int, frame: bytes | bytearray | memoryview) -> None:
        self._exchange.adds.send(session, frame)
        self._connection.wake()

    def send_all(self, sessions: Sequence[int], frames: Sequence[bytes]) -> None:
        for session, frame in zip(sessions, frames, strict=True):
            self._exchange.adds.send(session, frame)
        self._connection.wake()

    def detach(self, session: int) -> None:
        self._exchange.adds.detach(session)

    async def force(self, ledger_id: LedgerId, session: int, *, deadline_s: float) -> None:
        """Let the bookie sync the session's frames, as in the port, but only over the connection of the session. Over
        another connection, a restarted bookie would confirm a sync of entries that it has lost."""
        if not self._exchange.adds.has(session):
            raise RefusedError(Reason.NOT_ATTACHED, f"the session with bookie {self.bookie_id} is over")
        status: Status = await self._answer_to(lambda told: self._exchange.force(ledger_id, told), deadline_s)
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
        cut: Cut | None = None,
        ids_only: bool = False,
        deadline_s: float,
    ) -> AsyncIterator[ReadPart | ReadTrailer]:
        """Read entries, as in the port. ``deadline_s`` limits the wait for each part of the answer. This wire has no
        ``cut``, so entries come whole. It refuses ``ids_only``, because its list of ids is of a whole ledger and cannot
        say UNKNOWN."""
        if ids_only:
            raise RefusedError(Reason.UNIMPLEMENTED, "Apache's wire has no list of ids that tells unknown from absent")
        if self.broken is not None:  # it broke after the caller got this iterator
            raise self.broken
        # The answers wait here: at most ``bytes_max`` and one frame.
        answers: asyncio.Queue[ReadPart | ReadTrailer | BookKeeperError] = asyncio.Queue()
        asked = WireRangeRead(ledger_id, first, last, bytes_max or READ_BYTES_MAX, fence_key, answers.put_nowait)
        if self._batches.suit(asked):
            self._batches.read(asked)
            self._second.wake()
        else:
            self._exchange.read(asked)
        self._connection.wake()  # needed in any case, as entries that are in no batch are read over it
        try:
            while True:
                answer = await self._next_answer(asked, answers, deadline_s)
                if isinstance(answer, BookKeeperError):
                    raise answer
                yield answer
                if isinstance(answer, ReadTrailer):
                    return
        finally:
            asked.forget()

    async def _next_answer(
        self, asked: WireRangeRead, answers: asyncio.Queue[ReadPart | ReadTrailer | BookKeeperError], deadline_s: float
    ) -> ReadPart | ReadTrailer | BookKeeperError:
        end = self._loop.time() + deadline_s
        while True:
            left_s = end - self._loop.time()
            try:
                async with asyncio.timeout(min(left_s, PART_S)):
                    return await answers.get()
            except TimeoutError as error:
                if not asked.hurry() and left_s <= PART_S:
                    raise too_late(self.bookie_id, deadline_s) from error

    async def permit(self, ledger_id: LedgerId, right: Right) -> None:
        """Find out whether the bookie accepts this client. This wire has no request about rights."""
        if not self._exchange.let_in:
            await self.bookie_info(deadline_s=PERMIT_DEADLINE_S)

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
        said = await self._answer_to(ask, deadline_s)
        if isinstance(said, RefusedError):
            raise said
        return said

    # --- control ---

    async def write_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes, *, deadline_s: float) -> None:
        said: RefusedError | None = await self._answer_to(
            lambda told: self._lacs.write(ledger_id, ledger_key, lac_body, told), deadline_s
        )
        if said is not None:
            raise said

    def hint_lac(self, ledger_id: LedgerId, ledger_key: bytes, lac_body: bytes) -> None:
        self._lacs.write(ledger_id, ledger_key, lac_body, lambda _: None)
        self._connection.wake()

    async def delete_hint(self, ledger_ids: Sequence[LedgerId], *, deadline_s: float) -> None:
        """Do nothing. This wire has no such message, and its bookies find deleted ledgers by themselves."""
        if len(ledger_ids) > HINT_IDS_MAX:
            raise RefusedError(Reason.TOO_LARGE, "too many ledgers in a hint", value=f"{len(ledger_ids)}")

    async def bookie_info(self, *, deadline_s: float) -> BookieInfo:
        request = v3.request(pb.GET_BOOKIE_INFO, 0)
        request.getBookieInfoRequest.requested = _INFO_FLAGS
        answer: WireAnswer = await self._answer_to(lambda told: self._exchange.control(request, told), deadline_s)
        if answer.status is not Status.EOK:
            raise refused(answer.status, f"bookie {self.bookie_id} does not report its disk space")
        told = answer.response.getBookieInfoResponse
        return BookieInfo(told.totalDiskCapacity, told.freeDiskSpace)

    async def _answer_to(self, ask: Callable[[Callable[[T], None]], None], deadline_s: float) -> T:
        """Make a call and return its answer. ``ask`` makes the call; its argument is the function that takes the
        answer. Raises TransportError if the link breaks before."""
        if self.broken is not None:
            raise self.broken
        call: asyncio.Future[T] = self._loop.create_future()
        self._calls.add(call)
        ask(_once(call))
        self._connection.wake()
        try:
            async with asyncio.timeout(deadline_s):
                return await call
        except TimeoutError as error:
            raise too_late(self.bookie_id, deadline_s) from error
        finally:
            self._calls.discard(call)

    # --- the connection ---

    def _turn(self) -> None:
        """End a turn of the loop: call the listeners, before further requests are sent."""
        self._packer.forget()
        adds = self._exchange.adds
        self._exchange.tell()
        if adds.pausing and not self._resuming:
            self._resuming = True
            self._loop.call_later(min(PAUSE_S * 2 ** (adds.pauses - 1), PAUSE_S_MAX), self._resume)

    def _resume(self) -> None:
        self._resuming = False
        self._exchange.adds.resume()
        self._connection.wake()

    def _failed(self, error: TransportError) -> None:
        """Fail all calls, sessions and reads of this link with ``error``, which broke the connection."""
        for call in tuple(self._calls):
            if not call.done():
                call.set_exception(error)
        self._second.fail(error)
        self._exchange.lost(error)

    def _no_batches(self, error: TransportError) -> None:
        """Request over the first connection the entries that the second connection still owes. The second connection
        has ended."""
        if self.broken is None:
            logger.info("bookie %s sends no batches of entries, so they are read one by one: %s", self.bookie_id, error)
        self._batches.lost()
        self._connection.wake()

    async def close(self) -> None:
        error = TransportError("the transport was closed")
        await self._connection.close(error)
        await self._second.close(error)


def _once(call: asyncio.Future[T]) -> Callable[[T], None]:
    """Return a function that sets the result of a call, unless the call has ended."""

    def answer(result: T) -> None:
        if not call.done():
            call.set_result(result)

    return answer
