# SPDX-License-Identifier: Apache-2.0
"""Who is connected to a bookie: all that may be, one address's share, and what an operator reads of it."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

import grpc
import pytest

from bk_core.errors import InvalidArgumentError, PortInUseError
from bk_core.model import GRPC
from bk_core.transport.lane.messages import hello
from bk_core.wire.proto import lane_pb2
from bookie_server.ports.bounds import clients as watched
from bookie_server.ports.bounds.connections import Address, Connections
from bookie_server.ports.lane.grpc import GrpcServer
from bookie_server.ports.lane.streams import AddStream
from tests.kit.lanes import bookie_config, lane_port, lane_to, running_bookie
from tests.kit.waiting import eventually

LOG = "bookie_server.ports"


def clients(host: str, *ports: int, to: int = 3181) -> list[Address]:
    return [(host, port, to) for port in ports]


def test_the_newest_beyond_an_addresss_share_end_and_nobody_elses() -> None:
    seen = Connections(connections_max=10, share_max=3, clock_s=time.monotonic)
    assert seen.look(clients("a", 9, 8)) == []
    assert seen.look(clients("a", 1, 2, 8, 9) + clients("b", 1, 2, 3)) == clients("a", 2)
    assert seen.look(clients("a", 8, 9, 1, 5, 4) + clients("b", 1, 2, 3)) == clients("a", 5, 4)
    assert (seen.ended, seen.most, seen.looks_full) == (3, 8, 0)


def test_the_newest_of_several_services_beyond_the_bound_of_all_together_end() -> None:
    """Each service by itself keeps to the bound; one port of a client may be connected to two of ours."""
    seen = Connections(connections_max=3, share_max=2, clock_s=time.monotonic)
    assert seen.look(clients("a", 1) + clients("b", 1)) == []
    both = clients("a", 1) + clients("c", 1, to=3182) + clients("b", 1) + clients("a", 1, to=3182)
    assert seen.look(both) == clients("a", 1, to=3182)
    assert seen.look([*both, *clients("a", 2)]) == clients("a", 2) + clients("a", 1, to=3182)
    assert seen.ended == 3


def test_reaching_the_bound_is_counted_each_time_and_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    seen = Connections(connections_max=3, share_max=3, clock_s=iter(range(61)).__next__)
    for _ in range(61):
        seen.look(clients("a", 1, 2) + clients("b", 1))
    assert seen.looks_full == 61
    assert [each.getMessage()[:42] for each in caplog.records] == ["all 3 connections are taken, and further c"] * 2
    assert "a (2), b (1)" in caplog.text


def test_an_address_over_its_share_is_told_once_a_minute_too(caplog: pytest.LogCaptureFixture) -> None:
    seen = Connections(connections_max=9, share_max=1, clock_s=iter((0, 59, 60)).__next__)
    for _ in range(3):
        seen.look(clients("a", 1, 2))
    assert [each.getMessage()[:43] for each in caplog.records] == ["a has more than its share of 1 connections:"] * 2


def test_the_numbers_are_reported_when_they_changed_and_every_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG)
    reports_s = iter((0, 1, 500, 700, 1400, 1402))
    seen = Connections(connections_max=9, share_max=9, clock_s=reports_s.__next__)
    seen.report()
    seen.look(clients("a", 1, 2))
    for _ in range(4):
        seen.report()
    seen.look(clients("a", 1, 2, 3))
    seen.report()
    assert [each.getMessage() for each in caplog.records] == [
        "connections: most=2 looks_full=0 ended=0",
        "connections: most=3 looks_full=0 ended=0",
    ]


def is_lost(client: socket.socket) -> bool:
    """Whether the bookie has ended this connection; what it has sent before is taken."""
    try:
        while client.recv(1 << 16):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


async def test_one_address_does_not_keep_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The greedy one comes first and takes all that gRPC gives; another address is served all the same."""
    monkeypatch.setattr(watched, "_COUNT_INTERVAL_S", 0.1)

    async with running_bookie(tmp_path, connections_max=8) as (bookie, store):
        greedy = [
            socket.create_connection(("127.0.0.1", lane_port(bookie, GRPC)), source_address=("127.0.0.2", 0))
            for _ in range(8)
        ]
        for each in greedy:
            each.setblocking(False)
        await eventually(lambda: sum(map(is_lost, greedy)) == 4)
        client = lane_to(store, bookie.bookie_id)
        said = await client.link.bookie_info(deadline_s=10)
        assert said.version.startswith("pyspark-bookkeeper")
        assert [is_lost(each) for each in greedy].count(False) == 4, "its share is left to it"
        await client.transport.close()
        for each in greedy:
            each.close()
    assert "127.0.0.2 has more than its share of 4 connections: the newest 4 are ended" in caplog.text
    assert "all 8 connections are taken, and further clients are refused; most are from 127.0.0.2 (8)" in caplog.text


async def test_two_bookies_do_not_share_a_port(tmp_path: Path) -> None:
    """The system lets two gRPC servers of one user do so, unless they say no: each would get half of the clients."""

    async with running_bookie(tmp_path) as (bookie, _):
        with pytest.raises(PortInUseError):
            GrpcServer("127.0.0.1", lane_port(bookie, GRPC), bookie._clients)


async def test_the_share_of_an_address_is_a_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="connections_per_address_max"):
        bookie_config(tmp_path, "memory://x", connections_per_address_max=-1)
    for given, expected in ((0, 8), (5, 5), (99, 16)):
        limits = bookie_config(tmp_path, "memory://x", connections_max=16, connections_per_address_max=given)
        async with running_bookie(tmp_path / str(given), connections_max=16, connections_per_address_max=given) as (
            bookie,
            _,
        ):
            assert bookie._clients.connections.share_max == expected
        assert limits.server_limits().connections_per_address_max == given


async def test_an_exception_that_ends_a_stream_is_in_the_log_and_told_to_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def take(self: AddStream, rest: bytes, frames: memoryview | None) -> None:
        raise ZeroDivisionError("made to fail")

    monkeypatch.setattr(AddStream, "take", take)

    async with (
        running_bookie(tmp_path) as (bookie, _),
        grpc.aio.insecure_channel(f"127.0.0.1:{lane_port(bookie, GRPC)}") as channel,
    ):
        call = channel.stream_stream("/bookkeeper.lane.Bookie/Add")()
        said = lane_pb2.AddRequest(hello=hello(bookie.bookie_id, "", "", "test"))
        await call.write(said.SerializeToString())
        await call.read()  # the answer to hello
        assert await call.code() is grpc.StatusCode.INTERNAL
        assert "made to fail" in await call.details()
    assert "ends by an exception" in caplog.text
    assert "ZeroDivisionError: made to fail" in caplog.text, "with its traceback"
