# SPDX-License-Identifier: Apache-2.0
"""One cluster for each test, in memory or on a real ZooKeeper, with clients for which a test can cause faults."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.client import KazooClient

from bk_core.metadata import open_store
from bk_core.metadata.layout import parse_service_uri
from bk_core.metadata.port import MetadataStore
from bk_core.metadata.tree.store import TreeStore
from bk_core.metadata.zookeeper.session import ZooKeeperTree
from bk_core.model import Fragment, LedgerMetadata
from tests.kit.memory_store import MemoryCluster, MemoryStore
from tests.kit.zookeeper_ensemble import ZooKeeperEnsemble
from tests.kit.zookeeper_proxy import ZooKeeperProxy

ROOT = "/ledgers"
LET_GO_S = 0.1


class MetadataWorld(Protocol):
    """The calls that a contract test may use; ``path`` in :meth:`raw` is below the ledgers root."""

    root: str
    brief_s: float
    """The shortest time in seconds for a call or a session in which a service that works can answer."""

    def open(self, *, timeout_s: float = 8.0, session_timeout_s: float = 8.0, layout: str = "") -> MetadataStore: ...
    def lose_next_answer(self, store: MetadataStore, *, applied: bool) -> None: ...
    def suspend(self, store: MetadataStore) -> None: ...
    def resume(self, store: MetadataStore) -> None: ...
    def expire(self, store: MetadataStore) -> None: ...
    def abandon(self, store: MetadataStore) -> None:
        """End a store as ``kill -9`` of its process would. The session stays until it times out."""
        ...

    def close(self) -> None: ...


class MemoryWorld:
    """A cluster in this process. An abandoned session ends only when the test ends it."""

    brief_s = 0.1

    def __init__(self) -> None:
        self.root = ROOT
        self._cluster = MemoryCluster()
        self._stores: list[MemoryStore] = []

    def open(self, *, timeout_s: float = 8.0, session_timeout_s: float = 8.0, layout: str = "") -> MetadataStore:
        asked = parse_service_uri(f"zk+{layout or 'null'}://memory").layout
        store = MemoryStore(self._cluster, layout=asked, timeout_s=timeout_s, session_timeout_s=session_timeout_s)
        self._stores.append(store)
        return store

    def lose_next_answer(self, store: Any, *, applied: bool) -> None:
        store.tree.lose_next_answer(applied=applied)

    def suspend(self, store: Any) -> None:
        store.tree.suspend()

    def resume(self, store: Any) -> None:
        store.tree.resume()

    def expire(self, store: Any) -> None:
        store.tree.expire()

    def abandon(self, store: Any) -> None:
        store.tree.abandon()
        timer = threading.Timer(store.tree.session_timeout_s, self._cluster.end_session, (store.tree.session_id,))
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        for store in self._stores:
            store.close()


class ZooKeeperWorld:
    """A cluster on a real ZooKeeper. Each client reaches the server through a proxy of its own."""

    brief_s = 1.0

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self.root = f"/{uuid.uuid4().hex[:12]}{ROOT}"
        self.mute_next_connections = 0  # how many connections of the next store stay silent
        self._stores: list[tuple[MetadataStore, ZooKeeperProxy]] = []

    def open(self, *, timeout_s: float = 8.0, session_timeout_s: float = 8.0, layout: str = "") -> MetadataStore:
        proxy = ZooKeeperProxy(*self._server, mute_next=self.mute_next_connections)
        scheme = f"zk+{layout}" if layout else "zk"
        uri = f"{scheme}://127.0.0.1:{proxy.port}{self.root}"
        store = open_store(uri, timeout_s=timeout_s, session_timeout_s=session_timeout_s)
        self._stores.append((store, proxy))
        return store

    def proxy(self, store: MetadataStore) -> ZooKeeperProxy:
        return next(proxy for known, proxy in self._stores if known is store)

    def lose_next_answer(self, store: MetadataStore, *, applied: bool) -> None:
        self.proxy(store).lose_next_answer(applied=applied)

    def suspend(self, store: MetadataStore) -> None:
        self.proxy(store).cut()

    def resume(self, store: MetadataStore) -> None:
        self.proxy(store).restore()

    def expire(self, store: MetadataStore) -> None:
        session = kazoo_of(store).client_id
        self.suspend(store)
        twin = KazooClient(":".join(map(str, self._server)), client_id=session)
        twin.start()
        twin.stop()  # ends the session, which both share
        twin.close()
        self.resume(store)

    def abandon(self, store: MetadataStore) -> None:
        self.proxy(store).cut()

    def close(self) -> None:
        for store, proxy in self._stores:
            proxy.restore()
            store.close()
            proxy.close()


def tree_of(store: MetadataStore) -> Any:
    """Return the tree below a store, for tests that read its bytes or write bytes as Apache's programs do."""
    assert isinstance(store, TreeStore)
    return store._tree


def kazoo_of(store: MetadataStore) -> KazooClient:
    tree = tree_of(store)
    assert isinstance(tree, ZooKeeperTree)
    return tree._client


def a_ledger(**changes: Any) -> LedgerMetadata:
    """Make the metadata of an open ledger on three bookies."""
    values: dict[str, Any] = {
        "ensemble_size": 3,
        "write_quorum_size": 3,
        "ack_quorum_size": 2,
        "fragments": (Fragment(0, ("b1:3181", "b2:3181", "b3:3181")),),
    }
    return LedgerMetadata(**(values | changes))


def a_ledger_on(*ensembles: tuple[str, ...], **changes: Any) -> LedgerMetadata:
    """Make the metadata of a ledger with a fragment of ten entries on each ensemble. All of its bookies have all
    entries."""
    size = len(ensembles[0])
    fragments = tuple(Fragment(10 * number, each) for number, each in enumerate(ensembles))
    sizes = {"ensemble_size": size, "write_quorum_size": size, "ack_quorum_size": min(size, 2)}
    return a_ledger(**sizes, fragments=fragments, **changes)


class LagWorld(Protocol):
    """Two clients of one existing cluster. The server of ``reader`` can lag; that of ``writer`` never does."""

    writer: MetadataStore
    reader: MetadataStore

    def lag(self) -> None:
        """Hold back all further changes from the reader's server until a sync or a write goes through it."""
        ...

    @property
    def lags(self) -> bool: ...
    def close(self) -> None: ...


class MemoryLagWorld:
    """A world whose cluster is in this process."""

    def __init__(self) -> None:
        cluster = MemoryCluster()
        self.writer, self.reader = MemoryStore(cluster), MemoryStore(cluster)
        self.writer.initialize_cluster()

    def lag(self) -> None:
        self.reader.tree.lag()

    @property
    def lags(self) -> bool:
        return self.reader.tree.lags

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


class EnsembleLagWorld:
    """A world on an ensemble. The reader uses a follower that can be held back, and the writer uses the leader.

    A sync through a server that is held back waits until the server is released. Therefore the world releases the
    server a moment after the sync was sent. Without the sync the next read would still return the old state.
    """

    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self._ensemble = ensemble
        self.follower, self.leader = ensemble.followers[0], ensemble.leader
        assert self.leader is not None
        self.root = f"/{uuid.uuid4().hex[:12]}{ROOT}"
        self.writer = open_store(f"zk://{self.leader.connect_string}{self.root}", timeout_s=8, session_timeout_s=8)
        self.writer.initialize_cluster()
        self.reader = open_store(f"zk://{self.follower.connect_string}{self.root}", timeout_s=8, session_timeout_s=8)
        self.reader.sync()
        self.lags = False
        self._timers: list[threading.Timer] = []
        tree = tree_of(self.reader)
        tree.sync, tree._write = self._letting_go(tree.sync), self._letting_go(tree._write)

    def lag(self) -> None:
        self._settle()
        self._ensemble.hold_back(self.follower)
        self.lags = True

    def _settle(self) -> None:
        while self._timers:
            self._timers.pop().join()

    def _letting_go(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._timers.append(threading.Timer(LET_GO_S, self._let_go))
            self._timers[-1].start()
            return real(*arguments)

        return call

    def _let_go(self) -> None:
        self._ensemble.heal()
        self.lags = False

    def close(self) -> None:
        self._settle()
        self._ensemble.heal()
        self.reader.close()
        self.writer.close()


def lose_write_number(world: MetadataWorld, store: MetadataStore, number: int, *, applied: bool) -> None:
    """Make the store lose the answer to its write of this number, counted from 0."""
    before_write(store, number, lambda: world.lose_next_answer(store, applied=applied))


def before_write(store: MetadataStore, number: int, action: Callable[[], object]) -> None:
    """Call ``action`` just before the store's write of this number, counted from 0."""
    tree = tree_of(store)
    write, count = tree._write, 0

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == number + 1:
            action()
        return write(*arguments)

    tree._write = counted


def before_read(store: MetadataStore, action: Callable[[], object]) -> None:
    """Call ``action`` just before the store's next read of a ledger's record or list of ledgers."""
    done = False

    def once(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal done
            if not done:
                done = True
                action()
            return real(*arguments, **keywords)

        return call

    for name in ("read_ledger", "list_ledgers"):
        setattr(store, name, once(getattr(type(store), name).__get__(store)))
