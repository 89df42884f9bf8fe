# SPDX-License-Identifier: Apache-2.0
"""Decides how much each Spark task and each micro-batch reads. Pure: numbers in, numbers out.

Theory. A task costs about 30 ms however little it reads. So small ledgers share a task, and large ones are split, by
payload bytes. A part of a ledger counts as its share of the ledger's bytes, as if all entries had the same size.
Planning a batch again may give another number of partitions, but never other rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import islice

from bk_core.model import DigestType, EntryId, Fragment, LedgerId, LedgerMetadata


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """The part of a ledger's record that a read needs: which bookies hold an entry, and how it is verified. Most
    ledgers of a log have one of a few layouts. They share one object (:class:`Layouts`), which a task carries once."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    fragments: tuple[Fragment, ...]
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, metadata: LedgerMetadata, password: bytes) -> PartitionLayout:
        """Return the layout in a ledger's record. Tasks verify MACs with the record's password or, if it has none,
        the user's."""
        return cls(
            metadata.ensemble_size,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            metadata.fragments,
            metadata.digest_type,
            password if metadata.password is None else metadata.password,
        )

    def metadata(self) -> LedgerMetadata:
        """Return the layout as a ledger's record. It does not say where the ledger ends, because the ranges to read are
        known to exist."""
        return LedgerMetadata(
            ensemble_size=self.ensemble_size,
            write_quorum_size=self.write_quorum_size,
            ack_quorum_size=self.ack_quorum_size,
            fragments=self.fragments,
            digest_type=self.digest_type,
            password=self.password,
        )


class Layouts:
    """A cache that returns the same object for equal layouts."""

    def __init__(self) -> None:
        self._known: dict[PartitionLayout, PartitionLayout] = {}

    def __call__(self, layout: PartitionLayout) -> PartitionLayout:
        return self._known.setdefault(layout, layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRange:
    """Entries ``first`` to ``last`` of a ledger, both inclusive. ``log`` names the log they were found in and
    ``offset`` is the log offset of ``first``; both are None for a bare ledger. ``bytes`` are payload bytes, estimated.
    ``created_ms`` is when the ledger was made, if known; ``closed`` whether it was closed at the time of planning.
    ``layout`` is None only if the entries are not to be read from bookies."""

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    bytes: int
    log: str | None = None
    offset: int | None = None
    schema_number: int = 0
    created_ms: int | None = None
    closed: bool = True
    layout: PartitionLayout | None = None

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    def split(self, entries: int) -> tuple[LedgerRange, LedgerRange]:
        """Split into the first ``entries`` entries and the rest. Neither part may be empty."""
        size, at = self.bytes * entries // self.entries, self.first + entries
        offset = None if self.offset is None else self.offset + entries
        return replace(self, last=at - 1, bytes=size), replace(self, first=at, bytes=self.bytes - size, offset=offset)


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """The limits of the options ``maxBytesPerPartition``, ``maxEntriesPerPartition`` and ``minPartitions``.
    ``range_bytes`` is the cost of a range in addition to its bytes, because each range is a request of its own.
    ``entry_bytes``, if given, is the cost of each entry whatever its size; it is given if entries are not read.
    ``processors`` is the number of tasks that are made at least if ``partitions_min`` is not given, as far as each then
    costs PARALLEL_BYTES."""

    bytes_max: int
    entries_max: int | None = None
    partitions_min: int | None = None
    range_bytes: int = 0
    entry_bytes: int | None = None
    processors: int = 1


PARALLEL_BYTES = 8 << 20
"""The cost of a task from which two tasks are faster than one, because each takes 30 ms in addition."""
SMALL_PART = 8
"""A range that costs less than one eighth of a task is not split to make tasks equal."""


def pack(ranges: Sequence[LedgerRange], limits: PartitionLimits) -> list[tuple[LedgerRange, ...]]:
    """Pack ranges, in order, into tasks of about the same size within the limits. Large ranges are split, and small
    neighbours share a task. No task is above twice the average unless a single entry is. Entries are never split and
    keep their order within and across tasks. Ranges without entries are dropped. There are at least ``partitions_min``
    tasks, or one for each entry if there are fewer entries. Without that limit each processor has a task if there is
    enough to read."""
    return _at_least(limits.partitions_min or 0, _Packing([r for r in ranges if r.entries > 0], limits).tasks())


def _at_least(wanted: int, tasks: list[tuple[LedgerRange, ...]]) -> list[tuple[LedgerRange, ...]]:
    """Cut the longest tasks evenly until there are at least ``wanted`` tasks, or one for each entry if there are fewer
    entries. :class:`_Packing` alone makes too few tasks if entries are too large or too few to be shared out evenly."""
    entries = [sum(each.entries for each in task) for task in tasks]
    pieces = [1] * len(tasks)
    longest: list[tuple[float, int]] = [(-count, number) for number, count in enumerate(entries)]
    heapify(longest)
    for _ in range(min(wanted, sum(entries)) - len(tasks)):
        _, number = heappop(longest)
        pieces[number] += 1
        heappush(longest, (-entries[number] / pieces[number], number))
    return [
        piece for task, count, into in zip(tasks, entries, pieces, strict=True) for piece in _cut(task, count, into)
    ]


def _cut(task: tuple[LedgerRange, ...], entries: int, pieces: int) -> Iterator[tuple[LedgerRange, ...]]:
    """Cut a task of ``entries`` entries into ``pieces`` tasks with about the same number of entries each."""
    if pieces == 1:
        yield task
        return
    rest = deque(task)
    for number in range(pieces):
        wanted, piece = entries * (number + 1) // pieces - entries * number // pieces, list[LedgerRange]()
        while wanted:
            each = rest.popleft()
            if each.entries > wanted:
                each, after = each.split(wanted)
                rest.appendleft(after)
            piece.append(each)
            wanted -= each.entries
        yield tuple(piece)


class _Packing:
    """Fills one task after the other. Each task gets an equal share of what is left for the tasks still needed."""

    def __init__(self, ranges: Sequence[LedgerRange], limits: PartitionLimits) -> None:
        self._ranges = ranges
        self._entry_bytes, self._range_bytes = limits.entry_bytes, limits.range_bytes
        knows_sizes = self._entry_bytes is not None or any(r.bytes for r in ranges)
        if not knows_sizes:
            self._entry_bytes = 1  # every entry costs the same
        self._entries_left = sum(r.entries for r in ranges)
        self._entries_max = limits.entries_max or max(1, self._entries_left)
        self._cost_left = sum(map(self._cost, ranges))
        self._cost_max = limits.bytes_max if knows_sizes else max(1, self._cost_left)
        self._tasks_left = limits.partitions_min or min(limits.processors, self._cost_left // PARALLEL_BYTES) or 1
        self._tasks: list[list[LedgerRange]] = []

    def tasks(self) -> list[tuple[LedgerRange, ...]]:
        if self._ranges:
            self._begin_task()
        for each in self._ranges:
            self._place(each)
        return [tuple(task) for task in self._tasks]

    def _place(self, rest: LedgerRange) -> None:
        cost = self._cost(rest)
        while cost > self._room or rest.entries > self._room_entries:
            is_empty, count = not self._tasks[-1], self._entries_that_fit(rest, cost)
            if is_empty and count == 0:
                if rest.entries == 1:
                    break  # larger than any share, and entries are not split
                count = 1
            if count and (is_empty or cost * SMALL_PART >= self._share):
                of_part = cost * count // rest.entries
                part, rest = rest.split(count)
                self._take(part, of_part)
                cost -= of_part
            self._begin_task()
        self._take(rest, cost)

    def _begin_task(self) -> None:
        if self._tasks:
            self._tasks_left -= 1
        count = max(
            self._tasks_left, -(-self._cost_left // self._cost_max), -(-self._entries_left // self._entries_max), 1
        )
        self._share = self._room = max(1, -(-self._cost_left // count))
        self._room_entries = self._entries_max
        self._tasks.append([])

    def _take(self, part: LedgerRange, cost: int) -> None:
        self._tasks[-1].append(part)
        self._room -= cost
        self._room_entries -= part.entries
        self._cost_left -= cost
        self._entries_left -= part.entries

    def _cost(self, each: LedgerRange) -> int:
        if self._entry_bytes is not None:
            return each.entries * self._entry_bytes
        return each.bytes + self._range_bytes

    def _entries_that_fit(self, rest: LedgerRange, cost: int) -> int:
        if self._room < 0 or self._room_entries <= 0:
            return 0
        return min(self._room * rest.entries // cost if cost else rest.entries, self._room_entries)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of positions with similar entries: positions ``begin`` to ``end`` − 1 hold ``bytes`` payload bytes."""

    begin: int
    end: int
    bytes: int


def admit(start: int, end: int, spans: Sequence[Span], entries_max: int | None, bytes_max: int | None) -> int:
    """Return where a micro-batch from ``start`` ends: at most at ``end``, within both limits, but after at least one
    entry. ``spans`` are in order; positions without a span count no bytes. The result is never below ``start``."""
    if end <= start:
        return start
    if entries_max is not None:
        end = min(end, start + entries_max)
    if bytes_max is not None:
        end = min(end, max(start + 1, _end_by_bytes(start, end, spans, bytes_max)))
    return end


def bytes_between(spans: Sequence[Span], first: int, stop: int, most: int | None = None) -> int:
    """Return the payload bytes of positions ``first`` to ``stop`` − 1, as far as ``spans`` cover them. Counting stops
    above ``most``, because there may be 100,000 spans."""
    size = 0
    for span in _from(spans, first):
        if span.begin >= stop or (most is not None and size > most):
            break
        size += _share(span, first, stop)
    return size


def _end_by_bytes(start: int, end: int, spans: Sequence[Span], bytes_max: int) -> int:
    room = bytes_max
    for span in _from(spans, start):
        cost = _share(span, start, end)
        if cost > room:
            return max(span.begin, start) + room * (span.end - span.begin) // span.bytes
        room -= cost
        if span.end >= end:
            break
    return end


def _from(spans: Sequence[Span], start: int) -> Iterator[Span]:
    """Return the spans that may hold ``start`` or later positions, found by bisection."""
    first = bisect_right(spans, start, key=lambda span: span.begin) - 1
    return islice(spans, max(0, first), None)


def _share(span: Span, first: int, stop: int) -> int:
    begin, end = max(span.begin, first), min(span.end, stop)
    return span.bytes * (end - begin) // (span.end - span.begin) if end > begin else 0
