# SPDX-License-Identifier: Apache-2.0
"""What a bookie was given, what it promised, and whether its answers keep that."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from bk_core.wire.lane.reasons import Reason

SIZES = (40, 60, 60, 90, 400, 1100, 1100, 4000, 200_000)


def size_of(ledger_id: int, entry_id: int) -> int:
    """Payload bytes of an entry; most are small, and one ledger in nine has large ones."""
    rng = random.Random(ledger_id * 1_000_003 + entry_id)
    return rng.choice(SIZES if ledger_id % 9 == 0 else SIZES[:-1])


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    return (b"%d/%d " % (ledger_id, entry_id)).ljust(size_of(ledger_id, entry_id), b"%d" % (entry_id % 10))


@dataclass(slots=True)
class Written:
    """One ledger. ``maybe``: sent, and nothing was heard; ``denied``: called ABSENT to a fencer, or after a restart;
    ``hinted``: the bookie was told that it is deleted; ``deleted``: it said so itself."""

    acked: set[int] = field(default_factory=set)
    maybe: set[int] = field(default_factory=set)
    denied: set[int] = field(default_factory=set)
    fenced: bool = False
    perhaps_fenced: bool = False
    hinted: bool = False
    deleted: bool = False
    next_id: int = 0


@dataclass(slots=True)
class Oracle:
    """All ledgers of one data directory. ``counts`` of lost, resurrected, changed; ``problems`` says which."""

    ledgers: dict[int, Written] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def of(self, ledger_id: int) -> Written:
        return self.ledgers.setdefault(ledger_id, Written())

    def wrong(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        self.problems.append(f"{kind.upper()}: {what}")

    def refused(self, ledger_id: int, reason: Reason) -> None:
        """The bookie answers nothing of this ledger."""
        one = self.of(ledger_id)
        if reason is not Reason.DELETED:
            self.wrong("unknown", f"ledger {ledger_id} is refused with {reason.name}")
        elif not one.hinted:
            self.wrong("lost", f"ledger {ledger_id} is deleted and nobody asked for that")
        elif not one.deleted:
            one.deleted = True
            self.counts["found deleted"] += 1

    def heard(
        self, ledger_id: int, found: dict[int, bytes], absent: set[int], unknown: set[int], acked: set[int]
    ) -> None:
        """Compare an answer that was given while the bookie was written to. ``acked``: those of the ids it speaks of
        that had been acknowledged when it was asked."""
        one = self.of(ledger_id)
        for entry_id, payload in found.items():
            if payload != payload_of(ledger_id, entry_id):
                self.wrong("changed", f"entry {entry_id} of ledger {ledger_id} is not what was written")
        back = one.denied & set(found)
        if back:
            self.wrong("resurrected", f"entries {sorted(back)[:5]} of ledger {ledger_id} were denied and are here")
        self._missing(ledger_id, acked - set(found), absent)
        if unknown - acked:
            self.wrong("unknown", f"entries {sorted(unknown)[:5]} of ledger {ledger_id} are UNKNOWN on a healthy disk")
        self.counts["read beside writers"] += len(found)

    def _missing(self, ledger_id: int, lost: set[int], absent: set[int]) -> None:
        if lost:
            how = "ABSENT" if lost & absent else "UNKNOWN"
            self.wrong("lost", f"acked entries {sorted(lost)[:5]} ({len(lost)}) of ledger {ledger_id} are {how}")

    def answered(
        self, ledger_id: int, found: dict[int, bytes], absent: set[int], unknown: set[int], *, settle: bool
    ) -> None:
        """Compare an answer for all ids of a ledger. ``settle``: the bookie was started anew and nothing is under way:
        what is here stays, and what is not here stays away."""
        one = self.of(ledger_id)
        if one.deleted:
            self.wrong("resurrected", f"ledger {ledger_id} was deleted and is here")
        for entry_id, payload in found.items():
            if entry_id not in one.acked | one.maybe or payload != payload_of(ledger_id, entry_id):
                self.wrong("changed", f"entry {entry_id} of ledger {ledger_id} is not what was written")
        back = one.denied & set(found)
        if back:
            self.wrong("resurrected", f"entries {sorted(back)[:5]} of ledger {ledger_id} were denied and are here")
        lost = one.acked - set(found)
        self._missing(ledger_id, lost, absent)
        if unknown - lost:
            self.wrong("unknown", f"entries {sorted(unknown)[:5]} of ledger {ledger_id} are UNKNOWN on a healthy disk")
        self.counts["read"] += len(found)
        if settle:
            here = one.maybe & set(found)
            one.acked |= here
            one.denied |= one.maybe - here
            self.counts["in doubt, kept"] += len(here)
            self.counts["in doubt, gone"] += len(one.maybe - here)
            one.maybe = set()
