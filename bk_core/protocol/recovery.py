# SPDX-License-Identifier: Apache-2.0
"""Recovers a ledger: fences it, finds its end, completes its copies and closes it. Pure.

Sources: protocol document "Closing a ledger as a reader"; TLA actions ClientStartsRecovery, ClientReceivesFencing-
ReadLacResponse, ClientSendsRecoveryReadRequests, ClientReceivesRecoveryReadResponse, ClientWritesBackEntry,
RecoveryClientChangesEnsemble, RecoveryClientClosesLedger; rules P4 to P7, MUST 9, MUST 10.

In the phase CLAIM the recovery writes IN_RECOVERY into the ledger's record; the version of that write is the epoch of
the attempt. In FENCE it fences the last ensemble until every ack quorum has a bookie that answered. In READ it reads
with fencing reads, from the entry after the highest proven LAC on, and writes every entry back unchanged. It stops at
the first entry that enough bookies deny, so that the entry cannot have an ack quorum. In CLOSE it writes CLOSED by
compare-and-set on the epoch. Reads go to the ensemble as it was at the claim. Ensemble changes stay in memory until the
close. If an entry can neither be found nor ruled out, the recovery stops and the ledger stays IN_RECOVERY. A recovery
that finds the ledger closed by another client adopts that end (MUST 10).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from bk_core import errors, quorum
from bk_core.entries.digest import Digester
from bk_core.errors import (
    BookKeeperError,
    IntegrityError,
    MetadataUnavailableError,
    Outcome,
    RecoveryInconclusiveError,
)
from bk_core.model import ENTRY_ID_MAX, NO_ENTRY, BookieId, EntryId, LedgerMetadata, LedgerState, Versioned
from bk_core.placement import RandomSource
from bk_core.protocol import events as ev
from bk_core.protocol.answers import Window
from bk_core.protocol.config import RecoveryConfig
from bk_core.protocol.ends.lac import LacQuery
from bk_core.protocol.refusals import unknown_error
from bk_core.protocol.replication.copies import last_of
from bk_core.protocol.write_back import WriteBack, WriteBackEffect
from bk_core.wire.lane.reasons import Reason

CONTENDED = "another client kept recovering the ledger at the same time"

RecoveryEvent: TypeAlias = ev.SessionEvent | ev.MetadataEvent | ev.TimerFired | ev.LacEvent | ev.ReadEvent
_Asked: TypeAlias = ev.SendFence | ev.SendRead | ev.CancelRead | ev.BackOff
RecoveryEffect: TypeAlias = WriteBackEffect | ev.MetadataEffect | _Asked | ev.Fail | ev.FinishRecovery


class Phase(enum.Enum):
    CLAIM = "claim"
    FENCE = "fence"
    READ = "read"
    LENGTH = "length"  # the end is the LAC; the entry there is read, because it holds the ledger's length
    DRAIN = "drain"  # the end is known; some entries are not written back yet
    CLOSE = "close"
    WAIT = "wait"  # another client recovers the ledger
    DONE = "done"


class LedgerRecovery:
    """The machine of one recovery of one ledger, with all its attempts. :meth:`step` takes one event and returns
    effects."""

    def __init__(
        self, digester: Digester, *, config: RecoveryConfig, new_session: Callable[[], int], random: RandomSource
    ) -> None:
        self.digester, self.config, self.random, self._new_session = digester, config, random, new_session
        self.phase = Phase.CLAIM
        self.attempt = 0
        self.metadata: Versioned[LedgerMetadata] | None = None  # the record as last read or written
        self.frozen: LedgerMetadata | None = None  # the record as this attempt claimed it; reads go to its ensembles
        self.recovered = 0
        self._query: LacQuery | None = None
        self._write_back: WriteBack | None = None
        self._window: Window | None = None
        self._request = 0
        self._end = self._lac = NO_ENTRY  # entries above the LAC are written back
        self._length: int | None = None
        self._intent: LedgerMetadata | None = None
        self._metadata_retries = 0
        self._answer_lost = False  # the last write may have been applied
        self._claimed_from = -1  # the version before the claim
        self._epoch = -1  # the version that the claim made

    @property
    def _claimed(self) -> LedgerMetadata:
        assert self.frozen is not None
        return self.frozen

    @property
    def failed_bookies(self) -> tuple[BookieId, ...]:
        """The bookies that are about to be replaced."""
        return self._write_back.replaced_bookies if self._write_back is not None else ()

    def start(self) -> list[RecoveryEffect]:
        return self._begin_attempt()

    def step(self, event: RecoveryEvent) -> list[RecoveryEffect]:
        """Handle one event and return the effects in order. DONE ignores every event."""
        if self.phase is Phase.DONE:
            return []
        match event:
            case ev.MetadataWritten() | ev.MetadataConflicted() | ev.MetadataRead() | ev.MetadataCallFailed():
                return self._metadata_event(event)
            case ev.LacAnswered() | ev.LacFailed():
                return self._fence_event(event)
            case ev.FramesRead() | ev.ReadAnswered() | ev.ReadFailed():
                return self._read_event(event)
            case ev.TimerFired("again" | "metadata"):
                return self._timer(event.name)
        known = isinstance(event, (ev.FramesAcked, ev.SessionEnded, ev.SessionBroken, ev.TimerFired))
        awaited = isinstance(event, ev.BookiesRead) and (self._write_back is None or self.failed_bookies)
        assert known or awaited, f"{self.phase} {event}"
        return [] if self._write_back is None else self._after_write_back(self._write_back.step(event))

    # --- claim -------------------------------------------------------------------------------------------------------
    def _begin_attempt(self) -> list[RecoveryEffect]:
        self.attempt += 1
        if self.attempt > self.config.attempts_max:
            return self._abort(CONTENDED, "try again when it has finished")
        effects = self._drop_work()
        self.phase, self._intent, self._metadata_retries = Phase.CLAIM, None, 0
        return [*effects, ev.ReadMetadata()]

    def _metadata_event(self, event: ev.MetadataEvent) -> list[RecoveryEffect]:
        asked = (Phase.CLAIM, Phase.CLOSE)
        looked = isinstance(event, ev.MetadataCallFailed) and bool(self.failed_bookies)
        assert self.phase in asked or looked, f"{self.phase} {event}"
        wrote = isinstance(event, (ev.MetadataWritten, ev.MetadataConflicted))
        assert self._intent is not None or not wrote, f"{self.phase} {event}"
        match event:
            case ev.MetadataRead(metadata):
                return self._metadata_read(metadata)
            case ev.MetadataWritten(metadata):
                self.metadata = metadata
                return self._begin_fencing(metadata) if self.phase is Phase.CLAIM else self._finish(metadata)
            case ev.MetadataConflicted():
                return self._metadata_retry(None)
            case ev.MetadataCallFailed(error):
                return self._metadata_retry(error)
        raise AssertionError(f"{self.phase} {event}")

    def _metadata_read(self, metadata: Versioned[LedgerMetadata]) -> list[RecoveryEffect]:
        value, answer_lost = metadata.value, self._answer_lost
        self.metadata, self._answer_lost = metadata, False
        if value.is_closed:
            return self._finish(metadata)
        if self.phase is Phase.CLAIM:
            if answer_lost and value == self._intent and metadata.version == self._claimed_from + 1:
                return self._begin_fencing(metadata)  # our claim was applied, its answer lost
            if self._intent is not None and value.state is LedgerState.IN_RECOVERY:
                return self._wait()  # another client claimed the ledger between our read and our write
            self._intent = value.in_recovery()
            self._claimed_from = metadata.version
            return [ev.WriteMetadata(self._intent, metadata.version)]
        if self.phase is Phase.CLOSE and metadata.version == self._epoch:
            return self._write_close()  # our close was not applied: write it again
        return self._wait()

    def _wait(self) -> list[RecoveryEffect]:
        """Wait, so that another client's recovery, which has a newer epoch, can finish (P7)."""
        effects = self._drop_work()
        self.phase = Phase.WAIT
        return [*effects, ev.BackOff(2.0 + 2.0 * self.random.random())]

    def _metadata_retry(self, error: BookKeeperError | None) -> list[RecoveryEffect]:
        """Read the record again after an error or a conflict (None). There is no pause after the first conflict."""
        self._metadata_retries += 1
        self._answer_lost = error is not None and (self._answer_lost or error.outcome is Outcome.UNKNOWN)
        if error is not None and not isinstance(error, MetadataUnavailableError):
            return self._fail(error)
        if self._metadata_retries > self.config.metadata_retries_max:
            return self._fail(error) if error is not None else self._abort(CONTENDED, "try again when it has finished")
        if error is None and self._metadata_retries == 1:
            return [ev.ReadMetadata()]
        return [ev.SetTimer("metadata", self.config.metadata_retry_ms)]

    def _timer(self, name: str) -> list[RecoveryEffect]:
        if name == "again":
            return self._begin_attempt() if self.phase is Phase.WAIT else []
        if self.phase in (Phase.CLAIM, Phase.CLOSE):
            return [ev.ReadMetadata()]
        return [*self._write_back.look_again()] if self._write_back is not None else []

    # --- fence -------------------------------------------------------------------------------------------------------
    def _begin_fencing(self, claimed: Versioned[LedgerMetadata]) -> list[RecoveryEffect]:
        value = claimed.value
        self.phase, self.frozen, self._epoch = Phase.FENCE, value, claimed.version
        self._intent, self._length = None, None
        # each attempt uses new request numbers, so that late answers to an earlier attempt are not counted
        self._query = LacQuery(self.digester, value, first_request=(self.attempt - 1) * value.ensemble_size)
        return [ev.SendFence(i, bookie) for i, bookie in enumerate(self._query.ensemble, self._query.first_request)]

    def _fence_event(self, event: ev.LacEvent) -> list[RecoveryEffect]:
        query = self._query
        if query is None or not query.asked(event):
            return []
        query.hear(event)  # a late answer matters too: it may show that its bookie lacks entries
        if self.phase is not Phase.FENCE:
            return []
        if isinstance(event, ev.LacFailed) and event.reason is Reason.UNAUTHORIZED:
            what = f"the bookies hold ledger {self.digester.ledger_id} under another password"
            return self._fail(errors.WrongPasswordError(what, remedy="give the password that it was created with"))
        if isinstance(event, ev.LacFailed) and event.reason is Reason.PERMISSION_DENIED:
            return self._fail(errors.PermissionDeniedError.told(event.message))
        if query.covered:
            return self._begin_reading(query)
        return self._abort(f"too few bookies could be fenced ({query.said})") if query.exhausted else []

    # --- read on -----------------------------------------------------------------------------------------------------
    def _begin_reading(self, query: LacQuery) -> list[RecoveryEffect]:
        self.phase, self._end, self._lac, start = Phase.READ, query.lac, query.lac, query.lac
        self._length = 0 if start == NO_ENTRY else query.lengths.get(start)
        self._write_back = WriteBack(
            self._claimed, confirmed=start, config=self.config, new_session=self._new_session, random=self.random
        )
        return self._open_window(start + 1)

    def _open_window(self, first: EntryId) -> list[RecoveryEffect]:
        if first > ENTRY_ID_MAX:
            return self._end_found()  # there is no higher entry id
        dropped = self._drop_window()
        last = min(first + self.config.read_window_entries - 1, ENTRY_ID_MAX)
        self._window = Window(first, last)
        return [*dropped, *(self._ask(index, first, last) for index in range(self._claimed.ensemble_size))]

    def _ask(self, index: int, first: EntryId, last: EntryId) -> ev.SendRead:
        assert self._window is not None
        self._request += 1
        self._window.asked(self._request, index, first, last)
        bookie = self._claimed.fragment_of(first).ensemble[index]
        return ev.SendRead(self._request, bookie, first, last, self.config.read_bytes_max, fence=True)

    def _read_event(self, event: ev.ReadEvent) -> list[RecoveryEffect]:
        window = self._window
        if window is None or event.request not in window.answers or window.answers[event.request].finished:
            return []
        effects: list[RecoveryEffect] = []
        if isinstance(event, ev.FramesRead):
            try:
                for batch in window.verified(event.request, event.frames, self.digester, always=True):
                    window.add(batch)
            except IntegrityError as error:
                window.fail(event.request, str(error))
                effects.append(ev.CancelRead(event.request))
        elif isinstance(event, ev.ReadAnswered):
            window.finish(event)
        else:
            window.fail(event.request, event.message)
        return effects + (self._decide(window) if self.phase is Phase.READ else self._decide_length(window))

    def _decide(self, window: Window) -> list[RecoveryEffect]:
        """Write back the entries that were found, in order. Then decide about the first missing entry: the ledger ends
        before it, or more answers are needed, or the recovery stops."""
        assert self._write_back is not None
        if self._write_back.delivery.retained_bytes > self.config.write_back_bytes_max:
            return []  # the next acks call this again
        effects: list[RecoveryEffect] = []
        batch = window.take()
        if batch is not None:
            self._end, self._length = batch.last_entry_id, int(batch.cumulative_lengths()[-1])
            self.recovered += len(batch)
            effects += self._write_back.push(batch)
        if window.cursor > window.last:
            return effects + self._open_window(window.cursor)
        entry, size, write_quorum = window.cursor, self._claimed.ensemble_size, self._claimed.write_quorum_size
        replicas = quorum.write_set(entry, size, write_quorum)
        needed = quorum.negatives_needed(write_quorum, self._claimed.ack_quorum_size)
        if len(window.deniers(entry, replicas)) >= needed:
            return effects + self._end_found()
        if window.waiting(entry, replicas):
            return effects
        if window.unanswered(entry, replicas) and entry > window.first:
            return effects + self._open_window(entry)
        why = f"entry {entry} is neither found nor denied by {needed} bookies ({self._said(window, entry)})"
        return effects + self._abort(why)

    def _said(self, window: Window, entry: EntryId) -> str:
        """Return a text with each bookie's answer about the entry, for an error."""
        names = self._claimed.fragment_of(entry).ensemble
        said = ((a.index, "denies it" if a.denies(entry) else a.problem or "UNKNOWN") for a in window.answers.values())
        return "; ".join(f"{names[index]}: {what}" for index, what in sorted(said))

    def _end_found(self) -> list[RecoveryEffect]:
        effects = self._drop_window()
        if self._length is not None:
            self.phase = Phase.DRAIN
            assert self._write_back is not None
            return effects + self._after_write_back(self._write_back.finish())
        self.phase = Phase.LENGTH
        replicas = quorum.write_set(self._end, self._claimed.ensemble_size, self._claimed.write_quorum_size)
        self._window = Window(self._end, self._end)
        return [*effects, *(self._ask(index, self._end, self._end) for index in replicas)]

    def _decide_length(self, window: Window) -> list[RecoveryEffect]:
        batch = window.take()
        if batch is not None:
            self._length = int(batch.cumulative_lengths()[-1])
            return self._end_found()
        why = f"entry {self._end}, which was confirmed, cannot be read ({self._said(window, self._end)})"
        return self._abort(why) if window.all_finished else []

    def _drop_window(self) -> list[RecoveryEffect]:
        window, self._window = self._window, None
        if window is None:
            return []
        return [ev.CancelRead(request) for request, answer in window.answers.items() if not answer.finished]

    # --- write back and close ----------------------------------------------------------------------------------------
    def _after_write_back(self, effects: list[WriteBackEffect]) -> list[RecoveryEffect]:
        done: list[RecoveryEffect] = [*effects]
        write_back = self._write_back
        assert write_back is not None
        if write_back.problem is not None:
            return done + self._abort(write_back.problem, "bring these bookies back or start others, and try again")
        if self.phase is Phase.READ and self._window is not None:
            return done + self._decide(self._window)
        if self.phase is Phase.DRAIN and write_back.finished:
            missing = dict.fromkeys((*write_back.delivery.behind(), *self._lagging()))
            if missing:
                done.append(ev.MarkUnderreplicated(tuple(missing)))
            assert self._length is not None
            self.phase, self._metadata_retries = Phase.CLOSE, 0
            self._intent = self._with_changes().closed_at(self._end, self._length)
            return [*done, *self._drop_work(), *self._write_close()]  # a bookie that fails from here on does not matter
        return done

    def _lagging(self) -> list[BookieId]:
        """Return the bookies that lacked confirmed entries at the moment when they were fenced."""
        assert self._query is not None
        heard = ((self._query.ensemble[index], last) for index, last in self._query.known.items())
        return [bookie for bookie, last in heard if last < last_of(self._claimed, bookie, self._lac)]

    def _write_close(self) -> list[RecoveryEffect]:
        assert self._intent is not None
        return [ev.WriteMetadata(self._intent, self._epoch)]

    def _with_changes(self) -> LedgerMetadata:
        """Return the claimed metadata with this recovery's ensemble changes. New fragments without an entry are left
        out."""
        assert self._write_back is not None
        changed, kept = self._write_back.metadata, len(self._claimed.fragments)
        used = tuple(f for i, f in enumerate(changed.fragments) if i < kept or f.first_entry_id <= self._end)
        return replace(changed, fragments=used)

    def _finish(self, metadata: Versioned[LedgerMetadata]) -> list[RecoveryEffect]:
        effects = self._drop_work()
        self.phase = Phase.DONE
        return [*effects, ev.FinishRecovery(metadata, self.recovered)]

    def _drop_work(self) -> list[RecoveryEffect]:
        effects = self._drop_window()
        write_back, self._write_back, self._query = self._write_back, None, None
        return effects if write_back is None else [*effects, *write_back.stop()]

    def _abort(self, why: str, remedy: str = "bring these bookies back and try again") -> list[RecoveryEffect]:
        """Stop and leave the ledger IN_RECOVERY. No client has seen an end, so a later recovery may succeed (MUST
        9)."""
        what = f"recovery of ledger {self.digester.ledger_id} could not finish: {why}"
        return self._fail(RecoveryInconclusiveError(what, remedy=remedy, outcome=Outcome.NOT_APPLIED))

    def _fail(self, error: BookKeeperError) -> list[RecoveryEffect]:
        effects, closing = self._drop_work(), self.phase is Phase.CLOSE
        self.phase = Phase.DONE
        return [*effects, ev.Fail(unknown_error(error) if closing else error)]
