# SPDX-License-Identifier: Apache-2.0
"""The records of one named log in the metadata store: read, cached, created, compared and set.

Blocking, as the port is; async callers use a thread. Carries out what the machines of :mod:`bk_core.logs.machines` ask
for, and knows no rule of the log. Pages are immutable, so a page is read once a client (RULES N3).
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from bk_core.errors import (
    BookKeeperError,
    LogExistsError,
    MetadataConflictError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLogError,
    Outcome,
)
from bk_core.logs.codec import (
    decode_head,
    decode_page,
    decode_transactions,
    decode_unlinked,
    encode_head,
    encode_transactions,
    encode_unlinked,
)
from bk_core.logs.head import Extent, LogHead, LogPage, LogTransactions, PageRef
from bk_core.logs.ledgers import TellDeleted, check_publishable, delete_of_log, drop, of_log
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.change import Facts, HeadChange, Intent, write_of
from bk_core.logs.machines.vacuum import Vacuum
from bk_core.logs.paging import Change, NewPage, Pages, PagesNeeded, last_ledgers, merge_candidates
from bk_core.logs.schemas import schema_in
from bk_core.logs.unlinking import UnlinkedRecord
from bk_core.metadata.port import LogWrite, MetadataStore, TxnWrite
from bk_core.model import LedgerId, Versioned

CACHED_PARTS_MAX = 1 << 16
"""Extents and references that a client keeps of pages: some 40 MB at most."""
UNKNOWN_ATTEMPTS_MAX = 5
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.005, 0.5
NEAREST_LOGS = 3

R = TypeVar("R")
P = TypeVar("P", Extent, PageRef)
Apply = Callable[[LogHead, Pages], Change]
"""Head and pages that may be merged into → the change. May be called more than once; must not have effects."""

_random = random.SystemRandom()  # names of pages must differ between processes that were forked


def nonce() -> int:
    """A random number for the name of a page."""
    return _random.getrandbits(64)


class PageCache:
    """Pages by name, the least recently used forgotten first. Any thread may call."""

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
"""One cache a connection: a handle of a log is cheap and made often."""


class LogStore:
    """The records of the log ``name``. Any thread may call. ``deleted`` hears of ledgers that were deleted."""

    def __init__(self, store: MetadataStore, name: str, deleted: TellDeleted = lambda _: None) -> None:
        self.store, self.name, self._deleted = store, name, deleted
        self._cache = _caches.setdefault(store, PageCache())

    # --- reading ---

    def read(self, *, sync: bool = False) -> Versioned[LogHead]:
        """The head; ``sync``: as new as any change that ended. Raises NoSuchLogError, which names the nearest logs, and
        MetadataCorruptError."""
        try:
            if sync:
                self.store.sync()
            found = self.store.read_log(self.name)
        except NoSuchLogError as error:
            raise self._no_such_log() from error
        return Versioned(decode_head(found.value, self.name), found.version)

    def page(self, name: str) -> LogPage:
        """A page by name, its CRC checked. Raises MetadataCorruptError."""
        page = self._cache.get(name)
        if page is None:
            page = decode_page(self.store.read_page(self.name, name), name)
            self._cache.put(name, page)
        return page

    def extents(self, head: LogHead, start_offset: int, end_offset: int) -> list[Extent]:
        """Extents of ``head`` that hold offsets from ``start_offset`` up to ``end_offset``, in order; the open ones,
        whose end nobody knows, if ``end_offset`` is beyond the sealed part. Reads only the pages it needs."""
        found: list[Extent] = []
        self._collect(head.pages, start_offset, end_offset, found)
        found += _overlapping(head.sealed_tail, start_offset, end_offset)
        if end_offset > head.next_offset:
            found += head.open_extents
        return found

    def last_ledgers(self, head: LogHead, count: int = 2) -> tuple[LedgerId, ...]:
        """The last ledgers of the list, in order, wherever they are listed (RULES N2)."""
        return self.with_pages(lambda pages: last_ledgers(head, pages, count))

    def schemas(self, head: LogHead) -> dict[int, bytes]:
        """The schemas that a head names, by number, the newest last. Raises as :meth:`with_pages`."""
        return {schema.number: self.with_pages(partial(schema_in, schema=schema)) for schema in head.schemas}

    def with_pages(self, ask: Callable[[Pages], R]) -> R:
        """The answer to a question about the list, with the pages that it takes."""
        pages: dict[str, LogPage] = {}
        while True:
            try:
                return ask(pages)
            except PagesNeeded as needed:
                pages.update((name, self.page(name)) for name in needed.names)

    def _collect(self, refs: Sequence[PageRef], start: int, end: int, found: list[Extent]) -> None:
        for ref in _overlapping(refs, start, end):
            page = self.page(ref.name)
            self._collect(page.pages, start, end, found)
            found += _overlapping(page.extents, start, end)

    def _no_such_log(self) -> NoSuchLogError:
        names = self.store.list_logs()
        near = get_close_matches(self.name, names, n=NEAREST_LOGS, cutoff=0.4) or sorted(names)[:NEAREST_LOGS]
        remedy = f"logs with near names: {', '.join(near)}" if near else "the cluster has no logs yet: append makes one"
        return NoSuchLogError(f"there is no log {self.name}", value=self.store.uri, remedy=remedy)

    # --- writing ---

    def create(self, head: LogHead) -> Versioned[LogHead]:
        """Make the log. Raises LogExistsError, also when a log of another uuid is found after a lost answer, and
        MetadataUnavailableError, its outcome UNKNOWN if the answer of any attempt was lost."""
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
            found = self.read()  # perhaps ours: an earlier answer was lost
            if found.value.uuid == head.uuid:
                return found
            raise

    def change(self, apply: Apply, done: Callable[[LogHead], R | None]) -> R:
        """Change the head until ``done`` finds in it what was wanted; :class:`bk_core.logs.machines.change.HeadChange`.

        ``done`` is asked first, and after every compare-and-set, so a lost answer is settled by looking (RULES N4).
        Raises what ``apply`` and ``done`` raise; PublishConflictError when others were faster each time; and
        MetadataUnavailableError; the outcome of each is UNKNOWN if some compare-and-set may still be applied.
        """
        ended = self.advance(HeadChange(_Wanted(apply, done)), ev.Start())
        assert isinstance(ended, ev.Finish), ended
        result: R = ended.result
        return result

    def advance(self, machine: HeadChange[Any] | Vacuum, event: ev.Event) -> ev.Finish | ev.RecoverLedgers:
        """Step a machine and carry its effects out until it is done or asks for what takes bookies. Raises its error.

        Blocking. To go on, answer RecoverLedgers with the event for the next call.
        """
        while True:
            effects = machine.step(event)
            for effect in effects:
                match effect:
                    case ev.Finish() | ev.RecoverLedgers():
                        return effect
                    case ev.Fail(error):
                        raise error
                    case _:
                        event = self.carry_out(effect)

    def carry_out(self, effect: ev.Effect) -> ev.Event:
        """The event that answers the effect; of one that has no answer it is never looked at. Blocking."""
        try:
            return self._answer(effect)
        except MetadataConflictError as error:
            compared = isinstance(effect, ev.WriteHead | ev.DeleteTransactions)
            return ev.HeadConflicted() if compared else ev.RequestFailed(error)
        except BookKeeperError as error:  # of a store that is closed under a write, too, nobody knows what became of it
            if isinstance(effect, ev.WriteHead) and error.outcome is Outcome.UNKNOWN:
                return ev.HeadWriteUnknown(error)
            return ev.RequestFailed(error)

    def _answer(self, effect: ev.Effect) -> ev.Event:
        match effect:
            case ev.ReadHead(sync, app_id):
                if sync:
                    self.store.sync()
                # The older of the two decides: a record that moves on between the reads fails the multi.
                transactions = None if app_id is None else self.transactions(app_id)
                return ev.HeadRead(self.read(), transactions)
            case ev.ReadPages(names):
                return ev.PagesRead({name: self.page(name) for name in names})
            case ev.CheckLedgers(head, extents):
                check_publishable(self.store, head, extents)
                return ev.LedgersChecked()
            case ev.ReadUnlinked():
                return ev.UnlinkedRead(tuple(self.unlinked()))
            case ev.CreatePages(pages):
                for new in pages:
                    self._create_page(new)
                return ev.PagesCreated()
            case ev.WriteHead():
                self.store.write_logs([self.log_write(effect)])
                return ev.HeadWritten()
            case ev.Wait(attempt):
                _back_off(attempt - 1)
                return ev.WaitEnded()
        return self._answer_deleting(effect)

    def _answer_deleting(self, effect: ev.Effect) -> ev.Event:
        match effect:
            case ev.DropLedgers(ledgers):
                drop(self.store, ledgers, self._deleted)
                return ev.WaitEnded()
            case ev.DropPages(names):
                self._delete_pages(names)
                return ev.WaitEnded()
            case ev.ListOrphans(log_uuid, before_ms):
                return ev.OrphansListed(tuple(of_log(self.store, log_uuid, before_ms)))
            case ev.DeleteLedgers(ledgers, log_uuid):
                return ev.LedgersDeleted(delete_of_log(self.store, log_uuid, ledgers, self._deleted))
            case ev.ListPages(before_ms):
                made = ((page, self.store.page_ctime_ms(self.name, page)) for page in self.store.list_pages(self.name))
                return ev.PagesListed(tuple(page for page, at_ms in made if at_ms is not None and at_ms < before_ms))
            case ev.DeleteUnlinked(names):
                self.store.delete_unlinked(self.name, names)
                return ev.UnlinkedDeleted()
            case ev.DeletePages(names):
                self._delete_pages(names)
                return ev.PagesDeleted()
        return self._answer_transactions(effect)

    def _answer_transactions(self, effect: ev.Effect) -> ev.Event:
        match effect:
            case ev.ListTransactions():
                return ev.TransactionsListed(tuple(self.store.list_txns(self.name)))
            case ev.ReadTransactions(keys):
                head = self.read()
                found = {key: self.record(key) for key in keys}
                return ev.TransactionsRead(head, {key: each for key, each in found.items() if each is not None})
            case ev.DeleteTransactions(versions, head_version):
                self.store.delete_txns(self.name, versions, head_version)
                return ev.TransactionsDeleted()
        raise AssertionError(effect)

    def clock_ms(self) -> int:
        """What the metadata store's own clock says now: vacuum compares times that it gave. Raises NoSuchLogError."""
        return self.store.log_clock_ms(self.name)

    def transactions(self, app_id: str) -> Versioned[LogTransactions] | None:
        """What an application or query has published to this log (RULES N5). Raises MetadataCorruptError."""
        return self.record(LogTransactions(app_id=app_id).key)

    def record(self, key: str) -> Versioned[LogTransactions] | None:
        """The transactions under this key. Raises MetadataCorruptError."""
        found = self.store.read_txns(self.name, key)
        return None if found is None else Versioned(decode_transactions(found.value, key), found.version)

    def unlinked(self) -> list[UnlinkedRecord]:
        """What changes of the head took out of the list, the oldest first (RULES N6). Raises MetadataCorruptError."""
        found = self.store.read_unlinked(self.name)
        return [UnlinkedRecord(name, made_ms, decode_unlinked(data, name)) for name, made_ms, data in found]

    def log_write(self, effect: ev.WriteHead) -> LogWrite:
        """What the store takes for a compare-and-set."""
        txn = None
        if effect.transactions is not None:
            data = encode_transactions(effect.transactions)
            txn = TxnWrite(effect.transactions.key, data, effect.transactions_version)
        unlinked = None if effect.unlinked.is_empty else encode_unlinked(effect.unlinked)
        return LogWrite(self.name, encode_head(effect.head), effect.version, txn, unlinked)

    def write(self, expected: Versioned[LogHead], apply: Apply) -> Versioned[LogHead]:
        """One compare-and-set of the head, its pages first. Raises MetadataConflictError (nothing was applied),
        MetadataUnavailableError (``outcome`` says), and what ``apply`` raises."""
        pages: dict[str, LogPage] = {}
        change = apply(expected.value, pages)
        if change.new_pages and (candidates := merge_candidates(expected.value)):
            pages = {ref.name: self.page(ref.name) for ref in candidates}
            change = apply(expected.value, pages)
        write = self.log_write(write_of(expected, change, Facts(pages=pages)))
        for new in change.new_pages:  # unreferenced, before the head that names them (RULES N3)
            self._create_page(new)
        try:
            (written,) = self.store.write_logs([write])
        except MetadataConflictError:
            self._delete_pages([new.name for new in change.new_pages])  # nobody can have seen their names
            raise
        return Versioned(change.head, written.version)

    def _create_page(self, new: NewPage) -> None:
        for attempt in range(1, UNKNOWN_ATTEMPTS_MAX + 1):
            try:
                self.store.create_page(self.name, new.name, new.data)
                break
            except MetadataUnavailableError as error:
                if attempt == UNKNOWN_ATTEMPTS_MAX:
                    # An unreferenced page changes nothing, so the change itself is certainly not applied.
                    error.outcome = Outcome.NOT_APPLIED
                    raise
        self._cache.put(new.name, new.page)

    def _delete_pages(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                self.store.delete_page(self.name, name)
            except MetadataError:
                return  # vacuum finds it


class _Wanted(Intent[R]):
    """An intent out of two functions."""

    def __init__(self, apply: Apply, done: Callable[[LogHead], R | None]) -> None:
        self._apply, self._done = apply, done

    def settled(self, head: LogHead, facts: Facts) -> R | None:
        """See :class:`Intent`."""
        return self._done(head)

    def decide(self, head: LogHead, facts: Facts) -> Change:
        """See :class:`Intent`."""
        return self._apply(head, facts.pages)


def _overlapping(parts: Sequence[P], start: int, end: int) -> list[P]:
    """The contiguous parts, of those in offset order, that touch offsets ``start`` to ``end`` − 1."""
    if start >= end:
        return []
    first = max(0, bisect_right(parts, start, key=_base_offset) - 1)
    stop = bisect_left(parts, end, key=_base_offset)
    return [part for part in parts[first:stop] if part.next_offset > start]


def _base_offset(part: Extent | PageRef) -> int:
    return part.base_offset


def _back_off(attempt: int) -> None:
    time.sleep(_random.uniform(BACKOFF_MIN_S, min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** (attempt + 1))))
