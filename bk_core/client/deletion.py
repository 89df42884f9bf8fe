# SPDX-License-Identifier: Apache-2.0
"""Deletes a ledger: removes its record from the metadata store, then sends a hint to the bookies that hold it.

A ledger is deleted once its record is gone. The hint only lets the bookies free the space within minutes and not at
their next garbage collection (S9). A failed hint never fails a deletion, and hints delay a deletion by at most
``delete_hint_timeout_ms``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from bk_core.client.reading.ranges import Quarantine
from bk_core.errors import BookieUnreachableError, BookKeeperError, MetadataCorruptError
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, LedgerId, LedgerMetadata
from bk_core.transport.port import Transport
from bk_core.wire.lane.reasons import HINT_IDS_MAX

logger = logging.getLogger(__name__)


def delete_record(store: MetadataStore, ledger_id: LedgerId, version: int | None = None) -> LedgerMetadata | None:
    """Delete a ledger's record. With ``version``, delete it only if it has this version. This blocks. Return the record
    for :class:`Hints`, or None if it is corrupt. Raises NoSuchLedgerError, MetadataConflictError,
    MetadataUnavailableError."""
    metadata: LedgerMetadata | None = None
    try:
        metadata = store.read_ledger(ledger_id).value
    except MetadataCorruptError as error:
        logger.info("the bookies of ledger %d get no hint of its deletion: its record is corrupt: %s", ledger_id, error)
    store.delete_ledger(ledger_id, version)
    return metadata


class Hints:
    """Sends bookies hints about deleted ledgers. It belongs to the client's loop.

    ``refresh`` reads the bookies' addresses again. A bookie that did not answer gets no hint for ``pause_s``, so that
    deletions of many ledgers do not wait for it each time.
    """

    def __init__(
        self, transport: Transport, refresh: Callable[[], Awaitable[object]], *, timeout_s: float, pause_s: float
    ) -> None:
        self._transport, self._refresh = transport, refresh
        self._timeout_s, self._pause_s = timeout_s, pause_s
        self._silent = Quarantine()

    async def send(self, deleted: Mapping[LedgerId, LedgerMetadata | None]) -> None:
        """Send hints in parallel to all bookies that these records name, within ``timeout_s``. Raises only
        CancelledError."""
        silent = self._silent.now()
        of_bookie = {bookie: ids for bookie, ids in _by_bookie(deleted).items() if bookie not in silent}
        untold = set(of_bookie)
        try:
            async with asyncio.timeout(self._timeout_s):
                if await self._tell_all(of_bookie, untold):
                    await self._refresh()
                    await self._tell_all({bookie: of_bookie[bookie] for bookie in untold}, untold)
        except TimeoutError:
            pass
        except Exception as error:  # the ledgers are deleted: their deletion must not seem to fail
            logger.warning("sending hints of deleted ledgers to bookies failed: %s", error)
        if untold:
            self._silent.note(untold, self._pause_s)
            names = ", ".join(sorted(untold))
            logger.info("bookies %s got no hint of deleted ledgers; their garbage collection finds them", names)

    async def _tell_all(self, of_bookie: Mapping[BookieId, Sequence[LedgerId]], untold: set[BookieId]) -> bool:
        """Send hints to these bookies, and remove those that answered from ``untold``. Return True if a bookie was
        unreachable, because its address may have changed."""
        tells = [self._tell(bookie, ids, untold) for bookie, ids in of_bookie.items()]
        return any(await asyncio.gather(*tells))

    async def _tell(self, bookie: BookieId, ledger_ids: Sequence[LedgerId], untold: set[BookieId]) -> bool:
        try:
            for start in range(0, len(ledger_ids), HINT_IDS_MAX):
                part = ledger_ids[start : start + HINT_IDS_MAX]
                await self._transport.link(bookie).delete_hint(part, deadline_s=self._timeout_s)
        except BookieUnreachableError:
            return True
        except BookKeeperError as error:
            logger.debug("bookie %s got no hint of deleted ledgers: %s", bookie, error)
        else:
            untold.discard(bookie)
        return False


def _by_bookie(deleted: Mapping[LedgerId, LedgerMetadata | None]) -> dict[BookieId, list[LedgerId]]:
    of_bookie: dict[BookieId, list[LedgerId]] = {}
    for ledger_id, metadata in deleted.items():
        for bookie in {b for fragment in metadata.fragments for b in fragment.ensemble} if metadata else ():
            of_bookie.setdefault(bookie, []).append(ledger_id)
    return of_bookie
