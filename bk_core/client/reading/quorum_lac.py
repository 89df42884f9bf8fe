# SPDX-License-Identifier: Apache-2.0
"""Drives the quorum LAC read and :class:`~bk_core.protocol.ends.follower.LedgerFollower` over transport and store.
Never fences."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from functools import partial

from bk_core.client.config import ClientConfig
from bk_core.client.running.driver import Driver, MetadataAdapter
from bk_core.client.running.refused import Refused
from bk_core.entries.digest import Digester
from bk_core.errors import BookieUnreachableError, BookKeeperError, MetadataUnavailableError, PermissionDeniedError
from bk_core.metadata.port import CancelWatch, MetadataStore
from bk_core.model import BookieId, EntryId, LedgerMetadata, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.ends.follower import LedgerFollower
from bk_core.protocol.ends.lac import QuorumLacRead
from bk_core.transport.port import RefusedError, Transport
from bk_core.wire.lane.evidence import LacEvidence
from bk_core.wire.lane.reasons import Reason

UNREACHABLE_PAUSE_S = 0.1
"""The number of seconds before an unreachable bookie is called again."""

STRAGGLERS_S = 0.05
"""The number of seconds that a quorum LAC read waits for one more answer once it has enough answers."""


async def lac_event(
    index: int,
    bookie: BookieId,
    ask: Callable[[float], Awaitable[LacEvidence]],
    refused: Refused,
    deadline_s: float = 0.0,
) -> ev.LacAnswered | ev.LacFailed:
    """Ask a bookie for its evidence of the LAC, and return its answer or failure as an event for the machine. An
    unreachable bookie may be starting, so it is called again until the deadline. ``ask`` makes the call; its argument
    is the number of seconds that are left."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    while True:
        try:
            said = await ask(end - loop.time())
        except BookKeeperError as error:
            if isinstance(error, BookieUnreachableError) and loop.time() + UNREACHABLE_PAUSE_S < end:
                await asyncio.sleep(UNREACHABLE_PAUSE_S)
                continue
            refused.heard(error)
            reason = error.reason if isinstance(error, RefusedError) else Reason.REASON_NONE
            why = error.what if reason is Reason.PERMISSION_DENIED else f"{bookie}: {error}"
            return ev.LacFailed(index, why, reason)
        refused.heard(said)
        return ev.LacAnswered(index, said.last_entry_frame, said.lac_body, said.lac_frame)


async def read_lac(
    transport: Transport, digester: Digester, effect: ev.SendReadLac, config: ClientConfig, refused: Refused
) -> ev.LacAnswered | ev.LacFailed:
    """Ask one bookie for a quorum LAC read."""

    def ask(left_s: float) -> Awaitable[LacEvidence]:
        return transport.link(effect.bookie).read_lac(digester.ledger_id, deadline_s=left_s)

    return await lac_event(effect.index, effect.bookie, ask, refused, config.lac_timeout_ms / 1000)


async def quorum_lac(
    transport: Transport, metadata: LedgerMetadata, digester: Digester, *, config: ClientConfig
) -> EntryId:
    """Return the highest LAC that the answers of the last ensemble prove. Every ack quorum must have a bookie that
    answered. Later answers may prove a higher LAC, so they count, too, as long as the next one comes within
    STRAGGLERS_S.

    Raises QuorumTimeoutError if too few bookies answered with evidence that verifies, and AuthenticationError if every
    bookie that answered refuses this client.
    """
    machine, refused = QuorumLacRead(metadata, digester), Refused()
    asks = [read_lac(transport, digester, effect, config, refused) for effect in machine.start()]
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    waiting = set(tasks)
    try:
        while waiting:
            timeout_s = STRAGGLERS_S if machine.done else None
            answered, waiting = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for each in answered:
                heard = each.result()
                if isinstance(heard, ev.LacFailed) and heard.reason is Reason.PERMISSION_DENIED:
                    raise PermissionDeniedError.told(heard.message)
                if machine.done:
                    machine.query.hear(each.result())
                for effect in machine.step(each.result()):
                    if isinstance(effect, ev.Fail):
                        raise refused.because(effect.error)
            if not answered:
                break
        return machine.query.lac
    finally:
        for task in tasks:
            task.cancel()


class LacFollower:
    """Keeps ``lac`` and ``metadata`` of one ledger up to date, from the first ``wait`` until ``stop``."""

    def __init__(
        self,
        metadata: Versioned[LedgerMetadata],
        lac: EntryId,
        digester: Digester,
        *,
        store: MetadataStore,
        transport: Transport,
        config: ClientConfig,
    ) -> None:
        self._machine = LedgerFollower(metadata, lac, digester, stall_ms=config.lac_stall_ms)
        self.store = store
        self._digester, self._transport, self._config = digester, transport, config
        self._driver = Driver(f"following ledger {digester.ledger_id}", self._machine.step, self._crashed)
        MetadataAdapter(store, digester.ledger_id, self._driver)
        self._driver.handle(
            {
                ev.SendWatchLac: lambda effect: self._ask(effect.index, partial(self._watch_lac, effect)),
                ev.SendReadLac: lambda effect: self._ask(
                    effect.index, partial(read_lac, transport, digester, effect, config, self._refused)
                ),
                ev.CancelRead: self._cancel,
                ev.WatchMetadata: lambda _: self._driver.spawn(self._watch_record()),
                ev.Confirm: lambda _: self._changed.set(),
                ev.Fail: lambda _: self._changed.set(),
                ev.FinishRefresh: self._refreshed,
            }
        )
        self._refused = Refused()
        self._changed = asyncio.Event()
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._callers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._error: BookKeeperError | None = None  # the error that stopped the driver: a bug, or a lost right
        self._ended: BookKeeperError | None = None  # the error given to stop()
        self._lock = threading.Lock()  # guards _cancel_store and _stopped, because a thread sets the watch
        self._cancel_store: CancelWatch | None = None
        self._stopped = False

    @property
    def metadata(self) -> Versioned[LedgerMetadata]:
        return self._machine.metadata

    @property
    def lac(self) -> EntryId:
        """The last entry of a closed ledger (MUST 14), or the highest LAC proven so far of an open ledger."""
        return self._machine.lac

    @property
    def closed(self) -> bool:
        return self._machine.metadata.value.is_closed

    def check(self) -> None:
        """Raise NoSuchLedgerError if the ledger was deleted, IntegrityError if it was closed below a confirmed entry,
        and PermissionDeniedError if this client has lost the right to read it."""
        error = self._error or self._machine.error
        if error is not None:
            raise error

    async def refresh(self) -> EntryId:
        """Read the record and, unless the ledger is closed, the LAC of a quorum. Return the LAC. Raises
        QuorumTimeoutError, AuthenticationError, MetadataUnavailableError, and the errors of ``check`` and
        ``check_running``."""
        self.check_running()
        if not self.closed:
            if not self._waiting:
                self._refused.forget()
            caller = next(self._callers)
            self._waiting[caller] = asyncio.get_running_loop().create_future()
            try:
                self._driver.feed(ev.RefreshLac(caller))
                self.check()
                await self._waiting[caller]
            finally:
                self._waiting.pop(caller, None)
        self.check()
        return self.lac

    async def refresh_record(self) -> None:
        """Sync with the store and read the record, but no LAC. A reader calls this when the bookies of the known record
        did not give an entry. If the store is unavailable, keep the known record. Raises NoSuchLedgerError."""
        try:
            await asyncio.to_thread(self.store.sync)
            found = await asyncio.to_thread(self.store.read_ledger, self._digester.ledger_id)
        except MetadataUnavailableError:
            return
        self.record_read(found)

    def record_read(self, found: Versioned[LedgerMetadata]) -> None:
        """Adopt a record that a caller has read, if it is newer than the known record."""
        self._driver.feed(ev.MetadataChanged(found))

    async def wait(self, above: EntryId, timeout_s: float) -> EntryId:
        """Wait until the LAC is above ``above``, the ledger is closed, or ``timeout_s`` is over. Return the LAC. Raises
        the errors of ``check``, and the error given to ``stop`` if ``stop`` ends the wait."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.lac <= above and not self.closed:
                    self.check()
                    self.check_running()
                    self._changed.clear()
                    self._driver.begin(self._machine.start())
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self.closed:
            self.check()
        return self.lac

    def check_running(self) -> None:
        """Raise the error given to :meth:`stop` if that was called."""
        if self._ended is not None:
            raise self._ended

    def stop(self, error: BookKeeperError) -> None:
        """End all watches. Every waiting or later call raises ``error``."""
        if self._ended is None:
            self._ended = error
        self._driver.stop()
        with self._lock:
            self._stopped, cancel, self._cancel_store = True, self._cancel_store, None
        if cancel is not None:
            cancel()
        self._changed.set()
        for caller in self._waiting:
            self._refreshed(ev.FinishRefresh(caller, self._ended))

    # --- effects -----------------------------------------------------------------------------------------------------

    def _ask(self, index: int, answer: Callable[[], Awaitable[ev.LacAnswered | ev.LacFailed]]) -> None:
        async def ask() -> None:
            # answer() is called in here, so that a task cancelled before it began has begun no call
            event = await answer()
            self._requests.pop(index, None)
            if isinstance(event, ev.LacFailed) and event.reason is Reason.PERMISSION_DENIED:
                self._crashed(PermissionDeniedError.told(event.message))
                self._driver.stop()
            else:
                self._driver.feed(event)

        self._requests[index] = self._driver.spawn(ask())

    def _cancel(self, effect: ev.CancelRead) -> None:
        task = self._requests.pop(effect.request, None)
        if task is not None:
            task.cancel()

    def _watch_lac(self, effect: ev.SendWatchLac) -> Awaitable[ev.LacAnswered | ev.LacFailed]:
        timeout_s = self._config.watch_timeout_ms / 1000
        ledger_id = self._digester.ledger_id

        def ask(_: float) -> Awaitable[LacEvidence]:
            return self._transport.link(effect.bookie).watch_lac(ledger_id, effect.above, timeout_s=timeout_s)

        return lac_event(effect.index, effect.bookie, ask, self._refused)

    def _refreshed(self, effect: ev.FinishRefresh) -> None:
        future = self._waiting.get(effect.caller)
        if future is None or future.done():
            return
        if effect.error is None:
            future.set_result(None)
        else:
            future.set_exception(self._refused.because(effect.error))

    def _crashed(self, error: BookKeeperError) -> None:
        self._error = error
        self._changed.set()
        for caller in list(self._waiting):
            self._refreshed(ev.FinishRefresh(caller, error))

    # --- the record --------------------------------------------------------------------------------------------------

    async def _watch_record(self) -> None:
        try:
            await asyncio.to_thread(self._set_watch)
        except BookKeeperError as error:
            self._driver.feed(ev.MetadataWatched(error))
        else:
            self._driver.feed(ev.MetadataWatched())

    def _set_watch(self) -> None:
        """Set the watch on the record. This runs in a thread. If ``stop`` was called meanwhile, cancel the watch
        again."""
        cancel = self.store.watch_ledger(self._digester.ledger_id, self._store_called)
        with self._lock:
            if not self._stopped:
                self._cancel_store = cancel
                return
        cancel()

    def _store_called(self, found: Versioned[LedgerMetadata] | None) -> None:
        """Pass a changed record to the machine. The store calls this on one of its threads."""
        self._driver.loop.call_soon_threadsafe(self._driver.feed, ev.MetadataChanged(found))
