# SPDX-License-Identifier: Apache-2.0
"""Reads one range of a ledger from as many bookies as :class:`~bk_core.client.reading.sharing.Sharing` wants. Pure.

While one bookie serves, a single :class:`~bk_core.protocol.reader.RangeRead` reads the whole range. While several
serve, the range is cut into chunks. Each chunk has its own RangeRead, which first asks the bookie of the chunk. So each
chunk has all checks, gaps, hedges and tries of a range read. A bookie that has ended its chunk gets the next one, so a
fast bookie serves more of them.

Only the batches of the first chunk are delivered; later chunks keep theirs until they are first. Bytes ahead of the
consumer, kept or asked for, are at most two answers, as with one bookie. A chunk that has its bytes asks for nothing
more before it is first, even if its entries are larger than was estimated. A bookie gets no further chunks if it did
not give the whole of one, or if all bookies were not faster with it. A chunk that fails before it is first is read
again when it is first: only that counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count

from bk_core.client.reading.sharing import Sharing
from bk_core.model import BookieId, EntryId, LedgerMetadata
from bk_core.protocol import events as ev
from bk_core.protocol.reader import RangeRead, ReadEffect, ReadEvent

CHUNKS_PER_ANSWER = 8
"""The number of chunks that an answer of ``bytes_max`` is divided into. Between two chunks a bookie waits for a round
trip, which is short compared to a chunk wherever packets are lost; smaller chunks would wait more often."""

ENTRY_OVERHEAD_BYTES = 16
"""About the bytes of a frame for each entry besides its payload."""

_TURNS: dict[type, int] = {ev.DeliverBatch: 1, ev.FinishRead: 2, ev.Fail: 2}
"""The order of effects. All others come first."""


@dataclass(slots=True, eq=False)
class _Chunk:
    """One RangeRead. ``requests`` have not ended. ``held`` waits until the chunk is first, and ``waiting`` are the
    events that it handles then."""

    read: RangeRead
    slot: int
    bookie: BookieId = ""
    whole: bool = False
    requests: set[int] = field(default_factory=set)
    held: list[ev.DeliverBatch] = field(default_factory=list)
    held_bytes: int = 0
    waiting: list[ReadEvent] = field(default_factory=list)
    done: bool = False
    failed: bool = False

    @property
    def pending(self) -> bool:
        """Whether the chunk's bookie still serves it."""
        return not (self.done or self.failed or self.waiting)


class SharedRead:
    """Reads the entries ``first`` to ``last`` in order. ``make`` makes a RangeRead of (first, last), with the arguments
    ``bytes_max``, ``prefer``, ``avoid`` and ``new_number``."""

    def __init__(
        self,
        make: Callable[..., RangeRead],
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        *,
        sharing: Sharing,
        bytes_max: int,
        prefer: int = 0,
        avoid: Collection[BookieId] = (),
    ) -> None:
        self._make, self._metadata, self._sharing = make, metadata, sharing
        self.last, self.bytes_max, self._prefer = last, bytes_max, prefer
        self._chunk_bytes = max(1, bytes_max // CHUNKS_PER_ANSWER)
        self.done = False
        self._next = first  # the next id that no chunk has
        self._chunks: deque[_Chunk] = deque()
        self._owners: dict[int, _Chunk] = {}  # request → its chunk
        self._slots: dict[int, _Chunk] = {}  # the names of timers have the number of the slot
        self._new_number = count(1).__next__
        self._continued = 0  # the request after which the driver already asked for more
        self._avoid = dict.fromkeys(avoid)
        self._suspects: dict[BookieId, None] = {}  # of the chunks that ended
        self._left: set[BookieId] = set()  # the bookies that get no further chunks
        self._members: list[BookieId] = []  # the bookies that share the range
        self._served: dict[BookieId, int] = {}  # bookie → its bytes since the members changed
        self._bytes = self._entries = self._handed = self._frame_ids = 0
        self._ids_left = last + 1 - first  # the number of ids that no bookie gave yet
        if metadata.ensemble_size > metadata.write_quorum_size:
            sharing.limit(1)

    @property
    def suspects(self) -> dict[BookieId, None]:
        """The bookies that failed or were late, in the order of failure."""
        found = dict(self._suspects)
        for chunk in self._chunks:
            found |= chunk.read.suspects
        return found

    def start(self) -> list[ReadEffect]:
        return self._start_whole(self._prefer)

    def goes_on(self, request: int) -> bool:
        """Return whether the driver may ask for more as soon as this answer has ended. The machine then relies on
        it."""
        chunk = self._owners.get(request)
        if chunk is None or not chunk.whole or self._sharing.wanted > 1:
            return False
        self._continued = request
        return True

    def step(self, event: ReadEvent) -> list[ReadEffect]:
        """Handle one event and return the effects. Ignores answers to requests that have ended."""
        chunk = self._chunk_of(event)
        if chunk is None or self.done:
            return []
        if isinstance(event, ev.TimerFired):
            event = ev.TimerFired(event.name.partition(" ")[0])
        elif not isinstance(event, ev.FramesRead):
            self._forget(chunk, event.request)
        if chunk.whole:
            return self._step_whole(chunk, event)
        self._handed = 0
        if self._must_wait(chunk, event):
            chunk.waiting.append(event)
            effects: list[ReadEffect] = []
        else:
            effects = self._feed(chunk, event)
        return _in_order([*effects, *self._go_on()])

    def _step_whole(self, chunk: _Chunk, event: ReadEvent) -> list[ReadEffect]:
        is_last = isinstance(event, ev.ReadAnswered) and not chunk.requests and event.request != self._continued
        if is_last and self._sharing.wanted > 1:  # the chunks begin behind what was delivered
            self._members, self._served, self._next = [chunk.bookie], {}, chunk.read.next
            chunk.done = True
            return _in_order(self._go_on())
        effects = self._feed(chunk, event)
        return [*effects, *self._go_on()] if chunk.done else effects

    def _chunk_of(self, event: ReadEvent) -> _Chunk | None:
        if not isinstance(event, ev.TimerFired):
            return self._owners.get(event.request)
        chunk = self._slots.get(int(event.name.partition(" ")[2] or 0))
        return None if chunk is None or chunk.done or chunk.failed else chunk

    def _must_wait(self, chunk: _Chunk, event: ReadEvent) -> bool:
        """Return whether a later chunk has its bytes, so that it must not ask for more before it is first."""
        if chunk is self._chunks[0]:
            return False
        if chunk.waiting:
            return True
        if isinstance(event, ev.FramesRead) or chunk.held_bytes < self._chunk_bytes:
            return False
        return not isinstance(event, ev.ReadAnswered) or event.answered_through < chunk.read.last

    # --- effects -----------------------------------------------------------------------------------------------------
    def _feed(self, chunk: _Chunk, event: ReadEvent) -> list[ReadEffect]:
        return self._carry(chunk, chunk.read.step(event))

    def _carry(self, chunk: _Chunk, effects: list[ReadEffect]) -> list[ReadEffect]:
        """Return the effects of a chunk that leave this machine. Batches of later chunks are kept."""
        out: list[ReadEffect] = []
        for effect in effects:
            if isinstance(effect, ev.DeliverBatch):
                self._deliver(chunk, effect, out)
            elif isinstance(effect, ev.SendRead):
                self._note_request(chunk, effect)
                out.append(effect)
            elif isinstance(effect, ev.CancelRead):
                self._forget(chunk, effect.request)
                out.append(effect)
            elif isinstance(effect, ev.SetTimer):
                out.append(ev.SetTimer(f"{effect.name} {chunk.slot}", effect.delay_ms) if chunk.slot else effect)
            else:
                out += self._ended(chunk, effect)
        return out

    def _deliver(self, chunk: _Chunk, effect: ev.DeliverBatch, out: list[ReadEffect]) -> None:
        size = effect.batch.payload.nbytes
        self._bytes += size
        self._entries += len(effect.batch)
        self._frame_ids = max(self._frame_ids, len(effect.batch))
        self._ids_left -= len(effect.batch)
        self._sharing.arrived(size, self._ids_left * self._bytes // self._entries)
        if chunk is self._chunks[0]:
            out.append(effect)
        else:
            chunk.held.append(effect)
            chunk.held_bytes += size
        if not chunk.whole:
            self._served[chunk.bookie] = self._served.get(chunk.bookie, 0) + size

    def _note_request(self, chunk: _Chunk, effect: ev.SendRead) -> None:
        self._owners[effect.request] = chunk
        chunk.requests.add(effect.request)
        if chunk.whole:
            chunk.bookie = effect.bookie
        elif effect.bookie != chunk.bookie:
            self._left.add(chunk.bookie)

    def _forget(self, chunk: _Chunk, request: int) -> None:
        self._owners.pop(request, None)
        chunk.requests.discard(request)

    def _ended(self, chunk: _Chunk, effect: ev.FinishRead | ev.Fail) -> list[ReadEffect]:
        """Note the end of a chunk. The failure of the first chunk ends the read."""
        chunk.done = isinstance(effect, ev.FinishRead)
        chunk.failed = not chunk.done
        over = self._cancel(chunk)
        if chunk.failed and chunk is self._chunks[0]:
            self.done = True
            return [*over, *(each for other in self._chunks for each in self._cancel(other)), effect]
        return over

    def _cancel(self, chunk: _Chunk) -> list[ReadEffect]:
        """Cancel the requests of a chunk that have not ended."""
        pending = sorted(chunk.requests)
        for request in pending:
            self._forget(chunk, request)
        return [ev.CancelRead(request) for request in pending]

    # --- chunks ------------------------------------------------------------------------------------------------------
    def _go_on(self) -> list[ReadEffect]:
        """Deliver what is first now, and begin further chunks."""
        out: list[ReadEffect] = []
        while not self.done and self._chunks and self._chunks[0].done:
            ended = self._chunks.popleft()
            self._suspects |= ended.read.suspects
            if self._slots.get(ended.slot) is ended:
                del self._slots[ended.slot]
            if self._chunks:
                out += self._now_first(self._chunks[0])
        if self.done:
            return out
        if not self._chunks and self._next > self.last:
            self.done = True
            return [*out, ev.FinishRead()]
        return [*out, *self._begin_chunks()]

    def _now_first(self, chunk: _Chunk) -> list[ReadEffect]:
        out: list[ReadEffect] = [*chunk.held]
        self._handed += chunk.held_bytes
        chunk.held, chunk.held_bytes = [], 0
        if chunk.failed:
            chunk.failed = False
            chunk.read = self._new_read(chunk.read.next, chunk.read.last, 2 * self._chunk_bytes, self._prefer)
            out += self._carry(chunk, chunk.read.start())
        waiting, chunk.waiting = chunk.waiting, []
        for event in waiting:
            if not (chunk.done or self.done):
                out += self._feed(chunk, event)
        return out

    def _begin_chunks(self) -> list[ReadEffect]:
        if self._chunks and self._chunks[0].whole:
            return []
        out: list[ReadEffect] = []
        while self._next <= self.last:
            self._choose_members()
            if self._sharing.wanted == 1:
                if not self._chunks:
                    out += self._start_whole(self._prefer_of(self._members[0]) if self._members else self._prefer)
                return out
            self._sharing.serves(len(self._members))
            busy = {chunk.bookie for chunk in self._chunks if chunk.pending}
            free = [bookie for bookie in self._members if bookie not in busy]
            held = self._handed + sum(chunk.held_bytes for chunk in self._chunks)
            if not free or (busy and held + 2 * (len(busy) + 1) * self._chunk_bytes > 2 * self.bytes_max):
                return out
            out += self._start_chunk(free[0])
        return out

    def _choose_members(self) -> None:
        """Choose the bookies that share the next chunks. If fewer are wanted, those stay that served the most. A bookie
        that left because all were not faster with it does not come back."""
        bad = {*self._avoid, *self.suspects, *self._left}
        usable = [bookie for bookie in self._ensemble() if bookie not in bad]
        members = [bookie for bookie in self._members if bookie in usable]
        members.sort(key=lambda bookie: -self._served.get(bookie, 0))
        if self._sharing.useless:
            self._left.update(members[self._sharing.wanted :])
            usable = [bookie for bookie in usable if bookie not in self._left]
        self._sharing.limit(len(usable))
        others = [bookie for bookie in usable if bookie not in members]
        members = [*members, *others][: self._sharing.wanted]
        if set(members) != set(self._members):
            self._served = {}
        self._members = members

    def _start_whole(self, prefer: int) -> list[ReadEffect]:
        chunk = _Chunk(self._new_read(self._next, self.last, self.bytes_max, prefer), 0, whole=True)
        self._sharing.serves(1)
        return self._start(chunk)

    def _start_chunk(self, bookie: BookieId) -> list[ReadEffect]:
        size = self._bytes / self._entries + ENTRY_OVERHEAD_BYTES if self._entries else self._chunk_bytes
        ids = max(1, int(self._chunk_bytes / size))
        if 0 < self._frame_ids < 2 * ids:  # whole frames, if all are equally long: a bookie need not slice them
            ids = self._frame_ids * max(1, round(ids / self._frame_ids))
        end = self._metadata.last_entry_of(self._metadata.fragment_index_of(self._next))
        last = min(self.last if end is None else min(self.last, end), self._next + ids - 1)
        read = self._new_read(self._next, last, 2 * self._chunk_bytes, self._prefer_of(bookie))
        slot = next(n for n in range(1, len(self._chunks) + 2) if not self._is_taken(n))
        return self._start(_Chunk(read, slot, bookie))

    def _start(self, chunk: _Chunk) -> list[ReadEffect]:
        self._next = chunk.read.last + 1
        self._slots[chunk.slot] = chunk
        self._chunks.append(chunk)
        effects = self._carry(chunk, chunk.read.start())
        return [*effects, *self._go_on()] if chunk.whole and chunk.done else effects

    def _is_taken(self, slot: int) -> bool:
        return any(chunk.slot == slot and not chunk.done for chunk in self._chunks)

    def _new_read(self, first: EntryId, last: EntryId, bytes_max: int, prefer: int) -> RangeRead:
        avoid = {**self._avoid, **self.suspects, **dict.fromkeys(self._left)}
        return self._make(first, last, bytes_max=bytes_max, prefer=prefer, avoid=avoid, new_number=self._new_number)

    def _ensemble(self) -> tuple[BookieId, ...]:
        return self._metadata.fragment_of(self._next).ensemble

    def _prefer_of(self, bookie: BookieId) -> int:
        """Return the turn of the ring with which a RangeRead first asks this bookie."""
        ensemble = self._ensemble()
        return ensemble.index(bookie) + 1 if bookie in ensemble else self._prefer


def _in_order(effects: list[ReadEffect]) -> list[ReadEffect]:
    """Put requests and timers before batches, so that the bookies work while the consumer does. The end stays last."""
    return sorted(effects, key=lambda effect: _TURNS.get(type(effect), 0))
