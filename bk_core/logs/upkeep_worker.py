# SPDX-License-Identifier: Apache-2.0
"""Does the upkeep of all named logs of a cluster: retention, compaction, and deletion of ledgers and pages that no log
lists.

One of several workers is elected. It checks all logs, lets :mod:`bk_core.logs.model.upkeep_plan` plan the steps, and
takes them one by one. Before each step it writes the record of upkeep by compare-and-set. So a worker whose session has
ended, or that was replaced, takes no further step. Each step is safe at any time, so it does no harm if the old
worker's step is still under way. The next worker finishes a step that was not completed (decision 0057).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from bk_core.client.bookkeeper import BookKeeper
from bk_core.client.repairing.repair import ByteRate
from bk_core.errors import (
    BookKeeperError,
    ClientClosedError,
    MetadataConflictError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from bk_core.logs.ledgers import of_logs
from bk_core.logs.machines import ask
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.compaction import CompactionLimits, runs_to_compact
from bk_core.logs.model.head import LogHead
from bk_core.logs.model.upkeep_plan import (
    DeletedFacts,
    Garbage,
    LogFacts,
    Step,
    StepKind,
    UpkeepConfig,
    UpkeepPlan,
    Waits,
    is_vacuum_due,
    plan,
    spent,
    vacuumed,
)
from bk_core.logs.model.upkeep_record import UpkeepRecord, decode_upkeep_record, encode_upkeep_record
from bk_core.logs.named_log import NamedLog
from bk_core.logs.store import LogStore, deleted_logs, has_password
from bk_core.metadata.port import MetadataStore
from bk_core.model import LedgerId

logger = logging.getLogger("bk_core.logs.upkeep")

Passwords = Callable[[str], bytes]
"""A function that returns the password of a log by its name."""


class _Deposed(Exception):
    """Raised when another worker may have been elected, so that this worker must take no further step."""


class Survey(NamedTuple):
    """The facts about all logs and deleted logs at the time ``now_ms`` by the store's clock."""

    logs: list[LogFacts]
    now_ms: int
    deleted: list[DeletedFacts]


@dataclass(slots=True)
class Done:
    """The totals of a worker's steps since it began."""

    trimmed_ledgers: int = 0
    deleted_ledgers: int = 0
    merged_extents: int = 0
    copied_bytes: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _PutOff:
    """A log whose steps failed ``times`` times in a row. No step is taken for it until ``until_s`` by the process's
    monotonic clock."""

    times: int
    until_s: float
    why: str


class UpkeepWorker:
    """Does the upkeep of the logs of ``bookkeeper``'s cluster while it is the elected worker. It runs while it is open
    as an async context manager. The caller closes the client. ``owner`` is the worker's name for operators and other
    workers."""

    def __init__(
        self, bookkeeper: BookKeeper, owner: str, config: UpkeepConfig, passwords: Passwords = lambda name: b""
    ) -> None:
        self._bookkeeper, self._store, self._owner = bookkeeper, bookkeeper.store, owner
        self._config, self._passwords = config, passwords
        self._record, self._version = UpkeepRecord(), 0
        self._put_off: dict[str, _PutOff] = {}
        self._rate = ByteRate(config.copy_bytes_per_s)
        self._loop: asyncio.Task[None] | None = None
        self.elected = False
        self.done = Done()
        self.waits: tuple[Waits, ...] = ()

    async def __aenter__(self) -> UpkeepWorker:
        self._loop = asyncio.create_task(self._repeat(), name="upkeep")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        with contextlib.suppress(BookKeeperError):  # the vote ends with the session
            await asyncio.to_thread(self._store.withdraw_upkeep_vote)

    async def _repeat(self) -> None:
        failures = 0
        while True:
            try:
                found = await self.look()
                wait_s, failures = self._config.vote_s if found is None else self._config.poll_s, 0
            except Exception as error:
                self.elected = False  # another worker may have been elected
                failures += 1
                wait_s = self._back_off_s(failures)
                if isinstance(error, BookKeeperError):
                    logger.warning("upkeep waits %.0f s: %s", wait_s, error)
                else:
                    logger.exception("upkeep failed and continues in %.0f s", wait_s)
            await asyncio.sleep(wait_s)

    def _back_off_s(self, failures: int) -> float:
        return float(min(self._config.retry_max_s, self._config.retry_s * 2 ** min(failures - 1, 30)))

    # --- one round ---------------------------------------------------------------------------------------------------

    async def look(self) -> UpkeepPlan | None:
        """Vote in the election and, if elected, do the work that is due. Return the plan, or None if another worker is
        elected. A log whose step fails is put off, and the steps of the other logs are taken. Raises the errors of the
        store."""
        try:
            if not await asyncio.to_thread(self._enter_office):
                return None
            survey = await self.survey(self._record)
            found = plan(survey.logs, self._record, survey.now_ms, self._config, survey.deleted)
            self.waits = found.waits
            failed: set[str] = set()
            for step in found.steps:
                if step.log not in failed and not await self._take(step, survey.now_ms):
                    failed.add(step.log)
            for name in {step.log for step in found.steps} - failed:
                self._put_off.pop(name, None)
            if found.looked:
                is_rid = found.is_rid and not failed
                await self._write(vacuumed(self._record, survey.now_ms, self._config, is_rid=is_rid))
        except _Deposed as deposed:
            self.elected = False
            logger.warning("%s has stopped the upkeep of the logs: %s", self._owner, deposed)
            return None
        return found

    def _enter_office(self) -> bool:
        """Vote, and return whether this worker is elected. A newly elected worker writes its name into the record of
        upkeep. This blocks."""
        store = self._store
        session = store.session_id
        elected = store.vote_for_upkeep(self._owner)
        if elected and not (self.elected and self._record.session == session):
            record, version = _record_of(store)
            self._write_now(replace(record, owner=self._owner, session=session), version)
            logger.info("%s does the upkeep of the logs of this cluster", self._owner)
        self.elected = elected
        return elected

    async def _write(self, record: UpkeepRecord) -> None:
        await asyncio.to_thread(self._write_now, record, self._version)

    def _write_now(self, record: UpkeepRecord, version: int | None) -> None:
        """Write the record of upkeep, which fences old workers. Raises _Deposed unless this worker wrote the record
        last."""
        if self._store.session_id != record.session:
            raise _Deposed("its session with the metadata store ended")
        try:
            self._version = self._store.write_upkeep_record(encode_upkeep_record(record), version).version
        except MetadataConflictError as error:
            raise _Deposed(str(error)) from error
        self._record = record

    # --- the steps ---------------------------------------------------------------------------------------------------

    async def _take(self, step: Step, now_ms: int) -> bool:
        """Take a step. Return False if it failed, so that its log is put off."""
        await self._write(spent(self._record, step, now_ms))
        logger.info("upkeep: %s of log %s: %s", step.kind.value, step.log, step.why)
        try:
            await self._carry_out(step, now_ms)
        except NoSuchLogError:
            return True  # the log was deleted meanwhile
        except (MetadataUnavailableError, ClientClosedError):
            raise
        except BookKeeperError as error:
            self._fail(step.log, f"{step.kind.value} failed: {' '.join(str(error).split())}")
            return False
        return True

    async def _carry_out(self, step: Step, now_ms: int) -> None:
        config, log = self._config, self._log(step.log)
        match step.kind:
            case StepKind.TRIM:  # the retention may have been changed since the plan
                await log.trim(min(step.before_offset, await log.expired_offset(now_ms=now_ms)))
                self.done.trimmed_ledgers += step.ledgers
            case StepKind.FINISH:
                await log.finish_deletion(step.uuid)
            case StepKind.DELETE:
                deleted = await log.vacuum_deleted(step.uuid, step.doomed)
                self.done.deleted_ledgers += len(deleted.ledgers)
            case StepKind.VACUUM:
                gone = await log.vacuum(
                    delete_delay_ms=config.delete_delay_ms, txn_retention_ms=config.txn_retention_ms, among=step.doomed
                )
                self.done.deleted_ledgers += len(gone.ledgers)
            case StepKind.COMPACT:
                limits = CompactionLimits(ledger_bytes_max=config.ledger_bytes_max, copy_bytes_max=step.size_bytes)
                merged = await log.compactor(limits, rate=self._rate).run()
                self.done.merged_extents += merged.extents
                self.done.copied_bytes += merged.size_bytes

    def _log(self, name: str) -> NamedLog:
        return NamedLog(self._bookkeeper, name, password=self._passwords(name))

    def _fail(self, name: str, why: str) -> None:
        times = self._put_off[name].times + 1 if name in self._put_off else 1
        wait_s = self._back_off_s(times)
        self._put_off[name] = _PutOff(times, time.monotonic() + wait_s, why)
        self.done.failures += 1
        logger.warning("log %s is put off for %.0f s: %s", name, wait_s, why)

    # --- surveys -----------------------------------------------------------------------------------------------------

    async def survey(self, record: UpkeepRecord | None = None, *, vacuum: bool = False) -> Survey:
        """Collect the facts about all logs without changing anything. Search for garbage only if a search is due, or
        with ``vacuum``."""
        return await asyncio.to_thread(self._survey, record or UpkeepRecord(), vacuum)

    def _survey(self, record: UpkeepRecord, vacuum: bool) -> Survey:
        self._store.sync()
        names = sorted(self._store.list_logs())
        now_ms = self._clock_ms(names)
        found: dict[str, LogFacts] = {}
        heads: dict[str, LogHead] = {}
        deleted = self._deleted()
        for name in names:
            try:
                found[name], heads[name] = self._look_at(name, now_ms)
            except NoSuchLogError:
                if (mark := LogStore(self._store, name).mark()) is not None:
                    deleted.append(DeletedFacts(name=name, uuid=mark.uuid, is_marked=True))
                continue
            except (MetadataUnavailableError, ClientClosedError):
                raise
            except BookKeeperError as error:  # an unreadable log must not stop the upkeep of the other logs
                found[name] = LogFacts(name=name, trouble=" ".join(str(error).split()))
        if vacuum or is_vacuum_due(record, now_ms, self._config):
            old_ms = now_ms - self._config.delete_delay_ms
            made = self._made_for(
                {head.uuid: old_ms for head in heads.values()} | {log.uuid: ask.ANY_AGE_MS for log in deleted}
            )
            garbage = self._garbage({name: heads[name] for name, log in found.items() if not log.trouble}, made)
            found = {name: replace(log, garbage=garbage.get(name)) for name, log in found.items()}
            deleted = [replace(log, ledgers=tuple(made.get(log.uuid, ()))) for log in deleted]
        return Survey([self._unless_put_off(log) for log in found.values()], now_ms, deleted)

    def _deleted(self) -> list[DeletedFacts]:
        """Return the deleted logs whose ledgers are not deleted yet. If a log is put off or has another password, its
        ``trouble`` says so, and none of its ledgers is deleted."""
        found = []
        for log in deleted_logs(self._store):
            put_off, is_ours = self._put_off.get(log.name), has_password(log, self._passwords(log.name))
            trouble = "" if is_ours else f"this worker does not have the password of log {log.name}"
            if put_off is not None and put_off.until_s > time.monotonic():
                trouble = f"it is put off: {put_off.why}"
            found.append(DeletedFacts(name=log.name, uuid=log.uuid, deleted_ms=log.deleted_ms, trouble=trouble))
        return found

    def _clock_ms(self, names: Iterable[str]) -> int:
        """Return the time by the store's clock. If this machine's clock were used and wrong, retention could trim too
        much."""
        for name in names:
            with contextlib.suppress(NoSuchLogError):
                return self._store.log_clock_ms(name)
        return self._store.deleted_logs_clock_ms()

    def _look_at(self, name: str, now_ms: int) -> tuple[LogFacts, LogHead]:
        store = LogStore(self._store, name)
        head = store.read().value
        store.check_password(head, self._passwords(name))
        expired = store.with_pages(partial(commit.expired_below, head, now_ms))
        extents = store.extents(head, head.start_offset, head.next_offset)
        below = [extent for extent in extents if extent.next_offset <= expired]
        limits = CompactionLimits(ledger_bytes_max=self._config.ledger_bytes_max).for_log(head)
        delay_ms = self._config.delete_delay_ms
        young = [record.made_ms for record in store.unlinked() if record.made_ms >= now_ms - delay_ms]
        facts = LogFacts(
            name=name,
            start_offset=head.start_offset,
            expired_offset=expired,
            expired_ledgers=len(below),
            expired_bytes=sum(extent.size_bytes for extent in below),
            retention=f"retentionMs={head.retention_ms}, retentionBytes={head.retention_bytes}",
            runs=tuple(runs_to_compact(extents[len(below) :], limits)),
            unlinked=len(young),
            unlinked_until_ms=min(young, default=0) + delay_ms if young else 0,
        )
        return facts, head

    def _made_for(self, before_ms: dict[str, int]) -> dict[str, list[LedgerId]]:
        """Return the ledgers that were made for these logs, by the uuid of the log. ``before_ms`` has for each log the
        time before which they were made. This reads the record of every ledger of the cluster once, for all logs."""
        made = defaultdict[str, list[LedgerId]](list)
        for log_uuid, ledger_id in of_logs(self._store, before_ms):
            made[log_uuid].append(ledger_id)
        return made

    def _garbage(self, heads: dict[str, LogHead], made: dict[str, list[LedgerId]]) -> dict[str, Garbage]:
        config = self._config
        found: dict[str, Garbage] = {}
        for name, head in heads.items():
            with contextlib.suppress(NoSuchLogError, MetadataCorruptError):  # then nothing of this log is deleted
                store, delays = LogStore(self._store, name), (config.delete_delay_ms, config.txn_retention_ms)
                gone = store.vacuum_candidates(*delays, made.get(head.uuid, []))
                found[name] = Garbage(ledgers=gone.ledgers, pages=len(gone.pages), transactions=len(gone.transactions))
        return found

    def _unless_put_off(self, log: LogFacts) -> LogFacts:
        put_off = self._put_off.get(log.name)
        if put_off is None or log.trouble:
            return log
        left_s = put_off.until_s - time.monotonic()
        if left_s > 0:
            return LogFacts(name=log.name, trouble=f"tried again in {left_s:.0f} s: {put_off.why}")
        return log


def _record_of(store: MetadataStore) -> tuple[UpkeepRecord, int | None]:
    """Return the record of upkeep and its version, or a new record and None if there is none. An unreadable record is
    replaced, because it only has the budget of an hour and times of searches."""
    store.sync()
    found = store.read_upkeep_record()
    if found is None:
        return UpkeepRecord(), None
    try:
        return decode_upkeep_record(found.value), found.version
    except MetadataCorruptError as error:
        logger.warning("%s", error)
        return UpkeepRecord(), found.version


async def dry_run(
    bookkeeper: BookKeeper, config: UpkeepConfig, passwords: Passwords = lambda name: b""
) -> tuple[UpkeepPlan, UpkeepRecord, str | None]:
    """Make the plan that a newly elected worker would make, including a search for garbage, without changing anything.
    Return the plan, the record of upkeep, and the name of the elected worker, or None if there is none."""
    record, _ = await asyncio.to_thread(_record_of, bookkeeper.store)
    elected = await asyncio.to_thread(bookkeeper.store.current_upkeep_worker)
    survey = await UpkeepWorker(bookkeeper, "", config, passwords).survey(record, vacuum=True)
    return plan(survey.logs, record, survey.now_ms, config, survey.deleted), record, elected
