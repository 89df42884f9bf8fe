# SPDX-License-Identifier: Apache-2.0
"""Keeps a log's head small by moving old extents into immutable pages. Pure (N3).

When the head grows too large, its sealed extents move into a page. If the last page is small, the new page also takes
its extents and replaces it. When a head has many references to pages, they move into a page one level up. So a head
names only a few pages however long the log is, and a change writes few bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bk_core.logs.model.codec import encode_page, head_bytes, page_name
from bk_core.logs.model.head import HEAD_BYTES_MAX, PAGE_BYTES_MAX, Extent, LogHead, LogPage, LogTransactions, PageRef
from bk_core.model import LedgerId

TAIL_EXTENTS_MAX = 64
"""The maximum number of extents in a head. Above it extents move into a page, so that the head stays small."""
TAIL_EXTENTS_KEPT = 2
"""The number of last extents, sealed or open, that stay in the head if they fit. A takeover needs them, and then reads
no page."""
MERGE_PARTS_MAX = 512
"""The number of extents or references (about 48 KiB) below which a page is replaced by a larger page when more are
added."""
PAGE_PARTS_MAX = 4096
"""The maximum number of extents or references in a new page. A page over PAGE_BYTES_MAX is split, too."""
REFS_MAX = 4
"""The maximum number of references to pages of one level in a head. If there are more, they move into a page one level
up."""

Nonce = Callable[[], int]
"""A function that returns a random 64-bit number for the name of a page."""
Pages = Mapping[str, LogPage]
P = TypeVar("P", Extent, PageRef)


@dataclass(frozen=True, slots=True)
class NewPage:
    """A page that must be created before the head that names it is written (N3)."""

    name: str
    data: bytes
    page: LogPage


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a log: the next head, the new pages that it names, and the transaction record that is written with it
    (N5)."""

    head: LogHead
    new_pages: tuple[NewPage, ...] = ()
    transactions: LogTransactions | None = None


class PagesNeeded(Exception):
    """Raised by a function that needs the pages ``names``. The caller reads them and calls again."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(*names)
        self.names = tuple(names)


def merge_candidates(head: LogHead) -> tuple[PageRef, ...]:
    """Return the last page of each level that a change might replace by a larger page. If a caller does not give these
    pages, the change is still correct, but leaves more and smaller pages."""
    last: dict[int, PageRef] = {ref.level: ref for ref in head.pages}
    return tuple(ref for ref in last.values() if ref.level > 0 or ref.extents < MERGE_PARTS_MAX)


def fit(head: LogHead, nonce: Nonce, pages: Pages | None = None) -> Change:
    """Return the change to a head of the same log that is within its limits. Sealed extents, and then references to
    pages, move into new pages.

    ``nonce`` gives random numbers for the names of new pages. ``pages`` holds, by name, the pages that may be replaced
    by larger pages (:func:`merge_candidates`).
    """
    return _Maker(nonce, pages or {}).fit(head)


def tightened(change: Change, nonce: Nonce, pages: Pages) -> Change:
    """Return the same change with the smallest possible head. All sealed extents, and most references, move into pages
    (N3)."""
    maker = _Maker(nonce, pages, change.new_pages)
    head = maker.fold(maker.spill(change.head, 0), 1)
    return replace(change, head=head, new_pages=maker.referenced_from(head))


def splice(
    head: LogHead, start: int, end: int, extents: Sequence[Extent], *, nonce: Nonce, pages: Pages | None = None
) -> Change:
    """Return the change that puts ``extents`` in place of the sealed extents that lie wholly in the offsets ``start``
    to ``end`` − 1, or unlinks these if there are no ``extents``. New pages replace the pages that change. Raises
    PagesNeeded."""
    maker = _Maker(nonce, pages or {})
    return maker.fit(maker.splice(head, _Splice(start, end, list(extents))))


# --- the pages and ledgers that a log lists ---------------------------------------------------------------------------


def page_names(head: LogHead, pages: Pages) -> set[str]:
    """Return the name of every page that the head reaches, including pages of schemas. Raises PagesNeeded for pages
    that name other pages."""
    return {schema.page for schema in head.schemas} | names_below(head.pages, pages)


def names_below(refs: Sequence[PageRef], pages: Pages) -> set[str]:
    """Return the names of these pages and of every page that they reach. Raises PagesNeeded for pages that name other
    pages."""
    names: set[str] = set()
    while refs:
        names.update(ref.name for ref in refs)
        above = [ref.name for ref in refs if ref.level]
        _need(above, pages)
        refs = [ref for name in above for ref in pages[name].pages]
    return names


def ledgers_listed(head: LogHead, pages: Pages) -> set[LedgerId]:
    """Return every ledger that the head or one of its pages names. Raises PagesNeeded."""
    return {extent.ledger_id for extent in head.tail} | ledgers_below(head.pages, pages)


def ledgers_below(refs: Sequence[PageRef], pages: Pages) -> set[LedgerId]:
    """Return every ledger that these pages name, at any depth. Raises PagesNeeded."""
    names = names_below(refs, pages)
    _need(sorted(names), pages)
    return {extent.ledger_id for name in names for extent in pages[name].extents}


def sealed_extents(head: LogHead, pages: Pages, start: int, end: int) -> list[Extent]:
    """Return the sealed extents that overlap the offsets ``start`` to ``end`` − 1, in order. Raises PagesNeeded."""

    found: list[Extent] = []

    def collect(refs: Sequence[PageRef]) -> None:
        touched = _overlapping(refs, start, end)
        _need([ref.name for ref in touched], pages)
        for ref in touched:
            collect(pages[ref.name].pages)
            found.extend(_overlapping(pages[ref.name].extents, start, end))

    collect(head.pages)
    return found + _overlapping(head.sealed_tail, start, end)


def _overlapping(parts: Sequence[P], start: int, end: int) -> list[P]:
    """Return those of ``parts`` that overlap the offsets ``start`` to ``end`` − 1. ``parts`` are in the order of
    offsets."""
    if start >= end:
        return []
    first = max(0, bisect_right(parts, start, key=_base_offset) - 1)
    stop = bisect_left(parts, end, key=_base_offset)
    return [part for part in parts[first:stop] if part.next_offset > start]


def _base_offset(part: Extent | PageRef) -> int:
    return part.base_offset


def last_ledgers(head: LogHead, pages: Pages, count: int = 2) -> tuple[LedgerId, ...]:
    """Return the last ledgers of the log, in order, whether in the head or in pages (N2). Raises PagesNeeded."""
    last = [extent.ledger_id for extent in head.tail[-count:]]
    refs: Sequence[PageRef] = head.pages
    while refs and len(last) < count:
        _need([refs[-1].name], pages)
        page = pages[refs[-1].name]
        last = [extent.ledger_id for extent in page.extents[-count:]] + last
        refs = page.pages
    return tuple(dict.fromkeys(last[-count:]))


def _need(names: Sequence[str], pages: Pages) -> None:
    if missing := [name for name in names if name not in pages]:
        raise PagesNeeded(missing)


@dataclass(slots=True)
class _Splice:
    """One replacement of extents. ``pending`` replaces the extents that lie wholly in [start, end); it becomes empty
    once it is inserted."""

    start: int
    end: int
    pending: list[Extent]

    def covers(self, part: Extent | PageRef) -> bool:
        return self.start <= part.base_offset and part.next_offset <= self.end

    def extents(self, extents: Sequence[Extent]) -> list[Extent]:
        kept: list[Extent] = []
        for extent in extents:
            if extent.is_open or not self.covers(extent):
                kept.append(extent)
            else:
                kept += self.pending
                self.pending = []
        return kept


class _Maker:
    """Makes the pages of one change. It may replace a page that it made before by a larger page."""

    __slots__ = ("_known", "_made", "_nonce")

    def __init__(self, nonce: Nonce, known: Pages, made: Sequence[NewPage] = ()) -> None:
        self._nonce, self._made = nonce, {new.name: new for new in made}
        self._known = {**known, **{new.name: new.page for new in made}}

    def fit(self, head: LogHead) -> Change:
        for kept, refs_max in ((None, REFS_MAX), (TAIL_EXTENTS_KEPT, REFS_MAX), (0, REFS_MAX), (0, 1)):
            if kept is not None:
                head = self.spill(head, kept)
            head = self.fold(head, refs_max)
            if len(head.tail) <= TAIL_EXTENTS_MAX and len(head_bytes(head)) <= HEAD_BYTES_MAX:
                break
        return Change(head, self.referenced_from(head))

    def splice(self, head: LogHead, cut: _Splice) -> LogHead:
        """Return the head after the replacement ``cut``. The pages are changed before the head's extents, because they
        hold the older offsets."""
        refs = [new for ref in head.pages for new in self._splice_ref(ref, cut)]
        return replace(head, pages=tuple(refs), tail=tuple(cut.extents(head.tail)))

    def _splice_ref(self, ref: PageRef, cut: _Splice) -> list[PageRef]:
        if ref.next_offset <= cut.start or cut.end <= ref.base_offset:
            return [ref]
        if cut.covers(ref) and not cut.pending:
            return []
        _need([ref.name], self._known)
        page = self._known[ref.name]
        if ref.level == 0:
            extents = cut.extents(page.extents)
            return self._pages_of(extents) if extents else []
        refs = tuple(new for below in page.pages for new in self._splice_ref(below, cut))
        if not refs:
            return []
        page = LogPage(pages=refs)
        return [self._add(page, encode_page(page), ref.level)]

    def spill(self, head: LogHead, kept: int) -> LogHead:
        """Return the head after its sealed extents moved into pages, except those among its last ``kept`` extents."""
        count = min(len(head.sealed_tail), max(0, len(head.tail) - kept))
        if count == 0:
            return head
        refs, moved = list(head.pages), head.tail[:count]
        if refs and refs[-1].level == 0 and refs[-1].extents < MERGE_PARTS_MAX and refs[-1].name in self._known:
            moved = (*self._known[refs.pop().name].extents, *moved)
        for start in range(0, len(moved), PAGE_PARTS_MAX):
            refs += self._pages_of(moved[start : start + PAGE_PARTS_MAX])
        return replace(head, pages=tuple(refs), tail=head.tail[count:])

    def fold(self, head: LogHead, refs_max: int) -> LogHead:
        """Return the head after references moved into pages one level up, so that it has at most ``refs_max``
        references of each level. The last reference of a level does not move, because its page may still be replaced by
        a larger page."""
        refs, level = list(head.pages), 0
        while refs and level <= refs[0].level:
            of_level = [ref for ref in refs if ref.level == level]
            if len(of_level) > refs_max:
                above = [ref for ref in refs if ref.level > level]
                below = [ref for ref in refs if ref.level < level]
                refs = [*self._fold_level(above, of_level[:-1], level), of_level[-1], *below]
            level += 1
        return replace(head, pages=tuple(refs))

    def referenced_from(self, head: LogHead) -> tuple[NewPage, ...]:
        """Return the new pages that ``head`` reaches. Every other page that was made was replaced later."""
        named = {ref.name for ref in head.pages} | {schema.page for schema in head.schemas}
        for new in reversed(self._made.values()):  # a page is made after the pages that it names
            if new.name in named:
                named.update(ref.name for ref in new.page.pages)
        return tuple(new for new in self._made.values() if new.name in named)

    def _fold_level(self, above: list[PageRef], moved: Sequence[PageRef], level: int) -> list[PageRef]:
        if above and above[-1].level == level + 1 and above[-1].name in self._known:
            inside = self._known[above[-1].name].pages
            if len(inside) < MERGE_PARTS_MAX:
                above, moved = above[:-1], (*inside, *moved)
        for start in range(0, len(moved), PAGE_PARTS_MAX):
            page = LogPage(pages=tuple(moved[start : start + PAGE_PARTS_MAX]))
            above = [*above, self._add(page, encode_page(page), level + 1)]
        return above

    def _pages_of(self, extents: Sequence[Extent]) -> list[PageRef]:
        page = LogPage(extents=tuple(extents))
        data = encode_page(page)
        if len(data) <= PAGE_BYTES_MAX:
            return [self._add(page, data, 0)]
        if len(extents) == 1:
            # This extent has thousands of fragments. They are left out, because the ledger's metadata has them.
            return self._pages_of([replace(extents[0], fragments=(), fragment_unknown_fields=())])
        middle = len(extents) // 2
        return self._pages_of(extents[:middle]) + self._pages_of(extents[middle:])

    def _add(self, page: LogPage, data: bytes, level: int) -> PageRef:
        new = NewPage(page_name(self._nonce(), data), data, page)
        self._known[new.name], self._made[new.name] = page, new
        parts: Sequence[Extent | PageRef] = page.extents or page.pages
        return PageRef(
            name=new.name,
            base_offset=parts[0].base_offset,
            next_offset=parts[-1].next_offset,
            extents=len(page.extents) + sum(ref.extents for ref in page.pages),
            size_bytes=sum(part.size_bytes for part in parts),
            level=level,
        )
