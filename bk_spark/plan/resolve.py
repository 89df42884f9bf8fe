# SPDX-License-Identifier: Apache-2.0
"""Turns a selection and bounds into ranges of ledgers, on the driver, once for each plan (RULES K2, K3).

Only this module resolves the last add confirmed. Tasks read exactly the planned ranges, so that a retried or speculated
task reads the same rows. ``partitions()`` calls this module; ``schema()`` never does, because fencing is a side effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bk_core.errors import NoSuchLedgerError, NoSuchLogError
from bk_core.model import LedgerMetadata
from bk_spark import codecs
from bk_spark.errors import shown
from bk_spark.options.offsets import check_bounds
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import (
    ColumnSelection,
    LedgerSource,
    LogSource,
    PatternSelection,
    Selection,
    Source,
    TopicSelection,
)
from bk_spark.plan.ledgers import last_readable, open_ledger
from bk_spark.plan.log_ranges import resolve_log
from bk_spark.plan.packing import LedgerRange, PartitionLayout, Span, bytes_between
from bk_spark.plan.resolved import NOTHING, Resolved, side_by_side
from bk_spark.workers import clients

if TYPE_CHECKING:
    from bk_core.blocking import BookKeeper


def sources_of(bookkeeper: BookKeeper, selection: Selection) -> tuple[Source, ...]:
    """Return the selected ledgers or logs in reading order. The logs of a pattern are looked up now; there may be
    none."""
    match selection:
        case PatternSelection():
            return tuple(LogSource(name) for name in sorted(bookkeeper.store.list_logs()) if selection.matches(name))
        case ColumnSelection() | TopicSelection():
            raise AssertionError("for writes, and for bk_spark.topics")
        case _:
            return selection.sources


def resolve_batch(bookkeeper: BookKeeper, options: BkOptions) -> Resolved:
    """Return the snapshot that a ``load()`` reads. ``readMode=fence`` recovers and closes the ledgers.

    Raises NoSuchLedgerError, NoSuchLogError, NoSuchEntryError for trimmed offsets (``failOnDataLoss``), and
    InvalidArgumentError for bounds beyond the end and for a pattern that matches no log.
    """
    bookkeeper.store.sync()  # the plan sees all that was published before, whichever server answers (RULES M5)
    sources = sources_of(bookkeeper, options.selection)
    if not sources:
        raise no_log_matches(bookkeeper, options.selection)
    options.starting.check("startingOffsets", sources)
    options.ending.check("endingOffsets", sources)
    for option, times in (
        ("startingTimestamp", options.starting_timestamp),
        ("endingTimestamp", options.ending_timestamp),
    ):
        if times is not None:
            times.check(option, sources)
    if options.read_mode == "fence" and len(sources) > 1:
        side_by_side(lambda source: check_openable(bookkeeper, options, source), sources)
    return Resolved.together(side_by_side(lambda source: _resolve_selected(bookkeeper, options, source), sources))


def _resolve_selected(bookkeeper: BookKeeper, options: BkOptions, source: Source) -> Resolved:
    """Call :func:`resolve_source`. Return NOTHING for a log that matched a pattern and was deleted since then."""
    try:
        return resolve_source(bookkeeper, options, source)
    except NoSuchLogError:
        if not isinstance(options.selection, PatternSelection):
            raise
        return NOTHING


def no_log_matches(bookkeeper: BookKeeper, selection: Selection) -> NoSuchLogError:
    """Return the error for a pattern that matches no log. It names the existing logs."""
    names = shown(sorted(bookkeeper.store.list_logs()))
    remedy = f"logs of the cluster: {names}" if names else "the cluster has no logs yet: append makes one"
    return NoSuchLogError(f"there are no {selection}", value=bookkeeper.store.uri, remedy=remedy)


def check_openable(bookkeeper: BookKeeper, options: BkOptions, source: Source) -> None:
    """Check that a ledger exists and that its password and digest type are right, before any of several ledgers is
    fenced."""
    assert isinstance(source, LedgerSource)
    try:
        open_ledger(bookkeeper, options, source.ledger_id).close()
    except NoSuchLedgerError:
        if options.fail_on_data_loss:
            raise


def resolve_source(bookkeeper: BookKeeper, options: BkOptions, source: Source) -> Resolved:
    """Return the ranges of one ledger or log between the options' bounds, as it is now."""
    if isinstance(source, LedgerSource):
        return resolve_ledger(bookkeeper, options, source)
    return resolve_log(bookkeeper, options, source)


def resolve_ledger(bookkeeper: BookKeeper, options: BkOptions, source: LedgerSource) -> Resolved:
    """Return the range of a bare ledger between the options' bounds, as it is now."""
    try:
        opened = open_ledger(bookkeeper, options, source.ledger_id, recover=options.read_mode == "fence")
    except NoSuchLedgerError:
        if options.fail_on_data_loss:
            raise
        return NOTHING
    with opened as reader:
        if options.read_mode == "closedOnly" and not reader.is_closed:
            return NOTHING
        end = last_readable(reader, options) + 1
        length, metadata = reader.length_to(end - 1), reader.metadata
    start, wanted_end = options.starting.at(source), options.ending.at(source)
    first, stop = check_bounds(source, 0, end, start, wanted_end, fail_on_data_loss=options.fail_on_data_loss)
    size = length * (stop - first) // end if end else 0
    return range_of_ledger(options, source, metadata, first, stop, size)


def range_of_ledger(
    options: BkOptions, source: LedgerSource, metadata: LedgerMetadata, first: int, stop: int, size: int
) -> Resolved:
    """Return entries ``first`` to ``stop`` − 1 of a bare ledger as one range."""
    wanted = LedgerRange(
        ledger_id=source.ledger_id,
        first=first,
        last=stop - 1,
        bytes=size,
        created_ms=metadata.ctime_ms,
        closed=metadata.is_closed,
        layout=PartitionLayout.of(metadata, options.ledger_password),
    )
    return Resolved((wanted,) if stop > first else (), {source.ledger_id: metadata}, {None: frozenset()})


def resolve_part(
    bookkeeper: BookKeeper, options: BkOptions, source: LedgerSource, first: int, stop: int, spans: Sequence[Span]
) -> Resolved:
    """Return entries ``first`` to ``stop`` − 1 of a bare ledger for a micro-batch. They are known to be confirmed, so
    no LAC is asked for. ``spans`` estimate the bytes of an open ledger. Raises NoSuchLedgerError if the ledger was
    deleted (``failOnDataLoss``)."""
    try:
        metadata = bookkeeper.read_metadata(source.ledger_id).value
    except NoSuchLedgerError:
        if options.fail_on_data_loss:
            raise
        return NOTHING
    return range_of_ledger(options, source, metadata, first, stop, bytes_between(spans, first, stop))


def log_schemas(options: BkOptions) -> codecs.LogSchemas:
    """Return the schemas of each selected log, as they are now (RULES K8); empty, without I/O, for codecs without them.
    Raises NoSuchLogError, WrongPasswordError, MetadataUnavailableError."""
    if not codecs.keeps_schema(options):
        return {}
    return clients.patiently(options, lambda bookkeeper: _schemas(bookkeeper, options))


def _schemas(bookkeeper: BookKeeper, options: BkOptions) -> codecs.LogSchemas:
    logs = [source.name for source in sources_of(bookkeeper, options.selection) if isinstance(source, LogSource)]
    return {name: bookkeeper.log(name, password=options.ledger_password).schemas() for name in logs}
