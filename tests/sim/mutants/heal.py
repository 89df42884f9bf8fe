# SPDX-License-Identifier: Apache-2.0
"""Known defects of the repair of ledgers, for the profile *heal* to find. Random schedules show some too rarely: those
are ``shown_by`` a story of ``tests/protocol``."""

from __future__ import annotations

import contextlib
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
from tests.sim.mutants.mutant import Mutants, changed
from tests.sim.store import SimStore

MUTANTS = Mutants()


# --- copies ----------------------------------------------------------------------------------------------------------


@MUTANTS.instead(FragmentCopy, "done", "a copy is present once it is sent", "I15")
def is_sent(_: Any, self: FragmentCopy) -> bool:
    return self._reader is None and not self.failed


def _forget_the_failed(step: Any, self: FragmentCopy, event: Any) -> list[Any]:
    effects = step(self, event)
    self.failed.clear()
    return effects


@MUTANTS.instead(
    FragmentCopy, "done", "a target that failed has its copy", "I15",
    changed(FragmentCopy, "step", _forget_the_failed), shown_by="test_target_that_fails_is_not_chosen_again",
)  # fmt: skip
def failed_targets_count(_: Any, self: FragmentCopy) -> bool:
    """A target that fails is left out, and its copy counts."""
    lanes = [self._delivery.lanes[index] for index in self.targets]
    return self._reader is None and all(
        lane.state is LaneState.FAILED or lane.watermark >= self._last for lane in lanes
    )


@MUTANTS.instead(LedgerReplication, "_copy_range", "a fragment's copy ends an entry early", "I15")
def an_entry_short(copy: Any, self: LedgerReplication, targets: dict[int, str], entries: EntryRange) -> list[Any]:
    """The last entry of a fragment is not copied."""
    return copy(self, targets, EntryRange(entries.first, max(entries.first, entries.last - 1)))


@MUTANTS.instead(CopyCheck, "__init__", "only the first entry of a copy is looked at", "P4")
def ends_at_the_first_id(make: Any, self: CopyCheck, *args: Any, **options: Any) -> None:
    """Only the first entry is looked at, as Apache's checker looks at the first and the last."""
    *others, first, last = args
    make(self, *others, first, min(first, last), **options)


def _note_apart(self: CopyCheck, ids: Any) -> None:
    self.lacking += [EntryRange(entry, entry) for entry in ids.tolist()]


@MUTANTS.instead(
    LedgerReplication, "_after_copy", "one missing range of several is copied", "P4", (CopyCheck, "_note", _note_apart)
)
def one_range_is_enough(after: Any, self: LedgerReplication, copy: FragmentCopy, effects: list[Any]) -> list[Any]:
    """Of what a bookie lacks, the first range is copied."""
    if copy.over:
        self._lacking = []
    return after(self, copy, effects)


@MUTANTS.instead(CopyCheck, "step", "unknown entries are present", "MUST4")
def unknown_is_present(step: Any, self: CopyCheck, event: Any) -> list[Any]:
    """What a bookie does not know of is not missing."""
    if isinstance(event, ev.ReadAnswered) and event.unknown:
        self.lacking, self._window, self._next = [], None, self._last + 1
        return []
    return step(self, event)


@MUTANTS.instead(CopyCheck, "_judge", "a partial answer is a whole one", "P4")
def unanswered_is_present(judge: Any, self: CopyCheck, window: Any, through: int) -> list[Any]:
    """A part of an answer is taken for all of it."""
    last = window.last
    effects = judge(self, window, through)
    if through < last:
        self._next = last + 1
    return effects


@MUTANTS.instead(CopyCheck, "__init__", "a copy is checked by another's stripe", "I15")
def wrong_stripe(make: Any, self: CopyCheck, digester: Any, bookie: str, index: int, *args: Any, **more: Any) -> None:
    """A bookie is asked for another's entries."""
    make(self, digester, bookie, (index + 1) % more["ensemble_size"], *args, **more)


# --- the record ------------------------------------------------------------------------------------------------------


@MUTANTS.instead(LedgerReplication, "_copy_range", "the record names a bookie before it has the copy", "I15")
def written_before_it_is_copied(copy: Any, self: LedgerReplication, *args: Any) -> list[Any]:
    """The record names the new bookie first, and its copy is made then."""
    return copy(self, *args) if self._wanted is None else self._write()


@MUTANTS.instead(
    LedgerReplication, "_record_read", "a stale record is written over a newer one", "MUST7",
    shown_by="test_copy_of_a_fragment_that_another_repaired_is_given_up",
)  # fmt: skip
def written_over_others(read: Any, self: LedgerReplication, metadata: Any) -> list[Any]:
    """After a conflict the old record is written over the new one."""
    if self.phase is Phase.WRITE:
        assert self.metadata is not None
        self.metadata = replace(self.metadata, version=metadata.version)
        return self._write()
    return read(self, metadata)


@MUTANTS.instead(module, "replacement", "a target is in the ensemble already", "I4")
def a_member_twice(_: Any, metadata: LedgerMetadata, indices: tuple[int, ...], *args: Any, **options: Any) -> Any:
    """A bookie of the ensemble takes over."""
    ensemble = list(metadata.last_fragment.ensemble)
    for index in indices:
        ensemble[index] = ensemble[(index + 1) % len(ensemble)]
    return tuple(ensemble)


@MUTANTS.instead(module, "end_of", "an open fragment is repaired without a fence", "MUST4")
def an_open_end_is_copied(end: Any, value: LedgerMetadata, first: int) -> int:
    """The last fragment of an open ledger counts as empty: nothing is copied, its writer not fenced."""
    found = end(value, first)
    return first - 1 if found is None else found


@MUTANTS.instead(
    LedgerReplication, "_call_failed", "a change whose answer was lost is made", "MUST8",
    shown_by="test_change_whose_answer_was_lost_and_not_made_is_made_again",
)  # fmt: skip
def lost_answers_are_success(failed: Any, self: LedgerReplication, error: Any) -> list[Any]:
    """A change whose answer was lost counts as made."""
    if self.phase is Phase.WRITE:
        assert self._fragment is not None
        self._whole.update((self._copy_of(self._fragment, bookie), None) for bookie in self._fragment.ensemble)
        return self._finish(Outcome.REPLICATED)
    return failed(self, error)


# --- marks -----------------------------------------------------------------------------------------------------------


@MUTANTS.instead(Underreplication, "remove_underreplicated", "a mark is removed in any version", "P8")
def any_version_goes(remove: Any, self: Underreplication, ledger_id: int, version: int) -> bool:
    """A mark is removed, whoever marked again meanwhile."""
    found = self.read_underreplicated(ledger_id)
    return remove(self, ledger_id, version if found is None else found.version)


@MUTANTS.instead(LedgerReplication, "_begin_check", "limbo is ignored", "S8")
def limbo_is_ignored(_: Any, self: LedgerReplication, fragment: Any, index: int) -> list[Any]:
    """A bookie that is registered has its copy."""
    self._whole[self._copy_of(fragment, fragment.ensemble[index])] = None
    return self._look_at_cluster()


@MUTANTS.instead(LedgerReplication, "_at_the_end", "the mark of an open ledger is removed", "P8")
def open_ledgers_are_done_with(end: Any, self: LedgerReplication, value: LedgerMetadata) -> list[Any]:
    """The mark of a ledger goes that its writer, who made the mark, is about to close."""
    return end(self, value) if value.is_closed else self._finish(Outcome.REPLICATED)


@MUTANTS.instead(LedgerReplication, "_end_blocked", "what blocks a repair is ignored", "P8")
def what_is_blocked_is_done_with(_: Any, self: LedgerReplication, why: str) -> list[Any]:
    """A fragment that cannot be repaired is left out."""
    return self._finish(Outcome.REPLICATED)


@MUTANTS.instead(LedgerReplication, "_finish", "a deleted ledger is repaired for ever", "P8")
def a_deleted_ledger_is_kept(finish: Any, self: LedgerReplication, outcome: Outcome) -> list[Any]:
    """What was deleted is to be repaired for ever."""
    return self._end_blocked("gone") if outcome is Outcome.DELETED else finish(self, outcome)


# --- bookies ---------------------------------------------------------------------------------------------------------


@MUTANTS.instead(Absences, "lost", "the delay is ignored", "delay")
def nobody_is_waited_for(_: Any, self: Absences, known: Any, registered: Any, now_ms: float, delay_ms: float) -> Any:
    return tuple(sorted(set(known).difference(registered)))


@MUTANTS.instead(LedgerReplication, "_at_the_end", "the grace period is ignored", "grace")
def fenced_at_once(end: Any, self: LedgerReplication, value: LedgerMetadata) -> list[Any]:
    """The writer has no time to replace the bookie itself."""
    self._graced = value.last_fragment
    return end(self, value)


@MUTANTS.instead(LedgerReplication, "step", "an open ledger that is to be fenced is left", "P8")
def never_fenced(step: Any, self: LedgerReplication, event: Any) -> list[Any]:
    """Ledgers that nobody closes stay under-replicated: the grace period begins again and again."""
    effects = step(self, event)
    if any(isinstance(effect, RecoverLedger) for effect in effects):
        return [*self.stop(), FinishReplication(Outcome.REPLICATED)]
    return effects


# --- bookies that leave ----------------------------------------------------------------------------------------------


@MUTANTS.instead(LedgerReplication, "_stays", "a bookie that is drained keeps its copies", "drain")
def who_leaves_stays(stays: Any, self: LedgerReplication, fragment: Any, bookie: str) -> bool:
    """A bookie that is drained has its copies, so it keeps them."""
    self._cluster = replace(self._cluster, leaving=())
    return stays(self, fragment, bookie)


@MUTANTS.instead(
    module, "replacement", "a bookie that is drained takes copies", "drain",
    shown_by="test_bookie_that_is_drained_is_replaced_and_serves_as_a_source",
)  # fmt: skip
def who_leaves_takes_copies(choose: Any, *args: Any, **options: Any) -> Any:
    """A bookie that is drained is chosen as a target."""
    return choose(*args, **{**options, "gone": ()})


@MUTANTS.instead(SimStore, "write_repaired", "a record is changed without the lock", "I15")
def without_the_lock(_: Any, self: SimStore, *args: Any) -> None:
    """The record is changed although the lock is lost: meanwhile the target gave up what was copied to it."""
    *written, _lock = args
    self.write(*written)


@MUTANTS.instead(Underreplication, "lock_underreplicated", "a lock of another is one's own", "I15")
def any_lock_will_do(lock: Any, self: Underreplication, ledger_id: int, owner: str) -> bool:
    """Who finds a lock has it."""
    lock(self, ledger_id, owner)
    return True


@MUTANTS.instead(
    Underreplication, "remove_underreplicated", "a mark is removed without the lock", "P8",
    shown_by="test_mark_that_was_made_again_is_not_removed_by_a_worker_that_lost_its_lock",
)  # fmt: skip
def removed_without_the_lock(_: Any, self: Underreplication, ledger_id: int, version: int) -> bool:
    """The version alone decides whether a mark goes: one that was made again has version 0 like the first."""
    try:
        self._tree.delete(self._marks + mark_path(ledger_id), version)
    except (BadVersionError, NoNodeError):
        return False
    return True


@MUTANTS.instead(repair, "locked_ledgers", "a lock that could not be given back stays", "locks")
def kept(_: Any, store: Any, owner: str, in_hand: Any) -> Any:
    return store.underreplication_locks().keys()


MUTANTS.add(
    "a drain fences writers though it has time", "drain",
    (LedgerReplication, "_is_waited_for", lambda self, bookie: False),
)  # fmt: skip
MUTANTS.add(
    "a record is read from a server that lags", "stale",
    (repair, "newest_record", lambda store, ledger_id: store.read_ledger(ledger_id)),
)  # fmt: skip
MUTANTS.add("a pause of repairs is ignored", "pause", (Underreplication, "replication_enabled", lambda self: True))


# --- auditors --------------------------------------------------------------------------------------------------------


@MUTANTS.instead(LedgerReplication, "step", "a worker does not wait for a bookie", "delay")
def away_is_lost(step: Any, self: LedgerReplication, event: Any) -> list[Any]:
    """A worker gives a bookie that another reason has marked no time to come back."""
    return step(self, replace(event, away=()) if isinstance(event, ClusterRead) else event)


@MUTANTS.instead(Absences, "lost", "an absence goes on over a return", "delay")
def who_came_back_was_away(lost: Any, self: Absences, *args: Any) -> Any:
    before = dict(self._since)
    found = lost(self, *args)
    self._since = {**before, **self._since}
    return found


@MUTANTS.instead(Auditor, "_is_due", "an auditor looks for lost bookies once", "P8")
def audited_once(_: Any, self: Auditor, wanted: Any) -> bool:
    return self._scanned is None


@MUTANTS.instead(Auditor, "_scan", "an audit that was cut short is a whole one", "P8")
def a_scan_is_whole(scan: Any, self: Auditor, wanted: Any) -> bool:
    """What the store did not answer counts as looked at."""
    with contextlib.suppress(BookKeeperError):
        scan(self, wanted)
    return True


@MUTANTS.instead(Auditor, "_scan", "the auditor marks lost bookies alone", "drain")
def only_the_lost(scan: Any, self: Auditor, wanted: Any) -> bool:
    """Nobody but the command marks what a bookie that is drained has."""
    return scan(self, [bookie for bookie in wanted if bookie in self._presence.look().lost])


# --- own copies ------------------------------------------------------------------------------------------------------


@MUTANTS.instead(OwnPart, "lacking", "a bookie knows nothing of what it lacks", "S5")
def absent_only(_: Any, self: OwnPart, trailer: Any) -> list[Any]:
    return [] if self.last is None else [gap for gap in trailer.absent if self._holds_any(gap.first, gap.last)]


@MUTANTS.instead(Suspects, "again", "a bookie marks its copy once", "S5")
def marked_once(_: Any, self: Suspects, ledger_id: int, now_s: float, *, tried: bool) -> None:
    """A copy is no suspect any more once it is marked."""
    self.forget(ledger_id)


@MUTANTS.instead(Suspects, "due", "a bookie looks at its copy once", "S5")
def a_look_is_the_last(due: Any, self: Suspects, now_s: float, most: int) -> list[int]:
    """A suspect that the store would not let the bookie look at is forgotten."""
    found = due(self, now_s, most)
    self._queue = [entry for entry in self._queue if entry[1] not in found]
    return found


@MUTANTS.instead(own_copies, "own_parts", "a bookie looks for its neighbour's entries", "S5")
def anothers_part(parts: Any, record: LedgerMetadata, bookie_id: str) -> list[OwnPart]:
    """A bookie looks for the entries of its neighbour."""
    found = parts(record, bookie_id)
    return [replace(part, index=(part.index + 1) % part.ensemble_size) for part in found]


@MUTANTS.instead(
    LedgerReplication, "_mark_who_lost_it", "a target that lost its disk is not marked", "S8",
    shown_by="test_target_that_lost_its_disk_before_the_record_named_it_is_marked",
)  # fmt: skip
def nobody_lost(_: Any, self: LedgerReplication) -> list[Any]:
    self._placed = {}
    return []


MUTANTS.add(
    "a recovery marks nobody who lagged", "P8",
    (LedgerRecovery, "_lagging", lambda self: []),
    shown_by="test_a_bookie_that_lagged_when_the_writer_died_is_marked_though_late",
)  # fmt: skip
