# SPDX-License-Identifier: Apache-2.0
"""Apache's client on Apache's bookies, for each peer version: what the tests against our side build on works."""

from __future__ import annotations

import pytest

from bk_core.client import connect
from tests.interop.jars import THIRD, VERSIONS
from tests.interop.java_process import PeerError
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, PeerClient
from tests.interop.peers import ApacheCluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),  # the first run resolves jars
    pytest.mark.parametrize("apache", VERSIONS, indirect=True),
]
BOTH_WIRES = pytest.mark.parametrize("wire", [3, 2])
PATTERN = Pattern(seed=7, size_min=0, size_max=3000)


@BOTH_WIRES
@pytest.mark.parametrize("digest", ["CRC32", "CRC32C", "MAC", "DUMMY"])
def test_what_is_written_is_read(apache: ApacheCluster, peer: PeerClient, wire: int, digest: str) -> None:
    client = peer.client(apache.uri, wire=wire)
    ledger = client.create(digest=digest, password=b"secret", custom={"who": bytes(range(256))})
    assert ledger.add(300, PATTERN).lac == 299
    assert ledger.close().closed
    reader = client.open(ledger.ledger_id, digest=digest, password=b"secret")
    assert reader.read(0, 299).checksum == PATTERN.checksum(0, 299)
    assert client.metadata(ledger.ledger_id)["custom"] == {"who": bytes(range(256))}
    with pytest.raises(PeerError, match="UnauthorizedAccess"):
        client.open(ledger.ledger_id, digest=digest, password=b"wrong")
    assert ledger.ledger_id in client.ledger_ids()
    client.delete(ledger.ledger_id)
    with pytest.raises(PeerError, match="NoSuchLedgerExistsOnMetadataServer") as gone:
        client.open(ledger.ledger_id, digest=digest, password=b"secret")
    assert gone.value.code == -25


@BOTH_WIRES
def test_a_living_writer_is_followed_and_fenced(apache: ApacheCluster, peer: PeerClient, wire: int) -> None:
    writers = peer.client(apache.uri, wire=wire)
    readers = peer.client(apache.uri, wire=wire)
    ledger = writers.create()
    ledger.add(20, PATTERN, window=1)  # each after the ack of the one before, whose id it carries as the LAC
    tail = readers.open(ledger.ledger_id, recover=False).tail(poll_ms=200)
    followed = tail.take(19)  # the last one shows with the next
    assert (followed.last, followed.checksum) == (18, PATTERN.checksum(0, 18))
    ledger.add(1, PATTERN, first=20)
    assert tail.take(1).last == 19
    assert readers.open(ledger.ledger_id).opened.lac == 20
    with pytest.raises(PeerError, match="LedgerFenced") as refused:
        ledger.add(10, PATTERN, first=21)
    assert (refused.value.code, refused.value.acked) == (-101, 0)
    rest = tail.take(10)
    assert (rest.last, rest.ended) == (20, True)


def test_explicit_lacs_ids_and_deferred_syncs(apache: ApacheCluster, peer: PeerClient) -> None:
    client = peer.client(apache.uri, conf={"explicitLacInterval": 50})
    ledger = client.create(adv=True, deferred_sync=True)
    for entry_id in (1, 0, 2):
        pending = peer.submit("add", ledger=ledger._number, count=1, first=entry_id, **PATTERN.arguments())
        if entry_id != 1:  # entry 1 waits for entry 0
            peer.result(pending, 10, "add")
    assert ledger.force().lac == 2
    reader = client.open(ledger.ledger_id, recover=False)
    assert reader.tail().take(3).last == 2  # by the explicit LAC alone
    assert reader.last_confirmed("explicit") == 2
    assert reader.read(0, 2, how="unconfirmed").checksum == PATTERN.checksum(0, 2)


def test_batch_reads(apache: ApacheCluster, peer: PeerClient) -> None:
    client = peer.client(apache.uri, wire=2)
    ledger = client.create(ensemble_size=2)
    ledger.add(100, PATTERN)
    if apache.tools.version == THIRD:
        with pytest.raises(PeerError, match="NoSuchMethodException"):
            ledger.read(0, 99, how="batch")
    else:
        assert ledger.read(0, 99, how="batch").checksum == PATTERN.checksum(0, 99)


async def test_our_client_reads_in_batches_where_there_are_any(apache: ApacheCluster, peer: PeerClient) -> None:
    ledger = peer.client(apache.uri).create(ensemble_size=2)
    ledger.add(5000, PATTERN)
    ledger.close()

    async with await connect(apache.uri) as client:
        async with await client.open_ledger(ledger.ledger_id, recover=False, password=PASSWORD) as reader:
            found = [entry async for batch in reader.read(0, 4999) for entry in batch.to_list()]
        assert checksum(found) == PATTERN.checksum(0, 4999)
        links = client.transport._links.values()
        over = {link._batches.over for link in links if link._second._transport}
        assert over == {apache.tools.version == THIRD}, "bookies before 4.17 have none"


def test_every_bookie_is_listed(apache: ApacheCluster, peer: PeerClient) -> None:
    client = peer.client(apache.uri)
    ids = sorted(bookie.bookie_id for bookie in apache.bookies)
    last = apache.bookies[-1]
    last.set_read_only(True)
    listed = client.bookies()
    assert (listed["read_only"], listed["all"]) == ([last.bookie_id], ids)
    assert listed["writable"] == [bookie_id for bookie_id in ids if bookie_id != last.bookie_id]
    last.set_read_only(False)
    assert client.bookies()["writable"] == ids
