# SPDX-License-Identifier: Apache-2.0
"""Compaction: merges many small sealed extents into few, run by run. A crash may end it at any point. Pure.

The steps: list the log; choose runs; copy a run into a new ledger; read the copy back and compare; list the copy in the
run's place by compare-and-set, if the log still has the run; go on with the next run; when none is left, list the log
again. Only a copy that was read back and found equal is ever listed, and it replaces exactly the extents that were
copied. So if a trim, an overwrite or another compaction comes in between, this compaction loses its copy and the log
loses nothing. The compaction deletes a copy only before it tries to list it; afterwards only vacuum may (N4, N6).

If it ends early, the runs replaced so far stay replaced, and at most one copy is left, which vacuum finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from bk_core.errors import (
    BookKeeperError,
    IntegrityError,
    LogRecreatedError,
    MetadataCorruptError,
    NoSuchEntryError,
    NoSuchLedgerError,
    Outcome,
    PublishConflictError,
)
from bk_core.logs.machines import ask
from bk_core.logs.machines.ask import Steps
from bk_core.logs.machines.change import HeadChange
from bk_core.logs.machines.upkeep import Compact
from bk_core.logs.model.compaction import CompactionLimits, Content, Run, content_problem, runs_to_compact, weight_of
from bk_core.logs.model.head import Extent
from bk_core.logs.model.paging import Nonce
from bk_core.model import LedgerId

DISTURBANCES_MAX = 10
"""The compaction gives up when other clients change more runs than this in a row while they are copied."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result: ``extents`` extents with ``entries`` entries were merged into the ``ledgers``."""

    ledgers: tuple[LedgerId, ...] = ()
    extents: int = 0
    entries: int = 0
    size_bytes: int = 0


class _Disturbed(Exception):
    """Another client changed the log meanwhile: choose the runs again."""

    def __init__(self, error: BookKeeperError) -> None:
        super().__init__(error)
        self.error = error


class Compaction:
    """One compaction of the log ``name``. :meth:`run` is the sequence; run it once."""

    def __init__(self, name: str, limits: CompactionLimits, nonce: Nonce) -> None:
        self._name, self._limits, self._nonce = name, limits, nonce
        self._done = Compacted()
        self._log_uuid: str | None = None
        self._copies = 0
        self._weight = 0  # weight of the runs merged so far
        self._disturbed = 0  # the number of runs in a row that other clients changed
        self._incomplete: Run | None = None  # a run in which entries could not be found

    def run(self) -> Steps[Compacted]:
        """Compact until nothing is left to merge or the limits are reached. Raises the error that ended it."""
        while True:
            try:
                runs = yield from self._choose()
                for run in runs:
                    if self._has_copied_enough():
                        return self._done
                    yield from self._merge(run)
                if not runs:
                    return self._done
            except _Disturbed as disturbed:
                self._disturbed += 1
                if self._disturbed > DISTURBANCES_MAX:
                    raise disturbed.error from None

    def _choose(self) -> Steps[Sequence[Run]]:
        try:
            listed: ask.ExtentsListed = yield ask.ListExtents()
        except (MetadataCorruptError, PublishConflictError) as error:
            raise _Disturbed(error) from error  # a page was replaced and deleted after the head was read
        if self._log_uuid not in (None, listed.log_uuid):
            raise LogRecreatedError("the log was deleted and made again", remedy="compact the new one")
        self._log_uuid = listed.log_uuid
        return runs_to_compact(listed.extents, listed.limits)

    def _has_copied_enough(self) -> bool:
        enough = self._limits.copy_bytes_max
        return enough is not None and self._weight >= enough

    def _merge(self, run: Run) -> Steps[None]:
        """Copy the run, check that the copy is exact, and list it in the run's place."""
        copied = yield from self._copy(run)
        problem = content_problem(run, copied.content)
        if problem is None:
            held = yield from self._read_back(copied)
            if held != copied.content:
                problem = f"read {copied.content}, the copy holds {held}"
        if problem is not None:
            yield from self._drop(copied)
            raise IntegrityError(
                "a copy differs from the entries that the log lists, and was not used",
                value=f"offsets {run[0].base_offset} to {run[-1].next_offset}: {problem}",
                remedy="the log is as it was; check its ledgers with bk ledger read",
            )
        self._count(run, (yield from self._list(run, copied)))

    def _copy(self, run: Run) -> Steps[ask.RunCopied]:
        self._copies += 1
        try:
            copied: ask.RunCopied = yield ask.CopyRun(run, self._copies)
        except (NoSuchLedgerError, NoSuchEntryError) as error:
            if self._incomplete == run:
                raise  # the log still lists the run, so its entries are lost
            self._incomplete = run
            raise _Disturbed(error) from error
        return copied

    def _read_back(self, copied: ask.RunCopied) -> Steps[Content]:
        try:
            held: Content = yield ask.ReadCopy(copied.new)
        except NoSuchLedgerError as error:
            raise _Disturbed(error) from error  # a vacuum deleted the copy as an orphan
        except BookKeeperError:
            yield from self._drop(copied)
            raise
        return held

    def _list(self, run: Run, copied: ask.RunCopied) -> Steps[Extent]:
        try:
            results = yield from self._change(Compact(run, copied.new, self._nonce)).run()
        except PublishConflictError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                raise _Disturbed(error) from error
            raise
        return results[self._name]

    def _change(self, intent: Compact) -> HeadChange[Extent]:
        """Return the change for one run."""
        return HeadChange({self._name: intent})

    def _drop(self, copied: ask.RunCopied) -> Steps[None]:
        with suppress(BookKeeperError):
            yield ask.DropCopy(copied.new.ledger_id)

    def _count(self, run: Run, extent: Extent) -> None:
        self._weight += sum(map(weight_of, run))
        self._disturbed = 0
        self._done = Compacted(
            (*self._done.ledgers, extent.ledger_id),
            self._done.extents + len(run),
            self._done.entries + extent.entry_count,
            self._done.size_bytes + extent.size_bytes,
        )
