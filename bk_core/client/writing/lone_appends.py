# SPDX-License-Identifier: Apache-2.0
"""Sends the single entries of many ledgers together.

A program that appends one entry after another to each of thousands of ledgers would pay for each entry what a batch of
entries costs. So a client puts such writers into a table (:class:`~bk_core.protocol.lone_entries.LoneEntries`). What
their callers append in one turn of the loop is encoded and sent together, and acks that come together are counted
together. A writer takes part only while many appends come, and only as long as nothing else happens to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import numpy as np

from bk_core.client.config import ClientConfig
from bk_core.client.running.agenda import Timer, agenda_of
from bk_core.client.running.driver import Driver, SessionAdapter
from bk_core.client.running.metrics import Observer
from bk_core.client.writing.append_queue import AppendQueue
from bk_core.client.writing.append_room import Room
from bk_core.client.writing.append_sender import AppendSender, slow_append
from bk_core.client.writing.append_waiters import AppendWaiters
from bk_core.client.writing.bookie_calls import WriterBookieCalls
from bk_core.client.writing.process_budget import process_budget
from bk_core.client.writing.writer_end import WriterEnd
from bk_core.entries.batch import I64
from bk_core.entries.lone_frames import LONE_FRAME_BYTES
from bk_core.model import EntryId
from bk_core.protocol.events import SetTimer
from bk_core.protocol.keeper import STALL_TICKS
from bk_core.protocol.lone_entries import LAG_ENTRIES_MAX, LoneEntries
from bk_core.protocol.writer import LedgerWrite, WriterEffect
from bk_core.transport.port import Link

LONE_BYTES_MAX = 4 << 10
"""The maximum payload, in bytes, of an entry that is sent together with the entries of other ledgers."""

WRITER_BYTES_MAX = (LAG_ENTRIES_MAX + 1) * (LONE_FRAME_BYTES + LONE_BYTES_MAX)
"""The maximum number of bytes that the table keeps for one writer."""

CROWD, CROWD_S = 32, 0.004
"""Many appends come if the last CROWD of them came within CROWD_S seconds."""

FEW = 4
"""With fewer appends in a turn of the loop than this, the table costs more than it saves."""


class Crew:
    """The links to a set of bookies. ``seats`` is the number of writers in the table that use exactly these. In
    between, ``sessions`` and ``frames`` are what the next message to them carries."""

    __slots__ = ("frames", "links", "seats", "sessions")

    def __init__(self, links: frozenset[Link]) -> None:
        self.links, self.seats = links, 0
        self.sessions: list[int] = []
        self.frames: list[bytes] = []


class Seat:
    """A writer's part of the table. While the writer *sits*, the table has the state of its machine, and the queue, the
    sender and the room have nothing of it. :meth:`leave` brings all of them to the state that they would have without
    the table. Code that uses the machine calls it first. The loop makes all calls.

    - ``slot`` is the writer's slot in the table, or None while the writer does not sit.
    - ``crew`` are the links that the writer's frames go to while it sits.
    - ``waiter`` is the caller of the entry that the table has and that is not confirmed, or None.
    - ``take_ack`` passes an ack (ensemble index, session, frames) to the machine.
    """

    def __init__(
        self,
        table: LoneAppends,
        protocol: LedgerWrite,
        *,
        driver: Driver,
        sessions: SessionAdapter,
        queue: AppendQueue,
        sender: AppendSender,
        waiters: AppendWaiters,
        room: Room,
        end: WriterEnd,
        calls: WriterBookieCalls,
        take_ack: Callable[[int, int, int], None],
    ) -> None:
        self._table, self._machine, self._driver, self._sessions = table, protocol, driver, sessions
        self._queue, self._sender, self._waiters, self._room = queue, sender, waiters, room
        self._end, self._calls = end, calls
        self._may_sit = table.suits(protocol)
        self.take_ack = take_ack
        self.slot: int | None = None
        self.crew: Crew | None = None
        self.waiter: asyncio.Future[None] | None = None

    @property
    def ledger(self) -> LedgerWrite:
        """The machine of the writer."""
        return self._machine

    @property
    def lac(self) -> EntryId:
        """The last confirmed entry. Any thread may ask."""
        slot = self.slot
        lac = None if slot is None else self._table.lac(slot)
        return self._machine.lac if lac is None or self.slot != slot else lac

    @property
    def length(self) -> int:
        """The number of payload bytes of the entries sent. Any thread may ask."""
        slot = self.slot
        length = None if slot is None else self._table.length(slot)
        return self._machine.length if length is None or self.slot != slot else length

    def append(self, payload: bytes) -> tuple[EntryId, asyncio.Future[None]] | None:
        """Append an entry together with those of other ledgers, if many come. Return its id, and a future that is done
        once the entry is confirmed. Return None if the entry must go its own way; then the writer does not sit."""
        if not self._may_sit or not self._end.is_open:
            return None
        if self.slot is None and not (self._table.is_crowded() and self._sit()):
            return None
        if self._table.takes(self, len(payload)):
            with self._queue.lock:
                entry_id = self._queue.skip()
            if entry_id is not None:
                return entry_id, self._table.append(self, payload)
            self._table.untake(len(payload))
        self.leave()
        return None

    def _sit(self) -> bool:
        """Let the table have the writer, unless the writer has more to do than to take the next entry."""
        delivery = self._machine.delivery
        if not (self._sender.is_idle and self._driver.is_idle) or self._room.is_waited_for:
            return False
        self._driver.begin(self._machine.align())
        links = self._sessions.links(delivery.common_session, len(delivery.lanes))
        effects = self._table.join(self, links) if links else None
        if effects is None:
            return False
        self._driver.begin(effects)
        self._room.settle(0)
        return True

    def leave(self) -> None:
        """Take the writer out of the table, if it sits. The machine then acts again."""
        if self.slot is None:
            return
        size, sent_at, timers = self._table.leave(self)
        waiter, self.waiter = self.waiter, None
        self._sender.resume(None if waiter is None else (size, sent_at))
        if waiter is not None:
            self._waiters.add(self._machine.lap, waiter)
        if not self._machine.settled:
            self._sessions.note_sent(self._machine.delivery.common_session)
        self._room.settle(self._machine.retained_bytes)
        for timer in timers:
            self._driver.set_timer(timer)

    def crash(self, error: Exception) -> None:
        """End the writer after a bug in the table, whose state is lost."""
        self.slot = self.crew = None
        waiter, self.waiter = self.waiter, None
        self._driver.crash(error)
        if waiter is not None and not waiter.done() and self._end.error is not None:
            waiter.set_exception(self._end.error)

    def took_ack(self, index: int, session: int, frames: int) -> bool:
        """Let the table count an ack. Return False if the machine must take it."""
        if self.slot is None or session != self._machine.delivery.common_session:
            return False
        acks = self._table.acks
        if not acks:
            self._table.schedule()
        acks[self.slot * len(self._machine.delivery.lanes) + index] = frames
        return True

    def hint_lac(self, lac: EntryId) -> None:
        """Send a LAC to all bookies without waiting for an answer."""
        for effect in self._machine.hints_of(lac):
            self._calls.hint_lac(effect)


class LoneAppends:
    """The table of one client's writers with the same quorums. ``acks`` has the acks that were not counted yet: the
    frames that are durable, by place. The loop makes all calls."""

    def __init__(self, write_quorum: int, ack_quorum: int, config: ClientConfig, observer: Observer) -> None:
        self._table, self._observer = LoneEntries(write_quorum, ack_quorum), observer
        self._loop = asyncio.get_running_loop()
        self._share = process_budget().share(self._loop, lambda: None)
        self._bytes = 0  # of all frames that a bookie has not acked, the queued ones included
        self._seats: dict[int, Seat] = {}  # by slot
        self._crews: dict[frozenset[Link], Crew] = {}
        self._slots: list[int] = []  # of the queued entries
        self._payloads: list[bytes] = []
        self.acks: dict[int, int] = {}
        self._is_scheduled = False
        self._timer: Timer | None = None  # made when needed, because it keeps the loop's agenda
        self._lac_s, self._tick_s = config.explicit_lac_delay_ms / 1000, config.add_timeout_ms / 1000 / STALL_TICKS
        self._is_usable = min(config.window_bytes_max, config.slow_bookie_bytes_max) >= 2 * WRITER_BYTES_MAX
        self._came, self._since, self._is_crowded = 0, 0.0, False

    # --- writers come and go ------------------------------------------------------------------------------------------

    def is_crowded(self) -> bool:
        """Count an append that is not in the table, and return whether many come."""
        self._came += 1
        if self._came == CROWD:
            now = monotonic()
            self._is_crowded = self._is_usable and now - self._since < CROWD_S
            self._came, self._since = 0, now
        return self._is_crowded

    def suits(self, write: LedgerWrite) -> bool:
        """Return whether the writer can ever be in the table."""
        return self._is_usable and self._table.suits(write)

    def join(self, seat: Seat, links: frozenset[Link]) -> list[WriterEffect] | None:
        """Put a writer into the table, which sends its frames on all of these links. Return the effects of its machine,
        or None if the machine is not calm."""
        joined = self._table.join(seat.ledger, monotonic())
        if joined is None:
            return None
        seat.slot, effects = joined
        crew = seat.crew = self._crews.setdefault(links, Crew(links))
        crew.seats += 1
        self._seats[seat.slot] = seat
        self._bytes += self._table.size(seat.slot)
        self._time()
        return effects

    def leave(self, seat: Seat) -> tuple[int, float, list[SetTimer]]:
        """Take a writer out of the table, after everything that waits was sent and counted. Return the payload size of
        its last entry, the time when this was sent, and the effects of the machine."""
        self.flush()
        slot, crew = seat.slot, seat.crew
        assert slot is not None, seat
        assert crew is not None, seat
        size, sent_at = self._table.last_bytes(slot), float(self._table.sent_at[slot])
        self._give_back(self._table.size(slot))
        timers = self._table.leave(slot)
        seat.slot = seat.crew = None  # only now, because other threads may ask for the LAC
        del self._seats[slot]
        crew.seats -= 1
        if not crew.seats:
            del self._crews[crew.links]
        if not self._seats:
            self._share.give_back()
        return size, sent_at, timers

    def lac(self, slot: int) -> EntryId:
        return int(self._table.lac[slot])

    def length(self, slot: int) -> int:
        return self._table.length(slot)

    # --- entries and acks ---------------------------------------------------------------------------------------------

    def takes(self, seat: Seat, size: int) -> bool:
        """Return whether the table may take an entry of ``size`` bytes of the writer now, and if so, count its
        bytes."""
        slot = seat.slot
        if slot is None or seat.waiter is not None or size > LONE_BYTES_MAX or not self._table.has_room(slot):
            return False
        needed = self._bytes + LONE_FRAME_BYTES + size
        if needed > self._share.bytes and not self._share.reach(needed, at_most=2 * needed, waits=False):
            return False
        self._bytes = needed
        return True

    def untake(self, size: int) -> None:
        """Take back what :meth:`takes` counted."""
        self._give_back(LONE_FRAME_BYTES + size)

    def append(self, seat: Seat, payload: bytes) -> asyncio.Future[None]:
        """Send an entry that :meth:`takes` counted, in the next turn of the loop. The result is done once the entry is
        confirmed."""
        assert seat.slot is not None, seat
        waiter = seat.waiter = self._loop.create_future()
        if not self._slots:
            self.schedule()
        self._slots.append(seat.slot)
        self._payloads.append(payload)
        return waiter

    def schedule(self) -> None:
        """Call :meth:`flush` in the next turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            agenda_of(self._loop).soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        self._guarded(self._flush_of_turn)

    def _flush_of_turn(self) -> None:
        slots = self._slots
        self.flush()
        if slots and len(slots) < FEW:
            self._is_crowded = False
            for slot in slots:
                if slot in self._seats:
                    self._seats[slot].leave()

    def _guarded(self, act: Callable[[], None]) -> None:
        """Call ``act``. If it raises, which is a bug, end all writers in the table, so that waiting callers get an
        error, and use the table no more."""
        try:
            act()
        except Exception as error:
            self._is_usable = self._is_crowded = False
            seats, self._seats = self._seats, {}
            self._slots, self._payloads, self.acks = [], [], {}
            for seat in seats.values():
                seat.crash(error)
            self._share.give_back()

    def flush(self) -> None:
        """Count the acks and send the entries that wait."""
        if self.acks:
            acks, self.acks = self.acks, {}
            self._count(acks)
        if self._slots:
            self._send()

    def _send(self) -> None:
        slots, self._slots = self._slots, []
        payloads, self._payloads = self._payloads, []
        sessions, frames = self._table.append(np.array(slots, np.int64), payloads, monotonic())
        counts = self._observer.counts
        counts.appended_frames += len(frames)
        counts.appended_entries += len(frames)
        counts.appended_bytes += sum(map(len, payloads))
        if len(self._crews) == 1:
            (crew,) = self._crews.values()
            crews, crew.sessions, crew.frames = [crew], sessions, frames
        else:
            for slot, session, frame in zip(slots, sessions, frames, strict=True):
                if (its := self._seats[slot].crew) is not None:
                    its.sessions.append(session)
                    its.frames.append(frame)
            crews = [crew for crew in self._crews.values() if crew.frames]
        for crew in crews:
            for link in crew.links:
                link.send_all(crew.sessions, crew.frames)
            crew.sessions, crew.frames = [], []
        self._time()

    def _count(self, acks: dict[int, int]) -> None:
        width = self._table.write_quorum
        places = np.fromiter(acks.keys(), np.int64, len(acks))
        frames = np.fromiter(acks.values(), np.int64, len(acks))
        refused = self._table.refused(places, frames)
        if refused.any():  # the machine takes all acks of such a writer
            left = list[tuple[Seat, int, int]]()
            refused = np.isin(places // width, places[refused] // width)
            for place in places[refused].tolist():
                slot, index = divmod(place, width)
                left.append((self._seats[slot], index, acks[place]))
            for seat, index, count in left:
                seat.leave()
                seat.take_ack(index, seat.ledger.delivery.common_session, count)
            places, frames = places[~refused], frames[~refused]
        if places.size:
            self._confirm(places, frames)

    def _confirm(self, places: I64, frames: I64) -> None:
        confirmed, freed = self._table.acked(places, frames)
        self._give_back(freed)
        counts, seats, now = self._observer.counts, self._seats, monotonic()
        took_s = now - self._table.sent_at[confirmed]
        counts.confirmed_entries += confirmed.size
        counts.append_seconds.observe_all(took_s)
        for slot in confirmed[took_s >= self._observer.slow_s].tolist():
            self._report_slow(slot, now)
        for slot in confirmed.tolist():
            seat = seats[slot]
            waiter, seat.waiter = seat.waiter, None
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        self._time()

    def _report_slow(self, slot: int, now: float) -> None:
        ledger, entry_id, took_s = self._seats[slot].ledger, self.lac(slot), now - float(self._table.sent_at[slot])
        marks = zip(ledger.delivery.lanes, self._table.watermarks(slot), strict=True)
        size = self._table.last_bytes(slot)
        acked = [(lane.bookie, lane.session, watermark) for lane, watermark in marks]
        self._observer.was_slow(lambda: slow_append(ledger.ledger_id, (entry_id, entry_id), size, took_s, acked))

    def _give_back(self, size: int) -> None:
        self._bytes -= size
        self._share.keep(self._bytes)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _time(self) -> None:
        if self._timer is None:
            self._timer = Timer(agenda_of(self._loop), self._look)
            self._timer.set(self._lac_s)

    def _look(self) -> None:
        self._guarded(self._look_after)

    def _look_after(self) -> None:
        """Send the LACs of idle writers, and let the machines of writers whose bookies do not answer see to it."""
        self.flush()
        for slot, lac in self._table.hints():
            self._seats[slot].hint_lac(lac)
        for slot in self._table.overdue(monotonic() - self._tick_s):
            self._seats[slot].leave()
        self._timer = None
        if not self._table.is_settled:
            self._time()

    def close(self) -> None:
        """Give all bytes back to the process's budget. All writers have left."""
        if self._timer is not None:
            self._timer.drop()
        self._share.leave()
