# SPDX-License-Identifier: Apache-2.0
"""A server that accepts and stays mute, a host that is gone, a connection nobody answers on: each costs a part of a
call's deadline, never the whole of it (RULES M5)."""

from __future__ import annotations

import contextlib
import errno
import queue
import random
import socket
import time
from collections.abc import Iterator

import pytest

from bk_cli.local.zookeeper_server import ZooKeeperServer
from bk_core.errors import ClientClosedError, MetadataUnavailableError, Outcome
from bk_core.metadata import open_store
from bk_core.metadata.port import MetadataStore, SessionState
from bk_core.model import INCARNATION_PROPERTY, BookieServiceInfo
from tests.kit.metadata_worlds import ZooKeeperWorld, a_ledger, kazoo_of, tree_of
from tests.kit.waiting import in_thread, until

pytestmark = [pytest.mark.zookeeper, pytest.mark.alone, pytest.mark.rule("M5")]


@pytest.fixture
def world(zookeeper_server: ZooKeeperServer) -> Iterator[ZooKeeperWorld]:
    made = ZooKeeperWorld(zookeeper_server.host, zookeeper_server.port)
    yield made
    made.close()


@contextlib.contextmanager
def mute_host() -> Iterator[str]:
    """Accepts and never says anything, as a server that starts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def gone_host() -> Iterator[str]:
    """Answers no attempt to connect: the queue of its listener is full, so the kernel drops what asks."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        stack.enter_context(socket.create_connection(listener.getsockname()))
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def states_of(store: MetadataStore) -> queue.Queue[SessionState]:
    states: queue.Queue[SessionState] = queue.Queue()
    store.on_session(states.put)
    return states


def test_mute_and_gone_hosts_before_the_one_that_serves_leave_time_for_it(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "shuffle", lambda hosts: None)  # kazoo's: the worst order every time
    with mute_host() as mute, gone_host() as gone:
        started = time.monotonic()
        store = open_store(f"zk://{mute};{gone};{zookeeper_server.connect_string}/x/ledgers", timeout_s=4)
        assert time.monotonic() - started < 3.5
        store.close()


def test_server_that_is_mute_once_while_we_connect_is_asked_again(world: ZooKeeperWorld) -> None:
    world.mute_next_connections = 2
    started = time.monotonic()
    world.open(timeout_s=4, session_timeout_s=10)
    assert time.monotonic() - started < 3.5


def test_reconnecting_to_a_server_that_is_mute_at_first_fails_no_call(world: ZooKeeperWorld) -> None:
    store = world.open(timeout_s=4, session_timeout_s=10)
    store.initialize_cluster()
    for _ in range(2):
        states = states_of(store)
        world.proxy(store).mute_next(1)
        world.suspend(store)
        assert states.get(timeout=5) is SessionState.SUSPENDED
        world.resume(store)
        ledger_id, created = store.create_ledger(a_ledger())
        assert store.read_ledger(ledger_id) == created


def test_bookie_keeps_its_session_and_registration_past_a_mute_server(world: ZooKeeperWorld) -> None:
    bookie, reader = world.open(timeout_s=40, session_timeout_s=4), world.open()
    bookie.initialize_cluster()
    bookie.register_bookie(BookieServiceInfo("b1:3181", (), {INCARNATION_PROPERTY: "i1"}))
    session, states = tree_of(bookie).session_id, states_of(bookie)
    world.proxy(bookie).mute_next(1)
    world.suspend(bookie)
    world.resume(bookie)
    assert [states.get(timeout=8) for _ in range(2)] == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert tree_of(bookie).session_id == session
    assert list(reader.writable_bookies()) == ["b1:3181"]


def test_connection_that_went_silent_costs_a_read_a_third_of_its_deadline(world: ZooKeeperWorld) -> None:
    store = world.open(timeout_s=6, session_timeout_s=60)
    store.initialize_cluster()
    ledger_id, created = store.create_ledger(a_ledger())
    world.proxy(store).go_silent()
    started = time.monotonic()
    assert store.read_ledger(ledger_id) == created
    assert 1.5 < time.monotonic() - started < 4


def test_read_behind_many_slow_answers_does_not_break_the_connection(world: ZooKeeperWorld) -> None:
    """Only silence does: where other answers arrive, ours is slow and not lost."""
    store = world.open(timeout_s=6, session_timeout_s=60)
    store.initialize_cluster()
    states, tree = states_of(store), tree_of(store)
    world.proxy(store).answer_delay_s = 0.02
    others = in_thread(tree.get_many, [world.root] * 180)
    until(lambda: len(kazoo_of(store)._pending) > 120)
    started = time.monotonic()
    assert tree.exists(world.root) is not None
    assert time.monotonic() - started > 2.1, "it was not behind the others"
    others.result(10)
    assert states.empty()


def test_many_reads_during_an_outage_end_at_their_deadline(world: ZooKeeperWorld) -> None:
    """kazoo's own queue blocks who fills it while nothing takes from it."""
    store = world.open(timeout_s=0.5)
    store.initialize_cluster()
    states = states_of(store)
    world.suspend(store)
    assert states.get(timeout=5) is SessionState.SUSPENDED
    reads = [in_thread(tree_of(store).get_many, [f"/{number}" for number in range(1000)]) for _ in range(4)]
    for error in [read.exception(5) for read in reads]:
        assert isinstance(error, MetadataUnavailableError)
        assert error.outcome is Outcome.NOT_APPLIED


def test_closing_ends_a_call_that_waits_for_a_connection(world: ZooKeeperWorld) -> None:
    store = world.open(timeout_s=60)
    store.initialize_cluster()
    states = states_of(store)
    world.suspend(store)
    assert states.get(timeout=5) is SessionState.SUSPENDED
    reading = in_thread(store.read_ledger, 1)
    time.sleep(0.2)
    assert not reading.done()
    store.close()
    assert isinstance(reading.exception(5), ClientClosedError)


def test_session_whose_thread_dies_again_and_again_is_made_again(
    world: ZooKeeperWorld, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a free descriptor a look-up of a host ends kazoo's thread, also while there is no session to lose."""
    store = world.open(timeout_s=8)
    store.initialize_cluster()
    ledger_id, created = store.create_ledger(a_ledger())
    refusals, real = [OSError(errno.EMFILE, "made to fail")] * 2, socket.getaddrinfo

    def without_descriptors(*arguments: object, **options: object) -> object:
        if len(arguments) == 5 and refusals:  # kazoo's, not the proxy's
            raise refusals.pop()
        return real(*arguments, **options)  # type: ignore[arg-type] - passed on as given

    monkeypatch.setattr(socket, "getaddrinfo", without_descriptors)
    world.suspend(store)
    world.resume(store)
    until(lambda: not refusals)
    assert store.read_ledger(ledger_id) == created
    assert capfd.readouterr().err == ""


def test_session_whose_new_beginning_fails_is_tried_again(
    world: ZooKeeperWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.open(timeout_s=8)
    store.initialize_cluster()
    ledger_id, created = store.create_ledger(a_ledger())
    client, failures = kazoo_of(store), iter([True] * 2)
    start = client.start_async

    def cannot_start() -> object:
        if next(failures, False):
            raise RuntimeError("can't start new thread")
        return start()

    monkeypatch.setattr(client, "start_async", cannot_start)
    world.proxy(store).garble_next_answer()
    assert store.read_ledger(ledger_id) == created
    assert next(failures, None) is None


@pytest.mark.rule("E1")
@pytest.mark.parametrize("hosts", ["no-such-host.invalid:2181", "no-such-host.invalid:2181;nor-this.invalid:2181"])
def test_name_that_does_not_resolve_is_said_to_be_that(hosts: str) -> None:
    with pytest.raises(MetadataUnavailableError) as caught:
        open_store(f"zk://{hosts}/ledgers", timeout_s=0.5, session_timeout_s=2.0)
    assert "on this host" in caught.value.what
    assert "resolve" in caught.value.what
    assert "no-such-host.invalid" in caught.value.value
    assert caught.value.outcome is Outcome.NOT_APPLIED


@pytest.mark.rule("E1")
def test_names_that_do_not_resolve_are_told_beside_a_server_that_does_not_answer(world: ZooKeeperWorld) -> None:
    with mute_host() as mute, pytest.raises(MetadataUnavailableError) as caught:
        open_store(f"zk://no-such-host.invalid:2181;{mute}/ledgers", timeout_s=0.5, session_timeout_s=2.0)
    assert "did not answer" in caught.value.what
    assert "not resolved on this host: no-such-host.invalid" in caught.value.value


@pytest.mark.rule("E1")
def test_one_name_of_several_is_enough_and_the_log_names_the_others(
    world: ZooKeeperWorld, caplog: pytest.LogCaptureFixture
) -> None:
    made = world.open()
    made.initialize_cluster()
    uri = made.uri.replace("zk://", "zk://no-such-host.invalid:2181;")
    with contextlib.closing(open_store(uri, timeout_s=8.0, session_timeout_s=8.0)) as store:
        assert store.instance_id() == made.instance_id()
    assert [r.getMessage() for r in caplog.records if "no-such-host" in r.getMessage() and "resolve" in r.getMessage()]
