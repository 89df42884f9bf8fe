# SPDX-License-Identifier: Apache-2.0
"""What every metadata store does with bookies: registration, cookies, our own record."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from bk_core.errors import (
    BookieIdentityError,
    InvalidArgumentError,
    MetadataCorruptError,
    MetadataUnavailableError,
    Outcome,
)
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.records import BookieOrder, Order
from bk_core.metadata.tree.cluster import bookies
from bk_core.model import DIRECTORY_PROPERTY, INCARNATION_PROPERTY, BookieServiceInfo, Endpoint, Versioned
from tests.kit.metadata_worlds import MetadataWorld, lose_write_number, tree_of
from tests.kit.waiting import until

BOOKIE = "b1:3181"


def info(incarnation: str = "i1", *, bookie_id: str = BOOKIE, port: int = 3182) -> BookieServiceInfo:
    endpoints = (Endpoint("bookie", "b1", 3181, "bookie-rpc"), Endpoint("grpc", "b1", port, "grpc", (), ("tls",)))
    return BookieServiceInfo(bookie_id, endpoints, {INCARNATION_PROPERTY: incarnation, "a": "b"})


# --- registration ---


def test_registered_bookie_is_writable_with_all_it_published(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.register_bookie(info())
    reader = metadata_world.open()
    assert reader.writable_bookies() == {BOOKIE: info()}
    assert reader.read_only_bookies() == {}
    assert reader.bookie_info(BOOKIE) == info()
    assert reader.bookie_info("other:3181") is None


def test_seen_bookies_are_those_read_last_until_something_changes(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.register_bookie(info())
    reader = metadata_world.open()
    assert reader.seen_bookies() is None
    assert (reader.writable_bookies(), reader.read_only_bookies()) == ({BOOKIE: info()}, {})
    seen = reader.seen_bookies()
    assert seen == ({BOOKIE: info()}, {})
    assert [one is other for one, other in zip(reader.seen_bookies() or (), seen or (), strict=True)] == [True, True]
    store.register_bookie(info(port=9999))  # the same bookie at another place
    until(lambda: reader.seen_bookies() is None)
    assert reader.writable_bookies() == {BOOKIE: info(port=9999)}
    assert reader.seen_bookies() == ({BOOKIE: info(port=9999)}, {})
    store.register_bookie(info(), read_only=True)  # two changes; ZooKeeper reports each at its own time
    until(lambda: (reader.read_only_bookies(), reader.writable_bookies()) == ({BOOKIE: info()}, {}))
    until(lambda: (reader.read_only_bookies(), reader.writable_bookies(), reader.seen_bookies())[2] is not None)
    assert reader.seen_bookies() == ({}, {BOOKIE: info()})


def test_seen_bookies_are_forgotten_with_the_connection_that_would_tell_of_a_change(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.register_bookie(info())
    reader = metadata_world.open()
    reader.writable_bookies(), reader.read_only_bookies()
    metadata_world.suspend(reader)
    until(lambda: reader.seen_bookies() is None)
    store.unregister_bookie(BOOKIE)
    metadata_world.resume(reader)
    assert (reader.writable_bookies(), reader.read_only_bookies()) == ({}, {})
    # each of the two watches reports the outage at its own time
    until(lambda: (reader.read_only_bookies(), reader.writable_bookies(), reader.seen_bookies())[2] is not None)
    assert reader.seen_bookies() == ({}, {})


def test_registration_ends_with_the_store(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    bookie = metadata_world.open()
    bookie.register_bookie(info())
    bookie.close()
    assert store.writable_bookies() == {}


def test_unregistered_bookie_is_gone_but_another_stores_registration_stays(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.register_bookie(info())
    metadata_world.open().unregister_bookie(BOOKIE)
    assert list(store.writable_bookies()) == [BOOKIE]
    store.unregister_bookie(BOOKIE)
    assert store.writable_bookies() == {}


def test_move_to_read_only_and_back_leaves_no_moment_without_a_node(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.register_bookie(info())
    seen = _watch_presence(metadata_world)
    store.register_bookie(info(), read_only=True)
    assert (store.writable_bookies(), store.read_only_bookies()) == ({}, {BOOKIE: info()})
    assert store.bookie_info(BOOKIE) == info()
    store.register_bookie(info())
    assert (store.writable_bookies(), store.read_only_bookies()) == ({BOOKIE: info()}, {})
    assert False not in seen()


def test_bookie_of_an_old_release_has_the_endpoint_of_its_id(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    for bookie_id in ("old:3181", "custom-id"):
        tree_of(store).create(f"{metadata_world.root}/available/{bookie_id}", b"", ephemeral=True)
    assert store.bookie_info("old:3181") == BookieServiceInfo(
        "old:3181", (Endpoint("bookie", "old", 3181, "bookie-rpc"),)
    )
    assert store.bookie_info("custom-id") == BookieServiceInfo("custom-id")
    assert set(store.writable_bookies()) == {"old:3181", "custom-id"}


def test_bookie_registers_where_the_read_only_folder_is_missing(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    tree_of(store).delete(f"{metadata_world.root}/available/readonly")
    assert store.read_only_bookies() == {}
    store.register_bookie(info(), read_only=True)
    assert list(store.read_only_bookies()) == [BOOKIE]


def test_a_registration_that_cannot_be_read_does_not_hide_the_others(
    metadata_world: MetadataWorld, store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.register_bookie(info())
    tree_of(store).create(f"{metadata_world.root}/available/broken:3181", b"\xff" * 9)
    assert list(store.writable_bookies()) == [BOOKIE]
    assert f"{metadata_world.root}/available/broken:3181" in caplog.text
    with pytest.raises(MetadataCorruptError, match="broken:3181"):
        store.bookie_info("broken:3181")


@pytest.mark.parametrize("bookie_id", ["readonly", "", "a/b", "..", "white space"])
def test_bookie_id_that_cannot_be_a_node_is_refused(store: MetadataStore, bookie_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="bookie id"):
        store.register_bookie(info(bookie_id=bookie_id))


@pytest.mark.rule("M3")
@pytest.mark.parametrize("port", [1, 2], ids=["as before", "at another port"])
@pytest.mark.parametrize("was_read_only", [False, True])
def test_restarted_bookie_replaces_the_node_its_killed_process_left(
    metadata_world: MetadataWorld, store: MetadataStore, was_read_only: bool, port: int
) -> None:
    killed = metadata_world.open(session_timeout_s=8)
    killed.register_bookie(info(port=1), read_only=was_read_only)
    metadata_world.abandon(killed)
    started = time.monotonic()
    store.register_bookie(info(port=port))
    assert time.monotonic() - started < 2, "it waited for the dead session"
    assert (store.writable_bookies(), store.read_only_bookies()) == ({BOOKIE: info(port=port)}, {})
    assert _owner(metadata_world, store, False), "it goes with the dead session"


@pytest.mark.rule("M3")
def test_live_bookie_of_another_incarnation_keeps_its_id(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    store.register_bookie(info("i1"))
    for read_only in (False, True):
        with pytest.raises(BookieIdentityError, match="b1:3181"):
            metadata_world.open(session_timeout_s=metadata_world.brief_s).register_bookie(
                info("i2"), read_only=read_only
            )
    assert (store.writable_bookies(), store.read_only_bookies()) == ({BOOKIE: info("i1")}, {})


@pytest.mark.rule("M3", "S8")
def test_copy_of_a_live_bookies_directory_is_not_taken_for_its_restart(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    original, copy = (
        BookieServiceInfo(BOOKIE, (), {INCARNATION_PROPERTY: "i1", DIRECTORY_PROPERTY: place}) for place in "ab"
    )
    store.register_bookie(original)
    for imposter in (copy, info("i1")):
        with pytest.raises(BookieIdentityError, match="b1:3181"):
            metadata_world.open(session_timeout_s=metadata_world.brief_s).register_bookie(imposter)
    assert store.writable_bookies() == {BOOKIE: original}


@pytest.mark.rule("M3")
def test_dead_bookie_of_another_incarnation_is_waited_for(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    dead = metadata_world.open(session_timeout_s=metadata_world.brief_s)
    dead.register_bookie(info("i1"))
    metadata_world.abandon(dead)
    metadata_world.open(session_timeout_s=6).register_bookie(info("i2"))
    assert store.writable_bookies() == {BOOKIE: info("i2")}


def test_bookies_without_an_incarnation_are_never_taken_for_one_another(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    anonymous = BookieServiceInfo(BOOKIE)
    store.register_bookie(anonymous)
    with pytest.raises(BookieIdentityError):
        metadata_world.open(session_timeout_s=metadata_world.brief_s).register_bookie(anonymous)


@pytest.mark.rule("M3")
@pytest.mark.parametrize("read_only", [False, True])
def test_bookie_registers_again_after_its_session_was_lost(
    metadata_world: MetadataWorld, store: MetadataStore, read_only: bool
) -> None:
    bookie = metadata_world.open()
    bookie.register_bookie(info(), read_only=read_only)
    there = store.read_only_bookies if read_only else store.writable_bookies
    for _ in range(2):
        metadata_world.expire(bookie)
        until(lambda: there() == {BOOKIE: info()} and _owner(metadata_world, bookie, read_only))


@pytest.mark.rule("M3")
def test_session_lost_while_registering_does_not_leave_the_bookie_out(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    bookie = metadata_world.open()
    tree = tree_of(bookie)
    create = tree.create

    def create_and_lose(*arguments: Any, **options: Any) -> str:
        made: str = create(*arguments, **options)
        tree.create = create
        metadata_world.expire(bookie)
        return made

    tree.create = create_and_lose
    bookie.register_bookie(info())
    until(lambda: store.writable_bookies() == {BOOKIE: info()} and _owner(metadata_world, bookie, False))


@pytest.mark.rule("M3")
@pytest.mark.parametrize("why", [MetadataUnavailableError("made to fail"), RuntimeError("made to fail")])
def test_bookie_that_could_not_register_again_tries_until_it_can(
    metadata_world: MetadataWorld, store: MetadataStore, why: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookies, "_RETRY_S", 0.1)
    bookie = metadata_world.open()
    bookie.register_bookie(info())
    tree, failures = tree_of(bookie), [why] * 2
    get = tree.get

    def get_or_fail(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return get(*arguments)

    tree.get = get_or_fail
    metadata_world.expire(bookie)
    until(lambda: store.writable_bookies() == {BOOKIE: info()} and _owner(metadata_world, bookie, False))
    assert not failures


def test_unregistered_bookie_stays_away_after_its_session_was_lost(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    bookie = metadata_world.open()
    for bookie_id in (BOOKIE, "b2:3181"):
        bookie.register_bookie(info(bookie_id=bookie_id))
    bookie.unregister_bookie(BOOKIE)
    metadata_world.expire(bookie)
    until(lambda: _owner(metadata_world, bookie, False, "b2:3181"))  # the later of the two
    assert list(store.writable_bookies()) == ["b2:3181"]


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("lost_write", range(2))
@pytest.mark.parametrize("applied", [True, False])
def test_moving_to_read_only_survives_lost_answers(
    metadata_world: MetadataWorld, store: MetadataStore, lost_write: int, applied: bool
) -> None:
    store.register_bookie(info())
    lose_write_number(metadata_world, store, lost_write, applied=applied)
    store.register_bookie(info(), read_only=True)
    assert (store.writable_bookies(), store.read_only_bookies()) == ({}, {BOOKIE: info()})


# --- cookies and our own record ---


def test_records_lie_where_apache_and_the_rules_say(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    store.write_cookie(BOOKIE, b"cookie", None)
    store.write_bookie_state(BOOKIE, b"state", None)
    root = metadata_world.root
    assert tree_of(store).get(f"{root}/cookies/{BOOKIE}")[0] == b"cookie"
    assert tree_of(store).get(f"{root}-bookies/{BOOKIE}")[0] == b"state"


def test_cookie_can_be_deleted_and_deleting_none_is_fine(store: MetadataStore) -> None:
    store.delete_cookie(BOOKIE)
    store.write_cookie(BOOKIE, b"x", None)
    store.delete_cookie(BOOKIE)
    assert store.read_cookie(BOOKIE) is None


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("version", [None, 0])
@pytest.mark.parametrize("applied", [True, False])
def test_cookie_with_a_lost_answer_is_written_or_unknown(
    metadata_world: MetadataWorld, store: MetadataStore, version: int | None, applied: bool
) -> None:
    store.write_cookie("first:3181", b"", None)  # makes the folder
    if version is not None:
        store.write_cookie(BOOKIE, b"old", None)
    metadata_world.lose_next_answer(store, applied=applied)
    if version is not None and not applied:
        with pytest.raises(MetadataUnavailableError):
            store.write_cookie(BOOKIE, b"new", version)
    else:
        store.write_cookie(BOOKIE, b"new", version)
        assert store.read_cookie(BOOKIE) == Versioned(b"new", 0 if version is None else 1)


@pytest.mark.rule("MUST8")
@pytest.mark.parametrize("version", [None, 0])
def test_cookie_whose_lost_answer_cannot_be_looked_at_is_unknown(store: MetadataStore, version: int | None) -> None:
    """The look's error says NOT_APPLIED, but that is about the look: the write may have been applied."""
    store.write_cookie(BOOKIE if version == 0 else "first:3181", b"old", None)
    tree, lost = tree_of(store), [MetadataUnavailableError("the answer was lost")]
    name = "create" if version is None else "set"
    write = getattr(tree, name)

    def write_and_lose(*arguments: Any) -> Any:
        made = write(*arguments)
        if lost:
            raise lost.pop()
        return made

    setattr(tree, name, write_and_lose)
    tree.get = no_answer
    with pytest.raises(MetadataUnavailableError) as raised:
        store.write_cookie(BOOKIE, b"new", version)
    assert raised.value.outcome is Outcome.UNKNOWN
    del tree.get
    assert store.read_cookie(BOOKIE) == Versioned(b"new", 0 if version is None else 1)


# --- orders ---


def test_an_order_holds_until_it_is_taken_back_and_a_removed_bookie_is_not_known(
    metadata_world: MetadataWorld, store: MetadataStore
) -> None:
    store.write_cookie(BOOKIE, b"cookie", None)
    other = metadata_world.open()
    assert (store.read_bookie_order(BOOKIE), store.bookie_orders()) == (None, {})
    drain = BookieOrder(Order.DRAIN, 1_700_000_000_000)
    store.write_bookie_order(BOOKIE, drain)
    assert (other.read_bookie_order(BOOKIE), other.known_bookies()) == (drain, [BOOKIE])
    hurried = BookieOrder(Order.DRAIN, 1_700_000_000_000, fences=True)
    other.write_bookie_order(BOOKIE, hurried)
    store.sync()
    assert store.bookie_orders() == {BOOKIE: hurried}
    store.write_bookie_order(BOOKIE, BookieOrder(Order.REMOVED, 5))
    assert store.known_bookies() == []
    store.write_bookie_order(BOOKIE, None)
    store.write_bookie_order(BOOKIE, None)
    assert (store.bookie_orders(), store.known_bookies()) == ({}, [BOOKIE])


def test_an_order_that_cannot_be_read_hides_no_other(metadata_world: MetadataWorld, store: MetadataStore) -> None:
    order = BookieOrder(Order.READ_ONLY, 7)
    store.write_bookie_order("b2:3181", order)
    store.write_bookie_order(BOOKIE, order)
    tree_of(store).set(f"{metadata_world.root}-orders/{BOOKIE}", b'{"order":"dance","since_ms":1,"v":1}', -1)
    assert store.bookie_orders() == {"b2:3181": order}
    with pytest.raises(MetadataCorruptError):
        store.read_bookie_order(BOOKIE)


# --- tools ---


def no_answer(*_: Any) -> Any:
    raise MetadataUnavailableError("made to fail", outcome=Outcome.NOT_APPLIED)


def _owner(world: MetadataWorld, store: MetadataStore, read_only: bool, bookie_id: str = BOOKIE) -> bool:
    tree = tree_of(store)
    stat = tree.exists(f"{world.root}/available/{'readonly/' if read_only else ''}{bookie_id}")
    return stat is not None and stat.owner == tree.session_id


def _watch_presence(world: MetadataWorld):
    """Read both sets again and again from another client. The returned function stops this and returns what was
    seen."""
    reader, stop, seen = world.open(), threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            seen.append(reader.bookie_info(BOOKIE) is not None)

    thread = threading.Thread(target=look)
    thread.start()

    def finish() -> list[bool]:
        stop.set()
        thread.join(10)
        return seen

    return finish
