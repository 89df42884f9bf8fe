# SPDX-License-Identifier: Apache-2.0
"""Publishes closed ledgers into several named logs in one step: into all of them or into none (RULES K10).

What is decided is decided by :mod:`bk_core.logs.machines.fan_out`; this carries it out, several logs at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bk_core.client.connect import BookKeeper
from bk_core.errors import BookKeeperError, InvalidArgumentError, MetadataConflictError, Outcome
from bk_core.logs.head import NewExtent, Published, PublishId
from bk_core.logs.ledgers import TellDeleted, drop
from bk_core.logs.machines import change_events as ev
from bk_core.logs.machines.fan_out import FanOut
from bk_core.logs.machines.transactions import APPEND, PublishOptions
from bk_core.logs.named_log import NamedLog
from bk_core.logs.store import LogStore, nonce
from bk_core.metadata.port import MetadataStore
from bk_core.model import LedgerId

log = logging.getLogger("bk_core.logs")

THREADS = 8
"""Logs that are asked something at a time."""


async def publish_to_logs(
    bookkeeper: BookKeeper,
    ledgers: Mapping[str, Sequence[NewExtent]],
    publish_id: PublishId,
    *,
    password: bytes = b"",
    options: PublishOptions = APPEND,
) -> dict[str, Published]:
    """List closed ledgers, by the name of their log, at the end of each log: all or none, once for each
    ``publish_id``. ``options`` are as in :meth:`NamedLog.publish`, and the same for all logs.

    A publish that happened before is returned as it was (RULES N4), its base offset −1 in a log that does not remember
    it. Raises InvalidArgumentError for ``takeover``, more than 100 logs or records that do not fit one step,
    NoSuchLogError, WrongPasswordError, and what :meth:`NamedLog.publish` raises, naming the log;
    TransactionReplayDiffersError also where the version was published to other logs. Nothing was published then, unless
    the outcome is UNKNOWN: publish the same again, and delete nothing.
    """
    if options.takeover:
        raise InvalidArgumentError(
            "a publish into several logs fences none of their leaders",
            value="takeover=True",
            remedy="stop the leaders, or publish with takeover into each log first, without ledgers",
        )
    machine = FanOut.of(ledgers, publish_id, now_ms=int(time.time() * 1000), nonce=nonce, options=options)
    for number, name in enumerate(ledgers):  # it exists, and the password is right; one sync does for all
        await NamedLog(bookkeeper, name, password=password).head(sync=not number)
    records = LogsRecords(bookkeeper.store, list(ledgers), bookkeeper.tell_deleted)
    found = await asyncio.to_thread(records.advance, machine, ev.Start())
    if not machine.was_attempted:
        rows = sum(each.rows for extents in ledgers.values() for each in extents)
        log.warning("%d logs have %s already: %d rows are skipped", len(ledgers), publish_id.text, rows)
    return found


class LogsRecords:
    """The records of several logs in the metadata store. Blocking."""

    def __init__(self, store: MetadataStore, logs: Sequence[str], deleted: TellDeleted = lambda _: None) -> None:
        self._store, self._deleted = store, deleted
        self._logs = {log: LogStore(store, log, deleted) for log in logs}

    def advance(self, machine: FanOut, event: ev.Event) -> dict[str, Published]:
        """Step a machine and carry its effects out until it is done. Raises its error."""
        while True:
            for effect in machine.step(event):
                match effect:
                    case ev.Finish(result):
                        found: dict[str, Published] = result
                        return found
                    case ev.Fail(error):
                        raise error
                    case _:
                        event = self._carry_out(effect)

    def _carry_out(self, effect: ev.Effect) -> ev.Event:
        """The event that answers the effect; of one that has no answer it is never looked at."""
        match effect:
            case ev.ForLogs(requests, sync):
                try:
                    if sync:
                        self._store.sync()
                except BookKeeperError as error:
                    return ev.RequestFailed(error)
                return ev.LogsAnswered(self._all({log: self._ask(log, request) for log, request in requests.items()}))
            case ev.WriteHeads(writes):
                return self._write(writes)
            case ev.DropPagesOf(names):
                self._all({log: self._ask(log, ev.DropPages(pages)) for log, pages in names.items()})
                return ev.WaitEnded()
            case ev.DropLedgers(ledgers):
                return self._drop(ledgers)
        return next(iter(self._logs.values())).carry_out(effect)  # a pause is the same for every log

    def _ask(self, log: str, request: ev.Effect) -> Callable[[], ev.Event]:
        return partial(self._logs[log].carry_out, request)

    def _all(self, calls: Mapping[str, Callable[[], ev.Event]]) -> dict[str, ev.Event]:
        with ThreadPoolExecutor(min(THREADS, len(calls)), "bk-fan-out") as pool:
            return dict(zip(calls, pool.map(lambda call: call(), calls.values()), strict=True))

    def _drop(self, ledgers: Sequence[LedgerId]) -> ev.Event:
        drop(self._store, ledgers, self._deleted)
        return ev.WaitEnded()

    def _write(self, writes: Mapping[str, ev.WriteHead]) -> ev.Event:
        try:
            self._store.write_logs([self._logs[log].log_write(write) for log, write in writes.items()])
        except MetadataConflictError:
            return ev.HeadConflicted()
        except BookKeeperError as error:
            return ev.HeadWriteUnknown(error) if error.outcome is Outcome.UNKNOWN else ev.RequestFailed(error)
        return ev.HeadWritten()
