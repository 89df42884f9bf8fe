# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with named logs: heads, pages and transactions."""

from __future__ import annotations

import queue
import time
from typing import Any

import pytest

from bk_core.errors import (
    InvalidArgumentError,
    LogExistsError,
    MetadataConflictError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLogError,
    Outcome,
)
from bk_core.metadata.port import LogWrite, MetadataStore, TxnWrite
from bk_core.model import Versioned
from tests.kit.metadata_worlds import MetadataWorld, a_ledger, before_write, lose_write_number, tree_of

KEY = "ab" * 32


def test_created_log_reads_back_and_stands_beside_apaches_tree(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    assert store.list_logs() == []
    assert store.create_log("events", b"head") == Versioned(b"head", 0)
    assert store.read_log("events") == Versioned(b"head", 0)
    assert store.list_logs() == ["events"]
    assert tree_of(store).get(f"{metadata_world.root}-logs/events")[0] == b"head"
    assert tree_of(store).children(f"{metadata_world.root}-logs/events") == ["pages", "txns", "unlinked"]
    with pytest.raises(LogExistsError):
        store.create_log("events", b"head")


def test_missing_log_is_said_to_be_missing(store: MetadataStore) -> None:
    for attempt in (
        lambda: store.read_log("none"),
        lambda: store.write_logs([LogWrite("none", b"", 0)]),
        lambda: store.delete_log("none"),
        lambda: store.create_page("none", "p", b""),
        lambda: store.watch_log("none", print),
    ):
        with pytest.raises(NoSuchLogError, match="'none'"):
            attempt()
    assert store.read_txns("none", KEY) is None
    assert (store.list_pages("none"), store.list_txns("none")) == ([], [])


@pytest.mark.rule("N8")
@pytest.mark.parametrize("name", [".hidden", "17", "", "a/b", "x" * 201, "naïve", "a b"])
def test_name_that_no_log_can_have_is_refused(store: MetadataStore, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="name"):
        store.create_log(name, b"")
    with pytest.raises(InvalidArgumentError, match="name"):
        store.read_log(name)


def test_head_is_written_by_compare_and_set(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    store.create_log("events", b"0")
    assert metadata_world.open().write_logs([LogWrite("events", b"1", 0)]) == [Versioned(b"1", 1)]
    with pytest.raises(MetadataConflictError) as raised:
        store.write_logs([LogWrite("events", b"other", 0)])
    assert raised.value.outcome is Outcome.NOT_APPLIED
    assert store.read_log("events") == Versioned(b"1", 1)
    with pytest.raises(InvalidArgumentError, match="compare-and-set"):
        store.write_logs([LogWrite("events", b"other", -1)])


def test_several_heads_and_transactions_change_together(store: MetadataStore) -> None:
    for name in ("a", "b"):
        store.create_log(name, b"0")
    first = [LogWrite("a", b"a1", 0, TxnWrite(KEY, b"t1", None)), LogWrite("b", b"b1", 0)]
    assert store.write_logs(first) == [Versioned(b"a1", 1), Versioned(b"b1", 1)]
    store.write_logs([LogWrite("b", b"b2", 1), LogWrite("a", b"a2", 1, TxnWrite(KEY, b"t2", 0))])
    assert store.read_txns("a", KEY) == Versioned(b"t2", 1)
    assert store.list_txns("a") == [KEY]
    assert (store.read_log("a").value, store.read_log("b").value) == (b"a2", b"b2")


@pytest.mark.parametrize(
    "refused",
    [
        LogWrite("b", b"x", 7),
        LogWrite("b", b"x", 1, TxnWrite(KEY, b"x", None)),
        LogWrite("b", b"x", 1, TxnWrite(KEY, b"x", 5)),
        LogWrite("b", b"x", 1, TxnWrite("cd" * 32, b"x", 0)),
    ],
    ids=["head version", "transaction exists", "transaction version", "transaction missing"],
)
def test_one_refused_write_keeps_all_of_them_out(store: MetadataStore, refused: LogWrite) -> None:
    for name in ("a", "b"):
        store.create_log(name, b"0")
    store.write_logs([LogWrite("b", b"1", 0, TxnWrite(KEY, b"t", None))])
    with pytest.raises(MetadataConflictError):
        store.write_logs([LogWrite("a", b"x", 0, TxnWrite(KEY, b"x", None)), refused])
    assert store.read_log("a") == Versioned(b"0", 0)
    assert store.read_log("b") == Versioned(b"1", 1)
    assert store.read_txns("a", KEY) is None
    assert store.read_txns("b", KEY) == Versioned(b"t", 0)


def test_a_missing_log_among_several_keeps_all_of_them_out(store: MetadataStore) -> None:
    store.create_log("a", b"0")
    with pytest.raises(NoSuchLogError, match="'gone'"):
        store.write_logs([LogWrite("a", b"x", 0), LogWrite("gone", b"x", 0)])
    assert store.read_log("a") == Versioned(b"0", 0)


def test_log_written_twice_in_one_step_is_refused(store: MetadataStore) -> None:
    store.create_log("a", b"0")
    with pytest.raises(InvalidArgumentError, match="twice"):
        store.write_logs([LogWrite("a", b"1", 0), LogWrite("a", b"2", 1)])


@pytest.mark.rule("N3")
def test_a_hundred_heads_of_full_size_fit_one_step(store: MetadataStore) -> None:
    names = [f"log-{i:03d}" for i in range(100)]
    for name in names:
        store.create_log(name, b"")
    written = store.write_logs([LogWrite(n, bytes(8192), 0, TxnWrite(KEY, b"t" * 200, None)) for n in names])
    assert [v.version for v in written] == [1] * 100


@pytest.mark.rule("N3", "K10")
def test_a_step_may_be_as_large_as_the_store_takes_and_a_larger_one_is_never_sent(store: MetadataStore) -> None:
    names = [f"log-{i:03d}" for i in range(100)]
    for name in names:
        store.create_log(name, b"")
    writes = [LogWrite(n, bytes(5400), 0, TxnWrite(KEY, bytes(4800), None)) for n in names]
    assert [v.version for v in store.write_logs(writes)] == [1] * 100
    more = [LogWrite(n, bytes(8192), 1, TxnWrite(KEY, bytes(4800), 0)) for n in names]
    with pytest.raises(InvalidArgumentError, match="bytes") as raised:
        store.write_logs(more)
    assert raised.value.outcome is Outcome.NOT_APPLIED
    assert store.read_log(names[99]).version == 1


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("applied", [True, False])
def test_lost_answer_of_a_publish_is_unknown_and_reading_again_settles_it(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    store.create_log("events", b"0")
    metadata_world.lose_next_answer(store, applied=applied)
    with pytest.raises(MetadataUnavailableError) as raised:
        store.write_logs([LogWrite("events", b"1", 0, TxnWrite(KEY, b"t", None))])
    assert raised.value.outcome is Outcome.UNKNOWN
    assert store.read_log("events") == (Versioned(b"1", 1) if applied else Versioned(b"0", 0))
    assert (store.read_txns("events", KEY) is not None) == applied


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("lost_write", range(3))
def test_creating_a_log_survives_a_lost_answer_of_each_of_its_writes(
    metadata_world: MetadataWorld, store: MetadataStore, lost_write: int, applied: bool
) -> None:
    lose_write_number(metadata_world, store, lost_write, applied=applied)
    assert store.create_log("events", b"uuid") == Versioned(b"uuid", 0)
    assert metadata_world.open().read_log("events") == Versioned(b"uuid", 0)


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("action", ["create", "delete"])
def test_log_whose_lost_answer_cannot_be_looked_at_is_unknown(store: MetadataStore, action: str) -> None:
    """The look's error says NOT_APPLIED, but that is about the look: the write was applied."""
    store.create_log("events" if action == "delete" else "other", b"0")
    tree = tree_of(store)
    multi, looks = tree.multi, (tree.get, tree.exists)

    def no_answer(*_: object) -> Any:
        raise MetadataUnavailableError("made to fail", outcome=Outcome.NOT_APPLIED)

    def write_and_lose(ops: Any) -> None:
        tree.multi = multi
        multi(ops)
        tree.get = tree.exists = no_answer
        raise MetadataUnavailableError("the answer was lost")

    tree.multi = write_and_lose
    with pytest.raises(MetadataUnavailableError) as raised:
        store.create_log("events", b"1") if action == "create" else store.delete_log("events")
    assert raised.value.outcome is Outcome.UNKNOWN
    tree.get, tree.exists = looks
    assert ("events" in store.list_logs()) == (action == "create")


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("applied", [True, False])
def test_deleting_a_log_survives_a_lost_answer(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    store.create_log("events", b"0")
    metadata_world.lose_next_answer(store, applied=applied)
    store.delete_log("events")
    assert store.list_logs() == []


@pytest.mark.rule("MUST8")
def test_a_log_made_after_ours_was_deleted_outlives_a_lost_answer(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.create_log("events", b"ours")
    tree, other = tree_of(store), metadata_world.open()
    write, made_ms, lost = tree.multi, tree.exists(f"{metadata_world.root}-logs/events").ctime_ms, False

    def lose(ops: object) -> None:
        nonlocal lost
        write(ops)
        if not lost:
            lost = True
            while other.log_clock_ms("clock") <= made_ms:
                pass
            other.create_log("events", b"theirs")
            raise MetadataUnavailableError("The answer was lost", outcome=Outcome.UNKNOWN)

    store.create_log("clock", b"")
    tree.multi = lose
    store.delete_log("events")
    assert other.read_log("events") == Versioned(b"theirs", 0)


def test_page_is_immutable_and_writing_it_again_succeeds(store: MetadataStore) -> None:
    store.create_log("events", b"0")
    for _ in range(2):
        store.create_page("events", "0011-aabb", b"page")
    with pytest.raises(MetadataConflictError):
        store.create_page("events", "0011-aabb", b"another")
    assert store.read_page("events", "0011-aabb") == b"page"
    assert store.list_pages("events") == ["0011-aabb"]
    store.delete_page("events", "0011-aabb")
    store.delete_page("events", "0011-aabb")
    with pytest.raises(MetadataCorruptError, match="0011-aabb"):
        store.read_page("events", "0011-aabb")


def test_a_page_of_a_log_that_is_deleted_meanwhile_does_not_bring_it_back(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    other = metadata_world.open()
    store.create_log("events", b"0")
    before_write(store, 0, lambda: other.delete_log("events"))
    with pytest.raises(NoSuchLogError):
        store.create_page("events", "p", b"page")
    assert store.list_logs() == []
    assert store.create_log("events", b"new") == Versioned(b"new", 0)


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("applied", [True, False])
def test_making_a_page_survives_a_lost_answer(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    store.create_log("events", b"0")
    metadata_world.lose_next_answer(store, applied=applied)
    store.create_page("events", "p", b"page")
    assert store.read_page("events", "p") == b"page"


def test_largest_page_fits(store: MetadataStore) -> None:
    store.create_log("events", b"0")
    store.create_page("events", "p", bytes(512 * 1024))
    assert len(store.read_page("events", "p")) == 512 * 1024


@pytest.mark.parametrize("page", ["", "..", "a/b"])
def test_page_name_cannot_leave_its_folder(store: MetadataStore, page: str) -> None:
    store.create_log("events", b"0")
    with pytest.raises(InvalidArgumentError, match="page"):
        store.create_page("events", page, b"")


def test_deleted_log_takes_its_pages_and_transactions_along(store: MetadataStore) -> None:
    store.create_log("events", b"0")
    for n in range(5):
        store.create_page("events", f"p{n}", b"x")
    store.write_logs([LogWrite("events", b"1", 0, TxnWrite(KEY, b"t", None), b"u")])
    with pytest.raises(MetadataConflictError):
        store.delete_log("events", 0)
    assert len(store.list_pages("events")) == 5, "a refused deletion took pages"
    store.delete_log("events", 1)
    assert store.list_logs() == []
    assert store.create_log("events", b"new") == Versioned(b"new", 0)
    assert (store.list_pages("events"), store.list_txns("events")) == ([], [])


@pytest.mark.rule("N5")
def test_transactions_are_deleted_together_and_only_as_they_were_read(store: MetadataStore) -> None:
    store.create_log("a", b"0")
    other = "cd" * 32
    store.write_logs([LogWrite("a", b"1", 0, TxnWrite(KEY, b"t", None))])
    store.write_logs([LogWrite("a", b"2", 1, TxnWrite(other, b"u", None))])
    for versions, head_version in (({KEY: 0, other: 1}, 2), ({KEY: 0, "ef" * 32: 0}, 2), ({KEY: 0}, 1), ({KEY: 0}, 3)):
        with pytest.raises(MetadataConflictError):
            store.delete_txns("a", versions, head_version)
    assert sorted(store.list_txns("a")) == sorted([KEY, other])
    for versions, head_version in (({KEY: -1}, 2), ({KEY: 0}, -1)):
        with pytest.raises(InvalidArgumentError, match="compare-and-set"):
            store.delete_txns("a", versions, head_version)
    store.delete_txns("a", {KEY: 0, other: 0}, 2)
    assert store.list_txns("a") == []
    assert store.read_log("a") == Versioned(b"2", 2)
    with pytest.raises(NoSuchLogError):
        store.delete_txns("none", {KEY: 0}, 0)


@pytest.mark.rule("N5")
def test_a_transaction_that_was_made_again_is_not_the_one_that_was_read(store: MetadataStore) -> None:
    store.create_log("a", b"0")
    store.write_logs([LogWrite("a", b"1", 0, TxnWrite(KEY, b"old", None))])
    store.delete_txns("a", {KEY: 0}, 1)
    store.write_logs([LogWrite("a", b"2", 1, TxnWrite(KEY, b"new", None))])
    with pytest.raises(MetadataConflictError):
        store.delete_txns("a", {KEY: 0}, 1)  # the same call, which arrives late
    assert store.read_txns("a", KEY) == Versioned(b"new", 0)


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_of_deleting_transactions_is_unknown(
    metadata_world: MetadataWorld, store: MetadataStore, applied: bool
) -> None:
    store.create_log("a", b"0")
    store.write_logs([LogWrite("a", b"1", 0, TxnWrite(KEY, b"t", None))])
    metadata_world.lose_next_answer(store, applied=applied)
    with pytest.raises(MetadataUnavailableError) as raised:
        store.delete_txns("a", {KEY: 0}, 1)
    assert raised.value.outcome is Outcome.UNKNOWN
    assert (store.read_txns("a", KEY) is None) == applied


@pytest.mark.rule("MUST8")
def test_another_log_of_this_name_is_not_taken_for_ours_after_a_lost_answer(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    tree, other = tree_of(store), metadata_world.open()
    create, lost = tree.multi, False

    def lose(ops: object) -> None:
        nonlocal lost
        if not lost:
            lost = True
            other.create_log("events", b"theirs")
            raise MetadataUnavailableError("The answer was lost", outcome=Outcome.UNKNOWN)
        create(ops)

    tree.multi = lose
    with pytest.raises(LogExistsError):
        store.create_log("events", b"ours")
    assert store.read_log("events") == Versioned(b"theirs", 0)


@pytest.mark.rule("N6")
def test_the_time_of_a_page_is_when_the_store_made_it(store: MetadataStore) -> None:
    store.create_log("events", b"0")
    assert store.page_ctime_ms("events", "p") is None
    before_ms = int(time.time() * 1000)
    store.create_page("events", "p", b"x")
    made_ms = store.page_ctime_ms("events", "p")
    assert made_ms is not None
    assert before_ms <= made_ms <= int(time.time() * 1000)
    time.sleep(0.005)
    store.create_page("events", "p", b"x")
    assert store.page_ctime_ms("events", "p") == made_ms, "making it again changes nothing"
    store.delete_page("events", "p")
    assert store.page_ctime_ms("events", "p") is None


def test_watch_of_a_log_tells_each_newer_head_and_the_deletion(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.create_log("events", b"0")
    news: queue.Queue[Versioned[bytes] | None] = queue.Queue()
    metadata_world.open().watch_log("events", news.put)
    store.create_page("events", "p", b"a page is no change of the head")
    store.write_logs([LogWrite("events", b"1", 0)])
    assert news.get(timeout=5) == Versioned(b"1", 1)
    store.write_logs([LogWrite("events", b"2", 1)])
    assert news.get(timeout=5) == Versioned(b"2", 2)
    store.delete_log("events")
    assert news.get(timeout=5) is None


def test_logs_are_no_ledgers(store: MetadataStore) -> None:
    store.create_log("events", b"0")
    store.create_ledger(a_ledger(), 3)
    assert list(store.list_ledgers()) == [3]
