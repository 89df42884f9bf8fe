# SPDX-License-Identifier: Apache-2.0
"""Limits how often a repeated line is logged, so that it does not fill a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

EVERY_S = 10.0
"""The default minimum time between two equal lines, in seconds. It is short enough that an operator sees in the log
that a problem persists."""
KEYS_MAX = 1024
"""The default maximum number of keys that a throttle remembers, which takes about 100 KB of memory. A bookie under
attack may get requests from more addresses. The throttle then forgets all keys, and each line may be logged once
more."""


class LogThrottle:
    """Allows a line once in ``every_s`` seconds.

    A key identifies a line. A key must contain nothing that a remote peer can choose freely, because a new key is
    always allowed. If two threads call :meth:`allows` with the same key at the same time, both may be allowed.
    ``clock_s`` returns seconds that never decrease. At most ``keys_max`` keys are remembered.
    """

    def __init__(
        self, every_s: float = EVERY_S, clock_s: Callable[[], float] = time.monotonic, keys_max: int = KEYS_MAX
    ) -> None:
        self.every_s, self._clock_s, self._keys_max = every_s, clock_s, keys_max
        self._allowed_at: dict[Hashable, float] = {}

    def allows(self, *key: Hashable) -> bool:
        """Return whether to log the line now. If so, the same key is refused for the next ``every_s`` seconds."""
        now_s = self._clock_s()
        if now_s - self._allowed_at.get(key, float("-inf")) < self.every_s:
            return False
        if len(self._allowed_at) >= self._keys_max:
            self._allowed_at.clear()
        self._allowed_at[key] = now_s
        return True

    def forget(self, *key: Hashable) -> None:
        """Forget this key, so that its line is allowed again immediately."""
        self._allowed_at.pop(key, None)
