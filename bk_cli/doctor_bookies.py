# SPDX-License-Identifier: Apache-2.0
"""What ``bk doctor`` asks bookies: hello and a question over their lane, as a client would.

That a port takes a connection says little: the system takes it for a process that is stopped or hangs, and another
program may listen there. Who answers hello is the bookie that is meant, and its loop runs.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence

from bk_cli.output import in_words
from bk_core.errors import BookieUnreachableError, BookKeeperError, Outcome
from bk_core.model import BookieId, BookieServiceInfo, Endpoint
from bk_core.transport.grpc import GrpcTransport

REACH_TIMEOUT_S = 3.0
AT_ONCE = 64


def ask_bookies(infos: Sequence[BookieServiceInfo], instance_id: str) -> dict[BookieId, str | BookKeeperError]:
    """What each says of itself, in words, or why it could not be asked. As slow as the slowest of them."""
    return asyncio.run(_ask_all(infos, instance_id))


async def _ask_all(infos: Sequence[BookieServiceInfo], instance_id: str) -> dict[BookieId, str | BookKeeperError]:
    transport = GrpcTransport(instance_id=instance_id, client="bk doctor", connect_timeout_s=REACH_TIMEOUT_S)
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(info: BookieServiceInfo) -> str | BookKeeperError:
        try:
            async with turns:
                return await _ask(transport, info)
        except BookKeeperError as error:
            return error

    transport.update_bookies(infos)
    try:
        answers = await asyncio.gather(*map(ask, infos))
    finally:
        await transport.close()
    return {info.bookie_id: answer for info, answer in zip(infos, answers, strict=True)}


async def _ask(transport: GrpcTransport, info: BookieServiceInfo) -> str:
    started = time.monotonic()
    if endpoint := info.endpoint("grpc"):
        # the link gives up first, and says where it tried to connect to
        said = await transport.bookie_info(info.bookie_id, deadline_s=REACH_TIMEOUT_S + 1)
        more = f"{said.version}, {in_words(said.free_bytes)} of {in_words(said.total_bytes)} free"
    elif endpoint := info.endpoint("bookie-rpc"):
        await asyncio.to_thread(_connect, info.bookie_id, endpoint)
        more = "an Apache bookie; only its port was tried"
    else:
        raise BookieUnreachableError(
            f"bookie {info.bookie_id} offers no lane that this client knows",
            value=", ".join(each.protocol for each in info.endpoints) or "it published no endpoint",
            remedy="look at its version",
            outcome=Outcome.NOT_APPLIED,
        )
    took_ms = (time.monotonic() - started) * 1000
    return f"{endpoint.protocol} at {endpoint.host}:{endpoint.port} answers in {took_ms:.0f} ms, {more}"


def _connect(bookie_id: BookieId, endpoint: Endpoint) -> None:
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout=REACH_TIMEOUT_S).close()
    except OSError as error:
        raise BookieUnreachableError(
            f"bookie {bookie_id} at {endpoint.host}:{endpoint.port} cannot be reached from host {socket.gethostname()}",
            value=str(error),
            remedy="check that the bookie runs and that this host can connect to it",
            outcome=Outcome.NOT_APPLIED,
        ) from error
