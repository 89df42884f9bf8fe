# SPDX-License-Identifier: Apache-2.0
"""Conclusions from the recent commits about the disk: how large a group commit may be, and whether the loop may commit.

The frames of a group share one sync. Beyond the size whose write takes a few times as long as the sync, a larger group
saves next to nothing: it only makes a single add, or a fence, wait longer.
"""

from __future__ import annotations

import math

FAST_S = 0.002
"""Groups are committed on the loop while each recent commit took less than this: the loop stands still meanwhile."""

GROUP_BYTES_MIN = 1 << 20
"""A group may always have this many bytes: a frame of the usual size, even while nothing is known about the disk."""
WRITE_S = 0.0005
"""A group may take this long to write, however fast the sync is: a group also costs a change of threads."""
SYNCS = 2
"""A group may also take as long to write as this many syncs. Then syncs take at most a third of the disk's time."""
_RATE_BYTES_MIN = 256 << 10
"""Shorter writes do not change the measured rate: they say little about it."""
_RATE_WEIGHT = 0.1
"""The weight of one write in the measured rate, which is a moving average."""
_SYNC_GROWTH = 1.02
"""The sync time is that of the fastest recent sync, because slower syncs waited for a processor or for another
program's write. It grows by this factor with each group until a sync is faster."""
_SLOW_DECAY = 0.8
"""``took_s`` falls to no less than this share with each faster commit."""
_UNTRIED_S = 0.1
"""The assumed seconds of a commit before the first one is measured."""


class DiskSpeed:
    """Measurements of one disk. The thread that holds the log changes them; any thread may read them.

    - ``group_bytes``: the bytes that the next group may have, at most ``_bytes_max``.
    - ``took_s``: how long a commit takes, pessimistically: a slow commit counts for some time. Commits are made on the
      loop while it is below ``fast_s``.
    - ``_rate``: bytes that a write takes in a second, 0 until measured. ``_sync_s``: how long a sync takes.
    """

    __slots__ = ("_bytes_max", "_rate", "_sync_s", "fast_s", "group_bytes", "took_s")

    def __init__(self, bytes_max: int, fast_s: float = FAST_S) -> None:
        self._bytes_max, self._rate, self._sync_s = bytes_max, 0.0, math.inf
        self.group_bytes = min(GROUP_BYTES_MIN, bytes_max)
        self.took_s, self.fast_s = _UNTRIED_S, fast_s

    def note(self, took_s: float, size: int, write_s: float, sync_s: float) -> None:
        """Take in one commit: it took ``took_s``, of which its write of ``size`` bytes took ``write_s`` and its sync
        ``sync_s``."""
        less_s = self.took_s * _SLOW_DECAY
        self.took_s = took_s if took_s > less_s else less_s
        if size < _RATE_BYTES_MIN or write_s <= 0:
            return
        rate = size / write_s
        self._rate = self._rate + (rate - self._rate) * _RATE_WEIGHT if self._rate else rate
        self._sync_s = min(sync_s, self._sync_s * _SYNC_GROWTH)
        pays = int(self._rate * max(WRITE_S, SYNCS * self._sync_s))
        self.group_bytes = min(max(pays, GROUP_BYTES_MIN), self._bytes_max)
