# SPDX-License-Identifier: Apache-2.0
"""What the bookie's machine has given to one log, and how far that log is durable.

One log a data directory. Theory: every frame given to a log has a sequence number, and the log is durable up to one
such number. So "wait until this is durable" is one integer, and the order of the queue is the order on disk (RULES S1:
a fence record stands behind every add accepted before it). A ledger is in exactly one log, so all its numbers compare;
numbers of different logs never meet.
"""

from __future__ import annotations

from collections import deque

from bk_core.entries.frame import FrameKind
from bookie_server.machine_events import Commit, RequestId
from bookie_server.machine_state import Pending

_NO_RESERVE = (FrameKind.LEDGER_KEY, FrameKind.LAC)
"""Records that come with normal adds. All others, and recovery adds, may use the space that is kept for them."""


class LogQueue:
    """The way to one log. ``number`` names it in events and effects."""

    __slots__ = ("_outgoing", "_outgoing_reserve", "_parked", "appended", "durable", "number", "queue", "read_only")

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: deque[Pending] = deque()  # given to the log, oldest first
        self.appended = 0  # sequence number of the last frame given to the log
        self.durable = 0  # and of the last durable one; appended − durable == len(queue)
        self.read_only = False  # no normal add: what room is left is for fences and recovery
        self._outgoing: list[Pending] = []  # frames of this step's Commit
        self._outgoing_reserve = False  # one of them may use the space kept for fences and recovery
        self._parked: dict[int, list[RequestId]] = {}  # requests waiting for a sequence number to be durable

    def enqueue(self, pending: Pending) -> int:
        """Give a frame to the log behind all others; returns its sequence number."""
        self.queue.append(pending)
        self._outgoing.append(pending)
        session = pending.session
        self._outgoing_reserve |= session.recover if session else pending.header.kind not in _NO_RESERVE
        self.appended += 1
        return self.appended

    def take_commit(self) -> Commit | None:
        """The effect for what was enqueued since it was last asked for."""
        if not self._outgoing:
            return None
        frames = tuple(pending.frame for pending in self._outgoing)
        commit = Commit(frames, self._outgoing_reserve, self.number)
        self._outgoing.clear()
        self._outgoing_reserve = False
        return commit

    def settle(self) -> Pending:
        """The oldest frame in the queue is durable."""
        self.durable += 1
        return self.queue.popleft()

    def drop(self) -> list[Pending]:
        """Nothing in the queue will ever be durable; returns what was in it."""
        dropped = list(self.queue)
        self.queue.clear()
        self._outgoing.clear()
        self._outgoing_reserve = False
        self.durable = self.appended
        return dropped

    def park(self, request: RequestId, sequence: int) -> None:
        """Have this request run again when the frame of that number is durable, or will never be."""
        self._parked.setdefault(sequence, []).append(request)

    def unpark(self) -> list[RequestId]:
        """Requests whose frame is settled, in order."""
        if not self._parked:
            return []
        ripe = sorted(sequence for sequence in self._parked if sequence <= self.durable)
        return [request for sequence in ripe for request in self._parked.pop(sequence)]
