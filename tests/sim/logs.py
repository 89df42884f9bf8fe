# SPDX-License-Identifier: Apache-2.0
"""Many actors over one named log, one request at a time. The machines and sequences of bk_core.logs.machines run with a
metadata store of a few lines, and every fault that a compare-and-set can have.

The oracle is ``LogWorld.history``: the value at each offset that was ever sealed. Every head that is written is
flattened and compared with it, so that a lost, moved, doubled or restored value is noticed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol
from zlib import crc32

from bk_core.errors import (
    BookKeeperError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLogError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.machines import ask
from bk_core.logs.model import next_head as commit
from bk_core.logs.model import paging
from bk_core.logs.model.codec import encode_head
from bk_core.logs.model.head import Extent, LogHead, LogPage, LogTransactions, NewExtent
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.logs.model.paging import NewPage, ledgers_listed, page_names, sealed_extents
from bk_core.model import LedgerId, Versioned
from tests.sim.log_limits import WINDOWS, small_limits
from tests.sim.log_unlinking import DELAYS, Unlinkings

UUID = "12345678-9abc-def0-1234-56789abcdef0"
TXN_RETENTION = 15
STEPS = 100
SETTLE_STEPS = 4000
FATES = ((0.25, ("applied", "late", "never", "refused")), (0.5, ("late", "refused")))
"""The rate of compare-and-sets that go wrong, and the ways. Each schedule draws one pair."""


class LogViolation(AssertionError):
    """Raised when the log broke one of its rules."""


@dataclass
class LogOutcome:
    """The results of a schedule. ``reached`` counts events that should happen sometimes."""

    seed: int
    steps: int
    reached: Counter[str]
    fingerprint: int


@dataclass
class SimLedger:
    """A ledger as a log sees it: its entries, and whether it is closed."""

    values: list[str]
    made: int
    is_closed: bool = True
    is_ours: bool = True  # whether it carries the keys of RULES N6
    schema: bytes | None = None  # the schema of its entries


class Actor(Protocol):
    """A client that works on the log. ``act`` carries out one request. ``is_done`` says that nothing is left to do."""

    is_done: bool

    def act(self) -> None: ...


@dataclass
class LogWorld:
    """One log's records and ledgers, and the faults of requests to them."""

    random: Random
    is_faulty: bool = True
    name: str = "log"
    head: Versioned[LogHead] = field(
        default_factory=lambda: Versioned(LogHead(uuid=UUID, created_ms=1, ledger_key=b""), 0)
    )
    older: list[Versioned[LogHead]] = field(default_factory=list)
    pages: dict[str, LogPage] = field(default_factory=dict)
    page_made: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, Versioned[LogTransactions]] = field(default_factory=dict)
    ledgers: dict[LedgerId, SimLedger] = field(default_factory=dict)
    forgotten: dict[str, list[int]] = field(default_factory=dict)  # where the log ended when transactions were vacuumed
    published: list[bytes] = field(default_factory=list)  # every publish that was applied, in order
    history: list[str] = field(default_factory=list)
    late: list[Callable[[], object]] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    time: int = 0
    next_ledger: LedgerId = 0

    def __post_init__(self) -> None:
        self.fates = self.random.choice(FATES)
        self.unlinkings = Unlinkings(require, self.random.choice(DELAYS))

    def chance(self, probability: float) -> bool:
        """Return whether a fault happens now."""
        return self.is_faulty and self.random.random() < probability

    def nonce(self) -> int:
        """Return a name for a page."""
        return self.random.getrandbits(64)

    # --- ledgers ---

    def make_ledger(
        self, values: list[str], *, is_closed: bool = True, is_ours: bool = True, schema: bytes | None = None
    ) -> LedgerId:
        """Make a ledger, and return its id. Ids are never used again."""
        self.next_ledger += 1
        self.ledgers[self.next_ledger] = SimLedger(values, self.time, is_closed, is_ours, schema)
        return self.next_ledger

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger. The log must not list it."""
        if ledger_id in self.ledgers:
            require(ledger_id not in ledgers_listed(self.head.value, self.pages), f"listed ledger {ledger_id} deleted")
            require(self.ledgers[ledger_id].is_ours, f"ledger {ledger_id} of somebody else deleted")
            self.unlinkings.check_ledger(ledger_id, self.time)
            del self.ledgers[ledger_id]

    def delete_page(self, name: str) -> None:
        """Delete a page. The head must not reach it."""
        require(name not in page_names(self.head.value, self.pages), f"page {name} deleted, which the head reaches")
        if name in self.pages:
            self.unlinkings.check_page(name, self.pages, self.time)
            del self.pages[name]

    def delete_transactions(self, versions: Mapping[str, int], head_version: int) -> bool:
        """Compare and delete. Return False if a version differs."""
        found = {record.value.key: record for record in self.transactions.values()}
        if not self.compares(found, versions, head_version):
            return False
        for record in (found[key].value for key in versions if key in found):
            require(record.last_used_ms < self.time - TXN_RETENTION, f"transactions of {record.app_id} are in use")
            self.forgotten.setdefault(record.app_id, []).append(self.head.value.next_offset)
            del self.transactions[record.app_id]
        return True

    def compares(
        self, found: Mapping[str, Versioned[LogTransactions]], versions: Mapping[str, int], head_version: int
    ) -> bool:
        """Return whether head and records have these versions."""
        present = {key: found[key].version for key in versions if key in found}
        return head_version == self.head.version and present == versions

    def recover(self, ledger_id: LedgerId) -> LedgerEnd:
        """Fence and close a ledger."""
        ledger = self.ledgers[ledger_id]
        ledger.is_closed = True
        return LedgerEnd(entry_count=len(ledger.values), size_bytes=len(ledger.values))

    # --- the head ---

    def read(self, *, sync: bool) -> Versioned[LogHead]:
        """Return the head. Without ``sync`` it is sometimes an older one, as a follower that lags returns."""
        if not sync and self.older and self.chance(0.15):
            self.reached["stale read"] += 1
            return self.random.choice(self.older[-3:])
        if self.is_gone:
            raise NoSuchLogError("the log was deleted")
        return self.head

    @property
    def is_gone(self) -> bool:
        """Whether the head is replaced by the mark of a deletion, or is gone."""
        return self.head.value.is_deleted

    def write(self, write: ask.WriteHead) -> bool:
        """Compare and set. Return False if the version differs."""
        if not self.matches(write):
            return False
        head, txn = write.head, write.transactions
        encode_head(head)  # at most 8 KiB, at most two open extents, contiguous
        require(not self.is_gone, "a deleted log is written")
        (self._check_deleted if head.is_deleted else self._check)(self.head.value, head)
        self._check_published(self.head.value, head)
        if txn is not None:
            versions = [each.version for each in txn.versions]
            require(versions == sorted(set(versions)), f"{txn.app_id} has published versions {versions}")
            version = write.transactions_version
            self.transactions[txn.app_id] = Versioned(txn, 0 if version is None else version + 1)
        before, self.head = self.head, Versioned(head, write.version + 1)
        self.older.append(before)
        if head.is_deleted:  # pages may be deleted at once, ledgers after the delay
            self.unlinkings.ledgers.update(dict.fromkeys(ledgers_listed(before.value, self.pages), self.time))
            return True
        self.unlinkings.changed(before.value, head, self.head.version, write.unlinked, self.pages, self.time)
        self.reached["pages unlinked with what they name"] += bool(write.unlinked.pages)
        return True

    def matches(self, write: ask.WriteHead) -> bool:
        """Return whether a write would be applied."""
        if write.version != self.head.version:
            return False
        txn = write.transactions
        found = None if txn is None else self.transactions.get(txn.app_id)
        return txn is None or (None if found is None else found.version) == write.transactions_version

    def compare_and_set(self, write: Callable[[], bool]) -> str:
        """Carry out ``write`` with any fault. Return "written", "conflict", "unknown" or "refused"."""
        probability, kinds = self.fates
        if not self.chance(probability):
            return "written" if write() else "conflict"
        kind = self.random.choice(kinds)
        self.reached[f"answer lost, {kind}"] += 1
        if kind == "applied":
            write()
        elif kind == "late":
            self.late.append(write)
        return "refused" if kind == "refused" else "unknown"

    def compared(self, write: Callable[[], bool]) -> None:
        """Make a :meth:`compare_and_set`. Raises the error of the metadata store unless it is written."""
        match self.compare_and_set(write):
            case "conflict":
                self.reached["conflict"] += 1
                raise MetadataConflictError("another version")
            case "unknown":
                raise MetadataUnavailableError("lost", outcome=Outcome.UNKNOWN)
            case "refused":
                raise MetadataUnavailableError("refused", outcome=Outcome.NOT_APPLIED)

    def _check(self, before: LogHead, head: LogHead) -> None:
        require(
            head.next_offset >= before.next_offset, f"offsets go back from {before.next_offset} to {head.next_offset}"
        )
        require(head.start_offset >= before.start_offset, "what was trimmed comes back")
        require(head.epoch >= before.epoch, "the epoch goes back")
        require(head.schemas[: len(before.schemas)] == before.schemas, "a schema was changed or forgotten")
        missing = _reached(head, self.pages) - self.pages.keys()
        require(not missing, f"the head reaches pages that do not exist: {sorted(missing)}")
        listed = ledgers_listed(head, self.pages)
        require(listed <= self.ledgers.keys(), f"listed, but deleted: {sorted(listed - self.ledgers.keys())}")
        require(not listed.intersection(head.condemned), f"listed, but condemned: {head.condemned}")
        if head.epoch > before.epoch:
            self.reached["overwritten"] += 1
        if head.start_offset > len(self.history):  # an overwrite with takeover seals and unlinks in one step
            self.history += [value for e in before.open_extents for value in self.ledgers[e.ledger_id].values]
            require(len(self.history) == head.start_offset, f"offset {len(self.history)} has no entry")
        extents = sealed_extents(head, self.pages, head.start_offset, head.next_offset)
        require(not head.next_offset > head.start_offset or bool(extents), "offsets without extents")
        stored = {schema.number: self.pages[schema.page].schema for schema in head.schemas}
        require(len(set(stored.values())) == len(stored), f"a schema has two numbers: {stored}")
        for extent in extents:
            self._check_extent(extent, stored)
        self.reached["several schemas"] += len(stored) > 1
        require(len(self.history) >= head.next_offset, f"offset {len(self.history)} has no entry")
        self.reached["pages of pages"] += any(ref.level for ref in head.pages)

    def _check_deleted(self, before: LogHead, mark: LogHead) -> None:
        """Check the mark of a deletion. No append of a leader is confirmed any more, and confirmed ones are part of the
        history."""
        opened = [self.ledgers[each.ledger_id] for each in before.open_extents if each.ledger_id in self.ledgers]
        require(all(ledger.is_closed for ledger in opened), "the log is deleted under a leader that goes on")
        require(not mark.tail and not mark.pages, "the mark of a deleted log lists something")
        self.history += [value for ledger in opened for value in ledger.values]

    def _check_published(self, before: LogHead, head: LogHead) -> None:
        """Check the promise of RULES N4: no id occurs twice among the last ones."""
        if head.published == before.published or head.is_deleted:
            return
        digest = head.published[-1].publish_id
        require(digest not in self.published[-commit.PUBLISHED_MAX :], f"{digest.hex()} is published twice")
        self.published.append(digest)

    def _check_extent(self, extent: Extent, schemas: Mapping[int, bytes]) -> None:
        ledger = self.ledgers[extent.ledger_id]
        found_schema = schemas.get(extent.schema_number)
        require(found_schema == ledger.schema, f"{extent} was written with schema {ledger.schema!r}")
        require(ledger.is_closed, f"ledger {extent.ledger_id} is sealed and still written")
        values = ledger.values[extent.first_entry_id : extent.end_entry_id]
        require(len(values) == extent.entry_count == len(ledger.values), f"{extent} has entries {ledger.values}")
        for offset, value in enumerate(values, extent.base_offset):
            if offset == len(self.history):
                self.history.append(value)
            found = self.history[offset] if offset < len(self.history) else None
            require(found == value, f"offset {offset} was {found}, now {value}")

    # --- what the sequences ask for ---

    def answer(self, request: ask.OfOneLog | ask.OfVacuum, *, sync: bool = False) -> Any:
        """Carry out a request and return its answer, or raise its error."""
        if self.chance(0.04):
            if isinstance(request, ask.CreatePages):
                self._create(request.pages[: len(request.pages) // 2])
            raise MetadataUnavailableError("away", outcome=Outcome.NOT_APPLIED)
        match request:
            case ask.ReadHead(app_id):
                found = self.transactions.get(app_id) if app_id else None
                return ask.HeadRead(self.read(sync=sync), found)
            case ask.ReadPages(names):
                if missing := [name for name in names if name not in self.pages]:
                    raise PublishConflictError(f"pages {missing} are gone: the head was an old one")
                return {name: self.pages[name] for name in names}
            case ask.CheckLedgers(_, extents):
                return self._check_ledgers(extents)
            case ask.RecoverLedgers(ledgers):
                self.reached["takeover by a publish"] += 1
                there = {each for each in ledgers if each in self.ledgers}
                ends = {each: self.recover(each) for each in ledgers if each in there}
                return ask.LedgersRecovered(ends, frozenset(ledgers) - there)
            case ask.CreatePages(pages):
                return self._create(pages)
            case ask.ReadUnlinked():
                return tuple(self.unlinkings.records.values())
        return self._answer_vacuum(request)

    def _answer_vacuum(self, request: ask.OfVacuum) -> Any:
        match request:
            case ask.ListOrphans(_, before_ms):
                return tuple(each for each, found in self.ledgers.items() if found.is_ours and found.made < before_ms)
            case ask.DeleteLedgers(ledgers):
                gone = tuple(each for each in ledgers if not self.chance(0.1))
                for each in gone:
                    self.delete_ledger(each)
                self.reached["vacuumed"] += len(gone)
                return gone
            case ask.ListPages(before_ms):
                return tuple(name for name in self.pages if self.page_made[name] < before_ms)
            case ask.DeleteUnlinked(names):
                for name in names:
                    self.unlinkings.records.pop(name, None)
                return None
            case ask.DeletePages(names):
                for name in names:
                    self.delete_page(name)
                self.reached["pages vacuumed"] += len(names)
                return None
        return self._answer_transactions(request)

    def _answer_transactions(self, request: ask.OfVacuum) -> Any:
        match request:
            case ask.ListTransactions():
                return tuple(found.value.key for found in self.transactions.values())
            case ask.ReadTransactions(keys):
                found = {record.value.key: record for record in self.transactions.values() if record.value.key in keys}
                return ask.TransactionsRead(self.read(sync=False), found)
            case ask.DeleteTransactions(versions, head_version):
                self.compared(lambda: self.delete_transactions(versions, head_version))
                self.reached["transactions vacuumed"] += 1
                return None
        raise AssertionError(request)

    def _check_ledgers(self, extents: tuple[NewExtent, ...]) -> None:
        for extent in extents:
            ledger = self.ledgers.get(extent.ledger_id)
            if ledger is None or not ledger.is_closed or len(ledger.values) != extent.end_entry_id:
                self.reached["ledger gone before its publish"] += 1
                raise PublishConflictError(f"ledger {extent.ledger_id} is not as reported")

    def _create(self, pages: tuple[NewPage, ...]) -> None:
        for new in pages:
            self.pages[new.name], self.page_made[new.name] = new.page, self.time


def require(condition: bool, why: str) -> None:
    """Raise LogViolation unless ``condition`` holds."""
    if not condition:
        raise LogViolation(why)


def _reached(head: LogHead, pages: dict[str, LogPage]) -> set[str]:
    try:
        return page_names(head, pages)
    except paging.PagesNeeded as needed:
        return set(needed.names)


def run_log_schedule(seed: int) -> LogOutcome:
    """Run one schedule: ``STEPS`` requests of many actors under faults. Then all actors settle, one leader takes over
    and gives up, one vacuum runs, and the records are compared. Raises LogViolation."""
    from tests.sim.log_actors import Stage

    world = LogWorld(Random(seed))
    with small_limits(world.random.choice(WINDOWS)):
        return play(seed, Stage(world), world, STEPS)


def play(seed: int, stage: Any, world: LogWorld, steps: int) -> LogOutcome:
    """Let the actors of a stage make ``steps`` requests, settle and compare everything. Raises LogViolation."""
    try:
        for _ in range(steps):
            stage.step()
        stage.settle(SETTLE_STEPS)
        stage.check()
    except (BookKeeperError, AssertionError, KeyError) as error:
        raise LogViolation(f"seed {seed}, step {world.time}: {type(error).__name__}: {error}") from error
    digest = crc32(repr((world.time, world.head, sorted(world.ledgers), world.history)).encode())
    return LogOutcome(seed, world.time, world.reached, digest)
