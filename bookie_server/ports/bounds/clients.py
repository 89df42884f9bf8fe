# SPDX-License-Identifier: Apache-2.0
"""Bounds the number of a bookie's clients over all its services, and ends some of their streams when memory is short.

A bookie has one :class:`Clients`. All its services get this object, so that the bounds hold for all services together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from bookie_server.audit import AuditLog
from bookie_server.config import ClientLimits, ServerLimits
from bookie_server.ports.access.principal import Principal
from bookie_server.ports.bounds.connections import Connections
from bookie_server.ports.bounds.hang_up import connected, files_open, shut_down
from bookie_server.ports.bounds.limits import Limits
from bookie_server.ports.bounds.memory_bounds import (
    MemoryWatch,
    connections_allowed,
    give_memory_back,
    memory_bytes_usable,
    resident_bytes,
)

logger = logging.getLogger(__name__)

SILENT_S = 0.5
"""The number of seconds that a stream must have waited for a whole message before it may be ended because memory is
short."""

_WATCH_INTERVAL_S = 0.25
_COUNT_INTERVAL_S = 1.0
_IDENTITIES_INTERVAL_S = 10.0


class ClientStream(Protocol):
    """A stream of a client, as its service provides it."""

    @property
    def principal(self) -> Principal: ...
    @property
    def reading_since(self) -> float:
        """The loop's time when the stream began to wait for the rest of a message, or for the next one. It is infinite
        while the stream does not wait."""
        ...

    def close(self, message: str) -> None:
        """End the stream once its queued answers are written."""
        ...

    def cut(self, message: str) -> None:
        """End the stream immediately."""
        ...


Outlived = Callable[[Iterable[Principal]], Mapping[Principal, str]]
"""A function that returns those of the given clients that are no longer admitted, with the reasons."""


def _nobody(_: Iterable[Principal]) -> Mapping[Principal, str]:
    return {}


class Clients:
    """The clients of one bookie. Services add their streams to ``streams`` and discard those that have ended.
    ``connections.connections_max`` bounds the connections of all services; a service that can refuse connections beyond
    it does so itself."""

    def __init__(self, limits: ServerLimits, of_each: ClientLimits | None = None) -> None:
        self.limits = Limits(of_each or ClientLimits(), time.monotonic)
        most = connections_allowed(limits.connections_max, limits.files_kept)
        if most < limits.connections_max:
            logger.warning("at most %d clients can connect: raise the limit of open files", most)
        share = min(limits.connections_per_address_max or max(1, most // 2), most)
        self.connections = Connections(most, share, time.monotonic)
        self.streams: set[ClientStream] = set()
        self.audit: AuditLog | None = None
        self.read_stall_s = limits.read_stall_s
        self._memory = MemoryWatch(limits.memory_bytes_max or memory_bytes_usable())
        self._watches: list[asyncio.Task[None]] = []

    def watch(self, ports: Collection[int], outlived: Outlived = _nobody) -> None:
        """Start to watch the memory, the connections to the services' ports, and the identities of clients."""
        self._watches = [
            asyncio.create_task(self._watch_memory(), name="memory watch"),
            asyncio.create_task(self._watch_connections(ports), name="connection watch"),
            asyncio.create_task(self._watch_identities(outlived), name="identity watch"),
        ]

    def stop(self) -> None:
        for watch in self._watches:
            watch.cancel()

    async def _watch_memory(self) -> None:
        """End silent streams when memory is short, because each may hold most of a message that never ends."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            taken = resident_bytes()
            if not self._memory.shed(taken):
                continue
            silent = [stream for stream in self.streams if loop.time() - stream.reading_since > SILENT_S]
            if not silent:
                continue
            logger.warning("%d MiB of memory are in use: %d silent streams are ended", taken >> 20, len(silent))
            for stream in silent:
                stream.cut("memory is short, and nothing came on this stream")
            await asyncio.sleep(_WATCH_INTERVAL_S)  # until their services have released them
            give_memory_back()
            self._memory.has_shed(resident_bytes())

    async def _watch_identities(self, outlived: Outlived) -> None:
        """End the streams whose clients are no longer admitted; such a client may connect again with a new token. A
        stream whose queued answers are not read until the next check is cut."""
        closed: set[ClientStream] = set()
        while True:
            await asyncio.sleep(_IDENTITIES_INTERVAL_S)
            closed &= self.streams
            for stream in closed:
                stream.cut("its client does not read the last answers")
            why = outlived({each.principal for each in self.streams})
            for stream in [each for each in self.streams if each.principal in why and each not in closed]:
                logger.info("a connection of %s ends: %s", stream.principal, why[stream.principal])
                closed.add(stream)
                stream.close(why[stream.principal])

    async def _watch_connections(self, ports: Collection[int]) -> None:
        """Keep each address within its share of the connections, and all services together within their bound. Also
        flush the audit log."""
        while True:
            await asyncio.sleep(_COUNT_INTERVAL_S)
            if files_open() > self.connections.share_max:  # otherwise no address can have too many connections
                excess = self.connections.look(connected(ports))
                if excess:
                    shut_down(set(excess))
            self.connections.report()
            if self.audit is not None:
                self.audit.flush()
