# SPDX-License-Identifier: Apache-2.0
"""Bookies and clients of Apache's and ours on one cluster with ACLs (``zkEnableSecurity``). All share one identity."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from bk_core import blocking
from bk_core.client import ClientConfig
from bk_core.errors import MetadataAccessError
from bk_core.metadata import open_store, open_tree
from bk_core.metadata.zookeeper.securing import find_open_nodes
from tests.interop.jars import MAIN, toolchain
from tests.interop.java_process import QUICK, PeerError
from tests.interop.pattern import Pattern, checksum
from tests.interop.peer_client import PASSWORD, PeerClient
from tests.interop.peers import ApacheCluster
from tests.kit.zookeeper_auth import AuthCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PATTERN = Pattern(seed=20, size_min=0, size_max=5_000)
SECURE = {"zkEnableSecurity": "true"}


def test_bookies_and_clients_of_both_kinds_share_an_identity(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    jaas = tmp_path / "client-jaas.conf"
    jaas.write_text(
        "Client {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        '  username="shared"\n  password="secret";\n};\n'
    )
    flags = (*QUICK, f"-Djava.security.auth.login.config={jaas}")
    settings = {"zookeeper_auth_path": str(tmp_path / "ours" / "shared.auth"), "zookeeper_acl": "creator"}
    with AuthCluster(tmp_path / "ours", {"shared": "secret"}, 1, settings) as ours:
        where, uri = ours.zookeeper.connect_string, ours.uri.replace("zk://", "zk+hierarchical://")
        config = ClientConfig(zookeeper_auth_path=ours.paths["shared"], zookeeper_acl="creator")
        with (
            ApacheCluster(toolchain(MAIN), where, tmp_path / "apache", uri=uri, flags=flags) as apache,
            PeerClient(toolchain(MAIN), tmp_path / "client.log", flags) as peer,
            blocking.connect(ours.uri, config=config) as bookkeeper,
        ):
            apache.start(2, SECURE)
            with closing(open_store(ours.uri, auth_path=ours.paths["shared"], acl="creator")) as store:
                assert len(store.writable_bookies()) == 3
            client = peer.client(uri, conf=SECURE)
            theirs = client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
            theirs.add(200, PATTERN, window=50)
            reader = bookkeeper.open_ledger(theirs.ledger_id, recover=True, password=PASSWORD)
            read = [entry for batch in reader.read(0, 199) for entry in batch.to_list()]
            assert checksum(read) == PATTERN.checksum(0, 199), (
                "our client recovers other entries than Apache's client wrote"
            )
            mine = bookkeeper.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, password=PASSWORD)
            for each in PATTERN.payloads(0, 99):
                mine.append_nowait(each)
            mine.close()
            assert client.open(mine.ledger_id).read(0, 99).checksum == PATTERN.checksum(0, 99)
            bookkeeper.delete_ledger(theirs.ledger_id)
            tree = open_tree(
                ours.uri, timeout_s=8, session_timeout_s=8, tls=None, auth_path=ours.paths["shared"], acl="creator"
            )
            with closing(tree):
                looked = find_open_nodes(tree, "/ledgers", nodes_max=10_000, within_s=10)
            assert (looked.is_whole, looked.open_paths) == (True, []), "a node is open to every client"
            with closing(open_store(ours.uri)) as stranger, pytest.raises(MetadataAccessError):
                stranger.delete_ledger(mine.ledger_id)
        with PeerClient(toolchain(MAIN), tmp_path / "stranger.log") as unknown, pytest.raises(PeerError):
            unknown.client(uri).open(mine.ledger_id)
