# SPDX-License-Identifier: Apache-2.0
"""The writer of one ledger as a pure machine: striping, acks, confirmed id, LAC, ensemble change, close.

Sources: protocol document "Writing to ledgers", "Closing a ledger as a writer"; TLA actions
ClientSendsAddEntryRequests, ClientReceivesAddConfirmedResponse, ClientReceivesAddFencedResponse,
ClientChangesEnsemble, ClientResendsPendingAddOp, ClientClosesLedgerSuccess / Fail; RULES P1, P2, P3, P8, P9; facts:
reliability.md §1.8.

Life: OPEN → CLOSING → CLOSED, or FAILED from anywhere. While an ensemble change is under way the LAC stands still
(MUST 6): its first entry id was computed from it. A fenced writer withdraws: nothing is sent or resolved later, and
whoever waits learns that the outcome is unknown.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias, assert_never

from bk_core.entries.apache import lac_body
from bk_core.entries.digest import Digester
from bk_core.errors import (
    BookKeeperError,
    MetadataConflictError,
    MetadataUnavailableError,
    Outcome,
)
from bk_core.model import NO_ENTRY, EntryId, LedgerId, LedgerMetadata, LedgerState, Versioned
from bk_core.placement import RandomSource
from bk_core.protocol.config import WriterConfig
from bk_core.protocol.delivery import Delivery, LaneState
from bk_core.protocol.ensemble_change import EnsembleChange, replacement
from bk_core.protocol.events import (
    Append,
    BookiesRead,
    CancelTimer,
    Close,
    Confirm,
    Fail,
    FailClose,
    FinishClose,
    FramesAcked,
    MarkUnderreplicated,
    MetadataCallFailed,
    MetadataConflicted,
    MetadataEffect,
    MetadataEvent,
    MetadataRead,
    MetadataWritten,
    ReadBookies,
    ReadMetadata,
    SendLac,
    SessionBroken,
    SessionEffect,
    SessionEnded,
    SessionEvent,
    SetTimer,
    TimerFired,
    WriteMetadata,
)
from bk_core.protocol.keeper import SessionKeeper
from bk_core.protocol.packets import encode_packet
from bk_core.protocol.refusals import fenced_error, refusal_error
from bk_core.protocol.snapshot import copied, fingerprint_of
from bk_core.wire.lane import AttachMode

WriterEvent: TypeAlias = Append | Close | SessionEvent | MetadataEvent | TimerFired
WriterEffect: TypeAlias = (
    SessionEffect | MetadataEffect | SetTimer | CancelTimer | Confirm | Fail | SendLac | FinishClose | FailClose
)


class WriterState(enum.Enum):
    """Lifecycle of a writer."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


class LedgerWriter:
    """Step it with one event at a time; see the module for its rules.

    ``lac`` is the last entry confirmed, ``lap`` the last pushed; ``length`` counts payload bytes up to ``lap``.
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
    ) -> None:
        value = metadata.value
        self.ledger_id, self.metadata, self.digester = ledger_id, metadata, digester
        self.config, self.random = config, random
        self.state = WriterState.OPEN
        self.lac: EntryId = NO_ENTRY
        self.length = 0
        self.delivery = Delivery(
            value.last_fragment.ensemble,
            value.write_quorum_size,
            value.ack_quorum_size,
            confirmed=NO_ENTRY,
            mode=AttachMode.WRITE,
            new_session=new_session,
        )
        self._injected = (new_session, random)
        self._keeper = SessionKeeper(self.delivery, config)
        self.change: EnsembleChange | None = None
        self.failed: list[int] = []  # indices that wait for the next ensemble change
        self.error: BookKeeperError | None = None
        self._close_intent: LedgerMetadata | None = None
        self._lingering = False
        self._metadata_retries = 0
        self._hinted: EntryId = NO_ENTRY

    # --- what the driver may ask -------------------------------------------------------------------------------------

    @property
    def lap(self) -> EntryId:
        return self.delivery.last_sent

    @property
    def retained_bytes(self) -> int:
        """Bytes of frames kept for bookies that may still need them."""
        return self.delivery.retained_bytes

    @property
    def idle(self) -> bool:
        """No entry waits for its confirmation."""
        return self.lac == self.lap

    def start(self) -> list[WriterEffect]:
        """First effects of a new ledger: open the sessions."""
        return [*self.delivery.attach_all()]

    def step(self, event: WriterEvent) -> list[WriterEffect]:
        """What to do about ``event``, in order. After CLOSED or FAILED: nothing, whatever comes."""
        if self.state in (WriterState.CLOSED, WriterState.FAILED):
            return []
        match event:
            case Append():
                return self._append(event)
            case Close():
                return self._close()
            case FramesAcked():
                return self._acked(event)
            case SessionEnded() | SessionBroken():
                return self._session_over(event)
            case TimerFired(name):
                return self._timer(name)
            case BookiesRead() | MetadataWritten() | MetadataConflicted() | MetadataRead() | MetadataCallFailed():
                return self._metadata_event(event)
            case _:
                assert_never(event)

    def copy(self) -> LedgerWriter:
        """An independent twin (RULES P11); what was injected is shared."""
        return copied(self, self._injected)

    def fingerprint(self) -> tuple[object, ...]:
        """Canonical and hashable: equal for equal states."""
        return fingerprint_of(self, self._injected)

    # --- adding ------------------------------------------------------------------------------------------------------

    def _append(self, event: Append) -> list[WriterEffect]:
        assert self.state is WriterState.OPEN, "append after close"
        value = self.metadata.value
        packet = encode_packet(
            event.batch,
            first=self.lap + 1,
            lac=self.lac,
            length_before=self.length,
            digester=self.digester,
            ensemble_size=value.ensemble_size,
            write_quorum=value.write_quorum_size,
            session=self.delivery.common_session,
        )
        self.length += event.batch.payload_bytes
        return [*self.delivery.push(packet), *self._keeper.pushed()]

    def _acked(self, event: FramesAcked) -> list[WriterEffect]:
        effects = self._keeper.acked(event)
        return [] if effects is None else [*effects, *self._evaluate()]

    def _evaluate(self) -> list[WriterEffect]:
        """Move the LAC as far as quorums allow; never during an ensemble change (MUST 6)."""
        if self.change is not None:
            return []
        effects: list[WriterEffect] = []
        confirmed = self.delivery.confirmed()
        if confirmed > self.lac:
            self.lac = confirmed
            effects.append(Confirm(confirmed))
            if self.idle:
                effects.append(SetTimer("lac", self.config.explicit_lac_delay_ms))
        return effects + self._continue_close()

    # --- sessions (RULES P1, P3) -------------------------------------------------------------------------------------

    def _session_over(self, event: SessionEnded | SessionBroken) -> list[WriterEffect]:
        if not self.delivery.is_current(event.index, event.session):
            return []
        effects: list[WriterEffect] = []
        if isinstance(event, SessionEnded):
            effects += self._acked(FramesAcked(event.index, event.session, event.frames))
            if self.state in (WriterState.CLOSED, WriterState.FAILED):
                return effects
            bookie = self.delivery.lanes[event.index].bookie
            refusal = refusal_error(event.reason, bookie, self.ledger_id, self.lac, self.lap)
            if refusal is not None:
                return effects + self._fail(refusal)
        self._hinted = NO_ENTRY
        kept, failed = self._keeper.session_over(event)
        effects += kept
        return effects + self._bookie_failed(event.index) if failed else effects

    def _bookie_failed(self, index: int) -> list[WriterEffect]:
        effects: list[WriterEffect] = [*self._keeper.give_up(index)]
        if index not in self.failed:
            self.failed.append(index)
        return effects + self._start_change()

    # --- ensemble change ---------------------------------------------------------------------------------------------

    def _start_change(self) -> list[WriterEffect]:
        """One change at a time; what fails meanwhile waits for the next one."""
        if self.change is not None or not self.failed or self._close_intent is not None:
            return []
        if self.state is WriterState.CLOSING and self.idle:
            return self._continue_close()  # nothing left to replicate anew: the missing copies are marked
        self.change = EnsembleChange(first_entry_id=self.lac + 1, indices=tuple(self.failed))
        self._metadata_retries = 0
        return [ReadBookies()]

    def _bookies_read(self, event: BookiesRead) -> list[WriterEffect]:
        change = self.change
        if change is None or change.intent is not None:
            return []
        chosen = replacement(self.metadata.value, change.indices, event.writable, self.random)
        if isinstance(chosen, BookKeeperError):
            return self._fail(chosen)
        change.ensemble = chosen
        return self._write_change(change)

    def _write_change(self, change: EnsembleChange) -> list[WriterEffect]:
        assert change.ensemble is not None
        change.intent = self.metadata.value.with_ensemble(change.first_entry_id, change.ensemble)
        return [WriteMetadata(change.intent, self.metadata.version)]

    def _change_written(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        """Un-ack, re-send, re-evaluate, in this order (MUST 6, D13, D14)."""
        change, self.change = self.change, None
        assert change is not None
        assert change.ensemble is not None
        self.metadata = metadata
        for index in change.indices:
            self.delivery.replace(index, change.ensemble[index], change.first_entry_id - 1)
        self.failed = [index for index in self.failed if index not in change.indices]
        self._hinted = NO_ENTRY
        effects: list[WriterEffect] = []
        for index in change.indices:
            effects += self._keeper.replaced(index)
        return effects + self._start_change() + self._evaluate()

    # --- metadata ----------------------------------------------------------------------------------------------------

    def _metadata_event(self, event: MetadataEvent) -> list[WriterEffect]:
        if isinstance(event, BookiesRead):
            return self._bookies_read(event)
        if self._close_intent is None and self.change is None:
            return []
        match event:
            case MetadataWritten(metadata):
                return self._written(metadata)
            case MetadataConflicted():
                return [ReadMetadata()]
            case MetadataRead(metadata):
                return self._reread(metadata)
            case MetadataCallFailed(error):
                return self._metadata_failed(error)
            case _:
                assert_never(event)

    def _written(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        if self._close_intent is not None:
            return self._closed(metadata)
        return self._change_written(metadata)

    def _reread(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        """After a conflict or a lost answer: is it what we meant, may we try again, or is it over (MUST 8)?"""
        value, intent = metadata.value, self._close_intent or (self.change and self.change.intent)
        if intent is not None and value == intent:
            return self._written(metadata)
        if value.state is LedgerState.OPEN and value.last_fragment == self.metadata.value.last_fragment:
            self.metadata = metadata  # somebody repaired an older fragment: the same intent on top of that
            if self._close_intent is not None:
                return self._write_close()
            assert self.change is not None
            return [ReadBookies()] if self.change.ensemble is None else self._write_change(self.change)
        if self._close_intent is not None and value.is_closed:
            return self._closed_elsewhere(metadata)
        why = f"its metadata says {value.state.name}"
        return self._fail(fenced_error(self.ledger_id, why, self.lac, self.lap))

    def _metadata_failed(self, error: BookKeeperError) -> list[WriterEffect]:
        self._metadata_retries += 1
        retriable = isinstance(error, MetadataUnavailableError)
        if not retriable or self._metadata_retries > self.config.metadata_retries_max:
            error.outcome = Outcome.UNKNOWN
            return self._fail(error)
        return [SetTimer("metadata", self.config.metadata_retry_ms)]

    # --- closing -----------------------------------------------------------------------------------------------------

    def _close(self) -> list[WriterEffect]:
        if self.state is WriterState.CLOSING:
            return []
        self.state = WriterState.CLOSING
        return self._continue_close()

    def _continue_close(self) -> list[WriterEffect]:
        """Close once everything is confirmed and, within the linger time, delivered to every copy (RULES P8)."""
        if self.state is not WriterState.CLOSING or not self.idle or self._close_intent or self.change:
            return []
        waiting = any(lane.watermark < self.lap and lane.state is not LaneState.FAILED for lane in self.delivery.lanes)
        if waiting:
            if self._lingering:
                return []
            self._lingering = True
            return [SetTimer("linger", self.config.close_linger_ms)]
        return self._begin_close()

    def _begin_close(self) -> list[WriterEffect]:
        effects: list[WriterEffect] = [CancelTimer("linger"), CancelTimer("lac")]
        missing = self.delivery.behind()
        if missing:
            effects.append(MarkUnderreplicated(missing))
        self._metadata_retries = 0
        return effects + self._write_close()

    def _write_close(self) -> list[WriterEffect]:
        self._close_intent = self.metadata.value.closed_at(self.lac, self.length)
        return [WriteMetadata(self._close_intent, self.metadata.version)]

    def _closed(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        self.metadata, self.state = metadata, WriterState.CLOSED
        return [*self._stop(), FinishClose(metadata)]

    def _closed_elsewhere(self, metadata: Versioned[LedgerMetadata]) -> list[WriterEffect]:
        """CLOSED by a recoverer: success if its end is ours (STYLE §3.7, rule 11)."""
        value = metadata.value
        if value.last_entry_id == self.lac:
            return self._closed(metadata)
        error = MetadataConflictError(
            f"ledger {self.ledger_id} was closed by another client at entry {value.last_entry_id}",
            value=f"this writer's last confirmed entry is {self.lac}",
            remedy="open it with recover=True to read what it holds",
        )
        return self._fail(error)

    # --- time --------------------------------------------------------------------------------------------------------

    def _timer(self, name: str) -> list[WriterEffect]:
        match name:
            case "lac":
                return self._hint_lac()
            case "linger":
                return self._linger_over()
            case "metadata":
                return [ReadMetadata()] if self._close_intent or self.change else []
        kept, failed = self._keeper.timer(name)
        effects: list[WriterEffect] = [*kept]
        for index in failed:
            if self.state is not WriterState.FAILED:
                effects += self._bookie_failed(index)
        return effects

    def _hint_lac(self) -> list[WriterEffect]:
        if not self.idle or self.lac <= self._hinted:
            return []
        self._hinted = self.lac
        body = lac_body(self.lac, self.digester)
        return [SendLac(lane.bookie, body) for lane in self.delivery.lanes if lane.state is not LaneState.FAILED]

    def _linger_over(self) -> list[WriterEffect]:
        if self.state is not WriterState.CLOSING or self._close_intent or self.change or not self.idle:
            self._lingering = False
            return []
        return self._begin_close()

    # --- ends --------------------------------------------------------------------------------------------------------

    def _stop(self) -> list[WriterEffect]:
        return [*self._keeper.stop(), *(CancelTimer(name) for name in ("lac", "linger", "metadata"))]

    def _fail(self, error: BookKeeperError) -> list[WriterEffect]:
        closing = self.state is WriterState.CLOSING
        self.state, self.error, self.change = WriterState.FAILED, error, None
        last: list[WriterEffect] = [Fail(error)]
        if closing:
            last.append(FailClose(error))
        return [*self._stop(), *last]
