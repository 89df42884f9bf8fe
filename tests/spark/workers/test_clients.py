# SPDX-License-Identifier: Apache-2.0
"""Connections are shared within a process and never across a fork (RULES K4)."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from bk_core.errors import ClientClosedError, InvalidArgumentError
from bk_core.metadata import open_store
from bk_core.model import BookieServiceInfo
from bk_spark.options.options import Use, parse_options
from bk_spark.workers import clients
from bk_spark.workers.clients import ProcessCache, client, client_config
from tests.kit.memory_store import MemoryStore, shared_cluster
from tests.kit.waiting import until


class Connection:
    def __init__(self) -> None:
        self.closed = self.broken = False

    def close(self) -> None:
        self.closed = True


def in_child(check: Callable[[], bool]) -> bool:
    """What ``check`` says in a forked process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.rule("K4")
def test_one_configuration_has_one_connection() -> None:
    cache: ProcessCache[Connection] = ProcessCache(4, Connection.close)
    first = cache.get("a", Connection)
    assert cache.get("a", Connection) is first
    assert cache.get("b", Connection) is not first
    assert ["a" in cache, "c" in cache, in_child(lambda: "a" in cache)] == [True, False, False]


@pytest.mark.rule("K4")
def test_a_child_begins_with_nothing_and_closes_nothing() -> None:
    cache: ProcessCache[Connection] = ProcessCache(4, Connection.close)
    parents = cache.get("a", Connection)
    assert in_child(lambda: len(cache) == 0 and cache.get("a", Connection) is not parents and not parents.closed)
    assert cache.get("a", Connection) is parents


@pytest.mark.rule("K4")
def test_a_child_is_not_blocked_by_a_lock_its_parent_held() -> None:
    cache: ProcessCache[Connection] = ProcessCache(4, Connection.close)
    entered, leave = threading.Event(), threading.Event()

    def slow() -> Connection:
        entered.set()
        leave.wait(10)
        return Connection()

    thread = threading.Thread(target=cache.get, args=("a", slow))
    thread.start()
    entered.wait(10)
    try:
        assert in_child(lambda: cache.get("a", Connection) is not None)
    finally:
        leave.set()
        thread.join()


def test_the_least_used_connection_is_closed_when_there_are_too_many() -> None:
    cache: ProcessCache[Connection] = ProcessCache(2, Connection.close)
    a, b = cache.get("a", Connection), cache.get("b", Connection)
    cache.get("a", Connection)
    cache.get("c", Connection)
    assert (a.closed, b.closed) == (False, True)
    cache.discard(a)
    assert a.closed
    assert cache.get("a", Connection) is not a


def test_a_connection_that_broke_is_not_handed_out_again() -> None:
    cache: ProcessCache[Connection] = ProcessCache(2, Connection.close, lambda connection: not connection.broken)
    first = cache.get("a", Connection)
    first.broken = True
    second = cache.get("a", Connection)
    assert second is not first
    assert first.closed
    assert cache.get("a", Connection) is second


def test_a_client_that_was_closed_is_connected_anew() -> None:
    parsed = parse_options({"metadataserviceuri": f"memory://{uuid.uuid4().hex}", "path": "e"}, Use.READ)
    with closing(open_store(parsed.metadata_service_uri)) as store:
        store.initialize_cluster()
        first = client(parsed)
        assert client(parsed) is first
        first.close()
        second = client(parsed)
        assert second.is_usable
        assert second.instance_id == store.instance_id()
        second.close()


def settings(**pairs: str) -> dict[str, str]:
    return {"metadataserviceuri": "zk://h/ledgers", "path": "e", **{f"bookkeeper.{k}": v for k, v in pairs.items()}}


def test_client_settings_become_the_clients_configuration() -> None:
    config = client_config(parse_options(settings(addTimeoutMs="5000", metadata_timeout_s="2.5"), Use.READ))
    assert (config.add_timeout_ms, config.metadata_timeout_s) == (5000, 2.5)


@pytest.mark.parametrize(
    ("pairs", "hint"),
    [
        ({"addTimeoutM": "1"}, r"did you mean bookkeeper\.addTimeoutMs\?"),
        ({"addTimeoutMs": "soon"}, "not a number"),
        ({"addTimeoutMs": "0"}, "must be positive"),
    ],
)
def test_a_bad_client_setting_is_refused(pairs: dict[str, str], hint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=hint):
        client_config(parse_options(settings(**pairs), Use.READ))


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    """The URI of a cluster in this process, without bookies."""
    uri = f"memory://{request.node.name}"
    store = MemoryStore(shared_cluster(uri))
    store.initialize_cluster()
    store.close()
    return uri


@pytest.mark.rule("K4")
def test_a_client_is_kept_for_each_cluster_and_its_settings(cluster: str) -> None:
    plain = parse_options({"metadataserviceuri": cluster, "path": "e"}, Use.READ)
    quick = replace(plain, client_settings=(("readtimeoutms", "500"),))
    made = [clients.client(each) for each in (plain, quick, plain)]
    try:
        assert made[0] is made[2]
        assert [each.config.read_timeout_ms for each in made[:2]] == [10_000, 500]
    finally:
        for each in made[:2]:
            clients.discard(each)
    assert not clients.is_connected(plain)


def test_a_client_that_cannot_be_closed_is_dropped_all_the_same() -> None:
    class Broken:
        def close(self) -> None:
            raise ClientClosedError("it is closed")

    clients._close_quietly(Broken())


def bookie(number: int) -> dict[str, BookieServiceInfo]:
    return {f"b{number}": BookieServiceInfo(f"b{number}")}


@pytest.mark.rule("K3")
def test_a_kept_reader_learns_the_bookies_of_each_plan_and_is_of_one_cluster_and_password() -> None:
    given = {"metadataserviceuri": "zk://127.0.0.1:1/ledgers", "path": "e", "ledgerpassword": "one"}
    options = parse_options(given, Use.READ)
    reader = clients.detached_reader(options, "c", bookie(1))
    assert clients.detached_reader(options, "c", bookie(2)) is reader
    known = reader._inner._transport._whereabouts._infos
    until(lambda: set(known) == {"b1", "b2"})
    others = [
        clients.detached_reader(replace(options, ledger_password=b"two"), "c", bookie(1)),
        clients.detached_reader(options, "another", bookie(1)),
    ]
    assert len({id(each) for each in (reader, *others)}) == 3, "a password or cluster of its own"
    for each in (reader, *others):
        clients._readers.discard(each)
