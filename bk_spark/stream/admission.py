# SPDX-License-Identifier: Apache-2.0
"""Decides how much of each source a micro-batch takes, and when to make one. Pure: numbers in, numbers out.

Theory. The limits are for the whole batch. First each source with a backlog gets one entry, as far as the limits allow,
so that a quiet log never waits for a busy one. The remaining room is divided by backlog, so that sources which lag far
behind catch up together. If there are more sources than room, each batch begins with another source.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from bk_spark.plan.packing import Span, admit, bytes_between


class Ordered(Protocol):
    """A source: a ledger, a log, or a topic. Sources are served in order."""

    def __lt__(self, other: Any, /) -> bool: ...


S = TypeVar("S", bound=Ordered)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The backlog of one source: positions ``begin`` to ``end`` − 1 can be read; ``spans``, in order, say how large
    they are."""

    begin: int
    end: int
    spans: Sequence[Span] = ()

    @property
    def entries(self) -> int:
        """The number of entries; 0 if the known end lies below ``begin``."""
        return max(0, self.end - self.begin)


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits ``maxEntriesPerTrigger`` and ``maxBytesPerTrigger``. None means no limit."""

    entries_max: int | None
    bytes_max: int | None


@dataclass(frozen=True, slots=True)
class SpanAdmission(Generic[S]):
    """The end of a micro-batch in each source, and the source that was served first."""

    ends: Mapping[S, int]
    first: S | None = None


def admit_all(backlogs: Mapping[S, Backlog], limits: TriggerLimits, after: S | None = None) -> SpanAdmission[S]:
    """Return where a micro-batch over all sources ends. It takes at least one entry if there is any, and otherwise
    stays within both limits. Bytes are estimated from ``spans``. ``after`` is the source that was served first in the
    last batch; this time it comes last. No end is below its source's begin."""
    ends = {source: max(each.begin, each.end) for source, each in backlogs.items()}
    waiting = {source: each for source, each in backlogs.items() if each.entries}
    if not waiting:
        return SpanAdmission(ends, after)
    order = _turned(sorted(waiting), after)
    if len(order) == 1:
        (source,), (one,) = order, waiting.values()
        ends[source] = admit(one.begin, one.end, one.spans, limits.entries_max, limits.bytes_max)
    elif not _fits(waiting, limits):
        ends |= _shared(waiting, order, limits)
    return SpanAdmission(ends, order[0])


def _turned(order: list[S], after: S | None) -> list[S]:
    """Rotate the sources so that the one behind ``after`` comes first."""
    if after is None or type(after) is not type(order[0]):
        return order
    turn = bisect_right(order, after)
    return order[turn:] + order[:turn]


def _fits(waiting: Mapping[S, Backlog], limits: TriggerLimits) -> bool:
    if limits.entries_max is not None and sum(each.entries for each in waiting.values()) > limits.entries_max:
        return False
    if limits.bytes_max is None:
        return True
    room = limits.bytes_max
    for each in waiting.values():
        room -= bytes_between(each.spans, each.begin, each.end, room)
        if room < 0:
            return False
    return True


def _shared(waiting: Mapping[S, Backlog], order: Sequence[S], limits: TriggerLimits) -> dict[S, int]:
    ends = {source: each.begin for source, each in waiting.items()}
    entries_left, bytes_left = limits.entries_max, limits.bytes_max
    for number, source in enumerate(order):
        begin = waiting[source].begin
        size = bytes_between(waiting[source].spans, begin, begin + 1)
        fits = (entries_left is None or entries_left >= 1) and (bytes_left is None or size <= bytes_left)
        if not fits and number:
            continue
        ends[source] = begin + 1
        entries_left = None if entries_left is None else entries_left - 1
        bytes_left = None if bytes_left is None else max(0, bytes_left - size)
    served = {source: Backlog(ends[source], waiting[source].end, waiting[source].spans) for source in order}
    if entries_left is not None:
        served = _by_entries(served, entries_left)
    if bytes_left is not None:
        served = _by_bytes(served, bytes_left)
    return {source: each.end for source, each in served.items()}


def _by_entries(backlogs: Mapping[S, Backlog], room: int) -> dict[S, Backlog]:
    """Cut the backlogs to ``room`` entries in all, in proportion to their sizes. The first ones get the remainder."""
    total = sum(each.entries for each in backlogs.values())
    if total <= room:
        return dict(backlogs)
    shares = {source: room * each.entries // total for source, each in backlogs.items()}
    rest = room - sum(shares.values())
    for source, each in backlogs.items():
        if rest and shares[source] < each.entries:
            shares[source] += 1
            rest -= 1
    return {source: Backlog(b.begin, b.begin + shares[source], b.spans) for source, b in backlogs.items()}


def _by_bytes(backlogs: Mapping[S, Backlog], room: int) -> dict[S, Backlog]:
    """Cut the backlogs to ``room`` bytes in all, in proportion to their bytes. Counting stops once a backlog exceeds
    ``room``."""
    wanted = {source: bytes_between(b.spans, b.begin, b.end, room) for source, b in backlogs.items()}
    total = sum(wanted.values())
    if total <= room:
        return dict(backlogs)
    cut: dict[S, Backlog] = {}
    for source, b in backlogs.items():
        end = b.end if not wanted[source] else end_by_bytes(b, room * wanted[source] // total)
        cut[source] = Backlog(b.begin, end, b.spans)
    return cut


def end_by_bytes(backlog: Backlog, room: int) -> int:
    """Return the end of the entries that fit into ``room`` bytes. It is ``begin`` if none fits."""
    begin, spans = backlog.begin, backlog.spans
    if room <= 0 or backlog.entries == 0:
        return begin
    first = bytes_between(spans, begin, begin + 1)
    return begin if first > room else admit(begin, backlog.end, spans, None, room)


class HoldBack:
    """Decides, by ``minEntriesPerTrigger`` and ``maxTriggerDelay``, whether to wait for more entries before the next
    batch. As with Kafka's ``minOffsetsPerTrigger``, the first batch of a run never waits. A batch that has waited for
    the delay, counted from the last batch with entries, takes what there is."""

    def __init__(self, entries_min: int | None, delay_s: float) -> None:
        self._entries_min, self._delay_s = entries_min, delay_s
        self._last: float | None = None

    def holds(self, entries: int, now_s: float) -> bool:
        """Return whether a batch of ``entries`` entries must wait at the time ``now_s``. If not, the batch counts as
        made, and the delay of the next one begins at ``now_s``."""
        if not entries:
            return False
        enough = self._entries_min is None or entries >= self._entries_min
        if not enough and self._last is not None and now_s - self._last < self._delay_s:
            return True
        self._last = now_s
        return False
