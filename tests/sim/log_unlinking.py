# SPDX-License-Identifier: Apache-2.0
"""Records what was unlinked when from the log of tests/sim/logs.py, and checks the log's own records of this (RULES
N6).

The oracle compares the ledgers and pages that two heads reach, page by page, and does not read the log's records.
Whatever was unlinked at t must exist until t + delay, and whatever a record names must exist as long as the record
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bk_core.logs.model.codec import decode_unlinked, encode_unlinked
from bk_core.logs.model.head import HEAD_BYTES_MAX, LogHead, LogPage, Unlinked
from bk_core.logs.model.paging import PagesNeeded, ledgers_below, ledgers_listed, names_below, page_names
from bk_core.logs.model.unlinking import UnlinkedRecord
from bk_core.model import LedgerId

DELAYS = (-50, 0, 5, 30)
"""The least age for a vacuum, one for each schedule. A negative one deletes everything that is unlinked."""

Require = Callable[[bool, str], None]


@dataclass
class Unlinkings:
    """The records of one log, and what they must have kept."""

    require: Require
    delay: int
    records: dict[str, UnlinkedRecord] = field(default_factory=dict)
    ledgers: dict[LedgerId, int] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)

    def changed(
        self, before: LogHead, head: LogHead, version: int, unlinked: Unlinked, pages: Mapping[str, LogPage], now: int
    ) -> None:
        """Take a change: the head became ``head``, of this version, and ``unlinked`` was recorded with it."""
        ledgers = ledgers_listed(before, pages) - ledgers_listed(head, pages)
        names = page_names(before, pages) - page_names(head, pages)
        kept = ledgers_below(unlinked.pages, pages).union(unlinked.ledgers)
        self.require(ledgers <= kept, f"ledgers {sorted(ledgers - kept)} are unlinked, and nothing says when")
        kept_names = names_below(unlinked.pages, pages).union(unlinked.names)
        self.require(names <= kept_names, f"pages {sorted(names - kept_names)} are unlinked, and nothing says when")
        self.ledgers.update(dict.fromkeys(ledgers, now))
        self.pages.update(dict.fromkeys(names, now))
        if not unlinked.is_empty:
            data = encode_unlinked(unlinked)
            self.require(decode_unlinked(data) == unlinked, f"{unlinked} is another one when it is read")
            self.require(len(data) <= HEAD_BYTES_MAX, f"a record of {len(data)} bytes")
            name = f"{version:010d}"
            self.require(name not in self.records, f"record {name} is there already")
            self.records[name] = UnlinkedRecord(name, now, unlinked)

    def check_ledger(self, ledger_id: LedgerId, now: int) -> None:
        """Check the deletion of a ledger."""
        self._check(f"ledger {ledger_id}", self.ledgers.get(ledger_id), now)

    def check_page(self, name: str, pages: Mapping[str, LogPage], now: int) -> None:
        """Check the deletion of a page."""
        self._check(f"page {name}", self.pages.get(name), now)
        for record in self.records.values():
            try:
                named = names_below(record.unlinked.pages, pages).union(record.unlinked.names)
            except PagesNeeded as needed:
                self.require(False, f"record {record.name} needs pages {needed.names}, which are gone")
            else:
                self.require(name not in named, f"page {name} goes before record {record.name}, which names it")

    def _check(self, what: str, unlinked: int | None, now: int) -> None:
        if unlinked is not None:
            self.require(now >= unlinked + self.delay, f"{what} was unlinked at {unlinked} and is deleted at {now}")
