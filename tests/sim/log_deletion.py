# SPDX-License-Identifier: Apache-2.0
"""Several clients delete the log of tests/sim/logs.py while all actors work on it (N6, decision 0072). The sequences of
bk_core/logs/machines/deletion.py run under every fault that a compare-and-set can have.

The oracle checks more than that of the log: a marked head is never written, a record is made only of a marked log, no
ledger is deleted before the delay, and in the end nothing of the log is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from bk_core.errors import BookKeeperError, MetadataUnavailableError, NoSuchLogError, Outcome
from bk_core.logs.machines import ask
from bk_core.logs.machines.deletion import DeleteLog, VacuumDeleted, finish
from bk_core.logs.model.deleted import DeletedLog
from tests.sim.log_actors import Publisher, Stage
from tests.sim.log_limits import WINDOWS, small_limits
from tests.sim.log_runner import Runner
from tests.sim.logs import STEPS, UUID, LogOutcome, LogWorld, play, require

DELETION = 0.12
"""How often the next actor that arrives wants to delete the log."""


@dataclass
class DeletingWorld(LogWorld):
    """The log's records, with the record of its deletion, which has the time of the deletion."""

    recorded: int | None = None
    is_removed: bool = False

    def answer(self, request: Any, *, sync: bool = False) -> Any:
        """Carry out a request and return its answer, or raise its error."""
        if not isinstance(request, ask.RecordDeleted | ask.RemoveMark | ask.ForgetDeleted):
            return super().answer(request, sync=sync)
        fate = self.random.choice(("away", "lost")) if self.chance(0.1) else "done"
        if fate == "away":
            raise MetadataUnavailableError("away", outcome=Outcome.NOT_APPLIED)
        found = self._answer_deletion(request)
        if fate == "lost":
            raise MetadataUnavailableError("lost", outcome=Outcome.UNKNOWN)
        return found

    def _answer_deletion(self, request: ask.RecordDeleted | ask.RemoveMark | ask.ForgetDeleted) -> DeletedLog | None:
        match request:
            case ask.RecordDeleted(log_uuid):
                if self.is_gone and not self.is_removed and self.recorded is None:
                    self.recorded = self.time
                if self.recorded is None:
                    raise NoSuchLogError("neither mark nor record")
                return DeletedLog(name=self.name, uuid=log_uuid, deleted_ms=self.recorded)
            case ask.RemoveMark():
                if self.is_gone:
                    require(self.recorded is not None, "the mark is removed, and nobody will find the ledgers")
                    self.is_removed = True
                    self.pages.clear()
                    self.unlinkings.records.clear()
            case ask.ForgetDeleted():
                require(all(not each.is_ours for each in self.ledgers.values()), "ledgers are left, and forgotten")
                self.recorded = None
        return None


class Deleter(Runner):
    """A client that deletes the log."""

    def __init__(self, world: DeletingWorld) -> None:
        super().__init__([world], DeleteLog(world.name, UUID, takeover=world.chance(0.7)).run(), "deletion")

    def ended(self, result: Any) -> None:
        super().ended(result)
        require(self.world.is_gone, "it says that the log is deleted, and the log is there")

    def failed(self, error: BookKeeperError) -> None:
        super().failed(error)
        self.world.reached["deletion refused"] += error.code == "BK_LOG_HAS_LEADER"


class DeletingStage(Stage):
    """All actors, with those that delete the log."""

    world: DeletingWorld

    def _arrive(self) -> None:
        world = self.world
        recorded = world.recorded
        if world.random.random() < DELETION or (world.is_gone and world.random.random() < 0.3):
            self.actors.append(Deleter(world))
        elif recorded is not None and world.time >= recorded + world.unlinkings.delay and world.random.random() < 0.5:
            self.actors.append(Runner([world], VacuumDeleted(UUID, forget=False).run(), "vacuum of a deleted log"))
        elif world.is_gone:
            self.jobs.append(self._job())
            self.actors.append(Publisher(world, self.jobs[-1]))
        else:
            super()._arrive()

    def settle(self, steps: int) -> None:
        super().settle(steps)
        if not self.world.is_gone:
            return
        for sequence in (finish(UUID), VacuumDeleted(UUID, forget=True).run()):
            self.actors = [Runner([self.world], sequence, "last deletion")]
            self._run_all(steps)

    def check(self) -> None:
        super().check()
        world = self.world
        if world.is_gone:
            require(world.is_removed and world.recorded is None, "something is left of the deleted log")
            world.reached["log deleted"] += 1
        else:
            require(world.recorded is None, "a log is there, and on record as deleted")
            world.reached["log kept"] += 1


def run_deletion_schedule(seed: int) -> LogOutcome:
    """Run a schedule as :func:`tests.sim.logs.run_log_schedule` does, with a log that is mostly deleted. Raises
    LogViolation."""
    world = DeletingWorld(Random(seed))
    with small_limits(world.random.choice(WINDOWS)):
        return play(seed, DeletingStage(world), world, STEPS)
