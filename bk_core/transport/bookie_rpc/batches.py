# SPDX-License-Identifier: Apache-2.0
"""Reads ranges by the batch reads of version 2, on a second connection in addition to that of version 3. Pure.

A batch read requests consecutive entries. The bookie answers with as many of them as it has and as fit. So a batch
contains only entries that were found. Missing entries are requested again, in the end by single reads over version 3,
because only these say that an entry is absent or unknown. The same happens if a bookie does not know batch reads and
closes the connection, if a ledger is striped, so that a bookie has no long run of it, and if the connection breaks.

The state is *open* until the connection has ended for any reason. Then it is *over*, and all ranges are read entry by
entry.
"""

from __future__ import annotations

from collections import deque

from bk_core.errors import RemoteProtocolError
from bk_core.transport.bookie_rpc.packing import Packer, nobody_asked
from bk_core.transport.bookie_rpc.reads import FRAME_ENTRY_BYTES, AskedRun, WireRangeRead, WireReads, in_turn
from bk_core.wire.bookie_rpc import v2
from bk_core.wire.bookie_rpc.connection import AnswerReader
from bk_core.wire.bookie_rpc.frames import LENGTH_BYTES, Buffer
from bk_core.wire.bookie_rpc.runs import BatchAnswer, BatchRead
from bk_core.wire.bookie_rpc.status import Status

BATCH_BYTES = 1 << 20
"""The maximum size of a batch in bytes, unless it has only one entry. Larger batches would save few requests and come
late."""

BATCHES_MAX = 8
"""The maximum number of batches that a client requests from a bookie at a time. The bookie holds each of them in
memory."""

IDS_AT_FIRST = 64
"""The maximum number of entries in a range's first batch; later batches grow with the answers. A bookie sends a batch
only when it has read all of it, and a bookie that needs milliseconds for each entry must not seem silent."""

BATCHES_OF_RANGE = 2
"""The maximum number of requested batches of one range. While the client takes a batch, the bookie reads the next."""

WORTH_IDS = 33
"""The minimum number of entries in a range that is read in batches. Fewer entries are read as fast one by one."""


class Batches:
    """Handles the batch reads of one connection. ``reads`` handles the single reads of the connection of version 3 to
    the same bookie."""

    version = 2

    def __init__(self, packer: Packer, reads: WireReads) -> None:
        self._packer, self._reads = packer, reads
        self._reader = AnswerReader(2)
        self._ranges: deque[WireRangeRead] = deque()
        self._rests: deque[AskedRun] = deque()  # the missing ends of batches that were cut short
        self._flight: dict[int, tuple[BatchRead, AskedRun]] = {}  # by request
        self.over = False

    def suit(self, asked: WireRangeRead) -> bool:
        """Return whether a range should be read in batches. A range that fences should not, because it must be read on
        the connection that fences."""
        return not self.over and asked.fence_key is None and 0 <= asked.first <= asked.last + 1 - WORTH_IDS

    def read(self, asked: WireRangeRead) -> None:
        self._ranges.append(asked)

    # --- out ---

    def next_buffers(self) -> list[Buffer] | None:
        """Return the next request to send, or None."""
        if len(self._flight) >= BATCHES_MAX:
            return None
        while self._rests:
            rest = self._rests.popleft()
            if rest.owner is not None:
                return [self._ask(rest.owner, rest)]
        for asked in in_turn(self._ranges):
            count = self._wanted(asked)
            if count:
                return [self._ask(asked, asked.ask(count, 0))]
        return None

    def _wanted(self, asked: WireRangeRead) -> int:
        """Return the number of entries of a range to request next. The bookie may cut the first batch short. The size
        of later batches follows from the mean size of the range's entries, with a reserve, so that few are cut
        short."""
        left, under_way = asked.last + 1 - asked.next, sum(run.owner is asked for _, run in self._flight.values())
        most = min(left, max(IDS_AT_FIRST, asked.allowed))
        if not asked.found:
            return 0 if under_way else most
        if under_way >= BATCHES_OF_RANGE:
            return 0
        mean = asked.found_bytes // asked.found + FRAME_ENTRY_BYTES
        room = asked.bytes_max - asked.passed_bytes - asked.held_bytes - asked.pending * mean
        return min(most, max(room, 0) // mean + 1, BATCH_BYTES * 3 // 4 // mean + 1)

    def _ask(self, asked: WireRangeRead, run: AskedRun) -> bytes:
        request = self._packer.txns(1)
        most = min(BATCH_BYTES, asked.bytes_max)
        batch = BatchRead(0, v2.VERSION, asked.ledger_id, run.first, request, run.count, most)
        self._flight[request] = batch, run
        return v2.batch_read(batch)

    # --- in ---

    def receive(self, received: Buffer) -> int:
        """Take received bytes, and return the number of bytes that were used. Raises the errors of
        :meth:`Exchange.receive`."""
        replies = self._reader.read(received)
        for answer in replies.items:
            if not isinstance(answer, BatchAnswer):
                raise RemoteProtocolError("a bookie answers a batch read with something else")
            self._take(answer)
        if replies.fault is not None:
            raise replies.fault
        return replies.used

    def _take(self, answer: BatchAnswer) -> None:
        batch, run = self._flight.get(answer.request_id, (None, None))
        if batch is None or run is None:
            raise nobody_asked(answer.request_id)
        _check(batch, answer)
        del self._flight[answer.request_id]
        asked = run.owner
        if asked is None:
            return
        rest = asked.hear_batch(run, answer.bodies)
        if rest is not None and run.count:
            self._rests.append(rest)
        elif not run.count:
            self._read_singly(asked, rest)
        asked.pass_on()

    def _read_singly(self, asked: WireRangeRead, rest: AskedRun | None) -> None:
        """Continue a range with single reads, beginning with the entries of ``rest``, if any."""
        if rest is not None:
            self._reads.again(rest)
        if asked in self._ranges:
            self._ranges.remove(asked)
            self._reads.go_on(asked)

    # --- ends ---

    def lost(self) -> None:
        """Continue all ranges with single reads. The connection has ended."""
        self.over = True
        runs = [run for _, run in self._flight.values()] + list(self._rests)
        self._flight.clear()
        self._rests.clear()
        for run in sorted(runs, key=lambda run: -run.first):
            if run.owner is not None:
                self._read_singly(run.owner, run.owner.cut(run, 0))
        ranges, self._ranges = self._ranges, deque()
        for asked in ranges:
            self._reads.go_on(asked)

    @property
    def owes(self) -> bool:
        return bool(self._flight)


def _check(batch: BatchRead, answer: BatchAnswer) -> None:
    """Raise RemoteProtocolError if the answer cannot be that of this batch read. Its entries are checked later."""
    if (answer.ledger_id, answer.first_entry_id) != (batch.ledger_id, batch.first_entry_id):
        raise RemoteProtocolError("a bookie answers a batch read with the ids of another read")
    count, size = len(answer.bodies), int(answer.bodies.lengths.sum())
    most = batch.max_count if answer.status is Status.EOK else 0
    if count > most or (count > 1 and size + LENGTH_BYTES * count > batch.max_bytes):
        raise RemoteProtocolError("a bookie gives more than was asked for", value=f"{count} entries, {size} bytes")
