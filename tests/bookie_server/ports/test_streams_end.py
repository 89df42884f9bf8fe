# SPDX-License-Identifier: Apache-2.0
"""Streams and calls that end: what is told to the client, and that nothing of them stays in the bookie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bk_core.model import GRPC
from bk_core.transport.lane.messages import hello
from bk_core.wire.lane.reasons import Reason
from bk_core.wire.proto import lane_pb2
from bookie_server.machine import events as ev
from bookie_server.main import Bookie
from bookie_server.ports.bounds.memory_bounds import AnswerRoom
from bookie_server.ports.lane import grpc as served
from bookie_server.ports.lane.control_stream import ControlStream
from tests.bookie_server.ports.bounds.test_memory_bounds import MIB, answer, evidence, opened
from tests.kit.lanes import lane_port, running_bookie
from tests.kit.waiting import eventually


@asynccontextmanager
async def running(tmp_path: Path) -> AsyncIterator[tuple[Bookie, Any]]:
    """A bookie and a channel to it."""
    async with (
        running_bookie(tmp_path, 20) as (bookie, _),
        grpc.aio.insecure_channel(f"127.0.0.1:{lane_port(bookie, GRPC)}") as channel,
    ):
        yield bookie, channel


@pytest.mark.parametrize("method", ["Add", "Read", "Control"])
async def test_a_client_that_opens_a_stream_and_says_nothing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(served, "HELLO_TIMEOUT_S", 0.2)

    async with running(tmp_path) as (_bookie, channel):
        call = channel.stream_stream(f"/bookkeeper.lane.Bookie/{method}")()
        async with asyncio.timeout(20):
            assert await call.read() is grpc.aio.EOF


async def test_a_stream_that_ended_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as (bookie, channel):
        engine, clients = bookie._engine, bookie._clients
        for method in ("Add", "Read", "Control"):
            call = channel.stream_stream(f"/bookkeeper.lane.Bookie/{method}")()
            request = getattr(lane_pb2, f"{method}Request")(hello=hello(bookie.bookie_id, "", "", "test"))
            await call.write(request.SerializeToString())
            await call.read()
            assert len(engine._streams) == len(clients.streams) == 1
            call.cancel()
            await eventually(lambda: not (engine._streams or clients.streams))


async def test_a_call_whose_deadline_passed_is_answered_and_given_up() -> None:
    stream = opened(ControlStream)
    awake = asyncio.Event()
    stream.wake = awake.set
    call = lane_pb2.ControlRequest(id=7, deadline_ms=1, read_lac=lane_pb2.ReadLacRequest(ledger_id=1))
    stream.receive(call.SerializeToString())
    async with asyncio.timeout(20):
        await awake.wait()
    said = answer(stream)
    assert (said.id, said.reason) == (7, lane_pb2.TIMEOUT)
    assert stream.engine.heard == [ev.ReadLacRequested((1, 7), 1), ev.RequestCancelled((1, 7))]


async def test_a_call_that_was_answered_is_not_answered_again_at_its_deadline() -> None:
    stream = opened(ControlStream)
    call = lane_pb2.ControlRequest(id=7, deadline_ms=20, read_lac=lane_pb2.ReadLacRequest(ledger_id=1))
    stream.receive(call.SerializeToString())
    stream.deliver(ev.SendReply((1, 7), Reason.REASON_NONE, ""))
    assert answer(stream).id == 7
    await asyncio.sleep(0.1)  # well behind the deadline
    assert stream.next_message() is None
    assert ev.RequestCancelled((1, 7)) not in stream.engine.heard


async def test_a_number_that_was_a_fences_is_no_fence_when_it_comes_again() -> None:
    """Fences have a share of the room for answers of their own; a client may not take it by a number."""

    room = AnswerRoom(100 * MIB)
    stream = opened(ControlStream, room)
    fence = lane_pb2.ControlRequest(id=7, fence=lane_pb2.FenceRequest(ledger_id=1, ledger_key=b"k"))
    stream.receive(fence.SerializeToString())
    stream.deliver(ev.SendLac((1, 7), evidence(1)))
    room.bytes = 101 * MIB  # of others
    stream.receive(lane_pb2.ControlRequest(id=7, read_lac=lane_pb2.ReadLacRequest(ledger_id=1)).SerializeToString())
    stream.deliver(ev.SendLac((1, 7), evidence(1)))
    assert [answer(stream).reason for _ in range(2)] == [0, lane_pb2.OVERLOADED]
