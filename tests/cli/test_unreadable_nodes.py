# SPDX-License-Identifier: Apache-2.0
"""What commands say of nodes that cannot be read: each is named by its path, and all else is shown (M6)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator

import pytest

from bk_cli import main
from bk_core.cluster.unreadable import find_unreadable
from bk_core.logs.store import LogStore
from bk_core.metadata import open_store
from bk_core.metadata.layout import Layout, ledger_path, lock_path, mark_path
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import BookieOrder, Order
from bk_core.metadata.unreadable import NodeKind
from bk_core.model import BookieServiceInfo
from tests.kit.metadata_worlds import a_ledger, tree_of

MARK, LOCK, RECORD = mark_path(5), lock_path(6), ledger_path(Layout.HIERARCHICAL, 7)


@pytest.fixture
def store() -> Iterator[MetadataStore]:
    """Three ledgers that are marked: the mark of 5, the lock of 6 and the record of 7 cannot be read."""
    opened = open_store(f"memory://{uuid.uuid4().hex}")
    opened.initialize_cluster()
    opened.register_bookie(BookieServiceInfo("b1"))
    for ledger_id in (5, 6, 7, 8):
        opened.create_ledger(a_ledger(), ledger_id)
        opened.mark_underreplicated(ledger_id, ["b1"])
    tree = tree_of(opened)
    tree.set(f"/ledgers/underreplication/ledgers{MARK}", b"garbage", -1)
    tree.create(f"/ledgers{LOCK}", b"\xff")
    tree.set(f"/ledgers{RECORD}", b"garbage", -1)
    yield opened
    opened.close()


@pytest.fixture
def bk(store: MetadataStore, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.run([*arguments, "--metadata-service-uri", store.uri])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


Bk = Callable[..., tuple[int, str, str]]


@pytest.mark.rule("M6")
def test_replication_status_shows_the_other_marks_and_names_what_cannot_be_read(bk: Bk) -> None:
    code, out, err = bk("replication", "status", "--json")
    *marks, facts = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [mark["ledgerId"] for mark in marks] == [6, 7, 8]
    assert [node["path"] for node in facts["unreadable"]] == [
        f"/ledgers/underreplication/ledgers{MARK}",
        f"/ledgers{LOCK}",
    ]
    assert facts["unreadableCount"] == 2
    assert (MARK in err, LOCK in err) == (True, True)
    code, out, err = bk("replication", "status")
    assert (code, MARK in err) == (0, True)
    assert "nodes that cannot be read" in out


@pytest.mark.rule("M6")
def test_bookie_list_shows_the_bookies_and_names_the_mark(bk: Bk, store: MetadataStore) -> None:
    tree_of(store).create("/ledgers/available/b2", b"\xff\xff")
    code, out, err = bk("bookie", "list", "--json")
    rows = {row["bookieId"]: row for row in map(json.loads, out.splitlines())}
    assert (rows["b1"]["state"], rows["b1"]["underReplicated"], rows["b1"]["unreadableMarks"]) == ("writable", 3, 1)
    assert rows["b2"]["state"] == "unreadable", "it is there: it is neither away nor lost"
    assert (MARK in err, "/ledgers/available/b2" in err) == (True, True)
    assert code == 0


@pytest.mark.rule("M6")
def test_ledger_explain_says_that_the_mark_of_the_ledger_cannot_be_read(bk: Bk) -> None:
    code, out, _ = bk("ledger", "explain", "5", "--json")
    (found,) = [each for each in json.loads(out)["findings"] if MARK in each["what"]]
    assert (code, found["weight"]) == (0, "problem")
    assert "else delete it" in found["remedy"]
    code, out, _ = bk("ledger", "explain", "6")
    assert (code, LOCK in out) == (0, True)
    code, out, _ = bk("ledger", "explain", "8")
    assert (code, "cannot be read" in out) == (0, False)


@pytest.mark.rule("M6")
def test_ledger_list_prints_every_good_record_and_ends_with_six(bk: Bk) -> None:
    code, out, err = bk("ledger", "list", "--json")
    assert code == 6
    assert [json.loads(line)["ledgerId"] for line in out.splitlines()] == [5, 6, 8]
    assert RECORD in err


@pytest.mark.rule("M6")
def test_doctor_names_every_node_that_cannot_be_read(bk: Bk, store: MetadataStore) -> None:
    tree = tree_of(store)
    store.create_log("events", b"garbage")
    tree.create("/ledgers/underreplication/lostBookieRecoveryDelay", b"soon")
    tree.create("/ledgers-orders", b"")
    tree.create("/ledgers-orders/b9", b"garbage")
    store.write_cookie("b9", b"garbage", None)
    found = {node.path: node.kind for node in find_unreadable(store, 10).nodes}
    assert found == {
        f"/ledgers/underreplication/ledgers{MARK}": NodeKind.MARK,
        f"/ledgers{LOCK}": NodeKind.LOCK,
        f"/ledgers{RECORD}": NodeKind.LEDGER,
        "/ledgers-logs/events": NodeKind.LOG,
        "/ledgers/underreplication/lostBookieRecoveryDelay": NodeKind.DELAY,
        "/ledgers-orders/b9": NodeKind.ORDER,
        "/ledgers/cookies/b9": NodeKind.COOKIE,
    }
    assert not find_unreadable(store, -1).is_whole
    code, out, _ = bk("doctor", "--json")
    told = [each for each in map(json.loads, out.splitlines()) if each["check"] == "nodes"]
    assert code != 0
    assert {each["status"] for each in told} == {"fail"}
    assert all(any(path in each["text"] for each in told) for path in found)


@pytest.mark.rule("M6")
def test_order_that_cannot_be_read_is_replaced_by_the_next_one(bk: Bk, store: MetadataStore) -> None:
    tree_of(store).create("/ledgers-orders", b"")
    tree_of(store).create("/ledgers-orders/b1", b"garbage")
    assert bk("bookie", "read-only", "b1", "off")[0] == 0
    assert store.read_bookie_order("b1") is None
    tree_of(store).create("/ledgers-orders/b9", b"garbage")
    store.write_bookie_order("b9", BookieOrder(Order.DRAIN, 1))
    assert store.bookie_orders() == {"b9": BookieOrder(Order.DRAIN, 1)}


@pytest.mark.rule("M6")
def test_bookie_whose_registration_cannot_be_read_is_not_removed(bk: Bk, store: MetadataStore) -> None:
    tree_of(store).create("/ledgers/available/b2", b"\xff\xff")
    store.write_cookie("b2", b"", None)
    code, _, err = bk("bookie", "remove", "b2")
    assert (code, "is running" in err) == (4, True)


@pytest.mark.rule("M6")
def test_transaction_record_that_cannot_be_read_is_named_and_hides_no_other(store: MetadataStore) -> None:
    store.create_log("events", b"head")
    tree_of(store).create("/ledgers-logs/events/txns/aa", b"garbage")
    log = LogStore(store, "events")
    assert list(log.all_transactions()) == []
    assert [node.path for node in store.unreadable.of(NodeKind.TRANSACTION)] == ["/ledgers-logs/events/txns/aa"]
