# SPDX-License-Identifier: Apache-2.0
"""Writes one ledger: stripes entries, counts acks, moves the LAC, changes ensembles and closes the ledger. Pure.

Sources: protocol document "Writing to ledgers", "Closing a ledger as a writer"; TLA actions
ClientSendsAddEntryRequests, ClientReceivesAddConfirmedResponse, ClientReceivesAddFencedResponse,
ClientChangesEnsemble, ClientResendsPendingAddOp, ClientClosesLedgerSuccess / Fail; rules P1, P2, P3, P8, P9.

States: OPEN → CLOSING → CLOSED, or FAILED from any state. During an ensemble change the LAC does not move (MUST 6),
because the first entry id of the new fragment is LAC + 1. A fenced writer stops for good: it sends and confirms nothing
more, and every append that is still waiting fails with outcome UNKNOWN (MUST 11).

With ``deferred_sync`` bookies ack entries before they sync them. An append ends when its entries are acked, but the LAC
moves only over entries that a force has made durable (P12). The writer keeps all frames above the LAC, and re-sends
them if needed.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from bk_core import quorum
from bk_core.entries.apache import lac_body
from bk_core.entries.batch import Bytes, Join, joined
from bk_core.entries.digest import Digester
from bk_core.entries.frame import encode_one
from bk_core.entries.packets import Packet, encode_packet
from bk_core.errors import BookKeeperError, MetadataUnavailableError
from bk_core.model import NO_ENTRY, BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Versioned
from bk_core.placement import RandomSource, replacement
from bk_core.protocol import events as ev
from bk_core.protocol.config import WriterConfig
from bk_core.protocol.delivery import Delivery, LaneState
from bk_core.protocol.keeper import STALL_TICKS, SessionKeeper
from bk_core.protocol.refusals import conflict_error, fenced_error, overdue_error, refusal_error, unknown_error
from bk_core.wire.lane.reasons import AttachMode, Reason

WriterEvent: TypeAlias = (
    ev.Append | ev.Force | ev.Close | ev.SessionEvent | ev.ForceEvent | ev.MetadataEvent | ev.TimerFired
)
_Told: TypeAlias = ev.Acked | ev.Confirm | ev.Fail | ev.SendLac | ev.FinishClose | ev.FailClose
WriterEffect: TypeAlias = ev.SessionEffect | ev.SendForce | ev.MetadataEffect | ev.SetTimer | ev.CancelTimer | _Told


class WriterState(enum.Enum):
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(slots=True)
class EnsembleChange:
    """One replacement of the bookies at ``indices`` from ``first_entry_id`` on. ``ensemble`` is set once the new
    bookies are chosen, ``intent`` once the compare-and-set was sent."""

    first_entry_id: EntryId
    indices: tuple[int, ...]
    ensemble: tuple[BookieId, ...] | None = None
    intent: LedgerMetadata | None = None


class LedgerWrite:
    """The machine that writes one ledger. :meth:`step` takes one event and returns effects.

    ``lac`` is the last entry confirmed and ``lap`` the last entry sent. ``length`` counts payload bytes up to ``lap``.
    ``acked`` is the last entry acked; without deferred syncs it is the LAC.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: Versioned[LedgerMetadata],
        digester: Digester,
        *,
        config: WriterConfig,
        new_session: Callable[[], int],
        random: RandomSource,
        deferred_sync: bool = False,
        join: Join = joined,
    ) -> None:
        self.ledger_id, self.metadata, self.digester = ledger_id, metadata, digester
        self.config, self.random, self._join = config, random, join
        self.state = WriterState.OPEN
        self.lac: EntryId = NO_ENTRY
        self.acked: EntryId = NO_ENTRY
        self.forced_to: EntryId = NO_ENTRY  # the last id that forces shall make durable
        self.length = 0
        self.delivery = Delivery(
            metadata.value, confirmed=NO_ENTRY, mode=AttachMode.WRITE, new_session=new_session, deferred=deferred_sync
        )
        self._keeper = SessionKeeper(self.delivery, config)
        self.is_lent = False  # see lend()
        self.change: EnsembleChange | None = None
        self.failed: list[int] = []  # indices whose bookie has failed
        self._urgent = False  # a bookie became read-only; replace it now, even with `delay_ensemble_change`
        self._resting = False  # no spare was found: the timer "spares" starts the next search
        self._changes = 0  # ensemble changes since an entry was confirmed; bounded (MUST 12)
        self._gone: list[BookieId] = []  # replaced since then; not chosen again, or two dead bookies would alternate
        ticks = round(config.add_quorum_timeout_ms * STALL_TICKS / config.add_timeout_ms)
        # one pair for each tick: the last id pushed, and the last id to be forced
        self._owed_by: deque[tuple[EntryId, EntryId]] = deque([(NO_ENTRY, NO_ENTRY)], maxlen=max(1, ticks))
        self.error: BookKeeperError | None = None
        self._close_intent: LedgerMetadata | None = None
        self._lingering = False
        self._metadata_retries = 0
        self.hinted: EntryId = NO_ENTRY  # the last LAC that was sent as a hint
        self._lac_timer = ev.SetTimer("lac", config.explicit_lac_delay_ms)

    # --- what the driver reads ---------------------------------------------------------------------------------------
    @property
    def lap(self) -> EntryId:
        return self.delivery.last_sent

    @property
    def retained_bytes(self) -> int:
        """The number of bytes of the frames that are kept for bookies that may still need them."""
        return self.delivery.retained_bytes

    @property
    def idle(self) -> bool:
        """Whether every entry sent is acked."""
        return self.acked == self.delivery.last_sent

    @property
    def settled(self) -> bool:
        """Whether every entry sent is confirmed."""
        return self.lac == self.delivery.last_sent

    def start(self) -> list[WriterEffect]:
        return [*self.delivery.attach_all()]

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        """Handle one event and return the effects in order. CLOSED and FAILED ignore every event."""
        assert not self.is_lent, event
        if self.state is WriterState.CLOSED or self.state is WriterState.FAILED:
            return []
        match event:
            case ev.Append():
                return self._append(event)
            case ev.FramesAcked(index, session, frames):
                effects = self.take_ack(index, session, frames)
                return self._session_event(event) if effects is None else effects
            case ev.SessionEnded() | ev.SessionBroken() | ev.Forced() | ev.ForceFailed():
                return self._session_event(event)
            case ev.Force():
                return self._force()
            case ev.Close():
                return self._close()
            case ev.TimerFired():
                return self._timer(event)
            case ev.BookiesRead():
                return self._bookies_read(event)
            case ev.MetadataWritten() | ev.MetadataConflicted() | ev.MetadataRead() | ev.MetadataCallFailed():
                return self._metadata_event(event)
        raise AssertionError(f"{self.state} {event}")

    def take_ack(self, index: int, session: int, frames: int) -> list[WriterEffect] | None:
        """Take the event FramesAcked without the event, if the ack moves nothing but marks and the LAC. Return the
        effects. Return None, and change nothing, if :meth:`step` must take the event. Nearly every ack is of this kind,
        and a writer of single entries gets several for each entry."""
        delivery = self.delivery
        if self.state is not WriterState.OPEN or delivery.deferred:
            return None
        if self._keeper.budgets[index] or not delivery.acked(index, session, frames):
            return None  # the ack ends a budget, covers nothing new, or is impossible
        # an ack of entries up to the LAC cannot move the LAC
        return self._evaluate() if delivery.lanes[index].watermark > self.lac else []

    # --- adding ------------------------------------------------------------------------------------------------------
    def _append(self, event: ev.Append) -> list[WriterEffect]:
        assert self.state is WriterState.OPEN, f"{self.state} {event}"
        value = self.metadata.value
        packet = encode_packet(
            event.batch,
            first=self.delivery.last_sent + 1,
            lac=self.lac,
            length_before=self.length,
            digester=self.digester,
            ensemble_size=value.ensemble_size,
            write_quorum=value.write_quorum_size,
            session=self.delivery.common_session,
            join=self._join,
        )
        self.length += event.batch.payload_bytes
        effects: list[WriterEffect] = [*self.delivery.push(packet), *self._keeper.pushed()]
        return effects + self._start_change() if self.failed else effects

    def take_entry(self, payload: Bytes) -> list[WriterEffect] | None:
        """Take the event Append of one entry without the event, if all bookies hold it, and the append does nothing but
        send it. Return the effects. Return None, and change nothing, if :meth:`step` must take the event."""
        delivery, is_striped = self.delivery, len(self.delivery.lanes) > self.delivery.write_quorum
        if self.state is not WriterState.OPEN or self.failed or is_striped or not self._keeper.is_ticking:
            return None
        entry_id, session = delivery.last_sent + 1, delivery.common_session
        frame = encode_one(
            payload, digester=self.digester, entry_id=entry_id, lac=self.lac, length_before=self.length, session=session
        )
        self.length += len(payload)
        return [*delivery.push(Packet(entry_id, entry_id, len(frame), session, (frame,)))]

    # --- in a table of calm writers (lone_entries.py) ----------------------------------------------------------------
    @property
    def _is_free(self) -> bool:
        """Whether the machine has nothing else to do than to take acks and the next entry."""
        is_busy = self.failed or self.change or any(self._keeper.budgets) or not self.settled
        return self.state is WriterState.OPEN and not is_busy

    def align(self) -> list[WriterEffect]:
        """Let bookies whose sessions broke share a session again, if this is possible now. Return the effects."""
        return [*self.delivery.align()] if self._is_free else []

    def lend(self) -> tuple[list[Packet], list[WriterEffect]] | None:
        """Let a table have the state that single entries change. Return the packets that some bookie has not acked, and
        the effects. Until :meth:`resume` the table acts for this machine, which must get no event. Return None, and
        change nothing, if the machine has more to do than to take acks and the next entry."""
        if not self._is_free or not self.delivery.is_calm:
            return None
        self._keeper.is_ticking, self.is_lent = False, True
        return [*self.delivery.lend()], [ev.CancelTimer("adds"), ev.CancelTimer("lac")]

    def resume(
        self, lac: EntryId, length: int, hinted: EntryId, packets: list[Packet], watermarks: list[EntryId]
    ) -> list[ev.SetTimer]:
        """Take the state back that a table had, and return the effects. ``hinted`` is the last LAC that was sent as a
        hint; see :meth:`Delivery.resume` for the others."""
        self.is_lent = False
        self.delivery.resume(packets[-1].last if packets else lac, packets, watermarks)
        if lac > self.lac:
            self._changes, self._gone = 0, []
        self.lac = self.acked = lac
        self.length, self.hinted = length, hinted
        effects = self._keeper.pushed() if packets else []
        return [*effects, self._lac_timer] if self.settled and lac > hinted else effects

    def _force(self) -> list[WriterEffect]:
        self.forced_to = self.lap
        return [*self.delivery.force(self.forced_to)] if self.delivery.deferred else []

    def _evaluate(self) -> list[WriterEffect]:
        """Move the LAC as far as the ack quorums allow, except during an ensemble change (MUST 6)."""
        if self.change is not None:
            return []
        effects: list[WriterEffect] = []
        if self.delivery.deferred and (acked := self.delivery.acked_through()) > self.acked:
            self.acked = acked
            effects.append(ev.Acked(acked))
        effects += self._confirmed_to(self.delivery.confirmed())
        return effects + self._continue_close() if self.state is WriterState.CLOSING else effects

    def _confirmed_to(self, confirmed: EntryId) -> list[WriterEffect]:
        """Move the LAC to ``confirmed``, if it is below."""
        if confirmed <= self.lac:
            return []
        self.lac, self._changes = confirmed, 0
        self._gone.clear()
        if not self.delivery.deferred:
            self.acked = confirmed
            if confirmed != self.delivery.last_sent:
                return [ev.Confirm(confirmed)]
        return [ev.Confirm(confirmed), self._lac_timer]

    # --- sessions (P1, P3) -------------------------------------------------------------------------------------------
    def _session_event(self, event: ev.SessionEvent | ev.ForceEvent) -> list[WriterEffect]:
        lane, ends = self.delivery.lanes[event.index], isinstance(event, (ev.SessionEnded, ev.SessionBroken))
        current = ends and self.delivery.is_current(event.index, event.session)
        refused = current and isinstance(event, ev.SessionEnded) and not self.delivery.is_impossible(event)
        kept, failed = self._keeper.step(event)
        effects = [*kept, *self._evaluate()]
        if self.delivery.deferred:
            effects += self.delivery.force(self.forced_to)
        if current:
            self.hinted = NO_ENTRY
        if isinstance(event, ev.SessionEnded) and refused:
            self._urgent = self._urgent or event.reason is Reason.READ_ONLY
            error = refusal_error(event.reason, lane.bookie, self.ledger_id, self.lac, self.lap, event.message)
            if error is not None:
                return effects + self._fail(error)
        return effects + self._bookies_failed(failed) if failed else effects

    def _bookies_failed(self, indices: list[int]) -> list[WriterEffect]:
        self.failed += indices
        return self._start_change() if indices else []

    # --- ensemble change ---------------------------------------------------------------------------------------------
    def _start_change(self) -> list[WriterEffect]:
        """Start an ensemble change, unless one is under way. Bookies that fail during a change are replaced by the next
        change. While every write set has an ack quorum left, the change may be put off. Then no packets are kept for
        the failed bookies."""
        if self.change is not None or not self.failed or self._close_intent is not None:
            return []
        if self.state is WriterState.CLOSING and self.settled:
            return self._continue_close()  # a new bookie would get no entry; the close marks missing copies
        may_wait = self._resting or (self.config.delay_ensemble_change and not self._urgent)
        if may_wait and self.delivery.quorums_left:
            self.delivery.abandon(self.failed)
            return []
        self._changes, self._metadata_retries = self._changes + 1, 0
        if self._changes > self.config.ensemble_changes_max:
            return self._give_up(f"after {self._changes - 1} ensemble changes in a row", "ensemble_changes_max")
        self.delivery.abandon(self.failed, abandoned=False)
        self.change = EnsembleChange(first_entry_id=self.lac + 1, indices=tuple(self.failed))
        return [ev.ReadBookies()]

    def _bookies_read(self, event: ev.BookiesRead) -> list[WriterEffect]:
        change = self.change
        assert change is not None, f"{self.state} {event}"
        assert change.intent is None, f"{self.state} {event}"
        partly, bookies = self.config.allow_degraded_writes, (event.writable, event.quarantined)
        value, old = self.metadata.value, self.metadata.value.last_fragment.ensemble
        chosen = replacement(
            value, change.indices, *bookies, self.random, gone=self._gone, partly=partly, landscape=event.landscape
        )
        if isinstance(chosen, BookKeeperError):
            return self._no_spare(chosen)
        replaced = tuple(index for index in change.indices if chosen[index] != old[index])
        effects = self._rest() if len(replaced) < len(change.indices) else []
        change.indices, change.ensemble = replaced, chosen
        return effects + self._write_change(change)

    def _no_spare(self, error: BookKeeperError) -> list[WriterEffect]:
        """Handle an ensemble change for which there are too few bookies. Close if the writer is closing and every entry
        is confirmed. With ``allow_degraded_writes``, continue with the bookies that are left and look for spares later.
        Otherwise fail."""
        self.change = None
        if self.state is WriterState.CLOSING and self.delivery.confirmed() == self.lap:
            return self._evaluate()
        if not self.config.allow_degraded_writes or not self.delivery.quorums_left:
            return self._fail(error)
        return [*self._rest(), *self._start_change(), *self._evaluate()]

    def _rest(self) -> list[WriterEffect]:
        self._resting, self._changes, self._gone = True, 0, []
        return [ev.SetTimer("spares", self.config.spare_retry_ms)]

    def _write_change(self, change: EnsembleChange) -> list[WriterEffect]:
        assert change.ensemble is not None
        change.intent = self.metadata.value.with_ensemble(change.first_entry_id, change.ensemble)
        return [ev.WriteMetadata(change.intent, self.metadata.version)]

    def _change_written(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        """Void the acks of the replaced bookies, re-send to the new bookies, then move the LAC. The order matters (MUST
        6)."""
        change, self.change = self.change, None
        assert change is not None
        assert change.ensemble is not None
        self.metadata = metadata
        for index in change.indices:
            self._gone.append(self.delivery.lanes[index].bookie)
            self.delivery.replace(index, change.ensemble[index], change.first_entry_id - 1)
        self.failed = [index for index in self.failed if index not in change.indices]
        self.hinted, self._urgent = NO_ENTRY, False
        sent = [effect for index in change.indices for effect in self._keeper.replaced(index)]
        return [*sent, *self._start_change(), *self._evaluate()]

    # --- metadata ----------------------------------------------------------------------------------------------------
    def _metadata_event(self, event: ev.MetadataEvent) -> list[WriterEffect]:
        assert self._close_intent is not None or self.change is not None, f"{self.state} {event}"
        writing = self._close_intent is not None or (self.change is not None and self.change.intent is not None)
        assert writing or not isinstance(event, (ev.MetadataWritten, ev.MetadataConflicted)), f"{self.state} {event}"
        match event:
            case ev.MetadataWritten(metadata):
                return self._written(metadata)
            case ev.MetadataConflicted():
                return self._metadata_retry(None)
            case ev.MetadataRead(metadata):
                return self._reread(metadata)
            case ev.MetadataCallFailed(error):
                return self._metadata_retry(error)
        raise AssertionError(f"{self.state} {event}")

    def _written(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        return self._change_written(metadata) if self._close_intent is None else self._closed(metadata)

    def _reread(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        """Settle a conflict or a lost answer by the record that was read again (MUST 8). If that record is ours,
        the write succeeded. Otherwise write again or fail."""
        value, intent = metadata.value, self._close_intent or (self.change and self.change.intent)
        if intent is not None and value == intent:
            return self._written(metadata)
        if value.state is LedgerState.OPEN and value.last_fragment == self.metadata.value.last_fragment:
            self.metadata = metadata  # an older fragment was repaired: repeat our change on the new record
            if self._close_intent is not None:
                return self._write_close()
            assert self.change is not None
            return [ev.ReadBookies()] if self.change.ensemble is None else self._write_change(self.change)
        if self._close_intent is not None and value.is_closed:
            return self._closed_elsewhere(metadata)
        return self._fail(fenced_error(self.ledger_id, f"its metadata says {value.state.name}", self.lac, self.lap))

    def _metadata_retry(self, error: BookKeeperError | None) -> list[WriterEffect]:
        """Read the record again after an error or a conflict (None). There is no pause after the first conflict."""
        self._metadata_retries += 1
        over = self._metadata_retries > self.config.metadata_retries_max
        if error is not None and (over or not isinstance(error, MetadataUnavailableError)):
            return self._fail(unknown_error(error))
        if over:
            return self._fail(conflict_error(self.ledger_id, "has a record that other clients keep changing", self.lac))
        if error is None and self._metadata_retries == 1:
            return [ev.ReadMetadata()]
        return [ev.SetTimer("metadata", self.config.metadata_retry_ms)]

    # --- closing -----------------------------------------------------------------------------------------------------
    def _close(self) -> list[WriterEffect]:
        if self.state is WriterState.CLOSING:
            return []
        self.state = WriterState.CLOSING
        return [*self._force(), *self._continue_close()]

    @property
    def _may_close(self) -> bool:
        return self.state is WriterState.CLOSING and self.settled and not self._close_intent and not self.change

    def _continue_close(self) -> list[WriterEffect]:
        """Close once every entry is confirmed, and either every entry has all its copies or the linger time is over
        (P8)."""
        if not self._may_close or (self._lingering and self.delivery.owing):
            return []
        if not self.delivery.owing:
            return self._begin_close()
        self._lingering = True
        return [ev.SetTimer("linger", self.config.close_linger_ms)]

    def _begin_close(self) -> list[WriterEffect]:
        effects: list[WriterEffect] = [ev.CancelTimer("linger"), ev.CancelTimer("lac")]
        if missing := self.delivery.behind():
            effects.append(ev.MarkUnderreplicated(missing))
        self._metadata_retries = 0
        return effects + self._write_close()

    def _write_close(self) -> list[WriterEffect]:
        self._close_intent = self.metadata.value.closed_at(self.lac, self.length)
        return [ev.WriteMetadata(self._close_intent, self.metadata.version)]

    def _closed(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        self.metadata, self.state = metadata, WriterState.CLOSED
        return [*self._stop(), ev.FinishClose(metadata)]

    def _closed_elsewhere(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        """Decide what our close means after another client recovered and closed the ledger. It succeeded if both closes
        have the same last entry (MUST 8)."""
        value = metadata.value
        if value.last_entry_id == self.lac:
            return self._closed(metadata)
        how = f"was closed by another client at entry {value.last_entry_id}"
        return self._fail(conflict_error(self.ledger_id, how, self.lac))

    # --- time --------------------------------------------------------------------------------------------------------
    def _timer(self, event: ev.TimerFired) -> list[WriterEffect]:
        match event.name:
            case "lac":
                return self._hint_lac()
            case "linger":
                self._lingering = False
                return self._begin_close() if self._may_close else []
            case "metadata":
                return [ev.ReadMetadata()] if self._close_intent or self.change else []
            case "spares":
                self._resting = False
                return [] if self.settled else self._start_change()
        kept, failed = self._keeper.step(event)
        effects = [*kept, *self._bookies_failed(failed)]
        if event.name == "adds" and self.state is not WriterState.FAILED:
            effects += self._deadline()
        return effects

    def _deadline(self) -> list[WriterEffect]:
        """Fail the writer if an entry that was sent ``add_quorum_timeout_ms`` ago has no ack quorum, whatever the
        reason, or if an entry that a force was to make durable then is not confirmed."""
        pushed, forced = self._owed_by[0]
        full = len(self._owed_by) == self._owed_by.maxlen
        if full and (self.acked < pushed or self.lac < forced):
            return self._give_up("in time", "add_quorum_timeout_ms")
        self._owed_by.append((self.lap, self.forced_to))
        return []

    def _give_up(self, when: str, option: str) -> list[WriterEffect]:
        value = f"{option}={getattr(self.config, option):g}"
        return self._fail(overdue_error(self.ledger_id, self.lac, self.lap, when, value))

    def _hint_lac(self) -> list[WriterEffect]:
        if not (self.idle or self.delivery.deferred) or self.lac <= self.hinted:
            return []  # an entry in flight carries the LAC, or the bookies have it
        self.hinted = self.lac
        return [*self.hints_of(self.lac)]

    def hints_of(self, lac: EntryId) -> list[ev.SendLac]:
        """Return the effects that send this LAC to the bookies that hold its entry."""
        body, held = lac_body(lac, self.digester), quorum.holders(lac, self.metadata.value)
        lanes = [lane for lane in self.delivery.lanes if lane.state is not LaneState.FAILED]
        return [ev.SendLac(lane.bookie, body) for lane in lanes if lane.bookie in held]

    # --- ends --------------------------------------------------------------------------------------------------------
    def _stop(self) -> list[WriterEffect]:
        return [*self._keeper.stop(), *(ev.CancelTimer(name) for name in ("lac", "linger", "metadata", "spares"))]

    def _fail(self, error: BookKeeperError) -> list[WriterEffect]:
        closing = self.state is WriterState.CLOSING
        self.state, self.error, self.change = WriterState.FAILED, error, None
        last: list[WriterEffect] = [ev.Fail(error)]
        if closing:
            last.append(ev.FailClose(error))
        return [*self._stop(), *last]
