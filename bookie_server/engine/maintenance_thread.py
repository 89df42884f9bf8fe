# SPDX-License-Identifier: Apache-2.0
"""The thread that maintains one data directory, so that no group commit waits for upkeep.

:class:`~bookie_server.storage.maintenance.maintenance.Maintenance` decides which work is done, in which order and how
fast. This thread calls it, and waits while nothing is due.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from bk_core.errors import BookKeeperError, StorageFailedError
from bookie_server.engine.index_hop import LoopIndexPort, poster
from bookie_server.identity.opening import OpenStorage
from bookie_server.storage.maintenance.compaction import Copy
from bookie_server.storage.maintenance.index_port import Stopping
from bookie_server.storage.maintenance.maintenance import Maintenance
from bookie_server.storage.maintenance.schedule import MaintenanceLimits

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 600.0
"""The seconds between two log lines with the totals of the maintenance."""

Release = Callable[[int], None]


def maintained(
    opened: OpenStorage, limits: MaintenanceLimits, loop: asyncio.AbstractEventLoop, scrub_from: float = 0.0
) -> Callable[[Copy, Release, Release], Maintenance]:
    """Return a function that makes the maintenance of an open directory whose index belongs to ``loop`` (``Maintain``
    in ``log_driver.py``). ``scrub_from`` is the place where the first scrub begins, as a share of the segments from 0
    to 1."""

    def make(copy: Copy, release: Release, give_up: Release) -> Maintenance:
        return Maintenance(
            opened.directory, opened.log, LoopIndexPort(opened.index, loop), opened.reader,
            newest=opened.report.checkpoint, copy=copy, release=release, give_up=give_up,
            limits=limits, now_s=loop.time, scrub_from=scrub_from,
        )  # fmt: skip

    return make


class MaintenanceThread:
    """Runs the maintenance of one directory from :meth:`start` to :meth:`stop`. ``failed`` is called once, on the loop,
    with the StorageFailedError that ends the bookie (RULES S6)."""

    def __init__(
        self,
        maintenance: Maintenance,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[BookKeeperError], None],
        *,
        stats_interval_s: float = STATS_INTERVAL_S,
    ) -> None:
        self.maintenance = maintenance
        self._loop, self._failed, self._stats_interval_s = loop, failed, stats_interval_s
        self._post = poster(loop)
        self._stats_due_s = time.monotonic() + stats_interval_s
        self._wake = threading.Condition()
        self._stopping = self._noticed = self._hurried = False
        self._thread = threading.Thread(target=self._run, name="bookie-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        """Wake the thread if the log needs a spare or has a full segment. Any thread may call; it does not block."""
        if self.maintenance.log_upkeep.work.due:
            self._notice()

    def hurry(self) -> None:
        """Free what space can be freed now, because space is short. Any thread may call; it does not block."""
        self._hurried = True
        self._notice()

    def stop(self) -> None:
        """Seal full segments and end the thread. Call this after the commit thread has ended, and not on the loop's
        thread. Further calls do nothing."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _notice(self) -> None:
        with self._wake:
            self._noticed = True
            self._wake.notify()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            try:
                self._work()
            except Stopping:  # the commit thread has ended, or the loop is closed
                with self._wake:
                    self._wake.wait_for(lambda: self._stopping or self._loop.is_closed(), timeout=None)
            self.maintenance.finish()
        except BookKeeperError as error:
            self._post(self._failed, error)
        except BaseException as error:
            logger.exception("the maintenance thread failed")
            self._post(self._failed, StorageFailedError("the maintenance thread failed", value=repr(error)))

    def _work(self) -> None:
        maintenance = self.maintenance
        while not self._stopping:
            self._log_stats()
            if maintenance.step():
                continue
            with self._wake:
                if not self._stopping and not self._noticed:
                    self._wake.wait(min(maintenance.tasks.wait_s(), self._stats_interval_s))
                noticed, self._noticed = self._noticed, False
                hurried, self._hurried = self._hurried, False
            if noticed:
                maintenance.wake()
            if hurried:
                maintenance.look_soon()

    def _log_stats(self) -> None:
        now_s = time.monotonic()
        if now_s < self._stats_due_s:
            return
        self._stats_due_s = now_s + self._stats_interval_s
        try:
            logger.info("storage: %s", self.maintenance.stats.read().as_line())
        except BookKeeperError as error:
            logger.warning("no statistics now: %s", error)
