# SPDX-License-Identifier: Apache-2.0
"""Reads of single entries that the machine answers in the step in which they arrive: they get the answers of the
ordinary way, and pass no check by."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.entries.apache import lac_body
from bk_core.entries.frame import FrameKind
from bk_core.model import LEDGER_ID_MAX, EntryId
from bk_core.wire.lane.reasons import Cut, EntryRange, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.entry_reads import as_parts
from bookie_server.machine.machine import BookieMachine
from bookie_server.machine.reads import ID_MAX
from bookie_server.machine.state import MachineLimits
from tests.bookie_server.machine.machine_bench import ADDS, READS, Bench, entries
from tests.kit.amount import examples
from tests.kit.lanes import KEY, digester
from tests.kit.memory_holdings import every_second, read_piece, stored

LEDGER = 7
SIZE = len(entries(0, b"a"))
Answer = tuple[Any, ...]


class OneStep(Bench):
    """A bench whose entries are all in memory. It leaves answers of single entries together."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.store.in_memory = lambda _: True
        self.attach(1)
        self.send(*(entries(k, b"%d" % k) for k in range(10)))
        self.commit()

    def together(
        self, *entry_ids: EntryId, ledger: int = LEDGER, stream: int = READS, first_number: int = 1
    ) -> list[ev.Effect]:
        numbers = range(first_number, first_number + len(entry_ids))
        return self.machine.step(ev.EntriesRequested(stream, numbers, [ledger] * len(entry_ids), entry_ids))

    def one(self, **change: Any) -> list[ev.Effect]:
        about = {"request": (READS, 1), "ledger_id": LEDGER, "first": 3, "last": 3, "bytes_max": 1 << 20}
        return self.machine.step(ev.ReadRequested(**(about | change)))


def found(effects: Sequence[ev.Effect]) -> list[EntryId]:
    """Return the ids of the entries that were answered in one step."""
    return [entry for effect in effects if isinstance(effect, ev.SendEntries) for entry in effect.entry_ids]


def test_entries_in_memory_are_answered_together_in_one_step() -> None:
    bench = OneStep()
    (effect,) = bench.together(3, 5)
    assert (effect.numbers, effect.entry_ids, effect.fenced, effect.lacs) == ([1, 2], [3, 5], [False, False], [-1, -1])
    assert [bytes(frame) for frame in effect.frames] == [entries(3, b"3"), entries(5, b"5")]
    assert found(bench.one(request=(READS, 9))) == [3]


def test_entries_that_are_not_in_memory_are_read_and_the_others_do_not_wait_for_them() -> None:
    bench = OneStep()
    bench.store.in_memory = lambda entry: entry != 3
    effects = bench.together(3, 5, 11)
    assert found(effects) == [5]
    assert [effect.pieces[0].first for effect in effects if isinstance(effect, ev.ReadFrames)] == [3]
    assert [effect.trailer.absent for effect in effects if isinstance(effect, ev.SendTrailer)] == [
        (EntryRange(11, 11),)
    ]


@pytest.mark.parametrize(
    "change",
    [{"fence_key": KEY}, {"ids_only": True}, {"cut": Cut(head=1)}, {"last": 4}, {"ledger_id": -1}, {"first": -1}],
    ids=str,
)
def test_any_other_read_goes_the_ordinary_way(change: dict[str, Any]) -> None:
    assert found(OneStep().one(**change)) == []


def test_ids_that_no_entry_has_are_answered_as_before() -> None:
    bench = OneStep()
    for entry_id in (-1, ID_MAX + 1):
        assert found(bench.together(entry_id)) == []
    for ledger_id in (-1, LEDGER_ID_MAX + 1):
        assert [e.reason for e in bench.together(3, ledger=ledger_id) if isinstance(e, ev.SendTrailer)] == [
            Reason.BAD_REQUEST
        ]


def test_the_answer_has_the_fence_and_the_explicit_lac() -> None:
    bench = OneStep()
    bench.ask(ev.WriteLacRequested, LEDGER, KEY, lac_body(8, digester(LEDGER)))
    bench.ask(ev.FenceRequested, LEDGER, KEY)
    (effect,) = bench.together(3)
    assert (effect.fenced, effect.lacs) == ([True], [8]), "both are only in memory"
    bench.commit()
    (effect,) = bench.together(3)
    assert (effect.fenced, effect.lacs) == ([True], [8])


@pytest.mark.rule("S6")
def test_after_a_failed_sync_and_of_a_deleted_ledger_nothing_is_answered() -> None:
    deleted, failed = OneStep(), OneStep()
    deleted.store.fold(LEDGER, FrameKind.DELETED)
    failed.fail(final=True)
    for bench, reason in ((deleted, Reason.DELETED), (failed, Reason.STORAGE_FAILED)):
        effects = bench.together(3)
        assert found(effects) == []
        assert [e.reason for e in effects if isinstance(e, ev.SendTrailer)] == [reason]


def test_a_number_in_use_is_refused() -> None:
    bench = OneStep()
    bench.read(0, 5)
    assert bench.request == 1
    effects = bench.together(3)
    assert found(effects) == []
    assert [e.reason for e in effects if isinstance(e, ev.SendTrailer)] == [Reason.BAD_REQUEST]
    bench.step(ev.RequestCancelled((READS, 1)))
    assert found(bench.together(3)) == [], "storage still reads for the earlier request"
    bench.disk()
    assert found(bench.together(3)) == [3]


def test_no_read_is_answered_at_once_while_too_many_requests_are_under_way() -> None:
    bench = OneStep(requests_max=2)
    bench.read(0, 5)
    assert found(bench.together(3, first_number=5)) == [3]
    bench.read(0, 5)
    assert found(bench.together(3, first_number=6)) == []


def test_answers_that_are_not_sent_bound_those_of_their_stream() -> None:
    bench = OneStep(reads_per_stream_max=1, read_part_bytes=64 * SIZE)  # so each entry weighs 4 + 1 of 256
    assert len(found(bench.together(*([3] * 52)))) == 52
    assert found(bench.together(3, stream=9)) == [3], "another stream has room"
    assert found(bench.together(3, first_number=99)) == []
    bench = OneStep(reads_per_stream_max=1, read_part_bytes=64 * SIZE)
    assert len(found(bench.together(*([3] * 60)))) == 52


def test_answers_that_are_not_sent_bound_those_of_all_streams() -> None:
    bench = OneStep(reads_bytes_max=8 * SIZE)  # three quarters are for these reads, half of that for a further part
    assert found(bench.together(1, 2, 3)) == [1, 2, 3]
    for stream in (9, 10, 11):
        assert found(bench.together(3, stream=stream)) == [3], "the first part of its stream"
    bench.step(ev.EntriesSent(READS, 2))
    bench.step(ev.PartSent((READS, 3)))
    bench.step(ev.StreamClosed(9))
    assert found(bench.together(1, 2, stream=12)) == [1]
    assert found(bench.together(3, stream=13)) == [], "another read waits for its turn"


def test_an_owner_has_no_more_answers_in_memory_than_its_bound() -> None:
    for sent in (False, True):
        bench = OneStep()
        for stream in (READS, 9):
            bench.step(ev.StreamOwned(stream, (("client", 3 * SIZE),)))
        assert found(bench.together(1, 2, 3)) == [1, 2, 3]
        if sent:
            bench.step(ev.EntriesSent(READS, 1))
        assert found(bench.together(3, 4, stream=9)) == ([3] if sent else [])


def test_no_read_passes_another_that_waits_for_its_turn() -> None:
    bench = OneStep()
    for stream in (READS, 9):
        bench.step(ev.StreamOwned(stream, (("client", SIZE),)))
    assert found(bench.together(3)) == [3]
    assert bench.ask(ev.ReadRequested, LEDGER, 0, 5, 1 << 20, stream=9) == [], "its owner has no room"
    assert found(bench.together(3, stream=11)) == []


def test_the_room_is_free_again_once_everything_is_sent() -> None:
    bench = OneStep()
    turns = bench.machine._reads.turns
    bench.step(ev.StreamOwned(READS, (("client", 1 << 20),)))
    assert found(bench.together(*range(10))) == list(range(10))
    assert turns.held == (10, 10 * SIZE)
    assert bench.machine.numbers().counts.read_bytes == 10 * SIZE
    bench.step(ev.EntriesSent(READS, 3))
    assert turns.held == (7, 7 * SIZE)
    bench.step(ev.EntriesSent(READS, 7))
    bench.step(ev.EntriesSent(READS, 7))  # none is left
    assert (turns.held, turns._weight, turns._of_stream, turns._entries) == ((0, 0), 0, {}, {})
    bench.together(1, 2, 3, first_number=20)
    bench.step(ev.StreamClosed(READS))
    assert (turns.held, turns._weight, turns._of_stream, turns._entries) == ((0, 0), 0, {}, {})
    assert len(bench.machine._core.owners) == 0


def test_a_stream_whose_client_takes_entries_again_is_not_ended_for_others() -> None:
    for takes in (False, True):
        bench = OneStep(reads_bytes_max=4 * SIZE)  # room for three of these reads, two of one stream
        assert found(bench.together(1, 2)) == [1, 2]
        bench.step(ev.StreamStalled(READS))
        if takes:
            bench.step(ev.EntriesSent(READS, 1))
            assert found(bench.together(1, first_number=9)) == [1]
        assert found(bench.together(3, stream=9)) == [3]
        ends = [effect for effect in bench.together(3, stream=10) if isinstance(effect, ev.CloseStream)]
        assert [effect.stream for effect in ends] == ([] if takes else [READS])


# --- the same answers as on the ordinary way ---

LIMITS = MachineLimits(reads_active_max=3, reads_per_stream_max=2, reads_bytes_max=12 * SIZE, read_part_bytes=4 * SIZE)


class Twin:
    """A bookie that answers its requests, sends all parts at the end of a turn, and commits when told to."""

    def __init__(self, in_memory: Callable[[EntryId], bool]) -> None:
        self.bench = Bench()
        self.bench.machine = BookieMachine(self.bench.store, LIMITS)
        self.bench.store.in_memory = in_memory
        self.answers: dict[tuple[int, int], list[Answer]] = {}
        self.at_once = 0
        self._unsent: deque[tuple[int, int]] = deque()

    def feed(self, event: ev.Event) -> None:
        events = deque([event])
        while events:
            for effect in self.bench.machine.step(events.popleft()):
                match effect:
                    case ev.Commit(frames):
                        self.bench.log.extend(frames)
                    case ev.ReadFrames(request, pieces):
                        events.append(ev.FramesRead(request, [read_piece(piece) for piece in pieces]))
                    case ev.SendEntries():
                        self.at_once += len(effect.numbers)
                        for part, trailer in as_parts(effect):
                            self._part(part)
                            self._end(trailer)
                    case ev.SendPart():
                        self._part(effect)
                    case ev.SendTrailer():
                        self._end(effect)
            if not events and self._unsent:
                events.append(ev.PartSent(self._unsent.popleft()))

    def commit(self) -> None:
        places = [stored(frame) for frame in self.bench.log]
        self.bench.log.clear()
        if places:
            self.feed(ev.GroupCommitted(places))

    def _part(self, part: ev.SendPart) -> None:
        self._unsent.append(part.request)
        self.answers.setdefault(part.request, []).append((b"".join(map(bytes, part.frames)), part.lac))

    def _end(self, end: ev.SendTrailer) -> None:
        self.answers.setdefault(end.request, []).append((end.trailer, end.reason, end.message, end.known, end.lac))


STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 8), st.integers(1, 3), st.integers(-1, 7)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("read"), st.lists(st.tuples(st.integers(6, 7), st.integers(-1, 10)), min_size=1, max_size=6)),
    st.tuples(st.just("fence")),
    st.tuples(st.just("lac"), st.integers(0, 9)),
    st.tuples(st.just("damage"), st.integers(0, 9)),
    st.tuples(st.just("fold"), st.sampled_from([FrameKind.LIMBO, FrameKind.DELETED, FrameKind.COPY_DROPPED])),
    st.tuples(st.just("fail"), st.booleans()),
)


def event_of(step: tuple[Any, ...], number: int) -> ev.Event | None:
    """Return the event of a step whose first request has this number, or None if the step is of the disk."""
    match step:
        case ("write", first, count, lac):
            return ev.FramesArrived(ADDS, memoryview(entries(first, *[b"x"] * count, lac=lac)))
        case ("read", rows):
            ledgers, ids = zip(*rows, strict=True)
            return ev.EntriesRequested(READS, range(number, number + len(rows)), ledgers, ids)
        case ("fence",):
            return ev.FenceRequested((READS, number), LEDGER, KEY)
        case ("lac", lac):
            return ev.WriteLacRequested((READS, number), LEDGER, KEY, lac_body(lac, digester(LEDGER)))
    return None


def on_disk(twin: Twin, step: tuple[Any, ...]) -> None:
    match step:
        case ("commit",):
            twin.commit()
        case ("damage", entry_id):
            for frame in twin.bench.store._frames(LEDGER):
                frame.damaged = frame.damaged or frame.holds(entry_id)
        case ("fold", kind):
            twin.bench.store.fold(LEDGER, kind)
        case ("fail", final):
            twin.bench.log.clear()
            twin.feed(ev.CommitFailed(Reason.STORAGE_FAILED, "made to fail", final))


@examples(3)
@given(st.lists(STEPS, max_size=14), st.booleans())
def test_every_read_has_the_answer_of_the_ordinary_way(steps: list[tuple[Any, ...]], some: bool) -> None:
    twins = fast, slow = Twin(every_second if some else lambda _: True), Twin(lambda _: False)
    for twin in twins:
        twin.bench.attach(1)
        for k, step in enumerate(steps):
            event = event_of(step, 1 + 10 * k)
            if event is None:
                on_disk(twin, step)
            else:
                twin.feed(event)
    assert slow.at_once == 0
    assert fast.answers == slow.answers
