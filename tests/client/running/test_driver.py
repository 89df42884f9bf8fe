# SPDX-License-Identifier: Apache-2.0
"""The loop between a machine and its adapters: one event at a time, and all that it began ends with it."""

from __future__ import annotations

import asyncio
import gc
import logging
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from bk_core.access.tokens import not_let_in
from bk_core.client.running.driver import Driver, SessionAdapter
from bk_core.errors import (
    AuthenticationError,
    BookieUnreachableError,
    BookKeeperError,
    Outcome,
    QuorumTimeoutError,
    TransportError,
)
from bk_core.model import DIRECT, BookieServiceInfo, Endpoint
from bk_core.protocol import events as ev
from bk_core.transport.caller import Caller
from bk_core.transport.lane.link import LaneLink
from bk_core.transport.lane.streams import LaneStream
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.whereabouts import At, Whereabouts
from bk_core.wire.lane.reasons import AttachMode


def nothing(_: Any) -> tuple[()]:
    return ()


async def test_what_a_driver_began_ends_with_it() -> None:
    fed: list[Any] = []
    driver = Driver("test", lambda event: fed.append(event) or (), lambda error: None)
    task = driver.spawn(asyncio.sleep(60))
    driver.set_timer(ev.SetTimer("late", 60_000))
    driver.set_timer(ev.SetTimer("soon", 1))
    driver.stop()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    await asyncio.sleep(0.02)
    assert fed == []
    gone = ref(driver)
    del driver, task
    gc.collect()
    assert gone() is None, "its late timer keeps it in memory"


async def test_a_task_that_fails_ends_the_driver_and_is_told() -> None:
    told: asyncio.Queue[BookKeeperError] = asyncio.Queue()
    driver = Driver("test", nothing, told.put_nowait)

    async def fails() -> None:
        raise ZeroDivisionError

    driver.spawn(fails())
    error = await asyncio.wait_for(told.get(), 20)
    assert "ZeroDivisionError" in str(error)
    assert driver.stopped


async def test_an_event_that_arises_while_effects_are_carried_out_waits_its_turn() -> None:
    seen: list[str] = []

    def step(event: str) -> list[str]:
        seen.append(f"step {event}")
        return [f"{event} effect"] * 2

    def carry(effect: str) -> None:
        seen.append(effect)
        if seen.count("a effect") == 1 and effect == "a effect":
            driver.feed("b")

    driver = Driver("test", step, lambda error: None)
    driver.handle({str: carry})
    driver.feed("a")
    assert seen == ["step a", "a effect", "a effect", "step b", "b effect", "b effect"]


async def test_an_ack_is_taken_without_an_event_unless_the_machine_is_busy_or_events_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    carried: list[str] = []
    answers: list[bool] = []

    def carry(effect: str) -> None:
        carried.append(effect)
        if effect == "outer":
            answers.append(driver.took(lambda *_: ["inner"], 0, 1, 1))

    driver = Driver("test", lambda event: [event], lambda error: None)
    driver.handle({str: carry})
    assert driver.took(lambda *ack: [str(ack)], 2, 7, 9)
    assert not driver.took(lambda *_: None, 0, 1, 1)
    driver.feed("outer")
    assert (carried, answers) == (["(2, 7, 9)", "outer"], [False])
    with caplog.at_level(logging.DEBUG, "bk_core.client"):
        assert not driver.took(lambda *_: ["unlogged"], 0, 1, 1)
    assert driver.took(lambda *_: [], 0, 1, 1)
    driver.stop()
    assert not driver.took(lambda *_: ["late"], 0, 1, 1)
    assert carried == ["(2, 7, 9)", "outer"]


async def test_an_event_that_an_ack_causes_is_handled_after_the_effects_of_the_ack() -> None:
    carried: list[str] = []

    def carry(effect: str) -> None:
        carried.append(effect)
        if effect == "first":
            driver.feed("event")

    driver = Driver("test", lambda event: [event], lambda error: None)
    driver.handle({str: carry})
    assert driver.took(lambda *_: ["first", "second"], 0, 1, 1)
    assert carried == ["first", "second", "event"]


async def test_an_ack_that_makes_the_machine_fail_ends_the_driver() -> None:
    errors: list[BookKeeperError] = []
    driver = Driver("test", nothing, errors.append)
    assert driver.took(lambda *_: [1 // 0], 0, 1, 1)
    assert driver.stopped
    assert [error.outcome for error in errors] == [Outcome.UNKNOWN]


async def test_a_timer_that_is_set_again_fires_once() -> None:
    fired: list[Any] = []
    driver = Driver("test", lambda event: fired.append(event) or (), lambda error: None)
    driver.set_timer(ev.SetTimer("one", 1))
    driver.set_timer(ev.SetTimer("one", 2))
    await asyncio.sleep(0.05)
    assert fired == [ev.TimerFired("one")]


async def test_a_timer_fires_when_it_was_last_told_to_and_not_once_it_is_cancelled() -> None:
    fired: list[tuple[str, float]] = []
    loop = asyncio.get_running_loop()
    driver = Driver("test", lambda event: fired.append((event.name, loop.time())) or (), lambda error: None)
    begun = loop.time()
    for name, delays in {"put off": (5, 20, 60), "brought forward": (120, 90, 10), "cancelled": (1, 10)}.items():
        for delay in delays:
            driver.set_timer(ev.SetTimer(name, delay))
    driver.cancel_timer(ev.CancelTimer("cancelled"))
    driver.cancel_timer(ev.CancelTimer("never set"))
    driver.set_timer(ev.SetTimer("set again", 1))
    driver.cancel_timer(ev.CancelTimer("set again"))
    driver.set_timer(ev.SetTimer("set again", 30))
    await asyncio.sleep(0.08)
    driver.set_timer(ev.SetTimer("brought forward", 60_000))
    await asyncio.sleep(0.1)
    assert [name for name, _ in fired] == ["brought forward", "set again", "put off"]
    assert [at - begun >= least for (_, at), least in zip(fired, (0.01, 0.03, 0.06), strict=True)] == [True] * 3


async def test_a_session_with_an_unknown_bookie_breaks_later_and_its_frames_go_nowhere() -> None:
    fed: asyncio.Queue[Any] = asyncio.Queue()
    driver = Driver("test", lambda event: fed.put_nowait(event) or (), lambda error: None)
    SessionAdapter(driver, LaneTransport(Caller()), 1, b"")
    driver.begin([ev.AttachSession(2, "nobody", 5, AttachMode.WRITE)])
    assert fed.empty(), "not inside the call"
    driver.begin([ev.SendFrame(2, "nobody", 5, b"frame"), ev.DetachSession(2, "nobody", 5)])
    broken = await asyncio.wait_for(fed.get(), 20)
    assert (type(broken), broken.index, broken.session) == (ev.SessionBroken, 2, 5)


class Silent(LaneLink):
    """A lane that carries nothing: :meth:`fail` says how it ends."""

    async def carry(self, stream: LaneStream, endpoint: Endpoint) -> None:
        await asyncio.Event().wait()

    async def disconnect(self) -> None:
        pass


EXPIRED = not_let_in("bookie b", "the token has expired", has_token=True)


@pytest.mark.parametrize(
    ("ends", "certain"),
    [
        ([(EXPIRED, False)], True),
        ([(EXPIRED, False), (EXPIRED, False)], True),
        ([(TransportError("it broke"), True), (EXPIRED, False)], False),  # what it was sent may be on its disk
        ([(BookieUnreachableError("it broke before its hello"), False), (EXPIRED, False)], False),
        ([(EXPIRED, True)], False),  # another stream was refused, when this one had sent already
    ],
)
async def test_an_append_is_not_applied_only_if_no_bookie_can_have_taken_it(
    ends: list[tuple[TransportError, bool]], certain: bool
) -> None:
    endpoint = Endpoint(DIRECT, "127.0.0.1", 1, DIRECT)
    at, nowhere = At(BookieServiceInfo("b", (endpoint,)), endpoint), Whereabouts(None, lambda _: None)
    links = [Silent(at, Caller(), nowhere) for _ in (*ends, None)]
    driver, left = Driver("test", nothing, lambda error: None), iter(links)
    transport: Any = SimpleNamespace(link=lambda bookie: next(left))
    adapter = SessionAdapter(driver, transport, 1, b"")
    for session, (end, greeted) in enumerate(ends):
        driver.begin([ev.AttachSession(0, "b", session, AttachMode.WRITE), ev.SendFrame(0, "b", session, b"frame")])
        stream = links[session]._adds
        assert stream is not None
        stream.greeted = greeted
        links[session].fail(end)
    missing = QuorumTimeoutError("no ack quorum")
    told = adapter.because(missing, pending=True)
    assert (type(told) is AuthenticationError, told.outcome is Outcome.NOT_APPLIED) == (certain, certain)
    assert "the token has expired" in told.value
    assert type(adapter.because(missing, pending=False)) is QuorumTimeoutError, "a close may be under way"
    adapter.settled()
    driver.begin([ev.AttachSession(0, "b", 9, AttachMode.WRITE), ev.SendFrame(0, "b", 9, b"frame")])
    links[-1].fail(EXPIRED)
    assert type(adapter.because(missing, pending=True)) is AuthenticationError, "all before was confirmed"
    driver.stop()
