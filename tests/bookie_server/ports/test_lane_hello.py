# SPDX-License-Identifier: Apache-2.0
"""Hello on our lanes: who may speak with whom (RULES L1), seen by a plain client and by our transport."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest

from bk_core.errors import BookieUnreachableError
from bk_core.model import DIRECT, GRPC, INCARNATION_PROPERTY, BookieServiceInfo, Endpoint
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bk_core.transport.port import NewSession
from bk_core.wire.lane.reasons import ENTRY_BYTES_MAX, FRAME_BYTES_MAX, AttachMode
from bk_core.wire.proto import lane_pb2
from bookie_server.main import Bookie
from tests.kit.direct_client import direct
from tests.kit.lane_table import OURS
from tests.kit.lanes import DEADLINE_S, KEY, Listener, frame, lane_port, lane_to, running_bookie

STREAMS: dict[str, tuple[Any, Any]] = {
    "Add": (lane_pb2.AddRequest, lane_pb2.AddResponse),
    "Read": (lane_pb2.ReadRequest, lane_pb2.ReadResponse),
    "Control": (lane_pb2.ControlRequest, lane_pb2.ControlResponse),
}


async def first_answer(bookie: Bookie, lane: str, method: str, first: Any) -> tuple[Any, bool]:
    """What a client gets, and whether the bookie ends the stream behind it."""
    if lane == DIRECT:
        async with direct(bookie, method) as client:
            client.send(first.SerializeToString())
            _, answer = await client.answer()
            return answer, await client.is_over(0.2)
    request, response = STREAMS[method]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{lane_port(bookie, GRPC)}") as channel:
        call = channel.stream_stream(
            f"/bookkeeper.lane.Bookie/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )()
        await call.write(first)
        answer = await call.read()
        try:
            async with asyncio.timeout(0.2):
                return answer, await call.read() is grpc.aio.EOF
        except TimeoutError:
            call.cancel()
            return answer, False


def hello(bookie: Bookie, **changes: Any) -> lane_pb2.Hello:
    return lane_pb2.Hello(**{"version_min": 1, "version_max": 1, "bookie_id": bookie.bookie_id, **changes})


@pytest.mark.rule("L1")
@pytest.mark.parametrize("lane", OURS)
@pytest.mark.parametrize("method", list(STREAMS))
async def test_hello_is_answered_with_identity_and_limits(tmp_path: Path, method: str, lane: str) -> None:
    async with running_bookie(tmp_path) as (bookie, store):
        answer, over = await first_answer(bookie, lane, method, STREAMS[method][0](hello=hello(bookie)))
        info = store.bookie_info(bookie.bookie_id)
        assert not over
        assert answer.hello.reason == lane_pb2.REASON_NONE
        assert answer.hello.bookie_id == bookie.bookie_id
        assert answer.hello.instance_id == store.instance_id()
        assert answer.hello.incarnation == info.properties[INCARNATION_PROPERTY]
        assert (answer.hello.frame_bytes_max, answer.hello.entry_bytes_max) == (FRAME_BYTES_MAX, ENTRY_BYTES_MAX)


@pytest.mark.rule("L1")
@pytest.mark.parametrize("lane", OURS)
@pytest.mark.parametrize("method", list(STREAMS))
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bookie_id": "other:3181"}, lane_pb2.WRONG_BOOKIE),
        ({"bookie_id": ""}, lane_pb2.WRONG_BOOKIE),
        ({"instance_id": str(uuid.UUID(int=7))}, lane_pb2.WRONG_CLUSTER),
        ({"incarnation": str(uuid.UUID(int=7))}, lane_pb2.WRONG_INCARNATION),
        ({"version_min": 2, "version_max": 9}, lane_pb2.UNSUPPORTED_VERSION),
        (None, lane_pb2.BAD_REQUEST),
    ],
    ids=str,
)
async def test_mismatch_is_answered_and_the_stream_closed(
    tmp_path: Path, method: str, change: dict[str, Any] | None, reason: int, lane: str
) -> None:
    async with running_bookie(tmp_path) as (bookie, _store):
        request = STREAMS[method][0]
        first = request() if change is None else request(hello=hello(bookie, **change))
        answer, over = await first_answer(bookie, lane, method, first)
        assert answer.hello.reason == reason
        assert over


@pytest.mark.parametrize("lane", OURS)
@pytest.mark.parametrize(
    "named", ["b2\n2026-01-01 INFO bookie_server.main: all is well", "x" * 100_000], ids=["two lines", "long"]
)
async def test_what_a_client_says_is_one_line_of_the_log_and_short(
    tmp_path: Path, lane: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in ten seconds, whatever else it says: a client that tries again and again does not fill the log."""

    async with running_bookie(tmp_path) as (bookie, _store):
        for number in range(4):
            for reason in ({"bookie_id": f"{named}{number}"}, {"instance_id": str(uuid.UUID(int=number))}):
                first = lane_pb2.ControlRequest(hello=hello(bookie, **reason))
                await first_answer(bookie, lane, "Control", first)
        told = [record.getMessage() for record in caplog.records if "hello refused" in record.message]
        assert len(told) == 2, "one for each reason"
        assert all("\n" not in each and len(each) < 1000 for each in told)
        assert all("127.0.0.1:" in each or "a client on this machine" in each for each in told)


@pytest.mark.rule("L1")
@pytest.mark.parametrize("lane", OURS)
async def test_frames_for_another_bookie_are_never_stored(tmp_path: Path, lane: str) -> None:
    async with running_bookie(tmp_path) as (bookie, store):
        transport = LaneTransport(Caller(store.instance_id(), lanes=(lane,)))
        address = Endpoint(lane, "127.0.0.1", lane_port(bookie, lane), lane)
        transport.update_bookies([BookieServiceInfo("b2:3181", (address,)), *store.writable_bookies().values()])
        listener = Listener()
        transport.link("b2:3181").attach(NewSession(7, KEY, AttachMode.WRITE, 1, listener))
        transport.link("b2:3181").send(1, frame(7, 0, [b"meant for b2"], session=1))
        await listener.broken(1)
        said = await transport.link(bookie.bookie_id).read_lac(7, deadline_s=DEADLINE_S)
        assert not said.known
        await transport.close()


@pytest.mark.rule("L6")
async def test_any_protobuf_client_can_add(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as (bookie, _store):
        first = lane_pb2.AddRequest(
            hello=hello(bookie),
            attach=[lane_pb2.Attach(session=5, ledger_id=7, ledger_key=KEY)],
            frames=frame(7, 0, [b"a"], session=5) + frame(7, 1, [b"b"], session=5),
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{lane_port(bookie, GRPC)}") as channel:
            call = channel.stream_stream(
                "/bookkeeper.lane.Bookie/Add",
                request_serializer=lane_pb2.AddRequest.SerializeToString,
                response_deserializer=lane_pb2.AddResponse.FromString,
            )()
            await call.write(first)
            acked = 0
            while acked < 2:
                answer = await call.read()
                acked = dict(zip(answer.sessions, answer.frames, strict=True)).get(5, acked)
            call.cancel()


@pytest.mark.rule("L5")
@pytest.mark.parametrize("lane", OURS)
async def test_message_over_the_limit_breaks_only_its_stream(tmp_path: Path, lane: str) -> None:
    async with running_bookie(tmp_path) as (bookie, store):
        client, listener = lane_to(store, bookie.bookie_id, lane), Listener()
        session = client.attach(7, listener)
        client.link.send(session, bytes(FRAME_BYTES_MAX + (1 << 20)))
        await listener.broken(session)
        await client.write(7, 0, [b"a"])
        await client.transport.close()


@pytest.mark.rule("E1")
@pytest.mark.parametrize("lane", OURS)
async def test_unreachable_bookie_is_named_with_the_host_it_was_tried_from(tmp_path: Path, lane: str) -> None:
    transport = LaneTransport(Caller(connect_timeout_s=2))
    transport.update_bookies([BookieServiceInfo("b9:1", (Endpoint(lane, "127.0.0.1", 1, lane),))])
    with pytest.raises(BookieUnreachableError, match="from host"):
        await transport.link("b9:1").fence(7, KEY, deadline_s=DEADLINE_S)
    await transport.close()
