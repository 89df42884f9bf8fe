# SPDX-License-Identifier: Apache-2.0
"""Mode ``secure``: no operation of any port without an identity and a right, and what roles give on each lane."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bk_core.access.grants import Grant, Keys
from bk_core.access.needs import ADMIN, APACHE, FREE_PATHS, LANES, On
from bk_core.access.roles import Right
from bk_core.client import ClientConfig
from bk_core.cluster.bookie_answers import ask_bookies
from bk_core.errors import (
    AuthenticationError,
    InsecureBookieError,
    InvalidArgumentError,
    Outcome,
    PermissionDeniedError,
)
from bk_core.model import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lane.messages import SERVICE
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import RefusedError
from bk_core.transport.wallet import Held, Wallet
from bk_core.wire.lane.reasons import AttachMode, Reason
from bk_core.wire.proto import bookie_rpc_pb2 as pb
from bk_core.wire.proto import lane_pb2
from bookie_server.config import BookieConfig
from tests.bookie_server.ports.secure_kit import KEY_HEX, secure_bookie
from tests.kit.certificates import Authority
from tests.kit.lane_table import OURS
from tests.kit.lanes import KEY, Lane, Listener

DEADLINE_S = 5.0
on_our_lanes = pytest.mark.parametrize("lane", OURS)


async def refused(asked: Awaitable[object]) -> Reason:
    with pytest.raises(RefusedError) as caught:
        await asked
    return caught.value.reason


async def read_of(lane: Lane, ledger_id: int, **more: Any) -> object:
    return await lane.read(ledger_id, 0, 0, **more)


def everything(lane: Lane, ledger_id: int) -> dict[str, Callable[[], Awaitable[object]]]:
    """All that a client can ask on our lanes, by the names of the table of needs."""
    link, about = lane.link, {"deadline_s": DEADLINE_S}

    async def attached(mode: AttachMode) -> None:
        listener = Listener()
        session = lane.attach(ledger_id, listener, mode=mode)
        lane.send(session, ledger_id, 0, [b"entry"])
        await listener.until(lambda said: bool(said))
        if listener.said[0][0] == "ended":
            raise RefusedError(listener.said[0][3], "ended")
        link.detach(session)

    async def raw(**call: Any) -> None:
        right = Right.WRITE if "force" in call else Right.READ
        await link.call(DEADLINE_S, right, ledger_id, **call)

    return {
        "attach": lambda: attached(AttachMode.WRITE),
        "id": lambda: read_of(lane, ledger_id),
        "read_lac": lambda: link.read_lac(ledger_id, **about),
        "watch_lac": lambda: link.watch_lac(ledger_id, -2, timeout_s=0.1),
        "write_lac": lambda: link.write_lac(ledger_id, KEY, b"", **about),
        "force": lambda: raw(force=lane_pb2.ForceRequest(ledger_id=ledger_id)),
        "list_entries": lambda: raw(list_entries=lane_pb2.ListEntriesRequest(ledger_id=ledger_id)),
        "bookie_info": lambda: link.bookie_info(**about),
        "delete_hint": lambda: link.delete_hint([ledger_id], **about),
        "fence": lambda: link.fence(ledger_id, KEY, **about),
        "id fence": lambda: read_of(lane, ledger_id, fence_key=KEY),
        "attach RECOVER": lambda: attached(AttachMode.RECOVER),
    }


WITHOUT_A_RIGHT = {"hello", "grants", "traceparent", "frames", "detach", "cancel", "grant"}
"""An identity is enough for these: they do nothing by themselves."""


# --- the tables name everything ---


def test_every_rpc_and_every_message_of_our_lanes_is_in_the_table_of_needs() -> None:
    service = lane_pb2.DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]]
    assert {method.name for method in service.methods} == set(LANES)
    fields = {
        method.name: {field.name for field in method.input_type.fields if field.containing_oneof is None}
        for method in service.methods
    }
    calls = {field.name for field in lane_pb2.ControlRequest.DESCRIPTOR.oneofs_by_name["call"].fields}
    plain = {"ledger_id", "first_entry_id", "last_entry_id", "bytes_max", "fence", "ledger_key", "high_priority"}
    plain |= {"ids_only", "head_bytes", "range_counts", "range_offsets", "range_sizes"}
    assert fields["Add"] == {name for name in LANES["Add"] if " " not in name}
    assert fields["Read"] - plain == {name for name in LANES["Read"] if " " not in name}
    assert fields["Control"] == {"id", "hello", "deadline_ms", "grants", "traceparent"}
    assert calls | {"hello", "grants", "traceparent"} == set(LANES["Control"])
    free = {name for needs in LANES.values() for name, need in needs.items() if need.on in (On.FREE, On.IDENTITY)}
    assert free == WITHOUT_A_RIGHT
    assert not any(need.on is On.FREE for needs in LANES.values() for need in needs.values())


def test_every_operation_of_apaches_wire_is_in_the_table_of_needs() -> None:
    assert {name for name in APACHE if " " not in name} == set(pb.OperationType.keys())
    assert {name for name, need in APACHE.items() if need.on is On.FREE} == {"AUTH", "START_TLS"}
    assert all(need.right for need in APACHE.values() if need.on is not On.FREE)


async def test_every_path_of_the_admin_port_is_in_the_table_of_needs(tmp_path: Path) -> None:
    async with secure_bookie(tmp_path, admin=True) as world:
        assert {path for method, path in ADMIN if method == "GET"} == set(world.bookie._admin.paths)
        assert {path for (_, path), need in ADMIN.items() if need.on is On.FREE} == set(FREE_PATHS)


# --- nothing without a right ---


@on_our_lanes
async def test_nothing_of_our_lanes_is_done_without_a_role_or_without_a_grant(lane: str, tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        ledger = world.ledger()
        async with world.lane(lane, "nobody") as there:
            asked = everything(there, ledger)
            assert {*asked, *WITHOUT_A_RIGHT} == {name for needs in LANES.values() for name in needs}
            for name, ask in asked.items():
                assert await refused(ask()) is Reason.PERMISSION_DENIED, name
        for name in asked:  # a link asks for grants of its own once one was refused
            async with world.lane(lane, "nobody", wallet=Held(b"", Right(63), 1e18, 1e18)) as there:
                reason = await refused(everything(there, ledger)[name]())
                assert reason in (Reason.GRANT_NEEDED, Reason.PERMISSION_DENIED), f"{name} without a grant"


@on_our_lanes
async def test_a_role_gives_what_the_table_says_and_no_more(lane: str, tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        ledger = world.ledger()
        world.give("reader", "CN=reader")
        world.give("writer", "CN=writer")
        for role in ("reader", "writer"):
            rights = Right.LOOK | Right.READ if role == "reader" else Right(31)
            async with world.lane(lane, role) as there:
                for name, ask in everything(there, ledger).items():
                    need = next(needs[name] for needs in LANES.values() if name in needs)
                    try:
                        await ask()
                        reason = Reason.REASON_NONE
                    except RefusedError as error:
                        reason = error.reason
                    allowed = reason not in (Reason.PERMISSION_DENIED, Reason.GRANT_NEEDED)
                    assert allowed is (need.right in rights), f"{role}: {name}: {reason.name}"


@on_our_lanes
async def test_a_role_on_a_log_or_of_an_owner_counts_there_alone(lane: str, tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        orders, other = world.ledger({"bk.log": b"orders-eu"}), world.ledger({"bk.log": b"invoices"})
        mine = world.ledger({"bk.owner": b"CN=client,O=Example"})
        world.give("writer", "CN=client", "log:orders-*")
        world.give("reader", "CN=client", "owner")
        async with world.lane(lane, "client") as there:
            await there.write(orders, 0, [b"entry"])
            assert await refused(read_of(there, other)) is Reason.PERMISSION_DENIED
            await read_of(there, mine)
            listener = Listener()
            there.attach(mine, listener)
            assert await listener.ended(2) == (0, Reason.PERMISSION_DENIED)
        async with world.lane(lane, "client") as there:
            with pytest.raises(RefusedError) as caught:
                await there.link.read_lac(other, deadline_s=DEADLINE_S)
            assert caught.value.what == (
                f"CN=client,O=Example may not read ledger {other} of log invoices; an administrator can allow it: "
                "bk role grant reader 'CN=client,O=Example' --log invoices"
            )


# --- grants ---


@on_our_lanes
async def test_a_grant_that_is_false_in_one_way_is_refused(lane: str, tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        ledger, now = world.ledger(), world.now_ms()
        instance, keys = world.instance_id, Keys([bytes.fromhex(KEY_HEX)])
        good = Grant(instance, "CN=client,O=Example", ledger, Right.READ, now - 1000, now + 60_000)
        bad = {
            "another cluster": keys.sign(good._replace(instance_id="another")),
            "another identity": keys.sign(good._replace(identity="CN=other")),
            "another ledger": keys.sign(good._replace(ledger_id=ledger + 1)),
            "expired": keys.sign(good._replace(until_ms=now - 1)),
            "not valid yet": keys.sign(good._replace(from_ms=now + 60_000, until_ms=now + 120_000)),
            "another key": Keys([b"x" * 32]).sign(good),
            "no right": keys.sign(good._replace(rights=Right.LOOK)),
        }
        for why, grant in {**bad, "": keys.sign(good)}.items():
            async with world.lane(lane, "client", wallet=Held(grant, Right(63), 1e18, 1e18)) as there:
                if why:
                    reason = await refused(there.link.read_lac(ledger, deadline_s=DEADLINE_S))
                    assert reason in (Reason.GRANT_NEEDED, Reason.PERMISSION_DENIED), why
                else:
                    await there.link.read_lac(ledger, deadline_s=DEADLINE_S)


@on_our_lanes
async def test_a_grant_to_read_is_good_for_nothing_else(lane: str, tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        ledger, now = world.ledger(), world.now_ms()
        to_read = Grant(world.instance_id, "CN=client,O=Example", ledger, Right.READ, now - 1000, now + 60_000)
        signed = Keys([bytes.fromhex(KEY_HEX)]).sign(to_read)
        for name in (name for needs in LANES.values() for name, need in needs.items() if need.on is On.LEDGER):
            async with world.lane(lane, "client", wallet=Held(signed, Right(63), 1e18, 1e18)) as there:
                try:
                    await everything(there, ledger)[name]()
                    reason = Reason.REASON_NONE
                except RefusedError as error:
                    reason = error.reason
                reads = name in ("id", "read_lac", "watch_lac", "list_entries")
                assert (reason is not Reason.PERMISSION_DENIED) is reads, f"{name}: {reason.name}"


@pytest.mark.long
@on_our_lanes
async def test_a_running_writer_renews_its_grant_and_ends_with_its_role(lane: str, tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        ledger = world.ledger()
        world.shorten(life_ms=1_000, kept_s=0.05)
        world.give("writer", "CN=client")
        async with world.lane(lane, "client") as there:
            listener = Listener()
            session = there.attach(ledger, listener)
            for entry in range(12):  # a running writer outlives its first grants
                there.send(session, ledger, entry, [b"entry"], lac=entry - 1)
                await listener.acked(session, entry + 1)
                await asyncio.sleep(0.15)
            assert not [words for words in listener.said if words[0] != "acked"]
            world.take("writer", "CN=client")
            frames, reason = await asyncio.wait_for(listener.ended(session), 3)
            assert (frames, reason) == (12, Reason.PERMISSION_DENIED)
            assert await refused(there.link.read_lac(ledger, deadline_s=DEADLINE_S)) is Reason.PERMISSION_DENIED


# --- who does not know ---


@on_our_lanes
async def test_a_client_that_carries_no_grants_is_told_what_to_set(lane: str, tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        with pytest.raises(AuthenticationError) as caught:
            async with world.lane(lane, "client", secure=False) as there:
                await there.link.bookie_info(deadline_s=DEADLINE_S)
        assert 'set security="secure" in the client' in caught.value.remedy


@on_our_lanes
async def test_a_client_that_was_told_secure_refuses_an_open_bookie(lane: str, tmp_path: Path) -> None:
    async with (
        secure_bookie(tmp_path, security="open", grant_keys_path=None) as world,
        world.lane(lane, "client") as there,
    ):
        with pytest.raises(InsecureBookieError):
            await there.link.bookie_info(deadline_s=DEADLINE_S)


async def test_a_client_that_was_told_secure_makes_no_ledger_where_all_bookies_are_open(tmp_path: Path) -> None:
    async with (
        secure_bookie(tmp_path, security="open", grant_keys_path=None) as world,
        world.client("client") as client,
    ):
        with pytest.raises(InsecureBookieError, match="checks no rights") as caught:
            await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        assert "security=open" in caught.value.remedy
        assert await client.list_ledgers() == []


async def test_a_client_that_was_told_secure_does_not_use_apaches_wire_and_says_what_to_set() -> None:
    apaches = BookieServiceInfo("b1", (Endpoint(BOOKIE_RPC, "127.0.0.1", 3181, BOOKIE_RPC),), {})

    def ask(caller: Caller) -> None:
        transport = LaneTransport(caller)
        transport.update_bookies([apaches])
        transport.link("b1")

    with pytest.raises(InsecureBookieError, match="security=mixed"):
        ask(Caller(wallet=Wallet()))
    ask(Caller(wallet=Wallet(), mixed=True))


# --- Apache's wire ---


@pytest.mark.long
async def test_apaches_wire_needs_roles_on_the_cluster(tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        ledger = world.ledger({"bk.log": b"orders"})
        world.give("admin", "CN=prefix", "cluster")
        world.take("admin", "CN=prefix")
        world.give("writer", "CN=prefix", "log:*")
        world.give("reader", "CN=reader")
        world.give("writer", "CN=writer")
        for who, may in (("nobody", set()), ("prefix", set()), ("reader", {"read", "info"}), ("writer", {"all"})):
            async with world.lane(BOOKIE_RPC, who, secure=False) as there:
                link = there.link
                asked: dict[str, Callable[[], Awaitable[object]]] = {
                    "write": partial(there.write, ledger, 0, [b"entry"], lac=-1, before=0),
                    "read": partial(read_of, there, ledger),
                    "info": partial(link.bookie_info, deadline_s=DEADLINE_S),
                    "write lac": partial(link.write_lac, ledger, KEY, b"x" * 40, deadline_s=DEADLINE_S),
                    "fence": partial(link.fence, ledger, KEY, deadline_s=DEADLINE_S),
                }
                for name, ask in asked.items():
                    denied = await _denied_by_apaches_wire(ask, name)
                    assert denied is not bool(may & {name, "all"}), f"{who}: {name}"


async def _denied_by_apaches_wire(ask: Callable[[], Awaitable[object]], name: str) -> bool:
    try:
        async with asyncio.timeout(3):
            found = await ask()
    except RefusedError as error:
        return error.reason is Reason.UNAUTHORIZED
    except TimeoutError:  # the add was refused, and nothing is acked
        return name == "write"
    if name == "read":
        return any(each.reason is Reason.UNAUTHORIZED for each in found[1].unknown)
    return False


# --- the admin port ---


@pytest.mark.long
async def test_admin_port_lets_readers_look_and_operators_change(tmp_path: Path) -> None:
    async with secure_bookie(tmp_path, admin=True) as world:
        world.give("reader", "CN=reader")
        world.give("operator", "CN=operator")
        world.give("reader", "CN=prefix", "log:*")
        for (method, path), need in ADMIN.items():
            for who, rights in (
                (None, Right.NONE),
                ("nobody", Right.NONE),
                ("prefix", Right.NONE),
                ("reader", Right.LOOK | Right.READ),
                ("operator", Right.LOOK | Right.OPERATE | Right.HINT),
            ):
                status = await asyncio.to_thread(world.ask_admin, who, method, path)
                allowed = need.on is On.FREE or need.right in rights
                assert (status not in (403, 405)) is allowed, f"{who}: {method} {path}: {status}"
        assert await asyncio.to_thread(world.ask_admin, "operator", "GET", "/nothing") == 404


# --- settings ---


def test_a_client_told_mixed_has_grants_and_apaches_wire_and_one_told_secure_grants_alone(tmp_path: Path) -> None:
    settings = Authority(tmp_path / "pki").issue("client").settings()
    told = {each: ClientConfig(**settings, security=each).caller("x") for each in ("open", "secure", "mixed")}
    ways = {each: set(LaneTransport(caller)._lanes) for each, caller in told.items()}
    assert ways == {"open": {*OURS, BOOKIE_RPC}, "secure": {*OURS}, "mixed": {*OURS, BOOKIE_RPC}}
    assert [each for each, caller in told.items() if caller.wallet is None] == ["open"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"security": "closed"}, "security says"),
        ({"tls_client_auth": "none"}, "clients that authenticate"),
        ({"tls_certificate_path": None, "tls_key_path": None, "tls_ca_path": None}, "clients that authenticate"),
        ({"grant_keys_path": None}, "a file of keys"),
    ],
)
def test_secure_without_what_it_needs_does_not_start(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    files = Authority(tmp_path / "pki").issue("server").settings()
    settings = {**files, "security": "secure", "grant_keys_path": tmp_path / "keys", **changes}
    with pytest.raises(InvalidArgumentError, match=why):
        BookieConfig(metadata_service_uri="memory://x", data_dir=tmp_path / "data", **settings)


# --- what an application sees ---


async def test_an_application_is_told_who_may_not_do_what_and_the_remedy(tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        world.give("reader", "CN=reader")
        world.give("writer", "CN=writer")
        async with world.client("writer") as client:
            writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
            assert await writer.append(b"entry") == 0
            await writer.close()
            left_open = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
            await left_open.append(b"entry")
            closed, unclosed = writer.ledger_id, left_open.ledger_id
            async with world.client("reader") as other, await other.open_ledger(closed, recover=False) as reader:
                assert [bytes(e) async for e in _entries(reader)] == [b"entry"]
                with pytest.raises(PermissionDeniedError, match="CN=reader,O=Example may not recover ledger"):
                    await other.open_ledger(unclosed, recover=True)
                before = await other.list_ledgers()
                with pytest.raises(PermissionDeniedError, match="may not write to ledger") as none:
                    await other.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
                assert none.value.outcome is Outcome.NOT_APPLIED
                assert await other.list_ledgers() == before, "what nobody may write to is taken back"
            async with world.client("nobody") as other:
                with pytest.raises(PermissionDeniedError, match="bk role grant reader 'CN=nobody,O=Example'") as caught:
                    await other.open_ledger(unclosed, recover=False)
                assert caught.value.outcome is Outcome.NOT_APPLIED
                async with await other.open_ledger(closed, recover=False) as reader:
                    with pytest.raises(PermissionDeniedError, match="may not read ledger"):
                        assert [e async for e in _entries(reader)]


async def test_a_tail_ends_with_the_typed_error_when_its_role_does(tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        world.give("reader", "CN=reader")
        world.give("writer", "CN=writer")
        world.shorten(life_ms=300, kept_s=0.05)
        async with world.client("writer") as client, world.client("reader") as other:
            writer = await client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
            await writer.append(b"entry")
            reader = await other.open_ledger(writer.ledger_id, recover=False)
            tail = reader.tail()
            assert [bytes(each) for each in (await anext(tail)).to_list()] == [b"entry"]
            waiting = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(0.2)
            world.take("reader", "CN=reader")
            with pytest.raises(PermissionDeniedError, match="may not read ledger") as caught:
                async with asyncio.timeout(20):
                    await waiting
            assert "bk role grant reader 'CN=reader,O=Example'" in caught.value.remedy
            with pytest.raises(PermissionDeniedError):
                await reader.refresh_lac()


async def test_who_asks_bookies_for_what_they_say_of_themselves_gets_the_typed_error(tmp_path: Path) -> None:
    async with secure_bookie(tmp_path) as world:
        infos = list(world.store.writable_bookies().values())
        caller = Caller(world.instance_id, tls=world.files("nobody").tls(), wallet=Wallet())
        (said,) = (await asyncio.to_thread(ask_bookies, infos, caller, timeout_s=DEADLINE_S)).values()
        assert isinstance(said, PermissionDeniedError)
        assert said.remedy == "an administrator can allow it: bk role grant reader 'CN=nobody,O=Example'"


async def _entries(reader: Any) -> Any:
    async for batch in reader.read(0, 0):
        for entry in batch.to_list():
            yield entry
