# SPDX-License-Identifier: Apache-2.0
"""Decides which sealed extents of a log are copied into one ledger, and whether a copy is exact. Pure.

Frequent publishes leave many small ledgers, and a reader opens each of them. Compaction copies neighbouring extents
into one ledger, entry by entry, and lists this ledger in their place. Offsets do not change (N7). To bound the work, a
run is copied only if no extent of it weighs more than all its other extents together. So each time a byte is copied,
its ledger at least doubles, and a log that is compacted after every publish copies each byte a logarithmic number of
times.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bk_core.entries.batch import EntryBatch
from bk_core.errors import InvalidArgumentError
from bk_core.logs.model.head import Extent, LogHead

ENTRY_COST_BYTES = 32
"""The weight of an entry in addition to its payload, in bytes, for its digest, length and id."""
LEDGER_BYTES_MAX = 256 << 20
"""The default of the maximum weight of a merged ledger, in bytes."""
CHEAP_PART = 16
"""A run that weighs at most 1/16 of ``ledger_bytes_max`` is merged whatever the sizes of its extents are, because it
costs little to copy it again."""
RETENTION_PARTS = 10
"""A merged extent covers at most 1/10 of the log's retention. A trim waits until a whole extent has expired, so merging
delays it by at most 1/10 of the retention."""

Run = tuple[Extent, ...]
"""Neighbouring sealed extents, in order, that one ledger may replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """The limits of a compaction. Raises InvalidArgumentError for a number of bytes below 1.

    ``ledger_bytes_max`` limits the weight of a merged ledger, which is about its payload bytes. Extents that weigh more
    than half of it are not merged. The compaction stops after it has copied about ``copy_bytes_max`` bytes, or, with
    None, when nothing is left to merge. ``span_ms_max`` limits the time between the oldest and the newest extent of a
    run.
    """

    ledger_bytes_max: int = LEDGER_BYTES_MAX
    copy_bytes_max: int | None = None
    span_ms_max: int | None = None

    def __post_init__(self) -> None:
        for name in ("ledger_bytes_max", "copy_bytes_max"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidArgumentError(f"{name} must be positive", value=f"{name}={value}")

    def for_log(self, head: LogHead) -> CompactionLimits:
        """Return these limits, lowered so that a merged extent covers at most 1/10 of this log's retention."""
        size, span = self.ledger_bytes_max, self.span_ms_max
        if head.retention_bytes > 0:
            size = max(1, min(size, head.retention_bytes // RETENTION_PARTS))
        if head.retention_ms > 0:
            kept = head.retention_ms // RETENTION_PARTS
            span = kept if span is None else min(span, kept)
        return replace(self, ledger_bytes_max=size, span_ms_max=span)


def weight_of(extent: Extent) -> int:
    """Return the weight of a sealed extent in bytes: its payload bytes, and ENTRY_COST_BYTES for each entry."""
    return extent.size_bytes + ENTRY_COST_BYTES * extent.entry_count


def runs_to_compact(extents: Sequence[Extent], limits: CompactionLimits) -> list[Run]:
    """Return the runs that are worth merging, each into one ledger. ``extents`` are in the log's order.

    A run has at least two extents, one codec, one schema and no gap. It has no open extent, and no extent with fields
    that this version does not know.
    """
    runs: list[Run] = []
    group = _Group(limits)
    for extent in extents:
        if not group.takes(extent):
            runs += _worthwhile(group.extents, limits)
            group = _Group(limits)
        if _is_small(extent, limits):
            group.add(extent)
    return runs + _worthwhile(group.extents, limits)


class _Group:
    """A group of neighbouring extents that fit into one ledger."""

    def __init__(self, limits: CompactionLimits) -> None:
        self.extents: list[Extent] = []
        self._limits, self._weight = limits, 0
        self._oldest_ms = self._newest_ms = 0

    def takes(self, extent: Extent) -> bool:
        """Return whether the extent may follow the group's last extent in the same ledger."""
        if not self.extents:
            return True
        last, limits = self.extents[-1], self._limits
        if not _is_small(extent, limits) or extent.base_offset != last.next_offset:
            return False
        if (extent.codec, extent.schema_number) != (last.codec, last.schema_number):
            return False
        span_ms = max(self._newest_ms, extent.created_ms) - min(self._oldest_ms, extent.created_ms)
        if limits.span_ms_max is not None and span_ms > limits.span_ms_max:
            return False
        return self._weight + weight_of(extent) <= limits.ledger_bytes_max

    def add(self, extent: Extent) -> None:
        self._oldest_ms = min(self._oldest_ms, extent.created_ms) if self.extents else extent.created_ms
        self._newest_ms = max(self._newest_ms, extent.created_ms) if self.extents else extent.created_ms
        self._weight += weight_of(extent)
        self.extents.append(extent)


def _is_small(extent: Extent, limits: CompactionLimits) -> bool:
    is_understood = not extent.unknown_fields and not any(extent.fragment_unknown_fields)
    return not extent.is_open and is_understood and 2 * weight_of(extent) <= limits.ledger_bytes_max


def _worthwhile(group: Sequence[Extent], limits: CompactionLimits) -> list[Run]:
    """Return the group as one run. If one extent weighs more than all others together, return the runs on both sides of
    this extent."""
    if len(group) < 2:
        return []
    weights = [weight_of(extent) for extent in group]
    total, largest = sum(weights), max(weights)
    if 2 * largest <= total or total * CHEAP_PART <= limits.ledger_bytes_max:
        return [tuple(group)]
    at = weights.index(largest)
    return _worthwhile(group[:at], limits) + _worthwhile(group[at + 1 :], limits)


# --- what a copy holds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Content:
    """The counts and CRC-32 sums of a sequence of entries. They are equal for the same entries in the same order,
    however the entries are batched. ``lengths_crc`` covers the 4-byte little-endian payload lengths, ``payload_crc``
    the payloads."""

    entries: int = 0
    payload_bytes: int = 0
    lengths_crc: int = 0
    payload_crc: int = 0

    def with_batch(self, batch: EntryBatch) -> Content:
        """Return the content of these entries followed by the entries of ``batch``."""
        lengths = np.ascontiguousarray(batch.lengths, dtype="<u4")
        return Content(
            self.entries + len(batch),
            self.payload_bytes + batch.payload_bytes,
            zlib.crc32(lengths.data.cast("B") if lengths.size else b"", self.lengths_crc),
            zlib.crc32(batch.payload, self.payload_crc),
        )


def content_problem(run: Run, content: Content) -> str | None:
    """Return why ``content`` cannot describe all entries of the run, or None if it can."""
    entries = sum(extent.entry_count for extent in run)
    if content.entries != entries:
        return f"{content.entries} entries were copied, the log lists {entries}"
    if any(extent.first_entry_id for extent in run):
        return None  # the payload bytes of a part of a ledger are an estimate
    payload_bytes = sum(extent.size_bytes for extent in run)
    if content.payload_bytes != payload_bytes:
        return f"{content.payload_bytes} payload bytes were copied, the log lists {payload_bytes}"
    return None
