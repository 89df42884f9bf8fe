# SPDX-License-Identifier: Apache-2.0
"""Tracks which bookies are registered, which are away, and which count as lost, as this process has seen them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import Order
from bk_core.metadata.unreadable import NodeKind
from bk_core.model import INCARNATION_PROPERTY, BookieId, BookieServiceInfo
from bk_core.placement import FLAT, Landscape
from bk_core.protocol.replication.absence import Absences
from bk_core.protocol.replication.events import ClusterRead


@dataclass(frozen=True, slots=True)
class Present:
    """The bookies at one moment. ``away`` has those that are not registered, or whose registrations cannot be read, and
    that do not count as lost. ``leaving`` has those that are drained, and ``patient`` those of them whose drain waits
    for the writers of open ledgers."""

    writable: dict[BookieId, BookieServiceInfo]
    read_only: dict[BookieId, BookieServiceInfo]
    away: tuple[BookieId, ...]
    lost: tuple[BookieId, ...]
    leaving: tuple[BookieId, ...] = ()
    patient: tuple[BookieId, ...] = ()

    @property
    def incarnations(self) -> dict[BookieId, str]:
        registered = {**self.read_only, **self.writable}
        return {name: info.properties.get(INCARNATION_PROPERTY, "") for name, info in registered.items()}

    def for_repair(self, quarantined: tuple[BookieId, ...] = (), landscape: Landscape = FLAT) -> ClusterRead:
        """Return these bookies in the form that a repair reads."""
        return ClusterRead(
            tuple(sorted(self.writable)),
            tuple(sorted(self.read_only)),
            self.away,
            self.incarnations,
            leaving=self.leaving,
            patient=self.patient,
            quarantined=quarantined,
            landscape=landscape,
        )


class Presence:
    """Reads the registrations, and measures how long bookies have been away. Its calls block, and several threads may
    make them. A process that has just started has seen no absence, so each bookie gets the whole delay. :meth:`look`
    must be called regularly."""

    def __init__(self, store: MetadataStore, delay_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._delay_s, self._clock = store, delay_s, clock
        self._absences = Absences()
        self._known: dict[BookieId, None] = {}
        self._lock = threading.Lock()

    def know(self, names: Iterable[BookieId]) -> None:
        """Add bookies that belong to the cluster, although the store may have no cookie of them."""
        with self._lock:
            self._known.update(dict.fromkeys(names))

    def look(self, named: Iterable[BookieId] = ()) -> Present:
        """Read the registrations and return the bookies of the cluster. ``named`` are bookies that the caller asks
        about; the store may have no cookie of them."""
        with self._lock:
            return self._look(named)

    def _look(self, named: Iterable[BookieId]) -> Present:
        store = self._store
        store.sync()
        self._known.update(dict.fromkeys((*store.known_bookies(), *named)))
        writable, read_only = dict(store.writable_bookies()), dict(store.read_only_bookies())
        set_s = store.lost_bookie_recovery_delay_s()
        delay_ms = 1000 * (self._delay_s if set_s is None else set_s)
        registered = {**read_only, **writable}
        there = {*registered, *(node.name for node in store.unreadable.of(NodeKind.REGISTRATION))}
        lost = self._absences.lost(self._known, there, self._clock() * 1000, delay_ms)
        away = tuple(name for name in self._known if name not in registered and name not in lost)
        drains = {name: o for name, o in sorted(store.bookie_orders().items()) if o.order is Order.DRAIN}
        patient = tuple(name for name, order in drains.items() if not order.fences)
        return Present(writable, read_only, away, lost, tuple(drains), patient)
