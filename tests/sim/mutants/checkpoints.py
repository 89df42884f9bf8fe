# SPDX-License-Identifier: Apache-2.0
"""Known defects of checkpoints, of recycling under them, of folding and of checks, put back while a context lasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from tests.sim.mutants.storage import Planted, _nothing, _planted, _with_files

_finish = Checkpointer._finish
_find, _crc32c = replay.find_starting_point, blocks.crc32c
_merged, _folded_rows = LedgerState.merged, state_rows._folded
_trouble, _counting, _lookup = LedgerStates.trouble, LedgerStates.counting, LedgerIndex.lookup


class _Agreeing(int):
    """A checksum that agrees with everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _agreeing(*args: Any) -> int:
    return _Agreeing(_crc32c(*args))


def _index_says(name: str, change: Callable[[Any], Any]) -> Planted:
    return _planted((LedgerIndex, name, change(LedgerIndex.__dict__[name])))


def _rows_without(flags: int = 0, *columns: str) -> Planted:
    def change(rows: Callable[..., Any]) -> Callable[..., Any]:
        def without(self: Any, first_ledger: int, limit: int) -> Any:
            found = rows(self, first_ledger, limit).copy()
            found["flags"] &= ~np.uint8(flags)
            for name in columns:
                found[name] = 0
            return found

        return without

    return _index_says("export_ledgers", change)


def _claims_everything(generations: Callable[..., Any]) -> Callable[..., Any]:
    def claim(self: Any) -> tuple[Sequence[int], Sequence[int], int]:
        sealed, unsealed, newest = generations(self)
        return sealed, (), max(newest, *unsealed, 0)

    return claim


def _counts_on_nothing(generations: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: ((), *generations(self)[1:])


def _no_tombstones(deleted: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: np.empty((0, 2), np.int64)


def _unnoticed(directory: Any) -> Any:
    return replace(_find(directory), lost=False, damage=())


def _drop_ends_limbo(self: Any, other: Any) -> Any:
    """Of a record of a drop, and of a checkpoint's row of a ledger with a dropped copy."""
    state, bits = _merged(self, other), NO_ABSENT | NO_ADDS
    return state._replace(flags=state.flags & ~bits | other.flags & bits) if other.flags & bits else state


def _one_bit_a_ledger(rows: Any, ids: Any) -> Any:
    result = _folded_rows(rows, ids)
    result["flags"] &= ~np.where(result["dropped"] > 0, NO_ADDS, 0).astype(np.uint8)
    return result


def _lesser_generation(self: Any, other: Any) -> Any:
    state = _merged(self, other)
    return state._replace(dropped=min(self.dropped, other.dropped)) if self.dropped and other.dropped else state


def _lesser_generations(rows: Any, ids: Any) -> Any:
    result, dropped = _folded_rows(rows, ids), rows[rows["dropped"] > 0]
    for row in result:
        mine = dropped["dropped"][dropped["ledger"] == row["ledger"]]
        row["dropped"] = mine.min() if mine.size else 0
    return result


def _dropped_copies_deny(self: Any, state: Any) -> Reason:
    found = _trouble(self, state)
    return Reason.REASON_NONE if found is Reason.COPY_DROPPED else found


def _of_the_unknown_alone(self: Any, state: Any) -> Reason:
    every, self._of_every_ledger = self._of_every_ledger, 0 if state is not None else self._of_every_ledger
    try:
        return _trouble(self, state)
    finally:
        self._of_every_ledger = every


def _newer_ones_are_dead(self: Any, generation: int, rows: Any) -> Any:
    return _counting(self, 0, rows)


def _nothing_is_found(self: Any, ledger_id: int, *args: Any, **named: Any) -> Any:
    found = _lookup(self, ledger_id, *args, **named)
    trouble = self.folded(ledger_id)[1]
    if not trouble or found.unresolved or self.is_deleted(ledger_id):
        return found
    return Lookup((), (), (EntryRange(args[0], found.through, trouble),), (), found.through)


CHECKPOINT_MUTANTS: list[tuple[str, str, Planted]] = [
    (
        "a checkpoint is believed before it is durable", "S4",
        _planted((Checkpointer, "_finish", _with_files(
            _finish, sync_data=lambda _: _nothing, rename=lambda files: files._replace
        ))),
    ),
    ("a checkpoint is not named by IDENTITY", "S4", _planted((DataDirectory, "record_checkpoint", _nothing))),
    (
        "segments are recycled without a checkpoint", "S4",
        _planted(
            (Checkpointer, "may_recycle", lambda self, generation: True), (Checkpointer, "start", lambda self: False)
        ),
    ),
    (
        "a checkpoint claims what is not sealed yet", "S4",
        _index_says("generations", _claims_everything),
    ),
    ("a checkpoint counts on no segment", "S4", _index_says("generations", _counts_on_nothing)),
    ("a fence is not in a checkpoint (D5)", "S4", _rows_without(FENCED)),
    ("a key is not in a checkpoint", "S4", _rows_without(HAS_KEY)),
    ("a LAC is not in a checkpoint", "S4", _rows_without(0, "lac_bytes")),
    ("limbo is not in a checkpoint", "S4", _rows_without(NO_ABSENT | NO_ADDS)),
    ("a checkpoint does not say which segments a drop was about", "S4", _rows_without(0, "dropped")),
    (
        "a tombstone is not in a checkpoint (D18)", "S4",
        _index_says("deleted_intervals", _no_tombstones),
    ),
    ("a checkpoint that is lost goes unnoticed", "S8", _planted((replay, "find_starting_point", _unnoticed))),
    ("the checks of checkpoints and indexes are not compared", "S7", _planted((blocks, "crc32c", _agreeing))),
    ("the checks of group headers are not compared", "S3", _planted((segment, "crc32c", _agreeing))),
    (
        "two keys in the log are no trouble", "S4",
        _planted((ledger_states, "KEY_CONFLICT", 0)),
    ),
    ("a drop ends limbo", "S4", _planted((LedgerState, "merged", _drop_ends_limbo))),
    ("a drop ends limbo at the next start", "S4", _planted((state_rows, "_folded", _one_bit_a_ledger))),
    ("the lesser generation of two drops holds", "S4", _planted((LedgerState, "merged", _lesser_generation))),
    ("the lesser generation of two drops holds at the next start", "S4",
     _planted((state_rows, "_folded", _lesser_generations))),
    ("what a dropped copy lacks is denied", "S4", _planted((LedgerStates, "trouble", _dropped_copies_deny))),
    ("limbo of every ledger holds for unknown ones alone", "S8",
     _planted((LedgerStates, "trouble", _of_the_unknown_alone))),
    ("what is added after a drop is dead too", "S4", _planted((LedgerStates, "counting", _newer_ones_are_dead))),
    ("nothing is found of a ledger in limbo", "S4", _planted((LedgerIndex, "lookup", _nothing_is_found))),
    (
        "one of two keys is taken in silence", "S4",
        _planted((ledger_table, "KEY_CONFLICT", 0), (state_rows, "KEY_CONFLICT", 0)),
    ),
]  # fmt: skip
"""Name, rule, context."""
