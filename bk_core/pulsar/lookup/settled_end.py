# SPDX-License-Identifier: Apache-2.0
"""Finds the end of a topic's open ledger above its LAC, as an ack quorum of bookies holds it (decision 0076).

A read waits for the search. A tail and a stream do not wait: they show the messages up to the LAC, and search in the
background for later ones. While a producer writes, each message confirms the message before it. So the search in the
background begins once the LAC has not moved for a part of the settle time (``QUIET``), and it is cancelled when the LAC
moves. A message of a topic that became idle is therefore shown after the settle time and at most ``QUIET`` settle times
more.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from bk_core.client.reading.reader import LedgerReader
from bk_core.errors import BookKeeperError
from bk_core.model import NO_ENTRY, EntryId

logger = logging.getLogger("bk_core.pulsar")

QUIET = 0.1
"""A tail begins a search once the LAC has not moved for this part of the settle time. The starts of two searches are at
least as far apart, so an idle topic costs its bookies at most ten searches in a settle time."""


class SettledEnd:
    """Searches for the end of one open ledger, which is the last ledger of a topic or partition. With ``follows``,
    searches run in the background, one after the other."""

    def __init__(self, settle_ms: float, *, follows: bool) -> None:
        self.settle_ms, self._follows = settle_ms, follows
        self._quiet_s = QUIET * settle_ms / 1000
        self._ledger_id: int | None = None
        self._found: EntryId = NO_ENTRY
        self._search: asyncio.Task[EntryId] | None = None
        self._lac: EntryId = NO_ENTRY
        self._next_at = 0.0  # the loop's time at which the next search in the background may begin

    async def wait(self, reader: LedgerReader) -> None:
        """Search now, and keep what is found. Raises what :meth:`LedgerReader.wait_quorum_end` raises."""
        self._is_of(reader)
        await self._stop()
        self._found = max(self._found, await reader.wait_quorum_end(self.settle_ms))

    def known(self, reader: LedgerReader, lac: EntryId) -> EntryId:
        """Return the greatest end that is known now, which is at least ``lac``. Does not wait."""
        self._is_of(reader)
        if self._follows:
            self._follow(reader, lac)
        return max(lac, self._found)

    async def close(self) -> None:
        """End the search."""
        await self._stop()

    def _is_of(self, reader: LedgerReader) -> None:
        """Forget the search and its result if the topic has another open ledger."""
        if self._ledger_id != reader.ledger_id:
            self._cancel()
            self._ledger_id, self._found, self._lac = reader.ledger_id, NO_ENTRY, NO_ENTRY

    def _follow(self, reader: LedgerReader, lac: EntryId) -> None:
        loop = asyncio.get_running_loop()
        if lac > self._lac:
            self._cancel()
            self._lac, self._next_at = lac, loop.time() + self._quiet_s
        elif self._search is not None and self._search.done():
            search, self._search = self._search, None
            self._take(search)
        if self._search is None and loop.time() >= self._next_at:
            self._next_at = loop.time() + self._quiet_s
            self._search = asyncio.ensure_future(reader.wait_quorum_end(self.settle_ms))

    def _take(self, search: asyncio.Task[EntryId]) -> None:
        """Keep the result of a search. If it failed, the LAC is the end until the next search."""
        if search.cancelled():
            return
        error = search.exception()
        if error is None:
            self._found = max(self._found, search.result())
        elif isinstance(error, BookKeeperError):
            logger.info("%s: ledger %s is followed to its LAC until the next search", error, self._ledger_id)
        else:
            raise error

    def _cancel(self) -> None:
        search, self._search = self._search, None
        if search is not None:
            search.cancel()
            search.add_done_callback(_retrieved)

    async def _stop(self) -> None:
        search = self._search
        self._cancel()
        if search is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait((search,))


def _retrieved(search: asyncio.Task[EntryId]) -> None:
    """Retrieve the error of a cancelled search, so that asyncio does not log it."""
    if not search.cancelled():
        search.exception()
