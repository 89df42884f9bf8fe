# SPDX-License-Identifier: Apache-2.0
"""Reads ranges by single reads. It converts a range to requests, takes the answers in any order, and makes frames of
entries in the order of their ids, and then a trailer (P4). Pure.

A range is requested in runs of consecutive ids with consecutive transactions. The number of reads that wait for answers
grows with the answers. It stays within READS_MAX, within the bytes that the caller takes (by the mean size of the
entries so far), and within the limit that all ranges of the connection share. Answers that come early wait until the
answers before them have come.

A range that has to fence is *fencing* until its first entry is answered, and, if this entry is absent, until the bookie
has forced its log. Then it is *reading*, and finally *over*. Answers to a range that is over are awaited and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bk_core.entries.frame import apache_frame
from bk_core.errors import BookKeeperError, RemoteProtocolError
from bk_core.model import EntryId, LedgerId
from bk_core.transport.bookie_rpc.packing import Packer, Waiting, take_once
from bk_core.transport.port import ReadPart, RefusedError
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.frames import I64, Buffer
from bk_core.wire.bookie_rpc.runs import ReadAnswers
from bk_core.wire.bookie_rpc.status import Status, reason_of
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import EntryRange, Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb

READS_MAX = 5_000
"""The maximum number of reads of one client that wait for answers of one bookie. Apache's bookies refuse too many
requests."""

READS_AT_FIRST = 16
"""The number of reads that are sent before the size of the entries is known."""

ABSENT_MAX = 256
"""The number of absent entries in a row after which an answer ends. A reader that reads past the end of a ledger needs
no answer about each id."""

PART_BYTES = 512 << 10
"""The size, in bytes, of the frames into which entries are gathered, while more entries are to come and the caller does
not call ``hurry``."""

FRAME_ENTRY_BYTES = 12
"""The number of bytes that a frame has for each entry in addition to the entry, for its length and its id."""

HEADER_BYTES = 32

# The state of an entry is a value of Status or one of these: not answered yet; answered, but not with this entry;
# dropped for lack of memory.
_OPEN, _NONSENSE, _NO_ROOM = -1, -2, -3
_ABSENT = (int(Status.ENOENTRY), int(Status.ENOLEDGER))


def in_turn(ranges: deque[WireRangeRead]) -> Iterator[WireRangeRead]:
    """Yield each range once, beginning after the range that was yielded last, and drop ranges that are over."""
    for _ in range(len(ranges)):
        asked = ranges.popleft()
        if not asked.over:
            ranges.append(asked)
            yield asked


@dataclass(slots=True, eq=False)
class AskedRun:
    """A run of reads of consecutive ids of one range. ``statuses`` has the state of each entry. An entry that was found
    is in the owner's ``chunks[chunk]``."""

    owner: WireRangeRead | None
    first_txn: int
    first: EntryId
    count: int
    left: int
    statuses: I64
    chunk: I64
    offsets: I64
    lengths: I64

    @classmethod
    def of(cls, owner: WireRangeRead, first_txn: int, first: EntryId, count: int) -> AskedRun:
        zeros = [np.zeros(count, dtype=np.int64) for _ in range(3)]
        return cls(owner, first_txn, first, count, count, np.full(count, _OPEN, dtype=np.int64), *zeros)


@dataclass(slots=True, eq=False)
class Chunk:
    """The entries that came together. ``left`` is the number of them that are not passed on yet, and ``lac`` the
    greatest LAC that they carry."""

    entries: memoryview
    lac: int
    left: int


@dataclass(slots=True, eq=False)
class WireRangeRead:
    """The read of one range from a bookie. ``told`` gets the parts of the answer in order, and finally the trailer or
    an error."""

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    bytes_max: int
    fence_key: bytes | None = field(repr=False)
    told: Callable[[ReadPart | ReadTrailer | BookKeeperError], None]
    fencing: bool = False
    over: bool = False
    next: EntryId = 0  # the first id that was not requested yet
    done: EntryId = 0  # the first id that was not passed on yet
    asked: deque[AskedRun] = field(default_factory=deque)
    pending: int = 0
    allowed: int = READS_AT_FIRST
    found: int = 0
    found_bytes: int = 0  # the bytes of all entries that were found
    held_bytes: int = 0  # the bytes of the entries that are not passed on yet
    passed_bytes: int = 0
    chunks: dict[int, Chunk] = field(default_factory=dict)
    next_chunk: int = 0
    gathered: list[tuple[memoryview, I64, I64, int]] = field(default_factory=list)
    gathered_bytes: int = 0
    absent: list[EntryRange] = field(default_factory=list)
    unknown: list[EntryRange] = field(default_factory=list)
    absent_in_a_row: int = 0

    def __post_init__(self) -> None:
        self.next = self.done = self.first
        self.fencing = self.fence_key is not None

    # --- asking ---

    def wanted(self) -> int:
        """Return the number of reads of this range to send next."""
        left = self.last + 1 - self.next
        if self.over or self.fencing or not left:
            return 0
        most = self.allowed
        if self.found:
            mean = self.found_bytes // self.found + FRAME_ENTRY_BYTES
            most = min(most, (self.bytes_max - self.passed_bytes - self.held_bytes) // mean + 1)
        if not self.pending:
            return min(max(most, 1), left)
        count = min(most - self.pending, left)
        return count if count >= min(most // 4, left) else 0  # to send a few reads costs as much as to send many

    def ask(self, count: int, first_txn: int) -> AskedRun:
        run = AskedRun.of(self, first_txn, self.next, count)
        self.asked.append(run)
        self.next += count
        self.pending += count
        return run

    # --- hearing ---

    def hear(self, run: AskedRun, places: I64, answers: ReadAnswers, at: I64 | slice) -> None:
        """Take some answers of a run."""
        self.pending -= places.size
        self.allowed = min(READS_MAX, self.allowed + int(places.size))
        statuses = answers.statuses[at]
        run.statuses[places] = statuses
        found = statuses == Status.EOK
        if not found.any():
            return
        offsets, lengths = answers.body_offsets[at], answers.body_lengths[at]
        if not found.all():
            places, offsets, lengths = places[found], offsets[found], lengths[found]
        whole = lengths >= HEADER_BYTES
        if not whole.all():
            run.statuses[places[~whole]] = _NONSENSE
            places, offsets, lengths = places[whole], offsets[whole], lengths[whole]
        if places.size:
            bodies = Bodies(answers.buffer, offsets, lengths)
            self._keep(run, places, bodies, _headers(bodies))

    def hear_batch(self, run: AskedRun, bodies: Bodies) -> AskedRun | None:
        """Take the answer to a run that was requested as a batch. Its entries count up to the first entry that was not
        requested, and the run ends after them. Return the rest of the run as :meth:`cut` does."""
        inside = bodies.headers()
        right = (inside[:, 0] == self.ledger_id) & (inside[:, 1] == run.first + np.arange(len(bodies)))
        count = len(bodies) if right.all() else int(right.argmin())
        self.pending -= count
        self.allowed = min(READS_MAX, self.allowed + count)
        if count:
            run.statuses[:count] = Status.EOK
            self._keep(run, np.arange(count), bodies.slice(0, count), inside[:count])
        return self.cut(run, count) if count < run.count else None

    def cut(self, run: AskedRun, count: int) -> AskedRun | None:
        """End a run after its first ``count`` entries, because no more of it will be answered. Return the rest as a new
        run, to be requested again. Return None if no later run was requested; then the rest counts as not requested."""
        at, left = self.asked.index(run), run.count - count
        last = at == len(self.asked) - 1
        run.count, run.statuses = count, run.statuses[:count]
        if not count:
            del self.asked[at]
        if last:
            self.pending -= left
            self.next = run.first + count
            return None
        rest = AskedRun.of(self, 0, run.first + count, left)
        self.asked.insert(at + bool(count), rest)
        return rest

    def _keep(self, run: AskedRun, places: I64, bodies: Bodies, inside: I64) -> None:
        """Copy entries out of the receive buffer. ``inside`` has their headers. An entry whose header names another
        entry counts as damaged."""
        right = (inside[:, 0] == self.ledger_id) & (inside[:, 1] == run.first + places)
        size = int(bodies.lengths.sum())
        self.found, self.found_bytes = self.found + places.size, self.found_bytes + size
        if not right.all():
            run.statuses[places[~right]] = _NONSENSE
        if self.held_bytes + size > self.bytes_max + 2 * PART_BYTES and run.first + int(places.min()) > self.done:
            run.statuses[places] = _NO_ROOM
            return
        self.held_bytes += size
        ends = bodies.lengths.cumsum()
        run.chunk[places], run.lengths[places] = self.next_chunk, bodies.lengths
        run.offsets[places] = ends - bodies.lengths
        entries = memoryview(bodies.joined())
        self.chunks[self.next_chunk] = Chunk(entries, int(inside[:, 2].max()), int(np.count_nonzero(right)))
        self.next_chunk += 1

    def pass_on(self) -> None:
        """Pass on the entries that are next in order. End the answer after the last id, at the limit of bytes, after
        ABSENT_MAX absent entries in a row, and before an entry that was dropped for lack of memory."""
        while self.asked and not self.over:
            run = self.asked[0]
            start = self.done - run.first
            open_places = np.flatnonzero(run.statuses[start:] == _OPEN)
            stop = start + int(open_places[0]) if open_places.size else run.count
            if stop > start:
                self._pass_on(run, start, stop)
            if self.over or stop < run.count:
                break
            self.asked.popleft()
        if not self.over and self.done > self.last:
            self._end()
        if not self.over and (self.gathered_bytes >= PART_BYTES or not self.pending):
            self._part()

    def _pass_on(self, run: AskedRun, start: int, stop: int) -> None:
        statuses = run.statuses[start:stop]
        full = np.flatnonzero(statuses == _NO_ROOM)
        over = full.size > 0
        if over:
            stop = start + int(full[0])
        at = np.flatnonzero(run.statuses[start:stop] == Status.EOK) + start
        sizes = (run.lengths[at] + FRAME_ENTRY_BYTES).cumsum() + self.passed_bytes
        cut = int(sizes.searchsorted(self.bytes_max, side="right"))
        if cut < at.size:
            cut = max(cut, 0 if self.passed_bytes else 1)
            over = True
            stop, at = (int(at[cut]) if cut < at.size else stop), at[:cut]
        if at.size:
            self.passed_bytes = int(sizes[at.size - 1])
            self.held_bytes -= int(run.lengths[at].sum())
            self._gather(run, at)
        over = self._note_others(run, start, stop) or over
        if over and self.done > self.first:
            self._end()

    def _gather(self, run: AskedRun, at: I64) -> None:
        """Add the entries at these positions of the run to the next part. Neighbours in one chunk become one piece."""
        chunk, offsets, lengths = run.chunk[at], run.offsets[at], run.lengths[at]
        ends = offsets + lengths
        breaks = np.flatnonzero((chunk[1:] != chunk[:-1]) | (offsets[1:] != ends[:-1])) + 1
        for part in np.split(np.arange(at.size), breaks):
            number = int(chunk[part[0]])
            source = self.chunks[number]
            piece = source.entries[int(offsets[part[0]]) : int(ends[part[-1]])]
            if self.gathered_bytes and self.gathered_bytes + len(piece) > 2 * PART_BYTES:
                self._part()
            self.gathered.append((piece, lengths[part], run.first + at[part], source.lac))
            self.gathered_bytes += len(piece)
            source.left -= int(part.size)
            if not source.left:
                del self.chunks[number]

    def _note_others(self, run: AskedRun, start: int, stop: int) -> bool:
        """Note the absent and the unknown ids of the run up to ``stop``. Return True if ABSENT_MAX ids in a row are
        absent."""
        self.done = run.first + stop
        statuses = run.statuses[start:stop]
        if not statuses.size or bool((statuses == Status.EOK).all()):
            self.absent_in_a_row = 0 if statuses.size else self.absent_in_a_row
            return False
        breaks = np.flatnonzero(statuses[1:] != statuses[:-1]) + 1
        for part in np.split(np.arange(start, stop), breaks):
            status, first, last = int(run.statuses[part[0]]), run.first + int(part[0]), run.first + int(part[-1])
            if status in _ABSENT:
                self.absent_in_a_row += last + 1 - first
                _extend(self.absent, EntryRange(first, last))
                continue
            self.absent_in_a_row = 0
            if status != Status.EOK:
                _extend(self.unknown, EntryRange(first, last, *_why(status)))
        return self.absent_in_a_row >= ABSENT_MAX

    def _part(self) -> None:
        gathered, self.gathered, self.gathered_bytes = self.gathered, [], 0
        if gathered:
            entries = gathered[0][0] if len(gathered) == 1 else b"".join([piece for piece, *_ in gathered])
            lengths, ids = (np.concatenate([one[k] for one in gathered]) for k in (1, 2))
            frame = apache_frame(self.ledger_id, entries, lengths, ids, max(lac for *_, lac in gathered))
            self.told(ReadPart(memoryview(frame)))

    def hurry(self) -> bool:
        """Pass on the gathered entries, however few they are. Return False if there are none. The bookie is slow, so
        fewer entries are requested at a time from now on."""
        self.allowed = max(READS_AT_FIRST, self.allowed // 2)
        some = bool(self.gathered)
        self._part()
        return some

    def _end(self) -> None:
        self._part()
        fenced = self.fence_key is not None
        self.finish(ReadTrailer(self.done - 1, tuple(self.absent), tuple(self.unknown), fenced))

    def finish(self, end: ReadTrailer | BookKeeperError) -> None:
        """End the range, and pass ``end`` to the listener."""
        if not self.over:
            self.forget()
            self.told(end)

    def forget(self) -> None:
        """End the range without a call of the listener. Answers that are under way are awaited and dropped."""
        self.over = True
        for run in self.asked:
            run.owner = None
        self.asked.clear()
        self.chunks.clear()
        self.gathered.clear()


def _headers(bodies: Bodies) -> I64:
    """Return the headers of entries in any order; ``Bodies.headers`` needs ascending offsets."""
    offsets = bodies.offsets
    if offsets.size < 2 or bool((np.diff(offsets) > 0).all()):
        return bodies.headers()
    order = np.argsort(offsets, kind="stable")
    rows = np.empty((offsets.size, 4), dtype=np.int64)
    rows[order] = Bodies(bodies.payload, offsets[order], bodies.lengths[order]).headers()
    return rows


def _extend(ranges: list[EntryRange], more: EntryRange) -> None:
    last = ranges[-1] if ranges else None
    if last is not None and last.last + 1 == more.first and (last.reason, last.message) == (more.reason, more.message):
        ranges[-1] = EntryRange(last.first, more.last, more.reason, more.message)
    else:
        ranges.append(more)


def _why(status: int) -> tuple[Reason, str]:
    if status == _NONSENSE:
        return Reason.DAMAGED, "the answer is another entry"
    return reason_of(Status(status)), Status(status).name


@dataclass(slots=True, eq=False)
class SingleRead:
    """A read that belongs to no run: a read of the last entry, a read with a fence, or a long poll. ``taken`` gets the
    status, the entry, and the bookie's LAC."""

    first_txn: int
    ledger_id: LedgerId
    taken: Callable[[Status, bytes, int], None] | None
    poll: bool = False
    count: int = 1


class WireReads:
    """Handles the reads of one connection."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._ranges: deque[WireRangeRead] = deque()
        self._flight: Waiting[AskedRun | SingleRead] = Waiting()
        self._singles: deque[bytes] = deque()
        self._again: deque[AskedRun] = deque()  # the runs that were in no batch
        self.in_flight = 0
        self.polls = 0

    # --- calls ---

    def read(self, asked: WireRangeRead, force: Callable[[LedgerId, Callable[[Status], None]], None]) -> None:
        """Begin to read a range. ``force`` lets the bookie sync its log, and calls its argument with the status."""
        if asked.first > asked.last or asked.first < 0:
            asked.finish(RefusedError(Reason.BAD_REQUEST, "no such range", value=f"{asked.first} to {asked.last}"))
            return
        self._ranges.append(asked)
        if asked.fence_key is not None:
            self._fence_first(asked, force)

    def _fence_first(self, asked: WireRangeRead, force: Callable[[LedgerId, Callable[[Status], None]], None]) -> None:
        """Read the first entry with a fence. The ledger is then fenced, so the later reads need no fence."""
        assert asked.fence_key is not None

        def forced(status: Status) -> None:
            if status is Status.EOK:
                asked.fencing = False
            else:
                asked.finish(refused(status, "its log could not be forced after the fence"))

        def fenced(status: Status, body: bytes, _lac: int) -> None:
            if asked.over:
                return
            if status is Status.EOK:
                asked.fencing = False
            elif status in (Status.ENOENTRY, Status.ENOLEDGER):
                force(asked.ledger_id, forced)
            else:
                asked.finish(refused(status, f"ledger {asked.ledger_id} could not be fenced"))

        self.one(asked.ledger_id, asked.first, fenced, fence_key=asked.fence_key)

    def one(
        self,
        ledger_id: LedgerId,
        entry_id: EntryId,
        taken: Callable[[Status, bytes, int], None],
        *,
        fence_key: bytes | None = None,
        poll: tuple[EntryId, int] | None = None,
    ) -> SingleRead:
        """Make one single read. ``poll`` makes it a long poll; it is the known LAC, and the number of milliseconds that
        the bookie waits for a greater LAC."""
        single = SingleRead(self._packer.txns(1), ledger_id, taken, poll is not None)
        request = v3.request(pb.READ_ENTRY, single.first_txn)
        read = request.readRequest
        read.ledgerId, read.entryId = ledger_id, entry_id
        if fence_key is not None:
            read.flag, read.masterKey = pb.ReadRequest.FENCE_LEDGER, fence_key
        if poll is not None:
            read.previousLAC, read.timeOut = poll
            self.polls += 1
        self._flight.add(single)
        self.in_flight += 1
        self._singles.append(v3.framed(request))
        return single

    def go_on(self, asked: WireRangeRead) -> None:
        """Continue a range that was read in batches."""
        self._ranges.append(asked)

    def again(self, run: AskedRun) -> None:
        """Request the entries of a run that were in no batch."""
        run.first_txn = self._packer.txns(run.count)
        self._again.append(run)

    # --- out ---

    def next_buffers(self) -> list[Buffer] | None:
        """Return the next requests to send, or None."""
        if self._singles:
            buffers: list[Buffer] = [b"".join(self._singles)]
            self._singles.clear()
            return buffers
        while self._again:
            run = self._again[0]
            if run.owner is not None and run.count > READS_MAX + self.polls - self.in_flight:
                return None
            self._again.popleft()
            if run.owner is not None:
                return self._send(run, run.owner.ledger_id)
        for asked in in_turn(self._ranges):
            count = min(asked.wanted(), READS_MAX + self.polls - self.in_flight)
            if count > 0:
                return self._send(asked.ask(count, self._packer.txns(count)), asked.ledger_id)
        return None

    def _send(self, run: AskedRun, ledger_id: LedgerId) -> list[Buffer]:
        self._flight.add(run)
        self.in_flight += run.count
        txns = np.arange(run.first_txn, run.first_txn + run.count, dtype=np.uint64)
        return [v3.read_requests(txns, ledger_id, np.arange(run.first, run.first + run.count, dtype=np.int64))]

    # --- in ---

    def take(self, answers: ReadAnswers) -> None:
        """Take answers to reads. Raises RemoteProtocolError for an answer that belongs to no read."""
        touched: dict[int, WireRangeRead] = {}
        for asked, at, places in self._flight.groups(answers.txns):
            if isinstance(asked, SingleRead):
                self._take_single(asked, answers, at)
                continue
            self._check_ids(asked, places, answers, at)
            take_once(asked.statuses == _OPEN, places, asked.first_txn)
            asked.left -= int(places.size)
            self.in_flight -= int(places.size)
            if not asked.left:
                self._flight.remove(asked)
            if asked.owner is None:
                asked.statuses[places] = _NONSENSE  # answered, but the range is over
            else:
                asked.owner.hear(asked, places, answers, at)
                touched[id(asked.owner)] = asked.owner
        for owner in touched.values():
            owner.pass_on()

    def _check_ids(self, asked: AskedRun, places: I64, answers: ReadAnswers, at: I64 | slice) -> None:
        ids, ledgers, statuses = answers.entry_ids[at], answers.ledger_ids[at], answers.statuses[at]
        wrong = ids != asked.first + places
        if asked.owner is not None:
            wrong |= ledgers != asked.owner.ledger_id
        if wrong.any() and bool((wrong & ~((statuses != Status.EOK) & (ids == -1) & (ledgers == -1))).any()):
            raise RemoteProtocolError("a bookie answers a read with the ids of another read")

    def _take_single(self, asked: SingleRead, answers: ReadAnswers, at: I64 | slice) -> None:
        positions = np.arange(len(answers))[at]
        k = int(positions[0])
        said = int(answers.ledger_ids[k])
        status = Status(int(answers.statuses[k]))
        if positions.size > 1 or (said != asked.ledger_id and not (said == -1 and status is not Status.EOK)):
            raise RemoteProtocolError("a bookie answers a read with the ids of another read")
        self._flight.remove(asked)
        self.in_flight -= 1
        self.polls -= asked.poll
        if asked.taken is not None:
            begin, size = int(answers.body_offsets[k]), int(answers.body_lengths[k])
            asked.taken(
                status, bytes(answers.buffer[begin : begin + size]) if size > 0 else b"", int(answers.max_lacs[k])
            )

    # --- ends ---

    def lost(self, error: BookKeeperError) -> None:
        """End all ranges with ``error``, which broke the connection."""
        ranges, self._ranges = self._ranges, deque()
        self._flight, self.in_flight, self.polls = Waiting(), 0, 0
        self._again.clear()
        for asked in ranges:
            asked.finish(error)

    @property
    def owes(self) -> bool:
        """Whether the bookie owes an answer now. A long poll does not count, because the bookie may answer it later."""
        return self.in_flight > self.polls


def refused(status: Status, what: str) -> RefusedError:
    """Make the error for a request that a bookie refused with this status. ``what`` describes the problem."""
    reason = reason_of(status) or (Reason.DELETED if status is Status.ENOLEDGER else Reason.BAD_REQUEST)
    return RefusedError(reason, what, value=status.name)
