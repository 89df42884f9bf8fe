# SPDX-License-Identifier: Apache-2.0
"""Decides when maintenance does its work: budgets of bytes, and the times of checkpoints and major compactions. Pure;
the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

STEP_BYTES = 1 << 20
"""The approximate size of one step of paced work, in bytes. Urgent work waits no longer than such a step takes."""
SEGMENTS_PER_CHECKPOINT = 8
"""The number of sealed segments after which a checkpoint is due. A start reads the state records of every segment that
was sealed since the last checkpoint."""
UNDER_LOAD = 8
"""The number of bytes of its budget that each byte costs the scrubber while commits are busy. So the scrubber gives way
and still makes progress."""
URGENT_CHECKPOINT_S = 1.0
"""The seconds between checkpoints while the disk is short of space and drained segments wait for a checkpoint."""

_SOON_S = 0.001  # a shorter wait is not worth it


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceLimits:
    """The settings for the maintenance of one data directory, from ``BookieConfig``.

    ``compaction_threshold`` and ``major_compaction_threshold`` are live shares of a segment. A segment below the first
    is rewritten at any time, and one below the second by the major compaction, which begins every
    ``major_compaction_interval_s``. The rates count bytes read and written. ``scrub_interval_s`` is the pause between
    two passes of the scrubber. If the used share of the file system is ``space_low_share`` or more, space must be given
    back soon.
    """

    checkpoint_interval_s: float = 60.0
    compaction_threshold: float = 0.5
    major_compaction_threshold: float = 0.8
    major_compaction_interval_s: float = 86_400.0
    compaction_bytes_per_s: int = 32 << 20
    scrub_bytes_per_s: int = 8 << 20
    scrub_interval_s: float = 600.0
    space_low_share: float = 0.9


class ByteBudget:
    """A token bucket of bytes: ``bytes_per_s`` on average, and a burst of one second's worth, at least STEP_BYTES. If a
    step uses more than the budget, the next step must wait until the debt is paid. An idle bucket saves up one burst at
    most."""

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        self._rate, self._burst = bytes_per_s, max(bytes_per_s, STEP_BYTES)
        self._level, self._at = float(self._burst), now_s

    def wait_s(self, now_s: float) -> float:
        """Return the number of seconds until a step may begin, or 0 if it may begin now."""
        self._fill(now_s)
        wait_s = (STEP_BYTES - self._level) / self._rate
        return wait_s if wait_s > _SOON_S else 0.0

    def use(self, size: int, now_s: float) -> None:
        """Charge the budget for bytes that were read or written."""
        self._fill(now_s)
        self._level -= size

    def _fill(self, now_s: float) -> None:
        self._level = min(self._burst, self._level + max(0.0, now_s - self._at) * self._rate)
        self._at = max(self._at, now_s)


class Load:
    """Decides whether commits take more than half of the time, from their total time so far. It decides once a
    second."""

    def __init__(self, now_s: float) -> None:
        self._at, self._busy_s, self.is_high = now_s, 0.0, False

    def look(self, busy_s: float, now_s: float) -> bool:
        elapsed = now_s - self._at
        if elapsed >= 1.0:
            self.is_high = busy_s - self._busy_s > 0.5 * elapsed
            self._at, self._busy_s = now_s, busy_s
        return self.is_high


def checkpoint_wait_s(
    *, since_last_s: float | None, interval_s: float, waiting: int, sealed_since: int, space_is_low: bool
) -> float | None:
    """Return the number of seconds until a checkpoint is due. It is 0 if a checkpoint is due now, and None if none is
    needed.

    ``since_last_s`` is the time since the last checkpoint began, even if it failed, or None if none has begun since the
    start. ``waiting`` is the number of drained segments that wait for a checkpoint, plus one if an index waits.
    ``sealed_since`` is the number of segments sealed since the last checkpoint.
    """
    if not waiting and sealed_since < SEGMENTS_PER_CHECKPOINT:
        return None
    if since_last_s is None:
        return 0.0
    interval_s = min(interval_s, URGENT_CHECKPOINT_S) if space_is_low and waiting else interval_s
    return max(0.0, interval_s - since_last_s)


class MajorRuns:
    """Decides when the major compaction is on: from the end of each interval until it finds nothing more to do."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s, self._ended_s = interval_s, now_s

    def is_on(self, now_s: float) -> bool:
        return now_s - self._ended_s >= self._interval_s

    def end(self, now_s: float) -> None:
        """End a major compaction, which found nothing more to do."""
        self._ended_s = now_s
