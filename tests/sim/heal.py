# SPDX-License-Identifier: Apache-2.0
"""The profile *heal*: an auditor and workers repair ledgers while writers, recoverers and faults are at work. Meanwhile
a bookie is drained and copies are moved (:mod:`tests.sim.leaving`).

Chaos and peace are those of every world. The auditor finds bookies that stay away. Bookies that lost their disk or find
damage mark their ledgers themselves. In peace every mark has to go, and then every copy that a record names must be in
the bookie itself. After that come rounds. Each loses another bookie and has to heal before the next one. So in the end
more bookies are lost than any ledger could survive if some copy did not exist.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from bk_core import quorum
from bk_core.model import BookieId, EntryId, LedgerId, LedgerMetadata, Versioned
from bookie_server.machine import events as ev
from tests.sim.checkers import Checker, LedgerTruth, Violation
from tests.sim.clients import WriterHost
from tests.sim.frames import contents
from tests.sim.heal_marks import TICK_MS as LOOK_MS
from tests.sim.heal_marks import ApacheWorker, HealBackEnd, Registrations, SimAuditor, SimOwnCopies, new_session
from tests.sim.heal_workers import ReplicationHost, SimWorker
from tests.sim.host import Host
from tests.sim.knobs import Knobs
from tests.sim.leaving import Leaving
from tests.sim.world import PEACE_MS, World

TICK_MS = 15.0
ROUNDS_MAX = 3
SEEN_MS = 150.0
ROUNDS_PART = 0.03
"""The share of schedules with rounds of loss, each of which costs as much as five others."""


def heal_knobs(random: Random, knobs: Knobs) -> Knobs:
    """Return the knobs with one bookie more than the ensemble needs, because without it nothing can be repaired."""
    lossy = knobs.ack_quorum > 1
    return replace(
        knobs,
        spares=max(1, knobs.spares),
        wipes=random.choice((0, 1)) if lossy else 0,
        flipped_bits=random.choice((0, 0, 1)) if lossy else 0,
        deletes=random.choice((0.0, 0.0, 0.0, 0.3)),
    )


class HealChecker(Checker):
    """A checker that knows that repairs write closed records, and what they may change in any record."""

    world: HealWorld

    def _check_succession(self, before: Versioned[LedgerMetadata], after: Versioned[LedgerMetadata], by: str) -> None:
        host = self.world.repairs.get(by)
        if host is None:
            super()._check_succession(before, after, by)
            return
        old, new = before.value, after.value
        firsts = [[f.first_entry_id for f in value.fragments] for value in (old, new)]
        if firsts[0] != firsts[1] or replace(new, fragments=old.fragments) != old:
            self.fail("I4", f"{by} changed more than ensembles: {old} became {new}")
        for was, now in zip(old.fragments, new.fragments, strict=True):
            for index, bookie in enumerate(now.ensemble):
                if bookie != was.ensemble[index]:
                    self._check_replaced(host, was.ensemble[index])
                    self.world.placed[host.ledger_id, was.first_entry_id, bookie] = None
                    self.scheduler.reached("a bookie took another's place")
                    self.world.operators.check_target(host, bookie)
                    self._check_present(host, new, was.first_entry_id, index, bookie)

    def _check_present(
        self, host: ReplicationHost, value: LedgerMetadata, first: EntryId, index: int, bookie: BookieId
    ) -> None:
        """Check I15: a record names a bookie only once its copy is durable there, unless the bookie lost its disk
        meanwhile."""
        if self.world.harmed.get(bookie, -1.0) >= host.began:
            return
        missing = self.world.missing_of(host.ledger_id, value, first, index, bookie)
        if missing is None or missing:
            self.fail("I15", f"{host.name} names {bookie} for the fragment at {first}, which lacks {missing}")

    def _check_replaced(self, host: ReplicationHost, bookie: BookieId) -> None:
        """Check that a bookie that is away had its time to come back."""
        if bookie in host.seen.away:
            self.fail("delay", f"{host.name} replaces {bookie}, which is not away for long")

    def _has(self, bookie: BookieId, ledger_id: LedgerId, entry: EntryId) -> bool:
        """Return whether the bookie has the entry. A crash in a commit may have left it on the disk without an ack, and
        a repair finds it there."""
        return super()._has(bookie, ledger_id, entry) or entry in self.world.on_disk(bookie, ledger_id)

    def damaged(self, bookie: BookieId) -> None:
        super().damaged(bookie)
        self.world.harmed[bookie] = self.scheduler.now

    def came_back_empty(self, bookie: BookieId) -> None:
        """Note that a bookie lost its disk. No record of a deleted ledger names it, so that ledger is not in limbo
        there, and its fence is lost. Without a record no client closes that ledger, so it has no end behind which a
        normal add could lie."""
        for (name, ledger_id), known in self.bookies.items():
            if name == bookie and known.fence_said and self.truth(ledger_id).deleted:
                self.scheduler.reached("a fence of a deleted ledger was lost with its disk")
                known.fence_said = False
                self.truth(ledger_id).closed_at = None

    def _check_marked(self, truth: LedgerTruth, metadata: LedgerMetadata, ids: range, by: Host) -> None:
        newest = metadata if truth.record is None else truth.record.value
        super()._check_marked(truth, newest, ids, by)


class HealWorld(World):
    checked_by = HealChecker
    checker: HealChecker

    def __init__(self, seed: int | str, knobs: Knobs, **options: Any) -> None:
        self.incarnations: dict[BookieId, int] = {}
        self.harmed: dict[BookieId, float] = {}  # the time when it last lost its disk or a part of it
        self.unregistered: dict[BookieId, None] = {}  # running bookies whose session with the store is lost
        self._restless_ms = 0.0  # the time when the store, or a bookie's session, was last away
        self.repairs: dict[str, ReplicationHost] = {}  # by client
        self.placed: dict[tuple[LedgerId, EntryId, BookieId], None] = {}  # copies made by a repair
        self._scrubbed_at = -1.0  # the time when all damage is found
        self._empty: dict[BookieId, None] = {}  # wiped, and not started since
        # damage that was found before a record named the bookie
        self._seen_too_early = set[tuple[LedgerId, BookieId]]()
        super().__init__(seed, knobs, **options)
        self.checker.world = self
        draw = Random(f"{seed}:heal")
        self.delay_ms = draw.choice((20.0, 100.0, 300.0))
        self.worker_dies = draw.choice((0.0, 0.0, 0.02))
        self.lock_lost = draw.choice((0.0, 0.0, 0.1))
        self.deletes_at_work = draw.choice((0.0,) * 7 + (0.02,))
        self.rounds = 0 if draw.random() > ROUNDS_PART else draw.choice((1, 1, 1, ROUNDS_MAX))
        self.audits = draw.random() < 0.3
        self._looks_again = draw.random() < 0.5  # bookies check their copies until these are whole
        self._marks_at_start = not self._looks_again or draw.random() < 0.5
        self.registrations = Registrations(self)
        self.operators = Leaving(self, Random(f"{seed}:operators"))
        self.workers = [SimWorker(self, f"heal{number}") for number in range(draw.choice((1, 2)))]
        self.auditors = [SimAuditor(self, f"auditor{number}", draw) for number in range(draw.choice((1, 1, 2)))]
        self.own = {name: SimOwnCopies(self, name) for name in self.bookies}
        self._apache = ApacheWorker(self, draw) if self._looks_again and draw.random() < 0.4 else None
        self._outages = draw.random() < 0.2
        self._draw = draw

    def back_end(self, name: BookieId) -> HealBackEnd:
        return HealBackEnd()

    def begin(self) -> None:
        for auditor in self.auditors:
            auditor.start()
        for worker in self.workers:
            worker.wait(TICK_MS)
        if self._looks_again:
            self.scheduler.at(LOOK_MS, "own copies clock", "bookies look at their copies", self._look_at_copies)
        self.operators.begin()
        if self._outages:
            self._plan_outage(self._draw.uniform(0, 300))

    def present(self) -> list[BookieId]:
        """Return the registered bookies."""
        return [name for name, bookie in self.bookies.items() if bookie.alive and name not in self.unregistered]

    # --- the store is away, and sessions end ---

    def _plan_outage(self, at_ms: float) -> None:
        self.scheduler.at(at_ms, "outage clock", "the store is away", self._outage)

    def may_go_away(self) -> None:
        """Sometimes let the store go away, just when a worker or auditor has to give back a lock."""
        if self._outages and not self.store.is_down and self._draw.random() < 0.1:
            self._outage()

    def _outage(self) -> None:
        self.scheduler.reached("the store was away for all")
        self.store.is_down = True
        self.scheduler.at(self._draw.choice((5.0, 50.0, 300.0)), "outage clock", "the store is back", self._back)

    def _back(self) -> None:
        """Let the store come back. Sessions may have ended meanwhile, and bookies register again after a moment."""
        self.store.is_down, self._restless_ms = False, self.scheduler.now
        for holder in (*self.workers, *self.auditors, self.operators.mover):
            if self._draw.random() < 0.5:
                new_session(holder.store)
        for name, bookie in self.bookies.items():
            if bookie.alive and self._draw.random() < 0.4:
                self.unregister(name, self._draw.choice((5.0, 50.0, 150.0)))

    def unregister(self, name: BookieId, ms: float) -> None:
        """End the bookie's registration for ``ms``. The bookie still serves, but no client finds it."""
        if name in self.unregistered:
            return
        self.scheduler.reached("a bookie that is up was not registered")
        self.store.registered.pop(name, None)
        self.unregistered[name] = None
        self.scheduler.at(ms, "outage clock", f"{name} registers again", self._register, name)

    def _register(self, name: BookieId) -> None:
        """Register the bookie in its present mode. An order may have come or ended meanwhile."""
        bookie = self.bookies[name]
        if self.unregistered.pop(name, "no") is None and bookie.alive:
            self._restless_ms = self.scheduler.now
            if not bookie.machine._core.logs[0].read_only:
                self.store.registered[name] = None

    # --- who marks ---

    def _look_at_copies(self) -> None:
        for own in self.own.values():
            own.look()
        if self._apache is not None:
            self._apache.look()
        self.scheduler.at(LOOK_MS, "own copies clock", "bookies look at their copies", self._look_at_copies)

    def _records(self) -> dict[LedgerId, LedgerMetadata]:
        return {i: record.value for i in self.checker.ledgers if (record := self.store.newest(i))}

    def _naming(self, bookie: BookieId) -> list[LedgerId]:
        return [i for i, record in self._records().items() if self._names(record, bookie)]

    def crash(self, name: BookieId) -> None:
        super().crash(name)
        self.unregistered.pop(name, None)

    def wipe(self, name: BookieId) -> None:
        before = self.harmed.get(name)
        super().wipe(name)
        if self.harmed.get(name) != before:
            self._empty[name] = None
            self.incarnations[name] = self.incarnations.get(name, 0) + 1

    def restart(self, name: BookieId) -> None:
        """Restart a bookie. If it lost its disk, it finds at its start which ledgers name it, puts them in limbo (RULES
        S8) and marks them. If it also checks its copies itself, these marks may be lost."""
        bookie, was_empty = self.bookies[name], name in self._empty
        if bookie.alive or bookie.dead_for_good:
            if name not in self.unregistered:
                super().restart(name)
            return
        if was_empty:
            bookie.back_end.wipe(*self._after_a_loss(self._records(), name))
            self.checker.came_back_empty(name)
            bookie.back_end.holdings.suspects.clear()
        super().restart(name)
        self.operators.restarted(name)
        if bookie.alive and self._empty.pop(name, "") is None and self._marks_at_start:
            for ledger_id in self._naming(name):
                self.store.store.mark_underreplicated(ledger_id, (name,))
        if bookie.back_end.is_damaged:
            self._scrub_in(name)

    def flip_bit(self, name: BookieId) -> None:
        """Damage a frame. The scrubber finds it after a while, unless a read finds it before."""
        before = self.harmed.get(name)
        super().flip_bit(name)
        if self.harmed.get(name) != before:
            self._scrub_in(name)

    def _scrub_in(self, name: BookieId) -> None:
        starts, delay_ms = self.bookies[name].starts, self.faults.uniform(0, 200)
        self._scrubbed_at = max(self._scrubbed_at, self.scheduler.now + delay_ms)
        self.scheduler.at(delay_ms, "scrub clock", f"{name} scrubs", self._scrubbed, name, starts)

    def _scrubbed(self, name: BookieId, starts: int) -> None:
        bookie = self.bookies[name]
        if bookie.alive and bookie.starts == starts:
            bookie.back_end.scrub()
            if not self._looks_again:
                self.scheduler.reached("what the scrubber found was marked once")
                naming = self._naming(name)
                for ledger_id in naming:
                    self.store.store.mark_underreplicated(ledger_id, (name,))
                self._seen_too_early.update((i, name) for i in self.checker.ledgers if i not in naming)

    def delete(self, ledger_id: LedgerId) -> None:
        """Delete a ledger. Each bookie finds out soon, late, or never."""
        self.store.delete(ledger_id)
        for name in self.bookies:
            if self.faults.random() < 0.6:
                delay_ms = self.faults.choice((0.0, 3.0, 50.0))
                self.scheduler.at(delay_ms, "plan", f"{name} finds the ledger deleted", self._forget, name, ledger_id)

    def _forget(self, name: BookieId, ledger_id: LedgerId) -> None:
        if self.bookies[name].alive:
            self.bookies[name].feed(ev.LedgersDeleted((ledger_id,)))

    # --- what is there ---

    def on_disk(self, bookie: BookieId, ledger_id: LedgerId) -> set[EntryId]:
        stored = self.bookies[bookie].back_end.holdings.ledgers.get(ledger_id)
        here = set[EntryId]()
        for frame in stored.frames if stored and not stored.facts.deleted else ():
            if not frame.damaged:
                here.update(contents(frame.data).ids)
        return here

    def missing_of(
        self, ledger_id: LedgerId, value: LedgerMetadata, first: EntryId, index: int, bookie: BookieId
    ) -> list[EntryId] | None:
        """Return the ids of a fragment that a member lacks, according to its disk, or None if the fragment has no
        end."""
        at = value.fragment_index_of(first) + 1
        end = value.last_entry_id if value.is_closed else None
        if at < len(value.fragments):
            following = value.fragments[at].first_entry_id - 1
            end = following if end is None else min(end, following)
        if end is None:
            return None
        here = self.on_disk(bookie, ledger_id)
        sizes = value.ensemble_size, value.write_quorum_size
        wanted = (entry for entry in range(first, end + 1) if index in quorum.write_set(entry, *sizes))
        return [entry for entry in wanted if entry not in here]

    def _check_whole(self, *, audited: bool) -> None:
        """Check that no record names a bookie that is gone, or one that lacks an entry. If not ``audited``, entries are
        excepted that only an audit finds missing: those that a writer which died did not deliver, below the ones that
        its recoverer wrote back."""
        for ledger_id, truth in self.checker.ledgers.items():
            record = self.store.newest(ledger_id)
            if record is None or truth.deleted:
                continue
            for fragment in record.value.fragments:
                for index, bookie in enumerate(fragment.ensemble):
                    where = f"ledger {ledger_id}, fragment {fragment.first_entry_id}, {bookie}"
                    if not self.bookies[bookie].alive:
                        raise Violation("healed", f"{where} is gone")
                    missing = self.missing_of(ledger_id, record.value, fragment.first_entry_id, index, bookie)
                    if missing and not audited and self._is_excused(truth, fragment.first_entry_id, bookie, missing):
                        self.scheduler.reached("a copy was missing that nobody knew of")
                    elif missing is None or missing:
                        raise Violation("healed", f"{where} lacks {missing}, and no mark says so")

    def _is_excused(self, truth: LedgerTruth, first: EntryId, bookie: BookieId, missing: list[EntryId]) -> bool:
        ledger_id = truth.ledger_id
        writers = [host.name for host in self.hosts if isinstance(host, WriterHost)]
        by_writer = self.store.closed_by.get(ledger_id) in writers
        harmed = any(bookie in truth.damaged.get(entry, ()) for entry in missing)
        if harmed and (ledger_id, bookie) in self._seen_too_early:
            return True  # the product looks again, as worlds with ``_looks_again`` do
        return not by_writer and not harmed and (ledger_id, first, bookie) not in self.placed

    # --- peace, and rounds of loss ---

    def heal(self) -> None:
        stale_read = self.knobs.store_stale_read
        super().heal()
        self.knobs = self.network.knobs = self.store.knobs = replace(self.knobs, store_stale_read=stale_read)
        self.store.is_down = False
        for name in list(self.unregistered):
            self._register(name)
        self.operators.calm()
        self.operators.cancel_if_hopeless()
        self.worker_dies, self.lock_lost = self.worker_dies / 5, self.lock_lost / 5  # because rounds are long

    def settle(self) -> None:
        super().settle()
        self.operators.cancel_if_hopeless()
        self._wait_unmarked("the faults ended, which is time for a drain")
        self.operators.is_over()
        self._wait_healed("the faults ended")
        for number in range(self.rounds):
            self._round(number)
        self._end()

    def _end(self) -> None:
        """Bring everything to rest. No repair may be stuck and no lock left. Then read every ledger that was
        repaired."""
        self.operators.stop()
        deadline = self.scheduler.now + PEACE_MS
        self._outages = False
        while any(each.busy for each in (*self.workers, self.operators.mover)) or any(w.kept for w in self.workers):
            if self.scheduler.now > deadline:
                raise Violation("liveness", "a repair does not end")
            self.run_for(TICK_MS)
        if locks := self.store.store.underreplication_locks():
            raise Violation("locks", f"nobody repairs, and these are locked: {locks}")
        for ledger_id in dict.fromkeys(ledger_id for ledger_id, _, _ in self.placed):
            if not self.checker.truth(ledger_id).deleted:
                self._read_all(ledger_id, f"end.{ledger_id}")

    def _wait_healed(self, since: str) -> None:
        self._wait_unmarked(since)
        self._check_whole(audited=False)
        self.scheduler.reached("everything was healed")
        for ledger_id, truth in (
            self.checker.ledgers.items() if self.audits or self.rounds else ()
        ):  # the auditor's check of all ledgers
            record = self.store.newest(ledger_id)
            if record is not None and not truth.deleted:
                members = dict.fromkeys(bookie for f in record.value.fragments for bookie in f.ensemble)
                self.store.store.mark_underreplicated(ledger_id, tuple(members))
        if self.audits or self.rounds:
            self._wait_unmarked(f"the audit after {since}")
            self._check_whole(audited=True)
            self.scheduler.reached("everything was audited")
        self.crippled.clear()
        for truth in self.checker.ledgers.values():
            truth.damaged.clear()

    def _wait_unmarked(self, since: str) -> None:
        deadline = self.scheduler.now + PEACE_MS
        while self._is_marked() and self.scheduler.now < deadline:
            self.run_for(2 * TICK_MS)
        if self._is_marked():
            marks = self.store.marks()
            why = {i: reason for worker in self.workers for i, reason in worker.reasons.items() if i in marks}
            raise Violation(
                "liveness",
                f"{PEACE_MS} ms after {since} these are still marked: {marks}; {why}; named: {self._named_still()}",
            )

    def _is_marked(self) -> bool:
        """Return whether there is a mark, or a reason for one: a bookie that is away, or damage that is not found
        yet."""
        if self.store.marks() or (self._looks_again and any(own.is_pending for own in self.own.values())):
            return True
        if self.scheduler.now <= self._scrubbed_at:
            return True
        return bool(self._named_still())

    def _named_still(self) -> dict[BookieId, list[LedgerId]]:
        """Return the bookies that are away or leave, with the ledgers that name them."""
        present = self.present()
        away = [name for name in self.bookies if name not in present]
        return {name: ledgers for name in (*away, *self.operators.leaving) if (ledgers := self._naming(name))}

    def _round(self, number: int) -> None:
        """Lose a bookie or its disk for good. Another bookie is away for a moment, and meanwhile a ledger is
        written."""
        self._wait_seen()
        alive = [name for name, bookie in self.bookies.items() if bookie.alive]
        writer = self.writer(f"round{number}")
        self.network.knobs = self.knobs
        for _ in range(3):
            writer.append(self.random.randint(1, 4))
            self.run_for(self.random.uniform(0, 10))
        victim = self.random.choice(alive)
        if self.knobs.ack_quorum > 1:
            self._lose(victim, for_good=len(alive) > self.knobs.ensemble_size and self.random.random() < 0.6)
        if self._outages and self.random.random() < 0.5:
            self._plan_outage(self.random.uniform(0, 300))
        other = self.random.choice([name for name in alive if name != victim] or alive)
        if self.random.random() < 0.5:
            self.run_for(self.random.uniform(0, 400))
            self.crash(other)
            self._restart_in(other, self.random.choice((5.0, 50.0, 500.0)))
        if self.random.random() < 0.7:
            writer.close()
        self.run_for(600)
        if writer.error is None and writer.closed is None:
            writer.die()
            self.network.leave(writer.name)
        self._settle_ledger(writer.ledger_id, self.scheduler.now + PEACE_MS)
        self._wait_healed(f"round {number}")
        for ledger_id, truth in self.checker.ledgers.items():
            if not truth.deleted:
                self._read_all(ledger_id, f"after{number}.{ledger_id}")

    def _wait_seen(self) -> None:
        """Wait until all bookies are back and the auditors have seen them. A bookie that is lost before is marked only
        with the next rescan. An outage that was planned in chaos may begin, or end, meanwhile."""
        begun_ms = self.scheduler.now
        while (
            self.unregistered or self.store.is_down or self.scheduler.now < max(begun_ms, self._restless_ms) + SEEN_MS
        ):
            self.run_for(TICK_MS)

    def _lose(self, victim: BookieId, *, for_good: bool) -> None:
        if for_good:
            self.scheduler.reached("a round lost a bookie for good")
            self.crash(victim)
            self.bookies[victim].dead_for_good = True
        else:
            self.scheduler.reached("a round lost a disk")
            self.wipe(victim)
            self._restart_in(victim, self.random.choice((5.0, 50.0, 500.0)))

    def _restart_in(self, name: BookieId, delay_ms: float) -> None:
        self.scheduler.at(delay_ms, "plan", f"{name} comes back", self.restart, name)
