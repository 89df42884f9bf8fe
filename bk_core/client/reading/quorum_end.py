# SPDX-License-Identifier: Apache-2.0
"""Drives :class:`~bk_core.protocol.ends.quorum_end.QuorumEnd` over transport and store. Never fences."""

from __future__ import annotations

from bk_core.client.config import ClientConfig
from bk_core.client.reading.ranges import ReadAdapter
from bk_core.client.running.driver import MetadataAdapter, Work
from bk_core.entries.digest import Digester
from bk_core.metadata.port import MetadataStore
from bk_core.model import EntryId
from bk_core.protocol.ends.quorum_end import QuorumEnd
from bk_core.protocol.events import Fail, FinishEnd
from bk_core.transport.port import Transport


class QuorumEndDriver(Work[FinishEnd]):
    """The driver of one search for the end of an open ledger above its LAC."""

    def __init__(
        self,
        digester: Digester,
        lac: EntryId,
        *,
        settle_ms: float,
        store: MetadataStore,
        transport: Transport,
        config: ClientConfig,
    ) -> None:
        ledger_id, machine = (
            digester.ledger_id,
            QuorumEnd(digester, lac, settle_ms=settle_ms, bytes_max=config.read_bytes_max),
        )
        super().__init__(f"looking for the end of ledger {ledger_id}", machine)
        ReadAdapter(self._driver, transport, ledger_id, None, config.read_timeout_ms)
        self._metadata = MetadataAdapter(store, ledger_id, self._driver)
        self._driver.handle({FinishEnd: self._finish, Fail: lambda effect: self.end(effect.error)})

    async def run(self) -> FinishEnd:
        """Return the end and the record by which it was found. Raises NoSuchLedgerError, MetadataUnavailableError, and
        the error given to ``end``."""
        return await self._run()
