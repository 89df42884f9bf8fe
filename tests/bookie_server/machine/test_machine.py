# SPDX-License-Identifier: Apache-2.0
"""The bookie's machine, stepped by hand: what it wants done after each event, and when it answers.

Over 400 lines because the stories are short and share their steps: apart, each file would repeat them.
"""

from __future__ import annotations

import pytest

from bk_core.entries.frame import FrameKind, decode_frame
from bk_core.wire.lane.reasons import Reason
from bookie_server.machine import events as ev
from tests.bookie_server.machine.machine_bench import ADDS, Bench, acks, ended, entries
from tests.kit.flagged import UNKNOWN_FLAGS, with_flags
from tests.kit.lanes import KEY

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
