# SPDX-License-Identifier: Apache-2.0
"""Who we are to a real ZooKeeper: digest, SASL and certificates, what each role may do, and what a refusal says."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bk_core.access.tls import Tls
from bk_core.access.zookeeper_acl import ALL, FIRST_FOLDERS, AclGrant
from bk_core.errors import InvalidArgumentError, MetadataAccessError, MetadataUnavailableError, Outcome
from bk_core.metadata import open_store, open_tree
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.zookeeper.session import ZooKeeperTree
from bk_core.model import BookieServiceInfo
from tests.kit.certificates import Authority
from tests.kit.metadata_worlds import a_ledger
from tests.kit.zookeeper_auth import AuthZooKeeper, credentials

pytestmark = pytest.mark.zookeeper
USERS = {"app": "one", "bookie": "two", "ops": "three"}
LIST = "client=sasl:app; bookie=sasl:bookie; admin=sasl:ops"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def zookeeper(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthZooKeeper]:
    server = AuthZooKeeper(authority.issue("zookeeper", hosts=("127.0.0.1",)), USERS)
    server.start(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


def tree(hosts: str, auth_path: str = "", acl: str = "creator", tls: Tls | None = None) -> ZooKeeperTree:
    uri = f"zk://{hosts}/ledgers"
    return open_tree(uri, timeout_s=6.0, session_timeout_s=6.0, tls=tls, auth_path=auth_path, acl=acl)


def store(server: AuthZooKeeper, root: str, auth_path: str = "", acl: str = LIST) -> MetadataStore:
    return open_store(f"zk://{server.connect_string}/{root}", timeout_s=6.0, auth_path=auth_path, acl=acl)


@pytest.mark.parametrize(
    ("lines", "secure", "grants"),
    [
        (("sasl:app:one",), False, [("sasl", "app")]),
        (("digest:app:pw",), False, [("digest", "app:ZUmrOH+NqIBTBJgKHGgQPRrLd34=")]),
        ((), True, [("x509", "CN=client,O=Example")]),
    ],
)
def test_a_node_belongs_to_the_identity_that_created_it(
    zookeeper: AuthZooKeeper,
    authority: Authority,
    tmp_path: Path,
    lines: tuple[str, ...],
    secure: bool,
    grants: list[tuple[str, str]],
) -> None:
    path = credentials(tmp_path / "auth", *lines) if lines else ""
    hosts, tls = (zookeeper.secure, authority.issue("client").tls()) if secure else (zookeeper.connect_string, None)
    with closing(tree(hosts, path, tls=tls)) as owner, closing(tree(zookeeper.connect_string, acl="open")) as stranger:
        made = owner.create("/owned-", b"secret", sequential=True)
        assert owner.acls([made, "/nothing"]) == [(tuple(AclGrant(ALL, *each) for each in grants), 0), None]
        for forbidden in (
            lambda: stranger.get(made),
            lambda: stranger.set(made, b"x", 0),
            lambda: stranger.children(made),
            lambda: stranger.create(f"{made}/child"),
        ):
            with pytest.raises(MetadataAccessError, match="zookeeper_auth_path") as refused:
                forbidden()
            assert refused.value.outcome is Outcome.NOT_APPLIED
            assert made in refused.value.value
        assert owner.get(made)[0] == b"secret"


def test_a_wrong_password_is_told_at_once_and_by_the_file_that_has_it(zookeeper: AuthZooKeeper, tmp_path: Path) -> None:
    path, began = credentials(tmp_path / "auth", "sasl:app:wrong"), time.monotonic()
    with pytest.raises(MetadataAccessError, match=path):
        tree(zookeeper.connect_string, path)
    assert time.monotonic() - began < 3


def test_a_session_without_an_identity_cannot_own_a_node(zookeeper: AuthZooKeeper) -> None:
    with closing(tree(zookeeper.connect_string)) as nobody, pytest.raises(MetadataAccessError, match="creator"):
        nobody.create("/mine")


def test_a_server_without_sasl_is_named_as_the_reason(authority: Authority, tmp_path: Path) -> None:
    server = AuthZooKeeper(authority.issue("zookeeper", hosts=("127.0.0.1",)), {})
    server.start(tmp_path / "zookeeper")
    try:
        with pytest.raises(MetadataUnavailableError, match="not set up for SASL"):
            tree(server.connect_string, credentials(tmp_path / "auth", "sasl:app:one"))
    finally:
        server.stop()


def test_the_identity_is_presented_again_after_a_loss_and_from_a_file_that_was_changed(
    authority: Authority, tmp_path: Path
) -> None:
    server = AuthZooKeeper(authority.issue("zookeeper", hosts=("127.0.0.1",)), USERS)
    server.start(tmp_path / "zookeeper")
    path = credentials(tmp_path / "auth", "digest:app:old")
    try:
        with closing(tree(server.connect_string, path)) as owner:
            old = owner.create("/old", b"old")
            credentials(tmp_path / "auth", "digest:app:old", "digest:app:new")
            server.stop()
            server.start(tmp_path / "zookeeper", server.port)
            until = time.monotonic() + 20
            while True:
                try:
                    assert owner.get(old)[0] == b"old"
                    break
                except MetadataUnavailableError:
                    assert time.monotonic() < until
            new = owner.create("/new")
            found = owner.acls([new])[0]
            assert found is not None
            assert len(found[0]) == 2, "it has both identities now"
    finally:
        server.stop()


def test_roles_bound_what_a_client_may_and_a_stranger_may_nothing(zookeeper: AuthZooKeeper, tmp_path: Path) -> None:
    root = f"roles-{os.getpid()}"
    paths = {name: credentials(tmp_path / name, f"sasl:{name}:{password}") for name, password in USERS.items()}
    info = BookieServiceInfo("b1", (), {})
    with (
        closing(store(zookeeper, root, paths["ops"])) as ops,
        closing(store(zookeeper, root, paths["bookie"])) as bookie,
        closing(store(zookeeper, root, paths["app"])) as client,
        closing(store(zookeeper, root)) as stranger,
    ):
        ops.initialize_cluster()
        bookie.register_bookie(info)
        bookie.write_cookie("b1", b"cookie", None)
        ledger_id, made = client.create_ledger(a_ledger())
        client.write_ledger(ledger_id, made.value, made.version)
        client.mark_underreplicated(ledger_id, ("b1",))
        log = client.create_log("events", b"head")
        assert log.version == 0
        assert bookie.read_ledger(ledger_id).value.fragments == made.value.fragments
        for forbidden in (
            lambda: client.write_cookie("b2", b"cookie", None),
            lambda: client.delete_cookie("b1"),
            lambda: client.register_bookie(BookieServiceInfo("b2", (), {})),
            lambda: client.lock_underreplicated(ledger_id, "me"),
            lambda: client.enable_replication(False),
            lambda: stranger.instance_id(),
            lambda: stranger.read_ledger(ledger_id),
            lambda: stranger.delete_ledger(ledger_id),
            lambda: stranger.create_ledger(a_ledger()),
            lambda: list(stranger.list_ledgers()),
            lambda: stranger.read_log("events"),
        ):
            with pytest.raises(MetadataAccessError) as refused:
                forbidden()
            assert refused.value.outcome is Outcome.NOT_APPLIED
        with pytest.raises(MetadataAccessError):
            stranger.writable_bookies()
        assert bookie.lock_underreplicated(ledger_id, "b1")
        client.delete_ledger(ledger_id)
        ops.enable_replication(False)
        assert list(client.writable_bookies()) == ["b1"]


def test_a_cluster_of_roles_has_its_folders_from_the_start(zookeeper: AuthZooKeeper, tmp_path: Path) -> None:
    root, path = f"folders-{os.getpid()}", credentials(tmp_path / "ops", "sasl:ops:three")
    with closing(store(zookeeper, root, path)) as ops, closing(tree(zookeeper.connect_string, path)) as looking:
        ops.initialize_cluster()
        assert None not in looking.acls([f"/{root}{folder}" for folder in FIRST_FOLDERS])


def test_sasl_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidArgumentError, match=r"\[sasl\]"):
        open_tree(
            "zk://127.0.0.1:1/ledgers", timeout_s=1, session_timeout_s=1, tls=None, acl="open",
            auth_path=credentials(tmp_path / "auth", "sasl:app:one"),
        )  # fmt: skip
