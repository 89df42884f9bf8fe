# SPDX-License-Identifier: Apache-2.0
"""What happens to a machine (events, in the past tense) and what it asks for (effects, imperative).

Effects are carried out in the order they are returned. A driver turns each request into exactly one event: an answer
or a failure, its deadline included. Buffers inside events and effects are never written to by anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bk_core.entries.batch import EntryBatch
from bk_core.entries.packets import Buffer as Buffer
from bk_core.errors import BookKeeperError
from bk_core.model import BookieId, EntryId, LedgerMetadata, Versioned
from bk_core.wire.lane import AttachMode, EntryRange, Reason


# --- sessions with bookies (RULES P1) --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FramesAcked:
    """The first ``frames`` frames of this session are durable at the bookie."""

    index: int
    session: int
    frames: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The bookie refused a frame or the session; the first ``frames`` are durable."""

    index: int
    session: int
    frames: int
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class SessionBroken:
    """The stream is gone; frames above the last ack may be durable or not."""

    index: int
    session: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class AttachSession:
    """Open a session to the bookie at ensemble ``index``."""

    index: int
    bookie: BookieId
    session: int
    mode: AttachMode


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send a frame, which names its session already, on an attached session."""

    index: int
    bookie: BookieId
    session: int
    frame: Buffer


@dataclass(frozen=True, slots=True)
class DetachSession:
    """Forget a session; nothing it says later is heard."""

    index: int
    bookie: BookieId
    session: int


SessionEvent: TypeAlias = FramesAcked | SessionEnded | SessionBroken
SessionEffect: TypeAlias = AttachSession | SendFrame | DetachSession


# --- metadata store ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The compare-and-set was applied; this is the record now."""

    metadata: Versioned[LedgerMetadata]


@dataclass(frozen=True, slots=True)
class MetadataConflicted:
    """The compare-and-set met another version; nothing was written."""


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """The record as the store holds it."""

    metadata: Versioned[LedgerMetadata]


@dataclass(frozen=True, slots=True)
class MetadataCallFailed:
    """A read or write of the store failed; a write may have been applied where the error's outcome is UNKNOWN."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class BookiesRead:
    """The bookies registered as writable now; those that failed lately (``quarantined``) are taken last."""

    writable: tuple[BookieId, ...]
    quarantined: tuple[BookieId, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set against ``version``."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the record of the machine's ledger; `fresh`: as it is now, unless it is closed."""

    fresh: bool = False


@dataclass(frozen=True, slots=True)
class ReadBookies:
    """Read the writable bookies."""


@dataclass(frozen=True, slots=True)
class MarkUnderreplicated:
    """Note in the store that these bookies miss entries of the ledger (RULES P8)."""

    bookies: tuple[BookieId, ...]


MetadataEvent: TypeAlias = MetadataWritten | MetadataConflicted | MetadataRead | MetadataCallFailed | BookiesRead
MetadataEffect: TypeAlias = WriteMetadata | ReadMetadata | ReadBookies | MarkUnderreplicated


# --- time -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TimerFired:
    """The timer of this name ran out."""

    name: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire once after ``delay_ms``; replaces a running timer of the same name."""

    name: str
    delay_ms: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Stop the timer of this name, if it runs."""

    name: str


# --- writer -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Append:
    """The application hands over a batch; its entries get the next ids."""

    batch: EntryBatch


@dataclass(frozen=True, slots=True)
class Close:
    """The application closes the ledger at its last entry."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Every entry up to ``lac`` is confirmed: tell who waits."""

    lac: EntryId


@dataclass(frozen=True, slots=True)
class Fail:
    """The machine is done for: everything unconfirmed fails with this error. Nothing follows."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class SendLac:
    """Hint the LAC to a bookie (RULES P9): best effort, no answer expected."""

    bookie: BookieId
    lac_body: bytes


@dataclass(frozen=True, slots=True)
class FinishClose:
    """The ledger is CLOSED in the store at this end."""

    metadata: Versioned[LedgerMetadata]


@dataclass(frozen=True, slots=True)
class FailClose:
    """The ledger could not be closed by this writer."""

    error: BookKeeperError


# --- reading and recovery ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SendRead:
    """Ask one bookie for entries first to last. ``fence`` makes it a recovery read."""

    request: int
    bookie: BookieId
    first: EntryId
    last: EntryId
    bytes_max: int
    fence: bool = False


@dataclass(frozen=True, slots=True)
class CancelRead:
    """No more of this answer is wanted."""

    request: int


@dataclass(frozen=True, slots=True)
class FramesRead:
    """A piece of an answer: whole frames, not verified yet."""

    request: int
    frames: memoryview


@dataclass(frozen=True, slots=True)
class ReadAnswered:
    """The end of an answer (RULES P4): ids from the first asked to ``answered_through`` were in a frame, ``absent`` or
    ``unknown``; above it nothing is said."""

    request: int
    answered_through: EntryId
    absent: tuple[EntryRange, ...] = ()
    unknown: tuple[EntryRange, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """No answer, or it was cut before its end: nothing is known of ids that did not arrive."""

    request: int
    message: str
    reason: Reason = Reason.REASON_NONE


@dataclass(frozen=True, slots=True)
class DeliverBatch:
    """The next entries, verified and in order."""

    batch: EntryBatch


@dataclass(frozen=True, slots=True)
class FinishRead:
    """Every entry asked for was delivered."""


@dataclass(frozen=True, slots=True)
class SendFence:
    """Fence the ledger on one bookie and ask for its evidence of the LAC."""

    index: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class SendReadLac:
    """Ask one bookie for its evidence of the LAC, without fencing; ``index`` numbers the request."""

    index: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class SendWatchLac:
    """Ask one bookie for its evidence once it has a LAC above ``above``, or after a while (RULES P10)."""

    index: int
    bookie: BookieId
    above: EntryId


@dataclass(frozen=True, slots=True)
class LacAnswered:
    """A bookie's evidence: only what is digested counts (RULES P5). For a fence: it is fenced durably."""

    index: int
    last_entry_frame: Buffer = b""
    lac_body: bytes = b""
    lac_frame: Buffer = b""


@dataclass(frozen=True, slots=True)
class LacFailed:
    """The bookie did not answer, or refused."""

    index: int
    message: str
    reason: Reason = Reason.REASON_NONE


LacEvent: TypeAlias = LacAnswered | LacFailed
ReadEvent: TypeAlias = FramesRead | ReadAnswered | ReadFailed


@dataclass(frozen=True, slots=True)
class FinishRecovery:
    """The ledger is CLOSED in the store, by us or by another recoverer; this is its end."""

    metadata: Versioned[LedgerMetadata]
    recovered_entries: int


@dataclass(frozen=True, slots=True)
class BackOff:
    """Fire the timer ``again`` after ``factor`` times the time since this attempt began (RULES P7)."""

    factor: float


# --- following a ledger that others write -----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RefreshLac:
    """Somebody wants the record and the LAC as they are now; ``caller`` is told by FinishRefresh."""

    caller: int


@dataclass(frozen=True, slots=True)
class FinishRefresh:
    """What ``caller`` asked for is known; or ``error`` says why it is not."""

    caller: int
    error: BookKeeperError | None


@dataclass(frozen=True, slots=True)
class WatchMetadata:
    """Watch the record of the machine's ledger from now on."""


@dataclass(frozen=True, slots=True)
class MetadataWatched:
    """The watch is set, or ``error`` says why it is not."""

    error: BookKeeperError | None = None


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The watch saw a newer record; None: it was deleted."""

    metadata: Versioned[LedgerMetadata] | None
