# SPDX-License-Identifier: Apache-2.0
"""A simulated bookie: the product's machine over a back end that survives crashes as a disk does.

The back end is memory (:class:`MemoryBackEnd`, for the many schedules of the protocol profile) or the product's storage
on a simulated disk (:mod:`tests.sim.storage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from bk_core.entries.frame import FrameKind, record_payload
from bk_core.errors import BookKeeperError, DataDirectoryError
from bk_core.model import BookieId, LedgerId
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import LedgerFacts, MachineLimits
from tests.kit.bookie_effects import parted
from tests.kit.memory_holdings import MemoryHoldings, StoredFrame, StoredLedger, every_second, read_piece
from tests.sim.frames import contents, stored
from tests.sim.knobs import Knobs
from tests.sim.scheduler import Item, Scheduler

if TYPE_CHECKING:
    from tests.sim.checkers import Checker


class MemoryBackEnd:
    """Frames in a list. Committed frames survive a crash."""

    def __init__(self) -> None:
        self.holdings = MemoryHoldings(every_second)
        self.full = False

    def commit(self, frames: Sequence[bytes | memoryview]) -> list[Any]:
        if self.full:
            raise DataDirectoryError("no space is left", value="simulated")
        return [stored(frame) for frame in frames]

    def read(self, effect: ev.ReadFrames) -> ev.FramesRead:
        return ev.FramesRead(effect.request, [read_piece(piece) for piece in effect.pieces])

    def idle(self) -> None: ...
    def crash(self, random: Random) -> None: ...
    def kill(self) -> None: ...

    def commit_torn(self, frames: Sequence[bytes | memoryview], random: Random) -> None:
        """Let the process die in a commit. Some first frames of the group are then on the disk, unanswered."""
        for frame in frames[: random.randint(0, len(frames))]:
            place = stored(frame)
            if place.header.kind == FrameKind.ENTRIES:
                ledger = self.holdings.ledgers.setdefault(place.header.ledger_id, StoredLedger())
                ledger.frames.append(place)
            else:
                self.holdings.fold(place.header.ledger_id, place.header.kind, bytes(record_payload(frame)))

    def restart(self) -> None: ...

    def wipe(self, ledgers: Sequence[LedgerId], ended: Sequence[LedgerId]) -> None:
        """Delete everything. The ledgers that name this bookie are then fenced and in limbo, and others that have ended
        are fenced (RULES S8)."""
        self.holdings.ledgers.clear()
        for ledger_id in ended:
            self.holdings.ledgers[ledger_id] = StoredLedger(LedgerFacts(known=True, fenced=True))
        for ledger_id in ledgers:
            self.holdings.ledgers[ledger_id] = StoredLedger(LedgerFacts(known=True, fenced=True, trouble=Reason.LIMBO))

    def flip_bit(self, random: Random) -> tuple[LedgerId, StoredFrame] | None:
        """Damage a frame at rest, so that it cannot be read any more."""
        intact = [(i, f) for i, ledger in self.holdings.ledgers.items() for f in ledger.frames if not f.damaged]
        if not intact:
            return None
        ledger_id, frame = random.choice(intact)
        frame.damaged = True
        return ledger_id, frame


class SimBookie:
    """The processes of one bookie, one after the other on one back end."""

    def __init__(self, name: BookieId, back_end: Any, scheduler: Scheduler, knobs: Knobs, watcher: Checker) -> None:
        self.name, self.back_end, self.scheduler, self.knobs, self.watcher = name, back_end, scheduler, knobs, watcher
        self.starts = 0
        self.alive = False
        self.dead_for_good = False
        self.routes: dict[int, Any] = {}  # stream → connection or request
        self.modes: dict[int, AttachMode] = {}  # session → mode, which tells recovery adds from normal ones
        self._limits = MachineLimits(
            stream_bytes_max=knobs.bookie_bytes_max // 2,
            in_flight_bytes_max=knobs.bookie_bytes_max,
            lac_persist_ms=50,
        )
        self.start()

    def start(self) -> None:
        """Start a new process on the durable state."""
        self.starts += 1
        self.alive = True
        self.failed = False
        self.routes = {}
        self.machine = BookieMachine(self.back_end.holdings, self._limits)
        self._frames: list[bytes | memoryview] = []  # given to the log, and not in a group yet
        self._group: list[bytes | memoryview] = []  # the group that is being written
        self._timers: dict[ev.TimerId, Item] = {}

    def feed(self, event: ev.Event) -> None:
        if not self.alive:
            return
        for effect in parted(self.machine.step(event)):
            self._carry_out(effect)
        if type(event) is ev.FramesArrived:
            self.watcher.on_admitted(self, event)

    def arrived(self, stream: int, event: ev.Event) -> None:
        self.watcher.on_request(self, event)

    def _carry_out(self, effect: ev.Effect) -> None:
        kind = type(effect)
        if kind is ev.Commit:
            self._frames.extend(effect.frames)
            self._begin_commit()
        elif kind in (ev.ReadFrames, ev.ReadMemberships):
            self._later(f"{self.name} read", self._read, effect, mean_ms=self.knobs.sync_ms)
        elif kind is ev.SetTimer:
            self._timers[effect.timer] = self.scheduler.at(
                effect.delay_ms, f"{self.name} clock", f"{self.name} timer", self._fire, effect.timer, self.starts
            )
        elif kind is ev.CancelTimer:
            item = self._timers.pop(effect.timer, None)
            if item:
                item.cancel()
        elif kind in (ev.PauseStream, ev.ResumeStream):
            self.scheduler.reached("a bookie paused a stream")
        elif kind is ev.LookForDeletion:
            self.scheduler.reached("a bookie was to look for a deletion")
        else:
            self._answer(effect)

    def _answer(self, effect: Any) -> None:
        self.watcher.on_answer(self, effect)
        stream = effect.stream if isinstance(effect, ev.SendAcks | ev.CloseStream) else effect.request[0]
        route = self.routes.get(stream)
        if route is not None:
            route.deliver(effect)

    def _later(self, label: str, call: Any, *args: Any, mean_ms: float) -> Item:
        return self.scheduler.add(f"{self.name} disk", label, self._if_same, self.starts, call, args, mean_ms=mean_ms)

    def _if_same(self, starts: int, call: Any, args: tuple[Any, ...]) -> None:
        if self.alive and self.starts == starts:
            call(*args)

    def later_part_sent(self, request: ev.RequestId) -> None:
        self._later(f"{self.name} part sent", self.feed, ev.PartSent(request), mean_ms=self.knobs.latency_ms)

    def _read(self, effect: ev.ReadFrames | ev.ReadMemberships) -> None:
        self.feed(self.back_end.read(effect))

    def _fire(self, timer: ev.TimerId, starts: int) -> None:
        if self.alive and self.starts == starts:
            self._timers.pop(timer, None)
            self.feed(ev.TimerFired(timer))

    # --- commits ---

    def _begin_commit(self) -> None:
        if self._frames and not self._group and not self.failed:
            self._group, self._frames = self._frames, []
            self._later(f"{self.name} sync", self._commit, mean_ms=self.knobs.sync_ms)

    def _commit(self) -> None:
        group, self._group = self._group, []
        try:
            places = self.back_end.commit(group)
        except DataDirectoryError as error:
            self._frames.clear()
            self.scheduler.reached("a commit found no space")
            self.feed(ev.CommitFailed(Reason.NO_SPACE, error.what, False))
            return
        except BookKeeperError as error:
            self.failed = True
            self._frames.clear()
            self.scheduler.reached("a sync failed")
            self.feed(ev.CommitFailed(Reason.STORAGE_FAILED, error.what, True))
            self.kill(in_commit=False)
            return
        self.watcher.on_durable(self, group)
        self.feed(ev.GroupCommitted(places))
        self._begin_commit()
        if not self._group and not isinstance(self.back_end, MemoryBackEnd):
            self._later(f"{self.name} idle", self._idle, mean_ms=20 * self.knobs.sync_ms)

    def _idle(self) -> None:
        """Record the position, as the commit thread does when it has nothing to commit (RULES S3)."""
        if self._group or self.failed:
            return
        try:
            self.back_end.idle()
        except BookKeeperError:
            self.scheduler.reached("a sync failed")
            self.kill(in_commit=False)

    # --- life ---

    def kill(self, *, in_commit: bool = True) -> None:
        """Kill the process and break its connections. Frames that were not durable may be lost."""
        if not self.alive:
            return
        self.alive = False
        random = self.scheduler.random
        if self._group and in_commit and random.random() < self.knobs.torn_commit:
            self.scheduler.reached("crash in a commit")
            if any(contents(frame).header.kind == FrameKind.FENCE for frame in self._group):
                self.scheduler.reached("crash between fence set and fence durable")
            self.back_end.commit_torn(self._group, random)
        elif random.random() < 0.7:
            self.back_end.crash(random)
        else:
            self.back_end.kill()
        for item in self._timers.values():
            item.cancel()
        routes, self.routes = self.routes, {}
        for route in routes.values():
            if hasattr(route, "cut"):
                route.cut("the bookie died")
            else:
                self.scheduler.add(
                    route.lane, f"{route.lane} reset", route.failed, "reset", mean_ms=self.knobs.latency_ms
                )

    def restart(self) -> bool:
        """Start a new process. Return False if it refuses to start because the disk is full."""
        if self.alive or self.dead_for_good:
            return self.alive
        try:
            self.back_end.restart()
        except DataDirectoryError:
            self.scheduler.reached("a bookie could not start on a full disk")
            return False
        report = getattr(self.back_end, "report", None)
        if report is not None:
            self._note(report)
        self.start()
        return True

    def _note(self, report: Any) -> None:
        """Note the findings of the product's start-up."""
        if report.tail_bytes_dropped:
            self.scheduler.reached("a torn tail was trimmed")
        if report.damage:
            self.scheduler.reached("damage was found by a start")
        if report.limbo or report.ledgers_in_limbo:
            self.scheduler.reached("a ledger was put in limbo by damage")
