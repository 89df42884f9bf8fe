# SPDX-License-Identifier: Apache-2.0
"""Known defects put back into the production machines, for random schedules and scripts to find.

What the exhaustive search finds is in :mod:`tests.sim.mutants.exhaustive`; storage and logs have their own. A mutant
that random schedules would show too rarely has a *script* in :mod:`tests.sim.scripts`: the few steps that show it.

Over 400 lines because it is a catalogue: one small function a defect.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from bk_core import quorum
from bk_core.client.reading.shared_read import SharedRead
from bk_core.entries.frame import decode_frame
from bk_core.metadata.tree.ledgers import Ledgers
from bk_core.model import NO_ENTRY, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.answers import Answer, Window
from bk_core.protocol.delivery import Delivery
from bk_core.protocol.ends import lac
from bk_core.protocol.ends.follower import LedgerFollower
from bk_core.protocol.ends.lac import LacQuery
from bk_core.protocol.keeper import SessionKeeper
from bk_core.protocol.reader import RangeRead
from bk_core.protocol.recovery import LedgerRecovery, Phase
from bk_core.protocol.write_back import WriteBack
from bk_core.protocol.writer import LedgerWrite
from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.machine.adds import Adds
from bookie_server.machine.reads import Reads
from bookie_server.machine.requests import Requests
from tests.sim.mutants.exhaustive import patched

Planted = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect and the rule it breaks. ``script``: the name of one in :mod:`tests.sim.scripts`, where random schedules
    are not asked."""

    name: str
    rule: str
    planted: Planted
    script: str = ""


# --- recovery --------------------------------------------------------------------------------------------------------


def no_floor() -> AbstractContextManager[None]:
    """D2: recovery starts at what the bookies answer, below the last fragment's first entry."""
    make = LacQuery.__init__

    def mutant(self: LacQuery, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self.lac = NO_ENTRY

    return patched((LacQuery, "__init__", mutant))


def changes_are_published_early() -> AbstractContextManager[None]:
    """D3: an ensemble change of recovery reaches the store before the close."""
    after, heard = LedgerRecovery._after_write_back, LedgerRecovery._metadata_event

    def published(self: LedgerRecovery, effects: list[Any]) -> list[Any]:
        back = self._write_back
        changed = back is not None and self.metadata is not None and back.metadata != self.metadata.value
        if changed and self.phase in (Phase.READ, Phase.DRAIN) and not getattr(back, "published", False):
            back.published = True
            return [*effects, ev.WriteMetadata(back.metadata, self._epoch)]
        return after(self, effects)

    def event(self: LedgerRecovery, heard_event: Any) -> list[Any]:
        if isinstance(heard_event, ev.MetadataWritten) and self.phase in (Phase.READ, Phase.DRAIN):
            self.metadata, self._epoch = heard_event.metadata, heard_event.metadata.version
            return after(self, [])
        return heard(self, heard_event)

    return patched((LedgerRecovery, "_after_write_back", published), (LedgerRecovery, "_metadata_event", event))


def reads_follow_the_new_ensemble() -> AbstractContextManager[None]:
    """D4."""
    ask = LedgerRecovery._ask

    def mutant(self: LedgerRecovery, index: int, first: int, last: int) -> Any:
        frozen, back = self.frozen, self._write_back
        if back is not None:
            self.frozen = back.metadata
        try:
            return ask(self, index, first, last)
        finally:
            self.frozen = frozen

    return patched((LedgerRecovery, "_ask", mutant))


def close_without_the_epoch() -> AbstractContextManager[None]:
    """P7: whoever lost the race closes over the new version, with its own view."""
    read = LedgerRecovery._metadata_read

    def mutant(self: LedgerRecovery, metadata: Any) -> list[Any]:
        if self.phase is Phase.CLOSE:
            self._epoch = metadata.version
            return self._write_close()
        return read(self, metadata)

    return patched((LedgerRecovery, "_metadata_read", mutant))


def nobody_gives_way() -> AbstractContextManager[None]:
    """P7: a recoverer that meets another begins again at once, and bumps the other's epoch."""
    return patched((LedgerRecovery, "_wait", lambda self: self._begin_attempt()))


def recovery_waits_for_everybody() -> AbstractContextManager[None]:
    """D15: an entry that is denied by enough still waits for a bookie that hangs."""
    decide = LedgerRecovery._decide

    def mutant(self: LedgerRecovery, window: Window) -> list[Any]:
        return decide(self, window) if window.all_finished else []

    return patched((LedgerRecovery, "_decide", mutant))


def no_window_after_the_first() -> AbstractContextManager[None]:
    """A recovery that takes the end of its first window for the end of the ledger."""
    open_window = LedgerRecovery._open_window

    def mutant(self: LedgerRecovery, first: int) -> list[Any]:
        return open_window(self, first) if self._window is None else self._end_found()

    return patched((LedgerRecovery, "_open_window", mutant))


def _finished_with_quorums(self: WriteBack) -> bool:
    """As ``WriteBack.finished``, without a wait for the other copies."""
    return self._complete and not self._replacing and self.delivery.confirmed() == self.delivery.last_sent


def write_back_stops_at_qa() -> AbstractContextManager[None]:
    """P7: what the third copy misses is neither written nor marked."""
    return patched(
        (WriteBack, "finished", property(_finished_with_quorums)),
        (Delivery, "behind", lambda self: ()),
    )


# --- answers ---------------------------------------------------------------------------------------------------------


def omission_is_absence() -> AbstractContextManager[None]:
    """P4: what an answer did not reach counts as denied."""
    finish = Window.finish

    def mutant(self: Window, event: ev.ReadAnswered) -> None:
        through = event.answered_through
        if through < self.last:
            gap = EntryRange(through + 1, self.last)
            event = replace(event, answered_through=self.last, absent=(*event.absent, gap))
        finish(self, event)

    return patched((Window, "finish", mutant))


def unknown_is_absence() -> AbstractContextManager[None]:
    """D9, MUST 4: UNKNOWN counts as denied."""
    finish = Window.finish

    def mutant(self: Window, event: ev.ReadAnswered) -> None:
        finish(self, replace(event, absent=(*event.absent, *event.unknown), unknown=()))

    return patched((Window, "finish", mutant))


def cut_answers_are_negative() -> AbstractContextManager[None]:
    """P4: a stream cut before its trailer denies what did not arrive."""

    def mutant(self: Window, request: int, problem: str) -> None:
        answer: Answer = self.answers[request]
        answer.through, answer.absent = self.last, (EntryRange(answer.first, self.last),)

    return patched((Window, "fail", mutant))


def unverified_lac() -> AbstractContextManager[None]:
    """P5: the LAC is taken from bytes that nobody digested."""

    def body(data: bytes, digester: Any) -> int:
        return int.from_bytes(data[8:16], "big", signed=True)

    def entry(frame: Any, digester: Any) -> Any:
        return decode_frame(frame)

    return patched((lac, "parse_lac_body", body), (lac, "one_entry", entry))


# --- writer ----------------------------------------------------------------------------------------------------------


def counted_before_the_store_has_it() -> AbstractContextManager[None]:
    """D11: acks count under an ensemble that is not persisted."""
    write = LedgerWrite._write_change

    def mutant(self: LedgerWrite, change: Any) -> list[Any]:
        effects = write(self, change)
        return [*effects, *self._change_written(Versioned(change.intent, self.metadata.version + 1))]

    return patched((LedgerWrite, "_write_change", mutant))


def nobody_sends_again() -> AbstractContextManager[None]:
    """D14: the new bookie gets nothing of what is owed, and nobody looks again."""
    return patched(
        (SessionKeeper, "replaced", lambda self, index: []),
        (SessionKeeper, "_tick", lambda self: ([], [])),
    )


def nobody_evaluates_again() -> AbstractContextManager[None]:
    """D14: a change that completes an entry tells nobody."""
    written = LedgerWrite._change_written

    def mutant(self: LedgerWrite, metadata: Any) -> list[Any]:
        return [e for e in written(self, metadata) if not isinstance(e, ev.Confirm)]

    return patched((LedgerWrite, "_change_written", mutant))


def second_largest_watermark() -> AbstractContextManager[None]:
    """P2: the Qa-th largest watermark of the ensemble, not of each write set."""

    def mutant(marks: Any, write_quorum: int, ack_quorum: int, last_sent: int) -> int:
        return min(sorted(marks)[-ack_quorum], last_sent)

    return patched((quorum, "confirmed_id", mutant))


def acks_of_earlier_sessions_count() -> AbstractContextManager[None]:
    """P1: an ack counts whatever session it was of."""
    acked = Delivery.acked

    def mutant(self: Delivery, event: ev.FramesAcked) -> bool:
        return acked(self, replace(event, session=self.lanes[event.index].session))

    return patched((Delivery, "acked", mutant))


def nothing_is_released() -> AbstractContextManager[None]:
    """I13: frames that every bookie has are kept."""
    return patched((Delivery, "_release", lambda self: None))


def close_forgets_missing_copies() -> AbstractContextManager[None]:
    """P8: the close neither waits for the last copies nor marks them."""
    return patched(
        (LedgerWrite, "_continue_close", _close_at_once()),
        (Delivery, "behind", lambda self: ()),
    )


def _close_at_once() -> Callable[[LedgerWrite], list[Any]]:
    from bk_core.protocol.writer import WriterState

    def mutant(self: LedgerWrite) -> list[Any]:
        if self.state is not WriterState.CLOSING or not self.idle or self._close_intent or self.change:
            return []
        return self._begin_close()

    return mutant


def no_hint() -> AbstractContextManager[None]:
    """P9: an idle writer tells nobody."""
    return patched((LedgerWrite, "_hint_lac", lambda self: []))


def close_over_anything() -> AbstractContextManager[None]:
    """MUST 8: after a conflict the writer closes over whatever it finds."""

    def mutant(self: LedgerWrite, metadata: Any) -> list[Any]:
        self.metadata = metadata
        return self._write_close() if self._close_intent is not None else self._write_change(self.change)

    return patched((LedgerWrite, "_reread", mutant))


def fenced_means_not_applied() -> AbstractContextManager[None]:
    """MUST 11: the fenced writer says that nothing of what was in flight is in the ledger."""
    from bk_core.errors import Outcome
    from bk_core.protocol import refusals, writer

    make = refusals.fenced_error

    def mutant(*args: Any) -> Any:
        error = make(*args)
        error.outcome = Outcome.NOT_APPLIED
        return error

    return patched((refusals, "fenced_error", mutant), (writer, "fenced_error", mutant))


# --- bookie ----------------------------------------------------------------------------------------------------------


def ack_covers_a_hole() -> AbstractContextManager[None]:
    """P1: a refused frame does not end its session."""

    def mutant(self: Adds, session: Any, problem: Any) -> None:
        if problem[0] is not Reason.OVERLOADED:
            refuse(self, session, problem)

    refuse = Adds._refuse
    return patched((Adds, "_refuse", mutant))


def nothing_is_too_much() -> AbstractContextManager[None]:
    """I13: a bookie that never refuses a frame for overload."""
    problem = Adds._frame_problem

    def mutant(self: Adds, *args: Any) -> Any:
        found = problem(self, *args)
        return None if found is not None and found[0] is Reason.OVERLOADED else found

    return patched((Adds, "_frame_problem", mutant))


def limbo_takes_adds() -> AbstractContextManager[None]:
    """D8, S8: a bookie that lost a ledger's fence takes normal adds of it."""
    problem = Adds._state_problem

    def mutant(self: Adds, session: Any, ledger: Any) -> Any:
        found = problem(self, session, ledger)
        return None if found is not None and found[0] in (Reason.LIMBO, Reason.FENCED) and ledger.trouble else found

    return patched((Adds, "_state_problem", mutant))


def damage_is_absence() -> AbstractContextManager[None]:
    """D9: a frame that cannot be read is left out of the answer."""
    damaged = Reads.damaged

    def mutant(self: Reads, request: Any) -> None:
        damaged(self, request)

    def mark(self: Requests, request: Any, places: Any, found: Any) -> bool:
        bad = [place for place, thing in zip(places, found, strict=True) if thing is None]
        ledger = self._core.holdings.ledgers[request.ledger_id]
        ledger.frames = [frame for frame in ledger.frames if frame not in bad]
        return bool(bad)

    return patched((Requests, "_mark_damaged", mark), (Reads, "damaged", mutant))


# --- readers ---------------------------------------------------------------------------------------------------------


def tail_stops_at_the_lac() -> AbstractContextManager[None]:
    """D30."""
    return patched((LedgerFollower, "lac", property(lambda self: self._proven)))


def tail_watches_one_bookie() -> AbstractContextManager[None]:
    """P10: one bookie is watched, and nobody looks for a stall."""
    watch = LedgerFollower._watch_bookies

    def mutant(self: LedgerFollower) -> list[Any]:
        first = self.metadata.value.last_fragment.ensemble[0]
        return [e for e in watch(self) if not isinstance(e, ev.SendWatchLac) or e.bookie == first]

    return patched((LedgerFollower, "_watch_bookies", mutant), (LedgerFollower, "_begin_round", lambda self: []))


def lost_entries_are_skipped() -> AbstractContextManager[None]:
    """MUST 14: a reader goes on behind an entry that nobody gives."""

    def mutant(self: RangeRead) -> list[Any]:
        self.next += 1
        self._said.clear()
        return self._open_window()

    return patched((RangeRead, "_exhausted", mutant))


def chunks_are_delivered_as_they_come() -> AbstractContextManager[None]:
    """MUST 14: of a range that several bookies serve, the batches of later chunks do not wait."""
    deliver = SharedRead._deliver

    def mutant(self: SharedRead, chunk: Any, effect: Any, out: list[Any]) -> None:
        deliver(self, chunk, effect, out)
        out += chunk.held
        chunk.held = []

    return patched((SharedRead, "_deliver", mutant))


# --- metadata --------------------------------------------------------------------------------------------------------


def writes_without_a_version() -> AbstractContextManager[None]:
    """D10."""
    write = Ledgers.write_ledger

    def mutant(self: Any, ledger_id: int, metadata: Any, version: int) -> Any:
        return write(self, ledger_id, metadata, self.read_ledger(ledger_id).version)

    return patched((Ledgers, "write_ledger", mutant))


def own_create_is_a_conflict() -> AbstractContextManager[None]:
    """D22: after a lost answer the client meets its own record and takes it for another's."""
    owner = next(kind for kind in Ledgers.__mro__ if "_create_settled" in kind.__dict__)
    settle = owner._create_settled

    def mutant(self: Any, path: str, data: bytes, _: Any, lost: Any = None) -> None:
        settle(self, path, data, lambda found: False, lost)

    return patched((owner, "_create_settled", mutant))


# --- quorums ---------------------------------------------------------------------------------------------------------


def write_sets_in_32_bits() -> AbstractContextManager[None]:
    """D29."""

    def mutant(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
        narrow = (entry_id + (1 << 31)) % (1 << 32) - (1 << 31)
        return tuple(int((abs(narrow) + i) % ensemble_size) for i in range(write_quorum))

    return patched((quorum, "write_set", mutant))


MUTANTS: tuple[Mutant, ...] = (
    Mutant("D2", "recovery starts at the last fragment at the lowest", no_floor, script="empty last fragment"),
    Mutant("D3", "recovery publishes no change before the close", changes_are_published_early),
    Mutant("D4", "recovery reads the ensemble it began with", reads_follow_the_new_ensemble, script="reads follow"),
    Mutant("D8", "a bookie in limbo takes no normal add", limbo_takes_adds),
    Mutant("D9", "damage is UNKNOWN", damage_is_absence),
    Mutant("D9-client", "UNKNOWN is no denial", unknown_is_absence),
    Mutant("D10", "every write is a compare-and-set", writes_without_a_version),
    Mutant("D11-random", "no ack under an ensemble that is not persisted", counted_before_the_store_has_it),
    Mutant("D14-random", "what is owed is sent after a change", nobody_sends_again),
    Mutant("D14-tell", "what a change completes is confirmed", nobody_evaluates_again),
    Mutant("D15", "enough denials end a recovery", recovery_waits_for_everybody, script="hung bookie"),
    Mutant("D22-random", "a lost answer is compared with the intent", own_create_is_a_conflict),
    Mutant("D29", "entry ids have 64 bits", write_sets_in_32_bits, script="large ids"),
    Mutant("D30", "a closed ledger ends at its last entry", tail_stops_at_the_lac),
    Mutant("P1-session", "acks of earlier sessions are void", acks_of_earlier_sessions_count),
    Mutant("P1-hole", "a refused frame ends its session", ack_covers_a_hole, script="overload"),
    Mutant("P2", "watermarks count a write set", second_largest_watermark),
    Mutant("P4", "what was not answered is not denied", omission_is_absence),
    Mutant("P4-cut", "a cut answer denies nothing", cut_answers_are_negative),
    Mutant("P5", "a LAC is evidence only when digested", unverified_lac),
    Mutant("P7-epoch", "a close needs its own epoch", close_without_the_epoch),
    Mutant("P7-back-off", "recoverers give way to each other", nobody_gives_way, script="two recoverers"),
    Mutant("P7-copies", "what misses entries is marked", write_back_stops_at_qa),
    Mutant("P7-window", "recovery reads on behind its first window", no_window_after_the_first),
    Mutant("P8", "a close waits for its copies or marks them", close_forgets_missing_copies),
    Mutant("P9", "an idle writer hints its LAC", no_hint, script="idle writer"),
    Mutant("P10", "a tail watches every bookie and the record", tail_watches_one_bookie, script="one way to the tail"),
    Mutant("I13-bookie", "what waits for a commit is bounded", nothing_is_too_much, script="overload"),
    Mutant("I13-writer", "what every bookie has is released", nothing_is_released),
    Mutant("MUST8", "a close that met a conflict looks", close_over_anything),
    Mutant("MUST11", "fenced means unknown", fenced_means_not_applied),
    Mutant("MUST14", "a lost entry is an error", lost_entries_are_skipped, script="lost entry"),
    Mutant("MUST14-shared", "a reader gets entries in order", chunks_are_delivered_as_they_come),
)
