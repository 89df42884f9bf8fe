# SPDX-License-Identifier: Apache-2.0
"""The writer machine against bookies that fail at random: what it confirms is on an ack quorum that metadata names."""

from __future__ import annotations

import itertools
import random

import pytest

from bk_core import quorum
from bk_core.entries.frame import decode_frame
from bk_core.errors import MetadataUnavailableError
from bk_core.model import LedgerMetadata, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.config import WriterConfig
from bk_core.protocol.writer import LedgerWrite, WriterState
from bk_core.wire.lane.reasons import Reason
from tests.kit.amount import some
from tests.protocol.kit import LEDGER, batch, digester, metadata

SHAPES = [(2, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 2, 1), (5, 3, 2), (1, 1, 1)]


class World:
    """Bookies, store and timers around one writer. A session's frames arrive in order or not at all."""

    def __init__(
        self, shape: tuple[int, int, int], rng: random.Random, *, deferred_sync: bool = False, **options: bool
    ) -> None:
        self.rng, self.stored = rng, metadata(*shape)
        self.spares = 40
        self.machine = LedgerWrite(
            LEDGER,
            self.stored,
            digester(),
            config=WriterConfig(
                add_quorum_timeout_ms=1e9, ensemble_changes_max=1000, **options
            ),  # timers fire at random
            new_session=itertools.count(1).__next__,
            random=rng,
            deferred_sync=deferred_sync,
        )
        self.holds: dict[str, set[int]] = {}
        self.sessions: dict[tuple[int, int], tuple[str, list[set[int]], int]] = {}  # bookie, frames, durable ones
        self.calls: list[object] = []
        self.timers: set[str] = set()
        self.error: object = None
        self.carry(self.machine.start())

    def carry(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case ev.AttachSession(index, bookie, session):
                    self.sessions[index, session] = (bookie, [], 0)
                case ev.SendFrame(index, bookie, session, frame):
                    assert self.sessions[index, session][0] == bookie
                    self.sessions[index, session][1].append(set(decode_frame(frame).entry_ids().tolist()))
                case ev.Confirm(lac):
                    self.check(lac)
                case ev.WriteMetadata() | ev.ReadMetadata() | ev.ReadBookies():
                    self.calls.append(effect)
                case ev.SetTimer(name):
                    self.timers.add(name)
                case ev.Fail(error):
                    self.error = error

    def check(self, lac: int) -> None:
        value: LedgerMetadata = self.stored.value
        for entry in range(lac + 1):
            ensemble = value.fragment_of(entry).ensemble
            members = quorum.write_set(entry, value.ensemble_size, value.write_quorum_size)
            copies = sum(entry in self.holds.get(ensemble[index], ()) for index in members)
            assert copies >= value.ack_quorum_size, f"entry {entry} was confirmed with {copies} copies"

    def step(self, event: object) -> None:
        self.carry(list(self.machine.step(event)))

    def persist(self, key: tuple[int, int]) -> tuple[int, int]:
        """Make some more frames of a session durable; the session's count."""
        bookie, frames, durable = self.sessions[key]
        upto = self.rng.randint(durable, len(frames))
        for ids in frames[durable:upto]:
            self.holds.setdefault(bookie, set()).update(ids)
        self.sessions[key] = (bookie, frames, upto)
        return upto, len(frames)

    def bookie_acts(self, healthy: bool) -> None:
        lanes = enumerate(self.machine.delivery.lanes)
        current = [key for key in ((index, lane.session) for index, lane in lanes) if key in self.sessions]
        key = self.rng.choice(current if healthy and current else list(self.sessions))
        count, _ = self.persist(key)
        what = 1.0 if healthy else self.rng.random()
        if what < 0.1:
            self.step(ev.SessionBroken(*key, "cut"))
        elif what < 0.2:
            reason = self.rng.choice([Reason.READ_ONLY, Reason.OVERLOADED, Reason.STORAGE_FAILED])
            self.step(ev.SessionEnded(*key, count, reason, ""))
        else:
            self.step(ev.FramesAcked(*key, count))

    def store_acts(self, healthy: bool) -> None:
        call = self.calls.pop(0)
        lost = not healthy and self.rng.random() < 0.2
        if isinstance(call, ev.WriteMetadata):
            fits = call.version == self.stored.version
            if fits and not (lost and self.rng.random() < 0.5):
                self.stored = Versioned(call.metadata, self.stored.version + 1)
            answer: object = ev.MetadataWritten(self.stored) if fits else ev.MetadataConflicted()
        else:
            answer = ev.MetadataRead(self.stored) if isinstance(call, ev.ReadMetadata) else self.bookies()
        self.step(ev.MetadataCallFailed(MetadataUnavailableError("lost")) if lost else answer)

    def bookies(self) -> ev.BookiesRead:
        names = [f"b{i}" for i in range(40)]
        return ev.BookiesRead(tuple(self.rng.sample(names, self.spares)), tuple(names[:5]))

    def timer_fires(self) -> None:
        name = self.rng.choice(sorted(self.timers))
        self.timers.discard(name)
        self.step(ev.TimerFired(name))

    def turn(self, *, healthy: bool = False) -> None:
        choices = [lambda: self.bookie_acts(healthy)] * 4
        choices += [lambda: self.store_acts(healthy)] * bool(self.calls)
        choices += [self.timer_fires] * bool(self.timers)
        self.rng.choice(choices)()


@pytest.mark.rule("MUST1", "MUST6")
@pytest.mark.parametrize("seed", range(some(150, few=40)))
def test_what_is_confirmed_is_on_an_ack_quorum_that_metadata_names_and_the_close_is_reached(seed: int) -> None:
    rng = random.Random(seed)
    world = World(SHAPES[seed % len(SHAPES)], rng)
    for _ in range(120):
        if rng.random() < 0.25:
            world.step(ev.Append(batch(*[b"x" * rng.randint(0, 5)] * rng.randint(1, 6))))
        world.turn()
        if world.machine.state is WriterState.FAILED:
            break
    world.step(ev.Close())
    for _ in range(3_000):
        if world.machine.state in (WriterState.CLOSED, WriterState.FAILED):
            break
        world.turn(healthy=True)
    assert world.error is None
    assert world.machine.state is WriterState.CLOSED, "everybody answers and it does not end"
    assert world.stored.value.last_entry_id == world.machine.lap
    world.check(world.machine.lap)
