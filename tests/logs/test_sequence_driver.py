# SPDX-License-Identifier: Apache-2.0
"""The driver of sequences: what it tells them, and what it does when nobody waits any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bk_core.errors import (
    BookKeeperError,
    NoSuchLedgerError,
    NoSuchLogError,
    RecoveryInconclusiveError,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps
from bk_core.logs.model import next_head as commit
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.logs.sequences import Answers, carry_out
from bk_core.logs.store import LogStore
from tests.kit.log_changes import answers
from tests.kit.memory_store import MemoryStore
from tests.logs.change_kit import EMPTY

WAIT = ask.Wait(1)


async def test_answers_and_errors_reach_the_sequence_where_it_waits() -> None:
    heard: list[Any] = []
    broken = BookKeeperError("broken")
    told = [7, broken, None]

    def steps() -> Steps[str]:
        heard.append((yield WAIT))
        try:
            yield WAIT
        except BookKeeperError as error:
            heard.append(error)
        yield WAIT
        return "end"

    async def answer(request: ask.Request) -> Any:
        assert request == WAIT
        if told[0] is broken:
            raise told.pop(0)
        return told.pop(0)

    assert await carry_out(steps(), answer) == "end"
    assert heard == [7, broken]


async def test_what_the_sequence_does_not_catch_is_raised() -> None:
    def steps() -> Steps[None]:
        yield WAIT

    async def answer(request: ask.Request) -> Any:
        raise BookKeeperError("broken")

    with pytest.raises(BookKeeperError, match="broken"):
        await carry_out(steps(), answer)


async def test_a_sequence_that_nobody_waits_for_asks_for_nothing_more() -> None:
    ended: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield WAIT
        except BookKeeperError:
            ended.append("error")
        finally:
            ended.append("closed")
        yield WAIT

    begun = asyncio.Event()

    async def answer(request: ask.Request) -> Any:
        assert not begun.is_set(), "it goes on"
        begun.set()
        await asyncio.sleep(60)

    carrying = asyncio.create_task(carry_out(steps(), answer))
    await begun.wait()
    carrying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await carrying
    assert ended == ["closed"]


def two_logs() -> list[LogStore]:
    """``a`` exists, ``b`` does not."""
    store = MemoryStore()
    store.initialize_cluster()
    logs = [LogStore(store, name) for name in ("a", "b")]
    logs[0].create(EMPTY)
    return logs


async def test_a_log_that_cannot_answer_does_not_keep_the_others_from_it() -> None:
    request = ask.ForLogs({"a": ask.ReadHead(), "b": ask.ReadHead()}, sync=True)
    found = await answers(two_logs()).answer(request)
    assert found["a"].head.value == EMPTY
    assert isinstance(found["b"], NoSuchLogError)


@pytest.mark.rule("N2")
async def test_a_ledger_that_cannot_be_recovered_now_is_not_one_that_does_not_exist() -> None:
    end = commit.LedgerEnd(entry_count=3, size_bytes=3)

    async def recover(ledger_id: int) -> LedgerEnd:
        if ledger_id == 8:
            raise NoSuchLedgerError("there is no ledger 8")
        if ledger_id == 9:
            raise RecoveryInconclusiveError("entry 5 is neither there nor not")
        return end

    async def recovered(*ledgers: int) -> Any:
        answering = Answers(two_logs(), recover)
        return (await answering.answer(ask.ForLogs({"a": ask.RecoverLedgers(ledgers)})))["a"]

    assert await recovered(7, 8) == ask.LedgersRecovered({7: end}, frozenset({8}))
    assert isinstance(await recovered(7, 8, 9), RecoveryInconclusiveError)
