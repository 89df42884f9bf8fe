# SPDX-License-Identifier: Apache-2.0
"""Following the LAC, event by event, and against a model of bookies, writer and store. What no digest covers proves no
LAC, and what is no entry is no evidence (RULES P5)."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from bk_core.entries.apache import lac_body
from bk_core.entries.batch import EntryBatch
from bk_core.entries.digest import Digester, crc32c
from bk_core.entries.frame import encode_frame, encode_record, parse_header
from bk_core.errors import (
    IntegrityError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    QuorumTimeoutError,
)
from bk_core.model import DigestType, Fragment, LedgerMetadata, Versioned
from bk_core.protocol import events as ev
from bk_core.protocol.ends.follower import LedgerFollower
from bk_core.protocol.ends.lac import QuorumLacRead, verified_lac
from bk_core.wire.lane.reasons import Reason
from tests.kit.amount import some
from tests.protocol.kit import LEDGER, digester, metadata, of


def proof(request: int, lac: int, *, ledger_id: int = LEDGER) -> ev.LacAnswered:
    return ev.LacAnswered(request, lac_body=lac_body(lac, Digester(DigestType.CRC32C, b"", ledger_id)))


def following(lac: int = -1, **changes: object) -> tuple[LedgerFollower, list[ev.SendWatchLac]]:
    machine = LedgerFollower(metadata(**changes), lac, digester())
    return machine, of(machine.start(), ev.SendWatchLac)


def moved(first: int, *bookies: str, version: int = 1) -> Versioned[LedgerMetadata]:
    return metadata(version=version, fragments=(Fragment(0, ("b0", "b1", "b2")), Fragment(first, bookies)))


def closed(last: int, version: int = 5) -> Versioned[LedgerMetadata]:
    return Versioned(metadata().value.closed_at(last, 100), version)


@pytest.mark.rule("P10")
def test_every_bookie_of_the_last_fragment_and_the_record_are_watched() -> None:
    machine, watches = following(fragments=moved(5, "b0", "b4", "b2").value.fragments)
    assert [watch.bookie for watch in watches] == ["b0", "b4", "b2"]
    assert machine.start() == []
    assert LedgerFollower(metadata(), -1, digester()).start()[0] == ev.WatchMetadata()


def test_a_bookie_without_news_is_asked_again_after_a_pause_only() -> None:
    machine, watches = following(lac=5)
    (timer,) = machine.step(proof(watches[0].index, 5))
    assert timer.delay_ms == machine.pause_ms
    (again,) = machine.step(ev.TimerFired(timer.name))
    assert (again.bookie, again.above) == ("b0", 5)
    assert machine.step(ev.TimerFired(timer.name)) == []
    (timer,) = machine.step(ev.LacFailed(again.index, "unreachable"))
    assert timer.delay_ms == machine.stall_ms
    assert of(machine.step(ev.TimerFired(timer.name)), ev.SendWatchLac)


def test_a_ledger_closed_below_what_was_confirmed_has_lost_entries() -> None:
    machine, watches = following()
    machine.step(proof(watches[0].index, 9))
    effects = machine.step(ev.MetadataChanged(closed(8)))
    assert isinstance(effects[-1], ev.Fail)
    assert isinstance(machine.error, IntegrityError)


def test_a_ledger_deleted_while_it_is_followed_is_an_error_for_all_who_wait() -> None:
    for event in (
        ev.MetadataChanged(None),
        ev.MetadataWatched(NoSuchLedgerError("gone")),
        ev.MetadataCallFailed(NoSuchLedgerError("gone")),
    ):
        machine, _ = following()
        machine.step(ev.RefreshLac(1))
        machine.step(ev.RefreshLac(2))
        effects = machine.step(event)
        assert isinstance(of(effects, ev.Fail)[0].error, NoSuchLedgerError)
        assert {done.caller for done in of(effects, ev.FinishRefresh) if done.error is machine.error} == {1, 2}


@pytest.mark.rule("P10")
def test_time_without_progress_leads_to_a_new_look_at_record_and_quorum() -> None:
    machine, watches = following()
    machine.step(proof(watches[0].index, 3))
    assert machine.step(ev.TimerFired("stall")) == [ev.SetTimer("stall", 2_000)]
    effects = machine.step(ev.TimerFired("stall"))
    assert effects == [ev.ReadMetadata(), ev.SetTimer("stall", 2_000)]
    assert of(machine.step(ev.TimerFired("stall")), ev.ReadMetadata) == []  # one round at a time
    asks = machine.step(ev.MetadataRead(metadata()))
    assert [ask.bookie for ask in asks] == ["b0", "b1", "b2"]
    assert machine.step(proof(asks[0].index, 7)) == [ev.Confirm(7)]
    assert of(machine.step(proof(asks[1].index, 6)), ev.CancelRead) == [ev.CancelRead(asks[2].index)]
    assert machine.lac == 7


def test_a_round_goes_on_without_a_record_and_says_so() -> None:
    machine, _ = following()
    machine.step(ev.RefreshLac(1))
    lost = MetadataUnavailableError("away")
    asks = machine.step(ev.MetadataCallFailed(lost))
    machine.step(proof(asks[0].index, 7))
    assert ev.FinishRefresh(1, lost) in machine.step(proof(asks[1].index, 7))
    assert machine.lac == 7


def test_who_asks_while_a_round_is_under_way_gets_the_next() -> None:
    machine, _ = following()
    machine.step(ev.RefreshLac(1))
    assert machine.step(ev.RefreshLac(2)) == []
    asks = machine.step(ev.MetadataRead(metadata()))
    machine.step(proof(asks[0].index, 1))
    effects = machine.step(proof(asks[1].index, 1))
    assert of(effects, ev.FinishRefresh) == [ev.FinishRefresh(1, None)]
    assert of(effects, ev.ReadMetadata)
    asks = machine.step(ev.MetadataRead(metadata()))
    assert of(machine.step(ev.MetadataChanged(closed(3))), ev.FinishRefresh) == [ev.FinishRefresh(2, None)]
    assert machine.step(ev.RefreshLac(3)) == [ev.FinishRefresh(3, None)]


def test_a_round_asks_the_new_ensemble_when_it_changes_meanwhile() -> None:
    machine, _ = following()
    machine.step(ev.RefreshLac(1))
    asks = machine.step(ev.MetadataRead(metadata()))
    effects = machine.step(ev.MetadataChanged(moved(4, "b0", "b7", "b8")))
    again = of(effects, ev.SendReadLac)
    assert [ask.bookie for ask in again] == ["b0", "b7", "b8"]
    assert {ask.index for ask in asks} < {cancel.request for cancel in of(effects, ev.CancelRead)}
    for ask in asks:
        assert machine.step(proof(ask.index, 4)) == []  # replaced bookies count for nothing


def test_a_record_is_read_once_the_watch_is_set_even_if_a_round_is_under_way() -> None:
    machine, _ = following()
    machine.step(ev.RefreshLac(1))
    machine.step(ev.MetadataWatched())
    asks = machine.step(ev.MetadataRead(metadata()))
    machine.step(proof(asks[0].index, 1))
    assert of(machine.step(proof(asks[1].index, 1)), ev.ReadMetadata)
    (retry,) = machine.step(ev.MetadataWatched(MetadataUnavailableError("away")))
    assert machine.step(ev.TimerFired(retry.name)) == [ev.WatchMetadata()]


def test_copies_that_moved_after_the_close_are_seen() -> None:
    machine, _ = following()
    machine.step(ev.MetadataChanged(closed(9, version=5)))
    assert machine.step(ev.MetadataChanged(closed(9, version=6))) == []
    assert machine.metadata.version == 6


# --- quorum LAC reads ------------------------------------------------------------------------------------------------


def test_a_quorum_read_confirms_once_no_ack_quorum_is_left_unheard() -> None:
    read = QuorumLacRead(metadata(5, 3, 2).value, digester(), first_request=100)
    assert [ask.index for ask in read.start()] == [100, 101, 102, 103, 104]
    assert read.step(proof(99, 50)) == []
    assert read.step(proof(100, 4)) == []
    assert read.step(proof(102, 6)) == []
    assert read.step(proof(103, 5)) == []  # 4 and 1 may have confirmed what 0 did not hear of
    assert read.step(proof(104, 5)) == [ev.CancelRead(101), ev.Confirm(6)]
    assert read.step(proof(101, 9)) == []


@pytest.mark.rule("P5")
def test_a_quorum_read_that_hears_too_few_names_each_bookie_and_its_reason() -> None:
    read = QuorumLacRead(metadata().value, digester())
    read.step(ev.LacFailed(0, "disk", Reason.LIMBO))
    read.step(proof(1, 3, ledger_id=LEDGER + 1))
    (failed,) = read.step(proof(2, 3))
    assert isinstance(failed, ev.Fail)
    assert isinstance(failed.error, QuorumTimeoutError)
    assert "b0: LIMBO disk; b1: " in str(failed.error)


def test_a_bookie_that_answers_twice_counts_once() -> None:
    read = QuorumLacRead(metadata().value, digester())
    assert read.step(proof(0, 3)) == []
    assert read.step(proof(0, 4)) == []
    assert read.step(proof(0, 4, ledger_id=LEDGER + 1)) == []
    assert read.step(ev.LacFailed(1, "away")) == []  # 2 may still say
    assert isinstance(read.step(ev.LacFailed(2, "away"))[0], ev.Fail)


def test_the_first_id_of_the_last_fragment_is_a_floor() -> None:
    read = QuorumLacRead(moved(8, "b0", "b1", "b3").value, digester())
    read.step(proof(0, -1))
    assert read.step(proof(1, -1))[-1] == ev.Confirm(7)


# --- against a model -------------------------------------------------------------------------------------------------


class World:
    """A writer that confirms and changes ensembles, bookies that know some of it, a store with a watch that may lag."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.record = metadata(fragments=(Fragment(0, ("b0", "b1", "b2")),))
        self.history = [self.record]
        self.acked = -1
        self.knows = {f"b{i}": -1 for i in range(8)}
        self.machine = LedgerFollower(self.record, -1, digester())
        self.todo: dict[object, object] = {}  # request or call → effect
        self.timers: set[str] = set()
        self.watching, self.reported, self.calls = False, -1, 0
        self.carry(self.machine.start())

    def carry(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case ev.SendWatchLac(index) | ev.SendReadLac(index):
                    assert index not in self.todo
                    assert effect.bookie in self.machine.metadata.value.last_fragment.ensemble
                    self.todo[index] = effect
                case ev.CancelRead(request):
                    self.todo.pop(request, None)
                case ev.SetTimer(name):
                    self.timers.add(name)
                case ev.ReadMetadata() | ev.WatchMetadata():
                    self.calls += 1
                    self.todo[f"call {self.calls}"] = effect
                case ev.Confirm(lac):
                    assert lac >= self.reported
                    self.reported = lac
                case _:
                    raise AssertionError(effect)
        assert self.machine.lac <= self.acked, "reported what nobody confirmed"

    def write(self, record: LedgerMetadata) -> None:
        self.record = Versioned(record, self.record.version + 1)
        self.history.append(self.record)
        if self.watching:
            self.todo[f"watch {self.record.version}"] = ev.MetadataChanged(self.record)

    def act(self) -> None:
        """The writer and the bookies go on."""
        ensemble = self.record.value.last_fragment.ensemble
        match self.random.randrange(6):
            case 0 | 1:
                self.acked += self.random.randint(1, 3)
            case 2 | 3:
                bookie = self.random.choice(ensemble)
                self.knows[bookie] = max(self.knows[bookie], self.random.randint(-1, self.acked))
            case 4 if self.random.random() < 0.3:
                spare = self.random.choice([b for b in self.knows if b not in ensemble])
                changed = list(ensemble)
                changed[self.random.randrange(3)] = spare
                self.write(self.record.value.with_ensemble(self.acked + 1, tuple(changed)))

    def answer(self, key: object) -> object:
        effect = self.todo.pop(key)
        match effect:
            case ev.MetadataChanged():
                return effect
            case ev.WatchMetadata():
                self.watching = self.random.random() < 0.7
                return ev.MetadataWatched(None if self.watching else MetadataUnavailableError("away"))
            case ev.ReadMetadata():
                if self.random.random() < 0.3:
                    return ev.MetadataCallFailed(MetadataUnavailableError("away"))
                return ev.MetadataRead(self.random.choice([self.record, self.record, self.history[0]]))
        assert isinstance(effect, (ev.SendWatchLac, ev.SendReadLac))
        lie = self.random.random()
        if lie < 0.1:
            return ev.LacFailed(effect.index, "away")
        if lie < 0.2:
            return proof(effect.index, 10**12, ledger_id=LEDGER + 1)
        return proof(effect.index, self.knows[effect.bookie])

    def turn(self) -> None:
        if self.todo and self.random.random() < 0.7:
            self.carry(self.machine.step(self.answer(self.random.choice(list(self.todo)))))
        elif self.timers:
            name = self.random.choice(sorted(self.timers))
            self.timers.discard(name)
            self.carry(self.machine.step(ev.TimerFired(name)))

    def settle(self, bookie: str) -> None:
        """Nothing lies or fails any more and only ``bookie`` has news: turn until nothing new is to be heard."""
        self.random.random = lambda: 0.5
        self.knows[bookie] = self.acked
        for _ in range(60):
            for key in list(self.todo):
                if key in self.todo:
                    self.carry(self.machine.step(self.answer(key)))
            for name in sorted(self.timers):
                self.timers.discard(name)
                self.carry(self.machine.step(ev.TimerFired(name)))


@pytest.mark.rule("P10", "P5", "MUST14")
@pytest.mark.parametrize("seeds", range(some(4, few=1)))
def test_what_is_reported_was_confirmed_and_any_one_bookie_is_enough(seeds: int) -> None:
    for seed in range(seeds * 50, seeds * 50 + 50):
        world = World(seed)
        for _ in range(world.random.randint(0, 120)):
            (world.act if world.random.random() < 0.4 else world.turn)()
        world.acked += 1
        teller = world.random.choice(world.record.value.last_fragment.ensemble)
        world.settle(teller)
        assert world.machine.lac == world.reported == world.acked, f"seed {seed}: {teller} told in vain"
        world.acked += 2  # durable, but nobody was told: a recovery finds them
        world.write(world.record.value.closed_at(world.acked, 100))
        world.settle(teller)
        assert world.machine.ended, f"seed {seed}"
        assert world.machine.lac == world.acked
        assert not [
            effect for effect in world.todo.values() if not isinstance(effect, (ev.ReadMetadata, ev.MetadataChanged))
        ]


MAC = Digester(DigestType.MAC, b"secret", LEDGER)


@pytest.mark.rule("P5")
def test_a_lac_that_stands_beside_the_digested_one_proves_nothing() -> None:
    listed = EntryBatch(
        lengths=np.array([2], dtype=np.uint32),
        payload=memoryview(b"xy"),
        ledger_id=LEDGER,
        first_entry_id=5,
        lac=3,
        lacs=np.array([3], dtype=np.int64),
    )
    frame = encode_frame(listed, digester=MAC)
    assert verified_lac(ev.LacAnswered(0, frame), MAC)[0] == 3
    struct.pack_into("<q", frame, 24, 1_000)  # the header's LAC, which no digest covers
    columns_end = 64 + parse_header(frame).columns_bytes
    struct.pack_into("<I", frame, 52, crc32c(bytes(frame[64:columns_end]), crc32c(bytes(frame[:52]))))
    with pytest.raises(IntegrityError, match="LAC"):
        verified_lac(ev.LacAnswered(0, frame), MAC)


@pytest.mark.rule("P5")
def test_a_record_or_several_frames_are_no_evidence() -> None:
    one = bytes(encode_frame(EntryBatch.from_list([b"x"]), digester=MAC, ledger_id=LEDGER, first_entry_id=0, lac=-1))
    for frame in (encode_record(3, LEDGER), one + one, one[:-1]):
        with pytest.raises(IntegrityError):
            verified_lac(ev.LacAnswered(0, frame), MAC)
