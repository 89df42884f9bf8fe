# SPDX-License-Identifier: Apache-2.0
"""Finds out from a ledger's record how many bytes of copies are on one bookie, and what keeps them there. Pure.

A drain uses this before it begins, so that a drain that cannot end is refused before it changes anything. It uses it
again while it runs, to report what it waits for (decision 0051). Replacements are chosen by the same rules as in a
repair.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from bk_core.errors import NotEnoughBookiesError
from bk_core.model import NO_ENTRY, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata
from bk_core.placement import RandomSource, replacement
from bk_core.protocol.replication.events import ClusterRead
from bk_core.quorum import write_set


class Blocked(enum.Enum):
    """The reason why a bookie cannot leave a ledger now."""

    NOTHING = ""
    WRITER = "it is open: its writer replaces the bookie at its next entry, or closes the ledger"
    NO_BOOKIE = "no other bookie can take over"
    LAST_COPY = "no registered bookie has another copy, and this bookie is not registered"
    UNREADABLE = "its record cannot be read"


@dataclass(frozen=True, slots=True)
class CopiesLeft:
    """A ledger whose record names the bookie. ``size`` is the number of bytes of its copies on that bookie, 0 if
    unknown. ``blocked`` and ``detail`` say what keeps the copies there."""

    ledger_id: LedgerId
    size: int = 0
    blocked: Blocked = Blocked.NOTHING
    detail: str = ""

    @property
    def why(self) -> str:
        return f"{self.blocked.value}{f' ({self.detail})' if self.detail else ''}"


def end_of(value: LedgerMetadata, first: EntryId) -> EntryId | None:
    """Return the last entry of the fragment that begins at ``first``, or None if the fragment has no end yet."""
    return value.last_entry_of(value.fragment_index_of(first))


def fragments_of(value: LedgerMetadata, bookie: BookieId) -> Iterator[tuple[Fragment, EntryId | None]]:
    """Yield the fragments that name the bookie, each with its last entry, or with None if it has no end yet."""
    for fragment in value.fragments:
        if bookie in fragment.ensemble:
            yield fragment, end_of(value, fragment.first_entry_id)


def last_of(value: LedgerMetadata, bookie: BookieId, through: EntryId) -> EntryId:
    """Return the highest id up to ``through`` that the bookie has to hold, or −1 if there is none."""
    for fragment in reversed(value.fragments):
        first, ensemble = fragment.first_entry_id, fragment.ensemble
        if bookie in ensemble:
            index, size = ensemble.index(bookie), value.ensemble_size
            for entry in range(through, max(first, through - size + 1) - 1, -1):
                if index in write_set(entry, size, value.write_quorum_size):
                    return entry
        through = min(through, first - 1)
    return NO_ENTRY


def size_of(value: LedgerMetadata, bookie: BookieId) -> int:
    """Estimate the bytes of the ledger that the bookie holds. The estimate assumes that all entries are equally long
    and that all members of an ensemble hold equally many. Return 0 while the ledger is not closed, because its record
    has no length yet."""
    if not value.is_closed or value.last_entry_id < 0:
        return 0
    entries = sum(end - fragment.first_entry_id + 1 for fragment, end in fragments_of(value, bookie) if end is not None)
    share = value.write_quorum_size / value.ensemble_size
    return round(value.length * max(0, entries) * share / (value.last_entry_id + 1))


def copies_left(
    ledger_id: LedgerId, value: LedgerMetadata, bookie: BookieId, cluster: ClusterRead, random: RandomSource
) -> CopiesLeft | None:
    """Return the bookie's copies of this ledger and what blocks their move, or None if no fragment names the bookie."""
    held = list(fragments_of(value, bookie))
    if not held:
        return None
    size = size_of(value, bookie)
    is_here = cluster.life_of(bookie) is not None
    blocked, detail = Blocked.NOTHING, ""
    for fragment, end in held:
        found = _what_keeps(
            value, fragment, bookie, cluster, random, is_here=is_here, is_empty=_is_empty(fragment, end)
        )
        if found[0] is not Blocked.NOTHING:
            return CopiesLeft(ledger_id, size, *found)
        if end is None and blocked is Blocked.NOTHING:
            blocked = Blocked.WRITER
    return CopiesLeft(ledger_id, size, blocked, detail)


def _is_empty(fragment: Fragment, end: EntryId | None) -> bool:
    return end is not None and end < fragment.first_entry_id


def _what_keeps(
    value: LedgerMetadata,
    fragment: Fragment,
    bookie: BookieId,
    cluster: ClusterRead,
    random: RandomSource,
    *,
    is_here: bool,
    is_empty: bool,
) -> tuple[Blocked, str]:
    index = fragment.ensemble.index(bookie)
    others = {b for b in fragment.ensemble if b != bookie and cluster.life_of(b) is not None}
    if not is_here and not is_empty and not _is_elsewhere(value, fragment, index, others):
        return Blocked.LAST_COPY, f"fragment {fragment.first_entry_id}: {', '.join(fragment.ensemble)}"
    chosen = replacement(
        replace(value, fragments=(fragment,)),
        (index,),
        cluster.writable,
        cluster.quarantined,
        random,
        gone=(*cluster.leaving, bookie),
        landscape=cluster.landscape,
    )
    if isinstance(chosen, NotEnoughBookiesError):
        return Blocked.NO_BOOKIE, f"fragment {fragment.first_entry_id} is on {', '.join(fragment.ensemble)}"
    return Blocked.NOTHING, ""


def _is_elsewhere(value: LedgerMetadata, fragment: Fragment, index: int, others: Collection[BookieId]) -> bool:
    """Return whether each write set that has the bookie at ``index`` also has a member in ``others``."""
    size, write_quorum = value.ensemble_size, value.write_quorum_size
    for start in range(index - write_quorum + 1, index + 1):
        members = [fragment.ensemble[(start + i) % size] for i in range(write_quorum)]
        if not any(member in others for member in members):
            return False
    return True
