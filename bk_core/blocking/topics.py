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
from bk_core.pulsar.given.bounds import Position, Positions
from bk_core.pulsar.model.plan import PartitionPlan
from bk_core.pulsar.model.schemas import SchemaChoice, TopicSchema
from bk_core.pulsar.topic import TopicInfo

if TYPE_CHECKING:
    from pyarrow import RecordBatch, RecordBatchReader, Table

    from bk_core.pulsar.messages.decoder import OnCorrupt, OnEncrypted
    from bk_core.pulsar.reading import Isolation


class Topic(BlockHandle[topic.Topic]):
    """A topic, or one of its partitions. The constructor reads nothing. At the end of an ``async with`` block the topic
    is closed.

    Raises InvalidArgumentError for a name that no topic can have, UnsupportedTopicError for a non-persistent one.
    """

    @property
    def name(self) -> str:
        """The full name, such as ``persistent://public/default/orders``."""
        return self._inner.name

    def info(self) -> TopicInfo:
        """Return the topic's partitions, ledgers, subscriptions, versions of its schema, and where it ends. Raises
        NoSuchTopicError, which names topics with similar names, and MetadataCorruptError."""
        return self._thread.call(self._inner.info())

    def schemas(self) -> list[TopicSchema]:
        """Return the versions of the topic's schema, the newest last. The list is empty if it has no schema. Raises
        MetadataCorruptError if a version cannot be read, and NoSuchLedgerError if its ledger was deleted."""
        return self._thread.call(self._inner.schemas())

    def subscription(self, name: str) -> dict[int, Position]:
        """Return the position of a subscription in each partition, by the number of the partition, or by −1 for a topic
        without partitions. A read can take it as ``start``. All messages before the position are acknowledged, and some
        messages after it may be. The call does not move the subscription. Raises InvalidArgumentError, which names the
        existing subscriptions, if no partition has this subscription."""
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
        topic_schema: SchemaChoice = "bytes",
    ) -> Table:
        """Return the topic's messages as a ``pyarrow.Table``, one partition after another, in order within each.

        ``start`` is the first message of the read, and ``end`` is the first message after it. Instead of ``start``,
        ``after`` is the last message before the read. Without them, the read has all messages that are confirmed now.
        For a topic with partitions each is a mapping of positions by the number of the partition. With
        ``published_from`` (a time, or milliseconds since 1970), the read has only messages published then or later.

        Columns are ``value``, ``__key``, ``__topic``, ``__messageId`` (as ``MessageId.serialize()`` gives it),
        ``__publishTime``, ``__eventTime`` and ``__messageProperties``. ``columns`` names other columns, which can
        also be ``__partition``, ``__producer``, ``__sequenceId``, ``__orderingKey`` and ``__schemaVersion``.

        With ``topic_schema="latest"``, values become columns of the newest version of the topic's schema, and with a
        number, columns of that version. The fields of a record are columns of their own, a KEY_VALUE schema gives
        ``key`` and ``value``, and any other schema gives ``value`` (docs/pulsar.md lists the types). Each value is
        decoded with the version that it was written with. A value that cannot be decoded is a corrupt entry.

        With ``compacted``, the part of the topic that was compacted gives only the last message of each key.
        ``isolation="read_uncommitted"`` adds the messages of transactions that are undecided or were aborted.
        ``corrupt="skip"`` leaves out entries that are not messages, and logs them. ``encrypted="raw"`` returns the
        encrypted bytes of messages for which no private key is given.

        Raises NoSuchTopicError; InvalidArgumentError for an impossible position or column; NoSuchEntryError if the
        start was trimmed; LedgerOffloadedError if a ledger is only in storage that this version or ``access`` cannot
        read; OffloadUnavailableError, OffloadMissingError and CorruptOffloadError, which name the object;
        CorruptMessageError, MessageChecksumError, MessageSchemaError, UnsupportedTopicError and MessageEncryptedError,
        which name the entry; NoSchemaError for a topic without a schema; and the errors of :meth:`LedgerReader.read`.
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
                topic_schema=topic_schema,
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
        topic_schema: SchemaChoice = "bytes",
    ) -> BlockingIterator[RecordBatch]:
        """Yield the rows of :meth:`to_arrow` in batches of a few megabytes. Raises the same errors."""
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
                topic_schema=topic_schema,
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
        topic_schema: SchemaChoice = "bytes",
    ) -> RecordBatchReader:
        """Return the rows of :meth:`to_arrow` as a ``pyarrow.RecordBatchReader``, which has a few megabytes in memory
        at a time. pandas, polars and duckdb read from it through Arrow's PyCapsule interface.

        Each pull blocks its thread, so an asyncio program must pull on another thread (``asyncio.to_thread``). The
        reads end when the reader is closed or dropped, or its ``with`` block ends. An error of :meth:`to_arrow` that
        occurs during a pull becomes a ``pyarrow.ArrowInvalid``, whose text contains the text and the code of the error.
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
                topic_schema=topic_schema,
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
        topic_schema: SchemaChoice = "bytes",
    ) -> BlockingIterator[RecordBatch]:
        """Yield the messages from ``start`` on, or after ``after``, as soon as they are confirmed, as batches of the
        rows of :meth:`to_arrow`. Each batch has messages of one partition. ``start="latest"`` leaves out all messages
        that are confirmed now. A partition that is added later is read from its beginning. With ``topic_schema``, the
        columns stay those of the version at the beginning, also for values of later versions.

        The iterator ends once the topic is terminated and all its messages were yielded. With an admin URL, it yields
        the last messages of an idle topic within a second, and with ``quorum_settle_ms`` a little after that time;
        with neither, only once later messages follow them. Raises the errors of :meth:`to_arrow`, and NoSuchTopicError
        once the topic is deleted.
        """
        return BlockingIterator(
            self._thread,
            self._inner.tail(
                start,
                columns,
                after=after,
                isolation=isolation,
                corrupt=corrupt,
                encrypted=encrypted,
                topic_schema=topic_schema,
            ),
        )

    def plan(
        self,
        start: Positions | None = None,
        end: Positions | None = None,
        *,
        after: Positions | None = None,
        compacted: bool = False,
        isolation: Isolation = "read_committed",
        topic_schema: SchemaChoice = "bytes",
    ) -> list[PartitionPlan]:
        """Return one plan for each partition, in order. With a plan, a reader needs no metadata store. If
        ``topic_schema`` is not ``bytes``, the plans have the versions of the schema.

        If the namespace has ever had transactions, ``isolation="read_committed"`` reads the heads of all entries. The
        ranges then end before the first message of an undecided transaction, and the plan names the aborted
        transactions. Raises the errors of :meth:`to_arrow`.
        """
        return self._thread.call(
            self._inner.plan(
                start, end, after=after, compacted=compacted, isolation=isolation, topic_schema=topic_schema
            )
        )

    def close(self) -> None:
        """End the session with Pulsar's own metadata store, if it has one. The client of the ledgers stays open."""
        self._thread.call(self._inner.close())
