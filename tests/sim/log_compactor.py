# SPDX-License-Identifier: Apache-2.0
"""A compaction of the log of tests/sim/logs.py: the production machine, with copying at the grain of one ledger read.

Between two reads anything happens: trims, overwrites, leaders, other compactions, vacuums that delete what is being
copied and the copy itself. Copies go wrong as well: cut, swapped or damaged; the machine must find that out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from bk_core.errors import (
    BookKeeperError,
    IntegrityError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.compaction import ENTRY_COST_BYTES, CompactionLimits, Content, Run
from bk_core.logs.head import NewExtent
from bk_core.logs.machines import compaction as machine
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.upkeep import Compact
from bk_core.logs.paging import sealed_extents
from bk_core.model import LedgerId
from tests.sim.log_leader import QUORUM
from tests.sim.logs import UUID, LogWorld, require

ENTRIES_MAX = (4, 8, 64)
"""Entries of a merged ledger at most, a compaction."""
BAD_COPY = 0.06
"""How often a copy is not what was read, or what was read is not all."""


class Compactor:
    """A compaction's driver in miniature, one request at a time. ``replace`` makes the actor that lists a copy."""

    def __init__(self, world: LogWorld, replace: Callable[[HeadChange[Any]], Replacing]) -> None:
        self.world, self.is_done = world, False
        entries = world.random.choice(ENTRIES_MAX)
        self._limits = CompactionLimits(ledger_bytes_max=entries * (1 + ENTRY_COST_BYTES))
        self._machine = machine.Compaction(self._limits)
        self._replace = replace
        self._request: machine.Request = machine.ListExtents()
        self._copy: _Copy | None = None
        self._replacing: Replacing | None = None
        self._is_bad = False  # the copy that was made last
        self._take(machine.Start())

    def act(self) -> None:
        """Carry a request out, or one step of it."""
        if self._replacing is not None:
            self._replacing.act()
            self._take_replaced()
        elif isinstance(self._request, machine.CopyRun):
            self._step_copy(self._request.run)
        else:
            self._take(self._answer(self._request))

    def _answer(self, request: machine.Request) -> machine.Event:
        world = self.world
        if world.chance(0.03):
            error = MetadataUnavailableError("away", outcome=Outcome.NOT_APPLIED)
            return machine.RequestFailed(error)
        match request:
            case machine.ListExtents():
                head = world.read(sync=True).value
                extents = sealed_extents(head, world.pages, head.start_offset, head.next_offset)
                return machine.ExtentsListed(UUID, extents, self._limits)
            case machine.VerifyCopy(new):
                found = world.ledgers.get(new.ledger_id)
                if found is None:
                    return machine.RequestFailed(NoSuchLedgerError("a vacuum took the copy"))
                return machine.CopyVerified(content_of(found.values))
        raise AssertionError(request)

    def _step_copy(self, run: Run) -> None:
        self._copy = self._copy or _Copy(self.world, run)
        event = self._copy.step()
        if event is not None:
            self._is_bad, self._copy = self._copy.is_bad, None
            self._take(event)

    def _take(self, event: machine.Event) -> None:
        for effect in self._machine.step(event):
            match effect:
                case machine.DropCopy(ledger_id):
                    self.world.delete_ledger(ledger_id)
                case machine.Finish():
                    self.is_done = True
                    self.world.reached["compaction done"] += 1
                case machine.Fail(error):
                    self.is_done = True
                    self._failed(error)
                case machine.ListCopy(run, new):
                    self._request = effect
                    self._list(run, new)
                case _:
                    self._request = effect

    def _list(self, run: Run, new: NewExtent) -> None:
        failures_max = self.world.random.choice((2, 5))
        change = HeadChange(Compact(run, new, self.world.nonce), failures_max=failures_max)
        self._replacing = self._replace(change)

    def _take_replaced(self) -> None:
        replacing = self._replacing
        assert replacing is not None
        if replacing.is_done:
            self._replacing = None
            self.world.reached["copy listed"] += replacing.error is None
            self.world.reached["copy not wanted any more"] += isinstance(replacing.error, PublishConflictError)
            if replacing.error is not None:
                self._take(machine.RequestFailed(replacing.error))
            else:
                self._take(machine.CopyListed(replacing.result))

    def _failed(self, error: BookKeeperError) -> None:
        self.world.reached[f"compaction failed {error.code}"] += 1
        if isinstance(error, IntegrityError):
            require(self._is_bad, f"the copy is good, and {error}")


class Replacing:
    """What a :class:`Compactor` needs of the actor that lists its copy."""

    is_done: bool
    result: Any
    error: BookKeeperError | None

    def act(self) -> None:
        """Carry one request out."""
        raise NotImplementedError


class _Copy:
    """One run on its way into a ledger of its own: create, read ledger by ledger, close."""

    def __init__(self, world: LogWorld, run: Run) -> None:
        self._world, self._run = world, run
        self._left = list(run)
        self._ledger: LedgerId | None = None
        self._read: list[str] = []
        self.is_bad = False

    def step(self) -> machine.Event | None:
        """The next step; the event once it has ended."""
        world = self._world
        if self._ledger is None:
            schema = world.ledgers[self._run[0].ledger_id].schema if self._run[0].ledger_id in world.ledgers else None
            self._ledger = world.make_ledger([], is_closed=False, schema=schema)
            return None
        if not self._left:
            return self._close()
        extent = self._left.pop(0)
        source, copy = world.ledgers.get(extent.ledger_id), world.ledgers.get(self._ledger)
        if source is None:
            world.reached["ledger gone before it was copied"] += 1
            world.delete_ledger(self._ledger)
            return machine.RequestFailed(NoSuchLedgerError("it was vacuumed"))
        require(source.is_closed, f"{extent} is copied while it is written")
        if copy is not None:
            require(source.schema == copy.schema, f"{extent} has another schema than the run")
        self._read += source.values[extent.first_entry_id : extent.end_entry_id]
        return None

    def _close(self) -> machine.Event:
        world, run = self._world, self._run
        assert self._ledger is not None
        ledger = world.ledgers.get(self._ledger)
        if ledger is None:
            return machine.RequestFailed(NoSuchLedgerError("a vacuum took the ledger that is being written"))
        if world.chance(BAD_COPY):
            world.reached["short read"] += 1
            self.is_bad = True
            self._read = self._read[:-1]
        ledger.values, ledger.is_closed = list(self._read), True
        if world.chance(BAD_COPY):
            world.reached["bad copy"] += 1
            self.is_bad = True
            _damage(ledger.values, world.random.randrange(3))
        new = NewExtent(
            ledger_id=self._ledger,
            entry_count=sum(extent.entry_count for extent in run),
            size_bytes=len(ledger.values),
            created_ms=world.time,
            schema_number=run[0].schema_number,
            **QUORUM,
        )
        return machine.RunCopied(new, content_of(self._read))


def content_of(values: list[str]) -> Content:
    """Entries of one byte each as far as sizes go, as everywhere in this simulation."""
    return Content(len(values), len(values), 0, crc32("\n".join(values).encode()))


def _damage(values: list[str], kind: int) -> None:
    if kind == 0 or len(values) < 2:
        values[-1:] = ["damaged"]
    elif kind == 1:
        values[0], values[-1] = values[-1], values[0]
    else:
        values.pop()
