# SPDX-License-Identifier: Apache-2.0
"""Ranges over batch reads: every id is answered as single reads answer it, whatever a batch gives, and if the second
connection breaks at any moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from bk_core.errors import RemoteProtocolError, TransportError
from bk_core.transport.bookie_rpc.batches import BATCH_BYTES, BATCHES_MAX, BATCHES_OF_RANGE, WORTH_IDS, Batches
from bk_core.transport.bookie_rpc.packing import Packer
from bk_core.transport.bookie_rpc.reads import ABSENT_MAX, WireRangeRead
from bk_core.wire.bookie_rpc import v2
from bk_core.wire.bookie_rpc.bodies import Bodies
from bk_core.wire.bookie_rpc.connection import RequestReader
from bk_core.wire.bookie_rpc.runs import BatchRead
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import EntryRange
from tests.kit.amount import some
from tests.kit.apache_bookie import ApacheConnection
from tests.kit.lanes import KEY
from tests.transport.test_bookie_rpc_exchange import LEDGER, Said, World, entry, frames_of, holding, spread

made = cache(entry)


class TwoConnections(World):
    """A world with a second connection to the same bookie; ``breaks`` says when that one breaks."""

    def __init__(self, seed: int = 0, *, shuffled: bool = False) -> None:
        super().__init__(seed, shuffled=shuffled)
        self.batches = Batches(Packer(), self.exchange.reads)
        self.batched = bytearray()
        self.second = ApacheConnection(self.bookie, self.batched.extend)
        self.breaks: Callable[[], bool] = lambda: False
        self.most_batches = 0

    def send(self) -> bool:
        sent = []
        while (buffers := self.batches.next_buffers()) is not None:
            sent += list(map(bytes, buffers))
            self.most_batches = max(self.most_batches, len(self.batches._flight))
        if sent and not self.second.receive(b"".join(sent)):
            self.batches.lost()
        return super().send() or bool(sent)

    def hear(self) -> bool:
        data = bytes(self.batched)
        self.batched.clear()
        if data and not self.batches.over:
            if self.breaks():
                self.batches.lost()
            else:
                assert self.batches.receive(data) == len(data)
        return super().hear() or bool(data)

    def begin(self, first: int, last: int, *, bytes_max: int = 1 << 20) -> Said:
        said = Said()
        asked = WireRangeRead(LEDGER, first, last, bytes_max, None, said)
        assert self.batches.suit(asked) or self.batches.over
        (self.exchange if self.batches.over else self.batches).read(asked)
        return said

    def read(self, first: int, last: int, *, bytes_max: int = 1 << 20, key: bytes | None = None) -> Said:
        assert key is None
        said = self.begin(first, last, bytes_max=bytes_max)
        self.pump()
        return said

    def hold(self, sizes: dict[int, int]) -> None:
        entries = self.bookie.ledger(LEDGER, KEY).entries
        entries.update({k: made(k, size=size) for k, size in sizes.items()})


@pytest.mark.long
@pytest.mark.rule("P4", "MUST4")
def test_batches_answer_every_id_as_single_reads_do() -> None:
    """Gaps, refusals, entries of another id, small and large ones, limits, a connection that breaks."""
    for seed in range(some(400, few=60)):
        rng = random.Random(seed)
        world = TwoConnections(seed, shuffled=rng.random() < 0.5)
        count = rng.choice([40, 80, 300])
        gaps = rng.choice([0.0, 0.02, 0.5])
        large = rng.choice([0.0, 0.05])
        there = [k for k in range(count) if rng.random() >= gaps]
        world.hold({k: 100_000 if rng.random() < large else rng.choice([1, 30, 2000]) for k in there})
        held = world.bookie.ledger(LEDGER, KEY).entries
        wrong = {k for k in held if rng.random() < rng.choice([0, 0.01])}
        held.update({k: entry(k + 1) for k in wrong})
        refused = {k for k in range(count) if rng.random() < rng.choice([0, 0.02])}
        world.bookie.refuse = refusing(refused)
        rate = rng.choice([0.0, 0.2])
        world.breaks = lambda rng=rng, rate=rate: rng.random() < rate
        bytes_max = rng.choice([1, 5_000, 400_000, 64 << 20])
        ranges = [world.begin(0, count - 1, bytes_max=bytes_max) for _ in range(rng.choice([1, 3]))]
        world.pump()
        for said in ranges:
            end = said.end
            assert isinstance(end, ReadTrailer)
            through = end.answered_through
            assert through == count - 1 or bytes_max < 64 << 20
            good = held.keys() - refused - wrong
            assert said.ids == [k for k in sorted(good) if k <= through], "in order, each once"
            assert said.ids or spread(end.unknown) or spread(end.absent), "something is answered"
            assert spread(end.unknown) == {k for k in (refused | wrong) if k <= through}
            assert spread(end.absent) == set(range(through + 1)) - held.keys() - refused
        assert (world.exchange.reads.in_flight, world.exchange.owes, world.batches.owes) == (0, False, False)
        assert len(world.exchange.reads._flight) == 0


def refusing(ids: set[int]) -> Callable[[str, int, int], Status | None]:
    return lambda what, ledger, entry_id: Status.EIO if entry_id in ids else None


def test_a_long_range_is_a_few_batches() -> None:
    world = TwoConnections()
    world.write(frames_of([500] * 12, entry=lambda k: bytes(1000)))
    said = world.read(0, 5999, bytes_max=64 << 20)
    assert said.ids == list(range(6000))
    assert world.bookie.asked["batch"] < 2 * 6000 * 1044 / BATCH_BYTES + 2
    assert world.most_batches == BATCHES_OF_RANGE
    assert world.bookie.asked["read"] < 6100, "none was asked for twice, but for the one behind each batch"


@pytest.mark.rule("P4")
def test_batches_stop_at_the_limit_and_ask_for_little_beyond_it() -> None:
    world = TwoConnections()
    world.write(frames_of([500] * 4, entry=lambda k: bytes(2000)))
    said = world.read(0, 1999, bytes_max=1_500_000)
    assert isinstance(said.end, ReadTrailer)
    assert 1_400_000 < 2000 * len(said.ids) <= 1_500_000
    assert world.bookie.asked["read"] < 1.1 * len(said.ids)


def test_a_bookie_gathers_a_few_batches_at_a_time() -> None:
    world = TwoConnections()
    world.hold(dict.fromkeys(range(100), 100))
    reads = [world.begin(0, 99) for _ in range(3 * BATCHES_MAX)]
    world.pump()
    assert all(said.ids == list(range(100)) for said in reads)
    assert world.most_batches == BATCHES_MAX


def test_a_striped_ledger_is_read_one_by_one_after_the_first_gap() -> None:
    world = TwoConnections()
    world.hold({k: 10 for k in range(600) if k % 3 != 2})
    said = world.read(0, 599)
    assert isinstance(said.end, ReadTrailer)
    assert said.end.answered_through == 599
    assert (len(said.ids), world.bookie.asked["batch"]) == (400, 3)
    behind = world.read(600, 99_999)
    assert isinstance(behind.end, ReadTrailer)
    assert behind.end.absent == (EntryRange(600, behind.end.answered_through),)
    assert ABSENT_MAX <= behind.end.answered_through - 599 < 4 * ABSENT_MAX


def test_a_bookie_that_knows_no_batch_reads_is_asked_once() -> None:
    world = TwoConnections()
    world.hold(dict.fromkeys(range(100), 10))
    world.bookie.batches = False
    for _ in range(2):
        assert world.read(0, 99).ids == list(range(100))
    assert (world.batches.over, world.bookie.asked.get("batch")) == (True, None)


@pytest.mark.rule("D1")
def test_a_fencing_range_and_a_short_one_are_read_one_by_one() -> None:
    world = holding(500, 10)
    batches = Batches(Packer(), world.exchange.reads)
    assert not batches.suit(WireRangeRead(LEDGER, 0, 499, 1 << 20, KEY, Said()))
    assert not batches.suit(WireRangeRead(LEDGER, 0, WORTH_IDS - 2, 1 << 20, None, Said()))
    assert batches.suit(WireRangeRead(LEDGER, 0, WORTH_IDS - 1, 1 << 20, None, Said()))


def test_an_abandoned_range_is_forgotten_by_the_second_connection() -> None:
    world, said = TwoConnections(), Said()
    world.hold(dict.fromkeys(range(100), 10))
    asked = WireRangeRead(LEDGER, 0, 99, 1 << 20, None, said)
    world.batches.read(asked)
    world.send()
    asked.forget()
    world.pump()
    assert (said.ids, said.end, world.batches.owes, len(world.batches._ranges)) == ([], None, False, 0)
    assert world.read(0, 99).ids == list(range(100))


# --- nonsense ---

Lie = Callable[[BatchRead], bytes]


def given(asked: BatchRead, first: int, count: int, *, size: int = 10, **other: int) -> bytes:
    entries = [made(k, size=size) for k in range(first, first + count)]
    bodies = Bodies.of_entries(b"".join(entries), np.array([len(one) for one in entries], dtype=np.int64))
    said = BatchRead(0, 2, asked.ledger_id, asked.first_entry_id, asked.request_id, 0, 0)
    said = BatchRead(**{**{name: getattr(said, name) for name in BatchRead.__slots__}, **other})
    return b"".join(map(bytes, v2.batch_answer(said, bodies)))


NONSENSE: dict[str, Lie] = {
    "of nobody": lambda a: given(a, 0, 3, request_id=a.request_id + 1),
    "twice": lambda a: given(a, 0, 3) * 2,
    "of another ledger": lambda a: given(a, 0, 3, ledger_id=LEDGER + 1),
    "from another entry": lambda a: given(a, 0, 3, first_entry_id=1),
    "more entries": lambda a: given(a, 0, a.max_count + 1),
    "more bytes": lambda a: given(a, 0, 2, size=600_000),
    "a single read": lambda a: v2.refused_reads(2, LEDGER, np.array([0]), 402),
    "a status that there is not": lambda a: given(a, 0, 3)[:11] + b"\x63" + given(a, 0, 3)[12:],
    "a refusal with entries": lambda a: given(a, 0, 3)[:11] + b"\x02" + given(a, 0, 3)[12:],
    "lengths that do not fit": lambda a: given(a, 0, 3)[:39] + b"\xff" + given(a, 0, 3)[40:],
    "a frame that is too long": lambda a: b"\x7f\xff\xff\xff",
}


def asked_for_a_batch() -> tuple[TwoConnections, Said, BatchRead]:
    world = TwoConnections()
    world.hold(dict.fromkeys(range(100), 10))
    said = world.begin(0, 99)
    (sent,) = iter(world.batches.next_buffers, None)
    (asked,) = RequestReader().read(b"".join(map(bytes, sent))).items
    assert isinstance(asked, BatchRead)
    return world, said, asked


@pytest.mark.rule("MUST4")
@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_ends_the_second_connection_and_the_range_goes_on(name: str) -> None:
    world, said, asked = asked_for_a_batch()
    with pytest.raises(RemoteProtocolError):
        world.batches.receive(NONSENSE[name](asked))
    world.batches.lost()
    world.pump()
    assert said.ids == list(range(100))


@pytest.mark.parametrize("given_ids", [(0, 0), (1, 3), (5, 2)])
def test_entries_that_nobody_asked_for_are_none(given_ids: tuple[int, int]) -> None:
    """None at all, or others: what was asked for is read one by one."""
    world, said, asked = asked_for_a_batch()
    world.batches.receive(given(asked, *given_ids))
    world.pump()
    assert (said.ids, world.bookie.asked.get("batch")) == (list(range(100)), None)


def test_ranges_end_with_the_first_connection() -> None:
    world = TwoConnections()
    said = world.begin(0, 99)
    world.send()
    world.batches.lost()
    world.exchange.lost(TransportError("cut"))
    assert isinstance(said.end, TransportError)
