# SPDX-License-Identifier: Apache-2.0
"""Open ledgers of one entry, striped so that some bookies of the ensemble hold no entry. Each client opens them without
recovery, on each kind of bookie, after their writer has published its LAC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from bk_cli.access import Access
from bk_cli.explain.ledger_findings import recovery_verdict
from bk_cli.explain.ledger_seen import see_ledger
from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.client import ClientConfig, connect
from bk_core.entries.apache import lac_body
from bk_core.model import BOOKIE_RPC, DigestType
from bk_core.transport.lanes import LANES
from bk_core.wire.lane.evidence import LacEvidence
from tests.interop.jars import MAIN, toolchain
from tests.interop.peer_client import PASSWORD, JavaClient, PeerClient
from tests.interop.peers import ApacheCluster
from tests.kit.clusters import temporary_cluster
from tests.kit.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SHAPES = pytest.mark.parametrize(
    "sizes", [(4, 2, 2), (5, 3, 2), (5, 2, 2), (4, 2, 1), (3, 1, 1)], ids=lambda sizes: "/".join(map(str, sizes))
)
BOOKIES = 5
HINTED_S = 0.5
"""The seconds within which a bookie has the writer's LAC on disk. The writer sends it after 5 ms without an entry in
flight."""


@pytest.fixture(scope="module")
def apaches(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("apache")
    with ApacheCluster(toolchain(MAIN), zookeeper_server.connect_string, path) as cluster:
        cluster.start(BOOKIES)
        yield cluster.uri


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with temporary_cluster(tmp_path_factory, bookies=BOOKIES) as cluster:
        yield cluster.uri.replace("zk://", "zk+hierarchical://")


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerClient]:
    with PeerClient(toolchain(MAIN), tmp_path_factory.mktemp("java") / "client.log") as made:
        yield made


def open_ledger_of_one(uri: str, sizes: tuple[int, int, int], lane: str, java: JavaClient | None) -> tuple[int, int]:
    """Return the LAC that our client, and Apache's, see of an open ledger of ours with one entry."""

    async def story() -> tuple[int, int]:
        ensemble_size, write_quorum_size, ack_quorum_size = sizes
        async with await connect(uri, config=ClientConfig(lanes=lane)) as client:
            writer = await client.create_ledger(
                ensemble_size=ensemble_size,
                write_quorum_size=write_quorum_size,
                ack_quorum_size=ack_quorum_size,
                digest_type=DigestType.CRC32C,
                password=PASSWORD,
            )
            await writer.append(b"the only one")
            await asyncio.sleep(HINTED_S)
            async with await client.open_ledger(writer.ledger_id, recover=False, password=PASSWORD) as reader:
                mine = reader.last_add_confirmed
            theirs = mine
            if java is not None:
                opened = await asyncio.to_thread(java.open, writer.ledger_id, recover=False)
                theirs = await asyncio.to_thread(opened.last_confirmed)
            await writer.append(b"its writer goes on")
            return mine, theirs

    return asyncio.run(story())


@SHAPES
@pytest.mark.rule("P9")
def test_on_apaches_bookies(apaches: str, peer: PeerClient, sizes: tuple[int, int, int]) -> None:
    assert open_ledger_of_one(apaches, sizes, BOOKIE_RPC, peer.client(apaches)) == (0, 0)


@SHAPES
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.rule("P9")
def test_on_our_bookies(ours: str, peer: PeerClient, sizes: tuple[int, int, int], lane: str) -> None:
    assert open_ledger_of_one(ours, sizes, lane, peer.client(ours)) == (0, 0)


def can_be_recovered(uri: str, ledger_id: int) -> bool:
    verdict = recovery_verdict(see_ledger(Access(uri), ledger_id))
    return (verdict.stuck, verdict.why) == (False, "its last entry would be 0")


@pytest.mark.rule("P5")
def test_a_bookie_that_has_a_lac_and_no_entry_is_evidence(apaches: str, ours: str) -> None:
    """A writer of an older version sent its LAC to all bookies of the ensemble, and its ledgers still exist."""

    async def told_everybody(uri: str) -> tuple[int, LacEvidence, int]:
        async with await connect(uri, config=ClientConfig(lanes=BOOKIE_RPC)) as client:
            writer = await client.create_ledger(ensemble_size=4, write_quorum_size=2, ack_quorum_size=2)
            await writer.append(b"the only one")
            await asyncio.sleep(HINTED_S)
            body, key = lac_body(0, writer._machine.digester), writer._calls._key
            for bookie in writer.metadata.last_fragment.ensemble:
                await client.transport.link(bookie).write_lac(writer.ledger_id, key, body, deadline_s=5)
            has_no_entry = client.transport.link(writer.metadata.last_fragment.ensemble[2])
            async with await client.open_ledger(writer.ledger_id, recover=False) as reader:
                evidence = await has_no_entry.read_lac(writer.ledger_id, deadline_s=5)
                return writer.ledger_id, evidence, reader.last_add_confirmed

    for uri in (apaches, ours):
        ledger_id, evidence, lac = asyncio.run(told_everybody(uri))
        assert (evidence.last_entry_id, bool(evidence.lac_body), evidence.known, lac) == (-1, True, True, 0)
        until(partial(can_be_recovered, uri, ledger_id), what="a bookie is silent for longer than ANSWER_S")
