# SPDX-License-Identifier: Apache-2.0
"""Defines the records of a named log as plain data: head, extents, pages and publish ids, with the invariants of each.

:mod:`bk_core.logs.model.codec` converts them to bytes, and :mod:`bk_core.logs.model.next_head` makes the next head.

A log is an ordered list of extents (ranges of ledgers). A sealed extent has a fixed count of entries, so a log offset,
which counts entries, means the same entry for ever. An extent that a leader still writes is *open*: it comes last and
has no count yet. Old extents move from the head into immutable pages. So the head, which every change writes by
compare-and-set, stays small (N1 to N3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bk_core.access.roles import LOG_KEY
from bk_core.model import DigestType, EntryId, Fragment, LedgerId

HEAD_BYTES_MAX = 8 << 10
"""The maximum size of a head in bytes. 100 heads of this size fit into one multi (N3)."""
PAGE_BYTES_MAX = 512 << 10
"""The maximum size of a page or a transaction record in bytes. It is half of the 1 MiB that ZooKeeper refuses (N3)."""
PUBLISHED_MAX = 128
"""The maximum number of publish ids that a head remembers (N4). Older ids are forgotten."""
CONDEMNED_MAX = 256
"""The maximum number of ledgers that are condemned at a time (N6), because the head lists them."""
SCHEMAS_MAX = 24
"""The maximum number of schemas that a log can ever have (K8), because the head lists all of them and must stay small
(N3)."""
OPEN_EXTENTS_MAX = 2
"""The maximum number of open extents. These are the current ledger and, during a roll, the next one (N2)."""
RAW, ENVELOPE, JSON, ARROW = "raw", "envelope", "json", "arrow"
CODECS = (RAW, ENVELOPE, JSON, ARROW)
"""The codecs of rows in entries, by the names in extents. Another program may have written other names."""
SEVERAL_ROWS = (ARROW,)
"""The codecs whose entries hold several rows."""
COMPRESSIONS = ("none", "lz4", "zstd")
"""The compression methods of columns in entries of codec ``arrow``."""
CODEC_NAME_BYTES_MAX = 32
"""The maximum length of a codec's name in UTF-8 bytes. Every extent in the head repeats the name."""
PUBLISH_ID_BYTES = 16

APPLICATION = "pyspark-bookkeeper"
"""The value of the custom metadata ``application`` in every ledger made for a log (N6)."""


@dataclass(frozen=True, slots=True)
class PublishId:
    """The id of a publish, which makes it happen at most once (N4). The head keeps ``digest``, a digest of ``text``.

    :meth:`stream`, :meth:`txn` and :meth:`job` make publish ids.
    """

    text: str

    @classmethod
    def stream(cls, query_id: str, batch_id: int) -> PublishId:
        """Return the id of a micro-batch of a streaming query."""
        return cls(f"stream/{query_id}/{batch_id}")

    @classmethod
    def txn(cls, app_id: str, version: int) -> PublishId:
        """Return the id of a batch job with a transaction, given by ``txnAppId`` and ``txnVersion``."""
        return cls(f"txn/{app_id}/{version}")

    @classmethod
    def job(cls, job_uuid: str) -> PublishId:
        """Return the id of a batch job without a transaction, which publishes once."""
        return cls(f"job/{job_uuid}")

    @property
    def digest(self) -> bytes:
        """The first 16 bytes of the SHA-256 of the text (docs/formats.md §4)."""
        return hashlib.sha256(self.text.encode()).digest()[:PUBLISH_ID_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewExtent:
    """A closed ledger, or a range of it, to be published. ``size_bytes`` counts payload bytes. ``row_count`` is the
    number of rows, or None if each entry is one row."""

    ledger_id: LedgerId
    entry_count: int
    size_bytes: int
    created_ms: int
    first_entry_id: EntryId = 0
    codec: str = "raw"
    schema_number: int = 0
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    fragments: tuple[Fragment, ...] = ()
    row_count: int | None = None

    @property
    def end_entry_id(self) -> EntryId:
        """The entry id after the last entry of the range."""
        return self.first_entry_id + self.entry_count

    @property
    def rows(self) -> int:
        """The number of rows. It must be the same when the publish is repeated (N4, N5)."""
        return self.entry_count if self.row_count is None else self.row_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A range of a ledger that the log lists. An open extent has no count of entries or bytes yet, and only the first
    open extent has a base offset (N2). If a sealed extent has no ``fragments``, they are in the ledger's metadata."""

    ledger_id: LedgerId
    entry_count: int = 0
    size_bytes: int = 0
    base_offset: int = 0
    created_ms: int = 0
    first_entry_id: EntryId = 0
    codec: str = "raw"
    schema_number: int = 0
    ensemble_size: int = 0
    write_quorum_size: int = 0
    ack_quorum_size: int = 0
    fragments: tuple[Fragment, ...] = ()
    is_open: bool = False
    unknown_fields: bytes = b""
    fragment_unknown_fields: tuple[bytes, ...] = ()  # one per fragment if any fragment has unknown fields, else empty

    @property
    def next_offset(self) -> int:
        """The log offset after the last entry of a sealed extent."""
        return self.base_offset + self.entry_count

    @property
    def end_entry_id(self) -> EntryId:
        """The entry id after the last entry of a sealed extent."""
        return self.first_entry_id + self.entry_count


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """A reference to a page, with the range of offsets that the page covers. A page of ``level`` 0 holds extents, a
    page of a higher level holds references to pages. ``extents`` and ``size_bytes`` count all extents below the
    page."""

    name: str
    base_offset: int
    next_offset: int
    extents: int
    size_bytes: int
    level: int = 0
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A publish that happened. It has ``rows`` rows in the entries from ``base_offset`` on. ``publish_id`` is the
    16-byte digest. An entry is one row unless the codec puts several rows into one entry."""

    publish_id: bytes
    base_offset: int
    rows: int
    time_ms: int
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A numbered schema of a log, which never changes. ``page`` is the name of the page that holds it."""

    number: int
    page: str
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """A page of a log, which never changes. It holds sealed extents (level 0), references to pages one level below, or
    a schema."""

    extents: tuple[Extent, ...] = ()
    pages: tuple[PageRef, ...] = ()
    schema: bytes = b""
    unknown_fields: bytes = b""

    def problem(self) -> str | None:
        """Return why these values cannot be a page, or None if they can."""
        if any(extent.is_open for extent in self.extents):
            return "an open extent in a page"
        return contiguity_problem(self.pages) or contiguity_problem(self.extents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlinked:
    """The pages and ledgers that one change of the head unlinked (N6).

    ``pages`` are unlinked with every page and ledger that they name at any depth. ``names`` are pages that are unlinked
    alone, because their content is still listed, or is in ``ledgers``. ``ledgers`` are unlinked ledgers.
    """

    pages: tuple[PageRef, ...] = ()
    names: tuple[str, ...] = ()
    ledgers: tuple[LedgerId, ...] = ()
    unknown_fields: bytes = b""

    @property
    def is_empty(self) -> bool:
        return not (self.pages or self.names or self.ledgers)


NOTHING_UNLINKED = Unlinked()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHead:
    """The central record of a log. Every change of the log is one compare-and-set of its head (MUST 15).

    Invariants (:meth:`problem`): the pages and then the sealed extents of ``tail`` cover all offsets up to
    ``next_offset`` without a gap. At most two open extents follow, and the base of the first is ``next_offset``.
    ``uuid`` is the canonical 36-character text, and ``ledger_key`` is derived from the log's password.
    """

    uuid: str
    epoch: int = 0
    created_ms: int = 0
    digest_type: DigestType = DigestType.CRC32C
    ledger_key: bytes = field(default=b"", repr=False)
    start_offset: int = 0
    next_offset: int = 0
    pages: tuple[PageRef, ...] = ()
    tail: tuple[Extent, ...] = ()
    published: tuple[Published, ...] = ()
    condemned: tuple[LedgerId, ...] = ()
    schemas: tuple[Schema, ...] = ()
    retention_ms: int = 0
    retention_bytes: int = 0
    is_deleted: bool = False
    """Whether this is the mark of a deleted log, which lists nothing. No version of the software reads a mark as a log
    (decision 0072)."""
    unknown_fields: bytes = b""

    @property
    def sealed_tail(self) -> tuple[Extent, ...]:
        """The sealed extents in the head, in order. Older sealed extents are in pages."""
        return tuple(extent for extent in self.tail if not extent.is_open)

    @property
    def open_extents(self) -> tuple[Extent, ...]:
        """The open extents, in order. A leader may be writing them; there are at most two."""
        return tuple(extent for extent in self.tail if extent.is_open)

    def find_published(self, publish_id: PublishId) -> Published | None:
        """Return the publish with this id if the head remembers it, else None (N4)."""
        digest = publish_id.digest
        return next((p for p in reversed(self.published) if p.publish_id == digest), None)

    def problem(self) -> str | None:
        """Return why these values cannot be a log's head, or None if they can."""
        sealed, opened = self.sealed_tail, self.open_extents
        if self.tail != sealed + opened or len(opened) > OPEN_EXTENTS_MAX:
            return "open extents must be the last, at most two"
        if opened and opened[0].base_offset != self.next_offset:
            return (
                f"the first open extent begins at {opened[0].base_offset}, the sealed part ends at {self.next_offset}"
            )
        if any(extent.entry_count or extent.size_bytes for extent in opened):
            return "an open extent with a count"
        covered: tuple[PageRef | Extent, ...] = (*self.pages, *sealed)
        if covered and covered[-1].next_offset != self.next_offset:
            return f"extents end at {covered[-1].next_offset}, the head says {self.next_offset}"
        if not 0 <= self.start_offset <= self.next_offset or (covered and covered[0].base_offset > self.start_offset):
            return f"start offset {self.start_offset} is outside the extents"
        if any(a.level < b.level for a, b in pairwise(self.pages)):
            return "page levels must fall towards the end"
        if len(self.published) > PUBLISHED_MAX or len(self.condemned) > CONDEMNED_MAX:
            return f"{len(self.published)} publish ids and {len(self.condemned)} condemned ledgers: over the limit"
        numbers = [schema.number for schema in self.schemas]
        if numbers != sorted(set(numbers)) or (numbers and numbers[0] < 1):
            return f"schemas are numbered {numbers}"
        return contiguity_problem(covered)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionVersion:
    """One version in a transaction record (N5)."""

    version: int
    publish_id: bytes
    rows: int
    time_ms: int
    plan: bytes = b""  # a digest of the input, empty if unknown
    unknown_fields: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTransactions:
    """The transaction record of one application or streaming query: the versions that it published to a log (N5)."""

    app_id: str
    versions: tuple[TransactionVersion, ...] = ()
    last_used_ms: int = 0
    unknown_fields: bytes = b""

    @property
    def key(self) -> str:
        """The record's name under ``txns``."""
        return hashlib.sha256(self.app_id.encode()).hexdigest()


def contiguity_problem(parts: Sequence[PageRef | Extent]) -> str | None:
    """Return why ``parts`` do not cover a run of offsets without gap or overlap, or None if they do."""
    for part in parts:
        if part.next_offset < part.base_offset:
            return f"a part runs from offset {part.base_offset} back to {part.next_offset}"
    for a, b in pairwise(parts):
        if b.base_offset != a.next_offset:
            return f"offset {a.next_offset} is followed by {b.base_offset}"
    return None


def custom_metadata_for(
    log_uuid: str, publish_id: PublishId, *, partition: int, attempt: int, codec: str, log_name: str = ""
) -> dict[str, bytes]:
    """Return the custom metadata of a new ledger for a log. Vacuum finds abandoned ledgers by it, and never touches a
    ledger without it (N6). It names the log, so that roles on logs apply to the ledger."""
    values = {
        "application": APPLICATION,
        "bk.log.uuid": log_uuid,
        "bk.publish.id": publish_id.text,
        "bk.partition": str(partition),
        "bk.attempt": str(attempt),
        "bk.codec": codec,
        **({LOG_KEY: log_name} if log_name else {}),
    }
    return {key: value.encode() for key, value in values.items()}
