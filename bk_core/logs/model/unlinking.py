# SPDX-License-Identifier: Apache-2.0
"""Records the pages and ledgers that a change of the head unlinks, so that vacuum does not delete them too early. Pure
(N6).

A reader with an older head still reads the ledgers and pages that this head names. So a change that unlinks some of
them writes a record in the same step. Until the record is ``deleteDelayMs`` old, vacuum treats all pages and ledgers in
it as listed. Any change may unlink: a publish that replaces a page by a larger page unlinks the old page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bk_core.logs.model.codec import encode_unlinked
from bk_core.logs.model.head import LogHead, PageRef, Unlinked
from bk_core.logs.model.paging import Change, Pages, ledgers_below, ledgers_listed, names_below, page_names
from bk_core.model import LedgerId

UNLINKED_BYTES_MAX = 1 << 10
"""The maximum size, in bytes, of a record that names each page and ledger separately. 100 such records fit into one
multi with their heads. A larger record is replaced by a record of the pages and ledgers that the head itself named;
such a page stands for all pages and ledgers below it."""


@dataclass(frozen=True, slots=True)
class UnlinkedRecord:
    """An unlinked record in the metadata store. ``made_ms`` is the time of the change by the store's clock."""

    name: str
    made_ms: int
    unlinked: Unlinked


def unlinked_by(before: LogHead, change: Change, pages: Pages) -> Unlinked:
    """Return the pages and ledgers that ``change`` unlinks from the head ``before``. For an unlinked page that
    ``pages`` has, the result names its content instead of the whole page."""
    exact = _Difference(change, pages).of(before)
    if len(encode_unlinked(exact)) <= UNLINKED_BYTES_MAX:
        return exact
    return _Difference(change, {}).of(before)


def pages_kept(head: LogHead, records: Sequence[UnlinkedRecord], pages: Pages) -> set[str]:
    """Return the name of every page that ``head`` or one of these records names. Raises PagesNeeded."""
    names = page_names(head, pages)
    for record in records:
        names |= names_below(record.unlinked.pages, pages)
        names.update(record.unlinked.names)
    return names


def ledgers_kept(head: LogHead, records: Sequence[UnlinkedRecord], pages: Pages) -> set[LedgerId]:
    """Return every ledger that ``head`` or one of these records names. Raises PagesNeeded."""
    ledgers = ledgers_listed(head, pages)
    for record in records:
        ledgers |= ledgers_below(record.unlinked.pages, pages)
        ledgers.update(record.unlinked.ledgers)
    return ledgers


class _Difference:
    """Finds the pages and ledgers that a change unlinks. It may also find a ledger that another extent still lists.
    This does no harm, because a record only prevents deletions."""

    def __init__(self, change: Change, pages: Pages) -> None:
        made = [new.page for new in change.new_pages]
        self._names = {ref.name for ref in change.head.pages} | {ref.name for page in made for ref in page.pages}
        self._ledgers = {extent.ledger_id for extent in change.head.tail}
        self._ledgers |= {extent.ledger_id for page in made for extent in page.extents}
        self._pages = pages
        self._whole: list[PageRef] = []
        self._alone: list[str] = []
        self._gone: dict[LedgerId, None] = {}  # a dict keeps the order

    def of(self, before: LogHead) -> Unlinked:
        for ref in before.pages:
            self._look(ref)
        self._gone.update((each.ledger_id, None) for each in before.tail if each.ledger_id not in self._ledgers)
        return Unlinked(pages=tuple(self._whole), names=tuple(self._alone), ledgers=tuple(self._gone))

    def _look(self, ref: PageRef) -> None:
        if ref.name in self._names:
            return
        page = self._pages.get(ref.name)
        if page is None:
            self._whole.append(ref)
            return
        self._alone.append(ref.name)
        for below in page.pages:
            self._look(below)
        self._gone.update((each.ledger_id, None) for each in page.extents if each.ledger_id not in self._ledgers)
