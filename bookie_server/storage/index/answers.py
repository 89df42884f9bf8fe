# SPDX-License-Identifier: Apache-2.0
"""What the index answers: values without behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.model import EntryId
from bk_core.wire.lane import EntryRange, Reason
from bookie_server.machine.events import Piece
from bookie_server.machine.places import Place, Unresolved
from bookie_server.storage.bytes.index_rows import Rows


@dataclass(frozen=True, slots=True)
class Lookup:
    """Answer of the index for ids first to ``through``: each is in exactly one piece, absent or unknown range.

    ``through`` is below the last id asked for where there were more frames than one look-up considers, or the rest
    must be read first; it is first − 1 while ``unresolved`` is not empty: then the reader must say what these frames
    and index blocks hold, and the caller asks again.
    """

    pieces: tuple[Piece, ...]
    absent: tuple[tuple[EntryId, EntryId], ...]
    unknown: tuple[EntryRange, ...]
    unresolved: tuple[Unresolved, ...]
    through: EntryId


@dataclass(frozen=True, slots=True)
class LastEntry:
    """Greatest entry id that is known to be intact here and the frame that ends with it; −1 and None where there is
    none. ``bound``: no frame ends above it, damaged ones of sealed segments included. ``certain`` is False where damage
    or limbo may hide a greater one."""

    entry_id: EntryId
    place: Place | None
    certain: bool
    bound: EntryId


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """Folded state of a ledger. ``trouble`` other than REASON_NONE: what is not found is UNKNOWN. ``lac`` and
    ``lac_body`` come from explicit LAC records, ``carried_lac`` from entries; none of them is verified (RULES P5)."""

    known: bool
    key: bytes | None
    fenced: bool
    deleted: bool
    lac: EntryId
    lac_body: bytes
    carried_lac: EntryId
    carried_place: Place | None
    trouble: Reason


@dataclass(frozen=True, slots=True, eq=False)
class DamagedIndex:
    """``summary``: ledger, first, last and bytes of what the segment held that still counts; ``unreadable``:
    numbers of blocks of its ``.idx`` that are not to be believed."""

    summary: Rows
    unreadable: frozenset[int]
