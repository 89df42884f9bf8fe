# SPDX-License-Identifier: Apache-2.0
"""Known defects of checkpoints, of recycling under them, of folding and of checks, put back while a context lasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bookie_server.storage import checkpoint, index_file, ledger_states, ledger_table, replay, segment, state_rows
from bookie_server.storage.checkpointer import Checkpointer, IndexSource
from bookie_server.storage.cookie import DataDirectory
from bookie_server.storage.index_port import IndexPort
from bookie_server.storage.ledger_table import FENCED, HAS_COPY_STATE, HAS_KEY, HAS_LAC, LedgerState
from tests.sim.mutants.storage import Planted, _nothing, _planted, _with_files

_finish = Checkpointer._finish
_find, _crc32c = replay.find_starting_point, checkpoint.crc32c


class _Agreeing(int):
    """A checksum that agrees with everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _agreeing(*args: Any) -> int:
    return _Agreeing(_crc32c(*args))


def _sources(name: str, change: Callable[[Any], Any]) -> Planted:
    """Both sources of checkpoints: a start's and the running bookie's."""
    return _planted(*((owner, name, change(owner.__dict__[name])) for owner in (IndexSource, IndexPort)))


def _rows_without(flag: int) -> Planted:
    def change(rows: Callable[..., Any]) -> Callable[..., Any]:
        def without(self: Any, first_ledger: int, limit: int) -> Any:
            found = rows(self, first_ledger, limit).copy()
            found["flags"] &= ~np.uint8(flag)
            if flag == HAS_LAC:
                found["lac_bytes"] = 0
            return found

        return without

    return _sources("rows", change)


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


def _lower_counter(self: Any, counter: int, severity: int) -> Any:
    held = (self.copy_counter, self.severity) if self.flags & HAS_COPY_STATE else (counter, severity)
    counter, severity = min(held, (counter, severity))
    return self._replace(flags=self.flags | HAS_COPY_STATE, copy_counter=counter, severity=severity)


def _lower_counters(rows: Any, group: Any, result: Any) -> None:
    having = rows["flags"] & HAS_COPY_STATE != 0
    rank = rows["copy_counter"].astype(np.int64) << 8 | rows["severity"]
    least = np.full(result.size, 1 << 62, np.int64)
    np.minimum.at(least, group[having], rank[having])
    least[least == 1 << 62] = 0
    result["copy_counter"], result["severity"] = least >> 8, least & 255


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
        _sources("generations", _claims_everything),
    ),
    ("a checkpoint counts on no segment", "S4", _sources("generations", _counts_on_nothing)),
    ("a fence is not in a checkpoint (D5)", "S4", _rows_without(FENCED)),
    ("a key is not in a checkpoint", "S4", _rows_without(HAS_KEY)),
    ("a LAC is not in a checkpoint", "S4", _rows_without(HAS_LAC)),
    ("limbo is not in a checkpoint", "S4", _rows_without(HAS_COPY_STATE)),
    (
        "a tombstone is not in a checkpoint (D18)", "S4",
        _sources("deleted", _no_tombstones),
    ),
    ("a checkpoint that is lost goes unnoticed", "S8", _planted((replay, "find_starting_point", _unnoticed))),
    ("the checks of a checkpoint are not compared", "S8", _planted((checkpoint, "crc32c", _agreeing))),
    ("the checks of an index are not compared", "S7", _planted((index_file, "crc32c", _agreeing))),
    ("the checks of group headers are not compared", "S3", _planted((segment, "crc32c", _agreeing))),
    (
        "two keys in the log are no trouble", "S4",
        _planted((ledger_states, "KEY_CONFLICT", 0)),
    ),
    (
        "the lowest counter holds", "S4",
        _planted(
            (LedgerState, "_with_copy_state", _lower_counter), (state_rows, "_fold_copy_states", _lower_counters)
        ),
    ),
    (
        "one of two keys is taken in silence", "S4",
        _planted((ledger_table, "KEY_CONFLICT", 0), (state_rows, "KEY_CONFLICT", 0)),
    ),
]  # fmt: skip
"""Name, rule, context."""
