# SPDX-License-Identifier: Apache-2.0
"""Keeps lanes attached and decides when a bookie has failed (P3). Pure. Writer, recovery and repair use it.

The keeper opens a broken session again and re-sends its frames for ``reconnect_budget_ms``; then the bookie has failed.
A bookie has also failed if for ``add_timeout_ms`` it owes acks and sends none, or if more than
``slow_bookie_bytes_max`` bytes wait for its acks all that time. The caller decides what to do about a failed bookie.
"""

from __future__ import annotations

from typing import TypeAlias

from bk_core.protocol import events as ev
from bk_core.protocol.config import DeliveryConfig
from bk_core.protocol.delivery import Delivery, LaneState
from bk_core.wire.lane.reasons import Reason

KeeperEffect: TypeAlias = ev.SessionEffect | ev.SetTimer | ev.CancelTimer

RETRIED = frozenset({Reason.OVERLOADED, Reason.SHUTTING_DOWN, Reason.TIMEOUT, Reason.NOT_ATTACHED, Reason.GRANT_NEEDED})
"""The refusals after which the keeper opens the session again, within ``reconnect_budget_ms``. After any other refusal
the bookie has failed."""

STALL_TICKS = 4
"""The number of checks for progress in each ``add_timeout_ms``. After as many checks in a row without progress a bookie
has failed."""


class SessionKeeper:
    """Opens, repeats and gives up the sessions of one :class:`Delivery`."""

    def __init__(self, delivery: Delivery, config: DeliveryConfig) -> None:
        self.delivery, self.config = delivery, config
        self.budgets = [False] * len(delivery.lanes)  # index → whether its reconnect budget runs; then an ack ends it
        self._stalls = [(0, 0)] * len(delivery.lanes)  # index → (progress seen, ticks without progress)
        self.is_ticking = False  # whether the check of the add deadline goes on

    def pushed(self) -> list[ev.SetTimer]:
        """Start the check of the add deadline, because a packet was pushed."""
        if self.is_ticking:
            return []
        self.is_ticking = True
        self._stalls = [(lane.progress, 0) for lane in self.delivery.lanes]
        return [self._next_tick()]

    def step(self, event: ev.SessionEvent | ev.ForceEvent | ev.TimerFired) -> tuple[list[KeeperEffect], list[int]]:
        """Handle one event. Return the effects, and the indices of the bookies that have now failed; their lanes are
        FAILED. Events of earlier sessions are ignored."""
        effects, failed = self._timer(event.name) if isinstance(event, ev.TimerFired) else self._session(event)
        for index in failed:
            effects += [*self.delivery.fail(index), ev.CancelTimer(f"retry:{index}"), *self._stop_budget(index)]
        return effects, failed

    def _session(self, event: ev.SessionEvent | ev.ForceEvent) -> tuple[list[KeeperEffect], list[int]]:
        index, effects = event.index, list[KeeperEffect]()
        if isinstance(event, (ev.FramesAcked, ev.SessionEnded)):
            if self.delivery.acked(index, event.session, event.frames):
                effects += self._stop_budget(index)
            elif self.delivery.is_impossible(event):
                return [], [index]  # the bookie is broken: none of its acks counts
        elif isinstance(event, ev.Forced):
            self.delivery.forced(event)
        if isinstance(event, (ev.FramesAcked, ev.Forced)) or not self.delivery.is_current(index, event.session):
            return effects, []
        if isinstance(event, ev.ForceFailed):
            return [], [index]
        if isinstance(event, ev.SessionEnded) and event.reason not in RETRIED:
            return effects, [index]
        if self.delivery.broken(index):
            effects.append(ev.SetTimer(f"retry:{index}", self.config.retry_delay_ms))
            if not self.budgets[index]:
                self.budgets[index] = True
                effects.append(ev.SetTimer(f"budget:{index}", self.config.reconnect_budget_ms))
        return effects, []

    def replaced(self, index: int) -> list[KeeperEffect]:
        """Attach the new bookie at ``index`` and send it the entries that it has to hold."""
        self._stalls[index] = (0, 0)
        return [*self.delivery.attach(index)]

    def _timer(self, name: str) -> tuple[list[KeeperEffect], list[int]]:
        kind, _, number = name.partition(":")
        if kind == "adds":
            return self._tick()
        index = int(number)
        lane = self.delivery.lanes[index]
        if kind == "retry":
            return ([*self.delivery.attach(index)] if lane.state is LaneState.WAITING else []), []
        self.budgets[index] = False
        owed = lane.state is not LaneState.FAILED and lane.watermark < self.delivery.last_sent
        return [], [index] if owed else []

    def _tick(self) -> tuple[list[KeeperEffect], list[int]]:
        if not self.delivery.packets:
            self.is_ticking = False
            return [], []
        failed = []
        for index, lane in enumerate(self.delivery.lanes):
            if lane.state is LaneState.FAILED:
                continue
            seen, ticks = self._stalls[index]
            stalled = lane.watermark < self.delivery.last_sent and (
                lane.progress == seen or self.delivery.unacked_bytes(index) > self.config.slow_bookie_bytes_max
            )
            self._stalls[index] = (lane.progress, ticks + 1 if stalled else 0)
            if stalled and ticks + 1 >= STALL_TICKS:
                failed.append(index)
        return [self._next_tick()], failed

    def stop(self) -> list[KeeperEffect]:
        """End all sessions and timers."""
        timers = [f"{kind}:{index}" for index in range(len(self.delivery.lanes)) for kind in ("retry", "budget")]
        return [*self.delivery.detach_all(), ev.CancelTimer("adds"), *map(ev.CancelTimer, timers)]

    def _next_tick(self) -> ev.SetTimer:
        return ev.SetTimer("adds", self.config.add_timeout_ms / STALL_TICKS)

    def _stop_budget(self, index: int) -> list[KeeperEffect]:
        if not self.budgets[index]:
            return []
        self.budgets[index] = False
        return [ev.CancelTimer(f"budget:{index}")]
