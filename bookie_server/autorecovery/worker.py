# SPDX-License-Identifier: Apache-2.0
"""Workers read the marks of ledgers that lack copies, lock the ledgers, repair them, and remove the marks.

A blocked repair is postponed, each time for longer. The reason is logged when it changes, and kept for commands to
show.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.repairing.repair import ByteRate, End, RepairDriver, locked_ledgers, under_lock
from bk_core.errors import BookKeeperError, MetadataCorruptError, NoSuchLedgerError
from bk_core.metadata.records import UnderreplicationMark
from bk_core.model import BookieId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol.replication.events import ClusterRead, PostponeReplication
from bk_core.protocol.replication.machine import LedgerReplication, Phase
from bk_core.protocol.replication.requests import ReplicationConfig
from bookie_server.autorecovery.presence import Presence
from bookie_server.autorecovery.settings import AutoRecoveryConfig

logger = logging.getLogger(__name__)

CANDIDATES_MAX = 1_000
"""The maximum number of due marks that one turn keeps in memory."""

REASONS_MAX = 10_000
"""The maximum number of blocked repairs whose reason and time are kept."""
SOON_S = 30.0
"""The longest time between two tries of a repair that is postponed for a short time only, such as one that waits for a
writer while its bookie is drained."""
WAITING_TIMES = 32
"""The maximum number of repairs under way for each of the ``repairs_max`` that may copy. The others wait for the
writers of open ledgers."""


@dataclass(slots=True)
class PutOff:
    """A blocked repair. It has the reason, the time until which the repair waits, and the number of times that it was
    postponed."""

    why: str
    until: float
    times: int


class SharedLook:
    """Shares reads of the cluster among callers. Callers that ask while a read is under way share the next one, which
    begins when that read has ended, so no caller gets data from before its call. Eight repairs cost the metadata store
    little more than one."""

    def __init__(self, look: Callable[[tuple[BookieId, ...]], Awaitable[ClusterRead]]) -> None:
        self._look, self._turn = look, asyncio.Lock()
        self._named: dict[BookieId, None] = {}
        self._next: asyncio.Task[ClusterRead] | None = None
        self._tasks: set[asyncio.Task[ClusterRead]] = set()

    async def __call__(self, named: Sequence[BookieId]) -> ClusterRead:
        """Return the cluster. ``named`` are bookies that the caller asks about."""
        self._named.update(dict.fromkeys(named))
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._take())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def _take(self) -> ClusterRead:
        async with self._turn:
            named, self._named, self._next = tuple(self._named), {}, None
            return await self._look(named)

    async def stop(self) -> None:
        """End the reads under way. Call this when there are no more callers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Workers:
    """Has all repairs of this process. ``put_off`` has the blocked repairs."""

    def __init__(self, client: BookKeeper, owner: str, presence: Presence, config: AutoRecoveryConfig) -> None:
        self._client, self._owner, self._presence, self._config = client, owner, presence, config
        self.budget = ByteRate(config.replication_bytes_per_s)
        self._random = random.Random()
        self._tasks: dict[LedgerId, asyncio.Task[None]] = {}
        self._machines: dict[LedgerId, LedgerReplication] = {}
        self._checked: LedgerId | None = None
        self._queue: deque[LedgerId] = deque()
        self._is_stopped = False
        self._cluster = SharedLook(self._look_at_cluster)
        self.put_off: dict[LedgerId, PutOff] = {}
        self.repaired = self.copied_entries = self.copied_bytes = 0

    @property
    def running(self) -> int:
        """The number of repairs under way. Any thread may read it."""
        return len(self._machines)

    @property
    def _in_hand(self) -> set[LedgerId]:
        """The ledgers whose locks this process is taking, holding or releasing."""
        return {*self._tasks, *(() if self._checked is None else (self._checked,))}

    async def look(self) -> None:
        """Read the marks and begin repairs; when a repair ends, the next one begins. Raises the errors of the store."""
        if not await asyncio.to_thread(self._client.store.replication_enabled):
            self._queue.clear()
            return
        if len(self._queue) < self._config.repairs_max:
            now = asyncio.get_running_loop().time()
            self._queue = deque(await asyncio.to_thread(self._candidates, now))
        self._fill()

    def _fill(self) -> None:
        """Begin repairs while there is room. Repairs that wait for a writer do not count, up to ``WAITING_TIMES``."""
        room = self._config.repairs_max
        while self._queue and not self._is_stopped and len(self._tasks) < WAITING_TIMES * room:
            waiting = sum(machine.phase is Phase.GRACE for machine in self._machines.values())
            if len(self._tasks) - waiting >= room:
                return
            ledger_id = self._queue.popleft()
            if ledger_id not in self._in_hand:  # the session owns the lock: two repairs here would share it
                self._tasks[ledger_id] = asyncio.get_running_loop().create_task(self._repair(ledger_id))

    def _candidates(self, now: float) -> list[LedgerId]:
        """Return marked ledgers that are due and that no process repairs. The order is random, so that workers do not
        compete for the same ledger."""
        in_hand = self._in_hand
        locked = locked_ledgers(self._client.store, self._owner, in_hand)
        marked = (ledger_id for ledger_id, _ in self._client.store.list_underreplicated())
        due = (i for i in marked if i not in in_hand and i not in locked and self._is_due(i, now))
        found = list(islice(due, CANDIDATES_MAX))
        self._random.shuffle(found)
        return found

    def _is_due(self, ledger_id: LedgerId, now: float) -> bool:
        put_off = self.put_off.get(ledger_id)
        return put_off is None or put_off.until <= now

    async def _repair(self, ledger_id: LedgerId) -> None:
        try:
            await self._repair_locked(ledger_id)
        except BookKeeperError as error:
            self._put_off(ledger_id, str(error))
        except Exception as error:  # a bug; only this ledger's repair is postponed
            logger.exception("the repair of ledger %d failed", ledger_id)
            self._put_off(ledger_id, repr(error))
        finally:
            del self._tasks[ledger_id]
            self._fill()

    async def _repair_locked(self, ledger_id: LedgerId) -> None:
        async def repair() -> None:
            mark = await asyncio.to_thread(self._client.store.read_underreplicated, ledger_id)
            if mark is not None:
                await self._repair_marked(ledger_id, mark)

        await under_lock(self._client.store, ledger_id, self._owner, repair)

    async def _repair_marked(self, ledger_id: LedgerId, mark: Versioned[UnderreplicationMark]) -> None:
        store = self._client.store
        try:
            record = await asyncio.to_thread(store.read_ledger, ledger_id)
        except NoSuchLedgerError:
            await asyncio.to_thread(store.remove_underreplicated, ledger_id, mark.version)
            return
        missing = mark.value.missing or _members(record.value)  # if a mark names no bookie, all copies are checked
        ended, machine = await self._run(ledger_id, record.value, missing)
        if isinstance(ended, PostponeReplication):
            self._put_off(ledger_id, ended.why, soon=ended.soon)
            return
        self.put_off.pop(ledger_id, None)
        if await asyncio.to_thread(store.remove_underreplicated, ledger_id, mark.version):
            self.repaired += 1
            what = f"{machine.entries} entries, {machine.size} bytes copied"
            logger.info("ledger %d: %s, %s", ledger_id, ended.outcome.value, what)

    async def _run(
        self, ledger_id: LedgerId, record: LedgerMetadata, missing: Sequence[BookieId]
    ) -> tuple[End, LedgerReplication]:
        machine = LedgerReplication(
            ledger_id,
            missing,
            config=ReplicationConfig(grace_ms=1000 * self._config.open_ledger_grace_s),
            new_session=self._client.new_session,
            random=self._random,
        )
        self._machines[ledger_id] = machine
        try:
            driver = RepairDriver(self._client, machine, record, budget=self.budget, cluster=self._cluster)
            return await driver.run(), machine
        finally:
            self._machines.pop(ledger_id, None)
            self.copied_entries += machine.entries
            self.copied_bytes += machine.size

    async def check(self, ledger_id: LedgerId) -> None:
        """Read every copy of a closed ledger, compare the digests, and write missing entries in place. Copies on
        bookies that are not registered are left to the auditor."""
        if ledger_id in self._tasks:
            return  # it is under repair
        self._checked = ledger_id
        try:
            await self._check(ledger_id)
        except (NoSuchLedgerError, MetadataCorruptError):
            return  # an unreadable record was logged where it was read (M6)
        except BookKeeperError as error:
            logger.warning("ledger %d could not be checked: %s", ledger_id, error)
        finally:
            self._checked = None

    async def _check(self, ledger_id: LedgerId) -> None:
        record = (await asyncio.to_thread(self._client.store.read_ledger, ledger_id)).value
        present = await asyncio.to_thread(self._presence.look)
        there = {**present.writable, **present.read_only}
        registered = [bookie for bookie in _members(record) if bookie in there]
        if not record.is_closed or not registered:
            return
        found = await under_lock(
            self._client.store, ledger_id, self._owner, lambda: self._run(ledger_id, record, registered)
        )
        if found is None:
            return  # another process repairs it
        ended, machine = found
        if isinstance(ended, PostponeReplication):
            logger.warning("ledger %d could not be checked: %s", ledger_id, ended.why)
        elif machine.entries:
            logger.warning("ledger %d lacked copies of %d entries and was not marked", ledger_id, machine.entries)

    def _put_off(self, ledger_id: LedgerId, why: str, *, soon: bool = False) -> None:
        before = self.put_off.pop(ledger_id, PutOff("", 0.0, 0))
        most_s = min(SOON_S, self._config.retry_max_s) if soon else self._config.retry_max_s
        delay_s = min(self._config.retry_s * 2**before.times, most_s)
        until = asyncio.get_running_loop().time() + delay_s * (0.75 + 0.5 * self._random.random())
        self.put_off[ledger_id] = PutOff(why, until, min(before.times + 1, 30))
        if why != before.why:
            logger.log(logging.INFO if soon else logging.WARNING, "ledger %d is not repaired yet: %s", ledger_id, why)
        if len(self.put_off) > REASONS_MAX:
            del self.put_off[next(iter(self.put_off))]

    async def _look_at_cluster(self, named: tuple[BookieId, ...]) -> ClusterRead:
        present = await asyncio.to_thread(self._presence.look, named)
        bookies = await self._client.bookies_for_repair()
        return present.for_repair(bookies.quarantined, bookies.landscape)

    async def stop(self) -> None:
        """End all repairs. Their marks remain, and their locks are released."""
        self._is_stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._cluster.stop()


def _members(record: LedgerMetadata) -> tuple[BookieId, ...]:
    """Return all bookies that the record names."""
    return tuple(dict.fromkeys(bookie for fragment in record.fragments for bookie in fragment.ensemble))
