# SPDX-License-Identifier: Apache-2.0
"""A writer whose bookies ack before they sync (P12): what it confirms is on disk, whatever bookies forget."""

from __future__ import annotations

import pytest

from bk_core.errors import QuorumTimeoutError
from bk_core.protocol import events as ev
from bk_core.protocol.writer import LedgerWrite, WriterState
from tests.protocol.test_transitions_writer import ack, append, broken, new, session


def forced(machine: LedgerWrite, index: int) -> list[object]:
    return list(machine.step(ev.Forced(index, session(machine, index))))


def told(effects: list[object]) -> list[object]:
    return [effect for effect in effects if isinstance(effect, ev.Acked | ev.Confirm | ev.SendForce)]


def deferred(*steps: object) -> LedgerWrite:
    machine = new(deferred_sync=True)
    for step in steps:
        machine.step(step(machine))
    return machine


@pytest.mark.rule("P12")
def test_acks_tell_who_appends_and_only_forces_move_the_lac() -> None:
    machine = deferred(append)
    assert told(machine.step(ack(0)(machine))) == []
    assert told(machine.step(ack(1)(machine))) == [ev.Acked(1)]
    assert (machine.acked, machine.lac, machine.idle) == (1, -1, True)
    own = [session(machine, index) for index in range(3)]
    assert told(machine.step(ev.Force())) == [ev.SendForce(0, "b0", own[0]), ev.SendForce(1, "b1", own[1])]
    assert told(machine.step(ack(2)(machine))) == [ev.SendForce(2, "b2", own[2])]
    assert told(forced(machine, 0)) == []
    assert told(forced(machine, 2)) == [ev.Confirm(1)]
    assert machine.retained_bytes > 0, "b1 may still forget it"
    forced(machine, 1)
    assert machine.retained_bytes == 0


@pytest.mark.rule("P12")
def test_a_force_covers_what_was_acked_when_it_was_sent() -> None:
    machine = deferred(append, ack(0), ack(1), lambda _: ev.Force(), append, ack(0, 2), ack(1, 2))
    assert told(forced(machine, 0)) == []
    assert told(forced(machine, 1)) == [ev.Confirm(1)]
    assert (machine.acked, machine.lac) == (3, 1)


@pytest.mark.rule("P12")
def test_what_a_broken_session_left_unforced_is_sent_again_and_forced_anew() -> None:
    machine = deferred(append, ack(0), ack(1), lambda _: ev.Force())
    old = session(machine, 0)
    machine.step(broken(0)(machine))
    effects = machine.step(ev.TimerFired("retry:0"))
    assert [type(effect) for effect in effects[:2]] == [ev.AttachSession, ev.SendFrame]
    assert told(list(machine.step(ev.Forced(0, old)))) == [], "it speaks of entries that it may have forgotten"
    forced(machine, 1)
    assert machine.lac == -1
    assert told(machine.step(ack(0)(machine))) == [ev.SendForce(0, "b0", session(machine, 0))]
    assert told(list(machine.step(ev.Forced(0, old)))) == [], "nor is it the answer to the force of now"
    assert told(forced(machine, 0)) == [ev.Confirm(1)]


@pytest.mark.rule("P12", "MUST12")
def test_a_force_that_does_not_end_ends_the_writer() -> None:
    machine = new(deferred_sync=True, add_quorum_timeout_ms=10_000)
    for step in (append, ack(0), ack(1), ack(2)):
        machine.step(step(machine))
    for _ in range(20):
        machine.step(ev.TimerFired("adds"))
    assert machine.state is WriterState.OPEN, "nobody asked for a force"
    machine.step(ev.Force())
    for _ in range(6):
        machine.step(ev.TimerFired("adds"))
    assert machine.state is WriterState.FAILED
    assert isinstance(machine.error, QuorumTimeoutError)


def test_a_force_of_a_writer_without_deferred_syncs_sends_nothing() -> None:
    machine = new()
    for step in (append, ack(0), ack(1)):
        machine.step(step(machine))
    assert machine.step(ev.Force()) == []
