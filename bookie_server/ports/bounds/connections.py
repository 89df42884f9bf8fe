# SPDX-License-Identifier: Apache-2.0
"""Keeps clients to ``connections_max``, and each client address to its share of them. Pure: the caller passes
the connected clients, and it returns the connections to end.

gRPC refuses clients beyond ``connections_max`` without telling anybody, so the first client might take them all. So
each address has a share. The newest connections beyond it are ended; the older ones go on. The bound holds for all
services of a bookie together, of which each knows only its own connections: here, too, the newest ones are ended.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection

from bk_core.observe.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

Address = tuple[str, int, int]
"""Host and port of a client, and the port of ours that it is connected to."""

LOG_EVERY_S = 60.0
"""Each kind of warning is logged once in this time."""
_REPORT_S = 600.0


class Connections:
    """``looks_full`` counts the looks that found ``connections_max`` reached, ``ended`` the connections that were ended
    because they were beyond it, or beyond their address's share."""

    def __init__(self, connections_max: int, share_max: int) -> None:
        self.connections_max, self.share_max = connections_max, share_max
        self.most = self.looks_full = self.ended = 0
        self._order: dict[Address, int] = {}  # in which they were first seen
        self._seen = 0
        self._now_s = -math.inf
        self._throttle = LogThrottle(LOG_EVERY_S, lambda: self._now_s)
        self._reported = (-math.inf, self._line())

    def look(self, connected: Collection[Address], now_s: float) -> list[Address]:
        """Which connections to end. Logs, once a minute at most, that all connections are taken, or that an address has
        more than its share."""
        self._now_s = now_s
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

    def report(self, now_s: float) -> None:
        """Log the numbers every ten minutes if they changed."""
        line = self._line()
        if now_s - self._reported[0] >= _REPORT_S and line != self._reported[1]:
            self._reported = (now_s, line)
            logger.info("connections: %s", line)

    def _line(self) -> str:
        return f"most={self.most} looks_full={self.looks_full} ended={self.ended}"

    def _newest(self, count: int, hosts: Collection[str], without: Collection[Address] = ()) -> list[Address]:
        """The newest connections of these hosts, at most ``count``, oldest first."""
        own = [each for each in self._order if each[0] in hosts and each not in without] if count > 0 else []
        return sorted(own, key=self._order.__getitem__)[-count:] if own else []
