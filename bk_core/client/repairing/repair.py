# SPDX-License-Identifier: Apache-2.0
"""Drives :class:`~bk_core.protocol.replication.machine.LedgerReplication` over transport and store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from bk_core.client.reading.ranges import ReadAdapter
from bk_core.client.running.driver import MetadataAdapter, SessionAdapter, Work
from bk_core.entries.digest import Digester, ledger_key
from bk_core.errors import BookKeeperError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol.events import MetadataRead
from bk_core.protocol.replication.events import (
    BudgetGranted,
    ClusterRead,
    FinishReplication,
    LedgerRecovered,
    PostponeReplication,
    ReadCluster,
    ReadRecord,
    RecoverLedger,
    SpendBudget,
)
from bk_core.protocol.replication.machine import LedgerReplication

if TYPE_CHECKING:
    from bk_core.client.bookkeeper import BookKeeper

T = TypeVar("T")
End: TypeAlias = FinishReplication | PostponeReplication
BURST_S = 0.5
"""The maximum number of seconds for which :class:`ByteRate` saves up an unused rate."""


async def under_lock(
    store: MetadataStore, ledger_id: LedgerId, owner: str, work: Callable[[], Awaitable[T]]
) -> T | None:
    """Do the work under the ledger's repair lock. Return None if another process holds the lock. A copy needs the lock:
    without it the target might delete the entries, because the ledger's record does not name the target yet."""
    taken = asyncio.get_running_loop().create_task(asyncio.to_thread(store.lock_underreplicated, ledger_id, owner))
    try:
        return await work() if await asyncio.shield(taken) else None
    finally:
        if await taken:  # the lock may have been taken although this call was cancelled
            await _to_its_end(asyncio.to_thread(store.unlock_underreplicated, ledger_id))


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for the end of ``work``, even if this call is cancelled. Otherwise ``work`` would be dropped if it still
    waits for a thread."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def locked_ledgers(store: MetadataStore, owner: str, in_hand: Collection[LedgerId]) -> Collection[LedgerId]:
    """Return the ledgers whose repair lock is held. This blocks. First release the locks that ``owner`` holds in this
    session for ledgers that are not ``in_hand``. These locks remained because the store was unavailable at their
    release, and no process could repair the ledgers until the session ends. A repair that begins during that time may
    lose its lock; it then changes nothing."""
    locks = store.underreplication_locks()
    for ledger_id, held_by in locks.items():
        if held_by == owner and ledger_id not in in_hand:
            store.unlock_underreplicated(ledger_id)
    return locks.keys()


def newest_record(store: MetadataStore, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
    """Sync with the store and read the ledger's record. This blocks. The sync is needed because repairs change even the
    record of a closed ledger."""
    store.sync()
    return store.read_ledger(ledger_id)


class ByteRate:
    """Limits the bytes per second that all repairs of a process copy, or does not limit them if ``bytes_per_s`` is 0.
    Calls are served in the order in which they come."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._paid_until = 0.0
        self.spent = 0

    async def spend(self, size: int) -> None:
        """Wait until the rate allows these bytes and the bytes of all earlier calls."""
        self.spent += size
        if self._bytes_per_s <= 0:
            return
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - BURST_S) + size / self._bytes_per_s
        if self._paid_until > now:
            await asyncio.sleep(self._paid_until - now)


class RepairDriver(Work[End]):
    """The driver of one repair of one ledger. The caller holds the ledger's repair lock. ``cluster`` reads which
    bookies are registered."""

    def __init__(
        self,
        client: BookKeeper,
        machine: LedgerReplication,
        record: LedgerMetadata,
        *,
        budget: ByteRate,
        cluster: Callable[[tuple[BookieId, ...]], Awaitable[ClusterRead]],
    ) -> None:
        self.machine, self._client, self._record = machine, client, record
        self._budget, self._cluster = budget, cluster
        self._ledger_id, self._password = machine.ledger_id, record.password or b""
        super().__init__(f"repair of ledger {self._ledger_id}", machine)
        key = ledger_key(self._password)
        SessionAdapter(self._driver, client.transport, self._ledger_id, key)
        ReadAdapter(self._driver, client.transport, self._ledger_id, None, client.config.read_timeout_ms)
        self._metadata = MetadataAdapter(client.store, self._ledger_id, self._driver, under_lock=True)
        spawn = self._driver.spawn
        self._driver.handle(
            {
                ReadRecord: lambda _: spawn(self._metadata.answer(self._read_record)),
                ReadCluster: lambda _: spawn(self._metadata.answer(lambda: self._cluster(machine.missing))),
                RecoverLedger: lambda _: spawn(self._recover()),
                SpendBudget: lambda effect: spawn(self._spend(effect.size)),
                FinishReplication: self._finish,
                PostponeReplication: self._finish,
            }
        )

    async def run(self) -> End:
        """Run the repair and return the effect that ended it. A cancelled repair leaves only copies that no record
        names."""
        return await self._run()

    async def _read_record(self) -> MetadataRead:
        return MetadataRead(await asyncio.to_thread(newest_record, self._client.store, self._ledger_id))

    async def _recover(self) -> None:
        record = self._record
        digester = Digester(record.entry_digest_type, self._password, self._ledger_id)
        try:
            await self._client.recover_ledger(digester, self._password)
        except BookKeeperError as error:
            self._driver.feed(LedgerRecovered(error))
        else:
            self._driver.feed(LedgerRecovered())

    async def _spend(self, size: int) -> None:
        await self._budget.spend(size)
        self._driver.feed(BudgetGranted())
