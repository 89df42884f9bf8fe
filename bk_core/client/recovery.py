# SPDX-License-Identifier: Apache-2.0
"""Drives :class:`~bk_core.protocol.recovery.LedgerRecovery` over transport and store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bk_core.client.config import ClientConfig
from bk_core.client.driver import Driver, MetadataAdapter, SessionAdapter
from bk_core.client.lac import evidence_of, lac_event
from bk_core.client.ranges import ReadAdapter
from bk_core.entries.digest import ledger_key
from bk_core.errors import BookKeeperError
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
from bk_core.transport.port import LacEvidence, Transport


class RecoveryDriver:
    """One recovery of one ledger."""

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
        self._machine, self._transport, self._config = machine, transport, config
        self._ledger_id, self._key = machine.digester.ledger_id, ledger_key(password)
        self._driver = Driver(f"recovery of ledger {self._ledger_id}", machine.step, self.end)
        SessionAdapter(self._driver, transport, self._ledger_id, self._key)
        ReadAdapter(self._driver, transport, self._ledger_id, self._key, config.read_timeout_ms)
        self._metadata = MetadataAdapter(store, self._ledger_id, self._driver, lambda: bookies(machine.failed_bookies))
        self._driver.handle(
            {
                SendFence: lambda effect: self._driver.spawn(self._fence(effect.index, effect.bookie)),
                BackOff: self._back_off,
                FinishRecovery: self._finish,
                Fail: lambda effect: self.end(effect.error),
            }
        )
        self._done: asyncio.Future[FinishRecovery] = self._driver.loop.create_future()
        self._attempt_began = self._driver.loop.time()

    async def run(self) -> tuple[Versioned[LedgerMetadata], int]:
        """The closed metadata and how many entries were written back.

        Raises RecoveryInconclusiveError (the ledger stays IN_RECOVERY, and no end was shown to anybody),
        WrongPasswordError, NoSuchLedgerError, MetadataUnavailableError.
        """
        try:
            self._driver.begin(self._machine.start())
            finished = await self._done
            await self._metadata.marked()
            return finished.metadata, finished.recovered_entries
        finally:
            self._driver.stop()

    def _back_off(self, effect: BackOff) -> None:
        delay_ms = max((self._driver.loop.time() - self._attempt_began) * 1000 * effect.factor, 10.0)
        self._attempt_began = self._driver.loop.time() + delay_ms / 1000
        self._driver.set_timer(SetTimer("again", delay_ms))

    def _finish(self, effect: FinishRecovery) -> None:
        if not self._done.done():
            self._done.set_result(effect)

    def end(self, error: BookKeeperError) -> None:
        """Make ``run`` raise ``error``; the ledger stays in the state that the recovery reached."""
        if not self._done.done():
            self._done.set_exception(error)

    async def _fence(self, index: int, bookie: BookieId) -> None:
        def ask(left_s: float) -> Awaitable[LacEvidence]:
            return self._transport.link(bookie).fence(self._ledger_id, self._key, deadline_s=left_s)

        deadline_s = self._config.lac_timeout_ms / 1000
        self._driver.feed(await lac_event(lambda: evidence_of(ask, deadline_s), index, bookie))
