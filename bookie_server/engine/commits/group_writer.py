# SPDX-License-Identifier: Apache-2.0
"""Writes groups, copies and the log's position to the segment log, for the committer."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bk_core.errors import BookKeeperError, DataDirectoryError
from bookie_server.engine.commits.disk_speed import DiskSpeed
from bookie_server.engine.commits.observer import CommitObserver
from bookie_server.engine.commits.queue import Copies, Group
from bookie_server.machine.disk_places import Place
from bookie_server.storage.log.segment_log import SegmentLog

logger = logging.getLogger(__name__)


class GroupWriter:
    """The writer to one log, which measures each group. Only the thread that holds the log may call (``CommitQueue``).

    ``ended_s`` is the clock's time when the last group ended. ``speed`` learns from each group, and ``observer``
    reports it.
    """

    def __init__(self, log: SegmentLog, speed: DiskSpeed, observer: CommitObserver, clock: Callable[[], float]) -> None:
        self._log, self._clock, self.speed, self.observer = log, clock, speed, observer
        self.ended_s = 0.0

    def write(self, group: Group) -> list[Place]:
        """Write a group and return the places of its frames, which are durable. It uses the reserve only if the group
        may use it and has no other room. Raises as :meth:`SegmentLog.append_group`."""
        began, stats = self._clock(), self._log.stats
        bytes_before, write_before_s, sync_before_s = stats.written_bytes, stats.write_s, stats.sync_s
        try:
            return self._log.append_group(group.frames, headers=group.headers)
        except DataDirectoryError:
            if not group.reserve:
                raise
            return self._log.append_group(group.frames, headers=group.headers, reserve=True)
        finally:
            observer, self.ended_s = self.observer, self._clock()
            took_s = self.ended_s - began
            observer.times.observe(took_s)
            self.speed.note(
                took_s, stats.written_bytes - bytes_before, stats.write_s - write_before_s, stats.sync_s - sync_before_s
            )
            if observer.traced or self.ended_s - group.since >= observer.slow_s:
                observer.report(group, began - group.since, took_s)

    def write_copies(self, copies: Copies) -> None:
        """Write copies, and set their future to their new places, or to the error that ended the write."""
        if not copies.done.set_running_or_notify_cancel():
            return
        try:
            places = self._log.append_group(copies.frames, reserve=True)
        except BaseException as error:  # the caller of ``copy`` gets it; after a failed sync the next group fails too
            copies.done.set_exception(error)
            return
        copies.done.set_result(places)

    def record_last_position(self) -> None:
        """Record the log's position before the thread ends, unless the log has failed."""
        try:
            if not self._log.failed:
                self._log.record_position()
        except BookKeeperError as error:
            logger.error("the log's last position could not be recorded: %s", error)
