# SPDX-License-Identifier: Apache-2.0
"""A range that several bookies serve: faster only where that helps, in order, within the memory of one answer and the
next, and with the checks of a read from one bookie."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from bk_core.client.reading.shared_read import CHUNKS_PER_ANSWER, SharedRead
from bk_core.client.reading.sharing import Sharing
from bk_core.entries.frame import encode_frame
from bk_core.model import Fragment
from bk_core.protocol import events as ev
from bk_core.protocol.reader import RangeRead, ReadEvent
from bk_core.wire.lane.reasons import EntryRange
from tests.client.reading.shared_world import SharedWorld
from tests.kit.amount import some
from tests.protocol import test_reader_against_a_model as model
from tests.protocol.kit import digester, metadata

SECOND = 2
"""The number of the second chunk in the names of its timers."""

SLOW = 100_000.0  # bytes a second; the range has 3 MB
ANSWER = 1 << 16


def shared(*rates: float, **options: object) -> SharedWorld:
    world = SharedWorld(rates, **options).read()
    assert world.end == ev.FinishRead()
    assert world.got == world.values
    return world


class Always(Sharing):
    """Wants so many bookies from the beginning."""

    def __init__(self, count: int, most: int = 3) -> None:
        super().__init__(most)
        self.wanted = min(count, self._most)

    def waited(self, now: float, waited_s: float, processor_s: float) -> None:
        pass


# --- how fast ---


@pytest.mark.long
def test_three_slow_connections_serve_almost_three_times_as_fast_as_one() -> None:
    one, three = shared(SLOW), shared(SLOW, SLOW, SLOW)
    assert three.serving == [1, 2, 3]
    assert 2.2 < one.now / three.now < 3


@pytest.mark.long
def test_connections_that_share_a_full_cable_cost_less_than_a_tenth() -> None:
    one = shared(SLOW, cable=SLOW)
    three = shared(SLOW, SLOW, SLOW, cable=SLOW)
    assert three.serving[:3] == [1, 2, 1]
    assert 3 not in three.serving
    assert three.now < 1.1 * one.now


def test_a_slow_consumer_is_served_by_one_bookie() -> None:
    world = shared(SLOW, SLOW, SLOW, consumer_s=0.5 / SLOW)
    assert world.serving == [1]
    assert {read.bookie for _, read in world.asked} == {world.asked[0][1].bookie}


def test_a_fast_bookie_serves_more_than_a_slow_one() -> None:
    world = shared(SLOW, 3 * SLOW, SLOW)
    assert world.serving == [1, 2, 3]
    sent = {name: line.sent for name, line in world.lines.items()}
    assert sent["b1"] > 1.5 * max(sent["b0"], sent["b2"])


def test_a_bookie_that_delays_all_others_is_the_one_that_leaves_and_does_not_come_back() -> None:
    world = shared(4 * SLOW, SLOW / 50, 4 * SLOW)
    assert world.lines["b1"].sent < ANSWER, "it gets no second try"
    assert world.serving[:4] == [1, 2, 1, 2]
    assert world.now < 1.1 * shared(4 * SLOW).now


def test_a_striped_ledger_is_read_as_before() -> None:
    world = SharedWorld((SLOW,) * 4, record=metadata(4, 2, 1).value, values=[b"v" * 500] * 2000).read()
    assert world.got == world.values
    assert world.sharing.wanted == 1


# --- memory ---


@pytest.mark.parametrize("consumer_s", [0.0, 0.1 / SLOW, 1 / SLOW])
def test_no_more_comes_ahead_of_the_consumer_than_two_answers(consumer_s: float) -> None:
    world = shared(SLOW, SLOW / 3, 2 * SLOW, consumer_s=consumer_s)
    assert world.ahead_max <= 2 * ANSWER + 3 * 2 * 1020


def test_fast_bookies_wait_for_a_slow_one_when_the_memory_is_full() -> None:
    world = SharedWorld((4 * SLOW, SLOW / 20, 4 * SLOW)).read(Always(3))
    assert world.got == world.values
    assert ANSWER < world.ahead_max <= 2 * ANSWER + 3 * 2 * 1020


def test_chunks_of_larger_entries_than_estimated_stay_within_the_bound() -> None:
    values = [b"s" * 60] * 6_000 + [b"L" * 4_000] * 500
    world = shared(SLOW, SLOW, SLOW, values=values)
    assert world.serving[:3] == [1, 2, 3]
    assert world.ahead_max <= 2 * ANSWER + 3 * 2 * 4_000


def test_each_bookie_serves_one_chunk_at_a_time() -> None:
    world = shared(SLOW, SLOW, SLOW)
    chunks = [read for _, read in world.asked if read.bytes_max < ANSWER]
    assert len(chunks) > 30
    assert all(read.last - read.first < 2 * ANSWER // CHUNKS_PER_ANSWER // 1020 for read in chunks)
    assert {line.busy_max for line in world.lines.values()} == {1}


# --- failures ---


def test_a_bookie_that_dies_in_its_chunk_is_replaced_and_gets_no_further_one() -> None:
    world = SharedWorld((SLOW, SLOW, SLOW))
    world.at(8.0, lambda: world.break_off("b2"))
    world.read()
    assert world.got == world.values
    assert "b2" in world.machine.suspects
    after = [read for at, read in world.asked if at > 8.1]
    assert {read.bookie for read in after} == {"b0", "b1"}


def test_a_copy_that_is_damaged_ahead_is_read_from_another_bookie() -> None:
    def flip(bookie: str, event: ReadEvent) -> ReadEvent | None:
        if bookie != "b2" or not isinstance(event, ev.FramesRead):
            return event
        data = bytearray(event.frames)
        data[-1] ^= 1
        return ev.FramesRead(event.request, memoryview(bytes(data)))

    world = shared(SLOW, SLOW, SLOW, spoil=flip)
    assert list(world.machine.suspects) == ["b2"]
    assert 3 not in world.serving[-1:]


def test_a_bookie_in_limbo_gives_way_to_the_others() -> None:
    def limbo(bookie: str, event: ReadEvent) -> ReadEvent | None:
        if bookie != "b2" or isinstance(event, (ev.ReadFailed, ev.TimerFired)):
            return event
        if isinstance(event, ev.FramesRead):
            return None
        through = event.answered_through
        return ev.ReadAnswered(event.request, through, unknown=(EntryRange(0, through),), detail="LIMBO")

    world = shared(SLOW, SLOW, SLOW, spoil=limbo)
    assert sum(read.bookie == "b2" for _, read in world.asked) == 1


def test_bookies_of_a_later_fragment_share_it() -> None:
    fragments = (Fragment(0, ("b0", "b1", "b2")), Fragment(2_003, ("b2", "b0", "b3")))
    world = shared(SLOW, SLOW, SLOW, SLOW, record=metadata(3, 3, 2, fragments=fragments).value)
    for _, read in world.asked:
        assert read.bookie in world.record.fragment_of(read.first).ensemble
        assert not read.first < 2_003 <= read.last
    assert world.lines["b3"].sent > 4 * ANSWER
    assert {read.bookie for _, read in world.asked if 2_100 < read.first < 2_900} == {"b0", "b2", "b3"}


def small(sharing: Sharing, values: int, bytes_max: int = 800) -> SharedRead:
    record = metadata(3, 3, 2).value
    make = partial(RangeRead, record, digester())
    return SharedRead(make, record, 0, values - 1, sharing=sharing, bytes_max=bytes_max, prefer=1)


def frames_of(world: SharedWorld, read: ev.SendRead, through: int) -> ev.FramesRead:
    part = world.truth.select(np.arange(read.first, through + 1))
    return ev.FramesRead(read.request, memoryview(bytes(encode_frame(part, digester=None, session=1))))


def begun(size: int = 20) -> tuple[SharedWorld, SharedRead, list[ev.SendRead]]:
    """A range of 40 entries whose first answer, of 4 entries of 20 bytes, has ended, and the requests for its chunks.
    The other entries have ``size`` bytes."""
    world = SharedWorld((SLOW,) * 3, values=[b"v" * (20 if n < 4 else size) for n in range(40)])
    machine = small(Always(3), 40)
    (whole,) = [effect for effect in machine.start() if isinstance(effect, ev.SendRead)]
    machine.step(frames_of(world, whole, 3))
    effects = machine.step(ev.ReadAnswered(whole.request, 3))
    return world, machine, [effect for effect in effects if isinstance(effect, ev.SendRead)]


def test_a_chunk_is_asked_from_each_bookie_and_delivered_in_order() -> None:
    world, machine, (one, two, three) = begun()
    assert len({one.bookie, two.bookie, three.bookie}) == 3
    assert (one.first, two.first, three.first) == (4, one.last + 1, two.last + 1)
    got: list[int] = []
    for read in (three, two, one):
        effects = [
            *machine.step(frames_of(world, read, read.last)),
            *machine.step(ev.ReadAnswered(read.request, read.last)),
        ]
        got += [n for e in effects if isinstance(e, ev.DeliverBatch) for n in e.batch.entry_ids().tolist()]
        assert not got or read is one
    assert got == list(range(4, three.last + 1))


def test_requests_leave_before_batches_so_that_bookies_work_while_the_consumer_does() -> None:
    world, machine, (one, two, three) = begun()
    for read in (two, three):
        machine.step(frames_of(world, read, read.last))
        machine.step(ev.ReadAnswered(read.request, read.last))
    machine.step(frames_of(world, one, one.last))
    kinds = [type(effect) for effect in machine.step(ev.ReadAnswered(one.request, one.last))]
    assert ev.DeliverBatch in kinds
    assert ev.SendRead not in kinds[kinds.index(ev.DeliverBatch) :]


def fail_everywhere(machine: SharedRead, read: ev.SendRead, timer: str) -> list[object]:
    """Let all bookies fail a chunk, three times. Return the effects of the last step that had any."""
    pending, last = [read], list[object]()
    for _ in range(20):
        effects = machine.step(ev.ReadFailed(pending.pop().request, "away")) if pending else []
        effects = effects or ([] if machine.done else machine.step(ev.TimerFired(timer)))
        pending += [each for each in effects if asks(each, read.first)]
        last = list(effects) or last
    return last


def test_a_later_chunk_that_failed_is_read_again_when_it_is_first() -> None:
    world, machine, (one, two, _) = begun()
    fail_everywhere(machine, two, f"again {SECOND}")
    assert not machine.done, "the first chunk is being read"
    machine.step(frames_of(world, one, one.last))
    effects = machine.step(ev.ReadAnswered(one.request, one.last))
    again = [effect for effect in effects if isinstance(effect, ev.SendRead) and effect.first == two.first]
    assert len(again) == 1
    assert not any(isinstance(effect, ev.Fail) for effect in effects)


def test_the_failure_of_the_first_chunk_ends_the_read_and_cancels_what_others_asked_for() -> None:
    _, machine, (one, two, three) = begun()
    effects = fail_everywhere(machine, one, "again 1")
    assert isinstance(effects[-1], ev.Fail)
    assert {each.request for each in effects if isinstance(each, ev.CancelRead)} == {two.request, three.request}


def test_a_chunk_that_has_its_bytes_asks_for_more_only_when_it_is_first() -> None:
    world, machine, (one, two, _) = begun(size=200)
    machine.step(frames_of(world, two, two.last - 1))
    assert not [e for e in machine.step(ev.ReadAnswered(two.request, two.last - 1)) if asks(e, two.last)]
    machine.step(frames_of(world, one, one.last))
    effects = machine.step(ev.ReadAnswered(one.request, one.last))
    assert [e for e in effects if asks(e, two.last)]


def asks(effect: object, entry_id: int) -> bool:
    return isinstance(effect, ev.SendRead) and effect.first == entry_id


def test_a_request_that_was_sent_ahead_is_not_cut_off() -> None:
    world = SharedWorld((SLOW,) * 3, values=[b"%020d" % n for n in range(40)])
    sharing = Always(1)
    machine = small(sharing, 40)
    (whole,) = [effect for effect in machine.start() if isinstance(effect, ev.SendRead)]
    machine.step(frames_of(world, whole, 3))
    assert machine.goes_on(whole.request)
    sharing.wanted = 3
    effects = machine.step(ev.ReadAnswered(whole.request, 3))
    (ahead,) = [effect for effect in effects if isinstance(effect, ev.SendRead)]
    assert (ahead.bookie, ahead.request, ahead.first, ahead.last) == (whole.bookie, whole.request + 1, 4, 39)
    assert not machine.goes_on(ahead.request)
    machine.step(frames_of(world, ahead, 7))
    effects = machine.step(ev.ReadAnswered(ahead.request, 7))
    assert len([effect for effect in effects if isinstance(effect, ev.SendRead)]) == 3


# --- whatever the bookies do ---


class SharedModel(model.World):
    """The world of a range read, in which the number of bookies changes all the time."""

    def make(self, first: int, last: int, **options: object) -> SharedRead:
        pick = self.random
        self.sharing = Always(pick.randint(1, 3))
        made = partial(RangeRead, self.metadata, digester())
        bytes_max = pick.choice((80, 400, 1 << 20))
        return SharedRead(made, self.metadata, first, last, sharing=self.sharing, bytes_max=bytes_max, **options)

    def next_event(self) -> object:
        self.sharing.wanted = min(self.random.randint(1, 3), self.sharing._most)
        return super().next_event()


@pytest.mark.rule("P4", "MUST4", "MUST14")
@pytest.mark.parametrize("honest", [True, False], ids=["one-of-each-write-set-is-honest", "nobody-need-be"])
@pytest.mark.parametrize("seeds", range(some(8, few=2)))
def test_what_several_bookies_give_is_the_truth_whatever_they_do(honest: bool, seeds: int) -> None:
    ends = model.ends_of(SharedModel, range(seeds * 150, seeds * 150 + 150), honest)
    assert ends["finished"] > 20
    assert honest or (ends["lost"] and ends["unreadable"])
