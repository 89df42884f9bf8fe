# SPDX-License-Identifier: Apache-2.0
"""Hosts of clients that read: a range of a ledger, and a tail that follows a ledger without fencing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bk_core.client.reading.shared_read import SharedRead
from bk_core.client.reading.sharing import Sharing
from bk_core.entries.digest import Digester
from bk_core.errors import BookKeeperError, EntryUnreadableError, NoSuchEntryError
from bk_core.model import EntryId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol import events as pe
from bk_core.protocol.ends.follower import LedgerFollower
from bk_core.protocol.reader import RangeRead
from bookie_server.machine import events as ev
from tests.sim.host import PASSWORD, Host

if TYPE_CHECKING:
    from tests.kit.memory_store import MemoryStore
    from tests.sim.world import World

WATCH_MS = 2_000.0
SPECULATIVE_MS = 60.0
SHARED_BYTES_MAX = 300
"""The size of an answer in a shared range, so that the few entries of a schedule are several chunks."""


class Turns(Sharing):
    """Wants one, two and three bookies in turn: each batch that comes changes the number."""

    def __init__(self, most: int, reached: Callable[[], None]) -> None:
        super().__init__(most)
        self._reached = reached

    def arrived(self, size: int, left: int) -> None:
        self.wanted = self.wanted % self._most + 1

    def serves(self, count: int) -> None:
        if count > 1:
            self._reached()


class ReadHost(Host):
    """Reads a range of a ledger, and passes the batches to the checker."""

    def __init__(
        self,
        world: World,
        name: str,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        done: Callable[[BookKeeperError | None], None],
        *,
        is_shared: bool = False,
    ) -> None:
        super().__init__(world, name, ledger_id)
        self.next, self.done = first, done
        digester = Digester(metadata.digest_type, PASSWORD, ledger_id)
        make = partial(RangeRead, metadata, digester, speculative_ms=SPECULATIVE_MS)
        prefer = world.random.randrange(metadata.ensemble_size)
        self.machine: RangeRead | SharedRead
        if is_shared:
            sharing = Turns(metadata.write_quorum_size, lambda: self.scheduler.reached("bookies shared a range"))
            self.machine = SharedRead(
                make, metadata, first, last, sharing=sharing, bytes_max=SHARED_BYTES_MAX, prefer=prefer
            )
        else:
            self.machine = make(first, last, bytes_max=1 << 16, prefer=prefer)
        self._handlers |= {
            pe.DeliverBatch: self._deliver,
            pe.FinishRead: lambda _: self._end(None),
            pe.Fail: lambda e: self._end(e.error),
        }
        self.carry(self.machine.start())

    def _deliver(self, effect: pe.DeliverBatch) -> None:
        self.next = self.world.checker.read(self, self.next, effect.batch)

    def _end(self, error: BookKeeperError | None) -> None:
        self.over = True
        if error is not None:
            self.scheduler.note(f"{self.name} read fails: {type(error).__name__}: {error.what}")
            self.scheduler.reached(f"read ended by {type(error).__name__}")
        self.done(error)


def _newest(store: MemoryStore, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
    store.sync()
    return store.read_ledger(ledger_id)


class TailHost(Host):
    """Follows a ledger without fencing, and reads entries once they are confirmed."""

    def __init__(self, world: World, name: str, ledger_id: LedgerId, metadata: Versioned[LedgerMetadata]) -> None:
        super().__init__(world, name, ledger_id)
        self.next: EntryId = 0
        self.error: BookKeeperError | None = None
        self.reading = False
        self._reads_made = 0
        self.machine = LedgerFollower(
            metadata, -1, Digester(metadata.value.digest_type, PASSWORD, ledger_id), stall_ms=300, pause_ms=10
        )
        self._handlers |= {
            pe.WatchMetadata: self._watch_record,
            pe.SendWatchLac: self._watch_lac,
            pe.SendReadLac: lambda e: self._ask_lac(e, lambda r: ev.ReadLacRequested(r, self.ledger_id), "read LAC"),
            pe.Confirm: self._confirm,
            pe.FinishRefresh: self._refreshed,
            pe.Fail: self._fail,
        }
        self.refreshes = 0
        self.carry(self.machine.start())
        self._read_on()  # a closed ledger does not grow

    def refresh(self) -> None:
        """Request for the application the present record and LAC."""
        if not self.dead and self.paused is None:
            self.refreshes += 1
            before = self.over
            self.over = False  # a refresh is answered after the end too
            self.feed(pe.RefreshLac(self.refreshes))
            self.over = before

    def _refreshed(self, effect: pe.FinishRefresh) -> None:
        self.scheduler.reached("a refresh failed" if effect.error else "a refresh was answered")
        self.world.checker.lac_seen(self, self.machine.lac, self.machine.metadata)

    def _watch_record(self, _: pe.WatchMetadata) -> None:
        error = self.store.watch(self.name, self.ledger_id, lambda record: self.feed(pe.MetadataChanged(record)))
        self.scheduler.add(
            f"store>{self.name}",
            f"{self.name} watches",
            self.feed,
            pe.MetadataWatched(error),
            mean_ms=self.world.knobs.store_ms,
            fifo=True,
        )

    def _watch_lac(self, effect: pe.SendWatchLac) -> None:
        self._ask_lac(
            effect,
            lambda r: ev.WatchLacRequested(r, self.ledger_id, effect.above, int(WATCH_MS)),
            f"watch LAC above {effect.above}",
            deadline_ms=2 * WATCH_MS,
        )

    def _confirm(self, effect: pe.Confirm) -> None:
        self.world.checker.lac_seen(self, self.machine.lac, self.machine.metadata)
        self._read_on()

    def _read_on(self) -> None:
        if self.reading or self.dead or self.next > self.machine.lac:
            return
        self.reading = True
        self._reads_made += 1
        reader = ReadHost(
            self.world,
            f"{self.name}r{self._reads_made}",
            self.ledger_id,
            self.machine.metadata.value,
            self.next,
            self.machine.lac,
            lambda error: self._read_ended(reader, error),
            is_shared=self._reads_made % 2 == 0,
        )
        self.world.hosts.append(reader)

    def _read_ended(self, reader: ReadHost, error: BookKeeperError | None) -> None:
        self.reading = False
        self.next = reader.next
        if error is None:
            self._read_on()
        elif isinstance(error, (EntryUnreadableError, NoSuchEntryError)):
            self.store.read_synced(self.name, self.ledger_id, self._record_read, _newest)
        else:
            self._read_again()

    def _record_read(self, said: object) -> None:
        """Take the record that is read again before the next try, because copies may have moved.

        ``bk_core/client/reading/reader.py`` does the same. A follower takes the record even after its end.
        """
        if isinstance(said, pe.MetadataRead):
            before, self.over = self.over, False
            self.feed(pe.MetadataChanged(said.metadata))
            self.over = before or self.over
        self._read_again()

    def _read_again(self) -> None:
        self.scheduler.at(50, f"{self.name} clock", f"{self.name} reads again", self._read_on)

    def _fail(self, effect: pe.Fail) -> None:
        self.error, self.over = effect.error, True
