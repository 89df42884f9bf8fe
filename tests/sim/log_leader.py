# SPDX-License-Identifier: Apache-2.0
"""A leader of the log of tests/sim/logs.py: it takes over, appends, rolls, gives up or is fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bk_core.errors import (
    BookKeeperError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchLogError,
    NotEnoughBookiesError,
    Outcome,
)
from bk_core.logs.machines import leadership_events as le
from bk_core.logs.machines.change import write_of
from bk_core.logs.machines.leadership import LogLeadership
from bk_core.logs.machines.leadership import State as Leading
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.head import Extent, LogHead
from bk_core.logs.model.paging import Change, last_ledgers
from bk_core.model import LedgerId, Versioned
from tests.sim.logs import LogWorld

if TYPE_CHECKING:
    from tests.sim.log_actors import Stage

QUORUM = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}


class Leader:
    """A leader's driver in miniature. Its requests are answered in any order, and it appends while it serves."""

    def __init__(self, world: LogWorld, stage: Stage) -> None:
        self.world, self.stage, self.is_done = world, stage, False
        self.machine = LogLeadership(attempts_max=3)
        self.pending: list[le.LeadershipEffect] = []
        self.current: LedgerId | None = None
        self.base = 0
        self._take(le.TakeOver())

    def act(self) -> None:
        """Make an append, a command, or one request."""
        world = self.world
        if self.pending and (self.current is None or world.random.random() < 0.6):
            self._take(self._answer(self.pending.pop(world.random.randrange(len(self.pending)))))
        elif self.current is None:
            self.is_done = self.machine.state in (Leading.LOST, Leading.ENDED)
        elif not world.is_faulty or world.random.random() < 0.2:
            self._take(le.GiveUp() if not world.is_faulty or world.random.random() < 0.2 else le.Roll())
        else:
            self.append()

    def append(self) -> None:
        """Append one entry. Its answer may be lost."""
        world, ledger = self.world, self.current
        assert ledger is not None
        if ledger not in world.ledgers or world.ledgers[ledger].is_closed:
            world.reached["leader fenced"] += 1
            self._take(le.WriterFailed(ledger, BookKeeperError("fenced")))
            return
        values = world.ledgers[ledger].values
        values.append(f"leader {self.stage.next_value()}")
        if not world.chance(0.1):
            self.stage.acked.append((self.base + len(values) - 1, values[-1]))

    def _take(self, event: le.LeadershipEvent) -> None:
        for effect in self.machine.step(event):
            match effect:
                case le.Serve(ledger_id, base_offset):
                    self.world.reached["leader serves"] += 1
                    self.current, self.base = ledger_id, base_offset
                case le.DeleteLedger(ledger_id):
                    self.world.delete_ledger(ledger_id)
                case le.LoseLeadership() | le.FinishLeadership():
                    self.current, self.is_done = None, True
                case le.SwitchLedger(previous_id, ledger_id):
                    self.world.reached["rolled"] += 1
                    self.base += len(self.world.ledgers[previous_id].values)
                    self.current = ledger_id
                    self.pending.append(effect)
                case le.FinishRoll():
                    pass
                case _:
                    if isinstance(effect, le.CloseLedger):
                        self.current = None
                    self.pending.append(effect)

    def _answer(self, effect: le.LeadershipEffect) -> le.LeadershipEvent:
        world = self.world
        if isinstance(effect, le.ReadHead | le.RecoverLedger) and world.chance(0.1):
            return le.RequestFailed(MetadataUnavailableError("away", outcome=Outcome.NOT_APPLIED))
        if isinstance(effect, le.ReadHead) and world.is_gone:
            return le.RequestFailed(NoSuchLogError("the log was deleted"))
        match effect:
            case le.ReadHead():
                found = world.head
                return le.HeadRead(found, last_ledgers(found.value, world.pages))
            case le.RecoverLedger(ledger_id):
                if ledger_id not in world.ledgers:
                    return le.LedgerMissing(ledger_id)
                return le.LedgerRecovered(ledger_id, world.recover(ledger_id))
            case le.CreateLedger():
                if world.chance(0.05):
                    return le.RequestFailed(NotEnoughBookiesError("none"))
                made = Extent(
                    is_open=True, ledger_id=world.make_ledger([], is_closed=False), created_ms=world.time, **QUORUM
                )
                return le.LedgerCreated(made)
            case le.SwitchLedger(ledger_id, _) | le.CloseLedger(ledger_id):
                if ledger_id not in world.ledgers or world.ledgers[ledger_id].is_closed:
                    return le.WriterFailed(ledger_id, BookKeeperError("fenced"))
                return le.LedgerClosed(ledger_id, world.recover(ledger_id))
        return self._answer_change(effect)

    def _answer_change(self, effect: le.LeadershipEffect) -> le.LeadershipEvent:
        world = self.world
        match effect:
            case le.AskLeader():
                return le.LeaderAnswered(not world.chance(0.1))
            case le.SealExtents(expected, ends):
                change = commit.seal(expected.value, dict(ends), nonce=world.nonce, pages=world.pages)
                return self._write(expected, change)
            case le.ListLedger(expected, ledger):
                if ledger.ledger_id not in world.ledgers:
                    return le.RequestFailed(NoSuchLedgerError("vacuumed before it was listed"))
                try:
                    change = commit.add_open_extent(expected.value, ledger, nonce=world.nonce, pages=world.pages)
                except BookKeeperError as error:
                    return le.RequestFailed(error)
                return self._write(expected, change)
        return le.WaitEnded()

    def _write(self, expected: Versioned[LogHead], change: Change) -> le.LeadershipEvent:
        world = self.world
        if world.head.version == expected.version:
            for new in change.new_pages:
                world.pages[new.name], world.page_made[new.name] = new.page, world.time
        write = write_of(expected, change, world.pages)
        match world.compare_and_set(lambda: world.write(write)):
            case "written":
                return le.HeadWritten(world.head)
            case "unknown":
                return le.HeadWriteUnknown()
        return le.HeadConflicted()
