# SPDX-License-Identifier: Apache-2.0
"""Hosts of clients that write: the writer of a ledger with its application, and recoverers."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.errors import BookKeeperError, Outcome
from bk_core.model import EntryId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol import events as pe
from bk_core.protocol.config import RecoveryConfig, WriterConfig
from bk_core.protocol.keeper import STALL_TICKS
from bk_core.protocol.recovery import LedgerRecovery, Phase
from bk_core.protocol.writer import LedgerWrite, WriterState
from bookie_server.machine import events as ev
from tests.kit.without_events import OUT, Tabled, taken
from tests.sim.host import KEY, PASSWORD, REQUEST_MS, Host

if TYPE_CHECKING:
    from tests.sim.world import World

WRITER = WriterConfig(
    reconnect_budget_ms=200,
    retry_delay_ms=20,
    add_timeout_ms=1_000,
    slow_bookie_bytes_max=1 << 16,
    explicit_lac_delay_ms=5,
    close_linger_ms=100,
    metadata_retry_ms=50,
    add_quorum_timeout_ms=5_000,
    spare_retry_ms=200,
)
RECOVERY = RecoveryConfig(
    read_window_entries=4,
    read_bytes_max=40,  # so small that answers end before the requested end
    write_back_bytes_max=4096,
    add_timeout_ms=1_000,
    retry_delay_ms=20,
    reconnect_budget_ms=200,
    close_linger_ms=100,
    metadata_retry_ms=50,
)


class WriterHost(Host):
    """The writer of a ledger, and the application on top of it."""

    def __init__(
        self,
        world: World,
        name: str,
        ledger_id: LedgerId,
        metadata: Versioned[LedgerMetadata],
        config: WriterConfig = WRITER,
    ) -> None:
        super().__init__(world, name, ledger_id)
        self.sessions = world.session_numbers()
        value = metadata.value
        machine = LedgerWrite(
            ledger_id,
            metadata,
            Digester(value.digest_type, PASSWORD, ledger_id),
            config=replace(
                config,
                delay_ensemble_change=world.knobs.delay_ensemble_change,
                allow_degraded_writes=world.knobs.allow_degraded_writes,
            ),
            new_session=self.sessions,
            random=Random(world.random.random()),
            deferred_sync=world.knobs.deferred is not None,
        )
        self._tabled = Tabled(machine, sits_ms=config.add_timeout_ms / STALL_TICKS)
        self.lone = world.knobs.lone
        self.error: BookKeeperError | None = None
        self.closed: Versioned[LedgerMetadata] | None = None
        self._handlers |= {
            pe.SendForce: self._send_force,
            pe.Acked: lambda _: None,
            pe.Confirm: self._confirm,
            pe.Fail: self._fail,
            pe.FailClose: lambda _: None,
            pe.FinishClose: self._finish_close,
            pe.SendLac: self._send_lac,
        }
        world.checker.new_writer(self)
        self.carry(machine.start())

    def step(self, event: Any) -> list[Any]:
        """Let the table or the machine take the event, if possible without the event, as the client does."""
        tabled, aligned = self._tabled, list[Any]()
        sits = tabled.machine.lap % 4 < 3
        if isinstance(event, pe.Append) and tabled.slot is None and sits and tabled.table.suits(tabled.machine):
            aligned = tabled.machine.align()
            if aligned:
                self.scheduler.reached("a new session that all bookies share")
        effects = tabled.take(event, sits=sits)
        if effects is not None:
            self.scheduler.reached(f"{type(event).__name__} in the table")
            return [*aligned, *effects]
        left = [*aligned, *tabled.leave()]
        if isinstance(event, pe.TimerFired) and event.name == OUT:
            return left  # nothing, if the timer fired while the process slept and what it did since took the writer out
        effects = taken(self.machine, event)
        if effects:
            self.scheduler.reached(f"{type(event).__name__} without an event")
        return [*left, *(super().step(event) if effects is None else effects)]

    @property
    def sits(self) -> bool:
        """Whether the writer is in the table of lone entries."""
        return self._tabled.slot is not None

    @property
    def machine(self) -> LedgerWrite:
        return self._tabled.shown

    def carry(self, effects: list[Any]) -> None:
        self.world.checker.writer_stepped(self)
        super().carry(effects)

    @property
    def can_append(self) -> bool:
        return not self.dead and self.paused is None and self.machine.state is WriterState.OPEN

    @property
    def busy(self) -> bool:
        """Whether an append, a force or a close has no answer yet."""
        machine = self.machine
        owed = not machine.idle or machine.lac < machine.forced_to or machine.state is WriterState.CLOSING
        return not self.dead and not self.over and owed

    def append(self, count: int) -> None:
        """Append the application's next ``count`` entries."""
        if self.can_append:
            payloads = self.world.checker.new_entries(self, count)
            self.scheduler.note(f"{self.name} appends {count}")
            self.feed(pe.Append(EntryBatch.from_list(payloads)))

    def force(self) -> None:
        """Force, for the application, everything that was acked or sent."""
        if self.can_append:
            self.scheduler.note(f"{self.name} forces")
            self.feed(pe.Force())

    def close(self) -> None:
        if not self.dead and self.paused is None and self.machine.state is WriterState.OPEN:
            self.scheduler.note(f"{self.name} closes")
            self.feed(pe.Close())

    def _write_metadata(self, effect: pe.WriteMetadata) -> None:
        if effect.metadata.is_closed:
            self.world.checker.close_began(self)
        elif self.machine.failed and len(self.machine.failed) > len(self.machine.change.indices):
            self.scheduler.reached("a bookie failed during an ensemble change")
        super()._write_metadata(effect)

    def _confirm(self, effect: pe.Confirm) -> None:
        self.world.checker.acked(self, effect.lac)
        if self.lone and self.machine.settled:
            self.lone -= 1
            self.scheduler.at(0.0, f"{self.name} clock", f"{self.name} appends again", self.append, 1)

    def _fail(self, effect: pe.Fail) -> None:
        self.scheduler.note(f"{self.name} fails: {type(effect.error).__name__}")
        self.scheduler.reached(f"writer ended by {type(effect.error).__name__}")
        if self.machine.lap > self.machine.lac and effect.error.outcome is not Outcome.UNKNOWN:
            self.world.checker.fail("MUST11", f"{effect.error!r} calls what was in flight {effect.error.outcome}")
        self.error, self.over = effect.error, True

    def _finish_close(self, effect: pe.FinishClose) -> None:
        self.scheduler.note(f"{self.name} closed at {effect.metadata.value.last_entry_id}")
        self.closed, self.over = effect.metadata, True
        self.world.checker.writer_closed(self, effect.metadata)

    def _send_force(self, effect: pe.SendForce) -> None:
        index, session = effect.index, effect.session
        self.network.force(
            self.name,
            effect.bookie,
            self.ledger_id,
            session,
            answer=lambda: self.feed(pe.Forced(index, session)),
            fail=lambda why: self.feed(pe.ForceFailed(index, session, why)),
            deadline_ms=WRITER.add_timeout_ms,
        )

    def _send_lac(self, effect: pe.SendLac) -> None:
        self.scheduler.reached("explicit LAC")
        self.network.request(
            self.name,
            effect.bookie,
            lambda request: ev.WriteLacRequested(request, self.ledger_id, KEY, effect.lac_body),
            "LAC",
            answer=lambda _: None,
            fail=lambda _: None,
            deadline_ms=REQUEST_MS,
        )


class RecoveryHost(Host):
    """A client that opens the ledger with recovery. It makes up to ``tries`` attempts."""

    def __init__(
        self,
        world: World,
        name: str,
        ledger_id: LedgerId,
        *,
        tries: int = 1,
        again_ms: float = 300,
        config: RecoveryConfig = RECOVERY,
        key: bytes = KEY,
    ) -> None:
        super().__init__(world, name, ledger_id)
        self.key = key
        self.tries, self.again_ms, self.config = tries, again_ms, config
        self.closing = False  # its own close is under way
        self.sessions = world.session_numbers()
        self.finished: Versioned[LedgerMetadata] | None = None
        self.error: BookKeeperError | None = None
        self._handlers |= {
            pe.SendFence: lambda e: self._ask_lac(e, lambda r: ev.FenceRequested(r, self.ledger_id, self.key), "fence"),
            pe.BackOff: self._back_off,
            pe.Fail: self._fail,
            pe.FinishRecovery: self._finish,
        }
        self._begin()

    def _begin(self) -> None:
        if self.dead:
            return
        self.tries -= 1
        self.over, self.error, self.had_changed = False, None, False
        self.written_back: tuple[int, EntryId] = (0, 0)  # the attempt, and the first entry that it wrote back
        self.began = self.scheduler.now
        record = self.store.newest(self.ledger_id)
        digest = self.world.digest_type if record is None else record.value.digest_type
        self.machine = LedgerRecovery(
            Digester(digest, PASSWORD, self.ledger_id),
            config=self.config,
            new_session=self.sessions,
            random=Random(self.world.random.random()),
        )
        self.carry(self.machine.start())

    @property
    def reading(self) -> bool:
        return not self.dead and not self.over and self.machine.phase is Phase.READ

    def feed(self, event: Any) -> None:
        before, machine = self.machine.recovered, self.machine
        self.had_changed = self.had_changed or self.changed_ensemble
        super().feed(event)
        if self.over and self.error is not None and self.had_changed:
            self.scheduler.reached("an ensemble change of recovery was lost")
        if machine is not self.machine:
            return
        if self.machine.recovered > before:
            count = self.machine.recovered - before
            if self.written_back[0] != self.machine.attempt:
                self.written_back = (self.machine.attempt, self.machine._end - count + 1)
            self.world.checker.entries_recovered(self, count)
        if self.changed_ensemble and self.world.random.random() < self.world.knobs.recoverer_dies:
            self.die()
            self.network.leave(self.name)

    def _back_off(self, effect: pe.BackOff) -> None:
        self.scheduler.reached("a recoverer waited for another")
        delay_ms = max((self.scheduler.now - self.began) * effect.factor, 10.0)
        self.began = self.scheduler.now + delay_ms
        self._set_timer(pe.SetTimer("again", delay_ms))

    def _write_metadata(self, effect: pe.WriteMetadata) -> None:
        if effect.metadata.is_closed:
            self.closing = True
            frozen = self.machine.frozen
            if frozen is not None and effect.metadata.fragments != frozen.fragments:
                self.scheduler.reached("recovery changed the ensemble")
        super()._write_metadata(effect)

    def die(self) -> None:
        if self.changed_ensemble and not self.over:
            self.scheduler.reached("an ensemble change of recovery was lost")
        super().die()

    @property
    def changed_ensemble(self) -> bool:
        """Whether it has replaced a bookie in its own copy of the record."""
        back, frozen = self.machine._write_back, self.machine.frozen
        return back is not None and back.metadata.fragments != frozen.fragments

    def _fail(self, effect: pe.Fail) -> None:
        self.scheduler.note(f"{self.name} fails: {type(effect.error).__name__}: {effect.error.what}")
        self.scheduler.reached(f"recovery ended by {type(effect.error).__name__}")
        self.error, self.over = effect.error, True
        if self.tries > 0:
            self.scheduler.at(self.again_ms, f"{self.name} clock", f"{self.name} tries again", self._begin)

    def _finish(self, effect: pe.FinishRecovery) -> None:
        value = effect.metadata.value
        self.scheduler.note(f"{self.name} recovered: last entry {value.last_entry_id}")
        self.finished, self.over = effect.metadata, True
        own = self.closing and self.world.store.closed_by.get(self.ledger_id) == self.name
        attempt, first = self.written_back
        ids = range(first, value.last_entry_id + 1) if own and attempt == self.machine.attempt else range(0)
        self.world.checker.recovered(self, effect.metadata, ids)
