# SPDX-License-Identifier: Apache-2.0
"""Runs jobs in order on a daemon thread. Metadata adapters call their callbacks on it."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Worker:
    """Runs jobs on one thread, one after another, each when it is due. The thread starts with the first job and ends
    with :meth:`stop`.

    The callers bound the queue: each watch and each registration has at most one job in it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, job: Callable[[], None], delay_s: float = 0.0) -> None:
        """Run ``job`` on the thread, ``delay_s`` from now. The job is dropped after :meth:`stop`."""
        with self._changed:
            if self._stopped:
                return
            heapq.heappush(self._jobs, (time.monotonic() + delay_s, next(self._order), job))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the next job tries to start the thread again
                    logger.error("the thread %s could not be started: %s", self._name, error)
                    return
                self._thread = thread
            self._changed.notify()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Drop queued jobs, and wait for the end of the running job, unless the running job makes this call."""
        with self._changed:
            self._stopped = True
            self._jobs.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception:
                logger.exception("a callback of the metadata store failed")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopped:
                wait_s = self._jobs[0][0] - time.monotonic() if self._jobs else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._jobs)[2]
                self._changed.wait(wait_s)
            return None
