# SPDX-License-Identifier: Apache-2.0
"""The registrations of bookies, writable and read-only; their cookies and state records.

A registration lasts as long as this store is open: it is created again in each new session (M2, M3).
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
    MetadataConflictError,
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
    BadVersionError,
    Create,
    Delete,
    NodeExistsError,
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
"""The bookies of one folder: their ids and records."""
_READ_ONLY = "readonly"
_RETRY_S = 0.5
_RETRY_MAX_S = 8.0
_LOOK_AGAIN_S = 0.5  # a watch wakes the wait sooner


class Bookies(StorePart):
    """The registered bookies of one cluster, and the registrations of this process."""

    def __init__(self, tree: Tree, root: str, watches: Watches, layout: Layout | None) -> None:
        super().__init__(tree, root, watches, layout)
        self._available = f"{root}/available"
        self._registering = threading.RLock()  # one registration at a time
        self._registered: dict[BookieId, tuple[BookieServiceInfo, bool, int]] = {}  # …, session that made it
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
        """Return the bookies in these registrations; the same dict while nothing changes."""
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
        session_id = self._tree.session_id  # read before: if the session ends meanwhile, the node is made again
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
        """Create the ephemeral node in this session. Replaces an older node of this session or of our directory."""
        data = encode_service_info(info)
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            found = self._await_ours(path, info, deadline)
            try:
                if found is None:
                    self._tree.create(path, data, ephemeral=True)
                elif found[1].owner != self._tree.session_id:
                    self._delete_if_there(path)  # a dead process of our directory left it (M3)
                    continue
                elif found[0] != data:
                    # not set: a watch on the folder fires for nodes that come and go, not for their data
                    self._tree.multi([Delete(path, found[1].version), Create(path, data, ephemeral=True)])
                return
            except TreeError:
                continue  # the node changed between our read and our write
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)  # read again: a node of this session is ours
        raise lost or _taken(info)

    def _await_ours(self, path: str, info: BookieServiceInfo, deadline: float) -> tuple[bytes, NodeStat] | None:
        """Return the node if it belongs to this session or to our directory; None if there is no node.

        Waits for a node of another directory to go, since its session may be over. At the deadline raises
        BookieIdentityError.
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
                        logger.info("bookie %s is registered again: its session was lost", bookie_id)
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
    """Return the bookies registered in this folder and their records. ``watch`` fires when one comes, goes or registers
    again; a node's record never changes. Returns None and sets no watch if there is no such folder."""
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
        value=f"this one's incarnation is {info.properties.get(INCARNATION_PROPERTY, 'not set')}",
        remedy="stop the other process, or give this one another bookie id or address",
    )


class Cookies(Orders):
    """Apache's cookies of bookies, and our own state records of bookies (S8), as opaque bytes."""

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
        try:
            if version is None:
                self._create_with_parents(path, data)
            else:
                self._set_settled(path, data, version)
        except (NodeExistsError, NoNodeError, BadVersionError) as error:
            expected = "no record" if version is None else f"version {version}"
            raise MetadataConflictError(
                "Another process wrote a bookie's record",
                value=f"{path}: expected {expected}",
                remedy="read it again; only one process may use a bookie id",
            ) from error
