# SPDX-License-Identifier: Apache-2.0
"""Pulsar's topics without ``await``: what ``BookKeeper.topic`` of :mod:`bk_core.blocking` returns.

Written by scripts/blocking.py from :mod:`bk_core.pulsar.topic`; do not edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from bk_core.blocking.loop_thread import BlockHandle, BlockingIterator
from bk_core.pulsar import topic
from bk_core.pulsar.model.plan import PartitionPlan
from bk_core.pulsar.model.schemas import TopicSchema
from bk_core.pulsar.topic import Position, Positions, TopicInfo

if TYPE_CHECKING:
    from pyarrow import RecordBatch, RecordBatchReader, Table

    from bk_core.pulsar.messages.decoder import OnCorrupt, OnEncrypted
    from bk_core.pulsar.reading import Isolation


class Topic(BlockHandle[topic.Topic]):
    """A topic, or one of its partitions. Making it reads nothing; a context manager that closes it.

    Raises InvalidArgumentError for a name that no topic can have, UnsupportedTopicError for a non-persistent one.
    """

    @property
    def name(self) -> str:
        """The full name, such as ``persistent://public/default/orders``."""
        return self._inner.name

    def info(self) -> TopicInfo:
        """Return the topic's partitions, ledgers, subscriptions, versions of its schema, and where it ends.
        Raises NoSuchTopicError, which names near topics, and MetadataCorruptError."""
        return self._thread.call(self._inner.info())

    def schemas(self) -> list[TopicSchema]:
        """The versions of the topic's schema, the newest last; none if it has no schema. Raises MetadataCorruptError
        for one that cannot be read, NoSuchLedgerError if its ledger is gone."""
        return self._thread.call(self._inner.schemas())

    def subscription(self, name: str) -> dict[int, Position]:
        """Where a subscription stands, by the number of the partition (−1 without partitions), as ``start`` of a read:
        everything before it is acknowledged. Messages that were acknowledged out of order come again. The subscription
        does not move. Raises InvalidArgumentError, which names those there are, if no partition has it."""
        return self._thread.call(self._inner.subscription(name))

    def to_arrow(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        columns: Sequence[str] | None = None,
        *,
        after: Positions | None = None,
        published_from: datetime | int | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
        corrupt: OnCorrupt = "fail",
        encrypted: OnEncrypted = "fail",
    ) -> Table:
        """The topic's messages as a ``pyarrow.Table``, partition after partition, in order within each.

        ``start`` is the first message and ``end`` the first one that is left out; ``after`` begins behind a message.
        None: all that is confirmed now. For a topic with partitions they are mappings, by the number of the partition.
        ``published_from``: only messages that were published then or later (a time, or ms since 1970).

        Columns are ``value``, ``__key``, ``__topic``, ``__messageId`` (as ``MessageId.serialize()`` gives it),
        ``__publishTime``, ``__eventTime`` and ``__messageProperties``; ``columns`` chooses, and may name
        ``__partition``, ``__producer``, ``__sequenceId``, ``__orderingKey`` and ``__schemaVersion`` too.

        ``compacted``: of the part that was compacted only the last message of each key. ``isolation``: with
        ``read_uncommitted`` also messages of transactions that are undecided or were aborted. ``corrupt``: ``skip``
        leaves entries out that are no messages, and logs them. ``encrypted``: ``raw`` gives messages whose key is not
        known as they are.

        Raises NoSuchTopicError; InvalidArgumentError for positions and columns that cannot be; NoSuchEntryError if the
        start was trimmed; LedgerOffloadedError if bookies do not have all of it; CorruptMessageError,
        MessageChecksumError, UnsupportedTopicError and MessageEncryptedError for an entry, by name; and what reading a
        ledger raises.
        """
        return self._thread.call(
            self._inner.to_arrow(
                start,
                end,
                columns,
                after=after,
                published_from=published_from,
                compacted=compacted,
                isolation=isolation,
                corrupt=corrupt,
                encrypted=encrypted,
            )
        )

    def read(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        columns: Sequence[str] | None = None,
        *,
        after: Positions | None = None,
        published_from: datetime | int | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
        corrupt: OnCorrupt = "fail",
        encrypted: OnEncrypted = "fail",
    ) -> BlockingIterator[RecordBatch]:
        """The rows of :meth:`to_arrow`, a few megabytes at a time."""
        return BlockingIterator(
            self._thread,
            self._inner.read(
                start,
                end,
                columns,
                after=after,
                published_from=published_from,
                compacted=compacted,
                isolation=isolation,
                corrupt=corrupt,
                encrypted=encrypted,
            ),
        )

    def record_batch_reader(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        columns: Sequence[str] | None = None,
        *,
        after: Positions | None = None,
        published_from: datetime | int | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
        corrupt: OnCorrupt = "fail",
        encrypted: OnEncrypted = "fail",
    ) -> RecordBatchReader:
        """The rows of :meth:`to_arrow` as a ``pyarrow.RecordBatchReader``, a few megabytes at a time however large the
        topic is. It has Arrow's PyCapsule interface, by which pandas, polars and duckdb take it.

        Each pull blocks its thread, so in an asyncio program pull on another thread (``asyncio.to_thread``). Closing
        it, leaving its ``with`` block or dropping it ends its reads. While rows are read, an error of :meth:`to_arrow`
        comes as ``pyarrow.ArrowInvalid``, whose text has the error's own, with its code.
        """
        return self._thread.call(
            self._inner.record_batch_reader(
                start,
                end,
                columns,
                after=after,
                published_from=published_from,
                compacted=compacted,
                isolation=isolation,
                corrupt=corrupt,
                encrypted=encrypted,
            )
        )

    def tail(
        self,
        start: Positions | None = None,
        columns: Sequence[str] | None = None,
        *,
        after: Positions | None = None,
        isolation: Isolation = "read_committed",
        corrupt: OnCorrupt = "fail",
        encrypted: OnEncrypted = "fail",
    ) -> BlockingIterator[RecordBatch]:
        """Every message from ``start`` on, or behind ``after``, as soon as it is confirmed, as batches of the rows of
        :meth:`to_arrow`, each of one partition. ``start="latest"``: only messages that come from now on. New partitions
        are read from their begin.

        Ends when the topic was terminated and everything was read; else it has no end. With an admin URL the last
        messages of an idle topic come within a second; without one they wait for a later message. Raises as
        :meth:`to_arrow`; NoSuchTopicError once the topic is deleted.
        """
        return BlockingIterator(
            self._thread,
            self._inner.tail(start, columns, after=after, isolation=isolation, corrupt=corrupt, encrypted=encrypted),
        )

    def plan(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        *,
        after: Positions | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
    ) -> list[PartitionPlan]:
        """Return a plan of a read for each partition, in order, for readers that have no metadata store.

        For ``read_committed`` the heads of all entries are read if the namespace has ever had transactions: the ranges
        then end before the first undecided one, and the plan names the aborted ones.
        """
        return self._thread.call(self._inner.plan(start, end, after=after, compacted=compacted, isolation=isolation))

    def close(self) -> None:
        """End the session with Pulsar's own metadata store, if it has one. The client of the ledgers stays open."""
        self._thread.call(self._inner.close())
