# SPDX-License-Identifier: Apache-2.0
"""Runs the auditor and the workers as a process without a bookie (``bk autorecovery``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from bk_core.client.bookkeeper import BookKeeper
from bk_core.errors import BookKeeperError
from bk_core.metadata.port import Audit
from bookie_server.autorecovery.auditor import Auditor
from bookie_server.autorecovery.presence import Presence
from bookie_server.autorecovery.settings import AutoRecoveryConfig
from bookie_server.autorecovery.worker import Workers

logger = logging.getLogger(__name__)


Connect: TypeAlias = Callable[[], Awaitable[BookKeeper]]


def run(connect: Connect, owner: str, config: AutoRecoveryConfig, on_ready: Callable[[], None] = lambda: None) -> int:
    """Repair until SIGTERM or SIGINT; return the exit code. Raises the errors of ``connect``."""
    return asyncio.run(_run(connect, owner, config, on_ready))


async def _run(connect: Connect, owner: str, config: AutoRecoveryConfig, on_ready: Callable[[], None]) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with await connect() as client, AutoRecovery(client, owner, config):
        on_ready()
        await stop.wait()
    return 0


class AutoRecovery:
    """An async context manager that runs an auditor and workers on the current loop, over one client. The caller closes
    the client."""

    def __init__(self, client: BookKeeper, owner: str, config: AutoRecoveryConfig) -> None:
        self._client, self._config = client, config
        self._stopping = threading.Event()
        presence = Presence(client.store, config.lost_bookie_delay_s)  # the auditor looks every poll_s
        self.auditor = Auditor(client.store, owner, presence, config, self._stopping.is_set)
        self.workers = Workers(client, owner, presence, config)
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> AutoRecovery:
        audit = self._repeat("the auditor", lambda: asyncio.to_thread(self.auditor.look))
        work = self._repeat("the workers", self.workers.look)
        check = self._repeat("the check of all ledgers", self._check)
        self._loops = [asyncio.create_task(each) for each in (audit, work, check)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.workers.stop()
        with contextlib.suppress(BookKeeperError):  # the vote ends with the session
            await asyncio.to_thread(self.auditor.withdraw)

    async def _check(self) -> None:
        """If this process is the auditor, and the last check ended at least ``check_s`` ago, check every copy of every
        closed ledger. In a cluster without any check, the first one begins after ``check_s``. The ids are read one at a
        time, never as a whole list. A recorded time of the last check that lies in the future is ignored, because a
        clock was wrong when it was written."""
        store, config = self._client.store, self._config
        if not config.check_s or not self.auditor.elected or not await asyncio.to_thread(store.replication_enabled):
            return
        last_ms = await asyncio.to_thread(store.audit_time_ms, Audit.LEDGERS)
        if last_ms is not None and 0 <= time.time() * 1000 - last_ms < config.check_s * 1000:
            return
        if last_ms is None:  # no check has been made in this cluster: the first one is due one period from now
            await asyncio.to_thread(store.write_audit_time_ms, Audit.LEDGERS, int(time.time() * 1000))
            return
        logger.info("the check of all ledgers begins")
        ledger_ids = store.list_ledgers()
        while (ledger_id := await asyncio.to_thread(next, ledger_ids, None)) is not None:
            if not self.auditor.elected:
                return
            await self.workers.check(ledger_id)
        await asyncio.to_thread(store.write_audit_time_ms, Audit.LEDGERS, int(time.time() * 1000))
        logger.info("the check of all ledgers ended")

    async def _repeat(self, name: str, look: Callable[[], Awaitable[None]]) -> None:
        """Call ``look`` again and again. An error of the store, or a bug, ends only the current call."""
        failing = False
        while True:
            try:
                await look()
                failing = False
            except BookKeeperError as error:
                if not failing:
                    logger.warning("%s cannot work now: %s", name, error)
                failing = True
            except Exception:
                logger.exception("%s failed and will try again", name)
            await asyncio.sleep(self._config.poll_s)
