# SPDX-License-Identifier: Apache-2.0
"""The grants of a client: one question for all that want the same, unless the bookie that is asked keeps silent."""

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

    class Stream:
        def show(self, ledger_id: LedgerId, grant: bytes) -> None: ...
        def attach(self, session: NewSession) -> None: ...
        def send(self, session: int, frame: object) -> None: ...

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
