# SPDX-License-Identifier: Apache-2.0
"""Converts heads, pages, transactions and unlinked records of named logs to bytes and back (docs/formats.md §4). Pure.

A record is an ASCII line and a protobuf message. Fields that this version does not know survive a rewrite (M4), because
each value keeps the unknown fields of its message. A record lists each bookie id once, in a table; fragments hold
indices into this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import DecodeError, Message

from bk_core.entries.digest import crc32c
from bk_core.errors import LogError, MetadataCorruptError
from bk_core.logs.model.head import (
    HEAD_BYTES_MAX,
    PAGE_BYTES_MAX,
    Extent,
    LogHead,
    LogPage,
    LogTransactions,
    PageRef,
    Published,
    Schema,
    TransactionVersion,
    Unlinked,
)
from bk_core.logs.proto import log_pb2
from bk_core.model import BookieId, DigestType, Fragment

HEAD_LINE = b"BookKeeperLogHeadVersion\t1\n"
MARK_LINE = b"BookKeeperLogDeletedVersion\t1\n"
"""The first line of the mark that replaces the head of a deleted log. Versions that do not have this line refuse to
read the rest."""
PAGE_LINE = b"BookKeeperLogPageVersion\t1\n"
TXNS_LINE = b"BookKeeperLogTxnsVersion\t1\n"
UNLINKED_LINE = b"BookKeeperLogUnlinkedVersion\t1\n"

# Fields that have the same name in a record and in its message. The same lists serve encoding and decoding.
_HEAD = ("epoch", "created_ms", "ledger_key", "start_offset", "next_offset", "retention_ms", "retention_bytes")
_PLACE = ("ledger_id", "first_entry_id", "entry_count", "base_offset", "created_ms")
_EXTENT = (*_PLACE, "codec", "schema_number", "ensemble_size", "write_quorum_size", "ack_quorum_size")
_REF = ("name", "base_offset", "next_offset", "extents", "level")
_PUBLISHED = ("publish_id", "base_offset", "rows", "time_ms")
_SCHEMA = ("number", "page")
_VERSION = ("version", "publish_id", "rows", "time_ms", "plan")

_M = TypeVar("_M", bound=Message)
_Unknown = Callable[[Message], bytes]


def encode_head(head: LogHead) -> bytes:
    """Encode a head. Raises LogError for a head over 8 KiB (N3). :func:`bk_core.logs.model.paging.fit` keeps heads
    below this size."""
    data = head_bytes(head)
    if len(data) > HEAD_BYTES_MAX:
        raise LogError("the head of the log is too large", value=f"{len(data)} bytes, at most {HEAD_BYTES_MAX}")
    return data


def head_bytes(head: LogHead) -> bytes:
    """Encode a head of any size, to measure it."""
    problem = head.problem()
    assert problem is None, problem
    message = log_pb2.LogHead(
        uuid=bytes.fromhex(head.uuid.replace("-", "")),
        digest_type=int(head.digest_type),
        condemned=head.condemned,
        **_values(head, _HEAD),
    )
    table = _add_extents(message.tail, head.tail)
    message.bookies.extend(table)
    for ref in head.pages:
        _add_ref(message.pages, ref)
    for published in head.published:
        _restore(message.published.add(**_values(published, _PUBLISHED)), published.unknown_fields)
    for schema in head.schemas:
        _restore(message.schemas.add(**_values(schema, _SCHEMA)), schema.unknown_fields)
    _restore(message, head.unknown_fields)
    return (MARK_LINE if head.is_deleted else HEAD_LINE) + message.SerializeToString(deterministic=True)


def decode_head(data: bytes, name: str = "") -> LogHead:
    """Decode the head of log ``name``. Raises MetadataCorruptError."""
    where = f"head of log {name}"
    is_deleted = data.startswith(MARK_LINE)
    message = _parse(data, MARK_LINE if is_deleted else HEAD_LINE, log_pb2.LogHead(), where)
    unknown = _unknown_of(message)
    try:
        if len(message.uuid) != 16:
            raise ValueError(f"uuid of {len(message.uuid)} bytes")
        head = LogHead(
            uuid=_uuid_text(message.uuid),
            digest_type=DigestType(message.digest_type),
            pages=tuple(_ref(ref, unknown) for ref in message.pages),
            tail=tuple(_extents(message.tail, message.bookies, unknown)),
            published=tuple(Published(**_values(p, _PUBLISHED), unknown_fields=unknown(p)) for p in message.published),
            condemned=tuple(message.condemned),
            schemas=tuple(Schema(**_values(s, _SCHEMA), unknown_fields=unknown(s)) for s in message.schemas),
            is_deleted=is_deleted,
            unknown_fields=unknown(message),
            **_values(message, _HEAD),
        )
    except (ValueError, IndexError) as error:
        raise _corrupt(where, str(error)) from error
    if problem := head.problem():
        raise _corrupt(where, problem)
    return head


def encode_page(page: LogPage) -> bytes:
    """Encode a page of any size. The caller makes sure that it has at most PAGE_BYTES_MAX bytes."""
    problem = page.problem()
    assert problem is None, problem
    message = log_pb2.LogPage(schema=page.schema)
    message.bookies.extend(_add_extents(message.extents, page.extents))
    for ref in page.pages:
        _add_ref(message.pages, ref)
    _restore(message, page.unknown_fields)
    return PAGE_LINE + message.SerializeToString(deterministic=True)


def decode_page(data: bytes, name: str) -> LogPage:
    """Decode the page ``name``. Raises MetadataCorruptError for a page that cannot be read, or whose CRC is not the CRC
    in its name."""
    if not page_name_matches(name, data):
        raise _corrupt(f"page {name}", "its CRC32C is not the one in its name")
    message = _parse(data, PAGE_LINE, log_pb2.LogPage(), f"page {name}")
    unknown = _unknown_of(message)
    try:
        page = LogPage(
            extents=tuple(_extents(message.extents, message.bookies, unknown)),
            pages=tuple(_ref(ref, unknown) for ref in message.pages),
            schema=message.schema,
            unknown_fields=unknown(message),
        )
    except IndexError as error:
        raise _corrupt(f"page {name}", str(error)) from error
    if problem := page.problem():
        raise _corrupt(f"page {name}", problem)
    return page


def page_name(nonce: int, data: bytes) -> str:
    """Return the name of the page with these bytes. ``nonce`` is a random 64-bit number."""
    return f"{nonce:016x}-{crc32c(data):08x}"


def page_name_matches(name: str, data: bytes) -> bool:
    """Return whether the CRC in ``name`` is the CRC of ``data``."""
    return name[16:] == f"-{crc32c(data):08x}"


def encode_transactions(transactions: LogTransactions) -> bytes:
    """Encode a transaction record. Raises LogError for a record over 512 KiB."""
    message = log_pb2.LogTransactions(app_id=transactions.app_id, last_used_ms=transactions.last_used_ms)
    for version in transactions.versions:
        _restore(message.versions.add(**_values(version, _VERSION)), version.unknown_fields)
    _restore(message, transactions.unknown_fields)
    data = TXNS_LINE + message.SerializeToString(deterministic=True)
    if len(data) > PAGE_BYTES_MAX:
        raise LogError("the transaction record is too large", value=f"{len(data)} bytes, at most {PAGE_BYTES_MAX}")
    return data


def decode_transactions(data: bytes, key: str = "") -> LogTransactions:
    """Decode the transaction record under ``key``. Raises MetadataCorruptError."""
    message = _parse(data, TXNS_LINE, log_pb2.LogTransactions(), f"transactions {key}")
    unknown = _unknown_of(message)
    versions = tuple(TransactionVersion(**_values(v, _VERSION), unknown_fields=unknown(v)) for v in message.versions)
    return LogTransactions(
        app_id=message.app_id,
        versions=versions,
        last_used_ms=message.last_used_ms,
        unknown_fields=unknown(message),
    )


def encode_unlinked(unlinked: Unlinked) -> bytes:
    """Encode an unlinked record. It has at most UNLINKED_BYTES_MAX bytes, or names only pages and ledgers that one head
    names."""
    message = log_pb2.LogUnlinked(names=unlinked.names, ledgers=unlinked.ledgers)
    for ref in unlinked.pages:
        _add_ref(message.pages, ref)
    _restore(message, unlinked.unknown_fields)
    return UNLINKED_LINE + message.SerializeToString(deterministic=True)


def decode_unlinked(data: bytes, name: str = "") -> Unlinked:
    """Decode the unlinked record ``name``. Raises MetadataCorruptError."""
    message = _parse(data, UNLINKED_LINE, log_pb2.LogUnlinked(), f"unlinked record {name}")
    unknown = _unknown_of(message)
    return Unlinked(
        pages=tuple(_ref(ref, unknown) for ref in message.pages),
        names=tuple(message.names),
        ledgers=tuple(message.ledgers),
        unknown_fields=unknown(message),
    )


def _parse(data: bytes, line: bytes, message: _M, where: str) -> _M:
    if not data.startswith(line):
        raise _corrupt(where, f"begins with {data[:32]!r}, not {line!r}")
    try:
        message.ParseFromString(data[len(line) :])
    except DecodeError as error:
        raise _corrupt(where, str(error)) from error
    return message


def _corrupt(where: str, why: str) -> MetadataCorruptError:
    return MetadataCorruptError(
        f"cannot read the {where}",
        value=why,
        remedy="a newer version wrote it or it is damaged: upgrade, or restore it from a backup",
    )


def _unknown_of(root: Message) -> _Unknown:
    """Return a function that returns a message's unknown fields. Usually no message below ``root`` has any, which one C
    call shows. Checking each of thousands of extents would cost more than the parse."""
    known = type(root)()
    known.CopyFrom(root)
    known.DiscardUnknownFields()
    if known.ByteSize() == root.ByteSize():
        return lambda message: b""
    return _unknown_fields


def _unknown_fields(message: Message) -> bytes:
    rest = type(message)()
    rest.CopyFrom(message)
    for field in message.DESCRIPTOR.fields:
        rest.ClearField(field.name)
    return rest.SerializeToString()


def _restore(message: Message, unknown_fields: bytes) -> None:
    if unknown_fields:
        message.MergeFromString(unknown_fields)


def _uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _values(record: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _add_ref(field: RepeatedCompositeFieldContainer[log_pb2.PageRef], ref: PageRef) -> None:
    _restore(field.add(bytes=ref.size_bytes, **_values(ref, _REF)), ref.unknown_fields)


def _ref(message: log_pb2.PageRef, unknown: _Unknown) -> PageRef:
    return PageRef(size_bytes=message.bytes, unknown_fields=unknown(message), **_values(message, _REF))


def _add_extents(field: RepeatedCompositeFieldContainer[log_pb2.Extent], extents: Sequence[Extent]) -> list[BookieId]:
    """Fill the repeated field. Return the table of bookies, in the order of their first use."""
    index_of: dict[BookieId, int] = {}
    for extent in extents:
        message = field.add(bytes=extent.size_bytes, open=extent.is_open, **_values(extent, _EXTENT))
        for number, fragment in enumerate(extent.fragments):
            indices = [index_of.setdefault(bookie, len(index_of)) for bookie in fragment.ensemble]
            added = message.fragments.add(first_entry_id=fragment.first_entry_id, bookies=indices)
            if extent.fragment_unknown_fields:
                _restore(added, extent.fragment_unknown_fields[number])
        _restore(message, extent.unknown_fields)
    return list(index_of)


def _extents(messages: Iterable[log_pb2.Extent], bookies: Sequence[BookieId], unknown: _Unknown) -> Iterable[Extent]:
    table = tuple(bookies)
    known: dict[tuple[tuple[int, tuple[int, ...]], ...], tuple[Fragment, ...]] = {}
    for message in messages:
        of_fragments = tuple(unknown(f) for f in message.fragments)
        layout = tuple((f.first_entry_id, tuple(f.bookies)) for f in message.fragments)
        if layout not in known:  # extents with the same fragments share one object
            known[layout] = tuple(Fragment(first, tuple(table[i] for i in indices)) for first, indices in layout)
        yield Extent(
            size_bytes=message.bytes,
            fragments=known[layout],
            is_open=message.open,
            unknown_fields=unknown(message),
            fragment_unknown_fields=of_fragments if any(of_fragments) else (),
            **_values(message, _EXTENT),
        )
