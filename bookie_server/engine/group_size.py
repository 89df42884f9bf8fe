# SPDX-License-Identifier: Apache-2.0
"""How large a group commit may be: as large as pays, because whatever comes behind it waits for all of it.

A sync is shared by the frames of its group. Beyond the size whose write takes a few times as long as the sync, a larger
group saves next to nothing, and only makes a single add, or a fence, wait longer.
"""

from __future__ import annotations

GROUP_BYTES_MIN = 1 << 20
"""A group may always take so much: a frame of the usual size, where nothing is known of the disk yet."""
WRITE_S = 0.0005
"""Limits the time that writing a group takes, however fast the sync is: a group also costs a change of threads."""
SYNCS = 2
"""And as long as so many syncs: then they take at most a third of the disk's time."""
_TELLING = 256 << 10
"""Writes of fewer bytes say little of the rate."""
_WEIGHT = 0.1
_FORGET = 1.02
"""The sync is the fastest one lately: others waited for a processor, or for another program's write. With each group
it counts as so much slower, until one is."""


class GroupSize:
    """``bytes`` is what the next group may take, at most ``bytes_max``. Only the holder of the log uses it."""

    __slots__ = ("_bytes_max", "_rate", "_sync_s", "bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._rate, self._sync_s = bytes_max, 0.0, 0.0
        self.bytes = min(GROUP_BYTES_MIN, bytes_max)

    def heard(self, size: int, write_s: float, sync_s: float) -> None:
        """A write of ``size`` bytes and its sync took so long."""
        if size < _TELLING or write_s <= 0:
            return
        rate = size / write_s
        if self._rate:
            self._rate += (rate - self._rate) * _WEIGHT
            self._sync_s = min(sync_s, self._sync_s * _FORGET)
        else:
            self._rate, self._sync_s = rate, sync_s
        pays = int(self._rate * max(WRITE_S, SYNCS * self._sync_s))
        self.bytes = min(max(pays, GROUP_BYTES_MIN), self._bytes_max)
