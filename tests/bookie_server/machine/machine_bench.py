# SPDX-License-Identifier: Apache-2.0
"""A machine whose commits and reads happen when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bk_core.entries.frame import parse_header
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits
from tests.kit.bookie_effects import parted
from tests.kit.lanes import KEY, frame
from tests.kit.memory_holdings import MemoryHoldings, read_piece, stored

ADDS, READS, CONTROL = 1, 2, 3  # streams


def pending_frames(machine: BookieMachine) -> int:
    """Frames given out by Commit effects and not yet reported."""
    return sum(len(log.queue) for log in machine._core.logs)


class Bench:
    """A machine whose commits and reads happen when the test says so."""

    def __init__(self, store: MemoryHoldings | None = None, logs: int = 1, **limits: Any) -> None:
        self.store = store or MemoryHoldings()
        self.machine = BookieMachine(self.store, MachineLimits(**limits), logs=logs)
        self.logs: list[list[bytes | memoryview]] = [[] for _ in range(logs)]  # given to a log, not durable
        self.log = self.logs[0]
        self.to_read: list[ev.ReadFrames] = []
        self.request = 0

    def step(self, event: ev.Event) -> list[ev.Effect]:
        """Effects but for those that the bench carries out itself."""
        out = []
        for effect in parted(self.machine.step(event)):
            if isinstance(effect, ev.Commit):
                self.logs[effect.log].extend(effect.frames)
            elif isinstance(effect, ev.ReadFrames):
                self.to_read.append(effect)
            else:
                out.append(effect)
        return out

    def kinds(self, log: int = 0) -> list[int]:
        return [parse_header(one).kind for one in self.logs[log]]

    def attach(self, session: int, ledger: int = 7, **options: Any) -> list[ev.Effect]:
        key, mode = options.pop("key", KEY), options.pop("mode", AttachMode.WRITE)
        return self.step(ev.SessionAttached(options.pop("stream", ADDS), session, ledger, key, mode, **options))

    def send(self, *frames: bytes, stream: int = ADDS) -> list[ev.Effect]:
        return self.step(ev.FramesArrived(stream, memoryview(b"".join(frames))))

    def commit(self, count: int | None = None, group_bytes: int = 0, log: int = 0) -> list[ev.Effect]:
        frames = self.logs[log][:count]
        del self.logs[log][:count]
        return self.step(ev.GroupCommitted([stored(one) for one in frames], log, group_bytes))

    def fail(self, *, final: bool, reason: Reason = Reason.STORAGE_FAILED, log: int = 0) -> list[ev.Effect]:
        self.logs[log].clear()
        return self.step(ev.CommitFailed(reason, "made to fail", final, log))

    def ask(self, make: Any, *arguments: Any, stream: int = READS) -> list[ev.Effect]:
        self.request += 1
        return self.step(make((stream, self.request), *arguments))

    def read(self, first: int, last: int, ledger: int = 7, fence_key: bytes | None = None) -> list[ev.Effect]:
        return self.ask(ev.ReadRequested, ledger, first, last, 1 << 20, fence_key)

    def disk(self) -> list[ev.Effect]:
        """The storage answers all reads."""
        out: list[ev.Effect] = []
        while self.to_read:
            wanted = self.to_read.pop(0)
            out += self.step(ev.FramesRead(wanted.request, [read_piece(piece) for piece in wanted.pieces]))
        return out


def entries(first: int, *payloads: bytes, session: int = 1, ledger: int = 7, lac: int = -1) -> bytes:
    return frame(ledger, first, payloads, session=session, lac=lac)


def acks(session: int, frames: int) -> list[ev.Effect]:
    return [ev.SendAcks(ADDS, [session], [frames], [])]


def ended(effects: Sequence[ev.Effect]) -> list[tuple[int, int, Reason]]:
    return [(e.session, e.frames, e.reason) for s in effects if isinstance(s, ev.SendAcks) for e in s.ended]


def trailers(effects: Sequence[ev.Effect]) -> list[ReadTrailer]:
    return [effect.trailer for effect in effects if isinstance(effect, ev.SendTrailer)]
