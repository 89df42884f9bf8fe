# SPDX-License-Identifier: Apache-2.0
"""The parts of a bookie that the admin port reads. They appear while the bookie starts. Nothing here changes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bk_core.errors import BookKeeperError
from bk_core.metadata.unreadable import UnreadableNodes
from bk_core.model import BookieId, LedgerId
from bookie_server.admin.health import BookieHealth, Pulse
from bookie_server.config import BookieConfig
from bookie_server.engine.engine import BookieEngine
from bookie_server.garbage.garbage_thread import GarbageThread
from bookie_server.identity.availability import Availability
from bookie_server.ports.bounds.clients import Clients


class OwnCopiesView(Protocol):
    """The incomplete copies of the bookie itself (decision 0053)."""

    marked: int
    healed: int

    @property
    def suspects(self) -> Sized: ...
    @property
    def lacking(self) -> Mapping[LedgerId, Lacking]: ...
    def counts(self) -> tuple[int, int]:
        """Return two numbers of ledgers that lack entries here: those that lack them because of limbo, and all
        others."""
        ...


class Lacking(Protocol):
    """The missing entries of the copy of one ledger; ``str()`` describes them. ``since_s`` is the time when that was
    found, in seconds since 1970."""

    @property
    def limbo(self) -> bool: ...
    @property
    def since_s(self) -> float: ...


class HealingCounts(NamedTuple):
    """Counts of auto-recovery in this process since the start; ``running`` and ``blocked`` count the present
    repairs."""

    repaired: int
    copied_entries: int
    copied_bytes: int
    running: int
    blocked: int
    marked: int
    elected: bool


class UpkeepCounts(NamedTuple):
    """Counts of the upkeep of logs in this process since the start."""

    elected: bool
    deleted_ledgers: int
    copied_bytes: int
    failures: int


@dataclass(slots=True)
class BookieView:
    """The parts of a bookie, which ``main.py`` fills in. ``ledgers`` counts the ledgers of each directory, in the order
    of ``paths``. ``healing`` is None without auto-recovery, and ``upkeep`` without upkeep. ``unreadable`` has the nodes
    that each session with the metadata store could not read."""

    config: BookieConfig
    version: str
    clients: Clients
    error: Callable[[], BookKeeperError | None]
    bookie_id: BookieId = ""
    paths: Sequence[str] = ()
    ledgers: Callable[[], Sequence[int]] = tuple
    engine: BookieEngine | None = None
    availability: Availability | None = None
    garbage: GarbageThread | None = None
    healing: Callable[[], HealingCounts] | None = None
    upkeep: Callable[[], UpkeepCounts] | None = None
    own_copies: OwnCopiesView | None = None
    unreadable: list[UnreadableNodes] = field(default_factory=list)
    stops: bool = False
    started_s: float = field(default_factory=time.time)
    pulse: Pulse = field(init=False)

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.why_full)

    def show(
        self,
        bookie_id: BookieId,
        paths: Sequence[str],
        ledgers: Callable[[], Sequence[int]],
        engine: BookieEngine,
        availability: Availability,
        garbage: GarbageThread,
    ) -> None:
        """Set the parts that the bookie has once its storage is open."""
        self.bookie_id, self.paths, self.ledgers = bookie_id, paths, ledgers
        self.engine, self.availability, self.garbage = engine, availability, garbage

    def why_read_only(self) -> str:
        return self.availability.why_read_only if self.availability is not None else ""

    def why_full(self) -> str:
        """Return why the bookie has no space for new entries, or an empty text if it has space. An order to be
        read-only does not count."""
        return self.availability.why_full if self.availability is not None else ""

    def serves(self) -> bool:
        """Return whether the bookie has replayed its log and is registered."""
        return self.availability is not None and self.availability.registered

    def health(self) -> BookieHealth:
        error, pulse = self.error(), self.pulse
        failed = str(error) if error is not None else ""
        return BookieHealth(self.serves(), self.stops, failed, pulse.why, pulse.read_only_s, pulse.silent_s)
