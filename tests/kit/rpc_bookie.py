# SPDX-License-Identifier: Apache-2.0
"""A bookie on Apache's wire without sockets, threads and time: the real connections over the real machine.

Reads happen at once, and so do commits unless they are held. Timers fire when the test calls ``fire``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from bk_core.wire.bookie_rpc.connection import AnswerReader
from bookie_server.engine.engine import BookieEngine, StreamSink
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits
from bookie_server.ports.bookie_rpc.auth import AuthPlugin, NoAuth
from bookie_server.ports.bookie_rpc.connection import ServedConnection
from bookie_server.ports.lane.streams import BookieFacts
from tests.kit.memory_holdings import MemoryHoldings, every_second, read_piece, stored

NOW_MS = 1_700_000_000_000


class RpcBookie:
    """The bookie. While ``hold`` is set, commits wait for :meth:`commit`."""

    def __init__(self, *, auth: AuthPlugin | None = None, **limits: Any) -> None:
        self.store = MemoryHoldings(every_second)
        self.machine = BookieMachine(self.store, MachineLimits(**limits))
        self.read_only = self.hold = False
        self.timers: dict[ev.TimerId, int] = {}
        self.uncommitted: list[bytes | memoryview] = []
        self.paused: set[int] = set()
        self._auth = auth or NoAuth()
        self._events: deque[ev.Event] = deque()
        self._stepping = False
        self._streams: dict[int, StreamSink] = {}
        self._opened = 0
        self.facts = BookieFacts(
            bookie_id="b1",
            instance_id="i",
            incarnation="n",
            in_flight_bytes_max=1 << 20,
            read_only=lambda: self.read_only,
            space=lambda: (500_000_000_000, 400_000_000_000),
        )

    def connect(self) -> RpcClient:
        return RpcClient(self, self._auth)

    # --- what an engine does ---

    def open_stream(self, sink: StreamSink) -> int:
        self._opened += 1
        self._streams[self._opened] = sink
        return self._opened

    def close_stream(self, stream: int) -> None:
        if self._streams.pop(stream, None):
            self.feed(ev.StreamClosed(stream))

    def feed(self, event: ev.Event) -> None:
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                for effect in self.machine.step(self._events.popleft()):
                    self._carry_out(effect)
                if self.uncommitted and not self._events and not self.hold:
                    self._committed()
        finally:
            self._stepping = False

    def commit(self) -> None:
        """Make the frames that were held back durable."""
        if self.uncommitted:
            self._committed()
        if self._events:
            self.feed(self._events.popleft())

    def fail(self, event: ev.CommitFailed) -> None:
        self.uncommitted.clear()
        self.feed(event)

    def fire(self, timer: ev.TimerId) -> None:
        del self.timers[timer]
        self.feed(ev.TimerFired(timer))

    def _committed(self) -> None:
        frames, self.uncommitted = self.uncommitted, []
        self._events.append(ev.GroupCommitted([stored(frame) for frame in frames]))

    def _carry_out(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Commit(frames):
                self.uncommitted += frames
            case ev.ReadFrames(request, pieces):
                self._events.append(ev.FramesRead(request, [read_piece(piece) for piece in pieces]))
            case ev.SetTimer(timer, delay_ms):
                self.timers[timer] = delay_ms
            case ev.CancelTimer(timer):
                self.timers.pop(timer, None)
            case ev.LookForDeletion():
                pass
            case ev.ReadMemberships():
                raise AssertionError("holdings in memory resolve nothing")
            case ev.SendAcks() | ev.SendEntries() | ev.CloseStream() | ev.PauseStream() | ev.ResumeStream():
                if effect.stream in self._streams:
                    self._streams[effect.stream].deliver(effect)
            case _:
                if effect.request[0] in self._streams:
                    self._streams[effect.request[0]].deliver(effect)


class RpcClient:
    """The client's end of one connection. ``got`` has all bytes that the client has received."""

    def __init__(self, bookie: RpcBookie, auth: AuthPlugin, wake: Callable[[], None] = lambda: None) -> None:
        self.connection = ServedConnection(cast(BookieEngine, bookie), bookie.facts, auth, lambda: NOW_MS, wake)
        self._rest = b""
        self.got = b""

    def send(self, data: bytes) -> None:
        self._rest += data
        used = self.connection.receive(memoryview(bytearray(self._rest)))
        self._rest = self._rest[used:]

    def take(self) -> bytes:
        """Return the bytes that the bookie has sent since the last call."""
        out = b""
        while message := self.connection.answers.next_message():
            out += b"".join(bytes(buffer) for buffer in message)
            self.connection.answers.message_left()
        self.got += out
        return out

    def ask(self, data: bytes) -> bytes:
        self.send(data)
        return self.take()

    @property
    def closed(self) -> bool:
        return bool(self.connection.closing)


def answers(data: bytes, version: int) -> list[Any]:
    """Parse the answers in the bytes that a bookie sent. The bytes must be whole frames."""
    read = AnswerReader(version).read(data)
    assert (read.fault, read.used) == (None, len(data))
    return read.items
