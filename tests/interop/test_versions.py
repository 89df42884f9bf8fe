# SPDX-License-Identifier: Apache-2.0
"""Our client on Apache's bookies of each version."""

from __future__ import annotations

import pytest

from bk_core.client import connect
from tests.interop.jars import THIRD, VERSIONS
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, PeerClient
from tests.interop.peers import ApacheCluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),  # the first run resolves jars
    pytest.mark.parametrize("apache", VERSIONS, indirect=True),
]
PATTERN = Pattern(seed=7, size_min=0, size_max=3000)


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
        assert over == {apache.tools.version == THIRD}, "bookies before 4.17 have no batch reads"
