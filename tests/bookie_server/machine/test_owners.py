# SPDX-License-Identifier: Apache-2.0
"""Bytes in flight of all streams of one owner: bounded in the machine, for adds, recoveries and answers apart."""

from __future__ import annotations

import pytest

from bk_core.wire.lane.reasons import AttachMode
from bookie_server.machine import events as ev
from tests.bookie_server.machine.machine_bench import ADDS, CONTROL, READS, Bench, ended, entries
from tests.kit.lanes import KEY

MINE, ALSO_MINE, YOURS = ADDS, 50, 60  # streams of adds


def opened(bytes_max: int = 1000, **limits: int) -> Bench:
    bench = Bench(stream_bytes_max=1 << 20, **limits)
    for stream, owner in ((MINE, "me"), (ALSO_MINE, "me"), (READS, "me"), (CONTROL, "me"), (YOURS, "you")):
        assert bench.step(ev.StreamOwned(stream, ((owner, bytes_max),))) == []
    return bench


def attach(bench: Bench, stream: int, mode: AttachMode = AttachMode.WRITE, session: int = 1) -> None:
    assert bench.attach(session, 100 + stream, stream=stream, mode=mode) == []


def send(bench: Bench, stream: int, first: int, count: int = 1, size: int = 600, session: int = 1) -> list[ev.Effect]:
    made = (entries(first + k, b"x" * size, ledger=100 + stream, session=session) for k in range(count))
    return bench.send(*made, stream=stream)


def resumed(effects: list[ev.Effect]) -> list[int]:
    return [effect.stream for effect in effects if isinstance(effect, ev.ResumeStream)]


def sent(effects: list[ev.Effect]) -> list[ev.RequestId]:
    return [effect.request for effect in effects if isinstance(effect, ev.SendPart)]


@pytest.mark.rule("L3")
def test_streams_of_an_owner_with_too_much_in_flight_are_paused_and_those_of_others_are_not() -> None:
    bench = opened()
    for stream in (MINE, ALSO_MINE, YOURS):
        attach(bench, stream)
    assert send(bench, MINE, 0) == []
    assert send(bench, ALSO_MINE, 0) == [ev.PauseStream(ALSO_MINE)], "both together"
    assert send(bench, YOURS, 0) == []
    assert send(bench, MINE, 1) == [ev.PauseStream(MINE)]
    assert bench.machine.numbers().counts.held == 2
    assert resumed(bench.commit(3)) == [], "a third of it is above half of the bound"
    effects = bench.commit()
    assert resumed(effects) == [ALSO_MINE, MINE]
    assert ended(effects) == [], "nothing was refused"


@pytest.mark.rule("L3")
def test_recoveries_of_an_owner_have_as_much_to_themselves() -> None:
    bench = opened()
    attach(bench, MINE)
    assert send(bench, MINE, 0, 5) == [ev.PauseStream(MINE)]
    attach(bench, ALSO_MINE, AttachMode.RECOVER)
    assert send(bench, ALSO_MINE, 0) == []
    assert send(bench, ALSO_MINE, 1) == [ev.PauseStream(ALSO_MINE)], "and no more than that"
    assert resumed(bench.commit()) == [MINE, ALSO_MINE]


def test_a_session_that_recovers_does_not_lift_the_bound_of_the_adds_beside_it() -> None:
    bench = opened()
    attach(bench, MINE)
    attach(bench, MINE, AttachMode.RECOVER, session=2)
    assert send(bench, MINE, 0) == []
    assert send(bench, MINE, 1) == [ev.PauseStream(MINE)]
    assert resumed(bench.commit()) == [MINE]


def test_what_a_closed_stream_left_in_flight_still_counts_and_then_nothing_is_remembered() -> None:
    bench = opened()
    attach(bench, MINE)
    send(bench, MINE, 0, 3)
    for stream in (MINE, ALSO_MINE, READS, CONTROL, YOURS):
        bench.step(ev.StreamClosed(stream))
    assert bench.machine.numbers().owners == 1, "else who connects again may send as much again"
    bench.step(ev.StreamOwned(70, (("me", 1000),)))
    attach(bench, 70)
    assert send(bench, 70, 0, size=10) == [ev.PauseStream(70)]
    bench.step(ev.StreamClosed(70))
    bench.commit()
    assert bench.machine.numbers().owners == 0


def test_a_stream_stays_whose_it_was_first() -> None:
    bench = opened()
    attach(bench, MINE)
    bench.step(ev.StreamOwned(MINE, ()))
    assert send(bench, MINE, 0, 2) == [ev.PauseStream(MINE)]


def test_answers_that_an_owner_does_not_take_are_bounded_but_for_recovery_reads() -> None:
    bench = opened(bytes_max=500, reads_active_max=40)
    attach(bench, MINE)
    send(bench, MINE, 0, 4)
    bench.commit()
    ledger = 100 + MINE

    def read(stream: int, key: bytes | None = None) -> list[ev.Effect]:
        bench.ask(ev.ReadRequested, ledger, 0, 0, 1 << 20, key, stream=stream)
        return bench.disk()

    (first,) = sent(read(READS))
    assert sent(read(READS)) == []
    assert sent(read(ALSO_MINE)) == [], "on no stream of it"
    assert len(sent(read(YOURS))) == 1
    bench.ask(ev.ReadRequested, ledger, 0, 0, 1 << 20, KEY, stream=CONTROL)
    assert len(sent(bench.commit() + bench.disk())) == 1, "a fencing read goes on"
    bench.step(ev.PartSent(first))
    bench.step(ev.PartSent((CONTROL, bench.request)))
    assert len(sent(bench.disk())) == 2, "there is room now; how large both are is known once they are read"
    assert bench.ask(ev.ReadRequested, ledger, 0, 0, 1 << 20, None, stream=READS) == [], "and then there is none"
    assert bench.to_read == []
