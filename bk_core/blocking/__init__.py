# SPDX-License-Identifier: Apache-2.0
"""The client without ``await``: the asyncio client on a private daemon thread, one thread a connection.

The thread starts with :func:`connect`, never at import: Spark forks its workers (RULES K4). Every call waits for its
answer on that thread and raises what it raised. Handles may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from bk_core import client
from bk_core.blocking.loop_thread import AheadIterator, BlockHandle, Connection, LoopThread
from bk_core.blocking.wrapping import iterates_over, opens, waits_for
from bk_core.client.config import ClientConfig
from bk_core.client.detached import Refresh
from bk_core.client.reading.read_ahead import WantedRange
from bk_core.client.running.metrics import ClientMetrics
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.entries.parts import ColumnBatch
from bk_core.errors import WindowFullError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, BookieServiceInfo, EntryId, LedgerId, LedgerMetadata

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


class LedgerWriter(BlockHandle[client.LedgerWriter]):
    """A ledger that is open for appending, made by ``BookKeeper.create_ledger``. As a context manager it closes
    the ledger at the end.

    ``length`` is in payload bytes. After a failure every call raises the error that ended the writer.
    """

    def __init__(self, inner: client.LedgerWriter, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        # Calls of append_nowait go to the asyncio writer itself, because a call in between costs a tenth of an append.
        # The method below gives the documentation and the types.
        vars(self)["append_nowait"] = inner.append_nowait

    @property
    def ledger_id(self) -> LedgerId:
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._inner.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._inner.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The highest id given to an entry, sent or not."""
        return self._inner.last_add_pushed

    @property
    def length(self) -> int:
        return self._inner.length

    @property
    def is_failed(self) -> bool:
        return self._inner.is_failed

    def append_nowait(self, payload: Bytes, entry_id: EntryId | None = None) -> EntryId:
        """Queue one entry and return its id. Any thread may call this. The payload must not be changed afterwards.

        In a ledger made with ``explicit_ids`` the caller gives each entry its ``entry_id``, each id once, in any order.
        The entry is sent once every id below it was given. Raises WindowFullError if the window is full,
        EntryTooLargeError, DuplicateEntryIdError, LedgerClosedError, or the error that ended this writer. After each of
        these errors the entry is not queued.
        """
        return self._inner.append_nowait(payload, entry_id)

    def append(self, payload: Bytes, entry_id: EntryId | None = None) -> EntryId:
        """Append one entry. Return its id once an ack quorum has it on disk and every entry before it is confirmed.

        ``entry_id`` is that of append_nowait. If the window is full, this waits until it is not, in the order of the
        calls. Raises the other errors of append_nowait. After an error of unknown outcome, such as LedgerFencedError,
        the entry may be part of the ledger.
        """
        try:
            return self._inner.append_future(payload, entry_id).result()  # needs no task on the loop
        except WindowFullError:
            return self._thread.call(self._inner.append(payload, entry_id))

    append_batch = waits_for(client.LedgerWriter.append_batch)
    wait_confirmed = waits_for(client.LedgerWriter.wait_confirmed)
    flush = waits_for(client.LedgerWriter.flush)
    force = waits_for(client.LedgerWriter.force)
    write_lac = waits_for(client.LedgerWriter.write_lac)
    close = waits_for(client.LedgerWriter.close)
    abandon = waits_for(client.LedgerWriter.abandon)


class LedgerReader(BlockHandle[client.LedgerReader]):
    """A ledger that is open for reading, made by ``BookKeeper.open_ledger``. As a context manager it closes
    itself at the end."""

    @property
    def ledger_id(self) -> LedgerId:
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._inner.metadata

    @property
    def is_closed(self) -> bool:
        return self._inner.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read. This is the last entry of a closed ledger, or the highest known LAC of an
        open ledger."""
        return self._inner.last_add_confirmed

    @property
    def length(self) -> int:
        """The number of payload bytes of a closed ledger. It is 0 while the ledger is open, because the record has no
        length yet."""
        return self._inner.length

    length_to = waits_for(client.LedgerReader.length_to)
    read = iterates_over(client.LedgerReader.read)
    tail = iterates_over(client.LedgerReader.tail)
    refresh_lac = waits_for(client.LedgerReader.refresh_lac)
    wait_quorum_end = waits_for(client.LedgerReader.wait_quorum_end)
    wait_lac = waits_for(client.LedgerReader.wait_lac)
    close = waits_for(client.LedgerReader.close)


class BookKeeper(Connection[client.BookKeeper]):
    """A client of one cluster, with a thread of its own. As a context manager it closes itself at the end."""

    @property
    def store(self) -> MetadataStore:
        """The metadata store of the cluster. Its calls block."""
        return self._inner.store

    @property
    def instance_id(self) -> str:
        """The id of the cluster."""
        return self._inner.instance_id

    @property
    def config(self) -> ClientConfig:
        return self._inner.config

    create_ledger = opens(LedgerWriter, client.BookKeeper.create_ledger)
    open_ledger = opens(LedgerReader, client.BookKeeper.open_ledger)
    delete_ledger = waits_for(client.BookKeeper.delete_ledger)
    read_metadata = waits_for(client.BookKeeper.read_metadata)
    list_ledgers = waits_for(client.BookKeeper.list_ledgers)

    def metrics(self) -> ClientMetrics:
        """Return a copy of this client's counters. ``metrics().text()`` is the same in Prometheus' text format."""
        return self._inner.metrics()

    # With asyncio, logs and topics are classes and functions outside of the client, because they are layers above it
    # (docs/decisions/0002).

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


class DetachedReader(Connection[client.DetachedReader]):
    """A reader of ranges that are known to exist, with a thread of its own. It takes the password and the digest type
    from the metadata. As a context manager it closes itself at the end."""

    def __init__(
        self,
        infos: Mapping[BookieId, BookieServiceInfo],
        *,
        instance_id: str,
        config: ClientConfig | None = None,
        refresh: Refresh | None = None,
    ) -> None:
        async def make() -> client.DetachedReader:
            return client.DetachedReader(infos, instance_id=instance_id, config=config, refresh=refresh)

        super().__init__(make)

    update_bookies = waits_for(client.DetachedReader.update_bookies)
    read = iterates_over(client.DetachedReader.read)

    def read_all(
        self, wanted: Iterable[WantedRange], *, prefer: int = 0
    ) -> AheadIterator[tuple[int, EntryBatch | ColumnBatch]]:
        """Return an iterator over the batches of all ranges, in order. Each batch comes with the number of its range.
        Several small ranges are read together, and the loop reads further batches while the caller handles one. The
        iterator raises the errors of :meth:`read`, after the batches before the error."""
        # The asyncio reader returns lists of batches. This splits them, so that a batch costs no turn of the loop.
        return AheadIterator(self._thread, self._inner.read_all(wanted, prefer=prefer), _bytes_of, AHEAD_BYTES_MAX)

    def metrics(self) -> ClientMetrics:
        """Return a copy of this reader's counters."""
        return self._inner.metrics()


def _bytes_of(ready: list[tuple[int, EntryBatch | ColumnBatch]]) -> int:
    return sum(batch.payload_bytes for _, batch in ready)


def connect(uri: str, *, config: ClientConfig | None = None) -> BookKeeper:
    """Connect to the cluster whose metadata service is at ``uri`` (``zk://host:2181/ledgers``).

    Raises InvalidArgumentError for an unusable URI, MetadataUnavailableError if the service does not answer within
    ``metadata_timeout_s``, NoClusterError if there is no cluster under that root, and ForkedHandleError in a forked
    child of a process that had connected before the fork.
    """
    return BookKeeper(lambda: client.connect(uri, config=config))
