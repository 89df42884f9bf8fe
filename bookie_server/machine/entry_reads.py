# SPDX-License-Identifier: Apache-2.0
"""Answers reads of single entries in one step of the bookie's machine, if memory has the entries.

A read of one entry that goes the ordinary way (``reads.py``) takes two steps and the objects of a request, which cost
several times as much as reading the entry. This file handles the reads that arrived together in columns. It answers a
read only if nothing can hold up or change the answer: the entry is durable and its frame is in memory, the read neither
fences nor asks for parts or ids, the bounds on requests and on parts of answers leave room, and no read waits for its
turn. It passes every other read on, so a read has the same answer on both ways.
"""

from __future__ import annotations

from collections.abc import Iterator

from bk_core.model import LEDGER_ID_MAX, EntryId, LedgerId
from bk_core.wire.lane.evidence import ReadTrailer
from bookie_server.machine.core import Core
from bookie_server.machine.events import EntriesRequested, ReadRequested, SendEntries, SendPart, SendTrailer
from bookie_server.machine.reads import ID_MAX, Reads
from bookie_server.machine.requests import Frame, Requests


class EntryReads:
    """The reads of single entries. ``reads`` gets those that are not answered at once."""

    def __init__(self, core: Core, requests: Requests, reads: Reads) -> None:
        self._core, self._requests, self._reads = core, requests, reads

    def begin(self, event: EntriesRequested) -> None:
        """Answer reads that arrived together."""
        stream, numbers, ledger_ids, entry_ids = event
        for k in self._answer(event):
            entry_id = entry_ids[k]
            self._reads.begin(ReadRequested((stream, numbers[k]), ledger_ids[k], entry_id, entry_id, 0))

    def begin_one(self, event: ReadRequested) -> None:
        """Answer a read of any kind."""
        stream, number = event.request
        if not _is_plain(event) or self._answer(
            EntriesRequested(stream, (number,), (event.ledger_id,), (event.first,))
        ):
            self._reads.begin(event)

    def _answer(self, event: EntriesRequested) -> list[int]:
        """Answer the reads whose entries are in memory. Return the rows of the others."""
        core, requests, turns = self._core, self._requests, self._reads.turns
        stream, asked, ledger_ids, entry_ids = event
        if not (requests.has_room() and self._reads.may_pass()):
            return list(range(len(asked)))
        left, rows = list[int](), list[tuple[int, EntryId, Frame, bool, EntryId]]()
        weight, size = turns.room_for(stream)
        known: LedgerId = -1
        is_fenced, lac = False, -1  # of the ledger ``known``
        for k, number in enumerate(asked):
            ledger_id, entry_id = ledger_ids[k], entry_ids[k]
            is_valid = 0 <= ledger_id <= LEDGER_ID_MAX and 0 <= entry_id <= ID_MAX
            frame = None
            if is_valid and weight > 0 and size > 0 and not requests.uses((stream, number)):
                frame = core.holdings.entry(ledger_id, entry_id)
            if frame is None:
                left.append(k)
                continue
            if ledger_id != known:
                known, (is_fenced, lac) = ledger_id, core.fence_and_lac(ledger_id)
            taken = len(frame)
            weight, size = weight - turns.weight_of(taken), size - taken
            rows.append((number, entry_id, frame, is_fenced, lac))
        if rows:
            numbers, found, frames, fenced, lacs = map(list, zip(*rows, strict=True))
            sizes = [*map(len, frames)]
            turns.take_entries(stream, sizes)
            core.counts.read_parts += len(sizes)
            core.counts.read_bytes += sum(sizes)
            core.effects.append(SendEntries(stream, numbers, found, frames, fenced, lacs))
        return left


def as_parts(effect: SendEntries) -> Iterator[tuple[SendPart, SendTrailer]]:
    """Yield for each row of the effect the two effects whose meaning it has."""
    stream, numbers, entry_ids, frames, fenced_column, lacs = effect
    for number, entry_id, frame, fenced, lac in zip(numbers, entry_ids, frames, fenced_column, lacs, strict=True):
        request_id = stream, number
        trailer = ReadTrailer(entry_id, fenced=fenced)
        yield SendPart(request_id, (frame,), lac), SendTrailer(request_id, trailer, known=True, lac=lac)


def _is_plain(event: ReadRequested) -> bool:
    """Return whether this is a read of one whole entry that does not fence."""
    return event.first == event.last and event.fence_key is None and event.cut is None and not event.ids_only
