# SPDX-License-Identifier: Apache-2.0
"""What an examination of a data directory found (``check.py``): plain values, and what they mean in words."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_core.model import EntryId, LedgerId
from bookie_server.storage.disk.cookie import Identity
from bookie_server.storage.start.replay import OpenReport

SEALED, OPEN, MISSING, DRAINED = "sealed", "open", "missing", "drained"
"""States of a segment: with an ``.idx``; without one, to be scanned at the next start; known of but not there; without
live entries, to be recycled."""


@dataclass(slots=True)
class SegmentFindings:
    """One segment. ``damage`` and ``notes`` are sentences; ``index_problem`` says why its ``.idx`` cannot be used, and
    ``repaired`` that it was written anew. ``live_bytes`` leaves out deleted ledgers and dropped copies."""

    generation: int
    name: str
    state: str
    size: int = 0
    frames: int = 0
    ledgers: int = 0
    frame_bytes: int = 0
    live_bytes: int = 0
    index_problem: str = ""
    repaired: bool = False
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LostEntries:
    """Entries first to last of a ledger, or some of them, whose copy in this segment is damaged."""

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    segment: str


@dataclass(slots=True)
class LedgerFindings:
    """One ledger that is not deleted. ``first`` and ``last`` bound what is stored, −1 without entries; ``trouble`` is
    empty, or why what is not found is answered UNKNOWN."""

    ledger_id: LedgerId
    first: EntryId = -1
    last: EntryId = -1
    frame_bytes: int = 0
    is_fenced: bool = False
    trouble: str = ""
    lost: list[LostEntries] = field(default_factory=list)


@dataclass(slots=True)
class DirectoryFindings:
    """The whole. ``verified``: every frame was read; otherwise only indexes and what has none. ``start``: what the next
    start will report; ``limbo``: why it will put every ledger in limbo. ``remedies`` tell how to go on."""

    path: str
    verified: bool
    identity: Identity | None = None
    start: OpenReport = field(default_factory=OpenReport)
    checkpoint: int = 0
    free_segments: int = 0
    deleted_ledgers: int = 0
    segments: list[SegmentFindings] = field(default_factory=list)
    ledgers: dict[LedgerId, LedgerFindings] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    limbo: list[str] = field(default_factory=list)

    @property
    def bad_indexes(self) -> list[SegmentFindings]:
        """Segments whose ``.idx`` cannot be used and was not repaired."""
        return [segment for segment in self.segments if segment.index_problem and not segment.repaired]

    @property
    def lost(self) -> list[LostEntries]:
        """All entries with a damaged copy, by ledger."""
        return [one for ledger in self.ledgers.values() for one in ledger.lost]

    @property
    def is_damaged(self) -> bool:
        """Whether anything is wrong that was not repaired. A torn tail is not."""
        return bool(self.damage or self.limbo or self.bad_indexes or any(s.damage for s in self.segments))

    @property
    def in_limbo(self) -> int:
        """How many ledgers are in limbo now."""
        return sum(ledger.trouble == "limbo" for ledger in self.ledgers.values())

    def remedies(self) -> list[str]:
        """How to go on, a sentence each; what matters most comes first."""
        found: list[str] = []
        if self.identity is None:
            found.append(
                "Restore IDENTITY and VERSION from a copy. If there is none: start this bookie with an empty directory "
                "and --accept-loss, and keep this one."
            )
        if self.limbo:
            found.append(
                "The bookie can be started: damage that cannot be named puts all its ledgers in limbo, for good. It "
                "serves what it finds, denies nothing, and takes no new entries, until the ledgers are repaired from "
                "their other copies. To have it take new ledgers: start it with an empty directory and --accept-loss."
            )
        if self.lost:
            found.append(
                "The bookie can be started: the entries named above are answered UNKNOWN, so that readers take them "
                "from other bookies. Look for the cause: kernel log, SMART, memory."
            )
        if self.bad_indexes:
            found.append("Unusable indexes are rebuilt by the bookie itself, or now with --repair.")
        if self.in_limbo and not self.limbo:
            found.append(
                f"{self.in_limbo} ledgers are in limbo: what is not found of them is answered UNKNOWN until they are "
                "repaired from their other copies."
            )
        if self.damage and not found:
            found.append("Compare with what is named above before the bookie is started.")
        return found or ["Nothing is wrong." if self.verified else "Nothing wrong was seen."]
