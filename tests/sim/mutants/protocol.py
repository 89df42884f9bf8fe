# SPDX-License-Identifier: Apache-2.0
"""Known defects put back into the production machines, for random schedules and scripts to find.

What the exhaustive search finds is in :mod:`tests.sim.mutants.exhaustive`; storage and logs have their own. A mutant
that random schedules would show too rarely is shown by a script of :mod:`tests.sim.scripts`: the few steps to it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bk_core import quorum
from bk_core.client.reading.shared_read import SharedRead
from bk_core.entries.frame import decode_frame
from bk_core.errors import Outcome
from bk_core.metadata.tree.ledgers import Ledgers
from bk_core.model import NO_ENTRY, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol import refusals, writer
from bk_core.protocol.answers import Answer, Window
from bk_core.protocol.delivery import Delivery
from bk_core.protocol.ends import lac
from bk_core.protocol.ends.follower import LedgerFollower
from bk_core.protocol.ends.lac import LacQuery
from bk_core.protocol.keeper import SessionKeeper
from bk_core.protocol.lone_entries import LoneEntries
from bk_core.protocol.reader import RangeRead
from bk_core.protocol.recovery import LedgerRecovery, Phase
from bk_core.protocol.write_back import WriteBack
from bk_core.protocol.writer import LedgerWrite, WriterState
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.machine.adds import Adds
from bookie_server.machine.requests import Requests
from tests.sim.mutants.mutant import Mutants, changed

MUTANTS = Mutants()

_NOTHING_BEHIND = (Delivery, "behind", lambda self: ())


# --- recovery --------------------------------------------------------------------------------------------------------


@MUTANTS.instead(
    LacQuery, "__init__", "D2", "recovery starts at the last fragment at the lowest", shown_by="empty last fragment"
)
def no_floor(make: Any, self: LacQuery, *args: Any, **options: Any) -> None:
    """D2: recovery starts at what the bookies answer, below the last fragment's first entry."""
    make(self, *args, **options)
    self.lac = NO_ENTRY


_after_write_back = LedgerRecovery._after_write_back


def _heard_early(heard: Any, self: LedgerRecovery, event: Any) -> list[Any]:
    if isinstance(event, ev.MetadataWritten) and self.phase in (Phase.READ, Phase.DRAIN):
        self.metadata, self._epoch = event.metadata, event.metadata.version
        return _after_write_back(self, [])
    return heard(self, event)


@MUTANTS.instead(
    LedgerRecovery, "_after_write_back", "D3", "recovery publishes no change before the close",
    changed(LedgerRecovery, "_metadata_event", _heard_early),
)  # fmt: skip
def changes_are_published_early(after: Any, self: LedgerRecovery, effects: list[Any]) -> list[Any]:
    """D3: an ensemble change of recovery reaches the store before the close."""
    back = self._write_back
    is_changed = back is not None and self.metadata is not None and back.metadata != self.metadata.value
    if is_changed and self.phase in (Phase.READ, Phase.DRAIN) and not getattr(back, "published", False):
        back.published = True
        return [*effects, ev.WriteMetadata(back.metadata, self._epoch)]
    return after(self, effects)


@MUTANTS.instead(LedgerRecovery, "_ask", "D4", "recovery reads the ensemble it began with", shown_by="reads follow")
def reads_follow_the_new_ensemble(ask: Any, self: LedgerRecovery, index: int, first: int, last: int) -> Any:
    frozen, back = self.frozen, self._write_back
    if back is not None:
        self.frozen = back.metadata
    try:
        return ask(self, index, first, last)
    finally:
        self.frozen = frozen


@MUTANTS.instead(LedgerRecovery, "_metadata_read", "P7-epoch", "a close needs its own epoch")
def close_without_the_epoch(read: Any, self: LedgerRecovery, metadata: Any) -> list[Any]:
    """P7: whoever lost the race closes over the new version, with its own view."""
    if self.phase is Phase.CLOSE:
        self._epoch = metadata.version
        return self._write_close()
    return read(self, metadata)


@MUTANTS.instead(LedgerRecovery, "_decide", "D15", "enough denials end a recovery", shown_by="hung bookie")
def recovery_waits_for_everybody(decide: Any, self: LedgerRecovery, window: Window) -> list[Any]:
    """D15: an entry that is denied by enough still waits for a bookie that hangs."""
    return decide(self, window) if window.all_finished else []


@MUTANTS.instead(LedgerRecovery, "_open_window", "P7-window", "recovery reads on behind its first window")
def no_window_after_the_first(open_window: Any, self: LedgerRecovery, first: int) -> list[Any]:
    """A recovery that takes the end of its first window for the end of the ledger."""
    return open_window(self, first) if self._window is None else self._end_found()


@MUTANTS.instead(WriteBack, "finished", "P7-copies", "what misses entries is marked", _NOTHING_BEHIND)
def write_back_stops_at_qa(_: Any, self: WriteBack) -> bool:
    """P7: what the third copy misses is neither written nor marked."""
    return self._complete and not self._replacing and self.delivery.confirmed() == self.delivery.last_sent


# P7: a recoverer that meets another begins again at once, and bumps the other's epoch.
MUTANTS.add(
    "P7-back-off", "recoverers give way to each other",
    (LedgerRecovery, "_wait", lambda self: self._begin_attempt()), shown_by="two recoverers",
)  # fmt: skip


# --- answers ---------------------------------------------------------------------------------------------------------


@MUTANTS.instead(Window, "finish", "P4", "what was not answered is not denied")
def omission_is_absence(finish: Any, self: Window, event: ev.ReadAnswered) -> None:
    """P4: what an answer did not reach counts as denied."""
    through = event.answered_through
    if through < self.last:
        gap = EntryRange(through + 1, self.last)
        event = replace(event, answered_through=self.last, absent=(*event.absent, gap))
    finish(self, event)


@MUTANTS.instead(Window, "finish", "D9-client", "UNKNOWN is no denial")
def unknown_is_absence(finish: Any, self: Window, event: ev.ReadAnswered) -> None:
    """D9, MUST 4: UNKNOWN counts as denied."""
    finish(self, replace(event, absent=(*event.absent, *event.unknown), unknown=()))


@MUTANTS.instead(Window, "fail", "P4-cut", "a cut answer denies nothing")
def cut_answers_are_negative(_: Any, self: Window, request: int, problem: str) -> None:
    """P4: a stream cut before its trailer denies what did not arrive."""
    answer: Answer = self.answers[request]
    answer.through, answer.absent = self.last, (EntryRange(answer.first, self.last),)


_ANY_ENTRY = (lac, "one_entry", lambda frame, digester: decode_frame(frame))


@MUTANTS.instead(lac, "parse_lac_body", "P5", "a LAC is evidence only when digested", _ANY_ENTRY)
def unverified_lac(_: Any, data: bytes, digester: Any) -> int:
    """P5: the LAC is taken from bytes that nobody digested."""
    return int.from_bytes(data[8:16], "big", signed=True)


# --- writer ----------------------------------------------------------------------------------------------------------


@MUTANTS.instead(LedgerWrite, "_write_change", "D11-random", "no ack under an ensemble that is not persisted")
def counted_before_the_store_has_it(write: Any, self: LedgerWrite, change: Any) -> list[Any]:
    """D11: acks count under an ensemble that is not persisted."""
    effects = write(self, change)
    return [*effects, *self._change_written(Versioned(change.intent, self.metadata.version + 1))]


@MUTANTS.instead(LedgerWrite, "_change_written", "D14-tell", "what a change completes is confirmed")
def nobody_evaluates_again(written: Any, self: LedgerWrite, metadata: Any) -> list[Any]:
    """D14: a change that completes an entry tells nobody."""
    return [e for e in written(self, metadata) if not isinstance(e, ev.Confirm)]


@MUTANTS.instead(quorum, "confirmed_id", "P2", "watermarks count a write set")
def second_largest_watermark(_: Any, marks: Any, write_quorum: int, ack_quorum: int, last_sent: int) -> int:
    """P2: the Qa-th largest watermark of the ensemble, not of each write set."""
    return min(sorted(marks)[-ack_quorum], last_sent)


@MUTANTS.instead(Delivery, "acked", "P1-session", "acks of earlier sessions are void")
def acks_of_earlier_sessions_count(acked: Any, self: Delivery, event: ev.FramesAcked) -> bool:
    """P1: an ack counts whatever session it was of."""
    return acked(self, replace(event, session=self.lanes[event.index].session))


@MUTANTS.instead(LedgerWrite, "_continue_close", "P8", "a close waits for its copies or marks them", _NOTHING_BEHIND)
def close_forgets_missing_copies(_: Any, self: LedgerWrite) -> list[Any]:
    """P8: the close neither waits for the last copies nor marks them."""
    if self.state is not WriterState.CLOSING or not self.idle or self._close_intent or self.change:
        return []
    return self._begin_close()


@MUTANTS.instead(LedgerWrite, "_reread", "MUST8", "a close that met a conflict looks")
def close_over_anything(_: Any, self: LedgerWrite, metadata: Any) -> list[Any]:
    """MUST 8: after a conflict the writer closes over whatever it finds."""
    self.metadata = metadata
    return self._write_close() if self._close_intent is not None else self._write_change(self.change)


def _fenced_means_not_applied(make: Any, *args: Any) -> Any:
    """MUST 11: the fenced writer says that nothing of what was in flight is in the ledger."""
    error = make(*args)
    error.outcome = Outcome.NOT_APPLIED
    return error


MUTANTS.add(
    "MUST11", "fenced means unknown",
    *(changed(module, "fenced_error", _fenced_means_not_applied) for module in (refusals, writer)),
)  # fmt: skip


# D14: the new bookie gets nothing of what is owed, and nobody looks again.
MUTANTS.add(
    "D14-random", "what is owed is sent after a change",
    (SessionKeeper, "replaced", lambda self, index: []), (SessionKeeper, "_tick", lambda self: ([], [])),
)  # fmt: skip
MUTANTS.add("I13-writer", "what every bookie has is released", (Delivery, "_release", lambda self: None))
MUTANTS.add("P9", "an idle writer hints its LAC", (LedgerWrite, "_hint_lac", lambda self: []), shown_by="idle writer")


# --- bookie ----------------------------------------------------------------------------------------------------------


@MUTANTS.instead(Adds, "_refuse", "P1-hole", "a refused frame ends its session", shown_by="overload")
def ack_covers_a_hole(refuse: Any, self: Adds, session: Any, problem: Any) -> None:
    """P1: a refused frame does not end its session."""
    if problem[0] is not Reason.OVERLOADED:
        refuse(self, session, problem)


@MUTANTS.instead(Adds, "_frame_problem", "I13-bookie", "what waits for a commit is bounded", shown_by="overload")
def nothing_is_too_much(problem: Any, self: Adds, *args: Any) -> Any:
    """I13: a bookie that never refuses a frame for overload."""
    found = problem(self, *args)
    return None if found is not None and found[0] is Reason.OVERLOADED else found


@MUTANTS.instead(Adds, "_state_problem", "D8", "a bookie in limbo takes no normal add")
def limbo_takes_adds(problem: Any, self: Adds, session: Any, ledger: Any) -> Any:
    """D8, S8: a bookie that lost a ledger's fence takes normal adds of it."""
    found = problem(self, session, ledger)
    return None if found is not None and found[0] in (Reason.LIMBO, Reason.FENCED) and ledger.trouble else found


@MUTANTS.instead(Requests, "_mark_damaged", "D9", "damage is UNKNOWN")
def damage_is_absence(_: Any, self: Requests, request: Any, places: Any, found: Any) -> bool:
    """D9: a frame that cannot be read is left out of the answer."""
    bad = [place for place, thing in zip(places, found, strict=True) if thing is None]
    ledger = self._core.holdings.ledgers[request.ledger_id]
    ledger.frames = [frame for frame in ledger.frames if frame not in bad]
    return bool(bad)


# --- readers ---------------------------------------------------------------------------------------------------------


@MUTANTS.instead(
    LedgerFollower, "_watch_bookies", "P10", "a tail watches every bookie and the record",
    (LedgerFollower, "_begin_round", lambda self: []), shown_by="one way to the tail",
)  # fmt: skip
def tail_watches_one_bookie(watch: Any, self: LedgerFollower) -> list[Any]:
    """P10: one bookie is watched, and nobody looks for a stall."""
    first = self.metadata.value.last_fragment.ensemble[0]
    return [e for e in watch(self) if not isinstance(e, ev.SendWatchLac) or e.bookie == first]


@MUTANTS.instead(RangeRead, "_exhausted", "MUST14", "a lost entry is an error", shown_by="lost entry")
def lost_entries_are_skipped(_: Any, self: RangeRead) -> list[Any]:
    """MUST 14: a reader goes on behind an entry that nobody gives."""
    self.next += 1
    self._said.clear()
    return self._open_window()


@MUTANTS.instead(SharedRead, "_deliver", "MUST14-shared", "a reader gets entries in order")
def chunks_are_delivered_as_they_come(deliver: Any, self: SharedRead, chunk: Any, effect: Any, out: list[Any]) -> None:
    """MUST 14: of a range that several bookies serve, the batches of later chunks do not wait."""
    deliver(self, chunk, effect, out)
    out += chunk.held
    chunk.held = []


MUTANTS.add(
    "D30", "a closed ledger ends at its last entry", (LedgerFollower, "lac", property(lambda self: self._proven))
)


# --- metadata --------------------------------------------------------------------------------------------------------


@MUTANTS.instead(Ledgers, "write_ledger", "D10", "every write is a compare-and-set")
def writes_without_a_version(write: Any, self: Any, ledger_id: int, metadata: Any, version: int) -> Any:
    return write(self, ledger_id, metadata, self.read_ledger(ledger_id).version)


_SETTLING = next(kind for kind in Ledgers.__mro__ if "_create_settled" in kind.__dict__)


@MUTANTS.instead(_SETTLING, "_create_settled", "D22-random", "a lost answer is compared with the intent")
def own_create_is_a_conflict(settle: Any, self: Any, path: str, data: bytes, _: Any, lost: Any = None) -> None:
    """D22: after a lost answer the client meets its own record and takes it for another's."""
    settle(self, path, data, lambda found: False, lost)


# --- quorums ---------------------------------------------------------------------------------------------------------


@MUTANTS.instead(quorum, "write_set", "D29", "entry ids have 64 bits", shown_by="large ids")
def write_sets_in_32_bits(_: Any, entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    narrow = (entry_id + (1 << 31)) % (1 << 32) - (1 << 31)
    return tuple(int((abs(narrow) + i) % ensemble_size) for i in range(write_quorum))


# --- the table of lone entries ---------------------------------------------------------------------------------------


@MUTANTS.instead(
    LoneEntries, "refused", "P1-table", "an ack covers only frames that were sent", shown_by="acks of too many"
)
def every_ack_is_taken(refused: Any, self: LoneEntries, places: Any, frames: Any) -> Any:
    """P1-table: the table counts an ack of frames that were never sent."""
    return refused(self, places, frames) & False


@MUTANTS.instead(LoneEntries, "acked", "P2-table", "the table confirms with an ack quorum")
def one_ack_fewer(acked: Any, self: LoneEntries, places: Any, frames: Any) -> Any:
    """P2-table: an entry is confirmed although one bookie of the ack quorum has not acked it."""
    ack_quorum, self.ack_quorum = self.ack_quorum, max(1, self.ack_quorum - 1)
    try:
        return acked(self, places, frames)
    finally:
        self.ack_quorum = ack_quorum


@MUTANTS.instead(LedgerWrite, "resume", "P1-leave", "a writer leaves the table with its frames")
def frames_stay_in_the_table(
    resume: Any, self: LedgerWrite, lac: int, length: int, hinted: int, packets: Any, watermarks: Any
) -> Any:
    """P1-leave: what a bookie has not acked is not sent again after the writer left the table."""
    through = packets[-1].last if packets else lac
    return resume(self, lac, length, hinted, [], [through] * len(watermarks))


@MUTANTS.instead(LedgerWrite, "resume", "P7-length", "a writer leaves the table with its length")
def length_stays_in_the_table(
    resume: Any, self: LedgerWrite, lac: int, length: int, hinted: int, packets: Any, watermarks: Any
) -> Any:
    """P7-length: the length of the closed ledger lacks the entries that were sent from the table."""
    return resume(self, lac, self.length, hinted, packets, watermarks)
