# SPDX-License-Identifier: Apache-2.0
"""Estimates the size of the sealed part of a log, stretch by stretch, for admission by bytes.

A log may have 100,000 extents in pages, too many to read for an estimate. The head knows the size of each page. The
extents themselves are looked up only where the stream reads next, and again as it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bk_core.logs.model.head import Extent, LogHead, PageRef
from bk_spark.plan.packing import Span
from bk_spark.stream.admission import Backlog, end_by_bytes

if TYPE_CHECKING:
    from bk_core.metadata.port import MetadataStore

EXTENTS_MAX = 20_000
"""A look-up ends once it has found this many extents."""
ROUNDS_MAX = 20


def coarse_spans(head: LogHead) -> tuple[Span, ...]:
    """Return the spans that the head alone has: one for each page and one for each sealed extent outside pages."""
    return _spans([*head.pages, *head.sealed_tail])


def joined_spans(coarse: Sequence[Span], fine: Sequence[Span]) -> tuple[Span, ...]:
    """Return the ``coarse`` spans with the ``fine`` ones in their place. Coarse spans before the fine ones are
    dropped."""
    if not fine:
        return tuple(coarse)
    end = fine[-1].end
    after = [_cut(span, end) for span in coarse if span.end > end]
    return (*fine, *after)


class LogSpans:
    """The spans of one log, kept up to date by its follower. Extents are looked up for up to ``bytes_ahead`` bytes
    ahead of the stream."""

    def __init__(self, store: MetadataStore, name: str, bytes_ahead: int) -> None:
        from bk_core.logs.store import LogStore

        self._store = LogStore(store, name)
        self._bytes_ahead = bytes_ahead
        self._known: tuple[str, int, int] | None = None  # uuid, epoch, pages of the head that was looked up
        self._fine: tuple[Span, ...] = ()
        self.sealed: tuple[Span, ...] = ()

    async def update(self, head: LogHead, position: int | None) -> None:
        """Bring ``sealed`` up to date for a stream that reads next at ``position``, which is None if not known yet.
        Reads pages that were not read before. Raises MetadataUnavailableError, MetadataCorruptError."""
        known = head.uuid, head.epoch, len(head.pages)
        if known != self._known:
            self._fine, self._known = (), known
        coarse = coarse_spans(head)
        if position is not None and self._wants_more(head, position):
            self._fine = await asyncio.to_thread(self._look_up, head, coarse, position)
        self.sealed = joined_spans(coarse, self._fine)

    def is_short(self, head: LogHead, position: int | None) -> bool:
        """Return whether the log has pages past those that were read. False if ``position`` is None."""
        return position is not None and self._fine_end(head) < _paged_end(head)

    def _fine_end(self, head: LogHead) -> int:
        return self._fine[-1].end if self._fine else head.start_offset

    def _wants_more(self, head: LogHead, position: int) -> bool:
        paged = _paged_end(head)
        if position >= paged:
            return False
        if not self._fine or not self._fine[0].begin <= position < self._fine[-1].end:
            return True
        middle = (self._fine[0].begin + self._fine[-1].end) // 2
        return self._fine[-1].end < paged and position >= middle

    def _look_up(self, head: LogHead, coarse: Sequence[Span], position: int) -> tuple[Span, ...]:
        """Return the spans of the extents from ``position`` on, for about ``bytes_ahead``."""
        paged, stop = _paged_end(head), position
        found: list[Span] = []
        size = 0
        for _ in range(ROUNDS_MAX):
            wanted = Backlog(stop, paged, coarse)
            begin, stop = stop, max(stop + 1, end_by_bytes(wanted, self._bytes_ahead - size))
            new = _spans(self._store.extents(head, begin, min(stop, paged)))
            found += new
            size += sum(span.bytes for span in new)
            stop = found[-1].end if found else paged
            if size >= self._bytes_ahead or stop >= paged or len(found) >= EXTENTS_MAX:
                break
        return tuple(found)


def _paged_end(head: LogHead) -> int:
    return head.pages[-1].next_offset if head.pages else head.start_offset


def _spans(parts: Iterable[PageRef | Extent]) -> tuple[Span, ...]:
    return tuple(Span(p.base_offset, p.next_offset, p.size_bytes) for p in parts if p.next_offset > p.base_offset)


def _cut(span: Span, begin: int) -> Span:
    """Return the part of ``span`` from ``begin`` on."""
    if begin <= span.begin:
        return span
    return Span(begin, span.end, span.bytes * (span.end - begin) // (span.end - span.begin))
