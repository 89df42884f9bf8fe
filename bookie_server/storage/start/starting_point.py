# SPDX-License-Identifier: Apache-2.0
"""What a start knows before it looks at any segment: the newest checkpoint, and what follows from it (RULES S4, S8).

A checkpoint that should be there and is not, or cannot be read, is state that may be lost with the segments that were
recycled under it: never an empty start, but limbo.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from bookie_server.storage.bytes.index_rows import Rows
from bookie_server.storage.disk.cookie import DataDirectory
from bookie_server.storage.index.checkpoint import Intervals, find_checkpoint, parse_checkpoint_name
from bookie_server.storage.index.ledger_table import LEDGER_ROW
from bookie_server.storage.maintenance.checkpointer import CheckpointSummary


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """``checkpoint``: the one used (number 0: none); ``ledgers`` and ``deleted`` are what it says. ``damage``: a line
    for each file that is not what it should be. ``lost``: a newer one was made and is not readable, and segments may
    have been recycled under it."""

    checkpoint: CheckpointSummary
    ledgers: Rows
    deleted: Intervals
    damage: tuple[str, ...]
    lost: bool

    def covers(self, generation: int) -> bool:
        """Whether the checkpoint holds all that this segment says of the state of ledgers."""
        return generation <= self.checkpoint.through

    def is_drained(self, generation: int) -> bool:
        """Whether nothing in this segment counts any more; what is left of its files is to be recycled."""
        return self.covers(generation) and generation not in self.checkpoint.segments

    def without_state(self) -> StartingPoint:
        """The same for when the state is in the index: a hundred bytes for each ledger are free again."""
        return replace(self, ledgers=self.ledgers[:0].copy(), deleted=self.deleted[:0].copy())

    @property
    def must_exist(self) -> frozenset[int]:
        """Segments whose absence is a loss. Empty after a loss of checkpoints, which says as much of all of them."""
        return frozenset() if self.lost else self.checkpoint.segments


def find_starting_point(directory: DataDirectory) -> StartingPoint:
    """Read the newest checkpoint that can be read. What is left of one in the making is removed. OSError where the
    directory cannot be read."""
    files, path, identity = directory.files, directory.segments_path, directory.identity
    for name in files.names(path):
        if name.endswith(".tmp") and parse_checkpoint_name(name.removesuffix(".tmp")) is not None:
            files.remove(os.path.join(path, name))
    found = find_checkpoint(files, path, identity.incarnation_bytes)
    newest, damage = found.newest, list(found.damage)
    number = newest.number if newest is not None else 0
    lost = number < identity.checkpoint
    if lost:
        damage.append(f"checkpoint {identity.checkpoint} is lost, the newest that can be read is {number}")
    if newest is None:
        nothing = np.empty((0, 2), np.int64)
        return StartingPoint(CheckpointSummary(), np.empty(0, LEDGER_ROW), nothing, tuple(damage), lost)
    summary = CheckpointSummary(number, newest.through, frozenset(newest.segments), found.file_bytes)
    return StartingPoint(summary, newest.ledgers, newest.deleted, tuple(damage), lost)
