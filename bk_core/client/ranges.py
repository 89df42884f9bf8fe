# SPDX-License-Identifier: Apache-2.0
"""Drives :class:`~bk_core.protocol.reader.RangeRead` over a transport, as one async generator.

The consumer sets the pace: parts that arrive wait in a short queue, and while it is full no stream is read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import cast

from bk_core.client.config import ClientConfig
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.parts import Parts
from bk_core.errors import BookKeeperError
from bk_core.model import BookieId, EntryId, LedgerId, LedgerMetadata
from bk_core.protocol.events import (
    CancelRead,
    DeliverBatch,
    Fail,
    FinishRead,
    FramesRead,
    ReadAnswered,
    ReadFailed,
    SendRead,
    SetTimer,
    TimerFired,
)
from bk_core.protocol.reader import RangeRead, ReadEvent
from bk_core.transport.port import ReadPart, ReadTrailer, RefusedError, Transport
from bk_core.wire.lane import Reason

logger = logging.getLogger(__name__)

PARTS_QUEUED_MAX = 8


async def answer_events(
    transport: Transport, ledger_id: LedgerId, effect: SendRead, *, fence_key: bytes | None, deadline_s: float
) -> AsyncGenerator[FramesRead | ReadAnswered | ReadFailed, None]:
    """Send one request; yields its events. The last is ReadAnswered, or ReadFailed after any error or a deadline."""
    try:
        parts = transport.read(
            effect.bookie,
            ledger_id,
            effect.first,
            effect.last,
            bytes_max=effect.bytes_max,
            fence_key=fence_key,
            cut=effect.cut,
            deadline_s=deadline_s,
        )
        async with aclosing(cast("AsyncGenerator[ReadPart | ReadTrailer, None]", parts)):
            async for part in parts:
                if isinstance(part, ReadPart):
                    yield FramesRead(effect.request, part.frames)
                else:
                    yield _answered(effect.request, part)
                    return
    except BookKeeperError as error:
        reason = error.reason if isinstance(error, RefusedError) else Reason.REASON_NONE
        yield ReadFailed(effect.request, str(error), reason)
        return
    yield ReadFailed(effect.request, f"bookie {effect.bookie} ended its answer without a trailer")


def _answered(request: int, trailer: ReadTrailer) -> ReadAnswered:
    return ReadAnswered(
        request,
        trailer.answered_through,
        trailer.absent,
        trailer.unknown,
        "; ".join(sorted({f"{r.reason.name} {r.message}".strip() for r in trailer.unknown})),
    )


async def read_range(
    transport: Transport,
    metadata: LedgerMetadata,
    digester: Digester,
    first: EntryId,
    last: EntryId,
    *,
    config: ClientConfig,
    prefer: int = 0,
    slow: SlowBookies | None = None,
    parts: Parts | None = None,
) -> AsyncGenerator[EntryBatch, None]:
    """The entries ``first`` to ``last``, in order, each once, verified. Bookies that were ``slow`` lately are asked
    last. ``parts``: these instead of whole entries. Raises NoSuchEntryError or EntryUnreadableError."""
    read = RangeRead(
        metadata,
        digester,
        first,
        last,
        bytes_max=config.read_bytes_max,
        prefer=prefer,
        speculative_ms=config.speculative_read_ms,
        avoid=slow.now() if slow is not None else (),
        parts=parts,
    )
    requests = _Requests(transport, digester.ledger_id, config.read_timeout_ms / 1000)
    try:
        effects = read.start()
        while True:
            for effect in effects:
                if isinstance(effect, DeliverBatch):
                    yield effect.batch
                elif isinstance(effect, FinishRead):
                    return
                elif isinstance(effect, Fail):
                    raise effect.error
                else:
                    requests.carry_out(effect)
            effects = read.step(await requests.next_event())
    finally:
        if slow is not None:
            slow.note(read.suspects, config.quarantine_ms / 1000)
        requests.stop()


class SlowBookies:
    """Bookies that failed or were late, and until when they are asked last."""

    def __init__(self) -> None:
        self._until: dict[BookieId, float] = {}

    def now(self) -> tuple[BookieId, ...]:
        """The bookies to ask last now."""
        now = time.monotonic()
        self._until = {bookie: until for bookie, until in self._until.items() if until > now}
        return tuple(self._until)

    def note(self, bookies: Iterable[BookieId], quarantine_s: float) -> None:
        self._until.update(dict.fromkeys(bookies, time.monotonic() + quarantine_s))


@dataclass(slots=True)
class _Ahead:
    """A request that was sent before the machine asked for it: who has answered gets the next question at once, while
    what came is still being verified. ``wanted``: the machine has asked for it since; None: not yet."""

    effect: SendRead
    task: asyncio.Task[None] | None = None
    wanted: bool | None = None


class _Requests:
    """The requests of one range read, each a task that puts its events into one bounded queue."""

    def __init__(self, transport: Transport, ledger_id: LedgerId, deadline_s: float) -> None:
        self._transport, self._ledger_id, self._deadline_s = transport, ledger_id, deadline_s
        self._events: asyncio.Queue[tuple[_Ahead | None, ReadEvent | asyncio.Task[None]]]
        self._events = asyncio.Queue(PARTS_QUEUED_MAX)
        self._tasks: dict[int | str, asyncio.Task[None]] = {}
        self._ahead: _Ahead | None = None

    def carry_out(self, effect: SendRead | CancelRead | SetTimer) -> None:
        if isinstance(effect, SendRead):
            self._tasks[effect.request] = self._asked_ahead(effect) or asyncio.create_task(self._ask(effect))
        elif isinstance(effect, SetTimer):
            self._cancel(effect.name)
            self._tasks[effect.name] = asyncio.create_task(self._later(effect))
        else:
            self._cancel(effect.request)

    def _ask_ahead(self, effect: SendRead, answer: ReadAnswered) -> None:
        """Ask on where this answer ends, if it is likely that the machine will."""
        through = answer.answered_through
        if self._ahead is None and effect.first <= through < effect.last and not (answer.absent or answer.unknown):
            self._ahead = ahead = _Ahead(replace(effect, request=effect.request + 1, first=through + 1))
            ahead.task = asyncio.create_task(self._ask(ahead.effect, ahead))

    def _asked_ahead(self, effect: SendRead) -> asyncio.Task[None] | None:
        """The task of the request that was sent ahead, if it is this one. Any other one was in vain."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.task is None:
            return None
        ahead.wanted = ahead.effect == effect
        if not ahead.wanted:
            ahead.task.cancel()
        return ahead.task if ahead.wanted else None

    def _cancel(self, name: int | str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def next_event(self) -> ReadEvent:
        while True:
            ahead, event = await self._events.get()
            if ahead is not None and not ahead.wanted:
                continue
            if isinstance(event, asyncio.Task):
                fired = self._timer_of(event)
                if fired is not None:
                    return fired
                continue
            if isinstance(event, (ReadAnswered, ReadFailed)):
                self._tasks.pop(event.request, None)
            return event

    def _timer_of(self, task: asyncio.Task[None]) -> TimerFired | None:
        """The timer's event; None if the timer was set again while its end waited in the queue."""
        for name, running in self._tasks.items():
            if running is task and isinstance(name, str):
                del self._tasks[name]
                return TimerFired(name)
        return None

    async def _ask(self, effect: SendRead, ahead: _Ahead | None = None) -> None:
        events = answer_events(self._transport, self._ledger_id, effect, fence_key=None, deadline_s=self._deadline_s)
        try:
            async with aclosing(events):
                async for event in events:
                    await self._events.put((ahead, event))
                    if isinstance(event, ReadAnswered):  # behind the answer's end, which nothing may overtake
                        self._ask_ahead(effect, event)
        except Exception as error:  # a bug: fail the read, or it would wait for ever
            logger.exception("a read of ledger %d failed", self._ledger_id)
            await self._events.put((ahead, ReadFailed(effect.request, repr(error))))

    async def _later(self, effect: SetTimer) -> None:
        await asyncio.sleep(effect.delay_ms / 1000)
        task = asyncio.current_task()
        assert task is not None
        await self._events.put((None, task))

    def stop(self) -> None:
        if self._ahead is not None and self._ahead.task is not None:
            self._ahead.task.cancel()
        for task in self._tasks.values():
            task.cancel()
