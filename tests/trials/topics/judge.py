# SPDX-License-Identifier: Apache-2.0
"""Judges what a reader of a topic saw: every acknowledged message once, in order per partition and key, none missing.

Pure. A message is identified by its id in the topic and by its content: the session that produced it and its number in
that session. The broker drops doubles, so a content occurs once in the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PROBLEMS_MAX = 10


class Id(NamedTuple):
    """The place of a message in its partition."""

    ledger_id: int
    entry_id: int
    batch_index: int


class Content(NamedTuple):
    """The content of a message."""

    session: int
    number: int


class Row(NamedTuple):
    """A message as a reader saw it."""

    partition: int
    id: Id
    key: str
    content: Content


class Seen:
    """All messages that one reader saw, in order. Problems are found as rows come."""

    def __init__(self, reader: str) -> None:
        self.reader = reader
        self.last = dict[int, Id]()
        """The last message of each partition."""
        self.ids = dict[int, list[Id]]()
        self._places = dict[Content, tuple[int, Id]]()
        self._numbers = dict[tuple[int, int, str], int]()
        self._problems = list[str]()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, rows: Iterable[Row]) -> None:
        """Take the next rows."""
        for row in rows:
            self._in_order(row)
            first = self._places.setdefault(row.content, (row.partition, row.id))
            if first != (row.partition, row.id):
                self._complain(f"{row.content} came twice: at {first} and at {(row.partition, row.id)}")

    def _in_order(self, row: Row) -> None:
        partition = row.partition
        if (last := self.last.get(partition)) is not None and row.id <= last:
            kind = "again" if row.id in self.ids[partition] else "too late"
            self._complain(f"{row.id} of partition {partition} came {kind}, behind {last}")
        self.last[partition] = max(row.id, last or row.id)
        self.ids.setdefault(partition, []).append(row.id)
        key = partition, row.content.session, row.key
        if row.content.number <= self._numbers.get(key, -1):
            self._complain(f"{row.content} of key {row.key} came behind number {self._numbers[key]}")
        self._numbers[key] = row.content.number

    def missing(self, acked: Mapping[Content, tuple[int, Id] | None]) -> list[Content]:
        """Return the acknowledged messages that did not come yet. ``acked`` has their partition and id, if the broker
        returned these."""
        return [content for content in acked if content not in self._places]

    def check(self, acked: Mapping[Content, tuple[int, Id] | None]) -> None:
        """Note the acknowledged messages that did not come, and those that came with another id."""
        missing = self.missing(acked)
        if missing:
            self._complain(f"{len(missing)} acknowledged messages are missing, the first is {missing[0]}")
        for content, place in acked.items():
            if place is not None and (seen := self._places.get(content)) is not None and seen != place:
                self._complain(f"{content} was acknowledged as {place} and came as {seen}")

    def take_problems(self) -> list[str]:
        """Return the problems found since the last call."""
        found, self._problems = self._problems, []
        return [f"{self.reader}: {problem}" for problem in found]

    def complain(self, problem: str) -> None:
        """Note a problem that another check found."""
        self._complain(problem)

    def _complain(self, problem: str) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(problem)


def differing(one: Seen, other: Seen) -> list[str]:
    """Return the partitions of which the readers saw different messages, or saw them in another order."""
    return [
        f"{one.reader} and {other.reader} saw partition {partition} differently"
        for partition in sorted({*one.ids, *other.ids})
        if one.ids.get(partition) != other.ids.get(partition)
    ]
