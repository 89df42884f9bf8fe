# SPDX-License-Identifier: Apache-2.0
"""What a change of the head takes out of the list, and what may not be deleted because of it. Pure (RULES N6).

Whoever reads by an older head reads what that head names. So the change that unlinks leaves a record in the same step,
and until the record is ``deleteDelayMs`` old, vacuum treats what it names like what is listed. Any change may unlink: a
publish that merges a page into a new one unlinks the old page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bk_core.logs.model.codec import encode_unlinked
from bk_core.logs.model.head import LogHead, PageRef, Unlinked
from bk_core.logs.model.paging import Change, Pages, ledgers_below, ledgers_listed, names_below, page_names
from bk_core.model import LedgerId

UNLINKED_BYTES_MAX = 1 << 10
"""A record that names every page and ledger by itself is at most this long, so that a hundred of them fit one multi
beside their heads. A longer one names only what stood in the head, the pages with all that they name."""


@dataclass(frozen=True, slots=True)
class UnlinkedRecord:
    """A record as the store has it: ``made_ms`` by the store's clock, in the moment of the change."""

    name: str
    made_ms: int
    unlinked: Unlinked


def unlinked_by(before: LogHead, change: Change, pages: Pages) -> Unlinked:
    """What ``change`` takes out of the list of ``before``, in more detail where ``pages`` has a page that goes."""
    exact = _Difference(change, pages).of(before)
    if len(encode_unlinked(exact)) <= UNLINKED_BYTES_MAX:
        return exact
    return _Difference(change, {}).of(before)


def pages_kept(head: LogHead, records: Sequence[UnlinkedRecord], pages: Pages) -> set[str]:
    """Every page that ``head`` or one of these records names. Raises PagesNeeded."""
    names = page_names(head, pages)
    for record in records:
        names |= names_below(record.unlinked.pages, pages)
        names.update(record.unlinked.names)
    return names


def ledgers_kept(head: LogHead, records: Sequence[UnlinkedRecord], pages: Pages) -> set[LedgerId]:
    """Every ledger that ``head`` or one of these records names. Raises PagesNeeded."""
    ledgers = ledgers_listed(head, pages)
    for record in records:
        ledgers |= ledgers_below(record.unlinked.pages, pages)
        ledgers.update(record.unlinked.ledgers)
    return ledgers


class _Difference:
    """What is not listed any more after a change. A ledger of several extents may be named though it is: a record only
    keeps things."""

    def __init__(self, change: Change, pages: Pages) -> None:
        made = [new.page for new in change.new_pages]
        self._names = {ref.name for ref in change.head.pages} | {ref.name for page in made for ref in page.pages}
        self._ledgers = {extent.ledger_id for extent in change.head.tail}
        self._ledgers |= {extent.ledger_id for page in made for extent in page.extents}
        self._pages = pages
        self._whole: list[PageRef] = []
        self._alone: list[str] = []
        self._gone: dict[LedgerId, None] = {}  # in order

    def of(self, before: LogHead) -> Unlinked:
        """Of the list of ``before``."""
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
