# SPDX-License-Identifier: Apache-2.0
"""Finds where a read of one topic or partition begins and ends, from options and records of the metadata store. Pure.

Theory of ``startingTimestamp`` and ``endingTimestamp``. They choose single messages by their publish time, because
producers set this time and the clocks of producers differ. To read less, a read also leaves out whole ledgers by the
times at which brokers closed them. At the start, it leaves out ledgers that were closed more than CLOCKS_MS before the
time. At the end, it leaves out ledgers that began more than LATE_MS after the time, because a producer or a replicator
may deliver a message late.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from bk_core.errors import InvalidArgumentError, NoSuchEntryError
from bk_core.pulsar.model.managed_ledger import Cursor, ManagedLedger
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.topic_name import TopicName
from bk_spark.options.topic_options import Place, TopicOptions

CLOCKS_MS = 3_600_000
"""The largest lead, in milliseconds, of a producer's clock over a broker's for which ``startingTimestamp`` is exact."""
LATE_MS = 24 * 3_600_000
"""The longest time, in milliseconds, from publishing to arrival for which ``endingTimestamp`` is exact."""


def message_at(place: Place) -> MessageId | None:
    """Return the message id of a place, or None for ``earliest`` and ``latest``."""
    return place if isinstance(place, MessageId) else None


def start_by_time(record: ManagedLedger, from_ms: int) -> MessageId | None:
    """Return the earliest position of messages that were published at ``from_ms`` or later. Return None for a topic
    without ledgers."""
    for ledger in record.ledgers:
        if not ledger.closed_ms or ledger.closed_ms + CLOCKS_MS >= from_ms:
            return MessageId(ledger.ledger_id, 0)
    return MessageId(record.ledgers[-1].ledger_id, max(0, record.ledgers[-1].entries)) if record.ledgers else None


def end_by_time(record: ManagedLedger, before_ms: int) -> MessageId | None:
    """Return the position at which a read of messages published before ``before_ms`` may end. Return None for the end
    of the topic."""
    for ledger, following in zip(record.ledgers, record.ledgers[1:], strict=False):
        if ledger.closed_ms and ledger.closed_ms > before_ms + LATE_MS:
            return MessageId(following.ledger_id, 0)
    return None


def start_of_subscription(
    topic: TopicName, record: ManagedLedger, cursors: Mapping[str, Cursor], name: str
) -> MessageId | None:
    """Return the first message that a subscription has not acknowledged. Return None for the begin of the topic; the
    subscription had acknowledged all messages that were trimmed. Raises InvalidArgumentError if there is no such
    subscription."""
    cursor = cursors.get(name)
    if cursor is None:
        near = get_close_matches(name, cursors, n=3, cutoff=0.0)
        raise InvalidArgumentError(
            f"{topic} has no such subscription",
            value=f"subscription={name}",
            remedy=f"near names: {', '.join(near)}" if near else "it has none: use startingOffsets",
        )
    at = cursor.mark_delete
    if not record.ledgers or at.ledger_id < record.ledgers[0].ledger_id:
        return None
    return MessageId(at.ledger_id, at.entry_id + 1)


def check_within(topic: TopicName, start: MessageId | None, end: MessageId | None, last: EntryPosition | None) -> None:
    """Check that the positions are in order, and not behind the end of a topic whose last entry is ``last``. Raises
    InvalidArgumentError."""
    if start is not None and end is not None and end < start:
        raise InvalidArgumentError(
            f"the range of {topic} ends before it starts", value=f"{start} to {end}", remedy="exchange the bounds"
        )
    if last is None:
        return
    behind = EntryPosition(last.ledger_id, last.entry_id + 1)
    for option, wanted in (("startingOffsets", start), ("endingOffsets", end)):
        if wanted is not None and wanted.entry > behind:
            raise InvalidArgumentError(
                f"{option} is beyond the end of {topic}",
                value=f"{wanted}, the topic ends before {behind}",
                remedy="read what is there",
            )


def trimmed(topic: TopicName, error: NoSuchEntryError, options: TopicOptions) -> NoSuchEntryError:
    """Return the error for a start that was trimmed. Its remedy names Spark's options."""
    where = "subscription" if options.subscription is not None else "startingOffsets"
    return NoSuchEntryError(
        f"the wanted messages of {topic} were trimmed",
        value=f"{where}: {error.value}",
        remedy="start later, or set failOnDataLoss=false to begin with what is left",
    )
