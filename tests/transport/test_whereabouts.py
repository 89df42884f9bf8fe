# SPDX-License-Identifier: Apache-2.0
"""How often a bookie that cannot be reached is looked up, and how long a connection waits for that. What it is for is
shown on real bookies by ``tests/client/test_moved_bookies.py``."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from bk_core.errors import BookieUnreachableError, MetadataUnavailableError
from bk_core.model import BOOKIE_RPC, DIRECT, GRPC, BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.whereabouts import LOOK_UP_S_MAX, At, LookUp, Whereabouts, _Search
from tests.transport.lane.test_direct import Peer, serve_well


def registered(port: int, protocol: str = DIRECT) -> BookieServiceInfo:
    return BookieServiceInfo("b1", (Endpoint(protocol, "127.0.0.1", port, protocol),))


def transport_to(port: int, look_up: LookUp, *, connect_timeout_s: float = 5.0) -> LaneTransport:
    transport = LaneTransport(Caller("c", connect_timeout_s=connect_timeout_s), look_up=look_up)
    transport.update_bookies([registered(port)])
    return transport


async def listening(script: object = None) -> asyncio.Server:
    """A bookie that serves well, or a host that takes connections and says nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if script is not None:
            await serve_well(Peer(reader, writer))
        else:
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


async def closed_port() -> int:
    server = await listening()
    port = port_of(server)
    server.close()
    await server.wait_closed()
    return port


@pytest.mark.long
@pytest.mark.rule("P3")
async def test_a_bookie_that_is_gone_is_looked_up_less_and_less_often() -> None:
    asked, loop = list[str](), asyncio.get_running_loop()
    transport = transport_to(await closed_port(), asked.append)
    until = loop.time() + 1.5
    while loop.time() < until:
        with pytest.raises(BookieUnreachableError):
            await transport.link("b1").bookie_info(deadline_s=1)
    search = transport._whereabouts._searches["b1"]
    search.began -= 1000
    await asyncio.sleep(0.2)
    with pytest.raises(BookieUnreachableError):
        await transport.link("b1").bookie_info(deadline_s=1)
    left_s = search.next_at - loop.time()
    await transport.close()
    assert 5 <= len(asked) <= 18
    assert 9 < left_s <= 10, "whoever is away for long is looked up every ten seconds"


@pytest.mark.rule("P3")
async def test_a_search_ends_when_the_bookie_is_reached_so_that_the_next_one_begins_at_once() -> None:
    server = await listening(serve_well)
    transport = transport_to(await closed_port(), lambda _: registered(port_of(server)))
    assert (await transport.link("b1").bookie_info(deadline_s=2)).total_bytes == 3
    await asyncio.sleep(0.3)
    assert transport._whereabouts._searches == {}
    await transport.close()
    server.close()


async def test_a_host_that_says_nothing_is_left_for_the_new_address() -> None:
    silent, server = await listening(), await listening(serve_well)
    transport = transport_to(port_of(silent), lambda _: registered(port_of(server)))
    began = time.monotonic()
    await transport.link("b1").bookie_info(deadline_s=4)
    assert time.monotonic() - began < 2
    await transport.close()
    silent.close()
    server.close()


async def test_a_store_that_is_away_holds_up_no_connection_for_long() -> None:
    hangs, took = threading.Event(), list[float]()

    def look_up(_: str) -> None:
        hangs.wait(10)
        raise MetadataUnavailableError("away")

    transport = transport_to(await closed_port(), look_up)
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(BookieUnreachableError):
            await transport.link("b1").bookie_info(deadline_s=5)
        took.append(time.monotonic() - began)
    hangs.set()
    await transport.close()
    first, *others = took
    assert LOOK_UP_S_MAX <= first < LOOK_UP_S_MAX + 1
    assert max(others) < LOOK_UP_S_MAX, "they do not wait for the same look-up again"


async def test_a_bookie_that_offers_another_lane_now_is_reached_over_it_by_the_next_link() -> None:
    elsewhere = Endpoint(GRPC, "127.0.0.1", await closed_port(), GRPC)
    transport = transport_to(await closed_port(), lambda _: BookieServiceInfo("b1", (elsewhere,)))
    with pytest.raises(BookieUnreachableError):
        await transport.link("b1").bookie_info(deadline_s=2)
    assert "grpc" in type(transport.link("b1")).__module__
    await transport.close()


async def test_a_client_without_a_store_believes_what_it_was_told() -> None:
    transport = LaneTransport(Caller("c"))
    transport.update_bookies([registered(await closed_port())])
    with pytest.raises(BookieUnreachableError):
        await transport.link("b1").bookie_info(deadline_s=2)
    assert transport._whereabouts._searches == dict[str, _Search]()
    await transport.close()


@pytest.mark.rule("L1")
async def test_on_a_wire_without_hello_no_address_is_used_again_before_it_was_looked_up() -> None:
    """Not even if a look-up of a moment ago found the old one: another bookie may have it since."""

    old, new = registered(1, BOOKIE_RPC), registered(2, BOOKIE_RPC)
    found = old
    where = Whereabouts(lambda _: found, lambda info: info.endpoints[0])
    where.update([old])
    at = At(old, old.endpoints[0])
    where.broke("b1")
    assert await where.checked(at) == at
    found = new
    where.broke("b1")
    assert await where.checked(at) == At(new, new.endpoints[0])
