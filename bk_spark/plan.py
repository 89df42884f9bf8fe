# SPDX-License-Identifier: Apache-2.0
"""How much each Spark task and each micro-batch reads. Pure: numbers in, numbers out.

Theory. A task costs about 30 ms however little it reads (facts: spark.md §4), so small ledgers share a task and large
ones are split, by payload bytes. Bytes of a part of a ledger are its share of the ledger's bytes: entries of a ledger
are assumed to be of like size. The partition count may differ when a batch is planned again; the rows may not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from bk_core.model import BookieId, BookieServiceInfo, EntryId, LedgerId, LedgerMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRange:
    """Entries ``first`` to ``last`` of a ledger, both inclusive. ``log`` names the log they were found in and
    ``offset`` is the log offset of ``first``; both are None for a bare ledger. ``bytes`` are payload bytes, estimated.

    ``created_ms`` is when the ledger was made, if that is known; ``closed`` whether it was when planned.
    """

    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    bytes: int
    log: str | None = None
    offset: int | None = None
    schema_number: int = 0
    created_ms: int | None = None
    closed: bool = True

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    def part(self, skip: int, entries: int) -> LedgerRange:
        """``entries`` entries from the ``skip``-th on."""
        return replace(
            self,
            first=self.first + skip,
            last=self.first + skip + entries - 1,
            bytes=self.bytes * entries // self.entries,
            offset=None if self.offset is None else self.offset + skip,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """Everything one reading task needs, so that it asks no metadata store (RULES K3). Picklable.

    ``ledgers`` holds the metadata of each ledger in ``ranges`` and ``bookies`` the endpoints of their ensembles.
    The ranges may be of several logs. ``version`` is the package's on the driver. ``prefer`` spreads tasks over
    replicas.
    """

    version: str
    instance_id: str
    ranges: tuple[LedgerRange, ...]
    ledgers: Mapping[LedgerId, LedgerMetadata]
    bookies: Mapping[BookieId, BookieServiceInfo]
    prefer: int = 0


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """``maxBytesPerPartition``, ``maxEntriesPerPartition`` and ``minPartitions``."""

    bytes_max: int
    entries_max: int | None = None
    partitions_min: int | None = None


def pack(ranges: Sequence[LedgerRange], limits: PartitionLimits) -> list[tuple[LedgerRange, ...]]:
    """Ranges, in order, as the work of tasks: large ones split evenly, neighbours joined up to the limits.

    Never splits an entry; ranges without entries vanish; the order of entries is kept within and across tasks.
    """
    ranges = [r for r in ranges if r.entries > 0]
    bytes_max, entries_max = _effective(ranges, limits)
    packed: list[list[LedgerRange]] = []
    room_bytes = room_entries = -1
    for piece in (p for r in ranges for p in _split(r, bytes_max, entries_max)):
        if piece.bytes > room_bytes or piece.entries > room_entries:
            packed.append([])
            room_bytes, room_entries = bytes_max, entries_max
        packed[-1].append(piece)
        room_bytes -= piece.bytes
        room_entries -= piece.entries
    return [tuple(task) for task in packed]


def _effective(ranges: Sequence[LedgerRange], limits: PartitionLimits) -> tuple[int, int]:
    """The limits in bytes and entries, lowered where ``minPartitions`` wants more tasks."""
    total_bytes, total_entries = sum(r.bytes for r in ranges), sum(r.entries for r in ranges)
    bytes_max, entries_max = limits.bytes_max, limits.entries_max or max(1, total_entries)
    if limits.partitions_min:
        bytes_max = min(bytes_max, max(1, -(-total_bytes // limits.partitions_min)))
        entries_max = min(entries_max, max(1, -(-total_entries // limits.partitions_min)))
    return bytes_max, entries_max


def _split(whole: LedgerRange, bytes_max: int, entries_max: int) -> list[LedgerRange]:
    """The range in equal parts, each within the limits unless a single entry is over them."""
    parts = max(-(-whole.bytes // bytes_max), -(-whole.entries // entries_max), 1)
    parts = min(parts, whole.entries)
    cuts = [whole.entries * i // parts for i in range(parts + 1)]
    return [whole.part(begin, end - begin) for begin, end in pairwise(cuts)]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of positions with like entries: positions ``begin`` to ``end`` − 1 hold ``bytes`` payload bytes."""

    begin: int
    end: int
    bytes: int


def admit(start: int, end: int, spans: Sequence[Span], entries_max: int | None, bytes_max: int | None) -> int:
    """Where a micro-batch from ``start`` ends: at most ``end``, within both limits, yet at least one entry.

    ``spans`` are in order; what they do not cover counts no bytes. Never below ``start``.
    """
    if end <= start:
        return start
    if entries_max is not None:
        end = min(end, start + entries_max)
    if bytes_max is not None:
        end = min(end, max(start + 1, _end_by_bytes(start, end, spans, bytes_max)))
    return end


def bytes_between(spans: Sequence[Span], first: int, stop: int) -> int:
    """Payload bytes of positions ``first`` to ``stop`` − 1, as far as ``spans`` cover them."""
    return sum(_share(span, first, stop) for span in _from(spans, first))


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
    """Those that may hold ``start`` or what follows, found without walking through the others."""
    first = bisect_right(spans, start, key=lambda span: span.begin) - 1
    return islice(spans, max(0, first), None)


def _share(span: Span, first: int, stop: int) -> int:
    begin, end = max(span.begin, first), min(span.end, stop)
    return span.bytes * (end - begin) // (span.end - span.begin) if end > begin else 0
