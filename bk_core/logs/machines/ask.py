# SPDX-License-Identifier: Apache-2.0
"""What the sequences of a log ask for. Pure.

A sequence is a generator: ``answer = yield request``. It has one request outstanding. The driver answers each request
with what its docstring names after the arrow (nothing named: None), or raises a BookKeeperError where the sequence
waits. So a sequence reads from top to bottom, and an ``except`` beside a ``yield`` says what a failure means there.
Nobody has to answer: a sequence that is dropped at any ``yield`` leaves what a crash there would leave.
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

# --- what is asked of one log when its head is to be changed ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Read the head, and the transactions of ``app_id`` if given. → HeadRead"""

    app_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeadRead:
    """The head, and the transaction record that was asked for: None if there is none."""

    head: Versioned[LogHead]
    transactions: Versioned[LogTransactions] | None = None


@dataclass(frozen=True, slots=True)
class ReadPages:
    """Read these pages. → the pages by name; they are immutable"""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckLedgers:
    """Whether these may be listed under ``head``: they exist *now*, and the rest of RULES N6. Raises
    PublishConflictError."""

    head: LogHead
    extents: tuple[NewExtent, ...]


@dataclass(frozen=True, slots=True)
class RecoverLedgers:
    """Fence, recover and close these. → LedgersRecovered"""

    ledgers: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class LedgersRecovered:
    """Where the ledgers end; ``missing`` ones do not exist."""

    ends: Mapping[LedgerId, LedgerEnd]
    missing: frozenset[LedgerId] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadUnlinked:
    """Read every record of what was unlinked, now that the head was read. → the records, each change of the head up to
    the one read last in view"""


@dataclass(frozen=True, slots=True)
class CreatePages:
    """Create these pages, which nothing names yet."""

    pages: tuple[NewPage, ...]


OfOneLog: TypeAlias = ReadHead | ReadPages | CheckLedgers | RecoverLedgers | ReadUnlinked | CreatePages

# --- what is asked of all logs that are changed together; one log is the usual case -----------------------------------


@dataclass(frozen=True, slots=True)
class ForLogs:
    """Ask each log its own, in any order; ``sync``: first see to it that the store shows every write that ended.
    → the answers by log; of a log that cannot, its BookKeeperError"""

    requests: Mapping[str, OfOneLog]
    sync: bool = False


@dataclass(frozen=True, slots=True)
class WriteHead:
    """Compare-and-set: ``head`` in the place of version ``version``, ``transactions`` in the place of their version,
    None for a new record, and a new record of what is ``unlinked``, if anything is; all or nothing."""

    head: LogHead
    version: int
    transactions: LogTransactions | None = None
    transactions_version: int | None = None
    unlinked: Unlinked = NOTHING_UNLINKED


@dataclass(frozen=True, slots=True)
class WriteHeads:
    """Compare-and-set of each log, by name, in one multi: all or nothing. Raises MetadataConflictError when it met
    another version, so that it was certainly not applied; of any other error ``outcome`` says whether it may have
    been, or may still be."""

    writes: Mapping[str, WriteHead]


@dataclass(frozen=True, slots=True)
class DropPages:
    """Delete pages, by log, whose names nobody has seen. Best effort."""

    names: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause for a random time that grows with ``attempt``."""

    attempt: int


# --- vacuum -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListOrphans:
    """Find ledgers whose keys say that they are this log's, made before this time by the store's clock. → ledgers, of
    which the log may list some"""

    log_uuid: str
    before_ms: int


@dataclass(frozen=True, slots=True)
class DeleteLedgers:
    """Delete condemned ledgers, but none whose keys do not say that it is this log's. → those that do not exist any
    more, for certain"""

    ledgers: tuple[LedgerId, ...]
    log_uuid: str


@dataclass(frozen=True, slots=True)
class ListPages:
    """Find pages made before this time by the store's clock. → names, of which the head may reach some"""

    before_ms: int


@dataclass(frozen=True, slots=True)
class DeleteUnlinked:
    """Delete records of what was unlinked long ago: they keep nothing any more."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletePages:
    """Delete pages that no head and no record reaches or will reach. Best effort."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """Find every transaction record. → their keys"""


@dataclass(frozen=True, slots=True)
class ReadTransactions:
    """Read the head, then these transaction records. → TransactionsRead"""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TransactionsRead:
    """The head, and the records that there were, by key, each read after it."""

    head: Versioned[LogHead]
    records: Mapping[str, Versioned[LogTransactions]]


@dataclass(frozen=True, slots=True)
class DeleteTransactions:
    """Compare-and-set: delete records, each of this version, under the head of this version; all or none. Raises as
    WriteHeads."""

    versions: Mapping[str, int]
    head_version: int


# --- compaction -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListExtents:
    """Read the log as it is now, and its sealed extents. → ExtentsListed"""


@dataclass(frozen=True, slots=True)
class ExtentsListed:
    """The log's sealed extents in order, and the limits with its retention in view."""

    log_uuid: str
    extents: Sequence[Extent]
    limits: CompactionLimits


@dataclass(frozen=True, slots=True)
class CopyRun:
    """Copy all entries of the run, in order, into a new ledger and close it. ``number`` counts copies. A copy that was
    begun and failed is deleted, or left to vacuum. → RunCopied"""

    run: Run
    number: int


@dataclass(frozen=True, slots=True)
class RunCopied:
    """``new`` is closed; ``content`` is what was read from the run."""

    new: NewExtent
    content: Content


@dataclass(frozen=True, slots=True)
class ReadCopy:
    """Read the whole new ledger from its bookies. → its Content"""

    new: NewExtent


@dataclass(frozen=True, slots=True)
class DropCopy:
    """Delete a ledger of ours that nobody tried to list. Best effort."""

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
OfCompaction: TypeAlias = ListExtents | CopyRun | ReadCopy | DropCopy
Request: TypeAlias = ForLogs | WriteHeads | DropPages | Wait | OfVacuum | OfCompaction
Steps = Generator[Request, Any, R]
"""A sequence that ends with an R."""
