# SPDX-License-Identifier: Apache-2.0
"""From a selection and bounds to ranges of ledgers, on the driver, once per plan (RULES K2, K3).

The last add confirmed is resolved here and nowhere else: tasks read exactly these ranges, so that a retried or
speculated task reads the same rows. Called from ``partitions()``, never from ``schema()``: fencing is a side effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bk_core import __version__
from bk_core.errors import (
    LogHasLeaderError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from bk_core.model import BookieId, BookieServiceInfo, LedgerId, LedgerMetadata, LedgerState
from bk_spark.bounds import check_bounds, offset_at
from bk_spark.clients import bookie_infos
from bk_spark.errors import shown
from bk_spark.ledgers import OpenLedger, check_digest, digest_type_of, length_of, with_password
from bk_spark.offsets import LATEST
from bk_spark.options import BkOptions
from bk_spark.plan import LedgerRange, PartitionLimits, Span, TaskPlan, bytes_between, pack
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


@dataclass(frozen=True, slots=True)
class Resolved:
    """What to read: ranges in order, and the metadata of their ledgers."""

    ranges: tuple[LedgerRange, ...]
    ledgers: Mapping[LedgerId, LedgerMetadata]

    @classmethod
    def together(cls, parts: Iterable[Resolved]) -> Resolved:
        """Several as one, in their order."""
        ranges: list[LedgerRange] = []
        ledgers: dict[LedgerId, LedgerMetadata] = {}
        for part in parts:
            ranges += part.ranges
            for ledger_id, metadata in part.ledgers.items():
                known = ledgers.get(ledger_id)  # a ledger may be listed twice: take the record that reaches further
                if known is None or known.last_entry_id < metadata.last_entry_id:
                    ledgers[ledger_id] = metadata
        return cls(tuple(ranges), ledgers)


NOTHING = Resolved((), {})


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
    return Resolved.together(resolve_source(bookkeeper, options, source) for source in sources)


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
    ledger_id = source.ledger_id
    try:
        reader = bookkeeper.open_ledger(
            ledger_id,
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
    wanted = range_of_ledger(metadata, ledger_id, first, stop, size)
    return Resolved((wanted,) if stop > first else (), {ledger_id: metadata})


def range_of_ledger(metadata: LedgerMetadata, ledger_id: LedgerId, first: int, stop: int, size: int) -> LedgerRange:
    """Entries ``first`` to ``stop`` − 1 of a bare ledger."""
    return LedgerRange(
        ledger_id=ledger_id,
        first=first,
        last=stop - 1,
        bytes=size,
        created_ms=metadata.ctime_ms,
        closed=metadata.is_closed,
    )


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
    ledger_id = source.ledger_id
    try:
        metadata = with_password(bookkeeper.read_metadata(ledger_id).value, options)
    except NoSuchLedgerError:
        if options.fail_on_data_loss:
            raise
        return NOTHING
    wanted = range_of_ledger(metadata, ledger_id, first, stop, bytes_between(spans, first, stop))
    return Resolved((wanted,), {ledger_id: metadata})


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
    ledgers: dict[LedgerId, LedgerMetadata] = {}
    for extent in extents:
        begin = max(first, extent.base_offset)
        end = stop if extent.is_open else min(stop, extent.next_offset)
        if end <= begin:
            continue
        entry_id = extent.first_entry_id + begin - extent.base_offset
        size = _size(extent, begin, end, spans)
        ranges.append(
            LedgerRange(
                ledger_id=extent.ledger_id,
                first=entry_id,
                last=entry_id + end - begin - 1,
                bytes=size,
                log=source.name,
                offset=begin,
                schema_number=extent.schema_number,
                created_ms=extent.created_ms or None,
                closed=not extent.is_open,
            )
        )
        ledgers[extent.ledger_id] = extent_metadata(bookkeeper, options, head, extent)
        if extent.is_open:
            break  # readers never pass an unsealed extent (RULES N2)
    return Resolved(tuple(ranges), ledgers)


def _size(extent: Extent, begin: int, end: int, spans: Sequence[Span]) -> int:
    if extent.is_open:
        return bytes_between(spans, begin, end)
    return extent.size_bytes * (end - begin) // extent.entry_count


def extent_metadata(bookkeeper: BookKeeper, options: BkOptions, head: LogHead, extent: Extent) -> LedgerMetadata:
    """The metadata a reading task needs: from the log's record if it has the ensembles, else from the ledger's."""
    if extent.is_open or not extent.fragments:
        return with_password(bookkeeper.read_metadata(extent.ledger_id).value, options)
    return LedgerMetadata(
        ensemble_size=extent.ensemble_size,
        write_quorum_size=extent.write_quorum_size,
        ack_quorum_size=extent.ack_quorum_size,
        fragments=extent.fragments,
        state=LedgerState.CLOSED,
        last_entry_id=extent.end_entry_id - 1,
        length=extent.size_bytes,
        digest_type=head.digest_type,
        password=options.ledger_password,
    )


def task_plans(bookkeeper: BookKeeper, options: BkOptions, resolved: Resolved) -> list[TaskPlan]:
    """One plan a Spark partition, each with what its task needs and no more."""
    limits = PartitionLimits(options.max_bytes_per_partition, options.max_entries_per_partition, options.min_partitions)
    packed = pack(resolved.ranges, limits)
    infos = bookie_infos(bookkeeper) if packed else {}
    return [
        replace(_task_plan(bookkeeper.instance_id, ranges, resolved.ledgers, infos), prefer=number)
        for number, ranges in enumerate(packed)
    ]


def _task_plan(
    instance_id: str,
    ranges: tuple[LedgerRange, ...],
    ledgers: Mapping[LedgerId, LedgerMetadata],
    infos: Mapping[BookieId, BookieServiceInfo],
) -> TaskPlan:
    mine = {r.ledger_id: ledgers[r.ledger_id] for r in ranges}
    ensembles = {bookie for metadata in mine.values() for f in metadata.fragments for bookie in f.ensemble}
    return TaskPlan(
        version=__version__,
        instance_id=instance_id,
        ranges=ranges,
        ledgers=mine,
        bookies={bookie: infos[bookie] for bookie in sorted(ensembles) if bookie in infos},
    )


def check_no_leader(head: LogHead, options: BkOptions) -> None:
    """Raises LogHasLeaderError when the log has an open extent (RULES N2)."""
    if head.open_extents:
        raise LogHasLeaderError(
            f"{options.selection} is being written by a leader",
            value=f"open ledger {head.open_extents[0].ledger_id}",
            remedy="write to another log, or let the leader close it",
        )
