# SPDX-License-Identifier: Apache-2.0
"""Asks the bookie's own machine which entries of a ledger it has, as a client on a stream would ask it.

So the answer is what a reader would be told: damage and limbo count, pending adds are waited for, clients have their
turns. Nothing but indexes is read for it.
"""

from __future__ import annotations

import asyncio

from bk_core.errors import BookKeeperError
from bk_core.model import EntryId, LedgerId
from bk_core.transport.port import ReadTrailer
from bookie_server.engine.engine import BookieEngine, StreamEffect
from bookie_server.machine import events

DEADLINE_S = 30.0


class OwnReads:
    """A stream of the engine; used on its loop. Any number may ask at a time."""

    def __init__(self, engine: BookieEngine, deadline_s: float = DEADLINE_S) -> None:
        self._engine, self._deadline_s = engine, deadline_s
        self._stream = engine.open_stream(self)
        self._asked: dict[int, asyncio.Future[events.SendTrailer]] = {}
        self._number = 0

    async def gaps(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> ReadTrailer:
        """What is absent and unknown from ``first`` to the trailer's ``answered_through``, which may be below ``last``.
        Raises BookKeeperError if the machine refuses, is too busy, or has ended."""
        self._number += 1
        request = self._stream, self._number
        answer: asyncio.Future[events.SendTrailer] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = answer
        try:
            async with asyncio.timeout(self._deadline_s):
                self._engine.feed(events.ReadRequested(request, ledger_id, first, last, 0, ids_only=True))
                said = await answer
        except TimeoutError:
            raise BookKeeperError(
                "the bookie does not tell its own entries in time", value=f"ledger {ledger_id}"
            ) from None
        finally:
            del self._asked[request[1]]
            if answer.cancelled():
                self._engine.feed(events.RequestCancelled(request))
        if said.reason or said.trailer.answered_through < first:
            value = f"ledger {ledger_id}: {said.reason.name} {said.message}"
            raise BookKeeperError("the bookie does not tell its own entries", value=value)
        return said.trailer

    def deliver(self, effect: StreamEffect) -> None:
        if isinstance(effect, events.CloseStream):
            for waiting in self._asked.values():
                if not waiting.done():
                    waiting.set_exception(BookKeeperError("the bookie answers nothing more", value=effect.message))
        elif isinstance(effect, events.SendTrailer):
            answer = self._asked.get(effect.request[1])
            if answer is not None and not answer.done():
                answer.set_result(effect)

    def leave(self) -> None:
        """Nothing waits to be written."""

    def close(self) -> None:
        self._engine.close_stream(self._stream)
