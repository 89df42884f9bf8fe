# SPDX-License-Identifier: Apache-2.0
"""The thread beside the commit thread: seals full segments and makes spare ones, so that no group waits for either.

Everything that storage wants done in the background belongs on this thread, behind what is urgent: add its stepper to
:meth:`UpkeepThread._work`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from bk_core.errors import BookKeeperError, StorageFailedError
from bookie_server.storage.commit import SegmentLog
from bookie_server.storage.sealing import SealedSegment
from bookie_server.storage.upkeep import LogUpkeep

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""How long to wait before what a full disk refused is tried again."""


class UpkeepThread:
    """Looks after a log until :meth:`stop`. ``sealed`` and ``failed`` are called on the loop."""

    def __init__(
        self,
        log_: SegmentLog,
        loop: asyncio.AbstractEventLoop,
        sealed: Callable[[SealedSegment], None],
        failed: Callable[[BookKeeperError], None],
    ) -> None:
        self._log, self._loop, self._failed = log_, loop, failed
        self._upkeep = LogUpkeep(log_, lambda segment: self._post(sealed, segment))
        self._wake = threading.Condition()
        self._stopping = self._noticed = False
        self._thread = threading.Thread(target=self._run, name="bookie-upkeep", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Wake up if there is something to do. Any thread; quick."""
        if self._upkeep.due:
            with self._wake:
                self._noticed = True
                self._wake.notify()

    def stop(self) -> None:
        """Seal what is full, end. From any thread but the loop's, when the commit thread has ended."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._work()
                with self._wake:
                    if not self._stopping and not self._noticed:  # what is still due the disk has no room for
                        self._wake.wait(RETRY_S if self._upkeep.due else None)
                    self._noticed = False
            while self._upkeep.seal_one():
                pass
        except BookKeeperError as error:
            self._post(self._failed, error)
        except BaseException as error:
            log.exception("the upkeep thread failed")
            self._post(self._failed, StorageFailedError("the upkeep thread failed", value=repr(error)))

    def _work(self) -> None:
        while not self._stopping and self._upkeep.step():
            pass

    def _post(self, call: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, argument)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("a segment was sealed after the loop closed")
