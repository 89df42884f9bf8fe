# SPDX-License-Identifier: Apache-2.0
"""The inputs (events) and outputs (effects) of the bookie's machine. Plain data; no behaviour.

A *stream* is one stream of a lane, named by an integer that the driver never uses twice. A *request* is named by its
stream and an id that is unique there. Each request gets exactly one ending: a trailer, a LAC answer or a reply; after
RequestCancelled or StreamClosed it gets none. The types that every add creates are named tuples, which cost less to
create than dataclasses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from bk_core.entries.frame import FrameHeader
from bk_core.model import EntryId, LedgerId
from bk_core.wire.lane.evidence import LacEvidence, ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, Cut, Reason
from bookie_server.machine.disk_places import Place, Unresolved

StreamId: TypeAlias = int
RequestId: TypeAlias = tuple[StreamId, int]
TimerId: TypeAlias = RequestId | None
"""The request of a watch, or None for the timer that makes LACs durable."""

# --- events: the add stream ---


@dataclass(frozen=True, slots=True)
class SessionAttached:
    """A client opened a session. Frames of one ledger will follow under its number. The key proves the client's right
    to write to the ledger (RULES L2)."""

    stream: StreamId
    session: int
    ledger_id: LedgerId
    ledger_key: bytes = field(repr=False)
    mode: AttachMode
    explicit_ids: bool = False


class FramesArrived(NamedTuple):
    """The frames of one message, in a buffer that is not written to again."""

    stream: StreamId
    frames: memoryview
    made: Sequence[FrameHeader] | None = None
    """The headers of all frames, if this bookie built the frames itself from entries that it had checked. The machine
    does not check such frames again."""


@dataclass(frozen=True, slots=True)
class StreamOwned:
    """The owners of a stream, before the stream sends anything else."""

    stream: StreamId
    owners: Sequence[tuple[str, int]]
    """The owners' names, each with the number of bytes that all streams of this owner may have in flight."""


@dataclass(frozen=True, slots=True)
class SessionsDetached:
    """The client wants no more acks for these sessions. Frames that the log already has are still written."""

    stream: StreamId
    sessions: Sequence[int]


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The stream is gone. Its sessions, requests and parts end with it."""

    stream: StreamId


# --- events: storage ---


class GroupCommitted(NamedTuple):
    """The oldest ``len(places)`` frames given out by Commit effects of this log are durable, at these places."""

    places: Sequence[Place]
    log: int = 0
    group_bytes: int = 0  # the maximum size of the next group; a stream may have twice as much in flight; 0: unknown


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """The frames of this log's Commit effects that were not reported durable will never be durable. ``final`` means
    that a sync failed: nothing is ever acknowledged again, and no commit of any log is reported (RULES S6). Otherwise
    there was no space. Then none of these frames was written, and later frames may be tried."""

    reason: Reason
    message: str
    final: bool
    log: int = 0


@dataclass(frozen=True, slots=True)
class FramesRead:
    """The answer to a ReadFrames effect. It has a buffer for each piece, or None for a piece that fails its checks."""

    request: RequestId
    frames: Sequence[bytes | bytearray | memoryview | None]


@dataclass(frozen=True, slots=True)
class MembershipsRead:
    """The answer to a ReadMemberships effect. It has an object of the storage for each place, or None for a frame that
    fails its checks."""

    request: RequestId
    memberships: Sequence[object | None]


# --- events: requests ---


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """Read the entries first to last. With ``fence_key`` it is a recovery read, which fences first. With ``ids_only``
    the answer is a trailer alone: this bookie has each id up to ``answered_through`` that is neither absent nor
    unknown. With ``cut`` the answer has only these parts of the entries."""

    request: RequestId
    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    bytes_max: int
    fence_key: bytes | None = field(default=None, repr=False)
    ids_only: bool = False
    cut: Cut | None = None


class EntriesRequested(NamedTuple):
    """Reads of one whole entry each, without a fence, that arrived together on one stream. The columns have a row for
    each read. Each read has the meaning of a ReadRequested event."""

    stream: StreamId
    numbers: Sequence[int]
    """The ids of the requests, each unique on the stream."""
    ledger_ids: Sequence[LedgerId]
    entry_ids: Sequence[EntryId]


@dataclass(frozen=True, slots=True)
class PartSent:
    """The part of a SendPart effect of this request, or the frame of its row in a SendEntries effect, has been sent.
    The next part may follow."""

    request: RequestId


class EntriesSent(NamedTuple):
    """The frames of this many more rows in SendEntries effects of this stream have been sent."""

    stream: StreamId
    rows: int


@dataclass(frozen=True, slots=True)
class StreamStalled:
    """For a while (``read_stall_s``) the client has read none of the answers that are ready on this stream. PartSent
    ends this state."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class FenceRequested:
    """Fence the ledger, even if this bookie has nothing of it, and answer with the evidence of its LAC."""

    request: RequestId
    ledger_id: LedgerId
    ledger_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReadLacRequested:
    """Answer with the evidence of the LAC, without fencing."""

    request: RequestId
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class WriteLacRequested:
    """The writer reports how far its entries are confirmed (RULES P9: acked entries become visible)."""

    request: RequestId
    ledger_id: LedgerId
    ledger_key: bytes = field(repr=False)
    lac_body: bytes


@dataclass(frozen=True, slots=True)
class DeleteHintRequested:
    """A client says that these ledgers were deleted. The bookie only looks them up (RULES S9)."""

    request: RequestId
    ledger_ids: Sequence[LedgerId]


@dataclass(frozen=True, slots=True)
class WatchLacRequested:
    """Answer once there is evidence of a LAC above ``previous_lac``, or after ``timeout_ms`` (RULES P10)."""

    request: RequestId
    ledger_id: LedgerId
    previous_lac: EntryId
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The client no longer waits for the answer, so none is sent."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The timer of this id ran out."""

    timer: TimerId


@dataclass(frozen=True, slots=True)
class ReadOnlyChanged:
    """From now on new adds to ledgers of this log are refused, or accepted again. Fences are always accepted."""

    read_only: bool
    log: int = 0


@dataclass(frozen=True, slots=True)
class LedgersDeleted:
    """These ledgers are deleted. The collector has asked the metadata store twice, as RULES S9 demands. The machine
    gives their deletion records to the log and takes no more adds to them. Once the records are durable, it refuses
    reads of them."""

    ledger_ids: Sequence[LedgerId]


@dataclass(frozen=True, slots=True)
class CopiesUnwanted:
    """The records of these closed ledgers name only other bookies (S9), so this bookie may drop its copies."""

    ledger_ids: Sequence[LedgerId]


Event: TypeAlias = (
    StreamOwned
    | SessionAttached
    | FramesArrived
    | SessionsDetached
    | StreamClosed
    | GroupCommitted
    | CommitFailed
    | FramesRead
    | MembershipsRead
    | ReadRequested
    | EntriesRequested
    | PartSent
    | EntriesSent
    | StreamStalled
    | FenceRequested
    | ReadLacRequested
    | WriteLacRequested
    | DeleteHintRequested
    | WatchLacRequested
    | RequestCancelled
    | TimerFired
    | ReadOnlyChanged
    | LedgersDeleted
    | CopiesUnwanted
)

# --- effects ---


class Commit(NamedTuple):
    """Append these frames to the log, in this order and behind all earlier frames. GroupCommitted or CommitFailed
    follows. With ``reserve``, they may use the space of a full disk that is reserved for fences, recovery adds and
    records."""

    frames: Sequence[bytes | memoryview]
    reserve: bool
    log: int
    headers: Sequence[FrameHeader]


@dataclass(frozen=True, slots=True)
class Ended:
    """A session is over. Its first ``frames`` frames are durable, and the next frame was refused for ``reason``. If the
    reason is INTEGRITY because other entries are stored at some of its ids, ``differing`` has these ids."""

    session: int
    frames: int
    reason: Reason
    message: str
    differing: Sequence[EntryId] = ()


class SendAcks(NamedTuple):
    """The acks of a step, in two columns. The first ``frames[i]`` frames of ``sessions[i]`` are durable (RULES P1,
    L4)."""

    stream: StreamId
    sessions: list[int]
    frames: list[int]
    ended: list[Ended]


@dataclass(frozen=True, slots=True)
class CloseStream:
    """The client broke the lane's rules, or reads none of its answers while other streams wait. The stream must end,
    and answers queued on it may be lost. StreamClosed follows."""

    stream: StreamId
    message: str


@dataclass(frozen=True, slots=True)
class PauseStream:
    """Take no more messages of this stream, because too many of its bytes wait for a commit, or too many of its
    requests wait for answers."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class ResumeStream:
    """Take messages of this stream again."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of an answer. It is the entries ``first`` to ``last`` of the frame at ``place``, or the frame itself if
    these are all its entries. With ``last_only`` it is only the frame's last entry. The frame holds ``first``.
    ``is_whole`` is a hint that these are all its entries, so that storage need not look for a part to read."""

    place: Place
    first: EntryId
    last: EntryId
    last_only: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class ReadFrames:
    """Read these pieces in the segments of this log and check them. FramesRead follows. With ``cut`` storage may read
    only these parts of the entries, which the reader checks; the frame of such a piece has PARTIAL."""

    request: RequestId
    pieces: Sequence[Piece]
    log: int = 0
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class ReadMemberships:
    """Read the ids that the frames at these places of this log hold. MembershipsRead follows."""

    request: RequestId
    places: Sequence[Unresolved]
    log: int = 0


@dataclass(frozen=True, slots=True)
class SendPart:
    """Whole frames that answer part of a read. PartSent follows once they are sent. ``lac`` is the greatest LAC for
    which this bookie has evidence."""

    request: RequestId
    frames: Sequence[bytes | bytearray | memoryview]
    lac: EntryId = -1


class SendEntries(NamedTuple):
    """Answers reads of one entry each that were found in memory. The columns have a row for each read. A row has the
    meaning of a SendPart effect with this frame, and of a SendTrailer effect that answers through this entry. PartSent
    follows for each row once its frame is sent, or EntriesSent for several rows."""

    stream: StreamId
    numbers: list[int]
    entry_ids: list[EntryId]
    frames: list[bytes | bytearray | memoryview]
    fenced: list[bool]
    lacs: list[EntryId]


@dataclass(frozen=True, slots=True)
class SendTrailer:
    """Ends a read. With a ``reason`` the whole request was refused, and the trailer says nothing about any id.
    ``known`` means that this bookie knows the ledger. ``lac`` is as in SendPart."""

    request: RequestId
    trailer: ReadTrailer
    reason: Reason = Reason.REASON_NONE
    message: str = ""
    known: bool = False
    lac: EntryId = -1


@dataclass(frozen=True, slots=True)
class SendLac:
    """Ends a fence, a LAC read or a watch. ``lac`` is as in SendPart. With a ``trouble`` this bookie may have lost
    entries of the ledger, so the evidence may be older than the ledger's end."""

    request: RequestId
    evidence: LacEvidence
    lac: EntryId = -1
    trouble: Reason = Reason.REASON_NONE


@dataclass(frozen=True, slots=True)
class SendReply:
    """Ends a control request that returns no evidence. Without a ``reason`` it was carried out, and otherwise it was
    refused."""

    request: RequestId
    reason: Reason = Reason.REASON_NONE
    message: str = ""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire once after ``delay_ms``."""

    timer: TimerId
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Stop the timer of this id, if it runs."""

    timer: TimerId


@dataclass(frozen=True, slots=True)
class LookForDeletion:
    """Ask the metadata store whether these ledgers, which are held here, were deleted. LedgersDeleted may follow much
    later, for some of them or none."""

    ledger_ids: Sequence[LedgerId]


Effect: TypeAlias = (
    Commit
    | SendAcks
    | CloseStream
    | PauseStream
    | ResumeStream
    | ReadFrames
    | ReadMemberships
    | SendPart
    | SendEntries
    | SendTrailer
    | SendLac
    | SendReply
    | SetTimer
    | CancelTimer
    | LookForDeletion
)
