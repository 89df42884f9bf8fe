# SPDX-License-Identifier: Apache-2.0
"""The bookie's machine, which decides what a bookie does. It takes an event and returns effects, and has no clock,
thread, file or socket.

The driver (:mod:`bookie_server.engine`) owns one machine on its loop, feeds it events and carries out its effects. The
machine has two halves: ``adds.py`` (sessions and acks), and ``requests.py`` with its paths (answers). ``core.py`` has
the state that both share.

It promises the following. It acknowledges a frame only after the frame is durable (P1). After a fence it takes no
normal add, and it answers no fencing request before the fence is durable (MUST 2, MUST 3). It answers ABSENT only if
nothing durable or pending covers the id (S1, MUST 4). The ledger key is durable before the first ack (L2). After a
failed sync it refuses everything (S6). Expected trouble comes in as an event and goes out as a reason; an exception out
of :meth:`BookieMachine.step` is a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bookie_server.machine.adds import Adds
from bookie_server.machine.compare import Comparisons
from bookie_server.machine.core import Core, Counts, Refusal
from bookie_server.machine.deletions import Deletions
from bookie_server.machine.entry_reads import EntryReads
from bookie_server.machine.events import (
    CommitFailed,
    CopiesUnwanted,
    DeleteHintRequested,
    Effect,
    EntriesRequested,
    EntriesSent,
    Event,
    FenceRequested,
    FramesArrived,
    FramesRead,
    GroupCommitted,
    LedgersDeleted,
    MembershipsRead,
    PartSent,
    ReadLacRequested,
    ReadOnlyChanged,
    ReadRequested,
    RequestCancelled,
    SessionAttached,
    SessionsDetached,
    StreamClosed,
    StreamId,
    StreamOwned,
    StreamStalled,
    TimerFired,
    WatchLacRequested,
    WriteLacRequested,
)
from bookie_server.machine.lac import Lacs
from bookie_server.machine.reads import Reads
from bookie_server.machine.requests import Requests
from bookie_server.machine.state import Holdings, Ledger, MachineLimits, Pending


@dataclass(frozen=True, slots=True)
class MachineNumbers:
    """The amounts that a machine holds now, and its counters."""

    counts: Counts
    ledgers: int
    """The number of ledgers with sessions, requests or frames on their way."""
    sessions: int
    frames_in_flight: int
    bytes_in_flight: int
    bytes_waiting: int
    """The bytes of messages that wait because too much is in flight."""
    parts: int
    parts_bytes: int
    owners: int
    """The number of clients whose bytes in flight are bounded, and that have a stream or bytes in flight."""


class BookieMachine:
    """The machine of one bookie. ``holdings`` is the index of the durable data; while the machine lives, only the
    machine changes it. ``logs`` is the number of logs, which are numbered from 0."""

    def __init__(self, holdings: Holdings, limits: MachineLimits | None = None, logs: int = 1) -> None:
        core = self._core = Core(holdings, limits or MachineLimits(), logs)
        requests = self._requests = Requests(core)
        reads = self._reads = Reads(core, requests)
        entries = EntryReads(core, requests, reads)
        lacs = self._lacs = Lacs(core, requests)
        compare = Comparisons(core, requests, lambda session, differing: self._adds.compared(session, differing))
        adds = self._adds = Adds(core, compare.begin)
        deletions = self._deletions = Deletions(core, requests, adds.end_deleted)
        self._handlers: dict[type, Callable[[Any], None]] = {
            StreamOwned: adds.own,
            SessionAttached: adds.attach,
            FramesArrived: adds.frames,
            SessionsDetached: lambda event: adds.detach(event.stream, list(event.sessions)),
            StreamClosed: self._on_closed,
            GroupCommitted: self._on_committed,
            CommitFailed: self._on_failed,
            FramesRead: requests.frames_read,
            MembershipsRead: requests.memberships_read,
            ReadRequested: entries.begin_one,
            EntriesRequested: entries.begin,
            PartSent: lambda event: reads.sent(event.request),
            EntriesSent: lambda event: reads.turns.entries_sent(event.stream, event.rows),
            StreamStalled: lambda event: reads.stalled(event.stream),
            FenceRequested: lambda event: lacs.read(event.request, event.ledger_id, event.ledger_key),
            ReadLacRequested: lambda event: lacs.read(event.request, event.ledger_id),
            WriteLacRequested: lacs.write,
            WatchLacRequested: lacs.watch,
            DeleteHintRequested: deletions.hint,
            LedgersDeleted: deletions.delete,
            CopiesUnwanted: deletions.drop,
            RequestCancelled: lambda event: requests.cancel(event.request),
            TimerFired: lacs.timer_fired,
            ReadOnlyChanged: self._on_read_only,
        }

    def step(self, event: Event) -> list[Effect]:
        """Handle one event; return its effects, in order."""
        core = self._core
        core.effects = []
        self._handlers[type(event)](event)
        self._reads.next_turns()
        self._adds.flush()
        for log in core.logs:
            if log.outgoing:
                core.effects.append(log.take_commit())
        return core.effects

    def numbers(self) -> MachineNumbers:
        """Return the numbers for metrics. Any thread may call; each number is right at some moment of the call."""
        core, adds = self._core, self._adds
        flights = adds.normal, adds.recovery
        parts, parts_bytes = self._reads.turns.held
        return MachineNumbers(
            core.counts,
            len(core.ledgers),
            adds.sessions,
            sum(flight.frames for flight in flights),
            sum(flight.bytes for flight in flights),
            adds.normal.waiting,
            parts,
            parts_bytes,
            len(core.owners),
        )

    def frames_of(self, stream: StreamId) -> int:
        """Return how many frames a stream has sent so far."""
        return self._adds.frames_of(stream)

    def _on_closed(self, event: StreamClosed) -> None:
        self._requests.close(event.stream)
        self._reads.close(event.stream)
        self._adds.close(event.stream)
        self._core.owners.close(event.stream)

    def _on_read_only(self, event: ReadOnlyChanged) -> None:
        self._core.logs[event.log].read_only = event.read_only

    def _on_committed(self, event: GroupCommitted) -> None:
        core, places = self._core, event.places
        log, counts = core.logs[event.log], core.counts
        if event.group_bytes != log.group_bytes:
            log.group_bytes = event.group_bytes
            self._adds.bound_streams()
        watched: dict[int, Pending] = {}
        idle: dict[int, Ledger] = {}  # checked again below, with watches and hints
        for pending, place in zip(log.settle(len(places)), places, strict=True):
            ledger = pending.ledger
            ledger.in_log -= 1
            if not ledger.in_log and not ledger.sessions:
                idle[ledger.ledger_id] = ledger
            core.holdings.add(pending, place)
            if pending.session is None:
                self._deletions.committed(pending)
                continue  # a record; requests that wait for it are resumed below
            ledger.pending.popleft()
            size = len(pending.frame)
            counts.added_entries += pending.header.count
            counts.added_bytes += size
            self._adds.committed(pending, size)
            if ledger.watches:
                watched[ledger.ledger_id] = pending
        for pending in watched.values():
            self._lacs.committed(pending)
        if log.parked:
            for request in log.unpark():
                self._requests.resume(request)
        for ledger in idle.values():
            core.forget_if_idle(ledger)

    def _on_failed(self, event: CommitFailed) -> None:
        core = self._core
        problem: Refusal = (event.reason, event.message)
        if event.final:
            core.failed = problem
        logs = core.logs if event.final else core.logs[event.log : event.log + 1]
        dropped = [pending for log in logs for pending in core.drop_queue(log)]
        for pending in dropped:
            if pending.session:
                self._adds.dropped(pending, problem)
        self._deletions.dropped(dropped)
        if event.final:
            self._adds.fail_all(problem)
            self._requests.refuse_all(problem)
        for log in logs:
            for request in log.unpark():
                self._requests.resume(request)
