# SPDX-License-Identifier: Apache-2.0
"""A bookie makes grants for clients, and no client can keep another from its grant. The bookie trusts the roles and
ledgers that it read for some seconds, or for an hour while the store is away."""

from __future__ import annotations

import asyncio
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from bk_core.access.roles import Anywhere, Line, Right, Role, RolesTable, scope_of
from bk_core.errors import MetadataUnavailableError
from bk_core.metadata import open_store
from bk_core.model import LedgerId, LedgerMetadata
from bk_core.wire.lane.reasons import Reason
from bookie_server.ports.access import authority as module
from bookie_server.ports.access.authority import KEPT_S, STALE_S, Authority, Denied, GrantKeys
from tests.bookie_server.ports.secure_kit import secure_bookie
from tests.bookie_server.ports.test_secure import refused
from tests.kit.lanes import DEADLINE_S
from tests.kit.metadata_worlds import a_ledger_on


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


# --- how long roles count ---


class World:
    """An authority on a clock of the test. ``away``: the store does not answer; ``asked`` counts what it was asked."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        keys = path / "keys"
        keys.write_text("ab" * 32 + "\n")
        keys.chmod(0o600)
        self.store = open_store(f"memory://{uuid.uuid4().hex}")
        self.store.initialize_cluster()
        self.now, self.away, self.asked = 1_000.0, False, 0
        for name in ("read_roles", "read_ledger"):
            monkeypatch.setattr(self.store, name, self._asked(getattr(self.store, name)))
        self.authority = Authority(self.store, GrantKeys(keys), "cluster-1", clock_s=lambda: self.now)

    def _asked(self, read: Any) -> Any:
        def ask(*arguments: Any) -> Any:
            self.asked += 1
            if self.away:
                raise MetadataUnavailableError("the store is away")
            return read(*arguments)

        return ask

    def give(self, *lines: Line) -> None:
        away, self.away = self.away, False
        found = self.store.read_roles()
        self.away = away
        self.store.write_roles(RolesTable(lines), None if found is None else found.version)

    def may(self) -> Right:
        return self.authority.table().rights("CN=ingest", Anywhere.CLUSTER)


WRITER = Line("CN=ingest", Role.WRITER, scope_of("cluster"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_role_that_was_taken_away_counts_for_seconds_only(world: World) -> None:
    world.give(WRITER)
    assert Right.WRITE in world.may()
    world.give()
    world.now += KEPT_S - 0.1
    assert Right.WRITE in world.may(), "the store is not asked for each grant"
    world.now += 0.1
    assert not world.may()


def test_roles_are_trusted_for_an_hour_while_the_store_is_away_and_no_longer(world: World) -> None:
    world.give(WRITER)
    assert Right.WRITE in world.may()
    world.away = True
    world.now += STALE_S - 0.1
    assert Right.WRITE in world.may()
    world.now += 0.1
    with pytest.raises(MetadataUnavailableError):
        world.may()
    assert world.authority.cluster_rights("CN=ingest") is Right.NONE
    world.away = False
    world.now += KEPT_S
    assert Right.WRITE in world.may()


def test_a_store_that_is_away_is_asked_once_in_a_while(world: World) -> None:
    world.give(WRITER)
    world.may()
    world.away, world.asked = True, 0
    world.now += KEPT_S
    for _ in range(10):
        assert Right.WRITE in world.may()
    assert world.asked == 1
    world.now += KEPT_S
    world.may()
    assert world.asked == 2


def test_what_a_ledger_is_for_is_trusted_for_an_hour_while_the_store_is_away(world: World) -> None:
    world.give(Line("CN=ingest", Role.WRITER, scope_of("log:orders")))
    ledger_id, _ = world.store.create_ledger(a_ledger_on(("b1",), custom_metadata={"bk.log": b"orders"}))
    assert Right.WRITE in world.authority._make("CN=ingest", ledger_id, Right.WRITE).rights
    world.now += STALE_S - 1.0
    world.authority.table()  # of the roles it is sure again
    world.away = True
    world.now += 0.9
    assert world.authority._facts(ledger_id).text("bk.log") == "orders"
    world.now += 0.2
    with pytest.raises(MetadataUnavailableError):
        world.authority._facts(ledger_id)


def test_who_listens_is_told_of_a_table_only_when_it_is_another_one(world: World) -> None:
    told: list[RolesTable] = []
    world.authority.on_roles = told.append
    world.give(WRITER)
    world.may()
    world.now += KEPT_S
    world.may()
    assert told == [], "nobody has connected by older roles"
    world.give()
    world.now += KEPT_S
    world.may()
    assert told == [RolesTable()]
