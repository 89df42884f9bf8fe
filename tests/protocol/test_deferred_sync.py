# SPDX-License-Identifier: Apache-2.0
"""A writer whose bookies ack before they sync (P12): what it confirms is on disk, whatever bookies forget."""

from __future__ import annotations

import random

import pytest

from bk_core.errors import QuorumTimeoutError
from bk_core.protocol import events as ev
from bk_core.protocol.writer import LedgerWrite, WriterState
from tests.kit.amount import some
from tests.protocol.kit import batch
from tests.protocol.test_transitions_writer import ack, append, broken, new, session
from tests.protocol.test_writer_under_failures import SHAPES, World


class ForgetfulWorld(World):
    """Bookies that ack what they have in memory, and lose it when they crash. ``holds`` is what they have on disk."""

    def __init__(self, shape: tuple[int, int, int], rng: random.Random) -> None:
        self.memory: dict[str, set[int]] = {}
        self.forces: list[ev.SendForce] = []
        self.acked = -1
        super().__init__(shape, rng, deferred_sync=True)

    def carry(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case ev.AttachSession():
                    assert effect.deferred
                case ev.SendForce():
                    self.forces.append(effect)
                case ev.Acked(through):
                    assert through > self.acked
                    self.acked = through
                case ev.Confirm(lac):
                    assert lac <= self.acked
            super().carry([effect])

    def persist(self, key: tuple[int, int]) -> tuple[int, int]:
        """A bookie takes some more frames of a session, without syncing them; the session's count."""
        bookie, frames, taken = self.sessions[key]
        upto = self.rng.randint(taken, len(frames))
        for ids in frames[taken:upto]:
            self.memory.setdefault(bookie, set()).update(ids)
        self.sessions[key] = (bookie, frames, upto)
        return upto, len(frames)

    def force_acts(self, healthy: bool) -> None:
        """A bookie answers a force, perhaps after it crashed and without what it had forgotten."""
        effect = self.forces.pop(self.rng.randrange(len(self.forces)))
        if not healthy and self.rng.random() < 0.1:
            return self.step(ev.ForceFailed(effect.index, effect.session, "no"))
        self.holds.setdefault(effect.bookie, set()).update(self.memory.get(effect.bookie, ()))
        return self.step(ev.Forced(effect.index, effect.session))

    def crash(self) -> None:
        """All connections of a bookie break, and it has forgotten what it did not sync."""
        bookie = self.rng.choice(sorted({each[0] for each in self.sessions.values()}))
        self.memory.pop(bookie, None)
        for key in [key for key, each in self.sessions.items() if each[0] == bookie]:
            del self.sessions[key]
            self.step(ev.SessionBroken(*key, "it crashed"))

    def turn(self, *, healthy: bool = False) -> None:
        if self.forces and self.rng.random() < 0.3:
            return self.force_acts(healthy)
        if not healthy and self.sessions and self.rng.random() < 0.1:
            return self.crash()
        return super().turn(healthy=healthy)

    def bookie_acts(self, healthy: bool) -> None:
        if self.sessions:  # else all have crashed
            super().bookie_acts(healthy)


@pytest.mark.rule("P12", "MUST1")
@pytest.mark.parametrize("seed", range(some(300, few=60)))
def test_what_is_confirmed_is_on_the_disks_of_an_ack_quorum_and_the_close_forces_the_rest(seed: int) -> None:
    rng = random.Random(seed)
    world = ForgetfulWorld(SHAPES[seed % len(SHAPES)], rng)
    for _ in range(150):
        if rng.random() < 0.25:
            world.step(ev.Append(batch(*[b"x" * rng.randint(0, 5)] * rng.randint(1, 6))))
        if rng.random() < 0.1:
            world.step(ev.Force())
        world.turn()
        world.check(world.machine.lac)
        if world.machine.state is WriterState.FAILED:
            break
    world.step(ev.Close())
    for _ in range(4_000):
        if world.machine.state in (WriterState.CLOSED, WriterState.FAILED):
            break
        world.turn(healthy=True)
    assert world.error is None
    assert world.machine.state is WriterState.CLOSED, "everybody answers and it does not end"
    assert world.stored.value.last_entry_id == world.machine.lap
    world.check(world.machine.lap)


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
