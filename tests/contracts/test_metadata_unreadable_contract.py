# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with nodes that it cannot read: each is skipped and named, and nothing else stops
(M6); what a later version wrote into another's record stays there (M4)."""

from __future__ import annotations

import logging

import pytest

from bk_core.cluster.unreadable import find_unreadable
from bk_core.errors import MetadataCorruptError
from bk_core.logs.model.deleted import encode_deleted_log
from bk_core.logs.model.head import LogHead
from bk_core.logs.store import deleted_logs
from bk_core.metadata.layout import Layout, ledger_path, mark_path
from bk_core.metadata.port import Audit, MetadataStore
from bk_core.metadata.records import BookieOrder, Order
from bk_core.metadata.scan import scan_ledgers
from bk_core.metadata.tree.tree import ANY_VERSION, ensure_path
from bk_core.metadata.unreadable import NodeKind
from bk_core.model import BookieServiceInfo, LedgerId
from tests.kit.metadata_worlds import MetadataWorld, a_ledger, tree_of
from tests.kit.waiting import until

GARBAGE = [b"\xff\xfe\x00", b"garbage", b'replica: "b1', b'replica: "\\377"', b"replica: 3", b"ctime: x", b"f{" * 5000]


def put(store: MetadataStore, path: str, data: bytes) -> str:
    """Write a node as another program would leave it."""
    tree = tree_of(store)
    ensure_path(tree, path.rpartition("/")[0])
    if tree.exists(path) is None:
        tree.create(path, data)
    else:
        tree.set(path, data, ANY_VERSION)
    return path


def mark_at(world: MetadataWorld, ledger_id: LedgerId) -> str:
    return f"{world.root}/underreplication/ledgers{mark_path(ledger_id)}"


def unreadable(store: MetadataStore) -> dict[str, NodeKind]:
    return {node.path: node.kind for node in store.unreadable.nodes()}


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda data: repr(data[:12]))
@pytest.mark.rule("M6")
def test_mark_that_cannot_be_read_is_named_and_hides_no_other(
    metadata_world: MetadataWorld, store: MetadataStore, garbage: bytes
) -> None:
    for ledger_id in (5, 6, 2**40):
        store.mark_underreplicated(ledger_id, ["b1:3181"])
    bad = put(store, mark_at(metadata_world, 6), garbage)
    assert dict(store.list_underreplicated()) == {5: ("b1:3181",), 2**40: ("b1:3181",)}
    assert unreadable(store) == {bad: NodeKind.MARK}
    for look in (store.read_underreplicated, lambda ledger_id: store.mark_underreplicated(ledger_id, ["b2:3181"])):
        with pytest.raises(MetadataCorruptError, match=bad):
            look(6)
    assert tree_of(store).get(bad)[0] == garbage, "a later version may have written it"


@pytest.mark.parametrize("unknown", [b'newField: "x"\n', b"newField { a: 1 b: [2, 3] }\n", b"17: 4", b"# a comment"])
@pytest.mark.rule("M4")
def test_fields_of_a_later_version_stay_in_a_mark_that_we_extend(
    metadata_world: MetadataWorld, store: MetadataStore, unknown: bytes
) -> None:
    written = b'replica: "b1:3181"\nctime: 17\n' + unknown
    path = put(store, mark_at(metadata_world, 5), written)
    assert dict(store.list_underreplicated()) == {5: ("b1:3181",)}
    store.mark_underreplicated(5, ["b2:3181", "b1:3181"])
    data, stat = tree_of(store).get(path)
    assert data.startswith(written)
    assert stat.version == 1
    store.mark_underreplicated(5, ["b2:3181"])
    assert tree_of(store).get(path)[0] == data, "each bookie is named once"
    found = store.read_underreplicated(5)
    assert found is not None
    assert (found.value.missing, found.value.ctime_ms) == (("b1:3181", "b2:3181"), 17)
    assert unreadable(store) == {}


@pytest.mark.rule("M6")
def test_empty_mark_is_a_mark_that_names_nobody(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    put(store, mark_at(metadata_world, 5), b"")
    assert dict(store.list_underreplicated()) == {5: ()}
    store.mark_underreplicated(5, ["b1:3181"])
    assert dict(store.list_underreplicated()) == {5: ("b1:3181",)}


@pytest.mark.rule("M6")
def test_lock_that_cannot_be_read_is_a_lock_and_hides_no_other(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    assert store.lock_underreplicated(5, "host1")
    bad = put(store, f"{metadata_world.root}/underreplication/locks/urL0000000006", b"\x00garbage")
    put(store, f"{metadata_world.root}/underreplication/locks/urL0000000007", b'bookieId: "x"\nnewField: 1\n')
    assert store.underreplication_locks() == {5: "host1", 6: "", 7: "x"}
    assert unreadable(store) == {bad: NodeKind.LOCK}
    assert store.lock_underreplicated(6, "host1") is False


@pytest.mark.rule("M6")
def test_settings_and_votes_of_auditors_that_cannot_be_read_stop_no_auditor(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    folder = f"{metadata_world.root}/underreplication"
    bad = [
        put(store, f"{folder}/lostBookieRecoveryDelay", b"ten minutes"),
        put(store, f"{folder}/{Audit.LEDGERS.value}", b"\xff"),
    ]
    bad.append(put(store, f"{folder}/auditorelection/V_0000000000", b"garbage"))
    assert store.lost_bookie_recovery_delay_s() is None
    assert store.audit_time_ms(Audit.LEDGERS) is None
    assert "cannot be read" in str(store.current_auditor()), "somebody is elected"
    assert store.vote_for_auditor("host1") is False
    assert sorted(unreadable(store)) == sorted(bad)
    store.set_lost_bookie_recovery_delay_s(600)
    store.write_audit_time_ms(Audit.LEDGERS, 17)
    assert (store.lost_bookie_recovery_delay_s(), store.audit_time_ms(Audit.LEDGERS)) == (600, 17)
    assert sorted(unreadable(store)) == bad[2:], "what can be read again is not named"


@pytest.mark.rule("M4")
def test_fields_of_a_later_version_stay_in_the_time_of_an_audit(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    path = put(store, f"{metadata_world.root}/underreplication/{Audit.LEDGERS.value}", b"\x08\x05\x78\x07")
    assert store.audit_time_ms(Audit.LEDGERS) == 5
    store.write_audit_time_ms(Audit.LEDGERS, 6)
    assert tree_of(store).get(path)[0] == b"\x08\x06\x78\x07"


@pytest.mark.rule("M6")
def test_order_cookie_and_registration_that_cannot_be_read_hide_no_other(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    root = metadata_world.root
    store.write_bookie_order("b1", BookieOrder(Order.DRAIN, 1))
    store.register_bookie(BookieServiceInfo("b1"))
    store.register_bookie(BookieServiceInfo("b2"), read_only=True)
    cookie = b'4\nbookieHost: "b1"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\n'
    store.write_cookie("b1", cookie, None)
    bad = {
        put(store, f"{root}-orders/bad", b'{"v":2}'): NodeKind.ORDER,
        put(store, f"{root}/cookies/bad", b"6\n"): NodeKind.COOKIE,
        put(store, f"{root}/available/bad", b"\xff\xff"): NodeKind.REGISTRATION,
        put(store, f"{root}/available/readonly/worse", b"\xff\xff"): NodeKind.REGISTRATION,
    }
    assert list(store.bookie_orders()) == ["b1"]
    assert list(store.cookies()) == ["b1"]
    until(lambda: list(store.writable_bookies()) == ["b1"] and list(store.read_only_bookies()) == ["b2"])
    assert store.known_bookies() == ["b1", "bad"]
    assert unreadable(store) == bad
    for look, path in ((store.read_bookie_order, f"{root}-orders/bad"), (store.bookie_info, f"{root}/available/bad")):
        with pytest.raises(MetadataCorruptError, match=path):
            look("bad")
    store.write_bookie_order("bad", BookieOrder(Order.READ_ONLY, 1))
    for path in bad:
        if "orders" not in path:
            tree_of(store).delete(path)
    assert set(store.bookie_orders()) == {"b1", "bad"}
    until(lambda: (store.writable_bookies(), store.read_only_bookies(), store.cookies()) and not store.unreadable)


@pytest.mark.rule("M6")
def test_ledger_record_that_cannot_be_read_is_named_until_it_is_gone(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    for ledger_id in (5, 6, 7):
        store.create_ledger(a_ledger(), ledger_id)
    bad = put(store, metadata_world.root + ledger_path(Layout.HIERARCHICAL, 6), b"garbage")
    found = dict(scan_ledgers(store))
    assert [isinstance(found[ledger_id], MetadataCorruptError) for ledger_id in (5, 6, 7)] == [False, True, False]
    assert bad in str(found[6])
    assert unreadable(store) == {bad: NodeKind.LEDGER}
    assert list(store.list_ledgers()) == [5, 6, 7]
    assert unreadable(store) == {bad: NodeKind.LEDGER}, "it is still there"
    metadata_world.open().delete_ledger(6)
    until(lambda: list(store.list_ledgers()) == [5, 7] and not store.unreadable)


@pytest.mark.rule("M6")
def test_node_that_is_no_log_hides_no_log(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    store.create_log("events", b"head")
    put(store, f"{metadata_world.root}-logs/.hidden", b"")
    assert store.list_logs() == ["events"]


@pytest.mark.rule("M6")
def test_unreadable_node_is_logged_once_and_not_at_every_walk(
    metadata_world: MetadataWorld, store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.mark_underreplicated(5, ["b1:3181"])
    bad = put(store, mark_at(metadata_world, 6), b"garbage")
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            assert dict(store.list_underreplicated()) == {5: ("b1:3181",)}
    (line,) = [record.getMessage() for record in caplog.records if bad in record.getMessage()]
    assert line.startswith(f"the under-replication mark at {bad} cannot be read and is skipped: ")
    assert line.endswith("delete it: a ledger that lacks copies is marked again")


@pytest.mark.rule("M6")
def test_record_of_a_deleted_log_that_cannot_be_read_hides_no_other(store: MetadataStore) -> None:
    first, bad = "11111111-9abc-def0-1234-56789abcdef0", "22222222-9abc-def0-1234-56789abcdef0"
    store.create_deleted_log(first, encode_deleted_log("events", LogHead(uuid=first, is_deleted=True)))
    store.create_deleted_log(bad, b"garbage")
    assert [each.uuid for each in deleted_logs(store)] == [first]
    path = store.deleted_log_path(bad)
    assert unreadable(store) == {path: NodeKind.DELETED_LOG}
    assert [node.path for node in find_unreadable(store, 10).nodes] == [path]
    store.forget_deleted_log(bad)
    assert len(deleted_logs(store)) == 1
    assert unreadable(store) == {}
