# SPDX-License-Identifier: Apache-2.0
"""Decodes a topic's records in the metadata store, which have its ledgers, its cursors, and its number of partitions.

Pulsar may compress these records. A compressed record begins with a magic number and names its compression. The caller
passes the function ``decompressed``, because decompression needs pyarrow.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from bk_core.errors import MetadataCorruptError
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.model.offload import OffloadedCopy, offloaded_copy
from bk_core.pulsar.proto import managed_ledger_pb2 as proto

Decompressed: TypeAlias = Callable[[int, bytes, int], bytes | memoryview]
"""A function that decompresses. It takes the type of the compression, the bytes and the decompressed size, and returns
the decompressed bytes or raises ValueError."""

COMPRESSED_MAGIC = b"\x47\x78"
COMPACTED_LEDGER = "CompactedTopicLedger"
COMPACTION_CURSOR = "__compaction"
_HEAD = struct.Struct(">2sI")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class TopicLedger:
    """A ledger of a topic. While it is open, ``entries`` and ``bytes`` are −1 and ``closed_ms`` is 0. ``copy`` is its
    complete copy in other storage, or None. If ``is_in_bookies`` is False, bookies may have deleted the ledger."""

    ledger_id: int
    entries: int
    bytes: int
    closed_ms: int
    copy: OffloadedCopy | None = None
    is_in_bookies: bool = True

    @property
    def is_open(self) -> bool:
        return self.entries < 0

    @property
    def offloaded_by(self) -> str:
        """The name of the driver that made the copy, or an empty text without a copy."""
        return "" if self.copy is None else self.copy.driver


@dataclass(frozen=True, slots=True)
class ManagedLedger:
    """The ledgers of a topic, in order. ``terminated_at`` is the topic's last entry if the topic was terminated."""

    ledgers: tuple[TopicLedger, ...]
    terminated_at: EntryPosition | None = None
    properties: tuple[tuple[str, str], ...] = ()

    @classmethod
    def decode(cls, path: str, data: bytes, decompressed: Decompressed) -> ManagedLedger:
        """Decode the record of a topic's ledgers. Raises MetadataCorruptError, which names ``path``."""
        record = _parsed(path, data, proto.ManagedLedgerInfo, decompressed)
        # A broker that has begun to offload writes the ledgers in any order.
        ledgers = tuple(sorted(map(_ledger, record.ledgers), key=lambda each: each.ledger_id))
        ids = [each.ledger_id for each in ledgers]
        if any(each < 0 for each in ids) or len(set(ids)) != len(ids):
            raise _corrupt(path, f"the ledgers {ids[:20]} are not all different")
        ended = None
        if record.HasField("terminated_position"):
            ended = EntryPosition(record.terminated_position.ledger_id, record.terminated_position.entry_id)
        return cls(ledgers, ended, tuple((_text(each.key), _text(each.value)) for each in record.properties))


def _ledger(info: proto.LedgerInfo) -> TopicLedger:
    # A closed ledger has a timestamp. The open one has neither entries nor size nor timestamp.
    is_closed = bool(info.timestamp or info.entries or info.size)
    copy = offloaded_copy(info)
    return TopicLedger(
        info.ledger_id,
        info.entries if is_closed else -1,
        info.size if is_closed else -1,
        info.timestamp,
        copy,
        not (copy is not None and info.offload_context.bookkeeper_deleted),
    )


@dataclass(frozen=True, slots=True)
class Cursor:
    """The state of a subscription. ``mark_delete`` is the entry up to which all messages are acknowledged. If
    ``ledger_id`` is 0 or more, a newer state may be in the last entry of that ledger."""

    ledger_id: int
    mark_delete: EntryPosition
    properties: tuple[tuple[str, int], ...] = ()

    @classmethod
    def decode(cls, path: str, data: bytes, decompressed: Decompressed) -> Cursor:
        """Decode the cursor's node. Raises MetadataCorruptError, which names ``path``."""
        record = _parsed(path, data, proto.CursorInfo, decompressed)
        at = EntryPosition(record.mark_delete_ledger_id, record.mark_delete_entry_id)
        return cls(record.cursors_ledger_id, at, _longs(record.properties))

    @classmethod
    def of_entry(cls, where: str, data: bytes, ledger_id: int) -> Cursor:
        """Decode an entry of the cursor's ledger. Raises MetadataCorruptError, which names ``where``."""
        try:
            record = proto.CursorPosition.FromString(data)
        except DecodeError as error:
            raise _corrupt(where, str(error)) from error
        return cls(ledger_id, EntryPosition(record.ledger_id, record.entry_id), _longs(record.properties))

    @property
    def compacted_ledger(self) -> int:
        """The ledger of the compacted topic, or −1 if there is none. Only the cursor of the compaction names it."""
        return dict(self.properties).get(COMPACTED_LEDGER, -1)


def partition_count(path: str, data: bytes) -> int:
    """Return the number of partitions in the record of a partitioned topic. Raises MetadataCorruptError."""
    try:
        count = json.loads(data)["partitions"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(path, f"no JSON with partitions: {error}") from error
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= 1_000_000:
        raise _corrupt(path, f"partitions is {count!r}"[:200])
    return count


def _parsed(path: str, data: bytes, kind: type[M], decompressed: Decompressed) -> M:
    try:
        return kind.FromString(bytes(_plain(data, decompressed)))
    except (DecodeError, ValueError, struct.error) as error:
        raise _corrupt(path, str(error)) from error


def _plain(data: bytes, decompressed: Decompressed) -> bytes | memoryview:
    """Return the record, which is decompressed if it is compressed. A plain record never begins with the magic number,
    because its first byte 0x47 would be field 8 with an invalid wire type."""
    if data[:2] != COMPRESSED_MAGIC:
        return data
    _, size = _HEAD.unpack_from(data)
    begin = _HEAD.size + size
    if begin > len(data):
        raise ValueError("the head of the compression is cut off")
    head = proto.CompressedInfo.FromString(data[_HEAD.size : begin])
    return decompressed(head.compression, data[begin:], head.uncompressed_size)


def _longs(properties: Iterable[proto.LongProperty]) -> tuple[tuple[str, int], ...]:
    return tuple((_text(each.name), each.value) for each in properties)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _corrupt(path: str, why: str) -> MetadataCorruptError:
    return MetadataCorruptError(
        "a metadata record of Pulsar cannot be read",
        value=f"{path}: {why}",
        remedy="compare it with what Pulsar's tools say",
    )
