# SPDX-License-Identifier: Apache-2.0
"""Decides whether a bookie is alive, and whether it is ready, from the pulse of its loop and its state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

BEAT_S = 0.5
"""The seconds between two beats, by which the loop shows that it runs."""
STALLED_S = 2.0
"""The number of seconds after which a bookie is not ready if its loop has not run."""
DEAD_S = 30.0
"""The number of seconds after which a bookie is not live if its loop has not run. Its process should then be ended."""
READ_ONLY_S = 600.0
"""The number of seconds after which a full bookie is not ready, because it will not free space by itself."""


@dataclass(slots=True)
class BookieHealth:
    """The state of a bookie now. ``read_only`` is the reason why it is full, or empty if it is not, and ``read_only_s``
    the number of seconds for which it has been full. ``silent_s`` is the number of seconds for which its loop has not
    run."""

    serves: bool
    stops: bool
    failed: str = ""
    read_only: str = ""
    read_only_s: float = 0.0
    silent_s: float = 0.0

    def not_live(self) -> str:
        """Return why the process should be ended, or an empty text if the bookie is alive."""
        return f"the loop has not run for {self.silent_s:.0f} s" if self.silent_s >= DEAD_S else ""

    def not_ready(self) -> str:
        """Return why the bookie is not ready for clients, or an empty text if it is ready."""
        if self.failed:
            return f"it answers nothing more: {self.failed}"
        if self.stops:
            return "it is stopping"
        if self.silent_s >= STALLED_S:
            return f"the loop has not run for {self.silent_s:.0f} s"
        if not self.serves:
            return "it is starting: it replays its log, or is not registered yet"
        if self.read_only and self.read_only_s >= READ_ONLY_S:
            return f"it has been read-only for {self.read_only_s:.0f} s: {self.read_only}"
        return ""


class Pulse:
    """Beats on the bookie's loop, and notes the time of the last beat. ``read_only`` returns why the bookie is full
    now, or an empty text if it is not."""

    def __init__(self, read_only: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._read_only, self._clock = read_only, clock
        self._beat_at = clock()
        self._since = 0.0
        self.why = ""  # the answer of ``read_only`` at the last beat
        self.stalls = 0
        self.late_max_s = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def silent_s(self) -> float:
        """The number of seconds by which the loop is late for its beat. Any thread may read it."""
        return max(0.0, self._clock() - self._beat_at - BEAT_S)

    @property
    def stands(self) -> bool:
        """Whether the loop counts as standing still. Any thread may read it."""
        return self.silent_s >= STALLED_S

    @property
    def read_only_s(self) -> float:
        return self._clock() - self._since if self.why else 0.0

    def beat(self) -> None:
        late_s = self.silent_s
        self.stalls += late_s >= STALLED_S
        self.late_max_s = max(self.late_max_s, late_s)
        self._beat_at = self._clock()
        why = self._read_only()
        if why and not self.why:
            self._since = self._beat_at
        self.why = why

    def start(self) -> None:
        """Start to beat. Call this on the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pulse")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(BEAT_S)
