# SPDX-License-Identifier: Apache-2.0
"""Nothing in plain: real bookies and a real ZooKeeper with TLS on every port, the client and ``bk``."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bk_core import blocking
from bk_core.client import ClientConfig
from bk_core.errors import AuthenticationError, BookKeeperError, TlsError
from bk_core.transport.lanes import LANES
from tests.kit.tls_cluster import TlsCluster, temporary_tls_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    with temporary_tls_cluster(
        tmp_path_factory.mktemp("secure"), tls_clients=["*CN=client,*", "CN=bookie-*"]
    ) as running:
        yield running


@pytest.mark.parametrize("lane", LANES)
def test_a_ledger_is_written_lost_a_bookie_recovered_and_read_over_each_lane(
    secure: TlsCluster, lane: str, request: pytest.FixtureRequest
) -> None:
    entries = [f"{lane} {n}".encode() * (n % 50) for n in range(500)]
    with secure.client(lanes=lane, reconnect_budget_ms=300) as writing, secure.client(lanes=lane) as reading:
        ledger = writing.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        for entry in entries[:250]:
            ledger.append_nowait(entry)
        ledger.append(b"before")
        lost = next(each for each in secure.bookies if each.bookie_id in ledger.metadata.fragments[0].ensemble)
        lost.kill()
        request.addfinalizer(secure.start)
        for entry in entries[250:]:
            ledger.append_nowait(entry)
        ledger.append(b"after")
        entries.append(b"after")
        until = time.monotonic() + 30
        while len(ledger.metadata.fragments) == 1:
            assert time.monotonic() < until, "another bookie takes over"
            time.sleep(0.1)
            entries.append(b"on")
            ledger.append(b"on")
        reader = reading.open_ledger(ledger.ledger_id, recover=True)
        found = [value for batch in reader.read(0, reader.last_add_confirmed) for value in batch.to_list()]
        assert found == [*entries[:250], b"before", *entries[250:]]


def test_another_identity_and_another_authority_get_nothing(secure: TlsCluster) -> None:
    other = secure.authority.issue("other")
    with blocking.connect(secure.uri, config=ClientConfig(**other.settings(tls_zookeeper=True))) as bookkeeper:
        before = bookkeeper.list_ledgers()
        with pytest.raises(AuthenticationError, match="CN=other,O=Example; the bookie's tls_clients must list it"):
            bookkeeper.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        assert bookkeeper.list_ledgers() == before
    untold = ClientConfig(
        tls_ca_path=str(secure.client_files.key.parent / "authority.crt"), tls_zookeeper=True, metadata_timeout_s=3.0
    )
    with pytest.raises(BookKeeperError):
        blocking.connect(secure.uri, config=untold)
    host = secure.uri.replace("127.0.0.1", "localhost")
    with pytest.raises(TlsError, match="of another host"):
        blocking.connect(host, config=secure.config())
    assert "not let in" in secure.bookies[0].log_path.read_text() + secure.bookies[1].log_path.read_text()
