# SPDX-License-Identifier: Apache-2.0
"""Handles reads, and all other requests of Apache's wire except adds. Each is a *story* of one or more requests to the
machine.

A story answers one request of a client. It begins with an event for the machine, gets the machine's effects for it, and
may continue with another event. Consecutive plain reads of a ledger are one story. This story is a range read, whose
parts become answers when they arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import Protocol, TypeAlias

import numpy as np

from bk_core.model import LEDGER_KEY_BYTES, NO_ENTRY, LedgerId
from bk_core.wire.bookie_rpc import v2, v3
from bk_core.wire.bookie_rpc.availability import encode_availability
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.columns import U64
from bk_core.wire.bookie_rpc.frames import FRAME_BYTES_MAX, I64, LENGTH_BYTES, Buffer
from bk_core.wire.bookie_rpc.runs import BatchRead, ReadRun, Single
from bk_core.wire.bookie_rpc.status import Status, refused_read
from bk_core.wire.lane.evidence import LacEvidence
from bk_core.wire.lane.reasons import EntryRange, Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bookie_server.machine import events
from bookie_server.ports.bookie_rpc.entries import Entries, entries_of

READ_BYTES_MAX = 64 << 20
GAP_MAX = 8
"""Reads of ids that are at most this far apart become one range read, because a client of a striped ledger may read
every third entry from this bookie. For ids further apart the extra entries would cost more than the range read
saves."""

BATCH_BYTES_MAX = FRAME_BYTES_MAX
_BATCH_HEAD_BYTES = 24 + 8 + LENGTH_BYTES
_ROOM_FOR_FIELDS = 256
_ID_MAX = (1 << 63) - 2

Effect: TypeAlias = events.SendPart | events.SendTrailer | events.SendLac | events.SendReply
Ask: TypeAlias = Callable[["Story", Callable[[events.RequestId], events.Event]], None]
"""A function that sends a request of a story to the machine; its effects are passed to ``heard``."""


class Story(Protocol):
    def begin(self) -> None: ...
    def heard(self, effect: Effect) -> list[Buffer]:
        """Handle an effect of the machine; return the bytes for the client."""
        ...


def status_of(trailer: events.SendTrailer, entry_id: int) -> Status:
    """Return the status for an id that no part of the answer had. Only an id that the trailer lists as absent is
    answered as absent (MUST 4)."""
    if trailer.reason:
        return refused_read(trailer.reason)
    for gap in trailer.trailer.unknown:
        if gap.first <= entry_id <= gap.last:
            return refused_read(gap.reason)
    if any(gap.first <= entry_id <= gap.last for gap in trailer.trailer.absent):
        return Status.ENOENTRY if trailer.known else Status.ENOLEDGER
    return Status.EIO


def ledgers_of(run: ReadRun) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each run of reads that can be one range read: consecutive reads of one ledger
    whose ids ascend in small steps."""
    ledgers, ids = run.ledger_ids, run.entry_ids
    steps = np.diff(ids)
    apart = (ledgers[1:] != ledgers[:-1]) | (steps < 1) | (steps > GAP_MAX) | (ids[:-1] < 0)
    cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(run)]
    return pairwise(cuts)


class ServedRangeRead:
    """Plain reads of one ledger, with ascending ids."""

    def __init__(self, ask: Ask, ledger_id: LedgerId, ids: I64, txns: U64, wire: ModuleType) -> None:
        self._ask, self._ledger_id, self._ids, self._txns, self._wire = ask, ledger_id, ids, txns, wire
        self._open = np.ones(ids.size, dtype=np.bool_)  # not answered yet

    def begin(self) -> None:
        self._go_on(0)

    def _go_on(self, at: int) -> None:
        ids = self._ids
        first, last = int(ids[at]), int(ids[-1])
        self._ask(self, lambda request: events.ReadRequested(request, self._ledger_id, first, last, READ_BYTES_MAX))

    def heard(self, effect: Effect) -> list[Buffer]:
        if isinstance(effect, events.SendPart):
            return [buffer for entries in entries_of(effect.frames) for buffer in self._found(entries, effect.lac)]
        assert isinstance(effect, events.SendTrailer)
        through = int(self._ids[-1]) if effect.reason else effect.trailer.answered_through
        done = int(self._ids.searchsorted(through, side="right"))
        out = self._missing(effect, done)
        if done < self._ids.size:
            self._go_on(done)
        return out

    def _found(self, entries: Entries, lac: int) -> list[Buffer]:
        ids = entries.ids
        at = self._ids.searchsorted(ids)
        at[at == self._ids.size] = 0
        mine = np.flatnonzero((self._ids[at] == ids) & self._open[at])
        if not mine.size:
            return []
        at = at[mine]
        if at.size > 1 and (at[1:] <= at[:-1]).any():
            at, first = np.unique(at, return_index=True)
            mine = mine[np.sort(first)]
            at = self._ids.searchsorted(ids[mine])
        self._open[at] = False
        bodies = (entries if mine.size == ids.size else entries.taken(mine)).bodies
        answers: list[Buffer] = self._wire.read_answers(
            self._txns[at], self._ledger_id, self._ids[at], bodies, max_lacs=lac
        )
        return answers

    def _missing(self, trailer: events.SendTrailer, done: int) -> list[Buffer]:
        at = np.flatnonzero(self._open[:done])
        if not at.size:
            return []
        self._open[at] = False
        ids = self._ids[at]
        statuses = _statuses(trailer, ids)
        return [self._wire.refused_reads(self._txns[at], self._ledger_id, ids, statuses)]


def _statuses(trailer: events.SendTrailer, ids: I64) -> int | I64:
    if trailer.reason or ids.size == 1:
        return int(status_of(trailer, int(ids[0])))
    statuses = np.full(ids.size, int(Status.EIO), dtype=np.int64)
    absent = Status.ENOENTRY if trailer.known else Status.ENOLEDGER
    for gaps, unknown in ((trailer.trailer.absent, False), (trailer.trailer.unknown, True)):
        for gap in gaps:
            low, high = np.searchsorted(ids, gap.first), np.searchsorted(ids, gap.last, side="right")
            statuses[low:high] = int(refused_read(gap.reason) if unknown else absent)
    return statuses


class _OneEntry:
    """Collects the answer to a read of one entry."""

    def __init__(self) -> None:
        self.body: Bodies | None = None
        self.lac = NO_ENTRY

    def part(self, part: events.SendPart, entry_id: int) -> None:
        for entries in entries_of(part.frames):
            at = np.flatnonzero(entries.ids == entry_id)[:1]
            if at.size:
                self.body = _copied(entries.taken(at).bodies)
        self.lac = part.lac


def _copied(bodies: Bodies) -> Bodies:
    joined = bodies.joined()
    return Bodies(memoryview(joined), np.zeros(len(bodies), dtype=np.int64), np.array([len(joined)], dtype=np.int64))


def last_entry_of(evidence: LacEvidence) -> bytes | None:
    """Return the last entry in Apache's form, or None if there is none."""
    for entries in entries_of([evidence.last_entry_frame] if evidence.last_entry_frame else []):
        at = np.flatnonzero(entries.ids == evidence.last_entry_id)
        if at.size:
            return bytes(entries.taken(at[:1]).bodies.joined())
    return None


def lac_status(effect: events.SendLac | events.SendReply, last: bytes | None) -> Status:
    """Return the status for a read of the last entry."""
    if isinstance(effect, events.SendReply):
        return refused_read(effect.reason)
    if effect.trouble:  # this bookie may have lost later entries
        return refused_read(effect.trouble)
    if last is not None:
        return Status.EOK
    return Status.ENOENTRY if effect.evidence.known else Status.ENOLEDGER


class Read:
    """A read that cannot be part of a range read: one with a fence or of the last entry, or a long poll."""

    def __init__(self, ask: Ask, single: Single, wire: ModuleType, clock_ms: Callable[[], int]) -> None:
        self._ask, self._single, self._wire, self._clock_ms = ask, single, wire, clock_ms
        read = self._request = single.request.readRequest
        self.ledger_id: LedgerId = read.ledgerId
        self.fences = read.HasField("flag") and read.flag == pb.ReadRequest.FENCE_LEDGER
        self._piggyback = read.HasField("flag") and read.flag == pb.ReadRequest.ENTRY_PIGGYBACK
        self._polls = read.HasField("previousLAC") and not self.fences
        self._entry_id: int = read.entryId
        self._found = _OneEntry()
        self._lac: int | None = None  # the LAC that ended a long poll
        self._learnt_ms: int | None = None

    def refusal(self) -> Status:
        """Return the status for a request that is refused without a look-up of the ledger, or EOK if it is not
        refused."""
        read = self._request
        if self.fences and len(read.masterKey) != LEDGER_KEY_BYTES:
            return Status.EUA
        if self._piggyback and self._polls and self._entry_id != NO_ENTRY:
            return Status.EBADREQ
        return Status.ENOLEDGER if self.ledger_id < 0 and not self.fences else Status.EOK

    def begin(self) -> None:
        read, ledger_id = self._request, self.ledger_id
        if self._polls and read.timeOut > 0:
            wait_ms = min(read.timeOut, 1 << 31)
            self._ask(self, lambda request: events.WatchLacRequested(request, ledger_id, read.previousLAC, wait_ms))
        elif self._polls and self._piggyback:
            self._ask(self, lambda request: events.ReadLacRequested(request, ledger_id))
        else:
            self._read(self._entry_id)

    def _read(self, entry_id: int) -> None:
        ledger_id = self.ledger_id
        key = self._request.masterKey if self.fences else None
        if entry_id != NO_ENTRY:
            self._ask(self, lambda request: events.ReadRequested(request, ledger_id, entry_id, entry_id, 1, key))
        elif key is not None:
            self._ask(self, lambda request: events.FenceRequested(request, ledger_id, key))
        else:
            self._ask(self, lambda request: events.ReadLacRequested(request, ledger_id))

    def heard(self, effect: Effect) -> list[Buffer]:
        match effect:
            case events.SendPart():
                self._found.part(effect, self._next)
                return []
            case events.SendTrailer():
                return self._read_ended(effect)
            case _:
                return self._lac_heard(effect)

    @property
    def _next(self) -> int:
        """The id of the entry to read."""
        return self._request.previousLAC + 1 if self._piggyback and self._polls else self._entry_id

    def _lac_heard(self, effect: events.SendLac | events.SendReply) -> list[Buffer]:
        if self._polls and self._lac is None and isinstance(effect, events.SendLac) and not effect.trouble:
            if not effect.evidence.known:
                return self._refuse(Status.ENOLEDGER)
            self._lac = effect.lac
            previous = self._request.previousLAC
            if self._piggyback and (self._lac <= previous or self._next < NO_ENTRY):  # no entry has such an id
                return self._answer(None, self._lac, NO_ENTRY)
            if self._piggyback or self._entry_id != NO_ENTRY:
                self._learnt_ms = self._clock_ms() if self._piggyback and self._request.timeOut > 0 else None
                self._read(self._next)
                return []
        last = last_entry_of(effect.evidence) if isinstance(effect, events.SendLac) else None
        status = lac_status(effect, last)
        if status is Status.ENOENTRY and self._piggyback and self._lac is not None and self._lac >= 0:
            return self._answer(None, self._lac, NO_ENTRY)  # an explicit LAC is all there is
        if status is not Status.EOK or last is None:
            return self._refuse(status)
        lac = effect.lac if isinstance(effect, events.SendLac) and not self.fences else None
        return self._answer(last, lac, self._entry_id)

    def _read_ended(self, trailer: events.SendTrailer) -> list[Buffer]:
        body, lac = self._found.body, None if self.fences else max(self._found.lac, trailer.lac)
        if body is not None:
            return self._answer(bytes(body.joined()), lac, self._next)
        status = status_of(trailer, self._next)
        if self._piggyback and self._polls and status is Status.ENOENTRY:
            return self._answer(None, self._lac, NO_ENTRY)
        return self._refuse(status)

    def _refuse(self, status: Status) -> list[Buffer]:
        single = Single(self._single.frame, self._single.request, status)
        return [self._wire.refusal(single)]

    def _answer(self, body: bytes | None, lac: int | None, entry_id: int) -> list[Buffer]:
        asked = self._single.request
        if self._wire is v2:
            assert body is not None
            bodies = Bodies.of_entries(body, np.array([len(body)], dtype=np.int64))
            ids = np.array([entry_id], dtype=np.int64)
            txns = np.array([asked.header.txnId], dtype=np.uint64)
            answers: list[Buffer] = v2.read_answers(txns, self.ledger_id, ids, bodies)
            return answers
        made = v3.answer(asked)
        told = made.readResponse
        told.entryId = entry_id
        if body is not None:
            told.body = body
        if lac is not None:
            told.maxLAC = lac
        if self._learnt_ms is not None and body is not None:
            told.lacUpdateTimestamp = self._learnt_ms
        return [v3.framed(made)]


class LastEntry:
    """A plain read of the last entry (id −1), or of an id below −1, which no entry has."""

    def __init__(self, ask: Ask, ledger_id: LedgerId, ids: I64, txns: U64, wire: ModuleType) -> None:
        self._ask, self._ledger_id, self._ids, self._txns, self._wire = ask, ledger_id, ids, txns, wire

    def begin(self) -> None:
        self._ask(self, lambda request: events.ReadLacRequested(request, self._ledger_id))

    def heard(self, effect: Effect) -> list[Buffer]:
        assert isinstance(effect, (events.SendLac, events.SendReply))
        ids, last = self._ids, None
        if isinstance(effect, events.SendLac) and ids[0] == NO_ENTRY:
            last = last_entry_of(effect.evidence)
        status = lac_status(effect, last)
        if status is not Status.EOK or last is None or isinstance(effect, events.SendReply):
            return [self._wire.refused_reads(self._txns, self._ledger_id, ids, int(status))]
        bodies = Bodies.of_entries(last, np.array([len(last)], dtype=np.int64))
        answers: list[Buffer] = self._wire.read_answers(self._txns, self._ledger_id, ids, bodies, max_lacs=effect.lac)
        return answers


class Batch:
    """A batch read of version 2: consecutive entries, at least one."""

    def __init__(self, ask: Ask, asked: BatchRead) -> None:
        self._ask, self._asked = ask, asked
        self.ledger_id, self.fences = asked.ledger_id, asked.fencing
        self._room = min(asked.max_bytes, BATCH_BYTES_MAX) - _BATCH_HEAD_BYTES
        self._next = asked.first_entry_id
        last = min(self._next + asked.max_count - 1, _ID_MAX) if asked.max_count > 0 else _ID_MAX
        self._last = max(self._next, last)
        self._full = False
        self._parts: list[tuple[Buffer, I64]] = []

    def refusal(self) -> Status:
        if self._asked.fencing and not self._asked.key:
            return Status.EUA
        return Status.ENOLEDGER if self._asked.ledger_id < 0 else Status.EOK

    def refused(self, status: Status) -> BatchRead:
        return replace(self._asked, status=status)

    def begin(self) -> None:
        asked, size = self._asked, max(1, self._room)
        self._begun = self._next
        key = asked.key if asked.fencing else None
        self._ask(
            self,
            lambda request: events.ReadRequested(request, asked.ledger_id, self._next, self._last, size, key),
        )

    def heard(self, effect: Effect) -> list[Buffer]:
        if isinstance(effect, events.SendPart):
            for entries in entries_of(effect.frames):
                self._take(entries)
            return []
        assert isinstance(effect, events.SendTrailer)
        if not (effect.reason or self._full) and self._begun < self._next <= self._last and self._may_go_on(effect):
            self.begin()
            return []
        if not self._parts:
            return [v2.refusal(self.refused(status_of(effect, self._asked.first_entry_id)))]
        lengths = np.concatenate([lengths for _, lengths in self._parts])
        return v2.batch_answer(self._asked, Bodies.of_entries(b"".join(each for each, _ in self._parts), lengths))

    def _may_go_on(self, trailer: events.SendTrailer) -> bool:
        """Return whether to ask the machine for the next entry. Its answer may not have reached the entry. Or the entry
        came in a frame whose ids are not consecutive, so that it came too early and was not kept."""
        if self._next > trailer.trailer.answered_through:
            return True
        gaps = (*trailer.trailer.absent, *trailer.trailer.unknown)
        return not any(gap.first <= self._next <= gap.last for gap in gaps)

    def _take(self, entries: Entries) -> None:
        """Append the entries that continue the batch, as far as there is room. The first entry is always taken."""
        at = np.flatnonzero((entries.ids >= self._next) & (entries.ids <= self._last))
        at = at[np.argsort(entries.ids[at], kind="stable")]
        run = entries.ids[at] - self._next == np.arange(at.size)
        at = at[: at.size if run.all() else int(run.argmin())]
        if self._full or not at.size:
            return
        if (np.diff(at) < 1).any():  # positions in a frame whose ids do not ascend
            at = at[:1]
        taken = entries.taken(at).bodies
        sizes = taken.lengths + taken.head_bytes + LENGTH_BYTES
        fits = int(sizes.cumsum().searchsorted(self._room, side="right"))
        if not self._parts:
            fits = max(1, fits)
        self._full = fits < at.size
        if fits:
            taken = taken.slice(0, fits)
            self._room -= int(sizes[:fits].sum())
            self._next += fits
            self._parts.append((bytes(taken.joined()), taken.lengths + taken.head_bytes))


class ReadLac:
    """A READ_LAC request. Its answer has the explicit LAC and the last entry; if the bookie has only one of them, the
    answer has that one. Apache's bookies answer EIO if there is an explicit LAC and no entry. Their clients take that
    for a failure, and so cannot open the ledger (P9)."""

    def __init__(self, ask: Ask, single: Single) -> None:
        self._ask, self._single = ask, single

    def refusal(self) -> Status:
        return Status.ENOENTRY if self._single.request.readLacRequest.ledgerId < 0 else Status.EOK

    def begin(self) -> None:
        ledger_id = self._single.request.readLacRequest.ledgerId
        self._ask(self, lambda request: events.ReadLacRequested(request, ledger_id))

    def heard(self, effect: Effect) -> list[Buffer]:
        assert isinstance(effect, (events.SendLac, events.SendReply))
        last = last_entry_of(effect.evidence) if isinstance(effect, events.SendLac) else None
        status, body = lac_status(effect, last), b""
        if isinstance(effect, events.SendLac):
            body = effect.evidence.lac_body
            if not effect.trouble and last is None:
                status = Status.EOK if body else Status.ENOENTRY
        made = v3.answer(self._single.request, status)
        if body:
            made.readLacResponse.lacBody = body
        if last is not None:
            made.readLacResponse.lastEntryBody = last
        return [v3.framed(made)]


class WriteLac:
    def __init__(self, ask: Ask, single: Single) -> None:
        self._ask, self._single = ask, single

    def begin(self) -> None:
        asked = self._single.request.writeLacRequest
        self._ask(
            self,
            lambda request: events.WriteLacRequested(request, asked.ledgerId, asked.masterKey, asked.body),
        )

    def heard(self, effect: Effect) -> list[Buffer]:
        assert isinstance(effect, events.SendReply)
        wrong = effect.reason is Reason.INTEGRITY  # the digest is wrong
        status = Status.EBADREQ if wrong else refused_read(effect.reason) if effect.reason else Status.EOK
        return [v3.framed(v3.answer(self._single.request, status))]


class ListEntries:
    """A GET_LIST_OF_ENTRIES_OF_LEDGER request. It asks the machine for one range after the other."""

    def __init__(self, ask: Ask, single: Single) -> None:
        self._ask, self._single = ask, single
        self._ledger_id: LedgerId = single.request.getListOfEntriesOfLedgerRequest.ledgerId
        self._next = 0
        self._held: deque[tuple[int, int]] = deque()

    def refusal(self) -> Status:
        return Status.ENOLEDGER if self._ledger_id < 0 else Status.EOK

    def begin(self) -> None:
        ledger_id, first = self._ledger_id, self._next
        self._ask(
            self,
            lambda request: events.ReadRequested(request, ledger_id, first, _ID_MAX, READ_BYTES_MAX, None, True),
        )

    def heard(self, effect: Effect) -> list[Buffer]:
        assert isinstance(effect, events.SendTrailer)
        trailer = effect.trailer
        status = refused_read(effect.reason) if effect.reason else Status.EOK
        if not status and not effect.known:
            status = Status.ENOLEDGER
        if not status and trailer.unknown:
            status = refused_read(trailer.unknown[0].reason)
        if status:
            return [v3.framed(v3.answer(self._single.request, status))]
        self._hold(trailer.absent, trailer.answered_through)
        if self._next <= _ID_MAX:
            self.begin()
            return []
        held = np.array(self._held, dtype=np.int64).reshape(-1, 2)
        listed = encode_availability(held[:, 0].copy(), held[:, 1].copy())
        if len(listed) > FRAME_BYTES_MAX - _ROOM_FOR_FIELDS:
            return [v3.framed(v3.answer(self._single.request, Status.EIO))]
        made = v3.answer(self._single.request)
        made.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger = listed
        return [v3.framed(made)]

    def _hold(self, absent: Sequence[EntryRange], through: int) -> None:
        """Record the ids up to ``through`` that are not absent as held."""
        for gap in [*absent, EntryRange(through + 1, through + 1)]:
            if gap.first > self._next:
                joins = self._held and self._held[-1][1] + 1 == self._next
                self._held.append((self._held.pop()[0] if joins else self._next, gap.first - 1))
            self._next = max(self._next, gap.last + 1)
        self._next = through + 1
