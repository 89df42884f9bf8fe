# SPDX-License-Identifier: Apache-2.0
"""Copies and fingerprints of machines (RULES P11)."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from bk_core.entries.frame import encode_frame
from bk_core.protocol import events as ev
from bk_core.wire.lane.reasons import AttachMode
from bookie_server.machine import events as bev
from bookie_server.machine.machine import BookieMachine
from tests.kit.memory_holdings import MemoryHoldings
from tests.kit.snapshot import copied, fingerprint_of
from tests.kit.transitions import printed, twin_of
from tests.protocol.kit import append, batch, digester, metadata, recovery, writer

pytestmark = pytest.mark.rule("P11")


def in_the_middle() -> Any:
    machine = writer()
    append(machine, b"0", b"1" * 100)
    append(machine, b"2")
    machine.step(ev.FramesAcked(0, 1, 1))
    machine.step(ev.SessionBroken(1, 1))
    machine.step(ev.TimerFired("budget:1"))
    return machine


def test_what_happens_to_a_copy_does_not_happen_to_the_original() -> None:
    machine = in_the_middle()
    before, twin = printed(machine), twin_of(machine)
    assert printed(twin) == before
    twin.step(ev.FramesAcked(0, 1, 2))
    twin.step(ev.BookiesRead(("b0", "b1", "b2", "b3")))
    assert printed(machine) == before
    assert printed(twin) != before
    assert twin.delivery is twin._keeper.delivery  # parts of a copy refer to each other


def test_a_copy_goes_on_like_its_original() -> None:
    machine = in_the_middle()
    twin = twin_of(machine)
    more = [ev.FramesAcked(2, 1, 1), ev.BookiesRead(("b0", "b1", "b2", "b3")), ev.Append(batch(b"x")), ev.Close()]
    assert [machine.step(event) for event in more] == [twin.step(event) for event in more]
    assert printed(machine) == printed(twin)


@pytest.mark.parametrize(
    "change",
    [
        ev.FramesAcked(0, 1, 2),
        ev.FramesAcked(2, 1, 1),
        ev.Append(batch(b"")),
        ev.Close(),
        ev.BookiesRead(("b3",)),
        ev.TimerFired("adds"),
    ],
)
def test_another_state_has_another_fingerprint(change: Any) -> None:
    machine = in_the_middle()
    before = printed(machine)
    machine.step(change)
    assert printed(machine) != before
    hash(before)


def test_equal_states_reached_by_other_ways_have_equal_fingerprints() -> None:
    def reached(order: tuple[int, ...]) -> Any:
        machine = writer(3, 3, 3)
        append(machine, b"0")
        for index in order:
            machine.step(ev.FramesAcked(index, 1, 1))
        return printed(machine)

    assert reached((0, 1, 2)) == reached((2, 0, 1))


def test_injected_parts_are_shared_unless_they_know_how_to_be_copied() -> None:
    class Numbers:
        def __init__(self, at: int) -> None:
            self.at = at

        def __call__(self) -> int:
            self.at += 1
            return self.at

        def copy(self) -> Numbers:
            return Numbers(self.at)

        def fingerprint(self) -> int:
            return self.at

    numbers, plain = Numbers(4), itertools.count(1).__next__
    mine, same_numbers, other = copied([numbers, plain, numbers], (numbers, plain))
    assert mine is not numbers
    assert mine is other
    assert same_numbers is plain
    before = fingerprint_of([numbers, plain], (numbers, plain))
    numbers()
    assert fingerprint_of([numbers, plain], (numbers, plain)) != before


def test_what_cannot_be_walked_is_refused() -> None:
    with pytest.raises(TypeError, match="injected"):
        copied([iter([1])])
    with pytest.raises(TypeError, match="injected"):
        fingerprint_of([iter([1])])


def test_a_recovery_has_both_in_the_middle_of_its_reads() -> None:
    machine = recovery()
    machine.start()
    machine.step(ev.MetadataRead(metadata()))
    machine.step(ev.MetadataWritten(metadata(version=1)))
    twin = twin_of(machine)
    for index in range(2):
        twin.step(ev.LacAnswered(index))
    assert printed(twin) != printed(machine)
    third = twin_of(twin)
    answer = encode_frame(batch(b"0"), digester=digester(), ledger_id=7, first_entry_id=0, lac=-1, length_before=0)
    third.step(ev.FramesRead(1, memoryview(answer)))
    assert printed(third) != printed(twin)
    assert printed(twin_of(third)) == printed(third)


def bookie() -> BookieMachine:
    machine = BookieMachine(MemoryHoldings())
    frame = encode_frame(
        batch(b"0"), digester=digester(), ledger_id=7, first_entry_id=0, lac=-1, length_before=0, session=1
    )
    machine.step(bev.SessionAttached(1, 1, 7, bytes(20), AttachMode.WRITE))
    machine.step(bev.FramesArrived(1, memoryview(frame)))
    return machine


def test_a_bookie_has_both_and_its_copy_answers_for_itself() -> None:
    machine = bookie()
    before, twin = printed(machine), twin_of(machine)
    assert printed(twin) == before == printed(bookie())
    closed = bev.StreamClosed(1)
    assert twin.step(closed) == twin_of(machine).step(closed)
    assert printed(twin) != before
    assert printed(machine) == before
    assert twin._core is not machine._core
    assert twin._handlers[bev.SessionAttached].__self__ is twin._adds


def test_random_sources_are_shared() -> None:
    machine = writer()
    assert twin_of(machine).random is machine.random
    assert isinstance(machine.random, random.Random)
