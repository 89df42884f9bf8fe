# SPDX-License-Identifier: Apache-2.0
"""A log's head and an intent → the next head, and pages to create before it is written. Pure (RULES N1 to N4, N6).

Each function returns a :class:`~bk_core.logs.paging.Change`; whoever carries it out creates its pages first, then
compares and sets the head (:mod:`bk_core.logs.store`). ``nonce`` and ``pages`` are those of
:func:`bk_core.logs.paging.fit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bk_core.errors import InvalidArgumentError, LogHasLeaderError, PublishConflictError, TransactionReplayDiffersError
from bk_core.logs.head import (
    CODEC_NAME_BYTES_MAX,
    OPEN_EXTENTS_MAX,
    PUBLISHED_MAX,
    Extent,
    LogHead,
    NewExtent,
    Published,
    PublishId,
)
from bk_core.logs.paging import Change, Nonce, Pages, fit
from bk_core.model import DigestType, Fragment, LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEnd:
    """Where a closed ledger ends: the count of its entries and payload bytes, and its fragments."""

    entry_count: int
    size_bytes: int
    fragments: tuple[Fragment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOpenExtent:
    """A ledger that a leader has made and wants to append to."""

    ledger_id: LedgerId
    created_ms: int
    codec: str = "raw"
    schema_number: int = 0
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int


def create(
    *,
    uuid: str,
    created_ms: int,
    digest_type: DigestType = DigestType.CRC32C,
    ledger_key: bytes,
    retention_ms: int = 0,
    retention_bytes: int = 0,
) -> LogHead:
    """The head of a new, empty log."""
    return LogHead(
        uuid=uuid,
        created_ms=created_ms,
        digest_type=digest_type,
        ledger_key=ledger_key,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
    )


def already_published(head: LogHead, publish_id: PublishId, rows: int) -> Published | None:
    """The remembered publish of this id, or None: look here before anything else (RULES N4).

    Raises TransactionReplayDiffersError when it was published with another row count; nothing is to be published then.
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
    """Append closed ledgers in the order given, once. The publish is the last of ``head.published``.

    Empty extents are left out. The caller has asked :func:`already_published`. Raises LogHasLeaderError while an extent
    is open, PublishConflictError for condemned or doubly listed ledgers, InvalidArgumentError for impossible values.
    """
    _check_publishable(head, extents)
    offset, added = head.next_offset, list[Extent]()
    for new in extents:
        if new.entry_count:
            added.append(_sealed(new, offset))
            offset += new.entry_count
    record = Published(
        publish_id=publish_id.digest, base_offset=head.next_offset, rows=offset - head.next_offset, time_ms=now_ms
    )
    published = (*head.published, record)[-PUBLISHED_MAX:]
    grown = replace(head, tail=(*head.tail, *added), next_offset=offset, published=published)
    return fit(grown, nonce, pages)


def seal(head: LogHead, ends: Mapping[LedgerId, LedgerEnd], *, nonce: Nonce, pages: Pages | None = None) -> Change:
    """Fix the count of open extents, in order, and with it their successors' base offset (RULES N2).

    ``ends`` are those of ledgers that are closed, so their end can never change. An extent that turns out empty leaves
    the list: it covers no offset. Ids that are not open here are ignored: sealing is idempotent. An open extent that is
    not in ``ends`` stops the sealing, because what follows it has no base offset yet.
    """
    offset, sealed, still_open = head.next_offset, list[Extent](), list(head.open_extents)
    while still_open and still_open[0].ledger_id in ends:
        extent = still_open.pop(0)
        end = ends[extent.ledger_id]
        count = end.entry_count - extent.first_entry_id
        assert count >= 0, (extent, end)
        if count:
            closed = replace(
                extent,
                is_open=False,
                base_offset=offset,
                entry_count=count,
                size_bytes=end.size_bytes,
                fragments=end.fragments,
            )
            sealed.append(closed)
        offset += count
    if still_open:
        still_open[0] = replace(still_open[0], base_offset=offset)
    return fit(replace(head, tail=(*head.sealed_tail, *sealed, *still_open), next_offset=offset), nonce, pages)


def add_open_extent(head: LogHead, new: NewOpenExtent, *, nonce: Nonce, pages: Pages | None = None) -> Change:
    """Append the ledger that a leader goes on in. Raises LogHasLeaderError when two are open already, and
    PublishConflictError when the ledger is condemned or in the list."""
    if len(head.open_extents) >= OPEN_EXTENTS_MAX:
        raise LogHasLeaderError("the log has two open extents already", value=_ids(head.open_extents))
    if new.ledger_id in head.condemned or any(extent.ledger_id == new.ledger_id for extent in head.tail):
        raise PublishConflictError("the ledger is condemned or already in the log", value=f"ledger {new.ledger_id}")
    _check_codec(new.codec)
    extent = Extent(
        ledger_id=new.ledger_id,
        base_offset=0 if head.open_extents else head.next_offset,
        created_ms=new.created_ms,
        codec=new.codec,
        schema_number=new.schema_number,
        ensemble_size=new.ensemble_size,
        write_quorum_size=new.write_quorum_size,
        ack_quorum_size=new.ack_quorum_size,
        is_open=True,
    )
    return fit(replace(head, tail=(*head.tail, extent)), nonce, pages)


def _check_publishable(head: LogHead, extents: Sequence[NewExtent]) -> None:
    if head.open_extents:
        raise LogHasLeaderError(
            "the log has a leader that is writing to it",
            value=f"open {_ids(head.open_extents)}",
            remedy="stop the leader, or publish with takeover to fence it",
        )
    condemned = set(head.condemned)
    ranges: dict[LedgerId, list[tuple[int, int]]] = {}
    for known in head.tail:
        ranges.setdefault(known.ledger_id, []).append((known.first_entry_id, known.end_entry_id))
    for new in extents:
        _check_codec(new.codec)
        if new.first_entry_id < 0 or new.entry_count < 0 or new.size_bytes < 0:
            raise InvalidArgumentError("an extent has a negative number", value=str(new))
        if new.ledger_id in condemned:
            raise PublishConflictError(
                "a ledger was condemned to be deleted",
                value=f"ledger {new.ledger_id}",
                remedy="the job took longer than deleteDelayMs: run it again",
            )
        ranges.setdefault(new.ledger_id, []).append((new.first_entry_id, new.end_entry_id))
    for ledger_id, spans in ranges.items():
        if len(spans) > 1 and any(b[0] < a[1] for a, b in pairwise(sorted(spans))):
            raise PublishConflictError("entries of a ledger would stand in the log twice", value=f"ledger {ledger_id}")


def _check_codec(codec: str) -> None:
    if len(codec.encode()) > CODEC_NAME_BYTES_MAX:
        raise InvalidArgumentError(f"a codec's name has at most {CODEC_NAME_BYTES_MAX} bytes", value=f"codec {codec!r}")


def _sealed(new: NewExtent, base_offset: int) -> Extent:
    return Extent(
        ledger_id=new.ledger_id,
        first_entry_id=new.first_entry_id,
        entry_count=new.entry_count,
        size_bytes=new.size_bytes,
        base_offset=base_offset,
        created_ms=new.created_ms,
        codec=new.codec,
        schema_number=new.schema_number,
        ensemble_size=new.ensemble_size,
        write_quorum_size=new.write_quorum_size,
        ack_quorum_size=new.ack_quorum_size,
        fragments=new.fragments,
    )


def _ids(extents: Sequence[Extent]) -> str:
    return f"{'ledger' if len(extents) == 1 else 'ledgers'} {', '.join(str(extent.ledger_id) for extent in extents)}"
