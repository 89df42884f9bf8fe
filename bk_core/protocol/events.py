# SPDX-License-Identifier: Apache-2.0
"""Events tell a machine what happened (past tense); effects tell its driver what to do (imperative).

A driver carries out effects in the order in which they are returned. It answers each request with exactly one event: an
answer or a failure. A missed deadline is a failure. The buffers in events and effects must not be changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bk_core.entries.batch import EntryBatch
from bk_core.entries.packets import Buffer as Buffer
from bk_core.errors import BookKeeperError
from bk_core.model import BookieId, EntryId, LedgerMetadata, Versioned
from bk_core.placement import FLAT, Landscape
from bk_core.wire.lane.reasons import AttachMode, Cut, EntryRange, Reason


# --- sessions with bookies (P1) --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FramesAcked:
    """The first ``frames`` frames of this session are durable at the bookie."""

    index: int
    session: int
    frames: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The bookie refused a frame or the session. The first ``frames`` frames of the session are durable."""

    index: int
    session: int
    frames: int
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class SessionBroken:
    """The stream broke. Frames after the last acked one may or may not be durable."""

    index: int
    session: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class Forced:
    """The bookie has synced the frames that it had acked in this session when the force was sent."""

    index: int
    session: int


@dataclass(frozen=True, slots=True)
class ForceFailed:
    """The bookie did not sync, or did not answer in time."""

    index: int
    session: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class AttachSession:
    """Open a session to the bookie at ensemble ``index``. If ``deferred``, the bookie may ack frames before it syncs
    them."""

    index: int
    bookie: BookieId
    session: int
    mode: AttachMode
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send a frame on an attached session. The frame already names the session."""

    index: int
    bookie: BookieId
    session: int
    frame: Buffer


@dataclass(frozen=True, slots=True)
class DetachSession:
    """End a session. Its later events are ignored."""

    index: int
    bookie: BookieId
    session: int


@dataclass(frozen=True, slots=True)
class SendForce:
    """Let the bookie sync the frames that it acked in this session, over the connection on which the session lives."""

    index: int
    bookie: BookieId
    session: int


SessionEvent: TypeAlias = FramesAcked | SessionEnded | SessionBroken
ForceEvent: TypeAlias = Forced | ForceFailed
SessionEffect: TypeAlias = AttachSession | SendFrame | DetachSession


# --- metadata store ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The compare-and-set was applied. ``metadata`` is the new record."""

    metadata: Versioned[LedgerMetadata]


@dataclass(frozen=True, slots=True)
class MetadataConflicted:
    """The compare-and-set found another version, so nothing was written."""


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """The record as the store holds it."""

    metadata: Versioned[LedgerMetadata]


@dataclass(frozen=True, slots=True)
class MetadataCallFailed:
    """A call to the metadata store failed. If the error's outcome is UNKNOWN, a write may have been applied."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class BookiesRead:
    """The bookies that are registered as writable. The ``quarantined`` bookies failed lately and are chosen last."""

    writable: tuple[BookieId, ...]
    quarantined: tuple[BookieId, ...] = ()
    landscape: Landscape = FLAT


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Write the ledger's record if its version is still ``version`` (compare-and-set)."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the record of the machine's ledger. With ``fresh`` the record must be as new as this call, unless the ledger
    is closed."""

    fresh: bool = False


@dataclass(frozen=True, slots=True)
class ReadBookies:
    """Read the writable bookies."""


@dataclass(frozen=True, slots=True)
class MarkUnderreplicated:
    """Record in the metadata store that these bookies lack entries of the ledger (P8)."""

    bookies: tuple[BookieId, ...]


MetadataEvent: TypeAlias = MetadataWritten | MetadataConflicted | MetadataRead | MetadataCallFailed | BookiesRead
MetadataEffect: TypeAlias = WriteMetadata | ReadMetadata | ReadBookies | MarkUnderreplicated


# --- time -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TimerFired:
    """The timer ``name`` expired."""

    name: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire the timer ``name`` once after ``delay_ms``; this replaces a running timer of that name."""

    name: str
    delay_ms: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Stop the timer ``name`` if it runs."""

    name: str


# --- writer -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Append:
    """The application hands over a batch; its entries get the next ids."""

    batch: EntryBatch


@dataclass(frozen=True, slots=True)
class Force:
    """The application wants every entry sent so far to be durable. It matters to a writer with deferred syncs, whose
    bookies ack entries before they sync them."""


@dataclass(frozen=True, slots=True)
class Close:
    """The application closes the ledger at its last entry."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Every entry up to ``lac`` is confirmed. Wake the callers that wait for one of these entries."""

    lac: EntryId


@dataclass(frozen=True, slots=True)
class Acked:
    """A writer with deferred syncs has an ack quorum for every entry up to ``through``. The entries are confirmed once
    they are forced."""

    through: EntryId


@dataclass(frozen=True, slots=True)
class Fail:
    """The machine has failed and does nothing more. Raise this error in every caller that still waits."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class SendLac:
    """Send the LAC to a bookie, so that readers learn it before the next entry (P9). No answer is expected."""

    bookie: BookieId
    lac_body: bytes


@dataclass(frozen=True, slots=True)
class FinishClose:
    """The ledger is closed. ``metadata`` is its record, which holds the last entry id."""

    metadata: Versioned[LedgerMetadata]


@dataclass(frozen=True, slots=True)
class FailClose:
    """The ledger could not be closed by this writer."""

    error: BookKeeperError


# --- reading and recovery ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SendRead:
    """Ask one bookie for the entries ``first`` to ``last``. With ``fence`` this is a recovery read, which also fences
    the ledger. With ``cut`` the bookie sends only these parts of the entries."""

    request: int
    bookie: BookieId
    first: EntryId
    last: EntryId
    bytes_max: int
    fence: bool = False
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class CancelRead:
    """Cancel this request. The machine does not need the rest of its answer."""

    request: int


@dataclass(frozen=True, slots=True)
class FramesRead:
    """A part of an answer to SendRead came. ``frames`` holds whole frames that are not verified yet."""

    request: int
    frames: memoryview


@dataclass(frozen=True, slots=True)
class ReadAnswered:
    """The trailer of an answer came (P4). Each id up to ``answered_through`` came in a frame or is in ``absent`` or
    ``unknown``. The bookie did not answer the ids above ``answered_through``."""

    request: int
    answered_through: EntryId
    absent: tuple[EntryRange, ...] = ()
    unknown: tuple[EntryRange, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """No answer came, or the answer broke off before its trailer. Ids that did not arrive are UNKNOWN (P4)."""

    request: int
    message: str
    reason: Reason = Reason.REASON_NONE


@dataclass(frozen=True, slots=True)
class DeliverBatch:
    """Hand the next entries of the range to the caller. They are verified and in order."""

    batch: EntryBatch


@dataclass(frozen=True, slots=True)
class FinishRead:
    """Every requested entry was delivered."""


@dataclass(frozen=True, slots=True)
class SendFence:
    """Fence the ledger on one bookie and ask for its evidence of the LAC."""

    index: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class SendReadLac:
    """Ask one bookie for its evidence of the LAC, without fencing. ``index`` is the number of the request."""

    index: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class SendWatchLac:
    """Ask one bookie for its evidence of the LAC. The bookie answers once its LAC is above ``above`` or its wait times
    out (P10). ``index`` is the number of the request."""

    index: int
    bookie: BookieId
    above: EntryId


@dataclass(frozen=True, slots=True)
class LacAnswered:
    """A bookie sent its evidence of the LAC. Only evidence with a valid digest counts (P5). If the request was
    SendFence, the fence is durable."""

    index: int
    last_entry_frame: Buffer = b""
    lac_body: bytes = b""
    lac_frame: Buffer = b""


@dataclass(frozen=True, slots=True)
class LacFailed:
    """The bookie did not answer a request for its evidence of the LAC, or refused it."""

    index: int
    message: str
    reason: Reason = Reason.REASON_NONE


LacEvent: TypeAlias = LacAnswered | LacFailed
ReadEvent: TypeAlias = FramesRead | ReadAnswered | ReadFailed


@dataclass(frozen=True, slots=True)
class FinishRecovery:
    """This recovery or another client has closed the ledger. ``metadata`` is its record, which holds the last entry
    id."""

    metadata: Versioned[LedgerMetadata]
    recovered_entries: int


@dataclass(frozen=True, slots=True)
class FinishEnd:
    """Readers may see the entries up to ``last``. ``metadata`` is the ledger's record as it was read last."""

    metadata: Versioned[LedgerMetadata]
    last: EntryId


@dataclass(frozen=True, slots=True)
class BackOff:
    """Fire the timer ``again`` after ``factor`` times the duration of this attempt of a recovery (P7)."""

    factor: float


# --- following a ledger that another client writes --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class RefreshLac:
    """A caller wants the current record and the current LAC. The follower answers with FinishRefresh for ``caller``."""

    caller: int


@dataclass(frozen=True, slots=True)
class FinishRefresh:
    """The record and the LAC that ``caller`` requested are known, or ``error`` says why they are not."""

    caller: int
    error: BookKeeperError | None


@dataclass(frozen=True, slots=True)
class WatchMetadata:
    """Watch the record of the machine's ledger from now on."""


@dataclass(frozen=True, slots=True)
class MetadataWatched:
    """The watch on the record is set, or ``error`` says why not."""

    error: BookKeeperError | None = None


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The watch saw a newer record, or (None) that the record was deleted."""

    metadata: Versioned[LedgerMetadata] | None
