# SPDX-License-Identifier: Apache-2.0
"""The small world of a scenario: links between named clients, bookies and the metadata store, and nothing that moves by
itself. Every message waits on its link until the story delivers or loses it; there is no clock and no chance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bk_core.errors import BookKeeperError, MetadataUnavailableError, NoSuchLedgerError, Outcome
from bk_core.logs.model.head import LogHead
from bk_core.model import BookieId, LedgerId, LedgerMetadata, Versioned
from bk_core.protocol import events as ev
from tests.scenarios.bookies import Bookie

if TYPE_CHECKING:
    from tests.scenarios.clients import Client

STORE = "store"
UNAVAILABLE = ev.MetadataCallFailed(
    MetadataUnavailableError("the metadata store did not answer", outcome=Outcome.UNKNOWN)
)
Link = tuple[str, str]


class StoryError(Exception):
    """The story asks for something that cannot be done; the text says what."""


@dataclass
class Message:
    """Something on its way. ``arrive`` does what the receiver does about it, ``lost`` what the sender learns;
    ``entries`` are the first and last entry id it carries. ``flip`` turns one bit of it, where that
    makes sense."""

    arrive: Callable[[], None]
    lost: Callable[[], None] = lambda: None
    entries: tuple[int, int] | None = None
    flip: Callable[[], Message] | None = None


@dataclass
class World:
    """Everything of one story. ``lines`` is the trace since the last block."""

    lines: list[str] = field(default_factory=list)
    bookies: dict[str, Bookie] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    links: dict[Link, deque[Message]] = field(default_factory=dict)
    cut: set[Link] = field(default_factory=set)
    writable: list[BookieId] = field(default_factory=list)
    log: Versioned[LogHead] | None = None
    records: dict[LedgerId, Versioned[LedgerMetadata]] = field(default_factory=dict)
    watchers: dict[LedgerId, list[tuple[str, Callable[[Any], None]]]] = field(default_factory=dict)

    def say(self, line: str) -> None:
        self.lines.append(line)

    # --- the network ---

    def send(self, source: str, target: str, message: Message) -> None:
        self.links.setdefault((source, target), deque()).append(message)

    def deliver(self, link: Link, *, entry: int | None = None, count: int | None = None) -> int:
        """Deliver what waits on a link: everything, the first ``count`` messages, or up to the one with ``entry``."""
        if link in self.cut:
            raise StoryError(f"the link {link[0]}->{link[1]} is cut")
        queue, delivered = self.links.get(link, deque[Message]()), 0
        if entry is not None:
            at = [n for n, message in enumerate(queue, 1) if message.entries and _holds(message.entries, entry)]
            if not at:
                raise StoryError(f"entry {entry} is not on its way from {link[0]} to {link[1]}")
            count = at[0]
        for _ in range(len(queue) if count is None else min(count, len(queue))):
            queue.popleft().arrive()
            delivered += 1
        return delivered

    def lose(self, link: Link, *, count: int | None = None) -> int:
        """Lose what waits on a link, or its first ``count`` messages."""
        queue = self.links.get(link, deque[Message]())
        gone = [queue.popleft() for _ in range(len(queue) if count is None else min(count, len(queue)))]
        for message in gone:
            message.lost()
        return len(gone)

    def links_with(self, *, source: str | None = None, target: str | None = None) -> list[Link]:
        """The links that are not cut, in the order of their first use."""
        return [
            link
            for link in list(self.links)
            if link not in self.cut and source in (None, link[0]) and target in (None, link[1])
        ]

    def round_trip(self, place: str, entry: int | None = None) -> int:
        """What waits for a bookie or the store arrives, and its answers go back."""
        moved = 0
        for link in self.links_with(target=place):
            if entry is None or any(m.entries and _holds(m.entries, entry) for m in self.links[link]):
                moved += self.deliver(link, entry=entry)
        if entry is not None and not moved:
            raise StoryError(f"entry {entry} is not on its way to {place}")
        for link in self.links_with(source=place):
            moved += self.deliver(link)
        return moved

    def flow(self) -> None:
        """Deliver everything on links that are not cut, and what follows from it, until nothing moves."""
        for _ in range(1000):
            if not sum([self.deliver(link) for link in self.links_with()]):
                return
        raise StoryError("the world does not come to rest")

    # --- the metadata store ---

    def ask_store(
        self, client: str, do: Callable[[], Any], feed: Callable[[Any], None], failure: Any = UNAVAILABLE
    ) -> None:
        """A call of the store on its way; its answer is another message."""

        def lost() -> None:
            feed(failure)

        def arrive() -> None:
            answer = do()
            self.send(STORE, client, Message(lambda: feed(answer), lost))

        self.send(client, STORE, Message(arrive, lost))

    def read_record(self, ledger_id: LedgerId) -> ev.MetadataEvent:
        found = self.records.get(ledger_id)
        if found is None:
            return ev.MetadataCallFailed(NoSuchLedgerError(f"there is no ledger {ledger_id}"))
        return ev.MetadataRead(found)

    def write_record(self, who: str, ledger_id: LedgerId, effect: ev.WriteMetadata) -> ev.MetadataEvent:
        found = self.records.get(ledger_id)
        if found is None:
            return ev.MetadataCallFailed(NoSuchLedgerError(f"there is no ledger {ledger_id}"))
        if found.version != effect.version:
            self.say(f"store refuses {who}: its version is {found.version}, not {effect.version}")
            return ev.MetadataConflicted()
        return ev.MetadataWritten(self.put_record(who, ledger_id, effect.metadata))

    def put_record(self, who: str, ledger_id: LedgerId, value: LedgerMetadata) -> Versioned[LedgerMetadata]:
        """The record is another from now on; whoever watches it is told."""
        made = Versioned(value, self.records[ledger_id].version + 1)
        self.records[ledger_id] = made
        self.say(f"store takes {describe(made)}   from {who}")
        self._tell_watchers(ledger_id, made)
        return made

    def delete_record(self, ledger_id: LedgerId) -> None:
        del self.records[ledger_id]
        self._tell_watchers(ledger_id, None)

    def _tell_watchers(self, ledger_id: LedgerId, record: Versioned[LedgerMetadata] | None) -> None:
        for name, feed in self.watchers.get(ledger_id, []):
            self.send(STORE, name, Message(lambda feed=feed: feed(ev.MetadataChanged(record))))


def describe(record: Versioned[LedgerMetadata]) -> str:
    """``v2 OPEN 0:{b1 b2 b3} 5:{b1 b2 b4}``; a closed ledger with its last entry."""
    value = record.value
    state = f"CLOSED at {value.last_entry_id}" if value.is_closed else value.state.name
    fragments = " ".join(f"{f.first_entry_id}:{braced(f.ensemble)}" for f in value.fragments)
    return f"v{record.version} {state} {fragments}"


def describe_log(head: Versioned[LogHead]) -> str:
    """``log v3: ledger 7 is 0..4, ledger 8 is open from 5``; the numbers are log offsets."""
    said, opened = [], head.value.open_extents
    for extent in head.value.tail:
        if not extent.is_open:
            said.append(f"ledger {extent.ledger_id} is {extent.base_offset}..{extent.next_offset - 1}")
        else:
            start = f" from {extent.base_offset}" if extent is opened[0] else ""
            said.append(f"ledger {extent.ledger_id} is open{start}")
    return f"log v{head.version}: {', '.join(said) or 'empty'}"


def braced(names: tuple[str, ...] | list[str]) -> str:
    return "{" + " ".join(names) + "}"


def error_text(error: BookKeeperError) -> str:
    return f"{error.code}, {error.outcome.value}"


def ranges(ids: Iterator[int] | list[int]) -> str:
    """``0..3 5``"""
    found: list[list[int]] = []
    for each in sorted(ids):
        if found and found[-1][1] + 1 == each:
            found[-1][1] = each
        else:
            found.append([each, each])
    return " ".join(f"{a}" if a == b else f"{a}..{b}" for a, b in found)


def _holds(entries: tuple[int, int], entry: int) -> bool:
    return entries[0] <= entry <= entries[1]
