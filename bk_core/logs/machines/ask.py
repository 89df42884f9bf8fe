# SPDX-License-Identifier: Apache-2.0
"""The requests of a log's sequences, and their answers. Pure.

A sequence is a generator that yields one request at a time: ``answer = yield request``. The driver answers with the
object that the request's docstring names after the arrow, or with None if there is no arrow. If the request fails, the
driver raises a BookKeeperError at the ``yield``. So a sequence reads from top to bottom, and an ``except`` around a
``yield`` says what a failure means there.

The driver may drop a sequence at any ``yield``. The result is the same as after a crash at this point.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from bk_core.logs.model.compaction import CompactionLimits, Content, Run
from bk_core.logs.model.head import NOTHING_UNLINKED, Extent, LogHead, LogTransactions, NewExtent, Unlinked
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.logs.model.paging import NewPage
from bk_core.model import LedgerId, Versioned

R = TypeVar("R")

# --- requests about one log whose head is to be changed ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Read the head, and the transaction record of ``app_id`` if given. → HeadRead"""

    app_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeadRead:
    """The head that was read, and the requested transaction record, or None if there is none."""

    head: Versioned[LogHead]
    transactions: Versioned[LogTransactions] | None = None


@dataclass(frozen=True, slots=True)
class ReadPages:
    """Read these pages, which never change. → the pages by name"""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckLedgers:
    """Check that these ledgers may be listed under ``head``. Each must exist *now*, be closed at the reported end, have
    the log's digest type and password, and not be made for another log (N6). Raises PublishConflictError."""

    head: LogHead
    extents: tuple[NewExtent, ...]


@dataclass(frozen=True, slots=True)
class RecoverLedgers:
    """Fence, recover and close these ledgers. → LedgersRecovered"""

    ledgers: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class LedgersRecovered:
    """The ends of the recovered ledgers. The ledgers in ``missing`` do not exist."""

    ends: Mapping[LedgerId, LedgerEnd]
    missing: frozenset[LedgerId] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadUnlinked:
    """Read every unlinked record, after the head was read. → the records, which cover every change of the head up to
    the version that was read"""


@dataclass(frozen=True, slots=True)
class CreatePages:
    """Create these pages, which no head names yet."""

    pages: tuple[NewPage, ...]


OfOneLog: TypeAlias = ReadHead | ReadPages | CheckLedgers | RecoverLedgers | ReadUnlinked | CreatePages

# --- requests about all logs that are changed together, mostly one ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForLogs:
    """Carry out a request for each log, in any order. With ``sync`` first make sure that the store shows every finished
    write. → the answers by log, with a BookKeeperError for a request that failed"""

    requests: Mapping[str, OfOneLog]
    sync: bool = False


@dataclass(frozen=True, slots=True)
class WriteHead:
    """One log's part of WriteHeads. ``head`` replaces the head that has ``version``. ``transactions``, if given,
    replaces the transaction record that has ``transactions_version``, or becomes a new record if that is None.
    ``unlinked``, unless empty, becomes a new record."""

    head: LogHead
    version: int
    transactions: LogTransactions | None = None
    transactions_version: int | None = None
    unlinked: Unlinked = NOTHING_UNLINKED


@dataclass(frozen=True, slots=True)
class WriteHeads:
    """Write the heads of logs, by name, in one multi, all or none. Raises MetadataConflictError if a log had another
    version; then nothing was written. The ``outcome`` of any other error says whether the write may have been applied,
    or may still be applied."""

    writes: Mapping[str, WriteHead]


@dataclass(frozen=True, slots=True)
class DropPages:
    """Delete pages, by log, that no head ever named. A failure is ignored, because vacuum finds such pages."""

    names: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause for a random time that grows with ``attempt``."""

    attempt: int


# --- vacuum -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListOrphans:
    """Find the ledgers that were made for this log, by their custom metadata, before ``before_ms`` by the clock of the
    metadata store. ``among`` limits the search to these ledgers. → the ledgers, some of which the log may list"""

    log_uuid: str
    before_ms: int
    among: tuple[LedgerId, ...] | None = None


@dataclass(frozen=True, slots=True)
class DeleteLedgers:
    """Delete these condemned ledgers, except those whose custom metadata does not name this log. → the ledgers that
    certainly do not exist now"""

    ledgers: tuple[LedgerId, ...]
    log_uuid: str


@dataclass(frozen=True, slots=True)
class ListPages:
    """Find the pages that were made before this time by the store's clock. → their names; the head may reach some of
    them"""

    before_ms: int


@dataclass(frozen=True, slots=True)
class DeleteUnlinked:
    """Delete these unlinked records. They are older than the delay, so they no longer protect any ledger or page."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletePages:
    """Delete these pages. No head and no unlinked record reaches them now or later. A failure is ignored."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """Find all transaction records. → their keys"""


@dataclass(frozen=True, slots=True)
class ReadTransactions:
    """Read the head, then these transaction records. → TransactionsRead"""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TransactionsRead:
    """The head, and the transaction records that exist, by key. Each record was read after the head."""

    head: Versioned[LogHead]
    records: Mapping[str, Versioned[LogTransactions]]


@dataclass(frozen=True, slots=True)
class DeleteTransactions:
    """Delete these transaction records, all or none, if each still has its version and the head has ``head_version``.
    Raises the errors of WriteHeads."""

    versions: Mapping[str, int]
    head_version: int


# --- deletion of a log ---------------------------------------------------------------------------------------------

ANY_AGE_MS = 2**62
"""A time in milliseconds that is later than the creation of any ledger."""


@dataclass(frozen=True, slots=True)
class RecordDeleted:
    """Create the record of this deleted log, unless the record exists. The log must be marked as deleted. → its
    DeletedLog. Raises NoSuchLogError if there is neither a mark nor a record."""

    log_uuid: str


@dataclass(frozen=True, slots=True)
class RemoveMark:
    """Remove the mark of this deleted log and all nodes below it. If the mark is gone, do nothing."""

    log_uuid: str


@dataclass(frozen=True, slots=True)
class ForgetDeleted:
    """Delete the record of this deleted log. No ledger of the log is left."""

    log_uuid: str


# --- compaction -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListExtents:
    """Read the log's present sealed extents. → ExtentsListed"""


@dataclass(frozen=True, slots=True)
class ExtentsListed:
    """The log's sealed extents in order, and the compaction limits, which depend on the log's retention."""

    log_uuid: str
    extents: Sequence[Extent]
    limits: CompactionLimits


@dataclass(frozen=True, slots=True)
class CopyRun:
    """Copy all entries of the run, in order, into a new ledger and close it. ``number`` counts the copies of a
    compaction. If the copy fails, its ledger is deleted now or by vacuum. → RunCopied"""

    run: Run
    number: int


@dataclass(frozen=True, slots=True)
class RunCopied:
    """The finished copy of a run. ``new`` is the closed ledger. ``content`` describes the entries that were read from
    the run."""

    new: NewExtent
    content: Content


@dataclass(frozen=True, slots=True)
class ReadCopy:
    """Read the whole ledger ``new`` from its bookies. → its Content"""

    new: NewExtent


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Delete a copy that no write ever named. A failure is ignored, because vacuum finds the ledger."""

    ledger_id: LedgerId


OfVacuum: TypeAlias = (
    ListOrphans
    | DeleteLedgers
    | ListPages
    | DeleteUnlinked
    | DeletePages
    | ListTransactions
    | ReadTransactions
    | DeleteTransactions
)
OfDeletion: TypeAlias = RecordDeleted | RemoveMark | ForgetDeleted
OfCompaction: TypeAlias = ListExtents | CopyRun | ReadCopy | DropCopy
Request: TypeAlias = ForLogs | WriteHeads | DropPages | Wait | OfVacuum | OfDeletion | OfCompaction
Steps = Generator[Request, Any, R]
"""A sequence whose result is an R."""
