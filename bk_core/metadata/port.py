# SPDX-License-Identifier: Apache-2.0
"""The port to the metadata store. Its calls block, and every write is a compare-and-set.

The adapter is :mod:`bk_core.metadata.tree.store`, over the tree of a metadata service or, in tests, over a tree in
memory. One contract suite tests both. Errors are those of :mod:`bk_core.errors`, chained from the store's errors.
Unless a method says otherwise, it may raise ``MetadataCorruptError``, and ``MetadataUnavailableError`` if the deadline
passed; the ``outcome`` of the latter says whether a write may have been applied. Callbacks of watches run on a thread
of the adapter and must not block.

**Servers that lag.** The server of this session answers a read, and it may lack a finished write of another client. It
always has every write that this store has read or written, even after a move to another server and in a new session.
Therefore:

- A method that looks up one record by name syncs and reads again before it reports that the record does not exist.
- ``read_ledger(fresh=True)`` syncs and reads again before it returns a ledger that is not closed.
- Callers that act on reports of other processes call ``sync`` first: a publish and every other change of a log, a plan,
a takeover, a bookie's start, garbage collection. Later reads need no further sync, because they are no older.

In all other cases lists, versions and contents may be old. Compare-and-set then refuses a change that is based on them.
A sync is one round trip to the leader of the metadata service, without a disk write (decision 0029).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bk_core.access.roles import RolesTable
from bk_core.metadata.records import BookieOrder, Cookie, UnderreplicationMark
from bk_core.metadata.unreadable import UnreadableNodes
from bk_core.model import BookieId, BookieServiceInfo, LedgerId, LedgerMetadata, Versioned

CancelWatch = Callable[[], None]


class SessionState(enum.Enum):
    """The state of the session with the store (M2)."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # the connection broke; work that needs the session pauses
    LOST = "lost"  # the session is over; work that needs the session ends


class Audit(enum.Enum):
    """The checks of an auditor. The value names the record that holds the time of the last check."""

    LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class MetadataStore(Protocol):
    """The metadata store of one cluster: its ledgers, bookies, cookies, under-replication marks and named logs.

    :func:`bk_core.metadata.open_store` opens it. ``close`` ends the session, and with it the session's ephemeral
    registrations.
    """

    @property
    def uri(self) -> str: ...
    def instance_id(self) -> str:
        """Return the cluster's INSTANCEID. Raises NoClusterError, which names other clusters of this service, or
        MetadataCorruptError if the root holds only a part of a cluster."""
        ...

    @property
    def session_id(self) -> int:
        """The id of the present session. If the id is the same before and after some reads, one session made all of
        them (S9)."""
        ...

    def confirm_cluster(self) -> None:
        """Read INSTANCEID again. Raises MetadataCorruptError if it is gone or differs from the first ``instance_id``.
        Then the absence of a record under this root proves nothing."""
        ...

    def initialize_cluster(self, instance_id: str | None = None) -> str:
        """Create a cluster (layout hierarchical, M1) if the root is empty or does not exist. Return the INSTANCEID at
        the root. If several callers create it at the same time, exactly one of them gets the ``instance_id`` that it
        passed. Raises NoClusterError if the root holds other nodes, and MetadataCorruptError if it holds only a part of
        a cluster."""
        ...

    @property
    def unreadable(self) -> UnreadableNodes:
        """The nodes that this store could not read and has not seen repaired or deleted since. Every walk skips such a
        node and continues. A look-up of one such node raises MetadataCorruptError, which names its path (M6)."""
        ...

    def on_session(self, callback: Callable[[SessionState], None]) -> CancelWatch: ...
    def sync(self) -> None:
        """Make later reads see every write that finished before the call (M5, S9)."""
        ...

    def close(self) -> None: ...

    # --- ledgers ---
    def create_ledger(
        self, metadata: LedgerMetadata, ledger_id: LedgerId | None = None
    ) -> tuple[LedgerId, Versioned[LedgerMetadata]]:
        """Create the ledger's record. Without ``ledger_id`` the store chooses an id. A record without a ``c_token``
        gets one, by which this call recognizes its record after a lost answer (MUST 8). Raises LedgerExistsError if the
        given id is taken."""
        ...

    def read_ledger(self, ledger_id: LedgerId, *, fresh: bool = False) -> Versioned[LedgerMetadata]:
        """Return the ledger's record. With ``fresh``, the record of a ledger that is not closed is as new as the call.
        Raises NoSuchLedgerError."""
        ...

    def ledger_ctime_ms(self, ledger_id: LedgerId) -> int:
        """Return the creation time of the record, by the store's clock (N6). Raises NoSuchLedgerError."""
        ...

    def ledger_times_ms(self, ledger_id: LedgerId) -> tuple[int, int]:
        """Return the times at which the record was created and last written, by the store's clock. Raises
        NoSuchLedgerError."""
        ...

    def write_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned[LedgerMetadata]:
        """Write the record if its version is ``version``. Raises NoSuchLedgerError, MetadataConflictError for another
        version, or MetadataUnavailableError. If the ``outcome`` of the latter is UNKNOWN, the caller reads the record
        again and compares."""
        ...

    def write_repaired_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int
    ) -> Versioned[LedgerMetadata]:
        """Do the same as ``write_ledger``, and in the same step check that this session holds the ledger's repair lock
        (``lock_underreplicated``). Raises MetadataError if it does not hold the lock, because a bookie that got a copy
        may then have dropped it (decision 0051)."""
        ...

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Delete the record. With ``version``, delete it only if it has this version. Raises NoSuchLedgerError,
        MetadataConflictError."""
        ...

    def list_ledgers(self, after: LedgerId = -1) -> Iterator[LedgerId]:
        """Yield all ids above ``after`` in ascending order. Folders are read one by one, and folders of lower ids are
        not read. Raises MetadataCorruptError if the root is gone."""
        ...

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> CancelWatch:
        """Call ``callback`` with each newer record, and a last time with None when the record was deleted.

        The watch is set when this returns, and ``callback`` is not called for the present record. So read the record
        after this call, or you may miss an earlier change. After an outage there is one call, with the newest record.
        Raises NoSuchLedgerError.
        """
        ...

    # --- bookies ---
    def writable_bookies(self) -> Mapping[BookieId, BookieServiceInfo]: ...
    def read_only_bookies(self) -> Mapping[BookieId, BookieServiceInfo]: ...
    def seen_bookies(self) -> tuple[Mapping[BookieId, BookieServiceInfo], Mapping[BookieId, BookieServiceInfo]] | None:
        """Return the writable and the read-only bookies as they were last read, or None if a watch has reported a
        change since. This sends no request and never waits. While nothing changes, it returns the same objects."""
        ...

    def bookie_info(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        """Return the registration of a writable or read-only bookie, or None if it is not registered. A registration
        without data gives the bookie-rpc endpoint that the bookie's id names."""
        ...

    def register_bookie(self, info: BookieServiceInfo, *, read_only: bool = False) -> None:
        """Create the ephemeral node of a bookie. A change between writable and read-only creates the new node before it
        deletes the old node.

        If another session left a node of the same directory (incarnation and DIRECTORY_PROPERTY), this deletes it
        without a wait, because the caller holds the directory lock (M3). If the node belongs to another directory, this
        waits one session timeout and then raises BookieIdentityError.
        """
        ...

    def unregister_bookie(self, bookie_id: BookieId) -> None: ...

    # --- cookies (bytes in Apache's text format) ---
    def read_cookie(self, bookie_id: BookieId) -> Versioned[bytes] | None: ...
    def cookies(self) -> Mapping[BookieId, Cookie]:
        """Return the cookies of all bookies. An unreadable cookie is left out."""
        ...

    def write_cookie(self, bookie_id: BookieId, cookie: bytes, version: int | None) -> None:
        """Write the cookie if it has ``version``, or create it if ``version`` is None. Raises MetadataConflictError."""
        ...

    def delete_cookie(self, bookie_id: BookieId) -> None: ...
    def known_bookies(self) -> list[BookieId]:
        """Return all bookies that have ever belonged to this cluster and were not removed, sorted. Each of them has a
        cookie or a state record."""
        ...

    def read_bookie_state(self, bookie_id: BookieId) -> Versioned[bytes] | None:
        """Return the record that our bookies keep at ``<root>-bookies/<id>``. It has the incarnation, the boot count
        and the last sealed segment (S8)."""
        ...

    def write_bookie_state(self, bookie_id: BookieId, state: bytes, version: int | None) -> None: ...

    # --- operators' orders to bookies ---
    def bookie_orders(self) -> Mapping[BookieId, BookieOrder]:
        """Return the orders of all bookies. An unreadable order is left out."""
        ...

    def read_bookie_order(self, bookie_id: BookieId) -> BookieOrder | None: ...
    def write_bookie_order(self, bookie_id: BookieId, order: BookieOrder | None) -> None:
        """Write an order to a bookie, which replaces an earlier order, or cancel the order if ``order`` is None."""
        ...

    # --- under-replication ---
    def mark_underreplicated(self, ledger_id: LedgerId, missing: Sequence[BookieId]) -> None:
        """Create the ledger's under-replication mark in Apache's format, or add the bookies ``missing`` to it."""
        ...

    def list_underreplicated(self) -> Iterator[tuple[LedgerId, tuple[BookieId, ...]]]:
        """Yield all under-replication marks, each with the bookies that it names. An unreadable mark is left out."""
        ...

    def read_underreplicated(self, ledger_id: LedgerId) -> Versioned[UnderreplicationMark] | None:
        """Return the ledger's under-replication mark, or None if there is none. A worker reads the mark before the
        ledger's record, so that the record is no older than the mark."""
        ...

    def remove_underreplicated(self, ledger_id: LedgerId, version: int) -> bool:
        """Remove the mark if it has this version and this session holds the ledger's repair lock. Return True if there
        is no mark now, and False if the caller must read the mark again. The session must have taken the lock before it
        read the mark, because a mark that is made again begins with the first version."""
        ...

    def lock_underreplicated(self, ledger_id: LedgerId, owner: str) -> bool:
        """Take the ledger's repair lock, which ends with the session. Return False if another session has it. A worker
        needs the lock to remove the mark, and to write a record that names a bookie which got a copy."""
        ...

    def unlock_underreplicated(self, ledger_id: LedgerId) -> None:
        """Release the ledger's repair lock. A lock of another session is kept."""
        ...

    def underreplication_locks(self) -> Mapping[LedgerId, str]:
        """Return the ledgers under repair, each with the name of its worker. The name is empty if the lock names no
        worker or cannot be read."""
        ...

    # --- settings of auto-recovery for the whole cluster; Apache's auto-recovery obeys them too ---
    def replication_enabled(self) -> bool:
        """Return whether the workers and auditors of auto-recovery may work."""
        ...

    def enable_replication(self, enabled: bool) -> None: ...
    def lost_bookie_recovery_delay_s(self) -> int | None:
        """Return the number of seconds that a bookie may be away before its copies count as lost. Return None if it was
        never set, or if the record cannot be read."""
        ...

    def set_lost_bookie_recovery_delay_s(self, seconds: int) -> None: ...
    def audit_time_ms(self, audit: Audit) -> int | None:
        """Return the time at which an auditor last finished this check of the whole cluster, in ms by the auditor's
        clock. Return None if there was no such check, or if the record cannot be read."""
        ...

    def write_audit_time_ms(self, audit: Audit, time_ms: int) -> None: ...
    def vote_for_auditor(self, owner: str) -> bool:
        """Cast this session's vote, unless it is cast already. Return whether it is the first vote, so that ``owner``
        is the auditor. A vote ends with its session, so call this again from time to time."""
        ...

    def withdraw_vote(self) -> None:
        """Withdraw this session's vote."""
        ...

    def current_auditor(self) -> str | None:
        """Return the owner of the first vote, or None if there are no votes. If the vote is unreadable, return a text
        that says this."""
        ...

    # --- roles ---
    def read_roles(self) -> Versioned[RolesTable] | None:
        """Return the table of roles, or None if there is none; mode ``secure`` then denies every request. Raises
        MetadataCorruptError if this version does not understand a part of the table."""
        ...

    def write_roles(self, table: RolesTable, version: int | None) -> Versioned[RolesTable]:
        """Write the table of roles if it has ``version``, or create it if ``version`` is None. Raises
        MetadataConflictError."""
        ...

    # --- upkeep of named logs ---
    def vote_for_upkeep(self, owner: str) -> bool:
        """Do the same as :meth:`vote_for_auditor` for the worker that does the upkeep of logs, in a separate
        election."""
        ...

    def withdraw_upkeep_vote(self) -> None: ...
    def current_upkeep_worker(self) -> str | None: ...
    def read_upkeep_record(self) -> Versioned[bytes] | None:
        """Return the record of upkeep, at ``<root>-upkeep/record``. The elected worker writes it before each step."""
        ...

    def write_upkeep_record(self, record: bytes, version: int | None) -> Versioned[bytes]:
        """Write the record of upkeep if it has ``version``, or create it if ``version`` is None. After a lost answer,
        equal bytes in the next version count as this write, so each record must name its session. Raises
        MetadataConflictError."""
        ...

    # --- named logs: opaque bytes at <root>-logs/<name> ---
    def log_clock_ms(self, name: str) -> int:
        """Return the present time by the store's clock. The creation times of a log's nodes are by the same clock, and
        a client's clock may be wrong. Raises NoSuchLogError."""
        ...

    def list_logs(self) -> list[str]: ...
    def create_log(self, name: str, head: bytes) -> Versioned[bytes]:
        """Create the head of a log, and the folders of its pages, transactions and unlinked records. Raises
        LogExistsError."""
        ...

    def log_path(self, name: str, *below: str) -> str:
        """Return the path of a log's head, or of a node below it, for error messages."""
        ...

    def read_log(self, name: str) -> Versioned[bytes]:
        """Return the head of a log. Raises NoSuchLogError, without similar names."""
        ...

    def write_logs(self, writes: Iterable[LogWrite]) -> list[Versioned[bytes]]:
        """Write several heads, with their transactions and unlinked records, in one multi, all or none (N3, N6, K10).
        Raises MetadataConflictError; NoSuchLogError; InvalidArgumentError, before anything is sent, if they exceed 1
        MiB, the limit of a multi; or MetadataUnavailableError, with outcome UNKNOWN if the answer was lost."""
        ...

    def watch_log(self, name: str, callback: Callable[[Versioned[bytes] | None], None]) -> CancelWatch: ...
    def delete_log(self, name: str, version: int | None = None) -> None:
        """Delete a log's head, pages, transactions and unlinked records. With ``version``, delete them only if the head
        has this version. Raises NoSuchLogError, MetadataConflictError."""
        ...

    # --- nodes of other systems that keep their data in ledgers, by absolute path; they are only read ---
    def read_foreign_node(self, path: str) -> Versioned[bytes] | None:
        """Return the data and version of a node of another system, or None if there is no such node."""
        ...

    def list_foreign_nodes(self, path: str) -> list[str] | None:
        """Return the names of the children of a node of another system, sorted, or None if there is no such node."""
        ...

    # --- deleted logs whose ledgers are not deleted yet: opaque bytes at <root>-deletedlogs/<uuid> ---
    def deleted_log_path(self, log_uuid: str = "") -> str:
        """Return the path of the record of a deleted log, or, without a uuid, of the folder of all records, for error
        messages."""
        ...

    def create_deleted_log(self, log_uuid: str, record: bytes) -> None:
        """Create the record of a deleted log. A record that exists already is not changed."""
        ...

    def read_deleted_log(self, log_uuid: str) -> tuple[int, bytes] | None:
        """Return the creation time of the record, by the store's clock, and its bytes, or None if there is no
        record."""
        ...

    def read_deleted_logs(self) -> list[tuple[str, int, bytes]]:
        """Return the uuid, the creation time by the store's clock, and the bytes of every record of a deleted log, in
        the order of uuids."""
        ...

    def forget_deleted_log(self, log_uuid: str) -> None:
        """Delete the record of a deleted log. A missing record is ignored."""
        ...

    def deleted_logs_clock_ms(self) -> int:
        """Return the present time by the store's clock. The creation times of the records are by the same clock."""
        ...

    # --- pages, unlinked records and transactions of a log ---
    def create_page(self, name: str, page: str, data: bytes) -> None:
        """Create a page, which never changes. To create it again with the same bytes succeeds."""
        ...

    def read_page(self, name: str, page: str) -> bytes: ...
    def delete_page(self, name: str, page: str) -> None: ...
    def list_pages(self, name: str) -> list[str]: ...
    def page_ctime_ms(self, name: str, page: str) -> int | None:
        """Return the creation time of a page, by the store's clock (N6), or None if there is no such page."""
        ...

    def read_unlinked(self, name: str) -> list[tuple[str, int, bytes]]:
        """Return the name, the creation time by the store's clock, and the bytes of every unlinked record, in order
        (N6)."""
        ...

    def delete_unlinked(self, name: str, records: Sequence[str]) -> None:
        """Delete unlinked records by name. Missing records are ignored. Names are never reused."""
        ...

    def read_txns(self, name: str, key: str) -> Versioned[bytes] | None:
        """Return a transaction record, or None if there is none. ``key`` is the SHA-256 of the appId, in hex."""
        ...

    def list_txns(self, name: str) -> list[str]: ...
    def delete_txns(self, name: str, versions: Mapping[str, int], head_version: int) -> None:
        """Delete these transaction records, all or none, if each has its version and the head has ``head_version``.
        ``versions`` has the version of each record by its key.

        Records change only together with the head, so a record that was read after this head has not changed since
        (N5). Raises NoSuchLogError, MetadataUnavailableError, and MetadataConflictError, also for a record that does
        not exist.
        """
        ...


@dataclass(frozen=True, slots=True)
class TxnWrite:
    """A transaction record to write together with a head. If ``version`` is None, the record is created."""

    key: str
    data: bytes
    version: int | None


@dataclass(frozen=True, slots=True)
class LogWrite:
    """A head to write if its version is ``version``, together with a transaction record and a new unlinked record."""

    name: str
    head: bytes
    version: int
    txn: TxnWrite | None = None
    unlinked: bytes | None = None
