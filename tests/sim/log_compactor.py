# SPDX-License-Identifier: Apache-2.0
"""A compaction of the log of tests/sim/logs.py: the product's sequence, with copies that are made one ledger read at a
time.

Between two reads anything may happen: trims, overwrites, leaders, other compactions, and vacuums that delete the source
or the copy. Copies also go wrong: they are cut, swapped or damaged. The compaction must find that out.
"""

from __future__ import annotations

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
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.compaction import Compaction
from bk_core.logs.machines.upkeep import Compact
from bk_core.logs.model.compaction import ENTRY_COST_BYTES, CompactionLimits, Content, Run
from bk_core.logs.model.head import Extent, NewExtent
from bk_core.logs.model.paging import sealed_extents
from bk_core.model import LedgerId
from tests.sim.log_leader import QUORUM
from tests.sim.log_runner import Runner, Watch
from tests.sim.logs import UUID, LogWorld, require

ENTRIES_MAX = (4, 8, 64)
"""The maximum number of entries of a merged ledger. Each compaction draws one."""
BAD_COPY = 0.06
"""The share of copies that differ from what was read, or for which not everything was read."""


class Compactor(Runner):
    """A compaction's driver in miniature, one request at a time."""

    def __init__(self, world: LogWorld) -> None:
        entries = world.random.choice(ENTRIES_MAX)
        self._limits = CompactionLimits(ledger_bytes_max=entries * (1 + ENTRY_COST_BYTES))
        self._copy: _Copy | None = None
        self._is_bad = False  # whether the last copy is bad
        super().__init__([world], _Watched(self, world, self._limits).run(), "compaction")

    def act(self) -> None:
        """Carry out a request, or one step of it."""
        if not isinstance(self.request, ask.CopyRun):
            super().act()
            return
        self._copy = self._copy or _Copy(self.world, self.request.run)
        answer = self._copy.step()
        if answer is not None:
            self._is_bad, self._copy = self._copy.is_bad, None
            self.tell(answer)

    def answer(self, request: Any) -> Any:
        """Answer a request of a compaction. Others are those of a change."""
        world = self.world
        if isinstance(request, ask.ListExtents | ask.ReadCopy) and world.chance(0.03):
            raise MetadataUnavailableError("away", outcome=Outcome.NOT_APPLIED)
        match request:
            case ask.ListExtents():
                head = world.read(sync=True).value
                extents = sealed_extents(head, world.pages, head.start_offset, head.next_offset)
                return ask.ExtentsListed(UUID, extents, self._limits)
            case ask.ReadCopy(new):
                found = world.ledgers.get(new.ledger_id)
                if found is None:
                    raise NoSuchLedgerError("a vacuum took the copy")
                return content_of(found.values)
            case ask.DropCopy(ledger_id):
                return world.delete_ledger(ledger_id)
        return super().answer(request)

    def failed(self, error: BookKeeperError) -> None:
        """Check that no good copy is refused."""
        self.world.reached[f"compaction failed {error.code}"] += 1
        if isinstance(error, IntegrityError):
            require(self._is_bad, f"the copy is good, and {error}")


class _Watched(Compaction):
    """A compaction whose changes of the head are watched, each by itself."""

    def __init__(self, actor: Compactor, world: LogWorld, limits: CompactionLimits) -> None:
        super().__init__(world.name, limits, world.nonce)
        self._actor, self._world = actor, world

    def _change(self, intent: Compact) -> HeadChange[Extent]:
        self._actor.watch = Watch(f"listing {intent.new}")
        return _WatchedChange(self._actor, intent)


class _WatchedChange(HeadChange[Extent]):
    def __init__(self, actor: Compactor, intent: Compact) -> None:
        self._world, self._watch = actor.world, actor.watch
        super().__init__({self._world.name: intent}, failures_max=self._world.random.choice((2, 5)))

    def run(self) -> Steps[dict[str, Extent]]:
        try:
            results = yield from super().run()
        except BookKeeperError as error:
            self._world.reached["copy not wanted any more"] += isinstance(error, PublishConflictError)
            self._watch.failed(error)
            raise
        self._world.reached["copy listed"] += 1
        return results


class _Copy:
    """One run on its way into a ledger of its own: create, read ledger by ledger, close."""

    def __init__(self, world: LogWorld, run: Run) -> None:
        self._world, self._run = world, run
        self._left = list(run)
        self._ledger: LedgerId | None = None
        self._read: list[str] = []
        self.is_bad = False

    def step(self) -> ask.RunCopied | BookKeeperError | None:
        """Make the next step. Return the answer once the copy has ended."""
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
            return NoSuchLedgerError("it was vacuumed")
        require(source.is_closed, f"{extent} is copied while it is written")
        if copy is not None:
            require(source.schema == copy.schema, f"{extent} has another schema than the run")
        self._read += source.values[extent.first_entry_id : extent.end_entry_id]
        return None

    def _close(self) -> ask.RunCopied | BookKeeperError:
        world, run = self._world, self._run
        assert self._ledger is not None
        ledger = world.ledgers.get(self._ledger)
        if ledger is None:
            return NoSuchLedgerError("a vacuum took the ledger that is being written")
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
        return ask.RunCopied(new, content_of(self._read))


def content_of(values: list[str]) -> Content:
    """Return the content of a ledger. For sizes each entry counts one byte, as everywhere in this simulation."""
    return Content(len(values), len(values), 0, crc32("\n".join(values).encode()))


def _damage(values: list[str], kind: int) -> None:
    if kind == 0 or len(values) < 2:
        values[-1:] = ["damaged"]
    elif kind == 1:
        values[0], values[-1] = values[-1], values[0]
    else:
        values.pop()
