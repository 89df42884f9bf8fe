# SPDX-License-Identifier: Apache-2.0
"""Gives segments without live frames back to the pool (RULES S4, I11).

A drained segment goes back in these steps. The index drops it, so that no later plan of a read names it. A later
checkpoint becomes durable, and IDENTITY names that checkpoint. ``give_up`` has the readers close the segment and never
open it again. Only then does the pool get the file.

A read that was planned before these steps finds no segment and is planned again: other copies serve it, or the ledger
is deleted. Should a read still hit the file after it was recycled, no stamp there fits its place (S3). After a crash
between two steps, the next start puts the segment aside, or the segment has only dead frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.index.index import LedgerIndex
from bookie_server.storage.log.segment_pool import SegmentPool
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.maintenance.index_port import IndexPort
from bookie_server.storage.maintenance.schedule import STEP_BYTES, MaintenanceLimits, checkpoint_wait_s
from bookie_server.storage.maintenance.tasks import LOOK_S, RETRY_S


class SpaceReturn:
    """The drained segments of one directory, and the steps by which they go back to the pool. The index has dropped a
    drained segment because it has no live frames.

    - ``_drained``: generations that the index has dropped and that are not recycled yet.
    - ``_in_index``: generations in the index at the last look. ``_sealed``: those of them that have an ``.idx``.
    - ``_checkpoint_begun_s``: when the last checkpoint was begun, even if it failed; None without one.
    - ``checkpoints``, ``recycled``: the number of checkpoints made, and of segments recycled.

    Its three tasks are "space", "checkpoint" and "recycling". ``soon`` makes one of them, or "log", due now.
    ``give_up(generation)`` returns once nothing has the segment open or will open it. ``lacks_room`` says whether the
    log had no room at its last try, and ``is_wanted`` whether other work waits for a checkpoint.
    """

    def __init__(
        self,
        directory: DataDirectory,
        pool: SegmentPool,
        port: IndexPort,
        checkpointer: Checkpointer,
        limits: MaintenanceLimits,
        now_s: Callable[[], float],
        *,
        give_up: Callable[[int], None],
        soon: Callable[[str], None],
        lacks_room: Callable[[], bool],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._directory, self._pool, self._port, self.checkpointer = directory, pool, port, checkpointer
        self._limits, self._now_s = limits, now_s
        self._give_up, self._soon, self._lacks_room, self._is_wanted = give_up, soon, lacks_room, is_wanted
        self._drained: set[int] = set()
        self._in_index: set[int] = set()
        self._sealed: Sequence[int] = ()
        self._checkpoint_begun_s: float | None = None
        self.checkpoints = self.recycled = 0

    # --- what is asked about it -------------------------------------------------------------------------------------

    @property
    def drained(self) -> int:
        """The number of drained segments that are not recycled yet."""
        return len(self._drained)

    def checkpoint_age_s(self) -> float | None:
        """Return the seconds since the last checkpoint was begun, or None if this process has begun none."""
        return None if self._checkpoint_begun_s is None else self._now_s() - self._checkpoint_begun_s

    def is_low(self) -> bool:
        """Return whether the disk is so full that the space of drained segments is needed soon."""
        if self._lacks_room():
            return True
        try:
            usage = self._directory.usage(self._pool.kept_bytes)
        except OSError:
            return False
        return usage.used_share >= self._limits.space_low_share

    def note_drained(self, generations: Iterable[int]) -> None:
        """Note that the index has dropped these segments."""
        self._drained.update(generations)
        self._soon("checkpoint")

    # --- tasks ------------------------------------------------------------------------------------------------------

    def look(self) -> float:
        """Make the index drop its dead segments. Note all segments that it dropped since the last look, for any
        reason."""
        self._drained.update(self._port.ask(LedgerIndex.drop_dead))
        sealed, unsealed, _ = self._port.ask(LedgerIndex.generations)
        in_index = {*sealed, *unsealed}
        self._drained |= self._in_index - in_index
        self._in_index, self._sealed = in_index, sealed
        self.checkpointer.keep_room()
        self._soon("checkpoint")
        return LOOK_S

    def go_on_with_checkpoint(self) -> float:
        """Do a piece of the checkpoint under way, or begin one if it is due."""
        checkpointer, now = self.checkpointer, self._now_s()
        if checkpointer.busy:
            number = checkpointer.newest.number
            checkpointer.step(STEP_BYTES)
            if checkpointer.newest.number != number:
                self.checkpoints += 1
                self._soon("recycling")
            elif not checkpointer.busy:
                self._pool.trim(0)  # the checkpoint was given up for lack of room: see below
            return 0.0
        wait_s = checkpoint_wait_s(
            since_last_s=None if self._checkpoint_begun_s is None else now - self._checkpoint_begun_s,
            interval_s=self._limits.checkpoint_interval_s,
            waiting=sum(not checkpointer.may_recycle(generation) for generation in self._drained) + self._is_wanted(),
            sealed_since=sum(generation > checkpointer.newest.through for generation in self._sealed),
            space_is_low=bool(self._drained) and self.is_low(),
        )
        if wait_s is None:
            return math.inf
        if wait_s:
            return min(wait_s, LOOK_S)  # look again by then, because space may get short
        self._checkpoint_begun_s = now
        if checkpointer.start():
            return 0.0
        self._pool.trim(0)  # without a checkpoint no segment is ever given back
        return RETRY_S

    def recycle_one(self) -> float:
        """Give one drained segment back whose checkpoint is durable. The file's docstring gives the order of the
        steps."""
        for generation in sorted(self._drained):
            if self.checkpointer.may_recycle(generation):
                self._give_up(generation)
                self._pool.recycle(generation)
                self._drained.discard(generation)
                self._in_index.discard(generation)
                self.recycled += 1
                self._soon("log")
                return 0.0
        return math.inf
