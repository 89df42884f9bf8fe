# SPDX-License-Identifier: Apache-2.0
"""What an ensemble says about the end of a ledger: coverage, and the highest LAC that is proven. Pure.

Sources: protocol document "Closing a ledger as a reader"; facts: client.md §3.1, §3.12, reliability.md §1.5; RULES P5:
the LAC is evidence only when digested, so a bookie whose evidence fails its digest has not been heard.
"""

from __future__ import annotations

from dataclasses import replace

from bk_core import quorum
from bk_core.entries.apache import parse_lac_body
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import decode_frame
from bk_core.errors import IntegrityError, Outcome, QuorumTimeoutError
from bk_core.model import NO_ENTRY, EntryId, LedgerMetadata
from bk_core.protocol import events as ev
from bk_core.protocol.events import Buffer, LacAnswered, LacFailed


def one_entry(frame: Buffer, digester: Digester) -> EntryBatch:
    """The entry of a one-entry frame, verified end to end. Raises IntegrityError."""
    batch = decode_frame(frame, digester=digester, verify_digests=True)
    if len(batch) != 1 or batch.ledger_id != digester.ledger_id:
        raise IntegrityError("evidence of a LAC must be one entry of the ledger", value=f"ledger {batch.ledger_id}")
    return batch


def verified_lac(event: LacAnswered, digester: Digester) -> tuple[EntryId, dict[EntryId, int]]:
    """The highest LAC that a bookie's evidence proves (−1: none), and the ledger length at the entries that came with
    it. Raises IntegrityError if any part of the evidence fails its digest."""
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
    """Answers of one ensemble to a fence or a LAC read.

    ``lac`` never falls below ``floor`` (MUST 9: the first entry id of the last fragment − 1). ``known`` are the indices
    heard; ``problems`` says why others are not. ``lengths`` keeps the ledger length at entries that came as evidence.
    """

    def __init__(
        self, digester: Digester, ensemble_size: int, write_quorum: int, ack_quorum: int, *, floor: EntryId = NO_ENTRY
    ) -> None:
        self.digester = digester
        self.ensemble_size, self.write_quorum, self.ack_quorum = ensemble_size, write_quorum, ack_quorum
        self.lac = floor
        self.known: dict[int, EntryId] = {}
        self.problems: dict[int, str] = {}
        self.lengths: dict[EntryId, int] = {}

    @property
    def covered(self) -> bool:
        """No ack quorum is left unheard."""
        return quorum.covers(self.known, self.ensemble_size, self.write_quorum, self.ack_quorum)

    @property
    def exhausted(self) -> bool:
        """Every bookie answered or failed."""
        return len(self.known) + len(self.problems) == self.ensemble_size

    def answered(self, event: LacAnswered) -> None:
        """Count a bookie, after verifying what it brought."""
        if event.index in self.known:
            return
        try:
            lac = self._verified(event)
        except IntegrityError as error:
            self.problems[event.index] = str(error)
            return
        self.problems.pop(event.index, None)
        self.known[event.index] = lac
        self.lac = max(self.lac, lac)

    def failed(self, event: LacFailed) -> None:
        if event.index not in self.known:
            self.problems[event.index] = f"{event.reason.name} {event.message}" if event.reason else event.message

    def _verified(self, event: LacAnswered) -> EntryId:
        lac, lengths = verified_lac(event, self.digester)
        self.lengths.update(lengths)
        return lac


class QuorumLacRead:
    """One quorum LAC read of the last ensemble; never fences (client.md §3.12).

    Confirm once no ack quorum is left unheard, Fail when too few bookies could say. Requests are numbered from
    ``first_request`` on; ``query`` is good for what it proves (``lac``) before that too.
    """

    def __init__(self, metadata: LedgerMetadata, digester: Digester, *, first_request: int = 0) -> None:
        last = metadata.last_fragment
        self.ensemble, self.first_request, self.done = last.ensemble, first_request, False
        sizes = metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
        self.query = LacQuery(digester, *sizes, floor=last.first_entry_id - 1)

    def start(self) -> list[ev.SendReadLac]:
        return [ev.SendReadLac(self.first_request + i, bookie) for i, bookie in enumerate(self.ensemble)]

    def step(self, event: LacAnswered | LacFailed) -> list[ev.CancelRead | ev.Confirm | ev.Fail]:
        """Hear one bookie. Nothing for an answer to another read, or once done."""
        index = event.index - self.first_request
        if self.done or not 0 <= index < len(self.ensemble):
            return []
        if isinstance(event, LacAnswered):
            self.query.answered(replace(event, index=index))
        else:
            self.query.failed(replace(event, index=index))
        if self.query.covered:
            return [*self.stop(), ev.Confirm(self.query.lac)]
        if not self.query.exhausted:
            return []
        self.done = True
        error = QuorumTimeoutError(
            f"too few bookies could say how far ledger {self.query.digester.ledger_id} is confirmed",
            value="; ".join(f"{self.ensemble[i]}: {why}" for i, why in sorted(self.query.problems.items())),
            remedy="bring these bookies back and try again",
            outcome=Outcome.NOT_APPLIED,
        )
        return [ev.Fail(error)]

    def stop(self) -> list[ev.CancelRead]:
        """No more answers are wanted."""
        self.done = True
        heard = self.query.known.keys() | self.query.problems.keys()
        return [ev.CancelRead(self.first_request + i) for i in range(len(self.ensemble)) if i not in heard]
