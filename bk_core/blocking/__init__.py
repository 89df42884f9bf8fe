# SPDX-License-Identifier: Apache-2.0
"""The client without ``await``: the asyncio client on a private daemon thread, one thread a connection.

Written by scripts/blocking.py from :mod:`bk_core.client`; do not edit. The thread starts with :func:`connect`, never at
import: Spark forks its workers (RULES K4). Every call waits for its answer on that thread and raises what it raised.
Handles may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Mapping

from bk_core import client
from bk_core.blocking.base import BookKeeperBase, DetachedReaderBase, LedgerWriterBase
from bk_core.blocking.loop_thread import BlockHandle, BlockingIterator
from bk_core.client.config import ClientConfig
from bk_core.client.detached import Refresh
from bk_core.client.running.metrics import ClientMetrics
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, BookieServiceInfo, DigestType, EntryId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol.config import QUORUM_SETTLE_MS


class LedgerWriter(LedgerWriterBase):
    """A ledger that is open for appending, made by ``BookKeeper.create_ledger``. As a context manager it closes
    the ledger at the end.

    ``length`` is in payload bytes. After a failure every call raises the error that ended the writer.
    """

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

    def append_batch(self, batch: EntryBatch) -> EntryId:
        """Queue a batch, in parts if the window is full. Return the id of its last entry, or, for an empty batch,
        the last id given to an entry. The entries of the batch get consecutive ids.

        The batch's buffers must not be changed until the entries are confirmed. After an error of unknown outcome, or a
        cancellation, the ledger may hold the first entries of the batch.
        """
        return self._thread.call(self._inner.append_batch(batch))

    def wait_confirmed(self, entry_id: EntryId) -> None:
        """Wait until ``entry_id`` and all entries before it are confirmed. If the writer ends before, raises the error
        that ended it. The error's outcome says whether the entry may be in the ledger."""
        self._thread.call(self._inner.wait_confirmed(entry_id))

    def flush(self) -> None:
        """Wait until every entry appended so far is confirmed."""
        self._thread.call(self._inner.flush())

    def force(self) -> EntryId:
        """Make every entry appended so far durable, in a ledger made with ``deferred_sync``, and return the LAC. In any
        other ledger only wait as :meth:`flush` does. If the writer ends before, raises the error that ended it."""
        return self._thread.call(self._inner.force())

    def write_lac(self) -> EntryId:
        """Send the LAC to the bookies that hold the last confirmed entry. Return the LAC once an ack quorum of them has
        taken it. Readers that ask these bookies then see this LAC, although no later entry carries it. Raises
        QuorumTimeoutError, or the error that ended this writer.

        A writer without entries in flight sends the LAC by itself after ``explicit_lac_delay_ms``.
        """
        return self._thread.call(self._inner.write_lac())

    def close(self) -> None:
        """Send the queued entries and close the ledger at its last entry. A second call is allowed.

        If copies are missing after ``close_linger_ms``, the ledger is marked under-replicated before this returns (P8).
        Raises LedgerFencedError if another client took over, MetadataConflictError if another client closed the ledger
        at another entry, and the error that ended this writer before.
        """
        self._thread.call(self._inner.close())

    def abandon(self) -> None:
        """Stop without closing the ledger, which stays OPEN until a client recovers it. Entries in flight may or may
        not be part of it."""
        self._thread.call(self._inner.abandon())


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

    def length_to(self, last: EntryId) -> int:
        """Return the number of payload bytes of the entries 0 to ``last``, which must be readable. Unless the record
        holds this sum, read it from entry ``last``. Raises the errors of :meth:`read`."""
        return self._thread.call(self._inner.length_to(last))

    def read(self, first: EntryId, last: EntryId, *, unconfirmed: bool = False) -> BlockingIterator[EntryBatch]:
        """Read the entries ``first`` to ``last``, both inclusive, in order, in batches. If last = first − 1, the range
        is empty.

        With ``unconfirmed`` also read entries above the LAC of an open ledger, if a bookie has them. Such an entry may
        never become part of the ledger. Raises InvalidArgumentError for entries above the LAC, NoSuchEntryError for a
        lost entry, which is never skipped, and EntryUnreadableError if no replica gives an entry now. NoSuchEntryError
        for an entry above the LAC says only that the entry is not there yet.
        """
        return BlockingIterator(self._thread, self._inner.read(first, last, unconfirmed=unconfirmed))

    def tail(self, from_entry: EntryId = 0) -> BlockingIterator[EntryBatch]:
        """Read every entry from ``from_entry`` on, as soon as it is confirmed, until the ledger is closed. A tail never
        fences.

        Raises the errors of ``read``, NoSuchLedgerError if the ledger is deleted, IntegrityError if it was closed below
        a confirmed entry (entries were lost), PermissionDeniedError if this client has lost the right to read it, and
        ClientClosedError if this reader or its client is closed.
        """
        return BlockingIterator(self._thread, self._inner.tail(from_entry))

    def refresh_lac(self) -> EntryId:
        """Ask the metadata store and a quorum of bookies how far the ledger is confirmed, and return the LAC. Raises
        QuorumTimeoutError, MetadataUnavailableError, and the errors that end a :meth:`tail`."""
        return self._thread.call(self._inner.refresh_lac())

    def wait_quorum_end(self, settle_ms: float = QUORUM_SETTLE_MS) -> EntryId:
        """Find entries above the LAC that may be shown, without fencing. Return the last such entry, or the LAC if
        there is none. :meth:`read` then reads up to the returned entry.

        An entry counts if Qa members of its write set return it, both now and after ``settle_ms``, if every entry below
        it counts, and if the ledger's record keeps its version meanwhile. It is not certain that such an entry stays: a
        writer that was paused for longer than ``settle_ms`` can still drop it. For a closed ledger the last entry is
        returned. Raises the errors of :meth:`refresh_lac`, and InvalidArgumentError for a negative time.
        """
        return self._thread.call(self._inner.wait_quorum_end(settle_ms))

    def wait_lac(self, above: EntryId, timeout_s: float) -> EntryId:
        """Wait until the LAC is above ``above``, the ledger is closed, or ``timeout_s`` is over. Return the LAC."""
        return self._thread.call(self._inner.wait_lac(above, timeout_s))

    def close(self) -> None:
        """End all watches of this reader. Calls that wait raise ClientClosedError. The ledger does not change."""
        self._thread.call(self._inner.close())


class BookKeeper(BookKeeperBase):
    """A client of one cluster. It belongs to the loop on which it was made. As a context manager it closes
    itself at the end."""

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

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
        explicit_ids: bool = False,
        deferred_sync: bool = False,
    ) -> LedgerWriter:
        """Create a ledger and open it for appending.

        ``ledger_id`` is 0 to 2^63 − 2; with None the store chooses an id. With ``explicit_ids`` the caller gives each
        entry its id, in any order (``append(payload, entry_id)``), and entries are confirmed in the order of their ids.
        With ``deferred_sync`` bookies may ack entries before they sync them; ``force`` makes the appended entries
        durable and moves the LAC.

        Raises InvalidArgumentError unless E ≥ Qw ≥ Qa ≥ 1, NotEnoughBookiesError if fewer than E bookies are writable,
        LedgerExistsError if the id is taken, PermissionDeniedError if no role lets this client write to the ledger, and
        AuthenticationError or InsecureBookieError if this client can use no bookie. After each of these errors no new
        ledger remains. If its record could not be deleted again, a warning in the log names the ledger.
        """
        return LedgerWriter(
            self._thread.call(
                self._inner.create_ledger(
                    ensemble_size=ensemble_size,
                    write_quorum_size=write_quorum_size,
                    ack_quorum_size=ack_quorum_size,
                    digest_type=digest_type,
                    password=password,
                    custom_metadata=custom_metadata,
                    ledger_id=ledger_id,
                    explicit_ids=explicit_ids,
                    deferred_sync=deferred_sync,
                )
            ),
            self._thread,
        )

    def open_ledger(
        self, ledger_id: LedgerId, *, recover: bool, password: bytes = b"", digest_type: DigestType | None = None
    ) -> LedgerReader:
        """Open a ledger for reading.

        With ``recover=False`` the writer is never disturbed: the client asks a quorum of bookies for the LAC, and the
        reader reads up to it. With ``recover=True`` the client fences the writer, finds the end and closes the ledger,
        and the reader reads up to the last entry. If ``digest_type`` is given, it must be the digest type of the
        metadata. Raises NoSuchLedgerError, WrongPasswordError, WrongDigestTypeError, QuorumTimeoutError,
        RecoveryInconclusiveError, and AuthenticationError if every bookie that answered refuses this client.
        """
        return LedgerReader(
            self._thread.call(
                self._inner.open_ledger(ledger_id, recover=recover, password=password, digest_type=digest_type)
            ),
            self._thread,
        )

    def delete_ledger(self, ledger_id: LedgerId, *, version: int | None = None) -> None:
        """Delete the ledger's metadata, and send its bookies a hint, so that they free the space soon.

        With ``version``, delete the metadata only if it has this version. A hint that fails does not fail the call.
        Raises NoSuchLedgerError, MetadataConflictError for another version, and MetadataUnavailableError.
        """
        self._thread.call(self._inner.delete_ledger(ledger_id, version=version))

    def read_metadata(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """Return the ledger's record. The record of a ledger that is not closed is as new as this call. Raises
        NoSuchLedgerError, which names similar ids."""
        return self._thread.call(self._inner.read_metadata(ledger_id))

    def list_ledgers(self) -> list[LedgerId]:
        """Return the ids of all ledgers in ascending order."""
        return self._thread.call(self._inner.list_ledgers())

    def metrics(self) -> ClientMetrics:
        """Return a copy of this client's counters. ``metrics().text()`` is the same in Prometheus' text format."""
        return self._inner.metrics()


class DetachedReader(DetachedReaderBase):
    """A reader of ranges that are known to exist. It takes the password and the digest type from the metadata.

    It belongs to the loop on which it was made. As a context manager it closes itself at the end.
    """

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

    def update_bookies(self, infos: Mapping[BookieId, BookieServiceInfo]) -> None:
        """Add or change the addresses of bookies."""
        self._thread.call(self._inner.update_bookies(infos))

    def read(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, first: EntryId, last: EntryId, *, prefer: int = 0
    ) -> BlockingIterator[EntryBatch]:
        """Read the entries ``first`` to ``last`` in order. Raises NoSuchEntryError, EntryUnreadableError."""
        return BlockingIterator(self._thread, self._inner.read(ledger_id, metadata, first, last, prefer=prefer))

    def metrics(self) -> ClientMetrics:
        """Return a copy of this reader's counters."""
        return self._inner.metrics()


def connect(uri: str, *, config: ClientConfig | None = None) -> BookKeeper:
    """Connect to the cluster whose metadata service is at ``uri`` (``zk://host:2181/ledgers``).

    Raises InvalidArgumentError for an unusable URI, MetadataUnavailableError if the service does not answer within
    ``metadata_timeout_s``, NoClusterError if there is no cluster under that root, and ForkedHandleError in a forked
    child of a process that had connected before the fork.
    """
    return BookKeeper(lambda: client.connect(uri, config=config))
