# SPDX-License-Identifier: Apache-2.0
"""Drivers of the production machines in a simulated world: effects become messages, calls and timers.

One host a machine, as one asyncio driver a machine in production. A host may be paused (nothing reaches its machine
until it is resumed, timers included) and may die between any two effects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, ledger_key
from bk_core.errors import BookKeeperError, Outcome
from bk_core.model import EntryId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol import events as pe
from bk_core.protocol.config import RecoveryConfig, WriterConfig
from bk_core.protocol.follower import LedgerFollower
from bk_core.protocol.reader import RangeRead
from bk_core.protocol.recovery import LedgerRecovery, Phase
from bk_core.protocol.writer import LedgerWriter, WriterState
from bk_core.wire.lane import Reason
from bookie_server import machine_events as ev
from tests.sim.scheduler import Item

if TYPE_CHECKING:
    from tests.sim.world import World

PASSWORD = b"secret"
KEY = ledger_key(PASSWORD)

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
    read_bytes_max=40,  # so small that answers end before what was asked
    write_back_bytes_max=4096,
    add_timeout_ms=1_000,
    retry_delay_ms=20,
    reconnect_budget_ms=200,
    close_linger_ms=100,
    metadata_retry_ms=50,
)
REQUEST_MS = 500.0
WATCH_MS = 2_000.0
SPECULATIVE_MS = 60.0


class Host:
    """One machine of one client. ``name`` is the client's: hosts of one client share its connections."""

    machine: Any

    def __init__(self, world: World, name: str, ledger_id: LedgerId) -> None:
        self.world, self.name, self.ledger_id = world, name, ledger_id
        self.scheduler, self.network, self.store = world.scheduler, world.network, world.store
        self.key = KEY
        self.dead = False
        self.over = False  # a terminal effect was seen: nothing may follow (I14)
        self.paused: list[Any] | None = None
        self._timers: dict[str, Item] = {}
        self._reads: dict[int, Any] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            pe.AttachSession: self._attach,
            pe.SendFrame: self._send,
            pe.DetachSession: lambda e: self.network.detach(self.name, e.bookie, e.session),
            pe.WriteMetadata: self._write_metadata,
            pe.ReadMetadata: lambda _: self.store.read(self.name, self.ledger_id, self.feed),
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
        effects = self.machine.step(event)
        if self.over and effects:
            self.world.checker.fail("I14", f"{self.name} acts after its end: {effects}")
        self.carry(effects)

    def carry(self, effects: list[Any]) -> None:
        """Carry effects out, in their order."""
        handlers = self._handlers
        for effect in effects:
            if self.dead:
                return
            handlers[type(effect)](effect)

    def die(self) -> None:
        """The process is gone, between any two effects."""
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
        self.network.attach(
            self.name, effect.bookie, effect.session, self.ledger_id, self.key, effect.mode, effect.index, self.feed
        )

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
                        tuple(pe.IdRange(r.first, r.last) for r in t.absent),
                        tuple(pe.IdRange(r.first, r.last) for r in t.unknown),
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
        """A request that ends in evidence of the LAC. Its events carry what names the request in the effect."""
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


class WriterHost(Host):
    """The writer of a ledger and the application on top of it."""

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
        self.machine = LedgerWriter(
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
        )
        self.error: BookKeeperError | None = None
        self.closed: Versioned[LedgerMetadata] | None = None
        self._handlers |= {
            pe.Confirm: self._confirm,
            pe.Fail: self._fail,
            pe.FailClose: lambda _: None,
            pe.FinishClose: self._finish_close,
            pe.SendLac: self._send_lac,
        }
        world.checker.new_writer(self)
        self.carry(self.machine.start())

    @property
    def can_append(self) -> bool:
        return not self.dead and self.paused is None and self.machine.state is WriterState.OPEN

    @property
    def busy(self) -> bool:
        """Something of it has not ended: appends without an answer, or a close."""
        machine = self.machine
        return not self.dead and not self.over and (not machine.idle or machine.state is WriterState.CLOSING)

    def append(self, count: int) -> None:
        """The application's next ``count`` entries."""
        if self.can_append:
            payloads = self.world.checker.new_entries(self, count)
            self.scheduler.note(f"{self.name} appends {count}")
            self.feed(pe.Append(EntryBatch.from_list(payloads)))

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
    """Somebody who opens the ledger with recovery; tries again as often as ``tries`` says."""

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
        self.closing = False  # its own close is on its way
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
        self.written_back: tuple[int, EntryId] = (0, 0)  # attempt, and the first entry it wrote back
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
        """It has replaced a bookie in its own copy of the record."""
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


class ReadHost(Host):
    """Reads a range of a ledger and hands what arrives to the checker."""

    def __init__(
        self,
        world: World,
        name: str,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        done: Callable[[BookKeeperError | None], None],
    ) -> None:
        super().__init__(world, name, ledger_id)
        self.next, self.done = first, done
        self.machine = RangeRead(
            metadata,
            Digester(metadata.digest_type, PASSWORD, ledger_id),
            first,
            last,
            bytes_max=1 << 16,
            speculative_ms=SPECULATIVE_MS,
            prefer=world.random.randrange(metadata.ensemble_size),
        )
        self._handlers |= {
            pe.DeliverBatch: self._deliver,
            pe.FinishRead: lambda _: self._end(None),
            pe.Fail: lambda e: self._end(e.error),
        }
        self.carry(self.machine.start())

    def _deliver(self, effect: pe.DeliverBatch) -> None:
        self.next = self.world.checker.read(self, self.next, effect.batch)

    def _end(self, error: BookKeeperError | None) -> None:
        self.over = True
        if error is not None:
            self.scheduler.note(f"{self.name} read fails: {type(error).__name__}: {error.what}")
            self.scheduler.reached(f"read ended by {type(error).__name__}")
        self.done(error)


class TailHost(Host):
    """Follows a ledger without fencing and reads what becomes confirmed."""

    def __init__(self, world: World, name: str, ledger_id: LedgerId, metadata: Versioned[LedgerMetadata]) -> None:
        super().__init__(world, name, ledger_id)
        self.next: EntryId = 0
        self.error: BookKeeperError | None = None
        self.reading = False
        self._reads_made = 0
        self.machine = LedgerFollower(
            metadata, -1, Digester(metadata.value.digest_type, PASSWORD, ledger_id), stall_ms=300, pause_ms=10
        )
        self._handlers |= {
            pe.WatchMetadata: self._watch_record,
            pe.SendWatchLac: self._watch_lac,
            pe.SendReadLac: lambda e: self._ask_lac(e, lambda r: ev.ReadLacRequested(r, self.ledger_id), "read LAC"),
            pe.Confirm: self._confirm,
            pe.FinishRefresh: self._refreshed,
            pe.Fail: self._fail,
        }
        self.refreshes = 0
        self.carry(self.machine.start())
        self._read_on()  # a closed ledger has nothing to follow

    def refresh(self) -> None:
        """The application wants the record and the LAC as they are now."""
        if not self.dead and self.paused is None:
            self.refreshes += 1
            before = self.over
            self.over = False  # a refresh is answered after the end too
            self.feed(pe.RefreshLac(self.refreshes))
            self.over = before

    def _refreshed(self, effect: pe.FinishRefresh) -> None:
        self.scheduler.reached("a refresh failed" if effect.error else "a refresh was answered")
        self.world.checker.lac_seen(self, self.machine.lac, self.machine.metadata)

    def _watch_record(self, _: pe.WatchMetadata) -> None:
        error = self.store.watch(self.name, self.ledger_id, lambda record: self.feed(pe.MetadataChanged(record)))
        self.scheduler.add(
            f"store>{self.name}",
            f"{self.name} watches",
            self.feed,
            pe.MetadataWatched(error),
            mean_ms=self.world.knobs.store_ms,
            fifo=True,
        )

    def _watch_lac(self, effect: pe.SendWatchLac) -> None:
        self._ask_lac(
            effect,
            lambda r: ev.WatchLacRequested(r, self.ledger_id, effect.above, int(WATCH_MS)),
            f"watch LAC above {effect.above}",
            deadline_ms=2 * WATCH_MS,
        )

    def _confirm(self, effect: pe.Confirm) -> None:
        self.world.checker.lac_seen(self, self.machine.lac, self.machine.metadata)
        self._read_on()

    def _read_on(self) -> None:
        if self.reading or self.dead or self.next > self.machine.lac:
            return
        self.reading = True
        self._reads_made += 1
        reader = ReadHost(
            self.world,
            f"{self.name}r{self._reads_made}",
            self.ledger_id,
            self.machine.metadata.value,
            self.next,
            self.machine.lac,
            lambda error: self._read_ended(reader, error),
        )
        self.world.hosts.append(reader)

    def _read_ended(self, reader: ReadHost, error: BookKeeperError | None) -> None:
        self.reading = False
        self.next = reader.next
        if error is None:
            self._read_on()
        else:
            self.scheduler.at(50, f"{self.name} clock", f"{self.name} reads again", self._read_on)

    def _fail(self, effect: pe.Fail) -> None:
        self.error, self.over = effect.error, True
