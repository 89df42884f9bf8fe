# SPDX-License-Identifier: Apache-2.0
"""Checks a log after writes that were disturbed: each row once, in order, only whole writes, and no rows of failed
attempts.

Pure. Every row has an id that no other row of the trial has, so each row that is found shows to which write it belongs.
:func:`check_rows` compares the rows of a log with the history of the writes into it. :func:`check_listed` checks the
ledgers that the log lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

PROBLEMS_MAX = 10
"""The maximum number of problems of one check. A defect often breaks every row."""


class Outcome(Enum):
    """The outcome of a write, as its writer knows it."""

    DONE = "done"
    """The log must have all of the rows."""
    FAILED = "failed"
    """The log must have none of the rows."""
    UNKNOWN = "unknown"
    """The log must have all of the rows, or none."""


class Broken(Enum):
    """The promises that a history can break."""

    LOST = "LOST"
    DUPLICATE = "DUPLICATE"
    ORDER = "ORDER"
    FOREIGN = "FOREIGN"
    """A row that was never written, or that was changed."""
    FAILED_VISIBLE = "FAILED_VISIBLE"
    """A row of a write that had failed."""
    TORN = "TORN"
    """A part of a write of unknown outcome."""
    ORPHAN_VISIBLE = "ORPHAN_VISIBLE"
    """The log lists two attempts of one task, a ledger twice, or a ledger of another log."""
    LISTED_GONE = "LISTED_GONE"
    """A ledger that the log lists does not exist, is not closed, or ends elsewhere."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise, with a description."""

    broken: Broken
    text: str

    def __str__(self) -> str:
        return f"{self.broken.value}: {self.text}"


@dataclass(frozen=True, slots=True)
class Write:
    """One write, with its rows in the order that they must have."""

    rows: Sequence[bytes]
    outcome: Outcome = Outcome.DONE


def check_rows(writes: Sequence[Write], found: Sequence[bytes]) -> list[Violation]:
    """Return the broken promises of ``found``, all rows of a log in its order, for writes that came one after the
    other."""
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
    """A ledger that a log lists, with facts from the ledger's own metadata. ``task`` is None if no task made it."""

    ledger_id: int
    entries: int
    log_uuid: str
    publish_id: str
    task: tuple[str, str] | None
    """The partition and the attempt."""
    stored_entries: int | None
    """The number of entries according to the ledger's metadata. None if the ledger does not exist or is not closed."""


def check_listed(uuid: str, listed: Iterable[Listed]) -> list[Violation]:
    """Return the problems of the ledgers that the log ``uuid`` lists."""
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
    """Return the broken promises to one leader: ``found`` must have each acked entry once, in the leader's order.

    ``found`` has only this leader's entries, in the order of the log. It may have more entries than were acked.
    """
    counts = Counter(found)
    problems = [Violation(Broken.LOST, f"{row!r} was acked and is not there") for row in acked if row not in counts]
    problems += [Violation(Broken.DUPLICATE, f"{row!r} is there {n} times") for row, n in counts.items() if n > 1]
    numbers = [int(row.rpartition(b":")[2]) for row in found]
    if not problems and numbers != list(range(len(numbers))):
        problems.append(Violation(Broken.ORDER, f"entries of a leader are not in its order: {numbers[:20]}"))
    return problems[:PROBLEMS_MAX]
