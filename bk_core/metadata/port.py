# SPDX-License-Identifier: Apache-2.0
"""The port to the metadata store: blocking calls, in which every write is a compare-and-set.

The adapter is :mod:`bk_core.metadata.tree.store`, over ZooKeeper or, in tests, over a tree in memory. One contract
suite tests both. Errors are those of :mod:`bk_core.errors`, chained from the store's. Unless a method says otherwise,
it may raise ``MetadataUnavailableError`` (the deadline passed; ``outcome`` says whether a write may have been applied)
and ``MetadataCorruptError``. Callbacks of watches run on a thread of the adapter and must not block.

**Servers that lag.** The server of this session answers a read, and it may lack a finished write of another client. It
always has everything that this store has read or written, even after a move to another server and in a new session.
Therefore:

- A method that looks up one thing by name syncs and looks once more before it says that it does not exist.
- ``read_ledger(fresh=True)`` syncs and reads again before it returns a ledger that is not closed.
- Callers that act on reports of other processes call ``sync`` first: a publish and every other change of a log, a plan,
a takeover, a bookie's start, garbage collection. Later reads need no further sync, because they are no older.

Otherwise lists, versions and contents may be old; then compare-and-set refuses a change that was based on them. A sync
is one round trip to ZooKeeper's leader, without a disk write (decision 0029).
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
    SUSPENDED = "suspended"  # the connection broke: work that needs the session pauses
    LOST = "lost"  # the session is over: work that needs the session ends


class Audit(enum.Enum):
    """The checks of an auditor. The values name the records that hold the time of the last check."""

    LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class MetadataStore(Protocol):
    """The ledgers, bookies, cookies, under-replication and named logs of one cluster.

    :func:`bk_core.metadata.open_store` opens it; ``close`` ends the session and its ephemeral registrations.
    """

    @property
    def uri(self) -> str: ...
    def instance_id(self) -> str:
        """Return the cluster's INSTANCEID. Raises NoClusterError, which names clusters nearby, or MetadataCorruptError
        if the root holds only a part of a cluster."""
        ...

    @property
    def session_id(self) -> int:
        """The id of the present session. If it is equal before and after some reads, they belong to one session
        (S9)."""
        ...

    def confirm_cluster(self) -> None:
        """Read INSTANCEID again. Raises MetadataCorruptError if it is gone or differs from the first ``instance_id``:
        then the absence of a record under this root proves nothing."""
        ...

    def initialize_cluster(self, instance_id: str | None = None) -> str:
        """Create a cluster (layout hierarchical, M1) if the root is empty or does not exist; return the INSTANCEID at
        the root. If several callers try at once, exactly one of them gets back the ``instance_id`` that it passed.
        Raises NoClusterError if the root holds something else, MetadataCorruptError if it holds only a part of a
        cluster."""
        ...

    @property
    def unreadable(self) -> UnreadableNodes:
        """The nodes that this store could not read, and that it has not seen repaired or deleted since. Every walk
        skips such a node and continues; a look-up of one node raises MetadataCorruptError, which names its path
        (M6)."""
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
        """Create the ledger's record; without ``ledger_id`` the store picks one. A record without a c_token gets one.
        After a lost answer the token tells whether the record that is found is ours (MUST 8). Raises LedgerExistsError
        if the given id is taken."""
        ...

    def read_ledger(self, ledger_id: LedgerId, *, fresh: bool = False) -> Versioned[LedgerMetadata]:
        """Return the ledger's record. With ``fresh``, a record that is not closed is as new as the call. Raises
        NoSuchLedgerError."""
        ...

    def ledger_ctime_ms(self, ledger_id: LedgerId) -> int:
        """Return when the record was created, by the store's clock (N6). Raises NoSuchLedgerError."""
        ...

    def ledger_times_ms(self, ledger_id: LedgerId) -> tuple[int, int]:
        """Return when the record was created, and when it was last written, by the store's clock. Raises
        NoSuchLedgerError."""
        ...

    def write_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned[LedgerMetadata]:
        """Write the record by compare-and-set against ``version``. Raises MetadataConflictError (another version),
        NoSuchLedgerError, or MetadataUnavailableError. If its ``outcome`` is UNKNOWN, the caller reads the record again
        and compares."""
        ...

    def write_repaired_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int
    ) -> Versioned[LedgerMetadata]:
        """Do the same as ``write_ledger``, and in the same step check that this session holds the lock of the ledger's
        repair (``lock_underreplicated``). Raises MetadataError if it does not: then a bookie that got a copy may have
        dropped it (decision 0051)."""
        ...

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Delete the record; with ``version`` only if it has that version. Raises NoSuchLedgerError,
        MetadataConflictError."""
        ...

    def list_ledgers(self, after: LedgerId = -1) -> Iterator[LedgerId]:
        """Yield all ids above ``after`` in ascending order, read lazily; skipping the ids below costs little. Raises
        MetadataCorruptError if the root is gone."""
        ...

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> CancelWatch:
        """Call ``callback`` with each newer record, and a last time with None when the record was deleted.

        The watch is set when this returns. Read the record afterwards, or you may miss an earlier change: there is no
        call for the present state. After an outage, one call gives the newest record. Raises NoSuchLedgerError.
        """
        ...

    # --- bookies ---
    def writable_bookies(self) -> Mapping[BookieId, BookieServiceInfo]: ...
    def read_only_bookies(self) -> Mapping[BookieId, BookieServiceInfo]: ...
    def seen_bookies(self) -> tuple[Mapping[BookieId, BookieServiceInfo], Mapping[BookieId, BookieServiceInfo]] | None:
        """Return the writable and the read-only bookies as they were last read, or None if a watch has reported a
        change since. Sends no request and never waits; returns the same objects while nothing changes."""
        ...

    def bookie_info(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        """Return the registration of a bookie, writable or read-only, or None. Empty data gives the bookie-rpc endpoint
        that the bookie's id names."""
        ...

    def register_bookie(self, info: BookieServiceInfo, *, read_only: bool = False) -> None:
        """Create the ephemeral node. A node that another session left is deleted at once if it belongs to the same
        directory (incarnation and DIRECTORY_PROPERTY), because the caller holds the directory lock (M3). If it belongs
        to another directory, this waits one session timeout and then raises BookieIdentityError. A move between
        writable and read-only creates the new node before it deletes the old one."""
        ...

    def unregister_bookie(self, bookie_id: BookieId) -> None: ...

    # --- cookies (bytes in Apache's text format) ---
    def read_cookie(self, bookie_id: BookieId) -> Versioned[bytes] | None: ...
    def cookies(self) -> Mapping[BookieId, Cookie]:
        """Return the cookies of all bookies. An unreadable cookie is left out."""
        ...

    def write_cookie(self, bookie_id: BookieId, cookie: bytes, version: int | None) -> None:
        """Write the cookie by compare-and-set; ``version`` None creates it. Raises MetadataConflictError."""
        ...

    def delete_cookie(self, bookie_id: BookieId) -> None: ...
    def known_bookies(self) -> list[BookieId]:
        """Return all bookies that have ever belonged to this cluster, sorted: those with a cookie or a state record,
        without those that were removed."""
        ...

    def read_bookie_state(self, bookie_id: BookieId) -> Versioned[bytes] | None:
        """Return our own record of a bookie, at ``<root>-bookies/<id>``: incarnation, boot count, last sealed segment
        (S8)."""
        ...

    def write_bookie_state(self, bookie_id: BookieId, state: bytes, version: int | None) -> None: ...

    # --- operators' orders to bookies ---
    def bookie_orders(self) -> Mapping[BookieId, BookieOrder]:
        """Return the orders of all bookies. An unreadable order is left out."""
        ...

    def read_bookie_order(self, bookie_id: BookieId) -> BookieOrder | None: ...
    def write_bookie_order(self, bookie_id: BookieId, order: BookieOrder | None) -> None:
        """Write an order, which replaces the one before; None cancels it."""
        ...

    # --- under-replication ---
    def mark_underreplicated(self, ledger_id: LedgerId, missing: Sequence[BookieId]) -> None:
        """Create the ledger's mark in Apache's format, or add ``missing`` to it."""
        ...

    def list_underreplicated(self) -> Iterator[tuple[LedgerId, tuple[BookieId, ...]]]:
        """Yield all marks, with the bookies that they name. An unreadable mark is left out."""
        ...

    def read_underreplicated(self, ledger_id: LedgerId) -> Versioned[UnderreplicationMark] | None:
        """Return the mark and its version, or None. A worker reads the mark before the ledger's record, so the record
        is no older than the mark."""
        ...

    def remove_underreplicated(self, ledger_id: LedgerId, version: int) -> bool:
        """Remove the mark if it has this version and this session holds the ledger's lock. The session must have held
        the lock since before it read the mark, because a mark that is made again starts with the first version. Return
        True if there is no mark now, False if it must be read again."""
        ...

    def lock_underreplicated(self, ledger_id: LedgerId, owner: str) -> bool:
        """Take the lock under which one worker repairs the ledger; return False if another session has it. The lock
        ends with the session. It is needed to remove the mark, and to write a record that names a bookie which got a
        copy."""
        ...

    def unlock_underreplicated(self, ledger_id: LedgerId) -> None:
        """Give the lock back; a lock of another session stays."""
        ...

    def underreplication_locks(self) -> Mapping[LedgerId, str]:
        """Return the ledgers under repair, each with its worker; the name is empty if the lock names none or cannot be
        read."""
        ...

    # --- settings of auto-recovery for the whole cluster; Apache's auto-recovery obeys them too ---
    def replication_enabled(self) -> bool:
        """Return whether workers and auditors may work."""
        ...

    def enable_replication(self, enabled: bool) -> None: ...
    def lost_bookie_recovery_delay_s(self) -> int | None:
        """Return how long a bookie may be away before its copies count as lost; None if it was never set, or cannot be
        read."""
        ...

    def set_lost_bookie_recovery_delay_s(self, seconds: int) -> None: ...
    def audit_time_ms(self, audit: Audit) -> int | None:
        """Return when the auditor last finished this check of the whole cluster, in ms by its own clock; None if it
        never did, or if the record cannot be read."""
        ...

    def write_audit_time_ms(self, audit: Audit, time_ms: int) -> None: ...
    def vote_for_auditor(self, owner: str) -> bool:
        """Cast this session's vote, unless it is cast; return whether it is the first vote, which makes ``owner`` the
        auditor. Call it again to learn of a change: a vote ends with its session."""
        ...

    def withdraw_vote(self) -> None:
        """Withdraw this session's vote."""
        ...

    def current_auditor(self) -> str | None:
        """Return the owner of the first vote, or None without votes. For an unreadable vote, return a text that says
        so."""
        ...

    # --- roles ---
    def read_roles(self) -> Versioned[RolesTable] | None:
        """Return the table of roles, or None if there is none: then mode ``secure`` denies everything. Raises
        MetadataCorruptError if a part of the table is not understood."""
        ...

    def write_roles(self, table: RolesTable, version: int | None) -> Versioned[RolesTable]:
        """Write the table of roles by compare-and-set; ``version`` None creates it. Raises MetadataConflictError."""
        ...

    # --- upkeep of named logs ---
    def vote_for_upkeep(self, owner: str) -> bool:
        """Do the same as :meth:`vote_for_auditor` for the worker that keeps the logs, in a separate election."""
        ...

    def withdraw_upkeep_vote(self) -> None: ...
    def current_upkeep_worker(self) -> str | None: ...
    def read_upkeep_record(self) -> Versioned[bytes] | None:
        """Return the record of the elected worker, at ``<root>-upkeep/record``. Each worker writes it before each
        step."""
        ...

    def write_upkeep_record(self, record: bytes, version: int | None) -> Versioned[bytes]:
        """Write the record by compare-and-set; ``version`` None creates it. After a lost answer, equal bytes in the
        next version count as written, so a record names its session. Raises MetadataConflictError."""
        ...

    # --- named logs: opaque bytes at <root>-logs/<name> ---
    def log_clock_ms(self, name: str) -> int:
        """Return the present time by the store's clock, which also gives the times below; a client's clock may be
        wrong. Raises NoSuchLogError."""
        ...

    def list_logs(self) -> list[str]: ...
    def create_log(self, name: str, head: bytes) -> Versioned[bytes]:
        """Create the head, and the folders of pages, transactions and unlinked records. Raises LogExistsError."""
        ...

    def log_path(self, name: str, *below: str) -> str:
        """Return the path of a log's head, or of a node below it, for messages about it."""
        ...

    def read_log(self, name: str) -> Versioned[bytes]:
        """Return the head. Raises NoSuchLogError, without near names."""
        ...

    def write_logs(self, writes: Iterable[LogWrite]) -> list[Versioned[bytes]]:
        """Write several heads, with their transactions and unlinked records, in one step: all or none (N3, N6, K10).
        Raises MetadataConflictError; NoSuchLogError; InvalidArgumentError, before anything is sent, if they exceed 1
        MiB, the limit of a step; or MetadataUnavailableError, with outcome UNKNOWN if the answer was lost."""
        ...

    def watch_log(self, name: str, callback: Callable[[Versioned[bytes] | None], None]) -> CancelWatch: ...
    def delete_log(self, name: str, version: int | None = None) -> None:
        """Delete the head, pages, transactions and unlinked records; with ``version`` only if the head has it. Raises
        NoSuchLogError, MetadataConflictError."""
        ...

    # --- nodes of other systems that keep their data in ledgers, by absolute path; they are only read ---
    def read_foreign_node(self, path: str) -> Versioned[bytes] | None:
        """A node of another system, or None."""
        ...

    def list_foreign_nodes(self, path: str) -> list[str] | None:
        """The names of the children of such a node, sorted; None if there is no such node."""
        ...

    # --- deleted logs whose ledgers wait to be deleted: opaque bytes at <root>-deletedlogs/<uuid> ---
    def deleted_log_path(self, log_uuid: str = "") -> str:
        """Return the path of the record, or of the folder of all records, for messages about it."""
        ...

    def create_deleted_log(self, log_uuid: str, record: bytes) -> None:
        """Create the record of a deleted log. A record that exists already stays as it is."""
        ...

    def read_deleted_log(self, log_uuid: str) -> tuple[int, bytes] | None:
        """Return when the record was created, by the store's clock, and its bytes; None if there is none."""
        ...

    def read_deleted_logs(self) -> list[tuple[str, int, bytes]]:
        """Return the uuid, creation time by the store's clock, and bytes of every record, in order of the uuids."""
        ...

    def forget_deleted_log(self, log_uuid: str) -> None:
        """Delete the record. A missing record is ignored."""
        ...

    def deleted_logs_clock_ms(self) -> int:
        """Return the present time by the store's clock, which also gives the times of the records."""
        ...

    # --- pages, unlinked records and transactions of a log ---
    def create_page(self, name: str, page: str, data: bytes) -> None:
        """Create an immutable page. Creating it again with the same bytes succeeds."""
        ...

    def read_page(self, name: str, page: str) -> bytes: ...
    def delete_page(self, name: str, page: str) -> None: ...
    def list_pages(self, name: str) -> list[str]: ...
    def page_ctime_ms(self, name: str, page: str) -> int | None:
        """Return when the page was created, by the store's clock (N6); None if there is no such page."""
        ...

    def read_unlinked(self, name: str) -> list[tuple[str, int, bytes]]:
        """Return the name, creation time by the store's clock, and bytes of every unlinked record, in order (N6)."""
        ...

    def delete_unlinked(self, name: str, records: Sequence[str]) -> None:
        """Delete unlinked records by name. Missing records are ignored. Names are never reused."""
        ...

    def read_txns(self, name: str, key: str) -> Versioned[bytes] | None:
        """Return a transaction record, or None. ``key`` is the SHA-256 of the appId, in hex."""
        ...

    def list_txns(self, name: str) -> list[str]: ...
    def delete_txns(self, name: str, versions: Mapping[str, int], head_version: int) -> None:
        """Delete these transaction records, by key, if each has its version and the head has ``head_version``: all or
        none.

        Records change only together with the head, so whatever was read of them after that head is still true (N5).
        Raises NoSuchLogError, MetadataConflictError (also for a record that is gone), or MetadataUnavailableError.
        """
        ...


@dataclass(frozen=True, slots=True)
class TxnWrite:
    """A transaction record to write with a head; ``version`` None creates it."""

    key: str
    data: bytes
    version: int | None


@dataclass(frozen=True, slots=True)
class LogWrite:
    """A head to write if its version is ``version``, with a transaction record and a new unlinked record."""

    name: str
    head: bytes
    version: int
    txn: TxnWrite | None = None
    unlinked: bytes | None = None
