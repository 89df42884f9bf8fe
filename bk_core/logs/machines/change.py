# SPDX-License-Identifier: Apache-2.0
"""One change of the heads of some logs, whatever it is for: publish, overwrite, trim, compact, condemn. Pure (RULES N3,
N4, K10). Mostly it is one log; a publish may go into many at once, into all of them or into none.

Read the heads → is what is wanted there already? then done → ask what must be known about these heads → create pages →
write all heads by one compare-and-set → look again. What is wanted of a log is an :class:`Intent`; it knows the rules
of its own change and nothing of the store.

A conflict reads again. So does an answer that was lost: looking is the only way to learn what became of it. The write
stays in doubt as long as the heads have the versions that it was compared with, and after that unless one of them shows
that it was never applied: what was applied may have been trimmed, replaced or forgotten since. An error says
NOT_APPLIED only if nothing is in doubt. Whatever is known about the world beside a head (do the ledgers still exist?)
counts only if it was asked after the head was read that it is used for: what makes it untrue changes the head first.

Where it ends early, nothing was changed, or there are pages that no head names, which vacuum finds. Only while a write
has no answer may the heads be as wanted: then whoever comes next looks for what is wanted, before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from bk_core.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MetadataConflictError,
    MetadataUnavailableError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps
from bk_core.logs.model.codec import encode_head, encode_transactions, encode_unlinked
from bk_core.logs.model.head import LogHead, LogPage, LogTransactions
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.logs.model.paging import Change, Pages, PagesNeeded, merge_candidates
from bk_core.logs.model.unlinking import UnlinkedRecord, unlinked_by
from bk_core.model import LedgerId, Versioned

ATTEMPTS_MAX = 30
FAILURES_MAX = 5
STEP_BYTES_MAX = 1_040_000
"""What a multi may hold: ZooKeeper refuses 1 MiB (RULES N3)."""
LOG_OVERHEAD_BYTES = 300
"""Of a log in a multi: paths but for the name, versions, rights."""

R = TypeVar("R")
Ask: TypeAlias = ask.CheckLedgers | ask.RecoverLedgers | ask.ReadUnlinked


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside a head. ``is_checked``, ``unlinked`` and ``transactions`` are those of the head that was
    read last."""

    pages: dict[str, LogPage] = field(default_factory=dict)
    ends: dict[LedgerId, LedgerEnd] = field(default_factory=dict)  # of closed ledgers: they stay true
    missing: frozenset[LedgerId] = frozenset()  # that were to be recovered: ids are never used again
    transactions: Versioned[LogTransactions] | None = None
    is_checked: bool = False
    unlinked: tuple[UnlinkedRecord, ...] | None = None  # every record that there was; None: not asked
    is_written: bool = False  # the head is the one that our own compare-and-set made

    def with_answer(self, request: ask.OfOneLog, answer: Any) -> Facts:
        """These, and what was answered about the head that was read last."""
        match request:
            case ask.ReadPages():
                return replace(self, pages={**self.pages, **answer})
            case ask.CheckLedgers():
                return replace(self, is_checked=True)
            case ask.RecoverLedgers():
                return replace(self, ends={**self.ends, **answer.ends}, missing=self.missing | answer.missing)
            case ask.ReadUnlinked():
                return replace(self, unlinked=answer)
        raise AssertionError(request)


class Intent(Generic[R]):
    """What is wanted of a log. ``settled``, ``decide`` and ``rules_out`` are asked about each head that is read, may
    raise PagesNeeded, and have no effects of their own."""

    app_id: str | None = None
    """Whose transactions are read with the head."""
    is_repeatable = True
    """Whether it may be applied again where it may have been applied already."""

    def settled(self, head: LogHead, facts: Facts) -> R | None:
        """The result, if ``head`` is as wanted; asked before anything else (RULES N4)."""
        raise NotImplementedError

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """The change that makes it so, or what must be known first. Raises what refuses the change."""
        raise NotImplementedError

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """Whether ``head``, which is not as wanted, shows that ``made`` never was the head: that is what a
        compare-and-set without an answer would have made, with the version ``moved`` − 1 ≥ 0 changes before this."""
        return False

    def forgotten(self) -> R:
        """The result, where another log tells that it is done and this one does not remember. Only of what may be
        wanted of several logs."""
        raise NotImplementedError

    def tightened(self, change: Change, facts: Facts) -> Change:
        """The same change with the smallest head there is. Only of what may be wanted of several logs."""
        raise NotImplementedError


@dataclass(slots=True)
class _Part(Generic[R]):
    """One log: what is wanted of it, what is known of it, and what was decided about the head ``found``."""

    intent: Intent[R]
    found: Versioned[LogHead] | None = None
    facts: Facts = field(default_factory=Facts)
    change: Change | None = None

    @property
    def read(self) -> Versioned[LogHead]:
        """The head that was read last, with its version."""
        assert self.found is not None
        return self.found

    @property
    def head(self) -> LogHead:
        """The head that was read last."""
        return self.read.value

    @property
    def decided(self) -> Change:
        """The change that was decided on last."""
        assert self.change is not None
        return self.change

    def learn_head(self, answer: ask.HeadRead) -> None:
        """What was asked about another head does not count for this one."""
        is_known = self.found is not None and self.found.version == answer.head.version
        self.found, self.facts = answer.head, replace(self.facts, transactions=answer.transactions)
        if not is_known:
            self.facts = replace(self.facts, is_checked=False, unlinked=None)

    def decide(self) -> Ask | None:
        """Decide about the head, or say what must be known first. Raises PagesNeeded, and what refuses the change."""
        decision = self.intent.decide(self.head, self.facts)
        if not isinstance(decision, Change):
            return decision
        self.put(decision)
        return None

    def put(self, change: Change) -> None:
        """This is the change. Where pages are made anyway, raises PagesNeeded for those that they can be merged with
        (RULES N3)."""
        if change.new_pages:
            missing = [ref.name for ref in merge_candidates(self.head) if ref.name not in self.facts.pages]
            if missing:
                raise PagesNeeded(missing)
        self.change = change

    def write(self) -> ask.WriteHead:
        """The compare-and-set of what was decided."""
        found = self.facts.transactions
        return write_of(self.read, self.decided, self.facts.pages, None if found is None else found.version)

    def written(self) -> R:
        """The result, now that the head is what was decided."""
        change = self.decided
        transactions = None if change.transactions is None else Versioned(change.transactions, 0)
        pages = {**self.facts.pages, **{new.name: new.page for new in change.new_pages}}
        facts = replace(self.facts, pages=pages, transactions=transactions, is_written=True)
        result = self.intent.settled(change.head, facts)
        assert result is not None, "the change does not do what it is for"
        return result


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A write that got no answer: by log, the head it would have made and the version it was compared with."""

    made: Mapping[str, Versioned[LogHead]]
    error: BookKeeperError


class _Again(Exception):
    """The heads are to be read again: others were faster, or the store was away (``error``) and may come back."""

    def __init__(self, error: MetadataUnavailableError | None = None) -> None:
        super().__init__(error)
        self.error = error


class HeadChange(Generic[R]):
    """Carries out what is wanted of some logs, by their names. :meth:`run` is the sequence, to be run once."""

    def __init__(
        self,
        intents: Mapping[str, Intent[R]],
        *,
        attempts_max: int = ATTEMPTS_MAX,
        failures_max: int = FAILURES_MAX,
    ) -> None:
        self.was_attempted = False  # a compare-and-set was sent
        self._parts = {log: _Part(intent) for log, intent in sorted(intents.items())}
        self._attempts_max, self._failures_max = attempts_max, failures_max
        self._doubts: list[_Doubt] = []

    def run(self) -> Steps[dict[str, R]]:
        """The result of each log. Raises what refused it for one of them, which the error names, and
        PublishConflictError when others were always faster; ``outcome`` says whether it may yet turn out to be done."""
        try:
            return (yield from self._attempts())
        except BookKeeperError as error:
            error.outcome = Outcome.UNKNOWN if self._doubts else Outcome.NOT_APPLIED
            raise

    def _attempts(self) -> Steps[dict[str, R]]:
        failures = 0
        for attempt in range(1, self._attempts_max + 1):
            try:
                yield from self._read()
                results = yield from self._look()
                if results is not None:
                    return results
                yield from self._create_pages()
                yield from self._write()
                return {log: part.written() for log, part in self._parts.items()}
            except _Again as again:
                failures += again.error is not None
                if again.error is not None and failures >= self._failures_max:
                    raise again.error from None
            if attempt < self._attempts_max:
                yield ask.Wait(attempt)
        raise PublishConflictError(
            f"others changed the log first, {self._attempts_max} times",
            remedy="try again, with fewer writers at a time",
        )

    # --- reading, looking and deciding ---

    def _read(self) -> Steps[None]:
        """Read the heads: as they are now, the first time and while something is in doubt."""
        is_first = any(part.found is None for part in self._parts.values())
        heads = {log: ask.ReadHead(part.intent.app_id) for log, part in self._parts.items()}
        answers = yield from self._ask(heads, sync=is_first or bool(self._doubts))
        for log, part in self._parts.items():
            before = part.found
            part.learn_head(answers[log])
            if before is not None and before.value.uuid != part.head.uuid:
                raise _named(PublishConflictError("the log was deleted and made again"), log)

    def _look(self) -> Steps[dict[str, R] | None]:
        """The results, if all is as wanted. Otherwise None, and the changes are decided."""
        while True:
            found, pages, refused = self._settled()
            if found:  # by one write: whichever log remembers it tells of all
                parts = self._parts.items()
                return {log: found[log] if log in found else part.intent.forgotten() for log, part in parts}
            wanted = pages or self._judge_doubts()
            if not wanted:
                if refused is not None:
                    raise refused
                self._check_forgotten()
                wanted = self._decide() or self._fit_together()
            if not wanted:
                return None
            answers = yield from self._ask(wanted)
            for log, answer in answers.items():
                self._parts[log].facts = self._parts[log].facts.with_answer(wanted[log], answer)

    def _settled(self) -> tuple[dict[str, R], dict[str, ask.OfOneLog], BookKeeperError | None]:
        """What the heads show to be done, the pages that it takes to say so, and why the first log refuses it."""
        found: dict[str, R] = {}
        pages: dict[str, ask.OfOneLog] = {}
        refused: BookKeeperError | None = None
        for log, part in self._parts.items():
            try:
                if (result := part.intent.settled(part.head, part.facts)) is not None:
                    found[log] = result
            except PagesNeeded as needed:
                pages[log] = ask.ReadPages(needed.names)
            except BookKeeperError as error:
                refused = refused or _named(error, log)
        return found, pages, refused

    def _judge_doubts(self) -> dict[str, ask.OfOneLog]:
        """Nothing is as wanted: drop the doubts that this rules out. Returns the pages that it takes to say so."""
        pages: dict[str, ask.OfOneLog] = {}
        self._doubts = [doubt for doubt in self._doubts if not self._is_ruled_out(doubt, pages)]
        return pages

    def _is_ruled_out(self, doubt: _Doubt, pages: dict[str, ask.OfOneLog]) -> bool:
        """One log that went on without it is enough: the write was not applied then, and never will be. A head that it
        was compared with, or an older one, says nothing: it may still come."""
        for log, part in self._parts.items():
            made, moved = doubt.made[log].value, part.read.version - doubt.made[log].version
            try:
                if moved > 0 and part.intent.rules_out(made, moved, part.head, part.facts):
                    return True
            except PagesNeeded as needed:
                pages[log] = ask.ReadPages(needed.names)
        return False

    def _check_forgotten(self) -> None:
        """Raises the error of a write that may have been applied before a log went on, and been forgotten: what must
        happen once cannot be tried again."""
        for doubt in self._doubts:
            for log, part in self._parts.items():
                if not part.intent.is_repeatable and part.read.version > doubt.made[log].version:
                    raise doubt.error

    def _decide(self) -> dict[str, ask.OfOneLog]:
        """Decide about each log; returns what must be known first. Raises what refuses one of the changes."""
        wanted: dict[str, ask.OfOneLog] = {}
        for log, part in self._parts.items():
            try:
                needed = part.decide()
                if needed is not None:
                    wanted[log] = needed
            except PagesNeeded as pages:
                wanted[log] = ask.ReadPages(pages.names)
            except BookKeeperError as error:
                raise _named(error, log) from None
        return wanted

    def _fit_together(self) -> dict[str, ask.OfOneLog]:
        """See that one multi holds all heads: those that are too large together move what they list into pages. (One
        fits by its own limit.) Returns the pages to read first; raises InvalidArgumentError if it is still too much
        (RULES N3)."""
        if len(self._parts) == 1 or self._step_bytes() <= STEP_BYTES_MAX:
            return {}
        wanted: dict[str, ask.OfOneLog] = {}
        for log, part in self._parts.items():
            try:
                part.put(part.intent.tightened(part.decided, part.facts))
            except PagesNeeded as pages:
                wanted[log] = ask.ReadPages(pages.names)
        if not wanted and (size := self._step_bytes()) > STEP_BYTES_MAX:
            raise InvalidArgumentError(
                "the records of the logs do not fit one step of the metadata store",
                value=f"{len(self._parts)} logs, {size} of {STEP_BYTES_MAX} bytes",
                remedy="write fewer logs at a time",
            )
        return wanted

    def _step_bytes(self) -> int:
        return sum(bytes_of(log, part.write()) for log, part in self._parts.items())

    # --- writing ---

    def _create_pages(self) -> Steps[None]:
        parts = self._parts.items()
        creates = {log: ask.CreatePages(part.decided.new_pages) for log, part in parts if part.decided.new_pages}
        if creates:
            yield from self._ask(creates)

    def _write(self) -> Steps[None]:
        """Write all heads. Pages are dropped where certainly no head names them."""
        self.was_attempted = True
        try:
            yield ask.WriteHeads({log: part.write() for log, part in self._parts.items()})
        except MetadataConflictError:
            yield from self._drop_pages()
            raise _Again from None
        except BookKeeperError as error:
            if error.outcome is Outcome.UNKNOWN:  # also of a store that is closed under a write
                made = {log: Versioned(part.decided.head, part.read.version) for log, part in self._parts.items()}
                self._doubts.append(_Doubt(made, error))
            else:
                yield from self._drop_pages()
            raise _again_if_away(error) from error

    def _drop_pages(self) -> Steps[None]:
        parts = self._parts.items()
        names = {log: tuple(new.name for new in part.decided.new_pages) for log, part in parts}
        if any(names.values()):
            with suppress(BookKeeperError):
                yield ask.DropPages({log: pages for log, pages in names.items() if pages})

    def _ask(self, requests: Mapping[str, ask.OfOneLog], *, sync: bool = False) -> Steps[Mapping[str, Any]]:
        """The answers by log: one that cannot answer holds all of them up. A store that is away may come back;
        everything else is final."""
        try:
            answers: Mapping[str, Any] = yield ask.ForLogs(requests, sync)
        except MetadataUnavailableError as error:
            raise _Again(error) from error
        for log, answer in answers.items():
            if isinstance(answer, BookKeeperError):
                raise _again_if_away(_named(answer, log))
        return answers


def change_head(log: str, intent: Intent[R]) -> Steps[R]:
    """What is wanted of one log; :meth:`HeadChange.run`."""
    results = yield from HeadChange({log: intent}).run()
    return results[log]


def write_of(
    found: Versioned[LogHead], change: Change, pages: Pages, transactions_version: int | None = None
) -> ask.WriteHead:
    """The compare-and-set that makes ``change`` of the head ``found``; what it unlinks goes on record (RULES N6)."""
    version = None if change.transactions is None else transactions_version
    return ask.WriteHead(
        change.head, found.version, change.transactions, version, unlinked_by(found.value, change, pages)
    )


def bytes_of(log: str, write: ask.WriteHead) -> int:
    """What a log takes of a multi."""
    size = len(encode_head(write.head)) + 3 * len(log) + LOG_OVERHEAD_BYTES
    if write.transactions is not None:
        size += len(encode_transactions(write.transactions))
    return size if write.unlinked.is_empty else size + len(encode_unlinked(write.unlinked))


def _again_if_away(error: BookKeeperError) -> Exception:
    return _Again(error) if isinstance(error, MetadataUnavailableError) else error


def _named(error: BookKeeperError, log: str) -> BookKeeperError:
    """The error, which says of which log it speaks."""
    if f"log {log}" not in str(error):
        error.value = f"log {log}, {error.value}" if error.value else f"log {log}"
    return error
