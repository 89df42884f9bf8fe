# SPDX-License-Identifier: Apache-2.0
"""Repairs one marked ledger: gives bookies the entries that they lack, or replaces these bookies. Pure.

Sources: decision 0049, which has the failure cases; MUST 4, MUST 7; P4, P6, P8.

The mark of a ledger names bookies that may lack entries. In the phase RECORD the machine reads the ledger's record; it
reads the record after the mark. In CLUSTER it reads which bookies are registered, and chooses the next copy to restore.
If a marked bookie is registered, the machine reads its copy (CHECK) and copies the missing entries to it (COPY). If the
bookie is away, it gets time to come back. If it is lost or leaving, or is read-only and lacks entries, another bookie
takes its place in the fragment. The entries are copied to that bookie first (COPY). Only when they are durable, the
machine changes the record by compare-and-set (WRITE).

The last fragment of a ledger that is not closed has no end yet. The writer has a grace period (GRACE) to replace a
bookie that is gone or in limbo. Then the machine has the ledger recovered, which fences and closes it (RECOVER). It
does not fence a ledger for a bookie that is back with its copy, or that is drained and waits for writers, or that no
other bookie could replace. The mark stays until the ledger is closed, because the writer marks missing copies before it
writes its close.

Each fragment is one step. After each step the machine reads the bookies again, so that a bookie that came back gets no
replacement. If something blocks the repair of one fragment, the machine notes it and repairs the other fragments. The
repair ends when nothing is missing, when the ledger is deleted, or when all that is missing is blocked; in the last
case the mark stays.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from bk_core.entries.digest import Digester
from bk_core.errors import (
    BookKeeperError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from bk_core.model import (
    ENTRY_ID_MAX,
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Versioned,
)
from bk_core.placement import RandomSource, replacement
from bk_core.protocol import events as ev
from bk_core.protocol.replication.check import CheckEffect, CopyCheck
from bk_core.protocol.replication.copies import end_of
from bk_core.protocol.replication.copy import CopyEffect, FragmentCopy
from bk_core.protocol.replication.events import (
    BudgetGranted,
    ClusterEffect,
    ClusterRead,
    FinishReplication,
    LedgerRecovered,
    Outcome,
    PostponeReplication,
    ReadCluster,
    ReadRecord,
    RecoverLedger,
)
from bk_core.protocol.replication.requests import ReplicationConfig, request_bases
from bk_core.wire.lane.reasons import EntryRange

_Copy: TypeAlias = tuple[EntryId, EntryId | None, BookieId]  # a fragment's first and last entry id, and its bookie
_Metadata: TypeAlias = ev.MetadataRead | ev.MetadataWritten | ev.MetadataConflicted | ev.MetadataCallFailed
_Part: TypeAlias = ev.SessionEvent | ev.ReadEvent | ev.TimerFired | BudgetGranted
ReplicationEvent: TypeAlias = _Metadata | _Part | ClusterRead | LedgerRecovered
_Asked: TypeAlias = ev.WriteMetadata | ev.MarkUnderreplicated
ReplicationEffect: TypeAlias = _Asked | CheckEffect | CopyEffect | ClusterEffect


CONTENDED = "other clients keep changing its record"


class Phase(enum.Enum):
    RECORD = "record"
    CLUSTER = "cluster"
    CHECK = "check"  # the copy of a registered bookie is read to find out which entries it lacks
    COPY = "copy"
    WRITE = "write"  # the copy is durable; the record is being changed
    GRACE = "grace"  # the writer may still replace the bookie itself
    RECOVER = "recover"
    DONE = "done"


class LedgerReplication:
    """The machine of one repair of one ledger. ``missing`` are the bookies that the ledger's mark names. :meth:`step`
    takes one event and returns effects."""

    def __init__(
        self,
        ledger_id: LedgerId,
        missing: Sequence[BookieId],
        *,
        config: ReplicationConfig,
        new_session: Callable[[], int],
        random: RandomSource,
    ) -> None:
        self.ledger_id, self.missing, self.config = ledger_id, tuple(missing), config
        self.phase = Phase.RECORD
        self.metadata: Versioned[LedgerMetadata] | None = None
        self.entries = self.size = 0  # the numbers of entries and bytes copied
        self.checked = 0  # the number of bytes read in checks
        self._new_session, self._random, self._bases = new_session, random, request_bases()
        self._cluster = ClusterRead(())
        self._whole: dict[_Copy, None] = {}  # copies that were found complete, or completed in place
        self._unfit: dict[_Copy, None] = {}  # copies that cannot be completed on their bookie
        self._blocked: dict[EntryId, str] = {}  # first id of a fragment → what blocks it
        self._failed: dict[BookieId, None] = {}  # targets that failed
        self._lives: dict[BookieId, str | None] = {}  # targets → their incarnations when they were chosen
        self._placed: dict[BookieId, str | None] = {}  # `_lives`, once the record names these targets
        self._check: CopyCheck | None = None
        self._copy: FragmentCopy | None = None
        self._fragment: Fragment | None = None  # the fragment under repair
        self._wanted: Fragment | None = None  # the fragment as the record shall have it; None for a copy in place
        self._lacking: list[EntryRange] = []  # ranges that are still to be copied in place
        self._graced: Fragment | None = None  # the last fragment whose grace period is over
        self._rounds = 0
        self._retries = 0

    def start(self) -> list[ReplicationEffect]:
        return [ReadRecord()]

    def stop(self) -> list[ReplicationEffect]:
        """End all work in progress; the mark stays."""
        effects = self._drop_part()
        self.phase = Phase.DONE
        return [*effects, ev.CancelTimer("grace"), ev.CancelTimer("metadata")]

    def step(self, event: ReplicationEvent) -> list[ReplicationEffect]:
        """Handle one event and return the effects in order. DONE ignores every event."""
        if self.phase is Phase.DONE:
            return []
        match event:
            case ev.MetadataRead() | ev.MetadataWritten() | ev.MetadataConflicted() | ev.MetadataCallFailed():
                return self._metadata_event(event)
            case ClusterRead():
                assert self.phase is Phase.CLUSTER, f"{self.phase} {event}"
                self._cluster = event
                return [*self._mark_who_lost_it(), *self._next()]
            case LedgerRecovered(error):
                assert self.phase is Phase.RECOVER, f"{self.phase} {event}"
                return self._recovered(error)
            case ev.TimerFired("grace"):
                return self._grace_over() if self.phase is Phase.GRACE else []
            case ev.TimerFired("metadata"):
                return self._call_again()
        if self._check is not None:
            return self._after_check(self._check, list(self._check.step(event)))
        if self._copy is not None:
            return self._after_copy(self._copy, list(self._copy.step(event)))
        return []

    # --- the record --------------------------------------------------------------------------------------------------
    def _metadata_event(self, event: _Metadata) -> list[ReplicationEffect]:
        calls = (Phase.RECORD, Phase.CLUSTER, Phase.WRITE)
        assert self.phase in calls, f"{self.phase} {event}"
        match event:
            case ev.MetadataRead(metadata):
                return self._record_read(metadata)
            case ev.MetadataWritten(metadata):
                assert self.phase is Phase.WRITE, f"{self.phase} {event}"
                return self._changed(metadata)
            case ev.MetadataConflicted():
                assert self.phase is Phase.WRITE, f"{self.phase} {event}"
                return [ReadRecord()] if self._again() else self._end_blocked("its record keeps changing")
            case ev.MetadataCallFailed(error):
                return self._call_failed(error)

    def _record_read(self, metadata: Versioned[LedgerMetadata]) -> list[ReplicationEffect]:
        if self.phase is Phase.WRITE and self._is_as_copied(metadata.value):
            self.metadata = metadata  # our change was not applied, or another client changed another part: write again
            return self._write()
        if self.phase is Phase.WRITE:
            return self._changed(metadata)  # changed by our write whose answer was lost, or by another client
        self.metadata = metadata
        if metadata.value.password is None or metadata.value.digest_type is None:
            return self._end_blocked("its record has no password, without which nothing can be verified")
        return self._look_at_cluster()

    def _is_as_copied(self, value: LedgerMetadata) -> bool:
        """Return whether the fragment under repair still has the ensemble and the end for which the copy was made."""
        assert self.metadata is not None
        assert self._fragment is not None
        first = self._fragment.first_entry_id
        return self._fragment in value.fragments and end_of(value, first) == end_of(self.metadata.value, first)

    def _changed(self, metadata: Versioned[LedgerMetadata]) -> list[ReplicationEffect]:
        self.metadata, self._retries = metadata, 0
        if self._wanted in metadata.value.fragments:
            self._placed = self._lives
        return self._look_at_cluster() if self._again() else self._end_blocked(CONTENDED)

    def _again(self) -> bool:
        """Count one change or one more read of the record. Return False if there were too many of them. A repair that
        makes progress needs about as many as the ledger has fragments."""
        self._rounds += 1
        assert self.metadata is not None
        return self._rounds <= self.config.rounds_max + len(self.metadata.value.fragments)

    def _call_failed(self, error: BookKeeperError) -> list[ReplicationEffect]:
        if isinstance(error, NoSuchLedgerError):
            return self._finish(Outcome.DELETED)
        self._retries += 1
        if not isinstance(error, MetadataUnavailableError) or self._retries > self.config.metadata_retries_max:
            return self._end_blocked(str(error))
        return [ev.SetTimer("metadata", self.config.metadata_retry_ms)]

    def _call_again(self) -> list[ReplicationEffect]:
        if self.phase is Phase.CLUSTER:
            return [ReadCluster()]
        return [ReadRecord()] if self.phase in (Phase.RECORD, Phase.WRITE) else []

    def _look_at_cluster(self) -> list[ReplicationEffect]:
        self.phase, self._retries, self._fragment, self._wanted = Phase.CLUSTER, 0, None, None
        self._lacking = []
        return [ReadCluster()]

    def _mark_who_lost_it(self) -> list[ReplicationEffect]:
        """Mark bookies that lost their disk before the record named them. Such a bookie does not know that it lacks
        entries (S8)."""
        placed, self._placed = self._placed, {}
        lost = tuple(bookie for bookie, life in placed.items() if self._cluster.life_of(bookie) != life)
        return [ev.MarkUnderreplicated(lost)] if lost else []

    # --- what is next ------------------------------------------------------------------------------------------------
    @property
    def _value(self) -> LedgerMetadata:
        assert self.metadata is not None
        return self.metadata.value

    def _next(self) -> list[ReplicationEffect]:
        """Begin to restore the next missing copy."""
        value = self._value
        for fragment in value.fragments:
            if fragment.first_entry_id in self._blocked:
                continue
            named = [index for index, bookie in enumerate(fragment.ensemble) if bookie in self.missing]
            replaced = [index for index in named if not self._stays(fragment, fragment.ensemble[index])]
            away = [fragment.ensemble[index] for index in named if fragment.ensemble[index] in self._cluster.away]
            if away:
                self._blocked[fragment.first_entry_id] = (
                    f"{', '.join(away)} may come back: it has not been away for long"
                )
                continue
            if replaced and self._has_end(fragment):
                return self._replace(fragment, replaced)
            if not self._has_end(fragment) and (replaced or value.state is not LedgerState.OPEN):
                continue
            for index in named:
                copy = self._copy_of(fragment, fragment.ensemble[index])
                if copy not in self._whole and copy not in self._unfit:
                    return self._begin_check(fragment, index)
        return self._at_the_end(value)

    def _has_end(self, fragment: Fragment) -> bool:
        return end_of(self._value, fragment.first_entry_id) is not None

    def _copy_of(self, fragment: Fragment, bookie: BookieId) -> _Copy:
        return fragment.first_entry_id, end_of(self._value, fragment.first_entry_id), bookie

    def _stays(self, fragment: Fragment, bookie: BookieId) -> bool:
        """Return whether the bookie stays in the fragment, so that the entries that it lacks are copied to it."""
        if bookie in self._cluster.leaving or (self._copy_of(fragment, bookie) in self._unfit):
            return False
        return bookie in self._cluster.writable or bookie in self._cluster.read_only

    def _at_the_end(self, value: LedgerMetadata) -> list[ReplicationEffect]:
        """Finish the repair, or decide what a last fragment without an end needs. No other fragment needs a step."""
        if self._blocked:
            return self._end_blocked("; ".join(self._blocked.values()))
        last = value.last_fragment
        named = [bookie for bookie in last.ensemble if bookie in self.missing]
        # The record does not show yet to which bookies a running recovery writes, and the recovery may have made the
        # mark.
        if value.is_closed or (value.state is LedgerState.OPEN and not named):
            return self._finish(Outcome.REPLICATED)
        lost = [bookie for bookie in named if not self._is_back(last, bookie)]
        if value.state is LedgerState.OPEN and not lost:
            return self._end_blocked(f"it is open: the copy of {', '.join(named)} is checked once it is closed")
        if value.state is LedgerState.OPEN and all(map(self._is_waited_for, lost)):
            why = f"it is open: its writer replaces {', '.join(lost)} at its next entry, or closes the ledger"
            return [*self.stop(), PostponeReplication(why, soon=True)]
        taken = (*last.ensemble, *self._cluster.leaving)
        spares = [bookie for bookie in self._cluster.writable if bookie not in taken]
        moved = [bookie for bookie in lost if bookie not in self._cluster.writable or bookie in self._cluster.leaving]
        if len(spares) < len(moved):
            names = ", ".join(moved)
            return self._end_blocked(f"it is open, and no bookie can take over from {names}: its writer is not fenced")
        if self._graced == last:
            self.phase = Phase.RECOVER
            return [RecoverLedger()]
        self.phase = Phase.GRACE
        return [ev.SetTimer("grace", self.config.grace_ms)]

    def _is_back(self, fragment: Fragment, bookie: BookieId) -> bool:
        return self._stays(fragment, bookie) and self._copy_of(fragment, bookie) in self._whole

    def _is_waited_for(self, bookie: BookieId) -> bool:
        """Return whether the repair can wait for the writer to replace this bookie. It can if the bookie is registered
        and its drain waits for writers. A drained bookie is read-only, so the writer replaces it at its next entry."""
        return bookie in self._cluster.patient and self._cluster.life_of(bookie) is not None

    def _grace_over(self) -> list[ReplicationEffect]:
        self._graced, self.phase = self._value.last_fragment, Phase.RECORD
        return self._read_again()

    def _recovered(self, error: BookKeeperError | None) -> list[ReplicationEffect]:
        if error is not None and not isinstance(error, NoSuchLedgerError):
            return self._end_blocked(f"it is open and cannot be recovered: {error}")
        self.phase = Phase.RECORD
        return self._read_again()

    def _read_again(self) -> list[ReplicationEffect]:
        return [ReadRecord()] if self._again() else self._end_blocked(CONTENDED)

    # --- a copy in place ---------------------------------------------------------------------------------------------
    def _begin_check(self, fragment: Fragment, index: int) -> list[ReplicationEffect]:
        self.phase, self._fragment, value = Phase.CHECK, fragment, self._value
        bookie, size = fragment.ensemble[index], self._value.ensemble_size
        first, last = fragment.first_entry_id, end_of(value, fragment.first_entry_id)
        if last is None:  # a bookie in limbo answers UNKNOWN even for an id far above the end
            first = last = ENTRY_ID_MAX - (ENTRY_ID_MAX - index) % size
        self._check = CopyCheck(
            self._digester(),
            bookie,
            index,
            first,
            last,
            ensemble_size=size,
            write_quorum=value.write_quorum_size,
            config=self.config,
            base=next(self._bases),
        )
        return self._after_check(self._check, list(self._check.start()))

    def _digester(self) -> Digester:
        value = self._value
        return Digester(value.entry_digest_type, value.password or b"", self.ledger_id)

    def _after_check(self, check: CopyCheck, effects: list[ReplicationEffect]) -> list[ReplicationEffect]:
        if not check.done:
            return effects
        assert self._fragment is not None
        first, self.checked = self._fragment.first_entry_id, self.checked + check.size
        effects += self._drop_part()
        copy = self._copy_of(self._fragment, check.bookie)
        if check.problem:
            return effects + self._block(first, f"{check.bookie} is registered and cannot be read: {check.problem}")
        if not self._has_end(self._fragment):
            (self._unfit if check.unsure else self._whole)[copy] = None
            return effects + self._look_at_cluster()
        if not check.lacking:
            self._whole[copy] = None
            return effects + self._look_at_cluster()
        if check.bookie not in self._cluster.writable:
            self._unfit[copy] = None  # the bookie takes no adds, so another bookie has to replace it
            return effects + self._look_at_cluster()
        self._lacking = check.lacking
        return effects + self._copy_range({check.index: check.bookie}, self._lacking.pop(0))

    # --- a copy elsewhere --------------------------------------------------------------------------------------------
    def _replace(self, fragment: Fragment, indices: list[int]) -> list[ReplicationEffect]:
        first = fragment.first_entry_id
        chosen = replacement(
            replace(self._value, fragments=(fragment,)),
            tuple(indices),
            self._cluster.writable,
            (*self._cluster.quarantined, *self.missing),
            self._random,
            gone=(*self._cluster.leaving, *self._failed),
            partly=True,
            landscape=self._cluster.landscape,
        )
        if isinstance(chosen, NotEnoughBookiesError):
            return self._block(first, f"no bookie can take over the fragment at {first} ({chosen.value})")
        targets = {index: chosen[index] for index in indices if chosen[index] != fragment.ensemble[index]}
        self._fragment, self._wanted = fragment, Fragment(first, chosen)
        self._lives = {bookie: self._cluster.life_of(bookie) for bookie in targets.values()}
        end = end_of(self._value, first)
        assert end is not None
        return self._copy_range(targets, EntryRange(first, end)) if first <= end else self._write()

    def _copy_range(self, targets: dict[int, BookieId], entries: EntryRange) -> list[ReplicationEffect]:
        assert self._fragment is not None
        self.phase = Phase.COPY
        self._copy = FragmentCopy(
            self._value,
            self._fragment,
            targets,
            entries.first,
            entries.last,
            digester=self._digester(),
            avoid=self.missing,
            config=self.config,
            new_session=self._new_session,
            base=next(self._bases),
            prefer=int(self._random.random() * self._value.ensemble_size),
        )
        return self._after_copy(self._copy, list(self._copy.start()))

    def _after_copy(self, copy: FragmentCopy, effects: list[ReplicationEffect]) -> list[ReplicationEffect]:
        if not copy.over:
            return effects
        assert self._fragment is not None
        first, in_place = self._fragment.first_entry_id, self._wanted is None
        effects += self._drop_part()
        if copy.error is not None:
            return effects + self._block(first, str(copy.error))
        if copy.failed:
            if in_place:
                names = ", ".join(copy.failed)
                return effects + self._block(first, f"{names} does not take the entries that it lacks")
            self._failed.update(dict.fromkeys(copy.failed))
            return effects + self._look_at_cluster()  # then other targets are chosen
        self.entries, self.size = self.entries + copy.entries, self.size + copy.size
        if not in_place:
            return effects + self._write()
        if self._lacking:
            return effects + self._copy_range(copy.targets, self._lacking.pop(0))
        self._whole.update((self._copy_of(self._fragment, bookie), None) for bookie in copy.targets.values())
        return effects + self._look_at_cluster()

    def _write(self) -> list[ReplicationEffect]:
        """Change the record. Every entry of the fragment is durable on the bookies that the record will name."""
        assert self.metadata is not None
        assert self._fragment is not None
        assert self._wanted is not None
        self.phase = Phase.WRITE
        fragments = tuple(self._wanted if f == self._fragment else f for f in self.metadata.value.fragments)
        return [ev.WriteMetadata(replace(self.metadata.value, fragments=fragments), self.metadata.version)]

    # --- ends --------------------------------------------------------------------------------------------------------
    def _drop_part(self) -> list[ReplicationEffect]:
        check, copy, self._check, self._copy = self._check, self._copy, None, None
        return [*(check.stop() if check else []), *(copy.stop() if copy else [])]

    def _block(self, first: EntryId, why: str) -> list[ReplicationEffect]:
        """Note what blocks this fragment, and read the record again before the next fragment. A deleted ledger blocks,
        too, because its entries cannot be read."""
        self._blocked[first] = why
        self.phase, self._fragment, self._wanted, self._lacking = Phase.RECORD, None, None, []
        return [ReadRecord()]

    def _end_blocked(self, why: str) -> list[ReplicationEffect]:
        return [*self.stop(), PostponeReplication(why)]

    def _finish(self, outcome: Outcome) -> list[ReplicationEffect]:
        return [*self.stop(), FinishReplication(outcome)]
