# SPDX-License-Identifier: Apache-2.0
"""The bookie's machine, stepped by hand: what it wants done after each event, and when it answers."""

from __future__ import annotations

import pytest

from bk_core.entries.frame import FrameKind, decode_frame
from bk_core.entries.parts import cut_frames
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, Cut, EntryRange, Reason
from bookie_server.machine import events as ev
from tests.bookie_server.machine.machine_bench import ADDS, CONTROL, READS, Bench, acks, ended, entries, trailers
from tests.kit.flagged import UNKNOWN_FLAGS, with_flags
from tests.kit.lanes import KEY
from tests.kit.memory_holdings import read_piece

# --- acks ---


@pytest.mark.rule("L2")
def test_key_record_stands_before_the_first_frame() -> None:
    bench = Bench()
    bench.attach(1)
    assert bench.kinds() == [], "an attach alone leaves no trace"
    bench.send(entries(0, b"a"), entries(1, b"b"))
    assert bench.kinds() == [FrameKind.LEDGER_KEY, FrameKind.ENTRIES, FrameKind.ENTRIES]
    assert bench.commit(1) == [], "the key alone acknowledges nothing"
    assert bench.commit(1) == acks(1, 1)
    assert bench.commit(1) == acks(1, 2)


@pytest.mark.rule("P1")
def test_frames_of_no_session_are_refused_once() -> None:
    bench = Bench()
    assert ended(bench.send(entries(0, b"a", session=9))) == [(9, 0, Reason.NOT_ATTACHED)]
    assert bench.send(entries(0, b"a", session=9)) == []


@pytest.mark.parametrize("flags", UNKNOWN_FLAGS)
def test_a_frame_with_reserved_flags_closes_the_stream_and_nothing_of_its_message_is_kept(flags: int) -> None:
    bench = Bench()
    bench.attach(1)
    (closed,) = bench.send(entries(0, b"a"), with_flags(entries(1, b"b"), flags))
    assert isinstance(closed, ev.CloseStream)
    assert "BK_UNKNOWN_FLAGS" in closed.message
    assert bench.log == []


def test_frames_go_on_without_their_stream_but_are_not_acked() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.step(ev.StreamClosed(ADDS))
    assert bench.commit() == []
    bench.read(0, 0)
    assert [type(effect) for effect in bench.disk()] == [ev.SendPart, ev.SendTrailer]


# --- fences ---


@pytest.mark.rule("MUST2")
def test_fence_between_a_comparison_and_the_log_wins() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.commit()
    bench.attach(2)
    bench.send(entries(0, b"a", session=2))
    assert bench.to_read, "the re-sent frame is compared with what stands there"
    bench.ask(ev.FenceRequested, 7, KEY)
    assert ended(bench.disk()) == [(2, 0, Reason.FENCED)]
    assert bench.kinds() == [FrameKind.FENCE]


# --- entries that stand already ---


@pytest.mark.rule("P6")
def test_same_bytes_at_some_ids_are_taken_and_keep_the_order() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a", b"b"))
    bench.commit()
    bench.attach(2)
    bench.send(entries(1, b"b", b"c", session=2), entries(3, b"d", session=2))
    assert bench.log == []
    bench.disk()
    assert [decode_frame(one).entry_ids().tolist() for one in bench.log] == [[1, 2], [3]]
    assert bench.commit() == acks(2, 2)


@pytest.mark.rule("P6")
def test_all_ids_of_a_refused_frame_at_which_other_entries_stand_are_named() -> None:
    bench = Bench(read_part_bytes=1)  # each stored frame is compared by itself
    bench.attach(1)
    bench.send(entries(0, b"a"), entries(1, b"b", b"c"), entries(3, b"d"))
    bench.commit()
    bench.attach(2)
    bench.send(entries(0, b"x", b"b", b"y", b"z", b"new", session=2))
    [said] = bench.disk()
    assert [(end.frames, end.reason, end.differing) for end in said.ended] == [(0, Reason.INTEGRITY, [0, 2, 3])]


# --- reads and pending adds ---


@pytest.mark.rule("S1", "MUST4")
def test_a_list_of_ids_reads_nothing_waits_for_pending_adds_and_says_whether_the_ledger_is_known() -> None:
    bench = Bench()
    [unknown] = bench.ask(ev.ReadRequested, 7, 0, 9, 1 << 20, None, True)
    assert (unknown.trailer, unknown.known) == (ReadTrailer(9, (EntryRange(0, 9),)), False)
    bench.attach(1)
    bench.send(entries(0, b"a", lac=-1), entries(2, b"c", b"d", lac=1))
    assert bench.ask(ev.ReadRequested, 7, 0, 9, 1 << 20, None, True) == []
    [listed] = [effect for effect in bench.commit() if isinstance(effect, ev.SendTrailer)]
    assert listed == ev.SendTrailer((READS, 2), ReadTrailer(9, (EntryRange(1, 1), EntryRange(4, 9))), known=True, lac=1)
    assert bench.to_read == []


@pytest.mark.rule("S1")
def test_answer_before_a_pending_add_does_not_deny_it() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.commit()
    bench.send(entries(2, b"c"))
    assert bench.read(0, 9) == []
    effects = bench.disk()
    assert trailers(effects) == [], "it goes on behind the pending add"
    effects = bench.commit() + bench.disk()
    assert trailers(effects) == [ReadTrailer(9, (EntryRange(1, 1), EntryRange(3, 9)))]


@pytest.mark.rule("S8")
def test_limbo_is_unknown_where_nothing_is_found_and_takes_no_normal_adds() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.commit()
    bench.store.fold(7, FrameKind.LIMBO)
    bench.step(ev.StreamClosed(ADDS))
    bench.read(0, 1)
    assert trailers(bench.disk()) == [ReadTrailer(1, (), (EntryRange(1, 1, Reason.LIMBO),))]
    assert ended(bench.attach(2)) == [(2, 0, Reason.LIMBO)]
    assert bench.attach(3, mode=AttachMode.RECOVER) == []


@pytest.mark.rule("S4")
def test_limbo_refuses_a_writer_as_limbo_although_its_ledger_is_fenced_too() -> None:
    """A start that accepts a loss fences what it puts in limbo. Nobody took the ledger over: its writer goes on with
    another bookie, and does not end."""
    bench = Bench()
    for kind in (FrameKind.FENCE, FrameKind.LIMBO):
        bench.store.fold(7, kind)
    assert ended(bench.attach(1)) == [(1, 0, Reason.LIMBO)]
    assert bench.attach(2, mode=AttachMode.RECOVER) == []


@pytest.mark.rule("S4")
def test_a_dropped_copy_serves_what_is_found_and_takes_all_adds() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.commit()
    bench.store.fold(7, FrameKind.COPY_DROPPED)
    bench.step(ev.StreamClosed(ADDS))
    bench.read(0, 1)
    assert trailers(bench.disk()) == [ReadTrailer(1, (), (EntryRange(1, 1, Reason.COPY_DROPPED),))]
    assert bench.attach(2) == []
    assert bench.attach(3, mode=AttachMode.RECOVER) == []


@pytest.mark.rule("P4")
def test_at_most_two_parts_of_an_answer_are_in_memory() -> None:
    bench = Bench(read_part_bytes=200)
    bench.attach(1)
    for first in range(10):
        bench.send(entries(first, b"x" * 200))
    bench.commit()
    effects = bench.read(0, 9) + bench.disk()
    sent = 0
    while not trailers(effects):
        parts = [effect for effect in effects if isinstance(effect, ev.SendPart)]
        sent += len(parts)
        assert 1 <= len(parts) <= 2
        assert not bench.to_read
        effects = [one for _ in parts for one in bench.step(ev.PartSent((READS, 1))) + bench.disk()]
    sent += sum(isinstance(effect, ev.SendPart) for effect in effects)
    assert sent == 10


@pytest.mark.long
@pytest.mark.rule("P4")
def test_thousands_of_holes_become_few_ranges_that_deny_nothing_unknown() -> None:
    bench = Bench(stream_bytes_max=1 << 20)
    bench.attach(1)
    bench.send(*(entries(first, b"x") for first in range(0, 3000, 2)))
    bench.commit()
    bad = bench.store.ledgers[7].frames[700]
    bad.damaged = bad.known_damaged = True
    bench.read(0, 2999)
    (trailer,) = trailers(bench.disk())
    denied = {i for gap in trailer.absent for i in range(gap.first, gap.last + 1)}
    assert len(trailer.absent) == 2
    assert denied >= set(range(1, 3000, 2))
    assert 1400 not in denied
    assert trailer.unknown == (EntryRange(1400, 1400, Reason.DAMAGED),)


def test_reads_wait_for_their_turn_and_fencing_ones_go_first() -> None:
    bench = Bench(read_part_bytes=1, reads_active_max=1)
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.commit()
    bench.ask(ev.FenceRequested, 7, KEY)
    bench.commit()
    bench.to_read.clear()
    bench.read(0, 0)
    for _ in range(3):
        bench.read(0, 0)
    bench.read(0, 0, fence_key=KEY)
    assert [wanted.request[1] for wanted in bench.to_read] == [2]
    served = []
    while bench.to_read:
        served.append(bench.to_read[0].request)
        bench.disk()
        bench.step(ev.PartSent(served[-1]))
    assert served == [(READS, 2), (READS, 6), (READS, 3), (READS, 4), (READS, 5)]


def test_stream_that_closes_gives_its_turns_back() -> None:
    bench = Bench(reads_active_max=2)
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.commit()
    bench.read(0, 0)
    bench.disk()  # a part that never leaves
    bench.read(0, 0)  # one being read
    bench.step(ev.StreamClosed(READS))
    bench.to_read.clear()
    for stream in (4, 5):
        bench.ask(ev.ReadRequested, 7, 0, 0, 1, None, stream=stream)
    assert [wanted.request[0] for wanted in bench.to_read] == [4, 5]


# --- failed syncs ---


@pytest.mark.rule("L2")
def test_key_that_could_not_be_written_is_written_before_the_next_frame() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.fail(final=False, reason=Reason.NO_SPACE)
    bench.attach(2)
    bench.send(entries(0, b"a", session=2))
    assert bench.kinds() == [FrameKind.LEDGER_KEY, FrameKind.ENTRIES]


# --- admission ---


def test_frames_beyond_twice_the_bound_are_refused() -> None:
    bench = Bench(stream_bytes_max=500, in_flight_bytes_max=500)
    bench.attach(1)
    bench.send(*(entries(first, b"x" * 300) for first in range(5)))
    assert ended(bench.commit()) == [(1, 2, Reason.OVERLOADED)]


def test_read_only_bookie_takes_no_new_adds_but_fences() -> None:
    bench = Bench()
    bench.attach(1)
    bench.step(ev.ReadOnlyChanged(True))
    assert ended(bench.send(entries(0, b"a"))) == [(1, 0, Reason.READ_ONLY)]
    bench.ask(ev.FenceRequested, 7, KEY)
    assert bench.kinds() == [FrameKind.LEDGER_KEY, FrameKind.FENCE]


# --- explicit LACs ---


@pytest.mark.rule("P9")
def test_explicit_lac_goes_to_disk_at_most_once_a_second() -> None:
    bench = Bench(lac_persist_ms=1000)
    bench.attach(1)
    bench.send(entries(0, *[b"x"] * 50))
    bench.commit()
    bodies = [(7).to_bytes(8, "big") + lac.to_bytes(8, "big") for lac in range(50)]
    effects = [one for body in bodies for one in bench.ask(ev.WriteLacRequested, 7, KEY, body, stream=CONTROL)]
    assert [effect for effect in effects if not isinstance(effect, ev.SendReply)] == [ev.SetTimer(None, 1000)]
    assert bench.log == []
    bench.step(ev.TimerFired(None))
    assert bench.kinds() == [FrameKind.LAC]
    bench.commit()
    assert bench.store.facts(7).lac_body == bodies[-1]


@pytest.mark.rule("P10")
def test_watch_is_answered_once_and_its_timer_ends() -> None:
    bench = Bench()
    bench.attach(1)
    assert bench.ask(ev.WatchLacRequested, 7, -1, 5000, stream=CONTROL) == [ev.SetTimer((CONTROL, 1), 5000)]
    bench.send(entries(0, b"a"), entries(1, b"b", lac=0))
    effects = bench.commit()
    assert [type(effect) for effect in effects] == [ev.CancelTimer, ev.SendLac, ev.SendAcks]
    assert bench.step(ev.TimerFired((CONTROL, 1))) == []
    bench.send(entries(2, b"c", lac=1))
    assert bench.commit() == acks(1, 3)


# --- numbers that clients use twice ---


@pytest.mark.rule("MUST4")
@pytest.mark.parametrize("last", [0, 3], ids=["as-many-frames", "more-frames"])
def test_answer_of_the_storage_to_a_cancelled_read_is_no_answer_to_the_next_one_of_its_number(last: int) -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(*(entries(first, b"%d" % first) for first in range(4)))
    bench.commit()
    bench.step(ev.ReadRequested((READS, 7), 7, 0, last, 1 << 20, None))
    bench.step(ev.RequestCancelled((READS, 7)))
    [refused] = bench.step(ev.ReadRequested((READS, 7), 7, 2, 2, 1 << 20, None))
    assert isinstance(refused, ev.SendTrailer)
    assert refused.reason is Reason.BAD_REQUEST
    assert bench.disk() == []
    bench.step(ev.ReadRequested((READS, 7), 7, 2, 2, 1 << 20, None))
    [part] = [effect for effect in bench.disk() if isinstance(effect, ev.SendPart)]
    assert [decode_frame(one).to_list() for one in part.frames] == [[b"2"]]


@pytest.mark.rule("P6")
def test_session_of_a_number_that_was_used_is_compared_with_what_stands_at_its_own_ids() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"0"), entries(1, b"1"))
    bench.commit()
    bench.attach(2)
    bench.send(entries(0, b"0", session=2))
    bench.step(ev.SessionsDetached(ADDS, [2]))
    bench.attach(2)
    bench.send(entries(1, b"X", session=2))
    assert ended(bench.disk()) == [(2, 0, Reason.INTEGRITY)]
    assert bench.log == []


# --- reads of parts of entries ---


@pytest.mark.parametrize(("entries_each", "cut", "parts"), [(1, Cut(head=8), 2), (1, None, 1), (1200, Cut(head=8), 1)])
def test_a_read_with_a_cut_reads_more_at_once_unless_it_would_cut_many_entries(
    entries_each: int, cut: Cut | None, parts: int
) -> None:
    bench = Bench(read_part_bytes=64 << 10)
    bench.attach(1)
    frames = [entries(k * entries_each, *[bytes((64 << 10) // entries_each)] * entries_each) for k in range(8)]
    bench.send(*frames)
    bench.commit()
    bench.ask(ev.ReadRequested, 7, 0, 8 * entries_each - 1, 1 << 20, None, False, cut)
    assert [len(read.pieces) for read in bench.to_read] == [parts]


def test_storage_gets_the_cut_and_parts_that_it_read_are_sent_as_they_are() -> None:
    bench, cut = Bench(), Cut(head=8)
    bench.attach(1)
    bench.send(entries(0, bytes(1000), bytes(1000)))
    bench.commit()
    bench.ask(ev.ReadRequested, 7, 0, 1, 1 << 20, None, False, cut)
    (wanted,) = bench.to_read
    assert wanted.cut == cut
    (parts,) = cut_frames(read_piece(wanted.pieces[0]) or b"", cut)
    (sent,) = [e for e in bench.step(ev.FramesRead(wanted.request, [parts])) if isinstance(e, ev.SendPart)]
    assert [bytes(frame) for frame in sent.frames] == [bytes(parts)]
