# SPDX-License-Identifier: Apache-2.0
"""The port to the metadata store: blocking calls, every write a compare-and-set.

The adapter is :mod:`bk_core.metadata.tree.store`, over ZooKeeper or, in tests, over a tree in memory. One contract
suite tests both. Errors are those of :mod:`bk_core.errors`, chained from the store's. Unless a method says otherwise,
it may raise ``MetadataUnavailableError`` (the deadline passed; ``outcome`` says whether a write may have been applied)
and ``MetadataCorruptError``. Callbacks of watches run on a thread of the adapter and must not block.

**Servers that lag.** The server of this session answers a read, and it may not know yet of a finished write of another
client. It always knows everything that this store has read or written, even after a move to another server and in a new
session. Therefore:

- A method that looks up one thing by name syncs and looks once more before it says that it does not exist.
- ``read_ledger(fresh=True)`` syncs and reads again before it returns a ledger that is not closed.
- Callers that act on what others reported call ``sync`` first: a publish and every other change of a log, a plan, a
  takeover, a bookie's start, garbage collection. Later reads need no other sync, because they are no older.

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
    SUSPENDED = "suspended"  # the connection broke: what depends on ownership pauses
    LOST = "lost"  # the session is over: what depends on ownership ends


class Audit(enum.Enum):
    """The checks of an auditor; the values are the names of the records that say when each ended last."""

    LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class MetadataStore(Protocol):
    """Ledgers, bookies, cookies, under-replication and named logs of one cluster.

    Opened by :func:`bk_core.metadata.open_store`; ``close`` ends the session and its ephemeral registrations.
    """

    @property
    def uri(self) -> str: ...
    def instance_id(self) -> str:
        """The cluster's INSTANCEID. Raises NoClusterError, which names clusters nearby, or MetadataCorruptError if the
        root holds only a part of a cluster."""
        ...

    @property
    def session_id(self) -> int:
        """The number of the present session. If it is equal before and after some reads, these belong to one session
        (S9)."""
        ...

    def confirm_cluster(self) -> None:
        """Read INSTANCEID again. Raises MetadataCorruptError if it is gone or differs from the first ``instance_id``:
        then the absence of a record under this root proves nothing."""
        ...

    def initialize_cluster(self, instance_id: str | None = None) -> str:
        """Create a cluster (layout hierarchical, M1) if the root is empty or does not exist; returns the INSTANCEID at
        the root. If several callers try at once, exactly one gets back its own ``instance_id``. Raises NoClusterError
        if the root holds something else, MetadataCorruptError if it holds only a part of a cluster."""
        ...

    @property
    def unreadable(self) -> UnreadableNodes:
        """The nodes that this store met and could not read, and that are still there as far as it knows. Every walk
        skips such a node and goes on; a look-up of one node raises MetadataCorruptError, which names its path (M6)."""
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
        """Create the ledger's record; without ``ledger_id`` the store picks one. A record without a c_token gets one,
        which tells after a lost answer whether a record that is found is ours (MUST 8). Raises LedgerExistsError if
        the given id is taken."""
        ...

    def read_ledger(self, ledger_id: LedgerId, *, fresh: bool = False) -> Versioned[LedgerMetadata]:
        """With ``fresh``, a record that is not closed is as new as the call. Raises NoSuchLedgerError."""
        ...

    def ledger_ctime_ms(self, ledger_id: LedgerId) -> int:
        """When the record was created, by the store's clock (N6). Raises NoSuchLedgerError."""
        ...

    def ledger_times_ms(self, ledger_id: LedgerId) -> tuple[int, int]:
        """When the record was created, and when it was written last, by the store's clock. Raises
        NoSuchLedgerError."""
        ...

    def write_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned[LedgerMetadata]:
        """Compare-and-set against ``version``. Raises MetadataConflictError (another version), NoSuchLedgerError, or
        MetadataUnavailableError; if its ``outcome`` is UNKNOWN, the caller reads the record again and compares."""
        ...

    def write_repaired_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int
    ) -> Versioned[LedgerMetadata]:
        """As ``write_ledger``, in one step with a look that this session holds the lock of the ledger's repairs
        (``lock_underreplicated``). Raises MetadataError if it does not: then a bookie that was copied to may have given
        up the copy (decision 0051)."""
        ...

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        """Delete the record, only of ``version`` if given. Raises NoSuchLedgerError, MetadataConflictError."""
        ...

    def list_ledgers(self, after: LedgerId = -1) -> Iterator[LedgerId]:
        """All ids above ``after`` in ascending order, read lazily; those below cost little. Raises
        MetadataCorruptError if the root is gone."""
        ...

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> CancelWatch:
        """Call ``callback`` with each newer record, and a last time with None when the record was deleted.

        The watch is set when this returns: read the record afterwards, or a change before is missed. There is no call
        for the present state; after an outage, one call gives the newest record. Raises NoSuchLedgerError.
        """
        ...

    # --- bookies ---
    def writable_bookies(self) -> Mapping[BookieId, BookieServiceInfo]: ...
    def read_only_bookies(self) -> Mapping[BookieId, BookieServiceInfo]: ...
    def seen_bookies(self) -> tuple[Mapping[BookieId, BookieServiceInfo], Mapping[BookieId, BookieServiceInfo]] | None:
        """The writable and the read-only bookies as they were last read, if no watch has told of a change since; else
        None. Asks nobody and never waits; the same objects again while nothing changes."""
        ...

    def bookie_info(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        """The registration of a bookie, writable or read-only, or None; for empty data a bookie-rpc endpoint from its
        id."""
        ...

    def register_bookie(self, info: BookieServiceInfo, *, read_only: bool = False) -> None:
        """Create the ephemeral node. A node that another session left is deleted at once if it is of the same directory
        (incarnation and DIRECTORY_PROPERTY), because the caller holds the directory lock (M3). If it is of another
        directory, this waits one session timeout and then raises BookieIdentityError. A move between writable and
        read-only creates the new node before it deletes the old one."""
        ...

    def unregister_bookie(self, bookie_id: BookieId) -> None: ...

    # --- cookies (bytes in Apache's text format) ---
    def read_cookie(self, bookie_id: BookieId) -> Versioned[bytes] | None: ...
    def cookies(self) -> Mapping[BookieId, Cookie]:
        """The cookies of all bookies. One that cannot be read is left out."""
        ...

    def write_cookie(self, bookie_id: BookieId, cookie: bytes, version: int | None) -> None:
        """Compare-and-set; ``version`` None creates the cookie. Raises MetadataConflictError."""
        ...

    def delete_cookie(self, bookie_id: BookieId) -> None: ...
    def known_bookies(self) -> list[BookieId]:
        """All bookies that ever belonged to this cluster, sorted: those with a cookie or a state record, but those
        that were removed."""
        ...

    def read_bookie_state(self, bookie_id: BookieId) -> Versioned[bytes] | None:
        """Our own record of a bookie, at ``<root>-bookies/<id>``: incarnation, boot count, last sealed segment (S8)."""
        ...

    def write_bookie_state(self, bookie_id: BookieId, state: bytes, version: int | None) -> None: ...

    # --- what operators ordered bookies ---
    def bookie_orders(self) -> Mapping[BookieId, BookieOrder]:
        """The orders of all bookies. One that cannot be read is left out."""
        ...

    def read_bookie_order(self, bookie_id: BookieId) -> BookieOrder | None: ...
    def write_bookie_order(self, bookie_id: BookieId, order: BookieOrder | None) -> None:
        """The last order holds; None takes it back."""
        ...

    # --- under-replication ---
    def mark_underreplicated(self, ledger_id: LedgerId, missing: Sequence[BookieId]) -> None:
        """Create the ledger's mark in Apache's format, or add ``missing`` to it."""
        ...

    def list_underreplicated(self) -> Iterator[tuple[LedgerId, tuple[BookieId, ...]]]:
        """All marks, and the bookies that they name. One that cannot be read is left out."""
        ...

    def read_underreplicated(self, ledger_id: LedgerId) -> Versioned[UnderreplicationMark] | None:
        """The mark and its version, or None. A worker reads it before the ledger's record: then what it finds in the
        record is no older than the mark."""
        ...

    def remove_underreplicated(self, ledger_id: LedgerId, version: int) -> bool:
        """Remove the mark if it has this version and this session holds the ledger's lock, as it has to since before it
        read the mark: a mark that is made again has the version of the first. False if it must be looked at again;
        True if there is no mark now."""
        ...

    def lock_underreplicated(self, ledger_id: LedgerId, owner: str) -> bool:
        """Take the lock under which one worker repairs the ledger; False if another has it. It ends with the session.
        The mark needs it, and a change of the record that names a bookie to which was copied."""
        ...

    def unlock_underreplicated(self, ledger_id: LedgerId) -> None:
        """Give the lock back; a lock of another session stays."""
        ...

    def underreplication_locks(self) -> Mapping[LedgerId, str]:
        """The ledgers under repair, and by whom; by an empty name where the lock does not say so or cannot be read."""
        ...

    # --- auto-recovery of the whole cluster, as Apache's obeys it too ---
    def replication_enabled(self) -> bool:
        """Whether workers and auditors may work."""
        ...

    def enable_replication(self, enabled: bool) -> None: ...
    def lost_bookie_recovery_delay_s(self) -> int | None:
        """How long a bookie may be away before its copies count as lost; None if nobody has set it, or what was set
        cannot be read."""
        ...

    def set_lost_bookie_recovery_delay_s(self, seconds: int) -> None: ...
    def audit_time_ms(self, audit: Audit) -> int | None:
        """Return when the auditor last ended this check of the whole cluster, in ms by its own clock; None if it never
        did, or if the record cannot be read."""
        ...

    def write_audit_time_ms(self, audit: Audit, time_ms: int) -> None: ...
    def vote_for_auditor(self, owner: str) -> bool:
        """Cast this session's vote, unless it is cast; returns whether it is the first, and so ``owner`` the auditor.
        Call it again to hear of a change: a vote ends with its session."""
        ...

    def withdraw_vote(self) -> None:
        """Withdraw this session's vote."""
        ...

    def current_auditor(self) -> str | None:
        """Return the owner of the first vote, or None without votes. An unreadable vote counts: the text says so."""
        ...

    # --- roles ---
    def read_roles(self) -> Versioned[RolesTable] | None:
        """The table of roles, or None if nobody has made one: then mode ``secure`` allows nobody anything. Raises
        MetadataCorruptError for one that is not understood wholly."""
        ...

    def write_roles(self, table: RolesTable, version: int | None) -> Versioned[RolesTable]:
        """Compare-and-set; ``version`` None creates it. Raises MetadataConflictError."""
        ...

    # --- upkeep of named logs ---
    def vote_for_upkeep(self, owner: str) -> bool:
        """As :meth:`vote_for_auditor`, for the worker that keeps the logs, in an election of its own."""
        ...

    def withdraw_upkeep_vote(self) -> None: ...
    def current_upkeep_worker(self) -> str | None: ...
    def read_upkeep_record(self) -> Versioned[bytes] | None:
        """The record of the elected worker, at ``<root>-upkeep/record``; each worker writes it before each step."""
        ...

    def write_upkeep_record(self, record: bytes, version: int | None) -> Versioned[bytes]:
        """Compare-and-set; ``version`` None creates it. After a lost answer, equal bytes in the next version count as
        written, so a record names its session. Raises MetadataConflictError."""
        ...

    # --- named logs: opaque bytes at <root>-logs/<name> ---
    def log_clock_ms(self, name: str) -> int:
        """The time now by the store's clock, which also gives the times below; a client's clock may be wrong. Raises
        NoSuchLogError."""
        ...

    def list_logs(self) -> list[str]: ...
    def create_log(self, name: str, head: bytes) -> Versioned[bytes]:
        """Create the head, and the folders of pages, transactions and unlinked records. Raises LogExistsError."""
        ...

    def log_path(self, name: str, *below: str) -> str:
        """The path of a log's head, or of a node below it, for messages about it."""
        ...

    def read_log(self, name: str) -> Versioned[bytes]:
        """The head. Raises NoSuchLogError, without near names."""
        ...

    def write_logs(self, writes: Iterable[LogWrite]) -> list[Versioned[bytes]]:
        """Write several heads, with their transactions and unlinked records, in one step: all or none (N3, N6, K10).
        Raises MetadataConflictError; NoSuchLogError; InvalidArgumentError, before anything is sent, if they exceed
        1 MiB, the limit of a step; or MetadataUnavailableError, with outcome UNKNOWN if the answer was lost."""
        ...

    def watch_log(self, name: str, callback: Callable[[Versioned[bytes] | None], None]) -> CancelWatch: ...
    def delete_log(self, name: str, version: int | None = None) -> None:
        """Delete the head, pages, transactions and unlinked records; with ``version`` only if the head has it. Raises
        NoSuchLogError, MetadataConflictError."""
        ...

    # --- deleted logs whose ledgers wait to be deleted: opaque bytes at <root>-deletedlogs/<uuid> ---
    def deleted_log_path(self, log_uuid: str = "") -> str:
        """The path of the record, or of the folder of all records, for messages about it."""
        ...

    def create_deleted_log(self, log_uuid: str, record: bytes) -> None:
        """Create the record of a deleted log; one that is there already stays."""
        ...

    def read_deleted_log(self, log_uuid: str) -> tuple[int, bytes] | None:
        """When the record was created, by the store's clock, and its bytes; None if there is none."""
        ...

    def read_deleted_logs(self) -> list[tuple[str, int, bytes]]:
        """The uuid, creation time by the store's clock, and bytes of every record, in order of the uuids."""
        ...

    def forget_deleted_log(self, log_uuid: str) -> None:
        """Delete the record; one that is gone already is ignored."""
        ...

    def deleted_logs_clock_ms(self) -> int:
        """The time now by the store's clock, which also gives the times of the records."""
        ...

    # --- pages, unlinked records and transactions of a log ---
    def create_page(self, name: str, page: str, data: bytes) -> None:
        """Create an immutable page. Creating it again with the same bytes succeeds."""
        ...

    def read_page(self, name: str, page: str) -> bytes: ...
    def delete_page(self, name: str, page: str) -> None: ...
    def list_pages(self, name: str) -> list[str]: ...
    def page_ctime_ms(self, name: str, page: str) -> int | None:
        """When the page was created, by the store's clock (N6); None if there is no such page."""
        ...

    def read_unlinked(self, name: str) -> list[tuple[str, int, bytes]]:
        """The name, creation time by the store's clock, and bytes of every unlinked record, in order (N6)."""
        ...

    def delete_unlinked(self, name: str, records: Sequence[str]) -> None:
        """Delete unlinked records by name; those that are gone already are ignored. Names are never reused."""
        ...

    def read_txns(self, name: str, key: str) -> Versioned[bytes] | None:
        """A transaction record, or None; ``key`` is the SHA-256 of the appId, in hex."""
        ...

    def list_txns(self, name: str) -> list[str]: ...
    def delete_txns(self, name: str, versions: Mapping[str, int], head_version: int) -> None:
        """Delete these transaction records, by key, if each has its version and the head ``head_version``: all or none.

        Records change only together with the head, so what was read of them after that head is still true (N5). Raises
        NoSuchLogError, MetadataConflictError (also for a record that is gone), or MetadataUnavailableError.
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
