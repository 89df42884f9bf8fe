# SPDX-License-Identifier: Apache-2.0
"""Gets, keeps and renews the grants of a client with ``security`` other than ``open``. A client requests a grant once
for each ledger and right, keeps it, and renews it after half of its life.

All bookies of a cluster accept a grant of any one of them, so the links of a client share a :class:`Wallet`. Each link
has :class:`Permits`, which get the grant for a request before the request is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bk_core.access.roles import Right
from bk_core.errors import BookKeeperError
from bk_core.model import LedgerId
from bk_core.observe.log_throttle import LogThrottle
from bk_core.transport.port import NewSession, RefusedError
from bk_core.wire.lane.reasons import AttachMode, Reason

if TYPE_CHECKING:
    from bk_core.wire.proto import lane_pb2

logger = logging.getLogger(__name__)

GRANTS_KEPT = 16_384
"""The maximum number of grants that a client keeps. Above it the oldest grant is dropped."""

GRANT_DEADLINE_S = 10.0
"""The number of seconds that a client waits for the answer to a request for a grant."""

RENEW_AGAIN_S = 15.0
"""The number of seconds between a failed renewal of a grant and the next try."""
ASK_ANOTHER_S = 0.5
"""The number of seconds that a caller waits for another caller's request for the same grant. Then it sends a request to
another bookie, because the first bookie may be silent."""

_RIGHTS = {AttachMode.WRITE: Right.WRITE, AttachMode.RECOVER: Right.RECOVER}


class Held(NamedTuple):
    """A grant with its rights. It ends at ``until`` and is renewed at ``renew_at``, both by the loop's clock."""

    grant: bytes
    rights: Right
    renew_at: float
    until: float


Ask = Callable[[LedgerId, Right], Awaitable[Held]]


class Wallet:
    """Keeps the grants of one client, by ledger. It belongs to one loop."""

    def __init__(self) -> None:
        self._held: OrderedDict[LedgerId, Held] = OrderedDict()
        self._asking: dict[tuple[LedgerId, Right], asyncio.Task[Held]] = {}
        self.throttle = LogThrottle()
        """The throttle of log lines about grants that could not be renewed, by ledger. Each bookie of the ledger may
        refuse again and again."""

    def now(self, ledger_id: LedgerId, right: Right) -> Held | None:
        """Return the kept grant for this ledger and right, or None if there is none or it has ended."""
        held = self._held.get(ledger_id)
        if held is None or right not in held.rights or held.until <= asyncio.get_running_loop().time():
            return None
        return held

    async def get(self, ledger_id: LedgerId, right: Right, ask: Ask, *, fresh: bool = False) -> Held:
        """Return a kept grant, or request one by ``ask``. With ``fresh``, a kept grant that is due for renewal does not
        count.

        If another caller has a request for the same grant under way, wait for its answer for at most ASK_ANOTHER_S, and
        then send a request, too. Raises TransportError, and RefusedError, with PERMISSION_DENIED if no role gives the
        right.
        """
        waited = False
        while True:
            held = self.now(ledger_id, right)
            if held is not None and (not fresh or held.renew_at > asyncio.get_running_loop().time()):
                return held
            running = self._asking.get((ledger_id, right))
            if running is None or waited:
                return await asyncio.shield(self._ask(ledger_id, right, ask))
            try:
                async with asyncio.timeout(ASK_ANOTHER_S):
                    return await asyncio.shield(running)
            except TimeoutError:
                waited = True
            except BookKeeperError as error:
                if isinstance(error, RefusedError) and error.reason is Reason.PERMISSION_DENIED:
                    raise
                # the other caller's bookie could not answer: check again, and request if no other caller does

    def renew(self, ledger_id: LedgerId, right: Right, ask: Ask) -> None:
        """Request a newer grant without waiting for it, unless a request is under way."""
        if (ledger_id, right) not in self._asking:
            self._ask(ledger_id, right, ask)

    def _ask(self, ledger_id: LedgerId, right: Right, ask: Ask) -> asyncio.Task[Held]:
        task = self._asking[ledger_id, right] = asyncio.ensure_future(self._asked(ledger_id, right, ask))
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # marks the error as retrieved; the caller gets it
        return task

    async def _asked(self, ledger_id: LedgerId, right: Right, ask: Ask) -> Held:
        try:
            held = await ask(ledger_id, right)
        finally:
            if self._asking.get((ledger_id, right)) is asyncio.current_task():
                del self._asking[ledger_id, right]
        self._held[ledger_id] = held
        self._held.move_to_end(ledger_id)
        if len(self._held) > GRANTS_KEPT:
            self._held.popitem(last=False)
        return held


class GrantedStream(Protocol):
    """The part of a stream that shows grants to its bookie."""

    def show(self, ledger_id: LedgerId, grant: bytes) -> None:
        """Show a grant, unless it was shown on this stream."""
        ...


class AddStream(GrantedStream, Protocol):
    def attach(self, session: NewSession) -> None: ...
    def send(self, session: int, frame: bytes | bytearray | memoryview) -> None: ...


class ReadStream(Protocol):
    def ask(self, request: lane_pb2.ReadRequest, grant: bytes) -> None: ...
    def refuse(self, request: int, error: BookKeeperError) -> None: ...


class _Waiting(NamedTuple):
    session: NewSession
    frames: list[bytes | bytearray | memoryview]
    task: asyncio.Task[None]


class Permits:
    """Gets the grants for the requests of one link before they are sent, and renews the grants of its sessions. ``ask``
    requests a grant from this link's bookie."""

    def __init__(self, wallet: Wallet, ask: Ask) -> None:
        self._wallet, self._asked = wallet, ask
        self.waiting: dict[int, _Waiting] = {}
        """The sessions that wait for their grant."""
        self._sessions: dict[int, tuple[LedgerId, Right]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.TimerHandle | None = None
        self._stream: AddStream | None = None

    async def get(self, ledger_id: LedgerId, right: Right) -> bytes:
        """Return a grant for this ledger and right, which may be a kept one. Raises RefusedError, TransportError."""
        held = self.now(ledger_id, right) or await self._wallet.get(ledger_id, right, self._asked)
        return held.grant

    def now(self, ledger_id: LedgerId, right: Right) -> Held | None:
        held = self._wallet.now(ledger_id, right)
        if held is not None and held.renew_at <= asyncio.get_running_loop().time():
            self._wallet.renew(ledger_id, right, self._asked)
        return held

    def distrust(self) -> None:
        """Note that this link's bookie does not accept another bookie's grant, because its keys or its clock differ.
        From now on this link shows the bookie only grants that the bookie itself gave."""
        logger.warning("a bookie does not accept grants of other bookies: compare their key files and their clocks")
        self._wallet = Wallet()

    # --- adds ---

    def attach(self, stream: AddStream, session: NewSession) -> None:
        self._stream = stream
        right = _RIGHTS[session.mode]
        held = self.now(session.ledger_id, right)
        if held is not None:
            self._attach(stream, session, right, held)
        else:
            task = self._spawn(self._attach_later(stream, session, right))
            self.waiting[session.number] = _Waiting(session, [], task)

    def holds(self, session: int, frame: bytes | bytearray | memoryview) -> bool:
        """Return whether the session waits for its grant, and if so, keep the frame. The writer's window limits the
        frames that are kept."""
        waiting = self.waiting.get(session)
        if waiting is not None:
            waiting.frames.append(frame)
        return waiting is not None

    def detach(self, session: int) -> bool:
        """Forget a session. Return True if it still waited for its grant and so was not attached to a stream."""
        self._sessions.pop(session, None)
        waiting = self.waiting.pop(session, None)
        if waiting is not None:
            waiting.task.cancel()
        return waiting is not None

    def _attach(self, stream: AddStream, session: NewSession, right: Right, held: Held) -> None:
        self._sessions[session.number] = session.ledger_id, right
        stream.show(session.ledger_id, held.grant)
        stream.attach(session)
        self._renew_at(held.renew_at)

    async def _attach_later(self, stream: AddStream, session: NewSession, right: Right) -> None:
        try:
            held = await self._wallet.get(session.ledger_id, right, self._asked)
        except RefusedError as error:
            del self.waiting[session.number]
            session.listener.on_ended(session.number, 0, error.reason, error.what)
        except BookKeeperError as error:
            del self.waiting[session.number]
            session.listener.on_broken(session.number, str(error))
        else:
            frames = self.waiting.pop(session.number).frames
            self._attach(stream, session, right, held)
            for frame in frames:
                stream.send(session.number, frame)

    # --- renewal ---

    def _renew_at(self, when: float) -> None:
        if self._renewing is None or self._renewing.when() > when:
            if self._renewing is not None:
                self._renewing.cancel()
            self._renewing = asyncio.get_running_loop().call_at(when, lambda: self._spawn(self._renew()))

    async def _renew(self) -> None:
        """Get newer grants for all open sessions, and show them."""
        self._renewing = None
        stream, again = self._stream, asyncio.get_running_loop().time() + RENEW_AGAIN_S
        for ledger_id, right in dict.fromkeys(self._sessions.values()):
            try:
                held = await self._wallet.get(ledger_id, right, self._asked, fresh=True)
            except BookKeeperError as error:
                if self._wallet.throttle.allows(ledger_id):
                    logger.warning("the grant for ledger %d could not be renewed: %s", ledger_id, error)
                self._renew_at(again)
                continue
            if stream is not None:
                stream.show(ledger_id, held.grant)
            self._renew_at(held.renew_at)

    # --- reads ---

    def read(self, stream: ReadStream, request: lane_pb2.ReadRequest) -> None:
        right = Right.RECOVER if request.fence else Right.READ
        held = self.now(request.ledger_id, right)
        if held is not None:
            stream.ask(request, held.grant)
        else:
            self._spawn(self._read_later(stream, request, right))

    async def _read_later(self, stream: ReadStream, request: lane_pb2.ReadRequest, right: Right) -> None:
        try:
            stream.ask(request, await self.get(request.ledger_id, right))
        except BookKeeperError as error:
            stream.refuse(request.id, error)

    # --- ends ---

    def ended(self, sessions: Iterable[int]) -> None:
        """Forget sessions that have ended on the stream."""
        for session in sessions:
            self._sessions.pop(session, None)

    def lost(self, message: str) -> None:
        """End all work after the link broke, and report the break to the sessions that wait for a grant."""
        waiting, self.waiting = self.waiting, {}
        if self._renewing is not None:
            self._renewing.cancel()
        for task in self._tasks:
            task.cancel()
        for number, each in waiting.items():
            each.session.listener.on_broken(number, message)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
