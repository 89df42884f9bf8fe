# SPDX-License-Identifier: Apache-2.0
"""Measures the disk in recent commits to decide how large a group may be, and whether the loop may commit.

The frames of a group share one sync. Once a group's write takes a few times as long as its sync, a larger group saves
next to nothing. It only makes an add or a fence that comes meanwhile wait longer.
"""

from __future__ import annotations

import math

FAST_S = 0.002
"""The loop commits groups itself only while each recent commit took less than this number of seconds, because a commit
blocks the loop."""

GROUP_BYTES_MIN = 1 << 20
"""The number of bytes that a group may always have, even before the disk is measured. It is the size of a usual
frame."""
WRITE_S = 0.0005
"""The number of seconds that the write of a group may always take, however fast the sync is, because a group also costs
a change of threads."""
SYNCS = 2
"""The write of a group may take as long as this number of syncs. Larger groups gain little, because syncs take at most
a third of the time of such groups."""
_RATE_BYTES_MIN = 256 << 10
"""The minimum number of bytes of a write that changes the measured rate. A smaller write says little about the rate."""
_RATE_WEIGHT = 0.1
"""The weight of one write in the measured rate, which is a moving average."""
_SYNC_GROWTH = 1.02
"""The assumed sync time is that of the fastest recent sync, because slower syncs waited for a processor or for another
program's write. With each group it grows by this factor, until a sync is faster than the assumed time."""
_SLOW_DECAY = 0.8
"""After a commit that was faster than ``took_s``, ``took_s`` falls at most to this share of itself."""
_UNTRIED_S = 0.1
"""The assumed duration of a commit, in seconds, before the first commit is measured."""


class DiskSpeed:
    """Measurements of one disk. The thread that holds the log changes them, and any thread may read them.

    - ``group_bytes``: the maximum size of the next group in bytes, at most ``_bytes_max``.
    - ``took_s``: a pessimistic estimate of the time that a commit takes. A slow commit raises it immediately, and fast
      commits lower it slowly. The loop commits while it is below ``fast_s``.
    - ``_rate``: the bytes written in a second, or 0 until measured. ``_sync_s``: the time that a sync takes.
    """

    __slots__ = ("_bytes_max", "_rate", "_sync_s", "fast_s", "group_bytes", "took_s")

    def __init__(self, bytes_max: int, fast_s: float = FAST_S) -> None:
        self._bytes_max, self._rate, self._sync_s = bytes_max, 0.0, math.inf
        self.group_bytes = min(GROUP_BYTES_MIN, bytes_max)
        self.took_s, self.fast_s = _UNTRIED_S, fast_s

    def note(self, took_s: float, size: int, write_s: float, sync_s: float) -> None:
        """Learn from one commit of ``size`` bytes that took ``took_s``: ``write_s`` for its write and ``sync_s`` for
        its sync."""
        less_s = self.took_s * _SLOW_DECAY
        self.took_s = took_s if took_s > less_s else less_s
        if size < _RATE_BYTES_MIN or write_s <= 0:
            return
        rate = size / write_s
        self._rate = self._rate + (rate - self._rate) * _RATE_WEIGHT if self._rate else rate
        self._sync_s = min(sync_s, self._sync_s * _SYNC_GROWTH)
        pays = int(self._rate * max(WRITE_S, SYNCS * self._sync_s))
        self.group_bytes = min(max(pays, GROUP_BYTES_MIN), self._bytes_max)
