# SPDX-License-Identifier: Apache-2.0
"""What a log must hold after writes that were disturbed: each row once, in order, whole writes, nobody's leftovers.

Pure. Every row carries an id that no other row of the trial has, so each row that is found tells which write it is of.
:func:`check_rows` compares the rows of a log with the history of the writes into it; :func:`check_listed` looks at the
ledgers that the log lists, and at those that were made for it and must not be seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

PROBLEMS_MAX = 10
"""Of one check: what is broken once is often broken for every row."""


class Outcome(Enum):
    """What a writer was told of its write."""

    DONE = "done"
    """It is there."""
    FAILED = "failed"
    """It is certain that nothing is there."""
    UNKNOWN = "unknown"
    """All of it or nothing."""


class Broken(Enum):
    """The promises that a history can break."""

    LOST = "LOST"
    DUPLICATE = "DUPLICATE"
    ORDER = "ORDER"
    FOREIGN = "FOREIGN"
    """A row that nobody wrote, or that was changed on its way."""
    FAILED_VISIBLE = "FAILED_VISIBLE"
    """A row of a write that had failed."""
    TORN = "TORN"
    """A part of a write of unknown outcome."""
    ORPHAN_VISIBLE = "ORPHAN_VISIBLE"
    """Two attempts of one task are listed, or a ledger twice, or one that is not this log's."""
    LISTED_GONE = "LISTED_GONE"
    """A ledger that the log lists does not exist, is not closed, or ends elsewhere."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, in words."""

    broken: Broken
    text: str

    def __str__(self) -> str:
        return f"{self.broken.value}: {self.text}"


@dataclass(frozen=True, slots=True)
class Write:
    """One write: its rows in the order that they must have."""

    rows: Sequence[bytes]
    outcome: Outcome = Outcome.DONE


def check_rows(writes: Sequence[Write], found: Sequence[bytes]) -> list[Violation]:
    """The promises that ``found``, all rows of a log in its order, breaks for writes that came one after the other."""
    owner = {row: number for number, write in enumerate(writes) for row in write.rows}
    counts = Counter(found)
    problems = [Violation(Broken.FOREIGN, f"{row!r} was never written") for row in counts if row not in owner]
    problems += [Violation(Broken.DUPLICATE, f"{row!r} is there {n} times") for row, n in counts.items() if n > 1]
    present = set(counts)
    expected: list[bytes] = []
    for write in writes:
        problems += _check_write(write, present)
        expected += [row for row in write.rows if row in present]
    if not problems and list(found) != expected:
        at = next(at for at, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
        problems.append(Violation(Broken.ORDER, f"row {at} is {found[at]!r}, it should be {expected[at]!r}"))
    return problems[:PROBLEMS_MAX]


def _check_write(write: Write, present: set[bytes]) -> list[Violation]:
    missing = [row for row in write.rows if row not in present]
    if write.outcome is Outcome.DONE:
        return [Violation(Broken.LOST, f"{row!r} is not there") for row in missing]
    there = len(write.rows) - len(missing)
    if write.outcome is Outcome.FAILED and there:
        return [Violation(Broken.FAILED_VISIBLE, f"{there} of {len(write.rows)} rows of a failed write are there")]
    if write.outcome is Outcome.UNKNOWN and missing and there:
        return [Violation(Broken.TORN, f"{there} of {len(write.rows)} rows of a write are there")]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A ledger that a log lists, with what its own metadata say; ``task`` None where no task made it."""

    ledger_id: int
    entries: int
    log_uuid: str
    publish_id: str
    task: tuple[str, str] | None
    """Partition and attempt."""
    stored_entries: int | None
    """As its metadata have it; None: it does not exist or is not closed."""


def check_listed(uuid: str, listed: Iterable[Listed]) -> list[Violation]:
    """What is wrong with the ledgers that the log ``uuid`` lists."""
    problems: list[Violation] = []
    seen: Counter[int] = Counter()
    attempts: dict[tuple[str, str], str] = {}
    for each in listed:
        seen[each.ledger_id] += 1
        if seen[each.ledger_id] == 2:
            problems.append(Violation(Broken.ORPHAN_VISIBLE, f"ledger {each.ledger_id} is listed twice"))
        if each.stored_entries is None:
            problems.append(Violation(Broken.LISTED_GONE, f"ledger {each.ledger_id} is listed and not there, or open"))
        elif each.stored_entries != each.entries:
            text = f"ledger {each.ledger_id} has {each.stored_entries} entries, {each.entries} are listed"
            problems.append(Violation(Broken.LISTED_GONE, text))
        if each.stored_entries is not None and each.log_uuid != uuid:
            problems.append(Violation(Broken.ORPHAN_VISIBLE, f"ledger {each.ledger_id} is of log {each.log_uuid}"))
        if each.task is not None and seen[each.ledger_id] == 1:
            partition, attempt = each.task
            other = attempts.setdefault((each.publish_id, partition), attempt)
            if other != attempt:
                text = f"attempts {other} and {attempt} of partition {partition} of {each.publish_id} are both listed"
                problems.append(Violation(Broken.ORPHAN_VISIBLE, text))
    return problems[:PROBLEMS_MAX]


def check_acked(acked: Sequence[bytes], found: Sequence[bytes]) -> list[Violation]:
    """What one leader was told that is not so in ``found``: each acked entry once, the leader's own in order.

    ``found`` has this leader's entries only, in the order of the log; it may have more than was acked.
    """
    counts = Counter(found)
    problems = [Violation(Broken.LOST, f"{row!r} was acked and is not there") for row in acked if row not in counts]
    problems += [Violation(Broken.DUPLICATE, f"{row!r} is there {n} times") for row, n in counts.items() if n > 1]
    numbers = [int(row.rpartition(b":")[2]) for row in found]
    if not problems and numbers != list(range(len(numbers))):
        problems.append(Violation(Broken.ORDER, f"entries of a leader are not in its order: {numbers[:20]}"))
    return problems[:PROBLEMS_MAX]
