# SPDX-License-Identifier: Apache-2.0
"""Compacts a log: merges many small sealed extents into few, run by run. A crash may end it at any point. Pure.

A compaction reads the log's list and chooses runs of extents. It copies each run into a new ledger, reads the copy
again and compares it. Then one compare-and-set lists the copy in place of the run, if the log still has the run. After
the last run the compaction reads the log's list again. It lists only a copy that was read and found equal, and the copy
replaces exactly the extents that were copied. So if a trim, an overwrite or another compaction comes in between, this
compaction loses its copy, and the log loses nothing. The compaction deletes a copy only before it tries to list it;
after that only vacuum may delete it (N4, N6).

If a compaction ends early, the runs that it replaced stay replaced, and at most one copy is left, which vacuum finds.
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
"""The maximum number of runs in a row that other clients may change while they are copied. After one more the
compaction fails."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: ``extents`` extents with ``entries`` entries and ``size_bytes`` payload bytes were
    merged into the ``ledgers``."""

    ledgers: tuple[LedgerId, ...] = ()
    extents: int = 0
    entries: int = 0
    size_bytes: int = 0


class _Disturbed(Exception):
    """Raised to choose the runs again, because another client changed the log."""

    def __init__(self, error: BookKeeperError) -> None:
        super().__init__(error)
        self.error = error


class Compaction:
    """Decides one compaction of the log ``name``. :meth:`run` is the sequence; run it once."""

    def __init__(self, name: str, limits: CompactionLimits, nonce: Nonce) -> None:
        self._name, self._limits, self._nonce = name, limits, nonce
        self._done = Compacted()
        self._log_uuid: str | None = None
        self._copies = 0
        self._weight = 0  # weight of the runs merged so far
        self._disturbed = 0  # the number of runs in a row that other clients changed
        self._incomplete: Run | None = None  # a run in which entries could not be found

    def run(self) -> Steps[Compacted]:
        """Compact until nothing is left to merge or the limits are reached. Raises the error that ends the
        compaction."""
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
        """Copy the run, check that the copy is exact, and list the copy in place of the run."""
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
