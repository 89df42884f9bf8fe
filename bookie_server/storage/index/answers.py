# SPDX-License-Identifier: Apache-2.0
"""The answers of the index: values without behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.model import EntryId
from bk_core.wire.lane import EntryRange, Reason
from bookie_server.machine.events import Piece
from bookie_server.machine.places import Place, Unresolved
from bookie_server.storage.bytes.index_rows import Rows


@dataclass(frozen=True, slots=True)
class Lookup:
    """The index's answer for ids first to ``through``: each is in exactly one piece, absent or unknown range.

    ``through`` is below the last requested id if there were more frames than one look-up considers, or if the rest must
    be read first. While ``unresolved`` is not empty it is first − 1: the caller has the reader find out what these
    frames and index blocks hold, and asks again.
    """

    pieces: tuple[Piece, ...]
    absent: tuple[tuple[EntryId, EntryId], ...]
    unknown: tuple[EntryRange, ...]
    unresolved: tuple[Unresolved, ...]
    through: EntryId


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The greatest entry id that is known to be intact here, and the frame that ends with it; −1 and None if there is
    none. ``bound``: no frame ends above it, damaged ones of sealed segments included. ``certain`` is False if damage or
    limbo may hide a greater id."""

    entry_id: EntryId
    place: Place | None
    certain: bool
    bound: EntryId


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """The folded state of a ledger. With a ``trouble`` other than REASON_NONE ids that are not found are UNKNOWN.
    ``lac`` and ``lac_body`` come from explicit LAC records, ``carried_lac`` from entries; none of them is verified
    (RULES P5)."""

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
    """``summary``: ledger, first, last and bytes of what the segment held and still counts. ``unreadable``: numbers of
    the blocks of its ``.idx`` that must not be believed."""

    summary: Rows
    unreadable: frozenset[int]
