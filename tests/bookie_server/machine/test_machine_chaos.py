# SPDX-License-Identifier: Apache-2.0
"""The bookie's machine under random events, watched by one who remembers everything.

Nobody holds back: sessions of writers and recoverers, frames that overlap, fences, reads, commits of any size, damage,
closed streams. After each step the promises are compared with what the log really holds.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import chain

import pytest

from bk_core.entries.frame import FrameKind, entry_ids_of, frame_extent, parse_header, split_frames
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.state import MachineLimits
from tests.kit.amount import some
from tests.kit.lanes import KEY, frame
from tests.kit.memory_holdings import MemoryHoldings, read_piece, stored

LEDGERS = (1, 2, 3)
ADD_STREAMS = (1, 2)
READ_STREAMS = (11, 12)
IDS = 24


class Spread(MemoryHoldings):
    """Ledgers spread over so many logs."""

    def __init__(self, logs: int) -> None:
        super().__init__()
        self.logs = logs

    def log_of(self, ledger_id: int) -> int:
        return ledger_id % self.logs


class World:
    """The machine, a log of bytes, and everything that was promised."""

    def __init__(self, seed: int, logs: int = 1) -> None:
        self.chance = random.Random(seed)
        self.store = Spread(logs)
        limits = MachineLimits(read_part_bytes=300, reads_active_max=3, stream_bytes_max=3000, in_flight_bytes_max=4000)
        self.machine = BookieMachine(self.store, limits, logs)
        self.queues: list[list[bytes | memoryview]] = [[] for _ in range(logs)]
        self.log: list[bytes] = []  # durable, in order
        self.reads: list[ev.ReadFrames] = []
        self.unsent: list[ev.RequestId] = []
        self.sessions: dict[tuple[int, int], int] = {}  # open ones: ledger
        self.recovering: set[tuple[int, int]] = set()
        self.given: dict[tuple[int, int], list[bytes]] = defaultdict(list)  # frames of each session, in order
        self.next_session = 0
        self.next_request = 0
        self.open: dict[ev.RequestId, str] = {}
        self.found: dict[ev.RequestId, set[int]] = defaultdict(set)
        self.asked: dict[ev.RequestId, tuple[int, int, int]] = {}
        self.covered: dict[ev.RequestId, set[int]] = {}  # ids durable or pending when it was asked
        self.fenced: set[int] = set()  # ledgers whose fence was promised to somebody
        self.streams = {*ADD_STREAMS, *READ_STREAMS}

    def step(self, event: ev.Event) -> None:
        for effect in self.machine.step(event):
            self.heard(effect)

    # --- what the machine wants ---

    def heard(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Commit(frames, log=log):
                assert {self.store.log_of(parse_header(one).ledger_id) for one in frames} == {log}
                self.queues[log].extend(frames)
            case ev.ReadFrames():
                self.reads.append(effect)
            case ev.SendAcks():
                self.acked(effect)
            case ev.SendPart():
                self.part(effect)
            case ev.CloseStream(_, message):
                raise AssertionError(message)
            case ev.SendTrailer() | ev.SendLac() | ev.SendReply():
                self.ended(effect)

    def acked(self, effect: ev.SendAcks) -> None:
        for session, count in zip(effect.sessions, effect.frames, strict=True):
            self.check_durable((effect.stream, session), count)
        for end in effect.ended:
            self.check_durable((effect.stream, end.session), end.frames)
            self.sessions.pop((effect.stream, end.session), None)

    def part(self, effect: ev.SendPart) -> None:
        assert effect.request in self.open
        for header, one in split_frames(b"".join(effect.frames)):
            self.found[effect.request].update(entry_ids_of(header, one).tolist())
        self.unsent.append(effect.request)

    def ended(self, effect: ev.SendTrailer | ev.SendLac | ev.SendReply) -> None:
        assert effect.request in self.open, "one ending each"
        kind = self.open.pop(effect.request)
        if isinstance(effect, ev.SendTrailer) and not effect.reason:
            self.check_trailer(effect.request, effect.trailer)
        elif isinstance(effect, ev.SendLac) and kind == "fence":
            assert effect.evidence.fenced
            self.check_fence_durable(self.asked[effect.request][0])

    # --- promises ---

    def check_durable(self, session: tuple[int, int], count: int) -> None:
        """P1: the first ``count`` frames of the session are in the log, in their order, behind the key (L2)."""
        at = -1
        for one in self.given[session][:count]:
            at = self.log.index(one, at + 1)
        if count:
            ledger = parse_header(self.given[session][0]).ledger_id
            headers = [parse_header(one) for one in self.log]
            first = next(k for k, h in enumerate(headers) if h.ledger_id == ledger)
            assert headers[first].kind == FrameKind.LEDGER_KEY

    def check_fence_durable(self, ledger: int) -> None:
        """MUST 3; and from here on the log takes no normal add of the ledger (checked at commit)."""
        assert any(h.kind == FrameKind.FENCE and h.ledger_id == ledger for h in map(parse_header, self.log))
        self.fenced.add(ledger)

    def check_trailer(self, request: ev.RequestId, trailer: ev.ReadTrailer) -> None:
        ledger, first, last = self.asked[request]
        if trailer.fenced and self.store.facts(ledger).fenced:
            self.fenced.add(ledger)
        absent = {i for r in trailer.absent for i in range(r.first, r.last + 1)}
        unknown = {i for r in trailer.unknown for i in range(r.first, r.last + 1)}
        through = min(trailer.answered_through, last)
        assert set(range(first, through + 1)) == self.found[request] | absent | unknown, "P4: all of it is answered"
        assert not absent & self.found[request]
        assert not absent & self.covered[request], "S1, MUST 4: ABSENT although something covered it when asked"
        for entry in unknown:
            assert any(one.damaged and one.holds(entry) for one in self.store.ledgers[ledger].frames)

    # --- what happens ---

    def attach(self) -> None:
        stream, ledger = self.chance.choice(ADD_STREAMS), self.chance.choice(LEDGERS)
        self.next_session += 1
        mode = self.chance.choice((AttachMode.WRITE, AttachMode.WRITE, AttachMode.RECOVER))
        key = (stream, self.next_session)
        self.sessions[key] = ledger
        if mode is AttachMode.RECOVER:
            self.recovering.add(key)
        self.step(ev.SessionAttached(stream, self.next_session, ledger, KEY, mode))

    def send(self) -> None:
        if not self.sessions:
            return
        stream, session = key = self.chance.choice(list(self.sessions))
        ledger = self.sessions[key]
        out = []
        for _ in range(self.chance.randint(1, 3)):
            first = self.chance.randrange(IDS)
            payloads = [payload(ledger, first + k) for k in range(self.chance.randint(1, 5))]
            if self.chance.random() < 0.05:
                payloads[0] = b"another entry at this id"
            one = frame(ledger, first, payloads, session=session, lac=self.next_session)
            self.given[key].append(one)
            out.append(one)
        self.step(ev.FramesArrived(stream, memoryview(b"".join(out))))

    def ask(self, kind: str) -> None:
        stream = self.chance.choice(READ_STREAMS)
        self.next_request += 1
        request, ledger = (stream, self.next_request), self.chance.choice(LEDGERS)
        first = self.chance.randrange(IDS)
        last = first + self.chance.randrange(IDS)
        self.open[request], self.asked[request] = kind, (ledger, first, last)
        frames = [one for one in (*self.log, *chain(*self.queues)) if parse_header(one).ledger_id == ledger]
        self.covered[request] = {entry for one in frames for entry in ids_of(one)}
        if kind == "fence":
            self.step(ev.FenceRequested(request, ledger, KEY))
        elif kind == "watch":
            self.step(ev.WatchLacRequested(request, ledger, self.chance.randrange(self.next_session + 2), 1000))
        else:
            key = KEY if kind == "fencing read" else None
            self.step(ev.ReadRequested(request, ledger, first, last, self.chance.choice((1, 500, 1 << 20)), key))

    def commit(self) -> None:
        log = self.chance.randrange(len(self.queues))
        queue = self.queues[log]
        count = self.chance.randint(0, len(queue))
        frames, self.queues[log] = queue[:count], queue[count:]
        for one in frames:
            header = parse_header(one)
            if header.kind == FrameKind.ENTRIES and header.ledger_id in self.fenced:
                assert any(key[1] == header.tag for key in self.recovering), "a normal add behind a promised fence"
        self.log.extend(map(bytes, frames))
        self.step(ev.GroupCommitted([stored(one) for one in frames], log))

    def disk(self) -> None:
        if self.reads:
            wanted = self.reads.pop(self.chance.randrange(len(self.reads)))
            self.step(ev.FramesRead(wanted.request, [read_piece(piece) for piece in wanted.pieces]))

    def sent(self) -> None:
        if self.unsent:
            self.step(ev.PartSent(self.unsent.pop(0)))

    def cancel(self) -> None:
        if self.open:
            request = self.chance.choice(list(self.open))
            del self.open[request]
            self.step(ev.RequestCancelled(request))

    def damage(self) -> None:
        frames = [one for ledger in self.store.ledgers.values() for one in ledger.frames]
        if frames:
            self.chance.choice(frames).damaged = True

    def detach(self) -> None:
        if self.sessions:
            stream, session = self.chance.choice(list(self.sessions))
            del self.sessions[stream, session]
            self.step(ev.SessionsDetached(stream, [session]))

    def close(self) -> None:
        stream = self.chance.choice((*ADD_STREAMS, *READ_STREAMS))
        self.sessions = {key: ledger for key, ledger in self.sessions.items() if key[0] != stream}
        self.open = {request: kind for request, kind in self.open.items() if request[0] != stream}
        self.unsent = [request for request in self.unsent if request[0] != stream]
        self.step(ev.StreamClosed(stream))

    def settle(self) -> None:
        """Let everything end: all commits, all reads, all sends, all timers."""
        for _ in range(3000):
            if any(self.queues):
                self.commit()
            elif self.reads:
                self.disk()
            elif self.unsent:
                self.sent()
            else:
                watches = [request for request, kind in self.open.items() if kind == "watch"]
                if not watches:
                    return
                self.step(ev.TimerFired(watches[0]))
        raise AssertionError(f"does not settle: {self.open}")


def ids_of(one: bytes | memoryview) -> range | list[int]:
    header = parse_header(one)
    if header.kind != FrameKind.ENTRIES:
        return []
    extent = frame_extent(one, header)
    return range(extent.first, extent.last + 1)


def payload(ledger: int, entry: int) -> bytes:
    return b"%d/%d" % (ledger, entry) * (entry % 4 + 1)


STEPS = (
    [World.attach] * 6
    + [World.send] * 16
    + [World.commit] * 14
    + [World.disk] * 14
    + [World.sent] * 10
    + [World.damage, World.cancel, World.detach, World.close]
)
REQUESTS = ["read"] * 8 + ["fencing read"] + ["fence"] + ["watch"] * 2


@pytest.mark.long
@pytest.mark.rule("P1", "P4", "S1", "MUST2", "MUST3", "MUST4")
@pytest.mark.parametrize("logs", [1, 2])
@pytest.mark.parametrize("seed", range(some(40, few=12)))
def test_promises_hold_whatever_happens(seed: int, logs: int) -> None:
    world = World(seed, logs)
    for _ in range(400):
        if world.chance.random() < 0.15:
            world.ask(world.chance.choice(REQUESTS))
        else:
            world.chance.choice(STEPS)(world)
    world.settle()
    assert not world.open, "each request has an ending"
    again = BookieMachine(world.store, logs=logs)
    for ledger in world.fenced:
        effects = again.step(ev.SessionAttached(1, ledger, ledger, KEY, AttachMode.WRITE))
        assert [end.reason for e in effects if isinstance(e, ev.SendAcks) for end in e.ended] == [Reason.FENCED]
