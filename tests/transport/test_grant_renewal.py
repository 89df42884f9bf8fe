# SPDX-License-Identifier: Apache-2.0
"""A grant that was renewed takes over: streams are shown it, and what is sent later carries it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bk_core.access.roles import Right
from bk_core.errors import TransportError
from bk_core.model import LedgerId
from bk_core.transport import wallet as module
from bk_core.transport.port import NewSession
from bk_core.transport.wallet import Held, Permits, Wallet
from bk_core.wire.lane.reasons import AttachMode
from tests.kit.waiting import eventually


class Bookie:
    """Makes a numbered grant each time, due for renewal after ``renew_s``."""

    def __init__(self, renew_s: float, until_s: float = 60.0) -> None:
        self.made, self.fails = 0, 0
        self._renew_s, self._until_s = renew_s, until_s

    async def ask(self, _ledger_id: LedgerId, right: Right) -> Held:
        if self.fails:
            self.fails -= 1
            raise TransportError("refused")
        self.made += 1
        now = asyncio.get_running_loop().time()
        return Held(b"grant %d" % self.made, right, now + self._renew_s, now + self._until_s)


class Stream:
    def __init__(self) -> None:
        self.shown: list[bytes] = []
        self.attached: list[int] = []
        self.sent: list[object] = []

    def show(self, ledger_id: LedgerId, grant: bytes) -> None:
        self.shown.append(grant)

    def attach(self, session: NewSession) -> None:
        self.attached.append(session.number)

    def send(self, session: int, frame: object) -> None:
        self.sent.append(frame)


async def test_a_session_that_runs_is_shown_each_newer_grant() -> None:
    bookie, stream = Bookie(renew_s=0.05), Stream()
    permits = Permits(Wallet(), bookie.ask)
    session = NewSession(7, b"", AttachMode.WRITE, 1, cast("Any", None))
    permits.attach(stream, session)
    await eventually(lambda: len(stream.shown) >= 3)
    assert stream.shown[:3] == [b"grant 1", b"grant 2", b"grant 3"]
    held = permits.now(7, Right.WRITE)
    assert held is not None
    assert held.grant == stream.shown[-1], "what is sent from now on carries the newest one"
    permits.lost("the end")
    made = bookie.made
    await asyncio.sleep(0.2)
    assert bookie.made <= made + 1, "a link that is lost renews nothing"


async def test_a_renewal_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_AGAIN_S", 0.02)

    bookie, stream = Bookie(renew_s=0.05), Stream()
    permits = Permits(Wallet(), bookie.ask)
    permits.attach(stream, NewSession(7, b"", AttachMode.WRITE, 1, cast("Any", None)))
    await eventually(lambda: stream.shown)
    bookie.fails = 3
    await eventually(lambda: len(stream.shown) >= 2)
    assert (stream.shown[1], bookie.fails) == (b"grant 2", 0)
    permits.lost("the end")


async def test_a_grant_that_is_due_is_used_and_its_successor_is_asked_for_at_once() -> None:
    """Reads have no session: asking for their grant renews it, and nobody waits."""

    bookie = Bookie(renew_s=0.05)
    permits = Permits(Wallet(), bookie.ask)
    assert await permits.get(7, Right.READ) == b"grant 1"
    assert await permits.get(7, Right.READ) == b"grant 1"
    await asyncio.sleep(0.06)
    assert await permits.get(7, Right.READ) == b"grant 1"
    await eventually(lambda: bookie.made == 2)
    assert await permits.get(7, Right.READ) == b"grant 2"
    permits.lost("the end")


async def test_a_grant_that_is_over_is_not_used() -> None:
    bookie = Bookie(renew_s=0.02, until_s=0.05)
    permits = Permits(Wallet(), bookie.ask)
    assert await permits.get(7, Right.READ) == b"grant 1"
    await asyncio.sleep(0.07)
    assert permits.now(7, Right.READ) is None
    assert await permits.get(7, Right.READ) == b"grant 2"
    permits.lost("the end")


async def test_frames_that_wait_for_a_grant_follow_their_session_in_order_and_go_with_a_detach() -> None:
    bookie, stream = Bookie(renew_s=30), Stream()
    permits = Permits(Wallet(), bookie.ask)
    permits.attach(stream, NewSession(7, b"", AttachMode.WRITE, 1, cast("Any", None)))
    permits.attach(stream, NewSession(8, b"", AttachMode.WRITE, 2, cast("Any", None)))
    assert [permits.holds(number, frame) for number, frame in ((1, b"a"), (2, b"x"), (1, b"b"))] == [True] * 3
    assert permits.detach(2)
    await eventually(lambda: len(stream.sent) >= 2)
    assert (stream.attached, stream.sent) == ([1], [b"a", b"b"])
    assert not permits.holds(1, b"c"), "it is sent at once"
    assert not permits.detach(1), "the stream knows it"
    permits.lost("the end")
