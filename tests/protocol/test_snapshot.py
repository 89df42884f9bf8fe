# SPDX-License-Identifier: Apache-2.0
"""Copies and fingerprints of machines (RULES P11)."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.protocol import events as ev
from tests.kit.transitions import printed, twin_of
from tests.protocol.kit import append, batch, writer

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
