# SPDX-License-Identifier: Apache-2.0
"""Defines the positions of entries in a topic, and of messages in an entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from bk_core.errors import InvalidArgumentError
from bk_core.pulsar.proto.message_pb2 import MessageIdData

_I64_MAX = (1 << 63) - 1


class EntryPosition(NamedTuple):
    """The position of an entry in a topic. Later ledgers of a topic have higher ids, so positions sort in the order of
    the topic."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @classmethod
    def parse(cls, text: str) -> EntryPosition:
        """Parse ``ledger:entry``, as Pulsar's tools write it. Raises InvalidArgumentError."""
        ledger_id, _, entry_id = text.partition(":")
        try:
            return cls(int(ledger_id), int(entry_id))
        except ValueError:
            raise InvalidArgumentError(
                "this is not a position", value=repr(text), remedy="write ledger:entry, 37:0 for instance"
            ) from None


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """The position of one message. ``partition`` is −1 for a topic without partitions. ``batch_index`` is −1 for a
    message that is not in a batch. For a chunked message, ``first_chunk`` is the entry of its first chunk, and the
    other fields are those of its last chunk."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = 0
    first_chunk: EntryPosition | None = None

    @property
    def entry(self) -> EntryPosition:
        return EntryPosition(self.ledger_id, self.entry_id)

    def serialize(self) -> bytes:
        """Return the bytes that ``MessageId.serialize`` of Pulsar's clients returns."""
        data = MessageIdData(ledger_id=self.ledger_id, entry_id=self.entry_id)
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
        if self.batch_size > 0:
            data.batch_size = self.batch_size
        if self.first_chunk is not None:
            data.first_chunk_message_id.ledger_id = self.first_chunk.ledger_id
            data.first_chunk_message_id.entry_id = self.first_chunk.entry_id
        return data.SerializeToString(deterministic=True)

    @classmethod
    def deserialize(cls, serialized: bytes) -> MessageId:
        """Parse the bytes that :meth:`serialize` returns. Raises InvalidArgumentError for bytes that are not a message
        id."""
        try:
            data = MessageIdData.FromString(serialized)
        except DecodeError as error:
            raise _no_message_id(serialized) from error
        if max(data.ledger_id, data.entry_id) > _I64_MAX or not serialized:
            raise _no_message_id(serialized)
        return cls.of_data(data)

    @classmethod
    def of_data(cls, data: MessageIdData) -> MessageId:
        first = data.first_chunk_message_id
        return cls(
            data.ledger_id,
            data.entry_id,
            data.partition if data.HasField("partition") else -1,
            data.batch_index if data.HasField("batch_index") else -1,
            data.batch_size,
            EntryPosition(first.ledger_id, first.entry_id) if data.HasField("first_chunk_message_id") else None,
        )

    def __str__(self) -> str:
        """Return the text that Pulsar's tools print: ledger:entry:partition, and :batch_index in a batch."""
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"


def _no_message_id(serialized: bytes) -> InvalidArgumentError:
    return InvalidArgumentError(
        "these bytes are not a message id",
        value=serialized[:40].hex(),
        remedy="give what MessageId.serialize() of a Pulsar client returned, or ledger:entry",
    )
