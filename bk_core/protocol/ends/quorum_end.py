# SPDX-License-Identifier: Apache-2.0
"""Finds the end of an open ledger above its LAC (``readMode=quorum``, P15), without fencing. Pure.

The LAC that bookies know is behind while a writer is idle. The machine asks the bookies of the last ensemble which
entries above the LAC they hold, waits for ``settle_ms``, asks again, and reads the record. An entry counts if Qa
members of its write set returned it with a valid digest, before and after the wait, and every entry below it counts.
ABSENT, UNKNOWN, LIMBO and silence count for nothing. The record must be OPEN with the same version before and after, so
that the ensembles are the same.

docs/decisions/0076 explains what this proves. A recovery keeps an entry that counts, because it cannot get the
Qw − Qa + 1 denials that would end the ledger below the entry. Only the ledger's writer can drop the entry, in an
ensemble change that it decided without the entry's acks. A writer makes this decision within its timeouts, but a writer
that is paused for longer than ``settle_ms`` may make it later.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bk_core.entries.digest import Digester
from bk_core.errors import BookKeeperError, IntegrityError
from bk_core.model import ENTRY_ID_MAX, EntryId, LedgerMetadata, LedgerState, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.answers import Window
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX

EndEvent: TypeAlias = ev.MetadataRead | ev.MetadataCallFailed | ev.ReadEvent | ev.TimerFired
EndEffect: TypeAlias = ev.ReadMetadata | ev.SendRead | ev.CancelRead | ev.SetTimer | ev.FinishEnd | ev.Fail

ENTRIES_MAX = 1 << 14
"""The maximum number of entries above the LAC that the machine asks for. Writers have fewer entries in flight."""

ANSWERS_MAX = 16
"""The maximum number of answers that the machine takes from one bookie before, and again after, the wait. Entries of
further answers do not count."""

ROUNDS_MAX = 3
"""The maximum number of rounds. Another round begins if the record changed during the wait. After the last round the
machine returns the LAC."""


class EndPhase(enum.Enum):
    RECORD = "record"
    ASK = "ask"
    SETTLE = "settle"
    ASK_AGAIN = "ask again"
    CHECK = "check"
    DONE = "done"


class QuorumEnd:
    """Finds the end of one ledger whose proven LAC is ``lac``. It ends with FinishEnd, or with Fail if the record
    cannot be read."""

    def __init__(
        self,
        digester: Digester,
        lac: EntryId,
        *,
        settle_ms: float,
        bytes_max: int,
        entries_max: int = ENTRIES_MAX,
        rounds_max: int = ROUNDS_MAX,
    ) -> None:
        self.digester, self.lac, self.settle_ms = digester, lac, settle_ms
        self.bytes_max, self.entries_max, self.rounds_max = bytes_max, entries_max, rounds_max
        self.phase, self.rounds = EndPhase.RECORD, 0
        self._record: Versioned[LedgerMetadata] | None = None  # the record of this round
        self._held: EntryId = lac  # the last entry that counts so far
        self._request = 0
        self._window: Window | None = None
        self._holds: npt.NDArray[np.bool_] = np.zeros((0, 0), dtype=np.bool_)  # [index, entry − window.first]

    def start(self) -> list[EndEffect]:
        return [ev.ReadMetadata(fresh=True)]

    def step(self, event: EndEvent) -> list[EndEffect]:
        """Handle one event and return the effects. Answers to earlier requests and all events after the end are
        ignored."""
        reading = self.phase in (EndPhase.RECORD, EndPhase.CHECK)
        match event:
            case ev.MetadataRead(metadata):
                return self._record_read(metadata) if reading else []
            case ev.MetadataCallFailed(error):
                return self._fail(error) if reading else []
            case ev.TimerFired():
                settled = self.phase is EndPhase.SETTLE and event.name == "settle"
                return self._ask_all(EndPhase.ASK_AGAIN, self._held) if settled else []
        return self._answered(event)

    # --- the record ---------------------------------------------------------------------------------------------------
    def _record_read(self, found: Versioned[LedgerMetadata]) -> list[EndEffect]:
        """Act on the record that was read before or after the wait. The end of a ledger in recovery is its LAC here;
        the recovery will soon close the ledger."""
        value, before = found.value, self._record
        if value.is_closed:
            return self._finish(found, value.last_entry_id)
        self.lac = max(self.lac, value.last_fragment.first_entry_id - 1)
        if value.state is not LedgerState.OPEN:
            return self._finish(found, self.lac)
        if before is not None and found.version == before.version:
            return self._finish(found, self._held)
        if self.rounds == self.rounds_max:
            return self._finish(found, self.lac)
        self.rounds += 1
        self._record = found
        return self._ask_all(EndPhase.ASK, self.lac + self.entries_max)

    def _finish(self, metadata: Versioned[LedgerMetadata], last: EntryId) -> list[EndEffect]:
        self.phase = EndPhase.DONE
        return [ev.FinishEnd(metadata, last)]

    def _fail(self, error: BookKeeperError) -> list[EndEffect]:
        self.phase = EndPhase.DONE
        return [ev.Fail(error)]

    # --- the bookies --------------------------------------------------------------------------------------------------
    def _ask_all(self, phase: EndPhase, last: EntryId) -> list[EndEffect]:
        """Ask each bookie of the last ensemble for the entries above the LAC. All these entries are in the last
        fragment."""
        assert self._record is not None
        first, last = self.lac + 1, min(last, ENTRY_ID_MAX)
        if first > last:
            return self._finish(self._record, self.lac)  # there is no higher entry id
        size = self._record.value.ensemble_size
        self.phase, self._window = phase, Window(first, last)
        self._holds = np.zeros((size, last - first + 1), dtype=np.bool_)
        return [self._ask(index, first) for index in range(size)]

    def _ask(self, index: int, first: EntryId) -> ev.SendRead:
        assert self._record is not None
        assert self._window is not None
        self._request += 1
        self._window.asked(self._request, index, first)
        bookie = self._record.value.last_fragment.ensemble[index]
        return ev.SendRead(self._request, bookie, first, self._window.last, self.bytes_max)

    def _answered(self, event: ev.ReadEvent) -> list[EndEffect]:
        window = self._window
        answer = window.answers.get(event.request) if window is not None else None
        if window is None or answer is None or answer.finished:
            return []
        effects: list[EndEffect] = []
        if isinstance(event, ev.FramesRead):
            try:
                self._count(answer.index, window, event)
            except IntegrityError as error:
                window.fail(event.request, str(error))
                effects.append(ev.CancelRead(event.request))
        elif isinstance(event, ev.ReadAnswered):
            window.finish(event)
            is_short = not answer.failed and answer.first <= event.answered_through < window.last  # it met `bytes_max`
            if is_short and sum(each.index == answer.index for each in window.answers.values()) < ANSWERS_MAX:
                effects.append(self._ask(answer.index, event.answered_through + 1))
        else:
            window.fail(event.request, event.message)
        return [*effects, *self._all_answered()] if window.all_finished else effects

    def _count(self, index: int, window: Window, event: ev.FramesRead) -> None:
        """Note which entries of its write sets the bookie returned in this part of its answer. Raises
        IntegrityError."""
        assert self._record is not None
        value = self._record.value
        batches = window.verified(event.request, event.frames, self.digester, always=True)
        if window.answers[event.request].size > self.bytes_max + FRAME_BYTES_MAX:
            raise IntegrityError("a bookie answered with more than was asked for", value=f"{len(event.frames)} bytes")
        for batch in batches:
            ids = batch.entry_ids()
            mine = (index - ids) % value.ensemble_size < value.write_quorum_size
            self._holds[index, ids[mine] - window.first] = True

    def _all_answered(self) -> list[EndEffect]:
        """Find the last entry that counts, once every bookie has answered or failed."""
        assert self._record is not None
        lacking = np.flatnonzero(self._holds.sum(axis=0) < self._record.value.ack_quorum_size)
        count = int(lacking[0]) if lacking.size else self._holds.shape[1]
        self._window, self._held = None, self.lac + count
        if count == 0:
            return self._finish(self._record, self.lac)
        if self.phase is EndPhase.ASK:
            self.phase = EndPhase.SETTLE
            return [ev.SetTimer("settle", self.settle_ms)]
        self.phase = EndPhase.CHECK
        return [ev.ReadMetadata(fresh=True)]
