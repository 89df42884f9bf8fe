# SPDX-License-Identifier: Apache-2.0
"""Records in ZooKeeper that Apache's programs wrote and we read, and records that we wrote and they read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.metadata import open_store
from bk_core.metadata.codec import decode_ledger, encode_ledger
from bk_core.metadata.layout import Layout, ledger_path, parse_service_uri
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import Cookie, decode_cookie, encode_cookie
from bk_core.model import BOOKIE_RPC, BookieServiceInfo, DigestType, Endpoint, Fragment, LedgerMetadata, LedgerState
from tests.interop.cells import DIGESTS
from tests.interop.jars import SECOND
from tests.interop.java_process import PeerError
from tests.interop.pattern import Pattern
from tests.interop.peer_client import JavaClient, JavaLedger, PeerClient
from tests.interop.peers import ApacheCluster
from tests.kit.metadata_worlds import tree_of
from tests.kit.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

EVERY_BYTE = bytes(range(256))
LARGE_ID = 2**31 + 5


@pytest.fixture(scope="module")
def client(apache: ApacheCluster, peer: PeerClient) -> JavaClient:
    return peer.client(apache.uri)


@pytest.fixture(scope="module")
def store(apache: ApacheCluster) -> Iterator[MetadataStore]:
    """Yield our store, on the root that Apache's code has made."""
    with closing(open_store(apache.uri)) as opened:
        yield opened


@pytest.mark.parametrize("digest", DIGESTS)
def test_we_read_a_ledger_that_java_wrote(client: JavaClient, store: MetadataStore, digest: str) -> None:
    ledger = client.create(digest=digest, password=EVERY_BYTE, custom={"a": EVERY_BYTE, "empty": b""})
    opened = store.read_ledger(ledger.ledger_id).value
    assert (opened.state, opened.last_entry_id, opened.length) == (LedgerState.OPEN, -1, 0)
    assert (opened.ensemble_size, opened.write_quorum_size, opened.ack_quorum_size) == (3, 2, 2)
    assert (opened.digest_type, opened.password) == (DigestType[digest], EVERY_BYTE)
    assert dict(opened.custom_metadata) == {"a": EVERY_BYTE, "empty": b""}
    length = ledger.add(5, Pattern(size_min=1, size_max=9)).length
    ledger.close()
    closed = store.read_ledger(ledger.ledger_id).value
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 4, length)
    assert [*closed.fragments] == [Fragment(0, client.metadata(ledger.ledger_id)["ensembles"][0])]


def test_our_rewrite_of_javas_record_changes_no_byte(client: JavaClient, store: MetadataStore) -> None:
    ledger = client.create(custom={"key": EVERY_BYTE})
    ledger.close()
    path = parse_service_uri(store.uri).root + ledger_path(Layout.HIERARCHICAL, ledger.ledger_id)
    data, _ = tree_of(store).get(path)
    assert encode_ledger(decode_ledger(data)) == data
    assert decode_ledger(data).format_version == 3


@pytest.mark.parametrize("format_version", [1, 2, 3])
@pytest.mark.parametrize("ledger_id", [1_000_000, LARGE_ID, 2**40])
def test_java_reads_a_ledger_that_we_wrote(
    client: JavaClient, store: MetadataStore, apache: ApacheCluster, format_version: int, ledger_id: int
) -> None:
    members = tuple(bookie.bookie_id for bookie in apache.bookies)
    metadata = LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        fragments=(Fragment(0, members), Fragment(7, (*members[1:], members[0]))),
        state=LedgerState.CLOSED,
        last_entry_id=9,
        length=12_345,
        digest_type=DigestType.CRC32C,
        password=EVERY_BYTE,
        custom_metadata={"who": EVERY_BYTE},
        format_version=format_version,
    )
    if format_version == 1:
        metadata = replace(metadata, digest_type=None, password=None, custom_metadata={})
    ledger_id += format_version
    store.create_ledger(metadata, ledger_id)
    read = client.metadata(ledger_id)
    assert (read["state"], read["last_entry_id"], read["length"]) == ("CLOSED", 9, 12_345)
    assert read["ensembles"] == {0: members, 7: (*members[1:], members[0])}
    assert (read["ensemble_size"], read["write_quorum_size"], read["ack_quorum_size"]) == (3, 2, 2)
    assert read["format_version"] == format_version
    if format_version > 1:
        assert (read["digest"], read["password"], read["custom"]) == ("CRC32C", EVERY_BYTE, {"who": EVERY_BYTE})
    assert ledger_id in client.ledger_ids()
    assert ledger_id in list(store.list_ledgers())
    store.delete_ledger(ledger_id)


def test_we_know_apaches_bookies_and_cookies(
    client: JavaClient, store: MetadataStore, peer: PeerClient, apache: ApacheCluster
) -> None:
    ids = {bookie.bookie_id for bookie in apache.bookies}
    assert set(store.writable_bookies()) == ids == set(store.known_bookies())
    for bookie in apache.bookies:
        info = store.bookie_info(bookie.bookie_id)
        assert info is not None
        endpoint = info.endpoint(BOOKIE_RPC)
        assert endpoint is not None
        assert (endpoint.host, endpoint.port) == bookie.address
        written = store.read_cookie(bookie.bookie_id)
        assert written is not None
        cookie = decode_cookie(written.value)
        assert (cookie.bookie_host, cookie.instance_id) == (bookie.bookie_id, store.instance_id())
        assert encode_cookie(cookie) == written.value
    first = apache.bookies[0]
    first.set_read_only(True)
    assert set(store.read_only_bookies()) == {first.bookie_id}
    first.set_read_only(False)
    assert set(store.writable_bookies()) == ids
    assert peer.identity(apache.uri)["instance_id"] == store.instance_id()


@pytest.mark.parametrize("apache", [SECOND], indirect=True)
def test_apaches_programs_understand_a_cluster_that_we_made(
    apache: ApacheCluster, peer: PeerClient, zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    uri = f"zk://{zookeeper_server.connect_string}/ours-{uuid.uuid4().hex[:8]}/ledgers"
    ours = Endpoint("bookie", "127.0.0.1", 12_345, BOOKIE_RPC)
    with closing(open_store(uri)) as store:
        instance_id = store.initialize_cluster()
        store.write_cookie(
            "ours:1",
            encode_cookie(
                Cookie(bookie_host="ours:1", journal_dirs=("/j",), ledger_dirs=("/l", "/m"), instance_id=instance_id)
            ),
            None,
        )
        store.register_bookie(BookieServiceInfo("ours:1", (ours,), {"bk.incarnation": "x"}))
        identity = peer.identity(uri, ["ours:1"])
        assert identity["instance_id"] == instance_id
        assert 'ledgerDirs: "2\\t/l\\t/m"' in identity["cookies"]["ours:1"]
        client = peer.client(uri)
        listed = client.bookies()
        assert (listed["writable"], listed["all"]) == (["ours:1"], ["ours:1"])
        assert listed["infos"]["ours:1"]["endpoints"][0]["port"] == 12_345
        store.unregister_bookie("ours:1")
        with ApacheCluster(apache.tools, zookeeper_server.connect_string, tmp_path / "in-ours", uri=uri) as inside:
            inside.start(1)
            made = list[JavaLedger]()

            def is_made() -> bool:
                with suppress(PeerError):  # until its watch has shown it the bookie
                    made.append(client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1))
                return bool(made)

            until(is_made, what="the client did not find the bookie")
            (ledger,) = made
            ledger.add(10, Pattern())
            ledger.close()
            assert store.read_ledger(ledger.ledger_id).value.last_entry_id == 9
        client.close()
