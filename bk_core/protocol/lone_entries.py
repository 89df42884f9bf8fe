# SPDX-License-Identifier: Apache-2.0
"""Writes single entries to many ledgers at once: the table of calm writers. Pure.

A writer is calm if it is open, all its bookies hold every entry and share a session number, and nothing goes on but
that single entries are sent and acked. This changes only a few numbers: the writer's last entry, LAC and length, and
the watermark of each bookie. While a writer is in the table, these numbers are in columns, so that the entries and acks
of one turn of the loop are handled together. Everything else is the machine's business: the caller first takes the
writer out of the table (:meth:`LoneEntries.leave`), and the machine continues from the same state (decision 0083).

A writer in the table has at most one entry without an ack quorum. Bookies outside the quorum may be up to
LAG_ENTRIES_MAX entries behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bk_core.entries.batch import I64
from bk_core.entries.lone_frames import encode_lone_entries
from bk_core.entries.packets import Buffer, Packet
from bk_core.model import NO_ENTRY, DigestType, EntryId
from bk_core.protocol.events import SetTimer
from bk_core.protocol.writer import LedgerWrite, WriterEffect

LAG_ENTRIES_MAX = 16
"""The maximum number of entries of a writer that some bookie has not acked."""

Slots: TypeAlias = I64
_FIRST_SLOTS = 64


class LoneEntries:
    """The writers with these quorums that are in the table, each in a *slot*. A *place*, slot · Qw + ensemble index,
    names a bookie of a writer. Times are in seconds.

    Columns: ``sent`` is the last entry sent, ``kept`` the number of frames that some bookie has not acked, and
    ``frames_before`` the entry id of a session's frame 0. ``hinted`` is the last LAC that was sent as a hint, and
    ``seen`` the LAC at the last call of :meth:`hints`. ``sent_at`` is the time of the last entry sent.
    """

    def __init__(self, write_quorum: int, ack_quorum: int) -> None:
        self.write_quorum, self.ack_quorum = write_quorum, ack_quorum
        self._writes: list[LedgerWrite | None] = []
        self._frames: list[list[Buffer]] = []  # of each slot, the frames that some bookie has not acked
        self._free: list[int] = []
        size, numbers = _FIRST_SLOTS, np.int64
        self._ledger, self._session, self._frames_before = (np.zeros(size, numbers) for _ in range(3))
        self.sent, self.lac, self._length, self._hinted = (np.zeros(size, numbers) for _ in range(4))
        self._last_bytes, self.kept, self._watermarks = (
            np.zeros(size, numbers),
            np.zeros(size, numbers),
            np.zeros((size, write_quorum), numbers),
        )
        self._seen, self.sent_at = np.zeros(size, numbers), np.zeros(size, np.float64)

    def __len__(self) -> int:
        return len(self._writes) - len(self._free)

    def suits(self, write: LedgerWrite) -> bool:
        """Return whether the writer has the quorums of this table, digests of type CRC32C, and bookies that all get
        every entry and sync it before they ack it. None of this ever changes."""
        delivery = write.delivery
        quorums = delivery.write_quorum, delivery.ack_quorum
        is_crc32c = write.digester.digest_type is DigestType.CRC32C
        return quorums == (self.write_quorum, self.ack_quorum) and is_crc32c and delivery.gets_all

    def join(self, write: LedgerWrite, now: float) -> tuple[int, list[WriterEffect]] | None:
        """Put a writer that suits into the table, and return its slot and the effects. Return None, and change nothing,
        if the writer is not calm."""
        delivery, lent = write.delivery, write.lend()
        if lent is None:
            return None
        packets, effects = lent
        slot = self._free.pop() if self._free else self._new_slot()
        lane, last = delivery.lanes[0], delivery.last_sent
        self._writes[slot], self._frames[slot] = write, [frame for packet in packets if (frame := packet.frames[0])]
        self._ledger[slot], self._session[slot] = write.ledger_id, delivery.common_session
        self._frames_before[slot] = last - lane.acked - len(lane.outstanding)
        self.sent[slot] = self.lac[slot] = last
        self._length[slot], self._hinted[slot] = write.length, write.hinted
        self.kept[slot], self._watermarks[slot] = len(packets), [lane.watermark for lane in delivery.lanes]
        self._seen[slot], self.sent_at[slot], self._last_bytes[slot] = NO_ENTRY, now, 0
        return slot, effects

    def _new_slot(self) -> int:
        self._writes.append(None)
        self._frames.append([])
        if len(self._writes) > self.sent.size:
            for name, column in vars(self).items():
                if isinstance(column, np.ndarray):
                    setattr(self, name, np.concatenate((column, np.zeros_like(column))))
        return len(self._writes) - 1

    def leave(self, slot: int) -> list[SetTimer]:
        """Take a writer out of the table, and return the effects. Its machine has the state that the same entries and
        acks would have brought it to."""
        write, frames = self._writes[slot], self._frames[slot]
        assert write is not None, slot
        self._writes[slot], self._frames[slot] = None, []
        self._free.append(slot)
        sent, session = int(self.sent[slot]), int(self._session[slot])
        numbered = enumerate(frames, sent - len(frames) + 1)
        packets = [Packet(entry_id, entry_id, len(frame), session, (frame,)) for entry_id, frame in numbered]
        numbers = int(self.lac[slot]), int(self._length[slot]), int(self._hinted[slot])
        self.kept[slot], self._hinted[slot] = 0, self.lac[slot]
        return write.resume(*numbers, packets, self.watermarks(slot))

    def has_room(self, slot: int) -> bool:
        """Return whether no bookie is so far behind that the writer must leave the table before its next entry."""
        return len(self._frames[slot]) < LAG_ENTRIES_MAX

    def watermarks(self, slot: int) -> list[EntryId]:
        """Return the last entry that each bookie of the writer has acked."""
        marks: list[EntryId] = self._watermarks[slot].tolist()
        return marks

    def length(self, slot: int) -> int:
        """The number of payload bytes of all entries sent."""
        return int(self._length[slot])

    def append(self, slots: Slots, payloads: Sequence[bytes], now: float) -> tuple[list[int], list[bytes]]:
        """Give the next entry to each of these writers, all different. Return their sessions and the frames, which must
        be sent to all bookies of each writer."""
        ids, before = self.sent[slots] + 1, self._length[slots]
        frames = encode_lone_entries(
            payloads, self._ledger[slots], ids, self.lac[slots], before, sessions := self._session[slots]
        )
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        self.sent[slots], self._length[slots], self._last_bytes[slots] = ids, before + sizes, sizes
        self.kept[slots] += 1
        self.sent_at[slots] = now
        kept = self._frames
        for slot, frame in zip(slots.tolist(), frames, strict=True):
            kept[slot].append(frame)
        return sessions.tolist(), frames

    def refused(self, places: I64, frames: I64) -> npt.NDArray[np.bool_]:
        """Return which acks the table cannot take, because the bookie acks fewer frames than before or more than it
        got. ``frames`` counts the frames of the session that are durable."""
        slots = places // self.write_quorum
        through = self._frames_before[slots] + frames
        wrong: npt.NDArray[np.bool_] = (through <= self._watermarks.ravel()[places]) | (through > self.sent[slots])
        return wrong

    def acked(self, places: I64, frames: I64) -> tuple[Slots, int]:
        """Take acks, none of which is :meth:`refused`, at different places. Return the slots whose last entry is now
        confirmed, and the number of bytes of frames that no bookie needs any more."""
        slots = places // self.write_quorum
        self._watermarks.ravel()[places] = self._frames_before[slots] + frames
        slots = np.unique(slots)
        marks = np.sort(self._watermarks[slots], axis=1)
        reached = marks[:, self.write_quorum - self.ack_quorum]
        moved = reached > self.lac[slots]
        confirmed: Slots = slots[moved]
        self.lac[confirmed] = reached[moved]
        owed = self.sent[slots] - marks[:, 0]
        fewer = owed < self.kept[slots]
        return confirmed, self._release(slots[fewer], owed[fewer])

    def _release(self, slots: Slots, owed: I64) -> int:
        self.kept[slots] = owed
        size = 0
        for slot, left in zip(slots.tolist(), owed.tolist(), strict=True):
            frames = self._frames[slot]
            done = len(frames) - left
            size += sum(map(len, frames[:done]))
            del frames[:done]
        return size

    def hints(self) -> list[tuple[int, EntryId]]:
        """Return the slot and the LAC of each idle writer whose LAC its bookies do not have, and has not moved since
        the last call. The caller sends it to all of them."""
        idle = (self.lac > self._hinted) & (self.lac == self.sent)
        slots = np.flatnonzero(idle & (self.lac == self._seen))
        self._seen[:] = self.lac
        self._hinted[slots] = self.lac[slots]
        return [*zip(slots.tolist(), self.lac[slots].tolist(), strict=True)]

    def overdue(self, before: float) -> list[int]:
        """Return the slots of the writers whose last entry was sent before ``before``, and that some bookie owes an
        ack."""
        slots: list[int] = np.flatnonzero((self.kept > 0) & (self.sent_at <= before)).tolist()
        return slots

    @property
    def is_settled(self) -> bool:
        """Whether no writer waits for an ack or has to send a hint."""
        return not (self.kept.any() or (self.lac > self._hinted).any())

    def last_bytes(self, slot: int) -> int:
        """The payload size in bytes of the last entry that was sent from the table, or 0."""
        return int(self._last_bytes[slot])

    def size(self, slot: int) -> int:
        """The number of bytes of the frames of a writer that some bookie has not acked."""
        return sum(map(len, self._frames[slot]))
