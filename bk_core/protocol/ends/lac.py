# SPDX-License-Identifier: Apache-2.0
"""Finds the highest LAC that the answers of an ensemble prove, and whether enough bookies answered. Pure.

Sources: protocol document "Closing a ledger as a reader"; P5. A LAC counts only with a valid digest, so a bookie whose
evidence fails its digest counts as not heard.
"""

from __future__ import annotations

from bk_core import quorum
from bk_core.entries.apache import parse_lac_body
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.verified import verified_batches
from bk_core.errors import IntegrityError, Outcome, QuorumTimeoutError
from bk_core.model import NO_ENTRY, EntryId, LedgerMetadata
from bk_core.protocol import events as ev


def one_entry(frame: ev.Buffer, digester: Digester) -> EntryBatch:
    """Return the verified entry of a frame that has one entry. Raises IntegrityError."""
    batches = verified_batches(memoryview(frame), digester, always=True)
    if [len(batch) for batch in batches] != [1]:
        raise IntegrityError("evidence of a LAC must be one entry", value=f"ledger {digester.ledger_id}")
    return batches[0]


def verified_lac(event: ev.LacAnswered, digester: Digester) -> tuple[EntryId, dict[EntryId, int]]:
    """Return the highest LAC that a bookie's evidence proves, or −1 if it proves none. Also return the ledger length at
    each entry in the evidence, by entry id. Raises IntegrityError if any part of the evidence fails its digest."""
    lac, lengths = NO_ENTRY, dict[EntryId, int]()
    if event.lac_body:
        lac = parse_lac_body(event.lac_body, digester)
    for frame in (event.last_entry_frame, event.lac_frame):
        if len(frame):
            entry = one_entry(frame, digester)
            lac = max(lac, entry.lac)
            lengths[int(entry.entry_ids()[0])] = int(entry.cumulative_lengths()[0])
    return lac, lengths


class LacQuery:
    """The last ensemble's answers to a fence or a LAC read, whose requests are numbered from ``first_request`` on.

    ``lac`` is the highest LAC proven so far, at least the last fragment's first entry id − 1 (MUST 9). ``known`` maps
    the index of each bookie that was heard to its last entry, −1 if it has none. ``problems`` maps the index of each
    other bookie to the reason. ``lengths`` maps each entry that came as evidence to the ledger length at it.
    """

    def __init__(self, digester: Digester, metadata: LedgerMetadata, *, first_request: int = 0) -> None:
        last = metadata.last_fragment
        self.digester, self.ensemble, self.first_request = digester, last.ensemble, first_request
        self.sizes = metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
        self.lac: EntryId = last.first_entry_id - 1
        self.known: dict[int, EntryId] = {}
        self.problems: dict[int, str] = {}
        self.lengths: dict[EntryId, int] = {}

    @property
    def covered(self) -> bool:
        """Whether every ack quorum has a member with valid evidence."""
        return quorum.covers(self.known, *self.sizes)

    @property
    def exhausted(self) -> bool:
        """Whether every bookie answered or failed."""
        return len(self.known) + len(self.problems) == len(self.ensemble)

    @property
    def said(self) -> str:
        """The bookies that failed or gave no valid evidence, each with the reason, as one text."""
        return "; ".join(f"{self.ensemble[index]}: {why}" for index, why in sorted(self.problems.items()))

    def asked(self, event: ev.LacEvent) -> bool:
        """Return whether the event answers a request of this query."""
        return 0 <= event.index - self.first_request < len(self.ensemble)

    def hear(self, event: ev.LacEvent) -> None:
        """Verify a bookie's answer. Record its evidence if it is valid, otherwise the reason why it does not count."""
        index = event.index - self.first_request
        if index in self.known:
            return
        if isinstance(event, ev.LacFailed):
            self.problems[index] = f"{event.reason.name} {event.message}" if event.reason else event.message
            return
        try:
            lac, lengths = verified_lac(event, self.digester)
        except IntegrityError as error:
            self.problems[index] = str(error)
            return
        self.problems.pop(index, None)
        self.known[index] = max(lengths, default=NO_ENTRY)
        self.lac = max(self.lac, lac)
        self.lengths.update(lengths)


class QuorumLacRead:
    """Reads the LAC from a quorum of the last ensemble, once, without fencing.

    It ends with Confirm once every ack quorum has a member with valid evidence, or with Fail if too few bookies
    answered. ``query.lac`` is proven at any time, also before the end.
    """

    def __init__(self, metadata: LedgerMetadata, digester: Digester, *, first_request: int = 0) -> None:
        self.query, self.done = LacQuery(digester, metadata, first_request=first_request), False
        self.ensemble = self.query.ensemble

    def start(self) -> list[ev.SendReadLac]:
        return [
            ev.SendReadLac(request, bookie) for request, bookie in enumerate(self.ensemble, self.query.first_request)
        ]

    def step(self, event: ev.LacEvent) -> list[ev.CancelRead | ev.Confirm | ev.Fail]:
        """Handle one bookie's answer. Answers to other reads, and all answers after the end, are ignored."""
        query = self.query
        if self.done or not query.asked(event):
            return []
        query.hear(event)
        if query.covered:
            return [*self.stop(), ev.Confirm(query.lac)]
        if not query.exhausted:
            return []
        self.done = True
        error = QuorumTimeoutError(
            f"too few bookies could say how far ledger {query.digester.ledger_id} is confirmed",
            value=query.said,
            remedy="bring these bookies back and try again",
            outcome=Outcome.NOT_APPLIED,
        )
        return [ev.Fail(error)]

    def stop(self) -> list[ev.CancelRead]:
        """Cancel the requests that are not answered."""
        self.done = True
        heard, first = self.query.known.keys() | self.query.problems.keys(), self.query.first_request
        return [ev.CancelRead(first + index) for index in range(len(self.ensemble)) if index not in heard]
