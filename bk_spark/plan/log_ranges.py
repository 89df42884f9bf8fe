# SPDX-License-Identifier: Apache-2.0
"""Turns a named log and bounds into ranges of ledgers. The log's pages describe sealed extents completely; an open
extent is read up to its LAC.

A whole plan comes from one head. Pages are immutable and stay for days after they were unlinked (RULES N3, N6). So a
concurrent trim, compaction or publish does not change the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bk_core.errors import LogHasLeaderError, MetadataCorruptError, NoSuchLedgerError
from bk_core.model import LedgerId, LedgerMetadata
from bk_spark.options.offsets import LATEST, Bound, check_bounds, offset_at
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import LogSource
from bk_spark.plan.ledgers import check_digest, open_ledger
from bk_spark.plan.packing import Layouts, LedgerRange, PartitionLayout, Span, bytes_between
from bk_spark.plan.resolved import NOTHING, Resolved, side_by_side

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper
    from bk_core.logs.model.head import Extent, LogHead


def resolve_log(bookkeeper: BookKeeper, options: BkOptions, source: LogSource) -> Resolved:
    """Return the ranges of a named log between the options' bounds, as the log is now. Planning reads the head and
    pages. For an open extent it also asks for the LAC, unless the bounds end before the extent or
    ``readMode=closedOnly`` is set."""
    log = bookkeeper.log(source.name, password=options.ledger_password)
    head = log.head(sync=False).value  # the caller has synced
    check_digest(options, source, head.digest_type)
    start, end = start_of(bookkeeper, options, source, head), end_of(bookkeeper, options, source, head)
    latest, spans = head.next_offset, tuple[Span, ...]()
    if head.open_extents and options.read_mode != "closedOnly" and (end == LATEST or end > latest):
        latest, spans = open_end(bookkeeper, options, head)
    first, stop = check_bounds(
        source, head.start_offset, latest, start, end, fail_on_data_loss=options.fail_on_data_loss
    )
    if stop <= first:
        return NOTHING
    extents = extents_of(bookkeeper, source, head, first, stop)
    resolved = ranges_of(bookkeeper, options, source, head, extents, first, stop, spans)
    check_whole(source, resolved, first, stop)
    return resolved.without_lost()


def check_whole(source: LogSource, resolved: Resolved, first: int, stop: int) -> None:
    """Check that the ranges cover every offset from ``first`` to ``stop`` − 1, because a damaged list of extents may
    lack some. Raises MetadataCorruptError."""
    if sum(each.entries for each in resolved.ranges) != stop - first:
        raise MetadataCorruptError(
            f"{source} does not list all of its entries",
            value=f"offsets {first} to {stop} (exclusive)",
            remedy="look at the log with bk log show",
        )


def extents_of(bookkeeper: BookKeeper, source: LogSource, head: LogHead, first: int, stop: int) -> list[Extent]:
    """Return the extents that hold these offsets, as ``head`` lists them. Extents that were unlinked after that head
    can still be read (RULES N6)."""
    from bk_core.logs.store import LogStore

    return LogStore(bookkeeper.store, source.name).extents(head, first, stop)


def start_of(bookkeeper: BookKeeper, options: BkOptions, source: LogSource, head: LogHead) -> int:
    """Return the begin of a read of a log by the options: an offset, EARLIEST or LATEST. If the options give a time,
    all pages of the log are read."""
    return _bound_of(bookkeeper, options.starting, options.starting_timestamp, source, head)


def end_of(bookkeeper: BookKeeper, options: BkOptions, source: LogSource, head: LogHead) -> int:
    """Return the end of a read of a log by the options, exclusive, in the forms of :func:`start_of`."""
    return _bound_of(bookkeeper, options.ending, options.ending_timestamp, source, head)


def _bound_of(bookkeeper: BookKeeper, bound: Bound, time_of: Bound | None, source: LogSource, head: LogHead) -> int:
    if time_of is None:
        return bound.at(source)
    extents = extents_of(bookkeeper, source, head, head.start_offset, head.next_offset + 1)
    return offset_at(head, extents, time_of.at(source), int(time.time() * 1000))


def open_end(bookkeeper: BookKeeper, options: BkOptions, head: LogHead) -> tuple[int, tuple[Span, ...]]:
    """Return the first offset that cannot be read yet, and the size of the open part."""
    extent = head.open_extents[0]
    try:
        opened = open_ledger(bookkeeper, options, extent.ledger_id)
    except NoSuchLedgerError:
        if options.fail_on_data_loss:
            raise
        return head.next_offset, ()
    with opened as reader:
        last = reader.last_add_confirmed
        size = reader.length_to(last)
    end = head.next_offset + max(0, last + 1 - extent.first_entry_id)
    return end, ((Span(head.next_offset, end, size),) if end > head.next_offset else ())


def ranges_of(
    bookkeeper: BookKeeper,
    options: BkOptions,
    source: LogSource,
    head: LogHead,
    extents: Sequence[Extent],
    first: int,
    stop: int,
    spans: Sequence[Span],
) -> Resolved:
    """Return the parts of ``extents`` between two offsets; all of them must be readable. ``spans`` estimate the bytes
    of the open extent; a sealed extent has its size. The range of a deleted ledger has no layout; the caller drops
    it."""
    from bk_core.logs.reading import parts_of

    parts = parts_of(extents, first, stop)
    layout_of = _layouts(bookkeeper, options, head, [part.extent for part in parts])
    written = set[tuple[str, int]]()
    ranges: list[LedgerRange] = []
    for part in parts:
        extent, begin, end = part.extent, part.first, part.stop
        ranges.append(
            LedgerRange(
                ledger_id=extent.ledger_id,
                first=begin - part.shift,
                last=end - part.shift - 1,
                bytes=_size(extent, begin, end, spans),
                log=source.name,
                offset=begin,
                schema_number=extent.schema_number,
                created_ms=extent.created_ms or None,
                closed=not extent.is_open,
                layout=layout_of(extent),
            )
        )
        written.add((extent.codec, extent.schema_number))
    return Resolved(tuple(ranges), written={source.name: frozenset(written)})


def _size(extent: Extent, begin: int, end: int, spans: Sequence[Span]) -> int:
    if extent.is_open:
        return bytes_between(spans, begin, end)
    return extent.size_bytes * (end - begin) // extent.entry_count


def _layouts(
    bookkeeper: BookKeeper, options: BkOptions, head: LogHead, extents: Sequence[Extent]
) -> Callable[[Extent], PartitionLayout | None]:
    """Return a function that gives the layout of each of ``extents``. It comes from the log's record if that has the
    ensembles, otherwise from the ledger's record, which is looked up now. It is None if the ledger was deleted and
    ``failOnDataLoss=false``."""
    once, password = Layouts(), options.ledger_password
    unknown = list({each.ledger_id for each in extents if each.is_open or not each.fragments})

    def look_up(ledger_id: LedgerId) -> LedgerMetadata | None:
        try:
            return bookkeeper.read_metadata(ledger_id).value
        except NoSuchLedgerError:
            if options.fail_on_data_loss:
                raise
            return None

    records = dict(zip(unknown, side_by_side(look_up, unknown), strict=True))

    def layout_of(extent: Extent) -> PartitionLayout | None:
        if extent.ledger_id in records:
            record = records[extent.ledger_id]
            return None if record is None else once(PartitionLayout.of(record, password))
        sizes = extent.ensemble_size, extent.write_quorum_size, extent.ack_quorum_size
        return once(PartitionLayout(*sizes, extent.fragments, head.digest_type, password))

    return layout_of


def check_no_leader(head: LogHead, options: BkOptions) -> None:
    """Check that the log has no open extent (RULES N2). Raises LogHasLeaderError."""
    if head.open_extents:
        raise LogHasLeaderError(
            f"{options.selection} is being written by a leader",
            value=f"open ledger {head.open_extents[0].ledger_id}",
            remedy="write to another log, or let the leader close it",
        )
