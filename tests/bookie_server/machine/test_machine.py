# SPDX-License-Identifier: Apache-2.0
"""The bookie's machine, stepped by hand: what it wants done after each event, and when it answers.

Over 400 lines because the stories are short and share their steps: apart, each file would repeat them.
"""

from __future__ import annotations

import pytest

from bk_core.entries.digest import ledger_key
from bk_core.entries.frame import FrameKind, decode_frame
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, EntryRange, Reason
from bookie_server.machine import events as ev
from bookie_server.machine.machine import BookieMachine
from tests.bookie_server.machine.machine_bench import ADDS, READS, Bench, acks, ended, entries, trailers
from tests.kit.flagged import UNKNOWN_FLAGS, with_flags
from tests.kit.lanes import KEY

# --- acks ---


@pytest.mark.rule("P1", "MUST2")
def test_nothing_is_acked_before_it_is_durable() -> None:
    bench = Bench()
    assert bench.attach(1) == []
    assert bench.send(entries(0, b"a"), entries(1, b"b")) == []
    assert bench.send(entries(2, b"c")) == []
    assert bench.commit() == acks(1, 3)


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
def test_end_of_a_session_waits_for_the_frames_before_it() -> None:
    bench = Bench()
    bench.attach(1)
    bad = bytearray(entries(1, b"flipped"))
    bad[-1] ^= 1
    assert bench.send(entries(0, b"a"), bytes(bad), entries(2, b"c")) == []
    effects = bench.commit()
    assert ended(effects) == [(1, 1, Reason.INTEGRITY)]
    assert [words.sessions for words in effects if isinstance(words, ev.SendAcks)] == [[]]
    assert bench.send(entries(2, b"c")) == [], "what follows is dropped"
    assert bench.log == []


@pytest.mark.rule("P1")
def test_frames_of_no_session_are_refused_once() -> None:
    bench = Bench()
    assert ended(bench.send(entries(0, b"a", session=9))) == [(9, 0, Reason.NOT_ATTACHED)]
    assert bench.send(entries(0, b"a", session=9)) == []


def test_session_number_in_use_closes_the_stream() -> None:
    bench = Bench()
    bench.attach(1)
    assert isinstance(bench.attach(1)[0], ev.CloseStream)


def test_bytes_that_are_no_frames_close_the_stream() -> None:
    bench = Bench()
    bench.attach(1)
    assert isinstance(bench.send(b"x" * 100)[0], ev.CloseStream)


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


@pytest.mark.rule("MUST3")
@pytest.mark.parametrize("ledger", [7, 99])
def test_every_answer_to_a_fence_waits_for_its_record(ledger: int) -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.commit()
    assert bench.ask(ev.FenceRequested, ledger, KEY) == []
    assert bench.ask(ev.FenceRequested, ledger, KEY) == [], "a second one waits as well"
    assert bench.read(5, 6, ledger, fence_key=KEY) == [], "a negative answer too"
    assert bench.kinds().count(FrameKind.FENCE) == 1
    effects = bench.commit() + bench.disk()
    assert [type(effect) for effect in effects].count(ev.SendLac) == 2
    assert trailers(effects) == [ReadTrailer(6, (EntryRange(5, 6),), (), True)]


@pytest.mark.rule("MUST2", "MUST3")
def test_fence_in_memory_refuses_adds_before_it_is_durable() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.ask(ev.FenceRequested, 7, KEY)
    bench.send(entries(1, b"b"))
    assert bench.kinds() == [FrameKind.LEDGER_KEY, FrameKind.ENTRIES, FrameKind.FENCE]
    assert ended(bench.commit(2)) == [(1, 1, Reason.FENCED)]


@pytest.mark.rule("S1")
def test_fencing_read_sees_the_add_that_was_pending_when_it_came() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    assert bench.read(0, 0, fence_key=KEY) == []
    assert bench.commit() == acks(1, 1)
    effects = bench.disk()
    assert trailers(effects) == [ReadTrailer(0, (), (), True)]
    part = effects[0]
    assert isinstance(part, ev.SendPart)
    assert decode_frame(part.frames[0]).to_list() == [b"a"]


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


@pytest.mark.rule("L2")
def test_fence_with_another_key_changes_nothing() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.commit()
    effects = bench.ask(ev.FenceRequested, 7, ledger_key(b"other"))
    assert [(e.reason, type(e)) for e in effects if isinstance(e, ev.SendReply)] == [
        (Reason.UNAUTHORIZED, ev.SendReply)
    ]
    assert bench.send(entries(1, b"b")) == []
    assert bench.commit() == acks(1, 2)


@pytest.mark.rule("MUST3")
def test_fence_outlives_what_the_machine_forgets() -> None:
    bench = Bench()
    bench.ask(ev.FenceRequested, 7, KEY)
    bench.ask(ev.ReadLacRequested, 7)
    bench.step(ev.StreamClosed(READS))
    assert ended(bench.attach(1)) == [(1, 0, Reason.FENCED)], "its record is on its way"
    bench.commit()
    assert ended(bench.attach(2)) == [(2, 0, Reason.FENCED)]
    again = BookieMachine(bench.store)
    effects = again.step(ev.SessionAttached(ADDS, 1, 7, KEY, AttachMode.WRITE))
    assert ended(effects) == [(1, 0, Reason.FENCED)], "and it outlives the process"


# --- entries that stand already ---


@pytest.mark.rule("P6")
def test_other_bytes_at_a_pending_id_are_refused_once_it_is_durable() -> None:
    bench = Bench()
    bench.attach(1)
    bench.attach(2)
    bench.send(entries(0, b"a"))
    assert bench.send(entries(0, b"x", session=2), entries(1, b"b", session=2)) == []
    assert bench.to_read == [], "there is nothing to compare with yet"
    assert bench.commit() == acks(1, 1)
    assert ended(bench.disk()) == [(2, 0, Reason.INTEGRITY)]
    assert bench.log == []


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
    assert isinstance(said, ev.SendAcks)
    assert [(end.frames, end.reason, end.differing) for end in said.ended] == [(0, Reason.INTEGRITY, [0, 2, 3])]


@pytest.mark.rule("P6")
def test_recovery_writes_over_what_stands_there() -> None:
    bench = Bench()
    bench.attach(1)
    bench.send(entries(0, b"a"))
    bench.commit()
    bench.attach(2, mode=AttachMode.RECOVER)
    bench.send(entries(0, b"a", session=2))
    assert bench.to_read == []
    assert bench.commit() == acks(2, 1)
