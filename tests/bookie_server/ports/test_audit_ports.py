# SPDX-License-Identifier: Apache-2.0
"""What a running bookie says to its audit log, of each port: who, by which proof, from where, to what, and the outcome.
The suite searches every line for planted passwords and keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import BookKeeperError, TlsError
from bk_core.metadata import open_store
from bk_core.metadata.records import BookieOrder, Order
from bk_core.model import BOOKIE_RPC
from bk_core.wire.lane.reasons import AttachMode
from bookie_server.machine.events import CopiesUnwanted, LedgersDeleted
from bookie_server.main import Bookie
from bookie_server.ports.bounds.limits import RequestKind
from bookie_server.ports.lane.streams import AddStream
from tests.bookie_server.ports.secure_kit import secure_bookie
from tests.kit.lane_table import OURS
from tests.kit.lanes import DEADLINE_S, KEY, Listener, bookie_config
from tests.kit.tls_world import tls_bookie
from tests.kit.waiting import eventually

OTHER_KEY = b"k" * 20


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[..., list[dict[str, Any]]]:
    """Events of the audit log: those that ``did`` one of these."""

    def events(*did: str) -> list[dict[str, Any]]:
        lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "bookie_server.audit"]
        return [line for line in lines if line["did"] in did]

    return events


def outcomes(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(event["did"], event.get("ledger"), event["outcome"], event.get("identity")) for event in events]


@pytest.mark.parametrize("lane", [*OURS, BOOKIE_RPC])
async def test_fences_and_recoveries_are_told_with_their_outcome_on_every_wire(
    tmp_path: Path, lane: str, told: Callable[..., list[dict[str, Any]]]
) -> None:
    who = "CN=ingest,O=Example"

    async with tls_bookie(tmp_path) as world, world.lane(lane, world.authority.issue("ingest").tls()) as one:
        await one.write(7, 0, [b"a"])
        await one.write(7, 1, [b"b"])
        assert told("fence", "recovery-add") == [], "nothing of the kind yet"
        await one.fence(7)
        await one.read(7, 0, 0, fence_key=KEY)
        with pytest.raises(BookKeeperError):
            await one.fence(7, OTHER_KEY)
        await one.write(7, 2, [b"c"], mode=AttachMode.RECOVER)
        listener = Listener()
        refused = one.attach(7, listener, mode=AttachMode.RECOVER, key=OTHER_KEY)
        one.send(refused, 7, 3, [b"d"])
        await listener.ended(refused)
    events = told("fence", "recovery-add")
    assert sorted(outcomes(events)) == [
        ("fence", 7, "done", who),
        ("fence", 7, "done", who),
        ("fence", 7, "refused", who),
        ("recovery-add", 7, "done", who),
        ("recovery-add", 7, "refused", who),
    ], "the second fence, which changed nothing, is told as one again"
    assert [event.get("again") for event in events if event["did"] == "fence" and event["outcome"] == "done"] == [
        None,
        1,
    ]
    first = events[0]
    assert (first["lane"], first["proof"], first["bookie"]) == (lane, "certificate", first["bookie"])
    assert first["address"].startswith("127.0.0.1:") or first["address"] == "a client on this machine"
    assert all("UNAUTHORIZED" in event["why"] for event in events if event["outcome"] == "refused")


@pytest.mark.parametrize("lane", OURS)
async def test_recoveries_that_are_refused_leave_nothing_behind(tmp_path: Path, lane: str) -> None:
    async with (
        tls_bookie(tmp_path, ledgers_open_per_principal_max=1) as world,
        world.lane(lane, world.authority.issue("ingest").tls()) as one,
    ):
        listener = Listener()
        sessions = [one.attach(7, listener, mode=AttachMode.RECOVER) for _ in range(5)]
        for session in sessions[1:]:
            await listener.ended(session)
        streams: list[Any] = [each for each in world.bookie._engine._streams.values() if isinstance(each, AddStream)]
        assert [len(each._recovering) for each in streams] == [1], "of the one that may go on"


@pytest.mark.parametrize("lane", [*OURS, BOOKIE_RPC])
async def test_fencing_reads_that_are_refused_are_told_so(
    tmp_path: Path, lane: str, told: Callable[..., list[dict[str, Any]]]
) -> None:
    async with tls_bookie(tmp_path) as world, world.lane(lane, world.authority.issue("ingest").tls()) as one:
        await one.write(7, 0, [b"a"])
        with contextlib.suppress(BookKeeperError):  # on Apache's wire the entry is unknown
            assert not (await one.read(7, 0, 0, fence_key=OTHER_KEY))[0]
    assert [outcome[:3] for outcome in outcomes(told("fence"))] == [("fence", 7, "refused")]


@pytest.mark.parametrize("lane", OURS)
async def test_hints_of_deleted_ledgers_are_told_with_the_first_of_many(
    tmp_path: Path, lane: str, told: Callable[..., list[dict[str, Any]]]
) -> None:
    async with tls_bookie(tmp_path) as world, world.lane(lane, world.authority.issue("ingest").tls()) as one:
        await one.link.delete_hint([5, 6], deadline_s=DEADLINE_S)
        await eventually(lambda: bool(told("delete-hint")))
        (event,) = told("delete-hint")
        assert (event["ledgers"], event["count"], event["outcome"]) == ([5, 6], 2, "done")
        assert event["identity"] == "CN=ingest,O=Example"


@pytest.mark.parametrize("lane", OURS)
async def test_a_fence_whose_client_goes_away_has_an_unknown_outcome(
    tmp_path: Path, lane: str, told: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_bookie(tmp_path) as world:
        engine = world.bookie._engine
        async with world.lane(lane, world.authority.issue("ingest").tls()) as one:
            await one.write(7, 0, [b"a"])
            await one.fence(1)
            monkeypatch.setattr(engine.logs[0].committer, "put", lambda *_, **__: None)  # a disk that stands still
            with pytest.raises(BookKeeperError):
                await one.link.fence(7, KEY, deadline_s=0.2)
        await eventually(lambda: len(told("fence")) == 2)
    assert outcomes(told("fence"))[1][:3] == ("fence", 7, "unknown")


async def test_grants_and_what_no_role_allows_are_told(
    tmp_path: Path, told: Callable[..., list[dict[str, Any]]]
) -> None:
    async with secure_bookie(tmp_path, admin=True) as world:
        world.give("writer", "CN=ingest")
        ledger = world.ledger()
        async with world.lane("direct", "ingest") as one, world.lane("direct", "stranger") as other:
            await one.write(ledger, 0, [b"a"])
            with pytest.raises(BookKeeperError):
                await other.fence(ledger)
        assert await asyncio.to_thread(world.ask_admin, "stranger", "PUT", "/log/level") == 403
        world.give("operator", "CN=ingest")
        assert await asyncio.to_thread(world.ask_admin, "ingest", "PUT", "/log/level") == 400, "there is no such logger"
    ingest, stranger = "CN=ingest,O=Example", "CN=stranger,O=Example"
    assert {(line["outcome"], line["identity"], line["right"]) for line in told("grant")} == {
        ("done", ingest, "WRITE"),
        ("refused", stranger, "RECOVER"),
    }
    assert [(line["outcome"], line["identity"], line["lane"]) for line in told("PUT /log/level")] == [
        ("refused", stranger, "http"),
        ("refused", ingest, "http"),
    ]


async def test_apaches_wire_tells_what_no_role_allows(
    tmp_path: Path, told: Callable[..., list[dict[str, Any]]]
) -> None:
    async with secure_bookie(tmp_path) as world, world.lane(BOOKIE_RPC, "stranger", secure=False) as other:
        with pytest.raises(BookKeeperError):
            await other.fence(7)
    (line,) = told("READ_ENTRY FENCE_LEDGER")
    assert (line["outcome"], line["identity"], line["lane"]) == ("refused", "CN=stranger,O=Example", BOOKIE_RPC)


async def test_who_is_not_let_in_is_told(tmp_path: Path, told: Callable[..., list[dict[str, Any]]]) -> None:
    async with tls_bookie(tmp_path) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.bookie._services[1].port)
        writer.write(b"plain words, and no handshake")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        with pytest.raises(TlsError):
            await world.ask("direct", world.authority.issue("nobody").trust())
    lines = told("connect")
    assert [line["outcome"] for line in lines] == ["refused", "refused"]
    assert "plain" in lines[0]["why"]
    assert "certificate" in lines[1]["why"]


async def test_a_changed_table_of_roles_is_told(tmp_path: Path, told: Callable[..., list[dict[str, Any]]]) -> None:
    async with secure_bookie(tmp_path) as world:
        authority = world.bookie._authority
        world.shorten(life_ms=600_000, kept_s=0.0)
        for role in ("reader", "writer"):
            world.give(role, "CN=ingest")
            await asyncio.to_thread(authority.table)
            await asyncio.to_thread(authority.table)
    assert [(line["outcome"], line["count"]) for line in told("roles-changed")][-1] == ("done", 2)
    assert len(told("roles-changed")) <= 2, "a table that is the same is not told"


@pytest.mark.parametrize("lane", OURS)
async def test_what_a_limit_refuses_is_told(
    tmp_path: Path, lane: str, told: Callable[..., list[dict[str, Any]]]
) -> None:
    async with (
        tls_bookie(tmp_path, requests_per_s_per_principal_max=10) as world,
        world.lane(lane, world.authority.issue("ingest").tls()) as one,
    ):
        listener = Listener()
        session = one.attach(7, listener)
        one.send(session, 7, 0, [b"a"])
        await listener.acked(session, 1)
        (account,) = [each for each in world.bookie._clients.limits._accounts.values() if each.whose == "principal"]
        account.debts[RequestKind.ADD] = account.debts[RequestKind.ASK] = 1000.0
        one.send(session, 7, 1, [b"too early"], lac=0)
        await listener.ended(session)
        with pytest.raises(BookKeeperError):
            await one.link.bookie_info(deadline_s=DEADLINE_S)
    assert {(line["did"], line["outcome"]) for line in told("add", "ask")} == {("add", "refused"), ("ask", "refused")}
    assert all("requests_per_s_per_principal_max=10" in line["why"] for line in told("add", "ask"))


async def test_a_loss_that_an_operator_accepts_is_told(
    tmp_path: Path, told: Callable[..., list[dict[str, Any]]]
) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    for accept_loss in (False, True):
        if accept_loss:
            shutil.rmtree(tmp_path / "bookie")
        config = bookie_config(tmp_path, uri, bookie_id="b1", session_timeout_s=1.0)
        bookie = await Bookie.start(config, open_store(uri), init_cluster=True, accept_loss=accept_loss)
        await bookie.stop()
    assert [(line["outcome"], line["bookie"], line["ledgers_in_limbo"]) for line in told("accept-loss")] == [
        ("done", "b1", 0)
    ]


@pytest.mark.long
async def test_what_the_bookie_does_by_itself_and_by_order_is_told(
    tmp_path: Path, told: Callable[..., list[dict[str, Any]]]
) -> None:
    path = tmp_path / "audit" / "bookie.log"
    path.parent.mkdir()

    async with tls_bookie(tmp_path, audit_path=path) as world:
        bookie: Bookie = world.bookie
        bookie._collected(LedgersDeleted((5, 6)))
        bookie._collected(CopiesUnwanted((8,)))
        world._store.write_bookie_order(bookie.bookie_id, BookieOrder(Order.DRAIN, 0))
        await eventually(lambda: bool(told("read-only")))
        world._store.write_bookie_order(bookie.bookie_id, None)
        await eventually(lambda: bool(told("writable")))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(line["did"], line.get("ledgers")) for line in lines] == [
        ("delete", [5, 6]),
        ("give-up-copy", [8]),
        ("read-only", None),
        ("writable", None),
    ]
    assert "drained" in lines[2]["why"]
