# SPDX-License-Identifier: Apache-2.0
"""The places of an HTTP port, which bound its connections. If all places are taken, a new client gets the place of a
waiting client.

A client counts as waiting until its whole request has come, and again after its answer has left. A client whose request
is being answered is never cut off. Among the waiting clients, the oldest one of the host with the most places loses its
place. So neither a few silent clients nor a flood of them can keep other clients out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from bk_core.observe.log_throttle import LogThrottle

logger = logging.getLogger(__name__)


class ConnectionPlace:
    """The place of one connection. ``end`` ends the connection at once."""

    def __init__(self, places: ConnectionPlaces, host: str, end: Callable[[], object]) -> None:
        self._places, self.host, self.end = places, host, end
        self.asks = False
        """Whether the client's request is being answered."""

    @property
    def is_lost(self) -> bool:
        """Whether another connection has taken this place."""
        return self not in self._places.taken

    def leave(self) -> None:
        self._places.taken.pop(self, None)


class ConnectionPlaces:
    """At most ``count`` places. All calls come from one thread."""

    def __init__(self, count: int) -> None:
        self._count, self._throttle = count, LogThrottle()
        self.taken: dict[ConnectionPlace, None] = {}
        """The places that have a connection, the oldest first."""

    def enter(self, host: str, end: Callable[[], object]) -> ConnectionPlace | None:
        """Return a place for a connection from this host, or None if all places have clients that are being
        answered."""
        if len(self.taken) >= self._count and not self._make_room():
            return None
        place = ConnectionPlace(self, host, end)
        self.taken[place] = None
        return place

    def _make_room(self) -> bool:
        waiting = [each for each in self.taken if not each.asks]
        if not waiting:
            return False
        of_host = Counter(each.host for each in self.taken)
        lost = max(waiting, key=lambda each: of_host[each.host])  # the oldest among those of the largest host
        if self._throttle.allows(lost.host):
            logger.warning(
                "admin port: all %d places are taken, %d by %s: the oldest of these that asks for nothing is closed",
                self._count, of_host[lost.host], lost.host,
            )  # fmt: skip
        lost.leave()
        lost.end()
        return True
