# SPDX-License-Identifier: Apache-2.0
"""The handle of a ledger that is being written.

The machine (:mod:`bk_core.protocol.writer`) decides what to send and what is confirmed. This file checks entries, puts
them into the queue if the window is not full, and ends the writer. Other files of this folder hold the queue, the
limits, the sender and the callers that wait. Any thread may call ``append_nowait`` and ``append_future``; everything
else must be called on the loop. A cancelled ``append`` stops waiting, but its entry is sent nevertheless.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from bk_core.client.config import ClientConfig
from bk_core.client.running import fork
from bk_core.client.running.driver import Driver, MetadataAdapter, SessionAdapter
from bk_core.client.running.fork import ForkGuard
from bk_core.client.running.metrics import Observer
from bk_core.client.writing.append_queue import ENTRY_COST_BYTES, AppendQueue, check_bytes, cost
from bk_core.client.writing.append_room import Piece, Room
from bk_core.client.writing.append_sender import AppendSender
from bk_core.client.writing.append_waiters import AppendWaiters
from bk_core.client.writing.bookie_calls import WriterBookieCalls
from bk_core.client.writing.lone_appends import LoneAppends, Seat
from bk_core.client.writing.process_budget import process_budget
from bk_core.client.writing.writer_end import WriterEnd
from bk_core.entries.apache import lac_body
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.entries.digest import ledger_key
from bk_core.entries.packets import pieces
from bk_core.errors import (
    BookKeeperError,
    ClientClosedError,
    EntryTooLargeError,
    InvalidArgumentError,
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
    FramesAcked,
    SendForce,
    SendLac,
)
from bk_core.quorum import holders
from bk_core.transport.port import Transport
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX


class LedgerWriter:
    """A ledger that is open for appending, made by ``BookKeeper.create_ledger``. As an async context manager it closes
    the ledger at the end.

    ``length`` is in payload bytes. After a failure every call raises the error that ended the writer.
    """

    # State, in addition to that of the machine and of the driver's adapters:
    # - _queue: entries that the machine does not have yet; its lock guards what other threads change
    # - _room: decides what may be queued, and has the appends that wait
    # - _sender: passes entries from the queue to the machine, and has the batches in flight
    # - _waiters: callers that wait for confirmations
    # - _end: whether the writer still takes entries, and how it ended
    # - _seat: sends single entries together with those of other ledgers; what uses the machine leaves the table first
    # - _is_wake_scheduled: _flush_and_wake is called in this turn of the loop
    # - _moved: the queue may have become shorter, or the writer has ended

    def __init__(
        self,
        protocol: machine.LedgerWrite,
        *,
        store: MetadataStore,
        transport: Transport,
        config: ClientConfig,
        bookies: Callable[[tuple[BookieId, ...]], Awaitable[BookiesRead]],
        explicit_ids: bool = False,
        observer: Observer,
        table: LoneAppends,
    ) -> None:
        key = ledger_key(protocol.metadata.value.password or b"")
        self._machine, self._config, self._explicit_ids = protocol, config, explicit_ids
        driver = self._driver = Driver(f"writer of ledger {protocol.ledger_id}", self._step, self._fail)
        self._sessions = SessionAdapter(
            driver, transport, protocol.ledger_id, key, observer.counts, acked=self._frames_acked
        )
        self._metadata = MetadataAdapter(
            store, protocol.ledger_id, driver, lambda: bookies(self._failed_bookies()), observer.counts
        )
        self._calls = WriterBookieCalls(
            transport, protocol.ledger_id, key, force_s=config.add_timeout_ms / 1000, lac_s=config.lac_timeout_ms / 1000
        )
        self._guard = ForkGuard()
        self._end = WriterEnd(protocol.ledger_id, self._guard, driver.loop.create_future(), observer.counts)
        self._queue = AppendQueue()
        self._room = Room(
            self._queue,
            process_budget().share(driver.loop, self._flush_and_wake),
            window_bytes_max=config.window_bytes_max,
            slow_bookie_bytes_max=config.slow_bookie_bytes_max,
        )
        self._waiters = AppendWaiters(self._queue.lock)
        self._sender = AppendSender(
            protocol, driver, self._queue, self._end, config, observer, lambda: self._seat.leave()
        )
        self._seat = Seat(
            table,
            protocol,
            driver=driver,
            sessions=self._sessions,
            queue=self._queue,
            sender=self._sender,
            waiters=self._waiters,
            room=self._room,
            end=self._end,
            calls=self._calls,
            take_ack=self._frames_acked,
        )
        self._is_wake_scheduled = False
        self._moved = asyncio.Event()
        driver.handle(
            {
                Acked: self._acked,
                Confirm: self._confirmed,
                SendForce: lambda effect: driver.spawn(self._force(effect)),
                SendLac: self._calls.hint_lac,
                FinishClose: lambda _: self._end.note_closed(),
                Fail: lambda effect: self._fail(effect.error),
                FailClose: lambda effect: self._fail(effect.error),
            }
        )
        driver.at_stop(self._room.leave)
        driver.begin(protocol.start())

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> LedgerId:
        return self._machine.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._machine.metadata.value

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._seat.lac

    @property
    def last_add_pushed(self) -> EntryId:
        """The highest id given to an entry, sent or not."""
        return self._queue.last_id

    @property
    def length(self) -> int:
        return self._seat.length

    @property
    def is_failed(self) -> bool:
        return self._end.error is not None

    # --- appending ---------------------------------------------------------------------------------------------------

    def append_nowait(self, payload: Bytes, entry_id: EntryId | None = None) -> EntryId:
        """Queue one entry and return its id. Any thread may call this. The payload must not be changed afterwards.

        In a ledger made with ``explicit_ids`` the caller gives each entry its ``entry_id``, each id once, in any order.
        The entry is sent once every id below it was given. Raises WindowFullError if the window is full,
        EntryTooLargeError, DuplicateEntryIdError, LedgerClosedError, or the error that ended this writer. After each of
        these errors the entry is not queued.
        """
        queue = self._queue
        if type(payload) is bytes and entry_id is None and not self._explicit_ids:
            size = len(payload)
            with queue.lock:
                held = queue.held + ENTRY_COST_BYTES + size
                # the fast path of _put, for an entry that passes all its checks
                if held <= queue.free_to and size <= ENTRY_BYTES_MAX and self._guard.made_in == fork.generation:
                    queue.held = held
                    tail = queue.tail
                    tail.append(payload)
                    if not self._sender.is_scheduled:
                        self._sender.schedule()
                    return queue.tail_first + len(tail) - 1
        with queue.lock:
            entry_id = self._put(payload, entry_id)
            self._sender.schedule()
        return entry_id

    def append_future(self, payload: Bytes, entry_id: EntryId | None = None) -> concurrent.futures.Future[EntryId]:
        """Queue one entry as append_nowait does, from any thread. The result of the returned future is the id, once the
        entry is confirmed, or the error that ended the writer before. For a thread that waits this is the fastest call:
        it needs no task, and two turns of the loop fewer than ``append``."""
        future: concurrent.futures.Future[EntryId] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # the future cannot be cancelled, because the entry will be sent
        with self._queue.lock:
            entry_id = self._put(payload, entry_id)
            self._waiters.add_future(entry_id, future)
            self._sender.schedule()
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
        self._end.check_open()
        if self._explicit_ids or entry_id is not None:
            self._check_id(entry_id)
        if not self._room.has(ENTRY_COST_BYTES + size) and (entry_id is None or not self._is_awaited(entry_id)):
            if self._machine.delivery.deferred:
                self._driver.loop.call_soon_threadsafe(self._force_for_room)
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
        """Check the id of a new entry. Raises InvalidArgumentError or DuplicateEntryIdError. The queue's lock is
        held."""
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
        """Return whether all entries in the window are early and wait for the entry with this id. This entry may then
        be queued although the window is full, because otherwise all of them would wait for ever. The queue's lock is
        held."""
        at_rest = not self._queue and self._machine.idle and not self._room.is_slow
        return entry_id == self._queue.next_id and at_rest

    async def append(self, payload: Bytes, entry_id: EntryId | None = None) -> EntryId:
        """Append one entry. Return its id once an ack quorum has it on disk and every entry before it is confirmed.

        In a ledger made with ``explicit_ids`` the caller gives the ``entry_id``, as in append_nowait. If the window is
        full, the call waits, in the order of the calls. Raises the errors of append_nowait except WindowFullError.
        After an error of unknown outcome, such as LedgerFencedError, the entry may be part of the ledger.
        """
        if type(payload) is bytes and entry_id is None and not self._explicit_ids:
            together = self._seat.append(payload)
            if together is not None:
                await together[1]
                return together[0]
        try:
            with self._queue.lock:
                entry_id = self._put(payload, entry_id)
        except WindowFullError:
            entry_id = await (self._line_up([payload]) if entry_id is None else self._wait_for_room(payload, entry_id))
        else:
            if self._sender.spans is not None:
                self._sender.spans.appends()
            self._sender.flush()  # entries appended meanwhile go with the next frame
        if entry_id > self._machine.acked:
            await self._waiter(entry_id)
        return entry_id

    async def _wait_for_room(self, payload: Bytes, entry_id: EntryId) -> EntryId:
        """Wait until the window is not full, then queue an entry whose id the caller chose. The entry does not wait in
        the line: an entry with a higher id could be before it and make it wait for ever."""
        while True:
            self._moved.clear()
            with self._queue.lock:
                has_room = self._room.ask(cost(len(payload), 1))
            if not has_room:
                await self._moved.wait()
            with suppress(WindowFullError):
                return self.append_nowait(payload, entry_id)

    async def append_batch(self, batch: EntryBatch) -> EntryId:
        """Queue a batch, in parts if the window is full. Return the id of its last entry, or, for an empty batch,
        the last id given to an entry. The entries of the batch get consecutive ids.

        The batch's buffers must not be changed until the entries are confirmed. After an error of unknown outcome, or a
        cancellation, the ledger may hold the first entries of the batch.
        """
        return await self._line_up(pieces(batch, self._config.frame_bytes))

    async def _line_up(self, wanted: Sequence[Piece]) -> EntryId:
        with self._queue.lock:
            self._end.check_open()
            if self._explicit_ids:
                self._check_id(None)
            last = self._room.line_up(wanted)
        if self._sender.spans is not None:
            self._sender.spans.appends()
        self._sender.flush()
        if not last.done():
            self._force_for_room()
        return await last

    def _force_for_room(self) -> None:
        """If syncs are deferred, make the bookies sync the sent entries. Until they have synced, this client keeps
        these entries in memory, and they count against its limits."""
        if self._machine.delivery.deferred and self._machine.forced_to < self._machine.lap:
            self._driver.feed(Force())

    async def wait_confirmed(self, entry_id: EntryId) -> None:
        """Wait until ``entry_id`` and all entries before it are confirmed. If the writer ends before, raises the error
        that ended it. The error's outcome says whether the entry may be in the ledger."""
        self._guard.check("this ledger")
        self._seat.leave()
        if entry_id > self._machine.acked:
            if entry_id > self.last_add_pushed and self._end.error is None:
                raise InvalidArgumentError(
                    "no such entry was appended", value=f"entry {entry_id}; last is {self.last_add_pushed}"
                )
            await self._waiter(entry_id)

    def _waiter(self, entry_id: EntryId) -> asyncio.Future[None]:
        """Return a future that is done once ``entry_id``, which is not confirmed yet, is confirmed. Raises the error
        that ended the writer."""
        if self._end.error is not None:
            raise self._end.error
        waiter: asyncio.Future[None] = self._driver.loop.create_future()
        self._waiters.add(entry_id, waiter)
        return waiter

    async def flush(self) -> None:
        """Wait until every entry appended so far is confirmed."""
        await self.wait_confirmed(self._queue.next_id - 1)

    async def force(self) -> EntryId:
        """Make every entry appended so far durable, in a ledger made with ``deferred_sync``, and return the LAC. In any
        other ledger only wait as :meth:`flush` does. If the writer ends before, raises the error that ended it."""
        await self.flush()
        last = self._queue.next_id - 1
        if self._machine.lac < last:
            if self._end.error is not None:
                raise self._end.error
            forced: asyncio.Future[None] = self._driver.loop.create_future()
            self._waiters.add_force(last, forced)
            self._driver.feed(Force())
            await forced
        return self._machine.lac

    async def write_lac(self) -> EntryId:
        """Send the LAC to the bookies that hold the last confirmed entry. Return the LAC once an ack quorum of them has
        taken it. Readers that ask these bookies then see this LAC, although no later entry carries it. Raises
        QuorumTimeoutError, or the error that ended this writer.

        A writer without entries in flight sends the LAC by itself after ``explicit_lac_delay_ms``.
        """
        self._end.check_open()
        self._seat.leave()
        lac, value = self._machine.lac, self.metadata
        if lac >= value.last_fragment.first_entry_id:  # otherwise there is no LAC, or the ledger's metadata proves it
            body = lac_body(lac, self._machine.digester)
            await self._calls.write_lac(holders(lac, value), body, quorum=value.ack_quorum_size, lac=lac)
        return lac

    # --- ending ------------------------------------------------------------------------------------------------------

    @traced("close_ledger", ledger="ledger_id")
    async def close(self) -> None:
        """Send the queued entries and close the ledger at its last entry. A second call is allowed.

        If copies are missing after ``close_linger_ms``, the ledger is marked under-replicated before this returns (P8).
        Raises LedgerFencedError if another client took over, MetadataConflictError if another client closed the ledger
        at another entry, and the error that ended this writer before.
        """
        self._guard.check("this ledger")
        self._seat.leave()
        with self._queue.lock:  # so every entry that got an id on another thread is queued
            self._end.is_closing = True
            self._room.shut()
            self._queue.drop_early()
        self._room.refuse_all(self._end.closed_error())
        self._moved.set()
        self._waiters.fail(self._queue.next_id, self._end.closed_error())
        self._sender.flush()
        if self._end.error is None:
            await self._drain_and_close()
        if self._end.error is not None:
            self._driver.stop()
            raise self._end.error

    async def _drain_and_close(self) -> None:
        try:
            async with asyncio.timeout(self._config.close_timeout_ms / 1000):
                while self._queue and self._end.error is None:
                    self._moved.clear()
                    await self._moved.wait()
                self._driver.feed(Close())
                await asyncio.shield(self._end.closed)
        except TimeoutError:
            waited = f"close_timeout_ms={self._config.close_timeout_ms:g}"
            error = QuorumTimeoutError(
                f"ledger {self.ledger_id} could not be closed in time", value=waited, remedy="recover it"
            )
            self._fail(error)
        except BookKeeperError:
            return  # self._end has the same error, and close() raises it
        await self._metadata.marked()
        self._driver.stop()

    async def abandon(self) -> None:
        """Stop without closing the ledger, which stays OPEN until a client recovers it. Entries in flight may or may
        not be part of it."""
        self.end(ClientClosedError(f"the writer of ledger {self.ledger_id} was abandoned"))

    def end(self, error: BookKeeperError) -> None:
        """Stop without closing the ledger, as :meth:`abandon` does. Calls that wait raise ``error``."""
        if not self._driver.stopped:
            self._end.is_closing = self._end.was_abandoned = True
            self._fail(error)
            self._driver.stop()

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except BookKeeperError:
            if error is None and not self._end.was_abandoned:
                raise

    # --- between the application and the machine ---------------------------------------------------------------------

    def hold(self) -> None:
        """Stop sending entries until :meth:`release`. Appended entries are queued meanwhile."""
        self._seat.leave()
        self._sender.is_held = True

    def release(self) -> None:
        """Send the entries that were queued since :meth:`hold`, and all later entries."""
        self._sender.is_held = False
        self._sender.flush()

    def _step(self, event: Any) -> list[Any]:
        if self._machine.is_lent:
            self._seat.leave()
        delivery = self._machine.delivery
        kept = delivery.retained_bytes
        effects: list[Any] = self._machine.step(event)
        # if nothing happened, nothing was confirmed, so there is no new room
        if type(event) is not Append and (effects or delivery.retained_bytes != kept):
            self._wake_soon()
        return effects

    def _frames_acked(self, index: int, session: int, frames: int) -> None:
        """Take an ack, in the table if the writer sits there, otherwise without an event unless the machine needs
        it."""
        if self._machine.is_lent and self._seat.took_ack(index, session, frames):
            return
        delivery, lac = self._machine.delivery, self._machine.lac
        kept = delivery.retained_bytes
        if not self._driver.took(self._machine.take_ack, index, session, frames):
            self._driver.feed(FramesAcked(index, session, frames))
        elif self._machine.lac != lac or delivery.retained_bytes != kept:
            if self._queue or self._room.is_waited_for:
                self._wake_soon()
            elif self._end.error is None and not self._is_wake_scheduled:
                self._room.settle(delivery.retained_bytes)
                self._moved.set()

    def _wake_soon(self) -> None:
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._driver.agenda.soon(self._flush_and_wake)

    def _flush_and_wake(self) -> None:
        self._is_wake_scheduled = False
        if self._end.error is None:
            self._room.settle(self._machine.retained_bytes)
            self._room.serve()
            if self._queue:
                self._sender.flush()
            if self._room.is_waited_for or self._machine.retained_bytes > self._config.window_bytes_max:
                self._force_for_room()
            self._moved.set()

    def _acked(self, effect: Acked) -> None:
        """End the appends of entries that an ack quorum has, at least in memory. Only ledgers with deferred syncs need
        this."""
        self._sender.confirmed(effect.through)
        self._waiters.confirmed(effect.through, self._machine.lac)

    def _confirmed(self, effect: Confirm) -> None:
        self._sender.confirmed(effect.lac)
        self._waiters.confirmed(effect.lac, self._machine.lac)
        if self._machine.settled:
            self._sessions.settled()

    async def _force(self, effect: SendForce) -> None:
        self._driver.feed(await self._calls.force(effect))

    def _fail(self, error: BookKeeperError) -> None:
        """End the writer with ``error``, which every call that waits then raises."""
        self._seat.leave()
        error = self._sessions.because(error, pending=not self._machine.settled)
        if self._sender.spans is not None:
            self._sender.spans.ended(error)
        self._end.fail(error)
        self._queue.clear()
        self._waiters.fail_all(error)
        self._room.refuse_all(error)
        self._room.leave()
        self._moved.set()

    def _failed_bookies(self) -> tuple[BookieId, ...]:
        change = self._machine.change
        ensemble = self._machine.delivery.ensemble
        return tuple(ensemble[index] for index in change.indices) if change is not None else ()
