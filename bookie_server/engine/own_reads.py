# SPDX-License-Identifier: Apache-2.0
"""Asks the bookie's own machine which entries of a ledger it has, as a client on a stream would ask it.

So a reader would get the same answer: damage and limbo count, the question waits for pending adds, and it takes turns
with clients. It reads only indexes.
"""

from __future__ import annotations

import asyncio

from bk_core.errors import BookKeeperError
from bk_core.model import EntryId, LedgerId
from bk_core.wire.lane.evidence import ReadTrailer
from bookie_server.engine.engine import BookieEngine, StreamEffect
from bookie_server.machine import events

DEADLINE_S = 30.0
"""The seconds for which the caller waits for an answer of the machine."""


class OwnReads:
    """Asks the bookie's own machine, on the engine's loop. Each question uses a new stream, which ends with the
    question."""

    def __init__(self, engine: BookieEngine, deadline_s: float = DEADLINE_S) -> None:
        self._engine, self._deadline_s = engine, deadline_s

    async def gaps(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> ReadTrailer:
        """Return a trailer with the absent and the unknown ids from ``first`` to its ``answered_through``, which may be
        below ``last``. Raises BookKeeperError if the machine refuses, is too busy, or has ended."""
        question = _Question()
        stream = self._engine.open_stream(question)
        try:
            async with asyncio.timeout(self._deadline_s):
                self._engine.feed(events.ReadRequested((stream, 1), ledger_id, first, last, 0, ids_only=True))
                said = await question.answer
        except TimeoutError:
            raise BookKeeperError("the bookie is too busy to check its copies", value=f"ledger {ledger_id}") from None
        finally:
            self._engine.close_stream(stream)
        if said.reason or said.trailer.answered_through < first:
            value = f"ledger {ledger_id}: {said.reason.name} {said.message}"
            raise BookKeeperError("the bookie cannot say which entries it has", value=value)
        return said.trailer


class _Question:
    """The sink of a stream of the engine, for one request."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[events.SendTrailer] = asyncio.get_running_loop().create_future()

    def deliver(self, effect: StreamEffect) -> None:
        if self.answer.done():
            return
        if isinstance(effect, events.CloseStream):
            self.answer.set_exception(BookKeeperError("the bookie answers nothing more", value=effect.message))
        elif isinstance(effect, events.SendTrailer):
            self.answer.set_result(effect)

    def leave(self) -> None:
        """Do nothing, because the answer was passed on when it was delivered."""
