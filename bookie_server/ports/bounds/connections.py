# SPDX-License-Identifier: Apache-2.0
"""Keeps the connections within ``connections_max``, and those of each client address within its share. Pure: the caller
passes the connected clients, and gets back the connections to end.

gRPC refuses clients beyond ``connections_max`` without any report, so the first client could take all connections. So
each address has a share. The newest connections beyond the share are ended, and older connections remain.
``connections_max`` also holds for all services of a bookie together, while each service sees only its own connections.
The newest connections beyond it are ended, too.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection

from bk_core.observe.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

Address = tuple[str, int, int]
"""The host and port of a client, and the bookie's port that it is connected to."""

LOG_EVERY_S = 60.0
"""The minimum number of seconds between two log lines with the same kind of warning."""
_REPORT_S = 600.0
"""The minimum number of seconds between two log lines about connections."""


class Connections:
    """The bounds on connections. ``clock_s`` returns seconds that never go back.

    ``looks_full`` counts the checks that found ``connections_max`` reached. ``ended`` counts the connections that were
    ended because they were beyond it, or beyond their address's share. ``most`` is the largest number of
    connections seen."""

    def __init__(self, connections_max: int, share_max: int, clock_s: Callable[[], float]) -> None:
        self.connections_max, self.share_max = connections_max, share_max
        self.most = self.looks_full = self.ended = 0
        self._order: dict[Address, int] = {}  # the order in which connections were first seen
        self._seen = 0
        self._clock_s, self._throttle = clock_s, LogThrottle(LOG_EVERY_S, clock_s)
        self._reported = (-math.inf, self._line())

    def look(self, connected: Collection[Address]) -> list[Address]:
        """Return the connections to end. Logs, at most once a minute each, that all connections are taken, or that an
        address has more than its share."""
        self._order = {each: self._order.get(each, self._seen + n) for n, each in enumerate(connected)}
        self._seen += len(connected)
        hosts = Counter(host for host, *_ in connected)
        self.most = max(self.most, len(connected))
        if len(connected) >= self.connections_max:
            self.looks_full += 1
            if self._throttle.allows("full"):
                logger.warning(
                    "all %d connections are taken, and further clients are refused; most are from %s: raise "
                    "connections_max, or look at those clients",
                    self.connections_max, ", ".join(f"{host} ({count})" for host, count in hosts.most_common(3)),
                )  # fmt: skip
        over = [host for host, count in hosts.items() if count > self.share_max]
        excess = [each for host in over for each in self._newest(hosts[host] - self.share_max, [host])]
        beyond = self._newest(len(connected) - len(excess) - self.connections_max, hosts, without=set(excess))
        self.ended += len(excess) + len(beyond)
        if excess and self._throttle.allows("share"):
            logger.warning(
                "%s has more than its share of %d connections: the newest %d are ended "
                "(connections_per_address_max)",
                ", ".join(over), self.share_max, len(excess),
            )  # fmt: skip
        return excess + beyond

    def report(self) -> None:
        """Log the numbers every ten minutes if they changed."""
        line, now_s = self._line(), self._clock_s()
        if now_s - self._reported[0] >= _REPORT_S and line != self._reported[1]:
            self._reported = (now_s, line)
            logger.info("connections: %s", line)

    def _line(self) -> str:
        return f"most={self.most} looks_full={self.looks_full} ended={self.ended}"

    def _newest(self, count: int, hosts: Collection[str], without: Collection[Address] = ()) -> list[Address]:
        """Return the newest ``count`` connections of these hosts, or fewer if there are fewer, oldest first."""
        own = [each for each in self._order if each[0] in hosts and each not in without] if count > 0 else []
        return sorted(own, key=self._order.__getitem__)[-count:] if own else []
