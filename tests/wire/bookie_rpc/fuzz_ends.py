# SPDX-License-Identifier: Apache-2.0
"""Mutated requests through a bookie's connections, and mutated answers through a client's: whatever comes, nothing is
acknowledged that is not kept, nothing is called absent that nobody denied, and nothing is left when all connections
have ended. The connection and the exchange are those of the product, without their sockets.

What came is read a second time, a frame at a time and by protobuf alone; what was said is judged by that.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from bk_core.entries.frame import split_frames
from bk_core.errors import BookKeeperError, TransportError
from bk_core.transport.bookie_rpc.exchange import Exchange
from bk_core.transport.bookie_rpc.packing import Packer, bodies_of_frame
from bk_core.transport.bookie_rpc.reads import WireRangeRead
from bk_core.transport.port import NewSession, ReadPart
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.runs import AddAnswers, AddRun, ReadAnswers, ReadRun, Single, WireAnswer
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit.apache_bookie import ApacheBookie, ApacheConnection
from tests.kit.bookie_requests import read, some_request
from tests.kit.bookie_wire import KEY, cut_simply, one_at_a_time
from tests.kit.lanes import frame
from tests.kit.rpc_bookie import RpcBookie, RpcClient
from tests.wire.bookie_rpc.fuzz import Tally, mutated_frames

LEDGERS, ENTRIES = 4, 12
CLIENTS = 3
BURSTS_A_ROUND = 10
FRAMES_A_BURST = 40

Ids = tuple[int, int]
_ABSENT = (Status.ENOENTRY, Status.ENOLEDGER)


def bookie_round(number: int) -> Tally:
    """Mutated requests, on a few connections of one bookie."""
    return _round(number, "bookie", _BookieRound)


def client_round(number: int) -> Tally:
    """Mutated answers, to a few clients one after the other."""
    return _round(number, "client", _ClientRound)


def _round(number: int, kind: str, make: Callable[[random.Random, Tally], Any]) -> Tally:
    tally = Tally()
    with tally.noting(f"{kind} round {number}"):
        make(random.Random(f"{kind} {number}"), tally).run()
    setattr(tally, kind, tally.mutated)
    return tally


# ── the bookie ──


class _BookieRound:
    def __init__(self, rng: random.Random, tally: Tally) -> None:
        self.rng, self.tally = rng, tally
        self.bookie = RpcBookie()
        self.clients: list[_Client] = []
        self.ended: list[_Client] = []

    def run(self) -> None:
        rng, txn = self.rng, 0
        self.clients = [_Client(self.bookie) for _ in range(CLIENTS)]
        for _ in range(BURSTS_A_ROUND):
            wire = rng.choice((3, 3, 2))
            clean = [some_request(rng, wire, txn + k, LEDGERS, ENTRIES) for k in range(FRAMES_A_BURST)]
            txn += len(clean)
            frames, mutated = mutated_frames(rng, clean)
            self.tally.mutated += mutated
            self.tally.frames += len(frames)
            while frames:
                count = rng.choice((1, 1, 3, 8, 20))
                self._send(b"".join(frames[:count]))
                del frames[:count]
        self._end()
        self._check()

    def _send(self, data: bytes) -> None:
        rng, bookie = self.rng, self.bookie
        at = rng.randrange(len(self.clients))
        client = self.clients[at]
        cut = rng.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            if not client.end.closed:
                client.sent += part
                client.end.send(part)
        if rng.random() < 0.8:
            client.end.take()
        if client.end.closed:
            self.tally.faults += 1
            client.finish()
            self.ended.append(client)
            self.clients[at] = _Client(bookie)
        bookie.hold = rng.random() < 0.3
        if not bookie.hold:
            bookie.commit()

    def _end(self) -> None:
        """What was held back is durable, all timers fire, the clients take their answers and leave."""
        bookie = self.bookie
        bookie.hold = False
        for _ in range(3):
            while bookie.uncommitted:
                bookie.commit()
            for timer in list(bookie.timers):
                if timer in bookie.timers:
                    bookie.fire(timer)
        for client in self.clients:
            client.finish()
        self.ended += self.clients

    def _check(self) -> None:
        bodies: dict[Ids, set[bytes]] = {}
        acked: set[Ids] = set()
        asked = [_requests_of(client.sent) for client in self.ended]
        for requests in asked:
            for _, ids, body in requests.adds:
                bodies.setdefault(ids, set()).add(body)
        for client, requests in zip(self.ended, asked, strict=True):
            acked |= _check_answers(client.end.got, requests, bodies)
        for ids in sorted(acked):
            _check_kept(self.bookie, ids, bodies[ids])
        _check_nothing_left(self.bookie, self.ended)


class _Client:
    def __init__(self, bookie: RpcBookie) -> None:
        self.end, self.sent = RpcClient(bookie, bookie._auth), b""

    def finish(self) -> None:
        self.end.take()
        self.end.connection.end()


class _Requests:
    """What a client asked: adds as (transaction, ids, entry), and how often each transaction was asked."""

    def __init__(self) -> None:
        self.adds: list[tuple[int, Ids, bytes]] = []
        self.counts: Counter[int] = Counter()


def _requests_of(sent: bytes) -> _Requests:
    found = _Requests()
    for item in one_at_a_time(sent, answers=False)[0]:
        if isinstance(item, AddRun):
            entries = map(bytes, item.bodies().pieces())
            ids = zip(item.ledger_ids.tolist(), item.entry_ids.tolist(), strict=True)
            found.adds += zip(item.txns.tolist(), ids, entries, strict=True)
        if isinstance(item, AddRun | ReadRun):
            found.counts.update(item.txns.tolist())
        else:
            found.counts[item.request.header.txnId if isinstance(item, Single) else item.version] += 1
    return found


def _check_answers(got: bytes, requests: _Requests, bodies: dict[Ids, set[bytes]]) -> set[Ids]:
    """Check what a client was told; returns which entries it may rely on."""
    acked: set[Ids] = set()
    added = {(txn, ids) for txn, ids, _ in requests.adds}
    begins, lengths, used, fault = cut_simply(got, 1 << 30)
    assert fault is None
    assert used == len(got)
    for begin, length in zip(begins, lengths, strict=True):
        one = got[begin - 4 : begin + length]
        version = 3 if got[begin] == 0x0A and one_at_a_time(one, answers=True)[2] is None else 2
        (item,), _, wrong, _ = one_at_a_time(one, answers=True, version=version)
        assert wrong is None, f"no answer: {one.hex()}"
        txns = item.txns.tolist() if isinstance(item, AddAnswers | ReadAnswers) else []
        if isinstance(item, WireAnswer) and version == 3:
            txns = [item.response.header.txnId]
        for txn in txns:
            requests.counts[txn] -= 1
            assert requests.counts[txn] >= 0, f"more answers than requests: {one.hex()}"
        if isinstance(item, AddAnswers) and item.statuses[0] == Status.EOK:
            ids = int(item.ledger_ids[0]), int(item.entry_ids[0])
            assert (txns[0], ids) in added, f"an ack for what nobody sent: {one.hex()}"
            acked.add(ids)
        if isinstance(item, ReadAnswers) and item.statuses[0] == Status.EOK and item.body_lengths[0] > 0:
            (body,) = map(bytes, item.bodies().pieces())
            ids = int.from_bytes(body[:8], "big"), int.from_bytes(body[8:16], "big")
            assert body in bodies[ids], f"an entry that nobody sent: {one.hex()}"
            assert int(item.ledger_ids[0]) == ids[0]
            assert int(item.entry_ids[0]) in (-1, ids[1]), f"another entry: {one.hex()}"
    return acked


def _check_kept(bookie: RpcBookie, ids: Ids, bodies: set[bytes]) -> None:
    client = _Client(bookie)
    (run,), *_ = one_at_a_time(client.end.ask(read(3, 1, ids)), answers=True)
    assert run.statuses[0] == Status.EOK, f"entry {ids} was acknowledged and is not there"
    assert bytes(run.bodies().joined()) in bodies
    client.finish()


def _check_nothing_left(bookie: RpcBookie, clients: list[_Client]) -> None:
    adds, requests = bookie.machine._adds, bookie.machine._requests
    left = {
        "sessions": adds._sessions,
        "streams": len(adds._streams) + len(bookie._streams),
        "frames": adds.normal.frames + adds.recovery.frames,
        "bytes": adds.normal.bytes + adds.recovery.bytes,
        "requests": len(requests._by_id) + len(requests._of_stream) + requests.watches + len(requests._asked_of),
        "parts": bookie.machine._reads.turns._active + bookie.machine._reads.turns._bytes,
        "timers": len([timer for timer in bookie.timers if timer is not None]),
        "answers": bookie.facts.answers.bytes,
        "stories": sum(len(c.end.connection._stories._open) + len(c.end.connection._stories.waiting) for c in clients),
        "waiting": sum(len(c.end.connection.answers.waiting) for c in clients),
    }
    assert not any(left.values()), f"left over: {left}"


# ── the client ──


class _ClientRound:
    def __init__(self, rng: random.Random, tally: Tally) -> None:
        self.rng, self.tally = rng, tally
        self.bookie = ApacheBookie(lambda delay, act: None, order=rng)
        self.packer = Packer()
        self.next_ledger = 0

    def run(self) -> None:
        for _ in range(BURSTS_A_ROUND):
            _OneClient(self).run()


class _OneClient:
    """One exchange, from its first request to its end."""

    def __init__(self, of: _ClientRound) -> None:
        self.rng, self.tally, self.bookie = of.rng, of.tally, of.bookie
        of.next_ledger += 1
        self.ledger = of.next_ledger
        self.exchange = Exchange(of.packer)
        self.answers: list[bytes] = []
        self.connection = ApacheConnection(of.bookie, self.answers.append)
        self.sent: dict[int, tuple[str, Ids]] = {}  # transaction → operation and ids
        self.ok: set[Ids] = set()  # adds that an answer calls durable
        self.denied: set[Ids] = set()
        self.found: dict[Ids, set[bytes]] = {}
        self.fences = 0  # answers that may stand for a durable fence
        self.said: list[_Session | _Range] = []
        self.lost = False
        self.mutates = of.rng.choice((0.05, 0.3, 1.0))

    def run(self) -> None:
        self._ask()
        for _ in range(60):
            if self.lost or not (self._send() | self._hear()):
                break
            if self.exchange.adds.pausing:
                self.exchange.adds.resume()
        if not self.lost:
            self._lose(TransportError("the end"))
        for one in self.said:
            one.check_over()
        assert (self.exchange.adds.in_flight, self.exchange.reads.in_flight, self.exchange.owes) == (0, 0, False)

    def _ask(self) -> None:
        rng, ledger, exchange = self.rng, self.ledger, self.exchange
        if rng.random() < 0.2:
            busy = {rng.randrange(60): rng.choice(list(Status)[1:]) for _ in range(4)}
            self.bookie.refuse = lambda what, of, at: busy.get(at)
        else:
            self.bookie.refuse = lambda what, of, at: None
        for number in range(1, rng.randrange(3) + 1):
            session = _Session(self, number)
            first = 1000 * (number - 1)
            mode = rng.choice((AttachMode.WRITE, AttachMode.RECOVER))
            exchange.adds.attach(NewSession(ledger, KEY, mode, number, session))
            for _ in range(rng.randrange(1, 5)):
                ids = range(first, first + rng.randrange(1, 12))
                first = ids.stop
                session.frames.append(ids)
                entries = [b"entry %d" % k for k in ids]
                exchange.adds.send(number, frame(ledger, ids.start, entries, session=number, lac=ids.start - 1))
            self.said.append(session)
        for _ in range(rng.randrange(3)):
            asked = _Range(self, first := rng.randrange(20), first + rng.randrange(60))
            key = KEY if rng.random() < 0.4 else None
            exchange.read(WireRangeRead(ledger, asked.first, asked.last, rng.choice((1, 400, 1 << 20)), key, asked))
            self.said.append(asked)
        if rng.random() < 0.5:
            exchange.reads.one(ledger, -1, lambda *said: None, fence_key=KEY if rng.random() < 0.5 else None)
        if rng.random() < 0.5:
            exchange.control(_read_lac(ledger), lambda answer: None)

    def _send(self) -> bool:
        sent = b"".join(bytes(b) for buffers in iter(self.exchange.next_buffers, None) for b in buffers)
        for item in one_at_a_time(sent, answers=False)[0]:
            if isinstance(item, AddRun | ReadRun):
                what = "add" if isinstance(item, AddRun) else "read"
                ids = zip(item.ledger_ids.tolist(), item.entry_ids.tolist(), strict=True)
                self.sent |= {txn: (what, one) for txn, one in zip(item.txns.tolist(), ids, strict=True)}
            elif item.request.header.operation == pb.READ_ENTRY:
                asked = item.request.readRequest
                what = "fence" if asked.flag == pb.ReadRequest.FENCE_LEDGER else "read"
                self.sent[item.request.header.txnId] = what, (asked.ledgerId, asked.entryId)
            elif item.request.header.operation == pb.FORCE_LEDGER:
                self.sent[item.request.header.txnId] = "force", (item.request.forceLedgerRequest.ledgerId, -1)
        assert self.connection.receive(sent)
        return bool(sent)

    def _hear(self) -> bool:
        rng = self.rng
        clean, self.answers[:] = list(self.answers), []
        if not clean:
            return False
        frames = clean
        if rng.random() < self.mutates:
            frames, mutated = mutated_frames(rng, clean, share=rng.choice((0.05, 0.2, 0.6)))
            if rng.random() < 0.2:  # one answer comes twice
                frames.insert(rng.randrange(len(frames) + 1), rng.choice(clean))
            self.tally.mutated += mutated
        self.tally.frames += len(frames)
        data, rest = b"".join(frames), b""
        while data and not self.lost:
            cut = max(1, int(len(data) * rng.random()))
            received, data = rest + data[:cut], data[cut:]
            for one in _whole(received):
                self._note(one)
            try:
                rest = received[self.exchange.receive(received) :]
            except BookKeeperError as error:
                self.tally.faults += 1
                self.exchange.tell()
                self._lose(error)
            else:
                self.exchange.tell()
        return True

    def _lose(self, error: BookKeeperError) -> None:
        self.lost = True
        self.exchange.lost(error)
        self.exchange.lost(error)

    def _note(self, one: bytes) -> None:
        """What a frame alone says about what was asked."""
        items, _, wrong, _ = one_at_a_time(one, answers=True)
        if wrong is not None:
            return
        (item,) = items
        if isinstance(item, WireAnswer):
            asked = self.sent.get(item.response.header.txnId)
            self.fences += asked is not None and asked[0] == "force" and item.status is Status.EOK
            return
        what, ids = self.sent.get(int(item.txns[0]), ("", (0, 0)))
        status, said = int(item.statuses[0]), (int(item.ledger_ids[0]), int(item.entry_ids[0]))
        right = said == ids or (status != Status.EOK and said == (-1, -1))
        if isinstance(item, AddAnswers) and what == "add" and right and status == Status.EOK:
            self.ok.add(ids)
        if isinstance(item, ReadAnswers) and what == "read" and right:
            if status == Status.EOK:
                (body,) = map(bytes, item.bodies().pieces()) if item.body_lengths[0] >= 0 else (b"",)
                self.found.setdefault(ids, set()).add(body)
            elif status in _ABSENT:
                self.denied.add(ids)
        self.fences += isinstance(item, ReadAnswers) and what == "fence" and status == Status.EOK


class _Session:
    """Hears what became of its frames."""

    def __init__(self, of: _OneClient, number: int) -> None:
        self.of, self.number, self.frames, self.over, self.acked = of, number, list[range](), 0, 0

    def on_acked(self, session: int, frames: int) -> None:
        assert session == self.number
        assert not self.over
        assert self.acked < frames <= len(self.frames)
        self.acked = frames
        for ids in self.frames[:frames]:
            for k in ids:
                assert (self.of.ledger, k) in self.of.ok, f"entry {k} is acknowledged, and no answer says so"

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        if frames > self.acked:
            self.on_acked(session, frames)
        assert frames == self.acked
        self.over += 1

    def on_broken(self, session: int, message: str) -> None:
        self.over += 1

    def check_over(self) -> None:
        assert self.over == 1, f"session {self.number} ended {self.over} times"


class _Range:
    """Takes the answer to a range read."""

    def __init__(self, of: _OneClient, first: int, last: int) -> None:
        self.of, self.first, self.last, self.over = of, first, last, 0
        self.ids: list[int] = []

    def __call__(self, answer: ReadPart | ReadTrailer | BookKeeperError) -> None:
        self.part(answer.frames) if isinstance(answer, ReadPart) else self.ended(answer)

    def part(self, frames: memoryview) -> None:
        assert not self.over
        for _, one in split_frames(frames):
            ids, bodies = bodies_of_frame(one, self.of.ledger)
            for k, body in zip(ids.tolist(), map(bytes, bodies.pieces()), strict=True):
                assert body in self.of.found[self.of.ledger, k], f"entry {k} as nobody sent it"
                self.ids.append(k)

    def ended(self, end: ReadTrailer | BookKeeperError) -> None:
        self.over += 1
        assert self.ids == sorted(set(self.ids))
        if isinstance(end, BookKeeperError):
            return
        absent = {k for gap in end.absent for k in range(gap.first, gap.last + 1)}
        unknown = {k for gap in end.unknown for k in range(gap.first, gap.last + 1)}
        for k in absent:
            assert (self.of.ledger, k) in self.of.denied, f"entry {k} is called absent, and nobody denied it"
        assert end.answered_through <= self.last
        answered = range(self.first, end.answered_through + 1)
        assert sorted([*self.ids, *absent, *unknown]) == list(answered), "each id is one of the three"
        assert not end.fenced or self.of.fences, "a fence counts that nobody confirmed"

    def check_over(self) -> None:
        assert self.over == 1, f"a range ended {self.over} times"


def _read_lac(ledger: int) -> pb.Request:
    request = v3.request(pb.READ_LAC, 0)
    request.readLacRequest.ledgerId = ledger
    return request


def _whole(received: bytes) -> Iterator[bytes]:
    """The whole frames in what was received."""
    begins, lengths, *_ = cut_simply(received, 5 << 20)
    for begin, length in zip(begins, lengths, strict=True):
        yield received[begin - 4 : begin + length]
