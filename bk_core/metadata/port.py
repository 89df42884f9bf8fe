# SPDX-License-Identifier: Apache-2.0
"""The port to the metadata store: blocking calls, every write a compare-and-set.

Adapters: :mod:`bk_core.metadata.tree.store` over ZooKeeper and :mod:`bk_core.metadata.tree.memory`. One contract
suite runs over both. Errors are ours (:mod:`bk_core.errors`), chained from the store's. Unless a method says otherwise
it may raise ``MetadataUnavailableError`` (deadline passed; a write may have been applied, ``outcome`` says so) and
``MetadataCorruptError``. Callbacks of watches run on a thread of the adapter and must not block.

**Servers that lag.** A read is answered by the server that this session is with, and that one may not know yet what
another client was told is done. It never knows less than this store has seen or written, after a move to another server
and in a new session too. What follows from that is kept here and nowhere else:

- A method that is asked for one thing by its name syncs and looks once more before it says that it does not exist.
- ``read_ledger(fresh=True)`` looks again behind a sync before it says that a ledger is not closed.
- ``sync`` comes first wherever somebody acts on what others reported: a publish and every other change of a log, a
  plan, a takeover, a bookie's start, garbage collection. What is read later needs none: it is no older.

Lists, versions and contents may be old otherwise; compare-and-set refuses what was decided on them. A sync is one round
trip to the leader, without a write to any disk (decision 0029).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from bk_core.model import BookieId, BookieServiceInfo, LedgerId, LedgerMetadata, Versioned

CancelWatch = Callable[[], None]


class SessionState(enum.Enum):
    """State of the session with the store (RULES M2)."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # pauses what depends on ownership
    LOST = "lost"  # ends it


class MetadataStore(Protocol):
    """Ledgers, bookies, cookies, under-replication and named logs of one cluster.

    Opened by :func:`bk_core.metadata.open_store`; ``close`` ends the session and its ephemeral registrations.
    """

    @property
    def uri(self) -> str: ...
    def instance_id(self) -> str:
        """The cluster's INSTANCEID. Raises NoClusterError, which names clusters nearby, or MetadataCorruptError where
        only remains of a cluster are."""
        ...

    @property
    def session_id(self) -> int:
        """Number of the present session: answers between two equal ones belong to one session (RULES S9)."""
        ...

    def confirm_cluster(self) -> None:
        """Read INSTANCEID anew. Raises MetadataCorruptError if it is gone or is not what ``instance_id`` said first:
        then no absence under this root says anything."""
        ...

    def initialize_cluster(self, instance_id: str | None = None) -> str:
        """Make a cluster (layout hierarchical, RULES M1) if the root is empty or does not exist; returns the INSTANCEID
        that stands there: of several who try at once exactly one sees the ``instance_id`` that it gave. Raises
        NoClusterError where the root is another's, MetadataCorruptError where only remains of a cluster are."""
        ...

    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch: ...
    def sync(self) -> None:
        """After it, reads see every write that finished before the call (RULES M5, S9)."""
        ...

    def close(self) -> None: ...

    # --- ledgers ---
    def create_ledger(
        self, metadata: LedgerMetadata, ledger_id: LedgerId | None = None
    ) -> tuple[LedgerId, Versioned[LedgerMetadata]]:
        """Create the ledger's record; the store picks the id unless given. A c_token is added where none is, and after
        a lost answer the record is read back and compared with it (MUST 8). Raises LedgerExistsError for a given id."""
        ...

    def read_ledger(self, ledger_id: LedgerId, *, fresh: bool = False) -> Versioned[LedgerMetadata]:
        """``fresh``: one that is not closed is as it was at the call or later. Raises NoSuchLedgerError."""
        ...

    def ledger_ctime_ms(self, ledger_id: LedgerId) -> int:
        """When the record was made, by the store's clock (RULES N6). Raises NoSuchLedgerError."""
        ...

    def write_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned[LedgerMetadata]:
        """Compare-and-set. Raises MetadataConflictError (another version), NoSuchLedgerError, or
        MetadataUnavailableError with ``outcome`` UNKNOWN when the answer was lost: the caller re-reads and compares."""
        ...

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Delete the record. Raises NoSuchLedgerError, MetadataConflictError."""
        ...

    def list_ledgers(self) -> Iterator[LedgerId]:
        """Ids in ascending order, read lazily. Raises MetadataCorruptError if the root is no cluster (any more)."""
        ...

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> CancelWatch:
        """Call back with each newer record, and with None, for the last time, when it was deleted.

        The watch is set when this returns: read afterwards, or a change between is missed. No call for the present
        state; after an outage one call tells where the record stands. Raises NoSuchLedgerError.
        """
        ...

    # --- bookies ---
    def writable_bookies(self) -> Mapping[BookieId, BookieServiceInfo]: ...
    def read_only_bookies(self) -> Mapping[BookieId, BookieServiceInfo]: ...
    def bookie_info(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        """From ``available`` or ``available/readonly``; empty data gives a bookie-rpc endpoint parsed from the id."""
        ...

    def watch_bookies(self, callback: Callable[[], None]) -> CancelWatch:
        """Call back whenever the writable or read-only set changed."""
        ...

    def register_bookie(self, info: BookieServiceInfo, *, read_only: bool = False) -> None:
        """Make the ephemeral node. A node of the same directory (incarnation and DIRECTORY_PROPERTY) left by a dead
        session is deleted at once (RULES M3: the caller holds the directory lock); one of another directory is waited
        for during one session timeout, then BookieIdentityError. Moving between writable and read-only creates the new
        node before deleting the old."""
        ...

    def unregister_bookie(self, bookie_id: BookieId) -> None: ...

    # --- cookies (bytes in Apache's text format) ---
    def read_cookie(self, bookie_id: BookieId) -> Versioned[bytes] | None: ...
    def write_cookie(self, bookie_id: BookieId, cookie: bytes, version: int | None) -> None:
        """``version`` None creates. Raises MetadataConflictError."""
        ...

    def delete_cookie(self, bookie_id: BookieId) -> None: ...
    def known_bookies(self) -> list[BookieId]:
        """All that have a cookie or a state record, sorted: each has been a bookie of this cluster once."""
        ...

    def read_bookie_state(self, bookie_id: BookieId) -> Versioned[bytes] | None:
        """Our own record of a bookie, at ``<root>-bookies/<id>`` (RULES S8): incarnation, boot count, last sealed."""
        ...

    def write_bookie_state(self, bookie_id: BookieId, state: bytes, version: int | None) -> None: ...

    # --- under-replication ---
    def mark_underreplicated(self, ledger_id: LedgerId, missing: Sequence[BookieId]) -> None:
        """Create or merge the mark in Apache's format."""
        ...

    def list_underreplicated(self) -> Iterator[tuple[LedgerId, tuple[BookieId, ...]]]: ...

    # --- named logs: opaque bytes at <root>-logs/<name> ---
    def log_clock_ms(self, name: str) -> int:
        """What the store's own clock says now, of which the times below are: a client's may be wrong. Raises
        NoSuchLogError."""
        ...

    def list_logs(self) -> list[str]: ...
    def create_log(self, name: str, head: bytes) -> Versioned[bytes]:
        """Raises LogExistsError. Makes the folders of pages, transactions and unlinked records too."""
        ...

    def read_log(self, name: str) -> Versioned[bytes]:
        """Raises NoSuchLogError (without near names; the caller adds them)."""
        ...

    def write_logs(self, writes: Iterable[LogWrite]) -> list[Versioned[bytes]]:
        """Write several heads, with their transactions and unlinked records, in one atomic step; all or none (RULES
        N3, N6, K10). Raises
        MetadataConflictError; NoSuchLogError; InvalidArgumentError, before anything is sent, where they are more than
        fits one step (1 MiB); or MetadataUnavailableError with outcome UNKNOWN."""
        ...

    def watch_log(self, name: str, callback: Callable[[Versioned[bytes] | None], None]) -> CancelWatch: ...
    def delete_log(self, name: str, version: int | None = None) -> None:
        """Delete the head, pages, transactions and unlinked records."""
        ...

    def create_page(self, name: str, page: str, data: bytes) -> None:
        """Immutable; creating the same name with the same bytes again succeeds."""
        ...

    def read_page(self, name: str, page: str) -> bytes: ...
    def delete_page(self, name: str, page: str) -> None: ...
    def list_pages(self, name: str) -> list[str]: ...
    def page_ctime_ms(self, name: str, page: str) -> int | None:
        """When the page was made, by the store's clock (RULES N6); None if there is no such page."""
        ...

    def read_unlinked(self, name: str) -> list[tuple[str, int, bytes]]:
        """Name, time of making by the store's clock, and bytes of every unlinked record, in order (RULES N6)."""
        ...

    def delete_unlinked(self, name: str, records: Sequence[str]) -> None:
        """Delete unlinked records by their names, which are never used again; one that is gone already is passed by."""
        ...

    def read_txns(self, name: str, key: str) -> Versioned[bytes] | None:
        """``key`` is the sha256 hex of the appId."""
        ...

    def list_txns(self, name: str) -> list[str]: ...
    def delete_txns(self, name: str, versions: Mapping[str, int], head_version: int) -> None:
        """Delete these records, by key, if each has the version given and the head ``head_version``; all or none.

        Records change with the head only, so whatever was read of them after that head is true still (RULES N5).
        Raises NoSuchLogError, MetadataConflictError (also for one that is gone), or MetadataUnavailableError.
        """
        ...


class TxnWrite:
    """One transaction record written with a head: ``version`` None creates it."""

    __slots__ = ("data", "key", "version")

    def __init__(self, key: str, data: bytes, version: int | None) -> None:
        self.key, self.data, self.version = key, data, version


class LogWrite:
    """One head, compared with ``version``, and the transaction and the new unlinked record that go with it."""

    __slots__ = ("head", "name", "txn", "unlinked", "version")

    def __init__(
        self, name: str, head: bytes, version: int, txn: TxnWrite | None = None, unlinked: bytes | None = None
    ) -> None:
        self.name, self.head, self.version, self.txn, self.unlinked = name, head, version, txn, unlinked
