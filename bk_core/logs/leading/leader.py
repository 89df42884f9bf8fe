# SPDX-License-Identifier: Apache-2.0
"""Drives the leadership of a log. It carries out the effects of :mod:`bk_core.logs.machines.leadership` while the
application appends (:mod:`bk_core.logs.leading.appender`). It contains no rule of the protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from types import TracebackType
from typing import Any

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.running.driver import Driver
from bk_core.client.writing.writer import LedgerWriter
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.errors import BookKeeperError, LeadershipLostError, Outcome
from bk_core.logs.leading.appender import LogAppender
from bk_core.logs.leading.requests import LeadershipRequests, LeadOptions
from bk_core.logs.ledgers import end_of
from bk_core.logs.machines import leadership_events as ev
from bk_core.logs.machines.leadership import LogLeadership
from bk_core.logs.model.head import LogHead
from bk_core.logs.store import LogStore
from bk_core.model import LedgerId
from bk_core.observe.traces import traced

logger = logging.getLogger("bk_core.logs")

ROLL_RETRY_S = 5.0
"""The number of seconds between a failed roll and the next try. Meanwhile appends continue to go to the current
ledger."""


class LogLeader:
    """The only writer of a log, until another client takes the log over.

    ``NamedLog.lead`` makes it. As an async context manager it gives leadership up at the end. Appends return log
    offsets. Once leadership is lost, every call raises LeadershipLostError, and it is unknown whether unconfirmed
    entries are part of the log.
    """

    created: bool
    """Whether the call of ``lead`` created the log."""

    def __init__(
        self, bookkeeper: BookKeeper, store: LogStore, head: LogHead, password: bytes, options: LeadOptions
    ) -> None:
        self._store, self._options, self._bookkeeper = store, options, bookkeeper
        self._requests = LeadershipRequests(bookkeeper, store, head, password, options)
        self._writers = self._requests.writers
        self.created, self._name = False, store.name
        self._machine = LogLeadership()
        self._driver = Driver(f"leader of log {store.name}", self._machine.step, self._finish)
        self._loop = self._driver.loop
        self._appender: LogAppender | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._roll: asyncio.Future[None] | None = None  # done when the roll under way ends
        self._roll_bytes = options.roll_bytes  # the length at which the current ledger is rolled
        self._age_timer: asyncio.TimerHandle | None = None
        ask = self._requests
        self._driver.handle(
            {
                ev.ReadHead: lambda _: self._request(ask.read_head()),
                ev.RecoverLedger: lambda effect: self._request(ask.recover(effect.ledger_id)),
                ev.SealExtents: lambda effect: self._request(ask.seal(effect)),
                ev.ListLedger: lambda effect: self._request(ask.list_ledger(effect)),
                ev.CreateLedger: lambda _: self._request(ask.create()),
                ev.AskLeader: lambda _: self._request(ask.ask()),
                ev.Wait: lambda effect: self._request(ask.wait(effect.attempt)),
                ev.Serve: self._serve,
                ev.SwitchLedger: lambda effect: self._spawn(self._switch(effect)),
                ev.CloseLedger: lambda effect: self._spawn(self._close_ledger(self._writers[effect.ledger_id])),
                ev.DeleteLedger: lambda effect: self._spawn(ask.delete(effect.ledger_id)),
                ev.FinishRoll: lambda effect: self._finish_roll(effect.error),
                ev.FinishLeadership: lambda _: self._finish(None),
                ev.LoseLeadership: lambda effect: self._finish(effect.error),
            }
        )

    @traced("log.take_over", log="_name")
    async def take_over(self) -> None:
        """Fence the present leader and become the leader. Raises NotEnoughBookiesError, RecoveryInconclusiveError, and
        LeadershipLostError if other clients are always faster or ``still_leader`` returns False. Then nothing was
        appended."""
        self._driver.feed(ev.TakeOver())
        try:
            await asyncio.shield(self._serving)
        except BaseException:
            if not self._serving.done():  # cancelled, so this process will not append
                self._driver.feed(ev.GiveUp())
            await self._settled()
            raise

    # --- for the application ---

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger that takes entries now."""
        return self._appends.writer.ledger_id

    @property
    def next_offset(self) -> int:
        """The log offset of the next entry."""
        return self._appends.next_offset

    @property
    def is_leader(self) -> bool:
        """Whether this process leads the log. False once it gave leadership up or has noticed that leadership is
        lost."""
        return not self._ended.done()

    async def append(self, payload: Bytes) -> int:
        """Append one entry. Return its log offset once an ack quorum has it, and all entries before it, on disk.

        Raises EntryTooLargeError, LedgerClosedError after close, and LeadershipLostError (outcome unknown).
        """
        offset = await self._appends.append(payload)
        self._roll_if_due()
        return offset

    def append_nowait(self, payload: Bytes) -> int:
        """Queue one entry and return its log offset. Any thread may call this. The payload must not be changed
        afterwards.

        Raises the errors of ``append``, and WindowFullError if the window is full. After each of these errors the
        entry is not queued.
        """
        offset = self._appends.append_nowait(payload)
        if self._roll is None and self._appends.writer.length >= self._roll_bytes:
            self._loop.call_soon_threadsafe(self._roll_if_due)
        return offset

    async def append_batch(self, batch: EntryBatch) -> int:
        """Queue a batch, in parts if the window is full. Return the log offset of its last entry. All parts go into
        one ledger. Raises the errors of ``append``."""
        offset = await self._appends.append_batch(batch)
        self._roll_if_due()
        return offset

    async def wait_confirmed(self, offset: int) -> None:
        """Wait until the entry at this log offset and all entries before it are confirmed."""
        await self._appends.wait_confirmed(offset)

    @traced("log.roll", log="_name")
    async def roll(self) -> None:
        """Switch to a new ledger, so that the previous ledger can be trimmed. Wait until the previous ledger is closed
        and sealed.

        Raises LeadershipLostError, and NotEnoughBookiesError if no ledger can be made. In the latter case appends
        continue to go to the current ledger.
        """
        self._check_leading()
        await asyncio.shield(self._begin_roll())

    @traced("log.end_lead", log="_name")
    async def close(self) -> None:
        """Wait for the appended entries, close the ledger, and seal it in the log. A second call is allowed.

        Raises LeadershipLostError if another client took the log over before that. Confirmed entries are in the log
        even then.
        """
        if self._appender is not None and not self._ended.done():
            self._appender.stop()
            self._driver.feed(ev.GiveUp())
        try:
            await asyncio.shield(self._ended)
        finally:
            await self._settled()

    async def __aenter__(self) -> LogLeader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except BookKeeperError:
            if error is None:
                raise

    @property
    def _appends(self) -> LogAppender:
        assert self._appender is not None, "take_over comes first"
        return self._appender

    def _check_leading(self) -> None:
        if self._ended.done():
            self._ended.result()
            raise LeadershipLostError("this leader was closed", outcome=Outcome.NOT_APPLIED)

    # --- rolling ---

    def _roll_if_due(self) -> None:
        if self._roll is None and self.is_leader and self._appends.writer.length >= self._roll_bytes:
            self._begin_roll()

    def _begin_roll(self) -> asyncio.Future[None]:
        if self._roll is None:
            self._roll = self._loop.create_future()
            # marks the error as retrieved, if no caller waits
            self._roll.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._driver.feed(ev.Roll())
        return self._roll

    def _finish_roll(self, error: BookKeeperError | None) -> None:
        done, self._roll = self._roll, None
        if error is None:
            self._arm(self._options.roll_age_s)
        else:
            logger.warning(
                "a roll of log %s failed, it stays in ledger %d: %s", self._store.name, self.ledger_id, error
            )
            self._roll_bytes = self._appends.writer.length + self._options.roll_bytes
            self._arm(min(ROLL_RETRY_S, self._options.roll_age_s))
        if done is not None and not done.done():
            done.set_exception(error) if error is not None else done.set_result(None)

    def _arm(self, after_s: float) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._age_timer = self._loop.call_later(after_s, self._roll_by_age)

    def _roll_by_age(self) -> None:
        if not self.is_leader:
            return
        if self._roll is None and self._appends.writer.last_add_pushed >= 0:
            self._begin_roll()
        else:
            self._arm(self._options.roll_age_s)

    # --- effects of the machine: each request ends in exactly one event ---

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug: callers get an error, so that they do not wait for ever
            logger.error("the leader of log %s failed", self._store.name, exc_info=error)
            self._finish(LeadershipLostError("leadership of the log is lost", value=repr(error)))

    def _request(self, work: Awaitable[ev.LeadershipEvent]) -> None:
        async def answer() -> None:
            event: ev.LeadershipEvent
            try:
                event = await work
            except BookKeeperError as error:
                event = ev.RequestFailed(error)
            self._driver.feed(event)

        self._spawn(answer())

    def _serve(self, effect: ev.Serve) -> None:
        self._appender = LogAppender(
            self._writers[effect.ledger_id],
            effect.base_offset,
            on_failure=lambda writer, error: self._driver.feed(ev.WriterFailed(writer.ledger_id, error)),
        )
        self._arm(self._options.roll_age_s)
        if not self._serving.done():
            self._serving.set_result(None)

    async def _switch(self, effect: ev.SwitchLedger) -> None:
        self._roll_bytes = self._options.roll_bytes
        previous = self._writers[effect.previous_id]
        try:
            await self._appends.switch(self._writers[effect.ledger_id])
        except BookKeeperError as error:
            self._driver.feed(ev.WriterFailed(previous.ledger_id, error))
        else:
            await self._close_ledger(previous)

    async def _close_ledger(self, writer: LedgerWriter) -> None:
        try:
            await writer.close()
        except BookKeeperError as error:
            self._driver.feed(ev.WriterFailed(writer.ledger_id, error))
        else:
            del self._writers[writer.ledger_id]
            self._driver.feed(ev.LedgerClosed(writer.ledger_id, end_of(writer.metadata)))

    # --- the end ---

    def _finish(self, error: BookKeeperError | None) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
        if self._appender is not None and error is not None:
            self._appender.fail(error)
        for waiting in (self._serving, self._roll, self._ended):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error) if error is not None else waiting.set_result(None)
                waiting.exception()  # marks the error as retrieved, because some futures have no caller that waits
        self._spawn(self._requests.abandon_all())

    async def _settled(self) -> None:
        """Wait until all tasks have ended."""
        while ended := tuple(self._tasks):
            await asyncio.gather(*ended, return_exceptions=True)
            self._tasks.difference_update(ended)  # from Python 3.12 on, gather may return before their callbacks run
