# SPDX-License-Identifier: Apache-2.0
"""Following a ledger or a log for :mod:`bk_spark.watch`: never fences, wakes as soon as something is confirmed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from bk_spark.ledgers import OpenLedger
from bk_spark.options import BkOptions
from bk_spark.plan import Span
from bk_spark.selection import LedgerSelection
from bk_spark.watch import Follower, Seen

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper
    from bk_core.logs.head import Extent, LogHead


HEAD_AGE_MAX_S = 5.0
"""A watch that was lost with its session must not leave a stream behind for ever."""


def follower_for(bookkeeper: BookKeeper, options: BkOptions) -> Follower:
    """The follower of the options' selection. Opens nothing before its first look."""
    if isinstance(options.selection, LedgerSelection):
        return LedgerFollower(bookkeeper, options, options.selection.ledger_ids[0])
    return LogFollower(bookkeeper, options)


class LedgerFollower:
    """A bare ledger. Closed, it has nothing new for ever."""

    def __init__(self, bookkeeper: BookKeeper, options: BkOptions, ledger_id: int) -> None:
        self._bookkeeper, self._options, self._ledger_id = bookkeeper, options, ledger_id
        self._ledger: OpenLedger | None = None
        self._idle = threading.Event()

    def look(self) -> Seen:
        ledger = self._ledger = self._ledger or OpenLedger(self._bookkeeper, self._options, self._ledger_id)
        end = ledger.next_entry
        spans = (Span(0, end, ledger.bytes_of(end)),) if end else ()
        return Seen(self._bookkeeper.instance_id, 0, end, spans)

    def wait(self, timeout_s: float) -> None:
        assert self._ledger is not None
        if self._ledger.reader.is_closed:
            self._idle.wait(timeout_s)
        else:
            self._ledger.wait(timeout_s)

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


class LogFollower:
    """A named log: its head by a watch, its open extent by the LAC.

    Readers never pass an unsealed extent (RULES N2), so at most one ledger is open here.
    """

    def __init__(self, bookkeeper: BookKeeper, options: BkOptions) -> None:
        self._bookkeeper, self._options = bookkeeper, options
        self._log = bookkeeper.log(options.log, password=options.ledger_password)
        self._changed = threading.Event()
        self._changed.set()
        self._log.head()  # names the nearest logs where there is none
        self._cancel = bookkeeper.store.watch_log(options.log, lambda _: self._changed.set())
        self._head: LogHead | None = None
        self._read_at = 0.0
        self._sealed: tuple[Span, ...] = ()
        self._open: tuple[Extent, OpenLedger] | None = None

    def look(self) -> Seen:
        if self._changed.is_set() or self._head is None or time.monotonic() - self._read_at > HEAD_AGE_MAX_S:
            self._changed.clear()
            self._read_head()
            self._read_at = time.monotonic()
        head = self._head
        assert head is not None
        end, spans = head.next_offset, self._sealed
        if self._open is not None:
            extent, ledger = self._open
            readable = max(0, ledger.next_entry - extent.first_entry_id)
            if readable:
                spans = (*spans, Span(end, end + readable, ledger.bytes_of(ledger.next_entry)))
                end += readable
        return Seen(self._bookkeeper.instance_id, head.start_offset, end, spans, head)

    def wait(self, timeout_s: float) -> None:
        if self._open is None or self._open[1].reader.is_closed:
            self._changed.wait(timeout_s)
        else:
            self._open[1].wait(timeout_s)

    def close(self) -> None:
        self._cancel()
        self._close_open()

    def _read_head(self) -> None:
        head = self._log.head().value
        known = self._head
        if known is None or (known.uuid, known.epoch) != (head.uuid, head.epoch):
            self._sealed = ()
        self._add_sealed(head)
        first = head.open_extents[0] if head.open_extents else None
        if first is None or self._open is None or self._open[0].ledger_id != first.ledger_id:
            self._close_open()
        if first is not None and self._open is None:
            self._open = (first, OpenLedger(self._bookkeeper, self._options, first.ledger_id))
        self._head = head

    def _add_sealed(self, head: LogHead) -> None:
        """Sealed extents never change, so only those after the known ones are read."""
        known = self._sealed[-1].end if self._sealed else head.start_offset
        if known >= head.next_offset:
            return
        extents = self._log.extents(known, head.next_offset)
        new = [Span(e.base_offset, e.next_offset, e.size_bytes) for e in extents if not e.is_open and e.entry_count]
        self._sealed = (*self._sealed, *(span for span in new if span.begin >= known or not self._sealed))

    def _close_open(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
