# SPDX-License-Identifier: Apache-2.0
"""A bookie of a scenario: the production machine over a store of bytes in memory.

A sync is instant unless the disk is held; what was not synced when the bookie crashes is gone. The machine's own
timers fire when the story says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from bk_core.entries.frame import FrameKind
from bk_core.model import LedgerId
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine import events as mev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits
from tests.kit.bookie_effects import parted
from tests.kit.memory_holdings import MemoryHoldings, StoredFrame, read_piece, stored

if TYPE_CHECKING:
    from tests.scenarios.world import World

Answer = mev.SendAcks | mev.CloseStream | mev.SendPart | mev.SendTrailer | mev.SendLac | mev.SendReply
Listener = Callable[[Answer], None]


class Bookie:
    """``store`` survives a crash, as a disk does. ``slow``: nothing becomes durable until the story says so."""

    def __init__(self, world: World, name: str, **limits: int) -> None:
        self.world, self.name = world, name
        self.store = MemoryHoldings()
        self.alive, self.slow = True, False
        self.broken_disk: mev.CommitFailed | None = None
        self._limits = MachineLimits(**limits)
        self._streams = 0
        self.connections: list[Connection] = []
        self._start()

    def _start(self) -> None:
        self.machine = BookieMachine(self.store, self._limits)
        self.uncommitted: list[bytes | memoryview] = []
        self.timers: set[mev.TimerId] = set()
        self._events: deque[mev.Event] = deque()
        self._feeding = False

    # --- what the story does to it ---

    def crash(self) -> None:
        self.alive = False
        self._start()
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.broken()

    def restart(self) -> None:
        self.alive, self.slow, self.broken_disk = True, False, None

    def wipe(self, ledgers: list[LedgerId], *, limbo: bool) -> None:
        """The disk is empty; ``limbo``: the bookie knows that, and which ledgers it may have lost (RULES S8)."""
        self.store = MemoryHoldings()
        for ledger_id in ledgers if limbo else []:
            self.store.fold(ledger_id, FrameKind.FENCE)
            self.store.fold(ledger_id, FrameKind.LIMBO)
        self._start()

    def sync(self) -> None:
        """What waits for the disk is durable, or fails."""
        frames, self.uncommitted = self.uncommitted, []
        if frames:
            self.feed(self.broken_disk or mev.GroupCommitted([stored(frame) for frame in frames]))

    def frames_of(self, ledger_id: LedgerId) -> list[StoredFrame]:
        ledger = self.store.ledgers.get(ledger_id)
        return ledger.frames if ledger else []

    # --- the machine ---

    def connect(self, client: str, listener: Listener, on_broken: Callable[[], None]) -> Connection:
        self._streams += 1
        connection = Connection(self, self._streams, client, listener, on_broken)
        if self.alive:
            self.connections.append(connection)
        return connection

    def feed(self, event: mev.Event) -> None:
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        while self._events:
            for effect in parted(self.machine.step(self._events.popleft())):
                self._carry_out(effect)
            if not self._events and self.uncommitted and not self.slow:
                frames, self.uncommitted = self.uncommitted, []
                self._events.append(self.broken_disk or mev.GroupCommitted([stored(frame) for frame in frames]))
        self._feeding = False

    def _carry_out(self, effect: mev.Effect) -> None:
        match effect:
            case mev.Commit(frames):
                self.uncommitted.extend(frames)
            case mev.ReadFrames(request, pieces):
                self._events.append(mev.FramesRead(request, [read_piece(piece) for piece in pieces]))
            case mev.SetTimer(timer):
                self.timers.add(timer)
            case mev.CancelTimer(timer):
                self.timers.discard(timer)
            case mev.SendAcks(stream) | mev.CloseStream(stream):
                self._answer(stream, effect)
            case mev.SendPart(request):
                self._answer(request[0], effect)
                self._events.append(mev.PartSent(request))
            case mev.SendTrailer(request) | mev.SendLac(request) | mev.SendReply(request):
                self._answer(request[0], effect)

    def _answer(self, stream: int, answer: Answer) -> None:
        for connection in self.connections:
            if connection.stream != stream:
                continue
            if isinstance(answer, mev.SendAcks):
                for end in answer.ended:
                    self.world.say(f"{self.name} refuses {connection.client}: {end.reason.name}")
            elif isinstance(answer, (mev.SendTrailer, mev.SendReply)) and answer.reason:
                self.world.say(f"{self.name} refuses {connection.client}: {Reason(answer.reason).name}")
            connection.listener(answer)


class Connection:
    """One stream from a client to a bookie: its adds, or one request."""

    def __init__(
        self, bookie: Bookie, stream: int, client: str, listener: Listener, on_broken: Callable[[], None]
    ) -> None:
        self._bookie, self.stream, self.client, self.listener = bookie, stream, client, listener
        self._on_broken = on_broken
        self.open = True

    @property
    def usable(self) -> bool:
        return self.open and self in self._bookie.connections

    def feed(self, event: mev.Event) -> None:
        self._bookie.feed(event)

    def broken(self) -> None:
        """The bookie's end is gone; the client hears of it."""
        if self.open:
            self.open = False
            self._on_broken()

    def close(self) -> None:
        """The client's end is gone; the bookie hears of it."""
        self.open = False
        if self in self._bookie.connections:
            self._bookie.connections.remove(self)
            self._bookie.feed(mev.StreamClosed(self.stream))
