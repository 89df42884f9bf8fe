# SPDX-License-Identifier: Apache-2.0
"""Who may do what to which node of ZooKeeper, and every node that the code creates is one that the table knows."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from bk_cli.access import Access
from bk_core.access.roles import RolesTable
from bk_core.access.zookeeper_acl import (
    _RULES,
    ALL,
    BESIDE_ROOT,
    CREATOR_ACL,
    FIRST_FOLDERS,
    OPEN_ACL,
    READ,
    WRITE,
    AclGrant,
    kind_of,
    may_change,
    parse_acl,
)
from bk_core.client import ClientConfig
from bk_core.errors import InvalidArgumentError
from bk_core.metadata.layout import Layout, ServiceUri, ledger_path, lock_path, mark_path
from bk_core.metadata.port import Audit
from bk_core.metadata.records import BookieOrder, Order
from bk_core.metadata.tree.store import TreeStore
from bk_core.metadata.tree.tree import Create, Op
from bk_core.metadata.zookeeper.identity import ZooKeeperIdentity, read_credentials
from bk_core.model import BookieServiceInfo, Fragment, LedgerMetadata
from bk_spark.options.options import Use, parse_options
from bk_spark.workers.clients import client_config
from bookie_server.config import BookieConfig
from tests.kit.memory_store import MemoryCluster, MemoryTree
from tests.kit.zookeeper_auth import credentials

ROOT = "/a/ledgers"
LIST = "client=sasl:app; bookie=sasl:bk; auditor=sasl:aud; admin=sasl:ops"
RIGHTS = {
    "/a": ("rc", "rc", "rc"),
    ROOT: ("rc", "rc", "rc"),
    f"{ROOT}/INSTANCEID": ("r", "r", "r"),
    f"{ROOT}/LAYOUT": ("r", "r", "r"),
    f"{ROOT}/available": ("r", "rcd", "r"),
    f"{ROOT}/available/readonly": ("r", "rcd", "r"),
    f"{ROOT}/available/127.0.0.1:3181": ("r", "rw", "r"),
    f"{ROOT}/available/readonly/b1": ("r", "rw", "r"),
    f"{ROOT}/cookies": ("r", "rcd", "r"),
    f"{ROOT}/cookies/b1": ("r", "rw", "r"),
    f"{ROOT}/idgen": ("rcd", "rcd", "rcd"),
    f"{ROOT}/idgen/ID-": ("r", "r", "r"),
    f"{ROOT}/idgen-long/HOB-0000000001": ("rcd", "rcd", "rcd"),
    f"{ROOT}/ID-0000000007": ("r", "r", "r"),
    f"{ROOT}{ledger_path(Layout.HIERARCHICAL, 7)}": ("rw", "rw", "rw"),
    f"{ROOT}{ledger_path(Layout.LONG_HIERARCHICAL, 7)}": ("rw", "rw", "rw"),
    f"{ROOT}{ledger_path(Layout.FLAT, 7)}": ("rw", "rw", "rw"),
    f"{ROOT}/00/0000": ("rcd", "rcd", "rcd"),
    f"{ROOT}/000/0000/0000/0000": ("rcd", "rcd", "rcd"),
    f"{ROOT}/underreplication": ("r", "rc", "rc"),
    f"{ROOT}/underreplication/disable": ("r", "r", "r"),
    f"{ROOT}/underreplication/checkallledgersctime": ("r", "rw", "rw"),
    f"{ROOT}/underreplication/ledgers/0000": ("rc", "rcd", "rcd"),
    f"{ROOT}/underreplication/ledgers{mark_path(7)}": ("rw", "rw", "rw"),
    f"{ROOT}{lock_path(7)}": ("r", "rw", "rw"),
    f"{ROOT}/underreplication/auditorelection": ("r", "rwcd", "rwcd"),
    f"{ROOT}/underreplication/auditorelection/V_": ("r", "r", "r"),
    f"{ROOT}-bookies/b1": ("r", "rw", "r"),
    f"{ROOT}-orders/b1": ("r", "r", "r"),
    f"{ROOT}-upkeep/election/V_0000000001": ("r", "r", "r"),
    f"{ROOT}-upkeep/record": ("r", "rw", "rw"),
    f"{ROOT}-logs": ("rcd", "rcd", "rcd"),
    f"{ROOT}-logs/events/txns/x": ("rwcd", "rwcd", "rwcd"),
    f"{ROOT}-security/roles": ("r", "r", "r"),
    f"{ROOT}-of-a-later-version": ("r", "r", "r"),
    "/elsewhere": ("r", "r", "r"),
}
_LETTERS = {"r": 1, "w": 2, "c": 4, "d": 8}


@pytest.mark.parametrize("path", RIGHTS)
def test_a_list_gives_each_role_its_rights_on_each_node(path: str) -> None:
    expected = [
        AclGrant(sum(_LETTERS[letter] for letter in letters), "sasl", name)
        for letters, name in zip(RIGHTS[path], ("app", "bk", "aud"), strict=True)
    ]
    assert parse_acl(LIST).of(path, ROOT) == (*expected, AclGrant(ALL, "sasl", "ops"))


def test_open_and_creator_are_apaches_and_hold_everywhere() -> None:
    for path in RIGHTS:
        assert parse_acl("open").of(path, ROOT) == parse_acl("").of(path, ROOT) == OPEN_ACL
        assert parse_acl("creator").of(path, ROOT) == CREATOR_ACL == (AclGrant(31, "auth", ""),)


def test_who_has_several_roles_has_the_rights_of_all() -> None:
    both = parse_acl(r"bookie=x509:CN=a\;b,O=E; client=x509:CN=a\;b,O=E; admin=sasl:ops")
    assert both.of(f"{ROOT}/cookies", ROOT)[0] == AclGrant(1 | 4 | 8, "x509", r"CN=a\;b,O=E")


@pytest.mark.parametrize(
    "text",
    [
        "closed",
        "client=sasl:a",
        "client=sasl:a; bookie=sasl:b",
        "client=world:anyone; bookie=sasl:b; admin=sasl:c",
        "writer=sasl:a; client=sasl:a; bookie=sasl:b; admin=sasl:c",
        f"client=sasl:{'x' * 1000}; bookie=sasl:b; admin=sasl:c",
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="zookeeper_acl"):
        parse_acl(text)


def test_credentials_are_read_anew_and_stay_as_they_were_while_the_file_cannot_be_used(tmp_path: Path) -> None:
    identity = ZooKeeperIdentity(credentials(tmp_path / "auth", "digest:app:first"))
    assert [each.password for each in identity.credentials] == ["first"]
    credentials(tmp_path / "auth", "digest:app:second")
    identity.refresh()
    assert [each.password for each in identity.credentials] == ["second"]
    credentials(tmp_path / "auth", "half a li")
    identity.refresh()
    assert [each.password for each in identity.credentials] == ["second"]


def test_no_error_shows_a_password(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parse_acl("client=digest:app:canary; bookie=sasl:b; admin=sasl:c")
    assert "canary" not in str(refused.value)
    for line in ("digest:canary", "plain:app:canary", "digest::canary", "canary"):
        with pytest.raises(InvalidArgumentError, match="line 2") as refused:
            read_credentials(credentials(tmp_path / "auth", line))
        assert "canary" not in str(refused.value)
    (read,) = read_credentials(credentials(tmp_path / "auth", "digest:app:canary:with:colons"))
    assert read.password == "canary:with:colons"
    assert "canary" not in repr(read) + read.name


def test_folders_that_are_made_in_advance_are_known_and_those_beside_the_root_are_all() -> None:
    for folder in FIRST_FOLDERS:
        assert kind_of(ROOT + folder, ROOT) != "nodes of unknown kind", folder
    source = "".join(path.read_text() for path in Path("bk_core/metadata/tree").rglob("*.py"))
    found = {
        f"-{each.split('}-')[1].split('/')[0].split(chr(34))[0]}"
        for each in source.split("{self._root")[1:]
        if each.startswith("}-")
    }
    assert found == set(BESIDE_ROOT)


def test_every_node_that_the_store_creates_is_in_the_table() -> None:
    """Every place in the store that creates a node is run here, and each path made there is one that a rule names."""
    made: dict[str, set[str]] = {}

    class Recording(MemoryTree):
        def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
            made.setdefault(kind_of(path, ROOT), set()).add(path)
            return super().create(path, data, ephemeral=ephemeral, sequential=sequential)

        def multi(self, ops: Sequence[Op]) -> list[str]:
            for op in ops:
                if isinstance(op, Create):
                    made.setdefault(kind_of(op.path, ROOT), set()).add(op.path)
            return super().multi(ops)

    with closing(
        TreeStore(
            Recording(MemoryCluster(), timeout_s=5, session_timeout_s=5), ServiceUri(("h:1",), ROOT), FIRST_FOLDERS
        )
    ) as store:
        store.initialize_cluster()
        record = LedgerMetadata(
            ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, fragments=(Fragment(0, ("b1",)),)
        )
        for ledger_id in (None, 7, 2**40):
            store.create_ledger(record, ledger_id)
        for read_only in (False, True):
            store.register_bookie(BookieServiceInfo("b1"), read_only=read_only)
        store.write_cookie("b1", b"c", None)
        store.write_bookie_state("b1", b"s", None)
        store.write_bookie_order("b1", BookieOrder(Order.DRAIN, 0))
        store.mark_underreplicated(7, ("b1",))
        store.lock_underreplicated(7, "me")
        store.vote_for_auditor("me")
        store.vote_for_upkeep("me")
        store.write_upkeep_record(b"r", None)
        store.write_roles(RolesTable(), None)
        store.enable_replication(False)
        store.set_lost_bookie_recovery_delay_s(1)
        for audit in Audit:
            store.write_audit_time_ms(audit, 1)
        store.create_log("events", b"head")
        store.create_page("events", "p1", b"page")
        store.create_deleted_log("12345678", b"record")
    assert "nodes of unknown kind" not in made, made["nodes of unknown kind"]
    kinds = {kind for kind, *_ in _RULES}
    assert sorted(kinds - set(made)) == [], "rules of which no node is created"


def test_whatever_creates_a_node_gives_it_an_acl() -> None:
    """Only the session speaks to kazoo, and each of its calls that create a node has an ACL as an argument."""
    tree = ast.parse(Path("bk_core/metadata/zookeeper/session.py").read_text())
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("create", "create_async", "ensure_path", "ensure_path_async")
    ]
    assert sorted(call.func.attr for call in calls if isinstance(call.func, ast.Attribute)) == [
        "create",
        "create_async",
    ]
    assert all(len(call.args) == 3 for call in calls)


@pytest.mark.parametrize("word", ["creator", LIST])
def test_every_way_to_give_the_settings_leads_to_the_same_session(word: str) -> None:
    uri, path = "zk://h:1/ledgers", "/etc/bookkeeper/zookeeper.auth"
    bookie = BookieConfig(
        metadata_service_uri=uri, data_dir=Path("d"), zookeeper_auth_path=Path(path), zookeeper_acl=word
    )
    given = {"zookeeper_auth_path": path, "zookeeper_acl": word}
    spark = parse_options(
        {"metadataServiceUri": uri, "log": "events", "zookeeper.auth.path": path, "zookeeper.acl": word}, Use.READ
    )
    found = [
        each.store_settings()
        for each in (
            bookie,
            ClientConfig(**bookie.client_settings()),
            Access(uri, settings=given).config(),
            client_config(spark),
        )
    ]
    assert [(each["auth_path"], each["acl"]) for each in found] == [(path, word)] * 4


def test_a_node_is_open_to_change_only_if_every_client_has_a_right_to_change_it() -> None:
    everybody, app = ("world", "anyone"), ("sasl", "app")
    assert may_change([AclGrant(ALL, *everybody)])
    assert may_change([AclGrant(READ, *app), AclGrant(READ | WRITE, *everybody)])
    assert not may_change([AclGrant(READ, *everybody), AclGrant(ALL, *app)])
    assert not may_change([])
