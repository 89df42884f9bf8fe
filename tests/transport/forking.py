# SPDX-License-Identifier: Apache-2.0
"""A process that is connected and forks: run by tests, because a child must not go on in pytest.

``python forking.py WHEN``: the parent connects to nothing (``imported``), and forks; or it has used a gRPC channel that
is open (``open``) or closed (``closed``) when it forks; or an open connection on a lane of sockets (its name).
Each child does what a child may do, ends as a program ends, and prints one line.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bk_core.client.detached import DetachedReader
from bk_core.errors import BookKeeperError, ForkedHandleError
from bk_core.metadata import open_store
from bk_core.metadata.records import legacy_service_info
from bk_core.model import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LANES, LaneTransport
from bookie_server.main import Bookie
from tests.kit import memory_store as memory_store  # for memory://
from tests.kit.apache_bookie import ApacheServer
from tests.kit.lanes import bookie_config

CHILDREN = 4
INFO = BookieServiceInfo("b0", endpoints=(Endpoint("grpc", "127.0.0.1", 1, "grpc"),))  # nobody listens there


async def use(transport: LaneTransport) -> None:
    """Nobody answers, but channel, poller and threads are there."""
    transport.update_bookies([INFO])
    try:
        await transport.link("b0").read_lac(1, deadline_s=1.0)
    except BookKeeperError as error:
        if isinstance(error, ForkedHandleError):
            raise


async def use_bookie(transport: LaneTransport, info: BookieServiceInfo) -> int:
    transport.update_bookies([info])
    said = await transport.link(info.bookie_id).bookie_info(deadline_s=5)
    return said.total_bytes


async def beside_sockets(info: BookieServiceInfo) -> None:
    """Children connect to the bookie of a process that is connected itself and goes on."""
    transport = LaneTransport(Caller())
    assert await use_bookie(transport, info)
    for _ in range(CHILDREN):
        pid = os.fork()
        if not pid:
            child_with_sockets(info)
        done = await asyncio.to_thread(os.waitpid, pid, 0)
        print("child ended with", os.waitstatus_to_exitcode(done[1]), flush=True)
        assert await use_bookie(transport, info)
    await transport.close()


async def beside_apaches() -> None:
    server = await ApacheServer().start()
    await beside_sockets(legacy_service_info(f"127.0.0.1:{server.port}"))
    await server.stop()


async def beside_ours(lane: str) -> None:
    with tempfile.TemporaryDirectory() as path:
        store = open_store("memory://forking")
        store.initialize_cluster()
        bookie = await Bookie.start(bookie_config(Path(path), "memory://forking"))
        (info,) = store.writable_bookies().values()
        (endpoint,) = [each for each in info.endpoints if each.protocol == lane]
        await beside_sockets(BookieServiceInfo(info.bookie_id, (endpoint,), info.properties))
        await bookie.stop()


def child_with_sockets(info: BookieServiceInfo) -> None:
    async def connect() -> None:
        transport = LaneTransport(Caller())
        assert await use_bookie(transport, info)
        await transport.close()

    asyncio.events._set_running_loop(None)  # the parent's; what a program forks in has none
    asyncio.run(connect())
    print("connected", flush=True)
    os._exit(0)


async def unused_link(held: list[Any]) -> None:
    """A channel that nothing holds but its transport: it goes when that goes, without a garbage collection."""
    transport = LaneTransport(Caller())
    transport.update_bookies([INFO])
    transport.link("b0")
    held.append(transport)


async def used_and_closed() -> None:
    for _ in range(3):
        transport = LaneTransport(Caller())
        await use(transport)
        await transport.close()


def child(when: str, loop: asyncio.AbstractEventLoop, held: list[Any]) -> None:
    try:
        DetachedReader({}, instance_id="")
        asyncio.run(used_and_closed())
        print("connected", flush=True)
    except ForkedHandleError as error:
        if "spawn" not in str(error):
            raise
        grandchild = os.fork()
        if not grandchild:
            try:
                transport = LaneTransport(Caller())
                transport.update_bookies([INFO])
                transport.link("b0")
            except ForkedHandleError:
                sys.exit(0)
            sys.exit(1)
        assert os.waitpid(grandchild, 0)[1] == 0
        print("refused", flush=True)
    held.clear()
    for _ in range(3):
        gc.collect()
    sys.exit(0)


def main(when: str) -> None:
    if when in LANES:
        asyncio.run(beside_apaches() if when == BOOKIE_RPC else beside_ours(when))
        return
    loop = asyncio.new_event_loop()
    held: list[Any] = []
    if when == "open":
        held.append(LaneTransport(Caller()))
        loop.run_until_complete(use(held[0]))
        loop.run_until_complete(unused_link(held))
    elif when == "closed":
        loop.run_until_complete(used_and_closed())
    for _ in range(CHILDREN):
        pid = os.fork()
        if not pid:
            child(when, loop, held)
        print("child ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    if held:
        loop.run_until_complete(use(held[0]))  # the parent goes on
        for transport in held:
            loop.run_until_complete(transport.close())
    loop.run_until_complete(used_and_closed())
    loop.close()


if __name__ == "__main__":
    main(sys.argv[1])
