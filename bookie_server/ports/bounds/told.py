# SPDX-License-Identifier: Apache-2.0
"""Which lines about clients a log has had lately: whoever is refused as often as they like must not fill it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

AGAIN_S = 10.0
_KEPT_MAX = 1024


class Told:
    """The same of one host is told once in ``AGAIN_S``. Any thread may call. ``clock_s`` never goes back."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s, self._lock = clock_s, threading.Lock()
        self._at_s: dict[tuple[str, str], float] = {}

    def tells(self, host: str, what: str) -> bool:
        """Whether to log it now. ``what`` holds nothing that clients choose freely: each would be told."""
        with self._lock:
            key, now_s = (host, what), self._clock_s()
            if now_s - self._at_s.get(key, -AGAIN_S) < AGAIN_S:
                return False
            if len(self._at_s) >= _KEPT_MAX:
                self._at_s.clear()
            self._at_s[key] = now_s
            return True
