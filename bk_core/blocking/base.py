# SPDX-License-Identifier: Apache-2.0
"""Hand-written bases of the blocking client's classes: the methods that do more than wait for the asyncio method of the
same name. ``scripts/blocking.py`` writes all other methods."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from bk_core import client
from bk_core.blocking.loop_thread import AheadIterator, BlockHandle, Connection
from bk_core.client.reading.read_ahead import WantedRange
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.entries.parts import ColumnBatch
from bk_core.errors import WindowFullError
from bk_core.model import EntryId

if TYPE_CHECKING:
    from bk_core.blocking.logs import NamedLog
    from bk_core.blocking.topics import Topic
    from bk_core.logs.machines.publication import PublishOptions
    from bk_core.logs.model.head import NewExtent, Published, PublishId
    from bk_core.pulsar.cluster import PulsarAccess
    from bk_core.pulsar.model.topic_name import TopicName

T = TypeVar("T")
AHEAD_BYTES_MAX = 8 << 20
"""Limits the bytes of batches that wait for the thread that reads several ranges."""


class LedgerWriterBase(BlockHandle[client.LedgerWriter]):
    """Appends without a task on the loop, as long as the window has room."""

    def append(self, payload: Bytes, entry_id: EntryId | None = None) -> EntryId:
        """Append one entry; returns its id once an ack quorum has it on disk and every entry before it is confirmed.

        ``entry_id`` as in append_nowait. Raises what that does, except WindowFullError: it waits for room, first come
        first served. After an error of unknown outcome, such as LedgerFencedError, the entry may be part of the ledger.
        """
        try:
            return self._inner.append_future(payload, entry_id).result()
        except WindowFullError:
            return self._thread.call(self._inner.append(payload, entry_id))


class BookKeeperBase(Connection[client.BookKeeper]):
    """Methods for logs and topics. With asyncio they are functions and classes of their own, because logs and topics
    are layers above the client (docs/decisions/0002)."""

    def log(self, name: str, *, password: bytes = b"") -> NamedLog:
        """A handle of a named log; reads and creates nothing. Raises InvalidArgumentError for a bad name."""
        from bk_core.blocking import logs as blocking_logs  # imported only when a log is used
        from bk_core.logs import named_log

        return blocking_logs.NamedLog(named_log.NamedLog(self._inner, name, password=password), self._thread)

    def topic(self, name: str, *, access: PulsarAccess | None = None) -> Topic:
        """A handle of a topic of Pulsar; reads nothing. ``access`` says where Pulsar is and what it asks for. Raises
        InvalidArgumentError for a bad name, UnsupportedTopicError for a non-persistent topic."""
        from bk_core.blocking import topics as blocking_topics  # imported only when a topic is used
        from bk_core.pulsar import topic

        return blocking_topics.Topic(topic.Topic(self._inner, name, access=access), self._thread)

    def topics(
        self, namespace: str | None = None, *, access: PulsarAccess | None = None
    ) -> list[tuple[TopicName, int | None]]:
        """Do as :func:`bk_core.pulsar.topic.list_topics`."""
        from bk_core.pulsar import topic  # as above

        return self._thread.call(topic.list_topics(self._inner, namespace, access=access))

    def publish_to_logs(
        self,
        ledgers: Mapping[str, Sequence[NewExtent]],
        publish_id: PublishId,
        *,
        password: bytes = b"",
        options: PublishOptions | None = None,
    ) -> dict[str, Published]:
        """Do as :func:`bk_core.logs.named_log.publish_to_logs`."""
        from bk_core.logs import named_log  # as above
        from bk_core.logs.machines.publication import APPEND

        how = APPEND if options is None else options
        return self._thread.call(
            named_log.publish_to_logs(self._inner, ledgers, publish_id, password=password, options=how)
        )

    def begin(self, work: Callable[[client.BookKeeper], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start work with the asyncio client on its loop without waiting, so that one thread can watch many things.
        Cancelling the future, or closing the client, cancels the work. Raises ClientClosedError."""
        return self._thread.begin(work(self._inner))


class DetachedReaderBase(Connection[client.DetachedReader]):
    """Yields one by one the batches that the asyncio reader returns in lists, so that a batch costs no turn of the
    loop."""

    def read_all(
        self, wanted: Iterable[WantedRange], *, prefer: int = 0
    ) -> AheadIterator[tuple[int, EntryBatch | ColumnBatch]]:
        """The batches of all ranges, in order, each with the number of its range; several small ranges are read at
        once, and further batches meanwhile. Raises as :meth:`read`, after the batches before the error."""
        return AheadIterator(self._thread, self._inner.read_all(wanted, prefer=prefer), _bytes_of, AHEAD_BYTES_MAX)


def _bytes_of(ready: list[tuple[int, EntryBatch | ColumnBatch]]) -> int:
    return sum(batch.payload_bytes for _, batch in ready)
