# SPDX-License-Identifier: Apache-2.0
"""The state that the bookie's machine keeps in memory: streams, sessions, ledgers, and the queues of frames on their
way to the logs. Also the port to the index of durable data (:class:`Holdings`).

All state here but that index is volatile. It may be lost with the process, because no answer rests on it alone.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bk_core.entries.frame import FrameExtent, FrameHeader, FrameKind
from bk_core.model import NO_ENTRY, EntryId, LedgerId
from bk_core.wire.lane.reasons import AttachMode, EntryRange, Reason
from bookie_server.machine.disk_places import Place, Unresolved
from bookie_server.machine.events import Commit, FramesArrived, Piece, RequestId, StreamId
from bookie_server.machine.owners import Owner

_WAITING_FACTOR = 3
"""The maximum size of the messages that wait for room together, as a multiple of ``in_flight_bytes_max``. There is room
for a message from each of many writers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """The bounds of all queues of the machine, in bytes unless the name says otherwise."""

    stream_bytes_max: int = 32 << 20
    """The maximum size of the frames of one stream that wait for a commit. Above it the stream is not read. Fences come
    on another stream (RULES L3)."""
    in_flight_bytes_max: int = 64 << 20
    """The maximum size of the frames of normal adds of all streams that wait for a commit. Above it, messages wait and
    their streams are not read. When messages of three times this size wait, frames are refused."""
    in_flight_frames_max: int = 1 << 16
    """The maximum number of frames of normal adds of all streams that wait for a commit. It is a limit in addition to
    ``in_flight_bytes_max``, because a small frame costs more than its bytes."""
    recovery_bytes_max: int = 16 << 20
    """The maximum size of the frames of recovery adds of all streams that wait for a commit. Normal adds do not use
    this room."""
    sessions_per_stream_max: int = 1 << 17
    sessions_max: int = 1 << 18
    """The maximum number of sessions of all streams. A session that recovers a ledger is refused only above twice this
    number."""
    reads_active_max: int = 16
    """The maximum number of parts of answers in memory. A short part counts as its share of ``read_part_bytes``. A
    quarter of this room is kept for recovery. Further reads wait for their turn."""
    reads_bytes_max: int = 64 << 20
    """The maximum size, in bytes, of the parts of answers in memory. Parts that are being read from disk do not count;
    there are at most ``storage_reads_max`` of them for each log."""
    reads_per_stream_max: int = 4
    """The maximum number of parts of answers of one stream in memory, counted as for ``reads_active_max``."""
    storage_reads_max: int = 8
    """The maximum number of reads under way in each log's storage. A fence waits behind no more reads than these."""
    requests_max: int = 8192
    """The maximum number of requests under way, without watches. Requests that fence, and those of streams with few
    requests, are refused only above twice this number."""
    requests_per_stream_max: int = 1024
    """The number of requests of one stream from which on the stream is not read until half of them are answered."""
    watches_max: int = 100_000
    watches_per_stream_max: int = 1 << 14
    hints_max: int = 1 << 16
    """The maximum number of explicit LACs that are only in memory. Further ones are refused until these are given to
    the log."""
    read_part_bytes: int = 2 << 20
    read_bytes_max: int = 64 << 20
    """The maximum size of the answer to one read, whatever it asks for."""
    lac_persist_ms: int = 1000


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The state of a ledger by its records in the log (RULES S4). A ``trouble`` other than REASON_NONE is the reason
    why ids that are not found are UNKNOWN. Unless it is COPY_DROPPED, a fence may be lost, too, so normal adds are
    refused (RULES S8)."""

    known: bool = False
    ledger_key: bytes | None = field(default=None, repr=False)
    fenced: bool = False
    deleted: bool = False
    lac_body: bytes = b""
    trouble: Reason = Reason.REASON_NONE


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """The answer for the requested ids up to ``answered_through``: pieces, and the ranges that no intact frame covers.
    ``unresolved`` names places whose ids must be read first; then the other fields are empty."""

    pieces: tuple[Piece, ...]
    absent: tuple[EntryRange, ...]
    unknown: tuple[EntryRange, ...]
    unresolved: tuple[Unresolved, ...]
    answered_through: EntryId


class Holdings(Protocol):
    """The index of the durable data of this bookie. It is in memory only, and is called on the loop."""

    def facts(self, ledger_id: LedgerId) -> LedgerFacts: ...
    def log_of(self, ledger_id: LedgerId) -> int:
        """Return the log that holds the ledger's durable frames. For a ledger without any, return the log that it
        should go to, which may differ from call to call."""
        ...

    def add(self, pending: Pending, place: Place) -> None:
        """Add a frame of entries or a record that is durable at ``place`` in its ledger's log."""
        ...

    def plan(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        bytes_max: int,
        resolved: Mapping[Unresolved, object],
    ) -> LookupPlan:
        """Plan the answer for ids first to last, or for fewer once the pieces reach ``bytes_max`` (RULES S2: every
        frame that may hold an id counts). ``resolved`` has the memberships for the places that an earlier plan named as
        unresolved."""
        ...

    def entry(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | bytearray | memoryview | None:
        """Return an intact frame of this entry alone, if memory has it, including the page cache: the checks are those
        of a ReadFrames effect. Return None if anything must be read from a disk first, if no intact frame has the entry
        or if the ledger is deleted. Never blocks."""
        ...

    def learn(self, ledger_id: LedgerId, place: Unresolved, membership: object) -> None:
        """Remember the membership that storage read for an unresolved place."""
        ...

    def overlaps(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> bool:
        """Return whether a frame may hold an id of this range."""
        ...

    def last_entry_id(self, ledger_id: LedgerId) -> EntryId:
        """Return the greatest entry id in an intact frame, or −1 if there is none."""
        ...

    def lac(self, ledger_id: LedgerId) -> EntryId:
        """Return the greatest LAC that an intact frame of entries carries, or −1 if there is none."""
        ...

    def tail(self, ledger_id: LedgerId) -> tuple[Piece | None, Piece | None]:
        """Return the last entry alone, and an entry that carries the greatest LAC, unless the last entry carries it
        (RULES P5)."""
        ...

    def sealed_through(self, ledger_id: LedgerId) -> int:
        """Return the newest sealed generation of the ledger's log if a sealed segment has an entry or record of the
        ledger that was not given up, and otherwise 0."""
        ...

    def mark_damaged(self, ledger_id: LedgerId, place: Unresolved) -> None:
        """Exclude the bytes at ``place``, which fail their checks, from all further plans."""
        ...


_LAC_BODY = struct.Struct(">qq")  # ledger, LAC; the digest follows (docs/formats.md §2)
LAC_BODY_BYTES_MIN = _LAC_BODY.size


def ledger_of_body(body: bytes) -> LedgerId:
    """Return the ledger id in a LAC body."""
    return int(_LAC_BODY.unpack_from(body)[0])


def lac_of_body(body: bytes) -> EntryId:
    """Return the LAC in a LAC body. It is not verified here; only its digest makes it evidence for a client (RULES
    P5)."""
    return int(_LAC_BODY.unpack_from(body)[1])


class Ledger:
    """The volatile state of a ledger in use."""

    __slots__ = (
        "deleted",
        "fence_sequence",
        "fenced",
        "hint_body",
        "hint_dirty",
        "hint_lac",
        "in_log",
        "key",
        "key_logged",
        "ledger_id",
        "log",
        "pending",
        "sessions",
        "top",
        "trouble",
        "watches",
    )

    def __init__(self, ledger_id: LedgerId, facts: LedgerFacts, last_entry_id: EntryId, log: LogQueue) -> None:
        self.ledger_id = ledger_id
        self.log = log  # stays the same while any frame of the ledger is durable or in the queue
        self.key = facts.ledger_key
        self.key_logged = facts.ledger_key is not None  # the key's record is in the log or in its queue
        self.fenced = facts.fenced  # set before the record is durable (MUST 3)
        self.fence_sequence = 0 if facts.fenced else None  # of the record; 0: durable; None: none in the log
        self.deleted = facts.deleted
        self.trouble = facts.trouble
        self.hint_body = facts.lac_body  # the writer's explicit LAC, newer than what entries carry (P9)
        self.hint_lac: EntryId = lac_of_body(facts.lac_body) if facts.lac_body else NO_ENTRY
        self.hint_dirty = False
        self.pending: deque[tuple[int, EntryId, EntryId]] = deque()  # (sequence, first, last), not durable (S1)
        self.in_log = 0  # frames and records in the log's queue; until durable, only this object has their effects
        self.sessions = 0
        self.top = last_entry_id  # no accepted frame holds a higher id
        self.watches: dict[RequestId, EntryId] = {}  # each with its previous LAC

    def pending_over(self, first: EntryId, last: EntryId) -> tuple[int, EntryId] | None:
        """Return the sequence number of the last pending frame that may cover an id of the range, and the least id that
        such a frame may cover. Return None if there is no such frame."""
        sequence, least = 0, last + 1
        for number, low, high in self.pending:
            if low <= last and high >= first:
                sequence, least = number, min(least, max(low, first))
        return (sequence, least) if sequence else None

    @property
    def idle(self) -> bool:
        """Whether this object may be forgotten, because the log has everything in it."""
        return not (self.sessions or self.in_log or self.watches or self.hint_dirty)


class Session:
    """A session of one ledger on one stream (RULES P1). It has the numbers of its accepted and its durable frames, and
    the reason of its end."""

    __slots__ = (
        "accepted",
        "differing",
        "durable",
        "end",
        "gone",
        "held",
        "ledger",
        "number",
        "recover",
        "stream",
        "told",
    )

    def __init__(self, stream: Stream, number: int, ledger: Ledger | None, mode: AttachMode) -> None:
        self.stream = stream
        self.number = number
        self.ledger = ledger
        self.recover = mode is AttachMode.RECOVER
        self.accepted = 0
        self.durable = 0
        self.end: tuple[Reason, str] | None = None
        self.differing: Sequence[EntryId] = ()  # ids of the refused frame at which other entries are stored
        self.told = False  # the end was sent
        self.gone = False  # detached, or its stream is closed: nothing more is sent
        self.held: deque[tuple[FrameHeader, memoryview]] | None = None  # frames that wait for a comparison (P6)


class Flight:
    """Frames of one kind, normal or recovery, that wait for a commit."""

    __slots__ = ("bytes", "bytes_max", "frames", "frames_max", "waiting")

    def __init__(self, bytes_max: int, frames_max: int) -> None:
        self.bytes, self.frames = 0, 0
        self.waiting = 0  # bytes of messages that wait for room here
        self.bytes_max, self.frames_max = bytes_max, frames_max

    def full(self) -> bool:
        """Return whether there is no room: messages wait, and streams are paused."""
        return self.bytes > self.bytes_max or self.frames > self.frames_max

    def holds_up(self) -> bool:
        """Return whether the next message must wait. This is False, too, if too many bytes wait already; then its
        frames may be refused."""
        return self.full() and self.waiting <= _WAITING_FACTOR * self.bytes_max

    def refuses(self) -> bool:
        """Return whether frames are refused: too many messages wait, and the frames of those that could not wait have
        filled the room twice."""
        return self.bytes > 2 * self.bytes_max or self.frames > 2 * self.frames_max


class Stream:
    __slots__ = (
        "closed",
        "frames",
        "normal_bytes",
        "owners",
        "paused",
        "pending_bytes",
        "recovering",
        "sessions",
        "stream_id",
        "waiting",
    )

    def __init__(self, stream_id: StreamId, owners: tuple[Owner, ...] = ()) -> None:
        self.stream_id, self.owners = stream_id, owners
        self.frames = 0  # frames that were taken, refused ones included
        self.normal_bytes = 0  # the part of ``pending_bytes`` that is of normal adds; counted only if there are owners
        self.sessions: dict[int, Session] = {}
        self.pending_bytes = 0
        self.recovering = 0  # number of sessions that recover
        self.waiting: deque[FramesArrived] = deque()  # messages that wait for room; one, if the driver heeds the pause
        self.paused = False
        self.closed = False

    @property
    def sends(self) -> dict[str, bool]:
        """Return the owners' bounds that apply to this stream, as arguments of :meth:`Owner.full`. To a stream that
        recovers a ledger the bound of normal adds applies only while it has normal adds in flight itself. So normal
        adds on other streams do not hold up a recovery, and a recovering session does not lift the bound from its
        stream's normal adds."""
        return {"normal": not self.recovering or self.normal_bytes > 0, "recovery": self.recovering > 0}


class Pending:
    """A frame given to the log that is not durable yet."""

    __slots__ = ("extent", "frame", "header", "ledger", "session")

    def __init__(
        self,
        header: FrameHeader,
        extent: FrameExtent,
        frame: bytes | memoryview,
        ledger: Ledger,
        session: Session | None,
    ) -> None:
        self.header, self.extent, self.frame = header, extent, frame
        self.ledger, self.session = ledger, session


_NO_RESERVE = (FrameKind.LEDGER_KEY, FrameKind.LAC)
"""The records that accompany normal adds. All other records, and recovery adds, may use the reserved space of a full
disk."""


class LogQueue:
    """The queue of frames given to one log, and how far that log is durable. ``number`` names the log in events and
    effects; each data directory has one log.

    Theory: every frame given to a log gets a sequence number, and the log is durable up to one such number. So "wait
    until this is durable" is one integer, and the order of the queue is the order on disk (RULES S1: a fence record
    follows every add accepted before it). A ledger is in exactly one log, so all its numbers compare; numbers of
    different logs never meet.
    """

    __slots__ = (
        "_outgoing_reserve", "appended", "durable", "group_bytes", "number", "outgoing", "parked", "queue", "read_only",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: deque[Pending] = deque()  # given to the log, oldest first
        self.appended = 0  # sequence number of the last frame given to the log
        self.durable = 0  # sequence number of the last durable frame; appended − durable == len(queue)
        self.group_bytes = 0  # maximum size of this log's next group; 0: not known yet
        self.read_only = False  # no normal adds: the remaining room is for fences and recovery
        self.outgoing: list[Pending] = []  # frames of this step's Commit
        self._outgoing_reserve = False  # one of these frames may use the reserved space
        self.parked: dict[int, list[RequestId]] = {}  # by sequence number, the requests that wait until it is durable

    def enqueue(self, pending: Pending) -> int:
        """Append a frame to the queue, and return its sequence number."""
        self.queue.append(pending)
        self.outgoing.append(pending)
        session = pending.session
        if session.recover if session else pending.header.kind not in _NO_RESERVE:
            self._outgoing_reserve = True
        self.appended += 1
        return self.appended

    def take_commit(self) -> Commit:
        """Return the effect for all frames enqueued since the last call. There must be at least one."""
        outgoing, reserve = self.outgoing, self._outgoing_reserve
        self.outgoing, self._outgoing_reserve = [], False
        if len(outgoing) == 1:
            return Commit((outgoing[0].frame,), reserve, self.number, (outgoing[0].header,))
        frames = tuple([pending.frame for pending in outgoing])
        return Commit(frames, reserve, self.number, tuple([pending.header for pending in outgoing]))

    def settle(self, count: int) -> list[Pending]:
        """Remove and return the oldest ``count`` frames of the queue, which are durable."""
        self.durable += count
        queue = self.queue
        return [queue.popleft()] if count == 1 else [queue.popleft() for _ in range(count)]

    def drop(self) -> list[Pending]:
        """Drop the queue, because none of it will ever be durable; return the dropped frames."""
        dropped = list(self.queue)
        self.queue.clear()
        self.outgoing.clear()
        self._outgoing_reserve = False
        self.durable = self.appended
        return dropped

    def park(self, request: RequestId, sequence: int) -> None:
        """Remember to run this request again when the frame of that number is durable, or never will be."""
        self.parked.setdefault(sequence, []).append(request)

    def unpark(self) -> list[RequestId]:
        """Remove and return the requests whose frame is durable or dropped, in the order of the frames."""
        ripe = sorted(sequence for sequence in self.parked if sequence <= self.durable)
        return [request for sequence in ripe for request in self.parked.pop(sequence)]
