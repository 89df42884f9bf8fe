# SPDX-License-Identifier: Apache-2.0
"""A connection of Apache's wire without its socket: whatever the order, size and status of answers, whole frames are
acknowledged as a prefix, and every id of a range is answered as what it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester
from bk_core.entries.frame import apache_frame, decode_frame, encode_frame, split_frames, with_session
from bk_core.entries.packets import encode_packet
from bk_core.errors import AuthenticationError, BookKeeperError, RemoteProtocolError, TransportError
from bk_core.model import DigestType
from bk_core.transport.bookie_rpc.adds import ADDS_MAX, PAUSES_MAX
from bk_core.transport.bookie_rpc.exchange import Exchange
from bk_core.transport.bookie_rpc.packing import PIECE_ENTRIES, Packer, bodies_of_frame
from bk_core.transport.bookie_rpc.reads import ABSENT_MAX, READS_MAX, WireRangeRead
from bk_core.transport.port import NewSession, ReadPart, RefusedError
from bk_core.wire.bookie_rpc import v3
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.connection import RequestReader
from bk_core.wire.bookie_rpc.runs import AddRun, ReadRun, Single
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, EntryRange, Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from tests.kit.amount import some
from tests.kit.apache_bookie import ApacheBookie, ApacheConnection
from tests.kit.lanes import KEY, frame

LEDGER = 7


class Said:
    """What the listeners of sessions, or the taker of a range, were told."""

    def __init__(self) -> None:
        self.words: list[tuple[Any, ...]] = []
        self.batches: list[EntryBatch] = []
        self.end: ReadTrailer | BookKeeperError | None = None

    def on_acked(self, session: int, frames: int) -> None:
        self.words.append(("acked", session, frames))

    def on_ended(self, session: int, frames: int, reason: Reason, message: str) -> None:
        self.words.append(("ended", session, frames, reason))

    def on_broken(self, session: int, message: str) -> None:
        self.words.append(("broken", session))

    def __call__(self, answer: ReadPart | ReadTrailer | BookKeeperError) -> None:
        self.part(answer.frames) if isinstance(answer, ReadPart) else self.ended(answer)

    def part(self, made: memoryview) -> None:
        for _, one in split_frames(made):
            self.batches.append(decode_frame(one, digester=Digester(DigestType.CRC32C, b"secret", LEDGER)))

    def ended(self, end: ReadTrailer | BookKeeperError) -> None:
        assert self.end is None, "one end"
        self.end = end

    @property
    def ids(self) -> list[int]:
        return [k for batch in self.batches for k in batch.entry_ids().tolist()]

    @property
    def entries(self) -> dict[int, bytes]:
        return {k: e for b in self.batches for k, e in zip(b.entry_ids().tolist(), b.to_list(), strict=True)}


class World:
    """An exchange and a bookie; ``pump`` passes bytes both ways, cut anywhere, until nobody says anything."""

    def __init__(self, seed: int = 0, *, shuffled: bool = False) -> None:
        self.random = random.Random(seed)
        self.bookie = ApacheBookie(lambda delay, act: None, order=self.random if shuffled else None)
        self.exchange, self._answers = Exchange(Packer()), bytearray()
        self.connection = ApacheConnection(self.bookie, self._answers.extend)
        self.most_adds = self.most_reads = 0

    def send(self) -> bool:
        sent: list[bytes] = []
        while (buffers := self.exchange.next_buffers()) is not None:
            self.most_adds = max(self.most_adds, self.exchange.adds.in_flight)
            self.most_reads = max(self.most_reads, self.exchange.reads.in_flight)
            sent += map(bytes, buffers)
        assert self.connection.receive(b"".join(sent))
        return bool(sent)

    def hear(self) -> bool:
        heard, rest = bool(self._answers), b""
        data = bytes(self._answers)
        self._answers.clear()
        while data:
            cut = max(1, int(len(data) * self.random.random() ** (3 if self.bookie.order else 0.1)))
            received = rest + data[:cut]
            rest, data = received[self.exchange.receive(received) :], data[cut:]
            self.exchange.tell()
        assert rest == b""
        return heard

    def pump(self) -> None:
        self.exchange.tell()
        while self.send() | self.hear():
            if self.exchange.adds.pausing:
                self.exchange.adds.resume()

    def attach(self, session: int, said: Said, mode: AttachMode = AttachMode.WRITE, ledger_id: int = LEDGER) -> None:
        self.exchange.adds.attach(NewSession(ledger_id, KEY, mode, session, said))

    def write(self, frames: Sequence[bytes], session: int = 1) -> Said:
        said = Said()
        self.attach(session, said)
        for one in frames:
            self.exchange.adds.send(session, one)
        self.pump()
        return said

    def read(self, first: int, last: int, *, bytes_max: int = 1 << 20, key: bytes | None = None) -> Said:
        said = Said()
        self.exchange.read(WireRangeRead(LEDGER, first, last, bytes_max, key, said))
        self.pump()
        return said


def frames_of(sizes: Sequence[int], *, entry: Callable[[int], bytes] = lambda k: b"entry %d" % k) -> list[bytes]:
    """Frames of so many entries each, one behind the other."""
    made, first = [], 0
    for size in sizes:
        made.append(frame(LEDGER, first, [entry(k) for k in range(first, first + size)], session=1))
        first += size
    return made


# --- adds ---


def test_a_frame_is_packed_anew_for_another_kind_of_session() -> None:
    """The links of a client share what was packed last."""
    packer, (one,) = Packer(), frames_of([3])
    for deferred in (False, True):
        exchange = Exchange(packer)
        exchange.adds.attach(NewSession(LEDGER, KEY, AttachMode.WRITE, 1, Said(), deferred=deferred))
        exchange.adds.send(1, one)
        sent = b"".join(b"".join(buffers) for buffers in iter(exchange.next_buffers, None))
        (run,) = RequestReader().read(sent).items
        assert isinstance(run, AddRun)
        assert run.write_flags.tolist() == [int(deferred)] * 3


@pytest.mark.rule("P1")
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 2**32), st.sets(st.integers(0, 60), max_size=3)
)
def test_the_acked_frames_are_whole_and_a_prefix_whatever_the_order(
    sizes: list[int], seed: int, refused: set[int]
) -> None:
    world = World(seed, shuffled=True)
    world.bookie.refuse = lambda what, ledger, entry: Status.EIO if what == "add" and entry in refused else None
    said = world.write(frames_of(sizes))
    ends = np.cumsum(sizes).tolist()
    bad = [k for k in sorted(refused) if k < ends[-1]]
    whole = next((n for n, end in enumerate(ends) if end > bad[0]), None) if bad else None
    counts = [words[2] for words in said.words]
    assert counts == sorted(counts)
    if whole is None:
        assert said.words[-1] == ("acked", 1, len(sizes))
    else:
        assert said.words[-1] == ("ended", 1, whole, Reason.IO_ERROR)
    for words in said.words:
        held = world.bookie.ledgers[LEDGER].entries if LEDGER in world.bookie.ledgers else {}
        assert set(range(ends[words[2] - 1] if words[2] else 0)) <= held.keys(), "nothing is acked that is not there"


@pytest.mark.rule("P1")
def test_one_missing_answer_holds_back_its_frame_and_all_behind_it() -> None:
    world, said = World(), Said()
    world.attach(1, said)
    frames = frames_of([3, 3, 3])
    for one in frames:
        world.exchange.adds.send(1, one)
    sent = b"".join(b"".join(buffers) for buffers in iter(world.exchange.next_buffers, None))
    run = RequestReader().read(sent).items[0]
    assert isinstance(run, AddRun)
    order = [8, 0, 1, 2, 3, 5, 7, 6, 4]
    counts = []
    for k in order:
        world.exchange.receive(v3.add_answers(run.txns[k : k + 1], LEDGER, run.entry_ids[k : k + 1]))
        world.exchange.tell()
        counts.append(said.words[-1][2] if said.words else 0)
    assert counts == [0, 0, 0, 1, 1, 1, 1, 1, 3]


def test_at_most_five_thousand_adds_wait_for_answers() -> None:
    world = World()
    said = world.write(frames_of([8000, 5000, 1, 5000], entry=lambda k: b""))
    assert said.words[-1] == ("acked", 1, 4)
    assert world.most_adds == ADDS_MAX == 2 * PIECE_ENTRIES


@pytest.mark.rule("MUST12")
def test_a_bookie_with_too_much_to_do_is_asked_again_for_less() -> None:
    world = World(5, shuffled=True)
    busy = dict.fromkeys(range(0, 3000, 7), 3)

    def refuse(what: str, ledger: int, entry: int) -> Status | None:
        busy[entry] = busy.get(entry, 0) - 1
        return Status.ETOOMANYREQUESTS if busy[entry] >= 0 else None

    world.bookie.refuse = refuse
    said = world.write(frames_of([1500, 1500]))
    assert said.words[-1] == ("acked", 1, 2)
    assert world.exchange.adds.limit < ADDS_MAX
    assert sorted(world.bookie.ledgers[LEDGER].entries) == list(range(3000))


@pytest.mark.rule("MUST12")
def test_a_bookie_that_has_too_much_to_do_for_ever_ends_the_session() -> None:
    world = World()
    world.bookie.refuse = lambda what, ledger, entry: Status.ETOOMANYREQUESTS if entry >= 2 else None
    said = world.write(frames_of([2, 2]))
    assert said.words[-1] == ("ended", 1, 1, Reason.OVERLOADED)
    assert world.bookie.asked["add"] <= 2 + 2 * (PAUSES_MAX + 2)
    assert world.exchange.adds.in_flight == 0


@pytest.mark.rule("P1")
def test_a_lost_connection_breaks_every_session_and_range_once() -> None:
    world, adds, read = World(), Said(), Said()
    world.attach(1, adds)
    world.exchange.adds.send(1, frames_of([3])[0])
    world.exchange.read(WireRangeRead(LEDGER, 0, 9, 1 << 20, None, read))
    world.send()
    world.exchange.lost(TransportError("cut"))
    world.exchange.lost(TransportError("cut again"))
    assert adds.words == [("broken", 1)]
    assert isinstance(read.end, TransportError)


def test_entries_are_made_once_for_all_bookies_of_a_write_set() -> None:
    packer = Packer()
    exchanges = [Exchange(packer) for _ in range(3)]
    (one,) = frames_of([2000])
    sent = []
    for exchange in exchanges:
        exchange.adds.attach(NewSession(LEDGER, KEY, AttachMode.WRITE, 1, Said()))
        exchange.adds.send(1, one)
    for exchange in exchanges:
        sent.append([id(buffer) for buffers in iter(exchange.next_buffers, None) for buffer in buffers])
    assert sent[0] == sent[1] == sent[2]
    packer.forget()
    assert packer._pieces == ()


def test_a_frame_that_is_sent_twice_on_one_connection_has_transactions_of_its_own() -> None:
    world = World()
    (one,) = frames_of([5])
    said = world.write([one, one])
    assert said.words[-1] == ("acked", 1, 2)


@pytest.mark.parametrize("digest", list(DigestType))
@pytest.mark.parametrize("sizes", [(3, 3), (3, 2), (5, 2)])
def test_entries_have_the_digests_of_the_frame(digest: DigestType, sizes: tuple[int, int]) -> None:
    digester = Digester(digest, b"secret", LEDGER)
    entries = [b"x" * (k % 5) for k in range(40)]
    batch = EntryBatch.from_list(entries)
    packet = encode_packet(
        batch, first=9, lac=8, length_before=100, digester=digester, session=1,
        ensemble_size=sizes[0], write_quorum=sizes[1],
    )  # fmt: skip
    for index in range(sizes[0]):
        one = packet.frame_for(index)
        assert one is not None
        ids, bodies = bodies_of_frame(one, LEDGER)
        read = decode_frame(
            apache_frame(LEDGER, bodies.joined(), bodies.sizes() * np.ones(1, dtype=np.int64), ids, 8),
            digester=digester,
        )
        assert read.to_list() == [entries[k - 9] for k in ids.tolist()]
        again, same = bodies_of_frame(
            apache_frame(LEDGER, bodies.joined(), bodies.lengths + bodies.head_bytes, ids, 8), LEDGER
        )
        assert (again.tolist(), bytes(same.joined())) == (ids.tolist(), bytes(bodies.joined()))


# --- reads ---


@pytest.mark.rule("P4", "MUST4")
@given(
    st.sets(st.integers(0, 79), max_size=80),
    st.dictionaries(
        st.integers(0, 79), st.sampled_from([Status.EIO, Status.EUNKNOWNLEDGERSTATE, Status.ETOOMANYREQUESTS])
    ),
    st.integers(0, 2**32),
    st.sampled_from([1, 300, 2000, 1 << 20]),
)
def test_every_id_is_found_absent_or_unknown(
    held: set[int], refused: dict[int, Status], seed: int, bytes_max: int
) -> None:
    world = World(seed, shuffled=True)
    for k in sorted(held):
        world.bookie.ledgers.setdefault(LEDGER, world.bookie.ledger(LEDGER, KEY)).entries[k] = entry(k)
    world.bookie.refuse = lambda what, ledger, k: refused.get(k)
    said = world.read(0, 79, bytes_max=bytes_max)
    end = said.end
    assert isinstance(end, ReadTrailer)
    through = end.answered_through
    assert 0 <= through <= 79
    assert said.ids == [k for k in sorted(held - refused.keys()) if k <= through], "in order, each once"
    assert spread(end.unknown) == {k for k in refused if k <= through}
    assert spread(end.absent) == set(range(through + 1)) - held - refused.keys()
    if bytes_max == 1 << 20:
        assert through == 79
    assert (world.exchange.reads.in_flight, world.exchange.owes) == (0, False)


def entry(k: int, ledger_id: int = LEDGER, *, size: int = 0) -> bytes:
    digester = Digester(DigestType.CRC32C, b"secret", ledger_id)
    batch = EntryBatch.from_list([bytes(size) or b"%d" % k * (k % 30)])
    _, bodies = bodies_of_frame(
        encode_frame(batch, digester=digester, ledger_id=ledger_id, first_entry_id=k, lac=k - 1, length_before=10 * k),
        ledger_id,
    )
    return bytes(bodies.joined())


def spread(ranges: Sequence[EntryRange]) -> set[int]:
    return {k for one in ranges for k in range(one.first, one.last + 1)}


def holding(count: int, size: int, seed: int = 0, *, shuffled: bool = False) -> World:
    world = World(seed, shuffled=shuffled)
    world.write(frames_of([500] * (count // 500), entry=lambda k: bytes(size)))
    return world


@pytest.mark.long
def test_large_ranges_come_in_few_parts_and_within_five_thousand_reads() -> None:
    world = holding(12_000, 20)
    said = world.read(0, 11_999, bytes_max=64 << 20)
    assert said.ids == list(range(12_000))
    assert READS_MAX // 2 < world.most_reads <= READS_MAX
    assert len(said.batches) < 40
    assert world.bookie.asked["read"] == 12_000


@pytest.mark.rule("P4")
def test_reads_stop_at_the_limit_and_ask_for_little_beyond_it() -> None:
    world = holding(2000, 2000, shuffled=True)
    said = world.read(0, 1999, bytes_max=1_500_000)
    assert isinstance(said.end, ReadTrailer)
    assert said.end.answered_through == said.ids[-1] == len(said.ids) - 1
    assert 1_400_000 < 2000 * len(said.ids) <= 1_500_000
    assert world.bookie.asked["read"] < 1.1 * len(said.ids)


@pytest.mark.rule("P4")
def test_what_comes_before_its_turn_is_kept_within_a_bound() -> None:
    world, said = World(), Said()
    asked = WireRangeRead(LEDGER, 0, 99, 1 << 20, None, said)
    world.exchange.read(asked)
    (buffers,) = iter(world.exchange.next_buffers, None)
    (run,) = RequestReader().read(b"".join(buffers)).items
    assert isinstance(run, ReadRun)
    large = [entry(k, size=300_000) for k in range(len(run))]

    def answer(k: int) -> None:
        bodies = Bodies.of_entries(large[k], np.array([len(large[k])]))
        txns, ids = run.txns[k : k + 1], run.entry_ids[k : k + 1]
        world.exchange.receive(b"".join(v3.read_answers(txns, LEDGER, ids, bodies)))

    for k in range(1, len(run)):
        answer(k)
    assert asked.held_bytes <= sum(len(chunk.entries) for chunk in asked.chunks.values()) <= (2 << 20) + 300_100
    assert said.end is None
    answer(0)
    assert isinstance(said.end, ReadTrailer)
    assert said.ids == list(range(said.end.answered_through + 1)) == [0, 1, 2]


def test_what_is_not_there_is_not_asked_for_to_the_end() -> None:
    world = holding(500, 10)
    said = world.read(0, 100_000)
    assert isinstance(said.end, ReadTrailer)
    assert said.ids == list(range(500))
    through = said.end.answered_through
    assert said.end.absent == (EntryRange(500, through),)
    assert 500 + ABSENT_MAX <= through + 1 <= 500 + 4 * ABSENT_MAX
    assert world.bookie.asked["read"] < 4000


@pytest.mark.rule("MUST4")
@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        ("of another ledger", lambda k: entry(k, 8)),
        ("of another id", lambda k: entry(k + 1)),
        ("cut", lambda k: entry(k)[:31]),
        ("nothing", lambda k: b""),
    ],
)
def test_an_answer_that_is_no_such_entry_is_unknown(other: str, wrong: Callable[[int], bytes]) -> None:
    world = World()
    entries = world.bookie.ledger(LEDGER, KEY).entries
    entries.update({k: entry(k) for k in range(5)})
    entries[2] = wrong(2)
    said = world.read(0, 4)
    assert isinstance(said.end, ReadTrailer)
    assert said.ids == [0, 1, 3, 4]
    assert [(r.first, r.last, r.reason) for r in said.end.unknown] == [(2, 2, Reason.DAMAGED)]


@pytest.mark.rule("MUST3", "D6")
def test_a_fencing_read_that_finds_nothing_is_answered_when_the_fence_is_on_disk() -> None:
    world, said = World(), Said()
    world.bookie.held = True
    world.exchange.read(WireRangeRead(LEDGER, 0, 9, 1 << 20, KEY, said))
    world.pump()
    assert said.end is None
    assert world.bookie.asked == {"fence": 1, "read": 1, "force": 1}
    world.bookie.release()
    world.bookie.kill()
    world.pump()
    assert isinstance(said.end, ReadTrailer)
    assert (said.end.absent, said.end.fenced) == ((EntryRange(0, 9),), True)
    assert world.bookie.ledgers[LEDGER].fenced


@pytest.mark.rule("D1")
def test_a_fencing_range_fences_before_it_reads() -> None:
    world = holding(500, 10)
    said = world.read(100, 499, key=KEY)
    assert isinstance(said.end, ReadTrailer)
    assert (said.end.fenced, said.ids) == (True, list(range(100, 500)))
    assert world.bookie.asked["fence"] == 1
    late = world.write([frame(LEDGER, 500, [b"late"], session=9)], session=9)
    assert late.words == [("ended", 9, 0, Reason.FENCED)]


@pytest.mark.rule("MUST4")
def test_a_range_that_could_not_fence_fails() -> None:
    for status, reason in ((Status.EUA, Reason.UNAUTHORIZED), (Status.EIO, Reason.IO_ERROR)):
        world = holding(500, 10)
        world.bookie.refuse = lambda what, ledger, k, status=status: status if what == "read" else None
        said = world.read(0, 9, key=KEY)
        assert isinstance(said.end, RefusedError)
        assert said.end.reason is reason
    world = World()
    world.bookie.refuse = lambda what, ledger, k: Status.EBADREQ if what == "force" else None
    said = world.read(0, 9, key=KEY)
    assert isinstance(said.end, RefusedError), "who cannot force its log has not promised the fence"


@pytest.mark.long
def test_an_abandoned_range_gives_its_room_back() -> None:
    world = holding(12_000, 20)
    for _ in range(5):
        said = Said()
        asked = WireRangeRead(LEDGER, 0, 11_999, 64 << 20, None, said)
        world.exchange.read(asked)
        world.send()
        world.hear()
        world.send()
        assert world.exchange.reads.in_flight
        asked.forget()
    assert world.read(0, 11_999, bytes_max=64 << 20).ids == list(range(12_000))
    assert (world.exchange.reads.in_flight, len(world.exchange.reads._ranges)) == (0, 0)


# --- nonsense ---


def asked_of(world: World) -> tuple[AddRun, ReadRun]:
    """Three adds and three reads that wait for answers."""
    said = Said()
    world.attach(1, said)
    world.exchange.adds.send(1, frames_of([3])[0])
    world.exchange.read(WireRangeRead(LEDGER, 0, 2, 1 << 20, None, said))
    sent = b"".join(b"".join(buffers) for buffers in iter(world.exchange.next_buffers, None))
    items = RequestReader().read(sent).items
    (adds,) = [item for item in items if isinstance(item, AddRun)]
    (reads,) = [item for item in items if isinstance(item, ReadRun)]
    return adds, reads


def acked(run: Any, k: int, *, ledger: int = LEDGER, off: int = 0, status: int = 0, txn: int = 0) -> bytes:
    return v3.add_answers(run.txns[k : k + 1] + np.uint64(txn), ledger, run.entry_ids[k : k + 1] + off, status)


def denied(run: Any, k: int, *, ledger: int = LEDGER, off: int = 0, txn: int = 0) -> bytes:
    return v3.refused_reads(run.txns[k : k + 1] + np.uint64(txn), ledger, run.entry_ids[k : k + 1] + off, 403)


def info(txn: int) -> bytes:
    return v3.framed(v3.answer(v3.request(pb.GET_BOOKIE_INFO, txn)))


NONSENSE: dict[str, Callable[[AddRun, ReadRun], bytes]] = {
    "an add twice": lambda a, r: acked(a, 0) + acked(a, 0),
    "all adds twice": lambda a, r: b"".join(acked(a, k) for k in (0, 1, 2, 0, 1, 2)) * 5,
    "an add of nobody": lambda a, r: acked(a, 0, txn=10**6),
    "an add of the past": lambda a, r: acked(a, 0, txn=-1 % 2**64),
    "an add of another entry": lambda a, r: acked(a, 0, off=1),
    "an add of another ledger": lambda a, r: acked(a, 0, ledger=8),
    "an add without ids": lambda a, r: acked(a, 0, ledger=-1, off=-1),
    "a refused add of another entry": lambda a, r: acked(a, 0, off=1, status=504),
    "an add for a read": lambda a, r: acked(r, 0),
    "a read twice": lambda a, r: denied(r, 1) + denied(r, 1),
    "a read of nobody": lambda a, r: denied(r, 0, txn=10**6),
    "a read of another entry": lambda a, r: denied(r, 0, off=1),
    "a read of another ledger": lambda a, r: denied(r, 0, ledger=8),
    "a read for an add": lambda a, r: denied(a, 0),
    "space that nobody asked for": lambda a, r: info(10**6),
    "space for an add": lambda a, r: info(int(a.txns[0])),
    "a frame that is too long": lambda a, r: b"\x7f\xff\xff\xff",
    "noise": lambda a, r: b"\0\0\0\x10" + bytes(range(200, 216)),
    "EOK and nothing else": lambda a, r: v3.framed(
        pb.Response(header=v3.request(pb.ADD_ENTRY, int(a.txns[0])).header, status=0)
    ),
}  # fmt: skip


@pytest.mark.rule("P1", "MUST4")
@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_loses_the_connection(name: str) -> None:
    world = World()
    adds, reads = asked_of(world)
    with pytest.raises(RemoteProtocolError):
        world.exchange.receive(NONSENSE[name](adds, reads))


def test_an_answer_of_another_operation_loses_the_connection() -> None:
    world = World()
    world.exchange.force(LEDGER, lambda status: None)
    (buffers,) = iter(world.exchange.next_buffers, None)
    (force,) = RequestReader().read(b"".join(buffers)).items
    assert isinstance(force, Single)
    with pytest.raises(RemoteProtocolError):
        world.exchange.receive(info(force.request.header.txnId))


def test_a_refusal_without_ids_is_an_answer() -> None:
    world = World()
    adds, _ = asked_of(world)
    txns = adds.txns
    world.exchange.receive(v3.add_answers(txns, -1, np.full(3, -1), 501))
    assert world.exchange.adds.in_flight == 0


@pytest.mark.parametrize("about", ["adds", "reads", "info"])
def test_eua_with_a_header_alone_is_about_who_asks_and_not_about_a_password(about: str) -> None:
    """So Apache's bookies and ours answer to who has not shown a token that they want; a writer would else blame the
    ledger's password."""
    world = World()
    adds, _ = asked_of(world)
    said = v3.bare_answers(pb.ADD_ENTRY if about == "adds" else pb.READ_ENTRY, 3, adds.txns, 502)
    if about == "info":
        said = v3.framed(v3.header_only(v3.request(pb.GET_BOOKIE_INFO, 1), Status.EUA))
    with pytest.raises(AuthenticationError, match="this client to authenticate"):
        world.exchange.receive(said)
    later = World()
    run = asked_of(later)[0]
    later.exchange.receive(v3.add_answers(run.txns[:1], LEDGER, run.entry_ids[:1], 502))
    later.exchange.receive(v3.bare_answers(pb.ADD_ENTRY, 2, run.txns[1:], 502))  # it was let in before


@pytest.mark.long
def test_long_runs_of_everything_at_once() -> None:
    """Many sessions and ranges, answers in any order, statuses at random: all end, and nothing is left over."""
    for seed in range(some(200, few=5)):
        rng = random.Random(seed)
        world = World(seed, shuffled=True)
        rate = rng.choice([0.0, 0.02, 0.3])
        world.bookie.refuse = lambda what, ledger, k, rng=rng, rate=rate: (
            rng.choice([Status.EIO, Status.ETOOMANYREQUESTS]) if rng.random() < rate else None
        )
        sessions = {number: Said() for number in range(1, 6)}
        reads = [Said() for _ in range(5)]
        for number, said in sessions.items():
            world.attach(number, said, ledger_id=LEDGER)
            for one in frames_of([rng.randint(1, 60) for _ in range(rng.randint(1, 5))]):
                world.exchange.adds.send(number, with_session(one, number))
        for said in reads:
            first = rng.randint(0, 200)
            world.exchange.read(
                WireRangeRead(LEDGER, first, first + rng.randint(0, 300), rng.choice([1, 5000, 1 << 20]), None, said)
            )
        if rng.random() < 0.5:
            world.send()
            world.exchange.adds.detach(rng.randint(1, 5))
        world.pump()
        assert all(said.end is not None for said in reads)
        assert (world.exchange.adds.in_flight, world.exchange.reads.in_flight, world.exchange.owes) == (0, 0, False)
        assert len(world.exchange.adds._flight) == len(world.exchange.reads._flight) == 0
