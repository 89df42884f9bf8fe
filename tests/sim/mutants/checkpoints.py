# SPDX-License-Identifier: Apache-2.0
"""Known defects of checkpoints, of recycling under them, of folding and of checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bk_core.wire.lane.reasons import EntryRange, Reason
from bookie_server.storage.bytes import blocks, segment
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.index import ledger_states, ledger_table, state_rows
from bookie_server.storage.index.index import LedgerIndex, Lookup
from bookie_server.storage.index.ledger_states import LedgerStates
from bookie_server.storage.index.ledger_table import FENCED, HAS_KEY, NO_ABSENT, NO_ADDS, LedgerState
from bookie_server.storage.maintenance.checkpointer import Checkpointer
from bookie_server.storage.start import replay
from tests.sim.mutants.mutant import Change, Mutants, changed
from tests.sim.mutants.storage import nothing, over_files

MUTANTS = Mutants()


class _Agreeing(int):
    """A checksum that agrees with everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _agreeing(crc32c: Any, *args: Any) -> int:
    return _Agreeing(crc32c(*args))


def _rows_without(flags: int = 0, *columns: str) -> Change:
    def export(rows: Any, self: Any, first_ledger: int, limit: int) -> Any:
        found = rows(self, first_ledger, limit).copy()
        found["flags"] &= ~np.uint8(flags)
        for name in columns:
            found[name] = 0
        return found

    return changed(LedgerIndex, "export_ledgers", export)


@MUTANTS.instead(LedgerIndex, "generations", "a checkpoint claims what is not sealed yet", "S4")
def claims_everything(generations: Any, self: Any) -> tuple[Sequence[int], Sequence[int], int]:
    sealed, unsealed, newest = generations(self)
    return sealed, (), max(newest, *unsealed, 0)


@MUTANTS.instead(LedgerIndex, "generations", "a checkpoint counts on no segment", "S4")
def counts_on_nothing(generations: Any, self: Any) -> tuple[Sequence[int], Sequence[int], int]:
    return ((), *generations(self)[1:])


@MUTANTS.instead(replay, "find_starting_point", "a checkpoint that is lost goes unnoticed", "S8")
def unnoticed(find: Any, directory: Any) -> Any:
    return replace(find(directory), lost=False, damage=())


@MUTANTS.instead(LedgerState, "merged", "a drop ends limbo", "S4")
def drop_ends_limbo(merged: Any, self: Any, other: Any) -> Any:
    """Of a record of a drop, and of a checkpoint's row of a ledger with a dropped copy."""
    state, bits = merged(self, other), NO_ABSENT | NO_ADDS
    return state._replace(flags=state.flags & ~bits | other.flags & bits) if other.flags & bits else state


@MUTANTS.instead(state_rows, "_folded", "a drop ends limbo at the next start", "S4")
def one_bit_a_ledger(folded_rows: Any, rows: Any, ids: Any) -> Any:
    result = folded_rows(rows, ids)
    result["flags"] &= ~np.where(result["dropped"] > 0, NO_ADDS, 0).astype(np.uint8)
    return result


@MUTANTS.instead(LedgerState, "merged", "the lesser generation of two drops holds", "S4")
def lesser_generation(merged: Any, self: Any, other: Any) -> Any:
    state = merged(self, other)
    return state._replace(dropped=min(self.dropped, other.dropped)) if self.dropped and other.dropped else state


@MUTANTS.instead(state_rows, "_folded", "the lesser generation of two drops holds at the next start", "S4")
def lesser_generations(folded_rows: Any, rows: Any, ids: Any) -> Any:
    result, dropped = folded_rows(rows, ids), rows[rows["dropped"] > 0]
    for row in result:
        mine = dropped["dropped"][dropped["ledger"] == row["ledger"]]
        row["dropped"] = mine.min() if mine.size else 0
    return result


@MUTANTS.instead(LedgerStates, "trouble", "what a dropped copy lacks is denied", "S4")
def dropped_copies_deny(trouble: Any, self: Any, state: Any) -> Reason:
    found = trouble(self, state)
    return Reason.REASON_NONE if found is Reason.COPY_DROPPED else found


@MUTANTS.instead(LedgerStates, "trouble", "limbo of every ledger holds for unknown ones alone", "S8")
def of_the_unknown_alone(trouble: Any, self: Any, state: Any) -> Reason:
    every, self._of_every_ledger = self._of_every_ledger, 0 if state is not None else self._of_every_ledger
    try:
        return trouble(self, state)
    finally:
        self._of_every_ledger = every


@MUTANTS.instead(LedgerStates, "counting", "what is added after a drop is dead too", "S4")
def newer_ones_are_dead(counting: Any, self: Any, generation: int, rows: Any) -> Any:
    return counting(self, 0, rows)


@MUTANTS.instead(LedgerIndex, "lookup", "nothing is found of a ledger in limbo", "S4")
def nothing_is_found(lookup: Any, self: Any, ledger_id: int, *args: Any, **named: Any) -> Any:
    found = lookup(self, ledger_id, *args, **named)
    trouble = self.folded(ledger_id)[1]
    if not trouble or found.unresolved or self.is_deleted(ledger_id):
        return found
    return Lookup((), (), (EntryRange(args[0], found.through, trouble),), (), found.through)


MUTANTS.add(
    "a checkpoint is believed before it is durable", "S4",
    over_files(Checkpointer, "_finish", sync_data=lambda _: nothing, rename=lambda files: files._replace),
)  # fmt: skip
MUTANTS.add("a checkpoint is not named by IDENTITY", "S4", (DataDirectory, "record_checkpoint", nothing))
MUTANTS.add(
    "segments are recycled without a checkpoint", "S4",
    (Checkpointer, "may_recycle", lambda self, generation: True), (Checkpointer, "start", lambda self: False),
)  # fmt: skip
MUTANTS.add("a fence is not in a checkpoint (D5)", "S4", _rows_without(FENCED))
MUTANTS.add("a key is not in a checkpoint", "S4", _rows_without(HAS_KEY))
MUTANTS.add("a LAC is not in a checkpoint", "S4", _rows_without(0, "lac_bytes"))
MUTANTS.add("limbo is not in a checkpoint", "S4", _rows_without(NO_ABSENT | NO_ADDS))
MUTANTS.add("a checkpoint does not say which segments a drop was about", "S4", _rows_without(0, "dropped"))
MUTANTS.add(
    "a tombstone is not in a checkpoint (D18)", "S4",
    (LedgerIndex, "deleted_intervals", lambda self: np.empty((0, 2), np.int64)),
)  # fmt: skip
MUTANTS.add("the checks of checkpoints and indexes are not compared", "S7", changed(blocks, "crc32c", _agreeing))
MUTANTS.add("the checks of group headers are not compared", "S3", changed(segment, "crc32c", _agreeing))
MUTANTS.add("two keys in the log are no trouble", "S4", (ledger_states, "KEY_CONFLICT", 0))
MUTANTS.add(
    "one of two keys is taken in silence", "S4", (ledger_table, "KEY_CONFLICT", 0), (state_rows, "KEY_CONFLICT", 0)
)
