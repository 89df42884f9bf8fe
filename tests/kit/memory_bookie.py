# SPDX-License-Identifier: Apache-2.0
"""Bookies and a network in this process: the real machine over a store of bytes in memory.

``MemoryNetwork`` makes bookies and transports, and breaks the connections between them. ``MemoryBookie`` drives a
:class:`~bookie_server.machine.machine.BookieMachine` on the running loop. Each group commit happens in a later turn of
the loop, unless commits are held.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from bk_core.errors import BookieUnreachableError
from bk_core.model import BookieId, BookieServiceInfo, LedgerId
from bk_core.transport.port import BookieInfo, ReadPart
from bk_core.wire.lane.reasons import AttachMode
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits
from tests.kit.bookie_effects import parted
from tests.kit.memory_holdings import MemoryHoldings, StoredFrame, every_second, read_piece, stored
from tests.kit.memory_transport import Answer, Ask, MemoryLink, MemoryTransport, Reply

Act = Callable[[Callable[[], None]], None]
SPACE_BYTES = 1 << 30
"""The disk size that a bookie in memory reports."""


class MemoryBookie:
    """One bookie. ``store`` survives :meth:`kill`, as a disk does. Uncommitted frames do not.

    After ``hold_commits()`` nothing becomes durable until ``release_commits()``. ``effects`` keeps the last effects for
    tests.
    """

    def __init__(self, bookie_id: BookieId, limits: MachineLimits | None = None) -> None:
        self.bookie_id = bookie_id
        self.store = MemoryHoldings(every_second)
        self.alive, self.read_only = True, False
        self.effects: deque[ev.Effect] = deque(maxlen=1000)
        self._limits = limits
        self._held = False
        self._start()

    def _start(self) -> None:
        self.machine = BookieMachine(self.store, self._limits)
        self._uncommitted: list[bytes | memoryview] = []
        self._commit_scheduled = False
        self._timers: dict[ev.TimerId, asyncio.TimerHandle] = {}
        self._connections: dict[ev.StreamId, MemoryConnection] = {}
        self._streams = getattr(self, "_streams", 0)

    # --- controls ---

    def kill(self) -> None:
        """Kill the process. Connections break, and everything in memory is lost, even frames on their way to the
        disk."""
        self.alive = False
        for timer in self._timers.values():
            timer.cancel()
        connections = list(self._connections.values())
        self._start()
        for connection in connections:
            connection.broken("the bookie died")

    def restart(self) -> None:
        """Start again with the durable frames."""
        self.alive = True
        self._held = False

    def hold_commits(self) -> None:
        self._held = True

    def release_commits(self) -> None:
        self._held = False
        self._schedule_commit()

    def break_connections(self, message: str = "cut") -> None:
        for connection in list(self._connections.values()):
            connection.broken(message)

    def set_read_only(self, read_only: bool) -> None:
        self.read_only = read_only
        self.feed(ev.ReadOnlyChanged(read_only))

    def info(self) -> BookieInfo:
        return BookieInfo(SPACE_BYTES, SPACE_BYTES, self.read_only, "a bookie in memory")

    def frames_of(self, ledger_id: LedgerId) -> list[StoredFrame]:
        """Return the durable frames of a ledger."""
        ledger = self.store.ledgers.get(ledger_id)
        return ledger.frames if ledger else []

    # --- driving the machine ---

    def connect(self, peer: MemoryLink, act: Act) -> MemoryConnection:
        if not self.alive:
            raise BookieUnreachableError("the bookie is down", value=f"bookie {self.bookie_id}")
        self._streams += 1
        connection = MemoryConnection(self, self._streams, peer, act)
        self._connections[self._streams] = connection
        return connection

    def feed(self, event: ev.Event) -> None:
        """Pass an event to the machine, and carry out its effects. Answers leave in a later turn of the loop."""
        for effect in parted(self.machine.step(event)):
            self.effects.append(effect)
            self._carry_out(effect)

    def _carry_out(self, effect: ev.Effect) -> None:
        loop = asyncio.get_running_loop()
        match effect:
            case ev.Commit(frames):
                self._uncommitted.extend(frames)
                self._schedule_commit()
            case ev.ReadFrames(request, pieces):
                loop.call_soon(self._later, self.machine, ev.FramesRead(request, [read_piece(p) for p in pieces]))
            case ev.SetTimer(timer, delay_ms):
                handle = loop.call_later(delay_ms / 1000, self._later, self.machine, ev.TimerFired(timer))
                self._timers[timer] = handle
            case ev.CancelTimer(timer):
                if timer in self._timers:
                    self._timers.pop(timer).cancel()
            case ev.PauseStream() | ev.ResumeStream() | ev.LookForDeletion():
                pass  # whole messages arrive, so there is nothing to pause; this bookie collects no garbage
            case ev.SendAcks(stream) | ev.CloseStream(stream):
                if stream in self._connections:
                    self._connections[stream].tell(effect)
            case _:
                if effect.request[0] in self._connections:
                    self._connections[effect.request[0]].tell(effect)

    def _later(self, machine: BookieMachine, event: ev.Event) -> None:
        if machine is self.machine and self.alive:
            self.feed(event)

    def _schedule_commit(self) -> None:
        if self._uncommitted and not self._held and not self._commit_scheduled:
            self._commit_scheduled = True
            asyncio.get_running_loop().call_soon(self._commit, self.machine)

    def _commit(self, machine: BookieMachine) -> None:
        if machine is not self.machine or not self.alive:
            return
        self._commit_scheduled = False
        if self._held:
            return
        frames, self._uncommitted = self._uncommitted, []
        self.feed(ev.GroupCommitted([stored(frame) for frame in frames]))


class MemoryConnection:
    """One client's connection: its add stream and its requests. ``act`` carries out the client's calls, or holds them
    for later."""

    def __init__(self, bookie: MemoryBookie, stream: int, peer: MemoryLink, act: Act) -> None:
        self._bookie, self._stream, self._peer, self._act = bookie, stream, peer, act
        self._answers: dict[ev.RequestId, Callable[[Answer], None]] = {}
        self._requests = 1 << 32  # above every session number
        self.open = True

    # --- from the client ---

    def attach(self, session: int, ledger_id: LedgerId, ledger_key: bytes, mode: AttachMode) -> None:
        self._act(lambda: self._feed(ev.SessionAttached(self._stream, session, ledger_id, ledger_key, mode)))

    def frames(self, frames: memoryview) -> None:
        copy = memoryview(bytes(frames))
        self._act(lambda: self._feed(ev.FramesArrived(self._stream, copy)))

    def detach(self, session: int) -> None:
        self._act(lambda: self._feed(ev.SessionsDetached(self._stream, [session])))

    def request(self, ask: Ask | None, answer: Callable[[Answer], None]) -> Callable[[], None]:
        """Begin a request, and return a function that cancels it. Without ``ask`` the request is for the bookie's
        facts."""
        self._requests += 1
        request = (self._stream, self._requests)
        self._act(lambda: self._ask(request, ask, answer))
        return lambda: self._cancel(request)

    def _ask(self, request: ev.RequestId, ask: Ask | None, answer: Callable[[Answer], None]) -> None:
        self._answers[request] = answer
        if ask is None:
            asyncio.get_running_loop().call_soon(self._end, request, self._bookie.info())
        else:
            self._feed(ask(request))

    def _cancel(self, request: ev.RequestId) -> None:
        if self._answers.pop(request, None):
            self._feed(ev.RequestCancelled(request))

    def close(self) -> None:
        if self.open:
            self.open = False
            self._bookie._connections.pop(self._stream, None)
            self._bookie.feed(ev.StreamClosed(self._stream))

    def _feed(self, event: ev.Event) -> None:
        if self.open:
            asyncio.get_running_loop().call_soon(lambda: self._bookie.feed(event) if self.open else None)

    # --- to the client ---

    def broken(self, message: str) -> None:
        if self.open:
            self.close()
            asyncio.get_running_loop().call_soon(self._peer.on_closed, message)

    def tell(self, effect: ev.Effect) -> None:
        asyncio.get_running_loop().call_soon(self._tell, effect)

    def _tell(self, effect: ev.Effect) -> None:
        if not self.open:
            return
        match effect:
            case ev.SendAcks(_, sessions, frames, ended):
                self._peer.on_acks(sessions, frames)
                for end in ended:
                    self._peer.on_ended(end.session, end.frames, end.reason, end.message)
            case ev.CloseStream(_, message):
                self.broken(message)
            case ev.SendPart(request, frames):
                if request in self._answers:
                    self._answers[request](ReadPart(memoryview(b"".join(frames))))
                self._feed(ev.PartSent(request))
            case ev.SendTrailer(request, trailer, reason, message):
                self._end(request, Reply(reason, message) if reason else trailer)
            case ev.SendLac(request, evidence):
                self._end(request, evidence)
            case ev.SendReply(request, reason, message):
                self._end(request, Reply(reason, message))

    def _end(self, request: ev.RequestId, answer: Answer) -> None:
        tell = self._answers.pop(request, None)
        if tell:
            tell(answer)


class MemoryNetwork:
    """Bookies, and the connections to them. A control acts on every transport of this network.

    ``down(b)`` makes a bookie unreachable and breaks its connections; ``up(b)`` undoes this. After ``hold(b)`` the
    calls of clients to the bookie wait, in order, until ``release(b)``. ``kill(b)`` and ``restart(b)`` act on its
    process.
    """

    def __init__(self, *bookie_ids: BookieId) -> None:
        self.bookies: dict[BookieId, MemoryBookie] = {}
        self._down: set[BookieId] = set()
        self._holding: dict[BookieId, list[Callable[[], None]]] = {}
        for bookie_id in bookie_ids:
            self.add(bookie_id)

    def add(self, bookie_id: BookieId, limits: MachineLimits | None = None) -> MemoryBookie:
        self.bookies[bookie_id] = MemoryBookie(bookie_id, limits)
        return self.bookies[bookie_id]

    def transport(self) -> MemoryTransport:
        """Make a client's transport to all bookies."""
        return MemoryTransport(self)

    def connect(self, bookie_id: BookieId, peer: MemoryLink) -> MemoryConnection:
        if bookie_id not in self.bookies or bookie_id in self._down:
            raise BookieUnreachableError("unreachable", value=f"bookie {bookie_id}")
        return self.bookies[bookie_id].connect(peer, partial(self._do, bookie_id))

    def infos(self) -> list[BookieServiceInfo]:
        return [BookieServiceInfo(bookie_id) for bookie_id in self.bookies]

    def down(self, bookie_id: BookieId) -> None:
        self._down.add(bookie_id)
        self.bookies[bookie_id].break_connections(f"{bookie_id} is unreachable")

    def up(self, bookie_id: BookieId) -> None:
        self._down.discard(bookie_id)

    def hold(self, bookie_id: BookieId) -> None:
        self._holding.setdefault(bookie_id, [])

    def release(self, bookie_id: BookieId) -> None:
        for act in self._holding.pop(bookie_id, []):
            act()

    def kill(self, bookie_id: BookieId) -> None:
        self.bookies[bookie_id].kill()

    def restart(self, bookie_id: BookieId) -> None:
        self.bookies[bookie_id].restart()

    def _do(self, bookie_id: BookieId, act: Callable[[], None]) -> None:
        """Call ``act`` now, or when the bookie is released."""
        held = self._holding.get(bookie_id)
        if held is None:
            act()
        else:
            held.append(act)
