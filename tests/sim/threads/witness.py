# SPDX-License-Identifier: Apache-2.0
"""Stands between the engine and the bookie's machine. It checks that every frame given to a log is answered once, in
order, and correctly.

It also has a client of streams: frames that were answered as durable must be found by the next start.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, ledger_key
from bk_core.entries.frame import decode_frame, encode_frame, split_frames
from bk_core.model import DigestType, EntryId, LedgerId
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.engine.engine import BookieEngine, StreamEffect
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from tests.kit.bookie_effects import parted
from tests.sim.threads.disks import TurnsDisk

KEY = ledger_key(b"")
PATIENCE_S = 600.0


class Witness:
    """Steps the machine, and checks its events and effects."""

    def __init__(self, machine: BookieMachine, disks: Sequence[TurnsDisk], bad: Callable[[str], None]) -> None:
        self._machine, self._disks, self._bad = machine, disks, bad
        self.given: list[deque[bytes | memoryview]] = [deque() for _ in disks]
        self.groups = self.refusals = 0
        self.failed = self.stopped = False

    def step(self, event: ev.Event) -> list[ev.Effect]:
        if isinstance(event, ev.GroupCommitted):
            self._committed(event)
        elif isinstance(event, ev.CommitFailed):
            self._refused(event)
        effects = self._machine.step(event)
        for effect in effects:
            if isinstance(effect, ev.Commit):
                self.given[effect.log].extend(effect.frames)
            elif self.failed and isinstance(effect, ev.SendAcks) and any(effect.frames):
                self._bad("frames are acked after a failed sync")
        return effects

    def _committed(self, event: ev.GroupCommitted) -> None:
        self.groups += 1
        disk, given = self._disks[event.log], self.given[event.log]
        if self.failed:
            return self._bad("a group is answered after a failed sync")
        if len(event.places) > len(given):
            return self._bad(f"{len(event.places)} frames are durable, {len(given)} were given")
        for place in event.places:
            frame = given.popleft()
            wrong = disk.wrong_with(frame, place)
            if wrong:
                return self._bad(f"a frame is told durable and is not: {wrong}")
        if disk.failed_at is not None and disk.failed_at < disk.synced_at(event.places[0]):
            self._bad("a group that was synced after a failure of its directory is told durable (S6)")
        return None

    def _refused(self, event: ev.CommitFailed) -> None:
        self.refusals += 1
        if self.failed:
            self._bad("a second failure is told to the machine")
        if not event.final and not self.given[event.log]:
            self._bad("a group is refused, and none was given")
        self.failed = self.failed or event.final
        for given in self.given if event.final else [self.given[event.log]]:
            given.clear()


class Stream:
    """A client that writes one ledger and reads it."""

    def __init__(self, engine: BookieEngine, ledger_id: LedgerId, bad: Callable[[str], None]) -> None:
        self._engine, self.ledger_id, self._bad = engine, ledger_id, bad
        self._loop, self._digester = asyncio.get_running_loop(), Digester(DigestType.CRC32C, b"", ledger_id)
        self._id = engine.open_stream(self)
        self._sessions = self._requests = 0
        self._sent: list[dict[EntryId, bytes]] = []  # the frames of the current session
        self._acked = 0
        self._ended: Reason | None = None
        self._news = asyncio.Event()
        self._answers: dict[int, ev.SendTrailer | ev.SendLac | ev.SendReply] = {}
        self.confirmed: dict[EntryId, bytes] = {}
        self.seen: dict[EntryId, bytes] = {}
        """The entries that reads returned."""
        self.next_id: EntryId = 0

    def leave(self) -> None:
        """Do nothing: answers that were delivered are known already."""

    def deliver(self, effect: StreamEffect) -> None:
        for each in parted([effect]):
            match each:
                case ev.SendAcks():
                    self._hear(each)
                case ev.SendPart(request, frames):
                    for frame in frames:
                        self._see(bytes(frame))
                    self._loop.call_soon(self._engine.feed, ev.PartSent(request))
                case ev.SendTrailer() | ev.SendLac() | ev.SendReply():
                    self._answers[each.request[1]] = each
        self._news.set()

    def _see(self, frames: bytes) -> None:
        for _, one in split_frames(frames):
            batch = decode_frame(one, digester=self._digester, verify_digests=True)
            self.seen.update(zip(batch.entry_ids().tolist(), batch.to_list(), strict=True))

    def _hear(self, effect: ev.SendAcks) -> None:
        for session, frames in zip(effect.sessions, effect.frames, strict=True):
            self._ack(session, frames)
        for end in effect.ended:
            self._ack(end.session, end.frames)
            if end.session == self._sessions:
                self._ended = end.reason

    def _ack(self, session: int, frames: int) -> None:
        if session != self._sessions:
            return
        if frames < self._acked or frames > len(self._sent):
            self._bad(f"{frames} frames are acked, after {self._acked}; {len(self._sent)} were sent")
            return
        for sent in self._sent[self._acked : frames]:
            self.confirmed.update(sent)
        self._acked = frames

    async def write(self, frames: Sequence[Sequence[bytes]]) -> Reason | None:
        """Send frames of these entries after those that are durable. Return None when all are durable, or the reason
        why not."""
        self._sessions += 1
        self._sent, self._acked, self._ended = [], 0, None
        session, at = self._sessions, self.next_id
        self._engine.feed(ev.SessionAttached(self._id, session, self.ledger_id, KEY, AttachMode.WRITE))
        for entries in frames:
            self._sent.append({at + k: entry for k, entry in enumerate(entries)})
            one = encode_frame(
                EntryBatch.from_list(entries), digester=self._digester, ledger_id=self.ledger_id, first_entry_id=at,
                lac=-1, length_before=at * 10, session=session,
            )  # fmt: skip
            at += len(entries)
            self._engine.feed(ev.FramesArrived(self._id, memoryview(bytes(one))))
        await self._until(lambda: self._ended is not None or self._acked == len(self._sent))
        self._engine.feed(ev.SessionsDetached(self._id, [session]))
        self.next_id = 1 + max(self.confirmed, default=-1)
        return self._ended

    async def read(self, first: EntryId, last: EntryId) -> ev.SendTrailer:
        request = self._next_request()
        self._engine.feed(ev.ReadRequested(request, self.ledger_id, first, last, 0))
        answer = await self._answer(request)
        assert isinstance(answer, ev.SendTrailer)
        return answer

    async def fence(self) -> object:
        request = self._next_request()
        self._engine.feed(ev.FenceRequested(request, self.ledger_id, KEY))
        return await self._answer(request)

    def _next_request(self) -> ev.RequestId:
        self._requests += 1
        return self._id, self._requests

    async def _answer(self, request: ev.RequestId) -> object:
        await self._until(lambda: request[1] in self._answers)
        return self._answers.pop(request[1])

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def close(self) -> None:
        self._engine.close_stream(self._id)
