# SPDX-License-Identifier: Apache-2.0
"""Drives :class:`~bk_core.protocol.recovery.LedgerRecovery` over transport and store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bk_core.client.config import ClientConfig
from bk_core.client.reading.quorum_lac import lac_event
from bk_core.client.reading.ranges import ReadAdapter
from bk_core.client.running.driver import MetadataAdapter, SessionAdapter, Work
from bk_core.client.running.refused import Refused
from bk_core.entries.digest import ledger_key
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieId, LedgerMetadata, Versioned
from bk_core.protocol.events import (
    BackOff,
    BookiesRead,
    Fail,
    FinishRecovery,
    SendFence,
    SetTimer,
)
from bk_core.protocol.recovery import LedgerRecovery
from bk_core.transport.port import Transport
from bk_core.wire.lane.evidence import LacEvidence


class RecoveryDriver(Work[FinishRecovery]):
    """The driver of one recovery of one ledger."""

    def __init__(
        self,
        machine: LedgerRecovery,
        password: bytes,
        *,
        store: MetadataStore,
        transport: Transport,
        config: ClientConfig,
        bookies: Callable[[tuple[BookieId, ...]], Awaitable[BookiesRead]],
    ) -> None:
        self._transport, self._config = transport, config
        self._ledger_id, self._key = machine.digester.ledger_id, ledger_key(password)
        super().__init__(f"recovery of ledger {self._ledger_id}", machine)
        self._refused = Refused()
        SessionAdapter(self._driver, transport, self._ledger_id, self._key, refused=self._refused)
        ReadAdapter(self._driver, transport, self._ledger_id, self._key, config.read_timeout_ms, self._refused)
        self._metadata = MetadataAdapter(store, self._ledger_id, self._driver, lambda: bookies(machine.failed_bookies))
        self._driver.handle(
            {
                SendFence: lambda effect: self._driver.spawn(self._fence(effect.index, effect.bookie)),
                BackOff: self._back_off,
                FinishRecovery: self._finish,
                Fail: lambda effect: self.end(self._refused.because(effect.error)),
            }
        )
        self._attempt_began = self._driver.loop.time()

    async def run(self) -> tuple[Versioned[LedgerMetadata], int]:
        """Recover the ledger. Return its closed metadata and the number of entries that were written back.

        Raises AuthenticationError, WrongPasswordError, NoSuchLedgerError, MetadataUnavailableError, and
        RecoveryInconclusiveError. After the last one the ledger is IN_RECOVERY, and no client has seen an end of it.
        """
        finished = await self._run()
        return finished.metadata, finished.recovered_entries

    def _back_off(self, effect: BackOff) -> None:
        delay_ms = max((self._driver.loop.time() - self._attempt_began) * 1000 * effect.factor, 10.0)
        self._attempt_began = self._driver.loop.time() + delay_ms / 1000
        self._driver.set_timer(SetTimer("again", delay_ms))

    async def _fence(self, index: int, bookie: BookieId) -> None:
        def ask(left_s: float) -> Awaitable[LacEvidence]:
            return self._transport.link(bookie).fence(self._ledger_id, self._key, deadline_s=left_s)

        self._driver.feed(await lac_event(index, bookie, ask, self._refused, self._config.lac_timeout_ms / 1000))
