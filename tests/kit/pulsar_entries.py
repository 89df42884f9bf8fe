# SPDX-License-Identifier: Apache-2.0
"""Makes entries as Pulsar's brokers and producers write them, with protobuf's own encoder."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import crc32c
from bk_core.pulsar.model.message_id import EntryPosition
from bk_core.pulsar.proto import message_pb2 as proto

TOPIC = "persistent://public/default/kit"
CODECS = {1: "lz4_raw", 3: "zstd", 4: "snappy"}


def compressed(kind: int, data: bytes) -> bytes:
    if kind == 0:
        return data
    return zlib.compress(data) if kind == 2 else pa.Codec(CODECS[kind]).compress(data, asbytes=True)


def entry(
    payload: bytes = b"",
    *,
    compression: int = 0,
    checksum: bool = True,
    broker: Mapping[str, int] | None = None,
    properties: Mapping[str, str] | None = None,
    **metadata: Any,
) -> bytes:
    """Return an entry. ``payload`` is compressed here. ``metadata`` are fields of MessageMetadata."""
    fields = {"producer_name": b"p", "sequence_id": 1, "publish_time": 1_700_000_000_000, **metadata}
    head = proto.MessageMetadata(**fields)
    for key, value in (properties or {}).items():
        head.properties.add(key=key.encode(), value=value.encode())
    if compression:
        head.compression = compression
        head.uncompressed_size = metadata.get("uncompressed_size", len(payload))
    return framed(head, compressed(compression, payload), checksum=checksum, broker=broker)


def framed(
    head: proto.MessageMetadata, body: bytes, *, checksum: bool = True, broker: Mapping[str, int] | None = None
) -> bytes:
    metadata = head.SerializeToString()
    rest = struct.pack(">I", len(metadata)) + metadata + body
    if checksum:
        rest = struct.pack(">HI", 0x0E01, crc32c(rest)) + rest
    if broker is not None:
        said = proto.BrokerEntryMetadata(**broker).SerializeToString()
        rest = struct.pack(">HI", 0x0E02, len(said)) + said + rest
    return rest


def single(payload: bytes, properties: Mapping[str, str] | None = None, **metadata: Any) -> bytes:
    """Return a message of a batch."""
    head = proto.SingleMessageMetadata(payload_size=len(payload), **metadata)
    for key, value in (properties or {}).items():
        head.properties.add(key=key.encode(), value=value.encode())
    # A size of 0 is written too, because the field is required in Pulsar's own definition.
    data = head.SerializeToString() + (b"" if payload else b"\x18\x00")
    return struct.pack(">I", len(data)) + data + payload


def batch_entry(messages: Sequence[bytes], **fields: Any) -> bytes:
    """Return an entry that is a batch of messages, each as :func:`single` returns it."""
    return entry(b"".join(messages), num_messages_in_batch=len(messages), **fields)


def compacted(original: EntryPosition, of: bytes) -> bytes:
    """Return an entry for the ledger of a compacted topic."""
    data = proto.MessageIdData(ledger_id=original.ledger_id, entry_id=original.entry_id, partition=-1)
    said = data.SerializeToString()
    return struct.pack(">I", len(said)) + said + struct.pack(">I", len(of)) + of


def ledger(entries: Sequence[bytes], *, ledger_id: int = 7, first: int = 0) -> EntryBatch:
    made = EntryBatch.from_list(list(entries), first_entry_id=first)
    return EntryBatch(lengths=made.lengths, payload=made.payload, ledger_id=ledger_id, first_entry_id=first)


def with_heads(batch: EntryBatch) -> EntryBatch:
    """Return the batch with bytes before each entry, as a read that keeps heads returns it."""
    heads = np.arange(len(batch), dtype=np.uint32) % 5 * 13
    pieces = [bytes([0xE0]) * head + entry for head, entry in zip(heads.tolist(), batch.to_list(), strict=True)]
    return replace(
        batch, lengths=batch.lengths + heads, payload=memoryview(b"".join(pieces)), heads=heads, _offsets=None
    )


def chunk(number: int, body: bytes, *, count: int = 3, total: int = 9, uuid: bytes = b"u", **fields: Any) -> bytes:
    """Return chunk ``number`` of a message of ``total`` bytes in ``count`` chunks."""
    head = proto.MessageMetadata(
        producer_name=b"p",
        publish_time=number + 1,
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=count,
        total_chunk_msg_size=total,
        **fields,
    )
    return framed(head, body)
