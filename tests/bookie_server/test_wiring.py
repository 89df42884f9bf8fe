# SPDX-License-Identifier: Apache-2.0
"""What ``main.py`` puts together: in which order a bookie comes and goes, and what its exit code says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from bk_core.errors import (
    BookieError,
    BookieIdentityError,
    BookKeeperError,
    DataDirectoryError,
    PortInUseError,
    StorageFailedError,
)
from bk_core.metadata.port import MetadataStore
from bk_core.model import BookieServiceInfo
from bk_core.transport.caller import Caller
from bk_core.transport.lanes import LaneTransport
from bookie_server import main
from bookie_server.config import BookieConfig
from bookie_server.main import Bookie
from bookie_server.ports.access.tls import PortTls
from bookie_server.ports.bounds.clients import Clients
from bookie_server.ports.lane.grpc import GrpcServer
from bookie_server.ports.service import Service
from tests.kit.lanes import Lane, Listener, bookie_config, lane_to
from tests.kit.memory_store import MemoryCluster, MemoryStore


class Greeted(MemoryStore):
    """Tries to connect to each bookie in the moment in which it registers, as a client does that watches the list."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        self.answered: list[bool] = []

    def register_bookie(self, info: BookieServiceInfo, *, read_only: bool = False) -> None:
        (endpoint,) = [each for each in info.endpoints if each.protocol == "grpc"]
        with grpc.insecure_channel(f"{endpoint.host}:{endpoint.port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(2)
                self.answered.append(True)
            except grpc.FutureTimeoutError:
                self.answered.append(False)
        super().register_bookie(info, read_only=read_only)


async def test_who_finds_a_bookie_registered_can_talk_to_it(tmp_path: Path, uri: str) -> None:
    store = Greeted(MemoryCluster())
    store.initialize_cluster()

    bookie = await Bookie.start(bookie_config(tmp_path, uri), store)
    assert store.answered == [True]
    await bookie.stop()


async def test_a_bookie_leaves_the_list_before_its_streams_end(store: MetadataStore, tmp_path: Path, uri: str) -> None:
    """A client whose stream ends looks at the list at once; it must not find the bookie that goes."""

    bookie = await Bookie.start(bookie_config(tmp_path, uri))
    lane, listener = lane_to(store, bookie.bookie_id), Listener()
    session = lane.attach(1, listener)
    lane.send(session, 1, 0, [b"a"])
    await listener.acked(session, 1)
    assert list(store.writable_bookies()) == [bookie.bookie_id]
    stopping = asyncio.create_task(bookie.stop())
    await listener.until(lambda said: any(words[0] in ("broken", "ended") for words in said))
    assert store.writable_bookies() == {}
    await stopping
    await lane.transport.close()


def serve_twice(monkeypatch: pytest.MonkeyPatch, *second: int) -> None:
    """A bookie's services are the usual one and others of its kind on these ports."""

    def both(config: BookieConfig, clients: Clients, tls: PortTls | None) -> Iterator[Service]:
        for port in (config.port, *second):
            yield GrpcServer(config.listen_address, port, clients, tls)

    monkeypatch.setattr(main, "listen", both)


async def test_all_services_are_published_serve_the_same_ledgers_and_have_one_bound(
    store: MetadataStore, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_twice(monkeypatch, 0)

    bookie = await Bookie.start(bookie_config(tmp_path, uri))
    (info,) = store.writable_bookies().values()
    ports = [endpoint.port for endpoint in info.endpoints]
    assert ports[0] == bookie.port
    assert ports[1] not in (0, bookie.port)
    transports = [LaneTransport(Caller(store.instance_id())) for _ in ports]
    for transport, endpoint in zip(transports, info.endpoints, strict=True):
        transport.update_bookies([replace(info, endpoints=(endpoint,))])
    first, second = [Lane("grpc", transport, bookie.bookie_id) for transport in transports]
    await first.write(1, 0, [b"a"])
    assert (await second.read(1, 0, 0))[0] == {0: b"a"}
    assert len(bookie._clients.streams) == 2, "memory is watched for both"
    for transport in transports:
        await transport.close()
    await bookie.stop()


def test_a_service_without_its_port_leaves_nothing_of_the_others_behind(
    store: MetadataStore, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        first, second = free.getsockname()[1], taken.getsockname()[1]
        free.close()
        serve_twice(monkeypatch, second)
        with pytest.raises(PortInUseError, match=str(second)):
            asyncio.run(Bookie.start(bookie_config(tmp_path, uri, port=first)))
        socket.create_server(("127.0.0.1", first)).close()
    assert not list(tmp_path.iterdir()), "the data directory is not touched"


@pytest.mark.rule("S6")
async def test_the_first_failure_is_the_reason(store: MetadataStore, tmp_path: Path, uri: str) -> None:
    """A disk that fails ends other work too, and that must not be what is reported."""

    bookie = await Bookie.start(bookie_config(tmp_path, uri))
    first = StorageFailedError("the disk failed")
    bookie._fail(first)
    bookie._fail(DataDirectoryError("and something after it"))
    assert bookie.failed.is_set()
    assert bookie.error is first
    await bookie.stop()


def ended_by(error: BookKeeperError | None, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a bookie that meets this error once it serves, or that is told to stop."""
    made: list[Bookie] = []
    real = Bookie.start

    async def start(*arguments: Any, **options: Any) -> Bookie:
        made.append(await real(*arguments, **options))
        return made[0]

    def ready(*_: object) -> None:
        if error is not None:
            made[0]._fail(error)
        else:
            main.signal.raise_signal(main.signal.SIGTERM)

    monkeypatch.setattr(Bookie, "start", start)
    return asyncio.run(main._run(bookie_config(tmp_path, uri), ready, accept_loss=False, init_cluster=False))


@pytest.mark.rule("S6")
@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (StorageFailedError("disk"), 74), (BookieError("something unforeseen"), 70)]
)
def test_the_exit_code_tells_why_a_bookie_ended(
    error: BookKeeperError | None,
    code: int,
    store: MetadataStore,
    tmp_path: Path,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ended_by(error, tmp_path, uri, monkeypatch) == code
    assert store.writable_bookies() == {}


@pytest.mark.rule("S8")
def test_a_bookie_whose_id_was_taken_over_ends_with_that_error(
    store: MetadataStore, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So ``bk`` prints it and ends with 4, as at a start."""
    with pytest.raises(BookieIdentityError, match="taken over"):
        ended_by(BookieIdentityError("taken over"), tmp_path, uri, monkeypatch)
    assert store.writable_bookies() == {}
