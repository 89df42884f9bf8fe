# SPDX-License-Identifier: Apache-2.0
"""Reads, caches and writes the records of one named log in the metadata store.

All calls block, as those of the metadata port do; async callers use a thread. This file answers the requests that
sequences of :mod:`bk_core.logs.machines` make about one log; it contains no rule of the log. Pages never change, so
each is read once and cached (N3).
"""

from __future__ import annotations

import contextlib
import hmac
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from bk_core.entries.digest import ledger_key
from bk_core.errors import (
    LogExistsError,
    LogInUseError,
    MetadataConflictError,
    MetadataCorruptError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchLogError,
    Outcome,
    WrongPasswordError,
)
from bk_core.logs.ledgers import TellDeleted, check_publishable, delete_of_log, of_log, of_logs
from bk_core.logs.machines import ask
from bk_core.logs.machines.change import write_of
from bk_core.logs.machines.upkeep import Vacuumed
from bk_core.logs.model.codec import (
    decode_head,
    decode_page,
    decode_transactions,
    decode_unlinked,
    encode_head,
    encode_transactions,
    encode_unlinked,
)
from bk_core.logs.model.deleted import DeletedLog, decode_deleted_log, encode_deleted_log
from bk_core.logs.model.head import Extent, LogHead, LogPage, LogTransactions
from bk_core.logs.model.paging import (
    Change,
    NewPage,
    Pages,
    PagesNeeded,
    last_ledgers,
    ledgers_listed,
    merge_candidates,
    sealed_extents,
)
from bk_core.logs.model.schemas import schema_in
from bk_core.logs.model.unlinking import UnlinkedRecord, ledgers_kept, pages_kept
from bk_core.metadata.port import LogWrite, MetadataStore, TxnWrite
from bk_core.metadata.unreadable import NodeKind
from bk_core.model import LedgerId, Versioned

CACHED_PARTS_MAX = 1 << 16
"""The maximum number of extents and references in the cached pages of a connection, which take about 40 MB of
memory."""
UNKNOWN_ATTEMPTS_MAX = 5
"""The maximum number of attempts to create a log or a page while the metadata store does not answer."""
FORGET_ATTEMPTS_MAX = 10
"""The maximum number of attempts to delete a transaction record while other clients change the log."""
NEAREST_LOGS = 3
"""The maximum number of existing logs that an error about an unknown log names."""

R = TypeVar("R")
Apply = Callable[[LogHead, Pages], Change]
"""A function that makes a change from the head and from the pages that it may replace by larger pages. It may be called
more than once and must have no side effects."""

_random = random.SystemRandom()  # names of pages must also differ between forked processes


def nonce() -> int:
    """Return a random 64-bit number for the name of a page."""
    return _random.getrandbits(64)


class PageCache:
    """A cache of pages by name. When it is full, it drops the least recently used pages. Any thread may call it."""

    def __init__(self, parts_max: int = CACHED_PARTS_MAX) -> None:
        self._parts_max = parts_max
        self._pages: OrderedDict[str, LogPage] = OrderedDict()
        self._parts = 0
        self._lock = threading.Lock()

    def get(self, name: str) -> LogPage | None:
        with self._lock:
            page = self._pages.get(name)
            if page is not None:
                self._pages.move_to_end(name)
            return page

    def put(self, name: str, page: LogPage) -> None:
        with self._lock:
            if name not in self._pages:
                self._pages[name] = page
                self._parts += _parts_of(page)
            while self._parts > self._parts_max and len(self._pages) > 1:
                self._parts -= _parts_of(self._pages.popitem(last=False)[1])


def _parts_of(page: LogPage) -> int:
    return 1 + len(page.extents) + len(page.pages)


_caches: WeakKeyDictionary[MetadataStore, PageCache] = WeakKeyDictionary()
"""The cache of pages of each connection. Handles of logs are made often, so they share it."""


def has_password(log: LogHead | DeletedLog, password: bytes) -> bool:
    """Return whether the log was created with this password."""
    return hmac.compare_digest(log.ledger_key, ledger_key(password))


def deleted_logs(store: MetadataStore) -> list[DeletedLog]:
    """Return the deleted logs whose ledgers are not deleted yet, in the order of their deletions. A log with an
    unreadable record is skipped (M6), so that its ledgers are kept."""
    found: list[DeletedLog] = []
    with store.unreadable.whole_walk(NodeKind.DELETED_LOG, store.deleted_log_path()):
        for log_uuid, deleted_ms, data in store.read_deleted_logs():
            with store.unreadable.skipping(NodeKind.DELETED_LOG, store.deleted_log_path(log_uuid)):
                found.append(decode_deleted_log(data, log_uuid, deleted_ms))
    return sorted(found, key=lambda each: (each.deleted_ms, each.uuid))


class LogStore:
    """Reads and writes the records of the log ``name``. Any thread may call it. ``deleted`` is called with ledgers that
    were deleted."""

    def __init__(self, store: MetadataStore, name: str, deleted: TellDeleted = lambda _: None) -> None:
        self.store, self.name, self._deleted = store, name, deleted
        self._cache = _caches.setdefault(store, PageCache())

    # --- reading ---

    def read(self, *, sync: bool = False) -> Versioned[LogHead]:
        """Return the head. With ``sync`` it includes every finished change. Raises NoSuchLogError, which lists logs
        with similar names, and MetadataCorruptError."""
        try:
            found = self._read_or_mark(sync=sync)
        except NoSuchLogError as error:
            raise self._no_such_log() from error
        if found.value.is_deleted:
            raise self._no_such_log()
        return found

    def _read_or_mark(self, *, sync: bool = False) -> Versioned[LogHead]:
        """Return the head, or the mark of a deleted log. Raises NoSuchLogError, without similar names."""
        if sync:
            self.store.sync()
        found = self.store.read_log(self.name)
        with self.store.unreadable.reading(NodeKind.LOG, self.store.log_path(self.name)):
            return Versioned(decode_head(found.value, self.name), found.version)

    def mark(self) -> LogHead | None:
        """Return the mark if a deletion of this log is not finished, else None."""
        try:
            found = self._read_or_mark(sync=True).value
        except NoSuchLogError:
            return None
        return found if found.is_deleted else None

    def check_password(self, head: LogHead | DeletedLog, password: bytes) -> None:
        """Raise WrongPasswordError unless the log was created with this password."""
        if not has_password(head, password):
            raise WrongPasswordError(
                f"this is not the password of log {self.name}",
                remedy="give the password it was created with (password=, --password, ledgerPassword)",
            )

    def page(self, name: str) -> LogPage:
        """Return the page with this name, after a check of its CRC. Raises MetadataCorruptError."""
        page = self._cache.get(name)
        if page is None:
            try:
                data = self.store.read_page(self.name, name)
            except MetadataCorruptError:
                self.read(sync=True)  # raises NoSuchLogError if the log was deleted
                raise
            with self.store.unreadable.reading(NodeKind.PAGE, self.store.log_path(self.name, "pages", name)):
                page = decode_page(data, name)
            self._cache.put(name, page)
        return page

    def extents(self, head: LogHead, start_offset: int, end_offset: int) -> list[Extent]:
        """Return the extents of ``head`` that hold the offsets ``start_offset`` to ``end_offset`` − 1, in order. If
        ``end_offset`` is beyond the sealed extents, all open extents follow. Only the pages in this range are read."""
        found = self.with_pages(lambda pages: sealed_extents(head, pages, start_offset, end_offset))
        if end_offset > head.next_offset:
            found += head.open_extents
        return found

    def last_ledgers(self, head: LogHead, count: int = 2) -> tuple[LedgerId, ...]:
        """Return the last ledgers of the log, in order, whether in the head or in pages (N2)."""
        return self.with_pages(lambda pages: last_ledgers(head, pages, count))

    def schemas(self, head: LogHead) -> dict[int, bytes]:
        """Return the schemas of ``head`` by number, the newest last. Raises MetadataCorruptError."""
        return {schema.number: self.with_pages(partial(schema_in, schema=schema)) for schema in head.schemas}

    def with_pages(self, ask: Callable[[Pages], R]) -> R:
        """Return the result of ``ask``. Each time it raises PagesNeeded, read the pages and call it again."""
        pages: dict[str, LogPage] = {}
        while True:
            try:
                return ask(pages)
            except PagesNeeded as needed:
                pages.update((name, self.page(name)) for name in needed.names)

    def _no_such_log(self) -> NoSuchLogError:
        names = [name for name in self.store.list_logs() if name != self.name]
        was = max((each.deleted_ms for each in self.deleted()), default=0)
        at = datetime.fromtimestamp(was / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        near = get_close_matches(self.name, names, n=NEAREST_LOGS, cutoff=0.4) or sorted(names)[:NEAREST_LOGS]
        remedy = f"logs with near names: {', '.join(near)}" if near else "the cluster has no logs yet: append makes one"
        what = f"there is no log {self.name}" + (f": it was deleted at {at}" if was else "")
        return NoSuchLogError(what, value=self.store.uri, remedy=remedy)

    # --- deletion ---

    def deleted(self, password: bytes | None = None) -> list[DeletedLog]:
        """Return the deleted logs of this name whose ledgers are not deleted yet, in the order of their deletions. With
        ``password`` return only logs that were created with it."""
        found = [each for each in deleted_logs(self.store) if each.name == self.name]
        return found if password is None else [each for each in found if has_password(each, password)]

    def deleted_candidates(self, delete_delay_ms: int, password: bytes) -> Vacuumed | None:
        """Return the ledgers of deleted logs of this name that a vacuum would delete now, or None if there is no such
        deleted log."""
        deleted = self.deleted(password)
        if not deleted:
            return None
        before_ms = self.store.deleted_logs_clock_ms() - delete_delay_ms
        due = {each.uuid: ask.ANY_AGE_MS for each in deleted if each.deleted_ms <= before_ms}
        return Vacuumed(tuple(ledger_id for _, ledger_id in of_logs(self.store, due)))

    def check_unused(self, log_uuid: str) -> None:
        """Raise LogInUseError if a ledger that was made for this log is not closed. Then a job or a leader writes it,
        or died while it wrote it. This reads the record of every ledger of the cluster."""
        for ledger_id in of_log(self.store, log_uuid, ask.ANY_AGE_MS):
            try:
                is_closed = self.store.read_ledger(ledger_id).value.is_closed
            except NoSuchLedgerError:
                continue
            if not is_closed:
                raise LogInUseError(
                    f"a job or a leader writes log {self.name}",
                    value=f"ledger {ledger_id} is open",
                    remedy="stop it, or delete the log without --now; if nothing writes it: bk ledger recover "
                    f"{ledger_id}",
                )

    def _answer_deletion(self, request: ask.Request | ask.OfOneLog) -> Any:
        match request:
            case ask.RecordDeleted(log_uuid):
                return self._record_deleted(log_uuid)
            case ask.RemoveMark(log_uuid):
                return self._remove_mark(log_uuid)
            case ask.ForgetDeleted(log_uuid):
                return self.store.forget_deleted_log(log_uuid)
        raise AssertionError(request)

    def _record_deleted(self, log_uuid: str) -> DeletedLog:
        mark = self.mark()
        if mark is not None and mark.uuid == log_uuid:
            self.store.create_deleted_log(log_uuid, encode_deleted_log(self.name, mark))
        found = self.store.read_deleted_log(log_uuid)
        if found is None:
            raise NoSuchLogError(f"there is neither log {self.name} with uuid {log_uuid} nor a record of its deletion")
        return decode_deleted_log(found[1], log_uuid, found[0])

    def _remove_mark(self, log_uuid: str) -> None:
        try:
            found = self._read_or_mark(sync=True)
            if found.value.is_deleted and found.value.uuid == log_uuid:
                self.store.delete_log(self.name, found.version)
        except (NoSuchLogError, MetadataConflictError):
            return  # another client removed the mark, and a new log may have the name already

    # --- writing ---

    def create(self, head: LogHead) -> Versioned[LogHead]:
        """Create the log. Raises LogExistsError if a log with this name and another uuid exists, and
        MetadataUnavailableError, with outcome UNKNOWN if the answer to any attempt was lost."""
        is_doubtful = False
        for attempt in range(1, UNKNOWN_ATTEMPTS_MAX + 1):
            try:
                return self._create(head)
            except MetadataUnavailableError as error:
                is_doubtful = is_doubtful or error.outcome is Outcome.UNKNOWN
                if attempt == UNKNOWN_ATTEMPTS_MAX:
                    error.outcome = Outcome.UNKNOWN if is_doubtful else Outcome.NOT_APPLIED
                    raise
        raise AssertionError("unreachable")

    def _create(self, head: LogHead) -> Versioned[LogHead]:
        try:
            return Versioned(head, self.store.create_log(self.name, encode_head(head)).version)
        except LogExistsError:
            found = self._read_or_mark()  # it may be our log, if an earlier answer was lost
            if found.value.is_deleted:  # the client that deleted the old log of this name did not finish
                self._record_deleted(found.value.uuid)
                self._remove_mark(found.value.uuid)
                return Versioned(head, self.store.create_log(self.name, encode_head(head)).version)
            if found.value.uuid == head.uuid:
                return found
            raise

    def answer(self, request: ask.OfOneLog | ask.OfVacuum | ask.OfDeletion | ask.OfCompaction) -> Any:
        """Answer a request of :mod:`bk_core.logs.machines.ask` that needs no bookies. This blocks."""
        match request:
            case ask.ReadHead(app_id):
                # The record is read first: if it changes before the head is read, the multi fails.
                transactions = None if app_id is None else self.transactions(app_id)
                return ask.HeadRead(self.read(), transactions)
            case ask.ReadPages(names):
                return {name: self.page(name) for name in names}
            case ask.CheckLedgers(head, extents):
                return check_publishable(self.store, head, extents)
            case ask.ReadUnlinked():
                return tuple(self.unlinked())
            case ask.CreatePages(pages):
                for new in pages:
                    self._create_page(new)
                return None
        return self._answer_vacuum(request)

    def _answer_vacuum(self, request: ask.Request | ask.OfOneLog) -> Any:
        match request:
            case ask.ListOrphans(log_uuid, before_ms, among):
                return tuple(of_log(self.store, log_uuid, before_ms, among))
            case ask.DeleteLedgers(ledgers, log_uuid):
                return delete_of_log(self.store, log_uuid, ledgers, self._deleted)
            case ask.ListPages(before_ms):
                return self._pages_made_before(before_ms)
            case ask.DeleteUnlinked(names):
                return self.store.delete_unlinked(self.name, names)
            case ask.DeletePages(names):
                return self.delete_pages(names)
            case ask.ListTransactions():
                return tuple(self.store.list_txns(self.name))
            case ask.ReadTransactions(keys):
                head = self.read()
                return ask.TransactionsRead(head, self.readable_records(keys))
            case ask.DeleteTransactions(versions, head_version):
                return self.store.delete_txns(self.name, versions, head_version)
        return self._answer_deletion(request)

    def clock_ms(self) -> int:
        """Return the time by the metadata store's clock. Vacuum compares it with the creation times of nodes, which are
        by the same clock. Raises NoSuchLogError."""
        return self.store.log_clock_ms(self.name)

    def transactions(self, app_id: str) -> Versioned[LogTransactions] | None:
        """Return the transaction record of an application or query (N5), or None if there is none. Raises
        MetadataCorruptError."""
        return self.record(LogTransactions(app_id=app_id).key)

    def record(self, key: str) -> Versioned[LogTransactions] | None:
        """Return the transaction record under ``key``, or None if there is none. Raises MetadataCorruptError."""
        found = self.store.read_txns(self.name, key)
        if found is None:
            return None
        with self.store.unreadable.reading(NodeKind.TRANSACTION, self.store.log_path(self.name, "txns", key)):
            return Versioned(decode_transactions(found.value, key), found.version)

    def readable_records(self, keys: Iterable[str]) -> dict[str, Versioned[LogTransactions]]:
        """Return the transaction records under these keys. Records that do not exist or are unreadable are left out
        (M6)."""
        found = dict[str, Versioned[LogTransactions]]()
        for key in keys:
            with contextlib.suppress(MetadataCorruptError):
                record = self.record(key)
                if record is not None:
                    found[key] = record
        return found

    def all_transactions(self) -> Iterator[LogTransactions]:
        """Yield the transaction records of all applications and streaming queries, in no order. An unreadable record is
        left out, so vacuum does not delete it."""
        for key in self.store.list_txns(self.name):
            for found in self.readable_records((key,)).values():
                yield found.value

    def forget_transactions(self, app_id: str) -> LogTransactions | None:
        """Delete the transaction record of an application or query. Return the record, or None if there was none.
        Raises MetadataUnavailableError, and MetadataConflictError if the log changes too fast."""
        forgotten: LogTransactions | None = None
        for attempt in range(1, FORGET_ATTEMPTS_MAX + 1):
            head = self.read()  # read before the record: if the record is used meanwhile, the multi fails
            found = self.transactions(app_id)
            if found is None:
                return forgotten
            try:
                self.store.delete_txns(self.name, {found.value.key: found.version}, head.version)
            except (MetadataConflictError, MetadataUnavailableError) as error:
                if attempt == FORGET_ATTEMPTS_MAX:
                    raise
                if isinstance(error, MetadataUnavailableError) and error.outcome is Outcome.UNKNOWN:
                    forgotten = found.value  # if it is gone at the next read, we deleted it
            else:
                return found.value
        raise AssertionError("unreachable")

    def vacuum_candidates(
        self, delete_delay_ms: int, txn_retention_ms: int, of_this: Iterable[LedgerId] | None = None
    ) -> Vacuumed:
        """Return what a vacuum would delete now with these delays, without deleting it. ``of_this`` are the ledgers
        that :func:`~bk_core.logs.ledgers.of_log` finds, if the caller has them already."""
        now_ms = self.clock_ms()
        before_ms = now_ms - delete_delay_ms
        head = self.read(sync=True).value
        young = [record for record in self.unlinked() if record.made_ms >= before_ms]
        listed = self.with_pages(lambda pages: ledgers_listed(head, pages))
        kept = self.with_pages(lambda pages: ledgers_kept(head, young, pages))
        kept_pages = self.with_pages(lambda pages: pages_kept(head, young, pages))
        condemned = [each for each in head.condemned if each not in listed]
        of_this = of_log(self.store, head.uuid, before_ms) if of_this is None else of_this
        orphans = [each for each in of_this if each not in kept]
        pages = [page for page in self._pages_made_before(before_ms) if page not in kept_pages]
        unused = [each.app_id for each in self.all_transactions() if each.last_used_ms < now_ms - txn_retention_ms]
        return Vacuumed(tuple(sorted({*condemned, *orphans})), (), tuple(pages), tuple(unused))

    def _pages_made_before(self, before_ms: int) -> tuple[str, ...]:
        made = ((page, self.store.page_ctime_ms(self.name, page)) for page in self.store.list_pages(self.name))
        return tuple(page for page, at_ms in made if at_ms is not None and at_ms < before_ms)

    def unlinked(self) -> list[UnlinkedRecord]:
        """Return all unlinked records, the oldest first (N6). Raises MetadataCorruptError if a record cannot be read.
        It may name ledgers that readers still need, so nothing of this log may then be deleted."""
        records = list[UnlinkedRecord]()
        for name, made_ms, data in self.store.read_unlinked(self.name):
            with self.store.unreadable.reading(NodeKind.UNLINKED, self.store.log_path(self.name, "unlinked", name)):
                records.append(UnlinkedRecord(name, made_ms, decode_unlinked(data, name)))
        return records

    def log_write(self, write: ask.WriteHead) -> LogWrite:
        """Return the compare-and-set as a LogWrite, which the metadata port takes."""
        txn = None
        if write.transactions is not None:
            data = encode_transactions(write.transactions)
            txn = TxnWrite(write.transactions.key, data, write.transactions_version)
        unlinked = None if write.unlinked.is_empty else encode_unlinked(write.unlinked)
        return LogWrite(self.name, encode_head(write.head), write.version, txn, unlinked)

    def write(self, expected: Versioned[LogHead], apply: Apply) -> Versioned[LogHead]:
        """Create the change's pages, then write the head by compare-and-set. Raises the errors of ``apply``,
        MetadataConflictError, after which nothing was written, and MetadataUnavailableError, whose ``outcome`` says
        whether the head may have been written."""
        pages: dict[str, LogPage] = {}
        change = apply(expected.value, pages)
        if change.new_pages and (candidates := merge_candidates(expected.value)):
            pages = {ref.name: self.page(ref.name) for ref in candidates}
            change = apply(expected.value, pages)
        write = self.log_write(write_of(expected, change, pages))
        for new in change.new_pages:  # before the head that names them (N3)
            self._create_page(new)
        try:
            (written,) = self.store.write_logs([write])
        except MetadataConflictError:
            self.delete_pages([new.name for new in change.new_pages])  # no other client can have seen their names
            raise
        return Versioned(change.head, written.version)

    def _create_page(self, new: NewPage) -> None:
        for attempt in range(1, UNKNOWN_ATTEMPTS_MAX + 1):
            try:
                self.store.create_page(self.name, new.name, new.data)
                break
            except MetadataUnavailableError as error:
                if attempt == UNKNOWN_ATTEMPTS_MAX:
                    # No head names the page, so the change itself was certainly not applied.
                    error.outcome = Outcome.NOT_APPLIED
                    raise
        self._cache.put(new.name, new.page)

    def delete_pages(self, names: Sequence[str]) -> None:
        """Delete pages. A failure is ignored, because vacuum finds such pages."""
        for name in names:
            try:
                self.store.delete_page(self.name, name)
            except MetadataError:
                return
