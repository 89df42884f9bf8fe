# SPDX-License-Identifier: Apache-2.0
"""Requests facts from registered bookies, in parallel, with a deadline for each bookie.

A bookie is called over its lane, as by any client. An open port proves little, because the operating system accepts
connections for a process that is stopped or hangs, and another program may listen there. An answer to hello proves that
it comes from the right bookie and that the bookie's loop runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from bk_core.errors import AuthenticationError, BookKeeperError, PermissionDeniedError
from bk_core.model import BookieId, BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport, endpoint_of
from bk_core.transport.port import BookieInfo, RefusedError, Transport
from bk_core.wire.lane.reasons import Reason

AT_ONCE = 128
"""The maximum number of bookies that are called in parallel."""


def refused_by_all(answers: Iterable[object]) -> BookKeeperError | None:
    """Return the error of one bookie if at least one bookie refused this client and no bookie answered. Otherwise
    return None."""
    refused = None
    for answer in answers:
        if isinstance(answer, AuthenticationError | PermissionDeniedError):
            refused = answer
        elif not isinstance(answer, BookKeeperError | None):
            return None
    return refused


class Said(NamedTuple):
    """A bookie's answer, the endpoint that gave it, and the time it took."""

    info: BookieInfo
    endpoint: Endpoint
    took_ms: float


def ask_bookies(
    infos: Sequence[BookieServiceInfo], caller: Caller, *, timeout_s: float
) -> dict[BookieId, Said | BookKeeperError]:
    """Return each bookie's answer, or the error. This blocks until the slowest bookie has answered, for at most about
    ``timeout_s`` for every AT_ONCE bookies."""
    return asyncio.run(_ask_all(infos, replace(caller, connect_timeout_s=timeout_s)))


async def _ask_all(infos: Sequence[BookieServiceInfo], caller: Caller) -> dict[BookieId, Said | BookKeeperError]:
    transport = LaneTransport(caller)
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(info: BookieServiceInfo) -> Said | BookKeeperError:
        try:
            async with turns:
                return await _ask(transport, info, caller.connect_timeout_s)
        except RefusedError as error:
            return PermissionDeniedError.told(error.what) if error.reason is Reason.PERMISSION_DENIED else error
        except BookKeeperError as error:
            return error

    transport.update_bookies(infos)
    try:
        answers = await asyncio.gather(*map(ask, infos))
    finally:
        await transport.close()
    return {info.bookie_id: answer for info, answer in zip(infos, answers, strict=True)}


async def _ask(transport: Transport, info: BookieServiceInfo, timeout_s: float) -> Said:
    started = time.monotonic()
    # the link gives up before this deadline, with an error that names the address it tried
    said = await transport.link(info.bookie_id).bookie_info(deadline_s=timeout_s + 1)
    endpoint = endpoint_of(info)
    assert endpoint is not None, "a bookie without an endpoint of ours raises"
    return Said(said, endpoint, (time.monotonic() - started) * 1000)
