# SPDX-License-Identifier: Apache-2.0
"""What happens to the machines that change a log's head, and what they ask for. Pure.

An effect that asks for something names, after an arrow, the events of which exactly one answers it. Any
request may be answered by RequestFailed as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from bk_core.errors import BookKeeperError
from bk_core.logs.commit import LedgerEnd
from bk_core.logs.head import NOTHING_UNLINKED, LogHead, LogPage, LogTransactions, NewExtent, Unlinked
from bk_core.logs.paging import NewPage
from bk_core.logs.unlinking import UnlinkedRecord
from bk_core.model import LedgerId, Versioned

# --- commands and events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The first command."""


@dataclass(frozen=True, slots=True)
class Abort:
    """The job will not publish: clean up what may be cleaned up. For a :class:`..publication.Publication`."""


@dataclass(frozen=True, slots=True)
class HeadRead:
    """The head, and the transaction record that was asked for: None if there is none."""

    head: Versioned[LogHead]
    transactions: Versioned[LogTransactions] | None = None


@dataclass(frozen=True, slots=True)
class PagesRead:
    """Pages by name. They are immutable."""

    pages: Mapping[str, LogPage]


@dataclass(frozen=True, slots=True)
class LedgersChecked:
    """Every ledger exists, is closed and ends where its writer says."""


@dataclass(frozen=True, slots=True)
class LedgersRecovered:
    """The ledgers are fenced, recovered and closed, and end here; ``missing`` ones do not exist."""

    ends: Mapping[LedgerId, LedgerEnd]
    missing: frozenset[LedgerId] = frozenset()


@dataclass(frozen=True, slots=True)
class UnlinkedRead:
    """Every record of what was unlinked, each change of the head up to the one read last in view."""

    records: tuple[UnlinkedRecord, ...]


@dataclass(frozen=True, slots=True)
class PagesCreated:
    """All pages exist."""


@dataclass(frozen=True, slots=True)
class HeadWritten:
    """The compare-and-set was applied."""


@dataclass(frozen=True, slots=True)
class HeadConflicted:
    """The compare-and-set met another version: it was certainly not applied."""


@dataclass(frozen=True, slots=True)
class HeadWriteUnknown:
    """No answer: the compare-and-set was applied, will be applied, or not."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class OrphansListed:
    """Ledgers that say they are this log's and are older than the delay; some are listed in it."""

    ledgers: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class LedgersDeleted:
    """These do not exist any more, for certain."""

    ledgers: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class PagesListed:
    """Names of the log's pages that are older than the delay; some are reached from its head."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnlinkedDeleted:
    """The records are gone, for certain."""


@dataclass(frozen=True, slots=True)
class PagesDeleted:
    """The pages are gone, as far as could be."""


@dataclass(frozen=True, slots=True)
class TransactionsListed:
    """The keys of all transaction records."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TransactionsRead:
    """The head, and the records that there were, by key, each read after it."""

    head: Versioned[LogHead]
    records: Mapping[str, Versioned[LogTransactions]]


@dataclass(frozen=True, slots=True)
class TransactionsDeleted:
    """All of them are gone."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """What was asked for cannot be had. Of a compare-and-set: it was not applied."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class LogsAnswered:
    """What each of several logs answers to :class:`ForLogs`; of one that cannot, RequestFailed."""

    answers: Mapping[str, Event]


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The pause of :class:`Wait` is over."""


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Read the head, and the transactions of ``app_id`` if given; ``sync``: as new as any write that ended.
    → HeadRead"""

    sync: bool = False
    app_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReadPages:
    """Read these pages. → PagesRead"""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckLedgers:
    """Whether these may be listed under ``head``: they exist *now*, and the rest of RULES N6. → LedgersChecked"""

    head: LogHead
    extents: tuple[NewExtent, ...]


@dataclass(frozen=True, slots=True)
class RecoverLedgers:
    """Fence, recover and close these. → LedgersRecovered"""

    ledgers: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class ReadUnlinked:
    """Read every record of what was unlinked, now that the head was read. → UnlinkedRead"""


@dataclass(frozen=True, slots=True)
class CreatePages:
    """Create these pages, which nothing names yet. → PagesCreated"""

    pages: tuple[NewPage, ...]


@dataclass(frozen=True, slots=True)
class WriteHead:
    """Compare-and-set: ``head`` in the place of version ``version``, ``transactions`` in the place of their version,
    None for a new record, and a new record of what is ``unlinked``, if anything is; all or nothing. → HeadWritten,
    HeadConflicted, HeadWriteUnknown"""

    head: LogHead
    version: int
    transactions: LogTransactions | None = None
    transactions_version: int | None = None
    unlinked: Unlinked = NOTHING_UNLINKED


@dataclass(frozen=True, slots=True)
class DropPages:
    """Delete pages whose names nobody has seen. Best effort; no answer."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropLedgers:
    """Delete ledgers that certainly no compare-and-set named. Best effort; no answer."""

    ledgers: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class ListOrphans:
    """Find ledgers whose keys say that they are this log's, made before this time by the store's clock.
    → OrphansListed"""

    log_uuid: str
    before_ms: int


@dataclass(frozen=True, slots=True)
class DeleteLedgers:
    """Delete condemned ledgers, but none whose keys do not say that it is this log's. → LedgersDeleted"""

    ledgers: tuple[LedgerId, ...]
    log_uuid: str


@dataclass(frozen=True, slots=True)
class ListPages:
    """Find pages made before this time by the store's clock. → PagesListed"""

    before_ms: int


@dataclass(frozen=True, slots=True)
class DeleteUnlinked:
    """Delete records of what was unlinked long ago: they keep nothing any more. → UnlinkedDeleted"""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletePages:
    """Delete pages that no head and no record reaches or will reach. → PagesDeleted"""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """Find every transaction record. → TransactionsListed"""


@dataclass(frozen=True, slots=True)
class ReadTransactions:
    """Read the head, then these transaction records. → TransactionsRead"""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteTransactions:
    """Compare-and-set: delete records, each of this version, under the head of this version; all or none.
    → TransactionsDeleted, HeadConflicted"""

    versions: Mapping[str, int]
    head_version: int


@dataclass(frozen=True, slots=True)
class ForLogs:
    """The same of several logs: each carries its own request out, in any order; ``sync``: once before them all.
    → LogsAnswered"""

    requests: Mapping[str, Effect]
    sync: bool = False


@dataclass(frozen=True, slots=True)
class WriteHeads:
    """Compare-and-set of several logs, by name: all or nothing. → HeadWritten, HeadConflicted, HeadWriteUnknown"""

    writes: Mapping[str, WriteHead]


@dataclass(frozen=True, slots=True)
class DropPagesOf:
    """As DropPages, of several logs."""

    names: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause for a random time that grows with ``attempt``. → WaitEnded"""

    attempt: int


@dataclass(frozen=True, slots=True)
class Finish:
    """It is done. Nothing follows."""

    result: Any


@dataclass(frozen=True, slots=True)
class Fail:
    """It is not done; ``error.outcome`` says if it may yet turn out to be. Nothing follows."""

    error: BookKeeperError


Event: TypeAlias = (
    Start
    | Abort
    | HeadRead
    | PagesRead
    | LedgersChecked
    | LedgersRecovered
    | UnlinkedRead
    | PagesCreated
    | HeadWritten
    | HeadConflicted
    | HeadWriteUnknown
    | OrphansListed
    | LedgersDeleted
    | PagesListed
    | UnlinkedDeleted
    | PagesDeleted
    | TransactionsListed
    | TransactionsRead
    | TransactionsDeleted
    | RequestFailed
    | LogsAnswered
    | WaitEnded
)
Effect: TypeAlias = (
    ReadHead
    | ReadPages
    | CheckLedgers
    | RecoverLedgers
    | ReadUnlinked
    | CreatePages
    | WriteHead
    | DropPages
    | DropLedgers
    | ListOrphans
    | DeleteLedgers
    | ListPages
    | DeleteUnlinked
    | DeletePages
    | ListTransactions
    | ReadTransactions
    | DeleteTransactions
    | ForLogs
    | WriteHeads
    | DropPagesOf
    | Wait
    | Finish
    | Fail
)
