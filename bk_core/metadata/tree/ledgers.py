# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the records of ledgers. After a lost answer it compares the record in the store with the record that
it wrote (MUST 8)."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

from bk_core.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    MetadataAccessError,
    MetadataConflictError,
    MetadataCorruptError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    Outcome,
)
from bk_core.metadata.codec import decode_ledger, encode_ledger
from bk_core.metadata.layout import (
    Layout,
    check_new_ledger_id,
    decode_layout,
    is_beside_ledgers,
    last_id_below,
    ledger_id_of,
    ledger_path,
    lock_path,
)
from bk_core.metadata.port import CancelWatch
from bk_core.metadata.tree.base import StorePart, first_loss
from bk_core.metadata.tree.ids import IdGenerator, NewId
from bk_core.metadata.tree.tree import (
    ANY_VERSION,
    NODE_BYTES_MAX,
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    Set,
    Tree,
    TreeError,
)
from bk_core.metadata.tree.watches import Watches
from bk_core.metadata.unreadable import NodeKind
from bk_core.model import LedgerId, LedgerMetadata, Versioned
from bk_core.observe.audit import audited

_ID_TRIES = 100


class Ledgers(StorePart):
    """The part of a store that has the ledgers' records. If the URI names a layout, it must be the layout in the LAYOUT
    record."""

    def __init__(self, tree: Tree, root: str, watches: Watches, layout: Layout | None) -> None:
        super().__init__(tree, root, watches, layout)
        self._found_layout: Layout | None = None
        self._ids = IdGenerator(tree, root)

    def _layout(self) -> Layout:
        if self._found_layout is None:
            data = self._find(f"{self._root}/LAYOUT")
            if data is None:
                raise self._no_cluster()
            found = decode_layout(data)
            if self._asked_layout is not None and self._asked_layout is not found:
                raise InvalidArgumentError(
                    f"The cluster's ledger layout is {found.value}, the URI asks for another",
                    value=f"metadataServiceUri begins with zk+{self._asked_layout.value}",
                    remedy="write zk:// without a layout",
                )
            self._found_layout = found
        return self._found_layout

    def _znode_of(self, ledger_id: LedgerId) -> str:
        return self._root + ledger_path(self._layout(), ledger_id)

    def create_ledger(
        self, metadata: LedgerMetadata, ledger_id: LedgerId | None = None
    ) -> tuple[LedgerId, Versioned[LedgerMetadata]]:
        if metadata.format_version == 3 and metadata.c_token is None:
            metadata = replace(metadata, c_token=secrets.randbits(63))
        data = encode_ledger(metadata)
        if ledger_id is not None:
            check_new_ledger_id(self._layout(), ledger_id)
            try:
                self._create_ledger_at(self._znode_of(ledger_id), data, metadata)
            except NodeExistsError as error:
                raise LedgerExistsError(f"Ledger {ledger_id} exists already", remedy="choose another id") from error
            return ledger_id, Versioned(metadata, 0)
        for _ in range(_ID_TRIES):  # an id may be taken by a ledger that was created with a given id
            made = self._ids.next(self._layout())
            check_new_ledger_id(self._layout(), made.number)
            with contextlib.suppress(NodeExistsError):
                self._create_ledger_with(made, data, metadata)
                return made.number, Versioned(metadata, 0)
        raise LedgerExistsError(
            f"The last {_ID_TRIES} ledger ids made are all taken",
            remedy="do not mix given ids with ids the store makes",
        )

    def _create_ledger_with(self, made: NewId, data: bytes, metadata: LedgerMetadata) -> None:
        """Create the record and delete the node of its id in one transaction. If that fails, do both one after the
        other."""
        path, lost = self._znode_of(made.number), None
        try:
            try:
                if len(data) <= NODE_BYTES_MAX:
                    self._tree.multi([Delete(made.node), Create(path, data)])
                    return
            except NoNodeError:
                pass  # the record's parent is missing or, after the loss of a session, the id's node
            except MetadataUnavailableError as error:
                lost = first_loss(None, error)
            self._create_ledger_at(path, data, metadata, lost)
        except (NodeExistsError, InvalidArgumentError):
            self._ids.release(made)
            raise  # after another error the store is away, and the node ends with the session
        self._ids.release(made)

    def _create_ledger_at(
        self, path: str, data: bytes, metadata: LedgerMetadata, lost: MetadataUnavailableError | None = None
    ) -> None:
        def is_mine(found: bytes) -> bool:  # without a token, equal bytes may be another client's
            if found == data and metadata.c_token is None:
                raise MetadataUnavailableError(
                    "The answer to creating a ledger was lost, and a record without a token is not recognized",
                    value=path,
                )
            try:
                return metadata.c_token is not None and decode_ledger(found).c_token == metadata.c_token
            except MetadataCorruptError:
                return False

        self._create_settled(path, data, is_mine, lost)

    def read_ledger(self, ledger_id: LedgerId, *, fresh: bool = False) -> Versioned[LedgerMetadata]:
        path = self._znode_of(ledger_id)
        try:
            found = self._versioned(ledger_id, path, *self._get(path))
            if fresh and not found.value.is_closed:
                self._tree.sync(self._root)
                found = self._versioned(ledger_id, path, *self._tree.get(path))
        except NoNodeError as error:
            self.unreadable.forget(path)
            _raise_no_such_ledger(ledger_id, error)
        return found

    def _versioned(self, ledger_id: LedgerId, path: str, data: bytes, stat: NodeStat) -> Versioned[LedgerMetadata]:
        with self.unreadable.reading(NodeKind.LEDGER, path, f"ledger {ledger_id}, "):
            return Versioned(decode_ledger(data), stat.version)

    def ledger_ctime_ms(self, ledger_id: LedgerId) -> int:
        return self.ledger_times_ms(ledger_id)[0]

    def ledger_times_ms(self, ledger_id: LedgerId) -> tuple[int, int]:
        stat = self._stat(self._znode_of(ledger_id))
        if stat is None:
            _raise_no_such_ledger(ledger_id, None)
        return stat.ctime_ms, stat.mtime_ms

    def write_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int) -> Versioned[LedgerMetadata]:
        if version < 0:
            raise InvalidArgumentError("A ledger is only written by compare-and-set", value=f"version={version}")
        try:
            return Versioned(metadata, self._tree.set(self._znode_of(ledger_id), encode_ledger(metadata), version))
        except NoNodeError as error:
            _raise_no_such_ledger(ledger_id, error)
        except BadVersionError as error:
            raise _conflict(ledger_id, version) from error

    def write_repaired_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int
    ) -> Versioned[LedgerMetadata]:
        path, lock = self._znode_of(ledger_id), self._root + lock_path(ledger_id)
        stat = self._tree.exists(lock)
        if stat is None or stat.owner != self._tree.session_id:
            raise _lock_lost(ledger_id)
        try:
            self._tree.multi([Check(lock, stat.version), Set(path, encode_ledger(metadata), version)])
        except NoNodeError as error:
            if self._tree.exists(lock) is None:
                raise _lock_lost(ledger_id) from error
            _raise_no_such_ledger(ledger_id, error)
        except BadVersionError as error:
            raise _conflict(ledger_id, version) from error
        return Versioned(metadata, version + 1)

    def delete_ledger(self, ledger_id: LedgerId, version: int | None = None) -> None:
        with audited("delete-ledger", ledger=ledger_id):
            self._delete_ledger(ledger_id, version)

    def _delete_ledger(self, ledger_id: LedgerId, version: int | None) -> None:
        path = self._znode_of(ledger_id)
        try:
            self._delete_settled(path, ANY_VERSION if version is None else version)
        except NoNodeError as error:
            _raise_no_such_ledger(ledger_id, error)
        except BadVersionError as error:
            raise MetadataConflictError(
                f"Ledger {ledger_id} was changed by another client and not deleted",
                value=f"expected version {version}",
                remedy="read it again",
            ) from error
        self.unreadable.forget(path)
        self._prune(path)

    def _prune(self, path: str) -> None:
        """Delete the folders that a deletion left empty. A later creation makes its folders again. This client may have
        no right to delete the highest folder."""
        with contextlib.suppress(TreeError, MetadataUnavailableError, MetadataAccessError):
            while (path := path.rpartition("/")[0]) != self._root:
                self._tree.delete(path)

    def list_ledgers(self, after: LedgerId = -1) -> Iterator[LedgerId]:
        layout = self._layout()
        if after >= 0:
            yield from self._walk("", layout, after)
            return
        with self.unreadable.whole_walk(NodeKind.LEDGER, self._root, nested=True):
            yield from self._walk("", layout, after)

    def _walk(self, folder: str, layout: Layout, after: LedgerId) -> Iterator[LedgerId]:
        try:
            names = self._tree.children(self._root + folder) if folder else self._children(self._root)
        except NoNodeError as error:
            if folder:
                return  # the folder was emptied and deleted during the walk
            raise MetadataCorruptError(
                "The ledgers root is gone", value=self._root, remedy="restore the metadata of the cluster"
            ) from error
        for name in sorted(names, key=lambda name: (len(name), name)):  # two digits, then three: ascending ids
            path = f"{folder}/{name}"
            if name.isdigit() and len(name) <= 4:
                if last_id_below(path) > after:
                    yield from self._walk(path, layout, after)
            elif not (folder == "" and is_beside_ledgers(name)):
                ledger_id = ledger_id_of(layout, path)
                if ledger_id is not None and ledger_id > after:
                    self.unreadable.still_there(self._root + path)
                    yield ledger_id

    def watch_ledger(
        self, ledger_id: LedgerId, callback: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> CancelWatch:

        def changed(found: tuple[bytes, NodeStat] | None) -> None:
            callback(None if found is None else self._versioned(ledger_id, path, *found))

        path = self._znode_of(ledger_id)
        cancel = self._watch_node(path, changed)
        if cancel is None:
            _raise_no_such_ledger(ledger_id, None)
        return cancel


def _raise_no_such_ledger(ledger_id: LedgerId, cause: NoNodeError | None) -> NoReturn:
    raise NoSuchLedgerError(
        f"There is no ledger {ledger_id}", remedy="list the ledgers; it may have been deleted"
    ) from cause


def _conflict(ledger_id: LedgerId, version: int) -> MetadataConflictError:
    return MetadataConflictError(
        f"Ledger {ledger_id} was changed by another client", value=f"expected version {version}", remedy="read it again"
    )


def _lock_lost(ledger_id: LedgerId) -> MetadataError:
    return MetadataError(
        f"The lock of the repair of ledger {ledger_id} was lost with its session",
        remedy="it is repaired again",
        outcome=Outcome.NOT_APPLIED,
    )
