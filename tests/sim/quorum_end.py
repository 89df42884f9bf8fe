# SPDX-License-Identifier: Apache-2.0
"""The profile *quorum*: readers show entries above the LAC of an open ledger (``readMode=quorum``, decision 76).

The writer loses acks, replaces bookies, pauses and dies, and recoverers take over. No entry that a reader has shown may
ever be missing (I8). This can hold only because of time. ``DECIDES_MS`` is the longest time that a writer which is not
paused takes from sending an entry to its last decision about it. Together with the writer's longest pause it stays
below ``SETTLE_MS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from bk_core import quorum
from bk_core.entries.digest import Digester
from bk_core.errors import BookKeeperError, NoSuchEntryError
from bk_core.model import BookieId, EntryId, LedgerId, LedgerState
from bk_core.protocol import events as pe
from bk_core.protocol.config import WriterConfig
from bk_core.protocol.ends.quorum_end import EndPhase, QuorumEnd
from tests.sim.bookie import MemoryBackEnd
from tests.sim.clients import RECOVERY, RecoveryHost, WriterHost
from tests.sim.frames import contents
from tests.sim.host import PASSWORD, Host
from tests.sim.knobs import COMMON, Knobs
from tests.sim.readers import ReadHost
from tests.sim.schedule import Plan
from tests.sim.store import SimStore
from tests.sim.world import World

SETTLE_MS = 300.0
STORE_MS_MAX = 10.0
"""The longest time of a call to the store, each way."""
ANSWER_BYTES_MAX = (60, 4096, 4096)
"""The limits of an answer, one for each reader. With the first one answers end before the requested end."""

WRITER = WriterConfig(
    reconnect_budget_ms=20,
    retry_delay_ms=5,
    add_timeout_ms=40,
    slow_bookie_bytes_max=1 << 16,
    explicit_lac_delay_ms=5,
    close_linger_ms=20,
    metadata_retry_ms=5,
    add_quorum_timeout_ms=80,
    spare_retry_ms=20,
)
DECIDES_MS = WRITER.add_quorum_timeout_ms + WRITER.add_timeout_ms / 4 + STORE_MS_MAX
PAUSE_MS_MAX = SETTLE_MS - DECIDES_MS - 5


def quorum_knobs(random: Random, knobs: Knobs) -> Knobs:
    """Return knobs with which acks are lost, and writers die in the middle of an ensemble change, more often than
    elsewhere. The store is prompt. Faults that end a ledger early, and those that other profiles search, are left out.
    Four schedules in five are small: they have few bookies and entries, and one reader, so that many of them can be
    run."""
    pick = random.choice
    is_small = random.random() < 0.8
    if is_small:
        e, qw, qa = pick(COMMON)
        knobs = replace(knobs, ensemble_size=e, write_quorum=qw, ack_quorum=qa)
    return replace(
        knobs,
        spares=pick((1, 2, 2, 2)),
        latency_ms=pick((0.2, 1.0)),
        sync_ms=pick((0.1, 0.5, 5.0)),
        batches=pick((0, 1, 1)) if is_small else pick((1, 2, 3)),
        entries_max=pick((1, 2)) if is_small else pick((1, 2, 4)),
        tails=0 if is_small else 2,  # besides the readers that look for stranded entries
        think_ms=pick((2.0, 20.0)),
        writer_dies=pick((0.0, 0.3, 0.8)),
        cuts=pick((0, 1)),
        partitions=pick((0, 0, 1)),
        crashes=pick((0, 0, 1)),
        pauses=pick((0, 1)),
        store_away=pick((0, 0, 1)),
        early_recovery=pick((0.0, 0.0, 0.5)),
        hostile=pick((0.0, 0.0, 0.03, 0.1)),
        endless=0.0,
        no_space=0,
        deletes=0.0,
        apache=0.0,
        deferred=None,
        dead_at_the_end=False,
    )


class PromptStore(SimStore):
    """A store whose calls take at most ``STORE_MS_MAX`` each way."""

    def _carry(self, lane: str, label: str, call: Callable[..., None], *args: Any) -> None:
        delay_ms = min(self.scheduler.random.expovariate(1.0) * self.knobs.store_ms, STORE_MS_MAX)
        self.scheduler.at(delay_ms, lane, label, call, *args)


class ShownWriter(WriterHost):
    """A writer that may die when its ensemble change was applied, before the new bookies get an entry."""

    def feed(self, event: Any) -> None:
        world = self.world
        applied = isinstance(event, pe.MetadataWritten) and event.metadata.value.state is LedgerState.OPEN
        if applied and not self.dead and self.paused is None and world.random.random() < world.knobs.writer_dies:
            self.scheduler.reached("a writer died in an ensemble change")
            self.die()
            self.network.leave(self.name)
        super().feed(event)


class EndHost(Host):
    """Finds the end of a ledger as ``readMode=quorum`` does, and then reads every entry up to it."""

    world: QuorumWorld
    machine: QuorumEnd

    def __init__(self, world: QuorumWorld, name: str, ledger_id: LedgerId, lac: EntryId) -> None:
        super().__init__(world, name, ledger_id)
        self.machine = QuorumEnd(
            Digester(world.digest_type, PASSWORD, ledger_id),
            lac,
            settle_ms=SETTLE_MS,
            bytes_max=world.random.choice(ANSWER_BYTES_MAX),
            entries_max=16,
        )
        self.shown: EntryId = -1
        self._handlers |= {pe.FinishEnd: self._finish, pe.Fail: self._fail}
        self.carry(self.machine.start())

    def feed(self, event: Any) -> None:
        before = self.machine.rounds
        super().feed(event)
        self._check_counted()
        if self.machine.rounds > max(before, 1):
            self.scheduler.reached("a round began again")

    def _send_read(self, effect: pe.SendRead) -> None:
        if effect.fence:
            self.world.checker.fail("P15", f"{self.name} fences")
        super()._send_read(effect)

    def _check_counted(self) -> None:
        """Check P15: only a bookie of the write set that has the entry counts for it."""
        machine, window, record = self.machine, self.machine._window, self.machine._record
        if window is None or record is None or machine.phase not in (EndPhase.ASK, EndPhase.ASK_AGAIN):
            return
        ensemble = record.value.last_fragment.ensemble
        for index, held in enumerate(machine._holds):
            for at in held.nonzero()[0].tolist():
                if not self.world.has_had(ensemble[index], self.ledger_id, window.first + at):
                    self.world.checker.fail("P15", f"{ensemble[index]} counts for entry {window.first + at}")

    def _finish(self, effect: pe.FinishEnd) -> None:
        self.over, self.shown = True, effect.last
        value, truth = effect.metadata.value, self.world.checker.truth(self.ledger_id)
        self.scheduler.note(f"{self.name} is shown entries up to {effect.last}")
        if not value.is_closed and effect.last > truth.acked:
            self.scheduler.reached("an entry was shown before its ack")
        if not value.is_closed and effect.last > self.machine.lac:
            self.scheduler.reached("an entry above the LAC was shown")
        self.world.checker.end_shown(self, effect.last, effect.metadata)
        if effect.last >= 0:
            reader = ReadHost(self.world, f"{self.name}r", self.ledger_id, value, 0, effect.last, self._read)
            self.world.hosts.append(reader)

    def _read(self, error: BookKeeperError | None) -> None:
        if isinstance(error, NoSuchEntryError):
            self.world.checker.fail("I8", f"{self.name} was shown entries up to {self.shown}: {error!r}")

    def _fail(self, effect: pe.Fail) -> None:
        self.over = True
        self.scheduler.reached(f"an end was not found: {type(effect.error).__name__}")


class QuorumWorld(World):
    """A world whose readers show entries above the LAC."""

    stored_by = PromptStore
    chaos_ms = 900.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._had: dict[tuple[BookieId, LedgerId], set[EntryId]] = {}

    def writer(self, name: str = "w", ensemble: tuple[BookieId, ...] | None = None, **options: Any) -> WriterHost:
        ledger_id, record = self.new_ledger(name, ensemble)
        host = ShownWriter(self, name, ledger_id, record, config=WRITER)
        self.hosts.append(host)
        return host

    def settle(self) -> None:
        """Recover and read the ledger. A small schedule ends at once if every row that a reader has shown is
        acknowledged. Other profiles check such rows, and this phase is a third of the work."""
        is_small, looking = not self.knobs.tails, [host for host in self.hosts if isinstance(host, EndHost)]
        shown = any(truth.read > truth.acked for truth in self.checker.ledgers.values())
        if is_small and not shown and all(host.over for host in looking):
            self.scheduler.reached("no row was at stake")
            return
        super().settle()

    def recover(self, ledger_id: LedgerId, name: str = "r", **options: Any) -> RecoveryHost:
        config = replace(RECOVERY, add_timeout_ms=100, reconnect_budget_ms=50)
        return super().recover(ledger_id, name, config=config, **options)

    def end_of(self, ledger_id: LedgerId, name: str, lac: EntryId) -> EndHost:
        host = EndHost(self, name, ledger_id, lac)
        self.hosts.append(host)
        return host

    def has_had(self, bookie: BookieId, ledger_id: LedgerId, entry: EntryId) -> bool:
        """Return whether the entry is or was on the bookie's disk. An answer may come after its bookie lost the
        entry."""
        known = self._had.setdefault((bookie, ledger_id), set())
        if entry not in known:
            back_end = self.bookies[bookie].back_end
            assert isinstance(back_end, MemoryBackEnd)
            stored = back_end.holdings.ledgers.get(ledger_id)
            for frame in stored.frames if stored else ():
                known.update(contents(frame.data).ids)
            known.update(self.checker._durable(bookie, ledger_id))
        return entry in known or bookie in self.checker.truth(ledger_id).damaged.get(entry, ())


class QuorumPlan(Plan):
    """The work, and faults around the entries in flight: acks held back on one link, adds on another, and readers
    beside them."""

    world: QuorumWorld
    _was_paused = False

    def lay(self) -> None:
        knobs, random = self.knobs, self.random
        writer = self.world.writer("w")
        self._work(writer)
        draw = random.random()
        strands = draw < 0.85
        if draw < 0.6:
            self._at(random.uniform(0, 60), "entries are stranded", self._strand, writer)
        elif strands:
            begin = random.uniform(5, 250)
            second_look = begin + SETTLE_MS + random.uniform(-40, 5)
            self._at(begin, "a reader looks early", self._look, writer, "qe")
            self._at(second_look, "entries are stranded before its second look", self._strand, writer)
        others = random.randint(0 if strands else 1, 1 + knobs.tails)
        for number in range(others):
            self._at(random.uniform(0, 250), f"q{number} looks for the end", self._look, writer, f"q{number}")
        if random.random() < 0.3:
            self._at(random.uniform(0, 400), "the writer is paused", self._pause_writer, writer)
        if random.random() < knobs.early_recovery:
            self._at(random.uniform(0, 500), "somebody recovers", self._recover, writer, "r1")
            if random.random() < knobs.second_recoverer:
                self._at(random.uniform(0, 500), "another recovers", self._recover, writer, "r2")
        self._disturb()
        self._laid = True

    def _work(self, writer: WriterHost) -> None:
        at = 0.0
        for _ in range(self.knobs.batches):
            at += self.random.expovariate(1.0) * self.knobs.think_ms
            self._at(at, "append", writer.append, self.random.randint(1, self.knobs.entries_max))
        if self.random.random() < self.knobs.writer_dies / 2:
            self._at(self.random.uniform(0, at + 300), "the writer dies", self._die, writer)
        elif self.random.random() < 0.3:
            self._at(at + self.random.uniform(0, 400), "close", writer.close)

    def _strand(self, writer: WriterHost) -> None:
        """Let entries reach an ack quorum whose acks do not all come back, and no other bookie. A reader looks for them
        before the writer decides which bookie has failed."""
        truth, knobs, random = self.world.checker.truth(writer.ledger_id), self.knobs, self.random
        if truth.record is None or not writer.can_append:
            return
        ensemble, first = truth.record.value.last_fragment.ensemble, len(truth.given)
        members = [ensemble[at] for at in quorum.write_set(first, knobs.ensemble_size, knobs.write_quorum)]
        random.shuffle(members)
        holders, others = members[: knobs.ack_quorum], members[knobs.ack_quorum :]
        mute = holders[: random.randint(1, len(holders))]
        lanes = [f"{name}>{writer.name}" for name in mute] + [f"{writer.name}>{name}" for name in others]
        self.scheduler.reached("entries were stranded")
        self.world.hold(*lanes)
        is_long = random.random() < 0.5  # until the end of the chaos
        for lane in lanes:
            self._at(
                self.world.chaos_ms if is_long else random.uniform(45, 400), f"{lane} goes on", self.world.release, lane
            )
        writer.append(random.choice((1, 1, 2)))
        self._at(random.uniform(5, 40), "a reader looks for the stranded entries", self._look, writer, "qs")
        if random.random() < 0.4:
            self._at(random.uniform(0, 40), "the writer is paused", self._pause_writer, writer)

    def _look(self, writer: WriterHost, name: str) -> None:
        truth = self.world.checker.truth(writer.ledger_id)
        self.world.end_of(writer.ledger_id, name, self.random.choice((-1, truth.acked)))

    def _pause_writer(self, writer: WriterHost) -> None:
        """Pause the writer, once in a run, for less time than the settle time allows."""
        if self._was_paused or writer.dead or writer.paused is not None:
            return
        self._was_paused = True
        self.scheduler.reached("a writer was paused")
        writer.pause()
        self._at(self.random.uniform(0, PAUSE_MS_MAX), "the writer goes on", self._resume, writer)

    def _some_host(self) -> Host | None:
        """Return any host but a writer, whose pauses are counted."""
        others = [host for host in self.world.hosts if not host.dead and not isinstance(host, WriterHost)]
        return self.random.choice(others) if others else None
