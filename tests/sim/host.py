# SPDX-License-Identifier: Apache-2.0
"""The driver of one machine in a simulated world, which turns effects into messages, calls and timers.

Each machine has one host, as it has one asyncio driver in production. A host may be paused: then no event and no timer
reaches its machine until it is resumed. It may die between any two effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bk_core.entries.digest import ledger_key
from bk_core.model import LedgerId
from bk_core.protocol import events as pe
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.machine import events as ev
from tests.sim.scheduler import Item

if TYPE_CHECKING:
    from tests.sim.world import World

PASSWORD = b"secret"
KEY = ledger_key(PASSWORD)
REQUEST_MS = 500.0


class Host:
    """One machine of one client. ``name`` is the client's. Hosts of one client share its connections."""

    machine: Any

    def __init__(self, world: World, name: str, ledger_id: LedgerId) -> None:
        self.world, self.name, self.ledger_id = world, name, ledger_id
        self.scheduler, self.network, self.store = world.scheduler, world.network, world.store
        self.key = KEY
        self.dead = False
        self.over = False  # a terminal effect was seen: no other may follow (I14)
        self.paused: list[Any] | None = None
        self._timers: dict[str, Item] = {}
        self._reads: dict[int, Any] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            pe.AttachSession: self._attach,
            pe.SendFrame: self._send,
            pe.DetachSession: lambda e: self.network.detach(self.name, e.bookie, e.session),
            pe.WriteMetadata: self._write_metadata,
            pe.ReadMetadata: lambda e: self.store.read(self.name, self.ledger_id, self.feed, fresh=e.fresh),
            pe.ReadBookies: lambda _: self.store.read_bookies(self.name, self.feed),
            pe.MarkUnderreplicated: lambda e: self.store.mark(self.name, self.ledger_id, e.bookies),
            pe.SetTimer: self._set_timer,
            pe.CancelTimer: self._cancel_timer,
            pe.SendRead: self._send_read,
            pe.CancelRead: self._cancel_read,
        }

    # --- events in, effects out ---

    def feed(self, event: Any) -> None:
        if self.dead:
            return
        if self.paused is not None:
            self.paused.append(event)
            return
        effects = self.step(event)
        if self.over and effects:
            self.world.checker.fail("I14", f"{self.name} acts after its end: {effects}")
        self.carry(effects)

    def step(self, event: Any) -> list[Any]:
        """Let the machine handle an event, and return the effects."""
        effects: list[Any] = self.machine.step(event)
        return effects

    def carry(self, effects: list[Any]) -> None:
        """Carry out effects in their order."""
        handlers = self._handlers
        for effect in effects:
            if self.dead:
                return
            handlers[type(effect)](effect)

    def die(self) -> None:
        """End the process, between any two effects."""
        if not self.dead:
            self.dead = True
            for item in self._timers.values():
                item.cancel()

    def pause(self) -> None:
        if self.paused is None:
            self.paused = []

    def resume(self) -> None:
        waiting, self.paused = self.paused or [], None
        for event in waiting:
            self.feed(event)

    # --- effects every machine may have ---

    def _attach(self, effect: pe.AttachSession) -> None:
        self.network.attach(self.name, effect, self.ledger_id, self.key, self.feed)

    def _send(self, effect: pe.SendFrame) -> None:
        self.network.send(self.name, effect.bookie, effect.session, effect.frame)

    def _write_metadata(self, effect: pe.WriteMetadata) -> None:
        self.store.write(self.name, self.ledger_id, effect.metadata, effect.version, self.feed)

    def _set_timer(self, effect: pe.SetTimer) -> None:
        self._cancel_timer(effect)
        self._timers[effect.name] = self.scheduler.at(
            effect.delay_ms, f"{self.name} clock", f"{self.name} timer {effect.name}", self._fire, effect.name
        )

    def _cancel_timer(self, effect: pe.SetTimer | pe.CancelTimer) -> None:
        item = self._timers.pop(effect.name, None)
        if item is not None:
            item.cancel()

    def _fire(self, name: str) -> None:
        self._timers.pop(name, None)
        self.feed(pe.TimerFired(name))

    def _send_read(self, effect: pe.SendRead) -> None:
        number, ledger, key = effect.request, self.ledger_id, self.key if effect.fence else None

        def answer(said: Any) -> None:
            if isinstance(said, ev.SendPart):
                self.feed(pe.FramesRead(number, memoryview(b"".join(said.frames))))
            elif said.reason:
                self.feed(pe.ReadFailed(number, f"{effect.bookie}: {said.reason.name}", said.reason))
            else:
                t = said.trailer
                self.feed(
                    pe.ReadAnswered(
                        number,
                        t.answered_through,
                        tuple(EntryRange(r.first, r.last) for r in t.absent),
                        tuple(EntryRange(r.first, r.last) for r in t.unknown),
                        "; ".join(r.reason.name for r in t.unknown),
                    )
                )

        self._reads[number] = self.network.request(
            self.name,
            effect.bookie,
            lambda request: ev.ReadRequested(request, ledger, effect.first, effect.last, effect.bytes_max, key),
            f"{'fencing ' if effect.fence else ''}read {effect.first}..{effect.last}",
            answer=answer,
            fail=lambda why: self.feed(pe.ReadFailed(number, f"{effect.bookie}: {why}")),
            deadline_ms=REQUEST_MS,
        )

    def _cancel_read(self, effect: pe.CancelRead) -> None:
        request = self._reads.pop(effect.request, None)
        if request is not None:
            request.cancel()

    def _ask_lac(self, effect: Any, make: Callable[[Any], Any], label: str, deadline_ms: float = REQUEST_MS) -> None:
        """Send a request that ends in evidence of the LAC. Its events carry the effect's name of the request."""
        names = {name: getattr(effect, name) for name in ("index", "attempt") if hasattr(effect, name)}

        def answer(said: Any) -> None:
            if isinstance(said, ev.SendLac):
                e = said.evidence
                self.feed(
                    pe.LacAnswered(
                        **names, last_entry_frame=e.last_entry_frame, lac_body=e.lac_body, lac_frame=e.lac_frame
                    )
                )
            else:
                self.feed(pe.LacFailed(**names, message=f"{effect.bookie}: {said.reason.name}", reason=said.reason))

        request = self.network.request(
            self.name,
            effect.bookie,
            make,
            label,
            answer=answer,
            fail=lambda why: self.feed(
                pe.LacFailed(**names, message=f"{effect.bookie}: {why}", reason=Reason.REASON_NONE)
            ),
            deadline_ms=deadline_ms,
        )
        self._reads[effect.index] = request
