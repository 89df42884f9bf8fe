# SPDX-License-Identifier: Apache-2.0
"""What a client finds out about bookies for placement: racks from a script or a file, free space from themselves."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from bk_core.client import ClientConfig
from bk_core.client.running.surveyor import Surveyor
from bk_core.errors import InvalidArgumentError, NotEnoughBookiesError, TransportError
from bk_core.model import BookieId, BookieServiceInfo, Endpoint
from bk_core.placement import FLAT, Landscape
from bk_core.transport.port import BookieInfo
from tests.kit.memory_cluster import FAST, memory_cluster

RACKS = "b0 /a\nb1 /a  # of bookie ids\n\nb2 /b\nb3 /b\n"


class Spaces:
    """The part of a transport that the surveyor needs."""

    def __init__(self, free: dict[BookieId, int]) -> None:
        self.free, self.asked = free, list[BookieId]()

    def link(self, bookie_id: BookieId) -> SpaceOf:
        self.asked.append(bookie_id)
        return SpaceOf(self.free.get(bookie_id))


class SpaceOf:
    def __init__(self, free: int | None) -> None:
        self.free = free

    async def bookie_info(self, *, deadline_s: float) -> BookieInfo:
        if self.free is None:
            raise TransportError("it does not answer")
        return BookieInfo(1000, self.free)


def bookies(*hosts: str) -> dict[BookieId, BookieServiceInfo]:
    return {
        f"b{n}": BookieServiceInfo(f"b{n}", (Endpoint("bookie", host, 3181, "bookie-rpc"),))
        for n, host in enumerate(hosts)
    }


def surveyed(config: ClientConfig, known: dict[BookieId, BookieServiceInfo], transport: object = None) -> Landscape:
    surveyor = Surveyor(transport, config)
    surveyor.know(known)
    return asyncio.run(surveyor.landscape())


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_nobody_asks_who_does_not_want_to_know() -> None:
    assert surveyed(ClientConfig(), bookies("127.0.0.1")) is FLAT


@pytest.mark.rule("P13")
async def test_a_script_gets_addresses_and_prints_racks_in_their_order(tmp_path: Path) -> None:
    log = tmp_path / "arguments"
    text = f'echo "$@" >> {log}\nfor address; do echo /rack-${{address##*.}}; done\n'
    config = ClientConfig(rack_script=script(tmp_path / "racks", text))

    surveyor = Surveyor(None, config)
    surveyor.know(bookies("127.0.0.1", "localhost", "127.0.0.3"))
    assert dict((await surveyor.landscape()).racks) == {"b0": "/rack-1", "b1": "/rack-1", "b2": "/rack-3"}
    surveyor.know(bookies("127.0.0.1", "localhost", "127.0.0.3", "127.0.0.4"))
    assert (await surveyor.landscape()).rack_of("b3") == "/rack-4"
    assert log.read_text() == "127.0.0.1 127.0.0.1 127.0.0.3\n127.0.0.4\n", "each is asked for once"


@pytest.mark.parametrize("text", ["exit 1\n", "echo /one\n"])
def test_a_script_that_fails_leaves_the_default_rack_and_a_line_in_the_log(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = ClientConfig(rack_script=script(tmp_path / "racks", text))
    with caplog.at_level(logging.WARNING):
        assert not surveyed(config, bookies("127.0.0.1", "127.0.0.2")).racks
    assert "rack_script" in caplog.text


def test_a_script_that_is_not_there_is_said_so(caplog: pytest.LogCaptureFixture) -> None:
    assert not surveyed(ClientConfig(rack_script="/no/such/script"), bookies("127.0.0.1")).racks
    assert "could not be run" in caplog.text


def test_a_file_names_addresses_hosts_and_bookies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "racks"
    path.write_text("127.0.0.1 /one\nlocalhost /host # a name\nb2 /id\nnonsense\n\n")
    config = ClientConfig(rack_file=str(path))
    known = bookies("127.0.0.1", "localhost", "127.0.0.1", "127.0.0.9")
    assert dict(surveyed(config, known).racks) == {"b0": "/one", "b1": "/host", "b2": "/id"}
    assert "lines that are not a name and a rack" in caplog.text
    path.unlink()
    assert not surveyed(config, known).racks
    assert "could not be read" in caplog.text


def test_script_and_file_at_once_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="from a script or from a file"):
        Surveyor(None, ClientConfig(rack_script="a", rack_file="b"))


@pytest.mark.rule("P14")
async def test_bookies_are_asked_for_their_space_once_in_a_while() -> None:
    spaces = Spaces({"b0": 5, "b1": 7})

    surveyor = Surveyor(spaces, ClientConfig(disk_weight_placement=True, disk_weight_ms=200))
    surveyor.know(bookies("127.0.0.1", "127.0.0.1"))
    for _ in range(3):
        assert dict((await surveyor.landscape()).weights) == {"b0": 5, "b1": 7}
    assert spaces.asked == ["b0", "b1"]
    surveyor.know(bookies("127.0.0.1", "127.0.0.1", "127.0.0.1"))
    assert dict((await surveyor.landscape()).weights) == {"b0": 5, "b1": 7}
    assert spaces.asked == ["b0", "b1", "b2"], "only the new one, which does not answer"
    await asyncio.sleep(0.25)
    spaces.free["b0"] = 1
    assert dict((await surveyor.landscape()).weights) == {"b0": 1, "b1": 7}


@pytest.mark.rule("P13")
async def test_ledgers_and_their_changes_follow_the_racks(tmp_path: Path) -> None:
    path = tmp_path / "racks"
    path.write_text(RACKS)
    async with memory_cluster() as cluster:
        client = cluster.client(replace(FAST, rack_file=str(path), enforce_racks=True))
        for _ in range(20):
            writer = await client.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
            ensemble = writer.metadata.last_fragment.ensemble
            assert len({name in ("b0", "b1") for name in ensemble}) == 2
        lost = ensemble[0]
        cluster.kill(lost)
        await writer.append(b"a")
        other = {"b0": "b1", "b1": "b0", "b2": "b3", "b3": "b2"}[lost]
        assert writer.metadata.last_fragment.ensemble == (other, ensemble[1])
        await writer.close()
        cluster.kill(other)
        with pytest.raises(NotEnoughBookiesError, match="in 2 racks are needed"):
            await client.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)


async def test_too_few_racks_are_said_once_where_they_are_not_enforced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "racks"
    path.write_text("b0 /a\nb1 /a\nb2 /a\nb3 /a\n")
    async with memory_cluster() as cluster:
        client = cluster.client(replace(FAST, rack_file=str(path)))
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await (await client.create_ledger()).close()
    assert caplog.text.count("in fewer than 2 racks") == 1
