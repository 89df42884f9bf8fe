# SPDX-License-Identifier: Apache-2.0
"""A bookie of the search: the product's machine over a store in memory that survives crashes, and checks of the
promises that the bookie alone can break (I5, I6, I7, I9, I10, P1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bk_core.entries.frame import FrameKind, decode_frame, parse_header
from bk_core.protocol import events as ev
from bk_core.wire.lane.reasons import EntryRange
from bookie_server.machine import events as bev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits
from tests.kit.bookie_effects import parted
from tests.kit.memory_holdings import MemoryHoldings, StoredFrame, every_second, read_piece, stored
from tests.sim.exhaustive.parts import (
    FENCES,
    LEDGER,
    NOBODY,
    SESSIONS_PER_CLIENT,
    UNARY,
    WRITER,
    Emission,
    answer_failed,
    payload,
)

LIMITS = MachineLimits()
IDS = range(8)  # ids that any scope may use


@dataclass(frozen=True, slots=True)
class CommitNext:
    """The log makes its frames durable, up to the next frame of entries or fence."""


@dataclass(frozen=True, slots=True)
class CommitAll:
    """The log makes all its frames durable."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies and starts again with the durable frames."""


class BookiePart:
    """A bookie. ``denied`` has the ids that it called ABSENT in a fencing read. ``acked`` has the ids that it ever
    confirmed."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.holdings = MemoryHoldings(every_second)
        self.machine = BookieMachine(self.holdings, LIMITS)
        self.uncommitted: list[bytes] = []
        self.parts: dict[Any, list[bytes]] = {}
        self.asked: dict[Any, Any] = {}
        self.arrived: dict[int, list[tuple[int, ...]]] = {}  # session → ids of each of its frames
        self.denied: set[int] = set()
        self.acked: set[int] = set()
        self.problem: str | None = None

    # --- what the search looks at ---

    def durable(self) -> dict[int, int]:
        """Return the ids that would survive a crash, with the LAC that each carries."""
        found = {}
        for frame in self._frames():
            for entry_id, _, lac in entries_of(frame.data):
                found.setdefault(entry_id, lac)
        return found

    def greatest_lac(self) -> int:
        ledger = self.machine._core.ledgers.get(LEDGER)
        hint = ledger.hint_lac if ledger else -1
        return max([hint, *(lac for frame in self._frames() for _, _, lac in entries_of(frame.data))], default=-1)

    def _frames(self) -> list[StoredFrame]:
        ledger = self.holdings.ledgers.get(LEDGER)
        return ledger.frames if ledger else []

    @property
    def fence_durable(self) -> bool:
        return self.holdings.facts(LEDGER).fenced

    # --- steps ---

    def step(self, events: tuple[Any, ...]) -> list[Emission]:
        emissions: list[Emission] = []
        for event in events:
            match event:
                case CommitNext():
                    emissions += self._commit(self._next_group())
                case CommitAll():
                    emissions += self._commit(len(self.uncommitted))
                case Crash():
                    emissions += self._crash()
                case _:
                    self._note(event)
                    emissions += self._feed(event)
        return emissions

    def _next_group(self) -> int:
        for count, frame in enumerate(self.uncommitted, 1):
            if parse_header(frame).kind in (FrameKind.ENTRIES, FrameKind.FENCE):
                return count
        return len(self.uncommitted)

    def _note(self, event: Any) -> None:
        request = getattr(event, "request", None)
        if request is not None:
            self.asked[request] = event
        if isinstance(event, bev.FramesArrived):
            ids = tuple(entry_id for entry_id, _, _ in entries_of(bytes(event.frames)))
            self.arrived.setdefault(event.stream, []).append(ids)

    def _commit(self, count: int) -> list[Emission]:
        frames, self.uncommitted = self.uncommitted[:count], self.uncommitted[count:]
        for at, frame in enumerate(frames):
            if parse_header(frame).kind == FrameKind.ENTRIES:
                fenced_before = any(parse_header(f).kind == FrameKind.FENCE for f in frames[:at])
                self._check_stored(frame, self.fence_durable or fenced_before)
        return self._feed(bev.GroupCommitted([stored(frame) for frame in frames])) if frames else []

    def _crash(self) -> list[Emission]:
        """Restart the bookie. Streams break, the transport repeats a fence, and a read fails."""
        emissions: list[Emission] = [("crash", self.slot)]
        for request, event in self.asked.items():
            client = request[0] - UNARY
            if client in (NOBODY, -UNARY):
                continue
            if request[1] >= FENCES:
                emissions.append(("ask", self.slot, client, event))
            else:
                emissions.append(("tell", client, (answer_failed(request, "the bookie died"),)))
        fenced = self.fence_durable
        self.machine = BookieMachine(self.holdings, LIMITS)
        self.uncommitted, self.parts, self.asked, self.arrived = [], {}, {}, {}
        if fenced and not self.fence_durable:
            self.problem = f"I5: the durable fence of b{self.slot} is gone after a crash"
        return emissions

    def _feed(self, event: Any) -> list[Emission]:
        emissions: list[Emission] = []
        for effect in parted(self.machine.step(event)):
            emissions += self._carry(effect)
        return emissions

    def _carry(self, effect: Any) -> list[Emission]:
        match effect:
            case bev.Commit(frames):
                self.uncommitted += [bytes(frame) for frame in frames]
            case bev.ReadFrames(request, pieces):
                return self._feed(bev.FramesRead(request, [read_piece(piece) for piece in pieces]))
            case bev.SendAcks(stream, sessions, frames, ended):
                return self._acks(stream, list(zip(sessions, frames, strict=True)), ended)
            case bev.CloseStream(stream):
                return [("down", self.slot, stream, "broken")]
            case bev.SendPart(request, frames):
                self.parts.setdefault(request, []).extend(bytes(frame) for frame in frames)
                return self._feed(bev.PartSent(request))
            case bev.SendTrailer(request, trailer, reason, message):
                return self._trailer(request, trailer, reason, message)
            case bev.SendLac(request, evidence):
                return self._lac(request, evidence)
            case bev.SendReply(request, reason, message):
                self.asked.pop(request, None)
                return self._tell(request, ev.LacFailed(request[1] % 16, message, reason))
            case bev.SetTimer() | bev.CancelTimer() | bev.PauseStream() | bev.ResumeStream():
                pass  # a LAC that becomes durable later has no effect; streams hold few bytes
            case _:
                raise AssertionError(f"nobody carries out {effect!r}")
        return []

    def _acks(self, stream: int, acks: list[tuple[int, int]], ended: Any) -> list[Emission]:
        emissions: list[Emission] = []
        for session, frames in acks:
            self._check_acked(stream, frames)
            emissions.append(("down", self.slot, session, ("acked", frames)))
        for end in ended:
            self._check_acked(stream, end.frames)
            emissions.append(("down", self.slot, end.session, ("ended", end.frames, end.reason)))
        return emissions

    def _trailer(self, request: Any, trailer: Any, reason: Any, message: str) -> list[Emission]:
        asked, parts = self.asked.pop(request, None), self.parts.pop(request, [])
        if reason:
            return self._tell(request, ev.ReadFailed(request[1], message, reason))
        absent = {i for i in IDS for gap in trailer.absent if gap.first <= i <= gap.last}
        absent -= {i for part in parts for i, _, _ in entries_of(part)}
        fencing = asked is not None and asked.fence_key is not None
        if fencing and not self.fence_durable:
            self.problem = f"I5: b{self.slot} answers a fencing read before its fence is durable"
        if lied := absent & (self.acked | set(self.durable())):
            self.problem = f"I9: b{self.slot} says that it does not have entry {min(lied)}, which it confirmed"
        if fencing:
            self.denied |= absent
        answered = ev.ReadAnswered(
            request[1],
            trailer.answered_through,
            tuple(EntryRange(r.first, r.last) for r in trailer.absent),
            tuple(EntryRange(r.first, r.last) for r in trailer.unknown),
        )
        frames = [ev.FramesRead(request[1], memoryview(b"".join(parts)))] if parts else []
        return self._tell(request, *frames, answered)

    def _lac(self, request: Any, evidence: Any) -> list[Emission]:
        asked = self.asked.pop(request, None)
        if isinstance(asked, bev.FenceRequested) and not self.fence_durable:
            self.problem = f"I5: b{self.slot} answers a fence before it is durable"
        answer = ev.LacAnswered(
            request[1] % 16, bytes(evidence.last_entry_frame), evidence.lac_body, bytes(evidence.lac_frame)
        )
        return self._tell(request, answer)

    def _tell(self, request: Any, *events: Any) -> list[Emission]:
        return [("tell", request[0] - UNARY, events)] if request[0] > UNARY else []

    # --- its own promises ---

    def _check_stored(self, frame: bytes, fenced: bool) -> None:
        normal = parse_header(frame).tag // SESSIONS_PER_CLIENT == WRITER
        for entry_id, data, _ in entries_of(frame):
            if data != payload(entry_id):
                self.problem = f"I10: b{self.slot} stores other bytes as entry {entry_id}"
            elif normal and entry_id in self.denied:
                self.problem = f"I6: b{self.slot} stores entry {entry_id}, which it had denied to a recovery"
            elif normal and fenced:
                self.problem = f"I5: b{self.slot} stores a normal entry {entry_id} behind its fence"

    def _check_acked(self, session: int, frames: int) -> None:
        ids = {entry_id for frame in self.arrived.get(session, [])[:frames] for entry_id in frame}
        if not ids <= set(self.durable()):
            self.problem = f"P1: b{self.slot} confirms entries {sorted(ids)} before they are durable"
        self.acked |= ids


@lru_cache(maxsize=4096)
def entries_of(frame: bytes) -> tuple[tuple[int, bytes, int], ...]:
    """Return (id, payload, LAC) of each entry of a frame."""
    if parse_header(frame).kind != FrameKind.ENTRIES:
        return ()
    batch = decode_frame(frame)
    lacs = batch.lacs if batch.lacs is not None else [batch.lac] * len(batch)
    ends = [int(end) for end in batch.lengths.cumsum()]
    starts = [0, *ends[:-1]]
    data = bytes(batch.payload)
    return tuple(
        (int(i), data[start:end], int(lac))
        for i, start, end, lac in zip(batch.entry_ids(), starts, ends, lacs, strict=True)
    )
