# SPDX-License-Identifier: Apache-2.0
"""The metadata store of a simulated world: the product's store over its tree in memory, reached over a bad line.

A call takes time to arrive, and its answer takes time to return. Between the two it is carried out, all at once. It may
find the store away (not applied), lose its answer (applied or not), or read an older record than the newest, or none.
As a follower of ZooKeeper, it never returns a record older than one that this client has seen. The tree lags, so the
second looks of the product's store (RULES M5) are part of the world.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bk_core.errors import (
    BookKeeperError,
    MetadataConflictError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    Outcome,
)
from bk_core.metadata.codec import encode_ledger
from bk_core.metadata.layout import DEFAULT_ROOT
from bk_core.metadata.tree.ids import IdGenerator
from bk_core.model import BookieId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol.events import (
    BookiesRead,
    MetadataCallFailed,
    MetadataConflicted,
    MetadataRead,
    MetadataWritten,
)
from tests.kit.memory_store import MemoryCluster, MemoryStore
from tests.sim.knobs import Knobs
from tests.sim.scheduler import Scheduler

Feed = Callable[[Any], None]
Record = Versioned[LedgerMetadata]


class MarkedCluster(MemoryCluster):
    """Counts the changes of marks, so that marks that did not change are not listed again."""

    changes = 0

    def _create(self, path: str, data: bytes, owner: int, sequential: bool) -> Any:
        self._note(path)
        return super()._create(path, data, owner, sequential)

    def _set(self, path: str, data: bytes, version: int) -> Any:
        self._note(path)
        return super()._set(path, data, version)

    def _delete(self, path: str, version: int) -> Any:
        self._note(path)
        return super()._delete(path, version)

    def _note(self, path: str) -> None:
        if "/underreplication/ledgers" in path:
            self.changes += 1


class SimStore:
    """The only store of a world. Clients reach it by name. ``on_write`` is called with every record that was
    written."""

    def __init__(self, scheduler: Scheduler, knobs: Knobs) -> None:
        self.scheduler, self.knobs = scheduler, knobs
        self.cluster = MarkedCluster(clock_ms=lambda: int(scheduler.now))
        self.store = MemoryStore(self.cluster)
        self.store._ids = IdGenerator(self.store.tree, DEFAULT_ROOT, clock=lambda: scheduler.now / 1000)
        self.store.initialize_cluster()
        self.registered: dict[BookieId, None] = {}  # the writable bookies, in a fixed order
        self.on_write: Callable[[LedgerId, Record | None, str], None] = lambda *_: None
        self.closed_by: dict[LedgerId, str] = {}
        self._history: dict[LedgerId, list[Record]] = {}
        self._seen: dict[tuple[str, LedgerId], int] = {}
        self._away: set[str] = set()
        self.is_down = False  # no client reaches it
        self._marks: tuple[int, dict[LedgerId, tuple[BookieId, ...]]] = -1, {}
        self._watches: dict[LedgerId, list[tuple[str, Callable[[Record | None], None]]]] = {}
        self.lose_next: dict[str, list[bool]] = {}  # for scripts: client → whether the write is applied

    # --- at once, for the world ---

    def create(self, metadata: LedgerMetadata, by: str) -> tuple[LedgerId, Record]:
        """Make a ledger's record. The store's own retries settle a lost answer (MUST 8, D22)."""
        loss = self._loss(by)
        if loss is not None:
            # for the writes of which a create consists
            self.store.tree._losses += [None] * self.scheduler.random.randrange(8)
            self.store.tree.lose_next_answer(applied=loss)
        try:
            ledger_id, record = self.store.create_ledger(metadata)
        finally:
            if loss is not None and not self.store.tree._losses:
                self.scheduler.reached("the answer to a create was lost")
            self.store.tree._losses.clear()
        self._history[ledger_id] = [record]
        self.on_write(ledger_id, record, by)
        self._seen[by, ledger_id] = record.version
        return ledger_id, record

    def orphans(self) -> list[LedgerId]:
        """Return the records whose creator does not know them."""
        return [found for found in self.store.list_ledgers() if found not in self._history]

    def newest(self, ledger_id: LedgerId) -> Record | None:
        """Return the present record, or None if it was deleted."""
        history = self._history[ledger_id]
        return history[-1] if history else None

    def delete(self, ledger_id: LedgerId) -> None:
        if self._history[ledger_id]:
            self.store.delete_ledger(ledger_id)
            self._history[ledger_id] = []
            self.on_write(ledger_id, None, "operator")
            self._tell(ledger_id, None)

    def away(self, client: str, is_away: bool) -> None:
        """Set whether a client can reach the store."""
        (self._away.add if is_away else self._away.discard)(client)

    def is_away(self, client: str) -> bool:
        return self.is_down or client in self._away

    # --- calls ---

    def write(self, client: str, ledger_id: LedgerId, metadata: LedgerMetadata, version: int, feed: Feed) -> None:
        label = f"{client} writes {metadata.state.name} over version {version}"
        self._call(client, label, lambda: self._write(client, ledger_id, metadata, version), feed)

    def read(self, client: str, ledger_id: LedgerId, feed: Feed, *, fresh: bool = False) -> None:
        self._call(client, f"{client} reads the record", lambda: self._read(client, ledger_id, fresh), feed)

    def read_bookies(self, client: str, feed: Feed) -> None:
        self._call(client, f"{client} reads bookies", lambda: BookiesRead(tuple(self.registered)), feed)

    def mark(self, client: str, ledger_id: LedgerId, bookies: tuple[BookieId, ...]) -> None:
        self.scheduler.reached("missing copies were marked")
        self.store.mark_underreplicated(ledger_id, bookies)

    def marked(self, ledger_id: LedgerId) -> tuple[BookieId, ...]:
        """Return the bookies that are marked as lacking copies of a ledger."""
        return self.marks().get(ledger_id, ())

    def marks(self) -> dict[LedgerId, tuple[BookieId, ...]]:
        """Return the bookies that each mark names."""
        if self._marks[0] != self.cluster.changes:
            self._marks = self.cluster.changes, dict(self.store.list_underreplicated())
        return self._marks[1]

    def watch(self, client: str, ledger_id: LedgerId, call: Callable[[Record | None], None]) -> BookKeeperError | None:
        """Set a watch. Return the error that prevents it, or None."""
        if self.is_away(client):
            return MetadataUnavailableError("the store is away", value=client, outcome=Outcome.NOT_APPLIED)
        if not self._history[ledger_id]:
            return NoSuchLedgerError(f"ledger {ledger_id} was deleted")
        self._watches.setdefault(ledger_id, []).append((client, call))
        return None

    def _call(self, client: str, label: str, do: Callable[[], Any], feed: Feed) -> None:
        self._carry(f"{client}>store", label, self._arrived, client, label, do, feed)

    def _arrived(self, client: str, label: str, do: Callable[[], Any], feed: Feed) -> None:
        event = self._unavailable(client) if self.is_away(client) else do()
        self._carry(f"store>{client}", f"{label}: {type(event).__name__}", feed, event)

    def _carry(self, lane: str, label: str, call: Callable[..., None], *args: Any) -> None:
        self.scheduler.add(lane, label, call, *args, mean_ms=self.knobs.store_ms, fifo=True)

    def _unavailable(self, client: str) -> Any:
        return MetadataCallFailed(
            MetadataUnavailableError("the store is away", value=client, outcome=Outcome.NOT_APPLIED)
        )

    def write_repaired(
        self, client: str, ledger_id: LedgerId, metadata: LedgerMetadata, version: int, feed: Feed, locker: MemoryStore
    ) -> None:
        """Write if this session holds the lock, which is checked in the same step."""

        def write() -> Any:
            stat = locker.tree.exists(locker._lock_of(ledger_id))
            if stat is None or stat.owner != locker.tree.session_id:
                self.scheduler.reached("a record was not written without the lock")
                return MetadataCallFailed(MetadataError("the lock was lost"))
            return self._write(client, ledger_id, metadata, version)

        self._call(client, f"{client} writes {metadata.state.name} over version {version}", write, feed)

    def _write(self, client: str, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Any:
        loss = self._loss(client)
        if loss is not None:
            self.store.tree.lose_next_answer(applied=loss)
            self.scheduler.reached("a store answer was lost")
            if metadata.is_closed and loss:
                self.scheduler.reached("the close was applied, its answer lost")
        try:
            record = self.store.write_ledger(ledger_id, metadata, version)
        except MetadataConflictError:
            self.scheduler.reached("a compare-and-set conflicted")
            return MetadataConflicted()
        except BookKeeperError as error:
            self._sync(ledger_id, client)
            return MetadataCallFailed(error)
        finally:
            self.store.tree._losses.clear()  # a refused write has no answer to lose
        self._sync(ledger_id, client)
        self._seen[client, ledger_id] = record.version
        return MetadataWritten(record)

    def _loss(self, client: str) -> bool | None:
        scripted = self.lose_next.get(client)
        if scripted:
            return scripted.pop(0)
        random = self.scheduler.random
        return random.random() < 0.5 if random.random() < self.knobs.store_answer_lost else None

    def _sync(self, ledger_id: LedgerId, by: str) -> None:
        """Note the present state of the store."""
        history = self._history[ledger_id]
        if not history:
            return
        found = self.store.read_ledger(ledger_id)
        if found.version != history[-1].version:
            history.append(found)
            if found.value.is_closed:
                self.closed_by.setdefault(ledger_id, by)  # repairs write closed records, too
            self.on_write(ledger_id, found, by)
            self._tell(ledger_id, found)

    def _read(self, client: str, ledger_id: LedgerId, fresh: bool) -> Any:
        history, seen = self._history[ledger_id], self._seen.get((client, ledger_id), -1)
        if self.scheduler.random.random() < self.knobs.store_stale_read and history:
            old: list[Record | None] = [record for record in history if record.version >= seen]
            self._lag(ledger_id, self.scheduler.random.choice(old if seen >= 0 else [None, *old]))
        try:
            record = self.store.read_ledger(ledger_id, fresh=fresh)
        except BookKeeperError as error:
            if history and isinstance(error, NoSuchLedgerError):
                raise AssertionError(f"M5: ledger {ledger_id} exists") from error
            return MetadataCallFailed(error)
        finally:
            self.store.tree.catch_up()
        is_old = record.version != history[-1].version
        is_late = fresh and is_old and not record.value.is_closed  # a repair writes a closed record, too
        assert not is_late, f"M5: version {record.version} is not that of {history[-1]}"
        if is_old:
            self.scheduler.reached("a stale record was read")
        self._seen[client, ledger_id] = max(record.version, seen)
        return MetadataRead(record)

    def read_synced(
        self, client: str, ledger_id: LedgerId, feed: Feed, read: Callable[[MemoryStore, LedgerId], Record]
    ) -> None:
        """Read a record that is as new as the call, closed or not. ``read`` ensures this on a server that may lag."""
        label = f"{client} syncs and reads the record"
        self._call(client, label, lambda: self._read_newest(client, ledger_id, read), feed)

    def _read_newest(self, client: str, ledger_id: LedgerId, read: Callable[[MemoryStore, LedgerId], Record]) -> Any:
        history = self._history[ledger_id]
        if len(history) > 1 and self.scheduler.random.random() < self.knobs.store_stale_read:
            self._lag(ledger_id, self.scheduler.random.choice(history))
        try:
            record = read(self.store, ledger_id)
        except BookKeeperError as error:
            return MetadataCallFailed(error)
        finally:
            self.store.tree.catch_up()
        self._seen[client, ledger_id] = record.version
        return MetadataRead(record)

    def _lag(self, ledger_id: LedgerId, record: Record | None) -> None:
        """Let the server that answers next have this record, or none."""
        behind, path = self.cluster.copy(), self.store._znode_of(ledger_id)
        node = behind._nodes[path]
        if record is None:
            self.scheduler.reached("a server did not know of the ledger yet")
            del behind._nodes[path]
        else:
            node.data, node.version = encode_ledger(record.value), record.version
        self.store.tree.lag(behind)

    def _tell(self, ledger_id: LedgerId, record: Record | None) -> None:
        for client, call in self._watches.get(ledger_id, ()):
            self._carry(f"store>{client} watch", f"{client}'s watch fires", call, record)
