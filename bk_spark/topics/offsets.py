# SPDX-License-Identifier: Apache-2.0
"""Defines the offset of a stream of topics, as Spark keeps it in a checkpoint. Also counts how much of each topic a
micro-batch takes. Pure.

``{"cluster":"…","topics":{"persistent://public/default/orders-partition-0":"12:34"},"v":1}`` has, for each topic or
partition, the ledger and the entry to read next. ``12:34:2`` is a position within a batch of messages, at which a
stream may begin. ``-1:-1`` stands for the begin of a topic that had no ledger. ``from`` is the time of
``startingTimestamp``, so that a repeated micro-batch leaves out the same messages. With ``topicSchema``, ``schemas``
has, for each topic, the version whose columns the query has. A topic is in it from the first micro-batch that reads its
messages. Spark compares offsets as text, so equal positions have equal text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bk_core.errors import InvalidArgumentError, UnsupportedTopicError
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import TopicRange
from bk_core.pulsar.model.topic_name import TopicName
from bk_spark.errors import shown
from bk_spark.options.selection import TopicSelection
from bk_spark.plan.packing import Span
from bk_spark.stream.admission import Backlog

VERSION = 1
BEGIN = MessageId(-1, -1)
"""The position before the first entry of a topic that had no ledger."""
ANOTHER_CHECKPOINT = "use another checkpointLocation for this query"


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The next position in each topic or partition. Messages published before ``published_from_ms`` are left out.
    ``schemas`` has, for each topic, the version of its schema whose columns the query has."""

    cluster: str
    topics: Mapping[TopicName, MessageId]
    published_from_ms: int | None = None
    schemas: Mapping[TopicName, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartSeen:
    """The state of a topic or partition at one moment. ``ranges`` can be read from ``begin`` on, and ``end`` is the
    position behind them. ``is_fresh`` means that ``begin`` is in no checkpoint yet; the next micro-batch then only puts
    ``begin`` into the checkpoint."""

    begin: MessageId
    ranges: tuple[TopicRange, ...]
    end: MessageId
    is_fresh: bool = False

    @property
    def backlog(self) -> Backlog:
        """The entries that can be read, counted from 0."""
        spans, at = list[Span](), 0
        for each in self.ranges:
            spans.append(Span(at, at + len(each), each.bytes))
            at += len(each)
        return Backlog(0, at, spans)

    def position_after(self, count: int) -> MessageId:
        """Return the position behind the first ``count`` entries of the backlog."""
        left = count
        if not left:
            return self.begin
        for each in self.ranges:
            if left < len(each):
                return MessageId(each.ledger_id, each.first + left)
            left -= len(each)
            if not left and each is not self.ranges[-1]:
                return MessageId(each.ledger_id, each.last + 1)
        return self.end

    def entries_before(self, stop: MessageId) -> int:
        """Return the number of entries of the backlog before a position."""
        return sum(
            len(each) if each.ledger_id < stop.ledger_id else max(0, min(each.last + 1, stop.entry_id) - each.first)
            for each in self.ranges
            if each.ledger_id <= stop.ledger_id
        )


def to_json(offset: TopicOffset) -> dict[str, Any]:
    """Return an offset in the form that Spark writes into its checkpoint. Its keys are in alphabetical order."""
    begun: dict[str, Any] = {} if offset.published_from_ms is None else {"from": offset.published_from_ms}
    names = {str(topic): _text(at) for topic, at in offset.topics.items()}
    if offset.schemas:
        begun["schemas"] = dict(sorted((str(topic), version) for topic, version in offset.schemas.items()))
    return {"cluster": offset.cluster, **begun, "topics": dict(sorted(names.items())), "v": VERSION}


def from_json(data: Mapping[str, Any]) -> TopicOffset:
    """Read an offset from a checkpoint. Raises InvalidArgumentError if another source or a newer version wrote it."""
    try:
        if data["v"] != VERSION or set(data) - {"cluster", "from", "schemas", "topics", "v"}:
            raise ValueError(f"version {data['v']} with {', '.join(sorted(data))}")
        topics = {TopicName.parse(name): _position(text) for name, text in data["topics"].items()}
        cluster, begun = data["cluster"], data.get("from")
        if not isinstance(cluster, str) or not (begun is None or isinstance(begun, int)):
            raise ValueError("cluster and from are a text and a number")
        schemas = {TopicName.parse(name): _version(number) for name, number in data.get("schemas", {}).items()}
        return TopicOffset(cluster, topics, begun, schemas)
    except (InvalidArgumentError, UnsupportedTopicError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(
            "the checkpoint holds no offset of topics that this version can read",
            value=f"{json.dumps(data)[:200]}: {error}",
            remedy=f"use the version that wrote it, or {ANOTHER_CHECKPOINT}",
        ) from error


def _text(at: MessageId) -> str:
    return f"{at.entry}" if at.batch_index < 0 else f"{at.entry}:{at.batch_index}"


def _position(text: str) -> MessageId:
    numbers = [int(part) for part in text.split(":")]
    found = MessageId(numbers[0], numbers[1], -1, numbers[2] if numbers[2:] else -1)
    if _text(found) != text or (found != BEGIN and min(numbers) < 0):
        raise ValueError(f"{text!r} is no position")
    return found


def _version(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} is no version of a schema")
    return number


def check_topics(offset: TopicOffset, selection: TopicSelection) -> None:
    """Check that all topics of an offset are selected, and that each topic that the selection names has a position.
    Raises InvalidArgumentError."""
    strange = [str(topic) for topic in offset.topics if not selection.takes(topic)]
    held = {str(name) for topic in offset.topics for name in (topic, topic.whole)}
    problems = {"only in the checkpoint": strange, "not in the checkpoint": set(selection.names) - held}
    listed = [f"{what}: {shown(sorted(which))}" for what, which in problems.items() if which]
    if listed:
        raise InvalidArgumentError(
            "the checkpoint belongs to something else",
            value=f"the query reads {selection}; {'; '.join(listed)}",
            remedy=f"{ANOTHER_CHECKPOINT}, or select by topicsPattern, which takes up new topics",
        )


def end_of(ranges: Sequence[TopicRange], begin: MessageId) -> MessageId:
    """Return the position behind ``ranges``, or ``begin`` if there are no ranges."""
    return MessageId(ranges[-1].ledger_id, ranges[-1].last + 1) if ranges else begin


def entry_before(at: MessageId) -> EntryPosition | None:
    """Return the entry before a position in the same ledger, or None if the position is the begin of the ledger."""
    return EntryPosition(at.ledger_id, at.entry_id - 1) if at.entry_id > 0 else None
