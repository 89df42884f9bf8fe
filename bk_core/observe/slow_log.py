# SPDX-License-Identifier: Apache-2.0
"""Logs slow operations. The rate of lines is limited, and a line says how many operations before it were left out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

LINES_PER_S = 2.0
"""The number of lines per second that are logged in the long run."""
BURST = 10.0
"""The number of lines that may be logged together before LINES_PER_S applies."""


class SlowLog:
    """Logs operations that took ``threshold_s`` or longer. With 0 it logs none. The caller compares the time of an
    operation with ``threshold_s``, so that a fast operation costs no call. Any thread may use it."""

    def __init__(self, logger: logging.Logger, threshold_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.threshold_s = threshold_s if threshold_s > 0 else float("inf")
        self._logger, self._clock = logger, clock
        self._lock = threading.Lock()
        self._left, self._at = BURST, clock()
        self._silent = 0
        self.count = 0

    def say(self, text: Callable[[], str]) -> None:
        """Log an operation, or only count it if the rate of lines is exceeded. ``text`` is called only if a line is
        written."""
        with self._lock:
            now = self._clock()
            self._left = min(BURST, self._left + (now - self._at) * LINES_PER_S)
            self._at = now
            self.count += 1
            if self._left < 1:
                self._silent += 1
                return
            self._left -= 1
            silent, self._silent = self._silent, 0
        more = f" ({silent} slow operations before it were left out)" if silent else ""
        self._logger.warning("slow: %s%s", text(), more)
