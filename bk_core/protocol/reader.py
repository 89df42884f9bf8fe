# SPDX-License-Identifier: Apache-2.0
"""Reads a range of a ledger: each entry once, in order, from any replica that can give it. Pure.

Sources: protocol document "Writing to ledgers" (read up to the LAC), overview "If an entry is missing or invalid (a bad
MAC for example), the client will make a request to a different bookie"; rules P4, MUST 4, MUST 14.

The range ends at or below the LAC, or the last entry of a closed ledger, so each entry of the range exists. An entry
that its whole write set denies is lost: the read fails, and never skips the entry. The read also fails if no replica
gives an entry although some replica does not deny it.

The reader first asks the fewest bookies that together hold a window of ids: one bookie if E = Qw, every Qw-th index if
entries are striped. Then it asks the other replicas for missing entries, one replica at a time. Where entries are
striped, the next window uses other bookies. A bookie that sends nothing for ``speculative_ms`` is late. The reader then
asks other bookies too, and the first good answer wins. It does not cancel the late request, because a busy bookie would
finish the cancelled request before it begins the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TypeAlias

from bk_core import quorum
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.parts import Parts
from bk_core.errors import EntryUnreadableError, IntegrityError, NoSuchEntryError
from bk_core.model import BookieId, EntryId, LedgerMetadata
from bk_core.protocol import events as ev
from bk_core.protocol.answers import Answer, Window
from bk_core.wire.lane.reasons import FRAME_BYTES_MAX

ReadEvent: TypeAlias = ev.ReadEvent | ev.TimerFired
ReadEffect: TypeAlias = ev.SendRead | ev.CancelRead | ev.DeliverBatch | ev.FinishRead | ev.Fail | ev.SetTimer

WINDOW_IDS = 1 << 18  # the maximum number of entry ids in a window
PASSES = 3
"""The number of times that the reader asks all replicas of an entry before it fails with EntryUnreadableError."""


class RangeRead:
    """Reads the entries ``first`` to ``last`` of one ledger.

    ``prefer`` turns the ring of ensemble indices, so that readers spread over the bookies. Bookies in ``avoid`` are
    asked last. With ``verify_each`` the digest of each entry is checked, too. With ``parts`` only these parts of the
    entries are read. With ``keep_heads`` a batch may have the column ``heads``. ``new_number`` numbers the requests of
    reads that share a driver. ``suspects`` are the bookies that failed or were late.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        digester: Digester,
        first: EntryId,
        last: EntryId,
        *,
        bytes_max: int,
        prefer: int = 0,
        retry_delay_ms: float = 100,
        speculative_ms: float = 2_000,
        avoid: Collection[BookieId] = (),
        verify_each: bool = False,
        parts: Parts | None = None,
        keep_heads: bool = False,
        new_number: Callable[[], int] | None = None,
    ) -> None:
        assert 0 <= first <= last + 1, (first, last)
        self.metadata, self.digester, self.last = metadata, digester, last
        self.bytes_max, self.prefer = bytes_max, prefer
        self.retry_delay_ms, self.speculative_ms = retry_delay_ms, speculative_ms
        self.next = first  # next id to deliver
        self.done = False
        self.suspects: dict[BookieId, None] = {}  # in the order of failure
        self._parts, self._keep_heads = parts, keep_heads
        self._avoid = dict.fromkeys(avoid)  # `avoid` and the suspects
        self._always = verify_each or digester.digest_type.needs_key
        self._striped = metadata.ensemble_size > metadata.write_quorum_size
        self._window: Window | None = None
        self._request, self._new_number = 0, new_number
        self._reach = 0  # the number of ids after the first missing one that a request for a gap covers
        self._said: dict[int, str] = {}  # index → its answer about entry `next`: "" is ABSENT, a text says why UNKNOWN
        self._passes = 0
        self._fragment = -1

    def start(self) -> list[ReadEffect]:
        return self._open_window()

    def step(self, event: ReadEvent) -> list[ReadEffect]:
        """Handle one event and return the effects. Ignores answers to earlier windows, and all events after the end."""
        window = self._window
        if self.done or window is None:
            return []
        if isinstance(event, ev.TimerFired):
            if event.name == "late":
                return self._look_for_late(window)
            return [] if window.pending() else self._open_window()
        answer = window.answers.get(event.request)
        if answer is None or answer.finished:
            return []
        if isinstance(event, ev.FramesRead):
            return self._frames(window, event)
        if isinstance(event, ev.ReadAnswered):
            window.finish(event)
        else:
            window.fail(event.request, event.message)
        if answer.failed:
            self._suspect(answer.index)
        return self._settle(window)

    # --- asking ------------------------------------------------------------------------------------------------------
    def _open_window(self, answers: Mapping[int, Answer] = MappingProxyType({})) -> list[ReadEffect]:
        """Begin the next window, or end the read. ``answers`` are the answers in the last window that concern the next
        entry. Their bookies are not asked for that entry again, or they would repeat the rest of the window for each
        gap and each late bookie."""
        if self.next > self.last:
            self.done = True
            return [ev.FinishRead()]
        window = self._new_window()
        window.answers.update(answers)
        asks = self._ask_more(window)
        if not asks and window.pending():  # only bookies that may have the next entry still have to answer
            return [ev.SetTimer("late", self.speculative_ms)]
        return asks or self._exhausted()

    def _new_window(self) -> Window:
        self._fragment = self.metadata.fragment_index_of(self.next)
        end = self.metadata.last_entry_of(self._fragment)
        last = self.last if end is None else min(self.last, end)
        held = self._window.held if self._window is not None else []
        self._window = Window(self.next, min(last, self.next + WINDOW_IDS - 1))
        for batch in held:
            self._window.add(batch)
        return self._window

    def _ask_more(self, window: Window) -> list[ReadEffect]:
        """Ask bookies that were not asked in this window. If all bookies that were asked for the next entry have failed
        or were late, ask several bookies for the rest of the window. Otherwise ask one bookie for the gap; with each
        gap in a row the request covers more ids after the gap. Return no effect if no bookie is left that may have the
        first missing entry."""
        wanted = window.run_end()
        asked = {answer.index for answer in window.answers.values()}
        fresh = [index for index in self._replicas(wanted) if index not in self._said and index not in asked]
        if not fresh or wanted > window.last:
            return []
        failed = all(map(self._is_avoided, self._said))
        cover = [index for index in self._cover() if index not in asked] if failed else []
        if any(index in fresh for index in cover):  # otherwise the same bookies would be asked for `wanted` for ever
            asks = [self._ask(window, index, wanted, window.last) for index in cover]
            self._reach = 0
        else:
            fresh.sort(key=self._is_avoided)
            until = max(window.next_found_after(wanted) - 1, wanted + self._reach)
            asks = [self._ask(window, fresh[0], wanted, min(window.last, until))]
            self._reach = 4 * self._reach + 3
        return [*asks, ev.SetTimer("late", self.speculative_ms)]

    def _cover(self) -> list[int]:
        """Return the fewest indices that together hold every id. Choose no index whose bookie is avoided if there is a
        choice."""
        size, write_quorum = self.metadata.ensemble_size, self.metadata.write_quorum_size
        chosen: list[int] = []
        residue, covered = self.prefer, 0
        while covered < size:
            steps = [s for s in range(write_quorum, 0, -1) if not self._is_avoided((residue + s - 1) % size)]
            step = steps[0] if steps else write_quorum
            chosen.append((residue + step - 1) % size)
            residue, covered = residue + step, covered + (step if self._striped else size)
        return list(dict.fromkeys(chosen))

    def _ask(self, window: Window, index: int, first: EntryId, last: EntryId) -> ev.SendRead:
        self._request = self._request + 1 if self._new_number is None else self._new_number()
        window.asked(self._request, index, first, last)
        cut = self._parts.cut(first, last) if self._parts else None
        return ev.SendRead(self._request, self._bookie(index), first, last, self.bytes_max, cut=cut)

    def _bookie(self, index: int) -> BookieId:
        return self.metadata.fragments[self._fragment].ensemble[index]

    def _is_avoided(self, index: int) -> bool:
        return self._bookie(index) in self._avoid

    def _suspect(self, index: int) -> None:
        self._avoid[self._bookie(index)] = self.suspects[self._bookie(index)] = None

    def _replicas(self, entry_id: EntryId) -> tuple[int, ...]:
        return quorum.write_set(entry_id, self.metadata.ensemble_size, self.metadata.write_quorum_size)

    def _look_for_late(self, window: Window) -> list[ReadEffect]:
        """Ask other bookies in place of the bookies that sent nothing since the last check, ``speculative_ms`` ago."""
        silent = [answer for _, answer in window.pending() if not answer.heard]
        for _, answer in window.pending():
            answer.heard = False
        for answer in silent:
            answer.late = True
            self._suspect(answer.index)
        if silent and (effects := self._ask_more(window) or self._settle(window)):
            return effects
        return [ev.SetTimer("late", self.speculative_ms)] if window.pending() else []

    def _exhausted(self) -> list[ReadEffect]:
        """Ask the replicas again after a pause, or fail. The driver comes here when no replica gave the next entry."""
        said = {self._bookie(index): self._said[index] for index in self._replicas(self.next)}
        entry, lost = f"entry {self.next} of ledger {self.digester.ledger_id}", not any(said.values())
        self._passes += 1
        if not lost and self._passes < PASSES:
            self._said = {index: what for index, what in self._said.items() if what == ""}
            return [ev.SetTimer("again", self.retry_delay_ms * self._passes)]
        self.done = True
        if lost:
            what, remedy = f"{entry} is lost: its whole write set denies it", "check these bookies' data directories"
            return [ev.Fail(NoSuchEntryError(what, value=f"bookies {', '.join(said)}", remedy=remedy))]
        value = "; ".join(f"{bookie}: {what or 'does not have it'}" for bookie, what in said.items())
        remedy = "try again when these bookies are back"
        return [ev.Fail(EntryUnreadableError(f"{entry} cannot be read now", value=value, remedy=remedy))]

    # --- hearing -----------------------------------------------------------------------------------------------------
    def _frames(self, window: Window, event: ev.FramesRead) -> list[ReadEffect]:
        answer = window.answers[event.request]
        try:
            batches = window.verified(
                event.request,
                event.frames,
                self.digester,
                self._always,
                self._parts,
                keep_heads=self._keep_heads,
            )
            if answer.size > self.bytes_max + FRAME_BYTES_MAX:
                raise IntegrityError("a bookie answered with more than was asked for", value=f"{answer.size} bytes")
        except IntegrityError as error:
            window.fail(event.request, str(error))
            self._suspect(answer.index)
            return [ev.CancelRead(event.request), *self._settle(window)]
        effects: list[ReadEffect] = []
        for batch in batches:
            part = None if self._striped else self._in_order(window, batch)
            if part is None:
                window.add(batch)
            elif len(part):
                effects.append(self._deliver(window, part))
        if effects:  # the first good answer wins
            effects += window.cancel_pending(but=event.request)
        return effects

    def _in_order(self, window: Window, batch: EntryBatch) -> EntryBatch | None:
        """Return the slice of an unstriped batch that follows the delivered entries, or None if there is a gap."""
        if batch.ids is not None or batch.first_entry_id > window.cursor or window.held:
            return None
        return batch.slice(window.cursor - batch.first_entry_id, window.last + 1 - batch.first_entry_id)

    def _deliver(self, window: Window, batch: EntryBatch) -> ev.DeliverBatch:
        window.cursor = self.next = batch.last_entry_id + 1
        self._said.clear()
        self._passes = 0
        return ev.DeliverBatch(batch)

    def _settle(self, window: Window) -> list[ReadEffect]:
        """Act on the end of an answer. If the window is complete, or only late bookies still have to answer, deliver
        the entries before the first gap and request the missing entries."""
        waiting = any(not answer.late for _, answer in window.pending())
        if waiting and window.run_end() <= window.last:
            return []
        effects: list[ReadEffect] = []
        batch = window.take()
        if batch is not None:
            effects.append(self._deliver(window, batch))
            self.prefer += self._striped  # the next window uses other bookies
        if window.cursor <= window.last:
            self._note_what_was_said(window)
        if window.pending() and window.cursor == window.first:
            return self._ask_more(window)  # if no bookie is left to ask, wait for the late ones
        kept = {request: answer for request, answer in window.answers.items() if self._concerns_next(answer)}
        cancelled = [ev.CancelRead(request) for request, _ in window.pending() if request not in kept]
        return [*effects, *cancelled, *self._open_window(kept)]

    def _concerns_next(self, answer: Answer) -> bool:
        """Return whether the answer may still give the next entry, or says why its bookie does not give it."""
        if not answer.finished:
            return answer.last >= self.next
        return answer.answers(self.next) and answer.index in self._said and not answer.failed

    def _note_what_was_said(self, window: Window) -> None:
        for answer in window.answers.values():
            if answer.index not in self._replicas(self.next) or not answer.finished:
                continue
            if answer.answers(self.next):
                self._said[answer.index] = "" if answer.denies(self.next) else answer.problem or "cannot say"
            elif window.cursor == window.first:
                self._said[answer.index] = "answered nothing"  # it was asked for `next`
