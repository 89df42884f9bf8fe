# SPDX-License-Identifier: Apache-2.0
"""Records what a bookie received and what it promised, and checks its answers against that."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from bk_core.wire.lane.reasons import Reason

SIZES = (40, 60, 60, 90, 400, 1100, 1100, 4000, 200_000)


def size_of(ledger_id: int, entry_id: int) -> int:
    """Return the number of payload bytes of an entry. Most entries are small, and one ledger in nine has large ones."""
    rng = random.Random(ledger_id * 1_000_003 + entry_id)
    return rng.choice(SIZES if ledger_id % 9 == 0 else SIZES[:-1])


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    return (b"%d/%d " % (ledger_id, entry_id)).ljust(size_of(ledger_id, entry_id), b"%d" % (entry_id % 10))


@dataclass(slots=True)
class Written:
    """One ledger. ``maybe`` has the entries that were sent and not answered. ``denied`` has those that were called
    ABSENT after a fence or a restart. ``hinted`` says that the bookie got a hint of the deletion, and ``deleted`` that
    it answered so itself."""

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
    """All ledgers of one data directory. ``counts`` counts what was lost, resurrected or changed; ``problems``
    describes it."""

    ledgers: dict[int, Written] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def of(self, ledger_id: int) -> Written:
        return self.ledgers.setdefault(ledger_id, Written())

    def wrong(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        self.problems.append(f"{kind.upper()}: {what}")

    def refused(self, ledger_id: int, reason: Reason) -> None:
        """Take a refusal to answer about this ledger."""
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
        """Compare an answer that was given while the bookie was written to. ``acked`` has those of its ids that were
        acknowledged before the request."""
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
        """Compare an answer for all ids of a ledger. ``settle`` says that the bookie was restarted and nothing is under
        way, so that from now on neither presence nor absence may change."""
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
