# SPDX-License-Identifier: Apache-2.0
"""One clock and one heap. Everything that happens in a simulated world is an item of this heap.

The three random engines differ only in how long an item takes. *uniform* and *swarm* draw exponential delays. *pct*
gives every lane (a direction of a link, a disk, a client's way to the store) a latency class of its own. The classes
are orders of magnitude apart, and a few change points draw one again. This gives priorities in the sense of
probabilistic concurrency testing.
"""

from __future__ import annotations

import heapq
import zlib
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

TRACE_LINES = 60

CLASSES_MS = (0.02, 0.3, 4.0, 60.0, 900.0)
"""The latency classes of *pct*, in milliseconds."""


class Item:
    """An event that will happen, unless it is cancelled."""

    __slots__ = ("args", "call", "label", "lane", "live", "seq", "time")

    def __init__(
        self, time: float, seq: int, lane: str, label: str, call: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        self.time, self.seq, self.lane, self.label, self.call, self.args = time, seq, lane, label, call, args
        self.live = True

    def cancel(self) -> None:
        self.live = False


class Scheduler:
    """``now`` is the time in milliseconds. ``trace`` keeps the last lines, and ``digest`` hashes all of them."""

    def __init__(self, random: Random, *, change_points: int = 0, horizon_steps: int = 300) -> None:
        self.random = random
        self.now = 0.0
        self.steps = 0
        self.digest = 0
        self._trace: deque[tuple[float, str]] = deque(maxlen=TRACE_LINES)
        self.sometimes: dict[str, int] = {}
        self._heap: list[tuple[float, int, Item]] = []  # tuples are compared without a Python call
        self._seq = 0
        self._last: dict[str, float] = {}  # the time of the last item of a FIFO lane
        self._held: dict[str, list[Item]] = {}
        self._is_pct = change_points > 0
        self._classes: dict[str, float] = {}
        self._changes = {random.randrange(horizon_steps) for _ in range(change_points)}

    # --- putting in ---

    def add(
        self,
        lane: str,
        label: str,
        call: Callable[..., None],
        *args: Any,
        mean_ms: float,
        fifo: bool = False,
        not_before: float = 0.0,
    ) -> Item:
        """Call ``call(*args)`` after a random delay. Lanes with ``fifo`` keep their order."""
        if self._is_pct:
            mean_ms *= self._class_of(lane)
        time = max(self.now + self.random.expovariate(1.0) * mean_ms, not_before)
        if fifo:
            time = max(time, self._last.get(lane, 0.0))
            self._last[lane] = time
        return self._push(time, lane, label, call, args)

    def at(self, delay_ms: float, lane: str, label: str, call: Callable[..., None], *args: Any) -> Item:
        """Call ``call(*args)`` after exactly this delay, as timers do."""
        return self._push(self.now + delay_ms, lane, label, call, args)

    def _push(self, time: float, lane: str, label: str, call: Callable[..., None], args: tuple[Any, ...]) -> Item:
        self._seq += 1
        item = Item(time, self._seq, lane, label, call, args)
        if lane in self._held:
            self._held[lane].append(item)
        else:
            heapq.heappush(self._heap, (time, item.seq, item))
        return item

    def _class_of(self, lane: str) -> float:
        found = self._classes.get(lane)
        if found is None:
            found = self._classes[lane] = self.random.choice(CLASSES_MS)
        return found

    # --- holding lanes back, for scripts and partitions ---

    def hold(self, lane: str) -> None:
        """Hold all items of this lane, also those under way, until it is released."""
        if lane in self._held:
            return
        waiting = sorted(entry for entry in self._heap if entry[2].lane == lane)
        if waiting:
            self._heap = [entry for entry in self._heap if entry[2].lane != lane]
            heapq.heapify(self._heap)
        self._held[lane] = [item for _, _, item in waiting]

    def release(self, lane: str) -> None:
        """Release a held lane. Its items keep their order."""
        for item in self._held.pop(lane, ()):
            item.time = max(item.time, self.now)
            heapq.heappush(self._heap, (item.time, item.seq, item))

    def drop_held(self, lane: str) -> None:
        """Lose the items that wait on a held lane. The lane stays held."""
        for item in self._held.get(lane, ()):
            item.live = False

    @property
    def held(self) -> tuple[str, ...]:
        return tuple(self._held)

    # --- taking out ---

    def step(self) -> bool:
        """Run the next item. Return False if there is none."""
        heap = self._heap
        while heap:
            item = heapq.heappop(heap)[2]
            if not item.live:
                continue
            if item.time > self.now:
                self.now = item.time
            self.steps += 1
            if self.steps in self._changes and self._classes:
                self._classes[self.random.choice(tuple(self._classes))] = self.random.choice(CLASSES_MS)
            self.note(item.label)
            item.live = False
            item.call(*item.args)
            return True
        return False

    def next_time(self) -> float | None:
        """Return when the next item is due."""
        while self._heap and not self._heap[0][2].live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def calm(self) -> None:
        """End the latency classes, and let distant items arrive soon, in their order. Timers stay as they are set."""
        self._is_pct = False
        self._last.clear()
        near: list[tuple[float, int, Item]] = []
        for rank, (time, seq, item) in enumerate(sorted(self._heap)):
            if not item.lane.endswith("clock"):
                item.time = min(time, self.now + 5 + rank * 0.01)
            near.append((item.time, seq, item))
        self._heap = near
        heapq.heapify(self._heap)

    # --- telling ---

    @property
    def trace(self) -> list[str]:
        """The last lines of the trace."""
        return [f"{now:10.2f}  {line}" for now, line in self._trace]

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self.digest = zlib.crc32(line.encode(), self.digest)
        self._trace.append((self.now, line))

    def reached(self, what: str) -> None:
        """Count a rare state, so that a set of runs can prove that it reaches the state."""
        self.sometimes[what] = self.sometimes.get(what, 0) + 1
