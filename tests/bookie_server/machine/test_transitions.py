# SPDX-License-Identifier: Apache-2.0
"""Every event at a bookie, whatever it holds of the ledger: where it leads, and that nothing else happens.

The machine has no enum of states: what it knows of one ledger is its state, and is named here and in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from bk_core.entries.apache import lac_body
from bk_core.entries.frame import FrameKind
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.machine import events as ev
from tests.bookie_server.machine.machine_bench import ADDS, READS, Bench, entries, pending_frames
from tests.kit.lanes import KEY, digester
from tests.kit.memory_holdings import StoredFrame, every_second, read_piece, stored
from tests.kit.transitions import as_table, members, printed, sweep

LEDGER = 7
STATES = ("UNKNOWN", "PENDING", "OPEN", "FENCING", "FENCED", "LIMBO", "DELETING", "DELETED", "FAILED")

TABLE: dict[tuple[str, str], str] = {
    ("UNKNOWN", "CommitFailed"): "UNKNOWN FAILED",
    ("UNKNOWN", "FenceRequested"): "UNKNOWN FENCING",
    ("UNKNOWN", "FramesArrived"): "UNKNOWN PENDING",
    ("UNKNOWN", "ReadRequested"): "UNKNOWN FENCING",
    ("PENDING", "CommitFailed"): "UNKNOWN FAILED",
    ("PENDING", "FenceRequested"): "PENDING FENCING",
    ("PENDING", "GroupCommitted"): "PENDING OPEN",
    ("PENDING", "LedgersDeleted"): "DELETING",
    ("PENDING", "ReadRequested"): "PENDING FENCING",
    ("OPEN", "CommitFailed"): "OPEN FAILED",
    ("OPEN", "FenceRequested"): "OPEN FENCING",
    ("OPEN", "FramesArrived"): "PENDING OPEN",
    ("OPEN", "FramesRead"): "PENDING OPEN",
    ("OPEN", "LedgersDeleted"): "DELETING",
    ("OPEN", "ReadRequested"): "OPEN FENCING",
    ("FENCING", "CommitFailed"): "FENCING FAILED",
    ("FENCING", "FramesArrived"): "OPEN FENCING",
    ("FENCING", "GroupCommitted"): "FENCING FENCED",
    ("FENCING", "LedgersDeleted"): "DELETING",
    ("FENCING", "SessionAttached"): "OPEN FENCING",
    ("FENCING", "SessionsDetached"): "OPEN FENCING",
    ("FENCING", "StreamClosed"): "OPEN FENCING",
    ("FENCED", "CommitFailed"): "FENCED FAILED",
    ("FENCED", "LedgersDeleted"): "DELETING",
    ("LIMBO", "CommitFailed"): "LIMBO FAILED",
    ("LIMBO", "FenceRequested"): "FENCING LIMBO",
    ("LIMBO", "LedgersDeleted"): "DELETING",
    ("LIMBO", "ReadRequested"): "FENCING LIMBO",
    ("DELETING", "CommitFailed"): "OPEN FAILED",
    ("DELETING", "GroupCommitted"): "DELETING DELETED",
    ("DELETED", "CommitFailed"): "DELETED FAILED",
}
"""The moves of docs/protocol.md; a pair that is missing leads nowhere."""

OTHER_KEY = b"x" * 20


def bench(*steps: Callable[[Bench], object], **limits: int) -> Callable[[], Bench]:
    def build() -> Bench:
        made = Bench(**limits)
        for step in steps:
            step(made)
        return made

    return build


def attach(made: Bench) -> object:
    return made.attach(1)


def send(made: Bench) -> object:
    return made.send(entries(0, b"a"), entries(1, b"b", lac=0))


def commit(made: Bench) -> object:
    return made.commit()


def fence(made: Bench) -> object:
    return made.ask(ev.FenceRequested, LEDGER, KEY)


def folded(kind: FrameKind) -> Callable[[Bench], object]:
    return lambda made: made.store.fold(LEDGER, kind, KEY if kind is FrameKind.LEDGER_KEY else b"")


def read(made: Bench) -> object:
    return made.read(0, 5)


def watch(made: Bench) -> object:
    return made.ask(ev.WatchLacRequested, LEDGER, 50, 1000)


def remember(made: Bench) -> object:
    made.store.in_memory = every_second
    return made


def delete(made: Bench) -> object:
    return made.step(ev.LedgersDeleted((LEDGER,)))


HELD = (attach, send, commit)
SITUATIONS: dict[str, Callable[[], Bench]] = {
    "nothing known": bench(),
    "attached": bench(attach),
    "an add is pending": bench(attach, send),
    "a read waits for a pending add": bench(attach, send, read),
    "entries are there": bench(*HELD),
    "entries are in memory": bench(*HELD, remember),
    "an entry is on its way": bench(*HELD, remember, lambda made: made.read(0, 0)),
    "entries are being read": bench(*HELD, read),
    "a part is on its way": bench(*HELD, read, lambda made: made.disk()),
    "somebody watches": bench(*HELD, watch),
    "the same entries came again": bench(*HELD, send),
    "other entries came again": bench(*HELD, lambda made: made.send(entries(1, b"else"))),
    "a fence is pending, nothing known": bench(fence),
    "a fence is pending": bench(*HELD, fence),
    "a fence is pending behind an add": bench(attach, send, fence),
    "a fencing read waits": bench(*HELD, lambda made: made.read(0, 9, fence_key=KEY)),
    "a fence could not be written": bench(*HELD, fence, lambda made: made.fail(final=False, reason=Reason.NO_SPACE)),
    "fenced": bench(*HELD, fence, commit, lambda made: made.disk()),
    "fenced, and recovered": bench(
        *HELD, fence, commit, lambda made: made.attach(2, mode=AttachMode.RECOVER, stream=9)
    ),
    "may have lost entries": bench(*HELD, lambda made: made.step(ev.StreamClosed(ADDS)), folded(FrameKind.LIMBO)),
    "deleted": bench(folded(FrameKind.LEDGER_KEY), folded(FrameKind.DELETED)),
    "being deleted": bench(*HELD, watch, delete),
    "being deleted behind an add and a read": bench(attach, send, commit, send, read, delete),
    "the deletion could not be written": bench(
        *HELD, delete, lambda made: made.fail(final=False, reason=Reason.NO_SPACE)
    ),
    "deleted while it was used": bench(*HELD, read, watch, delete, commit),
    "a sync failed": bench(*HELD, lambda made: made.fail(final=True)),
    "a sync failed under an add": bench(attach, send, read, lambda made: made.fail(final=True)),
    "read-only": bench(lambda made: made.step(ev.ReadOnlyChanged(True)), attach),
}


class Bookie:
    """A machine with what it gave out. A copy lives through the same: places are shared by plain copies."""

    def __init__(self, build: Callable[[], Bench]) -> None:
        made = build()
        self.machine, self.log, self.to_read, self.request = made.machine, made.log, made.to_read, made.request
        self.build, self.past = build, list[ev.Event]()

    def step(self, event: ev.Event) -> list[ev.Effect]:
        if isinstance(event, ev.GroupCommitted) and len(event.places) > pending_frames(self.machine):
            return []  # the second time: the log has nothing more
        self.past.append(event)
        return self.machine.step(event)

    def copy(self) -> Bookie:
        twin = Bookie(self.build)
        for event in self.past:
            twin.step(event)
        return twin

    def fingerprint(self) -> object:
        return printed(self.machine)


def state_of(bookie: Bookie) -> str:
    core = bookie.machine._core
    facts, ledger = core.holdings.facts(LEDGER), core.ledgers.get(LEDGER)
    if core.failed:
        return "FAILED"
    if facts.deleted:
        return "DELETED"
    if ledger and ledger.deleted:
        return "DELETING"
    if ledger.fenced if ledger else facts.fenced:
        return "FENCED" if facts.fenced else "FENCING"
    if facts.trouble:
        return "LIMBO"
    if ledger and ledger.in_log:
        return "PENDING"
    return "OPEN" if facts.known else "UNKNOWN"


def requests(bookie: Bookie) -> Iterable[tuple[int, int]]:
    yield from ((READS, number) for number in range(1, bookie.request + 2))
    yield (5, 1)


def events(bookie: Bookie) -> Iterable[ev.Event]:
    for session, key, mode in ((0, KEY, 0), (1, KEY, 0), (3, KEY, 0), (3, KEY, 1), (3, OTHER_KEY, 0), (3, b"", 1)):
        yield ev.SessionAttached(ADDS, session, LEDGER, key, AttachMode(mode))
    yield ev.SessionAttached(ADDS, 3, -5, KEY, AttachMode.WRITE)
    yield ev.SessionAttached(ADDS, 3, LEDGER, KEY, AttachMode.WRITE, explicit_ids=True)
    for stream, session in ((ADDS, 1), (ADDS, 44), (9, 2)):
        for first in (0, 2, 2**40):
            yield ev.FramesArrived(stream, memoryview(entries(first, b"a", session=session)))
    yield ev.FramesArrived(ADDS, memoryview(entries(2, b"a", ledger=8)))
    yield ev.FramesArrived(ADDS, memoryview(b"no frames at all"))
    yield ev.FramesArrived(ADDS, memoryview(b""))
    yield from (ev.SessionsDetached(ADDS, [1]), ev.SessionsDetached(ADDS, [44]), ev.SessionsDetached(66, [1]))
    for stream in (ADDS, READS, 9, 66):
        yield from (ev.StreamClosed(stream), ev.StreamStalled(stream), ev.StreamOwned(stream, (("client", 1),)))
    for count in range(min(len(bookie.log), 3) + 1):
        yield ev.GroupCommitted([stored(one) for one in bookie.log[:count]])
    yield from (ev.CommitFailed(Reason.NO_SPACE, "full", False), ev.CommitFailed(Reason.STORAGE_FAILED, "sync", True))
    yield from storage_answers(bookie)
    yield from (ev.ReadOnlyChanged(True), ev.ReadOnlyChanged(False), ev.TimerFired(None))
    yield from (ev.CopiesUnwanted((LEDGER,)), ev.CopiesUnwanted((LEDGER, LEDGER, 99, -1, 2**63 - 1)))
    yield from (ev.LedgersDeleted((LEDGER,)), ev.LedgersDeleted((LEDGER, LEDGER, 99, -1, 2**63 - 1)))
    for request in requests(bookie):
        yield from (ev.RequestCancelled(request), ev.PartSent(request), ev.TimerFired(request))
    yield from (ev.EntriesSent(stream, rows) for stream in (READS, 66) for rows in (1, 5))
    for ids in ((0,), (1, 0), (-1, 2, 2**63 - 1)):
        yield ev.EntriesRequested(READS, range(90, 90 + len(ids)), [LEDGER] * len(ids), ids)
    yield ev.EntriesRequested(READS, (1, 90), (LEDGER, -1), (0, 0))
    yield from asked((READS, 90))
    yield from asked((READS, 1))


def storage_answers(bookie: Bookie) -> Iterable[ev.Event]:
    for wanted in bookie.to_read:
        yield ev.FramesRead(wanted.request, [read_piece(piece) for piece in wanted.pieces])
        yield ev.FramesRead(wanted.request, [None for _ in wanted.pieces])
    yield ev.FramesRead((READS, 80), [b"of no request"])
    yield ev.MembershipsRead((READS, 80), [None])
    yield ev.MembershipsRead((READS, 1), [None])


def asked(request: tuple[int, int]) -> Iterable[ev.Event]:
    for key in (None, KEY, OTHER_KEY):
        yield ev.ReadRequested(request, LEDGER, 0, 5, 1 << 20, key)
    yield from (ev.ReadRequested(request, LEDGER, 5, 4, 1 << 20), ev.ReadRequested(request, -1, 0, 4, 1 << 20))
    yield from (ev.FenceRequested(request, LEDGER, key) for key in (KEY, OTHER_KEY, b""))
    yield ev.ReadLacRequested(request, LEDGER)
    yield from (ev.DeleteHintRequested(request, ids) for ids in ((LEDGER,), (-1, 2**63 - 1), range(10_001)))
    body = lac_body(1, digester(LEDGER))
    for key, said in ((KEY, body), (OTHER_KEY, body), (KEY, body[:-1] + b"\0"), (KEY, b"short")):
        yield ev.WriteLacRequested(request, LEDGER, key, said)
    yield from (ev.WatchLacRequested(request, LEDGER, lac, ms) for lac, ms in ((-1, 1000), (50, 1000), (50, 0)))


@pytest.mark.long
def test_every_event_in_every_state_leads_where_the_table_says() -> None:
    seen = sweep(
        {name: lambda build=build: Bookie(build) for name, build in SITUATIONS.items()},
        events,
        state_of,
        effects_known=members(*members(ev.Effect)),
        ends=(),
    )
    assert set(seen) == {(state, cls.__name__) for state in STATES for cls in members(ev.Event)}
    assert as_table(seen, STATES) == TABLE


@pytest.mark.rule("MUST2", "MUST3", "P1")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_whatever_comes_only_a_commit_acks_and_a_fence_stays(situation: str) -> None:
    for event in events(Bookie(SITUATIONS[situation])):
        bookie = Bookie(SITUATIONS[situation])
        before = state_of(bookie)
        effects = bookie.step(event)
        after = state_of(bookie)
        if before == "FENCED" or (before == "FENCING" and bookie.log and not isinstance(event, ev.CommitFailed)):
            wanted = ("DELETING",) if isinstance(event, ev.LedgersDeleted) else (before, "FENCED", "FAILED")
            assert after in wanted, event
        acked = [effect for effect in effects if isinstance(effect, ev.SendAcks) and effect.sessions]
        assert not acked or isinstance(event, ev.GroupCommitted), event
        given = [effect for effect in effects if isinstance(effect, ev.Commit)]
        if before in ("FENCED", "DELETING", "DELETED", "FAILED") and not isinstance(event, ev.TimerFired):
            frames = [stored(one) for effect in given for one in effect.frames]
            assert not any(_is_entry_of_writer(frame, event) for frame in frames), event
        if before in ("DELETED", "FAILED"):
            assert given == []
            assert effects or not isinstance(event, ev.SessionAttached), "who attaches is told at once"
        if isinstance(event, ev.RequestCancelled):
            ends = (ev.SendTrailer, ev.SendLac, ev.SendReply)
            assert not any(isinstance(effect, ends) and effect.request == event.request for effect in effects)


def _is_entry_of_writer(frame: StoredFrame, event: ev.Event) -> bool:
    """Session 2 of stream 9 is the recovery's."""
    recovers = isinstance(event, ev.FramesArrived) and event.stream == 9
    return frame.header.kind == FrameKind.ENTRIES and not recovers
