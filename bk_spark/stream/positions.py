# SPDX-License-Identifier: Apache-2.0
"""The state of a stream's sources, and the meaning of a checkpoint's positions in them (RULES N7). Pure.

Theory. A position in a log names the log's uuid and epoch, so a log that was made again or overwritten is noticed. A
new log of a pattern and the rows that replace an overwritten log begin in the middle of a query. Such a source enters
the offset with a batch that reads no row of it. So its begin is durable before its first row is read, and a replayed
batch has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bk_core.errors import (
    BookKeeperError,
    ClusterMismatchError,
    InvalidArgumentError,
    LogOverwrittenError,
    LogRecreatedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from bk_core.logs.model.head import LogHead
from bk_core.logs.model.position import LogPosition, StreamOffset
from bk_spark.errors import shown
from bk_spark.options.offsets import resolve_bound, sources_in
from bk_spark.options.options import BkOptions
from bk_spark.options.selection import LedgerSelection, LedgerSource, LogSelection, LogSource, PatternSelection, Source
from bk_spark.plan.packing import Span

ANOTHER_CHECKPOINT = "use another checkpointLocation for this query"


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """A source at one moment. Positions ``start`` to ``next`` − 1 can be read; ``spans`` say how large they are.
    ``head`` is the log's record, None for a bare ledger. If ``is_open``, more may be confirmed beyond ``next``."""

    start: int
    next: int
    spans: Sequence[Span] = ()
    head: LogHead | None = None
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """All sources at one moment. ``gone`` maps the sources that do not exist to the error that said so. ``cluster`` is
    the INSTANCEID. ``version`` grows with each change."""

    cluster: str
    sources: Mapping[Source, SourceSeen]
    gone: Mapping[Source, BookKeeperError] = field(default_factory=dict)
    version: int = 0


@dataclass(slots=True)
class Reading:
    """The positions where the stream reads next, for the followers of its sources. ``positions`` is replaced as a
    whole, so any thread may read it."""

    positions: Mapping[Source, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standing:
    """The position at which the query continues in one source. ``is_fresh`` means that this position is in no
    checkpoint yet."""

    begin: int
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class PositionPart:
    """Positions ``first`` to ``stop`` − 1 of one source."""

    source: Source
    first: int
    stop: int


def offset_at(seen: Seen, ends: Mapping[Source, int], old: StreamOffset | None = None) -> StreamOffset:
    """Return ``ends`` as an offset. A source that is gone keeps its position in ``old``."""
    logs: dict[str, LogPosition] = {}
    ledgers: dict[int, int] = {}
    for source, end in ends.items():
        if isinstance(source, LedgerSource):
            ledgers[source.ledger_id] = end
            continue
        known = seen.sources.get(source)
        if known is None or known.head is None:
            assert old is not None
            logs[source.name] = old.logs[source.name]
        else:
            logs[source.name] = LogPosition(known.head.uuid, known.head.epoch, end)
    return StreamOffset(seen.cluster, logs, ledgers)


def initial_ends(options: BkOptions, seen: Seen, dated: Mapping[Source, int] | None = None) -> dict[Source, int]:
    """Return where a new query begins in each source. ``dated`` has the positions for ``startingTimestamp``. Raises
    NoSuchLogError or NoSuchLedgerError for a source that does not exist, NoSuchEntryError for trimmed entries, and
    InvalidArgumentError for a start beyond the end or for positions of other sources."""
    if not isinstance(options.selection, PatternSelection):  # a log of a pattern may vanish at any moment
        for error in seen.gone.values():
            raise error
    options.starting.check("startingOffsets", seen.sources)
    if options.starting_timestamp is not None:
        options.starting_timestamp.check("startingTimestamp", seen.sources)
    begins: dict[Source, int] = {}
    for source, known in seen.sources.items():
        begin = resolve_bound((dated or {}).get(source, options.starting.at(source)), known.start, known.next)
        if begin > known.next:
            raise InvalidArgumentError(
                "startingOffsets is beyond the end", value=f"{begin}, {source} ends at {known.next}"
            )
        begins[source] = _not_trimmed(source, begin, known, options)
    return begins


def standings(offset: StreamOffset, seen: Seen, options: BkOptions) -> dict[Source, Standing]:
    """Return where the query continues from ``offset``: in each source of the offset, and in new logs of a pattern.

    Raises ClusterMismatchError, InvalidArgumentError for an offset of other sources, LogRecreatedError,
    LogOverwrittenError (``onOverwrite``); and for deleted or trimmed sources (``failOnDataLoss``) NoSuchLogError,
    NoSuchLedgerError, NoSuchEntryError.
    """
    check_cluster(offset, seen.cluster)
    held = sources_in(offset)
    check_sources(held, options)
    found: dict[Source, Standing] = {}
    for source in held:
        known = seen.sources.get(source)
        if known is None:
            _check_gone(source, seen, options)
            if not isinstance(options.selection, PatternSelection):
                found[source] = Standing(next_of(offset, source))
        else:
            found[source] = _standing(offset, source, known, options)
    for source, known in seen.sources.items():
        if source not in found:
            found[source] = Standing(known.start, is_fresh=True)
    return found


def ended_before(found: Mapping[Source, Standing], seen: Seen) -> list[Source]:
    """Return the sources without a writer that end before the stream's position. Either entries were lost, or a
    metadata server is behind. If entries were lost, the stream would skip those that are appended next."""
    return [
        source
        for source, standing in found.items()
        if source in seen.sources and standing.begin > seen.sources[source].next and not seen.sources[source].is_open
    ]


def parts(start: StreamOffset, end: StreamOffset, seen: Seen, options: BkOptions) -> list[PositionPart]:
    """Return what a micro-batch from ``start`` to ``end`` reads, in order. Raises what :func:`standings` raises. A
    source that ``start`` does not have is not read: it enters the offset with this batch."""
    for offset in (start, end):
        check_cluster(offset, seen.cluster)
        check_sources(sources_in(offset), options)
    begins = set(sources_in(start))
    found = []
    for source in sources_in(end):
        if source not in begins:
            if source not in seen.sources:  # batch 0, replayed: its start lacks sources deleted since
                _check_gone(source, seen, options)
            continue
        if next_of(start, source) >= next_of(end, source):
            continue
        part = _part(source, start, end, seen, options)
        if part is not None and part.first < part.stop:
            found.append(part)
    return found


def check_cluster(offset: StreamOffset, cluster: str) -> None:
    """Check that the offset belongs to this cluster. Raises ClusterMismatchError."""
    check_same_cluster(offset.cluster, cluster)


def check_same_cluster(found: str, cluster: str) -> None:
    """Check that the cluster of a checkpoint is this cluster. Raises ClusterMismatchError."""
    if found != cluster:
        raise ClusterMismatchError(
            "the checkpoint belongs to another cluster",
            value=f"checkpoint {found}, metadataServiceUri {cluster}",
            remedy="point metadataServiceUri at the first cluster, or use another checkpointLocation",
        )


def check_sources(held: Iterable[Source], options: BkOptions) -> None:
    """Check that an offset's sources are those of the selection. If that is a pattern, each of them must match it, and
    logs that match may be missing. Raises InvalidArgumentError."""
    selection, have = options.selection, set(held)
    if isinstance(selection, LedgerSelection | LogSelection):
        wanted: set[Source] = set(selection.sources)
        strange, lacking = have - wanted, wanted - have
    else:
        assert isinstance(selection, PatternSelection)
        strange = {s for s in have if not (isinstance(s, LogSource) and selection.matches(s.name))}
        lacking = set()
    problems = {"only in the checkpoint": strange, "not in the checkpoint": lacking}
    listed = [f"{what}: {shown(sorted(map(str, which)))}" for what, which in problems.items() if which]
    if listed:
        raise InvalidArgumentError(
            "the checkpoint belongs to something else",
            value=f"the query reads {selection}; {'; '.join(listed)}",
            remedy=f"{ANOTHER_CHECKPOINT}, or select by logPattern, which takes up new logs",
        )


def _standing(offset: StreamOffset, source: Source, known: SourceSeen, options: BkOptions) -> Standing:
    if _is_overwritten(source, offset, known, options):
        return Standing(max(next_of(offset, source), known.start), is_fresh=True)
    return Standing(_not_trimmed(source, next_of(offset, source), known, options))


def _part(
    source: Source, start: StreamOffset, end: StreamOffset, seen: Seen, options: BkOptions
) -> PositionPart | None:
    known = seen.sources.get(source)
    if known is None:
        _check_gone(source, seen, options)
        return None
    if any(_is_overwritten(source, offset, known, options) for offset in (start, end)):
        return None
    first, stop = next_of(start, source), next_of(end, source)
    return PositionPart(source, min(_not_trimmed(source, first, known, options), stop), stop)


def next_of(offset: StreamOffset, source: Source) -> int:
    """Return the next position of ``source``. The offset must have the source."""
    if isinstance(source, LedgerSource):
        return offset.ledgers[source.ledger_id]
    return offset.logs[source.name].next


def _not_trimmed(source: Source, wanted: int, known: SourceSeen, options: BkOptions) -> int:
    if wanted >= known.start:
        return wanted
    if not options.fail_on_data_loss:
        return known.start
    raise NoSuchEntryError(
        "the next entries of the stream were trimmed",
        value=f"{source} begins at {known.start}, the stream needs {wanted}",
        remedy="set failOnDataLoss=false to go on with what is left",
    )


def _check_gone(source: Source, seen: Seen, options: BkOptions) -> None:
    """Raise the error for a source that has a position and does not exist, unless ``failOnDataLoss=false``."""
    if not options.fail_on_data_loss:
        return
    kind = NoSuchLedgerError if isinstance(source, LedgerSource) else NoSuchLogError
    raise kind(
        f"{source} was deleted, and the stream may not have read all of it",
        value=str(options.selection),
        remedy=f"set failOnDataLoss=false to go on without it, or {ANOTHER_CHECKPOINT}",
    ) from seen.gone.get(source)


def _is_overwritten(source: Source, offset: StreamOffset, known: SourceSeen, options: BkOptions) -> bool:
    """Return whether a log was overwritten after ``offset``; False for a ledger. Raises LogRecreatedError if the name
    belongs to another log now, and LogOverwrittenError for an overwritten log if ``onOverwrite=fail``."""
    head = known.head
    if head is None:
        return False
    assert isinstance(source, LogSource)
    at = offset.logs[source.name]
    if at.uuid != head.uuid:
        raise LogRecreatedError(
            f"the checkpoint belongs to another {source}, which was deleted and made again since",
            value=f"uuid {at.uuid}, the log now has {head.uuid}",
            remedy=ANOTHER_CHECKPOINT,
        )
    if at.epoch != head.epoch and options.on_overwrite == "fail":
        raise LogOverwrittenError(
            f"{source} was overwritten since",
            value=f"epoch {at.epoch} and offset {at.next}, the log is at epoch {head.epoch} from {head.start_offset}",
            remedy=f"set onOverwrite=skip to go on with what replaced it, or {ANOTHER_CHECKPOINT}",
        )
    return at.epoch != head.epoch
