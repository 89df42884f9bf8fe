# SPDX-License-Identifier: Apache-2.0
"""Makes rows of the entries of one topic or partition: the one thing that a task needs beside the entries themselves.

A reader of a range feeds its entries in order. If messages are left that have begun and not ended
(:attr:`RowMaker.pending_chunks`), it reads on behind its range and feeds those entries to :meth:`RowMaker.rest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from bk_core.entries.batch import EntryBatch
from bk_core.errors import TopicError, UnsupportedTopicError
from bk_core.pulsar.messages.decoder import DecodeOptions, MessageDecoder, Messages
from bk_core.pulsar.messages.heads import PUBLISH_TIME, Heads, read_heads
from bk_core.pulsar.messages.rows import record_batch
from bk_core.pulsar.messages.scan import Mask
from bk_core.pulsar.model.message_id import EntryPosition, MessageId
from bk_core.pulsar.model.plan import Bounds
from bk_core.pulsar.model.topic_name import TopicName
from bk_core.pulsar.model.transactions import TxnId


class RowMaker:
    """Makes the rows of one topic or partition, with the columns of ``schema`` (:func:`rows.schema_of`)."""

    def __init__(self, topic: TopicName, schema: pa.Schema, options: DecodeOptions | None = None) -> None:
        self.topic, self._schema = topic, schema
        self._options = options or DecodeOptions()
        self._decoder = MessageDecoder(str(topic), self._options)

    @property
    def pending_chunks(self) -> list[EntryPosition]:
        """The first chunks of the messages that have begun and not ended."""
        return self._decoder.pending_chunks

    def heads(self, batch: EntryBatch, *, compacted: bool = False) -> Heads:
        """The heads of the next entries; ``compacted``: of the ledger of a compacted topic."""
        return read_heads(batch, compacted=compacted, check=self._options.check_checksums)

    def rows(self, found: Heads, bounds: Bounds, keep: Mask | None = None) -> list[pa.RecordBatch]:
        """The rows of these entries that are within the bounds; ``keep`` marks entries, None: all (:func:`committed`).
        Raises what :meth:`MessageDecoder.messages` raises."""
        return list(self._made(self._decoder.messages(found, keep), bounds))

    def rest(self, found: Heads, bounds: Bounds) -> list[pa.RecordBatch]:
        """The rows of messages that began before these entries and end in them. All else belongs to another range."""
        return self.rows(found, bounds, self._decoder.continued(found))

    def take_reports(self) -> list[TopicError]:
        """What was left out since the last call."""
        reports = list(self._decoder.reports)
        self._decoder.reports.clear()
        return reports

    def _made(self, messages: Iterator[Messages], bounds: Bounds) -> Iterator[pa.RecordBatch]:
        for part in messages:
            chosen = within(part, bounds)
            if len(chosen):
                yield record_batch(chosen, self._schema, str(self.topic), self.topic.partition)


def committed(found: Heads, aborted: Iterable[TxnId], *, decided: bool) -> Mask | None:
    """The rows that are not of an aborted transaction; None: all. ``decided``: every other transaction of the range is
    committed. Raises UnsupportedTopicError if that is not known, and there is a message of a transaction."""
    in_transaction = found.in_transaction & ~found.is_marker
    if not in_transaction.any():
        return None
    if not decided:
        first = found.position(int(np.flatnonzero(in_transaction)[0]))
        raise UnsupportedTopicError(
            f"the read was planned without the outcomes of transactions, and entry {first} belongs to one",
            value=str(found.txn(int(np.flatnonzero(in_transaction)[0]))),
            remedy="plan it with isolation=read_committed, or read uncommitted messages too",
        )
    return without(found, aborted)


def without(heads: Heads, aborted: Iterable[TxnId]) -> Mask:
    """The rows that do not belong to one of these transactions."""
    keep = np.ones(len(heads), dtype=np.bool_)
    left_out = frozenset(aborted)
    for row in np.flatnonzero(heads.in_transaction).tolist():
        keep[row] = heads.txn(row) not in left_out
    return keep


def within(found: Messages, bounds: Bounds) -> Messages:
    """The messages that are within the bounds."""
    columns, heads = found.columns, found.heads
    keep = np.ones(len(columns), dtype=np.bool_)
    ledger, entry, index = heads.ledger_ids[columns.entry], heads.entry_ids[columns.entry], columns.batch_index

    def place(at: MessageId) -> tuple[Mask, Mask]:
        """Which messages come before a message id, and which are meant by it."""
        before = (ledger < at.ledger_id) | ((ledger == at.ledger_id) & (entry < at.entry_id))
        same = (ledger == at.ledger_id) & (entry == at.entry_id)
        if at.batch_index >= 0:
            before, same = (
                before | (same & (index >= 0) & (index < at.batch_index)),
                same & ((index < 0) | (index == at.batch_index)),
            )
        return before, same

    if bounds.start is not None:
        before, same = place(bounds.start)
        keep &= ~before & ~(same if bounds.is_after else np.zeros_like(same))
    if bounds.end is not None:
        keep &= place(bounds.end)[0]
    if bounds.published_from_ms is not None:
        keep &= heads.metadata.number(PUBLISH_TIME)[columns.entry] >= bounds.published_from_ms
    if keep.all():
        return found
    return Messages(heads, found.data, columns.take(np.flatnonzero(keep)), found.first_chunks)
