# SPDX-License-Identifier: Apache-2.0
"""The handle of a ledger that is being written.

The machine (:mod:`bk_core.protocol.writer`) decides; this file queues payloads, joins them into batches while a frame
is in flight, bounds the window, and wakes callers. ``append_nowait`` and ``append_future`` may be called from any
thread; everything else belongs to the loop. A cancelled ``append`` stops waiting; its entry is sent nevertheless.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import threading
from bisect import insort
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any

from bk_core.client.config import ClientConfig
from bk_core.client.running import fork
from bk_core.client.running.driver import Driver, MetadataAdapter, SessionAdapter
from bk_core.client.running.fork import ForkGuard
from bk_core.client.running.metrics import Observer
from bk_core.client.writing.append_queue import ENTRY_COST_BYTES, AppendQueue, check_bytes, cost
from bk_core.client.writing.append_room import Piece, Room
from bk_core.client.writing.append_spans import append_spans
from bk_core.client.writing.process_budget import process_budget
from bk_core.entries.apache import lac_body
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.entries.digest import ledger_key
from bk_core.entries.packets import pieces
from bk_core.errors import (
    BookKeeperError,
    ClientClosedError,
    EntryTooLargeError,
    InvalidArgumentError,
    LedgerClosedError,
    QuorumTimeoutError,
    WindowFullError,
)
from bk_core.metadata.port import MetadataStore
from bk_core.model import ENTRY_ID_MAX, BookieId, EntryId, LedgerId, LedgerMetadata
from bk_core.observe.traces import traced
from bk_core.protocol import writer as machine
from bk_core.protocol.events import (
    Acked,
    Append,
    BookiesRead,
    Close,
    Confirm,
    Fail,
    FailClose,
    FinishClose,
    Force,
    Forced,
    ForceFailed,
    SendForce,
    SendLac,
)
from bk_core.quorum import holders
from bk_core.transport.port import Transport
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX


class LedgerWriter:
    """A ledger open for appending. Made by ``BookKeeper.create_ledger``; an async context manager that closes it.

    ``length`` is in payload bytes. After a failure every call raises the error that ended the writer.
    """

    def __init__(
        self,
        protocol: machine.LedgerWrite,
        *,
        store: MetadataStore,
        transport: Transport,
        config: ClientConfig,
        bookies: Callable[[tuple[BookieId, ...]], Awaitable[BookiesRead]],
        explicit_ids: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self._machine, self._transport, self._config = protocol, transport, config
        self._observer = observer or Observer(config.slow_operation_ms)
        counts = self._counts = self._observer.counts
        self._counted = protocol.lac  # how far entries are counted as confirmed
        password = protocol.metadata.value.password or b""
        self._key = ledger_key(password)
        self._driver = Driver(f"writer of ledger {protocol.ledger_id}", self._step, self._end)
        self._loop, self._thread = self._driver.loop, threading.get_ident()
        self._sessions = SessionAdapter(self._driver, transport, protocol.ledger_id, self._key, counts)
        self._metadata = MetadataAdapter(
            store, protocol.ledger_id, self._driver, lambda: bookies(self._failed_bookies()), counts
        )
        self._driver.handle(
            {
                Acked: lambda effect: self._confirm(effect.through),
                Confirm: self._confirmed,
                SendForce: lambda effect: self._driver.spawn(self._send_force(effect)),
                SendLac: self._hint_lac,
                FinishClose: lambda _: None if self._closed.done() else self._closed.set_result(None),
                Fail: lambda effect: self._end(effect.error),
                FailClose: lambda effect: self._end(effect.error),
            }
        )
        self._traced = append_spans(protocol.ledger_id)
        self._guard = ForkGuard()
        self._queue = AppendQueue()
        self._room = Room(
            self._queue,
            process_budget().share(self._loop, self._flush_and_wake),
            window_bytes_max=config.window_bytes_max,
            slow_bookie_bytes_max=config.slow_bookie_bytes_max,
        )
        self._has_room = self._room.has
        self._explicit_ids, self._deferred = explicit_ids, protocol.delivery.deferred
        self._driver.at_stop(self._room.leave)
        self._flush_scheduled = self._wake_scheduled = self._held = False
        self._moved = asyncio.Event()  # the queue may have become shorter, or the writer has ended
        # last id, bytes, and time of sending of batches that are not confirmed yet
        self._sizes: deque[tuple[EntryId, int, float]] = deque()
        self._waiters: list[tuple[EntryId, int, asyncio.Future[None]]] = []
        self._forces: list[tuple[EntryId, asyncio.Future[None]]] = []
        self._ticket = 0
        self._futures: deque[tuple[EntryId, concurrent.futures.Future[EntryId]]] = deque()  # of append_future, by id
        self._error: BookKeeperError | None = None
        self._closing = self._abandoned = False
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._driver.begin(protocol.start())

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> LedgerId:
        return self._machine.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._machine.metadata.value

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._machine.lac

    @property
    def last_add_pushed(self) -> EntryId:
        """The highest id given to an entry, sent or not."""
        return self._queue.last_id

    @property
    def length(self) -> int:
        return self._machine.length

    @property
    def is_failed(self) -> bool:
        return self._error is not None

    # --- appending ---------------------------------------------------------------------------------------------------

    def append_nowait(self, payload: Bytes, entry_id: EntryId | None = None) -> EntryId:
        """Queue one entry and return its id; any thread may call. The payload must not be changed afterwards.

        ``entry_id`` is for a ledger made with ``explicit_ids``, whose ids the caller gives: each once, in any order.
        The entry is sent once every id below it was given. Raises WindowFullError when the window has no room,
        EntryTooLargeError, DuplicateEntryIdError, LedgerClosedError, or the error that ended this writer; in all cases
        the entry was not queued.
        """
        queue = self._queue
        with queue.lock:
            if type(payload) is bytes and entry_id is None and not self._explicit_ids:
                size = len(payload)
                held = queue.held + ENTRY_COST_BYTES + size
                # what _put does when there is nothing to say
                if held <= queue.free_to and size <= ENTRY_BYTES_MAX and self._guard.made_in == fork.generation:
                    queue.held = held
                    queue.tail.append(payload)
                    if not self._flush_scheduled:
                        self._schedule_flush()
                    return queue.tail_first + len(queue.tail) - 1
            entry_id = self._put(payload, entry_id)
            self._schedule_flush()
        return entry_id

    def append_future(self, payload: Bytes, entry_id: EntryId | None = None) -> concurrent.futures.Future[EntryId]:
        """As append_nowait, from any thread. The future gets the id once the entry is confirmed, or the error that
        ended the writer before. The fastest way for a thread that waits: it needs no task, and two loop turns less."""
        future: concurrent.futures.Future[EntryId] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # not to be cancelled: the entry will be sent
        with self._queue.lock:
            entry_id = self._put(payload, entry_id)
            insort(self._futures, (entry_id, future))
            self._schedule_flush()
        return future

    def _put(self, payload: Bytes, entry_id: EntryId | None) -> EntryId:
        """Queue one entry. The queue's lock is held."""
        if type(payload) is not bytes:
            check_bytes(payload)
        size = len(payload)
        if size > ENTRY_BYTES_MAX:
            raise EntryTooLargeError(
                f"an entry may have at most {ENTRY_BYTES_MAX} bytes",
                value=f"this one has {size}",
                remedy="split the value over several entries",
            )
        self._check_open()
        if self._explicit_ids or entry_id is not None:
            self._check_id(entry_id)
        if not self._has_room(cost(size, 1)) and (entry_id is None or not self._is_awaited(entry_id)):
            if self._deferred:
                self._loop.call_soon_threadsafe(self._force_for_room)
            raise WindowFullError(
                f"the window of ledger {self.ledger_id} is full",
                value=f"window_bytes_max={self._config.window_bytes_max}, and all writers of this process: "
                f"process_window_bytes_max={self._config.process_window_bytes_max}",
                remedy="wait for confirmations (wait_confirmed) or use append",
            )
        if entry_id is None:
            return self._queue.put(payload)
        self._queue.put_at(entry_id, payload)
        return entry_id

    def _check_id(self, entry_id: EntryId | None) -> None:
        """Raises InvalidArgumentError, DuplicateEntryIdError. The queue's lock is held."""
        if not self._explicit_ids:
            raise InvalidArgumentError(
                f"ledger {self.ledger_id} numbers its entries itself",
                value=f"entry_id={entry_id}",
                remedy="make the ledger with explicit_ids=True",
            )
        if entry_id is None or not 0 <= entry_id <= ENTRY_ID_MAX:
            raise InvalidArgumentError(
                f"the entries of ledger {self.ledger_id} get their ids from the caller",
                value=f"entry_id={entry_id}",
                remedy="give append, or append_nowait, an id from 0 on",
            )
        self._queue.check_new(entry_id)

    def _is_awaited(self, entry_id: EntryId) -> bool:
        """Whether everything that fills the window waits for this entry: then it needs no room, or all would wait for
        ever. The queue's lock is held."""
        at_rest = not self._queue and self._machine.idle and not self._room.is_slow
        return entry_id == self._queue.next_id and at_rest

    async def append(self, payload: Bytes, entry_id: EntryId | None = None) -> EntryId:
        """Append one entry; returns its id once an ack quorum has it on disk and every entry before it is confirmed.

        ``entry_id`` as in append_nowait. Raises what that does, except WindowFullError: it waits for room, first come
        first served. After an error of unknown outcome, such as LedgerFencedError, the entry may be part of the ledger.
        """
        try:
            with self._queue.lock:
                entry_id = self._put(payload, entry_id)
        except WindowFullError:
            entry_id = await (self._line_up([payload]) if entry_id is None else self._wait_for_room(payload, entry_id))
        else:
            if self._traced is not None:
                self._traced.appends()
            self._flush()  # entries appended meanwhile go with the next frame
        waiter = self._waiter(entry_id)
        if waiter is not None:
            await waiter
        return entry_id

    async def _wait_for_room(self, payload: Bytes, entry_id: EntryId) -> EntryId:
        """An entry with an id of the caller's stands in no line: that of a higher id would let it wait for ever."""
        while True:
            self._moved.clear()
            with self._queue.lock:
                has_room = self._room.ask(cost(len(payload), 1))
            if not has_room:
                await self._moved.wait()
            with suppress(WindowFullError):
                return self.append_nowait(payload, entry_id)

    async def append_batch(self, batch: EntryBatch) -> EntryId:
        """Queue a batch, in parts if it must wait for room; returns the id of its last entry. Its entries get
        consecutive ids: no other entry comes between them.

        The batch's buffers must not be changed until the entries are confirmed. For an empty batch the last id given
        out is returned. After an error of unknown outcome, or a cancellation, the ledger may hold its first entries.
        """
        return await self._line_up(pieces(batch, self._config.frame_bytes))

    async def _line_up(self, wanted: Sequence[Piece]) -> EntryId:
        with self._queue.lock:
            self._check_open()
            if self._explicit_ids:
                self._check_id(None)
            last = self._room.line_up(wanted)
        if self._traced is not None:
            self._traced.appends()
        self._flush()
        if not last.done():
            self._force_for_room()
        return await last

    def _force_for_room(self) -> None:
        """What deferred syncs leave unforced is kept, and takes room: force it."""
        if self._deferred and self._machine.forced_to < self._machine.lap:
            self._driver.feed(Force())

    async def wait_confirmed(self, entry_id: EntryId) -> None:
        """Wait until ``entry_id`` and all entries before it are confirmed. Raises the error that ended the writer if
        that came first; the error's outcome says whether the entry may be in the ledger."""
        waiter = self._waiter(entry_id)
        if waiter is not None:
            await waiter

    def _waiter(self, entry_id: EntryId) -> asyncio.Future[None] | None:
        """Done once ``entry_id`` is confirmed; None if it is. Raises the error that ended the writer."""
        self._guard.check("this ledger")
        if entry_id <= self._machine.acked:
            return None
        if self._error is not None:
            raise self._error
        if entry_id > self.last_add_pushed:
            raise InvalidArgumentError(
                "no such entry was appended", value=f"entry {entry_id}; last is {self.last_add_pushed}"
            )
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._ticket += 1
        heapq.heappush(self._waiters, (entry_id, self._ticket, waiter))
        return waiter

    async def flush(self) -> None:
        """Wait until everything appended so far is confirmed."""
        await self.wait_confirmed(self._queue.next_id - 1)

    async def force(self) -> EntryId:
        """Make everything appended so far durable, of a ledger made with ``deferred_sync``; returns the LAC. Without
        deferred syncs it waits as :meth:`flush`. Raises the error that ended the writer if that came first."""
        await self.flush()
        last = self._queue.next_id - 1
        if self._machine.lac < last:
            if self._error is not None:
                raise self._error
            forced: asyncio.Future[None] = self._loop.create_future()
            self._forces.append((last, forced))
            self._driver.feed(Force())
            await forced
        return self._machine.lac

    async def write_lac(self) -> EntryId:
        """Tell the bookies that hold the last confirmed entry that it is; returns its id once an ack quorum has taken
        this. A reader who asks them then sees that LAC, although no later entry carries it. Raises QuorumTimeoutError,
        and the error that ended this writer.

        A writer without entries in flight does this by itself after ``explicit_lac_delay_ms``.
        """
        self._check_open()
        lac, value = self._machine.lac, self.metadata
        if lac < value.last_fragment.first_entry_id:
            return lac  # there is none, or the ledger's record proves it
        body = lac_body(lac, self._machine.digester)
        telling = [asyncio.ensure_future(self._told_lac(bookie, body)) for bookie in holders(lac, value)]
        problems = list[str]()
        try:
            for number, answer in enumerate(asyncio.as_completed(telling), 1):
                problems += filter(None, [await answer])
                if number - len(problems) >= value.ack_quorum_size:
                    return lac
        finally:
            for task in telling:
                task.cancel()
        raise QuorumTimeoutError(
            f"too few bookies took the LAC {lac} of ledger {self.ledger_id}",
            value="; ".join(problems),
            remedy="call it again; entries are as confirmed as before",
        )

    async def _told_lac(self, bookie: BookieId, body: bytes) -> str:
        """Empty once the bookie has taken the LAC, else why not."""
        try:
            deadline_s = self._config.lac_timeout_ms / 1000
            await self._transport.link(bookie).write_lac(self.ledger_id, self._key, body, deadline_s=deadline_s)
        except BookKeeperError as error:
            return f"{bookie}: {error}"
        return ""

    # --- ending ------------------------------------------------------------------------------------------------------

    @traced("close_ledger", ledger="ledger_id")
    async def close(self) -> None:
        """Send the queued entries and close the ledger at its last entry. May be called again.

        Raises LedgerFencedError if another client took over, MetadataConflictError if it closed the ledger at another
        entry, and the error that ended this writer before. If copies are missing after ``close_linger_ms``, the ledger
        is marked under-replicated before this returns (P8).
        """
        self._guard.check("this ledger")
        with self._queue.lock:  # so every entry that got an id on another thread is queued
            self._closing = True
            self._room.shut()
            self._queue.drop_early()
        self._room.refuse_all(self._closed_error())
        self._moved.set()
        self._fail_waiters(self._queue.next_id, self._closed_error())
        self._flush()
        if self._error is None:
            await self._drain_and_close()
        if self._error is not None:
            self._driver.stop()
            raise self._error

    async def _drain_and_close(self) -> None:
        try:
            async with asyncio.timeout(self._config.close_timeout_ms / 1000):
                while self._queue and self._error is None:
                    self._moved.clear()
                    await self._moved.wait()
                self._driver.feed(Close())
                await asyncio.shield(self._closed)
        except TimeoutError:
            waited = f"close_timeout_ms={self._config.close_timeout_ms:g}"
            error = QuorumTimeoutError(
                f"ledger {self.ledger_id} could not be closed in time", value=waited, remedy="recover it"
            )
            self._end(error)
        except BookKeeperError:
            return  # it is self._error, raised by close
        await self._metadata.marked()
        self._driver.stop()

    async def abandon(self) -> None:
        """Stop without closing the ledger, which stays OPEN until somebody recovers it. Entries in flight may or may
        not be part of it."""
        self.end(ClientClosedError(f"the writer of ledger {self.ledger_id} was abandoned"))

    def end(self, error: BookKeeperError) -> None:
        """As :meth:`abandon`, but calls that wait raise ``error``."""
        if not self._driver.stopped:
            self._closing = self._abandoned = True
            self._end(error)
            self._driver.stop()

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except BookKeeperError:
            if error is None and not self._abandoned:
                raise

    # --- between the application and the machine ---------------------------------------------------------------------

    def _check_open(self) -> None:
        self._guard.check("this ledger")
        if self._error is not None:
            raise self._error
        if self._closing:
            raise self._closed_error()

    def _closed_error(self) -> LedgerClosedError:
        return LedgerClosedError(
            f"ledger {self.ledger_id} is closed", remedy="a closed ledger cannot be reopened: create another"
        )

    def hold(self) -> None:
        """Queue appended entries and send none until :meth:`release`."""
        self._held = True

    def release(self) -> None:
        self._held = False
        self._flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            if self._traced is not None:
                self._traced.appends()
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._flush)
            else:
                self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        """Give queued payloads to the machine: all if no entry is in flight, else only whole frames."""
        self._flush_scheduled = False
        while self._queue and self._error is None and not self._held:
            if self._queue.bytes < self._config.frame_bytes and not self._machine.idle and not self._closing:
                return
            if self._machine.retained_bytes > self._config.slow_bookie_bytes_max:
                return
            batch = self._queue.take(self._config.frame_bytes)
            entries, size = len(batch), batch.payload_bytes
            self._sizes.append((self._machine.lap + entries, cost(size, entries), monotonic()))
            counts = self._counts
            counts.appended_frames += 1
            counts.appended_entries += entries
            counts.appended_bytes += size
            if self._traced is None:
                self._driver.feed(Append(batch))
            else:
                with self._traced.sending(self._machine.lap + 1, entries, size):
                    self._driver.feed(Append(batch))

    def _step(self, event: Any) -> list[Any]:
        delivery = self._machine.delivery
        kept = delivery.retained_bytes
        effects: list[Any] = self._machine.step(event)
        if self._wake_scheduled or type(event) is Append:
            return effects
        if effects or delivery.retained_bytes != kept:  # else nothing was confirmed, and no room was made
            self._wake_scheduled = True
            self._driver.agenda.soon(self._flush_and_wake)
        return effects

    def _flush_and_wake(self) -> None:
        self._wake_scheduled = False
        if self._error is None:
            self._room.settle(self._machine.retained_bytes)
            self._room.serve()
            if self._queue:
                self._flush()
            if self._room.is_waited_for or self._machine.retained_bytes > self._config.window_bytes_max:
                self._force_for_room()
            self._moved.set()

    def _confirmed(self, effect: Confirm) -> None:
        self._confirm(effect.lac)
        if self._machine.settled:
            self._sessions.settled()

    def _confirm(self, lac: EntryId) -> None:
        if self._sizes and self._sizes[0][0] <= lac:
            took_s = monotonic() - self._sizes[0][2]
            self._counts.append_seconds.observe(took_s)
            if took_s >= self._observer.slow_s:
                self._was_slow(took_s, lac)
        if self._traced is not None:
            self._traced.confirmed(lac, self._sessions_now)
        if lac > self._counted:
            self._counts.confirmed_entries += lac - self._counted
            self._counted = lac
        while self._sizes and self._sizes[0][0] <= lac:
            self._queue.confirmed(self._sizes.popleft()[1])
        while self._futures and self._futures[0][0] <= lac:
            entry_id, future = self._futures.popleft()
            future.set_result(entry_id)
        while self._waiters and self._waiters[0][0] <= lac:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)
        if self._forces:
            self._wake_forces()

    def _wake_forces(self) -> None:
        while self._forces and self._forces[0][0] <= self._machine.lac:
            forced = self._forces.pop(0)[1]
            if not forced.done():
                forced.set_result(None)

    def _was_slow(self, took_s: float, lac: EntryId) -> None:
        first, size = self._counted + 1, sum(each for last, each, _ in self._sizes if last <= lac)
        self._observer.was_slow(
            lambda: (
                f"append to ledger {self.ledger_id}, entries {first} to {lac}, {size:,} bytes: "
                f"{took_s * 1000:,.0f} ms from sending to confirmation; {self._lanes_now()}"
            )
        )

    def _lanes_now(self) -> str:
        """Names the sessions, which the bookies name in their own lines."""
        lanes = self._machine.delivery.lanes
        return ", ".join(f"{lane.bookie} session {lane.session} acked to {lane.watermark}" for lane in lanes)

    def _sessions_now(self) -> list[str]:
        return [f"{lane.bookie} session {lane.session}" for lane in self._machine.delivery.lanes]

    def _end(self, error: BookKeeperError) -> None:
        """Fails every call that waits with ``error``."""
        error = self._sessions.because(error, pending=not self._machine.settled)
        if self._traced is not None:
            self._traced.ended(error)
        if self._error is None:
            self._error = error
            if not isinstance(error, ClientClosedError):  # else the caller wanted it
                failed = self._counts.writers_failed
                failed[error.code] = failed.get(error.code, 0) + 1
        self._queue.clear()
        self._fail_waiters(0, error)
        for _, forced in self._forces:
            if not forced.done():
                forced.set_exception(error)
        self._forces.clear()
        self._room.refuse_all(error)
        self._room.leave()
        self._moved.set()
        if not self._closed.done():
            self._closed.set_exception(error)
            self._closed.exception()  # marks it as retrieved: close() raises self._error

    def _fail_waiters(self, first: EntryId, error: BookKeeperError) -> None:
        """Fails every call that waits for the entry ``first`` or a later one."""
        with self._queue.lock:  # _put sees the end under this lock, so no such future is added later
            futures = [self._futures.pop() for _ in range(len(self._futures)) if self._futures[-1][0] >= first]
        for _, future in futures:
            future.set_exception(error)
        waiters, self._waiters = self._waiters, [each for each in self._waiters if each[0] < first]
        heapq.heapify(self._waiters)
        for entry_id, _, waiter in waiters:
            if entry_id >= first and not waiter.done():
                waiter.set_exception(error)

    async def _send_force(self, effect: SendForce) -> None:
        deadline_s = self._config.add_timeout_ms / 1000
        try:
            link = self._transport.link(effect.bookie)
            await link.force(self.ledger_id, effect.session, deadline_s=deadline_s)
        except BookKeeperError as error:
            self._driver.feed(ForceFailed(effect.index, effect.session, str(error)))
        else:
            self._driver.feed(Forced(effect.index, effect.session))

    def _hint_lac(self, effect: SendLac) -> None:
        """Best effort: a bookie that misses this hint learns the LAC from the next entry or hint (P9)."""
        with suppress(BookKeeperError):
            self._transport.link(effect.bookie).hint_lac(self.ledger_id, self._key, effect.lac_body)

    def _failed_bookies(self) -> tuple[BookieId, ...]:
        change = self._machine.change
        ensemble = self._machine.delivery.ensemble
        return tuple(ensemble[index] for index in change.indices) if change is not None else ()
