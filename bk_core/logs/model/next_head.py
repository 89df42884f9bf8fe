# SPDX-License-Identifier: Apache-2.0
"""Makes the next head of a log, and the pages to create before that head is written. Pure (N1 to N4, N6).

Most functions return a :class:`~bk_core.logs.model.paging.Change`. The caller first creates the pages of the change,
and then writes the head by compare-and-set. The arguments ``nonce`` and ``pages`` are explained at
:func:`bk_core.logs.model.paging.fit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from bk_core.errors import InvalidArgumentError, LogHasLeaderError, PublishConflictError, TransactionReplayDiffersError
from bk_core.logs.model.head import (
    CODEC_NAME_BYTES_MAX,
    OPEN_EXTENTS_MAX,
    PUBLISHED_MAX,
    Extent,
    LogHead,
    NewExtent,
    Published,
    PublishId,
)
from bk_core.logs.model.paging import Change, Nonce, Pages, fit, sealed_extents, splice
from bk_core.model import Fragment, LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEnd:
    """The end of a closed ledger: its number of entries and payload bytes, and its fragments."""

    entry_count: int
    size_bytes: int
    fragments: tuple[Fragment, ...] = ()


def already_published(head: LogHead, publish_id: PublishId, rows: int) -> Published | None:
    """Return the publish with this id if the head remembers it, else None. Callers check this before all else (N4).

    Raises TransactionReplayDiffersError if the publish had another number of rows. Then nothing may be published.
    """
    found = head.find_published(publish_id)
    if found is not None and found.rows != rows:
        raise TransactionReplayDiffersError(
            f"{publish_id.text} was published before with {found.rows} rows, now it has {rows}",
            value=f"publish id {publish_id.text}",
            remedy="an older checkpoint was restored or the input was cut differently: use a new query or version",
        )
    return found


def publish(
    head: LogHead,
    extents: Sequence[NewExtent],
    publish_id: PublishId,
    *,
    now_ms: int,
    nonce: Nonce,
    pages: Pages | None = None,
) -> Change:
    """Return the change that appends closed ledgers in the given order. Empty extents are left out.

    The caller has called :func:`already_published`. Raises LogHasLeaderError while an extent is open,
    PublishConflictError for a condemned ledger or for entries that would be listed twice, and InvalidArgumentError for
    impossible values.
    """
    check_unpublished(head, extents)
    offset, added = head.next_offset, list[Extent]()
    for new in extents:
        if new.entry_count:
            added.append(_sealed(new, offset))
            offset += new.entry_count
    rows = sum(new.rows for new in extents)
    record = Published(publish_id=publish_id.digest, base_offset=head.next_offset, rows=rows, time_ms=now_ms)
    published = (*head.published, record)[-PUBLISHED_MAX:]
    grown = replace(head, tail=(*head.tail, *added), next_offset=offset, published=published)
    return fit(grown, nonce, pages)


def overwrite(
    head: LogHead,
    extents: Sequence[NewExtent],
    publish_id: PublishId,
    *,
    now_ms: int,
    nonce: Nonce,
    pages: Pages | None = None,
) -> Change:
    """Return the change that unlinks all extents and publishes ``extents`` instead. The epoch rises, and offsets
    continue, so that a position never means another entry than before (N7). Raises the errors of :func:`publish`."""
    check_unpublished(head, extents)
    emptied = replace(head, epoch=head.epoch + 1, start_offset=head.next_offset, pages=(), tail=())
    return publish(emptied, extents, publish_id, now_ms=now_ms, nonce=nonce, pages=pages)


def trim(head: LogHead, before_offset: int, *, nonce: Nonce, pages: Pages | None = None) -> Change:
    """Return the change after which the log starts at ``before_offset``, or at the end of the sealed extents if that is
    lower. It unlinks the extents that lie wholly below the start, and keeps an extent that the start cuts. Raises
    PagesNeeded."""
    start = trimmed_start(head, before_offset)
    return splice(replace(head, start_offset=start), 0, start, (), nonce=nonce, pages=pages)


def trimmed_start(head: LogHead, before_offset: int) -> int:
    """Return the log's start offset after a trim to ``before_offset``. The start never goes back."""
    return max(head.start_offset, min(before_offset, head.next_offset))


def expired_below(head: LogHead, now_ms: int, pages: Pages) -> int:
    """Return the offset below which the log's retention keeps no entry.

    Entries expire when they are older than ``retention_ms``, or when ``retention_bytes`` newer bytes follow; a limit of
    0 never expires entries. The age of an extent is the age of the next extent, which was begun when the extent ended.
    Raises PagesNeeded.
    """
    extents = sealed_extents(head, pages, head.start_offset, head.next_offset)
    size, offset = sum(extent.size_bytes for extent in extents), head.start_offset
    for extent, following in pairwise((*extents, *head.open_extents)):
        size -= extent.size_bytes
        is_old = 0 < head.retention_ms <= now_ms - following.created_ms
        if not is_old and not 0 < head.retention_bytes <= size:
            break
        offset = extent.next_offset
    return offset


def replace_extents(
    head: LogHead, run: Sequence[Extent], new: NewExtent, *, nonce: Nonce, pages: Pages | None = None
) -> Change:
    """Return the change that lists ``new``, which has the same entries, in place of the sealed extents ``run``. Offsets
    do not change (N7).

    Raises PagesNeeded, PublishConflictError if an extent of the run was unlinked or replaced or if ``new`` is
    condemned, and InvalidArgumentError for a run with gaps, or with another count, codec or schema than ``new``.
    """
    start, end = run[0].base_offset, run[-1].next_offset
    if end - start != new.entry_count or any(b.base_offset != a.next_offset for a, b in pairwise(run)):
        raise InvalidArgumentError(
            "a ledger must have all entries that it replaces", value=f"{new.entry_count} of {end - start}"
        )
    if any((extent.codec, extent.schema_number) != (new.codec, new.schema_number) for extent in run):
        raise InvalidArgumentError("a ledger must have its run's codec and schema", value=f"codec {new.codec}")
    _check_listable(head, new)
    if not has_run(head, run, pages or {}):
        raise PublishConflictError(
            "the extents to compact were unlinked or replaced meanwhile",
            value=f"offsets {start} to {end}",
            remedy="nothing is lost: read the list again, and compact its extents",
        )
    created_ms = max(extent.created_ms for extent in run)  # the retention counts from this time
    return splice(head, start, end, [_sealed(replace(new, created_ms=created_ms), start)], nonce=nonce, pages=pages)


def has_run(head: LogHead, run: Sequence[Extent], pages: Pages) -> bool:
    """Return whether the log lists exactly these sealed extents at their offsets. Raises PagesNeeded."""
    found = sealed_extents(head, pages, run[0].base_offset, run[-1].next_offset)
    return [_place(extent) for extent in found] == [_place(extent) for extent in run]


def condemn(head: LogHead, ledgers: Sequence[LedgerId], *, nonce: Nonce, pages: Pages | None = None) -> Change:
    """Return the change that condemns ledgers, so that no publish can list them (N6). This comes before their
    deletion."""
    return fit(replace(head, condemned=(*head.condemned, *ledgers)), nonce, pages)


def absolve(head: LogHead, ledgers: Sequence[LedgerId], *, nonce: Nonce, pages: Pages | None = None) -> Change:
    """Return the change that removes condemned ledgers from the head. They were deleted, so no publish can list
    them."""
    gone = frozenset(ledgers)
    return fit(replace(head, condemned=tuple(each for each in head.condemned if each not in gone)), nonce, pages)


def seal(head: LogHead, ends: Mapping[LedgerId, LedgerEnd], *, nonce: Nonce, pages: Pages | None = None) -> Change:
    """Return the change that seals open extents as :func:`sealed` does, with a head within its limits."""
    return fit(sealed(head, ends), nonce, pages)


def sealed(head: LogHead, ends: Mapping[LedgerId, LedgerEnd]) -> LogHead:
    """Return the head with the counts of its open extents fixed, in order. Each count gives the base offset of the next
    extent (N2).

    ``ends`` are the ends of closed ledgers, so they never change. An extent without entries is removed. Ledgers in
    ``ends`` that are not open in the head are ignored, so it does no harm to seal twice. Sealing stops at the first
    open extent that is not in ``ends``, because the extents after it have no base offset yet.
    """
    offset, closed, still_open = head.next_offset, list[Extent](), list(head.open_extents)
    while still_open and still_open[0].ledger_id in ends:
        extent = still_open.pop(0)
        end = ends[extent.ledger_id]
        count = end.entry_count - extent.first_entry_id
        assert count >= 0, (extent, end)
        if count:
            extent = replace(
                extent,
                is_open=False,
                base_offset=offset,
                entry_count=count,
                size_bytes=end.size_bytes,
                fragments=end.fragments,
            )
            closed.append(extent)
        offset += count
    if still_open:
        still_open[0] = replace(still_open[0], base_offset=offset)
    return replace(head, tail=(*head.sealed_tail, *closed, *still_open), next_offset=offset)


def add_open_extent(head: LogHead, new: Extent, *, nonce: Nonce, pages: Pages | None = None) -> Change:
    """Return the change that appends the open extent of the ledger that a leader writes next. Raises LogHasLeaderError
    if two extents are open already, and PublishConflictError if the ledger is condemned or listed in the head."""
    if len(head.open_extents) >= OPEN_EXTENTS_MAX:
        raise LogHasLeaderError("the log has two open extents already", value=_ids(head.open_extents))
    if new.ledger_id in head.condemned or any(extent.ledger_id == new.ledger_id for extent in head.tail):
        raise PublishConflictError("the ledger is condemned or already in the log", value=f"ledger {new.ledger_id}")
    _check_codec(new.codec)
    extent = replace(new, base_offset=0 if head.open_extents else head.next_offset)
    return fit(replace(head, tail=(*head.tail, extent)), nonce, pages)


def check_unpublished(head: LogHead, extents: Sequence[NewExtent]) -> None:
    """Raise an error of :func:`publish` if the head does not allow these extents to be published."""
    if head.open_extents:
        raise LogHasLeaderError(
            "the log has a leader that is writing to it",
            value=f"open {_ids(head.open_extents)}",
            remedy="stop the leader, or publish with takeover to fence it",
        )
    ranges: dict[LedgerId, list[tuple[int, int]]] = {}
    for known in head.tail:
        ranges.setdefault(known.ledger_id, []).append((known.first_entry_id, known.end_entry_id))
    for new in extents:
        _check_listable(head, new)
        ranges.setdefault(new.ledger_id, []).append((new.first_entry_id, new.end_entry_id))
    for ledger_id, spans in ranges.items():
        if len(spans) > 1 and any(b[0] < a[1] for a, b in pairwise(sorted(spans))):
            raise PublishConflictError("entries of a ledger would be in the log twice", value=f"ledger {ledger_id}")


def _check_listable(head: LogHead, new: NewExtent) -> None:
    _check_codec(new.codec)
    if new.first_entry_id < 0 or new.entry_count < 0 or new.size_bytes < 0:
        raise InvalidArgumentError("an extent has a negative number", value=str(new))
    if new.ledger_id in head.condemned:
        raise PublishConflictError(
            "a ledger was condemned to be deleted",
            value=f"ledger {new.ledger_id}",
            remedy="the job took longer than deleteDelayMs: run it again",
        )


def _place(extent: Extent) -> tuple[int, int, int, int]:
    return (extent.base_offset, extent.ledger_id, extent.first_entry_id, extent.entry_count)


def _check_codec(codec: str) -> None:
    if len(codec.encode()) > CODEC_NAME_BYTES_MAX:
        raise InvalidArgumentError(f"a codec's name has at most {CODEC_NAME_BYTES_MAX} bytes", value=f"codec {codec!r}")


def _sealed(new: NewExtent, base_offset: int) -> Extent:
    known = {each.name: getattr(new, each.name) for each in fields(new) if each.name != "row_count"}
    return Extent(base_offset=base_offset, **known)


def _ids(extents: Sequence[Extent]) -> str:
    return f"{'ledger' if len(extents) == 1 else 'ledgers'} {', '.join(str(extent.ledger_id) for extent in extents)}"
