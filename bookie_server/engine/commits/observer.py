# SPDX-License-Identifier: Apache-2.0
"""Reports the commits of one data directory to operators: in a histogram, in spans, and in log lines about slow
ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from bk_core.entries.frame import FrameHeader, parse_header
from bk_core.observe.metrics import Histogram
from bk_core.observe.slow_log import SlowLog
from bk_core.observe.traces import spans
from bookie_server.engine.commits.queue import Group
from bookie_server.engine.slow import slow_commit

logger = logging.getLogger(__name__)

TIMES_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""The upper bounds of the buckets in the histogram of commit times, in seconds."""


class CommitObserver:
    """The reports about commits.

    - ``times``: the histogram of the times that commits took. Only the thread that holds the log adds to it.
    - ``spans``: the maker of OpenTelemetry spans, or None in a process without OpenTelemetry.
    - ``traced``: for each traced message whose commit is not done, the header of its last frame and the context of its
      span. The loop adds to it, and the thread that holds the log removes.
    - ``slow_s``: the duration, with the wait, from which on a commit is logged to ``_slow``. ``_path`` is the
      directory's path.
    """

    def __init__(self, slow: SlowLog | None = None, path: str = "") -> None:
        self.times = Histogram(TIMES_S)
        self.spans = spans()
        self.traced: dict[FrameHeader, Any] = {}
        self._slow, self._path = slow or SlowLog(logger, 0), path
        self.slow_s = self._slow.threshold_s

    def trace(self, frames: Sequence[bytes | memoryview], headers: Sequence[FrameHeader], context: Any) -> None:
        """Note that these frames, which the caller is about to queue, came with a traced message."""
        self.traced[headers[-1] if headers else parse_header(frames[-1])] = context

    def report(self, group: Group, waited_s: float, took_s: float) -> None:
        """Report the commit of a group if it is traced or was slow. Its first frame waited for ``waited_s`` seconds."""
        if self.traced and self.spans is not None:
            about_group = {"frames": len(group.frames), "bytes": sum(map(len, group.frames)), "waited_s": waited_s}
            for header in group.headers:
                parent = self.traced.pop(header, None)
                if parent is not None:
                    about = {
                        "ledger": header.ledger_id,
                        "session": header.tag,  # the name that clients give it in their own lines
                        "first_entry": header.first_entry_id,
                        "entries": header.count,
                    }
                    self.spans.begin("bookie.commit", parent, since_s=took_s, **about, **about_group).end()
        if waited_s + took_s >= self.slow_s:
            self._slow.say(lambda: slow_commit(self._path, group.frames, waited_s, took_s))
