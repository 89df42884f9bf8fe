# SPDX-License-Identifier: Apache-2.0
"""What the bookie's machine takes in and gives out when there is too much of everything (RULES L3, P1, S1): adds by
bytes, recovery beside them, reads in turns, nothing without a bound."""

from __future__ import annotations

import pytest

from bk_core.entries.frame import FrameKind
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.machine import events as ev
from tests.bookie_server.machine.machine_bench import ADDS, CONTROL, READS, Bench, ended, entries, trailers
from tests.kit.lanes import KEY
from tests.kit.transitions import printed

OTHERS = range(100, 120)  # streams of others


def flooded(bench: Bench, *, streams: int = 4, size: int = 300) -> None:
    """Streams of others send normal adds until no more is taken."""
    for stream in OTHERS[:streams]:
        bench.attach(1, stream, stream=stream)
        bench.send(*(entries(k, b"x" * size, ledger=stream) for k in range(4)), stream=stream)


def parts(effects: list[ev.Effect]) -> list[ev.RequestId]:
    return [effect.request for effect in effects if isinstance(effect, ev.SendPart)]


def stored(bench: Bench, count: int = 1, size: int = 10) -> None:
    """Entries of ledger 7, durable."""
    bench.attach(1)
    for first in range(count):
        bench.send(entries(first, b"x" * size))
    bench.commit()


def reading(bench: Bench, stream: int, requests: int, last: int = 0) -> None:
    for _ in range(requests):
        bench.ask(ev.ReadRequested, 7, 0, last, 1 << 20, None, stream=stream)


# --- adds ---


@pytest.mark.rule("L3")
def test_recovery_adds_and_fences_are_taken_while_normal_adds_are_refused() -> None:
    bench = Bench(stream_bytes_max=1 << 20, in_flight_bytes_max=1000, recovery_bytes_max=1000)
    flooded(bench, streams=6)
    assert ended(bench.commit(0)) == []
    bench.attach(2, 8)
    assert ended(bench.send(entries(0, b"x" * 400, ledger=8, session=2))) == [(2, 0, Reason.OVERLOADED)]
    bench.attach(3, 8, mode=AttachMode.RECOVER)
    before = len(bench.log)
    assert bench.send(entries(0, b"recovered", ledger=8, session=3)) == [], "taken, and the stream is not paused"
    bench.ask(ev.FenceRequested, 9, KEY)
    assert bench.kinds()[before:] == [FrameKind.LEDGER_KEY, FrameKind.ENTRIES, FrameKind.LEDGER_KEY, FrameKind.FENCE]


@pytest.mark.rule("L3")
def test_recovery_adds_have_a_bound_too() -> None:
    bench = Bench(stream_bytes_max=1 << 20, recovery_bytes_max=500)
    bench.attach(1, mode=AttachMode.RECOVER)
    effects = bench.send(*(entries(k, b"x" * 300) for k in range(2)))
    assert effects == [ev.PauseStream(ADDS)]
    assert ended(bench.send(*(entries(k, b"x" * 300) for k in range(2, 5))) + bench.commit()) == [
        (1, 2, Reason.OVERLOADED)
    ]


def test_no_more_of_a_stream_is_taken_than_two_groups_as_the_disk_has_them_now() -> None:
    bench = Bench(stream_bytes_max=1 << 20)
    bench.attach(1)
    message = entries(0, b"x" * 300)
    bench.send(message)
    assert bench.commit(group_bytes=len(message)) == [ev.SendAcks(ADDS, [1], [1], [])]
    assert bench.send(entries(1, b"x" * 300)) == []
    assert bench.send(entries(2, b"x" * 300)) == [ev.PauseStream(ADDS)], "one is written, and one waits"
    assert ev.ResumeStream(ADDS) in bench.commit(1, group_bytes=len(message)), "one is written, and none waits"
    assert ev.PauseStream(ADDS) in bench.send(*(entries(k, b"x" * 300) for k in range(3, 7)))
    assert ev.ResumeStream(ADDS) not in bench.commit(1, group_bytes=len(message)), "three wait"
    assert ev.ResumeStream(ADDS) in bench.commit(1, group_bytes=1 << 20), "a slower disk has larger groups"


@pytest.mark.rule("L3")
def test_stream_that_recovers_is_not_paused_for_what_others_send_but_for_its_own() -> None:
    bench = Bench(stream_bytes_max=1000, in_flight_bytes_max=1000)
    flooded(bench)
    bench.attach(1, mode=AttachMode.RECOVER)
    assert bench.send(entries(0, b"x")) == []
    assert bench.send(*(entries(k, b"x" * 300) for k in range(1, 5))) == [ev.PauseStream(ADDS)]


@pytest.mark.rule("L3")
def test_writers_in_a_crowd_wait_for_room_in_turn_and_none_is_refused() -> None:
    bench = Bench(stream_bytes_max=1 << 20, in_flight_bytes_max=2000)
    flooded(bench, streams=5)
    effects: list[ev.Effect] = []
    most = 0
    while bench.log:
        most = max(most, sum(map(len, bench.log)))
        effects += bench.commit(1)
    assert ended(effects) == []
    acked = {effect.stream: effect.frames for effect in effects if isinstance(effect, ev.SendAcks)}
    assert acked == {stream: [4] for stream in OTHERS[:5]}
    assert [effect.stream for effect in effects if isinstance(effect, ev.ResumeStream)][:4] == [*OTHERS[1:5]]
    assert most < 2000 + 2000, "the room, and the one message that filled it"


def test_what_waits_goes_with_its_stream_and_is_taken_before_a_session_is_detached() -> None:
    bench = Bench(stream_bytes_max=1 << 20, in_flight_bytes_max=1000)
    flooded(bench, streams=4)
    for stream in OTHERS[1:4]:
        bench.step(ev.StreamClosed(stream))
    flooded(bench, streams=3)  # the first one of them is refused: its session is attached already
    assert ended(bench.commit(0)) == [], "there was room to wait"
    taken = len(bench.log)
    bench.step(ev.SessionsDetached(OTHERS[2], [OTHERS[2]]))
    assert len(bench.log) > taken


def test_many_small_frames_are_bounded_by_their_number() -> None:
    bench = Bench(in_flight_frames_max=10)
    bench.attach(1)
    assert bench.send(*(entries(k, b"") for k in range(11))) == [ev.PauseStream(ADDS)]
    taken = len(bench.log)
    assert bench.send(*(entries(k, b"") for k in range(11, 40))) == []
    assert len(bench.log) == taken, "they wait"
    assert ended(bench.commit() + bench.commit()) == [(1, 31, Reason.OVERLOADED)]


def test_large_message_is_not_kept_for_a_small_part_of_it() -> None:
    """What is counted is what is held: else a hundred bytes that are accepted hold the 8 MiB they came with."""
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"small"), entries(0, b"y" * 100_000, session=99))
    taken = bench.log[-1]
    assert memoryview(memoryview(taken).obj).nbytes < 1000
    bench.send(entries(1, b"z" * 1000), entries(2, b"z" * 1000))
    assert memoryview(memoryview(bench.log[-1]).obj).nbytes > 2000, "a message that is taken is not copied"


def test_sessions_are_bounded_in_all_and_recovery_has_as_many_again() -> None:
    bench = Bench(sessions_max=3)
    for session in range(1, 4):
        assert bench.attach(session, session, stream=session) == []
    assert ended(bench.attach(4, 4, stream=4)) == [(4, 0, Reason.OVERLOADED)]
    assert bench.attach(5, 5, stream=5, mode=AttachMode.RECOVER) == []
    bench.step(ev.StreamClosed(1))
    assert bench.attach(6, 6, stream=2) != [], "one is gone, and there are three"
    bench.step(ev.SessionsDetached(2, [2]))
    assert bench.attach(7, 7, stream=2) == []


def test_explicit_lacs_wait_for_a_slow_log_and_are_bounded() -> None:
    def body(ledger: int) -> bytes:
        return ledger.to_bytes(8, "big") + (5).to_bytes(8, "big")

    bench = Bench(hints_max=2)
    for ledger in (1, 2):
        bench.ask(ev.WriteLacRequested, ledger, KEY, body(ledger), stream=CONTROL)
    refused = bench.ask(ev.WriteLacRequested, 3, KEY, body(3), stream=CONTROL)
    assert [effect.reason for effect in refused if isinstance(effect, ev.SendReply)] == [Reason.OVERLOADED]
    bench.step(ev.TimerFired(None))
    given = len(bench.log)
    bench.ask(ev.WriteLacRequested, 3, KEY, body(3), stream=CONTROL)
    assert bench.step(ev.TimerFired(None)) == [ev.SetTimer(None, 1000)], "the log is slow: nothing more for it"
    assert len(bench.log) == given
    bench.commit()
    bench.step(ev.TimerFired(None))
    assert bench.kinds()[-1:] == [FrameKind.LAC]


# --- reads: turns ---


@pytest.mark.rule("L3")
@pytest.mark.parametrize("active", [1, 8])
def test_client_with_many_requests_does_not_delay_another(active: int) -> None:
    bench = Bench(reads_active_max=active, requests_per_stream_max=10_000)
    stored(bench)
    reading(bench, READS, 500)
    reading(bench, 4, 1)
    served = []
    while (4, 501) not in served:
        wanted = bench.to_read.pop(0)
        frames = [b"x" * 10 for _ in wanted.pieces]
        served += parts(bench.step(ev.FramesRead(wanted.request, frames)))
        bench.step(ev.PartSent(served[-1]))
    assert len(served) <= active + 2


def test_first_part_of_a_stream_comes_before_further_ones_of_others() -> None:
    bench = Bench(read_part_bytes=1, reads_active_max=16)
    stored(bench)
    for stream in OTHERS[:4]:
        reading(bench, stream, 4)
    assert len(parts(bench.disk())) == 8, "half of what is not kept for recovery, and the first ones of two"
    for stream in OTHERS[4:12]:
        reading(bench, stream, 4)
    assert {request[0] for request in parts(bench.disk())} == {*OTHERS[4:8]}


@pytest.mark.rule("L3")
def test_long_answer_gives_others_their_turn_between_its_parts() -> None:
    bench = Bench(reads_active_max=1, read_part_bytes=100)
    stored(bench, 20, 100)
    reading(bench, READS, 1, last=19)
    reading(bench, 4, 1, last=19)
    served = []
    for _ in range(6):
        served += parts(bench.disk())
        bench.step(ev.PartSent(served[-1]))
    assert [stream for stream, _ in served] == [READS, 4] * 3


@pytest.mark.rule("L3")
def test_recovery_reads_find_room_that_others_cannot_fill() -> None:
    bench = Bench(read_part_bytes=1, reads_active_max=8)
    stored(bench)
    bench.ask(ev.FenceRequested, 7, KEY)
    bench.commit()
    bench.disk()
    for stream in OTHERS:
        reading(bench, stream, 4)
    assert len(parts(bench.disk())) == 6, "parts that nobody takes"
    bench.ask(ev.ReadRequested, 7, 0, 0, 1 << 20, KEY, stream=READS)
    assert [request[0] for request in parts(bench.disk())] == [READS]


def test_parts_in_memory_are_bounded_by_their_bytes() -> None:
    bench = Bench(reads_active_max=32, reads_bytes_max=4000, storage_reads_max=1)
    stored(bench, 1, 1000)
    for stream in OTHERS:
        reading(bench, stream, 4)
    assert len(parts(bench.disk())) == 3, "three quarters; the rest is kept for recovery"


def test_stream_has_few_parts_in_memory() -> None:
    bench = Bench(read_part_bytes=1, reads_active_max=64, reads_per_stream_max=4)
    stored(bench)
    reading(bench, READS, 20)
    assert len(parts(bench.disk())) == 4


def test_many_small_parts_of_a_stream_are_in_memory_together_as_far_as_their_bytes_allow() -> None:
    bench = Bench(reads_active_max=64, reads_per_stream_max=4, read_part_bytes=10_000)
    stored(bench, 1, 1000)
    reading(bench, READS, 200)
    asked = parts(bench.disk())
    assert 36 <= len(asked) <= 40, "about 4 * 10,000 bytes"
    bench.step(ev.PartSent(asked[0]))
    assert len(parts(bench.disk())) == 1, "one leaves, the next one comes"


def test_the_smallest_parts_still_use_up_room() -> None:
    bench = Bench(reads_active_max=4, reads_per_stream_max=1, read_part_bytes=1 << 30)
    stored(bench, 1, 1)
    reading(bench, READS, 400)
    assert len(parts(bench.disk())) == 256


# --- reads: clients that take nothing ---


@pytest.mark.rule("L3")
def test_stream_that_takes_nothing_is_ended_when_others_wait_for_room_and_not_before() -> None:
    bench = Bench(read_part_bytes=1, reads_active_max=4, reads_per_stream_max=4)
    stored(bench)
    for stream in OTHERS[:3]:
        reading(bench, stream, 1)
    assert len(parts(bench.disk())) == 3
    assert [bench.step(ev.StreamStalled(stream)) for stream in OTHERS[:3]] == [[], [], []], "nobody waits"
    effects = bench.ask(ev.ReadRequested, 7, 0, 0, 1 << 20, None, stream=READS)
    assert [effect.stream for effect in effects if isinstance(effect, ev.CloseStream)] == [OTHERS[0]]
    assert bench.step(ev.StreamStalled(OTHERS[1])) == [], "one at a time"
    bench.step(ev.StreamClosed(OTHERS[0]))
    assert [request[0] for request in parts(bench.disk())] == [READS]
    assert trailers(bench.disk()) == []


def test_stream_that_takes_something_is_no_longer_stalled() -> None:
    bench = Bench(read_part_bytes=1, reads_active_max=2, reads_per_stream_max=4)
    stored(bench)
    reading(bench, 4, 1)
    (request,) = parts(bench.disk())
    bench.step(ev.StreamStalled(4))
    bench.step(ev.PartSent(request))
    for stream in OTHERS[:2]:
        reading(bench, stream, 1)
    bench.disk()
    assert not any(isinstance(e, ev.CloseStream) for e in bench.ask(ev.ReadRequested, 7, 0, 0, 99, None, stream=READS))


def test_cancelled_requests_leave_nothing_behind() -> None:
    bench = Bench(read_part_bytes=1, reads_active_max=1)
    stored(bench)
    reading(bench, 4, 1)
    bench.disk()  # its part is never taken
    bench.step(ev.RequestCancelled((READS, 99)))
    before = printed(bench.machine)
    for _ in range(50):
        reading(bench, READS, 1)
        bench.step(ev.RequestCancelled((READS, bench.request)))
    assert printed(bench.machine) == before


# --- the storage ---


@pytest.mark.rule("L3")
def test_fence_is_not_read_behind_all_that_others_asked_for() -> None:
    bench = Bench(storage_reads_max=2, reads_active_max=40)
    stored(bench)
    bench.ask(ev.FenceRequested, 7, KEY)
    for stream in OTHERS:
        reading(bench, stream, 1)
    assert len(bench.to_read) == 2
    bench.commit()  # the fence is durable: what it says is to be read
    order = []
    while bench.to_read:
        wanted = bench.to_read.pop(0)
        order.append(wanted.request)
        bench.step(ev.FramesRead(wanted.request, [b"x" * 10 for _ in wanted.pieces]))
    assert order.index((READS, 1)) == 2


def test_urgent_ones_do_not_keep_others_away_for_ever() -> None:
    bench = Bench(storage_reads_max=1)
    stored(bench)
    bench.ask(ev.ReadLacRequested, 7, stream=CONTROL)
    reading(bench, READS, 1)
    order = []
    for _ in range(10):
        bench.ask(ev.ReadLacRequested, 7, stream=CONTROL)
        wanted = bench.to_read.pop(0)
        order.append(wanted.request[0])
        bench.step(ev.FramesRead(wanted.request, [b"x" * 10 for _ in wanted.pieces]))
    assert READS in order


def test_storage_is_asked_again_when_the_one_who_asked_is_gone() -> None:
    bench = Bench(storage_reads_max=1)
    stored(bench)
    for stream in (4, 5):
        reading(bench, stream, 1)
    bench.step(ev.StreamClosed(4))
    (wanted,) = bench.to_read
    bench.to_read.clear()
    bench.step(ev.FramesRead(wanted.request, [b"x" * 10]))
    assert [one.request[0] for one in bench.to_read] == [5]


# --- requests ---


@pytest.mark.rule("L3")
def test_stream_with_many_requests_is_not_read_until_half_are_answered() -> None:
    bench = Bench(requests_per_stream_max=4)
    bench.attach(1)
    bench.send(entries(0, b"a"))
    effects = [effect for _ in range(4) for effect in bench.read(0, 0)]
    assert effects == [ev.PauseStream(READS)]
    assert bench.step(ev.RequestCancelled((READS, 1))) == []
    assert bench.step(ev.RequestCancelled((READS, 2))) == [ev.ResumeStream(READS)]


@pytest.mark.rule("L3")
def test_full_bookie_takes_fences_and_first_requests_all_the_same() -> None:
    bench = Bench(requests_max=40, requests_per_stream_max=1000)
    bench.attach(1)
    bench.send(entries(0, b"a"))
    reading(bench, READS, 40)
    refused = bench.ask(ev.ReadRequested, 7, 0, 0, 99, None, stream=READS)
    assert [effect.reason for effect in refused if isinstance(effect, ev.SendTrailer)] == [Reason.OVERLOADED]
    assert bench.ask(ev.ReadRequested, 7, 0, 0, 99, None, stream=4) == []
    assert bench.ask(ev.FenceRequested, 8, KEY, stream=READS) == []
    for stream in range(10, 60):
        bench.ask(ev.FenceRequested, 8, KEY, stream=stream)
    last = bench.ask(ev.FenceRequested, 8, KEY, stream=99)
    assert [effect.reason for effect in last if isinstance(effect, ev.SendReply)] == [Reason.OVERLOADED]


@pytest.mark.rule("P10")
def test_watches_do_not_count_as_requests_and_have_a_bound_of_their_own() -> None:
    bench = Bench(requests_max=2, requests_per_stream_max=2, watches_per_stream_max=5)
    for _ in range(5):
        assert bench.ask(ev.WatchLacRequested, 7, 10, 1000, stream=CONTROL)[-1] != ev.PauseStream(CONTROL)
    refused = bench.ask(ev.WatchLacRequested, 7, 10, 1000, stream=CONTROL)
    assert [effect.reason for effect in refused if isinstance(effect, ev.SendReply)] == [Reason.OVERLOADED]
    assert [type(effect) for effect in bench.ask(ev.WatchLacRequested, 7, 10, 1000, stream=4)] == [ev.SetTimer]
    bench.step(ev.StreamClosed(CONTROL))
    assert [type(e) for e in bench.ask(ev.WatchLacRequested, 7, 10, 1000, stream=CONTROL)] == [ev.SetTimer]
