# SPDX-License-Identifier: Apache-2.0
"""Drives a log's sequences (:mod:`bk_core.logs.machines.ask`). It answers each request until the sequence ends, and
contains no rule of the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from bk_core.client.bookkeeper import BookKeeper
from bk_core.errors import BookKeeperError, NoSuchLedgerError
from bk_core.logs.ledgers import recovered_end
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.logs.store import LogStore
from bk_core.model import LedgerId

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.005, 0.5
LOGS_AT_ONCE = 8
"""The maximum number of logs whose requests are answered at a time, so that a publish into 100 logs does not take all
threads."""

R = TypeVar("R")
Answer = Callable[[ask.Request], Awaitable[Any]]
Recover = Callable[[LedgerId], Awaitable[LedgerEnd]]
"""A function that fences, recovers and closes a ledger."""


async def carry_out(steps: Steps[R], answer: Answer) -> R:
    """Run the sequence. Return its result or raise its error. If this call is cancelled, the sequence ends at its
    ``yield``, as after a crash."""
    with closing(steps):
        step: Callable[[Any], ask.Request] = steps.send
        told: Any = None
        while True:
            try:
                request = step(told)
            except StopIteration as ended:
                result: R = ended.value
                return result
            try:
                step, told = steps.send, await answer(request)
            except BookKeeperError as error:
                step, told = steps.throw, error


class Answers:
    """Answers the requests of sequences about ``logs``, which are in one metadata store. The first log answers requests
    that name no log. ``recover`` recovers ledgers."""

    def __init__(self, logs: Iterable[LogStore], recover: Recover) -> None:
        self._logs = {log.name: log for log in logs}
        self._first = next(iter(self._logs.values()))
        self._recover = recover
        self._turns = asyncio.Semaphore(LOGS_AT_ONCE)

    @classmethod
    def of(cls, bookkeeper: BookKeeper, logs: Iterable[LogStore], password: bytes) -> Answers:
        """Return an object that answers requests about ``logs`` and recovers ledgers with this client."""
        return cls(logs, partial(recovered_end, bookkeeper, password=password))

    async def carry_out(self, steps: Steps[R]) -> R:
        """Run a sequence, as the function :func:`carry_out` does, with the answers of this object."""
        return await carry_out(steps, self.answer)

    async def answer(self, request: ask.Request) -> Any:
        """Return the answer that the request's docstring names. Raises BookKeeperError."""
        match request:
            case ask.ForLogs(requests, sync):
                if sync:
                    await asyncio.to_thread(self._first.store.sync)
                answers = await asyncio.gather(*(self._of_one(log, each) for log, each in requests.items()))
                return dict(zip(requests, answers, strict=True))
            case ask.WriteHeads(writes):
                made = [self._logs[log].log_write(write) for log, write in writes.items()]
                return await asyncio.to_thread(self._first.store.write_logs, made)
            case ask.DropPages(names):
                for log, pages in names.items():
                    await asyncio.to_thread(self._logs[log].delete_pages, pages)
                return None
            case ask.Wait(attempt):
                longest_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2**attempt)
                return await asyncio.sleep(random.uniform(BACKOFF_MIN_S, longest_s))
        return await asyncio.to_thread(self._first.answer, request)

    async def _of_one(self, log: str, request: ask.OfOneLog) -> Any:
        """Return the answer to a request about one log, or the BookKeeperError that it caused."""
        try:
            async with self._turns:
                if isinstance(request, ask.RecoverLedgers):
                    return await self._recover_all(request.ledgers)
                return await asyncio.to_thread(self._logs[log].answer, request)
        except BookKeeperError as error:
            return error

    async def _recover_all(self, ledgers: Sequence[LedgerId]) -> ask.LedgersRecovered:
        found = await asyncio.gather(*map(self._recover, ledgers), return_exceptions=True)
        ends: dict[LedgerId, LedgerEnd] = {}
        missing: set[LedgerId] = set()
        for ledger_id, end in zip(ledgers, found, strict=True):
            if isinstance(end, LedgerEnd):
                ends[ledger_id] = end
            elif isinstance(end, NoSuchLedgerError):
                missing.add(ledger_id)
            else:
                raise end
        return ask.LedgersRecovered(ends, frozenset(missing))
