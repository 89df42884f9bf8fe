# SPDX-License-Identifier: Apache-2.0
"""Marks the ledgers of which this bookie's own copy is incomplete, so that auto-recovery, Apache's or ours, restores
the entries. It marks a ledger again if the mark is removed and the copy is still incomplete (decision 0053).

This runs in every bookie. It never removes a mark; the worker that repaired the ledger does that.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bk_core.errors import BookKeeperError, MetadataUnavailableError, NoSuchLedgerError
from bk_core.metadata.port import MetadataStore
from bk_core.model import ENTRY_ID_MAX, BookieId, EntryId, LedgerId, LedgerMetadata
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import EntryRange
from bookie_server.autorecovery.suspects import OwnPart, Suspects, is_limbo, own_parts
from bookie_server.identity.loss import ledgers_naming
from bookie_server.storage.index.index import LedgerIndex

logger = logging.getLogger(__name__)

POLL_S = 5.0
LOOKS_MAX = 250
MARKS_MAX = 100
"""The maximum number of ledgers that are checked (``LOOKS_MAX``), and of marks that are made, in one round of
``POLL_S``. A bookie that lost a disk has all its ledgers in limbo, and the metadata store serves other clients, too."""
ROWS_AT_ONCE = 8_192
"""The number of ledgers of an index that one call on the loop searches for limbo."""
AWAY_MAX_S = 60.0
"""The longest wait between rounds while the metadata store does not answer."""
RANGES_MAX = 8
"""The maximum number of missing ranges of a ledger that are kept for commands to show."""

DETAILS_MAX = 10_000
"""The maximum number of ledgers whose missing ranges are kept. For further ledgers only the fact that their copies are
incomplete is kept."""

Gaps = Callable[[LedgerId, EntryId, EntryId], Awaitable[ReadTrailer]]
"""A function that returns which ids of a range this bookie lacks, up to the trailer's ``answered_through``."""
Source = Callable[[], Awaitable[Sequence[LedgerId]]]
"""A function that returns the ledgers that have become suspects since its last call."""


@dataclass(frozen=True, slots=True)
class Lack:
    """The missing entries of this bookie's copy of a ledger. ``limbo`` says whether they are missing because of limbo.
    ``since_s`` is the time when the copy was first found incomplete, in seconds since 1970."""

    ranges: tuple[EntryRange, ...]
    limbo: bool
    since_s: float

    def __str__(self) -> str:
        if not self.ranges:
            return "entries; which ones is not kept, because too many ledgers are incomplete"
        shown = [f"{gap.first} to {gap.last} ({gap.reason.name or 'ABSENT'})" for gap in self.ranges]
        return f"entries {', '.join(shown)}{' …' if len(shown) == RANGES_MAX else ''}"


class SuspectsOfIndexes:
    """The source of suspects for a bookie with these indexes. The suspects are the ledgers that the indexes find
    damaged and, at the first call, those in limbo. It is used on the indexes' loop."""

    def __init__(self, indexes: Sequence[LedgerIndex], store: MetadataStore, bookie_id: BookieId) -> None:
        self._indexes, self._store, self._bookie_id = indexes, store, bookie_id
        self._begun = False

    async def __call__(self) -> list[LedgerId]:
        """Return the new suspects. Raises the errors of the store, and the next call then returns these suspects."""
        in_limbo = [] if self._begun else await self._in_limbo()
        self._begun = True
        return [*in_limbo, *(ledger_id for index in self._indexes for ledger_id in index.take_suspects())]

    async def _in_limbo(self) -> list[LedgerId]:
        found: list[LedgerId] = []
        if any(index.all_troubled for index in self._indexes):  # the bookie may have lost ledgers that no index names
            found += await asyncio.to_thread(ledgers_naming, self._store, self._bookie_id)
        for index in self._indexes:
            first: LedgerId | None = 0
            while first is not None:
                troubled, first = index.troubled(first, ROWS_AT_ONCE)
                found += troubled
                await asyncio.sleep(0)
        random.shuffle(found)
        return list(dict.fromkeys(found))


class OwnCopies:
    """Checks suspects from :meth:`start` to :meth:`stop`, on one loop. ``lacking`` has the copies that are known to be
    incomplete, ``marked`` counts the marks that were made, and ``healed`` the copies that became complete. ``call``
    makes the calls to the store, which block."""

    def __init__(
        self,
        store: MetadataStore,
        bookie_id: BookieId,
        gaps: Gaps,
        source: Source,
        *,
        clock: Callable[[], float] = time.monotonic,
        call: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._store, self._bookie_id, self._gaps, self._source = store, bookie_id, gaps, source
        self._clock, self._call = clock, call
        self._task: asyncio.Task[None] | None = None
        self._marks = 0  # marks made in this round
        self.suspects = Suspects()
        self.lacking: dict[LedgerId, Lack] = {}
        self._kinds = Counter[bool]()  # number of ledgers in ``lacking`` that are in limbo (True) and that are not
        self.marked = self.healed = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of incomplete copies: those in limbo, and all others. Any thread may call."""
        return self._kinds[True], self._kinds[False]

    async def _run(self) -> None:
        wait_s = POLL_S
        while True:
            try:
                await self.round()
                wait_s = POLL_S
            except BookKeeperError as error:
                wait_s = min(2 * wait_s, AWAY_MAX_S)
                logger.warning("own copies cannot be checked, trying again in %.0f s: %s", wait_s, error)
            except Exception:  # a bug must not end these checks: nothing else makes them
                logger.exception("a check of own copies failed, and is repeated")
            await asyncio.sleep(wait_s)

    async def round(self) -> None:
        """Check the suspects that are due, within the limits of a round. Raises MetadataUnavailableError."""
        self.suspects.note(await self._source(), self._clock())
        due = self.suspects.due(self._clock(), LOOKS_MAX)
        if due:
            await self._call(self._store.sync)
        self._marks = 0
        for ledger_id in due:
            if self._marks >= MARKS_MAX:
                return  # the others are still due
            try:
                await self._look(ledger_id)
            except MetadataUnavailableError:
                raise
            except BookKeeperError as error:  # a ledger that cannot be judged must not hold up the others
                logger.warning("the own copy of ledger %d cannot be checked: %s", ledger_id, error)
                self.suspects.again(ledger_id, self._clock(), tried=True)

    async def _look(self, ledger_id: LedgerId) -> None:
        if ledger_id in self.lacking and await self._is_marked(ledger_id):
            self.suspects.again(ledger_id, self._clock(), tried=False)
            return
        try:
            record = (await self._call(self._store.read_ledger, ledger_id)).value
        except NoSuchLedgerError:
            self._forget(ledger_id)
            return
        lacking = await self._lacking(ledger_id, record)
        if not lacking:
            if ledger_id in self.lacking or await self._is_in_limbo(ledger_id):
                self._forget(ledger_id)
            else:
                self.suspects.for_a_while(ledger_id, self._clock())
            return
        known = self.lacking.get(ledger_id)
        ranges = tuple(lacking[:RANGES_MAX]) if len(self.lacking) < DETAILS_MAX else ()
        lack = Lack(ranges, is_limbo(lacking), known.since_s if known else time.time())
        self._note(ledger_id, lack)
        is_there = await self._is_marked(ledger_id)
        if not is_there:
            await self._call(self._store.mark_underreplicated, ledger_id, (self._bookie_id,))
            self._marks += 1
            self.marked += 1
            logger.warning("ledger %d is incomplete here, and marked%s: %s", ledger_id, " again" if known else "", lack)
        self.suspects.again(ledger_id, self._clock(), tried=not is_there)

    async def _is_marked(self, ledger_id: LedgerId) -> bool:
        mark = await self._call(self._store.read_underreplicated, ledger_id)
        return mark is not None and self._bookie_id in mark.value.missing

    async def _is_in_limbo(self, ledger_id: LedgerId) -> bool:
        """Return whether the copy is in limbo. If such a copy lacks nothing, limbo alone made it a suspect."""
        return is_limbo((await self._gaps(ledger_id, ENTRY_ID_MAX, ENTRY_ID_MAX)).unknown)

    async def _lacking(self, ledger_id: LedgerId, record: LedgerMetadata) -> list[EntryRange]:
        found: list[EntryRange] = []
        for part in own_parts(record, self._bookie_id):
            found += await self._lacking_of(ledger_id, part)
            if len(found) >= RANGES_MAX:
                break  # enough to know that it is incomplete; the repair finds out the rest
        return found

    async def _lacking_of(self, ledger_id: LedgerId, part: OwnPart) -> list[EntryRange]:
        found: list[EntryRange] = []
        first = part.first
        while first <= part.asked_last and len(found) < RANGES_MAX:
            trailer = await self._gaps(ledger_id, first, part.asked_last)
            found += part.lacking(trailer)
            first = trailer.answered_through + 1
        return found

    def _forget(self, ledger_id: LedgerId) -> None:
        self.suspects.forget(ledger_id)
        if self._note(ledger_id, None) is not None:
            self.healed += 1
            logger.info("ledger %d is complete here", ledger_id)

    def _note(self, ledger_id: LedgerId, lack: Lack | None) -> Lack | None:
        """Set or remove the missing entries of the copy of a ledger, and return the former value."""
        known = self.lacking.pop(ledger_id, None)
        if known is not None:
            self._kinds[known.limbo] -= 1
        if lack is not None:
            self.lacking[ledger_id] = lack
            self._kinds[lack.limbo] += 1
        return known
