# SPDX-License-Identifier: Apache-2.0
"""Changes the head of a log, or the heads of several logs: publish, overwrite, trim, compact, condemn. Pure (N3, N4,
K10).

A publish may go into several logs in one step, into all of them or into none.

An :class:`Intent` describes the wanted state of one log. It has the rules of its change, and does not use the metadata
store. The sequence reads the heads, and stops if they are as wanted already. Otherwise it requests the facts that the
decision needs, creates pages, and writes all heads by one compare-and-set. After a conflict or a lost answer it begins
again.

A write whose answer was lost is in *doubt*. It may still be applied while the heads have the versions with which it was
compared. Later heads may not show it although it was applied, because its result may have been trimmed, replaced or
forgotten. So a doubt ends only when a head shows that the write was never applied, and an error says NOT_APPLIED only
if no doubt is left. A fact that is not in the head, such as the existence of a ledger, counts only if it was requested
after that head was read, because an event that makes it untrue changes the head first.

If the change ends early, no head was changed, except by a write in doubt. A retry first checks for the wanted state.
Pages that no head names may be left; vacuum finds them.
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
"""The maximum number of attempts of a change. An attempt fails if another client changed the head first."""
FAILURES_MAX = 5
"""The maximum number of attempts of a change that may fail because the metadata store does not answer."""
STEP_BYTES_MAX = 1_040_000
"""The maximum size of a multi in bytes. ZooKeeper refuses 1 MiB (N3)."""
LOG_OVERHEAD_BYTES = 300
"""The number of bytes that each log adds to a multi in addition to its records and its name, for paths, versions and
access rights."""

R = TypeVar("R")
Ask: TypeAlias = ask.CheckLedgers | ask.RecoverLedgers | ask.ReadUnlinked


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a log that are not in its head. ``is_checked``, ``unlinked`` and ``transactions`` were requested
    after the head that was read last."""

    pages: dict[str, LogPage] = field(default_factory=dict)
    ends: dict[LedgerId, LedgerEnd] = field(default_factory=dict)  # of closed ledgers, so they stay true
    missing: frozenset[LedgerId] = frozenset()  # ledgers to recover that do not exist; ids are never reused
    transactions: Versioned[LogTransactions] | None = None
    is_checked: bool = False
    unlinked: tuple[UnlinkedRecord, ...] | None = None  # all records, or None if they were not read
    is_written: bool = False  # our own compare-and-set made this head

    def with_answer(self, request: ask.OfOneLog, answer: Any) -> Facts:
        """Return these facts with the answer to a request about the head that was read last."""
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
    """The wanted state of a log, and the rules of the change that reaches it. ``settled``, ``decide`` and ``rules_out``
    are called for each head that is read. They may raise PagesNeeded, and have no side effects."""

    app_id: str | None = None
    """The application whose transaction record is read with the head."""
    is_repeatable = True
    """Whether it does no harm to apply the change a second time."""

    def settled(self, head: LogHead, facts: Facts) -> R | None:
        """Return the result if ``head`` is as wanted, else None. This is called before all other methods (N4)."""
        raise NotImplementedError

    def decide(self, head: LogHead, facts: Facts) -> Change | Ask:
        """Return the change to make, or a request for a fact on which the decision depends. Raises the error that
        refuses the change."""
        raise NotImplementedError

    def rules_out(self, made: LogHead, moved: int, head: LogHead, facts: Facts) -> bool:
        """Return whether ``head``, which is not as wanted, shows that a write in doubt was never applied. ``made`` is
        the head that the write would have made. ``head`` is the result of ``moved`` ≥ 1 changes of the head with which
        the write was compared."""
        return False

    def forgotten(self) -> R:
        """Return the result for a log that has no record of the change, if another log shows that the change was made.
        Only an intent that may go into several logs needs this."""
        raise NotImplementedError

    def tightened(self, change: Change, facts: Facts) -> Change:
        """Return the same change with the smallest possible head. Only an intent that may go into several logs needs
        this."""
        raise NotImplementedError


@dataclass(slots=True)
class _Part(Generic[R]):
    """One log of a change. It has the log's intent, the known facts, and the change that was decided for the head
    ``found``."""

    intent: Intent[R]
    found: Versioned[LogHead] | None = None
    facts: Facts = field(default_factory=Facts)
    change: Change | None = None

    @property
    def read(self) -> Versioned[LogHead]:
        assert self.found is not None
        return self.found

    @property
    def head(self) -> LogHead:
        return self.read.value

    @property
    def decided(self) -> Change:
        assert self.change is not None
        return self.change

    def learn_head(self, answer: ask.HeadRead) -> None:
        """Adopt a head that was read, and forget the facts that belong to another version."""
        is_known = self.found is not None and self.found.version == answer.head.version
        self.found, self.facts = answer.head, replace(self.facts, transactions=answer.transactions)
        if not is_known:
            self.facts = replace(self.facts, is_checked=False, unlinked=None)

    def decide(self) -> Ask | None:
        """Decide the change and return None, or return a request for a fact on which the decision depends. Raises the
        errors of :meth:`Intent.decide`."""
        decision = self.intent.decide(self.head, self.facts)
        if not isinstance(decision, Change):
            return decision
        self.put(decision)
        return None

    def put(self, change: Change) -> None:
        """Set the decided change. If it makes pages, raise PagesNeeded for the pages that these could replace (N3)."""
        if change.new_pages:
            missing = [ref.name for ref in merge_candidates(self.head) if ref.name not in self.facts.pages]
            if missing:
                raise PagesNeeded(missing)
        self.change = change

    def write(self) -> ask.WriteHead:
        """Return this log's part of the compare-and-set, for the decided change."""
        found = self.facts.transactions
        return write_of(self.read, self.decided, self.facts.pages, None if found is None else found.version)

    def written(self) -> R:
        """Return the result of the intent after the decided head was written."""
        change = self.decided
        transactions = None if change.transactions is None else Versioned(change.transactions, 0)
        pages = {**self.facts.pages, **{new.name: new.page for new in change.new_pages}}
        facts = replace(self.facts, pages=pages, transactions=transactions, is_written=True)
        result = self.intent.settled(change.head, facts)
        assert result is not None, "the change does not reach the wanted state"
        return result


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A write in doubt, which is a write without an answer. ``made`` has by log the head that the write would have
    made, with the version with which it was compared."""

    made: Mapping[str, Versioned[LogHead]]
    error: BookKeeperError


class _Again(Exception):
    """Raised to begin again and read the heads, because another client was faster, or because the store was unavailable
    (``error``)."""

    def __init__(self, error: MetadataUnavailableError | None = None) -> None:
        super().__init__(error)
        self.error = error


class HeadChange(Generic[R]):
    """Carries out the intents of some logs, given by name, in one compare-and-set. :meth:`run` is the sequence; run it
    once."""

    def __init__(
        self,
        intents: Mapping[str, Intent[R]],
        *,
        attempts_max: int = ATTEMPTS_MAX,
        failures_max: int = FAILURES_MAX,
    ) -> None:
        self.was_attempted = False  # whether a compare-and-set was sent
        self._parts = {log: _Part(intent) for log, intent in sorted(intents.items())}
        self._attempts_max, self._failures_max = attempts_max, failures_max
        self._doubts: list[_Doubt] = []

    def run(self) -> Steps[dict[str, R]]:
        """Return the result of each log. Raises the error that refused the change, with the name of the log, and
        PublishConflictError if other clients were always faster. The ``outcome`` of the error says whether the change
        may have been applied, or may still be applied."""
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
            f"other clients changed the log first, {self._attempts_max} times",
            remedy="try again, with fewer writers at a time",
        )

    # --- reading, looking and deciding ---

    def _read(self) -> Steps[None]:
        """Read the heads. Sync before the first time, and while a write has no answer."""
        is_first = any(part.found is None for part in self._parts.values())
        heads = {log: ask.ReadHead(part.intent.app_id) for log, part in self._parts.items()}
        answers = yield from self._ask(heads, sync=is_first or bool(self._doubts))
        for log, part in self._parts.items():
            before = part.found
            part.learn_head(answers[log])
            if before is not None and before.value.uuid != part.head.uuid:
                raise _named(PublishConflictError("the log was deleted and made again"), log)

    def _look(self) -> Steps[dict[str, R] | None]:
        """Return the results if the heads are as wanted. Otherwise decide the change of each log and return None."""
        while True:
            found, pages, refused = self._settled()
            if found:  # all logs were changed by one write, so one log that remembers it is enough
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
        """Return the results of the logs that are as wanted, the pages that other logs need to find out, and the first
        refusal."""
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
        """Drop the doubts that the heads rule out. The caller has found no log that is as wanted. Return the pages that
        are needed to find out."""
        pages: dict[str, ask.OfOneLog] = {}
        self._doubts = [doubt for doubt in self._doubts if not self._is_ruled_out(doubt, pages)]
        return pages

    def _is_ruled_out(self, doubt: _Doubt, pages: dict[str, ask.OfOneLog]) -> bool:
        """Return whether a log has changed without the write. Then the write was not applied, and never will be. A head
        that has the version with which the write was compared, or an older version, rules out nothing, because the
        write may still be applied."""
        for log, part in self._parts.items():
            made, moved = doubt.made[log].value, part.read.version - doubt.made[log].version
            try:
                if moved > 0 and part.intent.rules_out(made, moved, part.head, part.facts):
                    return True
            except PagesNeeded as needed:
                pages[log] = ask.ReadPages(needed.names)
        return False

    def _check_forgotten(self) -> None:
        """Raise the error of a write without an answer if its log has changed since and its change must happen only
        once. The write may have been applied and then forgotten."""
        for doubt in self._doubts:
            for log, part in self._parts.items():
                if not part.intent.is_repeatable and part.read.version > doubt.made[log].version:
                    raise doubt.error

    def _decide(self) -> dict[str, ask.OfOneLog]:
        """Decide the change of each log. Return the requests for facts on which decisions depend. Raises the error that
        refuses a change."""
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
        """Make all heads fit into one multi. If they are too large together, move their extents and references into
        pages. (One head always fits.) Return the requests for pages that must be read first. Raise InvalidArgumentError
        if the heads are still too large (N3)."""
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
        """Write all heads. If nothing was written, delete the new pages."""
        self.was_attempted = True
        try:
            yield ask.WriteHeads({log: part.write() for log, part in self._parts.items()})
        except MetadataConflictError:
            yield from self._drop_pages()
            raise _Again from None
        except BookKeeperError as error:
            if error.outcome is Outcome.UNKNOWN:  # also if the store is closed during a write
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
        """Return the answers by log. If the request of a log fails, begin again if the store was unavailable, otherwise
        raise the error."""
        try:
            answers: Mapping[str, Any] = yield ask.ForLogs(requests, sync)
        except MetadataUnavailableError as error:
            raise _Again(error) from error
        for log, answer in answers.items():
            if isinstance(answer, BookKeeperError):
                raise _again_if_away(_named(answer, log))
        return answers


def change_head(log: str, intent: Intent[R]) -> Steps[R]:
    """Carry out the intent of one log; see :meth:`HeadChange.run`."""
    results = yield from HeadChange({log: intent}).run()
    return results[log]


def write_of(
    found: Versioned[LogHead], change: Change, pages: Pages, transactions_version: int | None = None
) -> ask.WriteHead:
    """Return the compare-and-set that makes ``change`` to the head ``found``. It includes the record of the pages and
    ledgers that the change unlinks (N6)."""
    version = None if change.transactions is None else transactions_version
    return ask.WriteHead(
        change.head, found.version, change.transactions, version, unlinked_by(found.value, change, pages)
    )


def bytes_of(log: str, write: ask.WriteHead) -> int:
    """Return the number of bytes of one log's write in a multi."""
    size = len(encode_head(write.head)) + 3 * len(log) + LOG_OVERHEAD_BYTES
    if write.transactions is not None:
        size += len(encode_transactions(write.transactions))
    return size if write.unlinked.is_empty else size + len(encode_unlinked(write.unlinked))


def _again_if_away(error: BookKeeperError) -> Exception:
    return _Again(error) if isinstance(error, MetadataUnavailableError) else error


def _named(error: BookKeeperError, log: str) -> BookKeeperError:
    """Add the name of the log to the error's value, and return the error."""
    if f"log {log}" not in str(error):
        error.value = f"log {log}, {error.value}" if error.value else f"log {log}"
    return error
