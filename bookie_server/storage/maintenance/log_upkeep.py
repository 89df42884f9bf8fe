# SPDX-License-Identifier: Apache-2.0
"""Does the most urgent maintenance: it seals full segments, adds them to the index, and makes spare segments."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from bookie_server.storage.log.sealing import SealedSegment
from bookie_server.storage.log.segment_log import LogMaintenance, SegmentLog
from bookie_server.storage.maintenance.index_port import IndexPort
from bookie_server.storage.maintenance.tasks import RETRY_S


class LogUpkeep:
    """The upkeep of one log.

    - ``work``: seals segments and makes spares.
    - ``untold``: sealed segments that the index does not have as sealed yet, in the order of their seals.
    - ``lacks_room``: the disk had no room for a spare, or for the ``.idx`` of a segment, at the last try.
    - ``seals``: the number of sealed segments.

    ``on_told`` is called after the index has taken a segment.
    """

    def __init__(self, log: SegmentLog, port: IndexPort, on_told: Callable[[], None]) -> None:
        self._port, self._on_told = port, on_told
        self.work = LogMaintenance(log, self._note_sealed)
        self.untold: deque[SealedSegment] = deque()
        self.lacks_room = False
        self.seals = 0

    def _note_sealed(self, sealed: SealedSegment) -> None:
        self.untold.append(sealed)
        self.seals += 1

    def step(self) -> float:
        """Do one piece of work. Return 0, or the seconds until the next try
        (:mod:`bookie_server.storage.maintenance.tasks`)."""
        if self.untold:
            sealed = self.untold[0]
            self._port.ask(lambda index: index.seal(sealed.generation, sealed.summary))
            self.untold.popleft()
            self._on_told()
            return 0.0
        if self.work.step():
            return 0.0
        self.lacks_room = self.work.due
        return RETRY_S if self.lacks_room else math.inf
