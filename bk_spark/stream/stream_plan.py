# SPDX-License-Identifier: Apache-2.0
"""Plans a micro-batch: turns parts of sources into ranges of ledgers. A replayed batch has exactly the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bk_core.errors import NoSuchEntryError
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import LedgerSource, LogSource, Source
from bk_spark.plan import log_ranges, resolve
from bk_spark.plan.packing import LedgerRange
from bk_spark.plan.resolved import Resolved, side_by_side
from bk_spark.stream.positions import PositionPart, Seen, SourceSeen

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper
    from bk_core.logs.model.head import LogHead


def plan_parts(bookkeeper: BookKeeper, options: BkOptions, parts: Sequence[PositionPart], seen: Seen) -> Resolved:
    """Return the ranges of ``parts``. Their entries were confirmed when Spark got the offsets, so no LAC is asked for.
    Raises NoSuchLedgerError for a ledger that was deleted (``failOnDataLoss``), and NoSuchEntryError if the ledgers do
    not hold every entry of a part."""

    def plan(part: PositionPart) -> Resolved:
        return _plan_part(bookkeeper, options, part, seen.sources[part.source])

    return Resolved.together(side_by_side(plan, parts))


def dated_starts(bookkeeper: BookKeeper, options: BkOptions, seen: Seen) -> dict[Source, int]:
    """Return where ``startingTimestamp`` begins in each log; the options refuse it for ledgers. Reads all pages."""
    return {
        source: log_ranges.start_of(bookkeeper, options, source, known.head)
        for source, known in seen.sources.items()
        if isinstance(source, LogSource) and known.head is not None
    }


def _plan_part(bookkeeper: BookKeeper, options: BkOptions, part: PositionPart, known: SourceSeen) -> Resolved:
    source, first, stop = part.source, part.first, part.stop
    if isinstance(source, LedgerSource):
        resolved = resolve.resolve_part(bookkeeper, options, source, first, stop, known.spans)
        metadata = resolved.ledgers.get(source.ledger_id)
        if metadata is not None and metadata.is_closed and stop > metadata.last_entry_id + 1:
            raise _lost(part, metadata.last_entry_id + 1)
        return resolved
    assert known.head is not None
    head = known.head if stop <= known.next else _newest_head(bookkeeper, options, source)
    extents = log_ranges.extents_of(bookkeeper, source, head, first, stop)
    resolved = log_ranges.ranges_of(bookkeeper, options, source, head, extents, first, stop, known.spans)
    end = _covered_to(resolved.ranges, first)
    if end != stop:
        raise _lost(part, end)
    return resolved.without_lost()


def _newest_head(bookkeeper: BookKeeper, options: BkOptions, source: LogSource) -> LogHead:
    """Return the newest head. A metadata server may be behind, so that a batch which is replayed after a restart ends
    beyond that server's head. An old head may also show an extent as open although other extents follow it by now."""
    return bookkeeper.log(source.name, password=options.ledger_password).head().value


def _covered_to(ranges: Sequence[LedgerRange], first: int) -> int:
    """Return the offset up to which the ranges have no gap, from ``first`` on."""
    at = first
    for each in ranges:
        if each.offset != at:
            return at
        at += each.entries
    return at


def _lost(part: PositionPart, end: int) -> NoSuchEntryError:
    return NoSuchEntryError(
        f"{part.source} does not hold the entries of a micro-batch any more",
        value=f"the batch is {part.first} to {part.stop} (exclusive), readable to {end}",
        remedy="look at the log with bk log show; use another checkpointLocation to go on with what is left",
    )
