# SPDX-License-Identifier: Apache-2.0
"""The client without ``await``: the asyncio client on a private daemon thread, one thread a connection.

Written by scripts/blocking.py from :mod:`bk_core.client`; do not edit. The thread starts with :func:`connect`, never at
import: Spark forks its workers (RULES K4). Every call waits for its answer on that thread and raises what it raised.
Handles may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from bk_core import client
from bk_core.blocking_base import BookKeeperBase, DetachedReaderBase, LedgerWriterBase
from bk_core.client.config import ClientConfig
from bk_core.client.detached import Refresh
from bk_core.client.loop_thread import BlockHandle
from bk_core.entries.batch import Bytes, EntryBatch
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, BookieServiceInfo, DigestType, EntryId, LedgerId, LedgerMetadata, Versioned


class LedgerWriter(LedgerWriterBase):
    """A ledger open for appending. Made by ``BookKeeper.create_ledger``; a context manager that closes it.

    ``length`` is in payload bytes. After a failure every call raises the error that ended it.
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
        """Highest id given out, whether sent yet or not."""
        return self._inner.last_add_pushed

    @property
    def length(self) -> int:
        return self._inner.length

    @property
    def is_failed(self) -> bool:
        return self._inner.is_failed

    def append_nowait(self, payload: Bytes) -> EntryId:
        """Queue one entry and return its id; any thread may call. The payload must not be changed afterwards.

        Raises WindowFullError when the window has no room, EntryTooLargeError, LedgerClosedError, or the error that
        ended this writer; in all cases the entry was not queued.
        """
        return self._inner.append_nowait(payload)

    def append_batch(self, batch: EntryBatch) -> EntryId:
        """Queue a batch, waiting for room as it goes; returns the id of its last entry. Its entries have consecutive
        ids: what others append stands before or after all of it.

        The batch's buffers must not be changed until the entries are confirmed. An empty batch returns the last id. An
        error of unknown outcome, or a cancellation, may leave the first entries of it in the ledger.
        """
        return self._thread.call(self._inner.append_batch(batch))

    def wait_confirmed(self, entry_id: EntryId) -> None:
        """Wait until ``entry_id`` and all before it are confirmed. Raises the error that ended the writer if it was
        not confirmed before; whether the entry is in the ledger is then as unknown as the error says."""
        self._thread.call(self._inner.wait_confirmed(entry_id))

    def flush(self) -> None:
        """Wait until everything appended so far is confirmed."""
        self._thread.call(self._inner.flush())

    def close(self) -> None:
        """Deliver what is queued, close the ledger at its last entry. Idempotent.

        Raises LedgerFencedError if another client took over, MetadataConflictError if it closed the ledger elsewhere,
        and the error that ended this writer before. Copies that could not be made within ``close_linger_ms`` are
        marked under-replicated before it returns (RULES P8).
        """
        self._thread.call(self._inner.close())

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays OPEN for somebody to recover. What is in flight is unknown."""
        self._thread.call(self._inner.abandon())


class LedgerReader(BlockHandle[client.LedgerReader]):
    """A ledger open for reading. Made by ``BookKeeper.open_ledger``; a context manager that closes it."""

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
        """The last entry that may be read: the LAC as far as known here, the last entry of a closed ledger."""
        return self._inner.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger; 0 while it is open (the store does not know)."""
        return self._inner.length

    def length_to(self, last: EntryId) -> int:
        """Payload bytes of the entries 0 to ``last``, which may be read. Of an open ledger that entry tells, not the
        record. Raises as :meth:`read`."""
        return self._thread.call(self._inner.length_to(last))

    def read(self, first: EntryId, last: EntryId) -> Generator[EntryBatch, None, None]:
        """Entries first to last, both inclusive, in order, in batches; last = first − 1 is an empty range.

        Raises InvalidArgumentError beyond the LAC, NoSuchEntryError for lost data (never skipped), and
        EntryUnreadableError when no replica could say.
        """
        return self._thread.iterate(self._inner.read(first, last))

    def tail(self, from_entry: EntryId = 0) -> Generator[EntryBatch, None, None]:
        """Every entry from ``from_entry`` on as it is confirmed, until the ledger is closed. Never fences.

        Raises what ``read`` raises, NoSuchLedgerError when the ledger is deleted, IntegrityError when it was closed
        below what had been confirmed (entries were lost), and ClientClosedError when this reader or its client is
        closed meanwhile.
        """
        return self._thread.iterate(self._inner.tail(from_entry))

    def refresh_lac(self) -> EntryId:
        """Ask the store and a quorum of bookies how far the ledger is confirmed."""
        return self._thread.call(self._inner.refresh_lac())

    def wait_lac(self, above: EntryId, timeout_s: float) -> EntryId:
        """Wait until the LAC is above ``above``, the ledger closes, or the time is over; returns the LAC."""
        return self._thread.call(self._inner.wait_lac(above, timeout_s))

    def close(self) -> None:
        """End the watches; who waits for more gets ClientClosedError. The ledger is not touched."""
        self._thread.call(self._inner.close())


class BookKeeper(BookKeeperBase):
    """A client of one cluster. Has a thread of its own; a context manager that closes it."""

    @property
    def store(self) -> MetadataStore:
        """The metadata port, whose calls block."""
        return self._inner.store

    @property
    def instance_id(self) -> str:
        """Names the cluster."""
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
    ) -> LedgerWriter:
        """Create a ledger and open it for appending.

        Raises InvalidArgumentError unless E ≥ Qw ≥ Qa ≥ 1, NotEnoughBookiesError if fewer bookies than E are writable;
        nothing is created then.
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
                )
            ),
            self._thread,
        )

    def open_ledger(
        self, ledger_id: LedgerId, *, recover: bool, password: bytes = b"", digest_type: DigestType | None = None
    ) -> LedgerReader:
        """Open a ledger for reading.

        ``recover=False`` never disturbs its writer; it reads to the LAC, which a quorum of bookies is asked for.
        ``recover=True`` fences the writer, finds the end, closes the ledger, and reads to its last entry.
        ``digest_type`` None: as the metadata says; given and different is an error. Raises NoSuchLedgerError,
        WrongPasswordError, WrongDigestTypeError, QuorumTimeoutError, RecoveryInconclusiveError.
        """
        return LedgerReader(
            self._thread.call(
                self._inner.open_ledger(ledger_id, recover=recover, password=password, digest_type=digest_type)
            ),
            self._thread,
        )

    def delete_ledger(self, ledger_id: LedgerId, *, version: int | None = None) -> None:
        """Delete the ledger's metadata, of this version if given; its bookies are told, best effort, and give the space
        back later. Raises NoSuchLedgerError, MetadataConflictError for another version, MetadataUnavailableError."""
        self._thread.call(self._inner.delete_ledger(ledger_id, version=version))

    def read_metadata(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """The ledger's record, as of now unless it is closed. Raises NoSuchLedgerError, which names the nearest ids."""
        return self._thread.call(self._inner.read_metadata(ledger_id))

    def list_ledgers(self) -> list[LedgerId]:
        """Ids of all ledgers, ascending."""
        return self._thread.call(self._inner.list_ledgers())


class DetachedReader(DetachedReaderBase):
    """Reads ranges that are known to exist. Password and digest type are those in the metadata.

    Has a thread of its own; a context manager that closes it.
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
        """Addresses of further bookies."""
        self._thread.call(self._inner.update_bookies(infos))

    def read(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, first: EntryId, last: EntryId, *, prefer: int = 0
    ) -> Generator[EntryBatch, None, None]:
        """Entries first to last, in order. Raises NoSuchEntryError, EntryUnreadableError."""
        return self._thread.iterate(self._inner.read(ledger_id, metadata, first, last, prefer=prefer))


def connect(uri: str, *, config: ClientConfig | None = None) -> BookKeeper:
    """Connect to the cluster whose metadata service is at ``uri`` (``zk://host:2181/ledgers``).

    Raises InvalidArgumentError for a URI it cannot use, MetadataUnavailableError when the service does not answer
    within ``metadata_timeout_s``, NoClusterError when there is no cluster under that root, ForkedHandleError in a
    forked child of a process that had connected before.
    """
    return BookKeeper(lambda: client.connect(uri, config=config))
