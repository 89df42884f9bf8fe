# SPDX-License-Identifier: Apache-2.0
"""Delivery of frames to an ensemble: sessions, acks, re-sending, and the confirmed id. Pure.

The writer and the recovery share this class. A *lane* stands for one ensemble index; it has one bookie, and one session
at a time. An ack (session, n) says that the first n frames of the session are durable (P1), so a lane needs only one
queue and one watermark. The confirmed id is computed from the E watermarks (P2). Nothing carries over between sessions:
a lane whose session broke attaches under a new number and re-sends from its watermark.

With ``deferred`` syncs bookies ack frames that they may lose in a crash. A lane then has a second mark, ``durable``.
Only a force raises this mark, to the watermark at the moment when the force was sent. A force counts only in the
session in which it was sent, because a session never outlives its connection to one process of the bookie. When a
session ends, the watermark goes back to ``durable``, and the frames above it are sent again.

Invariants: ``packets`` holds, in order, every packet that some lane may still have to send; a lane's watermark never
passes a frame that its bookie did not ack in this session or make durable; acks of earlier sessions do not count.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bk_core import quorum
from bk_core.entries.frame import with_session
from bk_core.entries.packets import Packet
from bk_core.model import NO_ENTRY, BookieId, EntryId, LedgerMetadata
from bk_core.protocol import events as ev
from bk_core.wire.lane.reasons import AttachMode


class LaneState(enum.Enum):
    IDLE = "idle"  # no session, nothing to send
    ATTACHED = "attached"
    WAITING = "waiting"  # the session broke before the bookie acked every entry; attach() opens the next session
    FAILED = "failed"  # the lane is unused until its bookie is replaced


@dataclass(slots=True)
class Lane:
    """The state of one ensemble index. ``watermark`` is the last entry up to which the bookie has acked all entries
    that it has to hold."""

    bookie: BookieId
    watermark: EntryId
    durable: EntryId = NO_ENTRY  # kept only with deferred syncs
    state: LaneState = LaneState.IDLE
    session: int = 0
    next_number: int = 0  # the packet to send next
    outstanding: deque[int] = field(default_factory=deque)  # numbers of packets sent and not acked in this session
    acked: int = 0  # frames acked in this session
    forcing: EntryId | None = None  # the watermark when the pending force was sent
    progress: int = 0  # frames acked in all sessions; the keeper checks that it grows
    abandoned: bool = False  # its bookie gets no replacement for now, so no packets are kept for the lane


class Delivery:
    """Sends the frames of one ledger to one ensemble and counts their acks. The caller must carry out every effect that
    a method returns."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        confirmed: EntryId,
        mode: AttachMode,
        new_session: Callable[[], int],
        deferred: bool = False,
    ) -> None:
        self.write_quorum, self.ack_quorum, self.mode = metadata.write_quorum_size, metadata.ack_quorum_size, mode
        self.deferred = deferred
        self.lanes = [Lane(bookie, confirmed, confirmed) for bookie in metadata.last_fragment.ensemble]
        self.packets: deque[Packet] = deque()
        self.base = 0  # number of packets[0]
        self.last_sent = confirmed
        self._missed: dict[BookieId, None] = {}  # replaced bookies that lack confirmed entries
        self.retained_bytes = 0
        self._new_session = new_session
        self.common_session = new_session()  # shared by all lanes at first, so that one buffer serves all of them

    @property
    def end(self) -> int:
        """The number that the next packet gets."""
        return self.base + len(self.packets)

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return tuple(lane.bookie for lane in self.lanes)

    def confirmed(self) -> EntryId:
        """Return the highest entry id up to which an ack quorum has every entry on disk."""
        return quorum.confirmed_id(self._marks(), self.write_quorum, self.ack_quorum, self.last_sent)

    def acked_through(self) -> EntryId:
        """Return the highest entry id up to which an ack quorum has acked every entry."""
        marks = [lane.watermark for lane in self.lanes]
        return quorum.confirmed_id(marks, self.write_quorum, self.ack_quorum, self.last_sent)

    def _marks(self) -> list[EntryId]:
        """Return for each lane the id up to which its bookie has the entries of its write sets on disk."""
        return [lane.durable if self.deferred else lane.watermark for lane in self.lanes]

    def behind(self) -> tuple[BookieId, ...]:
        """Return the bookies, replaced ones included, that lack entries they should hold (P8)."""
        now = {lane.bookie: None for lane, mark in zip(self.lanes, self._marks(), strict=True) if mark < self.last_sent}
        return tuple({**self._missed, **now})

    @property
    def owing(self) -> bool:
        """Whether a lane that has not failed still lacks entries."""
        lanes = zip(self.lanes, self._marks(), strict=True)
        return any(mark < self.last_sent and lane.state is not LaneState.FAILED for lane, mark in lanes)

    @property
    def quorums_left(self) -> bool:
        """Whether every write set has an ack quorum of lanes that have not failed."""
        dead = [index for index, lane in enumerate(self.lanes) if lane.state is LaneState.FAILED]
        size, spared = len(self.lanes), self.write_quorum - self.ack_quorum
        failed = [sum((index - first) % size < self.write_quorum for index in dead) for first in range(size)]
        return max(failed) <= spared

    def is_impossible(self, event: ev.FramesAcked | ev.SessionEnded) -> bool:
        """Return whether the ack counts more frames than its session has sent, or fewer than an earlier ack. Only a
        broken bookie sends such an ack."""
        if not self.is_current(event.index, event.session):
            return False
        lane = self.lanes[event.index]
        return not 0 <= event.frames - lane.acked <= len(lane.outstanding)

    def unacked_bytes(self, index: int) -> int:
        """Return the total size in bytes of this lane's packets from its first unacked packet on."""
        lane = self.lanes[index]
        first = lane.outstanding[0] if lane.outstanding else lane.next_number
        if first <= self.base:
            return self.retained_bytes
        return sum(self.packets[n - self.base].size for n in range(first, self.end))

    def attach_all(self) -> list[ev.SessionEffect]:
        """Open all sessions before the first packet, so that this packet need not wait for connections."""
        return [effect for index in range(len(self.lanes)) for effect in self.attach(index)]

    def push(self, packet: Packet) -> list[ev.SessionEffect]:
        """Take the next packet and send it on every lane that can send."""
        assert packet.first == self.last_sent + 1, (packet.first, self.last_sent)
        number = self.end
        self.packets.append(packet)
        self.retained_bytes += packet.size
        self.last_sent = packet.last
        effects: list[ev.SessionEffect] = []
        for index, lane in enumerate(self.lanes):
            if lane.state is LaneState.ATTACHED:  # so it has sent all packets before this one
                self._send(index, lane, number, packet, effects)
            elif lane.state is LaneState.IDLE:
                effects += self.attach(index)
        return effects

    def attach(self, index: int) -> list[ev.SessionEffect]:
        """Attach a lane under a new session number and re-send every frame above its watermark."""
        lane = self.lanes[index]
        lane.session = self._new_session() if lane.session else self.common_session
        lane.acked = 0
        self._rewind(lane, LaneState.ATTACHED)
        attach = ev.AttachSession(index, lane.bookie, lane.session, self.mode, self.deferred)
        effects = [attach, *self._send_rest(index)]
        self._raise_watermark(lane)
        self._release()  # a lane for which no waiting packet has a frame has caught up without an ack
        return effects

    def acked(self, index: int, session: int, frames: int) -> bool:
        """Take the ack that the first ``frames`` frames of ``session`` are durable. Return False, and change nothing,
        if the session is an earlier one, the ack covers nothing new, or it is impossible."""
        lane = self.lanes[index]
        outstanding = lane.outstanding
        new = frames - lane.acked
        if lane.session != session or not 0 < new <= len(outstanding) or lane.state is not LaneState.ATTACHED:
            return False
        for _ in range(new):
            outstanding.popleft()
        lane.acked = frames
        lane.progress += new
        self._raise_watermark(lane)
        self._release()
        return True

    @property
    def gets_all(self) -> bool:
        """Whether all bookies get every entry, and ack only what is durable. This never changes."""
        return len(self.lanes) == self.write_quorum and not self.deferred

    @property
    def _is_in_step(self) -> bool:
        """Whether all bookies are attached, each in the session that they share."""
        shared = LaneState.ATTACHED, self.common_session
        return all((lane.state, lane.session) == shared for lane in self.lanes)

    @property
    def is_calm(self) -> bool:
        """Whether all bookies are in step and lack only single entries."""
        return self._is_in_step and all(p.first == p.last and p.session == self.common_session for p in self.packets)

    def align(self) -> list[ev.SessionEffect]:
        """Open a session for all bookies if some have one of their own, because an earlier one broke or the bookie was
        replaced. Do nothing while a bookie lacks an entry or is not attached."""
        if self.packets or self._is_in_step or any(lane.state is not LaneState.ATTACHED for lane in self.lanes):
            return []
        ends = [ev.DetachSession(index, lane.bookie, lane.session) for index, lane in enumerate(self.lanes)]
        self.common_session = self._new_session()
        for lane in self.lanes:
            lane.session = 0  # so attach() takes the common number
        return [*ends, *self.attach_all()]

    def lend(self) -> deque[Packet]:
        """Give the packets of a calm delivery away. Until :meth:`resume`, nothing else may be called."""
        packets, self.packets = self.packets, deque()
        return packets

    def resume(self, through: EntryId, packets: list[Packet], watermarks: list[EntryId]) -> None:
        """Continue after more single entries, up to ``through``, were sent to all bookies. ``watermarks`` has the last
        entry that each bookie has acked, and ``packets`` the packets above the lowest of them."""
        end = self.lanes[0].next_number + through - self.last_sent
        self.packets, self.base, self.last_sent = deque(packets), end - len(packets), through
        self.retained_bytes = sum(packet.size for packet in packets)
        for lane, watermark in zip(self.lanes, watermarks, strict=True):
            new = watermark - lane.watermark
            lane.acked, lane.progress = lane.acked + new, lane.progress + new
            lane.watermark, lane.next_number = watermark, end
            lane.outstanding = deque(range(end - (through - watermark), end))

    def force(self, through: EntryId) -> list[ev.SendForce]:
        """Let each attached bookie sync the frames that it acked, unless its entries up to ``through`` are durable or a
        force is pending."""
        effects: list[ev.SendForce] = []
        for index, lane in enumerate(self.lanes):
            wanted = lane.durable < min(lane.watermark, through) and lane.forcing is None
            if wanted and lane.state is LaneState.ATTACHED:
                lane.forcing = lane.watermark
                effects.append(ev.SendForce(index, lane.bookie, lane.session))
        return effects

    def forced(self, event: ev.Forced) -> None:
        """Take the answer to a force. An answer of an earlier session is ignored, because its frames were sent
        again."""
        lane = self.lanes[event.index]
        if self.is_current(event.index, event.session) and lane.forcing is not None:
            lane.durable, lane.forcing = lane.forcing, None
            self._release()

    def is_current(self, index: int, session: int) -> bool:
        lane = self.lanes[index]
        return lane.state is LaneState.ATTACHED and lane.session == session

    def broken(self, index: int) -> bool:
        """Note that the lane's session broke. Return True if the lane has frames to send again."""
        lane = self.lanes[index]
        self._rewind(lane, LaneState.IDLE)
        if lane.watermark < self.last_sent:
            lane.state = LaneState.WAITING
        return lane.state is LaneState.WAITING

    def fail(self, index: int) -> list[ev.SessionEffect]:
        """End the lane's session and leave the lane unused until its bookie is replaced."""
        was = (lane := self.lanes[index]).state
        self._rewind(lane, LaneState.FAILED)
        return [ev.DetachSession(index, lane.bookie, lane.session)] if was is LaneState.ATTACHED else []

    def abandon(self, indices: Iterable[int], *, abandoned: bool = True) -> None:
        """Keep no packets for these failed lanes for now, or, if ``abandoned`` is False, keep packets again for their
        replacements. A replacement needs no packet that was dropped before: all other lanes had it on disk, so its
        entries are confirmed."""
        for index in indices:
            self.lanes[index].abandoned = abandoned
        self._release()

    def replace(self, index: int, bookie: BookieId, confirmed: EntryId) -> None:
        """Put another bookie at the index from ``confirmed`` + 1 on. The acks of the old bookie do not count (P2)."""
        old = self.lanes[index]
        if old.watermark < confirmed:
            self._missed[old.bookie] = None
        # the lane keeps the old session's number, so attach() draws a new number and late events of the old session are
        # ignored
        next_number = self._first_above(confirmed)
        self.lanes[index] = Lane(bookie, confirmed, confirmed, session=old.session, next_number=next_number)
        self._release()

    def detach_all(self) -> list[ev.SessionEffect]:
        return [effect for index in range(len(self.lanes)) for effect in self.fail(index)]

    def _send_rest(self, index: int) -> list[ev.SessionEffect]:
        """Send the lane's frames that it has not sent in this session. Packets without a frame for it raise its
        watermark."""
        lane = self.lanes[index]
        effects: list[ev.SessionEffect] = []
        for number in range(lane.next_number, self.end):
            self._send(index, lane, number, self.packets[number - self.base], effects)
        return effects

    def _send(self, index: int, lane: Lane, number: int, packet: Packet, effects: list[ev.SessionEffect]) -> None:
        """Send the lane's next packet: append the effect, if the packet has a frame for the lane."""
        frame = packet.frame_for(index)
        lane.next_number = number + 1
        if frame is not None:
            if packet.session != lane.session:
                frame = with_session(frame, lane.session)
            lane.outstanding.append(number)
            effects.append(ev.SendFrame(index, lane.bookie, lane.session, frame))
        elif not lane.outstanding:
            self._raise_watermark(lane)

    def _raise_watermark(self, lane: Lane) -> None:
        """Raise the watermark to the entry before the first frame that is not acked or not sent."""
        first = (lane.outstanding[0] if lane.outstanding else lane.next_number) - self.base
        reached = self.packets[first].first - 1 if first < len(self.packets) else self.last_sent
        if reached > lane.watermark:
            lane.watermark = reached

    def _rewind(self, lane: Lane, state: LaneState) -> None:
        """Rewind the lane to its watermark, or to ``durable`` if syncs are deferred. It will re-send every frame
        above."""
        if self.deferred:
            lane.watermark, lane.forcing = lane.durable, None
        lane.state, lane.next_number = state, self._first_above(lane.watermark)
        lane.outstanding.clear()

    def _first_above(self, watermark: EntryId) -> int:
        return next((n for n, packet in enumerate(self.packets, self.base) if packet.last > watermark), self.end)

    def _release(self) -> None:
        """Drop packets that every lane has on disk. Drop none while a failed lane waits for its replacement: the new
        bookie needs every entry from the first entry id of the ensemble change on (MUST 6)."""
        packets, done = self.packets, self.last_sent
        if not packets:
            return
        first = packets[0].last
        for lane in self.lanes:
            if not lane.abandoned:
                mark = lane.durable if self.deferred else lane.watermark
                if mark < first or lane.state is LaneState.FAILED:
                    return
                if mark < done:
                    done = mark
        while packets and packets[0].last <= done:
            self.retained_bytes -= packets.popleft().size
            self.base += 1
