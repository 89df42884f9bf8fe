# SPDX-License-Identifier: Apache-2.0
"""Publishing into several logs in one step: into all of them or into none. Pure (RULES K10, N3 to N6).

Each log's part is a :class:`~bk_core.logs.machines.publication.Publish`; they are read, asked about and decided
together, by the states of :class:`~bk_core.logs.machines.change.HeadChange`, and written in one multi. The publish id
names the logs and their rows too. So whichever head remembers it tells that the multi was applied to all of them,
whatever the others have forgotten since; and a head that has moved on without it tells that it never will be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MetadataUnavailableError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.head import NewExtent, Published, PublishId
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.change import ATTEMPTS_MAX, FAILURES_MAX, MOVES, Effects, State
from bk_core.logs.machines.fan_out_parts import (
    MultiDoubt,
    Part,
    PublishAmong,
    bytes_of,
    fan_out_id,
    forgotten,
    learned,
    want_merged,
    write_of,
)
from bk_core.logs.machines.publication import Publish, ledgers_of
from bk_core.logs.machines.transactions import APPEND, PublishOptions
from bk_core.logs.paging import Change, Nonce, PagesNeeded, tightened
from bk_core.model import Versioned

LOGS_MAX = 100
"""Logs of one step (RULES K10)."""
STEP_BYTES_MAX = 1_040_000
"""What a multi may hold: ZooKeeper refuses 1 MiB (RULES N3)."""

_ANSWERS: Mapping[State, Callable[[ev.Event], bool]] = {
    State.READING: lambda answer: isinstance(answer, ev.HeadRead | ev.RequestFailed),
    State.ASKING: lambda answer: isinstance(
        answer, ev.PagesRead | ev.LedgersChecked | ev.LedgersRecovered | ev.RequestFailed
    ),
    State.CREATING: lambda answer: isinstance(answer, ev.PagesCreated | ev.RequestFailed),
}


class FanOut:
    """Carries ``intents``, one a log, out together. Stepped as a :class:`HeadChange`, with Abort as a Publication."""

    def __init__(
        self, intents: Mapping[str, Publish], *, attempts_max: int = ATTEMPTS_MAX, failures_max: int = FAILURES_MAX
    ) -> None:
        self.state = State.NEW
        self.was_attempted = False  # a multi was sent
        self._parts = {log: Part(intents[log]) for log in sorted(intents)}
        self._attempts, self._attempts_max = 0, attempts_max
        self._failures, self._failures_max = 0, failures_max
        self._doubts: tuple[MultiDoubt, ...] = ()
        self._asked: Collection[str] = ()  # which logs must answer

    @classmethod
    def of(
        cls,
        ledgers: Mapping[str, Sequence[NewExtent]],
        publish_id: PublishId,
        *,
        now_ms: int,
        nonce: Nonce,
        options: PublishOptions = APPEND,
        failures_max: int = FAILURES_MAX,
    ) -> FanOut:
        """Publish these ledgers, by log. Raises InvalidArgumentError for no log, or more than 100."""
        if not 1 <= len(ledgers) <= LOGS_MAX:
            raise InvalidArgumentError(
                f"a write goes to at most {LOGS_MAX} logs, because they are published in one step",
                value=f"{len(ledgers)} logs",
                remedy="write fewer logs at a time",
            )
        found = fan_out_id(publish_id, {log: sum(each.rows for each in extents) for log, extents in ledgers.items()})
        intents = {log: PublishAmong(tuple(extents), found, now_ms, nonce, options) for log, extents in ledgers.items()}
        return cls(intents, failures_max=failures_max)

    def copy(self) -> FanOut:
        """An independent machine in the same state; all that it holds is replaced, never changed."""
        return copy(self)

    def step(self, event: ev.Event) -> Effects:
        """Take one event; returns the effects in the order they are to be carried out."""
        before = self.state
        effects = self._step(event)
        assert self.state is before or self.state in MOVES[before], (before, event, self.state)
        return effects

    def _step(self, event: ev.Event) -> Effects:
        match self.state, event:
            case ((State.DONE | State.FAILED), _):
                return []
            case _, ev.Abort():
                return self._abort()
            case (State.NEW, ev.Start()) | (State.WAITING, ev.WaitEnded()):
                return self._read()
            case ((State.READING | State.ASKING | State.CREATING), ev.LogsAnswered(answers)):
                is_answer = answers.keys() == self._asked and all(map(_ANSWERS[self.state], answers.values()))
                return self._on_answers(answers) if is_answer else []
            case ((State.READING | State.ASKING | State.CREATING), ev.RequestFailed(error)):
                return self._on_failed(error)
            case State.WRITING, _:
                return self._on_write_ended(event)
        return []

    # --- asking ---

    def _read(self) -> Effects:
        reads: dict[str, ev.Effect] = {log: ev.ReadHead(app_id=part.intent.app_id) for log, part in self._parts.items()}
        is_first = any(part.found is None for part in self._parts.values())
        return self._ask(State.READING, reads, sync=is_first or bool(self._doubts))

    def _ask(self, state: State, requests: Mapping[str, ev.Effect], *, sync: bool = False) -> Effects:
        self._asked = requests.keys()
        return self._to(state, ev.ForLogs(requests, sync))

    def _on_answers(self, answers: Mapping[str, ev.Event]) -> Effects:
        """What was asked of several logs: one that cannot answer holds all of them up."""
        for log, answer in answers.items():
            if isinstance(answer, ev.RequestFailed):
                return self._on_failed(_named(answer.error, log))
        if self.state is State.CREATING:
            return self._write()
        answered = {log: learned(self._parts[log], answer) for log, answer in answers.items()}
        before, self._parts = self._parts, {**self._parts, **answered}
        for log, part in self._parts.items():
            found = before[log].found
            if found is not None and found.value.uuid != part.head.uuid:
                return self._fail(PublishConflictError("a log was deleted and made again", value=f"log {log}"))
        return self._look()

    # --- looking and deciding ---

    def _look(self) -> Effects:
        """Is it there already? Can it still come? Only then is anything decided (RULES N4)."""
        settled, error = self._settled()
        if settled:
            return self._finish(settled)
        self._doubts = tuple(doubt for doubt in self._doubts if not self._is_ruled_out(doubt))
        if error is not None:
            return self._fail(error)
        if (lost := self._forgotten()) is not None:
            return self._fail(lost)
        try:
            requests = self._decide()
            if not requests:
                requests = self._fit_together()
        except BookKeeperError as refused:
            return self._fail(refused)
        if requests:
            return self._ask(State.ASKING, requests)
        creates: dict[str, ev.Effect] = {
            log: ev.CreatePages(part.new_pages) for log, part in self._parts.items() if part.new_pages
        }
        return self._ask(State.CREATING, creates) if creates else self._write()

    def _settled(self) -> tuple[dict[str, Published], BookKeeperError | None]:
        """What the logs remember of this publish, and what the first of them holds against it."""
        found: dict[str, Published] = {}
        errors: list[BookKeeperError] = []
        for log, part in self._parts.items():
            try:
                if (result := part.intent.settled(part.head, part.facts)) is not None:
                    found[log] = result
            except BookKeeperError as error:
                errors.append(_named(error, log))
        return found, errors[0] if errors else None

    def _forgotten(self) -> BookKeeperError | None:
        """The error of a multi that may have been applied before a log went on, and been forgotten."""
        for doubt in self._doubts:
            if any(part.read.version > doubt.made[log].version for log, part in self._parts.items()):
                return doubt.error
        return None

    def _is_ruled_out(self, doubt: MultiDoubt) -> bool:
        """One log that went on without it is enough: the multi was not applied then, and never will be. A head that
        the multi was compared with, or an older one, tells nothing."""
        for log, part in self._parts.items():
            made, moved = doubt.made[log], part.read.version - doubt.made[log].version
            if moved > 0 and part.intent.rules_out(made.value, moved, part.head, part.facts):
                return True
        return False

    def _decide(self) -> dict[str, ev.Effect]:
        """Decide about each log; returns what must be known first. Raises what refuses a part of it."""
        requests: dict[str, ev.Effect] = {}
        decided: dict[str, Part] = {}
        for log, part in self._parts.items():
            try:
                decision = part.intent.decide(part.head, part.facts)
                if isinstance(decision, Change):
                    want_merged(part, decision)
                    decided[log] = replace(part, change=decision)
                else:
                    requests[log] = decision
            except PagesNeeded as needed:
                requests[log] = ev.ReadPages(needed.names)
            except BookKeeperError as error:
                raise _named(error, log) from None
        self._parts = {**self._parts, **decided}
        return requests

    def _fit_together(self) -> dict[str, ev.Effect]:
        """See that one multi holds them: heads that are too large together move what they list into pages. Returns the
        pages to read first; raises InvalidArgumentError if it is still too much (RULES N3)."""
        if self._step_bytes() <= STEP_BYTES_MAX:
            return {}
        requests: dict[str, ev.Effect] = {}
        for log, part in self._parts.items():
            change = tightened(part.decided, part.intent.nonce, part.facts.pages)
            try:
                want_merged(part, change)
            except PagesNeeded as needed:
                requests[log] = ev.ReadPages(needed.names)
            self._parts = {**self._parts, log: replace(part, change=change)}
        if not requests and (size := self._step_bytes()) > STEP_BYTES_MAX:
            raise InvalidArgumentError(
                "the records of the logs do not fit one step of the metadata store",
                value=f"{len(self._parts)} logs, {size} of {STEP_BYTES_MAX} bytes",
                remedy="write fewer logs at a time",
            )
        return requests

    def _step_bytes(self) -> int:
        return sum(bytes_of(log, part) for log, part in self._parts.items())

    # --- writing ---

    def _write(self) -> Effects:
        self.was_attempted = True
        return self._to(State.WRITING, ev.WriteHeads({log: write_of(part) for log, part in self._parts.items()}))

    def _on_write_ended(self, event: ev.Event) -> Effects:
        match event:
            case ev.HeadWritten():
                return self._finish({log: part.decided.head.published[-1] for log, part in self._parts.items()})
            case ev.HeadConflicted():
                return [*self._drop_pages(), *self._pause()]
            case ev.HeadWriteUnknown(error):
                self._doubted(error)
                return self._on_failed(error)
            case ev.RequestFailed(error):
                return [*self._drop_pages(), *self._on_failed(error)]
        return []

    def _doubted(self, error: BookKeeperError) -> None:
        made = {log: Versioned(part.decided.head, part.read.version) for log, part in self._parts.items()}
        self._doubts = (*self._doubts, MultiDoubt(made, error))

    def _drop_pages(self) -> Effects:
        parts = self._parts.items()
        names = {log: tuple(new.name for new in part.new_pages) for log, part in parts if part.new_pages}
        return [ev.DropPagesOf(names)] if names else []

    # --- trouble and the end ---

    def _abort(self) -> Effects:
        """Delete the ledgers only if no multi was ever sent: one without an answer may come late."""
        error = PublishConflictError("the publish was aborted")
        if self.state is State.WRITING:
            self._doubted(error)
        effects = self._fail(error)
        ledgers = ledgers_of([extent for part in self._parts.values() for extent in part.intent.extents])
        return effects if self.was_attempted or not ledgers else [ev.DropLedgers(ledgers), *effects]

    def _on_failed(self, error: BookKeeperError) -> Effects:
        """A store that is away may come back; everything else is final."""
        self._failures += 1
        if not isinstance(error, MetadataUnavailableError) or self._failures >= self._failures_max:
            return self._fail(error)
        return self._pause()

    def _pause(self) -> Effects:
        self._attempts += 1
        if self._attempts >= self._attempts_max:
            return self._fail(
                PublishConflictError(
                    f"others changed one of the logs first, {self._attempts} times",
                    remedy="try again, with fewer writers at a time",
                )
            )
        return self._to(State.WAITING, ev.Wait(self._attempts))

    def _finish(self, found: Mapping[str, Published]) -> Effects:
        """It is published in every log: also in those that do not remember it any more."""
        results = {log: found[log] if log in found else forgotten(part) for log, part in self._parts.items()}
        return self._to(State.DONE, ev.Finish(results))

    def _fail(self, error: BookKeeperError) -> Effects:
        error.outcome = Outcome.UNKNOWN if self._doubts else Outcome.NOT_APPLIED
        return self._to(State.FAILED, ev.Fail(error))

    def _to(self, state: State, *effects: ev.Effect) -> Effects:
        self.state = state
        return list(effects)


def _named(error: BookKeeperError, log: str) -> BookKeeperError:
    """The error, which says of which log it speaks."""
    if f"log {log}" not in str(error):
        error.value = f"log {log}, {error.value}" if error.value else f"log {log}"
    return error
