# SPDX-License-Identifier: Apache-2.0
"""Converts the begin and the end of a read of a topic from the forms in which callers give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from bk_core.errors import InvalidArgumentError
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds
from bk_core.pulsar.model.topic_name import TopicName

Position: TypeAlias = MessageId | EntryPosition | bytes | str
"""A message id, the bytes that ``MessageId.serialize()`` of a Pulsar client gave, an entry, or ``"ledger:entry"``."""
Positions: TypeAlias = Position | Mapping[int, Position]
"""A position or, for a topic with partitions, positions by the number of the partition."""


@dataclass(frozen=True, slots=True)
class GivenBounds:
    """The bounds of a read as the caller gave them, for all partitions."""

    start: Positions | None
    end: Positions | None
    after: Positions | None
    published_from: datetime | int | None
    compacted: bool

    def __post_init__(self) -> None:
        if self.start is not None and self.after is not None:
            raise InvalidArgumentError(
                "a read cannot have both start and after", value="both are given", remedy="give one of them"
            )

    def of(self, topic: TopicName, read: TopicName) -> Bounds:
        """Return the bounds for one partition of the topic ``read``. Raises InvalidArgumentError."""
        start, after, end = (
            _position(given, topic, name, topic != read)
            for name, given in (("start", self.start), ("after", self.after), ("end", self.end))
        )
        published = self.published_from
        if isinstance(published, datetime):
            published = int(published.timestamp() * 1000)
        return Bounds(after if start is None else start, after is not None, end, published)


def _position(given: Positions | None, topic: TopicName, name: str, is_partition: bool) -> MessageId | None:
    if isinstance(given, Mapping):
        given, is_partition = given.get(topic.partition), False
    if given is None:
        return None
    if isinstance(given, bytes | bytearray):
        given = MessageId.deserialize(bytes(given))
    elif isinstance(given, str):
        given = EntryPosition.parse(given)
    if isinstance(given, EntryPosition):
        given = MessageId(given.ledger_id, given.entry_id)
    if not isinstance(given, MessageId):
        raise InvalidArgumentError(
            f"{name} is not a position of a message",
            value=repr(given)[:200],
            remedy="give a MessageId, its bytes, or ledger:entry; for partitions a mapping of them",
        )
    if is_partition or given.partition not in (-1, topic.partition):
        raise InvalidArgumentError(
            f"{name} is a position in one partition, but the read has several",
            value=f"{given} for {topic}",
            remedy="give a mapping of positions by partition, or name one partition as the topic",
        )
    return given
