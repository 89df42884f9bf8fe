# SPDX-License-Identifier: Apache-2.0
"""Following the LAC of a ledger that others write (RULES P9, P10): quorum reads and watches, never fencing.

A watch runs on every bookie of the last fragment and on the ledger's record, so that neither a replaced bookie nor a
quiet one hides progress; after ``lac_stall_ms`` without any, a quorum LAC read and a fresh record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bk_core.client.config import ClientConfig
from bk_core.entries.digest import Digester
from bk_core.errors import BookieUnreachableError, BookKeeperError, NoSuchLedgerError, Outcome, QuorumTimeoutError
from bk_core.metadata.port import CancelWatch, MetadataStore
from bk_core.model import BookieId, EntryId, LedgerMetadata, Versioned
from bk_core.protocol.events import LacAnswered, LacFailed
from bk_core.protocol.lac import LacQuery, verified_lac
from bk_core.transport.port import LacEvidence, Transport

QUICK_ANSWER_S = 0.05
UNREACHABLE_PAUSE_S = 0.1


async def evidence_of(call: Callable[[float], Awaitable[LacEvidence]], deadline_s: float) -> LacEvidence:
    """Ask a bookie for evidence, again while it cannot be reached, until the deadline: it may be starting up."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    while True:
        try:
            return await call(end - loop.time())
        except BookieUnreachableError:
            if loop.time() + UNREACHABLE_PAUSE_S >= end:
                raise
            await asyncio.sleep(UNREACHABLE_PAUSE_S)


async def quorum_lac(
    transport: Transport, metadata: LedgerMetadata, digester: Digester, *, config: ClientConfig
) -> EntryId:
    """The highest LAC that the last ensemble proves, once no ack quorum is left unheard.

    Raises QuorumTimeoutError when too few bookies answered with evidence that verifies.
    """
    ensemble = metadata.last_fragment.ensemble
    query = LacQuery(
        digester,
        metadata.ensemble_size,
        metadata.write_quorum_size,
        metadata.ack_quorum_size,
        floor=metadata.last_fragment.first_entry_id - 1,
    )

    async def ask(index: int, bookie: BookieId) -> LacAnswered | LacFailed:
        try:
            said = await evidence_of(
                lambda left_s: transport.read_lac(bookie, digester.ledger_id, deadline_s=left_s),
                config.lac_timeout_ms / 1000,
            )
        except BookKeeperError as error:
            return LacFailed(index, f"{bookie}: {error}")
        return answered(index, said)

    tasks = [asyncio.create_task(ask(index, bookie)) for index, bookie in enumerate(ensemble)]
    try:
        for done in asyncio.as_completed(tasks):
            event = await done
            if isinstance(event, LacAnswered):
                query.answered(event)
            else:
                query.failed(event)
            if query.covered:
                return query.lac
    finally:
        for task in tasks:
            task.cancel()
    raise QuorumTimeoutError(
        f"too few bookies could say how far ledger {digester.ledger_id} is confirmed",
        value="; ".join(query.problems.values()),
        remedy="bring these bookies back and try again",
        outcome=Outcome.NOT_APPLIED,
    )


def answered(index: int, said: LacEvidence) -> LacAnswered:
    """A bookie's evidence as the event that the pure part takes."""
    return LacAnswered(index, said.last_entry_frame, said.lac_body, said.lac_frame)


class LacFollower:
    """Keeps ``lac`` and ``metadata`` of one ledger fresh, from the first ``wait`` until ``stop``."""

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
        self.metadata, self.digester = metadata, digester
        self.deleted = False
        self._lac = lac
        self._store, self._transport, self._config = store, transport, config
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._watches: dict[BookieId, asyncio.Task[None]] = {}
        self._stall: asyncio.Task[None] | None = None
        self._cancel_store: CancelWatch | None = None

    @property
    def lac(self) -> EntryId:
        """The last entry of a closed ledger (MUST 14, D30), else the highest LAC proven so far."""
        value = self.metadata.value
        return value.last_entry_id if value.is_closed else self._lac

    @property
    def closed(self) -> bool:
        return self.metadata.value.is_closed

    async def refresh(self) -> EntryId:
        """Read the record and, while the ledger is not closed, the LAC of a quorum."""
        found = await asyncio.to_thread(self._store.read_ledger, self.digester.ledger_id)
        self._take_metadata(found)
        if not self.closed:
            self._raise_lac(await quorum_lac(self._transport, self.metadata.value, self.digester, config=self._config))
        return self.lac

    async def wait(self, above: EntryId, timeout_s: float) -> EntryId:
        """Wait until the LAC is above ``above``, the ledger is closed or deleted, or the time is over; returns the
        LAC. Raises NoSuchLedgerError when the ledger was deleted."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.lac <= above and not self.closed:
                    if self.deleted:
                        raise NoSuchLedgerError(f"ledger {self.digester.ledger_id} was deleted while it was read")
                    self._changed.clear()
                    self._follow()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.lac

    def _follow(self) -> None:
        """The tasks that follow outlive the wait that began them: a short one must not leave them half made."""
        if self._stall is None:
            self._stall = self._loop.create_task(self._follow_record())
        for bookie in self.metadata.value.last_fragment.ensemble:
            if bookie not in self._watches:
                self._watches[bookie] = self._loop.create_task(self._watch(bookie))

    def _store_called(self, found: Versioned[LedgerMetadata] | None) -> None:
        """On a thread of the store."""
        self._loop.call_soon_threadsafe(self._store_changed, found)

    def _store_changed(self, found: Versioned[LedgerMetadata] | None) -> None:
        if found is None:
            self.deleted = True
            self._changed.set()
        else:
            self._take_metadata(found)

    def _take_metadata(self, found: Versioned[LedgerMetadata]) -> None:
        if found.version < self.metadata.version:
            return
        self.metadata = found
        ensemble = found.value.last_fragment.ensemble
        for bookie in [b for b in self._watches if b not in ensemble or self.closed]:
            self._watches.pop(bookie).cancel()
        self._raise_lac(found.value.last_fragment.first_entry_id - 1)
        self._changed.set()

    def _raise_lac(self, lac: EntryId) -> None:
        if lac > self._lac:
            self._lac = lac
            self._changed.set()

    async def _watch(self, bookie: BookieId) -> None:
        """One bookie, again and again; its failures cost a pause, never an end."""
        while True:
            asked, began = self._lac, self._loop.time()
            try:
                said = await self._transport.watch_lac(
                    bookie, self.digester.ledger_id, asked, timeout_s=self._config.watch_timeout_ms / 1000
                )
                self._raise_lac(verified_lac(answered(0, said), self.digester)[0])
            except BookKeeperError:
                await asyncio.sleep(self._config.lac_stall_ms / 1000)
            if self._lac == asked and self._loop.time() - began < QUICK_ANSWER_S:
                await asyncio.sleep(QUICK_ANSWER_S)  # a bookie that answers at once without news must not spin us

    async def _follow_record(self) -> None:
        """Watch the ledger's record and look at it at once; then look for stalls."""
        ledger_id = self.digester.ledger_id
        try:
            while self._cancel_store is None and not self.closed:
                try:
                    cancel = await asyncio.to_thread(self._store.watch_ledger, ledger_id, self._store_called)
                    self._cancel_store = cancel
                    self._take_metadata(await asyncio.to_thread(self._store.read_ledger, ledger_id))
                except NoSuchLedgerError:
                    raise
                except BookKeeperError:
                    await asyncio.sleep(self._config.lac_stall_ms / 1000)
            await self._check_stalls()
        except NoSuchLedgerError:
            self._store_changed(None)

    async def _check_stalls(self) -> None:
        while not self.closed:
            before = self._lac
            await asyncio.sleep(self._config.lac_stall_ms / 1000)
            if self._lac == before and not self.closed:
                try:
                    await self.refresh()
                except NoSuchLedgerError:
                    raise
                except BookKeeperError:
                    continue
                self._changed.set()

    def stop(self) -> None:
        """End all watches."""
        for task in self._watches.values():
            task.cancel()
        self._watches.clear()
        if self._stall is not None:
            self._stall.cancel()
        if self._cancel_store is not None:
            self._cancel_store()
            self._cancel_store = None
        self._stall = None
