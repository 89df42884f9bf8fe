# SPDX-License-Identifier: Apache-2.0
"""Who makes grants, and who cannot keep others from getting theirs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from bk_core.access.roles import Right
from bk_core.model import LedgerId, LedgerMetadata
from bk_core.wire.lane.reasons import Reason
from bookie_server.ports.access import authority as module
from bookie_server.ports.access.authority import Denied
from tests.bookie_server.ports.secure_kit import secure_bookie
from tests.bookie_server.ports.test_secure import refused
from tests.kit.lanes import DEADLINE_S


async def test_who_asks_for_a_ledger_to_come_does_not_have_its_writer_denied(tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        world.give("writer", "CN=ingest", "log:orders-*")
        to_come = world.ledger() + 1
        async with world.lane("direct", "nobody") as there, world.lane("direct", "ingest") as ingest:
            assert await refused(there.link.read_lac(to_come, deadline_s=DEADLINE_S)) is Reason.PERMISSION_DENIED
            assert world.ledger({"bk.log": b"orders-1"}) == to_come
            await ingest.write(to_come, 0, [b"entry"])


async def test_one_identity_does_not_take_the_grants_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAKING_MAX", 8)
    goes_on = threading.Event()

    async with secure_bookie(tmp_path) as world:
        world.give("writer", "CN=ingest")
        authority = world.bookie._authority
        read = authority._read_ledger

        def slow(ledger_id: LedgerId) -> LedgerMetadata:
            goes_on.wait(DEADLINE_S)
            return read(ledger_id)

        monkeypatch.setattr(authority, "_read_ledger", slow)
        many = [asyncio.ensure_future(authority.grant("CN=nobody", each, Right.WRITE)) for each in range(20)]
        await asyncio.sleep(0)
        other = asyncio.ensure_future(authority.grant("CN=ingest,O=Example", 7, Right.WRITE))
        await asyncio.sleep(0)
        goes_on.set()
        assert (await other).rights
        denied = await asyncio.gather(*many, return_exceptions=True)
        reasons = [each.reason for each in denied if isinstance(each, Denied)]
        assert reasons.count(Reason.OVERLOADED) == 16
        assert reasons.count(Reason.PERMISSION_DENIED) == 4
        assert not authority._making
