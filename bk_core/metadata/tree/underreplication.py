# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the marks of ledgers that lack copies (P8), the locks of the workers that repair them, and the
settings of auto-recovery. They are in Apache's subtree, so that Apache's auto-recovery and ours share them (decision
0049)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from bk_core.errors import InvalidArgumentError, MetadataUnavailableError
from bk_core.metadata.layout import ledger_of_mark, lock_path, mark_path
from bk_core.metadata.port import Audit
from bk_core.metadata.records import (
    UNDERREPLICATION_LAYOUT,
    UnderreplicationMark,
    decode_audit_time,
    decode_lock,
    decode_lost_bookie_delay_s,
    decode_mark,
    encode_audit_time,
    encode_lock,
    encode_mark,
    encode_vote,
    extend_mark,
)
from bk_core.metadata.tree.election import Election, TryAgain
from bk_core.metadata.tree.tree import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ensure_path,
)
from bk_core.metadata.unreadable import NodeKind
from bk_core.model import BookieId, LedgerId, Versioned
from bk_core.observe.audit import audited


class Underreplication(Election):
    """The part of a store that has the subtree ``underreplication``."""

    # --- marks ---

    def mark_underreplicated(self, ledger_id: LedgerId, missing: Sequence[BookieId]) -> None:
        path = self._marks + mark_path(ledger_id)

        def mark() -> None:
            try:
                self._mark(path, missing)
            except (NoNodeError, NodeExistsError, BadVersionError) as error:
                raise TryAgain from error  # the mark changed between our read and our write

        self._settled(mark, f"The mark of ledger {ledger_id}")  # a second mark has the same result

    @property
    def _folder(self) -> str:
        return f"{self._root}/underreplication"

    @property
    def _marks(self) -> str:
        return f"{self._folder}/ledgers"

    def _mark(self, path: str, missing: Sequence[BookieId]) -> None:
        try:
            data, stat = self._tree.get(path)
        except NoNodeError:
            self._make_folders()
            mark = UnderreplicationMark(tuple(dict.fromkeys(missing)), int(time.time() * 1000))
            self._create_with_parents(path, encode_mark(mark))
            return
        with self.unreadable.reading(NodeKind.MARK, path):
            extended = extend_mark(data, missing)
        # The mark is written even if nothing is added, because a repair that began before cannot remove a new version.
        self._tree.set(path, extended, stat.version)

    def _make_folders(self) -> None:
        if self._tree.exists(self._marks) is not None:
            return
        with contextlib.suppress(NodeExistsError):  # Apache checks its content
            self._create_with_parents(f"{self._folder}/LAYOUT", UNDERREPLICATION_LAYOUT)
        ensure_path(self._tree, f"{self._folder}/locks")
        ensure_path(self._tree, self._marks)

    def list_underreplicated(self) -> Iterator[tuple[LedgerId, tuple[BookieId, ...]]]:
        with self.unreadable.whole_walk(NodeKind.MARK, self._marks, nested=True):
            yield from self._walk_marks(self._marks, 4)

    def _walk_marks(self, folder: str, levels: int) -> Iterator[tuple[LedgerId, tuple[BookieId, ...]]]:
        try:
            names = self._tree.children(folder)
        except NoNodeError:
            return  # the ledger was repaired and the folder deleted during the walk
        if levels:
            for name in names:
                yield from self._walk_marks(f"{folder}/{name}", levels - 1)
            return
        for name, node in zip(names, self._tree.get_many([f"{folder}/{name}" for name in names]), strict=True):
            ledger_id, mark = ledger_of_mark(name), None
            if ledger_id is not None and node is not None:
                with self.unreadable.skipping(NodeKind.MARK, f"{folder}/{name}"):
                    mark = decode_mark(node[0])
            if ledger_id is not None and mark is not None:
                yield ledger_id, mark.missing

    def read_underreplicated(self, ledger_id: LedgerId) -> Versioned[UnderreplicationMark] | None:
        path = self._marks + mark_path(ledger_id)
        found = self._read(path)
        if found is None:
            self.unreadable.forget(path)
            return None
        with self.unreadable.reading(NodeKind.MARK, path):
            return Versioned(decode_mark(found.value), found.version)

    def remove_underreplicated(self, ledger_id: LedgerId, version: int) -> bool:
        path, lock = self._marks + mark_path(ledger_id), self._lock_of(ledger_id)

        def remove() -> bool:
            stat = self._tree.exists(lock)
            if stat is None or stat.owner != self._tree.session_id:
                return False  # another session may have removed the mark; a new one may have this version
            try:
                self._tree.multi([Check(lock, stat.version), Delete(path, version)])
            except BadVersionError:
                return False
            except NoNodeError:
                return self._tree.exists(path) is None  # Apache's worker deleted it, or we did and the answer was lost
            return True

        removed = self._settled(remove, f"The mark of ledger {ledger_id}")
        if removed:
            self._prune_marks(path)
        return removed

    def _prune_marks(self, path: str) -> None:
        """Delete the empty folders above a mark that was deleted, as Apache does. The next mark creates them again."""
        with contextlib.suppress(NoNodeError, NotEmptyError, MetadataUnavailableError):
            for _ in range(4):
                path = path.rpartition("/")[0]
                self._tree.delete(path)

    # --- locks ---

    def _lock_of(self, ledger_id: LedgerId) -> str:
        return self._root + lock_path(ledger_id)

    def lock_underreplicated(self, ledger_id: LedgerId, owner: str) -> bool:
        path = self._lock_of(ledger_id)

        def lock() -> bool:
            try:
                self._tree.create(path, encode_lock(owner), ephemeral=True)
                return True
            except NoNodeError as error:
                self._make_folders()
                raise TryAgain from error
            except NodeExistsError as error:
                stat = self._stat(path)
                if stat is None:
                    raise TryAgain from error  # the lock was released in the meantime
                return stat.owner == self._tree.session_id  # it is ours if the answer to an earlier try was lost

        return self._settled(lock, f"The lock of ledger {ledger_id}")

    def unlock_underreplicated(self, ledger_id: LedgerId) -> None:
        self._delete_own(self._lock_of(ledger_id))

    def underreplication_locks(self) -> Mapping[LedgerId, str]:
        found: dict[LedgerId, str] = {}
        folder = f"{self._folder}/locks"
        with self.unreadable.whole_walk(NodeKind.LOCK, folder):
            for name, data, _ in self._nodes(folder):
                ledger_id = ledger_of_mark(name)
                if ledger_id is not None:
                    found[ledger_id] = ""  # an unreadable lock still locks
                    with self.unreadable.skipping(NodeKind.LOCK, f"{folder}/{name}"):
                        found[ledger_id] = decode_lock(data)
        return found

    # --- settings for all auditors and workers ---

    def replication_enabled(self) -> bool:
        return self._stat(f"{self._folder}/disable") is None

    def enable_replication(self, enabled: bool) -> None:
        path = f"{self._folder}/disable"
        with audited("enable-replication" if enabled else "disable-replication"):
            if enabled:
                self._delete_if_there(path)
                return
            self._make_folders()
            with contextlib.suppress(NodeExistsError):
                self._create_with_parents(path, b"")

    def lost_bookie_recovery_delay_s(self) -> int | None:
        return self._setting(NodeKind.DELAY, "lostBookieRecoveryDelay", decode_lost_bookie_delay_s)

    def _setting(self, kind: NodeKind, name: str, decode: Callable[[bytes], int | None]) -> int | None:
        """Return a setting for all auditors, or None if it is not set. An unreadable record must not stop an auditor,
        so it counts as not set."""
        path = f"{self._folder}/{name}"
        data = self._find(path)
        if data is None:
            self.unreadable.forget(path)
            return None
        found = None
        with self.unreadable.skipping(kind, path):
            found = decode(data)
        return found

    def set_lost_bookie_recovery_delay_s(self, seconds: int) -> None:
        if not 0 <= seconds < 2**31:
            raise InvalidArgumentError(
                "The delay before a bookie counts as lost is a number of seconds",
                value=f"seconds={seconds}",
                remedy="give 0 or more",
            )
        with audited("set-lost-bookie-delay", seconds=seconds):
            self._put("lostBookieRecoveryDelay", b"%d" % seconds)

    def audit_time_ms(self, audit: Audit) -> int | None:
        return self._setting(NodeKind.AUDIT_TIME, audit.value, decode_audit_time)

    def write_audit_time_ms(self, audit: Audit, time_ms: int) -> None:
        before = self._find(f"{self._folder}/{audit.value}") or b""
        self._put(audit.value, encode_audit_time(time_ms, before))

    def _put(self, name: str, data: bytes) -> None:
        """Write a record without compare-and-set. It holds the last value that an operator or an auditor has set."""
        path = f"{self._folder}/{name}"

        def put() -> None:
            try:
                self._tree.set(path, data, ANY_VERSION)
            except NoNodeError:
                self._make_folders()
                try:
                    self._create_with_parents(path, data)
                except NodeExistsError as error:
                    raise TryAgain from error

        self._settled(put, f"The record {name}")

    # --- the election of an auditor ---

    @property
    def _votes_for_auditor(self) -> str:
        return f"{self._folder}/auditorelection"

    def vote_for_auditor(self, owner: str) -> bool:
        elected = self._vote(self._votes_for_auditor, owner, self._make_folders)
        if elected and self._find(self._votes_for_auditor) != encode_vote(owner):
            self._put("auditorelection", encode_vote(owner))  # for readers of the folder; the votes decide
        return elected

    def withdraw_vote(self) -> None:
        self._withdraw(self._votes_for_auditor)

    def current_auditor(self) -> str | None:
        return self._elected(self._votes_for_auditor)
