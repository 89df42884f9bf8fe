# SPDX-License-Identifier: Apache-2.0
"""Describes the steps of a search in words."""

from __future__ import annotations

from typing import Any

from bk_core.protocol import events as ev
from bookie_server.machine import events as bev
from tests.sim.exhaustive import bookie as parts
from tests.sim.exhaustive.bookie import entries_of
from tests.sim.exhaustive.parts import SESSIONS_PER_CLIENT, UNARY, WRITER, StoreCall, Suspect


class Words:
    """The words of one model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def step(self, before: Any, taken: Any) -> str:
        """Return what happened in a step, and which state changed."""
        events = self.model.items.events[taken.events]
        what = " + ".join(words for words in (self._event(event) for event in events) if words)
        line = f"{self._name(taken.slot)}: {what}"
        seen = [
            f"{self._name(slot)} {state}"
            for slot in range(self.model.slots)
            if before[slot] != taken.world[slot] and (state := self._state(slot, taken.world[slot]))
        ]
        return line + (f"  [{'; '.join(seen)}]" if seen else "")

    def _name(self, slot: int) -> str:
        model = self.model
        if slot >= model.store_slot:
            return "store"
        if slot >= model.first_bookie:
            return f"b{slot - model.first_bookie}"
        return "writer" if slot == 0 else f"recovery {slot}"

    def _state(self, slot: int, number: int) -> str:
        part, model = self.model.parts[slot][number], self.model
        if slot == model.store_slot:
            value, version = part.record.value, part.record.version
            end = f" at {value.last_entry_id}" if value.is_closed else ""
            fragments = " ".join(f"{f.first_entry_id}:{'/'.join(f.ensemble)}" for f in value.fragments)
            return f"{value.state.name}{end} v{version} {fragments}"
        if slot >= model.first_bookie:
            ledger = part.machine._core.ledgers.get(7)
            fenced = "fenced" if part.fence_durable else "fenced in memory" if ledger and ledger.fenced else "open"
            return f"has {sorted(part.durable())} {fenced}"
        if slot == 0:
            return f"{part.machine.state.value} acked {part.acked}" + (" changing" if part.machine.change else "")
        return str(part.machine.phase.value) + (f" end {part.end}" if part.end is not None else "")

    def _event(self, event: Any) -> str:
        match event:
            case bev.FramesArrived(stream, frames):
                ids = [entry_id for entry_id, _, _ in entries_of(bytes(frames))]
                normal = stream // SESSIONS_PER_CLIENT == WRITER
                return f"{'add' if normal else 'recovery add'} of {ids} arrives (session {stream})"
            case bev.SessionAttached():
                return ""
            case bev.FenceRequested(request):
                return f"fence of {self._client(request)} arrives"
            case bev.ReadRequested(request, _, first, last, _, key):
                kind = "fencing read" if key else "read"
                return f"{kind} {first}..{last} of {self._client(request)} arrives"
            case parts.Crash():
                return "CRASHES and restarts"
            case parts.CommitNext() | parts.CommitAll():
                return "commits"
            case StoreCall(client, call):
                return f"{type(call).__name__} of {self._name(client - 1)}"
        return self._heard(event)

    def _client(self, request: tuple[int, int]) -> str:
        return self._name(request[0] - UNARY - 1) if request[0] else "nobody"

    def _heard(self, event: Any) -> str:
        match event:
            case Suspect(index):
                return f"gives index {index} up"
            case ev.FramesAcked(index, _, frames):
                return f"ack of {frames} frames from index {index}"
            case ev.SessionEnded(index, _, frames, reason):
                return f"session at index {index} ended after {frames} frames: {reason.name}"
            case ev.SessionBroken(index):
                return f"session at index {index} broke"
            case ev.LacAnswered(index):
                return f"index {index} is fenced"
            case ev.FramesRead(request):
                return f"read {request} found something"
            case ev.ReadAnswered(request, through, absent):
                return f"read {request} ended: answered to {through}, absent {[(r.first, r.last) for r in absent]}"
            case ev.LacFailed() | ev.ReadFailed():
                number = getattr(event, "request", getattr(event, "index", "?"))
                return f"request {number} failed: {event.message}"
            case ev.TimerFired(name):
                return f"timer {name} fires"
        return "appends" if isinstance(event, ev.Append) else type(event).__name__
