# SPDX-License-Identifier: Apache-2.0
"""Has the hand-written bases of the blocking client's classes. Their methods do more than wait for the asyncio method
of the same name. ``scripts/blocking.py`` writes all other methods."""

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
"""The maximum number of bytes of batches that the loop reads ahead of the thread that takes them, in ``read_all``."""


class LedgerWriterBase(BlockHandle[client.LedgerWriter]):
    """The base of LedgerWriter. Its append needs no task on the loop while the window is not full."""

    def append(self, payload: Bytes, entry_id: EntryId | None = None) -> EntryId:
        """Append one entry. Return its id once an ack quorum has it on disk and every entry before it is confirmed.

        ``entry_id`` is that of append_nowait. If the window is full, this waits until it is not, in the order of the
        calls. Raises the other errors of append_nowait. After an error of unknown outcome, such as LedgerFencedError,
        the entry may be part of the ledger.
        """
        try:
            return self._inner.append_future(payload, entry_id).result()
        except WindowFullError:
            return self._thread.call(self._inner.append(payload, entry_id))


class BookKeeperBase(Connection[client.BookKeeper]):
    """The base of BookKeeper. It has the methods for logs and topics. With asyncio these are functions and classes
    outside of the client, because logs and topics are layers above it (docs/decisions/0002)."""

    def log(self, name: str, *, password: bytes = b"") -> NamedLog:
        """Return a handle of a named log. This neither reads nor creates anything. Raises InvalidArgumentError for an
        invalid name."""
        from bk_core.blocking import logs as blocking_logs  # imported only when a log is used
        from bk_core.logs import named_log

        return blocking_logs.NamedLog(named_log.NamedLog(self._inner, name, password=password), self._thread)

    def topic(self, name: str, *, access: PulsarAccess | None = None) -> Topic:
        """Return a handle of a topic of Pulsar. This reads nothing. ``access`` has the addresses and secrets of Pulsar.
        Raises InvalidArgumentError for an invalid name, and UnsupportedTopicError for a non-persistent topic."""
        from bk_core.blocking import topics as blocking_topics  # imported only when a topic is used
        from bk_core.pulsar import topic

        return blocking_topics.Topic(topic.Topic(self._inner, name, access=access), self._thread)

    def topics(
        self, namespace: str | None = None, *, access: PulsarAccess | None = None
    ) -> list[tuple[TopicName, int | None]]:
        """Do the same as :func:`bk_core.pulsar.topic.list_topics`, and wait for the result."""
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
        """Do the same as :func:`bk_core.logs.named_log.publish_to_logs`, and wait for the result."""
        from bk_core.logs import named_log  # as above
        from bk_core.logs.machines.publication import APPEND

        how = APPEND if options is None else options
        return self._thread.call(
            named_log.publish_to_logs(self._inner, ledgers, publish_id, password=password, options=how)
        )

    def begin(self, work: Callable[[client.BookKeeper], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start a coroutine with the asyncio client on its loop, and return without waiting, so that one thread can
        wait for several things. Cancelling the future, or closing the client, cancels the coroutine. Raises
        ClientClosedError if the client is closed."""
        return self._thread.begin(work(self._inner))


class DetachedReaderBase(Connection[client.DetachedReader]):
    """The base of DetachedReader. The asyncio reader returns batches in lists, and this yields them one by one, so that
    a batch costs no turn of the loop."""

    def read_all(
        self, wanted: Iterable[WantedRange], *, prefer: int = 0
    ) -> AheadIterator[tuple[int, EntryBatch | ColumnBatch]]:
        """Return an iterator over the batches of all ranges, in order. Each batch comes with the number of its range.
        Several small ranges are read together, and the loop reads further batches while the caller handles one. The
        iterator raises the errors of :meth:`read`, after the batches before the error."""
        return AheadIterator(self._thread, self._inner.read_all(wanted, prefer=prefer), _bytes_of, AHEAD_BYTES_MAX)


def _bytes_of(ready: list[tuple[int, EntryBatch | ColumnBatch]]) -> int:
    return sum(batch.payload_bytes for _, batch in ready)
