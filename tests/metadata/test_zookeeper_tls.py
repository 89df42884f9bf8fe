# SPDX-License-Identifier: Apache-2.0
"""The session with a real ZooKeeper over TLS: who is believed, what the error says, and that answers are not held
up."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_core.access.tls import Tls
from bk_core.errors import MetadataUnavailableError, TlsError
from bk_core.metadata import open_store
from bk_core.metadata.zookeeper.session import BoundedHandler, ZooKeeperTree
from tests.kit.certificates import Authority
from tests.kit.waiting import in_thread
from tests.kit.zookeeper_tls import TlsZooKeeper

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def zookeeper(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsZooKeeper]:
    server = TlsZooKeeper(authority.issue("zookeeper", hosts=("127.0.0.1",)))
    server.start(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


def tree(hosts: str, tls: Tls | None, timeout_s: float = 8.0) -> ZooKeeperTree:
    made = ZooKeeperTree((hosts,), timeout_s=timeout_s, session_timeout_s=10.0, tls=tls)
    made.connect()
    return made


def test_a_store_works_over_tls(zookeeper: TlsZooKeeper, authority: Authority) -> None:
    tls = authority.issue("client").tls()
    store = open_store(f"zk://{zookeeper.secure}/ledgers", tls=tls)
    try:
        store.initialize_cluster()
        assert store.instance_id()
    finally:
        store.close()
    plain, secure = tree(zookeeper.connect_string, None), tree(zookeeper.secure, tls)
    try:
        plain.create("/many")
        for n in range(300):
            plain.create(f"/many/{n}", b"x" * 100)
        found = secure.get_many([f"/many/{n}" for n in range(300)])
        assert all(each is not None and each[0] == b"x" * 100 for each in found)
    finally:
        plain.close()
        secure.close()


def test_an_answer_that_openssl_has_decrypted_counts_as_ready(authority: Authority) -> None:
    """Two answers came in one record, and the first one was taken: nothing more comes on the socket."""
    tls = authority.issue("both").tls()
    here, there = socket.socketpair()

    def accept() -> ssl.SSLSocket:
        accepted = tls.server().wrap_socket(there, server_side=True)
        accepted.send(b"first" + b"second")
        return accepted

    accepting = in_thread(accept)
    client = tls.client().wrap_socket(here, server_hostname="localhost")
    server = accepting.result(10)
    handler = BoundedHandler(5.0, lambda: True, lambda: None, tls=tls)
    assert client.recv(5) == b"first"
    began = time.monotonic()
    assert handler.select([client], [], [], 5.0)[0] == [client]
    assert time.monotonic() - began < 1
    assert client.recv(100) == b"second"
    assert handler.select([client], [], [], 0.01)[0] == []
    for each in (client, server):
        each.close()


def test_a_server_that_is_not_to_be_believed_is_named_with_the_reason(
    zookeeper: TlsZooKeeper, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "other").issue("client")
    began = time.monotonic()
    with pytest.raises(TlsError, match="authority that is not known") as raised:
        tree(zookeeper.secure, stranger.tls())
    assert "ZooKeeper at 127.0.0.1:" in str(raised.value)
    port = zookeeper.secure.rpartition(":")[2]
    with pytest.raises(TlsError, match="of another host"):
        tree(f"localhost:{port}", authority.issue("client").tls())
    assert time.monotonic() - began < 6, "it is known at once"
    tree(f"localhost:{port}", authority.issue("client").tls(verify_host=False)).close()


def test_a_server_without_tls_is_not_spoken_to_in_plain(zookeeper: TlsZooKeeper, authority: Authority) -> None:
    with pytest.raises(TlsError, match="TLS"):
        tree(zookeeper.connect_string, authority.issue("client").tls(), timeout_s=2.0)


def test_a_client_without_the_certificate_that_the_server_wants_gets_no_session(
    zookeeper: TlsZooKeeper, authority: Authority
) -> None:
    trust = authority.issue("client").trust()
    with pytest.raises((TlsError, MetadataUnavailableError)):
        tree(zookeeper.secure, trust, timeout_s=3.0)


def test_a_renewed_certificate_is_taken_by_the_next_connection(
    zookeeper: TlsZooKeeper, authority: Authority, tmp_path: Path
) -> None:
    client = authority.issue("renewed")
    opened = tree(zookeeper.secure, client.tls())
    try:
        opened.create("/renewed")
        session = opened.session_id
        client.become(authority.issue("newer"))
        opened._handler.cut_if_silent(-1.0)
        deadline = time.monotonic() + 8
        while True:
            try:
                assert opened.exists("/renewed") is not None
                break
            except MetadataUnavailableError:
                assert time.monotonic() < deadline
        assert opened.session_id == session
    finally:
        opened.close()
