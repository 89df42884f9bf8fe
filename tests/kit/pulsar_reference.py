# SPDX-License-Identifier: Apache-2.0
"""Makes the messages of entries one by one with protobuf. This is slow and simple; the fast way must give equal
rows."""

from __future__ import annotations

import base64
import struct
from typing import Any

from bk_core.entries.batch import EntryBatch
from bk_core.pulsar.messages.compression import decompressed
from bk_core.pulsar.model.message_id import MessageId
from bk_core.pulsar.proto import message_pb2 as proto


def rows_of(batch: EntryBatch, *, partition: int = -1) -> list[dict[str, Any]]:
    """Return the rows of entries that are neither chunked nor encrypted."""
    found = list[dict[str, Any]]()
    for entry_id, data in zip(batch.entry_ids().tolist(), batch.to_list(), strict=True):
        head, body = split(data)
        if head.HasField("marker_type"):
            continue
        body = bytes(decompressed(head.compression, body, head.uncompressed_size))
        if not head.HasField("num_messages_in_batch"):
            found.append(_row(head, head, body, MessageId(batch.ledger_id, entry_id, partition)))
            continue
        at = 0
        for index in range(head.num_messages_in_batch):
            (size,) = struct.unpack_from(">I", body, at)
            single = proto.SingleMessageMetadata.FromString(body[at + 4 : at + 4 + size])
            at += 4 + size
            value = body[at : at + single.payload_size]
            at += single.payload_size
            if not single.compacted_out:
                where = MessageId(batch.ledger_id, entry_id, partition, index, head.num_messages_in_batch)
                found.append(_row(head, single, value, where))
    return found


def split(data: bytes) -> tuple[proto.MessageMetadata, bytes]:
    """Return the metadata and the payload of an entry."""
    at = 0
    if data[:2] == b"\x0e\x02":
        at = 6 + struct.unpack_from(">I", data, 2)[0]
    if data[at : at + 2] == b"\x0e\x01":
        at += 6
    (size,) = struct.unpack_from(">I", data, at)
    return proto.MessageMetadata.FromString(data[at + 4 : at + 4 + size]), data[at + 4 + size :]


def _row(head: Any, of: Any, value: bytes, where: MessageId) -> dict[str, Any]:
    key = of.partition_key if of.HasField("partition_key") and not of.null_partition_key else None
    if key is not None and of.partition_key_b64_encoded:
        key = base64.b64decode(key)
    sequence = head.sequence_id
    if of is not head and of.HasField("sequence_id"):
        sequence = of.sequence_id
    return {
        "value": None if of.null_value else value,
        "__key": key,
        "__messageId": where.serialize(),
        "__publishTime": head.publish_time,
        "__eventTime": of.event_time or None,
        "__messageProperties": [(p.key.decode(), p.value.decode()) for p in of.properties],
        "__producer": head.producer_name.decode(),
        "__sequenceId": sequence,
        "__orderingKey": of.ordering_key if of.HasField("ordering_key") else None,
        "__schemaVersion": head.schema_version if head.HasField("schema_version") else None,
    }
