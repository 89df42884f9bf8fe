# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the heads, pages, transactions and unlinked records of named logs, as opaque bytes. They are beside
Apache's tree (docs/formats.md §4; N3 to N6, N8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from bk_core.errors import (
    InvalidArgumentError,
    LogExistsError,
    MetadataConflictError,
    MetadataCorruptError,
    MetadataUnavailableError,
    NoSuchLogError,
    Outcome,
)
from bk_core.metadata.layout import check_log_name, check_node_name, is_log_name
from bk_core.metadata.port import CancelWatch, LogWrite
from bk_core.metadata.tree.base import StorePart, first_loss, looking_after
from bk_core.metadata.tree.tree import (
    ANY_VERSION,
    WRITE_TRIES,
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    NotEmptyError,
    Op,
    Set,
    TreeError,
    ensure_path,
)
from bk_core.model import Versioned

_PAGES, _TXNS, _UNLINKED = "pages", "txns", "unlinked"
_FOLDERS = (_PAGES, _TXNS, _UNLINKED)
_DELETES_AT_ONCE = 1000


class Logs(StorePart):
    """The part of a store that has the named logs, at ``<root>-logs``."""

    def _head(self, name: str) -> str:
        return f"{self._root}-logs/{check_log_name(name)}"

    def log_path(self, name: str, *below: str) -> str:
        return "/".join((self._head(name), *below))

    def _page(self, name: str, page: str) -> str:
        return f"{self._head(name)}/{_PAGES}/{check_node_name(page, 'page')}"

    def _txn(self, name: str, key: str) -> str:
        return f"{self._head(name)}/{_TXNS}/{check_node_name(key, 'transaction')}"

    def _record(self, name: str, record: str) -> str:
        return f"{self._head(name)}/{_UNLINKED}/{check_node_name(record, 'unlinked record')}"

    def _names_in(self, folder: str) -> list[str]:
        try:
            return self._tree.children(folder)
        except NoNodeError:
            return []

    # --- heads ---

    def list_logs(self) -> list[str]:
        return [name for name in self._names_in(f"{self._root}-logs") if is_log_name(name)]

    def create_log(self, name: str, head: bytes) -> Versioned[bytes]:
        path = self._head(name)
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            try:
                self._tree.multi([Create(path, head), *(Create(f"{path}/{folder}") for folder in _FOLDERS)])
                return Versioned(head, 0)
            except NoNodeError:
                ensure_path(self._tree, f"{self._root}-logs")
            except NodeExistsError as error:
                with looking_after(lost):
                    is_mine = lost is not None and self._find(path) == head  # no other head has the uuid of our log
                if not is_mine:
                    raise LogExistsError(f"The log {name!r} exists already", remedy="choose another name") from error
                return Versioned(head, 0)
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
        raise lost or NoSuchLogError("The folder of logs is deleted again and again", value=f"{self._root}-logs")

    def read_log(self, name: str) -> Versioned[bytes]:
        found = self._read(self._head(name))
        if found is None:
            _raise_no_such_log(name, None)
        return found

    def write_logs(self, writes: Iterable[LogWrite]) -> list[Versioned[bytes]]:
        writes = list(writes)
        heads = {self._head(write.name): write.name for write in writes}
        if len(heads) != len(writes):
            raise InvalidArgumentError("A log is written twice in one step", value=repr([w.name for w in writes]))
        ops = [op for write in writes for op in self._ops(write)]
        try:
            try:
                self._tree.multi(ops)
            except NoNodeError as error:
                if not self._made_folder(error.path):
                    raise
                self._tree.multi(ops)
        except NoNodeError as error:
            if error.path in heads:
                _raise_no_such_log(heads[error.path], error)
            _raise_conflict(error)
        except (BadVersionError, NodeExistsError) as error:
            _raise_conflict(error)
        return [Versioned(write.head, write.version + 1) for write in writes]

    def _made_folder(self, path: str) -> bool:
        """Create the folder of the unlinked record at ``path``, which logs of an earlier version lack. Return False if
        ``path`` is not that of an unlinked record, or if its log does not exist."""
        folder = path.rpartition("/")[0]
        if not folder.endswith(f"/{_UNLINKED}"):
            return False
        try:
            self._tree.create(folder)  # without parents, because a deleted log must not come back
        except NodeExistsError:
            return True
        except NoNodeError:
            return False
        except MetadataUnavailableError as error:
            error.outcome = Outcome.NOT_APPLIED  # the write itself was not sent
            raise
        return True

    def _ops(self, write: LogWrite) -> list[Op]:
        if write.version < 0 or (write.txn is not None and (write.txn.version or 0) < 0):
            raise InvalidArgumentError("A log is only written by compare-and-set", value=f"version={write.version}")
        ops: list[Op] = [Set(self._head(write.name), write.head, write.version)]
        if write.txn is not None:
            path = self._txn(write.name, write.txn.key)
            version = write.txn.version
            ops.append(Create(path, write.txn.data) if version is None else Set(path, write.txn.data, version))
        if write.unlinked is not None:  # named by the head's new version, which is unique
            ops.append(Create(self._record(write.name, f"{write.version + 1:010d}"), write.unlinked))
        return ops

    def watch_log(self, name: str, callback: Callable[[Versioned[bytes] | None], None]) -> CancelWatch:

        def changed(found: tuple[bytes, NodeStat] | None) -> None:
            callback(None if found is None else Versioned(found[0], found[1].version))

        cancel = self._watch_node(self._head(name), changed)
        if cancel is None:
            _raise_no_such_log(name, None)
        return cancel

    def delete_log(self, name: str, version: int | None = None) -> None:
        path = self._head(name)
        lost: MetadataUnavailableError | None = None
        made_ms: int | None = None
        for _ in range(WRITE_TRIES):
            with looking_after(lost):
                stat = self._stat(path)
            if lost is not None and (stat is None or stat.ctime_ms != made_ms):
                return  # the log was deleted; a log that was created since is another log
            if stat is None:
                _raise_no_such_log(name, None)
            made_ms = stat.ctime_ms
            expected = stat.version if version is None else version
            try:
                self._delete_children(path, expected)
                folders = [Delete(f"{path}/{each}") for each in self._tree.children(path)]
                self._tree.multi([*folders, Delete(path, expected)])
                return
            except (NotEmptyError, NoNodeError):
                continue  # a page was created or deleted meanwhile
            except BadVersionError as error:
                if version is not None:
                    _raise_conflict(error)
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
        raise lost or MetadataConflictError(
            f"The log {name!r} is being written", remedy="stop its writers, then delete it"
        )

    def _delete_children(self, path: str, version: int) -> None:
        """Delete the nodes in the log's folders, in batches. Each batch is deleted only if the head has this
        version."""
        paths = [f"{path}/{folder}/{n}" for folder in _FOLDERS for n in self._names_in(f"{path}/{folder}")]
        for start in range(0, len(paths), _DELETES_AT_ONCE):
            batch = paths[start : start + _DELETES_AT_ONCE]
            self._tree.multi([Check(path, version), *(Delete(child) for child in batch)])

    # --- pages and transactions ---

    def create_page(self, name: str, page: str, data: bytes) -> None:
        """Create a page, as the port says, without its parents. A log that is deleted meanwhile must not come back
        without a head."""
        path = self._page(name, page)
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            try:
                self._tree.create(path, data)
                return
            except NoNodeError as error:
                _raise_no_such_log(name, error)
            except NodeExistsError as error:
                with looking_after(lost):
                    found = self._find(path)
                if found == data:
                    return
                raise MetadataConflictError(
                    "Another page has this name", value=path, remedy="choose a new name"
                ) from error
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
        assert lost is not None
        raise lost

    def read_page(self, name: str, page: str) -> bytes:
        found = self._find(self._page(name, page))
        if found is None:
            raise MetadataCorruptError(f"The log {name!r} has no page {page}", remedy="read the head again")
        return found

    def delete_page(self, name: str, page: str) -> None:
        self._delete_if_there(self._page(name, page))

    def list_pages(self, name: str) -> list[str]:
        return self._names_in(f"{self._head(name)}/{_PAGES}")

    def page_ctime_ms(self, name: str, page: str) -> int | None:
        stat = self._stat(self._page(name, page))
        return None if stat is None else stat.ctime_ms

    def log_clock_ms(self, name: str) -> int:
        """Return the present time by the store's clock. Write a node of the log, and read the time that the store gave
        the write."""
        folder = f"{self._head(name)}/{_UNLINKED}"
        lost: MetadataUnavailableError | None = None
        for _ in range(WRITE_TRIES):
            try:
                self._tree.set(folder, b"", ANY_VERSION)
                stat = self._tree.exists(folder)
            except NoNodeError as error:
                if not self._made_folder(f"{folder}/"):
                    _raise_no_such_log(name, error)
            except MetadataUnavailableError as error:
                lost = first_loss(lost, error)
            else:
                if stat is None:
                    _raise_no_such_log(name, None)
                return stat.mtime_ms
        raise lost or NoSuchLogError("The log's folders are deleted again and again", value=folder)

    def read_unlinked(self, name: str) -> list[tuple[str, int, bytes]]:
        names = self._names_in(f"{self._head(name)}/{_UNLINKED}")
        found = self._tree.get_many([self._record(name, each) for each in names])
        return [(each, node[1].ctime_ms, node[0]) for each, node in zip(names, found, strict=True) if node is not None]

    def delete_unlinked(self, name: str, records: Sequence[str]) -> None:
        for record in records:
            self._delete_if_there(self._record(name, record))

    def read_txns(self, name: str, key: str) -> Versioned[bytes] | None:
        return self._read(self._txn(name, key))

    def list_txns(self, name: str) -> list[str]:
        return self._names_in(f"{self._head(name)}/{_TXNS}")

    def delete_txns(self, name: str, versions: Mapping[str, int], head_version: int) -> None:
        """Delete transaction records, as the port says. The head's version is compared, too, so that a late delete
        cannot remove a record that was deleted and created again."""
        if min(head_version, *versions.values()) < 0:
            raise InvalidArgumentError("A record is only deleted by compare-and-set", value=f"{versions}")
        head = self._head(name)
        try:
            deletes = [Delete(self._txn(name, key), version) for key, version in versions.items()]
            self._tree.multi([Check(head, head_version), *deletes])
        except NoNodeError as error:
            if error.path == head:
                _raise_no_such_log(name, error)
            _raise_conflict(error)
        except BadVersionError as error:
            _raise_conflict(error)


def _raise_no_such_log(name: str, cause: NoNodeError | None) -> NoReturn:
    raise NoSuchLogError(
        f"There is no log {name!r}", remedy="bk log list shows the logs; appending creates a new one"
    ) from cause


def _raise_conflict(error: TreeError) -> NoReturn:
    raise MetadataConflictError("Another client changed a log", value=error.path, remedy="read it again") from error
