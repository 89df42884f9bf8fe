# SPDX-License-Identifier: Apache-2.0
"""Drives :class:`~bk_core.client.reading.shared_read.SharedRead` over a transport, as one async generator.

The consumer sets the pace: parts that arrive wait in a queue, and a request asks for no more bytes than this queue may
hold. The driver measures how long the consumer waits, and the machine decides how many bookies serve the range.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

from bk_core.client.config import ClientConfig
from bk_core.client.reading.shared_read import SharedRead
from bk_core.client.reading.sharing import Sharing
from bk_core.client.running.driver import Driver
from bk_core.client.running.metrics import Observer
from bk_core.client.running.refused import Refused
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.parts import Parts
from bk_core.errors import BookKeeperError, PermissionDeniedError
from bk_core.model import BookieId, EntryId, LedgerId, LedgerMetadata
from bk_core.observe.traces import spans
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
from bk_core.transport.port import ReadPart, RefusedError, ToldRead, Transport
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import Reason

logger = logging.getLogger(__name__)

PARTS_QUEUED_MAX = 8
"""The number of queued events of a range read at which the tasks that read from bookies wait."""

_Event: TypeAlias = FramesRead | ReadAnswered | ReadFailed


class ReadAdapter:
    """Carries out one machine's reads, each in a task, and turns the answers into events. ``fence_key`` is the ledger
    key, which a read that fences carries."""

    def __init__(
        self,
        driver: Driver,
        transport: Transport,
        ledger_id: LedgerId,
        fence_key: bytes | None,
        timeout_ms: float,
        refused: Refused | None = None,
    ) -> None:
        self._refused = refused or Refused()
        self._driver, self._transport, self._ledger_id = driver, transport, ledger_id
        self._fence_key, self._deadline_s = fence_key, timeout_ms / 1000
        self._reads: dict[int, asyncio.Task[None]] = {}
        driver.handle({SendRead: self._send, CancelRead: self._cancel})

    def _send(self, effect: SendRead) -> None:
        self._reads[effect.request] = self._driver.spawn(self._read(effect))

    def _cancel(self, effect: CancelRead) -> None:
        task = self._reads.pop(effect.request, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _read(self, effect: SendRead) -> None:
        key = self._fence_key if effect.fence else None
        try:
            parts = _asked(self._transport, self._ledger_id, effect, key, self._deadline_s)
        except BookKeeperError as error:
            self._driver.feed(_event_of(effect, error, self._refused))
        else:
            async with aclosing(_events_of(parts, effect, self._refused)) as events:
                async for event in events:
                    self._driver.feed(event)
        self._reads.pop(effect.request, None)


def _asked(
    transport: Transport, ledger_id: LedgerId, effect: SendRead, fence_key: bytes | None, deadline_s: float
) -> AsyncIterator[ReadPart | ReadTrailer]:
    return transport.link(effect.bookie).read(
        ledger_id,
        effect.first,
        effect.last,
        bytes_max=effect.bytes_max,
        fence_key=fence_key,
        cut=effect.cut,
        deadline_s=deadline_s,
    )


async def _events_of(
    parts: AsyncIterator[ReadPart | ReadTrailer], effect: SendRead, refused: Refused
) -> AsyncGenerator[_Event, None]:
    try:
        async with aclosing(cast("AsyncGenerator[ReadPart | ReadTrailer, None]", parts)):
            async for part in parts:
                yield _event_of(effect, part, refused)
                if isinstance(part, ReadTrailer):
                    return
    except BookKeeperError as error:
        yield _event_of(effect, error, refused)
        return
    yield ReadFailed(effect.request, f"bookie {effect.bookie} ended its answer without a trailer")


def _event_of(effect: SendRead, answer: ReadPart | ReadTrailer | BookKeeperError, refused: Refused) -> _Event:
    refused.heard(answer)
    if isinstance(answer, ReadPart):
        return FramesRead(effect.request, answer.frames)
    if isinstance(answer, ReadTrailer):
        said = sorted({f"{r.reason.name} {r.message}".strip() for r in answer.unknown}) if answer.unknown else ()
        return ReadAnswered(effect.request, answer.answered_through, answer.absent, answer.unknown, "; ".join(said))
    reason = answer.reason if isinstance(answer, RefusedError) else Reason.REASON_NONE
    return ReadFailed(effect.request, answer.what if reason is Reason.PERMISSION_DENIED else str(answer), reason)


async def read_range(
    transport: Transport,
    metadata: LedgerMetadata,
    digester: Digester,
    first: EntryId,
    last: EntryId,
    *,
    config: ClientConfig,
    prefer: int = 0,
    slow: Quarantine | None = None,
    parts: Parts | None = None,
    keep_heads: bool = False,
    observer: Observer | None = None,
) -> AsyncGenerator[EntryBatch, None]:
    """Read the entries ``first`` to ``last`` in order, each once and verified. Bookies in ``slow`` are asked last. With
    ``parts``, read only these parts of the entries. With ``keep_heads``, a batch may have the column ``heads``. Raises
    NoSuchEntryError, EntryUnreadableError, PermissionDeniedError, and AuthenticationError if every bookie of an entry
    refuses this client."""
    make = partial(
        RangeRead,
        metadata,
        digester,
        speculative_ms=config.speculative_read_ms,
        parts=parts,
        keep_heads=keep_heads,
    )
    sharing = Sharing(metadata.write_quorum_size)
    read = SharedRead(
        make,
        metadata,
        first,
        last,
        sharing=sharing,
        bytes_max=config.read_bytes_max,
        prefer=prefer,
        avoid=slow.now() if slow is not None else (),
    )
    requests = _Requests(transport, digester.ledger_id, config.read_timeout_ms / 1000, read.goes_on, sharing.waited)
    requests.trace(first, last)
    observer = observer or Observer()
    counts, began, waits = observer.counts, time.monotonic(), True
    try:
        effects = read.start()
        while True:
            for effect in effects:
                if isinstance(effect, DeliverBatch):
                    requests.refused.forget()
                    if waits:
                        waits = False
                        began_to_come(observer, digester.ledger_id, first, last, time.monotonic() - began)
                    counts.read_entries += effect.batch.lengths.size
                    counts.read_bytes += effect.batch.payload.nbytes
                    if effect.batch.heads is not None:
                        counts.read_bytes -= int(effect.batch.heads.sum())
                    yield effect.batch
                elif isinstance(effect, FinishRead):
                    return
                elif isinstance(effect, Fail):
                    counts.reads_failed += 1
                    requests.failed(effect.error)
                    raise requests.refused.because(effect.error)
                else:
                    requests.carry_out(effect)
            event = await requests.next_event()
            if isinstance(event, ReadFailed) and event.reason is Reason.PERMISSION_DENIED:
                raise PermissionDeniedError.told(event.message)
            effects = read.step(event)
    finally:
        if slow is not None:
            slow.note(read.suspects, config.quarantine_ms / 1000)
        requests.stop()


def began_to_come(observer: Observer, ledger_id: LedgerId, first: EntryId, last: EntryId, took_s: float) -> None:
    """Count the time ``took_s`` until the first entries of a range came, and log a slow read."""
    observer.counts.read_seconds.observe(took_s)
    if took_s >= observer.slow_s:
        observer.was_slow(
            lambda: f"read of ledger {ledger_id}, entries {first} to {last}: first entry after {took_s * 1000:,.0f} ms"
        )


class Quarantine:
    """The bookies that failed or were late. Each stays in quarantine until a time; until then other bookies are
    preferred."""

    def __init__(self) -> None:
        self._until: dict[BookieId, float] = {}

    def now(self) -> tuple[BookieId, ...]:
        """Return the bookies that are in quarantine now."""
        if not self._until:
            return ()
        now = time.monotonic()
        self._until = {bookie: until for bookie, until in self._until.items() if until > now}
        return tuple(self._until)

    def note(self, bookies: Iterable[BookieId], quarantine_s: float) -> None:
        self._until.update(dict.fromkeys(bookies, time.monotonic() + quarantine_s))


class _Cancels(Protocol):
    """A request or a timer in progress."""

    def cancel(self) -> object: ...


@dataclass(slots=True)
class _Ahead:
    """A request that was sent before the machine asked for it. A bookie that has answered gets the next request while
    its answer is still being verified. ``wanted`` says whether the machine then asked for this request; it is None
    until then."""

    effect: SendRead
    asked: _Cancels | None = None
    wanted: bool | None = None


class _Timer:
    """A timer that was set. After a cancel, or once a new timer of the same name replaces it, its event is dropped,
    even if the event is already in the queue."""

    __slots__ = ("handle", "wanted")

    def __init__(self) -> None:
        self.wanted = True
        self.handle: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        self.wanted = False
        if self.handle is not None:
            self.handle.cancel()


class _Requests:
    """The requests of one range read. A :class:`ToldRead` puts its answers into the event queue by itself, at most the
    bytes that it asked for. Each other read has a task, which waits while PARTS_QUEUED_MAX events are queued.
    ``goes_on`` says whether a request continues after its answer, and ``waited`` is called after each wait."""

    def __init__(
        self,
        transport: Transport,
        ledger_id: LedgerId,
        deadline_s: float,
        goes_on: Callable[[int], bool],
        waited: Callable[[float, float, float], None],
    ) -> None:
        self._transport, self._ledger_id, self._deadline_s = transport, ledger_id, deadline_s
        self._goes_on, self._waited = goes_on, waited
        self._loop = asyncio.get_running_loop()
        self.refused = Refused()
        self._events: deque[tuple[_Ahead | _Timer | None, ReadEvent]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()  # tasks that wait until the queue is shorter
        self._asked: dict[int | str, _Cancels] = {}
        self._ahead: _Ahead | None = None
        self._spans = spans()
        self._span: Any = None  # current only while a request is made, because other code runs while the read waits

    def trace(self, first: EntryId, last: EntryId) -> None:
        """Begin the span of the read, which :meth:`stop` ends."""
        if self._spans is not None:
            about = {"ledger": self._ledger_id, "first_entry": first, "last_entry": last}
            self._span = self._spans.begin("read", self._spans.here(), **about)

    def failed(self, error: BookKeeperError) -> None:
        if self._spans is not None:
            self._spans.fail(self._span, error)

    def carry_out(self, effect: SendRead | CancelRead | SetTimer) -> None:
        if isinstance(effect, SendRead):
            self._asked[effect.request] = self._asked_ahead(effect) or self._ask(effect)
        elif isinstance(effect, SetTimer):
            self._cancel(effect.name)
            self._set(effect)
        else:
            self._cancel(effect.request)

    def _ask_ahead(self, effect: SendRead, answer: ReadAnswered) -> None:
        """Send the request that continues where this answer ends, if the machine is likely to ask for it."""
        through = answer.answered_through
        if self._ahead is not None or not effect.first <= through < effect.last or answer.absent or answer.unknown:
            return
        if self._goes_on(effect.request):
            self._ahead = ahead = _Ahead(replace(effect, request=effect.request + 1, first=through + 1))
            ahead.asked = self._ask(ahead.effect, ahead)

    def _asked_ahead(self, effect: SendRead) -> _Cancels | None:
        """Return the request that was sent ahead if it equals ``effect``. Otherwise cancel it and return None."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.asked is None:
            return None
        ahead.wanted = ahead.effect == effect
        if not ahead.wanted:
            ahead.asked.cancel()
        return ahead.asked if ahead.wanted else None

    def _cancel(self, name: int | str) -> None:
        asked = self._asked.pop(name, None)
        if asked is not None:
            asked.cancel()

    # --- events ---

    async def next_event(self) -> ReadEvent:
        while True:
            while not self._events:
                began = time.monotonic()
                self._waiter = self._loop.create_future()
                await self._waiter
                now = time.monotonic()
                self._waited(now, now - began, time.thread_time())
            source, event = self._events.popleft()
            if self._room and not (room := self._room.popleft()).done():
                room.set_result(None)
            if source is not None and not source.wanted:
                continue
            if isinstance(event, TimerFired):
                self._asked.pop(event.name, None)
            elif not isinstance(event, FramesRead):
                self._asked.pop(event.request, None)
            return event

    def _put(self, source: _Ahead | _Timer | None, event: ReadEvent) -> None:
        self._events.append((source, event))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- requests ---

    def _ask(self, effect: SendRead, ahead: _Ahead | None = None) -> _Cancels:
        try:
            if self._spans is None:
                read = _asked(self._transport, self._ledger_id, effect, None, self._deadline_s)
            else:
                with self._spans.current(self._span):
                    read = _asked(self._transport, self._ledger_id, effect, None, self._deadline_s)
        except BookKeeperError as error:
            self._put(ahead, _event_of(effect, error, self.refused))
            return self._loop.create_future()
        if not isinstance(read, ToldRead):
            return self._loop.create_task(self._take(read, effect, ahead))
        read.tell(partial(self._told, effect, ahead))
        return read

    def _told(
        self,
        effect: SendRead,
        ahead: _Ahead | None,
        frames: memoryview | None,
        end: ReadTrailer | BookKeeperError | None,
    ) -> None:
        try:
            if frames is not None:
                self._heard(effect, ahead, _event_of(effect, ReadPart(frames), self.refused))
            if end is not None:
                self._heard(effect, ahead, _event_of(effect, end, self.refused))
        except Exception as error:  # a bug, as in `_take`; the connection did not fail
            self._failed(effect, ahead, error)

    def _heard(self, effect: SendRead, ahead: _Ahead | None, event: _Event) -> None:
        self._put(ahead, event)
        if isinstance(event, ReadAnswered):  # the next answer must not come before the end of this one
            self._ask_ahead(effect, event)

    async def _take(self, read: AsyncIterator[ReadPart | ReadTrailer], effect: SendRead, ahead: _Ahead | None) -> None:
        try:
            async with aclosing(_events_of(read, effect, self.refused)) as events:
                async for event in events:
                    while len(self._events) >= PARTS_QUEUED_MAX:
                        self._room.append(self._loop.create_future())
                        await self._room[-1]
                    self._heard(effect, ahead, event)
        except Exception as error:  # a bug: fail the read, or it would wait for ever
            self._failed(effect, ahead, error)

    def _failed(self, effect: SendRead, ahead: _Ahead | None, error: Exception) -> None:
        logger.error("a read of ledger %d failed", self._ledger_id, exc_info=error)
        self._put(ahead, ReadFailed(effect.request, repr(error)))

    # --- timers ---

    def _set(self, effect: SetTimer) -> None:
        timer = self._asked[effect.name] = _Timer()
        timer.handle = self._loop.call_later(effect.delay_ms / 1000, self._put, timer, TimerFired(effect.name))

    def stop(self) -> None:
        if self._ahead is not None and self._ahead.asked is not None:
            self._ahead.asked.cancel()
        for asked in self._asked.values():
            asked.cancel()
        if self._span is not None:
            self._span.end()
