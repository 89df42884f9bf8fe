# SPDX-License-Identifier: Apache-2.0
"""What one client may take: accounts over a clock of the test, then streams of each lane that go above a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import TransportError
from bk_core.transport.port import RefusedError
from bk_core.wire.bookie_rpc.status import Status
from bk_core.wire.lane.evidence import ReadTrailer
from bk_core.wire.lane.reasons import AttachMode, Reason
from bookie_server.config import ClientLimits
from bookie_server.machine import events as ev
from bookie_server.ports.access.principal import Principal, Proof
from bookie_server.ports.bounds.limits import KEPT_MAX, PATIENCE_S, ClientShare, LimitReached, Limits, RequestKind
from tests.bookie_server.ports.bookie_rpc.test_connection import add, fence, read, statuses
from tests.kit.certificates import Authority
from tests.kit.lane_table import OURS
from tests.kit.lanes import DEADLINE_S, KEY, Lane, Listener
from tests.kit.rpc_bookie import RpcBookie
from tests.kit.tls_world import TlsWorld, tls_bookie

ETOOMANY = int(Status.ETOOMANYREQUESTS)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(**limits: Any) -> tuple[Limits, Clock]:
    clock = Clock()
    return Limits(ClientLimits(**limits), clock), clock


def client(identity: str | None = "ingest", peer: str = "10.0.0.1:1") -> Principal:
    return Principal(peer, identity, Proof.CERTIFICATE if identity else Proof.NONE)


def entered(limits: Limits, principal: Principal) -> ClientShare:
    share = limits.enter(principal)
    assert share is not None
    return share


# --- accounts ---


def test_without_limits_nothing_is_counted() -> None:
    limits, _ = made()
    assert limits.enter(client()) is None
    assert len(limits) == 0


def test_who_asks_more_than_a_seconds_worth_waits_until_the_debt_is_gone() -> None:
    limits, clock = made(requests_per_s_per_principal_max=100)
    share = entered(limits, client())
    assert share.pay(RequestKind.ASK, 100) == 0, "as many as come in a second may come at once"
    assert share.pay(RequestKind.ASK, 50) == pytest.approx(0.5)
    clock.now += 0.5
    assert share.pay(RequestKind.ASK, 0) == 0
    assert limits.held_count == {"requests_per_s_per_principal_max": 1}
    clock.now += 100
    assert share.pay(RequestKind.ASK, 101) == pytest.approx(0.01), "what was not used before is not kept"


@pytest.mark.parametrize("kind", RequestKind)
def test_what_comes_seconds_too_early_is_refused_until_it_is_not(kind: RequestKind) -> None:
    limits, clock = made(requests_per_s_per_address_max=10)
    first, second = entered(limits, client()), entered(limits, client("other"))
    assert first.pay(kind, 10 + 10 * int(PATIENCE_S[kind]) + 1) == PATIENCE_S[kind], "it waits no longer than that"
    assert "requests_per_s_per_address_max=10 is reached by 10.0.0.1" in second.refuses(kind)
    assert "operator" in second.refuses(kind)
    for other in set(RequestKind) - {kind}:
        assert second.refuses(other) == "", "each has a bucket of its own"
    clock.now += 0.2
    assert second.refuses(kind) == ""
    assert limits.refused_count == {"requests_per_s_per_address_max": 2}


def test_a_debt_outlives_the_connection_and_no_longer() -> None:
    limits, clock = made(requests_per_s_per_principal_max=10)
    share = entered(limits, client())
    share.pay(RequestKind.ADD, 1000)
    share.end()
    assert entered(limits, client(peer="10.0.0.2:5")).refuses(RequestKind.ADD), (
        "who connects again starts anew otherwise"
    )
    clock.now += 1000
    entered(limits, client("somebody else")).end()
    assert len(limits) == 1, "of the one who is connected still"


@pytest.mark.long
def test_many_addresses_take_little_memory() -> None:
    limits, clock = made(requests_per_s_per_address_max=1)
    for number in range(3 * KEPT_MAX):
        share = entered(limits, client(None, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:7"))
        share.pay(RequestKind.ASK, 100)
        share.end()
    assert len(limits) == KEPT_MAX
    clock.now += 1000
    entered(limits, client(None, "10.9.9.9:7")).end()
    assert len(limits) == 0


def test_ledgers_open_are_counted_over_all_streams_and_recoveries_apart() -> None:
    limits, _ = made(ledgers_open_per_principal_max=2)
    first, second = entered(limits, client()), entered(limits, client(peer="10.0.0.9:1"))
    assert first.open_ledger(recover=False) == second.open_ledger(recover=False) == ""
    assert "ledgers_open_per_principal_max=2 is reached by ingest" in second.open_ledger(recover=False)
    assert second.open_ledger(recover=True) == ""
    first.end()
    assert second.open_ledger(recover=False) == ""
    second.close_ledger(recover=False)
    second.close_ledger(recover=True)
    assert not second.is_full(recover=False)


def test_connections_of_an_identity_are_bounded_wherever_they_come_from() -> None:
    limits, _ = made(connections_per_principal_max=2)
    first, _second = entered(limits, client()), entered(limits, client(peer="10.0.0.2:5"))
    with pytest.raises(LimitReached, match="connections_per_principal_max=2 is reached by ingest"):
        limits.enter(client(peer="10.0.0.3:5"))
    entered(limits, client("other"))
    assert limits.enter(client(None)) is None, "an address has its bound elsewhere"
    first.end()
    entered(limits, client())


def test_who_is_exempt_by_identity_has_no_limits_and_by_address_none_of_its_address() -> None:
    limits, _ = made(
        requests_per_s_per_address_max=1,
        connections_per_principal_max=1,
        limits_exempt=("CN=bookie-*", "10.7.0.0/16", "2001:db8::7"),
    )
    assert limits.enter(client("CN=bookie-3")) is None
    assert limits.enter(client(None, "10.7.3.4:5")) is None
    assert limits.enter(client(None, "2001:db8::7:5")) is None
    entered(limits, client(peer="10.7.3.4:5"))
    with pytest.raises(LimitReached):
        limits.enter(client(peer="10.7.3.4:5"))
    entered(limits, client(None, "10.8.0.1:5"))
    entered(limits, client(None, "a client on this machine"))


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1:7", "2001:db8::ffff:2:7", True),
        ("2001:db8:0:1::1:7", "2001:db8:0:2::1:7", False),
        ("::ffff:10.0.0.1:7", "10.0.0.1:9", True),
        ("10.0.0.1:7", "10.0.0.2:7", False),
        ("a client on this machine", "a client on this machine", True),
    ],
)
def test_what_counts_as_one_address(first: str, second: str, same: bool) -> None:
    """Who has an IPv6 address can take any other one of its network."""
    limits, _ = made(requests_per_s_per_address_max=1)
    entered(limits, client(None, first)).pay(RequestKind.ASK, 100)
    assert bool(entered(limits, client(None, second)).refuses(RequestKind.ASK)) is same


def test_the_machine_is_told_whose_a_stream_is_and_how_much_that_may_have_in_flight() -> None:
    limits, _ = made(in_flight_bytes_per_address_max=5, in_flight_bytes_per_principal_max=7)
    assert entered(limits, client()).owners == (("address 10.0.0.1", 5), ("principal ingest", 7))


# --- our lanes ---


@asynccontextmanager
async def tls_clients(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[TlsWorld, Callable[[str], Any]]]:
    """A bookie, and what gives the files of a client by its name."""
    authority = Authority(tmp_path / "pki")
    async with tls_bookie(tmp_path, authority, **settings) as world:
        yield world, lambda name: authority.issue(name).tls()


async def refused(doing: Awaitable[Any]) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await doing
    return caught.value


@pytest.mark.parametrize("lane", OURS)
async def test_a_ledger_too_many_is_refused_as_overloaded_and_its_place_can_be_had_again(
    tmp_path: Path, lane: str
) -> None:
    async with (
        tls_clients(tmp_path, ledgers_open_per_principal_max=2) as (world, tls),
        world.lane(lane, tls("one")) as one,
        world.lane(lane, tls("two")) as two,
    ):
        listener = Listener()
        sessions = [one.attach(ledger, listener) for ledger in range(3)]
        assert await listener.ended(sessions[2]) == (0, Reason.OVERLOADED)
        await one.write(7, 0, [b"recovered"], mode=AttachMode.RECOVER)
        await two.write(8, 0, [b"of another client"])
        one.link.detach(sessions[0])
        await one.write(9, 0, [b"now there is room"])
        one.send(sessions[1], 1, 0, [b"and this one went on"])
        await listener.acked(sessions[1], 1)


@pytest.mark.parametrize("lane", OURS)
async def test_a_client_with_too_many_connections_hears_the_limit(tmp_path: Path, lane: str) -> None:
    async with tls_clients(tmp_path, connections_per_principal_max=2) as (world, tls):
        files = tls("one")
        async with world.lane(lane, files) as one, world.lane(lane, files) as more:
            await one.fence(1)
            await one.write(2, 0, [b"a"])
            with pytest.raises(TransportError, match=r"connections_per_principal_max=2 is reached by CN=one"):
                await more.link.bookie_info(deadline_s=DEADLINE_S)
            async with world.lane(lane, tls("two")) as two:
                await two.write(3, 0, [b"b"])


@pytest.mark.rule("L3")
@pytest.mark.parametrize("lane", OURS)
async def test_a_flood_is_slowed_down_and_nobodys_adds_are_lost_and_nobodys_failover_waits(
    tmp_path: Path, lane: str
) -> None:
    async with tls_clients(tmp_path, requests_per_s_per_principal_max=100) as (world, tls):
        flooder, loop = tls("flooder"), asyncio.get_running_loop()
        async with (
            world.lane(lane, flooder) as flood,
            world.lane(lane, flooder) as own,
            world.lane(lane, tls("honest")) as honest,
        ):
            await flood.write(1, 0, [b"a"])
            listener, begun = Listener(), loop.time()
            session = flood.attach(2, listener)
            for entry in range(150):  # a frame each; a hundred may come at once
                flood.send(session, 2, entry, [b"x"], lac=entry - 1)
            await honest.write(3, 0, [b"b"])
            assert (await honest.read(3, 0, 0))[0] == {0: b"b"}
            await honest.fence(3)
            await own.fence(1)
            assert (await own.read(1, 0, 0, fence_key=KEY))[0] == {0: b"a"}
            await own.write(1, 1, [b"recovered"], mode=AttachMode.RECOVER)
            assert loop.time() - begun < 2
            await listener.acked(session, 150)
            flood.send(session, 2, 150, [b"x"], lac=149)
            await listener.acked(session, 151)
            assert {words[0] for words in listener.said} == {"acked"}
            assert loop.time() - begun > 0.3
        limits = world.bookie._clients.limits
        assert limits.held_count["requests_per_s_per_principal_max"]
        assert not limits.refused_count


@pytest.mark.parametrize("lane", OURS)
async def test_adds_that_come_far_too_early_end_their_session_as_overloaded_and_may_come_again(
    tmp_path: Path, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limits(world: TlsWorld) -> Limits:
        return world.bookie._clients.limits

    monkeypatch.setitem(PATIENCE_S, RequestKind.ADD, 0.5)
    async with tls_clients(tmp_path, requests_per_s_per_principal_max=10) as (world, tls):
        files = tls("one")
        async with world.lane(lane, files) as one, world.lane(lane, files) as two:
            await one.write(1, 0, [b"a"])
            listener = Listener()
            session = two.attach(2, listener)
            two.send(session, 2, 0, [b"durable"])
            await listener.acked(session, 1)
            (account,) = [each for each in limits(world)._accounts.values() if each.whose == "principal"]
            account.debts[RequestKind.ADD] = 10 * PATIENCE_S[RequestKind.ADD] + 5
            two.send(session, 2, 1, [b"too early"], lac=0)
            assert await listener.ended(session) == (1, Reason.OVERLOADED)
            again = two.attach(2, listener)
            two.send(again, 2, 1, [b"again"], lac=0)
            await listener.until(lambda said: ("acked", again, 1) in said)
            assert (await one.read(2, 0, 1))[0] == {0: b"durable", 1: b"again"}


@pytest.mark.parametrize("lane", OURS)
async def test_reads_and_calls_far_too_early_are_refused_with_the_limit_and_fences_are_not(
    tmp_path: Path, lane: str
) -> None:
    async with (
        tls_clients(tmp_path, requests_per_s_per_principal_max=10) as (world, tls),
        world.lane(lane, tls("one")) as one,
    ):
        await one.write(1, 0, [b"a"])
        await one.link.bookie_info(deadline_s=DEADLINE_S)
        (account,) = [each for each in world.bookie._clients.limits._accounts.values() if each.whose == "principal"]
        account.debts[RequestKind.ASK] = 100
        for asked in (one.link.bookie_info(deadline_s=DEADLINE_S), _read_all(one, 1)):
            error = await refused(asked)
            assert error.reason is Reason.OVERLOADED
            assert "requests_per_s_per_principal_max=10 is reached by CN=one" in error.what
        await one.fence(1)


@pytest.mark.parametrize("lane", OURS)
async def test_a_flood_of_ledgers_that_are_opened_is_slowed_down(tmp_path: Path, lane: str) -> None:
    async with (
        tls_clients(tmp_path, requests_per_s_per_principal_max=20) as (world, tls),
        world.lane(lane, tls("one")) as one,
    ):
        listener, begun = Listener(), asyncio.get_running_loop().time()
        for ledger in range(40):
            one.link.detach(one.attach(ledger, listener))
        await asyncio.sleep(0.1)
        await one.write(50, 0, [b"after all of them"])
        assert asyncio.get_running_loop().time() - begun > 0.7


async def _read_all(lane: Lane, ledger: int) -> None:
    async for part in lane.link.read(ledger, 0, 0, bytes_max=1 << 20, deadline_s=DEADLINE_S):
        assert not isinstance(part, ReadTrailer)


# --- Apache's wire ---


def rpc(**limits: Any) -> tuple[RpcBookie, Limits, Clock]:
    found, clock = made(**limits)
    bookie = RpcBookie()
    bookie.facts = replace(bookie.facts, limits=found)
    return bookie, found, clock


def test_apaches_wire_holds_a_connection_and_then_refuses_as_too_many_requests() -> None:
    bookie, limits, clock = rpc(requests_per_s_per_address_max=10)
    one, two = bookie.connect(), bookie.connect()
    waits: list[float] = []
    one.connection.client.on_held = waits.append
    one.send(b"".join(add(7, entry, txn=entry) for entry in range(40)))
    assert statuses(one.take()) == dict.fromkeys(range(40), 0), "taken, and every one acked"
    assert waits == [pytest.approx(3.0)]
    assert not one.connection.flows
    two.send(b"".join(add(8, entry, txn=entry) for entry in range(30)))
    assert set(statuses(two.take()).values()) == {0}
    two.send(add(8, 30))
    two.send(b"".join(add(8, entry) for entry in (31, 32)))
    assert statuses(two.take()) == {30: ETOOMANY, 31: ETOOMANY, 32: ETOOMANY}
    two.send(b"".join(add(9, entry, recovery=True) for entry in range(3)))
    two.send(fence(8, 0))
    assert statuses(two.take()) == {0: 0, 1: 0, 2: 0}, "recovery adds, and the fencing read of entry 0"
    two.send(read(8, 0, 1))
    assert statuses(two.take()) == {0: 0, 1: 0}, "reads have a bucket of their own"
    one.connection.let_go()
    assert one.connection.flows
    clock.now += 10
    two.send(add(10, 0))
    assert statuses(two.take()) == {0: 0}
    assert limits.refused_count["requests_per_s_per_address_max"]


def test_apaches_wire_lets_idle_ledgers_go_before_it_refuses_one() -> None:
    """A client of Apache's never says that it has done with a ledger."""
    bookie, limits, _ = rpc(ledgers_open_per_address_max=2)
    one, two = bookie.connect(), bookie.connect()
    for ledger in range(20):
        one.send(add(ledger, 0))
        assert statuses(one.take()) == {0: 0}
    assert not limits.refused_count
    bookie.hold = True
    one.send(add(18, 1) + add(19, 1))
    two.send(add(30, 0))
    assert statuses(two.take()) == {0: ETOOMANY}
    two.send(add(31, 0, recovery=True))
    bookie.commit()
    assert statuses(two.take()) == {0: 0}, "the recovery"
    assert statuses(one.take()) == {1: 0}, "both of them: what was in flight is acked"
    one.connection.end()
    bookie.hold = False
    two.send(add(30, 0))
    assert statuses(two.take()) == {0: 0}
    two.connection.end()
    assert len(limits) == 0


def test_apaches_wire_pauses_all_connections_of_an_owner() -> None:
    bookie, _, _ = rpc(in_flight_bytes_per_address_max=1000)
    bookie.hold = True
    one, two = bookie.connect(), bookie.connect()
    one.send(add(7, 0, b"x" * 800))
    assert one.connection.flows
    two.send(add(8, 0, b"x" * 800))
    assert not two.connection.flows
    bookie.commit()
    assert two.connection.flows
    assert statuses(one.take()) == statuses(two.take()) == {0: 0}


def test_a_connection_too_many_of_apaches_wire_is_cut() -> None:
    bookie, limits, _ = rpc(connections_per_principal_max=1)
    bookie.facts.limits.enter(client())
    one = bookie.connect()
    one.connection._proven(client())
    assert one.connection.was_cut
    assert limits.refused_count == {"connections_per_principal_max": 1}
    assert ev.StreamOwned not in {type(each) for each in bookie._events}
