# SPDX-License-Identifier: Apache-2.0
"""The stories of the matrix: what a cell does, written once for both kinds of client.

The *actor* is the cell's client. *Others* are clients of the other kind. For Apache's client they are ours; for ours
they are Apache's of each version, one on v3, the other on v2. At the end of each story both kinds read the same
entries.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bk_core.client import ClientConfig
from tests.interop.cells import CLIENTS, OURS, Cell
from tests.interop.jars import MAIN, SECOND
from tests.interop.parties import (
    FENCED,
    NO_LEDGER,
    PASSWORD_REFUSED,
    JavaParty,
    OurParty,
    Party,
    Sizes,
    Writer,
    refusal,
)
from tests.interop.pattern import Pattern
from tests.interop.worlds import AnyBookie, MixedCluster

PATTERN = Pattern(seed=7, size_min=0, size_max=2000)
LARGE = Pattern(seed=8, size_min=100_000, size_max=500_000)
SMALL = Pattern(seed=9, size_min=40, size_max=40)
STRIPED, WHOLE, ALL = (3, 2, 2), (3, 3, 2), (3, 3, 3)
TAKE_S = 30.0
POLL_MS = 3000
WOKEN, WOKEN_S = 6, 8.0
"""The number of entries, one after the other, that reach a tail within WOKEN_S seconds together. Without long polls
each takes POLL_MS."""

OUR_CONFIG = ClientConfig(add_timeout_ms=20_000, reconnect_budget_ms=500, lac_stall_ms=POLL_MS)
JAVA_CONF: Mapping[str, object] = {"addEntryTimeoutSec": 10, "readEntryTimeoutSec": 10}


class StoryError(AssertionError):
    """The failure of a cell, with what was expected and what came."""


def same(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise StoryError(f"{what}: {got!r}, wanted {wanted!r}")


def true(what: str, holds: bool) -> None:
    if not holds:
        raise StoryError(what)


@dataclass
class Matrix:
    """The cells' cluster and clients: three bookies of each kind, and a JVM for each version of Apache's client."""

    cluster: MixedCluster
    _parties: dict[tuple[str, str], Party] = field(default_factory=dict)

    OURS = 3
    APACHE = (MAIN, MAIN, SECOND)

    def party(self, client: str, wire: str) -> Party:
        """Return a party, which is made on first use."""
        if (client, wire) not in self._parties:
            self._parties[client, wire] = self._made(client, wire)
        return self._parties[client, wire]

    def _made(self, client: str, wire: str) -> Party:
        if client == OURS:
            return OurParty(self.cluster.uri, wire, replace(OUR_CONFIG, **self.cluster.our_client))
        peer = self.cluster.peer(client.removeprefix("java-"))
        return JavaParty(peer, self.cluster.uri, wire, {**JAVA_CONF, **self.cluster.their_client}, POLL_MS)

    def others(self, cell: Cell) -> list[Party]:
        if cell.client == OURS:
            wires = itertools.cycle(("v3", "v2") if cell.digest in ("CRC32C", "MAC") else ("v2", "v3"))
            return [self.party(client, next(wires)) for client in CLIENTS if client != OURS]
        return [self.party(OURS, "v3" if cell.digest == "MAC" else "grpc")]

    def bookies(self, cell: Cell) -> list[AnyBookie]:
        """Return the bookies of a ledger of this cell, and as the last one the bookie that replaces the first. It is of
        the other kind."""
        ours, theirs = self.cluster.ours, self.cluster.theirs
        if cell.bookies == "ours":
            return [*ours, theirs[2]]
        if cell.bookies == "apache":
            return [theirs[2], *theirs[:2], ours[0]]
        if cell.digest in ("CRC32C", "MAC"):
            return [ours[0], theirs[0], theirs[2], theirs[1]]
        return [theirs[2], ours[0], ours[1], ours[2]]

    def play(self, cell: Cell) -> None:
        """Run a cell. Raises StoryError, or an error of a client that nothing explains."""
        story = Story(self, cell)
        try:
            STORIES[cell.operation](story)
        finally:
            for party in self._parties.values():
                party.rest()

    def close(self) -> None:
        for party in self._parties.values():
            if isinstance(party, OurParty):
                party.close()


class Story:
    """One cell."""

    def __init__(self, matrix: Matrix, cell: Cell) -> None:
        self.cell, self.digest = cell, cell.digest
        self.actor, self.others = matrix.party(cell.client, cell.wire), matrix.others(cell)
        self.bookies = matrix.bookies(cell)
        self.sizes: Sizes = STRIPED if self.digest in ("CRC32C", "DUMMY") else WHOLE

    def create(self, party: Party, sizes: Sizes | None = None) -> Writer:
        writer = party.create([bookie.bookie_id for bookie in self.bookies], sizes or self.sizes, self.digest)
        members = party.fragments(writer.ledger_id)[0]
        same("the ensemble", members, tuple(bookie.bookie_id for bookie in self.bookies[:3]))
        return writer

    def check(self, ledger_id: int, last: int, pattern: Pattern, readers: Sequence[Party] | None = None) -> None:
        """Check that the ledger is closed, ends at ``last`` and has these entries, for both kinds of client."""
        for party in readers or (self.actor, *self.others):
            reader = party.open(ledger_id, self.digest, recover=False)
            same(f"the end of ledger {ledger_id} for {party.name}", (reader.closed, reader.lac), (True, last))
            read = reader.read(0, last)
            same(f"what {party.name} read", (read.count, read.checksum), (last + 1, pattern.checksum(0, last)))


def write(story: Story) -> None:
    """Write small entries of all sizes, then large ones. Close the ledger and read it."""
    for count, window, pattern in ((400, 100, PATTERN), (10, 4, LARGE)):
        writer = story.create(story.actor)
        writer.add(count, pattern, first=0, window=window)
        writer.close()
        story.check(writer.ledger_id, count - 1, pattern)


def read(story: Story) -> None:
    """Read closed ledgers of all clients: whole, in parts, and one entry. Then read an open one up to its LAC."""
    for party in (story.actor, *story.others):
        writer = story.create(party)
        writer.add(400, PATTERN, first=0)
        unclosed = story.actor.open(writer.ledger_id, story.digest, recover=False)
        true(f"no LAC of {party.name}'s open ledger is known: {unclosed.lac}", 200 < unclosed.lac < 400)
        read = unclosed.read(0, unclosed.lac)
        same(f"of {party.name}'s open ledger", read.checksum, PATTERN.checksum(0, unclosed.lac))
        writer.close()
        story.check(writer.ledger_id, 399, PATTERN, [story.actor])
        reader = story.actor.open(writer.ledger_id, story.digest, recover=False)
        for first, last in ((0, 0), (399, 399), (123, 256)):
            same(f"entries {first} to {last}", reader.read(first, last).checksum, PATTERN.checksum(first, last))
        wrong = partial(story.actor.open, writer.ledger_id, story.digest, recover=False, password=b"wrong")
        same("another password", refusal(wrong), PASSWORD_REFUSED)


def tail(story: Story) -> None:
    """Follow a ledger. Entries must reach the tail when they are confirmed, not when a poll has timed out. Then the
    ledger ends.

    Apache's writer sends the LAC only with its next entry. If a ledger is striped, some bookies may not get that entry,
    and a poll that waits there times out. So the ledger of this story is on all bookies.
    """
    for party in (story.actor, *story.others):
        writer = story.create(party, story.sizes if party.is_ours else WHOLE)
        writer.add(20, SMALL, first=0, window=1)
        shown = 20 if party.is_ours else 19  # Apache's writer publishes an entry's LAC with the next entry
        reader = story.actor.open(writer.ledger_id, story.digest, recover=False)
        follow = reader.tail(0)
        same("what was there", follow.take(shown, within_s=TAKE_S).checksum, SMALL.checksum(0, shown - 1))
        began = time.monotonic()
        for k in range(WOKEN):
            writer.add(1, SMALL, first=20 + k)
            came = follow.take(1, within_s=TAKE_S)
            same("the next entry", (came.last, came.checksum), (shown + k, SMALL.checksum(shown + k, shown + k)))
        took = time.monotonic() - began
        true(f"{party.name}'s entries took {took:.1f} s to {story.actor.name}: its long polls time out", took < WOKEN_S)
        writer.close()
        rest = follow.take(10, within_s=TAKE_S)
        same("the end", (rest.ended, rest.count), (True, 20 - shown))


def recover(story: Story) -> None:
    """Recover a ledger. The recoverer must find all entries that a living writer had confirmed, and the writer must
    report that it is fenced."""
    for party in (story.actor, *story.others):
        writer = story.create(party)
        writer.add(200, SMALL, first=0)
        adding = writer.begin(1_000_000, SMALL, first=200, window=50, pause_ms=1)
        time.sleep(0.1)
        opened = story.actor.open(writer.ledger_id, story.digest, recover=True)
        ended = adding.ended()
        same(f"what {party.name} was told", ended.said, FENCED)
        true("the ledger is not closed", opened.closed)
        told = 199 + ended.acked
        true(f"{party.name} was told of entry {told}, the ledger ends at {opened.lac}", opened.lac >= told >= 199)
        story.check(writer.ledger_id, opened.lac, SMALL)


def change(story: Story) -> None:
    """Kill a bookie under a writer. A bookie of the other kind takes its place."""
    victim, spare = story.bookies[0], story.bookies[-1]
    true("the spare is of the same kind", spare.is_ours != victim.is_ours)
    unclosed, closed = story.create(story.actor, ALL), story.create(story.actor, ALL)
    for writer in (unclosed, closed):
        writer.add(200, PATTERN, first=0)
    victim.kill()
    try:
        for writer in (unclosed, closed):
            writer.add(200, PATTERN, first=200)
            for party in (story.actor, *story.others):
                first, members = max(party.fragments(writer.ledger_id).items())
                same("the first entry after the change", first, 200)
                same(f"the new ensemble for {party.name}", set(members), {b.bookie_id for b in story.bookies[1:]})
        closed.close()
        opened = story.others[0].open(unclosed.ledger_id, story.digest, recover=True)
        same("the recovered end", (opened.closed, opened.lac), (True, 399))
        for writer in (unclosed, closed):
            story.check(writer.ledger_id, 399, PATTERN)  # one of three copies is away
    finally:
        victim.start()
    for writer in (unclosed, closed):
        story.check(writer.ledger_id, 399, PATTERN)


def delete(story: Story) -> None:
    """Delete ledgers of all clients, closed and open ones. They must be gone for both kinds."""
    for party in (story.actor, *story.others):
        closed, unclosed = story.create(party), story.create(party)
        for writer in (closed, unclosed):
            writer.add(50, SMALL, first=0)
        closed.close()
        for writer in (closed, unclosed):
            story.actor.delete(writer.ledger_id)
            for reader in (story.actor, *story.others):
                gone = partial(reader.open, writer.ledger_id, story.digest, recover=True)
                same(f"a deleted ledger for {reader.name}", refusal(gone), NO_LEDGER)
                true(f"{reader.name} lists a deleted ledger", writer.ledger_id not in reader.ledger_ids())


STORIES: Mapping[str, Callable[[Story], None]] = {
    "write": write,
    "read": read,
    "tail": tail,
    "recover": recover,
    "change": change,
    "delete": delete,
}
