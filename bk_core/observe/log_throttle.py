# SPDX-License-Identifier: Apache-2.0
"""Keeps a repeated line from filling a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

EVERY_S = 10.0
"""The usual time between two equal lines, in seconds. An operator who looks at the log sees that the problem goes
on."""
KEYS_MAX = 1024
"""The usual limit of the keys that a throttle remembers, about 100 KB of memory. A bookie under attack sees more
addresses than that; the throttle then forgets all keys, and each line may be logged once more."""


class LogThrottle:
    """Allows the same line once in ``every_s`` seconds.

    A key identifies a line. The key must hold nothing that a remote peer chooses freely, because each new key is
    allowed at once. Two threads that ask for the same key at the same time may both be allowed. ``clock_s`` returns
    seconds that never go back. At most ``keys_max`` keys are remembered.
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
        """Allow this line again at once."""
        self._allowed_at.pop(key, None)
