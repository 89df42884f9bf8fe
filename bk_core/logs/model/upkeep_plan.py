# SPDX-License-Identifier: Apache-2.0
"""Plans the upkeep of a cluster's logs. A plan has the next steps, in their order, and the work that waits, with the
reasons. Pure.

Retention comes first. It needs one compare-and-set for each log, and trimmed extents need not be copied. Then the
ledgers and pages that no log lists are deleted (N6), once in ``vacuum_every_ms``, because the search reads the record
of every ledger. Compaction comes last, because it is the only step that copies bytes. It begins after the log where the
last compaction ended, so that each log has its turn however small the budget is.

``bk_core.logs.machines`` makes each step safe against crashes and against other steps. It does no harm if a step is
interrupted or repeated.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bk_core.errors import InvalidArgumentError
from bk_core.logs.model.compaction import LEDGER_BYTES_MAX, Run, weight_of
from bk_core.logs.model.upkeep_record import WINDOW_MS, UpkeepRecord
from bk_core.model import LedgerId

DAY_MS = 24 * 3600 * 1000
DELETE_DELAY_MIN_MS = 7 * DAY_MS
"""The shortest ``delete_delay_ms`` of a worker that runs unattended (N6). Every job must publish its ledgers within
this time."""
TXN_RETENTION_MIN_MS = 30 * DAY_MS
"""The shortest ``txn_retention_ms`` of such a worker. A version that is published again later may be in the log
twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepConfig:
    """The budgets and times of upkeep.

    Compaction copies at most ``copy_bytes_per_s`` in each worker, and ``copy_bytes_per_hour`` in the whole cluster.
    ``ledgers_per_hour`` limits the ledgers that are merged or deleted. 0 sets no limit. A step copies about
    ``step_bytes``; before the next step the worker proves again that it is elected. A log with fewer than
    ``extents_min`` small extents waits.

    A search for garbage comes every ``vacuum_every_ms``. Garbage is deleted ``delete_delay_ms`` after it was unlinked,
    and transaction records ``txn_retention_ms`` after their last use. The elected worker checks all logs every
    ``poll_s``; the other workers check the election every ``vote_s``. A log that failed is tried again after
    ``retry_s``; after each further failure the pause doubles, up to ``retry_max_s``.
    """

    copy_bytes_per_s: int = 32 << 20
    copy_bytes_per_hour: int = 20 << 30
    ledgers_per_hour: int = 100_000
    step_bytes: int = 1 << 30
    ledger_bytes_max: int = LEDGER_BYTES_MAX
    extents_min: int = 16
    vacuum_every_ms: int = DAY_MS
    delete_delay_ms: int = DELETE_DELAY_MIN_MS
    txn_retention_ms: int = TXN_RETENTION_MIN_MS
    poll_s: float = 60.0
    vote_s: float = 5.0
    retry_s: float = 5.0
    retry_max_s: float = 300.0

    def __post_init__(self) -> None:
        wanted = (
            ("copy_bytes_per_s", 0),
            ("copy_bytes_per_hour", 0),
            ("ledgers_per_hour", 0),
            ("step_bytes", 1),
            ("ledger_bytes_max", 1),
            ("extents_min", 2),
            ("vacuum_every_ms", 0),
            ("delete_delay_ms", DELETE_DELAY_MIN_MS),
            ("txn_retention_ms", TXN_RETENTION_MIN_MS),
            ("poll_s", 0.01),
            ("vote_s", 0.01),
            ("retry_s", 0.01),
            ("retry_max_s", self.retry_s),
        )
        for name, least in wanted:
            if (value := getattr(self, name)) < least:
                raise InvalidArgumentError(
                    f"{name} is too small", value=f"{name}={value}", remedy=f"take {least} or more"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """The objects of a log that may be deleted now. ``ledgers`` and ``pages`` are not listed, and ``transactions``
    counts transaction records that were not used for long."""

    ledgers: tuple[LedgerId, ...] = ()
    pages: int = 0
    transactions: int = 0

    def __bool__(self) -> bool:
        return bool(self.ledgers or self.pages or self.transactions)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The facts about a log on which a plan is based.

    ``trouble`` says why the log gets no upkeep, and is empty if it does. A trim to ``expired_offset`` unlinks
    ``expired_ledgers`` with ``expired_bytes``. ``runs`` are worth merging, each into one ledger. ``unlinked`` counts
    the recent unlinked records; the oldest of them is old enough to delete at ``unlinked_until_ms``. ``garbage`` is
    None if no search was made.
    """

    name: str
    trouble: str = ""
    start_offset: int = 0
    expired_offset: int = 0
    expired_ledgers: int = 0
    expired_bytes: int = 0
    retention: str = ""
    runs: tuple[Run, ...] = ()
    unlinked: int = 0
    unlinked_until_ms: int = 0
    garbage: Garbage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedFacts:
    """The facts about a deleted log on which a plan is based. ``trouble`` says why its ledgers cannot be deleted, and
    is empty if they can. ``is_marked`` says that only the mark of the deletion was written. ``ledgers`` are all ledgers
    that were made for the log, or None if no search was made."""

    name: str
    uuid: str
    deleted_ms: int = 0
    is_marked: bool = False
    ledgers: tuple[LedgerId, ...] | None = None
    trouble: str = ""


class StepKind(enum.Enum):
    """The kinds of steps. ``FINISH`` removes the mark of a deleted log. ``DELETE`` deletes the ledgers of a deleted log
    or, if there are none, its record."""

    FINISH = "finish"
    TRIM = "trim"
    VACUUM = "vacuum"
    DELETE = "delete"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a plan, with its reason ``why``. ``ledgers`` is the number of ledgers that it unlinks, deletes or
    merges, and ``size_bytes`` the number of bytes that it unlinks or copies. ``before_offset`` is used by a trim.
    ``doomed`` are the ledgers that a vacuum or a deletion may delete. ``uuid`` names a deleted log."""

    kind: StepKind
    log: str
    why: str
    ledgers: int = 0
    size_bytes: int = 0
    before_offset: int = 0
    doomed: tuple[LedgerId, ...] = ()
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Work that is not done now, with the reason ``why``. ``until_ms`` is the time until which it waits, or 0 if that
    is unknown. ``log`` is empty if the work concerns all logs."""

    log: str
    what: str
    why: str
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class UpkeepPlan:
    """The steps to take now, in order, and the work that waits. ``looked`` says that garbage was searched for.
    ``is_rid`` says that ``steps`` delete all garbage that was found."""

    steps: tuple[Step, ...] = ()
    waits: tuple[Waits, ...] = ()
    looked: bool = False
    is_rid: bool = False


def is_vacuum_due(record: UpkeepRecord, now_ms: int, config: UpkeepConfig) -> bool:
    """Return whether to search for garbage now. If the last search was in the future, a clock was wrong, and a search
    is due."""
    return not 0 <= now_ms - record.vacuumed_ms < config.vacuum_every_ms


def vacuumed(record: UpkeepRecord, now_ms: int, config: UpkeepConfig, *, is_rid: bool) -> UpkeepRecord:
    """Return the record after a search for garbage. If some garbage was not deleted, the next search comes in an
    hour."""
    early_ms = 0 if is_rid else max(0, config.vacuum_every_ms - WINDOW_MS)
    return replace(record, vacuumed_ms=now_ms - early_ms)


def spent(record: UpkeepRecord, step: Step, now_ms: int) -> UpkeepRecord:
    """Return the record that a worker writes before it takes this step. The record counts the step's bytes and
    ledgers."""
    record = record.at(now_ms)
    if step.kind in (StepKind.VACUUM, StepKind.DELETE):
        return replace(record, ledgers=record.ledgers + step.ledgers)
    if step.kind is StepKind.COMPACT:
        copied, ledgers = record.copied_bytes + step.size_bytes, record.ledgers + step.ledgers
        return replace(record, copied_bytes=copied, ledgers=ledgers, turn=step.log)
    return record


def plan(
    logs: Sequence[LogFacts],
    record: UpkeepRecord,
    now_ms: int,
    config: UpkeepConfig,
    deleted: Sequence[DeletedFacts] = (),
) -> UpkeepPlan:
    """Plan the work on these logs and deleted logs at the time ``now_ms``. ``record`` is the record of upkeep. Times
    are by the store's clock."""
    planner = _Planner(record.at(now_ms), config)
    fit = [log for log in logs if not log.trouble]
    waits = [Waits(log=log.name, what="all", why=log.trouble) for log in logs if log.trouble]
    steps = [*_finishes(deleted), *_trims(fit)]
    looked = any(log.garbage is not None for log in fit) or any(log.ledgers is not None for log in deleted)
    steps += planner.vacuums(fit)
    steps += planner.deletions(deleted, now_ms)
    is_rid = looked and not planner.waits
    steps += planner.compactions(_behind(fit, record.turn))
    waits += [*planner.waits, *_waiting_deleted(deleted, now_ms, config), *_waiting(fit, record, config)]
    return UpkeepPlan(tuple(steps), tuple(waits), looked, is_rid)


def _finishes(deleted: Sequence[DeletedFacts]) -> Iterator[Step]:
    for log in deleted:
        if log.is_marked and not log.trouble:
            why = "its deletion was begun and not finished"
            yield Step(kind=StepKind.FINISH, log=log.name, why=why, uuid=log.uuid)


def _waiting_deleted(deleted: Sequence[DeletedFacts], now_ms: int, config: UpkeepConfig) -> Iterator[Waits]:
    what = "deletion of the ledgers of a deleted log"
    for log in deleted:
        until_ms = log.deleted_ms + config.delete_delay_ms
        if log.trouble:
            yield Waits(log=log.name, what=what, why=log.trouble)
        elif not log.is_marked and until_ms > now_ms:
            why = f"it was deleted less than {config.delete_delay_ms // DAY_MS} days ago: readers may still need them"
            yield Waits(log=log.name, what=what, why=why, until_ms=until_ms)


def _trims(logs: Sequence[LogFacts]) -> Iterator[Step]:
    for log in logs:
        if log.expired_offset > log.start_offset:
            yield Step(
                kind=StepKind.TRIM,
                log=log.name,
                why=f"offsets {log.start_offset} to {log.expired_offset} are beyond {log.retention}",
                ledgers=log.expired_ledgers,
                size_bytes=log.expired_bytes,
                before_offset=log.expired_offset,
            )


def _behind(logs: Sequence[LogFacts], turn: str) -> list[LogFacts]:
    """Return the logs in the order of their names, beginning with the first log after the name ``turn``."""
    ordered = sorted(logs, key=lambda log: log.name)
    return [log for log in ordered if log.name > turn] + [log for log in ordered if log.name <= turn]


def _waiting(logs: Sequence[LogFacts], record: UpkeepRecord, config: UpkeepConfig) -> Iterator[Waits]:
    for log in logs:
        if log.unlinked:
            why = f"was unlinked less than {config.delete_delay_ms // DAY_MS} days ago: readers may still need it"
            what = f"data that {log.unlinked} changes unlinked"
            yield Waits(log=log.name, what=what, why=why, until_ms=log.unlinked_until_ms)
    if logs and all(log.garbage is None for log in logs):
        until_ms = record.vacuumed_ms + config.vacuum_every_ms
        yield Waits(log="", what="search for garbage", why="done recently", until_ms=until_ms)


class _Planner:
    """Chooses steps within the budget that the record's hour has left, and notes the work that must wait."""

    def __init__(self, record: UpkeepRecord, config: UpkeepConfig) -> None:
        self._config, self._until_ms = config, record.window_ms + WINDOW_MS
        self._bytes = _left(config.copy_bytes_per_hour, record.copied_bytes)
        self._ledgers = _left(config.ledgers_per_hour, record.ledgers)
        self.waits: list[Waits] = []

    def vacuums(self, logs: Sequence[LogFacts]) -> list[Step]:
        steps: list[Step] = []
        for log in logs:
            if not log.garbage:
                continue
            doomed = log.garbage.ledgers[: int(min(self._ledgers, len(log.garbage.ledgers)))]
            self._ledgers -= len(doomed)
            if left := len(log.garbage.ledgers) - len(doomed):
                self._wait(log.name, f"deletion of {left} ledgers", "ledgers_per_hour")
            if doomed or log.garbage.pages or log.garbage.transactions:
                why = (
                    f"{len(log.garbage.ledgers)} ledgers and {log.garbage.pages} pages have been listed by nothing for "
                    f"{self._config.delete_delay_ms // DAY_MS} days, {log.garbage.transactions} transactions unused"
                )
                steps.append(Step(kind=StepKind.VACUUM, log=log.name, why=why, ledgers=len(doomed), doomed=doomed))
        return steps

    def deletions(self, deleted: Sequence[DeletedFacts], now_ms: int) -> list[Step]:
        """Return the steps that delete the ledgers of deleted logs. The record of a deleted log is deleted only once a
        search finds no ledgers of the log. Until then a search still finds a ledger that a job makes without noticing
        the deletion."""
        steps: list[Step] = []
        for log in deleted:
            is_due = log.deleted_ms + self._config.delete_delay_ms <= now_ms and not log.is_marked
            if log.ledgers is None or log.trouble or not is_due:
                continue
            doomed = log.ledgers[: int(min(self._ledgers, len(log.ledgers)))]
            self._ledgers -= len(doomed)
            if left := len(log.ledgers) - len(doomed):
                self._wait(log.name, f"deletion of {left} ledgers of a deleted log", "ledgers_per_hour")
            if doomed or not log.ledgers:
                why = f"the log was deleted more than {self._config.delete_delay_ms // DAY_MS} days ago"
                step = Step(
                    kind=StepKind.DELETE, log=log.name, why=why, ledgers=len(doomed), doomed=doomed, uuid=log.uuid
                )
                steps.append(step)
        return steps

    def compactions(self, logs: Sequence[LogFacts]) -> list[Step]:
        return [step for log in logs for step in self._compactions(log)]

    def _compactions(self, log: LogFacts) -> Iterator[Step]:
        extents = sum(map(len, log.runs))
        if 0 < extents < self._config.extents_min:
            why = f"fewer than extents_min={self._config.extents_min}"
            self.waits.append(Waits(log=log.name, what=f"compaction of {extents} small extents", why=why))
            return
        part: list[Run] = []
        for number, run in enumerate(log.runs):
            spent = "copy_bytes_per_hour" if self._bytes <= 0 else "ledgers_per_hour" if self._ledgers <= 0 else ""
            if spent:
                left = sum(map(len, log.runs[number:]))
                self._wait(log.name, f"compaction of {left} small extents", spent)
                break
            part.append(run)
            self._bytes -= _weight(run)  # a run is never cut, so the last run may exceed the rest of the budget
            self._ledgers -= len(run)
            if sum(map(_weight, part)) >= self._config.step_bytes:
                yield _compaction(log.name, part)
                part = []
        if part:
            yield _compaction(log.name, part)

    def _wait(self, log: str, what: str, setting: str) -> None:
        self.waits.append(Waits(log=log, what=what, why=f"{setting} is spent", until_ms=self._until_ms))


def _left(budget: int, spent: int) -> float:
    return budget - spent if budget else float("inf")


def _weight(run: Run) -> int:
    return sum(map(weight_of, run))


def _compaction(log: str, runs: Sequence[Run]) -> Step:
    extents = sum(map(len, runs))
    why = f"{extents} small extents fit into {len(runs)}"
    return Step(kind=StepKind.COMPACT, log=log, why=why, ledgers=extents, size_bytes=sum(map(_weight, runs)))
