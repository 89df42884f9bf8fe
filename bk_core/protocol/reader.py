# SPDX-License-Identifier: Apache-2.0
"""Reading a range of a ledger, in order, each entry once, from whichever replica can give it. Pure.

Sources: protocol document "Writing to ledgers" (read up to the LAC), overview "If an entry is missing or invalid (a bad
MAC for example), the client will make a request to a different bookie"; facts: client.md §3.8; RULES P4; MUST 4, 14.

The range is known to exist: it ends at the LAC, or at the last entry of a closed ledger. So an entry that its whole
write set denies is lost data and an error, never skipped; one that nobody denies but nobody gives is unreadable now.

A window of ids is asked of the fewest bookies that hold all of it: one where E = Qw, every Qw-th index where entries
are striped. What is missing after that is asked of the other replicas, one at a time.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from bk_core import quorum
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.errors import BookKeeperError, EntryUnreadableError, IntegrityError, NoSuchEntryError
from bk_core.model import DigestType, EntryId, LedgerMetadata
from bk_core.protocol.answers import Window, verified_batches
from bk_core.protocol.events import (
    CancelRead,
    DeliverBatch,
    Fail,
    FinishRead,
    FramesRead,
    ReadAnswered,
    ReadFailed,
    SendRead,
    SetTimer,
    TimerFired,
)

ReadEvent: TypeAlias = FramesRead | ReadAnswered | ReadFailed | TimerFired
ReadEffect: TypeAlias = SendRead | CancelRead | DeliverBatch | FinishRead | Fail | SetTimer

WINDOW_IDS = 1 << 18
PASSES = 3
"""How often all replicas of an entry are asked before it is called unreadable."""


class RangeRead:
    """Entries ``first`` to ``last`` of one ledger. ``prefer`` turns the ring, so that readers spread over the
    bookies."""

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
    ) -> None:
        assert 0 <= first <= last + 1, (first, last)
        self.metadata, self.digester, self.last = metadata, digester, last
        self.bytes_max, self.prefer, self.retry_delay_ms = bytes_max, prefer, retry_delay_ms
        self.next = first  # next id to deliver
        self.done = False
        self._always = digester.digest_type is DigestType.MAC
        self._window: Window | None = None
        self._request = 0
        self._said: dict[int, str] = {}  # index → what it said of `next`: "" ABSENT, else why UNKNOWN
        self._passes = 0
        self._fragment = -1
        self._bad: set[int] = set()  # indices that failed in this fragment; only asked, never iterated

    def start(self) -> list[ReadEffect]:
        return self._open_window()

    def step(self, event: ReadEvent) -> list[ReadEffect]:
        """What to do about ``event``; nothing once done. Answers to requests of earlier windows are ignored."""
        if self.done:
            return []
        if isinstance(event, TimerFired):
            return self._open_window()
        window = self._window
        if window is None or event.request not in window.answers or window.answers[event.request].finished:
            return []
        match event:
            case FramesRead():
                return self._frames(window, event)
            case ReadAnswered():
                window.finish(event)
            case ReadFailed(request, message):
                window.fail(request, message)
                self._bad.add(window.answers[request].index)
            case _:
                assert_never(event)
        return self._settle(window)

    # --- asking ------------------------------------------------------------------------------------------------------

    def _open_window(self) -> list[ReadEffect]:
        if self.next > self.last:
            self.done = True
            return [FinishRead()]
        replicas = self._replicas(self.next)
        untried = [index for index in replicas if index not in self._said]
        if not untried:
            return self._exhausted()
        window = self._new_window()
        cover = self._cover() if all(index in self._bad for index in self._said) else []
        if any(index in untried for index in cover):  # else it would ask the same bookies about `next` for ever
            return [self._ask(window, index, window.last) for index in cover]
        gap_end = min(window.last, window.next_found_after(self.next) - 1)
        return [self._ask(window, untried[0], gap_end)]

    def _new_window(self) -> Window:
        fragments, at = self.metadata.fragments, self.metadata.fragment_index_of(self.next)
        end = fragments[at + 1].first_entry_id - 1 if at + 1 < len(fragments) else self.last
        held = self._window.held if self._window is not None else []
        if at != self._fragment:
            self._fragment = at
            self._bad.clear()  # other bookies stand at these indices
        self._window = Window(self.next, min(self.last, end, self.next + WINDOW_IDS - 1))
        for batch in held:
            self._window.add(batch)
        return self._window

    def _cover(self) -> list[int]:
        """The fewest indices that together hold every id, without the bad ones where there is a choice."""
        size, write_quorum = self.metadata.ensemble_size, self.metadata.write_quorum_size
        chosen: list[int] = []
        residue, covered = self.prefer, 0
        while covered < size:
            steps = [s for s in range(write_quorum, 0, -1) if (residue + s - 1) % size not in self._bad]
            step = steps[0] if steps else write_quorum
            chosen.append((residue + step - 1) % size)
            residue, covered = residue + step, covered + step
        return chosen

    def _ask(self, window: Window, index: int, last: EntryId) -> SendRead:
        self._request += 1
        window.asked(self._request, index, window.cursor)
        bookie = self.metadata.fragment_of(window.cursor).ensemble[index]
        return SendRead(self._request, bookie, window.cursor, last, self.bytes_max)

    def _replicas(self, entry_id: EntryId) -> tuple[int, ...]:
        return quorum.write_set(entry_id, self.metadata.ensemble_size, self.metadata.write_quorum_size)

    def _exhausted(self) -> list[ReadEffect]:
        """Every replica of the next entry was asked and none gave it."""
        ensemble = self.metadata.fragment_of(self.next).ensemble
        said = [(ensemble[index], self._said[index]) for index in self._replicas(self.next)]
        if all(what == "" for _, what in said):
            return self._fail(
                NoSuchEntryError(
                    f"entry {self.next} of ledger {self.digester.ledger_id} is lost: its whole write set denies it",
                    value=f"bookies {', '.join(bookie for bookie, _ in said)}",
                    remedy="check these bookies' data directories",
                )
            )
        self._passes += 1
        if self._passes < PASSES:
            self._said = {index: what for index, what in self._said.items() if what == ""}
            self._bad.clear()
            return [SetTimer("again", self.retry_delay_ms * self._passes)]
        return self._fail(
            EntryUnreadableError(
                f"entry {self.next} of ledger {self.digester.ledger_id} cannot be read now",
                value="; ".join(f"{bookie}: {what or 'does not have it'}" for bookie, what in said),
                remedy="try again when these bookies are back",
            )
        )

    # --- hearing -----------------------------------------------------------------------------------------------------

    def _frames(self, window: Window, event: FramesRead) -> list[ReadEffect]:
        try:
            batches = verified_batches(event.frames, self.digester, always=self._always)
        except IntegrityError as error:
            index = window.answers[event.request].index
            window.fail(event.request, str(error))
            self._bad.add(index)
            return [CancelRead(event.request), *self._settle(window)]
        effects: list[ReadEffect] = []
        striped = self.metadata.ensemble_size > self.metadata.write_quorum_size
        for batch in batches:
            part = None if striped else self._in_order(window, batch)
            if part is None:
                window.add(batch)
            elif len(part):
                effects.append(self._deliver(window, part))
        return effects

    def _in_order(self, window: Window, batch: EntryBatch) -> EntryBatch | None:
        """The part of a plain batch that continues the run, by slicing alone; None if it does not continue it."""
        if batch.ids is not None or batch.first_entry_id > window.cursor or window.held:
            return None
        return batch.slice(window.cursor - batch.first_entry_id, window.last + 1 - batch.first_entry_id)

    def _deliver(self, window: Window, batch: EntryBatch) -> DeliverBatch:
        window.cursor = self.next = batch.last_entry_id + 1
        self._said.clear()
        self._passes = 0
        return DeliverBatch(batch)

    def _settle(self, window: Window) -> list[ReadEffect]:
        """All answers of the window are in: deliver the run they make, and ask for what is missing."""
        if not window.all_finished:
            return []
        effects: list[ReadEffect] = []
        batch = window.take()
        if batch is not None:
            effects.append(self._deliver(window, batch))
        if window.cursor <= window.last:
            self._note_what_was_said(window)
        return effects + self._open_window()

    def _note_what_was_said(self, window: Window) -> None:
        for answer in window.answers.values():
            if answer.index not in self._replicas(self.next):
                continue
            if answer.answers(self.next):
                self._said[answer.index] = "" if answer.denies(self.next) else answer.problem or "cannot say"
            elif window.cursor == window.first:
                self._said[answer.index] = "answered nothing"  # it was asked from `next` on

    def _fail(self, error: BookKeeperError) -> list[ReadEffect]:
        self.done = True
        return [Fail(error)]
