# SPDX-License-Identifier: Apache-2.0
"""Reads and writes positions in the forms of Spark and its users, and finds where a read of one source begins and ends.
Pure.

A position is the *next* entry id or log offset to read, so starts are inclusive and ends exclusive everywhere. Its
canonical form is that of :mod:`bk_core.logs.model.position` (RULES N7). Spark compares offsets as JSON text, so the
same position must always give the same keys in the same order.

Theory of ``startingTimestamp`` and ``endingTimestamp``. Entries carry no time. The same function turns both options
into offsets: it returns the first offset whose rows may have arrived at or after the time. So adjacent time ranges
neither overlap nor leave a gap. All rows of a job arrive at once, when the job is published; the log's head has the
time and the first offset of the last 128 publishes. All other rows come from a leader. They arrived while their ledger
was one of the last two in the log, because a leader adds to no older one (RULES N2), and before the next job was
published. So a time during the life of such a ledger becomes the ledger's first offset. This is never too late, and too
early by less than two ledgers.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from bk_core.errors import InvalidArgumentError, NoSuchEntryError
from bk_core.logs.model.head import SEVERAL_ROWS
from bk_core.logs.model.position import OFFSET_MAX, StreamOffset, decode_offset, encode_offset
from bk_spark.errors import bad_value, see, shown
from bk_spark.options.selection import LedgerSelection, LedgerSource, LogSelection, LogSource, Selection, Source

if TYPE_CHECKING:
    from bk_core.logs.model.head import Extent, LogHead, Published

EARLIEST = -2
LATEST = -1

OPEN_AT_ONCE = 2
"""The number of extents of a leader that may receive entries at the same time (RULES N2)."""

SECONDS_MAX = 10**11
"""A positive time below this is refused, because it is probably in seconds: as milliseconds it is before 1973-03-03."""
MILLISECONDS_MAX = 10**14
"""A time from this value on is refused, because it is probably in microseconds or nanoseconds: as milliseconds it is
after the year 5138."""

NO_PARTITIONS = "a log is one sequence, without Kafka's partitions"
WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class Bound:
    """The begin or the end of a read in each source: a position, EARLIEST or LATEST. ``positions`` maps the keys of
    sources to their values; ``everywhere`` is the value of all other sources."""

    everywhere: int
    positions: Mapping[str, int] = field(default_factory=dict)

    def at(self, source: Source) -> int:
        """Return the position in ``source``, or EARLIEST or LATEST."""
        return self.positions.get(source.key, self.everywhere)

    def has(self, value: int) -> bool:
        """Return whether any source has this ``value``."""
        return value in self.positions.values() if self.positions else value == self.everywhere

    def check(self, option: str, sources: Iterable[Source]) -> None:
        """Check that ``positions``, if there are any, name exactly these sources. Raises InvalidArgumentError that
        lists the missing and the superfluous ones."""
        if not self.positions:
            return
        keys = {source.key for source in sources}
        problems = {"missing": keys - self.positions.keys(), "not selected": self.positions.keys() - keys}
        found = [f"{what}: {shown(sorted(which, key=_by_number))}" for what, which in problems.items() if which]
        if found:
            raise InvalidArgumentError(
                f"option {option} must have one position for each ledger or log that is selected",
                value="; ".join(found),
                remedy=f"give each of them, -2 for earliest and -1 for latest, or write {option} as one word",
            )


AT_EARLIEST = Bound(EARLIEST)
AT_LATEST = Bound(LATEST)


def to_json(offset: StreamOffset) -> dict[str, Any]:
    """Return the form that Spark writes into its checkpoint: the canonical form, as a dict whose keys keep their
    order."""
    body: dict[str, Any] = json.loads(encode_offset(offset))
    return body


def from_json(data: Mapping[str, Any]) -> StreamOffset:
    """Read an offset from a checkpoint. Raises InvalidArgumentError if another source or a newer version wrote it."""
    try:
        return decode_offset(json.dumps(data))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            "the checkpoint holds no offset that this version can read",
            value=error.value,
            remedy="use the version that wrote it, or another checkpointLocation for this query",
        ) from error


def sources_in(offset: StreamOffset) -> tuple[Source, ...]:
    """Return the sources that have a position in an offset, in reading order."""
    return (*map(LedgerSource, sorted(offset.ledgers)), *map(LogSource, sorted(offset.logs)))


def parse_bound(option: str, text: str, selection: Selection) -> Bound:
    """Parse ``earliest``, ``latest``, or the short form ``{"events":1000234}`` or ``{"17":23}``. A number may be −2
    (earliest) or −1 (latest). The keys must be those of the selection. If that is a pattern, the driver checks them
    later.

    Raises InvalidArgumentError for anything else, a checkpoint's offset included. The message names the place in
    malformed JSON, keys that are missing, not selected or given twice, and values that are no positions.
    """
    word = text.strip().lower()
    if word in WORDS:
        return Bound(WORDS[word])
    expected = f'earliest, latest or {{"{_example_key(selection)}":N}} with N the next to read'
    bound = Bound(EARLIEST, _positions(option, text, expected))
    if isinstance(selection, LedgerSelection | LogSelection):
        bound.check(option, selection.sources)
    return bound


def parse_times(option: str, text: str, selection: Selection) -> Bound:
    """Parse one time for all logs, or ``{"events":1700000000000}`` with a time for each. The keys must be those of the
    selection. Raises InvalidArgumentError for anything else, and for a time in seconds."""
    if not text.lstrip().startswith("{"):
        return Bound(parse_time(option, text))
    expected = f'a time, or {{"{_example_key(selection)}":1700000000000}}'
    given = json_members(option, text, expected)
    bound = Bound(EARLIEST, {log: parse_time(f"{option} of {log}", _time_text(at)) for log, at in given.items()})
    if isinstance(selection, LogSelection):
        bound.check(option, selection.sources)
    return bound


def _time_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parse_time(option: str, text: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 with a zone. Fractions of a millisecond are dropped."""
    stripped = text.strip()
    expected = "milliseconds since 1970, or ISO 8601 with a zone such as 2026-01-31T12:00:00Z"
    if stripped.isascii() and stripped.isdigit():
        number = int(stripped)
        if 0 < number < SECONDS_MAX:
            raise bad_value(option, text, f"{expected}; if these are seconds, write {number}000")
        if number >= MILLISECONDS_MAX:
            raise bad_value(option, text, f"{expected}; this is after the year 5138: divide it by 1000 or 1000000")
        return number
    try:
        at = datetime.fromisoformat(stripped)
    except ValueError:
        raise bad_value(option, text, expected) from None
    if at.tzinfo is None:
        raise bad_value(option, text, f"{expected}; this one has no zone")
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    if since < timedelta():
        raise bad_value(option, text, expected)
    return since // timedelta(milliseconds=1)


def _positions(option: str, text: str, expected: str) -> dict[str, int]:
    data = json_members(option, text, expected)
    wrong = [f"{key}={json.dumps(number)[:40]}" for key, number in data.items() if not _is_position(number)]
    if wrong:
        raise bad_value(option, text, f"{expected}: a whole number from -2 on; not {shown(wrong)}")
    return data


def json_members(option: str, text: str, expected: str, nested: str = "") -> dict[str, Any]:
    """Parse a JSON object that is not empty. ``nested`` is the remedy for an object inside it. Raises
    InvalidArgumentError that names the place in malformed JSON, and keys that are given twice."""
    twice: list[str] = []

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)
        twice.extend(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    try:
        data = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}: {error.msg}"
        raise bad_value(option, text, f"{expected}; {place}") from None
    except (ValueError, RecursionError):
        raise bad_value(option, text, expected) from None
    if not isinstance(data, dict) or not data:
        raise bad_value(option, text, expected)
    if twice:
        raise bad_value(option, text, f"{expected}, each once; twice: {shown(twice)}")
    if any(isinstance(number, dict) for number in data.values()):  # {"topic":{"0":23}}
        remedy = f"{expected}: {nested or NO_PARTITIONS}"
        raise bad_value(option, text, f"{remedy}; {see('selecting')}")
    return data


def _is_position(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and EARLIEST <= number <= OFFSET_MAX


def _example_key(selection: Selection) -> str:
    match selection:
        case LedgerSelection(ids):
            return str(ids[0])
        case LogSelection(names):
            return names[0]
        case _:
            return "events"


def _by_number(key: str) -> tuple[int, str]:
    return (int(key) if key.isascii() and key.isdigit() else -1, key)


def resolve_bound(bound: int, earliest: int, latest: int) -> int:
    """Return a bound as a position: ``earliest`` for EARLIEST, ``latest`` for LATEST."""
    if bound == EARLIEST:
        return earliest
    return latest if bound == LATEST else bound


def check_bounds(
    source: Source, earliest: int, latest: int, start: int, end: int, *, fail_on_data_loss: bool
) -> tuple[int, int]:
    """Return ``start`` and ``end``, which may be EARLIEST or LATEST, as positions: ``earliest`` ≤ first ≤ stop ≤
    ``latest``. Raises NoSuchEntryError if wanted entries were trimmed (``fail_on_data_loss``) and InvalidArgumentError
    for bounds beyond the end, because a result that silently lacks rows would look complete."""
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


def offset_at(head: LogHead, extents: Sequence[Extent], at_ms: int, now_ms: int) -> int:
    """Return the first offset whose row may have arrived at or after ``at_ms`` (milliseconds since 1970), or LATEST if
    there is none. ``extents`` are all extents of the log, the open ones last. No row arrived after ``now_ms``."""
    published = [each for each in head.published if each.rows]
    found = [each.base_offset for each in published if each.time_ms >= at_ms]
    newest = 0
    for number, extent in enumerate(extents):
        newest = max(newest, extent.created_ms)
        if _is_published(published, extent):
            continue
        base = head.next_offset if extent.is_open else extent.base_offset
        next_publish = bisect_right(published, base, key=_base)
        bounds = [each.time_ms for each in published[next_publish : next_publish + 1]]
        for later in extents[number + OPEN_AT_ONCE : number + OPEN_AT_ONCE + 1]:
            if later.created_ms and not _is_published(published, later):  # a job makes ledgers long before its publish
                between = extents[number + 1 : number + OPEN_AT_ONCE]
                bounds.append(max(newest, later.created_ms, *(each.created_ms for each in between)))
        if min(bounds, default=now_ms) >= at_ms:
            found.append(base)
            break
    return max(head.start_offset, min(found)) if found else LATEST


def _is_published(published: Sequence[Published], extent: Extent) -> bool:
    """Return whether every row of ``extent`` belongs to one of ``published``. Compaction may have joined the rows of
    several publishes in one extent."""
    first = bisect_right(published, extent.base_offset, key=_base) - 1
    if extent.is_open or first < 0:
        return False
    if extent.codec in SEVERAL_ROWS:  # the count of rows does not say where the publish ends
        last = bisect_left(published, extent.next_offset, key=_base) - 1
        return extent.created_ms <= published[last].time_ms
    return extent.base_offset < published[first].base_offset + published[first].rows


def _base(publish: Published) -> int:
    return publish.base_offset
