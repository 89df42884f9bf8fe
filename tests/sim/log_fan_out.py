# SPDX-License-Identifier: Apache-2.0
"""Several named logs at once, each with all actors of tests/sim/logs.py, and jobs that publish into some of the logs in
one step (RULES K10): into all of them or none, once.

A multi first compares every head and record, and then writes all. Its answer may be lost, and it may come late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from bk_core.errors import BookKeeperError, MetadataConflictError, Outcome, TransactionReplayDiffersError
from bk_core.logs.machines import change
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.publication import FORGOTTEN_OFFSET, PublishOptions, Transaction, publish_among
from bk_core.logs.model.head import PublishId
from tests.sim.log_actors import Stage, new_extent
from tests.sim.log_limits import WINDOWS, small_limits
from tests.sim.log_runner import Runner
from tests.sim.logs import STEPS, LogOutcome, LogWorld, play, require

LOGS = ("a", "b", "c")
LEDGERS_OF_A_LOG = 1_000_000
STEP_BYTES = (1_500, change.STEP_BYTES_MAX)
"""The size limits of a multi. In some schedules several heads together exceed the limit, so that they must be made
small, which sometimes fails."""


@dataclass
class FanJob:
    """A publish into several logs under one id, with any number of attempts, and what is known about it."""

    publish_id: PublishId
    values: dict[str, list[str]]
    transaction: Transaction | None = None
    overwrite: bool = False
    is_published: bool = False
    is_doubtful: bool = False


class FanPublisher(Runner):
    """One attempt. The tasks write ledgers of their own, and the driver publishes them into all logs."""

    def __init__(self, stage: FanStage, job: FanJob) -> None:
        self.stage, self.job = stage, job
        ledgers = {log: self._ledgers(log, values) for log, values in job.values.items()}
        intents = publish_among(
            {
                log: [new_extent(each, count, stage.worlds[log].time) for each, count in made]
                for log, made in ledgers.items()
            },
            job.publish_id,
            now_ms=stage.first.time,
            nonce=stage.first.nonce,
            options=PublishOptions(overwrite=job.overwrite, transaction=job.transaction),
        )
        publish = HeadChange(intents, failures_max=stage.random.choice((2, 5)))
        # The faults of a multi are those of the first world.
        worlds = [stage.first, *(stage.worlds[log] for log in job.values if stage.worlds[log] is not stage.first)]
        super().__init__(worlds, publish.run(), "fan-out")

    def _ledgers(self, log: str, values: list[str]) -> list[tuple[int, int]]:
        half = len(values) // 2
        parts = [part for part in (values[:half], values[half:]) if part]
        return [(self.stage.worlds[log].make_ledger(part), len(part)) for part in parts]

    def answer(self, request: Any) -> Any:
        """Answer a multi."""
        try:
            return super().answer(request)
        except MetadataConflictError:
            self.world.reached["multi conflicted"] += 1
            raise

    def ended(self, result: Any) -> None:
        """Check that everything reported as published is there."""
        super().ended(result)
        self.job.is_published = True
        reached = self.world.reached
        forgotten = [log for log, found in result.items() if found.base_offset == FORGOTTEN_OFFSET]
        reached["one log remembers for all"] += 0 < len(forgotten) < len(result)
        reached["fan-out into several"] += len(result) > 1
        for log, found in result.items():
            if log not in forgotten:
                values = self.stage.worlds[log].history[found.base_offset : found.base_offset + found.rows]
                require(values == self.job.values[log], f"{self.job} published {values} to {log}")

    def failed(self, error: BookKeeperError) -> None:
        """Note whether the publish is in doubt, so that it is tried again."""
        self.world.reached[f"fan-out failed {error.code} {error.outcome.value}"] += 1
        self.world.reached["fan-out differs"] += isinstance(error, TransactionReplayDiffersError)
        self.job.is_doubtful = self.job.is_doubtful or error.outcome is Outcome.UNKNOWN
        self.watch.failed(error)


@dataclass
class FanStage:
    """The logs, the actors of each, and the jobs that publish into several."""

    random: Random
    stages: dict[str, Stage] = field(default_factory=dict)
    actors: list[FanPublisher] = field(default_factory=list)
    stalled: list[FanPublisher] = field(default_factory=list)
    jobs: list[FanJob] = field(default_factory=list)
    version: int = -1

    def __post_init__(self) -> None:
        late: list[Any] = []
        for number, log in enumerate(LOGS):
            world = LogWorld(self.random, name=log, late=late, next_ledger=number * LEDGERS_OF_A_LOG)
            self.stages[log] = Stage(world)
        for world in self.worlds.values():
            world.reached = self.first.reached
        self.fan_rate = self.random.choice((0.3, 0.6, 0.9))

    @property
    def worlds(self) -> dict[str, LogWorld]:
        """The worlds by the names of their logs."""
        return {log: stage.world for log, stage in self.stages.items()}

    @property
    def first(self) -> LogWorld:
        """The world whose faults are those of a multi."""
        return self.stages[LOGS[0]].world

    def step(self) -> None:
        """Make one request of a job into several logs, or any act on one log."""
        random = self.random
        if random.random() >= self.fan_rate:
            self.stages[random.choice(LOGS)].step()
            return
        self.first.time += 1
        draw = random.random()
        if not self.actors or (draw < 0.15 and len(self.actors) < 4):
            self.actors.append(FanPublisher(self, self._job()))
        elif draw < 0.17:
            self.actors.pop(random.randrange(len(self.actors))).job.is_doubtful = True
        elif draw < 0.19:
            self.stalled.append(self.actors.pop(random.randrange(len(self.actors))))
        elif self.stalled and draw < 0.21:
            self.actors.append(self.stalled.pop(random.randrange(len(self.stalled))))
        else:
            self._act(random.choice(self.actors))

    def _act(self, actor: FanPublisher) -> None:
        actor.act()
        if actor.is_done:
            self.actors.remove(actor)

    def _job(self) -> FanJob:
        """Return a new job, one that was tried before, or one with an old version and other rows."""
        random, draw = self.random, self.random.random()
        if self.jobs and draw < 0.35:
            return random.choice(self.jobs[-4:])
        before = [job for job in self.jobs if job.transaction]
        logs = random.sample(LOGS, random.choice((1, 2, 2, 3)))
        rows = {log: random.choice((1, 1, 2)) for log in logs}
        transaction = None
        if before and draw < 0.5:
            transaction = random.choice(before).transaction
        elif draw < 0.8:
            self.version += random.choice((1, 1, 2))
            transaction = Transaction("q", self.version)
        number = len(self.jobs)
        same = [j for j in before if j.transaction == transaction and {g: len(v) for g, v in j.values.items()} == rows]
        if same:
            return same[0]  # as far as the records show
        values = {log: [f"fan {number}.{log}.{n}" for n in range(count)] for log, count in rows.items()}
        text = PublishId.txn("q", transaction.version) if transaction else PublishId.job(f"fan {number}")
        self.jobs.append(FanJob(text, values, transaction, random.random() < 0.1))
        return self.jobs[-1]

    def settle(self, steps: int) -> None:
        """End all faults. Every job into several logs ends, and then each log comes to rest."""
        for world in self.worlds.values():
            world.is_faulty = False
        late, self.first.late[:] = list(self.first.late), []
        for write in late:
            write()
        self.actors += self.stalled
        for _ in range(steps):
            if not self.actors:
                break
            self._act(self.random.choice(self.actors))
        require(not self.actors, f"nobody disturbs {self.actors}, and they do not come to an end")
        for stage in self.stages.values():
            stage.settle(steps)

    def check(self) -> None:
        """Compare the records of each log, and then those of the jobs into several logs."""
        for stage in self.stages.values():
            stage.check()
        count = {
            log: {value: world.history.count(value) for value in world.history} for log, world in self.worlds.items()
        }
        for job in self.jobs:
            found = [count[log].get(value, 0) for log, values in job.values.items() for value in values]
            require(len(set(found)) == 1, f"{job} is there {found} times")
            require(found[0] > 0 or not job.is_published, f"{job} was published and is not there")
            require(found[0] == 0 or job.is_published or job.is_doubtful, f"{job} was not published and is there")
        self._check_versions()

    def _check_versions(self) -> None:
        """Check that every log has each version once, as long as its transactions were not vacuumed."""
        version_of = {v: job for job in self.jobs if job.transaction for values in job.values.values() for v in values}
        for log, world in self.worlds.items():
            if "q" not in world.forgotten:
                versions = [version_of[v].transaction for v in dict.fromkeys(world.history) if v in version_of]
                firsts = [job for job in self.jobs if job.transaction and job.values.get(log, [""])[0] in world.history]
                require(len(set(versions)) == len(firsts), f"{log} has a version of two jobs: {firsts}")


def run_fan_out_schedule(seed: int) -> LogOutcome:
    """Run one schedule over three logs. Raises LogViolation."""
    random = Random(seed)
    step_bytes = random.choice(STEP_BYTES)
    with small_limits(random.choice(WINDOWS), {(change, "STEP_BYTES_MAX"): step_bytes}):
        stage = FanStage(random)
        return play(seed, stage, stage.first, 3 * STEPS)
