# SPDX-License-Identifier: Apache-2.0
"""Changes logs with the product's driver, without bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from bk_core.logs.machines.ask import Steps
from bk_core.logs.machines.change import Facts, Intent, change_head
from bk_core.logs.model.head import LogHead
from bk_core.logs.model.next_head import LedgerEnd
from bk_core.logs.model.paging import Change
from bk_core.logs.sequences import Answers
from bk_core.logs.store import Apply, LogStore
from bk_core.model import LedgerId

R = TypeVar("R")


class Wanted(Intent[R]):
    """An intent that is made of two functions."""

    def __init__(self, apply: Apply, done: Callable[[LogHead], R | None]) -> None:
        self._apply, self._done = apply, done

    def settled(self, head: LogHead, facts: Facts) -> R | None:
        return self._done(head)

    def decide(self, head: LogHead, facts: Facts) -> Change:
        return self._apply(head, facts.pages)


def change(store: LogStore, apply: Apply, done: Callable[[LogHead], R | None]) -> R:
    """Change the head until ``done`` finds the wanted result in it."""
    return carried_out([store], change_head(store.name, Wanted(apply, done)))


def carried_out(stores: Sequence[LogStore], steps: Steps[R]) -> R:
    """Run a sequence. Return its result or raise its error."""
    return asyncio.run(answers(stores).carry_out(steps))


def answers(stores: Sequence[LogStore]) -> Answers:
    """Return the driver for logs whose sequences recover no ledger."""
    return Answers(stores, _recover)


async def _recover(ledger_id: LedgerId) -> LedgerEnd:
    raise AssertionError(ledger_id)
