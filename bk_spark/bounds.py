# SPDX-License-Identifier: Apache-2.0
"""Where a read begins and ends in one source: bounds of the options against what there is. Pure.

Theory of ``startingTimestamp``. Entries carry no time, so the start is that of an extent, and errs to the early side.
A row of a leader came while one of the last two extents was open (RULES N2), so everything that came after a time is in
extents made after it or in the last two made before. A row of a batch job came when the job was published, which may be
long after its ledgers were made; the head knows when, of the last 128 publishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bk_core.errors import InvalidArgumentError, NoSuchEntryError
from bk_spark.offsets import resolve_bound
from bk_spark.selection import Source

if TYPE_CHECKING:
    from bk_core.logs.head import Extent, LogHead

OPEN_AT_ONCE = 2
"""Extents of a leader that may receive entries at the same time (RULES N2)."""


def check_bounds(
    source: Source, earliest: int, latest: int, start: int, end: int, *, fail_on_data_loss: bool
) -> tuple[int, int]:
    """``start`` and ``end``, which may be EARLIEST or LATEST, as numbers: ``earliest`` ≤ first ≤ stop ≤ ``latest``.

    Raises NoSuchEntryError where entries were trimmed and InvalidArgumentError for bounds beyond the end: a result that
    silently lacks rows would look complete.
    """
    first, stop = resolve_bound(start, earliest, latest), resolve_bound(end, earliest, latest)
    where = f"{source} holds {earliest} to {latest} (exclusive), asked for {first} to {stop}"
    if first < earliest:
        if fail_on_data_loss:
            raise NoSuchEntryError(
                "the wanted offsets were trimmed",
                value=where,
                remedy="start later, or set failOnDataLoss=false to begin with what is left",
            )
        first = earliest
    if first > latest or stop > latest:
        raise InvalidArgumentError("the wanted range is beyond the end", value=where, remedy="read what is there")
    if 0 <= end < start:
        raise InvalidArgumentError("the range ends before it starts", value=where, remedy="exchange the bounds")
    return first, max(first, stop)


def offset_at(head: LogHead, extents: Sequence[Extent], at_ms: int) -> int:
    """Where to begin to have every row that came at or after ``at_ms`` (milliseconds since 1970), and as few earlier
    ones as an extent's granularity allows. ``extents`` are all of the log, the open ones last."""
    later = next((i for i, extent in enumerate(extents) if extent.created_ms > at_ms), len(extents))
    if not extents:
        return head.next_offset
    by_extent = extents[max(0, later - OPEN_AT_ONCE)].base_offset
    published = [each.base_offset for each in head.published if each.time_ms >= at_ms]
    return max(head.start_offset, min([by_extent, *published]))
