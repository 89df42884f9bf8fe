# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the registrations of writable and read-only bookies, their cookies and their state records.

A registration lasts for as long as this store is open, because it is created again in each new session (M2, M3).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TypeAlias

from bk_core.errors import (
    BookieIdentityError,
    ClientClosedError,
    MetadataError,
    MetadataUnavailableError,
)
from bk_core.metadata.layout import Layout, check_bookie_id
from bk_core.metadata.port import SessionState
from bk_core.metadata.records import Cookie, Order, decode_cookie, decode_service_info, encode_service_info
from bk_core.metadata.tree.base import StorePart, first_loss
from bk_core.metadata.tree.cluster.orders import Orders
from bk_core.metadata.tree.tree import (
    WRITE_TRIES,
    Create,
    Delete,
    NodeStat,
    NoNodeError,
    Tree,
    TreeError,
    Watcher,
    ensure_path,
)
from bk_core.metadata.tree.watches import Snapshot, Watches
from bk_core.metadata.unreadable import NodeKind
from bk_core.metadata.worker import Worker
from bk_core.model import INCARNATION_PROPERTY, BookieId, BookieServiceInfo, Versioned
from bk_core.observe.audit import audited

logger = logging.getLogger(__name__)
Registrations: TypeAlias = tuple[tuple[BookieId, bytes], ...]
"""The ids of the bookies that are registered in one folder, each with its record."""
_READ_ONLY = "readonly"
_RETRY_S = 0.5
_RETRY_MAX_S = 8.0
_LOOK_AGAIN_S = 0.5  # a watch wakes the wait sooner


class Bookies(StorePart):
    """The part of a store that reads the registered bookies, and makes the registrations of this process."""

    def __init__(self, tree: Tree, root: str, watches: Watches, layout: Layout | None) -> None:
        super().__init__(tree, root, watches, layout)
        self._available = f"{root}/available"
        self._registering = threading.RLock()  # one registration at a time
        self._registered: dict[BookieId, tuple[BookieServiceInfo, bool, int]] = {}  # …, the session that made it
        self._registrar = Worker("bookkeeper-registration")
        self._retry_s, self._retry_waits = _RETRY_S, False  # used only on the registrar's thread
        self._decoded: dict[str, tuple[Snapshot, dict[BookieId, BookieServiceInfo]]] = {}  # folder → last read, bookies
        self._forget_session = tree.on_session(self._session_changed)

    def _registration(self, bookie_id: BookieId, read_only: bool) -> str:
        return f"{self._available}/{_READ_ONLY}/{bookie_id}" if read_only else f"{self._available}/{bookie_id}"

    # --- reading ---

    def writable_bookies(self) -> dict[BookieId, BookieServiceInfo]:
        return self._bookies_in(self._available)

    def read_only_bookies(self) -> dict[BookieId, BookieServiceInfo]:
        return self._bookies_in(f"{self._available}/{_READ_ONLY}")

    def seen_bookies(self) -> tuple[dict[BookieId, BookieServiceInfo], dict[BookieId, BookieServiceInfo]] | None:
        folders = (self._available, f"{self._available}/{_READ_ONLY}")
        writable, read_only = (self._watches.seen(folder, read_registrations) for folder in folders)
        if writable is None or read_only is None:
            return None
        return self._decode(folders[0], writable), self._decode(folders[1], read_only)

    def _bookies_in(self, folder: str) -> dict[BookieId, BookieServiceInfo]:
        found = self._watches.read(folder, read_registrations)
        if found is None:  # the server may lag (M5)
            self._tree.sync(self._root)
            found = self._watches.read(folder, read_registrations)
        return {} if found is None else dict(self._decode(folder, found))

    def _decode(self, folder: str, found: Registrations) -> dict[BookieId, BookieServiceInfo]:
        """Return the bookies in these registrations. While nothing changes, return the same dict."""
        seen, bookies = self._decoded.get(folder, (None, {}))
        if seen is not found:
            bookies = self._decoded_of(folder, found)
            self._decoded[folder] = (found, bookies)
        return bookies

    def _decoded_of(self, folder: str, found: Registrations) -> dict[BookieId, BookieServiceInfo]:
        bookies: dict[BookieId, BookieServiceInfo] = {}
        with self.unreadable.whole_walk(NodeKind.REGISTRATION, folder):
            for bookie_id, data in found:
                with self.unreadable.skipping(NodeKind.REGISTRATION, f"{folder}/{bookie_id}"):
                    bookies[bookie_id] = decode_service_info(bookie_id, data)
        return bookies

    def bookie_info(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        check_bookie_id(bookie_id)
        paths = [self._registration(bookie_id, False), self._registration(bookie_id, True)]
        found = self._tree.get_many(paths)
        if found == [None, None]:  # the server may lag (M5)
            self._tree.sync(self._root)
            found = self._tree.get_many(paths)
        for path, node in zip(paths, found, strict=True):
            if node is not None:
                with self.unreadable.reading(NodeKind.REGISTRATION, path):
                    return decode_service_info(bookie_id, node[0])
        return None

    # --- registering ---

    def register_bookie(self, info: BookieServiceInfo, *, read_only: bool = False) -> None:
        check_bookie_id(info.bookie_id)
        with self._registering:
            self._register_in_this_session(info, read_only)
            if self._registered[info.bookie_id][2] != self._tree.session_id:  # lost while we registered
                self._registrar.submit(self._register_again)

    def unregister_bookie(self, bookie_id: BookieId) -> None:
        check_bookie_id(bookie_id)
        with self._registering:
            self._registered.pop(bookie_id, None)
            for read_only in (False, True):
                self._delete_own(self._registration(bookie_id, read_only))

    def _register_in_this_session(self, info: BookieServiceInfo, read_only: bool) -> None:
        session_id = self._tree.session_id  # read first: if the session ends meanwhile, the node is made again
        self._register(info, read_only)
        self._registered[info.bookie_id] = (info, read_only, session_id)

    def _register(self, info: BookieServiceInfo, read_only: bool) -> None:
        new, old = self._registration(info.bookie_id, read_only), self._registration(info.bookie_id, not read_only)
        deadline = time.monotonic() + self._tree.session_timeout_s
        ensure_path(self._tree, new.rpartition("/")[0])
        self._await_ours(old, info, deadline)
        self._create_own(new, info, deadline)
        self._await_ours(old, info, deadline)
        self._delete_if_there(old)

    def _create_own(self, path: str, info: BookieServiceInfo, deadline: float) -> None:
        """Create the ephemeral node in this session. An older node of this session, or of the same data directory, is
        replaced."""
        data = encode_service_info(info)
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            found = self._await_ours(path, info, deadline)
            try:
                if found is None:
                    self._tree.create(path, data, ephemeral=True)
                elif found[1].owner != self._tree.session_id:
                    self._delete_if_there(path)  # a process of our directory that has ended left it (M3)
                    continue
                elif found[0] != data:
                    # created anew, because a watch on the folder fires for new nodes and not for new data
                    self._tree.multi([Delete(path, found[1].version), Create(path, data, ephemeral=True)])
                return
            except TreeError:
                continue  # the node changed between our read and our write
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)  # read again: a node of this session is ours
        raise lost or _taken(info)

    def _await_ours(self, path: str, info: BookieServiceInfo, deadline: float) -> tuple[bytes, NodeStat] | None:
        """Return the node if it belongs to this session or to the same data directory, or None if there is no node.

        If the node belongs to another directory, wait until it is deleted, because its session may be over. Raises
        BookieIdentityError at the deadline.
        """
        while True:
            changed = threading.Event()
            try:
                data, stat = self._tree.get(path, changed.set)
            except NoNodeError:
                return None
            if stat.owner == self._tree.session_id or _same_directory(info, data):
                return data, stat
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise _taken(info)
            changed.wait(min(remaining_s, _LOOK_AGAIN_S))

    # --- registering again ---

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED and self._registered:
            self._registrar.submit(self._register_again)

    def _register_again(self) -> None:
        try:
            with self._registering:
                for bookie_id, (info, read_only, session_id) in list(self._registered.items()):
                    if session_id != self._tree.session_id:
                        self._register_in_this_session(info, read_only)
                        logger.info("bookie %s is registered again, because its session was lost", bookie_id)
        except ClientClosedError:
            return
        except (MetadataError, BookieIdentityError) as error:
            logger.error("a bookie could not be registered again, trying again: %s", error)
        except Exception:
            logger.exception("a bookie could not be registered again, trying again")
        else:
            self._retry_s = _RETRY_S
            return
        if not self._retry_waits:
            self._retry_waits = True
            self._registrar.submit(self._retry_registering, self._retry_s)
            self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)

    def _retry_registering(self) -> None:
        self._retry_waits = False
        self._register_again()

    def _stop_registering(self) -> None:
        self._forget_session()
        self._registrar.stop(0)


def read_registrations(tree: Tree, folder: str, watch: Watcher | None) -> Registrations | None:
    """Return the bookies that are registered in this folder, with their records, and set the watch. If there is no such
    folder, return None and set no watch. ``watch`` fires when a registration is created or deleted; a record never
    changes."""
    try:
        ids = [name for name in tree.children(folder, watch) if name != _READ_ONLY]
    except NoNodeError:
        return None
    nodes = tree.get_many([f"{folder}/{bookie_id}" for bookie_id in ids])
    return tuple((bookie_id, node[0]) for bookie_id, node in zip(ids, nodes, strict=True) if node is not None)


def _same_directory(info: BookieServiceInfo, data: bytes) -> bool:
    try:
        return decode_service_info(info.bookie_id, data).is_of_directory_of(info)
    except MetadataError:
        return False


def _taken(info: BookieServiceInfo) -> BookieIdentityError:
    return BookieIdentityError(
        f"Bookie {info.bookie_id} is registered already, by a process with another data directory",
        value=f"the incarnation of this process is {info.properties.get(INCARNATION_PROPERTY, 'not set')}",
        remedy="stop the other process, or give this process another bookie id or address",
    )


class Cookies(Orders):
    """The part of a store that reads and writes Apache's cookies of bookies, and the state records of our bookies
    (S8)."""

    def read_cookie(self, bookie_id: BookieId) -> Versioned[bytes] | None:
        return self._read(self._cookie_path(bookie_id))

    def cookies(self) -> dict[BookieId, Cookie]:
        folder, found = f"{self._root}/cookies", dict[BookieId, Cookie]()
        with self.unreadable.whole_walk(NodeKind.COOKIE, folder):
            for name, data, _ in self._nodes(folder):
                with self.unreadable.skipping(NodeKind.COOKIE, f"{folder}/{name}"):
                    found[name] = decode_cookie(data)
        return found

    def write_cookie(self, bookie_id: BookieId, cookie: bytes, version: int | None) -> None:
        self._write_record(self._cookie_path(bookie_id), cookie, version)

    def delete_cookie(self, bookie_id: BookieId) -> None:
        with audited("delete-cookie", bookie=bookie_id):
            self._delete_if_there(self._cookie_path(bookie_id))

    def known_bookies(self) -> list[BookieId]:
        known = set[BookieId]()
        for folder in (f"{self._root}/cookies", f"{self._root}-bookies"):
            with contextlib.suppress(NoNodeError):
                known.update(self._tree.children(folder))
        removed = {name for name, found in self.bookie_orders().items() if found.order is Order.REMOVED}
        return sorted(known - removed)

    def read_bookie_state(self, bookie_id: BookieId) -> Versioned[bytes] | None:
        return self._read(self._state_path(bookie_id))

    def write_bookie_state(self, bookie_id: BookieId, state: bytes, version: int | None) -> None:
        self._write_record(self._state_path(bookie_id), state, version)

    def _cookie_path(self, bookie_id: BookieId) -> str:
        return f"{self._root}/cookies/{check_bookie_id(bookie_id)}"

    def _state_path(self, bookie_id: BookieId) -> str:
        return f"{self._root}-bookies/{check_bookie_id(bookie_id)}"

    def _write_record(self, path: str, data: bytes, version: int | None) -> None:
        self._write_versioned(
            path,
            data,
            version,
            conflict="Another process wrote a bookie's record",
            remedy="read it again; only one process may use a bookie id",
        )
