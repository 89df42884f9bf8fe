# SPDX-License-Identifier: Apache-2.0
"""Follows the LAC of a ledger that another client writes (P9, P10). Pure.

The follower watches every bookie of the last fragment and the ledger's record, so that neither a replaced nor a silent
bookie hides progress. After ``stall_ms`` without progress it starts a *round*: read the record, then the LAC of a
quorum. It reports only a LAC that a digest (P5) or the record proves. A closed ledger ends at the last entry of its
record, not at the LAC (MUST 14). Following ends when the ledger is closed or deleted.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

from bk_core.entries.digest import Digester
from bk_core.errors import BookKeeperError, IntegrityError, NoSuchLedgerError
from bk_core.model import BookieId, EntryId, LedgerMetadata, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.ends.lac import QuorumLacRead, verified_lac

_Record: TypeAlias = ev.MetadataWatched | ev.MetadataChanged | ev.MetadataRead | ev.MetadataCallFailed
FollowEvent: TypeAlias = _Record | ev.LacEvent | ev.RefreshLac | ev.TimerFired
_Ask: TypeAlias = ev.WatchMetadata | ev.ReadMetadata | ev.SendWatchLac | ev.SendReadLac | ev.CancelRead | ev.SetTimer
FollowEffect: TypeAlias = _Ask | ev.Confirm | ev.FinishRefresh | ev.Fail
PAUSED = -1  # in place of a request number: the bookie is watched again when its timer fires


class LedgerFollower:
    """Follows the LAC of one ledger from ``start`` until ``ended``. The effect Confirm says that ``lac`` or
    ``metadata`` changed. The driver may send RefreshLac at any time, even after the end."""

    def __init__(
        self,
        metadata: Versioned[LedgerMetadata],
        lac: EntryId,
        digester: Digester,
        *,
        stall_ms: float = 2_000,
        pause_ms: float = 50,
    ) -> None:
        self.metadata, self.digester = metadata, digester
        self.stall_ms, self.pause_ms = stall_ms, pause_ms
        self.error: BookKeeperError | None = None
        self.started, self.ended = False, metadata.value.is_closed
        self._proven = lac
        self._progress = False  # whether there was progress since the last check for a stall
        self._requests = 0
        self._watches: dict[BookieId, tuple[int, EntryId]] = {}  # request number (or PAUSED), LAC to exceed
        self._reading = False  # whether a round waits for the record
        self._quorum: QuorumLacRead | None = None  # set while a round waits for the bookies
        self._problem: BookKeeperError | None = None  # why this round could not read the record
        self._again = False  # whether another round must follow
        self._callers: list[int] = []  # callers that this round answers
        self._late_callers: list[int] = []  # callers that the next round answers

    @property
    def lac(self) -> EntryId:
        """The last entry of a closed ledger; of an open one the highest LAC proven so far."""
        value = self.metadata.value
        return value.last_entry_id if value.is_closed else self._proven

    def start(self) -> list[FollowEffect]:
        if self.started or self.ended:
            return []
        self.started = True
        return [ev.WatchMetadata(), *self._watch_bookies(), ev.SetTimer("stall", self.stall_ms)]

    def step(self, event: FollowEvent) -> list[FollowEffect]:
        """Handle one event and return the effects in order. After the end only RefreshLac has effects."""
        if isinstance(event, ev.RefreshLac):
            self._late_callers.append(event.caller)
            return self._leave() if self.ended else self._begin_round()
        if self.ended:
            found = event.metadata if isinstance(event, (ev.MetadataChanged, ev.MetadataRead)) else None
            if found is not None and found.version > self.metadata.version and self.error is None:
                self.metadata = found  # re-replication changes the ensembles of a closed ledger too
            return []
        if isinstance(event, (ev.LacAnswered, ev.LacFailed)):
            return self._heard(event)
        if isinstance(event, ev.TimerFired):
            return self._timer(event.name)
        if isinstance(event, ev.MetadataWatched):
            return self._watched(event.error)
        if isinstance(event, ev.MetadataChanged):
            return self._deleted() if event.metadata is None else self._take(event.metadata)
        return self._record_read(event)

    # --- the record --------------------------------------------------------------------------------------------------
    def _watched(self, error: BookKeeperError | None) -> list[FollowEffect]:
        if error is None:
            self._again = True  # the record may have changed after a running round read it and before the watch
            return self._begin_round()
        return self._deleted() if isinstance(error, NoSuchLedgerError) else [ev.SetTimer("watch", self.stall_ms)]

    def _take(self, found: Versioned[LedgerMetadata]) -> list[FollowEffect]:
        """Adopt a record from the store if it is newer than the one we have."""
        if found.version <= self.metadata.version:
            return []
        ensemble = self.metadata.value.last_fragment.ensemble
        self.metadata, self._progress = found, True
        last = found.value.last_fragment
        if found.value.is_closed:
            return self._closed(found.value.last_entry_id)
        self._proven = max(self._proven, last.first_entry_id - 1)
        effects: list[FollowEffect] = [ev.Confirm(self.lac), *self._watch_bookies()]
        if self._quorum is not None and last.ensemble != ensemble:
            effects += [*self._quorum.stop(), *self._ask_quorum()]
        return effects

    def _closed(self, end: EntryId) -> list[FollowEffect]:
        if end >= self._proven:
            return [ev.Confirm(end), *self._leave()]
        return self._fail(
            IntegrityError(
                f"ledger {self.digester.ledger_id} was closed at entry {end}, but entry {self._proven} was confirmed",
                remedy="entries were lost; compare the bookies' copies before anything is deleted",
            )
        )

    def _deleted(self) -> list[FollowEffect]:
        return self._fail(NoSuchLedgerError(f"ledger {self.digester.ledger_id} was deleted while it was read"))

    def _fail(self, error: BookKeeperError) -> list[FollowEffect]:
        self.error = error
        return [*self._leave(), ev.Fail(error)]

    def _leave(self) -> list[FollowEffect]:
        """End: cancel all requests and answer all callers."""
        self.ended = True
        effects = [ev.CancelRead(request) for request, _ in self._watches.values() if request != PAUSED]
        effects += self._quorum.stop() if self._quorum is not None else []
        done = [ev.FinishRefresh(caller, self.error) for caller in (*self._callers, *self._late_callers)]
        self._watches, self._quorum, self._callers, self._late_callers = {}, None, [], []
        return [*effects, *done]

    # --- rounds ------------------------------------------------------------------------------------------------------
    def _begin_round(self) -> list[FollowEffect]:
        """Start a round unless one runs. A caller that comes during a round is answered by the next round, because the
        running one may have read the record before the call."""
        if self._reading or self._quorum is not None:
            return []
        self._reading, self._again, self._problem = True, False, None
        self._callers, self._late_callers = self._late_callers, []
        return [ev.ReadMetadata(fresh=bool(self._callers))]  # a sync() only for callers, not for each stall

    def _record_read(self, event: ev.MetadataRead | ev.MetadataCallFailed) -> list[FollowEffect]:
        if not self._reading:
            return []
        self._reading, effects = False, list[FollowEffect]()
        if isinstance(event, ev.MetadataRead):
            effects = self._take(event.metadata)
        elif isinstance(event.error, NoSuchLedgerError):
            return self._deleted()
        else:
            self._problem = event.error
        return effects if self.ended else effects + self._ask_quorum()

    def _ask_quorum(self) -> list[FollowEffect]:
        self._quorum = QuorumLacRead(self.metadata.value, self.digester, first_request=self._requests)
        self._requests += len(self._quorum.ensemble)
        return [*self._quorum.start()]

    def _round_over(self, problem: BookKeeperError | None) -> list[FollowEffect]:
        done: list[FollowEffect] = [ev.FinishRefresh(caller, self._problem or problem) for caller in self._callers]
        self._quorum, self._callers = None, []
        return done + (self._begin_round() if self._again or self._late_callers else [])

    # --- bookies -----------------------------------------------------------------------------------------------------
    def _watch_bookies(self) -> list[FollowEffect]:
        """Watch every bookie of the last fragment, and cancel the watches on all other bookies."""
        if not self.started:
            return []
        ensemble, effects = self.metadata.value.last_fragment.ensemble, list[FollowEffect]()
        for bookie in [bookie for bookie in self._watches if bookie not in ensemble]:
            request, _ = self._watches.pop(bookie)
            effects += [ev.CancelRead(request)] if request != PAUSED else []
        return effects + [self._watch(bookie) for bookie in ensemble if bookie not in self._watches]

    def _watch(self, bookie: BookieId) -> ev.SendWatchLac:
        self._watches[bookie] = (self._requests, self._proven)
        self._requests += 1
        return ev.SendWatchLac(self._requests - 1, bookie, self._proven)

    def _heard(self, event: ev.LacEvent) -> list[FollowEffect]:
        for bookie, (request, above) in self._watches.items():
            if request == event.index:
                return self._watch_heard(bookie, above, event)
        if self._quorum is None:
            return []
        said = self._quorum.step(event)
        effects = self._raise(self._quorum.query.lac)
        for effect in said:
            if isinstance(effect, ev.CancelRead):
                effects.append(effect)
            else:
                effects += self._round_over(effect.error if isinstance(effect, ev.Fail) else None)
        return effects

    def _watch_heard(self, bookie: BookieId, above: EntryId, event: ev.LacEvent) -> list[FollowEffect]:
        """Watch the bookie again: immediately if its LAC moved, otherwise after a pause, so that we never spin."""
        pause_ms, lac = self.stall_ms, above
        if isinstance(event, ev.LacAnswered):
            with suppress(IntegrityError):  # damaged evidence counts as no answer
                lac, pause_ms = verified_lac(event, self.digester)[0], self.pause_ms
        if lac > above:
            return [*self._raise(lac), self._watch(bookie)]
        self._watches[bookie] = (PAUSED, above)
        return [ev.SetTimer(f"bookie {bookie}", pause_ms)]

    def _raise(self, lac: EntryId) -> list[FollowEffect]:
        if lac <= self._proven:
            return []
        self._proven, self._progress = lac, True
        return [ev.Confirm(lac)]

    def _timer(self, name: str) -> list[FollowEffect]:
        if name == "stall":
            begun = [] if self._progress else self._begin_round()
            self._progress = False
            return [*begun, ev.SetTimer("stall", self.stall_ms)]
        if name == "watch":
            return [ev.WatchMetadata()]
        bookie = name.removeprefix("bookie ")
        return [self._watch(bookie)] if self._watches.get(bookie, (0, 0))[0] == PAUSED else []
