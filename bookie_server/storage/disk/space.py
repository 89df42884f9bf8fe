# SPDX-License-Identifier: Apache-2.0
"""Decides whether a data directory has room for new entries, by thresholds with hysteresis and a reserve. Pure.

A bookie whose disk fills up turns read-only while there is still room, and continues to serve reads. The remaining room
(the reserve) is for fences and recovery adds, which let ledgers be closed, and for compaction, which frees space. The
bookie is writable again only once the disk is clearly emptier, so that it does not go back and forth. None of this is
stored; each start decides afresh.

Segments kept free for recycling, and those made ahead, count as room, because the bookie can always fill them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RESERVE_SEGMENTS = 2
"""The number of segments that are reserved for fences, recovery adds and compaction."""

RETRY_LOOKS = 6
"""The number of checks after which new entries are tried again, if a commit found no space although the file system
reports some (a quota). They are tried earlier if there is room for another segment."""

EVEN_SHARE = 0.05
"""The largest difference between the used shares of data directories that get new ledgers equally."""

_MIX = 0x9E3779B97F4A7C15  # odd and without a pattern, because ledger ids are often evenly spaced


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceLimits:
    """The limits of a data directory. ``threshold`` and ``low_water`` are used shares of the file system. The directory
    turns read-only above the first, and is writable again at or below the second."""

    threshold: float
    low_water: float
    segment_bytes: int

    @property
    def reserve_bytes(self) -> int:
        """The number of usable bytes below which no new entries are taken, whatever the shares are, because the next
        segment would leave less than the reserve."""
        return (RESERVE_SEGMENTS + 1) * self.segment_bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """The state of a file system, in bytes. ``kept_bytes`` are allocated to empty segments of ours."""

    total_bytes: int
    free_bytes: int
    kept_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        """The number of bytes that may still be written."""
        return self.free_bytes + self.kept_bytes

    @property
    def used_share(self) -> float:
        """The used share, from 0 to 1. It is 1 if the file system does not report its size."""
        return 1 - min(1.0, self.usable_bytes / self.total_bytes) if self.total_bytes > 0 else 1.0


def choose_directory(ledger_id: int, watches: Sequence[SpaceWatch]) -> int:
    """Return the number of the data directory for a new ledger. ``watches`` has one item for each directory.

    It is one of the emptiest writable directories. All directories within EVEN_SHARE of the emptiest one get the same
    number of ledgers. If it were always the emptiest one, the other disks would be idle until the next check. If none
    is writable, it is the one with the most room, whose reserve takes the fence.
    """
    writable = [number for number, watch in enumerate(watches) if not watch.read_only]
    if not writable:
        return max(range(len(watches)), key=lambda number: watches[number].usage.usable_bytes)
    least = min(watches[number].usage.used_share for number in writable)
    alike = [number for number in writable if watches[number].usage.used_share <= least + EVEN_SHARE]
    return alike[(ledger_id * _MIX >> 32) % len(alike)]


class SpaceWatch:
    """Watches the space of one data directory. While ``read_only`` is True, ``why`` is the reason in words; otherwise
    it is empty."""

    def __init__(self, limits: SpaceLimits, usage: Usage) -> None:
        """Make the first check, at a start. A used share between ``low_water`` and ``threshold`` leaves the directory
        writable."""
        self._limits = limits
        self._refused_at: int | None = None  # fewest usable bytes seen since a commit found no space; None: none has
        self._looks_since_refusal = 0
        self.usage = usage
        """The usage at the last check."""
        self.why = self._too_full(usage)

    @property
    def read_only(self) -> bool:
        return bool(self.why)

    def look(self, usage: Usage) -> bool:
        """Check the usage; return whether ``read_only`` changed."""
        self.usage = usage
        self._looks_since_refusal += 1
        if self._refused_at is not None:  # the first check after a refusal sets the base
            is_first = self._looks_since_refusal == 1
            self._refused_at = usage.usable_bytes if is_first else min(self._refused_at, usage.usable_bytes)
        was, too_full = self.read_only, self._too_full(usage)
        if too_full:
            self.why = self.why if self._refused_at is not None else too_full
        elif was and self._is_empty_enough(usage):
            self.why, self._refused_at = "", None
        return self.read_only is not was

    def no_space(self) -> bool:
        """Turn read-only immediately, because a commit found no space, whatever the file system reports. Return whether
        the directory was writable."""
        was = self.read_only
        self._refused_at, self._looks_since_refusal = self.usage.usable_bytes, 0
        self.why = "the disk refused space for a segment"
        return not was

    def _too_full(self, usage: Usage) -> str:
        limits = self._limits
        if usage.used_share > limits.threshold:
            return f"{usage.used_share:.1%} of the disk is used, more than {limits.threshold:.1%}"
        if usage.usable_bytes < limits.reserve_bytes:
            return f"{usage.usable_bytes >> 20} MiB are free, less than the reserve of {limits.reserve_bytes >> 20} MiB"
        return ""

    def _is_empty_enough(self, usage: Usage) -> bool:
        limits = self._limits
        if usage.used_share > limits.low_water or usage.usable_bytes < limits.reserve_bytes + limits.segment_bytes:
            return False
        if self._refused_at is None:
            return True
        has_grown = usage.usable_bytes >= self._refused_at + limits.segment_bytes
        return has_grown or self._looks_since_refusal >= RETRY_LOOKS
