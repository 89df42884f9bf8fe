# SPDX-License-Identifier: Apache-2.0
"""The records of one named log in the metadata store: read, cached, created, compared and set.

Blocking, as the port is; async callers use a thread. Knows no rule of the log: :mod:`bk_core.logs.commit` says what the
next head is. Pages are immutable and named by their content, so a page is read once a client (RULES N3).
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar
from weakref import WeakKeyDictionary

from bk_core.errors import (
    LogExistsError,
    MetadataConflictError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLogError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.codec import decode_head, decode_page, encode_head
from bk_core.logs.head import Extent, LogHead, LogPage, PageRef
from bk_core.logs.paging import Change, NewPage, Pages, merge_candidates
from bk_core.metadata.port import LogWrite, MetadataStore
from bk_core.model import LedgerId, Versioned

CACHED_PARTS_MAX = 1 << 16
"""Extents and references that a client keeps of pages: some 40 MB at most."""
CHANGE_ATTEMPTS_MAX = 30
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A change that is ready for its compare-and-set: pages exist, and ``write`` is what the store takes."""

    change: Change
    write: LogWrite


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
    """The records of the log ``name``. Any thread may call."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        self.store, self.name = store, name
        self._cache = _caches.setdefault(store, PageCache())

    # --- reading ---

    def read(self) -> Versioned[LogHead]:
        """The head. Raises NoSuchLogError, which names the nearest logs, and MetadataCorruptError."""
        try:
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
        last = [extent.ledger_id for extent in head.tail[-count:]]
        refs: Sequence[PageRef] = head.pages
        while refs and len(last) < count:
            page = self.page(refs[-1].name)
            last = [extent.ledger_id for extent in page.extents[-count:]] + last
            refs = page.pages
        return tuple(dict.fromkeys(last[-count:]))

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
        """Make the log. Raises LogExistsError, also when a log of another uuid is found after a lost answer."""
        for attempt in range(1, UNKNOWN_ATTEMPTS_MAX + 1):
            try:
                return Versioned(head, self.store.create_log(self.name, encode_head(head)).version)
            except MetadataUnavailableError:
                if attempt == UNKNOWN_ATTEMPTS_MAX:
                    raise
            except LogExistsError:
                found = self.read()  # perhaps ours: an earlier answer was lost
                if found.value.uuid == head.uuid:
                    return found
                raise
        raise AssertionError("unreachable")

    def change(self, apply: Apply, done: Callable[[LogHead], R | None]) -> R:
        """Change the head until ``done`` finds in it what was wanted.

        ``done`` is asked first, and after every compare-and-set, so a lost answer is settled by looking (RULES N4).
        Raises what ``apply`` and ``done`` raise; PublishConflictError when others were faster each time; and
        MetadataUnavailableError, whose outcome is UNKNOWN if some compare-and-set had no answer.
        """
        unknown: MetadataUnavailableError | None = None
        failures = 0
        for attempt in range(CHANGE_ATTEMPTS_MAX):
            try:
                if unknown is not None:
                    self.store.sync()
                found = self.read()
                if (result := done(found.value)) is not None:
                    return result
                written = self.write(found, apply)
            except MetadataConflictError:
                _back_off(attempt)
            except MetadataUnavailableError as error:
                failures += 1
                if unknown is None and error.outcome is Outcome.UNKNOWN:
                    unknown = error
                if failures == UNKNOWN_ATTEMPTS_MAX:
                    raise (unknown or error) from error
                _back_off(attempt)
            else:
                result = done(written.value)
                assert result is not None, "the change does not do what it is for"
                return result
        raise PublishConflictError(
            f"others changed log {self.name} first, {CHANGE_ATTEMPTS_MAX} times",
            remedy="try again, with fewer writers at a time",
            outcome=unknown.outcome if unknown else None,
        )

    def write(self, expected: Versioned[LogHead], apply: Apply) -> Versioned[LogHead]:
        """One compare-and-set of the head, its pages first. Raises MetadataConflictError (nothing was applied),
        MetadataUnavailableError (``outcome`` says), and what ``apply`` raises."""
        prepared = self.prepare(expected, apply)
        try:
            (written,) = self.store.write_logs([prepared.write])
        except MetadataConflictError:
            self._delete(prepared.change.new_pages)  # nobody can have seen their names
            raise
        return Versioned(prepared.change.head, written.version)

    def prepare(self, expected: Versioned[LogHead], apply: Apply) -> Prepared:
        """Everything up to the compare-and-set: the pages are created, unreferenced (RULES N3)."""
        change = apply(expected.value, {})
        if change.new_pages and (candidates := merge_candidates(expected.value)):
            change = apply(expected.value, {ref.name: self.page(ref.name) for ref in candidates})
        data = encode_head(change.head)
        for new in change.new_pages:
            self._create_page(new)
        return Prepared(change, LogWrite(self.name, data, expected.version))

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

    def _delete(self, pages: Sequence[NewPage]) -> None:
        for new in pages:
            try:
                self.store.delete_page(self.name, new.name)
            except MetadataError:
                return  # vacuum finds it


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
