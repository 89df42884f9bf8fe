# SPDX-License-Identifier: Apache-2.0
"""The findings of an examination of a data directory (``check.py``): plain values, and remedies in words."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_core.model import EntryId, LedgerId
from bookie_server.storage.disk.cookie import Identity
from bookie_server.storage.start.replay import OpenReport

SEALED, OPEN, MISSING, DRAINED = "sealed", "open", "missing", "drained"
"""The states of a segment. SEALED: with an ``.idx``. OPEN: without one, so that the next start scans it. MISSING: its
file is not there. DRAINED: without live entries, to be recycled."""


@dataclass(slots=True)
class SegmentFindings:
    """The findings about one segment. ``damage`` and ``notes`` are sentences. ``index_problem`` says why the ``.idx``
    cannot be used, and ``repaired`` whether it was rewritten. ``live_bytes`` excludes deleted ledgers and dropped
    copies."""

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
    """The findings about one ledger that is not deleted. ``first`` and ``last`` bound the stored entries, and are −1
    without entries. ``trouble`` is the reason to answer UNKNOWN for entries that are not found, or empty."""

    ledger_id: LedgerId
    first: EntryId = -1
    last: EntryId = -1
    frame_bytes: int = 0
    is_fenced: bool = False
    trouble: str = ""
    lost: list[LostEntries] = field(default_factory=list)


@dataclass(slots=True)
class DirectoryFindings:
    """The findings about a whole directory. If ``verified`` is True, every frame was read. Otherwise only indexes were
    read, and segments without one. ``start`` is the report of the next start, and ``limbo`` the reason why that start
    will put every ledger in limbo."""

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
        """All entries with a damaged copy, in the order of ``ledgers``."""
        return [one for ledger in self.ledgers.values() for one in ledger.lost]

    @property
    def is_damaged(self) -> bool:
        """Whether there is damage that was not repaired. A torn tail is not damage."""
        return bool(self.damage or self.limbo or self.bad_indexes or any(s.damage for s in self.segments))

    @property
    def in_limbo(self) -> int:
        """The number of ledgers that are in limbo now."""
        return sum(ledger.trouble == "limbo" for ledger in self.ledgers.values())

    def remedies(self) -> list[str]:
        """Return what the operator should do, a sentence each, the most important first."""
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
                f"{self.in_limbo} ledgers are in limbo: entries of them that are not found are answered UNKNOWN until "
                "they are repaired from their other copies."
            )
        if self.damage and not found:
            found.append("Solve the problems named above before the bookie is started.")
        return found or ["Nothing is wrong." if self.verified else "Nothing wrong was seen."]
