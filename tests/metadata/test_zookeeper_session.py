# SPDX-License-Identifier: Apache-2.0
"""What is particular to ZooKeeper and kazoo: connecting, forks, broken answers, Apache's own nodes."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.errors import ForkedHandleError, MetadataUnavailableError, Outcome
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore, SessionState
from bk_core.metadata.tree.tree import WRITE_TRIES
from bk_core.metadata.zookeeper.session import poll
from bk_core.model import Versioned
from tests.kit.canaries import PASSWORD, heard_in
from tests.kit.metadata_worlds import ZooKeeperWorld, a_ledger, kazoo_of, tree_of
from tests.kit.waiting import until

pytestmark = [pytest.mark.zookeeper, pytest.mark.alone]

GET_DATA = 4
"""ZooKeeper's number of that request."""


@pytest.fixture
def world(zookeeper_server: ZooKeeperServer) -> Iterator[ZooKeeperWorld]:
    made = ZooKeeperWorld(zookeeper_server.host, zookeeper_server.port)
    yield made
    made.close()


@pytest.fixture
def store(world: ZooKeeperWorld) -> MetadataStore:
    opened = world.open()
    opened.initialize_cluster()
    return opened


def test_unreachable_server_is_named_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts and never answers
        hosts = f"127.0.0.1:{listener.getsockname()[1]};127.0.0.1:1"
        started = time.monotonic()
        with pytest.raises(MetadataUnavailableError) as raised:
            open_store(f"zk://{hosts}/ledgers", timeout_s=0.5)
        assert time.monotonic() - started < 1.5
    assert hosts.replace(";", ",") in str(raised.value)
    assert raised.value.outcome is Outcome.NOT_APPLIED
    assert "bk local" in raised.value.remedy


def test_kazoo_tells_its_requests_without_their_data(
    world: ZooKeeperWorld, store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    """At level DEBUG it would log every record whole, with the password that is in it."""
    with caplog.at_level(1, logger="bk_core.metadata.zookeeper.session.kazoo"):
        ledger_id, found = store.create_ledger(a_ledger(password=PASSWORD))
        assert store.read_ledger(ledger_id).value.password == PASSWORD
        store.write_ledger(ledger_id, found.value, found.version)
        world.open()  # the greeting of a session has its key
    for kind in ("Create", "GetData", "SetData", "Connect", "Transaction"):
        assert any(kind in record.getMessage() for record in caplog.records), kind
    assert f"{ledger_id:04d}" in caplog.text
    assert heard_in(caplog.text.encode()) == []


def test_poll_says_which_sockets_are_ready_broken_ones_among_them() -> None:
    ours, theirs = socket.socketpair()
    began = time.monotonic()
    assert poll([ours, theirs], [], 0.05) == ([], [], [])
    assert 0.04 < time.monotonic() - began < 5
    assert poll([ours], [ours], None) == ([], [ours], [])
    theirs.send(b"x")
    assert poll([ours, theirs], [], None) == ([ours], [], [])
    theirs.close()
    assert ours.recv(10) == b"x"
    assert poll([ours], [], None) == ([ours], [], []), "the end is read at once"
    ours.close()
    with pytest.raises(ValueError, match="negative"):
        poll([ours], [], None)


def test_open_without_a_server_prints_nothing() -> None:
    program = (
        "import bk_core.metadata as m\ntry: m.open_store('zk://127.0.0.1:1/l', timeout_s=0.3)\nexcept Exception: pass"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_server_among_dead_hosts_is_found(zookeeper_server: ZooKeeperServer) -> None:
    store = open_store(f"zk://127.0.0.1:1;{zookeeper_server.connect_string}/x/ledgers", timeout_s=5)
    store.initialize_cluster()
    store.close()


def test_importing_the_package_loads_no_adapter() -> None:
    program = (
        "import sys, bk_core.metadata\nprint([m for m in ('kazoo', 'google.protobuf', 'socket') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forking with threads: that is the case
def test_store_used_after_a_fork_says_so(store: MetadataStore) -> None:
    child = os.fork()
    if child == 0:
        try:
            store.list_logs()
        except ForkedHandleError:
            store.close()  # leaves the parent's session alone
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store.list_logs() == []


def test_broken_answer_ends_the_session_and_another_begins(world: ZooKeeperWorld, store: MetadataStore) -> None:
    ledger_id, created = store.create_ledger(a_ledger())
    states: queue.Queue[SessionState] = queue.Queue()
    news: queue.Queue[Versioned[object] | None] = queue.Queue()
    store.on_session(states.put)
    store.watch_ledger(ledger_id, news.put)
    world.proxy(store).garble_next_answer()
    assert store.read_ledger(ledger_id) == created
    assert [states.get(timeout=5) for _ in range(2)] == [SessionState.LOST, SessionState.CONNECTED]
    written = world.open().write_ledger(ledger_id, created.value.in_recovery(), 0)
    assert news.get(timeout=5) == written


def test_silent_server_ends_a_write_at_its_deadline_as_unknown(zookeeper_server: ZooKeeperServer) -> None:
    world = ZooKeeperWorld(zookeeper_server.host, zookeeper_server.port)
    store = world.open(timeout_s=0.5)
    store.initialize_cluster()
    ledger_id, created = store.create_ledger(a_ledger())
    with world.proxy(store).holding_requests(), pytest.raises(MetadataUnavailableError) as raised:
        store.write_ledger(ledger_id, created.value.in_recovery(), 0)
    assert raised.value.outcome is Outcome.UNKNOWN
    until(lambda: store.read_ledger(ledger_id).version == 1)  # it was carried out after all
    world.close()


def test_read_whose_connection_breaks_under_way_is_made_again(world: ZooKeeperWorld, store: MetadataStore) -> None:
    made = [store.create_ledger(a_ledger(), number) for number in range(3)]
    world.proxy(store).lose_next_answer(applied=True, of=lambda kind, packet: kind == GET_DATA)
    assert store.read_ledger(0) == made[0][1]
    world.proxy(store).lose_next_answer(applied=True, of=lambda kind, packet: kind == GET_DATA and b"L0001" in packet)
    paths = [f"{world.root}/00/0000/L000{number}" for number in (0, 1, 9, 2)]
    assert [found is not None for found in tree_of(store).get_many(paths)] == [True, True, False, True]
    assert world.proxy(store).losses_to_come == 0


def test_answers_lost_again_and_again_end_in_an_unknown_outcome(world: ZooKeeperWorld, store: MetadataStore) -> None:
    store.create_ledger(a_ledger(), 1)
    for _ in range(WRITE_TRIES):
        world.lose_next_answer(store, applied=False)
    with pytest.raises(MetadataUnavailableError) as raised:
        store.create_ledger(a_ledger(), 2)
    assert raised.value.outcome is Outcome.UNKNOWN


def test_cancelled_and_repeated_watches_leave_one_in_kazoo(store: MetadataStore) -> None:
    ledger_id, _ = store.create_ledger(a_ledger())
    for _ in range(50):
        store.watch_ledger(ledger_id, lambda _: None)()
    assert [len(watchers) for watchers in kazoo_of(store)._data_watchers.values()] == [1]


@pytest.mark.rule("M2")
def test_no_wide_node_is_watched(world: ZooKeeperWorld, store: MetadataStore) -> None:
    store.create_log("events", b"")
    ledger_id, _ = store.create_ledger(a_ledger())
    store.watch_ledger(ledger_id, lambda _: None)
    store.watch_log("events", lambda _: None)
    list(store.list_ledgers())
    client = kazoo_of(store)
    assert not [path for path, watchers in client._child_watchers.items() if watchers]


def test_closing_ends_every_thread_of_the_store(world: ZooKeeperWorld) -> None:
    before = set(threading.enumerate())
    store = open_store(f"zk://127.0.0.1:{world._server[1]}{world.root}")
    store.initialize_cluster()
    store.create_log("events", b"")
    store.watch_log("events", lambda _: None)
    store.on_session(lambda _: None)
    assert set(threading.enumerate()) - before
    store.close()
    until(lambda: not set(threading.enumerate()) - before, within_s=5)


def test_ids_made_after_the_31_bits_are_used_up_are_long(world: ZooKeeperWorld, store: MetadataStore) -> None:
    tree, made = tree_of(store), []
    create = tree.create

    def at_the_end(path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        path = create(path, data, ephemeral=ephemeral, sequential=sequential)
        if sequential and "/idgen/" in path:
            made.append(path)
            tree.delete(path)
            return path[:-10] + "-2147483648"  # what ZooKeeper writes after its counter overflowed
        return path

    tree.create = at_the_end
    assert [store.create_ledger(a_ledger())[0] for _ in range(2)] == [1 << 32, (1 << 32) + 1]
    assert len(made) == 1, "the short generator was asked again"
    assert tree.children(f"{world.root}/idgen-long") == ["HOB-0000000001"]
