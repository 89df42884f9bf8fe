# SPDX-License-Identifier: Apache-2.0
"""The grants of a client: one question for all that want the same, unless the bookie that is asked keeps silent. A
renewed grant takes over: streams are shown it, and what is sent later carries it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bk_core.access.roles import Right
from bk_core.errors import TransportError
from bk_core.model import LedgerId
from bk_core.transport import wallet as module
from bk_core.transport.port import NewSession, RefusedError
from bk_core.transport.wallet import Ask, Held, Permits, Wallet
from bk_core.wire.lane.reasons import AttachMode, Reason
from tests.kit.waiting import eventually


def asker(asked: list[str], name: str, answer: asyncio.Future[None] | BaseException | None) -> Ask:
    """A bookie that answers at once, when the future is done, or not at all."""

    async def ask(ledger_id: LedgerId, right: Right) -> Held:
        asked.append(name)
        if isinstance(answer, BaseException):
            raise answer
        if answer is not None:
            await answer
        now = asyncio.get_running_loop().time()
        return Held(name.encode(), right, now + 60, now + 120)

    return ask


async def test_a_bookie_that_keeps_silent_does_not_keep_others_from_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ASK_ANOTHER_S", 0.05)

    wallet, asked = Wallet(), list[str]()
    silent = asyncio.get_running_loop().create_future()
    first = asyncio.ensure_future(wallet.get(7, Right.WRITE, asker(asked, "silent", silent)))
    await asyncio.sleep(0)
    second = await wallet.get(7, Right.WRITE, asker(asked, "second", None))
    assert (second.grant, asked) == (b"second", ["silent", "second"])
    silent.set_result(None)
    assert (await first).grant == b"silent"
    assert wallet.now(7, Right.WRITE) is not None
    assert (await wallet.get(7, Right.RECOVER, asker(asked, "third", None))).grant == b"third"


async def test_who_wants_the_same_waits_for_the_one_that_asks_and_takes_no_for_an_answer() -> None:
    wallet, asked = Wallet(), list[str]()
    slow = asyncio.get_running_loop().create_future()
    first = asyncio.ensure_future(wallet.get(7, Right.WRITE, asker(asked, "slow", slow)))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(wallet.get(7, Right.WRITE, asker(asked, "second", None)))
    await asyncio.sleep(0.02)
    slow.set_result(None)
    assert [each.grant for each in await asyncio.gather(first, second)] == [b"slow", b"slow"]
    assert asked == ["slow"]
    no = RefusedError(Reason.PERMISSION_DENIED, "no")
    with pytest.raises(RefusedError):
        await wallet.get(8, Right.WRITE, asker(asked, "no", no))
    assert (await wallet.get(8, Right.WRITE, asker(asked, "again", None))).grant == b"again"


async def test_that_grants_are_not_renewed_is_told_once_in_ten_seconds_for_a_ledger(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A ledger has three bookies, each with a link of its own, which ask again and again."""
    monkeypatch.setattr(module, "RENEW_AGAIN_S", 0.02)

    wallet, asked = Wallet(), list[str]()
    links = [Permits(wallet, asker(asked, name, TransportError("refused"))) for name in ("b1", "b2", "b3")]
    for ledger_id in (7, 8):
        now = asyncio.get_running_loop().time()
        wallet._held[ledger_id] = Held(b"grant", Right.WRITE, now, now + 60)
        for link in links:
            link.attach(Stream(), NewSession(ledger_id, b"", AttachMode.WRITE, ledger_id, cast("Any", None)))
    await asyncio.sleep(0.3)
    for link in links:
        link.lost("the end")
    assert len(asked) > 12
    told = [each.getMessage() for each in caplog.records if "could not be renewed" in each.getMessage()]
    assert [text.split(" could")[0] for text in told] == ["the grant for ledger 7", "the grant for ledger 8"]


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
