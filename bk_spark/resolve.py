# SPDX-License-Identifier: Apache-2.0
"""From a selection and bounds to ranges of ledgers, on the driver, once per plan (RULES K2, K3).

The last add confirmed is resolved here and nowhere else: tasks read exactly these ranges, so that a retried or
speculated task reads the same rows. Called from ``partitions()``, never from ``schema()``: fencing is a side effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from bk_core.errors import (
    LogHasLeaderError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from bk_core.model import LedgerId, LedgerMetadata
from bk_spark.bounds import check_bounds, offset_at
from bk_spark.errors import shown
from bk_spark.ledgers import OpenLedger, check_digest, digest_type_of, length_of
from bk_spark.offsets import LATEST
from bk_spark.options import BkOptions
from bk_spark.plan import Layout, Layouts, LedgerRange, Span, bytes_between
from bk_spark.selection import (
    ColumnSelection,
    LedgerSource,
    LogSource,
    PatternSelection,
    Selection,
    Source,
)

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper
    from bk_core.blocking_logs import NamedLog
    from bk_core.logs.head import Extent, LogHead

LOOKUPS_MAX = 8
"""Ledgers or logs that are looked up at a time."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What to read: ranges in order. ``ledgers`` are the records of the bare ledgers among them.

    ``written`` says of each log, None for the bare ledgers, with which codecs and schemas its extents were written.
    """

    ranges: tuple[LedgerRange, ...] = ()
    ledgers: Mapping[LedgerId, LedgerMetadata] = field(default_factory=dict)
    written: Mapping[str | None, frozenset[tuple[str, int]]] = field(default_factory=dict)

    @classmethod
    def together(cls, parts: Iterable[Resolved]) -> Resolved:
        """Several as one, in their order."""
        ranges: list[LedgerRange] = []
        ledgers: dict[LedgerId, LedgerMetadata] = {}
        written: dict[str | None, frozenset[tuple[str, int]]] = {}
        for part in parts:
            ranges += part.ranges
            ledgers.update(part.ledgers)
            for log, found in part.written.items():
                written[log] = written.get(log, frozenset()) | found
        return cls(tuple(ranges), ledgers, written)


NOTHING = Resolved()


def sources_of(bookkeeper: BookKeeper, selection: Selection) -> tuple[Source, ...]:
    """The ledgers or logs that are selected, in the order in which they are read; a pattern is looked up now, and may
    match nothing."""
    match selection:
        case PatternSelection():
            return tuple(LogSource(name) for name in sorted(bookkeeper.store.list_logs()) if selection.matches(name))
        case ColumnSelection():
            raise AssertionError("for writes only")
        case _:
            return selection.sources


def resolve_batch(bookkeeper: BookKeeper, options: BkOptions) -> Resolved:
    """The snapshot that a ``load()`` reads. With ``readMode=fence`` the ledgers are recovered and closed afterwards.

    Raises NoSuchLedgerError, NoSuchLogError, NoSuchEntryError for trimmed offsets (``failOnDataLoss``), and
    InvalidArgumentError for bounds beyond the end and for a pattern that matches no log.
    """
    sources = sources_of(bookkeeper, options.selection)
    if not sources:
        raise no_log_matches(bookkeeper, options.selection)
    options.starting.check("startingOffsets", sources)
    options.ending.check("endingOffsets", sources)
    return Resolved.together(side_by_side(lambda source: resolve_source(bookkeeper, options, source), sources))


def side_by_side(work: Callable[[T], Resolved], items: Sequence[T]) -> list[Resolved]:
    """The results in order, several looked up at a time. Raises the error of the first that failed, and begins no
    further one then."""
    if len(items) < 2:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(min(LOOKUPS_MAX, len(items)), "bookkeeper-plan")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)


def no_log_matches(bookkeeper: BookKeeper, selection: Selection) -> NoSuchLogError:
    """For a pattern without a log; names those that there are."""
    names = shown(sorted(bookkeeper.store.list_logs()))
    remedy = f"logs of the cluster: {names}" if names else "the cluster has no logs yet: append makes one"
    return NoSuchLogError(f"there are no {selection}", value=bookkeeper.store.uri, remedy=remedy)


def resolve_source(bookkeeper: BookKeeper, options: BkOptions, source: Source) -> Resolved:
    """One ledger or log between the options' bounds, as it is now."""
    if isinstance(source, LedgerSource):
        return resolve_ledger(bookkeeper, options, source)
    return resolve_log(bookkeeper, options, source)


def resolve_ledger(bookkeeper: BookKeeper, options: BkOptions, source: LedgerSource) -> Resolved:
    """A bare ledger between the options' bounds, as it is now."""
    try:
        reader = bookkeeper.open_ledger(
            source.ledger_id,
            recover=options.read_mode == "fence",
            password=options.ledger_password,
            digest_type=digest_type_of(options),
        )
    except NoSuchLedgerError:
        if options.fail_on_data_loss:
            raise
        return NOTHING
    try:
        if options.read_mode == "closedOnly" and not reader.is_closed:
            return NOTHING
        end = reader.last_add_confirmed + 1
        length, metadata = length_of(reader, end - 1), reader.metadata
    finally:
        reader.close()
    first, stop = check_bounds(
        source,
        0,
        end,
        options.starting.at(source),
        options.ending.at(source),
        fail_on_data_loss=options.fail_on_data_loss,
    )
    size = length * (stop - first) // end if end else 0
    return range_of_ledger(options, source, metadata, first, stop, size)


def range_of_ledger(
    options: BkOptions, source: LedgerSource, metadata: LedgerMetadata, first: int, stop: int, size: int
) -> Resolved:
    """Entries ``first`` to ``stop`` − 1 of a bare ledger."""
    wanted = LedgerRange(
        ledger_id=source.ledger_id,
        first=first,
        last=stop - 1,
        bytes=size,
        created_ms=metadata.ctime_ms,
        closed=metadata.is_closed,
        layout=Layout.of(metadata, options.ledger_password),
    )
    return Resolved((wanted,) if stop > first else (), {source.ledger_id: metadata}, {None: frozenset()})


def resolve_part(
    bookkeeper: BookKeeper, options: BkOptions, source: Source, first: int, stop: int, spans: Sequence[Span]
) -> Resolved:
    """Positions ``first`` to ``stop`` − 1, known to be confirmed, for a micro-batch: no LAC is asked for.

    ``spans`` estimate the bytes of an open ledger. Raises NoSuchLedgerError when it was deleted (``failOnDataLoss``).
    """
    if isinstance(source, LogSource):
        log = bookkeeper.log(source.name, password=options.ledger_password)
        head = log.head().value
        return ranges_of(bookkeeper, options, source, head, log.extents(first, stop), first, stop, spans)
    try:
        metadata = bookkeeper.read_metadata(source.ledger_id).value
    except NoSuchLedgerError:
        if options.fail_on_data_loss:
            raise
        return NOTHING
    return range_of_ledger(options, source, metadata, first, stop, bytes_between(spans, first, stop))


def resolve_log(bookkeeper: BookKeeper, options: BkOptions, source: LogSource) -> Resolved:
    """A named log between the options' bounds, as it is now.

    Planning sealed extents reads the head and pages only; for an open one the LAC is asked for, unless an end before it
    or ``readMode=closedOnly`` makes it needless.
    """
    log = bookkeeper.log(source.name, password=options.ledger_password)
    head = log.head().value
    check_digest(options, source, head.digest_type)
    latest, spans, end = head.next_offset, tuple[Span, ...](), options.ending.at(source)
    if head.open_extents and options.read_mode != "closedOnly" and (end == LATEST or end > latest):
        latest, spans = open_end(bookkeeper, options, head)
    start = start_of(log, options, source, head)
    first, stop = check_bounds(
        source, head.start_offset, latest, start, end, fail_on_data_loss=options.fail_on_data_loss
    )
    if stop <= first:
        return NOTHING
    return ranges_of(bookkeeper, options, source, head, log.extents(first, stop), first, stop, spans)


def start_of(log: NamedLog, options: BkOptions, source: LogSource, head: LogHead) -> int:
    """Where the options begin to read a log: an offset, EARLIEST or LATEST. A time reads all its pages."""
    if options.starting_timestamp is None:
        return options.starting.at(source)
    return offset_at(head, log.extents(), options.starting_timestamp)


def open_end(bookkeeper: BookKeeper, options: BkOptions, head: LogHead) -> tuple[int, tuple[Span, ...]]:
    """The next offset that cannot be read yet, and how large the open part is."""
    extent = head.open_extents[0]
    ledger = OpenLedger(bookkeeper, options, extent.ledger_id)
    try:
        readable = max(0, ledger.next_entry - extent.first_entry_id)
        end = head.next_offset + readable
        size = ledger.bytes_of(ledger.next_entry)
        return end, ((Span(head.next_offset, end, size),) if readable else ())
    finally:
        ledger.close()


def ranges_of(
    bookkeeper: BookKeeper,
    options: BkOptions,
    source: LogSource,
    head: LogHead,
    extents: Iterable[Extent],
    first: int,
    stop: int,
    spans: Sequence[Span],
) -> Resolved:
    """The parts of ``extents`` between two offsets that are known to be readable.

    ``spans`` estimate the bytes of the open one; sealed ones know theirs.
    """
    ranges: list[LedgerRange] = []
    layouts, written = Layouts(), set[tuple[str, int]]()
    for extent in extents:
        begin = max(first, extent.base_offset)
        end = stop if extent.is_open else min(stop, extent.next_offset)
        if end <= begin:
            continue
        entry_id = extent.first_entry_id + begin - extent.base_offset
        ranges.append(
            LedgerRange(
                ledger_id=extent.ledger_id,
                first=entry_id,
                last=entry_id + end - begin - 1,
                bytes=_size(extent, begin, end, spans),
                log=source.name,
                offset=begin,
                schema_number=extent.schema_number,
                created_ms=extent.created_ms or None,
                closed=not extent.is_open,
                layout=layouts(layout_of(bookkeeper, options, head, extent)),
            )
        )
        written.add((extent.codec, extent.schema_number))
        if extent.is_open:
            break  # readers never pass an unsealed extent (RULES N2)
    return Resolved(tuple(ranges), written={source.name: frozenset(written)})


def _size(extent: Extent, begin: int, end: int, spans: Sequence[Span]) -> int:
    if extent.is_open:
        return bytes_between(spans, begin, end)
    return extent.size_bytes * (end - begin) // extent.entry_count


def layout_of(bookkeeper: BookKeeper, options: BkOptions, head: LogHead, extent: Extent) -> Layout:
    """How to read an extent: from the log's record if it has the ensembles, else from the ledger's."""
    if extent.is_open or not extent.fragments:
        return Layout.of(bookkeeper.read_metadata(extent.ledger_id).value, options.ledger_password)
    return Layout(
        extent.ensemble_size,
        extent.write_quorum_size,
        extent.ack_quorum_size,
        extent.fragments,
        head.digest_type,
        options.ledger_password,
    )


def check_no_leader(head: LogHead, options: BkOptions) -> None:
    """Raises LogHasLeaderError when the log has an open extent (RULES N2)."""
    if head.open_extents:
        raise LogHasLeaderError(
            f"{options.selection} is being written by a leader",
            value=f"open ledger {head.open_extents[0].ledger_id}",
            remedy="write to another log, or let the leader close it",
        )
