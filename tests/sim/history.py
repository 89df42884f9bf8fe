# SPDX-License-Identifier: Apache-2.0
"""Checks the results that clients of one ledger got against the ledger as it is in the end. Pure, and linear in the
entries.

The simulator and the trials on real processes record the same :class:`Operation`. :func:`check_ledger` finds every
broken promise. Times are any growing numbers common to all clients (steps of the scheduler, CLOCK_MONOTONIC).

The promises (RULES P1, P2, P7, P9): acknowledged entries are there, with their bytes, in the order given. Refused
entries are not there. Entries of unknown outcome are there once or not at all. A LAC names only entries that stay. The
end of a closed ledger never moves. All readers read the same bytes, and none of them before they were appended.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain


class Kind(enum.Enum):
    """The kind of an operation."""

    APPEND = "append"  # one or more entries, in the writer's order
    LAC = "lac"  # a client got this LAC
    READ = "read"  # a range was read
    END = "end"  # the ledger was closed, recovered or seen closed, with this last entry


class Outcome(enum.Enum):
    OK = "ok"
    FAILED = "failed"  # the client was sure that it did not happen
    UNKNOWN = "unknown"  # there was no answer, or the answer said so


class Broken(enum.Enum):
    """The promises, named by how they are broken."""

    LOST = "something acknowledged, confirmed or read is not in the ledger"
    CHANGED = "an entry has other bytes than it had"
    INVENTED = "an entry was never appended"
    DOUBLED = "an append is there twice"
    REORDERED = "entries are not in the order in which they were appended"
    REFUSED_PRESENT = "an append that was refused is there"
    MISNUMBERED = "an append was acknowledged with an id that cannot be"
    LATE_ACK = "an append was acknowledged that began after the ledger had ended"
    END_MOVED = "a closed ledger has another end than it had"
    SKIPPED = "a read gave other entries than it was asked for"
    DENIED = "an entry of the ledger was said to be lost"
    TOO_EARLY = "something was read or confirmed before it was appended"
    WENT_BACK = "a client was told an older LAC than before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of one client. ``returned`` is None if the call never came back (a killed client). Its outcome is then
    UNKNOWN.

    APPEND: ``first`` is the writer's own number of the first entry, ``digests`` has one for each entry, and
    ``entry_id`` is the ledger's id of the first entry, if OK. LAC and END: ``entry_id``. READ: ``first`` and ``last``
    as requested; ``digests`` of the entries that came. In a failed read ``denied`` names the entry that was called
    lost, not merely unreadable.
    """

    kind: Kind
    client: str
    invoked: int
    returned: int | None = None
    outcome: Outcome = Outcome.OK
    first: int = 0
    last: int = -1
    digests: tuple[bytes, ...] = ()
    entry_id: int = -1
    denied: int | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise, and where it shows."""

    broken: Broken
    detail: str

    def __str__(self) -> str:
        return f"{self.broken.name}: {self.broken.value}: {self.detail}"


@dataclass(slots=True)
class _Appends:
    """The writer's entries one by one, by its own numbers."""

    digests: list[bytes] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)  # −1 if not acknowledged
    refused: list[bool] = field(default_factory=list)
    invoked: list[int] = field(default_factory=list)


def check_ledger(operations: Sequence[Operation], final: Sequence[bytes] | None) -> list[Violation]:
    """Return every broken promise of one ledger's history, at most one for each promise and operation.

    ``final`` has a digest for each entry of the closed ledger, read after everything else. It is None if no client
    could close the ledger. Then the results of clients are only compared with each other.
    """
    appends = _flatten(op for op in operations if op.kind is Kind.APPEND)
    found: list[Violation] = []
    known = _agreed(operations, appends, final, found)
    places = _match(known, appends, found)
    for op in operations:
        if op.outcome is Outcome.OK and op.kind is not Kind.APPEND:
            found += _check_seen(op, None if final is None else len(final), places, appends)
        if op.denied is not None and op.denied < len(known):
            found.append(Violation(Broken.DENIED, f"entry {op.denied} to {op.client}"))
    if final is not None:
        found += _check_acks(operations, len(final))
    return found + _check_ends(operations, None if final is None else len(final) - 1) + _check_progress(operations)


def _flatten(operations: Iterable[Operation]) -> _Appends:
    appends = _Appends()
    for op in sorted(operations, key=lambda op: op.first):
        assert op.first == len(appends.digests), "the numbers of one writer have no gaps"
        count = len(op.digests)
        ok = op.outcome is Outcome.OK
        appends.digests += op.digests
        appends.ids += range(op.entry_id, op.entry_id + count) if ok else [-1] * count
        appends.refused += [op.outcome is Outcome.FAILED] * count
        appends.invoked += [op.invoked] * count
    return appends


def _agreed(
    operations: Sequence[Operation], appends: _Appends, final: Sequence[bytes] | None, found: list[Violation]
) -> list[bytes]:
    """Return the entries that all clients must see: the final ones, or all that clients read without a gap."""
    known = list(final) if final is not None else []
    reads = (op for op in operations if op.kind is Kind.READ)
    for op in sorted(reads, key=lambda op: op.first):
        for entry, digest in enumerate(op.digests, op.first):
            if entry < len(known):
                if known[entry] != digest:
                    found.append(Violation(Broken.CHANGED, f"entry {entry} as {op.client} read it at {op.invoked}"))
                    break
            elif final is None and entry == len(known):
                known.append(digest)
    return known


def _match(known: Sequence[bytes], appends: _Appends, found: list[Violation]) -> list[int]:
    """Return the writer's number of each entry. The match is exact and linear. Acknowledged entries are fixed by their
    ids. The entries between two of them must be a subsequence of the appends between, which the greedy choice finds if
    there is one."""
    acked = {entry: seq for seq, entry in enumerate(appends.ids) if entry >= 0}
    _check_numbers(appends, found)
    places: list[int] = []
    at = 0
    for entry, digest in enumerate(known):
        seq = acked.get(entry)
        if seq is None:
            seq = at
            while seq < len(appends.digests) and not _may_be(appends, seq, digest):
                if appends.ids[seq] >= 0:  # this one cannot be skipped: its place is further on
                    seq = len(appends.digests)
                seq += 1
        if seq >= len(appends.digests) or seq < at or appends.digests[seq] != digest:
            found.append(_misfit(entry, digest, seq, at, appends, places))
            break
        places.append(seq)
        at = seq + 1
    return places


def _may_be(appends: _Appends, seq: int, digest: bytes) -> bool:
    return appends.ids[seq] < 0 and not appends.refused[seq] and appends.digests[seq] == digest


def _check_numbers(appends: _Appends, found: list[Violation]) -> None:
    """Check that ids of acknowledged appends ascend, and leave no more room between them than there are appends."""
    last_seq, last_id = -1, -1
    for seq, entry in enumerate(appends.ids):
        if entry < 0:
            continue
        if not 0 < entry - last_id <= seq - last_seq:
            found.append(Violation(Broken.MISNUMBERED, f"append {seq} got id {entry}, append {last_seq} had {last_id}"))
            return
        last_seq, last_id = seq, entry


def _misfit(entry: int, digest: bytes, seq: int, at: int, appends: _Appends, places: list[int]) -> Violation:
    """Return why this entry cannot follow the entries before it."""
    if seq < len(appends.digests) and appends.ids[seq] == entry:
        if appends.digests[seq] != digest:
            return Violation(Broken.CHANGED, f"entry {entry} was acknowledged with other bytes (append {seq})")
        return Violation(Broken.REORDERED, f"entry {entry} is append {seq}, after append {at - 1}")
    candidates = [seq for seq, given in enumerate(appends.digests) if given == digest]
    if not candidates:
        return Violation(Broken.INVENTED, f"entry {entry}")
    if all(appends.refused[seq] for seq in candidates):
        return Violation(Broken.REFUSED_PRESENT, f"entry {entry} is append {candidates[0]}")
    if set(candidates) & set(places):
        return Violation(Broken.DOUBLED, f"entry {entry} is append {candidates[0]} again")
    return Violation(Broken.REORDERED, f"entry {entry} is append {candidates[0]}, after append {at - 1}")


def _check_seen(op: Operation, count: int | None, places: list[int], appends: _Appends) -> list[Violation]:
    """Check one answer: it names nothing beyond the ledger, has the requested entries, and none from the future."""
    found: list[Violation] = []
    top = op.entry_id
    if op.kind is Kind.READ:
        top = op.first + len(op.digests) - 1
        if len(op.digests) != op.last - op.first + 1:
            asked = f"{op.client} asked for {op.first} to {op.last} and got {len(op.digests)}"
            found.append(Violation(Broken.SKIPPED, asked))
    if op.kind is not Kind.END and count is not None and top >= count:
        detail = f"entry {top} as {op.client} saw it ({op.kind.value}) at {op.returned}; the end is {count - 1}"
        found.append(Violation(Broken.LOST, detail))
    if op.returned is not None and 0 <= top < len(places) and appends.invoked[places[top]] > op.returned:
        found.append(Violation(Broken.TOO_EARLY, f"entry {top} by {op.client} at {op.returned}"))
    return found


def _check_acks(operations: Sequence[Operation], count: int) -> list[Violation]:
    found: list[Violation] = []
    ends = (op.returned for op in operations if op.kind is Kind.END and op.outcome is Outcome.OK)
    ended = min((at for at in ends if at is not None), default=None)
    for op in operations:
        if op.kind is not Kind.APPEND or op.outcome is not Outcome.OK:
            continue
        if op.entry_id + len(op.digests) > count:
            last = op.entry_id + len(op.digests) - 1
            found.append(Violation(Broken.LOST, f"acknowledged up to entry {last}; the ledger ends at {count - 1}"))
        if ended is not None and op.invoked > ended:
            found.append(
                Violation(Broken.LATE_ACK, f"entry {op.entry_id} at {op.invoked}; the ledger ended at {ended}")
            )
    return found


def _check_ends(operations: Sequence[Operation], end: int | None) -> list[Violation]:
    seen = [op for op in operations if op.kind is Kind.END and op.outcome is Outcome.OK]
    wanted = end if end is not None or not seen else seen[0].entry_id
    return [
        Violation(Broken.END_MOVED, f"{op.client} was told {op.entry_id} at {op.returned}; it is {wanted}")
        for op in seen
        if op.entry_id != wanted
    ]


def _check_progress(operations: Sequence[Operation]) -> list[Violation]:
    """Check that one client's calls follow each other, and that its LAC never shrinks."""
    highest: dict[str, tuple[int, int]] = {}
    found: list[Violation] = []
    lacs = (op for op in operations if op.kind is Kind.LAC and op.outcome is Outcome.OK)
    for op in sorted(lacs, key=lambda op: op.invoked):
        lac, returned = highest.get(op.client, (-1, -1))
        if op.entry_id < lac and op.invoked >= returned:
            found.append(Violation(Broken.WENT_BACK, f"{op.client} heard {op.entry_id} at {op.returned} after {lac}"))
        if op.entry_id > lac:
            highest[op.client] = (op.entry_id, op.invoked if op.returned is None else op.returned)
    return found


def counts(histories: Iterable[Sequence[Operation]]) -> dict[str, int]:
    """Return the totals for a report: operations, and entries that were acknowledged, of unknown outcome, refused, or
    read."""
    operations = list(chain.from_iterable(histories))
    entries = dict.fromkeys(Outcome, 0)
    for op in operations:
        if op.kind is Kind.APPEND:
            entries[op.outcome] += len(op.digests)
    return {
        "operations": len(operations),
        "acknowledged": entries[Outcome.OK],
        "unknown": entries[Outcome.UNKNOWN],
        "refused": entries[Outcome.FAILED],
        "read": sum(len(op.digests) for op in operations if op.kind is Kind.READ),
    }
