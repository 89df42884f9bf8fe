# SPDX-License-Identifier: Apache-2.0
"""What opening a data directory found and did, for the operator and for what goes on from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie_server.storage.maintenance.checkpointer import CheckpointSummary


@dataclass(slots=True)
class OpenReport:
    """What opening a data directory found and did. ``damage`` is one line for each piece of damage, for the log and the
    operator; ``tail_bytes_dropped`` counts bytes of groups whose sync never returned."""

    segments: int = 0
    indexes_loaded: int = 0
    indexes_rebuilt: list[int] = field(default_factory=list)
    segments_scanned: int = 0
    frames: int = 0
    frames_copied: int = 0
    tail_bytes_dropped: int = 0
    damage: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    """Those lines of ``damage`` whose ledger cannot be named: every ledger is in limbo from now on."""
    ledgers_in_limbo: list[int] = field(default_factory=list)
    """Ledgers that lost a record of their own: in limbo from now on."""
    newest_sealed: int = 0
    checkpoint: CheckpointSummary = field(default_factory=CheckpointSummary)
    """The newest one that is durable: for the Checkpointer that goes on from it. Number 0: there is none."""
    checkpoint_lost: bool = False
    """A newer checkpoint than the one used was made and cannot be read: every ledger is in limbo from now on."""
    drained: list[int] = field(default_factory=list)
    """Segments that were drained before and are put aside for recycling now."""

    @property
    def limbo(self) -> bool:
        """Whether every ledger is in limbo from now on."""
        return bool(self.unnamed)
