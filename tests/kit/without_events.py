# SPDX-License-Identifier: Apache-2.0
"""Events that a writer's machine takes without the event, as the client lets it, and writers in the table of lone
entries."""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import Any

import numpy as np

from bk_core.protocol import events as ev
from bk_core.protocol.lone_entries import LoneEntries
from bk_core.protocol.writer import LedgerWrite

OUT = "out of the table"
"""The name of the timer after which a writer leaves the table."""


def taken(machine: LedgerWrite, event: Any) -> list[Any] | None:
    """Let the machine take an ack or a single entry without the event. Return the effects, or None if it must get the
    event."""
    if isinstance(event, ev.FramesAcked):
        return machine.take_ack(event.index, event.session, event.frames)
    if isinstance(event, ev.Append) and event.batch.count == 1:
        return machine.take_entry(event.batch.payload)
    return None


class Tabled:
    """A machine that sits in a table while single entries come, as the client lets it. ``sits_ms`` is the longest time
    that it sits."""

    def __init__(self, machine: LedgerWrite, sits_ms: float) -> None:
        self.machine, self.sits_ms = machine, sits_ms
        self.table = LoneEntries(machine.delivery.write_quorum, machine.delivery.ack_quorum)
        self.slot: int | None = None

    @property
    def shown(self) -> LedgerWrite:
        """The machine, or a copy of it that has the state that the table has now."""
        if self.slot is None:
            return self.machine
        table = copy(self.table)
        for name in ("_writes", "_frames", "_free"):
            setattr(table, name, [*getattr(table, name)])
        for name in ("kept", "_hinted"):
            setattr(table, name, getattr(table, name).copy())
        twin = copy(self.machine)
        twin.delivery = copy(twin.delivery)
        twin.delivery.packets = deque(twin.delivery.packets)
        twin.delivery.lanes = [copy(lane) for lane in twin.delivery.lanes]
        for lane in twin.delivery.lanes:
            lane.outstanding = deque(lane.outstanding)
        twin._keeper = copy(twin._keeper)
        twin._keeper.delivery = twin.delivery
        twin._gone = [*twin._gone]
        table._writes[self.slot] = twin
        table.leave(self.slot)
        return twin

    def take(self, event: Any, *, sits: bool) -> list[Any] | None:
        """Let the table take the event. With ``sits``, the machine may sit down for it. Return the effects, or None if
        the machine must take the event; then it does not sit."""
        if isinstance(event, ev.Append) and event.batch.count == 1:
            return self._append(event.batch.payload.tobytes(), sits=sits)
        if self.slot is not None and isinstance(event, ev.FramesAcked):
            return self._acked(event)
        return None

    def leave(self) -> list[Any]:
        """Let the machine stand up, if it sits. Return the effects."""
        if self.slot is None:
            return []
        slot, self.slot = self.slot, None
        return [ev.CancelTimer(OUT), *self.table.leave(slot)]

    def _append(self, payload: bytes, *, sits: bool) -> list[Any] | None:
        effects: list[Any] = []
        if self.slot is None:
            joined = self.table.join(self.machine, 0.0) if sits and self.table.suits(self.machine) else None
            if joined is None:
                return None
            self.slot, effects = joined[0], [*joined[1], ev.SetTimer(OUT, self.sits_ms)]
        if self.table.lac[self.slot] < self.table.sent[self.slot] or not self.table.has_room(self.slot):
            return None
        (session,), (frame,) = self.table.append(np.array([self.slot]), [payload], 0.0)
        lanes = enumerate(self.machine.delivery.lanes)
        return [*effects, *(ev.SendFrame(index, lane.bookie, session, frame) for index, lane in lanes)]

    def _acked(self, event: ev.FramesAcked) -> list[Any] | None:
        assert self.slot is not None
        places = np.array([self.slot * self.table.write_quorum + event.index])
        frames = np.array([event.frames])
        if event.session != self.machine.delivery.common_session or self.table.refused(places, frames).any():
            return None
        confirmed, _ = self.table.acked(places, frames)
        return [ev.Confirm(int(self.table.lac[self.slot]))] if confirmed.size else []
