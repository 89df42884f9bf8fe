# SPDX-License-Identifier: Apache-2.0
"""Makes the calls of a writer to single bookies that belong to no session: forced syncs and LACs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from bk_core.errors import BookKeeperError, QuorumTimeoutError
from bk_core.model import BookieId, LedgerId
from bk_core.protocol.events import Forced, ForceFailed, SendForce, SendLac
from bk_core.transport.port import Transport


class WriterBookieCalls:
    """Makes one writer's calls to bookies outside its sessions. ``_ledger_id`` and ``_key`` identify its ledger to each
    bookie. The object has no state between calls."""

    def __init__(self, transport: Transport, ledger_id: LedgerId, key: bytes, *, force_s: float, lac_s: float) -> None:
        """``force_s`` and ``lac_s`` are the deadlines of a force and of a LAC write, in seconds."""
        self._transport, self._ledger_id, self._key = transport, ledger_id, key
        self._force_s, self._lac_s = force_s, lac_s

    async def force(self, effect: SendForce) -> Forced | ForceFailed:
        """Make a bookie sync the entries of a session. Return the result as an event for the machine."""
        try:
            link = self._transport.link(effect.bookie)
            await link.force(self._ledger_id, effect.session, deadline_s=self._force_s)
        except BookKeeperError as error:
            return ForceFailed(effect.index, effect.session, str(error))
        return Forced(effect.index, effect.session)

    def hint_lac(self, effect: SendLac) -> None:
        """Send a bookie the LAC without waiting for an answer. A bookie that misses it learns the LAC from the next
        entry or hint (P9)."""
        with suppress(BookKeeperError):
            self._transport.link(effect.bookie).hint_lac(self._ledger_id, self._key, effect.lac_body)

    async def write_lac(self, bookies: Iterable[BookieId], body: bytes, *, quorum: int, lac: int) -> None:
        """Send the LAC to ``bookies`` and return once ``quorum`` of them have taken it. Raises QuorumTimeoutError."""
        calls = [asyncio.ensure_future(self._write_lac(bookie, body)) for bookie in bookies]
        problems = list[str]()
        try:
            for number, answer in enumerate(asyncio.as_completed(calls), 1):
                problems += filter(None, [await answer])
                if number - len(problems) >= quorum:
                    return
        finally:
            for call in calls:
                call.cancel()
        raise QuorumTimeoutError(
            f"too few bookies took the LAC {lac} of ledger {self._ledger_id}",
            value="; ".join(problems),
            remedy="call it again; entries are as confirmed as before",
        )

    async def _write_lac(self, bookie: BookieId, body: bytes) -> str:
        """Return an empty text once the bookie has taken the LAC, or a text with the bookie and its error."""
        try:
            await self._transport.link(bookie).write_lac(self._ledger_id, self._key, body, deadline_s=self._lac_s)
        except BookKeeperError as error:
            return f"{bookie}: {error}"
        return ""
