# SPDX-License-Identifier: Apache-2.0
"""Runs one machine: feeds it events and carries out its effects. It contains no rule of the protocol.

Everything here runs on one asyncio loop. Effects are carried out in order. An event that comes meanwhile waits, so
``step`` is never re-entered. Each request becomes exactly one event. Every event and effect is logged at DEBUG, so the
log is a trace of the machine.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple

from bk_core.client.running.agenda import Timer, agenda_of
from bk_core.client.running.metrics import ClientMetrics
from bk_core.client.running.refused import Refused
from bk_core.errors import (
    AuthenticationError,
    BookKeeperError,
    LocalProtocolError,
    MetadataConflictError,
    Outcome,
    TransportError,
)
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, LedgerId, LedgerState
from bk_core.protocol.events import (
    AttachSession,
    BookiesRead,
    CancelTimer,
    DetachSession,
    FramesAcked,
    MarkUnderreplicated,
    MetadataCallFailed,
    MetadataConflicted,
    MetadataRead,
    MetadataWritten,
    ReadBookies,
    ReadMetadata,
    SendFrame,
    SessionBroken,
    SessionEnded,
    SetTimer,
    TimerFired,
    WriteMetadata,
)
from bk_core.transport.port import Link, NewSession, Transport
from bk_core.wire.lane.reasons import Reason

T = TypeVar("T")
Given = TypeVarTuple("Given")

logger = logging.getLogger("bk_core.client")


class Driver:
    """Feeds events to the function ``step`` of a machine, and passes each effect to the handler of its type. The driver
    itself handles timers.

    If the machine, a handler or a task raises an unexpected exception, the driver stops and then calls ``crashed``.
    """

    def __init__(
        self, name: str, step: Callable[[Any], Sequence[Any]], crashed: Callable[[BookKeeperError], None]
    ) -> None:
        self.name, self._step, self._crashed = name, step, crashed
        self._handlers: dict[type, Callable[[Any], object]] = {
            SetTimer: self.set_timer,
            CancelTimer: self.cancel_timer,
        }
        self.loop = asyncio.get_running_loop()
        self.agenda = agenda_of(self.loop)
        self._context = contextvars.copy_context()
        self._events: deque[Any] = deque()
        self._running = False
        self._timers: dict[str, Timer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_acts: list[Callable[[], None]] = []
        self.stopped = False

    @property
    def is_idle(self) -> bool:
        """Whether no event is handled or waits, and events are not logged."""
        return not (self._running or self._events or self.stopped or logger.isEnabledFor(logging.DEBUG))

    def begin(self, effects: Iterable[Any]) -> None:
        """Carry out the machine's first effects."""
        self._running = True
        try:
            self._carry(effects, logger.isEnabledFor(logging.DEBUG))
        finally:
            self._running = False
        if self._events and not self.stopped:
            self._run(self._events.popleft())

    def feed(self, event: Any) -> None:
        """Pass an event to the machine, now or after the events that wait. A stopped driver ignores the event."""
        if self.stopped:
            return
        if self._running or self._events:
            self._events.append(event)
            if self._running:
                return
            event = self._events.popleft()  # an interrupt left this event in the queue
        self._run(event)

    def took(self, take: Callable[[*Given], Sequence[Any] | None], *given: *Given) -> bool:
        """Let the machine take an event without the event, by its function ``take``, which returns the effects, and
        carry them out. Return False if the event must be fed: ``take`` returned None, an event is being handled, or
        events are logged."""
        if self._running or self._events or self.stopped or logger.isEnabledFor(logging.DEBUG):
            return False
        self._running = True
        try:
            effects = take(*given)
            if effects:
                self._carry(effects, False)
        except Exception as error:
            self.crash(error)
            return True
        finally:
            self._running = False
        if self._events:
            self._run(self._events.popleft())
        return effects is not None

    def _run(self, event: Any) -> None:
        """Handle this event, and then the events that wait. Usually none waits, so the event does not go through the
        queue."""
        self._running = True
        try:
            debug = logger.isEnabledFor(logging.DEBUG)
            while True:
                if debug:
                    logger.debug("%s <- %s", self.name, _short(event))
                effects = self._step(event)
                if effects:
                    self._carry(effects, debug)
                if not self._events or self.stopped:
                    return
                event = self._events.popleft()
        except Exception as error:
            self.crash(error)
        finally:
            self._running = False

    def crash(self, error: Exception) -> None:
        """Stop after a bug, so that waiting callers get an error and do not wait for ever."""
        logger.exception("%s failed", self.name, exc_info=error)
        self.stop()
        self._crashed(
            LocalProtocolError(f"{self.name} failed inside: {error!r}", remedy="report it", outcome=Outcome.UNKNOWN)
        )

    def _carry(self, effects: Iterable[Any], debug: bool) -> None:
        handlers = self._handlers
        for effect in effects:
            if debug:
                logger.debug("%s -> %s", self.name, _short(effect))
            handlers[type(effect)](effect)

    def handle(self, handlers: Mapping[type, Callable[[Any], object]]) -> None:
        """Set the handlers of these effect types."""
        self._handlers.update(handlers)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task, which is cancelled when the driver stops. The task always runs in the context of the
        operation that made the driver, and not in that of the caller whose event caused it."""
        task = self.loop.create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.crash(error)

    def set_timer(self, effect: SetTimer) -> None:
        """Set the timer that the effect names. This replaces its earlier setting."""
        name = effect.name
        timer = self._timers.get(name)
        if timer is None:
            timer = self._timers[name] = Timer(self.agenda, partial(self._fire, name))
        timer.set(effect.delay_ms / 1000)

    def cancel_timer(self, effect: CancelTimer) -> None:
        timer = self._timers.get(effect.name)
        if timer is not None:
            timer.cancel()

    def _fire(self, name: str) -> None:
        self.feed(TimerFired(name))

    def at_stop(self, act: Callable[[], None]) -> None:
        """Call ``act`` when the driver stops, for any reason. The calls are made in reverse order."""
        self._last_acts.append(act)

    def stop(self) -> None:
        """Stop for good. Make the calls of :meth:`at_stop`, cancel timers and tasks, and ignore all later events."""
        self.stopped = True
        while self._last_acts:
            self._last_acts.pop()()
        for timer in self._timers.values():
            timer.drop()
        self._timers.clear()
        for task in tuple(self._tasks):
            task.cancel()


def _short(what: object) -> str:
    """Return an event or effect as a text of at most 300 characters."""
    text = repr(what)
    return text if len(text) <= 300 else f"{text[:300]}…"


class SessionAdapter:
    """Passes one machine's session effects to the transport, and the transport's callbacks to the machine as events."""

    def __init__(
        self,
        driver: Driver,
        transport: Transport,
        ledger_id: LedgerId,
        ledger_key: bytes,
        counts: ClientMetrics | None = None,
        refused: Refused | None = None,
        acked: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """``acked`` takes an ack (ensemble index, session, frames). By default an ack becomes an event."""
        self._acked = acked or (lambda index, session, frames: driver.feed(FramesAcked(index, session, frames)))
        self._counts, self._refused = counts or ClientMetrics(), refused or Refused()
        self._transport, self._ledger_id, self._ledger_key, self._feed = transport, ledger_id, ledger_key, driver.feed
        driver.handle({SendFrame: self._send, AttachSession: self._attach, DetachSession: self._detach})
        driver.at_stop(self.detach_all)
        self._open: dict[int, tuple[int, Link]] = {}  # ensemble index → its session number and the link of the session
        self._used: set[int] = set()  # sessions whose frames a bookie may have taken

    def _send(self, effect: SendFrame) -> None:
        opened = self._open.get(effect.index)
        if opened is not None:  # otherwise there was no link, and the machine gets a SessionBroken
            self._used.add(effect.session)
            opened[1].send(effect.session, effect.frame)

    def links(self, session: int, count: int) -> frozenset[Link]:
        """Return the links over which this session, the same at ``count`` bookies, goes. The set is empty if the
        session is not open on all of them."""
        links = frozenset(link for number, link in self._open.values() if number == session and link.broken is None)
        return links if len(links) == count else frozenset()

    def note_sent(self, session: int) -> None:
        """Note that a bookie may have taken frames of the session, which were sent past this adapter."""
        self._used.add(session)

    def _detach(self, effect: DetachSession) -> None:
        if effect.index in self._open:
            self._leave(*self._open.pop(effect.index)).detach(effect.session)

    def detach_all(self) -> None:
        """End all sessions of a machine that crashed or was abandoned, so that the transport re-sends no frames."""
        for session, link in self._open.values():
            link.detach(session)
        self._open.clear()

    def _attach(self, effect: AttachSession) -> None:
        listener = _Listener(effect.index, self._feed, self._counts, self._acked)
        if effect.index in self._open:
            self._leave(*self._open.pop(effect.index))
        try:
            link = self._transport.link(effect.bookie)
        except TransportError as error:
            self._refused.heard(error)
            asyncio.get_running_loop().call_soon(listener.on_broken, effect.session, str(error))
            return
        self._open[effect.index] = effect.session, link
        about = self._ledger_id, self._ledger_key, effect.mode, effect.session
        link.attach(NewSession(*about, listener, effect.deferred))

    def _leave(self, session: int, link: Link) -> Link:
        """Note why the link of a session broke, and return the link. The session gets no more frames. If the bookie
        refused this client, it has taken no frame of the session."""
        if link.broken is not None:
            self._refused.heard(link.broken)
            if isinstance(link.broken, AuthenticationError) and link.broken.outcome is Outcome.NOT_APPLIED:
                self._used.discard(session)
        return link

    def settled(self) -> None:
        """Forget sessions and refusals. Every entry sent is confirmed, so they cannot explain a later error."""
        self._used.clear()
        self._refused.forget()

    def because(self, error: BookKeeperError, *, pending: bool) -> BookKeeperError:
        """Return the error that ends a writer: ``error``, or the refusal that caused it (:meth:`Refused.because`).
        ``pending`` says that some entries are not confirmed."""
        for session, link in self._open.values():
            self._leave(session, link)
        return self._refused.because(error, not_applied=pending and not self._used)


class _Listener:
    """Turns the transport's callbacks for one session into events of the machine. ``on_acked`` passes the ack on with
    the ensemble index; it is not a method, because each frame causes several acks."""

    __slots__ = ("_counts", "_feed", "_index", "on_acked")

    def __init__(
        self,
        index: int,
        feed: Callable[[Any], None],
        counts: ClientMetrics,
        acked: Callable[[int, int, int], None],
    ) -> None:
        self._index, self._feed, self._counts = index, feed, counts
        self.on_acked: Callable[[int, int], None] = partial(acked, index)

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        self._counts.sessions_refused += 1
        self._feed(SessionEnded(self._index, session, frames, reason, message))

    def on_broken(self, session: int, message: str) -> None:
        self._counts.sessions_broken += 1
        self._feed(SessionBroken(self._index, session, message))


class MetadataAdapter:
    """Passes one machine's metadata effects to the store, each in a thread. Each result becomes one event. With
    ``under_lock``, the record is written only while this session holds the ledger's repair lock."""

    def __init__(
        self,
        store: MetadataStore,
        ledger_id: LedgerId,
        driver: Driver,
        bookies: Callable[[], Awaitable[BookiesRead]] | None = None,
        counts: ClientMetrics | None = None,
        *,
        under_lock: bool = False,
    ) -> None:
        self._counts = counts or ClientMetrics()
        self._store, self._ledger_id, self._driver = store, ledger_id, driver
        self._write_ledger = store.write_repaired_ledger if under_lock else store.write_ledger
        self._marks: list[asyncio.Task[None]] = []
        handlers: dict[type, Callable[[Any], object]] = {
            WriteMetadata: lambda effect: driver.spawn(self.answer(partial(self._write, effect))),
            ReadMetadata: lambda effect: driver.spawn(self.answer(partial(self._read, effect))),
            MarkUnderreplicated: lambda effect: self._marks.append(driver.spawn(self._mark(effect.bookies))),
        }
        driver.handle(handlers)
        if bookies is not None:
            driver.handle({ReadBookies: lambda _: driver.spawn(self.answer(bookies))})

    async def marked(self) -> None:
        """Wait until missing copies are marked (P8) or the driver stops. To await a mark that the driver cancels would
        look like a cancellation of the caller, so this uses ``asyncio.wait``."""
        if self._marks:
            await asyncio.wait(self._marks)

    async def answer(self, ask: Callable[[], Awaitable[Any]]) -> None:
        """Make a call, and pass the event that it returns, or the event for its failure, to the machine."""
        try:
            event = await ask()
        except MetadataConflictError:
            event = MetadataConflicted()
        except BookKeeperError as error:
            event = MetadataCallFailed(error)
        self._driver.feed(event)

    async def _write(self, effect: WriteMetadata) -> MetadataWritten:
        write = self._write_ledger
        written = await asyncio.to_thread(write, self._ledger_id, effect.metadata, effect.version)
        self._counts.ensemble_changes += written.value.state is LedgerState.OPEN
        return MetadataWritten(written)

    async def _read(self, effect: ReadMetadata) -> MetadataRead:
        return MetadataRead(await asyncio.to_thread(self._store.read_ledger, self._ledger_id, fresh=effect.fresh))

    async def _mark(self, bookies: tuple[BookieId, ...]) -> None:
        """Mark the ledger as lacking copies on these bookies. A failure is only logged, because the entries have their
        ack quorum."""
        try:
            await asyncio.to_thread(self._store.mark_underreplicated, self._ledger_id, bookies)
            self._counts.underreplicated_marks += 1
        except BookKeeperError as error:
            logger.warning("ledger %d lacks entries on %s and could not be marked: %s", self._ledger_id, bookies, error)


class Work(Generic[T]):
    """Runs a machine that ends by itself, and returns the effect that ends it."""

    _metadata: MetadataAdapter

    def __init__(self, name: str, machine: Any) -> None:
        self._start = machine.start
        self._driver = Driver(name, machine.step, self.end)
        self._ended: asyncio.Future[T] = self._driver.loop.create_future()

    async def _run(self) -> T:
        try:
            self._driver.begin(self._start())
            ended = await self._ended
            await self._metadata.marked()
            return ended
        finally:
            self._driver.stop()

    def _finish(self, effect: T) -> None:
        if not self._ended.done():
            self._ended.set_result(effect)

    def end(self, error: BookKeeperError) -> None:
        """End the run with ``error``. The ledger stays in the state that it has reached."""
        if not self._ended.done():
            self._ended.set_exception(error)
