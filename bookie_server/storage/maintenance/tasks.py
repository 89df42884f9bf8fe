# SPDX-License-Identifier: Apache-2.0
"""Decides which task of maintenance runs next. Each task is one kind of work."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bk_core.errors import BookKeeperError, StorageFailedError
from bookie_server.storage.maintenance.schedule import STEP_BYTES, ByteBudget

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""The time after which a task without work looks for work again, in seconds."""
RETRY_S = 1.0
"""The wait before the next try after a failure or a full disk, in seconds. It doubles after each failure, up to
RETRY_MAX_S."""
RETRY_MAX_S = 60.0
WAIT_MIN_S = 0.001
"""The shortest wait, in seconds. A shorter one may be lost in rounding, and the thread would try again without a
sleep."""

Paced = Callable[[int], int]
"""A function that reads and writes about as many bytes as its argument says. It returns how many, or 0 if there is
nothing to do now."""


@dataclass(slots=True, eq=False)
class _Task:
    """One kind of work. ``run`` does a piece of it and returns 0, or the number of seconds for which there is nothing
    to do. It is not called before the clock's time ``not_before``. ``failures`` counts the failures since the last
    success."""

    name: str
    run: Callable[[], float]
    not_before: float = 0.0
    failures: int = 0


class TaskSchedule:
    """A schedule that runs one piece of work at a time, the most urgent first. One thread uses it.

    - ``_urgent``: the urgent tasks, the most urgent first.
    - ``_paced``: the tasks with a budget of bytes, which take turns when nothing urgent is due; the next one is first.
    - ``errors``: the number of pieces of work that failed and were to be tried again.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._urgent: list[_Task] = []
        self._paced: deque[_Task] = deque()
        self.errors = 0

    def add_urgent(self, name: str, run: Callable[[], float]) -> None:
        """Add a task that is less urgent than those added before. ``run`` is described at :class:`_Task`."""
        self._urgent.append(_Task(name, run))

    def add_paced(self, name: str, work: Paced, bytes_per_s: int) -> None:
        """Add a task that runs at this rate when no urgent task is due."""
        budget = ByteBudget(bytes_per_s, self._now_s())

        def run() -> float:
            wait_s = budget.wait_s(self._now_s())
            if wait_s:
                return wait_s
            done = work(STEP_BYTES)
            budget.use(done, self._now_s())
            return 0.0 if done else LOOK_S

        self._paced.append(_Task(name, run))

    def soon(self, name: str) -> None:
        """Make an urgent task due now, unless it has to wait after a failure."""
        for task in self._urgent:
            if task.name == name and not task.failures:
                task.not_before = 0.0

    def step(self) -> bool:
        """Do the most urgent piece of work that is due. Return False if no task did any work.

        Raises StorageFailedError and Stopping. Any other error is logged and counted, and the work is tried again
        later.
        """
        for task in self._urgent:
            if self._try(task):
                return True
        for _ in range(len(self._paced)):
            task = self._paced[0]
            self._paced.rotate(-1)
            if self._try(task):
                return True
        return False

    def wait_s(self) -> float:
        """Return the seconds until a task may be due again. Call it after :meth:`step` returned False. A call of
        :meth:`soon` makes a task due earlier."""
        soonest = min(task.not_before for task in (*self._urgent, *self._paced))
        return max(0.0, soonest - self._now_s())

    def _try(self, task: _Task) -> bool:
        now = self._now_s()
        if now < task.not_before:
            return False
        try:
            wait_s = task.run()
            task.failures = 0
        except StorageFailedError:
            raise
        except Exception as error:
            self.errors += 1
            wait_s = min(RETRY_S * 2**task.failures, RETRY_MAX_S)
            task.failures += 1
            known = isinstance(error, BookKeeperError | OSError)
            logger.error("%s failed, again in %.0f s: %s", task.name, wait_s, error, exc_info=not known)
        task.not_before = now + (wait_s and max(wait_s, WAIT_MIN_S))
        return wait_s == 0.0
