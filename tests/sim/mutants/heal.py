# SPDX-License-Identifier: Apache-2.0
"""Known defects of the repair of ledgers, put back into the production machines, for the profile *heal* to find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from bk_core.client.repairing import repair
from bk_core.errors import BookKeeperError
from bk_core.metadata.layout import mark_path
from bk_core.metadata.tree.tree import BadVersionError, NoNodeError
from bk_core.metadata.tree.underreplication import Underreplication
from bk_core.model import LedgerMetadata
from bk_core.protocol import events as ev
from bk_core.protocol.delivery import LaneState
from bk_core.protocol.recovery import LedgerRecovery
from bk_core.protocol.replication import machine as module
from bk_core.protocol.replication.absence import Absences
from bk_core.protocol.replication.check import CopyCheck
from bk_core.protocol.replication.copy import FragmentCopy
from bk_core.protocol.replication.events import ClusterRead, FinishReplication, Outcome, RecoverLedger
from bk_core.protocol.replication.machine import LedgerReplication, Phase
from bk_core.wire.lane.reasons import EntryRange
from bookie_server.autorecovery import own_copies
from bookie_server.autorecovery.auditor import Auditor
from bookie_server.autorecovery.suspects import OwnPart, Suspects
from tests.sim.mutants.exhaustive import patched
from tests.sim.store import SimStore

Planted = Callable[[], AbstractContextManager[None]]


def _property(owner: type, name: str, get: Callable[[Any], Any]) -> Planted:
    return lambda: patched((owner, name, property(get)))


def _method(owner: Any, name: str, value: Any) -> Planted:
    return lambda: patched((owner, name, value))


# --- copies ----------------------------------------------------------------------------------------------------------


def _is_sent(copy: FragmentCopy) -> bool:
    return copy._reader is None and not copy.failed


def failed_targets_count() -> AbstractContextManager[None]:
    """A target that fails is left out, and its copy counts."""
    step = FragmentCopy.step

    def mutant(self: FragmentCopy, event: Any) -> list[Any]:
        effects = step(self, event)
        self.failed.clear()
        return effects

    def done(self: FragmentCopy) -> bool:
        lanes = [self._delivery.lanes[index] for index in self.targets]
        return self._reader is None and all(
            lane.state is LaneState.FAILED or lane.watermark >= self._last for lane in lanes
        )

    return patched((FragmentCopy, "step", mutant), (FragmentCopy, "done", property(done)))


def an_entry_short() -> AbstractContextManager[None]:
    """The last entry of a fragment is not copied."""
    copy = LedgerReplication._copy_range

    def mutant(self: LedgerReplication, targets: dict[int, str], entries: EntryRange) -> list[Any]:
        return copy(self, targets, EntryRange(entries.first, max(entries.first, entries.last - 1)))

    return patched((LedgerReplication, "_copy_range", mutant))


def ends_at_the_first_id() -> AbstractContextManager[None]:
    """Only the first entry is looked at, as Apache's checker looks at the first and the last."""
    make = CopyCheck.__init__

    def mutant(self: CopyCheck, digester: Any, bookie: str, index: int, first: int, last: int, **options: Any) -> None:
        make(self, digester, bookie, index, first, min(first, last), **options)

    return patched((CopyCheck, "__init__", mutant))


def one_range_is_enough() -> AbstractContextManager[None]:
    """Of what a bookie lacks, the first range is copied."""
    after = LedgerReplication._after_copy

    def mutant(self: LedgerReplication, copy: FragmentCopy, effects: list[Any]) -> list[Any]:
        if copy.over:
            self._lacking = []
        return after(self, copy, effects)

    return patched((LedgerReplication, "_after_copy", mutant), (CopyCheck, "_note", _notes_apart))


def _notes_apart(self: CopyCheck, ids: Any) -> None:
    self.lacking += [EntryRange(entry, entry) for entry in ids.tolist()]


def unknown_is_present() -> AbstractContextManager[None]:
    """What a bookie does not know of is not missing."""
    step = CopyCheck.step

    def mutant(self: CopyCheck, event: Any) -> list[Any]:
        if isinstance(event, ev.ReadAnswered) and event.unknown:
            self.lacking, self._window, self._next = [], None, self._last + 1
            return []
        return step(self, event)

    return patched((CopyCheck, "step", mutant))


def unanswered_is_present() -> AbstractContextManager[None]:
    """A part of an answer is taken for all of it."""
    judge = CopyCheck._judge

    def mutant(self: CopyCheck, window: Any, through: int) -> list[Any]:
        last = window.last
        effects = judge(self, window, through)
        if through < last:
            self._next = last + 1
        return effects

    return patched((CopyCheck, "_judge", mutant))


def wrong_stripe() -> AbstractContextManager[None]:
    """A bookie is asked for another's entries."""
    make = CopyCheck.__init__

    def mutant(self: CopyCheck, digester: Any, bookie: str, index: int, *args: Any, **options: Any) -> None:
        make(self, digester, bookie, (index + 1) % options["ensemble_size"], *args, **options)

    return patched((CopyCheck, "__init__", mutant))


# --- the record ------------------------------------------------------------------------------------------------------


def written_before_it_is_copied() -> AbstractContextManager[None]:
    """The record names the new bookie first, and its copy is made then."""

    def mutant(self: LedgerReplication, targets: dict[int, str], entries: EntryRange) -> list[Any]:
        if self._wanted is None:
            return copy(self, targets, entries)
        return self._write()

    copy = LedgerReplication._copy_range
    return patched((LedgerReplication, "_copy_range", mutant))


def written_over_others() -> AbstractContextManager[None]:
    """After a conflict the old record is written over the new one."""

    def mutant(self: LedgerReplication, metadata: Any) -> list[Any]:
        if self.phase is Phase.WRITE:
            assert self.metadata is not None
            self.metadata = replace(self.metadata, version=metadata.version)
            return self._write()
        return read(self, metadata)

    read = LedgerReplication._record_read
    return patched((LedgerReplication, "_record_read", mutant))


def a_member_twice() -> AbstractContextManager[None]:
    """A bookie of the ensemble takes over."""

    def mutant(metadata: LedgerMetadata, indices: tuple[int, ...], *args: Any, **options: Any) -> tuple[str, ...]:
        ensemble = list(metadata.last_fragment.ensemble)
        for index in indices:
            ensemble[index] = ensemble[(index + 1) % len(ensemble)]
        return tuple(ensemble)

    return patched((module, "replacement", mutant))


def an_open_end_is_copied() -> AbstractContextManager[None]:
    """The last fragment of an open ledger counts as empty: nothing is copied, its writer not fenced."""
    end = module.end_of

    def mutant(value: LedgerMetadata, first: int) -> int:
        found = end(value, first)
        return first - 1 if found is None else found

    return patched((module, "end_of", mutant))


def lost_answers_are_success() -> AbstractContextManager[None]:
    """A change whose answer was lost counts as made."""
    failed = LedgerReplication._call_failed

    def mutant(self: LedgerReplication, error: Any) -> list[Any]:
        if self.phase is Phase.WRITE:
            assert self._fragment is not None
            self._whole.update((self._copy_of(self._fragment, bookie), None) for bookie in self._fragment.ensemble)
            return self._finish(Outcome.REPLICATED)
        return failed(self, error)

    return patched((LedgerReplication, "_call_failed", mutant))


# --- marks -----------------------------------------------------------------------------------------------------------


def any_version_goes() -> AbstractContextManager[None]:
    """A mark is removed, whoever marked again meanwhile."""
    remove = Underreplication.remove_underreplicated

    def mutant(self: Underreplication, ledger_id: int, version: int) -> bool:
        found = self.read_underreplicated(ledger_id)
        return remove(self, ledger_id, version if found is None else found.version)

    return patched((Underreplication, "remove_underreplicated", mutant))


def limbo_is_ignored() -> AbstractContextManager[None]:
    """A bookie that is registered has its copy."""

    def mutant(self: LedgerReplication, fragment: Any, index: int) -> list[Any]:
        self._whole[self._copy_of(fragment, fragment.ensemble[index])] = None
        return self._look_at_cluster()

    return patched((LedgerReplication, "_begin_check", mutant))


def open_ledgers_are_done_with() -> AbstractContextManager[None]:
    """The mark of a ledger goes that its writer, who made the mark, is about to close."""
    end = LedgerReplication._at_the_end

    def mutant(self: LedgerReplication, value: LedgerMetadata) -> list[Any]:
        return end(self, value) if value.is_closed else self._finish(Outcome.REPLICATED)

    return patched((LedgerReplication, "_at_the_end", mutant))


def what_is_blocked_is_done_with() -> AbstractContextManager[None]:
    """A fragment that cannot be repaired is left out."""

    def mutant(self: LedgerReplication, why: str) -> list[Any]:
        return self._finish(Outcome.REPLICATED)

    return patched((LedgerReplication, "_end_blocked", mutant))


def a_deleted_ledger_is_kept() -> AbstractContextManager[None]:
    """What was deleted is to be repaired for ever."""
    finish = LedgerReplication._finish

    def mutant(self: LedgerReplication, outcome: Outcome) -> list[Any]:
        return self._end_blocked("gone") if outcome is Outcome.DELETED else finish(self, outcome)

    return patched((LedgerReplication, "_finish", mutant))


# --- bookies ---------------------------------------------------------------------------------------------------------


def nobody_is_waited_for(self: Absences, known: Any, registered: Any, now_ms: float, delay_ms: float) -> Any:
    return tuple(sorted(set(known).difference(registered)))


def fenced_at_once() -> AbstractContextManager[None]:
    """The writer has no time to replace the bookie itself."""
    end = LedgerReplication._at_the_end

    def mutant(self: LedgerReplication, value: LedgerMetadata) -> list[Any]:
        self._graced = value.last_fragment
        return end(self, value)

    return patched((LedgerReplication, "_at_the_end", mutant))


def never_fenced() -> AbstractContextManager[None]:
    """Ledgers that nobody closes stay under-replicated: the grace period begins again and again."""
    step = LedgerReplication.step

    def mutant(self: LedgerReplication, event: Any) -> list[Any]:
        effects = step(self, event)
        if any(isinstance(effect, RecoverLedger) for effect in effects):
            return [*self.stop(), FinishReplication(Outcome.REPLICATED)]
        return effects

    return patched((LedgerReplication, "step", mutant))


# --- bookies that leave ----------------------------------------------------------------------------------------------


def _nobody_waits(self: LedgerReplication, bookie: str) -> bool:
    return False


def who_leaves_stays() -> AbstractContextManager[None]:
    """A bookie that is drained has its copies, so it keeps them."""
    stays = LedgerReplication._stays

    def mutant(self: LedgerReplication, fragment: Any, bookie: str) -> bool:
        self._cluster = replace(self._cluster, leaving=())
        return stays(self, fragment, bookie)

    return patched((LedgerReplication, "_stays", mutant))


def who_leaves_takes_copies() -> AbstractContextManager[None]:
    """A bookie that is drained is chosen as a target."""
    choose = module.replacement

    def mutant(metadata: LedgerMetadata, indices: tuple[int, ...], writable: Any, *args: Any, **options: Any) -> Any:
        options["gone"] = ()
        return choose(metadata, indices, writable, *args, **options)

    return patched((module, "replacement", mutant))


def without_the_lock() -> AbstractContextManager[None]:
    """The record is changed although the lock is lost: meanwhile the target gave up what was copied to it."""

    def mutant(self: SimStore, client: str, ledger_id: int, metadata: Any, version: int, feed: Any, _: Any) -> None:
        self.write(client, ledger_id, metadata, version, feed)

    return patched((SimStore, "write_repaired", mutant))


def any_lock_will_do() -> AbstractContextManager[None]:
    """Who finds a lock has it."""
    lock = Underreplication.lock_underreplicated

    def mutant(self: Underreplication, ledger_id: int, owner: str) -> bool:
        lock(self, ledger_id, owner)
        return True

    return patched((Underreplication, "lock_underreplicated", mutant))


def removed_without_the_lock() -> AbstractContextManager[None]:
    """The version alone decides whether a mark goes: one that was made again has version 0 like the first."""

    def mutant(self: Underreplication, ledger_id: int, version: int) -> bool:
        try:
            self._tree.delete(self._marks + mark_path(ledger_id), version)
        except (BadVersionError, NoNodeError):
            return False
        return True

    return patched((Underreplication, "remove_underreplicated", mutant))


def _kept(store: Any, owner: str, in_hand: Any) -> Any:
    return store.underreplication_locks().keys()


def _unsynced(store: Any, ledger_id: int) -> Any:
    return store.read_ledger(ledger_id)


def _enabled(self: Underreplication) -> bool:
    return True


# --- auditors --------------------------------------------------------------------------------------------------------


def away_is_lost() -> AbstractContextManager[None]:
    """A worker gives a bookie that another reason has marked no time to come back."""
    step = LedgerReplication.step

    def mutant(self: LedgerReplication, event: Any) -> list[Any]:
        return step(self, replace(event, away=()) if isinstance(event, ClusterRead) else event)

    return patched((LedgerReplication, "step", mutant))


def who_came_back_was_away() -> AbstractContextManager[None]:
    """An absence goes on over a return."""
    lost = Absences.lost

    def mutant(self: Absences, known: Any, registered: Any, now_ms: float, delay_ms: float) -> Any:
        before = dict(self._since)
        found = lost(self, known, registered, now_ms, delay_ms)
        self._since = {**before, **self._since}
        return found

    return patched((Absences, "lost", mutant))


def _audited_once(self: Auditor, wanted: Any) -> bool:
    return self._scanned is None


def a_scan_is_whole() -> AbstractContextManager[None]:
    """What the store did not answer counts as looked at."""
    scan = Auditor._scan

    def mutant(self: Auditor, wanted: Any) -> bool:
        with contextlib.suppress(BookKeeperError):
            scan(self, wanted)
        return True

    return patched((Auditor, "_scan", mutant))


def only_the_lost() -> AbstractContextManager[None]:
    """Nobody but the command marks what a bookie that is drained has."""
    scan = Auditor._scan

    def mutant(self: Auditor, wanted: Any) -> bool:
        return scan(self, [bookie for bookie in wanted if bookie in self._presence.look().lost])

    return patched((Auditor, "_scan", mutant))


# --- own copies ------------------------------------------------------------------------------------------------------


def _absent_only(self: OwnPart, trailer: Any) -> list[Any]:
    return [] if self.last is None else [gap for gap in trailer.absent if self._holds_any(gap.first, gap.last)]


def marked_once() -> AbstractContextManager[None]:
    """A copy is no suspect any more once it is marked."""

    def mutant(self: Suspects, ledger_id: int, now_s: float, *, tried: bool) -> None:
        self.forget(ledger_id)

    return patched((Suspects, "again", mutant))


def a_look_is_the_last() -> AbstractContextManager[None]:
    """A suspect that the store would not let the bookie look at is forgotten."""

    def mutant(self: Suspects, now_s: float, most: int) -> list[int]:
        found = due(self, now_s, most)
        self._queue = [entry for entry in self._queue if entry[1] not in found]
        return found

    due = Suspects.due
    return patched((Suspects, "due", mutant))


def anothers_part() -> AbstractContextManager[None]:
    """A bookie looks for the entries of its neighbour."""
    parts = own_copies.own_parts

    def mutant(record: LedgerMetadata, bookie_id: str) -> list[OwnPart]:
        found = parts(record, bookie_id)
        return [replace(part, index=(part.index + 1) % part.ensemble_size) for part in found]

    return patched((own_copies, "own_parts", mutant))


def _nobody_lost(self: LedgerReplication) -> list[Any]:
    self._placed = {}
    return []


def _nobody_lagged(recovery: LedgerRecovery) -> list[str]:
    return []


MUTANTS: tuple[tuple[str, str, Planted], ...] = (
    ("a copy is present once it is sent", "I15", _property(FragmentCopy, "done", _is_sent)),
    ("a target that failed has its copy", "I15", failed_targets_count),
    ("a fragment's copy ends an entry early", "I15", an_entry_short),
    ("only the first entry of a copy is looked at", "P4", ends_at_the_first_id),
    ("one missing range of several is copied", "P4", one_range_is_enough),
    ("unknown entries are present", "MUST4", unknown_is_present),
    ("a partial answer is a whole one", "P4", unanswered_is_present),
    ("a copy is checked by another's stripe", "I15", wrong_stripe),
    ("the record names a bookie before it has the copy", "I15", written_before_it_is_copied),
    ("a stale record is written over a newer one", "MUST7", written_over_others),
    ("a target is in the ensemble already", "I4", a_member_twice),
    ("an open fragment is repaired without a fence", "MUST4", an_open_end_is_copied),
    ("a change whose answer was lost is made", "MUST8", lost_answers_are_success),
    ("a mark is removed in any version", "P8", any_version_goes),
    ("limbo is ignored", "S8", limbo_is_ignored),
    ("the mark of an open ledger is removed", "P8", open_ledgers_are_done_with),
    ("what blocks a repair is ignored", "P8", what_is_blocked_is_done_with),
    ("a deleted ledger is repaired for ever", "P8", a_deleted_ledger_is_kept),
    ("the delay is ignored", "delay", _method(Absences, "lost", nobody_is_waited_for)),
    ("the grace period is ignored", "grace", fenced_at_once),
    ("an open ledger that is to be fenced is left", "P8", never_fenced),
    ("a bookie that is drained keeps its copies", "drain", who_leaves_stays),
    ("a bookie that is drained takes copies", "drain", who_leaves_takes_copies),
    ("a drain fences writers though it has time", "drain", _method(LedgerReplication, "_is_waited_for", _nobody_waits)),
    ("a record is changed without the lock", "I15", without_the_lock),
    ("a lock of another is one's own", "I15", any_lock_will_do),
    ("a mark is removed without the lock", "P8", removed_without_the_lock),
    ("a lock that could not be given back stays", "locks", _method(repair, "locked_ledgers", _kept)),
    ("a record is read from a server that lags", "stale", _method(repair, "newest_record", _unsynced)),
    ("a pause of repairs is ignored", "pause", _method(Underreplication, "replication_enabled", _enabled)),
    ("a worker does not wait for a bookie", "delay", away_is_lost),
    ("an absence goes on over a return", "delay", who_came_back_was_away),
    ("an auditor looks for lost bookies once", "P8", _method(Auditor, "_is_due", _audited_once)),
    ("an audit that was cut short is a whole one", "P8", a_scan_is_whole),
    ("the auditor marks lost bookies alone", "drain", only_the_lost),
    ("a bookie knows nothing of what it lacks", "S5", _method(OwnPart, "lacking", _absent_only)),
    ("a bookie marks its copy once", "S5", marked_once),
    ("a bookie looks at its copy once", "S5", a_look_is_the_last),
    ("a bookie looks for its neighbour's entries", "S5", anothers_part),
    ("a target that lost its disk is not marked", "S8", _method(LedgerReplication, "_mark_who_lost_it", _nobody_lost)),
    ("a recovery marks nobody who lagged", "P8", _method(LedgerRecovery, "_lagging", _nobody_lagged)),
)  # fmt: skip
"""Name, rule, context."""

STORIES = {
    "a target that lost its disk is not marked": "test_target_that_lost_its_disk_before_the_record_named_it_is_marked",
    "a mark is removed without the lock": "test_mark_that_was_made_again_is_not_removed_by_a_worker_that_lost_its_lock",
    "a bookie that is drained takes copies": "test_bookie_that_is_drained_is_replaced_and_serves_as_a_source",
    "a target that failed has its copy": "test_target_that_fails_is_not_chosen_again",
    "a stale record is written over a newer one": "test_copy_of_a_fragment_that_another_repaired_is_given_up",
    "a recovery marks nobody who lagged": "test_a_bookie_that_lagged_when_the_writer_died_is_marked_though_late",
    "a change whose answer was lost is made": "test_change_whose_answer_was_lost_and_not_made_is_made_again",
}
"""Mutants that random schedules show too rarely, and what shows them."""
