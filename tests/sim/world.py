# SPDX-License-Identifier: Apache-2.0
"""One simulated world: bookies, a store and clients. A run has two phases.

*Chaos*: writers, tails and recoverers work while things go wrong. *Peace*: everything is healed except what is dead for
good. Then recovery has to close every ledger, every entry has to be readable, and nothing may have been lost
(liveness). All random choices follow from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from bk_core.errors import BookKeeperError
from bk_core.model import BookieId, DigestType, Fragment, LedgerId, LedgerMetadata, LedgerState
from bk_core.placement import choose_ensemble
from bookie_server.machine import events as ev
from tests.sim.apache import ApacheSimBookie
from tests.sim.bookie import MemoryBackEnd, SimBookie
from tests.sim.checkers import Checker, Violation, is_expected_end
from tests.sim.clients import RecoveryHost, WriterHost
from tests.sim.host import PASSWORD, Host
from tests.sim.knobs import Knobs
from tests.sim.network import SimNetwork
from tests.sim.readers import ReadHost, TailHost
from tests.sim.scheduler import Scheduler
from tests.sim.store import SimStore

STEPS_MAX = 60_000
"""The maximum number of steps. It is more than any correct run needs, so a run that reaches it does not end."""

PEACE_MS = 120_000.0
"""The virtual time in milliseconds, after the faults stop, within which everything must be recovered and read."""


class World:
    """A world made from a seed and knobs. Scripts act through ``writer``, ``recover``, ``tail``, ``hold`` and
    ``run``."""

    checked_by: type[Checker] = Checker
    stored_by: type[SimStore] = SimStore
    chaos_ms = 400.0

    def __init__(self, seed: int | str, knobs: Knobs, *, change_points: int = 0) -> None:
        self.random = Random(f"{seed}:work")
        self.knobs = knobs
        self.scheduler = Scheduler(Random(f"{seed}:world"), change_points=change_points)
        self.faults = Random(f"{seed}:faults")
        self.checker = self.checked_by(self.scheduler)
        self.network = SimNetwork(self.scheduler, knobs)
        self.store = self.stored_by(self.scheduler, knobs)
        self.store.on_write = self.checker.on_write
        self.digest_type = self.random.choice((DigestType.CRC32C, DigestType.CRC32C, DigestType.MAC, DigestType.CRC32))
        self.hosts: list[Host] = []
        # bookies that lost or damaged something or are dead for good; at most Qa − 1
        self.crippled: dict[BookieId, None] = {}
        self._clients = 0
        for number in range(knobs.ensemble_size + knobs.spares):
            self._add_bookie(f"b{number + 1}")

    def back_end(self, name: BookieId) -> Any:
        """Return the bytes of a new bookie of ours."""
        return MemoryBackEnd()

    def _add_bookie(self, name: BookieId) -> None:
        apache = self.knobs.apache and self.random.random() < self.knobs.apache
        self.network.bookies[name] = (
            ApacheSimBookie(name, self.scheduler, self.knobs, self.checker)
            if apache
            else SimBookie(name, self.back_end(name), self.scheduler, self.knobs, self.checker)
        )
        self.store.registered[name] = None

    @property
    def bookies(self) -> dict[BookieId, SimBookie | ApacheSimBookie]:
        return self.network.bookies

    def session_numbers(self) -> Callable[[], int]:
        """Return session numbers that no other client uses, so that a session number identifies its client."""
        self._clients += 1
        numbers: Iterator[int] = iter(range((self._clients << 16) + 1, (self._clients + 1) << 16))
        return numbers.__next__

    def begin(self) -> None:
        """Begin the run with the planned work."""

    # --- who takes part ---

    def new_ledger(self, by: str, ensemble: tuple[BookieId, ...] | None = None) -> tuple[LedgerId, Any]:
        knobs = self.knobs
        chosen = ensemble or choose_ensemble(tuple(self.store.registered), knobs.ensemble_size, self.random)
        metadata = LedgerMetadata(
            ensemble_size=knobs.ensemble_size,
            write_quorum_size=knobs.write_quorum,
            ack_quorum_size=knobs.ack_quorum,
            digest_type=self.digest_type,
            password=PASSWORD,
            state=LedgerState.OPEN,
            fragments=(Fragment(0, chosen),),
        )
        if knobs.ensemble_size > knobs.write_quorum:
            self.scheduler.reached("E > WQ")
        return self.store.create(metadata, by)

    def writer(self, name: str = "w", ensemble: tuple[BookieId, ...] | None = None, **options: Any) -> WriterHost:
        ledger_id, record = self.new_ledger(name, ensemble)
        host = WriterHost(self, name, ledger_id, record, **options)
        self.hosts.append(host)
        return host

    def recover(self, ledger_id: LedgerId, name: str = "r", **options: Any) -> RecoveryHost:
        host = RecoveryHost(self, name, ledger_id, **options)
        self.hosts.append(host)
        return host

    def tail(self, ledger_id: LedgerId, name: str = "t") -> TailHost | None:
        record = self.store.newest(ledger_id)
        if record is None:
            return None
        host = TailHost(self, name, ledger_id, record)
        self.hosts.append(host)
        return host

    # --- what may be done to them ---

    def crash(self, name: BookieId) -> None:
        self.scheduler.note(f"{name} crashes")
        self.bookies[name].kill()
        self.store.registered.pop(name, None)

    def restart(self, name: BookieId) -> None:
        bookie = self.bookies[name]
        if not bookie.alive and not bookie.dead_for_good:
            self.scheduler.note(f"{name} restarts")
            bookie.restart()
        if bookie.alive:
            self.store.registered[name] = None

    def may_cripple(self, name: BookieId) -> bool:
        """Return whether the bookie may lose something. The protocol survives losses of Qa − 1 bookies, and need not
        survive more."""
        if name not in self.crippled and len(self.crippled) >= self.knobs.ack_quorum - 1:
            return False
        self.crippled[name] = None
        return True

    def wipe(self, name: BookieId) -> None:
        """Let the bookie come back with an empty disk under the same id, fenced and in limbo (RULES S8). One of
        Apache's does not come back so, because its cookie is missing."""
        bookie = self.bookies[name]
        if isinstance(bookie, ApacheSimBookie) or not self.may_cripple(name):
            return
        self.crash(name)
        self.scheduler.reached("wiped bookie")
        records = {i: t.record.value for i, t in self.checker.ledgers.items() if t.record}
        bookie.back_end.wipe(*self._after_a_loss(records, name))
        self.checker.wiped(name)

    def _after_a_loss(
        self, records: Mapping[LedgerId, LedgerMetadata], bookie: BookieId
    ) -> tuple[list[LedgerId], list[LedgerId]]:
        """Return which ledgers a bookie that lost its disk puts in limbo, and which others it fences."""
        naming = [i for i, record in records.items() if self._names(record, bookie)]
        ended = [i for i, record in records.items() if i not in naming and record.state is not LedgerState.OPEN]
        return naming, ended

    def _names(self, metadata: LedgerMetadata, bookie: BookieId) -> bool:
        return any(bookie in fragment.ensemble for fragment in metadata.fragments)

    def flip_bit(self, name: BookieId) -> None:
        """Flip a bit in a copy at rest."""
        bookie = self.bookies[name]
        if not bookie.alive or not self.may_cripple(name):
            return
        hit = bookie.back_end.flip_bit(self.faults)
        if hit is not None:
            self.scheduler.note(f"a frame on {name} is damaged")
            self.scheduler.reached("a copy was damaged at rest")
            self.checker.damaged(name)

    def hold(self, *lanes: str) -> None:
        for lane in lanes:
            self.scheduler.hold(lane)

    def release(self, *lanes: str) -> None:
        for lane in lanes or self.scheduler.held:
            self.scheduler.release(lane)

    def links(self, client: str, bookie: BookieId) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the lanes from a client to a bookie, and back."""
        return (f"{client}>{bookie}", f"{client}?{bookie}"), (f"{bookie}>{client}", f"{bookie}?{client}")

    # --- running ---

    def run(self, until_ms: float | None = None) -> None:
        """Run until nothing is left to happen, or until this virtual time."""
        scheduler = self.scheduler
        while True:
            if scheduler.steps > STEPS_MAX:
                raise Violation("liveness", f"no end after {STEPS_MAX} steps")
            if until_ms is not None:
                due = scheduler.next_time()
                if due is None or due > until_ms:
                    scheduler.now = max(scheduler.now, until_ms)
                    return
            if not scheduler.step():
                return

    def run_for(self, ms: float) -> None:
        self.run(self.scheduler.now + ms)

    # --- peace ---

    def heal(self) -> None:
        """End all faults, except those of bookies that are dead for good."""
        self.scheduler.note("--- peace ---")
        self.release()
        for name, bookie in self.bookies.items():
            bookie.back_end.full = False
            self.restart(name)
            bookie.feed(ev.ReadOnlyChanged(False))
        for host in self.hosts:
            self.store.away(host.name, False)
            if host.paused is not None:
                host.resume()
        calm = replace(
            self.knobs,
            request_lost=0,
            answer_lost=0,
            straggler=0,
            store_answer_lost=0,
            store_stale_read=0,
            hostile=0,
            busy=0,
            recoverer_dies=0,
            latency_ms=min(self.knobs.latency_ms, 1.0),
            sync_ms=min(self.knobs.sync_ms, 1.0),
            store_ms=min(self.knobs.store_ms, 1.0),
        )
        self.knobs = self.network.knobs = self.store.knobs = calm
        for bookie in self.bookies.values():
            bookie.knobs = calm
        self.scheduler.calm()

    def settle(self) -> None:
        """Check liveness: every ledger is recovered and closed, and every entry of it is read, within PEACE_MS."""
        deadline = self.scheduler.now + PEACE_MS
        while any(isinstance(host, WriterHost) and host.busy for host in self.hosts) and self.scheduler.now < deadline:
            self.run_for(100)
        if any(isinstance(host, WriterHost) and host.busy for host in self.hosts):
            raise Violation("liveness", "a writer neither confirms nor fails")
        if orphans := self.store.orphans():
            raise Violation("I4", f"records that nobody knows of: {orphans}")
        for ledger_id in sorted(self.checker.ledgers):
            self._settle_ledger(ledger_id, deadline)
        for host in self.hosts:
            if isinstance(host, TailHost) and not host.dead and not host.over:
                self._check_tail(host, deadline)

    def _settle_ledger(self, ledger_id: LedgerId, deadline: float) -> None:
        truth = self.checker.truth(ledger_id)
        if truth.deleted:
            return
        last = RecoveryHost(self, f"last{ledger_id}", ledger_id, tries=20)
        self.hosts.append(last)
        while last.finished is None and (last.error is None or last.tries > 0):
            if self.scheduler.now > deadline or not self.scheduler.step():
                break
        if truth.deleted:
            return
        if last.finished is None:
            raise Violation("liveness", f"ledger {ledger_id} could not be recovered: {last.error!r}")
        self._read_closed(ledger_id)
        self.checker.check_copies(ledger_id)
        self.checker.check_history(ledger_id)

    def _read_closed(self, ledger_id: LedgerId) -> None:
        self._read_all(ledger_id, f"reader{ledger_id}")

    def _read_all(self, ledger_id: LedgerId, name: str) -> None:
        """Read every entry of a closed ledger through the public reader's machine."""
        truth, deadline = self.checker.truth(ledger_id), self.scheduler.now + PEACE_MS
        assert truth.record is not None
        ends: list[BookKeeperError | None] = []
        value = truth.record.value
        is_shared = value.last_entry_id % 2 == 1
        reader = ReadHost(self, name, ledger_id, value, 0, value.last_entry_id, ends.append, is_shared=is_shared)
        self.hosts.append(reader)
        while not ends and self.scheduler.now < deadline and self.scheduler.step():
            pass
        if not ends:
            raise Violation("liveness", f"ledger {ledger_id} could not be read to its end")
        if ends[0] is not None and not is_expected_end(truth, ends[0]):
            raise Violation("I2", f"ledger {ledger_id} cannot be read: {ends[0]!r}")

    def _check_tail(self, tail: TailHost, deadline: float) -> None:
        truth = self.checker.truth(tail.ledger_id)
        end = -1 if truth.closed_at is None or truth.deleted else truth.closed_at
        while tail.next <= end and not tail.over and self.scheduler.now < deadline and self.scheduler.step():
            pass
        if tail.next <= end and not tail.over and not truth.deleted:
            raise Violation("liveness", f"{tail.name} stopped at entry {tail.next} of {end + 1}")
