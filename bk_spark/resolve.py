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
    InvalidArgumentError,
    LogHasLeaderError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bk_core.model import BookieId, BookieServiceInfo, LedgerId, LedgerMetadata, LedgerState
from bk_spark.clients import bookie_infos
from bk_spark.ledgers import OpenLedger, check_digest, digest_type_of, length_of, with_password
from bk_spark.offsets import LATEST, resolve_bound
from bk_spark.options import BkOptions
from bk_spark.plan import LedgerRange, PartitionLimits, Span, TaskPlan, bytes_between, pack
from bk_spark.selection import LedgerSelection

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper
    from bk_core.logs.head import Extent, LogHead


@dataclass(frozen=True, slots=True)
class Resolved:
    """What to read: ranges in order, and the metadata of their ledgers."""

    ranges: tuple[LedgerRange, ...]
    ledgers: Mapping[LedgerId, LedgerMetadata]


NOTHING = Resolved((), {})


def resolve_batch(bookkeeper: BookKeeper, options: BkOptions) -> Resolved:
    """The snapshot that a ``load()`` reads. With ``readMode=fence`` the ledger is recovered and closed afterwards.

    Raises NoSuchLedgerError, NoSuchLogError, NoSuchEntryError for trimmed offsets (``failOnDataLoss``), and
    InvalidArgumentError for bounds beyond the end.
    """
    if isinstance(options.selection, LedgerSelection):
        return resolve_ledger(bookkeeper, options)
    return resolve_log(bookkeeper, options, options.starting_offset, options.ending_offset)


def resolve_ledger(bookkeeper: BookKeeper, options: BkOptions) -> Resolved:
    """A bare ledger between the options' bounds, as it is now."""
    assert isinstance(options.selection, LedgerSelection)
    ledger_id = options.selection.ledger_id
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
        end = reader.last_add_confirmed + 1
        length, metadata = length_of(reader, end - 1), reader.metadata
    finally:
        reader.close()
    first, stop = check_bounds(options, 0, end, options.starting_offset, options.ending_offset)
    size = length * (stop - first) // end if end else 0
    wanted = LedgerRange(ledger_id=ledger_id, first=first, last=stop - 1, bytes=size)
    return Resolved((wanted,) if stop > first else (), {ledger_id: metadata})


def resolve_part(bookkeeper: BookKeeper, options: BkOptions, first: int, stop: int, spans: Sequence[Span]) -> Resolved:
    """Positions ``first`` to ``stop`` − 1, known to be confirmed, for a micro-batch: no LAC is asked for.

    ``spans`` estimate the bytes of an open ledger. Raises NoSuchLedgerError when it was deleted (``failOnDataLoss``).
    """
    if not isinstance(options.selection, LedgerSelection):
        log = bookkeeper.log(options.log, password=options.ledger_password)
        return ranges_of(bookkeeper, options, log.head().value, log.extents(first, stop), first, stop, spans)
    ledger_id = options.selection.ledger_id
    try:
        metadata = with_password(bookkeeper.read_metadata(ledger_id).value, options)
    except NoSuchLedgerError:
        if options.fail_on_data_loss:
            raise
        return NOTHING
    size = bytes_between(spans, first, stop)
    wanted = LedgerRange(ledger_id=ledger_id, first=first, last=stop - 1, bytes=size)
    return Resolved((wanted,), {ledger_id: metadata})


def resolve_log(bookkeeper: BookKeeper, options: BkOptions, start: int, end: int) -> Resolved:
    """A named log from ``start`` to ``end``, either of which may be EARLIEST or LATEST.

    Planning sealed extents reads the head and pages only; for an open one the LAC is asked for.
    """
    log = bookkeeper.log(options.log, password=options.ledger_password)
    head = log.head().value
    check_digest(options, head.digest_type)
    latest, spans = head.next_offset, tuple[Span, ...]()
    if head.open_extents and (end == LATEST or end > latest):
        latest, spans = open_end(bookkeeper, options, head)
    first, stop = check_bounds(options, head.start_offset, latest, start, end)
    return (
        ranges_of(bookkeeper, options, head, log.extents(first, stop), first, stop, spans) if stop > first else NOTHING
    )


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
                ledger_id=extent.ledger_id, first=entry_id, last=entry_id + end - begin - 1, bytes=size, offset=begin
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


def check_bounds(options: BkOptions, earliest: int, latest: int, start: int, end: int) -> tuple[int, int]:
    """Both bounds as numbers: first and stop, ``earliest`` ≤ first ≤ stop ≤ ``latest``.

    Raises NoSuchEntryError where entries were trimmed and InvalidArgumentError for bounds beyond the end: a result that
    silently lacks rows would look complete.
    """
    first, stop = resolve_bound(start, earliest, latest), resolve_bound(end, earliest, latest)
    where = f"{options.selection} holds {earliest} to {latest} (exclusive), asked for {first} to {stop}"
    if first < earliest:
        if options.fail_on_data_loss:
            raise NoSuchEntryError(
                "the wanted offsets were trimmed",
                value=where,
                remedy="start later, or set failOnDataLoss=false to begin with what is left",
            )
        first = earliest
    if first > latest or stop > latest:
        raise InvalidArgumentError("the wanted range is beyond the end", value=where, remedy="read what is there")
    if 0 <= end < start:
        raise InvalidArgumentError("the range ends before it starts", value=where, remedy="exchange the bounds")
    return first, max(first, stop)


def task_plans(bookkeeper: BookKeeper, options: BkOptions, resolved: Resolved) -> list[TaskPlan]:
    """One plan a Spark partition, each with what its task needs and no more."""
    limits = PartitionLimits(options.max_bytes_per_partition, options.max_entries_per_partition, options.min_partitions)
    packed = pack(resolved.ranges, limits)
    infos = bookie_infos(bookkeeper) if packed else {}
    log = None if isinstance(options.selection, LedgerSelection) else options.log
    return [
        replace(_task_plan(bookkeeper.instance_id, log, ranges, resolved.ledgers, infos), prefer=number)
        for number, ranges in enumerate(packed)
    ]


def _task_plan(
    instance_id: str,
    log: str | None,
    ranges: tuple[LedgerRange, ...],
    ledgers: Mapping[LedgerId, LedgerMetadata],
    infos: Mapping[BookieId, BookieServiceInfo],
) -> TaskPlan:
    mine = {r.ledger_id: ledgers[r.ledger_id] for r in ranges}
    ensembles = {bookie for metadata in mine.values() for f in metadata.fragments for bookie in f.ensemble}
    return TaskPlan(
        version=__version__,
        instance_id=instance_id,
        log=log,
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
